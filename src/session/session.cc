// The public Session (quire/session.h): text around an Engine.
#include "quire/session.h"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <utility>

#include "session/answer.h"
#include "session/guides.h"
#include "session/messages_json.h"
#include "session/text_model.h"
#include "session/tools/syntax.h"

namespace quire {

namespace {

class SessionImpl final : public Session {
 public:
  SessionImpl(std::unique_ptr<session::TextModel> text, std::unique_ptr<Engine> engine)
      : text_(std::move(text)), guides_(*text_), engine_(std::move(engine)) {}

  Engine& engine() override { return *engine_; }
  const GenerationDefaults& defaults() const override { return text_->defaults(); }
  Result<RequestId> submit(const TextRequest& request) override;
  Result<std::vector<std::int32_t>> check(const TextRequest& request) const override;
  Result<TextRequest> prepare(TextRequest request) const override;
  void cancel(RequestId id) override;
  ToolFormat tool_format() const override { return text_->tool_syntax().format; }
  bool step(std::vector<TextOutput>& outputs) override;
  Result<std::vector<std::int32_t>> tokenize(std::string_view text, bool add_special_tokens) const override;
  Result<std::string> detokenize(const std::vector<std::int32_t>& ids,
                                 bool skip_special_tokens) const override;
  Result<std::string> render(const std::vector<Message>& messages) const override;

 private:
  struct Live {
    session::Answer answer;
    std::int32_t prompt_tokens = 0;
    std::vector<std::int32_t> scored_prompt;  // empty: it is not scored
    std::size_t scored = 0;                   // tokens of it that were reported
    std::int32_t cached_tokens = 0;           // these as in Output, from the first token on
    std::string cache_miss = {};
    double queued_s = 0.0;
  };
  Result<session::RenderedChat> render_chat(const session::ChatInputs& inputs) const;
  session::ChatInputs inputs_of(const std::vector<Message>& messages) const;
  Result<session::ChatInputs> inputs_of(const TextRequest& request) const;
  Result<std::vector<std::int32_t>> prompt_of(const TextRequest& request,
                                              const session::ChatInputs& inputs) const;
  Result<std::shared_ptr<const GuideMaker>> guides_of(const TextRequest& request,
                                                      const session::ChatInputs& inputs) const;
  Result<Request> engine_request(const TextRequest& request) const;
  std::vector<tokenizer::TokenId> kept_tokens(const TextRequest& request) const;
  Result<tokenizer::StopMatcher> stops_of(const TextRequest& request) const;
  TextLogprob logprob_of(std::int32_t token, float logprob,
                         const std::vector<std::pair<std::int32_t, float>>& top) const;
  void report_scores(const Output& output, Live& live, TextOutput& text) const;
  void deliver(const Output& output, std::vector<TextOutput>& outputs);

