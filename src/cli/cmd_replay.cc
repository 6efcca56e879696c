// `quire replay`: the attention calls of a record on another row or the oracle, and where they first differ.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "engine/ledger.h"
#include "record/replay/replay.h"

namespace quire::cli {

namespace {

struct Replay {
  std::string folder;
  std::string backend;
  std::string against;
  std::string layers = "all";
  std::string steps = "all";
  std::string fault;
  bool json = false;
};

nlohmann::ordered_json to_json(const record::Difference& d) {
  nlohmann::ordered_json json = {{"step", d.step},         {"layer", d.layer},
                                 {"row", d.row},           {"head", d.head},
                                 {"error", d.error},       {"gate", d.gate},
                                 {"call", d.call},         {"backend", d.row_name},
                                 {"sequence", d.sequence}, {"position", d.position},
                                 {"dim", d.dim},           {"got", d.got},
                                 {"expected", d.expected}, {"of", d.of_lse ? "lse" : "out"}};
  json["keys"] =
      d.key_begin ? nlohmann::ordered_json{*d.key_begin, *d.key_end} : nlohmann::ordered_json(nullptr);
  json["keys_note"] = d.keys_note;
  return json;
}

void print_json(const record::ReplayReport& report, const record::FileReader& reader) {
  nlohmann::ordered_json json = {{"steps", report.steps},         {"calls", report.calls},
                                 {"compared", report.compared},   {"skipped", report.skipped},
                                 {"differing", report.differing}, {"backend", report.backend},
                                 {"against", report.against},     {"worst_ratio", report.worst_ratio}};
  json["record"] = {{"architecture", reader.engine().architecture},
                    {"device", reader.engine().device},
                    {"page_size", reader.engine().page_size},
                    {"bytes", reader.header().bytes},
                    {"ended", record::to_string(reader.header().ended)}};
  json["first_difference"] = report.first ? to_json(*report.first) : nlohmann::ordered_json(nullptr);
  fmt::print("{}\n", json_text(json));
}

void print_text(const record::ReplayReport& report, const record::FileReader& reader) {
  const record::EngineFrame& engine = reader.engine();
  fmt::print("record of {} on {}: {} steps, {} attention calls, page size {}, {} ({})\n", engine.architecture,
             engine.device, report.steps, report.calls, engine.page_size,
             engine::bytes_to_string(static_cast<std::int64_t>(reader.header().bytes)),
             record::to_string(reader.header().ended));
  fmt::print("{} against {}: {} calls compared, {} differ, {} that a side cannot run\n", report.backend,
             report.against, report.compared, report.differing, report.skipped);
  if (!report.first) {
    fmt::print("no difference; the largest error is {:.2g} of its gate\n", report.worst_ratio);
    return;
  }
  const record::Difference& d = *report.first;
  const std::string keys = d.key_begin ? fmt::format(", keys [{}, {})", *d.key_begin, *d.key_end) : "";
  fmt::print(
      "first difference: step {}, layer {}, row {}, head {}{}\n"
      "  {} by {}; the row is sequence {}, position {}\n"
      "  {} of dim {}: {:.9g}, not {:.9g}: error {:.3g}, gate {:.3g}\n",
      d.step, d.layer, d.row, d.head, keys, d.call, d.row_name, d.sequence, d.position,
      d.of_lse ? "lse" : "result", d.dim, d.got, d.expected, d.error, d.gate);
  if (!d.keys_note.empty()) fmt::print("  {}\n", d.keys_note);
}

Status run_replay(const Replay& flags) {
  record::ReplayOptions options;
  options.backend = flags.backend;
  options.against = flags.against;
  options.fault = flags.fault;
  QUIRE_TRY(layers, record::NumberSet::of_option("--layer", flags.layers));
  options.layers = layers;
  QUIRE_TRY(steps, record::NumberSet::of_option("--step", flags.steps));
  options.steps = steps;
  QUIRE_TRY(reader, record::FileReader::open(flags.folder));
  QUIRE_TRY(report, record::replay(reader, options));
  if (flags.json) {
    print_json(report, reader);
  } else {
    print_text(report, reader);
  }
  return report.first ? Status(check_failed_error()) : Status();
}

}  // namespace

Command make_replay(CLI::App& root) {
  auto flags = std::make_shared<Replay>();
  Flags command(root, "replay", "run a record's attention calls again and find the first difference");
  command.need("DIR", &flags->folder, "the folder that --record wrote")
      .text("--backend", &flags->backend, "the row to judge; default: recorded, what the run gave")
      .text("--against", &flags->against, "a row, or recorded; default: reference, the float64 oracle")
      .text("--layer", &flags->layers, "all, or numbers and ranges: 0,3-5")
      .text("--step", &flags->steps, "all, or numbers and ranges: 7,100-")
      .text("--fault", &flags->fault,
            "plant a fault in --backend: replay must find it (an unknown name lists them)")
      .json(&flags->json);
  return {&command.app(), std::make_shared<Settings>(), [flags] { return run_replay(*flags); }};
}

}  // namespace quire::cli
