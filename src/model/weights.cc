#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "model/activations.h"
#include "model/convert.h"
#include "model/names.h"
#include "model/tensor_check.h"

namespace quire::model {
namespace {

// Scale of dummy biases, sinks and router corrections: visible, and small beside the rest.
constexpr float kDummyVectorSpread = 0.02f;

// Of dummy matrices: uniform with standard deviation 1 / sqrt(inputs), so that a product keeps the size of
// its input.
float matrix_spread(std::int64_t inputs) { return std::sqrt(3.0f / static_cast<float>(inputs)); }

bool is_norm(WeightId id) {
  switch (id) {
    case WeightId::final_norm:
    case WeightId::attn_norm:
    case WeightId::post_attn_norm:
    case WeightId::ffn_norm:
    case WeightId::post_ffn_norm:
    case WeightId::q_norm:
    case WeightId::k_norm:
    case WeightId::q_a_norm:
    case WeightId::kv_a_norm:
      return true;
    default:
      return false;
  }
}

bool is_expert_bias(WeightId id) {
  return id == WeightId::experts_gate_up_bias || id == WeightId::experts_down_bias;
}

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

// A stretch of one tensor that becomes `rows` x `cols` floats; the fields are those of Conversion.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t row_step = 0;
  std::int64_t col_step = 1;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// Walks the model's weights and gives each its place. Run over a measuring Region it only counts.
class Binder {
 public:
  Binder(const ModelSpec& spec, const FoundTensors& found, const ops::Ops& ops, const LoadOptions& options,
         Region& region)
      : spec_(spec), found_(found), ops_(ops), options_(options), region_(region) {}

  Weights bind();

  const std::vector<Conversion>& conversions() const { return conversions_; }
  const std::vector<const checkpoint::TensorInfo*>& converted() const { return converted_; }
  std::int64_t mapped_bytes() const { return mapped_bytes_; }
  // Matrices that are converted to another type than they are stored in, by stored type.
  const std::map<std::string, std::int64_t>& converted_matrices() const { return converted_matrices_; }
  std::int64_t fp8_matrices() const { return fp8_matrices_; }

 private:
  const FoundTensor* find(WeightId id, std::int32_t layer = -1, std::int32_t expert = -1,
                          bool scale = false) const;
  bool stays_mapped(const FoundTensor& entry) const;
  DummySource dummy_source(const ExpectedWeight& expected, bool fold) const;
  void convert(const FoundTensor& entry, const Slice& slice, DType type, void* target);
  // Room for `count` elements of a converted matrix.
  char* take_matrix(std::int64_t count) { return region_.take_array<char>(count * matrix_bytes_); }
  void count_converted(const FoundTensor& entry);

  const float* vector(WeightId id, std::int32_t layer = -1);
  WeightView matrix(WeightId id, std::int32_t layer = -1);
  WeightView fp8_matrix(const FoundTensor& entry);
  // The scales of an e4m3 matrix, into its view.
  void set_scales(WeightId id, std::int32_t layer, WeightView& view);
  MlpWeights mlp(WeightId gate, WeightId up, WeightId down, std::int32_t layer);
  WeightView expert_stack(WeightId id, std::int32_t layer);
  void stacked_experts(std::int32_t layer, LayerWeights& weights);
  const float* strided_vector(const FoundTensor& entry, std::int64_t rows, std::int64_t cols,
                              std::int64_t begin, std::int64_t step);
  WeightView transposed_stack(const FoundTensor& entry, std::int64_t rows, std::int64_t begin,
                              std::int64_t step);
  void latent_heads(std::int32_t layer, LayerWeights& weights);
  LayerWeights layer(std::int32_t number);
  const float* inverse_frequencies(const RopeSpec& rope);

  WeightView view_of(const void* data, std::int64_t rows, std::int64_t cols, std::int64_t experts) const {
    const WeightFormat format = options_.matrices == DType::bf16 ? WeightFormat::bf16 : WeightFormat::f32;
    const std::int64_t row = cols * matrix_bytes_;
    return WeightView{data, format, rows, cols, row, experts, experts > 1 ? rows * row : 0};
  }

