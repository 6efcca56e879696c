// `quire run`: one prompt, or many as one continuous batch.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

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
  Options options;
  SamplingFlags sampling;
};

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
  return request;
}

void print_line(const nlohmann::ordered_json& json) {
  const std::string line = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
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

// Many requests as one continuous batch: they come at their times, lines go out in the order of the file.
class Many {
 public:
  Many(Session& session, std::vector<NumberedRequest> requests)
      : session_(session),
        requests_(std::move(requests)),
        reports_(requests_.size()),
        late_s_(requests_.size()),
        done_(requests_.size(), false) {
    for (std::size_t i = 0; i < requests_.size(); ++i) order_.push_back(i);
    std::stable_sort(order_.begin(), order_.end(), [this](std::size_t a, std::size_t b) {
      return requests_[a].arrival_s < requests_[b].arrival_s;
    });
  }

  Status run() {
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
  using Clock = std::chrono::steady_clock;

  double now() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  void wait_for_next() const {
    std::this_thread::sleep_for(std::chrono::duration<double>(requests_[order_[next_]].arrival_s - now()));
  }

  Status submit_arrived() {
    for (; next_ < order_.size() && requests_[order_[next_]].arrival_s <= now(); ++next_) {
      const std::size_t index = order_[next_];
      const NumberedRequest& request = requests_[index];
      const Result<RequestId> id = session_.submit(request.request);
      if (!id.ok())
        return Error{id.error().code, fmt::format("prompts, line {}: {}", request.line, id.error().message)};
      index_of_[id.value()] = index;
      if (request.arrival_s > 0) late_s_[index] = now() - request.arrival_s;
    }
    return {};
  }

  void take(TextOutput& output) {
    const std::size_t index = index_of_.at(output.id);
    AnswerReport& report = reports_[index];
    report.text += output.text;
    report.tokens.insert(report.tokens.end(), output.tokens.begin(), output.tokens.end());
    done_[index] = output.finish != Finish::none;
    if (!done_[index]) return;
    if (output.finish == Finish::failed && failure_.empty())
      failure_ = fmt::format("prompts, line {}: {}", requests_[index].line, output.error);
    report.end = std::move(output);
    // Times count from the arrival: until it was taken up, a step was running.
    report.end.first_token_s += late_s_[index];
    report.end.finish_s += late_s_[index];
  }

  void print_finished() {
    for (; printed_ < reports_.size() && done_[printed_]; ++printed_) {
      nlohmann::ordered_json json = to_json(reports_[printed_], session_.engine().info());
      json["index"] = requests_[printed_].request_index;
      json["sample"] = requests_[printed_].sample;
      json["finish_s"] = reports_[printed_].end.finish_s;
      print_line(json);
      reports_[printed_] = {};
    }
  }

  Session& session_;
  std::vector<NumberedRequest> requests_;
  std::vector<std::size_t> order_;  // by arrival
  std::vector<AnswerReport> reports_;
  std::vector<double> late_s_;  // from arrival to submission
  std::vector<bool> done_;
  std::map<RequestId, std::size_t> index_of_;
  std::vector<TextOutput> outputs_;
  std::string failure_;      // of the first request that failed; the others go on
  std::size_t next_ = 0;     // of order_
  std::size_t printed_ = 0;  // reports before this are out
  Clock::time_point begin_ = Clock::now();
};

Status run_samples(const Run& run, Session& session) {
  QUIRE_TRY(request, single_request(run, session));
  std::vector<NumberedRequest> requests;
  add_samples({.request = std::move(request)}, run.samples, &requests);
  return Many(session, std::move(requests)).run();
}

Status run_many(const Run& run, Session& session) {
  QUIRE_TRY(text, read_file(run.prompts));
  TextRequest base;
  base.max_tokens = run.sampling.max_tokens;
  base.sampling = effective_sampling(*run.settings, run.sampling, session.defaults());
  base.stop = run.sampling.stop;
  base.ignore_eos = run.sampling.ignore_eos;
  QUIRE_TRY(requests, parse_prompts(text, base, run.chat, run.samples));
  return Many(session, std::move(requests)).run();
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
      .text("-f,--file", &run->file, "read the prompt from a file (- or nothing: standard input)")
      .text("--ids", &run->ids, "the prompt as token ids: 1,2,3", &run->has_ids)
      .text("--prompts", &run->prompts, "many prompts, one JSON object a line; prints one JSON object a line")
      .on("--chat", &run->chat, "put the prompt into the model's chat template")
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
