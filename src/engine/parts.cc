#include "engine/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/limits.h"
#include "platform/cpu/isa.h"

namespace quire::engine {
namespace {

// A recorded operation. On the CPU: its closure and the graph's own header; arguments of the largest ops are
// some 600 bytes. On a GPU: what the driver keeps of a kernel and its arguments on the device.
constexpr std::int64_t kGraphNodeBytes = 640;
constexpr std::int64_t kGpuGraphNodeBytes = 4096;
constexpr std::int64_t kGraphNodesPerLayer = 14;
constexpr std::int64_t kGraphNodesPerStep = 24;
constexpr std::int64_t kKvScaleBytes = 2 * sizeof(float);  // of K and of V, for KvScaleKind::tensor

class Assembler {
 public:
  Assembler(const std::string& path, const Options& options, std::span<const attention::Backend> table)
      : path_(path), options_(options), table_(table), parts_(std::make_unique<EngineParts>()) {}

  Result<std::unique_ptr<EngineParts>> run() {
    QUIRE_TRY_STATUS(decide());
    if (!parts_->spec.dummy && !parts_->checkpoint->has_weights())
      return bad_input(fmt::format(
          "{} has no weight files: use --load-format dummy to run it with random weights", path_));
    QUIRE_TRY_STATUS(list(load_options(parts_->spec.dummy)));
    QUIRE_TRY_STATUS(parts_->ledger.check(parts_->device->memory().available_bytes));
    QUIRE_TRY_STATUS(load());
    QUIRE_TRY_STATUS(allocate());
    QUIRE_TRY_STATUS(bind());
    return std::move(parts_);
  }

  Result<EngineSurvey> survey() {
    QUIRE_TRY_STATUS(decide());
    // A config alone is surveyed as what dummy weights would hold.
    QUIRE_TRY_STATUS(list(load_options(parts_->spec.dummy || !parts_->checkpoint->has_weights())));
    return EngineSurvey{.architecture = model_spec_.architecture,
                        .layers = static_cast<std::int32_t>(model_spec_.layers.size()),
                        .parameters = weights_.parameters,
                        .weights_bytes = weights_.mapped_bytes + weights_.private_bytes,
                        .spec = std::move(parts_->spec),
                        .kv = std::move(parts_->kv),
                        .ledger = parts_->ledger,
                        .available_bytes = parts_->device->memory().available_bytes,
                        .notes = parts_->notes};
  }

 private:
  Status decide();
  void trace_graphs();
  Status load();
  Status list(const model::LoadOptions& load);
  Status allocate();
  // Device memory that is the process's own from now on, so that the ledger is what the process holds. (The
  // KV arena alone becomes so with use.)
  Result<std::unique_ptr<platform::Buffer>> take(std::int64_t bytes, const std::string& owner);
  Status bind();
  Status bind_kv();
  ops::OpsLimits ops_limits() const;
  attention::Limits attention_limits(const attention::Pick& pick) const;
  std::vector<attention::Limits> all_attention_limits() const;
  model::ModelLimits model_limits() const {
    return {parts_->spec.max_total_q(), parts_->spec.max_context, parts_->spec.max_running,
            parts_->spec.compute};
  }
  StepLimits step_limits() const;
  bool host_memory() const { return parts_->device->info().host_memory; }
  model::LoadOptions load_options(bool dummy) const {
    return {
        .dummy = dummy, .apart = !host_memory(), .matrices = parts_->spec.compute, .threads = load_threads_};
  }

