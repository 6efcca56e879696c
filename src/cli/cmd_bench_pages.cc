// `quire bench pages`: what a page size costs and gives: bytes of the page table, time of the attention
// kernel, and prompt tokens that the prefix cache finds in a given traffic.
#include <fmt/format.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/bench_report.h"
#include "cli/bench_shape.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "simulate/simulation.h"
#include "simulate/synthetic.h"

namespace quire::cli {

namespace {

using Json = nlohmann::ordered_json;
namespace bench = attention::bench;

struct PagesFlags {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  Options options;
  std::string backend = "all";
  std::string shape = "heads=32/8,dim=128,batch=16,ctx=8192,q=1";
  std::string traffic = "mix:requests=300";
  std::vector<int> page_sizes = {1, 16, 64, 256};
  std::string plot;
  bool json = false;
};

// What the prefix cache finds with pages of one size, in all of the traffic.
struct Hits {
  std::int32_t page_size = 0;
  simulate::Report report;
};

std::int64_t table_bytes(const bench::AttentionCell& cell) {
  const bench::Shape& s = cell.spec.shape;
  const std::int64_t entries = (s.context + cell.spec.page_size - 1) / cell.spec.page_size;
  return s.batch * entries * static_cast<std::int64_t>(sizeof(std::uint32_t));
}

// The same requests for every page size, through the scheduler, the pool and the tree of an engine.
Result<std::vector<Hits>> hits_of(const std::vector<int>& page_sizes, const simulate::SyntheticSpec& spec) {
  const simulate::Trace trace = simulate::make_trace(spec, 1);
  std::vector<Hits> hits;
  for (const int page_size : page_sizes) {
    simulate::SimulationConfig config;
    config.page_tokens = page_size;
    config.kv_tokens = 1 << 18;
    config.scheduler.max_running = 64;
    config.scheduler.chunk_tokens = 2048;
    config.scheduler.max_context = 1 << 17;
    config.scheduler.max_waiting = 1 << 20;
    QUIRE_TRY(report, simulate::simulate(trace, config));
    hits.push_back({page_size, std::move(report)});
  }
  return hits;
}

const simulate::Report& report_of(const std::vector<Hits>& hits, std::int32_t page_size) {
  return std::find_if(hits.begin(), hits.end(),
                      [page_size](const Hits& h) { return h.page_size == page_size; })
      ->report;
}

double rate(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

Json hits_to_json(const simulate::Report& report) {
  return {{"prompt_tokens", report.prompt_tokens},
          {"hit_tokens", report.hit_tokens},
          {"hit_rate", rate(report.hit_tokens, report.prompt_tokens)},
          {"page_aligned_hit_tokens", report.aligned_hit_tokens},
          {"page_copies", report.copies}};
}

void print_cell(const bench::AttentionCell& cell, const simulate::Report& report) {
  fmt::print("{:<10} page {:>3}  table {:>9} bytes  ", cell.spec.backend, cell.spec.page_size,
             table_bytes(cell));
  if (!cell.refused.empty()) {
    fmt::print("refused: {}", cell.refused);
  } else {
    fmt::print("{:>10.1f} us ({:.1f}..{:.1f}) {:>3.0f} % of the ceiling  error {:.1e} of {:.1e}", cell.us,
               cell.us_min, cell.us_max, 100 * cell.fraction, cell.check_error, cell.check_gate);
  }
  fmt::print("  {:.2f} % of the prompts hit, {:.2f} % by whole pages\n",
             100 * rate(report.hit_tokens, report.prompt_tokens),
             100 * rate(report.aligned_hit_tokens, report.prompt_tokens));
}

std::vector<BarChart> charts_of(const bench::AttentionReport& report, const std::vector<Hits>& hits) {
  BarChart times, tables, found;
  times.title = "attention by page size, GB/s of the cache";
  times.limit = report.ceilings.read_bytes_s / 1e9;
  times.limit_text = "read ceiling";
  tables.title = "page tables, KiB";
  found.title = "prompt tokens found in the prefix cache, %";
  for (const bench::AttentionCell& cell : report.cells) {
    const std::string page = fmt::format("page {}", cell.spec.page_size);
    times.bars.push_back(
        {fmt::format("{} {} {}", cell.spec.backend, page, cell.kv_dtype), cell.bytes_s / 1e9,
         cell.refused.empty() ? fmt::format("{:.1f} us", cell.us) : "refused: " + cell.refused});
    if (cell.spec.backend != report.cells[0].spec.backend) continue;
    const double kib = static_cast<double>(table_bytes(cell)) / 1024;
    tables.bars.push_back({page, kib, fmt::format("{:.1f}", kib)});
  }
  for (const Hits& h : hits) {
    const double percent = 100 * rate(h.report.hit_tokens, h.report.prompt_tokens);
    found.bars.push_back({fmt::format("page {}", h.page_size), percent,
                          fmt::format("{:.2f} ({:.2f} by whole pages)", percent,
                                      100 * rate(h.report.aligned_hit_tokens, h.report.prompt_tokens))});
  }
  return {times, tables, found};
}

Status pages(const PagesFlags& flags) {
  QUIRE_TRY_STATUS(check_plot(flags.plot));
  QUIRE_TRY(traffic, simulate::parse_synthetic(flags.traffic));
  QUIRE_TRY(device, open_bench_device(flags.options));
  const std::span<const attention::Backend> table = attention::backends(device->info().kind);
  QUIRE_TRY(specs,
            bench_cells(flags.backend, {flags.shape}, flags.page_sizes, flags.options.kv_dtype, table));
  QUIRE_TRY(report, bench::bench_attention(*device, table, specs, {}));
  QUIRE_TRY(hits, hits_of(flags.page_sizes, traffic));
  QUIRE_TRY_STATUS(write_plot(flags.plot, charts_of(report, hits)));
  bool fine = true;
  for (const bench::AttentionCell& cell : report.cells)
    fine &= !cell.refused.empty() || cell.check_error <= cell.check_gate;
  for (const Hits& h : hits) fine &= h.report.violations.empty();
  Json json{{"machine", machine_to_json(device->info())}, {"ceilings", ceilings_to_json(report.ceilings)}};
  json["traffic"] = flags.traffic;
  json["pages"] = Json::array();
  if (!flags.json) print_ceilings(device->info(), report.ceilings);
  for (const bench::AttentionCell& cell : report.cells) {
    const simulate::Report& found = report_of(hits, cell.spec.page_size);
    if (!flags.json) print_cell(cell, found);
    Json page = cell_to_json(cell);
    page["table_bytes"] = table_bytes(cell);
    page["hits"] = hits_to_json(found);
    json["pages"].push_back(std::move(page));
  }
  if (flags.json) fmt::print("{}\n", json_text(json));
  return fine ? Status() : Status(check_failed_error());
}

}  // namespace

Command make_bench_pages(CLI::App& group) {
  auto flags = std::make_shared<PagesFlags>();
  Flags command(group, "pages",
                "page sizes side by side: table bytes, kernel time, tokens found in the prefix cache");
  command.text("--backend", &flags->backend, "a row, or all (but the oracle)")
      .text("--shape", &flags->shape,
            "as of bench attention; default heads=32/8,dim=128,batch=16,ctx=8192,q=1")
      .text("--traffic", &flags->traffic, "as of simulate --synthetic; default mix:requests=300")
      .file("--plot", &flags->plot, "write the figures as charts to this file")
      .json(&flags->json);
  constexpr std::string_view kEngine[] = {"device", "threads", "kv-dtype"};
  add_engine_settings(*flags->settings, &flags->options, kEngine);
  add_page_sizes(*flags->settings, &flags->page_sizes);
  return {&command.app(), flags->settings, [flags] { return pages(*flags); }};
}

}  // namespace quire::cli
