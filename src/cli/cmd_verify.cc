// `quire verify`: every backend against the oracle, on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attention/conformance/driver.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "engine/resolve.h"
#include "platform/cpu/isa.h"

namespace quire::cli {

namespace {

struct VerifyFlags {
  std::string model;
  std::string backend;
  std::string device = "cpu";
  std::uint64_t seed = 1;
  int seconds = 0;
  std::string share;
  bool share_given = false;
  std::string fault;
  bool json = false;
};

nlohmann::ordered_json to_json(const conformance::VerifyReport& report) {
  nlohmann::ordered_json json;
  json["rows"] = nlohmann::ordered_json::array();
  for (const conformance::RowReport& row : report.rows) {
    json["rows"].push_back(
        {{"name", row.name},
         {"cases", row.cases},
         {"passed", row.passed},
         {"failed", row.failed},
         {"skipped", row.skipped},
         {"worst", {{"case", row.worst.name}, {"error", row.worst.error}, {"gate", row.worst.gate}}},
         {"seconds", row.seconds},
         {"failures", row.failures}});
  }
  json["seed"] = report.seed;
  json["passed"] = report.passed;
  return json;
}

void print(const conformance::VerifyReport& report, const platform::DeviceInfo& device,
           const std::string& share) {
  fmt::print("{}\n", device.kind == platform::Kind::cpu ? platform::cpu::describe_cpu() : device.name);
  for (const conformance::RowReport& row : report.rows) {
    fmt::print(
        "{:<12} {:>6} cases  {:>6} passed  {:>4} failed  {:>4} skipped  {:6.1f} s  worst {:.3g} of gate "
        "{:.3g}: {}\n",
        row.name, row.cases, row.passed, row.failed, row.skipped, row.seconds, row.worst.error,
        row.worst.gate, row.worst.name);
    for (const std::string& failure : row.failures) fmt::print("    {}\n", failure);
  }
  const std::string of_all = share.empty() ? "everything" : "share " + share;
  fmt::print("seed {}: {}\n", report.seed, report.passed ? of_all + " passed" : "FAILED");
}

// The rows that a model's calls would use here.
Result<std::vector<attention::Backend>> rows_of_model(const std::string& path,
                                                      std::span<const attention::Backend> table,
                                                      const platform::DeviceInfo& device) {
  QUIRE_TRY(checkpoint, checkpoint::open_checkpoint(path));
  QUIRE_TRY(model, model::read_spec(*checkpoint));
  QUIRE_TRY(spec, engine::resolve(Options{}, model, device, table));
  std::vector<attention::Backend> rows;
  for (const attention::Backend& row : table) {
    const auto uses = [&row](const attention::Pick& pick) { return pick.backend->name == row.name; };
    if (std::any_of(spec.selection.picks.begin(), spec.selection.picks.end(), uses)) rows.push_back(row);
  }
  return rows;
}

// "2/8".
Status read_share(const std::string& text, conformance::VerifyOptions& options) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos || !parse_number(text.substr(0, slash), &options.share) ||
      !parse_number(text.substr(slash + 1), &options.shares))
    return bad_input(
        fmt::format("--share '{}': wanted is N/M, such as 2/8: the second of eight shares", text));
  return {};
}

// A row that another device has: why it is not to be had here, or how.
Status check_backend(const VerifyFlags& flags, platform::Kind kind) {
  const auto has = [&flags](platform::Kind of) {
    return attention::find_backend(attention::backends(of), flags.backend) != nullptr;
  };
  const platform::Kind other = kind == platform::Kind::cpu ? platform::Kind::cuda : platform::Kind::cpu;
  if (flags.backend.empty() || has(kind) || !has(other)) return {};
  const auto opened = platform::open_device(to_string(other), platform::ThreadPlan{});
  return bad_input(opened.ok() ? fmt::format("--backend {} is a row of --device {}: say so", flags.backend,
                                             to_string(other))
                               : fmt::format("--backend {}: {}", flags.backend, opened.error().message));
}

Status verify(const VerifyFlags& flags) {
  QUIRE_TRY(opened, platform::open_device(flags.device, platform::ThreadPlan{}));
  const platform::DeviceInfo device = opened->info();
  opened.reset();
  QUIRE_TRY_STATUS(check_backend(flags, device.kind));
  const std::span<const attention::Backend> whole = attention::backends(device.kind);
  std::vector<attention::Backend> table(whole.begin(), whole.end());
  if (!flags.model.empty()) {
    QUIRE_TRY(rows, rows_of_model(flags.model, whole, device));
    table = std::move(rows);
  }
  conformance::VerifyOptions options{.device = flags.device,
                                     .backend = flags.backend,
                                     .seed = flags.seed,
                                     .seconds = flags.seconds,
                                     .fault = flags.fault};
  if (flags.share_given) QUIRE_TRY_STATUS(read_share(flags.share, options));
  QUIRE_TRY(report, conformance::verify(table, options));
  if (flags.json) {
    fmt::print("{}\n", json_text(to_json(report)));
  } else {
    print(report, device, flags.share);
  }
  return report.passed ? Status() : Status(check_failed_error());
}

}  // namespace

Command make_verify(CLI::App& root) {
  auto flags = std::make_shared<VerifyFlags>();
  Flags command(root, "verify", "check every attention backend against the float64 oracle, here");
  command.text("MODEL", &flags->model, "only the rows that this model would use")
      .text("--backend", &flags->backend, "one row only")
      .text("--device", &flags->device, "cpu, cuda or cuda:N")
      .number("--seed", &flags->seed, "of the cases")
      .number("--seconds", &flags->seconds, 0, 86400,
              "time for random cases beyond the covering arrays; 0: a fixed number")
      .text("--share", &flags->share,
            "N/M: the Nth of M shares of the cases, which several processes can take at once; what rows "
            "claim is "
            "judged by a whole run",
            &flags->share_given)
      .text("--fault", &flags->fault, "plant a fault: verify must fail (an unknown name lists them)")
      .json(&flags->json);
  return {&command.app(), std::make_shared<Settings>(), [flags] { return verify(*flags); }};
}

}  // namespace quire::cli
