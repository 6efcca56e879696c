// `quire bench device|attention|pages|step|scheduler|offline|serve`: this machine's ceilings, and how near
// the engine comes to them.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "attention/bench/bench.h"
#include "base/text.h"
#include "cli/bar_chart.h"
#include "cli/bench_report.h"
#include "cli/bench_shape.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/log.h"
#include "cli/scheduling.h"
#include "engine/bench_step.h"
#include "engine/limits.h"
#include "engine/parts.h"
#include "platform/links.h"
#include "platform/platform.h"
#include "simulate/bench.h"

namespace quire::cli {

namespace {

using Json = nlohmann::ordered_json;
namespace bench = attention::bench;

struct DeviceFlags {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  Options options;
  bool json = false;
};

Status device(const DeviceFlags& flags) {
  QUIRE_TRY(device, open_bench_device(flags.options));
  QUIRE_TRY(ceilings, bench::bench_device(*device, {}));
  QUIRE_TRY(links, platform::measure_links(*device));
  const bool linked = links.to_device_bytes_s > 0.0;
  if (flags.json) {
    Json json{{"machine", machine_to_json(device->info())}, {"ceilings", ceilings_to_json(ceilings)}};
    if (linked)
      json["ceilings"]["links"] = {{"host_to_device_bytes_s", links.to_device_bytes_s},
                                   {"device_to_host_bytes_s", links.to_host_bytes_s}};
    fmt::print("{}\n", json_text(json));
  } else {
    print_ceilings(device->info(), ceilings);
    if (linked)
      fmt::print("host to device {:.1f} GB/s, device to host {:.1f} GB/s\n", links.to_device_bytes_s / 1e9,
                 links.to_host_bytes_s / 1e9);
  }
  return {};
}

struct AttentionFlags : DeviceFlags {
  std::string backend = "all";
  std::vector<std::string> shapes;
  std::vector<int> page_sizes = {64};
  std::string plot;
};

Status attention_bench(const AttentionFlags& flags) {
  QUIRE_TRY_STATUS(check_plot(flags.plot));
  QUIRE_TRY(device, open_bench_device(flags.options));
  const std::span<const attention::Backend> table = attention::backends(device->info().kind);
  const std::vector<std::string> shapes = flags.shapes.empty() ? default_bench_shapes() : flags.shapes;
  QUIRE_TRY(specs, bench_cells(flags.backend, shapes, flags.page_sizes, flags.options.kv_dtype, table));
  QUIRE_TRY(report, bench::bench_attention(*device, table, specs, {}));
  QUIRE_TRY_STATUS(write_plot(flags.plot, {chart_of(report.cells, "attention, us a layer")}));
  bool fine = true;
  for (const bench::AttentionCell& cell : report.cells)
    fine &= cell.refused.empty() ? cell.check_error <= cell.check_gate : true;
  if (flags.json) {
    Json json{{"machine", machine_to_json(device->info())}, {"ceilings", ceilings_to_json(report.ceilings)}};
    json["cells"] = Json::array();
    for (const bench::AttentionCell& cell : report.cells) json["cells"].push_back(cell_to_json(cell));
    fmt::print("{}\n", json_text(json));
    return fine ? Status() : Status(check_failed_error());
  }
  print_ceilings(device->info(), report.ceilings);
  for (const bench::AttentionCell& cell : report.cells) {
    fmt::print("{:<10} {} page {:>3} {:<12} ", cell.spec.backend, shape_text(cell), cell.spec.page_size,
               cell.kv_dtype);
    if (!cell.refused.empty()) {
      fmt::print("refused: {}\n", cell.refused);
      continue;
    }
    fmt::print(
        "{:>10.1f} us ({:.1f}..{:.1f})  {:>6.1f} GB/s  {:>7.1f} GFLOP/s  {:>3.0f} % of the ceiling  error "
        "{:.1e} of {:.1e}\n",
        cell.us, cell.us_min, cell.us_max, cell.bytes_s / 1e9, cell.flop_s / 1e9, 100 * cell.fraction,
        cell.check_error, cell.check_gate);
  }
  return fine ? Status() : Status(check_failed_error());
}

struct StepFlags {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  std::string model;
  Options options;
  std::vector<int> batches;
  std::vector<int> contexts;
  std::vector<int> chunks;
  int steps = 32;
  std::string plot;
  bool json = false;
  bool explain = false;
};

BarChart chart_of(const std::vector<engine::BenchStepCell>& cells) {
  BarChart chart;
  chart.title = "one step, ms";
  for (const engine::BenchStepCell& cell : cells) {
    Bar bar;
    bar.value = cell.ms;
    if (cell.chunk > 0) {
      bar.label = fmt::format("chunk {} behind {}", cell.chunk, cell.context);
      bar.text = fmt::format("{:.2f} ms, {:.0f} tok/s", cell.ms, cell.tokens_s);
    } else {
      bar.label = fmt::format("batch {} context {}", cell.batch, cell.context);
      bar.text = fmt::format("{:.2f} ms, {:.0f} tok/s, {:.0f} % of reading", cell.ms, cell.tokens_s,
                             100 * cell.fraction);
    }
    chart.bars.push_back(std::move(bar));
  }
  return chart;
}

Status step(const StepFlags& flags) {
  QUIRE_TRY_STATUS(check_plot(flags.plot));
  engine::BenchStepRequest request;
  request.batches.assign(flags.batches.begin(), flags.batches.end());
  request.contexts.assign(flags.contexts.begin(), flags.contexts.end());
  request.chunks.assign(flags.chunks.begin(), flags.chunks.end());
  if (request.batches.empty()) request.batches = {1, 8};
  if (request.contexts.empty()) request.contexts = {128, 1024};
  request.steps = flags.steps;
  if (flags.explain) {
    QUIRE_TRY(survey, engine::survey(flags.model, flags.options));
    print_explanation(survey.spec.trace, survey.ledger.lines());
  }
  QUIRE_TRY(device, open_bench_device(flags.options));
  const platform::DeviceInfo info = device->info();
  QUIRE_TRY(ceilings, bench::bench_device(*device, {}));
  device.reset();
  request.read_bytes_s = ceilings.read_bytes_s;
  QUIRE_TRY(cells, engine::bench_step(flags.model, flags.options, request));
  QUIRE_TRY_STATUS(write_plot(flags.plot, {chart_of(cells)}));
  if (!flags.json) print_ceilings(info, ceilings);
  Json json{{"machine", machine_to_json(info)}, {"ceilings", ceilings_to_json(ceilings)}};
  json["steps"] = Json::array();
  for (const engine::BenchStepCell& cell : cells) {
    json["steps"].push_back({{"batch", cell.batch},
                             {"context", cell.context},
                             {"chunk", cell.chunk},
                             {"ms", cell.ms},
                             {"tokens_s", cell.tokens_s},
                             {"fraction", cell.fraction},
                             {"host_us", cell.host_us},
                             {"gpu_idle_fraction", cell.gpu_idle_fraction}});
    if (flags.json) continue;
    if (cell.chunk > 0) {
      fmt::print("chunk {:>4}  behind  {:>6}  {:>8.2f} ms  {:>8.1f} tok/s\n", cell.chunk, cell.context,
                 cell.ms, cell.tokens_s);
      continue;
    }
    fmt::print(
        "batch {:>4}  context {:>6}  {:>8.2f} ms  {:>8.1f} tok/s  {:>3.0f} % of reading weights and KV  host "
        "{:.0f} us  idle {:.1f} %\n",
        cell.batch, cell.context, cell.ms, cell.tokens_s, 100 * cell.fraction, cell.host_us,
        100 * cell.gpu_idle_fraction);
  }
  if (flags.json) fmt::print("{}\n", json_text(json));
  return {};
}

struct SchedulerFlags {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  simulate::BenchSchedulerRequest request;
  std::string policy = "fcfs";
  bool json = false;
};

Json times_to_json(const simulate::StepTimes& times) {
  return {{"us", times.us}, {"us_p99", times.us_p99}, {"us_max", times.us_max}};
}

Status scheduler_bench(const SchedulerFlags& flags) {
  simulate::BenchSchedulerRequest request = flags.request;
  QUIRE_TRY(policy, parse_policy(flags.policy));
  request.policy = policy;
  QUIRE_TRY(report, simulate::bench_scheduler(request));
  if (flags.json) {
    Json json{{"running", request.running},
              {"waiting", request.waiting},
              {"context", request.context},
              {"page_size", request.page_tokens},
              {"steps", request.steps}};
    json["steady"] = times_to_json(report.steady);
    if (request.waiting > 0) json["turnover"] = times_to_json(report.turnover);
    fmt::print("{}\n", json_text(json));
    return {};
  }
  const auto line = [](const char* name, const simulate::StepTimes& times) {
    fmt::print("{:<9} {:>8.1f} us a step, p99 {:.1f}, most {:.1f}\n", name, times.us, times.us_p99,
               times.us_max);
  };
  fmt::print("{} running, {} waiting, prompts of {} tokens, pages of {}\n", request.running, request.waiting,
             request.context, request.page_tokens);
  line("steady", report.steady);
  if (request.waiting > 0) line("turnover", report.turnover);
  return {};
}

}  // namespace

std::vector<Command> make_bench(CLI::App& root) {
  Flags group(root, "bench", "measure: device, attention, pages, step, scheduler, offline, serve");
  group.group();

  auto of_device = std::make_shared<DeviceFlags>();
  Flags device_command(group.app(), "device", "the ceilings of this machine: read, copy, matmul, launch");
  device_command.json(&of_device->json);
  constexpr std::string_view kDevice[] = {"device", "threads"};
  add_engine_settings(*of_device->settings, &of_device->options, kDevice);

  auto of_attention = std::make_shared<AttentionFlags>();
  Flags attention_command(group.app(), "attention", "check, then time backends on given shapes");
  attention_command.text("--backend", &of_attention->backend, "a row, or all (but the oracle)")
      .texts("--shape", &of_attention->shapes,
             "heads=32/8,dim=128,batch=1,ctx=8192,q=1 (dim=192/128, dim=576/512 is latent; shared=N: the "
             "sequences "
             "have N keys in common; prefix=N: and the row is told so); may repeat")
      .file("--plot", &of_attention->plot, "write the figures as a chart to this file")
      .json(&of_attention->json);
  constexpr std::string_view kAttention[] = {"device", "threads", "kv-dtype"};
  add_engine_settings(*of_attention->settings, &of_attention->options, kAttention);
  add_page_sizes(*of_attention->settings, &of_attention->page_sizes);

  auto of_step = std::make_shared<StepFlags>();
  Flags step_command(group.app(), "step", "decode steps of a model at given batches and contexts");
  step_command.need("MODEL", &of_step->model, "a Hugging Face folder or a .gguf file")
      .list("--batch", &of_step->batches, 1, engine::kMaxRunning, "batch sizes: 1,8")
      .list("--context", &of_step->contexts, 2, engine::kMostBenchContext, "contexts in tokens: 128,4096")
      .list("--chunk", &of_step->chunks, 1, engine::kMaxChunkTokens,
            "time prompt chunks too: 64,256,512 tokens, behind contexts rounded to the largest")
      .number("--steps", &of_step->steps, 1, 4096, "steps measured; the median is reported")
      .file("--plot", &of_step->plot, "write the figures as a chart to this file")
      .json(&of_step->json);
  add_engine_settings(*of_step->settings, &of_step->options, &of_step->explain);

  auto of_scheduler = std::make_shared<SchedulerFlags>();
  simulate::BenchSchedulerRequest& request = of_scheduler->request;
  Flags scheduler_command(group.app(), "scheduler", "the host side of one step, without a device");
  scheduler_command.number("--running", &request.running, 1, 65536, "sequences that decode")
      .number("--waiting", &request.waiting, 0, 1 << 20, "requests in the queue")
      .number("--context", &request.context, 2, 1 << 17, "tokens of each prompt")
      .number("--page-size", &request.page_tokens, 1, 256, "tokens per KV page")
      .number("--steps", &request.steps, 1, 100000, "steps measured of each kind")
      .text("--schedule", &of_scheduler->policy, "fcfs, longest_prefix or priority")
      .json(&of_scheduler->json);

  return {{&device_command.app(), of_device->settings, [of_device] { return device(*of_device); }},
          {&attention_command.app(), of_attention->settings,
           [of_attention] { return attention_bench(*of_attention); }},
          make_bench_pages(group.app()),
          {&step_command.app(), of_step->settings, [of_step] { return step(*of_step); }},
          {&scheduler_command.app(), of_scheduler->settings,
           [of_scheduler] { return scheduler_bench(*of_scheduler); },
           "--running, --waiting, --steps or --context"},
          make_bench_offline(group.app()),
          make_bench_serve(group.app())};
}

}  // namespace quire::cli
