// The outcomes of a load as one SVG picture: how the times to the first token, between tokens and of whole
// requests are distributed, and what ran when. Readable on light and dark ground.
#pragma once

#include <span>
#include <string>

#include "server/bench/client.h"
#include "server/bench/report.h"

namespace quire::server::bench {

std::string plot_svg(std::span<const Outcome> outcomes, const Report& report, const Limits& limits,
                     const std::string& title);

}  // namespace quire::server::bench
