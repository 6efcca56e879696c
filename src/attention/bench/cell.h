// The data of one bench cell: a cache of several layers with shuffled pages, queries, a plan.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/bench/bench.h"

namespace quire::attention::bench {

Problem problem_of(const CellSpec& spec, const platform::DeviceInfo& info);

class Cell {
 public:
  // `cache_bytes`: the layers' caches together hold at least that much; 0: one layer.
  static Result<std::unique_ptr<Cell>> make(platform::Device& device, platform::Stream& stream,
                                            const Backend& row, const CellSpec& spec,
                                            std::int64_t cache_bytes, int threads);
  // Enqueues a plan and one run per layer; counts what they read and compute.
  void enqueue();
  // A device that replays graphs is timed by them: one replay is runs() runs, the plan made before.
  void record();
  void replay() { stream_.launch(*graph_); }
  bool recorded() const { return graph_ != nullptr; }
  int runs() const { return runs_; }
  int layers() const { return layers_; }
  double layer_bytes() const { return layer_bytes_; }  // cache bytes that one run must read
  double layer_flops() const { return layer_flops_; }
  // What the last run wrote, [total_q, q_heads, v_dim].
  std::vector<float> output() const;

 private:
  Cell(platform::Device& device, platform::Stream& stream, const CellSpec& spec);
  Status lay_out(std::int64_t cache_bytes);
  Status make_inputs();
  Status make_plan(const Backend& row, int threads);
  void fill_scales(const KvView& view);
  Result<void*> upload(const void* data, std::int64_t bytes);
  void run_layers();
  std::vector<std::uint32_t> table_of(const std::vector<std::uint32_t>& ids);

  platform::Device& device_;
  platform::Stream& stream_;
  const CellSpec spec_;
  const Problem problem_;
  int layers_ = 1;
  double layer_bytes_ = 0;
  double layer_flops_ = 0;
  std::int64_t pages_ = 0;
  std::unique_ptr<platform::Arena> arena_;
  std::vector<std::unique_ptr<platform::Buffer>> buffers_;
  std::vector<KvView> views_;
  void* out_ = nullptr;
  std::unique_ptr<platform::Graph> graph_;
  int runs_ = 0;
  PrefixGroup group_;
  StepShape shape_;
  Args args_;
  PlanBuffer plan_;
  std::unique_ptr<Attention> attention_;
};

}  // namespace quire::attention::bench
