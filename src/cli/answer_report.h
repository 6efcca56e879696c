// One finished answer of `run` as JSON and as the line of figures.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "quire/session.h"

namespace quire::cli {

struct AnswerReport {
  std::string text;
  std::vector<std::int32_t> tokens;
  TextOutput end;  // the output with the finish
};

double prefill_tokens_s(const TextOutput& end);
double decode_tokens_s(const TextOutput& end);  // of the tokens after the first; 0 when there are none
std::string_view finish_reason(Finish finish);
nlohmann::ordered_json to_json(const AnswerReport& report, const EngineInfo& info);
std::string figures(const TextOutput& end, const EngineInfo& info);

}  // namespace quire::cli