  std::unique_ptr<session::TextModel> text_;
  session::Guides guides_;
  std::unique_ptr<Engine> engine_;
  std::map<RequestId, Live> live_;
  std::vector<Output> engine_outputs_;
};

session::ChatInputs SessionImpl::inputs_of(const std::vector<Message>& messages) const {
  session::ChatInputs inputs;
  inputs.messages = session::messages_json(messages);
  inputs.bos_token = text_->template_tokens().bos_token;
  inputs.eos_token = text_->template_tokens().eos_token;
  return inputs;
}

Result<session::RenderedChat> SessionImpl::render_chat(const session::ChatInputs& inputs) const {
  QUIRE_TRY(chat_template, text_->chat_template());
  return chat_template->render(inputs);
}

// The conversation, for whoever still needs it of prompt_of() and guides_of(); else empty.
Result<session::ChatInputs> SessionImpl::inputs_of(const TextRequest& request) const {
  const bool for_prompt = request.ids.empty();
  const bool for_guides = request.guides == nullptr && request.tool_use != ToolUse::automatic;
  if (!request.conversation.empty() && (for_prompt || for_guides))
    return session::conversation_inputs(text_->template_tokens(), request.conversation);
  if (!request.messages.empty() && for_prompt) return inputs_of(request.messages);
  return session::ChatInputs();
}

Result<std::vector<std::int32_t>> SessionImpl::prompt_of(const TextRequest& request,
                                                         const session::ChatInputs& inputs) const {
  if (!request.ids.empty()) return request.ids;
  if (inputs.messages.empty()) return tokenize(request.text, request.add_special_tokens);
  QUIRE_TRY(chat, render_chat(inputs));
  QUIRE_TRY(tokenizer, text_->tokenizer());
  tokenizer::EncodeOptions options;
  options.add_special = false;  // the template writes its own
  options.plain = chat.user;    // a special token that a user wrote stays text
  return tokenizer->encode(chat.text, options);
}

Result<Request> SessionImpl::engine_request(const TextRequest& request) const {
  QUIRE_TRY(inputs, inputs_of(request));
  QUIRE_TRY(prompt, prompt_of(request, inputs));
  if (prompt.empty()) return bad_input("the prompt has no token: give at least one character or id");
  Request engine_request;
  engine_request.prompt = std::move(prompt);
  engine_request.max_tokens = request.max_tokens;
  engine_request.sampling = request.sampling;
  if (!request.ignore_eos) engine_request.stop_tokens = text_->end_tokens();
  engine_request.sequence_index = request.sequence_index;
  engine_request.priority = request.priority;
  engine_request.deadline_s = request.deadline_s;
  engine_request.cache_salt = request.cache_salt;
  engine_request.score = request.score;
  engine_request.answer = request.answer;
  engine_request.score_top = request.score_top;
  engine_request.logprobs = request.logprobs;
  QUIRE_TRY(guides, guides_of(request, inputs));
  if (guides != nullptr) engine_request.guide = guides->make();
  return engine_request;
}

Result<std::shared_ptr<const GuideMaker>> SessionImpl::guides_of(const TextRequest& request,
                                                                 const session::ChatInputs& inputs) const {
  return request.guides != nullptr ? request.guides : guides_.make(request, inputs.tools);
}

// The special tokens that stay in the answer's text.
std::vector<tokenizer::TokenId> SessionImpl::kept_tokens(const TextRequest& request) const {
  const Result<const tokenizer::Tokenizer*> tokenizer = text_->tokenizer();
  std::vector<tokenizer::TokenId> kept;
  if (!request.keep_tool_markers || !tokenizer.ok()) return kept;
  for (const std::string_view marker : session::tool_markers(tool_format())) {
    if (const std::optional<tokenizer::TokenId> id = tokenizer.value()->find(marker)) kept.push_back(*id);
  }
  return kept;
}

Result<tokenizer::StopMatcher> SessionImpl::stops_of(const TextRequest& request) const {
  const Result<const tokenizer::Tokenizer*> tokenizer = text_->tokenizer();
  if (!request.stop.empty() && !tokenizer.ok())
    return bad_input("stop strings need a tokenizer, and that of the model cannot be used: leave them out");
  return tokenizer::StopMatcher::create(request.stop);
}

Result<std::vector<std::int32_t>> SessionImpl::check(const TextRequest& request) const {
  QUIRE_TRY(one, engine_request(request));
  QUIRE_TRY_STATUS(engine_->check(one));
  const Result<tokenizer::StopMatcher> stops = stops_of(request);
  if (!stops.ok()) return stops.error();
  return std::move(one.prompt);
}

Result<RequestId> SessionImpl::submit(const TextRequest& request) {
  QUIRE_TRY(one, engine_request(request));
  QUIRE_TRY(stops, stops_of(request));
  const auto prompt_tokens = static_cast<std::int32_t>(one.prompt.size());
  std::vector<std::int32_t> scored_prompt;
  if (request.score) scored_prompt = one.prompt;
  QUIRE_TRY(id, engine_->submit(std::move(one)));
  const Result<const tokenizer::Tokenizer*> tokenizer = text_->tokenizer();
  session::Answer answer(tokenizer.ok() ? tokenizer.value() : nullptr, std::move(stops),
                         kept_tokens(request));
  live_.emplace(id, Live{std::move(answer), prompt_tokens, std::move(scored_prompt)});
  return id;
}

Result<TextRequest> SessionImpl::prepare(TextRequest request) const {
  QUIRE_TRY(inputs, inputs_of(request));
  QUIRE_TRY(prompt, prompt_of(request, inputs));
  QUIRE_TRY(guides, guides_of(request, inputs));
  request.ids = std::move(prompt);
  request.guides = std::move(guides);
  return request;
}

void SessionImpl::cancel(RequestId id) { engine_->cancel(id); }

TextLogprob SessionImpl::logprob_of(std::int32_t token, float logprob,
                                    const std::vector<std::pair<std::int32_t, float>>& top) const {
  const Result<const tokenizer::Tokenizer*> tokenizer = text_->tokenizer();
  const auto bytes = [&](std::int32_t id) {
    return tokenizer.ok() ? std::string(tokenizer.value()->bytes_of(id)) : std::string();
  };
  TextLogprob text{.id = token, .logprob = logprob, .bytes = bytes(token), .top = {}};
  for (const auto& [id, likely] : top) text.top.push_back({id, likely, bytes(id)});
  return text;
}

// The engine tells of the distribution after token i, that is of token i + 1.
void SessionImpl::report_scores(const Output& output, Live& live, TextOutput& text) const {
  if (output.scored.empty()) return;
  const std::vector<std::int32_t>& prompt = live.scored_prompt;
  if (live.scored == 0) {
    text.prompt.push_back(logprob_of(prompt[0], std::numeric_limits<float>::quiet_NaN(), {}));
    live.scored = 1;
  }
  for (const Scored& scored : output.scored) {
    if (live.scored == prompt.size()) break;  // after the last token comes the answer
    text.prompt.push_back(logprob_of(prompt[live.scored++], scored.logprob, scored.top));
  }
}

void SessionImpl::deliver(const Output& output, std::vector<TextOutput>& outputs) {
  const auto found = live_.find(output.id);
  if (found == live_.end()) return;  // ended by a stop string before; later tokens are dropped
  session::Answer& answer = found->second.answer;
  TextOutput text;
  text.id = output.id;
  report_scores(output, found->second, text);
  for (std::size_t i = 0; i < output.tokens.size() && !answer.stopped(); ++i) {
    const std::int32_t token = output.tokens[i];
    text.text += answer.push(token);
    text.tokens.push_back(token);
    if (output.logprobs.empty()) continue;
    text.logprobs.push_back(logprob_of(token, output.logprobs[i].logprob, output.logprobs[i].top));
  }
  if (!output.cache_miss.empty()) {
    found->second.cached_tokens = output.cached_tokens;
    found->second.cache_miss = output.cache_miss;
    found->second.queued_s = output.queued_s;
  }
  text.finish = output.finish;
  text.error = output.error;
  text.guide_problem = output.guide_problem;
  if (answer.stopped()) {
    text.finish = Finish::stop;
    if (output.finish == Finish::none) engine_->cancel(output.id);
  } else if (output.finish != Finish::none) {
    text.text += answer.flush();
  }
  if (text.finish != Finish::none) {
    // At a stop string the engine has not ended the request and its output has no totals.
    text.prompt_tokens = found->second.prompt_tokens;
    text.completion_tokens = answer.tokens();
    text.cached_tokens = found->second.cached_tokens;
    text.cache_miss = std::move(found->second.cache_miss);
    text.queued_s = found->second.queued_s;
    text.first_token_s = answer.first_token_s();
    text.finish_s = answer.age_s();
    live_.erase(found);
  }
  outputs.push_back(std::move(text));
}

bool SessionImpl::step(std::vector<TextOutput>& outputs) {
  engine_->recycle(engine_outputs_);
  const bool more = engine_->step(engine_outputs_);
  for (const Output& output : engine_outputs_) deliver(output, outputs);
  return more;
}

Result<std::vector<std::int32_t>> SessionImpl::tokenize(std::string_view text,
                                                        bool add_special_tokens) const {
  QUIRE_TRY(tokenizer, text_->tokenizer());
  tokenizer::EncodeOptions options;
  options.add_special = add_special_tokens;
  return tokenizer->encode(text, options);
}

Result<std::string> SessionImpl::detokenize(const std::vector<std::int32_t>& ids,
                                            bool skip_special_tokens) const {
  QUIRE_TRY(tokenizer, text_->tokenizer());
  const auto size = static_cast<std::int64_t>(tokenizer->vocabulary_size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= size)
      return bad_input(
          fmt::format("position {} is token {}: the vocabulary has tokens 0 to {}", i, ids[i], size - 1));
  }
  return tokenizer->decode(ids, skip_special_tokens);
}

Result<std::string> SessionImpl::render(const std::vector<Message>& messages) const {
  QUIRE_TRY(chat, render_chat(inputs_of(messages)));
  return chat.text;
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(const std::string& model, const Options& options) {
  QUIRE_TRY(text, session::TextModel::load(model));
  QUIRE_TRY(engine, Engine::open(model, options));
  return std::unique_ptr<Session>(std::make_unique<SessionImpl>(std::move(text), std::move(engine)));
}

}  // namespace quire
