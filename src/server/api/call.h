// Call: one API request, read and checked: what to run, and how the client wants to hear of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/session.h"
#include "server/api/error.h"

namespace quire::server::api {

// What reading a request needs to know of the server.
struct ModelFacts {
  std::string name;  // in requests and answers
  std::int64_t created = 0;
  std::int32_t max_context = 0;
  GenerationDefaults defaults;
  ToolFormat tool_format = ToolFormat::none;
};

struct Call {
  enum class Kind : std::uint8_t { completion, chat, response };
  Kind kind = Kind::completion;
  std::vector<TextRequest> prompts;  // at least one; each is run `choices` times
  std::int32_t choices = 1;          // per prompt; choice c of prompt p has the index p * choices + c
  bool draws_seed = false;           // none was given: a fresh one is drawn

  bool stream = false;
  bool include_usage = false;  // streams: a last chunk with the usage
  bool echo = false;           // completions: prompt and answer
  bool logprobs = false;
  std::vector<std::string> echo_texts;  // per prompt; empty: the text is that of its tokens

  bool tools = false;  // look for calls of these tools
  ToolFormat tool_format = ToolFormat::none;
  std::vector<std::string> tool_names;
  // Responses: the fields of the request that its answer repeats, as a JSON object.
  std::string repeated;

  std::size_t size() const { return prompts.size() * static_cast<std::size_t>(choices); }
};

// Refuses a prompt of more token ids than the context has, or of more bytes than are read for it (limits.h),
// before anything costly is done with it. Of a conversation all that its template is given is counted,
// whether the template shows it to the model or not. `path` names the prompt in the message.
Problem check_prompt_size(const TextRequest& request, std::string_view path, const ModelFacts& facts);

// The requests of a call in the order of their indices: each prompt `choices` times, with the place among
// them as sequence_index, so that equal seeds give different answers. Only the first of them has the prompt
// (EngineLoop::submit), which is taken out of the call.
std::vector<TextRequest> requests_of(Call& call, std::uint64_t fresh_seed);

}  // namespace quire::server::api
