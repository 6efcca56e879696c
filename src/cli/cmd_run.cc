// `quire run`: one prompt, or many as one continuous batch.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/text.h"
#include "cli/answer_report.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/log.h"
#include "cli/observe.h"
#include "cli/prompts_file.h"

namespace quire::cli {

namespace {

struct Run {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  std::string model;
  std::string prompt;
  std::string file;
  std::string ids;
  std::string prompts;
  std::int32_t samples = 1;
  bool has_prompt = false;
  bool has_ids = false;
  bool chat = false;
  bool json = false;
  bool explain = false;
  bool json_object = false;
  std::string json_schema;  // files
  std::string grammar;
  Options options;
  SamplingFlags sampling;
};

// What the answer is held to.
Status set_format(const Run& run, TextRequest* request) {
  if (int{run.json_object} + int{!run.json_schema.empty()} + int{!run.grammar.empty()} > 1)
    return bad_input("more than one format: give one of --json-object, --json-schema and --grammar");
  if (run.json_object) request->format = AnswerFormat::json_object;
  const std::string& file = run.json_schema.empty() ? run.grammar : run.json_schema;
  if (file.empty()) return {};
  request->format = run.json_schema.empty() ? AnswerFormat::grammar : AnswerFormat::json_schema;
  QUIRE_TRY(text, read_file(file));
  request->schema = std::move(text);
  return {};
}

Result<TextRequest> single_request(const Run& run, const Session& session) {
  const int sources = int{run.has_prompt} + int{!run.file.empty()} + int{run.has_ids};
  if (sources > 1) return bad_input("more than one prompt: give one of -p, -f and --ids");
  TextRequest request;
  if (run.has_ids) {
    if (run.chat) return bad_input("--chat needs text: give -p or -f instead of --ids");
    QUIRE_TRY(ids, parse_ids(run.ids));
    request.ids = std::move(ids);
  } else if (run.has_prompt) {
    request.text = run.prompt;
  } else {
    QUIRE_TRY(text, read_file(run.file.empty() ? "-" : run.file));
    request.text = std::move(text);
  }
  if (run.chat) request.messages = {Message{"user", request.text}};
  request.max_tokens = run.sampling.max_tokens;
  request.sampling = effective_sampling(*run.settings, run.sampling, session.defaults());
  request.stop = run.sampling.stop;
  request.ignore_eos = run.sampling.ignore_eos;
  QUIRE_TRY_STATUS(set_format(run, &request));
  return request;
}

void print_line(const nlohmann::ordered_json& json) {
  const std::string line = json_text(json);
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

Status run_single(const Run& run, Session& session) {
  QUIRE_TRY(request, single_request(run, session));
  QUIRE_TRY_STATUS([&]() -> Status {
    const Result<RequestId> id = session.submit(request);
    return id.ok() ? Status() : Status(id.error());
  }());
  AnswerReport report;
  std::vector<TextOutput> outputs;
  bool more = true;
  while (more) {
    outputs.clear();
    more = session.step(outputs);
    for (TextOutput& output : outputs) {
      report.text += output.text;
      report.tokens.insert(report.tokens.end(), output.tokens.begin(), output.tokens.end());
      if (!run.json && !output.text.empty()) {
        std::fwrite(output.text.data(), 1, output.text.size(), stdout);
        std::fflush(stdout);
      }
      if (output.finish != Finish::none) report.end = std::move(output);
    }
  }
  if (run.json) {
    nlohmann::ordered_json json = to_json(report, session.engine().info());
    add_observed(json, session.engine().stats());
    print_line(json);
  } else {
    fmt::print("\n");
    std::fflush(stdout);
    fmt::print(stderr, "{}\n", figures(report.end, session.engine().info()));
  }
  if (report.end.finish == Finish::failed) return bad_input(report.end.error);
  return {};
}

// Many requests as one continuous batch: they come at their times and go out in the order of the file, one
// JSON object a line or as text. All are checked before the first step, so none fails later for what it asks.
// The engine's queue gets them as it has room: a request and its prompt are copied only then, and what waits
// here keeps its place.
class Many {
 public:
  Many(Session& session, std::vector<NumberedRequest> lines, bool json)
      : session_(session), lines_(std::move(lines)), json_(json) {
    std::size_t place = 0;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      order_.push_back(i);
      first_place_.push_back(place);
      place += static_cast<std::size_t>(lines_[i].n);
    }
    std::stable_sort(order_.begin(), order_.end(), [this](std::size_t a, std::size_t b) {
      return lines_[a].arrival_s < lines_[b].arrival_s;
    });
  }

  Status run() {
    QUIRE_TRY_STATUS(check_all());
    begin_ = Clock::now();
    bool more = true;
    while (more || next_ < order_.size()) {
      if (!more) wait_for_next();
      QUIRE_TRY_STATUS(submit_arrived());
      outputs_.clear();
      more = session_.step(outputs_);
      for (TextOutput& output : outputs_) take(output);
      print_finished();
    }
    if (!failure_.empty()) return bad_input(failure_);
    return {};
  }

 private:
  // What waiting requests may take on the host, some 4 bytes a token of prompt and answer, before a batch
  // that could be full is left to run: 256 MiB.
  static constexpr std::int64_t kMostQueuedTokens = std::int64_t{64} << 20;

  struct Answer {  // a sample that was submitted and is not printed
    std::size_t line = 0;
    std::int32_t sample = 0;
    double late_s = 0.0;  // from arrival to submission
    std::int64_t tokens = 0;
    bool done = false;
    AnswerReport report;
  };

  double now() const { return seconds_since(begin_); }

  void wait_for_next() const {
    std::this_thread::sleep_for(std::chrono::duration<double>(lines_[order_[next_]].arrival_s - now()));
  }

  std::string about(const NumberedRequest& line, const std::string& message) const {
    return line.line == 0 ? message : fmt::format("prompts, line {}: {}", line.line, message);
  }

  // Leaves the tokens in place of text and messages: they are made once.
  Status check_all() {
    for (NumberedRequest& line : lines_) {
      Result<std::vector<std::int32_t>> ids = session_.check(line.request);
      if (!ids.ok()) return Error{ids.error().code, about(line, ids.error().message)};
      line.request.ids = std::move(ids).value();
      std::string().swap(line.request.text);
      std::vector<Message>().swap(line.request.messages);
    }
    return {};
  }

  bool may_submit() const {
    if (next_ == order_.size() || lines_[order_[next_]].arrival_s > now()) return false;
    const Queue queue = session_.engine().queue();
    if (queue.room == 0) return false;
    return queue.waiting < session_.engine().info().max_running || queued_tokens_ < kMostQueuedTokens;
  }

  Status submit_arrived() {
    for (; may_submit(); advance()) {
      const std::size_t index = order_[next_];
      const NumberedRequest& line = lines_[index];
      Answer answer{.line = index, .sample = next_sample_, .late_s = now() - line.arrival_s};
      TextRequest request = line.request;
      request.sequence_index += static_cast<std::uint64_t>(next_sample_);
      // The time until it is late is over all the same while it waits here.
      constexpr double kLeastDeadline = 1e-6;
      if (request.deadline_s > 0)
        request.deadline_s = std::max(request.deadline_s - answer.late_s, kLeastDeadline);
      const Result<RequestId> id = session_.submit(request);
      if (!id.ok()) return Error{id.error().code, about(line, id.error().message)};
      const std::int64_t room = session_.engine().info().max_context;
      const auto prompt = static_cast<std::int64_t>(request.ids.size());
      answer.tokens = request.max_tokens == 0 ? room : std::min(room, prompt + request.max_tokens);
      queued_tokens_ += answer.tokens;
      const std::size_t place = first_place_[index] + static_cast<std::size_t>(next_sample_);
      place_of_[id.value()] = place;
      answers_.emplace(place, std::move(answer));
    }
    return {};
  }

  void advance() {
    if (++next_sample_ < lines_[order_[next_]].n) return;
    next_sample_ = 0;
    ++next_;
  }

  void take(TextOutput& output) {
    const auto place = place_of_.find(output.id);
    Answer& answer = answers_.at(place->second);
    AnswerReport& report = answer.report;
    report.text += output.text;
    report.tokens.insert(report.tokens.end(), output.tokens.begin(), output.tokens.end());
    answer.done = output.finish != Finish::none;
    if (!answer.done) return;
    if (output.finish == Finish::failed && failure_.empty())
      failure_ = about(lines_[answer.line], output.error);
    report.end = std::move(output);
    // Times count from the arrival: until it was taken up, a step was running or the queue was full.
    if (report.end.first_token_s > 0) report.end.first_token_s += answer.late_s;
    report.end.finish_s += answer.late_s;
    queued_tokens_ -= answer.tokens;
    place_of_.erase(place);
  }

  void print_finished() {
    for (auto first = answers_.find(printed_); first != answers_.end() && first->second.done;
         first = answers_.find(++printed_)) {
      print(first->second);
      answers_.erase(first);
    }
  }

  void print(const Answer& answer) const {
    const EngineInfo& info = session_.engine().info();
    if (json_) {
      nlohmann::ordered_json json = to_json(answer.report, info);
      json["index"] = answer.line;
      json["sample"] = answer.sample;
      json["finish_s"] = answer.report.end.finish_s;
      print_line(json);
      return;
    }
    fmt::print("--- sample {} ---\n{}\n", answer.sample, answer.report.text);
    std::fflush(stdout);
    fmt::print(stderr, "{}\n", figures(answer.report.end, info));
  }

  Session& session_;
  std::vector<NumberedRequest> lines_;
  bool json_ = false;
  std::vector<std::size_t> order_;        // by arrival
  std::vector<std::size_t> first_place_;  // per line: of its first sample, in the order of printing
  std::map<std::size_t, Answer> answers_;
  std::map<RequestId, std::size_t> place_of_;
  std::vector<TextOutput> outputs_;
  std::string failure_;           // of the first request that failed; the others go on
  std::size_t next_ = 0;          // of order_
  std::int32_t next_sample_ = 0;  // of that line
  std::size_t printed_ = 0;       // places before this are out
  std::int64_t queued_tokens_ = 0;
  Clock::time_point begin_;
};

Status run_samples(const Run& run, Session& session) {
  QUIRE_TRY(request, single_request(run, session));
  std::vector<NumberedRequest> requests;
  requests.push_back({.n = run.samples, .request = std::move(request)});
  return Many(session, std::move(requests), run.json).run();
}

Status run_many(const Run& run, Session& session) {
  QUIRE_TRY(text, read_file(run.prompts));
  TextRequest base;
  base.max_tokens = run.sampling.max_tokens;
  base.sampling = effective_sampling(*run.settings, run.sampling, session.defaults());
  base.stop = run.sampling.stop;
  base.ignore_eos = run.sampling.ignore_eos;
  QUIRE_TRY_STATUS(set_format(run, &base));
  QUIRE_TRY(requests, parse_prompts(text, base, run.chat, run.samples));
  return Many(session, std::move(requests), /*json=*/true).run();
}

Status run_command(Run& run) {
  if (!run.prompts.empty() && (run.has_prompt || !run.file.empty() || run.has_ids)) {
    return bad_input("--prompts brings its own prompts: leave out -p, -f and --ids");
  }
  QUIRE_TRY(session, Session::open(run.model, run.options));
  log_engine(session->engine().info(), run.explain);
  QUIRE_TRY_STATUS(!run.prompts.empty() ? run_many(run, *session)
                   : run.samples > 1    ? run_samples(run, *session)
                                        : run_single(run, *session));
  print_observed(session->engine().stats());
  return {};
}

}  // namespace

Command make_run(CLI::App& root) {
  auto run = std::make_shared<Run>();
  Flags command(root, "run", "answer one prompt, or many as one batch");
  command.need("MODEL", &run->model, "a Hugging Face folder or a .gguf file")
      .text("-p,--prompt", &run->prompt, "the prompt", &run->has_prompt)
      .file("-f,--file", &run->file, "read the prompt from a file (- or nothing: standard input)")
      .text("--ids", &run->ids, "the prompt as token ids: 1,2,3", &run->has_ids)
      .file("--prompts", &run->prompts, "many prompts, one JSON object a line; prints one JSON object a line")
      .on("--chat", &run->chat, "put the prompt into the model's chat template")
      .on("--json-object", &run->json_object, "the answer is a JSON object")
      .file("--json-schema", &run->json_schema, "the answer is JSON that the schema in this file accepts")
      .file("--grammar", &run->grammar,
            "the answer is what the EBNF in this file derives, from its rule root")
      .json(&run->json, "print one JSON object instead of text");
  add_engine_settings(*run->settings, &run->options, &run->explain);
  add_sampling_settings(*run->settings, &run->sampling);
  run->settings->add({.name = "n",
                      .group = "Sampling",
                      .value_name = "N",
                      .help = "samples of the prompt, or of each line of --prompts",
                      .set = into(&run->samples, 1, kMostSamples),
                      .show = [run = run.get()] { return std::to_string(run->samples); }});
  add_observe_settings(*run->settings, &run->options);
  return {&command.app(), run->settings, [run] { return run_command(*run); }};
}

}  // namespace quire::cli
