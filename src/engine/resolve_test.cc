#include "engine/resolve.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/json.h"
#include "engine/kv_plan.h"
#include "engine/limits.h"

namespace quire::engine {
namespace {

constexpr std::string_view kLlama =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,
"intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,
"vocab_size":100,"max_position_embeddings":512,"rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu",
"tie_word_embeddings":true,"torch_dtype":"bfloat16"})";

constexpr std::string_view kGemma = R"({"architectures":["Gemma3ForCausalLM"],"model_type":"gemma3_text",
"hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,
"head_dim":32,"vocab_size":100,"max_position_embeddings":4096,"rms_norm_eps":1e-5,"query_pre_attn_scalar":32,
"hidden_activation":"gelu_pytorch_tanh","layer_types":["sliding_attention","full_attention"],"sliding_window":48,
"rope_theta":1000000.0,"rope_local_base_freq":10000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16"})";

model::ModelSpec spec_of(std::string_view text) {
  auto document = checkpoint::JsonDocument::parse(text, "config.json");
  EXPECT_TRUE(document.ok()) << document.error().message;
  auto spec = model::read_config_spec(document->root());
  EXPECT_TRUE(spec.ok()) << spec.error().message;
  return *spec;
}

platform::DeviceInfo cpu_info() {
  platform::DeviceInfo info;
  info.name = "a cpu";
  info.cores = 2;
  return info;
}

Result<EngineSpec> resolve_llama(const Options& options) {
  return resolve(options, spec_of(kLlama), cpu_info(), attention::backends(platform::Kind::cpu));
}

bool traced(const EngineSpec& spec, std::string_view text) {
  for (const std::string& line : spec.trace)
    if (line.find(text) != std::string::npos) return true;
  return false;
}

TEST(Resolve, DefaultsHaveReasons) {
  const auto spec = resolve_llama({});
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->max_context, 512);
  EXPECT_EQ(spec->threads.compute, 2);
  EXPECT_EQ(spec->max_running, kAutoRunningCpu);
  EXPECT_EQ(spec->level, Determinism::schedule_invariant);
  EXPECT_EQ(spec->kv_formats.at(0).k_type, DType::bf16);
  EXPECT_EQ(spec->selection.picks.size(), 2u);
  EXPECT_TRUE(traced(*spec, "max context 512: the model's"));
  EXPECT_TRUE(traced(*spec, "page size"));
  EXPECT_TRUE(traced(*spec, "full.decode runs on "));
}

TEST(Resolve, WishesAreKept) {
  Options options;
  options.page_size = 7;
  options.attention_backend = "reference";
  options.kv_dtype = "f32";
  options.max_context = 100;
  options.max_running = 3;
  options.chunk_tokens = 5;
  options.threads = 1;
  const auto spec = resolve_llama(options);
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->page_size(), 7);
  EXPECT_EQ(spec->max_context, 100);
  EXPECT_EQ(spec->max_total_q(), 8);
  EXPECT_EQ(spec->threads.compute, 1);
  for (const attention::Pick& pick : spec->selection.picks) EXPECT_EQ(pick.backend->name, "reference");
}

TEST(Resolve, Fp8ScalesPerTokenUnlessGiven) {
  Options options;
  options.kv_dtype = "fp8_e4m3";
  auto spec = resolve_llama(options);
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->kv_formats.at(0).scale, KvScaleKind::token_head);
  options.kv_scale = 0.5f;
  spec = resolve_llama(options);
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->kv_formats.at(0).scale, KvScaleKind::tensor);
  EXPECT_EQ(spec->kv_scale, 0.5f);
}

