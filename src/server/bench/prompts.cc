#include "server/bench/prompts.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace quire::server::bench {
namespace {

using Json = nlohmann::ordered_json;

// Common enough to be one token with the space before them in most vocabularies.
constexpr std::array<std::string_view, 96> kWords = {
    "time",     "people", "way",    "water",  "words",    "day",      "part",    "number", "sound",
    "work",     "place",  "year",   "back",   "name",     "sentence", "line",    "boy",    "farm",
    "end",      "men",    "land",   "home",   "hand",     "picture",  "air",     "animal", "house",
    "page",     "letter", "mother", "answer", "world",    "food",     "country", "plant",  "school",
    "father",   "tree",   "city",   "earth",  "eye",      "light",    "thought", "head",   "story",
    "left",     "night",  "life",   "white",  "children", "side",     "feet",    "car",    "mile",
    "group",    "river",  "state",  "book",   "science",  "room",     "friend",  "idea",   "fish",
    "mountain", "north",  "base",   "horse",  "face",     "wood",     "color",   "girl",   "young",
    "talk",     "bird",   "family", "body",   "music",    "paper",    "order",   "fire",   "problem",
    "piece",    "pass",   "top",    "whole",  "king",     "size",     "best",    "hour",   "step",
    "morning",  "value",  "war",    "law",    "voice",    "power"};

std::string words(std::mt19937_64& random, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[random() % kWords.size()];
  }
  return text;
}

const char* path_of(bool chat) { return chat ? "/v1/chat/completions" : "/v1/completions"; }

Json base_body(const Wording& wording) {
  Json body{{"model", wording.model},
            {"max_tokens", wording.output_tokens},
            {"temperature", wording.temperature},
            {"stream", true},
            {"stream_options", {{"include_usage", true}}}};
  if (wording.ignore_eos) body["ignore_eos"] = true;
  return body;
}

Result<Job> job_of_line(const std::string& line, int number, const Wording& wording) {
  const Json json = Json::parse(line, nullptr, false);
  const auto fault = [number](const std::string& what) {
    return bad_input(fmt::format("line {} of the prompts: {}", number, what));
  };
  if (!json.is_object()) return fault("no JSON object");
  if (json.contains("prompt") == json.contains("messages")) return fault("give \"prompt\" or \"messages\"");
  Json body = base_body(wording);
  bool chat = wording.chat;
  for (const auto& [key, value] : json.items()) body[key] = value;
  if (json.contains("messages")) {
    chat = true;
  } else if (chat) {
    if (!json["prompt"].is_string()) return fault("\"prompt\" is no text, and a chat needs one");
    body["messages"] = Json::array({{{"role", "user"}, {"content", json["prompt"]}}});
    body.erase("prompt");
  }
  body["stream"] = true;  // times between tokens need it
  return Job{.path = path_of(chat), .body = json_text(body)};
}

}  // namespace

Result<std::vector<Job>> jobs_of_file(const std::string& text, const Wording& wording, int requests) {
  std::vector<Job> lines;
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    QUIRE_TRY(job, job_of_line(line, number, wording));
    lines.push_back(std::move(job));
  }
  if (lines.empty()) return bad_input("the file of prompts has no line: give one JSON object a line");
  const std::size_t count = requests > 0 ? static_cast<std::size_t>(requests) : lines.size();
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < count; ++i) jobs.push_back(lines[i % lines.size()]);
  return jobs;
}

std::vector<Job> synthetic_jobs(const Synthetic& synthetic, const Wording& wording) {
  std::mt19937_64 random(synthetic.seed);
  std::vector<std::string> prefixes;
  for (int i = 0; i < synthetic.prefixes; ++i) prefixes.push_back(words(random, synthetic.prefix_words));
  std::vector<Job> jobs;
  for (int i = 0; i < synthetic.requests; ++i) {
    const std::string& prefix = prefixes[random() % prefixes.size()];
    const std::string own = words(random, synthetic.own_words);
    Json body = base_body(wording);
    if (wording.chat) {
      body["messages"] = Json::array();
      if (!prefix.empty()) body["messages"].push_back({{"role", "system"}, {"content", prefix}});
      body["messages"].push_back({{"role", "user"}, {"content", own}});
    } else {
      body["prompt"] = prefix.empty() ? own : prefix + " " + own;
    }
    jobs.push_back({.path = path_of(wording.chat), .body = json_text(body)});
  }
  return jobs;
}

void set_arrivals(std::vector<Job>& jobs, double rate, std::uint64_t seed) {
  std::mt19937_64 random(seed ^ 0x5eed);
  double at = 0.0;
  for (Job& job : jobs) {
    job.at_s = at;
    // By hand, so that every standard library gives the same times.
    const double part = (static_cast<double>(random() >> 11) + 0.5) / 9007199254740992.0;
    at += -std::log(part) / rate;
  }
}

}  // namespace quire::server::bench
