// The fields that every generating endpoint has, apart from sampling.
#pragma once

#include <optional>
#include <string>

#include "server/api/call.h"
#include "server/api/fields.h"

namespace quire::server::api {

struct CallFields {
  std::optional<std::string> model;
  std::optional<std::int64_t> n;
  std::optional<bool> stream;
  std::optional<bool> include_usage;
  bool has_stream_options = false;
};

void visit_model(Fields& fields, CallFields& call);
void visit_choices(Fields& fields, CallFields& call);
// stream and, where the endpoint has it, stream_options.
void visit_stream(Fields& fields, CallFields& call);
// What a chat template is told as reasoning_effort: OpenAI's words, under `name`.
void visit_effort(Fields& fields, const char* name, std::optional<std::string>& effort);
// Routes that have no `reasoning`: one without any value is taken.
void visit_no_reasoning(Fields& fields, const char* instead);
// user, metadata, service_tier and the like: checked, without effect.
void visit_notes(Fields& fields);

// Fields of OpenAI's that no route has. One that another route has is said by each of the others itself: what
// is dropped without a word gives another answer than the caller wanted.
void visit_missing(Fields& fields);

// Fields of vLLM's and llama.cpp's servers that would change the answer and have another name here, or none:
// refused, for an answer that is not held to a form that was asked for is a wrong one.
void visit_elsewhere(Fields& fields);

// Refuses another model's name (404).
Problem check_model(const CallFields& fields, const ModelFacts& facts);
// Refuses another model's name and stream_options without stream; puts the rest into `call`.
Problem finish_fields(const CallFields& fields, const ModelFacts& facts, Call* call);

}  // namespace quire::server::api