TEST(Resolve, RefusalsNameTheNearestLegalChange) {
  struct Case {
    std::function<void(Options&)> change;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {[](Options& o) { o.page_size = 512; }, "use --page-size 256 or less"},
      {[](Options& o) { o.page_size = -1; }, "use --page-size 1 or more"},
      {[](Options& o) { o.kv_dtype = "fp8"; }, "fp8_e4m3"},
      {[](Options& o) { o.kv_dtype = "int4"; }, "int4"},
      {[](Options& o) { o.dtype = "bf16"; }, "use --dtype f32"},
      {[](Options& o) { o.attention_backend = "referense"; }, "did you mean reference"},
      {[](Options& o) {
         o.attention = {{"full.decode", "cpux"}};
       },
       "cpu"},
      {[](Options& o) {
         o.attention = {{"fall.decode", "cpu"}};
       },
       "full.decode"},
      {[](Options& o) { o.deterministic = "total"; }, "schedule_invariant"},
      {[](Options& o) { o.prefix_cache = "of"; }, "did you mean on or off"},
      {[](Options& o) { o.cache_eviction = "lrv"; }, "did you mean lru"},
      {[](Options& o) { o.schedule = "fifo"; }, "fcfs"},
      {[](Options& o) { o.target_itl_ms = -1; }, "--target-itl 0"},
      {[](Options& o) { o.max_waiting = -1; }, "--max-waiting 1"},
      {[](Options& o) { o.max_context = 513; }, "use --max-context 512 or less"},
      {[](Options& o) { o.chunk_tokens = -2; }, "use --chunk-tokens 1 or more"},
      {[](Options& o) { o.max_running = 100000; }, "use --max-running 1024 or less"},
      {[](Options& o) { o.threads = 5000; }, "use --threads 1024 or less"},
      {[](Options& o) { o.kv_scale = 2.0f; }, "--kv-dtype fp8_e4m3"},
      {[](Options& o) { o.load_format = "dumy"; }, "dummy"},
      {[](Options& o) { o.page_order = "rows"; }, "page_first"},
  };
  for (const Case& c : cases) {
    Options options;
    c.change(options);
    const auto spec = resolve_llama(options);
    ASSERT_FALSE(spec.ok()) << c.expected;
    EXPECT_EQ(spec.error().code, Code::bad_input);
    EXPECT_NE(spec.error().message.find(c.expected), std::string::npos) << spec.error().message;
  }
}

TEST(KvPlan, PoolBytesAreBytesPerTokenTimesCapacity) {
  for (const int page : {1, 7, 16, 64, 256}) {
    Options options;
    options.page_size = page;
    options.kv_memory_bytes = 16 << 20;
    const auto spec = resolve_llama(options);
    ASSERT_TRUE(spec.ok()) << spec.error().message;
    const auto plan = plan_kv(*spec, std::int64_t{1} << 30);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    const std::int64_t tokens = plan->slabs.most_pages(GroupId{0}, plan->slab_count) * page;
    const std::int64_t used = tokens * plan->layouts[0].bytes_per_token();
    EXPECT_LE(plan->bytes, 16 << 20);
    EXPECT_GT(plan->bytes, (16 << 20) * 0.95) << page;
    // One page is reserved for padding.
    EXPECT_NEAR(static_cast<double>(used + plan->layouts[0].page_stride()), static_cast<double>(plan->bytes),
                0.01 * static_cast<double>(plan->bytes))
        << page;
  }
}

TEST(KvPlan, AutoTakesWhatTheLimitsCanUse) {
  Options options;
  options.max_running = 2;
  const auto spec = resolve_llama(options);
  ASSERT_TRUE(spec.ok());
  const auto plan = plan_kv(*spec, std::int64_t{1} << 33);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  const std::int64_t need = 2 * 512 * plan->layouts[0].bytes_per_token();
  EXPECT_GE(plan->bytes, need);
  EXPECT_LE(plan->bytes, need + 4 * plan->slabs.slab_bytes);
  EXPECT_GE(plan->capacity_tokens, 512);
}

TEST(KvPlan, TooLittleIsRefusedWithTheNumber) {
  Options options;
  options.page_size = 256;
  options.kv_memory_bytes = 1000;
  const auto spec = resolve_llama(options);
  ASSERT_TRUE(spec.ok());
  const auto plan = plan_kv(*spec, std::int64_t{1} << 30);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, Code::no_resources);
  EXPECT_NE(plan.error().message.find("--kv-memory"), std::string::npos) << plan.error().message;
}

// Nobody gave a --kv-memory of 0 bytes: the message says what is short.
TEST(KvPlan, AutoWithoutMemoryLeftSaysHowMuchIsMissing) {
  const auto spec = resolve_llama({});
  ASSERT_TRUE(spec.ok());
  const auto plan = plan_kv(*spec, -(std::int64_t{3} << 30));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, Code::no_resources);
  EXPECT_NE(plan.error().message.find("3 GiB too little"), std::string::npos) << plan.error().message;
  EXPECT_EQ(plan.error().message.find("0 bytes"), std::string::npos) << plan.error().message;
}

