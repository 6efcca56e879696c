#include "simulate/clients.h"

namespace quire::simulate {

const std::int32_t* Clients::open(SequenceId sequence) {
  Client& client = of(sequence);
  client.state = ClientState::live;
  if (spare_.empty()) {
    client.live = static_cast<std::uint32_t>(prompts_.size());
    prompts_.emplace_back();
  } else {
    client.live = spare_.back();
    spare_.pop_back();
  }
  LivePrompt& prompt = prompts_[client.live];
  const TraceRequest& wanted = request(sequence);
  prompt.tokens.reserve(static_cast<std::size_t>(wanted.prompt_tokens) +
                        static_cast<std::size_t>(wanted.max_tokens));
  append_prompt(trace_, wanted, prompt.tokens);
  return prompt.tokens.data();
}

void Clients::add_output(SequenceId sequence) {
  Client& client = of(sequence);
  prompts_[client.live].tokens.push_back(output(sequence, client.outputs++));
}

void Clients::close(SequenceId sequence, ClientState state) {
  Client& client = of(sequence);
  client.state = state;
  prompts_[client.live].tokens.clear();
  prompts_[client.live].stamps.clear();
  spare_.push_back(client.live);
}

std::span<const std::uint64_t> Clients::stamps(SequenceId sequence, std::int32_t end) {
  LivePrompt& prompt = prompts_[of(sequence).live];
  std::uint64_t last = prompt.stamps.empty() ? request(sequence).space : prompt.stamps.back();
  for (auto key = static_cast<std::int32_t>(prompt.stamps.size()); key < end; ++key) {
    const std::int32_t prompt_tokens = request(sequence).prompt_tokens;
    const std::int32_t token = key < prompt_tokens ? prompt.tokens[static_cast<std::size_t>(key)]
                                                   : output(sequence, key - prompt_tokens);
    last = mix(last, static_cast<std::uint64_t>(token));
    prompt.stamps.push_back(last);
  }
  return {prompt.stamps.data(), static_cast<std::size_t>(end)};
}

std::int32_t Clients::output(SequenceId sequence, std::int32_t index) const {
  return token_of(trace_, request(sequence).output_content, index);
}

}  // namespace quire::simulate