  const ModelSpec& spec_;
  const FoundTensors& found_;
  const ops::Ops& ops_;
  const LoadOptions& options_;
  Region& region_;
  std::vector<Conversion> conversions_;
  std::vector<const checkpoint::TensorInfo*> converted_;
  const std::int64_t matrix_bytes_ = static_cast<std::int64_t>(dtype_bytes(options_.matrices));
  std::int64_t mapped_bytes_ = 0;
  std::map<std::string, std::int64_t> converted_matrices_;
  std::int64_t fp8_matrices_ = 0;
  std::vector<std::vector<float>> inv_freq_;  // sources of conversions
};

const FoundTensor* Binder::find(WeightId id, std::int32_t layer, std::int32_t expert, bool scale) const {
  const auto it = found_.find(weight_key(id, layer, expert, scale));
  return it == found_.end() ? nullptr : &it->second;
}

bool Binder::stays_mapped(const FoundTensor& entry) const {
  if (entry.tensor == nullptr || options_.apart) return false;
  const WeightFormat format = *entry.tensor->format;
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(entry.tensor->data);
  if (format == WeightFormat::f32) return address % alignof(float) == 0;
  const ops::LinearFormat* line = find_linear_format(ops_, format);
  if (line == nullptr || address % 2 != 0) return false;
  if (spec_.source == checkpoint::Source::gguf) return true;
  // Looking up a row is exact in any type; a product is only where the activations stay f32.
  const bool only_looked_up = entry.expected.id == WeightId::embed && !spec_.tied;
  return only_looked_up || line->activation == "f32";
}

DummySource Binder::dummy_source(const ExpectedWeight& expected, bool fold) const {
  DummySource dummy;
  std::uint64_t hash = 0xcbf29ce484222325ull ^ options_.dummy_seed;  // FNV-1a
  for (const char letter : expected.name)
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ull;
  dummy.key = hash;
  if (is_norm(expected.id)) {
    dummy.centre = fold ? 0.0f : 1.0f;
  } else if (expected.part != WeightPart::whole) {
    dummy.spread = expected.part == WeightPart::fp8 ? kFp8E4m3Max : 0.0f;
  } else if (expected.shape.size() == 1 || is_expert_bias(expected.id)) {
    dummy.spread = kDummyVectorSpread;
  } else {
    dummy.spread = matrix_spread(expected.shape[1]);
  }
  return dummy;
}

void Binder::count_converted(const FoundTensor& entry) {
  const WeightFormat target = options_.matrices == DType::bf16 ? WeightFormat::bf16 : WeightFormat::f32;
  if (entry.tensor != nullptr && *entry.tensor->format != target)
    ++converted_matrices_[std::string(weight_format_info(*entry.tensor->format).name)];
}

void Binder::convert(const FoundTensor& entry, const Slice& slice, DType type, void* target) {
  Conversion c;
  c.name = entry.expected.name;
  c.type = type;
  c.begin = slice.begin;
  c.row_step = slice.row_step;
  c.col_step = slice.col_step;
  c.rows = slice.rows;
  c.cols = slice.cols;
  c.target = target;
  const bool fold = spec_.norm_plus_one && is_norm(entry.expected.id);
  c.add = fold ? 1.0f : 0.0f;
  if (entry.tensor != nullptr) {
    c.source = entry.tensor->data;
    c.format = *entry.tensor->format;
    if (converted_.empty() || converted_.back() != entry.tensor) converted_.push_back(entry.tensor);
  } else {
    c.dummy = dummy_source(entry.expected, fold);
  }
  conversions_.push_back(c);
}

const float* Binder::vector(WeightId id, std::int32_t layer) {
  const FoundTensor* entry = find(id, layer);
  if (entry == nullptr) return nullptr;
  const std::int64_t count = elements(entry->expected.shape);
  float* target = region_.take_array<float>(count);
  convert(*entry, Slice{.rows = 1, .cols = count}, DType::f32, target);
  return target;
}

WeightView Binder::matrix(WeightId id, std::int32_t layer) {
  const FoundTensor* entry = find(id, layer);
  if (entry == nullptr) return {};
  if (entry->expected.part == WeightPart::fp8) return fp8_matrix(*entry);
  const std::int64_t rows = entry->expected.shape[0];
  const std::int64_t cols = entry->expected.shape[1];
  if (stays_mapped(*entry)) {
    mapped_bytes_ += entry->tensor->bytes;
    const WeightFormat format = *entry->tensor->format;
    return WeightView{entry->tensor->data, format, rows, cols, weight_row_bytes(format, cols), 1, 0};
  }
  count_converted(*entry);
  char* target = take_matrix(rows * cols);
  convert(*entry, Slice{.row_step = cols, .rows = rows, .cols = cols}, options_.matrices, target);
  return view_of(target, rows, cols, 1);
}

WeightView Binder::fp8_matrix(const FoundTensor& entry) {
  ++fp8_matrices_;
  const std::int64_t rows = entry.expected.shape[0];
  const std::int64_t cols = entry.expected.shape[1];
  WeightView view{nullptr, WeightFormat::fp8_e4m3, rows, cols, cols};
  if (entry.tensor != nullptr && !options_.apart) {
    mapped_bytes_ += entry.tensor->bytes;
    view.data = entry.tensor->data;
    return view;
  }
  char* target = region_.take_array<char>(rows * cols);
  convert(entry, Slice{.row_step = cols, .rows = rows, .cols = cols}, DType::fp8_e4m3, target);
  view.data = target;
  return view;
}

void Binder::set_scales(WeightId id, std::int32_t layer, WeightView& view) {
  const FoundTensor* entry = find(id, layer, -1, true);
  if (entry == nullptr) return;
  float* target = region_.take_array<float>(view.rows);
  const std::int64_t step = entry->expected.shape.size() == 2 ? 1 : 0;  // 0: one for all
  convert(*entry, Slice{.col_step = step, .rows = 1, .cols = view.rows}, DType::f32, target);
  // Dummy weights span e4m3's range: the scale gives them the size that others have.
  if (entry->tensor == nullptr) conversions_.back().dummy.centre = matrix_spread(view.cols) / kFp8E4m3Max;
  view.row_scale = target;
}

MlpWeights Binder::mlp(WeightId gate, WeightId up, WeightId down, std::int32_t layer) {
  return {matrix(gate, layer), matrix(up, layer), matrix(down, layer)};
}

// One tensor per expert becomes one stack.
WeightView Binder::expert_stack(WeightId id, std::int32_t layer) {
  const FoundTensor* first = find(id, layer, 0);
  if (first == nullptr) return {};
  const std::int64_t rows = first->expected.shape[0];
  const std::int64_t cols = first->expected.shape[1];
  const std::int64_t experts = spec_.moe->experts;
  char* target = take_matrix(experts * rows * cols);
  for (std::int64_t e = 0; e < experts; ++e) {
    const FoundTensor* entry = find(id, layer, static_cast<std::int32_t>(e));
    convert(*entry, Slice{.row_step = cols, .rows = rows, .cols = cols}, options_.matrices,
            target + e * rows * cols * matrix_bytes_);
  }
  count_converted(*first);
  return view_of(target, rows, cols, experts);
}

// [experts, in, all outputs] -> [experts, rows, in], taking output begin + r * step for row r.
WeightView Binder::transposed_stack(const FoundTensor& entry, std::int64_t rows, std::int64_t begin,
                                    std::int64_t step) {
  const std::int64_t experts = entry.expected.shape[0];
  const std::int64_t in = entry.expected.shape[1];
  const std::int64_t out = entry.expected.shape[2];
  char* target = take_matrix(experts * rows * in);
  for (std::int64_t e = 0; e < experts; ++e) {
    const Slice slice{
        .begin = e * in * out + begin, .row_step = step, .col_step = out, .rows = rows, .cols = in};
    convert(entry, slice, options_.matrices, target + e * rows * in * matrix_bytes_);
  }
  count_converted(entry);
  return view_of(target, rows, in, experts);
}

const float* Binder::strided_vector(const FoundTensor& entry, std::int64_t rows, std::int64_t cols,
                                    std::int64_t begin, std::int64_t step) {
  float* target = region_.take_array<float>(rows * cols);
  const Slice slice{.begin = begin, .row_step = cols * step, .col_step = step, .rows = rows, .cols = cols};
  convert(entry, slice, DType::f32, target);
  return target;
}

void Binder::stacked_experts(std::int32_t layer, LayerWeights& weights) {
  const FoundTensor* gate_up = find(WeightId::experts_gate_up, layer);
  if (gate_up == nullptr) return;
  const std::int64_t inter = spec_.moe->intermediate;
  const std::int64_t experts = spec_.moe->experts;
  weights.experts.gate = transposed_stack(*gate_up, inter, 0, 2);
  weights.experts.up = transposed_stack(*gate_up, inter, 1, 2);
  weights.experts.down = transposed_stack(*find(WeightId::experts_down, layer), spec_.hidden, 0, 1);
  if (const FoundTensor* bias = find(WeightId::experts_gate_up_bias, layer)) {
    weights.experts_gate_bias = strided_vector(*bias, experts, inter, 0, 2);
    weights.experts_up_bias = strided_vector(*bias, experts, inter, 1, 2);
  }
  if (const FoundTensor* bias = find(WeightId::experts_down_bias, layer))
    weights.experts_down_bias = strided_vector(*bias, experts, spec_.hidden, 0, 1);
}

// kv_b holds per head `nope` rows for K and `v` rows for V, over the latent. V's product is a view of it;
// K's is turned around: q_nope . (W latent) = (W^T q_nope) . latent.
void Binder::latent_heads(std::int32_t layer, LayerWeights& weights) {
  const LatentSpec& latent = *spec_.latent;
  const FoundTensor* entry = find(WeightId::kv_b, layer);
  const std::int64_t heads = spec_.q_heads;
  const std::int64_t rank = latent.kv_lora_rank;
  const std::int64_t head_rows = latent.nope_dim + latent.v_dim;
  char* target = take_matrix(heads * rank * latent.nope_dim);
  for (std::int64_t h = 0; h < heads; ++h) {
    const Slice slice{.begin = h * head_rows * rank,
                      .row_step = 1,
                      .col_step = rank,
                      .rows = rank,
                      .cols = latent.nope_dim};
    convert(*entry, slice, options_.matrices, target + h * rank * latent.nope_dim * matrix_bytes_);
  }
  weights.up_k = view_of(target, rank, latent.nope_dim, heads);
  weights.up_v = weights.kv_b;
  weights.up_v.data = static_cast<const char*>(weights.kv_b.data) + latent.nope_dim * weights.kv_b.row_bytes;
  weights.up_v.rows = latent.v_dim;
  weights.up_v.experts = heads;
  weights.up_v.expert_bytes = head_rows * weights.kv_b.row_bytes;
}

LayerWeights Binder::layer(std::int32_t n) {
  LayerWeights w;
  w.attn_norm = vector(WeightId::attn_norm, n);
  w.post_attn_norm = vector(WeightId::post_attn_norm, n);
  w.ffn_norm = vector(WeightId::ffn_norm, n);
  w.post_ffn_norm = vector(WeightId::post_ffn_norm, n);
  w.q = matrix(WeightId::q, n);
  w.k = matrix(WeightId::k, n);
  w.v = matrix(WeightId::v, n);
  w.o = matrix(WeightId::o, n);
  w.q_bias = vector(WeightId::q_bias, n);
  w.k_bias = vector(WeightId::k_bias, n);
  w.v_bias = vector(WeightId::v_bias, n);
  w.o_bias = vector(WeightId::o_bias, n);
  w.q_norm = vector(WeightId::q_norm, n);
  w.k_norm = vector(WeightId::k_norm, n);
  w.sinks = vector(WeightId::sinks, n);
  w.q_a = matrix(WeightId::q_a, n);
  w.q_a_norm = vector(WeightId::q_a_norm, n);
  w.q_b = matrix(WeightId::q_b, n);
  w.kv_a = matrix(WeightId::kv_a, n);
  w.kv_a_norm = vector(WeightId::kv_a_norm, n);
  w.kv_b = matrix(WeightId::kv_b, n);
  if (spec_.latent) latent_heads(n, w);
  w.mlp = mlp(WeightId::gate, WeightId::up, WeightId::down, n);
  w.shared = mlp(WeightId::shared_gate, WeightId::shared_up, WeightId::shared_down, n);
  w.router = matrix(WeightId::router, n);
  w.router_bias = vector(WeightId::router_bias, n);
  w.router_correction = vector(WeightId::router_correction, n);
  w.experts = {expert_stack(WeightId::expert_gate, n), expert_stack(WeightId::expert_up, n),
               expert_stack(WeightId::expert_down, n)};
  stacked_experts(n, w);
  // Behind the matrices, so that these lie side by side, and the scales of neighbours do, too.
  const std::pair<WeightId, WeightView*> linear[] = {{WeightId::q, &w.q},           {WeightId::k, &w.k},
                                                     {WeightId::v, &w.v},           {WeightId::o, &w.o},
                                                     {WeightId::gate, &w.mlp.gate}, {WeightId::up, &w.mlp.up},
                                                     {WeightId::down, &w.mlp.down}};
  for (const auto& [id, view] : linear) set_scales(id, n, *view);
  return w;
}

Weights Binder::bind() {
  Weights weights;
  weights.embed = matrix(WeightId::embed);
  weights.lm_head = spec_.tied ? weights.embed : matrix(WeightId::lm_head);
  set_scales(WeightId::lm_head, -1, weights.lm_head);
  weights.final_norm = vector(WeightId::final_norm);
  for (std::size_t i = 0; i < spec_.layers.size(); ++i)
    weights.layers.push_back(layer(static_cast<std::int32_t>(i)));
  for (const RopeSpec& rope : spec_.ropes) weights.inv_freq.push_back(inverse_frequencies(rope));
  return weights;
}

const float* Binder::inverse_frequencies(const RopeSpec& rope) {
  const std::vector<double> values = rope_inv_freq(rope);
  const std::vector<float>& source = inv_freq_.emplace_back(values.begin(), values.end());
  Conversion c;
  c.source = reinterpret_cast<const std::byte*>(source.data());
  c.rows = 1;
  c.cols = std::ssize(source);
  c.target = region_.take_array<float>(c.cols);
  conversions_.push_back(c);
  return static_cast<const float*>(c.target);
}

// A few stretches of both tell: another matrix differs everywhere, and a whole one takes long to read.
bool same_tensor(const checkpoint::TensorInfo& a, const checkpoint::TensorInfo& b) {
  if (a.type != b.type || a.shape != b.shape || a.bytes != b.bytes) return false;
  constexpr std::int64_t kStretches = 16, kBytes = 4096;
  const std::int64_t bytes = std::min(a.bytes, kBytes);
  for (std::int64_t i = 0; i < kStretches; ++i) {
    const std::int64_t at = (a.bytes - bytes) / (kStretches - 1) * i;
    if (std::memcmp(a.data + at, b.data + at, static_cast<std::size_t>(bytes)) != 0) return false;
  }
  return true;
}

// A tied model whose file has an output matrix of its own all the same.
bool has_unread_head(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint) {
  if (!spec.tied || spec.source != checkpoint::Source::huggingface) return false;
  const checkpoint::TensorInfo* head = checkpoint.find("lm_head.weight");
  const checkpoint::TensorInfo* embedding = checkpoint.find(weight_name(spec, WeightId::embed));
  return head != nullptr && embedding != nullptr && !same_tensor(*head, *embedding);
}

std::vector<std::string> notes_of(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                                  const Binder& binder, const ops::Ops& ops, const LoadOptions& options) {
  std::vector<std::string> notes;
  const std::string_view type = to_string(options.matrices);
  if (binder.fp8_matrices() > 0) {
    const ops::LinearFormat& line = *find_linear_format(ops, WeightFormat::fp8_e4m3);
    notes.push_back(fmt::format(
        "{} F8_E4M3 matrices with scales; activations are {} and {}", binder.fp8_matrices(), line.activation,
        line.rounded_activation.empty() ? std::string("not rounded further")
                                        : fmt::format("rounded to {}", line.rounded_activation)));
  }
  if (!options.dummy && has_unread_head(spec, checkpoint))
    notes.emplace_back(
        "lm_head.weight is not the embedding and not read: tie_word_embeddings makes the embedding the "
        "output matrix");
  if (options.dummy) notes.push_back(fmt::format("random {} weights, seed {}", type, options.dummy_seed));
  for (const auto& [stored, count] : binder.converted_matrices()) {
    notes.push_back(
        options.apart
            ? fmt::format("{} {} matrices become {} at load: what {} multiplies", count, stored, type,
                          ops.name())
            : fmt::format("{} {} matrices are expanded to {} at load: stacked experts, and what {} cannot "
                          "multiply where it lies",
                          count, stored, type, ops.name()));
  }
  return notes;
}

}  // namespace

Result<WeightPlan> plan_weights(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                                const ops::Ops& ops, const LoadOptions& options) {
  QUIRE_TRY(found, check_tensors(spec, checkpoint, ops, options));
  Region measure(nullptr);
  Binder binder(spec, found, ops, options, measure);
  binder.bind();
  WeightPlan plan;
  plan.mapped_bytes = binder.mapped_bytes();
  plan.private_bytes = measure.used();
  for (const auto& [key, entry] : found)
    if (entry.expected.part != WeightPart::fp8_scale) plan.parameters += elements(entry.expected.shape);
  plan.notes = notes_of(spec, checkpoint, binder, ops, options);
  return plan;
}

Result<Weights> load_weights(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                             const ops::Ops& ops, platform::Device& device, const LoadOptions& options) {
  QUIRE_TRY(found, check_tensors(spec, checkpoint, ops, options));
  QUIRE_TRY_STATUS(check_scales(spec, checkpoint, found));
  Region measure(nullptr);
  Binder(spec, found, ops, options, measure).bind();
  QUIRE_TRY(memory, device.allocate(std::max<std::int64_t>(measure.used(), 64), "weights"));
  Region region(memory->data());
  Binder binder(spec, found, ops, options, region);
  Weights weights = binder.bind();
  QUIRE_CHECK(region.used() == measure.used(), "used={} planned={}", region.used(), measure.used());
  if (const Status done = run_conversions(binder.conversions(), device, options.threads); !done.ok())
    return Error{done.error().code, fmt::format("{}: {}", checkpoint.path(), done.error().message)};
  for (const checkpoint::TensorInfo* tensor : binder.converted()) checkpoint.release(*tensor);
  weights.memory = std::move(memory);
  return weights;
}

}  // namespace quire::model
