// What the commands of `quire bench` say alike: the device that they open, its ceilings, and cells of
// attention, as text, as JSON and as charts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "attention/bench/bench.h"
#include "cli/bar_chart.h"
#include "platform/platform.h"
#include "quire/session.h"

namespace quire::cli {

Result<std::unique_ptr<platform::Device>> open_bench_device(const Options& options);

nlohmann::ordered_json machine_to_json(const platform::DeviceInfo& info);
nlohmann::ordered_json ceilings_to_json(const attention::bench::Ceilings& ceilings);
// What was not measured is null.
nlohmann::ordered_json cell_to_json(const attention::bench::AttentionCell& cell);

void print_ceilings(const platform::DeviceInfo& info, const attention::bench::Ceilings& ceilings);
// "decode  32/8 dim 128/128 batch 1 ctx 8192 q 1"
std::string shape_text(const attention::bench::AttentionCell& cell);

// Cells as bars of microseconds; refused ones say why.
BarChart chart_of(const std::vector<attention::bench::AttentionCell>& cells, const std::string& title);

}  // namespace quire::cli