  const std::string& path_;
  const Options& options_;
  std::span<const attention::Backend> table_;  // empty until decide(): the build's
  std::unique_ptr<EngineParts> parts_;
  int load_threads_ = 1;  // the host's, also where a GPU computes
  model::ModelSpec model_spec_;
  model::WeightPlan weights_;
};

Status Assembler::decide() {
  QUIRE_TRY(checkpoint, checkpoint::open_checkpoint(path_));
  parts_->checkpoint = std::move(checkpoint);
  QUIRE_TRY(model_spec, model::read_spec(*parts_->checkpoint));
  model_spec_ = std::move(model_spec);
  QUIRE_TRY(threads, plan_threads(options_, platform::cpu::usable_threads()));
  load_threads_ = threads.compute;
  QUIRE_TRY(device, platform::open_device(options_.device, threads));
  parts_->device = std::move(device);
  const platform::DeviceInfo& info = parts_->device->info();
  if (table_.empty()) table_ = attention::backends(info.kind);
  QUIRE_TRY(spec, resolve(options_, model_spec_, info, table_));
  parts_->spec = std::move(spec);
  parts_->spec.trace.push_back(
      fmt::format("{} threads convert weights: {}", load_threads_,
                  options_.threads > 0 ? "asked for" : "the processors of the host"));
  parts_->ops = ops::make_ops(*parts_->device);
  QUIRE_CHECK(parts_->ops->determinism() >= parts_->spec.determinism, "{} are below what resolve() took",
              parts_->ops->name());
  trace_graphs();
  return {};
}

void Assembler::trace_graphs() {
  EngineSpec& spec = parts_->spec;
  for (const attention::Pick& pick : spec.selection.picks) {
    const bool decode = pick.call.problem.phase == attention::Phase::decode;
    if (!decode || pick.backend->caps.capture != attention::Capture::no || !spec.graphs) continue;
    spec.trace.push_back(fmt::format("decode graphs in pieces: {} of {} cannot be recorded",
                                     pick.backend->name, pick.call.name));
  }
}

Status Assembler::load() {
  QUIRE_TRY(model, model::load_model(model_spec_, *parts_->checkpoint, *parts_->ops, *parts_->device,
                                     load_options(parts_->spec.dummy), parts_->spec.level));
  parts_->model = std::move(model);
  return {};
}

ops::OpsLimits Assembler::ops_limits() const {
  return model::ops_limits(model_spec_, model_limits(), step_limits().max_logit_rows(),
                           parts_->spec.threads.compute);
}

attention::Limits Assembler::attention_limits(const attention::Pick& pick) const {
  const bool decode = pick.call.problem.phase == attention::Phase::decode;
  attention::Limits limits;
  limits.max_batch = parts_->spec.max_running;
  limits.max_total_q = decode ? parts_->spec.max_running : parts_->spec.max_total_q();
  limits.max_q = decode ? 1 : parts_->spec.chunk_tokens;
  limits.max_kv = parts_->spec.max_context;
  limits.threads = parts_->spec.threads.compute;
  return limits;
}

std::vector<attention::Limits> Assembler::all_attention_limits() const {
  std::vector<attention::Limits> limits;
  for (const attention::Pick& pick : parts_->spec.selection.picks) limits.push_back(attention_limits(pick));
  return limits;
}

StepLimits Assembler::step_limits() const {
  const EngineSpec& spec = parts_->spec;
  StepLimits limits;
  limits.max_batch = spec.max_running;
  limits.max_total_q = spec.max_total_q();
  limits.slots = spec.max_running + 1;
  limits.max_context = spec.max_context;
  limits.page_size = spec.page_size();
  limits.groups = static_cast<std::int32_t>(spec.groups.size());
  limits.hidden = model_spec_.hidden;
  limits.vocab = model_spec_.vocab;
  limits.compute = spec.compute;
  // Per group: a page for every token at worst, one more per row for what straddles a border, and the pages
  // that newcomers share (Scheduler::most_updates).
  const auto longest_row = static_cast<std::int32_t>(limits.table_stride());
  limits.max_deltas = limits.groups * (longest_row + limits.max_total_q + limits.max_batch);
  return limits;
}

Status Assembler::list(const model::LoadOptions& load) {
  EngineSpec& spec = parts_->spec;
  Ledger& ledger = parts_->ledger;
  QUIRE_TRY(weights, model::plan_weights(model_spec_, *parts_->checkpoint, *parts_->ops, load));
  weights_ = weights;
  parts_->notes = weights.notes;
  ledger.add_mapped("weights in the file", weights.mapped_bytes);
  ledger.add("weights", weights.private_bytes);
  const std::unique_ptr<model::Model> outline =
      model::outline_model(model_spec_, *parts_->device, spec.level);
  ledger.add("operations' workspace", parts_->ops->workspace_bytes(ops_limits()));
  ledger.add("activations", outline->activation_bytes(model_limits()));
  StepBuffers::plan(step_limits(), host_memory(), ledger);
  for (const attention::Pick& pick : spec.selection.picks) {
    parts_->attentions.push_back(pick.backend->make(pick.call.problem, *parts_->device));
    ledger.add(fmt::format("attention plan {}", pick.call.name),
               parts_->attentions.back()->workspace_bytes(attention_limits(pick)));
  }
  QUIRE_TRY(observer, Observer::create(options_, spec, table_, *parts_->device));
  parts_->observer = std::move(observer);
  if (parts_->observer != nullptr) parts_->observer->list(spec, all_attention_limits(), ledger);
  if (spec.graphs) {
    const auto buckets =
        static_cast<std::int64_t>(Executor::buckets_of(spec.max_running, host_memory()).size());
    const auto layers = static_cast<std::int64_t>(model_spec_.layers.size());
    ledger.add("decode graphs", buckets * (layers * kGraphNodesPerLayer + kGraphNodesPerStep) *
                                    (host_memory() ? kGraphNodeBytes : kGpuGraphNodeBytes));
  }
  ledger.add("KV scales", kKvScaleBytes);
  QUIRE_TRY(kv, plan_kv(spec, parts_->device->memory().available_bytes - ledger.private_bytes()));
  parts_->kv = std::move(kv);
  ledger.add("KV arena", parts_->kv.bytes);
  if (spec.prefix_cache) {
    const std::int64_t bytes = prefix_tree_bytes(parts_->kv);
    host_memory() ? ledger.add("prefix tree", bytes) : ledger.add_host("prefix tree", bytes);
  }
  spec.trace.push_back(fmt::format("KV memory {}, {} tokens for one sequence: {}",
                                   bytes_to_string(parts_->kv.bytes), parts_->kv.capacity_tokens,
                                   parts_->kv.because));
  return {};
}

Result<std::unique_ptr<platform::Buffer>> Assembler::take(std::int64_t bytes, const std::string& owner) {
  QUIRE_TRY(buffer, parts_->device->allocate(bytes, owner));
  if (!kPoison) parts_->stream->fill(buffer->data(), 0, bytes);
  return std::move(buffer);
}

Status Assembler::allocate() {
  EngineParts& parts = *parts_;
  parts.stream = parts.device->make_stream();
  parts.crash_note.set(fmt::format("memory ledger of {}:\n{}", path_, to_string(parts.ledger.lines())));
  const ops::OpsLimits limits = ops_limits();
  QUIRE_TRY(workspace, take(parts.ops->workspace_bytes(limits), "operations' workspace"));
  parts.ops_memory = std::move(workspace);
  parts.stream->synchronize();
  parts.ops->set_workspace(parts.ops_memory->data(), parts.ops_memory->bytes(), limits);
  const std::int64_t activation_bytes = parts.model->activation_bytes(model_limits());
  QUIRE_TRY(activations, take(activation_bytes, "activations"));
  parts.activations = std::move(activations);
  parts.model->set_activations(parts.activations->data(), activation_bytes, model_limits());
  for (std::size_t c = 0; c < parts.attentions.size(); ++c) {
    const attention::Pick& pick = parts.spec.selection.picks[c];
    const std::int64_t bytes = parts.attentions[c]->workspace_bytes(attention_limits(pick));
    QUIRE_TRY(memory, take(bytes, fmt::format("attention plan {}", pick.call.name)));
    parts.plan_memory.push_back(std::move(memory));
    attention::Attention* backend = parts.attentions[c].get();
    if (parts.observer != nullptr) backend = parts.observer->tap(c, *backend, parts.spec);
    parts.calls.push_back({pick.call.name,
                           backend,
                           {parts.plan_memory[c]->data(), bytes},
                           pick.backend->caps.capture != attention::Capture::no});
  }
  if (parts.observer != nullptr)
    QUIRE_TRY_STATUS(
        parts.observer->open(model_spec_.architecture, parts.spec, all_attention_limits(), *parts.device));
  QUIRE_TRY(buffers, StepBuffers::make(step_limits(), *parts.device));
  parts.buffers = std::move(buffers);
  QUIRE_TRY(arena, parts.device->reserve_arena(parts.kv.bytes));
  parts.arena = std::move(arena);
  return parts.arena->back(parts.kv.bytes);
}

Status Assembler::bind_kv() {
  EngineParts& parts = *parts_;
  QUIRE_TRY(scales, parts.device->allocate(kKvScaleBytes, "KV scales"));
  parts.kv_scales = std::move(scales);
  const float pair[2] = {parts.spec.kv_scale, parts.spec.kv_scale};
  parts.stream->copy(parts.kv_scales->data(), pair, sizeof(pair));
  parts.stream->synchronize();
  const float* scale = parts.kv_scales->as<float>();
  std::vector<std::vector<KvView>> views(parts.kv.layouts.size());
  for (std::size_t g = 0; g < views.size(); ++g) {
    const KvLayout& layout = parts.kv.layouts[g];
    const bool fixed = layout.format().scale == KvScaleKind::tensor;
    for (int layer = 0; layer < static_cast<int>(layout.layers().size()); ++layer)
      views[g].push_back(
          layout.view(parts.arena->base(), layer, fixed ? scale : nullptr, fixed ? scale + 1 : nullptr));
  }
  parts.copy_layers.resize(views.size());
  for (std::size_t g = 0; g < views.size(); ++g) {
    for (std::size_t layer = 0; layer < views[g].size(); ++layer) {
      const KvLayerShape& shape = parts.kv.layouts[g].layers()[layer];
      if (shape.shares_layer < 0)
        parts.copy_layers[g].push_back(
            {views[g][layer], shape.kv_heads, shape.qk_dim, shape.latent ? 0 : shape.v_dim});
    }
  }
  parts.model->set_kv(views);
  return {};
}

Status Assembler::bind() {
  EngineParts& parts = *parts_;
  for (auto& event : parts.events) event = parts.device->make_event();
  QUIRE_TRY_STATUS(bind_kv());
  parts.buffers->clear(*parts.stream, !kPoison);
  std::int32_t padded_kv_len = 0;
  for (const attention::Pick& pick : parts.spec.selection.picks)
    padded_kv_len = std::max(padded_kv_len, pick.backend->caps.padded_row_len);
  parts.executor = std::make_unique<Executor>(Executor::Parts{
      *parts.buffers, *parts.model, *parts.ops, *parts.stream, parts.calls, padded_kv_len, host_memory()});
  if (parts.spec.graphs) {
    const std::size_t recorded = parts.executor->record(kRecordSeconds);
    if (recorded < parts.executor->buckets())
      parts.notes.push_back(
          fmt::format("{} of {} batch sizes are recorded, the smallest, within {} s; others run "
                      "eagerly",
                      recorded, parts.executor->buckets(), kRecordSeconds));
  }
  parts.stream->synchronize();
  return {};
}

}  // namespace

EngineParts::~EngineParts() {
  if (stream) stream->synchronize();
}

Result<EngineSurvey> survey(const std::string& model, const Options& options) {
  return Assembler(model, options, {}).survey();
}

Result<std::unique_ptr<EngineParts>> assemble(const std::string& model, const Options& options,
                                              std::span<const attention::Backend> table) {
  return Assembler(model, options, table).run();
}

}  // namespace quire::engine
