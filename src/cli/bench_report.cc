#include "cli/bench_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/resolve.h"
#include "platform/cpu/isa.h"

namespace quire::cli {

namespace {

using Json = nlohmann::ordered_json;
namespace bench = attention::bench;

}  // namespace

Result<std::unique_ptr<platform::Device>> open_bench_device(const Options& options) {
  QUIRE_TRY(threads, engine::plan_threads(options, platform::cpu::usable_threads()));
  return platform::open_device(options.device, threads);
}

Json machine_to_json(const platform::DeviceInfo& info) {
  return {{"platform", to_string(info.kind)},
          {"name", info.name},
          {"cores", info.cores},
          {"memory_bytes", info.memory_bytes}};
}

Json ceilings_to_json(const bench::Ceilings& ceilings) {
  Json json;
  json["read_bytes_s"] = ceilings.read_bytes_s;
  json["copy_bytes_s"] = ceilings.copy_bytes_s;
  json["matmul_flop_s"] = Json::object();
  for (const auto& [type, rate] : ceilings.matmul_flop_s) json["matmul_flop_s"][type] = rate;
  json["launch_us"] = ceilings.launch_us;
  json["graph_node_us"] = ceilings.graph_node_us;
  json["threads"] = ceilings.threads;
  json["cache_bytes"] = ceilings.cache_bytes;
  return json;
}

void print_ceilings(const platform::DeviceInfo& info, const bench::Ceilings& c) {
  fmt::print("{}, {} threads\nread {:.1f} GB/s, copy {:.1f} GB/s", info.name, c.threads, c.read_bytes_s / 1e9,
             c.copy_bytes_s / 1e9);
  for (const auto& [type, rate] : c.matmul_flop_s) fmt::print(", matmul {} {:.0f} GFLOP/s", type, rate / 1e9);
  fmt::print(", launch {:.1f} us, graph node {:.2f} us\n", c.launch_us, c.graph_node_us);
}

Json cell_to_json(const bench::AttentionCell& cell) {
  const bench::Shape& s = cell.spec.shape;
  Json json;
  json["backend"] = cell.spec.backend;
  json["call"] = cell.call;
  json["shape"] = {{"q_heads", s.q_heads}, {"kv_heads", s.kv_heads}, {"qk_dim", s.qk_dim},
                   {"v_dim", s.v_dim},     {"batch", s.batch},       {"context", s.context},
                   {"q_len", s.q_len},     {"latent", s.latent},     {"shared", s.shared},
                   {"hinted", s.hinted}};
  json["page_size"] = cell.spec.page_size;
  json["kv_dtype"] = cell.kv_dtype;
  const auto timed = [&cell](double value) { return cell.us > 0 ? Json(value) : Json(nullptr); };
  json["us"] = timed(cell.us);
  json["us_min"] = timed(cell.us_min);
  json["us_max"] = timed(cell.us_max);
  json["bytes_s"] = timed(cell.bytes_s);
  json["flop_s"] = timed(cell.flop_s);
  json["fraction"] = timed(cell.fraction);
  json["check"] = nullptr;
  if (cell.refused.empty()) {
    json["check"] = {{"error", cell.check_error}, {"gate", cell.check_gate}};
  } else {
    json["refused"] = cell.refused;
  }
  return json;
}

std::string shape_text(const bench::AttentionCell& cell) {
  const bench::Shape& s = cell.spec.shape;
  std::string text = fmt::format("{:<7} {:>3}/{:<3} dim {:>3}/{:<3} batch {:>3} ctx {:>6} q {:>4}", cell.call,
                                 s.q_heads, s.kv_heads, s.qk_dim, s.v_dim, s.batch, s.context, s.q_len);
  if (s.shared > 0) text += fmt::format(" {} {}", s.hinted ? "prefix" : "shared", s.shared);
  return text;
}

BarChart chart_of(const std::vector<bench::AttentionCell>& cells, const std::string& title) {
  BarChart chart;
  chart.title = title;
  for (const bench::AttentionCell& cell : cells) {
    Bar bar;
    bar.label = fmt::format("{} {} page {} {}", cell.spec.backend, shape_text(cell), cell.spec.page_size,
                            cell.kv_dtype);
    bar.value = cell.us;
    bar.text = cell.refused.empty()
                   ? fmt::format("{:.1f} us, {:.0f} % of the ceiling", cell.us, 100 * cell.fraction)
                   : "refused: " + cell.refused;
    chart.bars.push_back(std::move(bar));
  }
  return chart;
}

}  // namespace quire::cli