TEST(KvPlan, WindowAndFullGroupsShareTheSlabs) {
  Options options;
  options.kv_memory_bytes = 8 << 20;
  const auto spec = resolve(options, spec_of(kGemma), cpu_info(), attention::backends(platform::Kind::cpu));
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  const auto plan = plan_kv(*spec, std::int64_t{1} << 30);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  ASSERT_EQ(plan->rules.size(), 2u);
  for (std::size_t g = 0; g < 2; ++g)
    EXPECT_EQ(plan->slabs.page_strides[g] * plan->slabs.pages_per_slab[g], plan->slabs.slab_bytes);
  EXPECT_GT(plan->capacity_tokens, 4096);
}

// A GPU's rows, without a GPU: the CPU's table with its platforms opened, on a device that is said to be one.
std::vector<attention::Backend> gpu_rows(std::vector<std::vector<attention::Box>>& boxes) {
  std::vector<attention::Backend> rows;
  for (attention::Backend row : attention::backends(platform::Kind::cpu)) {
    std::vector<attention::Box> open(row.caps.boxes.begin(), row.caps.boxes.end());
    for (attention::Box& box : open) {
      box.platforms = 0;
      box.q_types = 0xffffffffu;
    }
    boxes.push_back(std::move(open));
    row.caps.boxes = boxes.back();
    rows.push_back(row);
  }
  return rows;
}

Result<EngineSpec> resolve_on_gpu(const Options& options) {
  platform::DeviceInfo info = cpu_info();
  info.kind = platform::Kind::cuda;
  info.arch = 90;
  info.cores = 132;
  info.host_memory = false;
  std::vector<std::vector<attention::Box>> boxes;
  const std::vector<attention::Backend> rows = gpu_rows(boxes);
  auto spec = resolve(options, spec_of(kLlama), info, rows);
  if (spec.ok()) spec->selection.picks.clear();  // they point into rows
  return spec;
}

TEST(Resolve, AGpuComputesInBf16WithMoreSequences) {
  const auto spec = resolve_on_gpu({});
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->compute, DType::bf16);
  EXPECT_EQ(spec->max_running, kAutoRunningGpu);
  EXPECT_EQ(spec->level, Determinism::run_to_run);
  EXPECT_EQ(spec->threads.compute, 1)
      << "the host's threads do not multiply, and a GPU's cores are not threads";
  Options options;
  options.dtype = "f16";
  const auto refused = resolve_on_gpu(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("use --dtype bf16"), std::string::npos) << refused.error().message;
}

// The rows of the table used here are all schedule_invariant; a GPU's operations are not.
TEST(Resolve, TheEnginesLevelIsTheLeastOfRowsAndOperations) {
  const auto cpu = resolve_llama({});
  ASSERT_TRUE(cpu.ok()) << cpu.error().message;
  EXPECT_EQ(cpu->determinism, Determinism::schedule_invariant);
  Options options;
  for (const std::string_view level : {"", "none", "run_to_run"}) {
    options.deterministic = level;
    const auto gpu = resolve_on_gpu(options);
    ASSERT_TRUE(gpu.ok()) << level << ": " << gpu.error().message;
    EXPECT_EQ(gpu->selection.determinism, Determinism::schedule_invariant) << level;
    EXPECT_EQ(gpu->determinism, Determinism::run_to_run) << level;
    EXPECT_TRUE(traced(*gpu, "determinism run_to_run: the least of attention and cuda (sm_90) (run_to_run)"));
  }
  for (const std::string_view level : {"batch_invariant", "schedule_invariant"}) {
    options.deterministic = level;
    const auto refused = resolve_on_gpu(options);
    ASSERT_FALSE(refused.ok()) << level;
    EXPECT_EQ(refused.error().code, Code::bad_input);
    EXPECT_EQ(refused.error().message,
              "the operations of cuda (sm_90) are run_to_run and this run asks for " + std::string(level) +
                  ": use --deterministic run_to_run");
  }
}

}  // namespace
}  // namespace quire::engine
