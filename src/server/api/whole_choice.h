// One choice of a whole answer, as its pieces gather.
#pragma once

#include <string>
#include <vector>

#include "server/api/answer.h"

namespace quire::server::api {

struct WholeChoice {
  struct ToolCall {
    std::string name;
    std::string arguments;
  };
  std::string text;
  std::vector<ToolCall> calls;
  std::vector<TextLogprob> logprobs;
  std::string finish;

  void take(const Piece& piece);
};

}  // namespace quire::server::api
