#include "server/api/run_call.h"

#include <string_view>
#include <utility>

namespace quire::server::api {
namespace {

// Lives in the sink: on the loop's thread only.
class RunningCall {
 public:
  RunningCall(EngineLoop& loop, Call& call, AnswerHead head, std::shared_ptr<Responder> responder)
      : loop_(loop),
        responder_(std::move(responder)),
        stream_(call.stream),
        answer_(call, make_writer(call, std::move(head))) {}

  void take(Update update) {
    if (update.refusal != nullptr) return responder_->send(error_answer(refused(*update.refusal)));
    if (answer_.ended()) return;  // one choice failed; the others' last updates
    const std::string bytes = answer_.update(update.index, std::move(update.output));
    if (answer_.failure()) loop_.cancel(update.ticket);
    if (stream_) {
      send_stream(bytes);
    } else if (answer_.failure()) {
      responder_->send(error_answer(*answer_.failure()));
    } else if (answer_.ended()) {
      responder_->send({.body = bytes});
    }
  }

 private:
  void send_stream(const std::string& bytes) {
    if (!started_ && answer_.failure()) return responder_->send(error_answer(*answer_.failure()));
    if (!started_ && !bytes.empty()) {
      // nginx holds events back without the second.
      responder_->start_stream(200, "text/event-stream; charset=utf-8",
                               {{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}});
      started_ = true;
    }
    if (!bytes.empty()) responder_->write(bytes);
    if (answer_.ended()) responder_->finish();
  }

  EngineLoop& loop_;
  std::shared_ptr<Responder> responder_;
  bool stream_;
  bool started_ = false;
  Answer answer_;
};

// The field that the engine's words are about.
std::string param_of(std::string_view message) {
  if (message.starts_with("a logit bias") || message.starts_with("the logit bias")) return "logit_bias";
  if (message.starts_with("prompt position")) return "prompt";
  return "";
}

}  // namespace

ApiError refused(const Refusal& refusal) {
  switch (refusal.why) {
    case Refusal::Why::queue_full:
      return {429, refusal.message, "", "queue_full", refusal.retry_after_s};
    case Refusal::Why::draining:
      return {503, refusal.message, "", "draining", std::max(1.0, refusal.retry_after_s)};
    case Refusal::Why::never_fits:
      return {400, refusal.message, "", "context_length_exceeded", 0.0};
    case Refusal::Why::invalid:
      break;
  }
  const bool long_prompt = refusal.message.find("over the context of") != std::string::npos;
  return {400, refusal.message, param_of(refusal.message),
          long_prompt ? "context_length_exceeded" : "invalid_value", 0.0};
}

void run_call(EngineLoop& loop, Call& call, AnswerHead head, std::uint64_t fresh_seed,
              const std::shared_ptr<Responder>& responder) {
  const auto running = std::make_shared<RunningCall>(loop, call, std::move(head), responder);
  const Ticket ticket = loop.submit(requests_of(call, fresh_seed),
                                    [running](Update update) { running->take(std::move(update)); });
  responder->on_close([&loop, ticket] { loop.cancel(ticket); });
}

}  // namespace quire::server::api
