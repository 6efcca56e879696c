// Streamed and whole answers say the same, however the engine cuts its output.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "server/api/answer.h"
#include "server/api/json.h"
#include "server/api/json_parts.h"

namespace quire::server::api {
namespace {

const AnswerHead kHead{"0123456789abcdef01234567", 1'700'000'000, "m"};

// One answer's tokens: text with the pieces that each token adds, log-probabilities, and how it ends.
struct Script {
  std::vector<std::string> pieces;
  Finish finish = Finish::stop;
};

TextLogprob logprob_of(const std::string& bytes, float value) {
  return {.id = 1, .logprob = value, .bytes = bytes, .top = {{1, value, bytes}, {2, value - 1, "\xff"}}};
}

// The script in outputs of 1 to 4 tokens; the last may come alone with the end.
std::vector<TextOutput> outputs_of(const Script& script, bool logprobs, std::mt19937& random) {
  std::vector<TextOutput> outputs;
  for (std::size_t at = 0; at < script.pieces.size();) {
    TextOutput output;
    for (std::size_t n = 1 + random() % 4; n > 0 && at < script.pieces.size(); --n, ++at) {
      output.text += script.pieces[at];
      output.tokens.push_back(static_cast<std::int32_t>(at));
      if (logprobs)
        output.logprobs.push_back(logprob_of(script.pieces[at], -0.25f * static_cast<float>(at % 7)));
    }
    outputs.push_back(std::move(output));
  }
  if (outputs.empty() || random() % 2 == 0) outputs.emplace_back();
  outputs.back().finish = script.finish;
  outputs.back().prompt_tokens = 10;
  outputs.back().completion_tokens = static_cast<std::int32_t>(script.pieces.size());
  outputs.back().cached_tokens = 4;
  outputs.back().cache_miss = "no_prefix";
  return outputs;
}

std::string run(Call call, const std::vector<Script>& scripts, std::mt19937& random) {
  Answer answer(call, make_writer(call, kHead));
  std::vector<std::vector<TextOutput>> all;
  for (const Script& script : scripts) all.push_back(outputs_of(script, call.logprobs, random));
  std::vector<std::size_t> next(all.size(), 0);
  std::string bytes;
  while (!answer.ended()) {
    const std::size_t choice = random() % all.size();
    if (next[choice] < all[choice].size())
      bytes += answer.update(choice, std::move(all[choice][next[choice]++]));
  }
  return bytes;
}

std::vector<Json> events_of(const std::string& bytes) {
  std::vector<Json> events;
  std::size_t at = 0;
  while (at < bytes.size()) {
    const std::size_t end = bytes.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    std::string frame = bytes.substr(at, end - at);
    at = end + 2;
    std::string name;
    if (frame.rfind("event: ", 0) == 0) {
      name = frame.substr(7, frame.find('\n') - 7);
      frame = frame.substr(frame.find('\n') + 1);
    }
    EXPECT_EQ(frame.rfind("data: ", 0), 0u) << frame;
    if (frame == "data: [DONE]") {
      EXPECT_EQ(at, bytes.size()) << "something follows the end mark";
      events.push_back("[DONE]");
      break;
    }
    events.push_back(Json::parse(frame.substr(6)));  // throws where it is no JSON: the test fails
    if (!name.empty()) {
      EXPECT_EQ(events.back()["type"], name);
    }
  }
  return events;
}

const std::vector<Script> kScripts = {
    {{"Hello", " wor", "ld", "", "!"}, Finish::stop},
    {{"\xe2\x82\xac", " a", "", ""}, Finish::length},
    {{}, Finish::stop},
    {{"<tool_call>\n{\"name\": \"f\", ", "\"arguments\": {\"x\"", ": 1}}\n</tool", "_call>"}, Finish::stop},
    {{"I look. ", "<tool_call>\n", "{\"name\": \"f\", \"arguments\": {\"x\": [1, 2]}}",
      "\n</tool_call>\n<tool_call>", "\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"},
     Finish::stop},
    {{"a <tool_call>\n{\"name\": \"f\", \"arg"}, Finish::context},
};

Call call_of(Call::Kind kind, std::size_t choices, bool stream, bool logprobs, bool tools) {
  Call call;
  call.kind = kind;
  call.prompts.resize(1);
  call.choices = static_cast<std::int32_t>(choices);
  call.stream = stream;
  call.include_usage = stream;
  call.logprobs = logprobs;
  call.repeated = "{}";
  if (tools) {
    call.tools = true;
    call.tool_format = ToolFormat::hermes;
    call.tool_names = {"f", "g"};
  }
  return call;
}

// What a client makes of the chunks: the object that the whole form has.
Json joined_completion(const std::vector<Json>& events, std::size_t choices) {
  Json list = Json::array();
  for (std::size_t i = 0; i < choices; ++i)
    list.push_back({{"index", i}, {"text", ""}, {"logprobs", nullptr}});
  for (const Json& event : events) {
    if (event == "[DONE]" || event["choices"].empty()) continue;
    const Json& delta = event["choices"][0];
    Json& choice = list[delta["index"].get<std::size_t>()];
    EXPECT_FALSE(choice.contains("finish_reason")) << "text after the end";
    choice["text"] = choice["text"].get<std::string>() + delta["text"].get<std::string>();
    if (!delta["logprobs"].is_null()) {
      if (choice["logprobs"].is_null())
        choice["logprobs"] = delta["logprobs"];
      else
        for (const auto& [key, values] : delta["logprobs"].items())
          for (const Json& value : values) choice["logprobs"][key].push_back(value);
    }
    if (!delta["finish_reason"].is_null()) choice["finish_reason"] = delta["finish_reason"];
  }
  return list;
}

void add_tool_delta(Json& calls, const Json& delta) {
  const std::size_t index = delta["index"].get<std::size_t>();
  if (delta.contains("id")) {
    EXPECT_EQ(index, calls.size());
    calls.push_back({{"id", delta["id"]}, {"type", delta["type"]}, {"function", delta["function"]}});
    return;
  }
  Json& arguments = calls.at(index)["function"]["arguments"];
  arguments = arguments.get<std::string>() + delta["function"]["arguments"].get<std::string>();
}

Json joined_chat(const std::vector<Json>& events, std::size_t choices) {
  Json list = Json::array();
  for (std::size_t i = 0; i < choices; ++i)
    list.push_back(
        {{"index", i}, {"message", {{"content", ""}, {"tool_calls", Json::array()}}}, {"logprobs", nullptr}});
  for (const Json& event : events) {
    if (event == "[DONE]" || event["choices"].empty()) continue;
    const Json& chunk = event["choices"][0];
    Json& choice = list[chunk["index"].get<std::size_t>()];
    EXPECT_FALSE(choice.contains("finish_reason")) << "text after the end";
    Json& message = choice["message"];
    const Json& delta = chunk["delta"];
    EXPECT_EQ(delta.contains("role"), !message.contains("role")) << "the role comes first and once";
    if (delta.contains("role")) message["role"] = delta["role"];
    if (delta.contains("content"))
      message["content"] = message["content"].get<std::string>() + delta["content"].get<std::string>();
    if (delta.contains("tool_calls"))
      for (const Json& call : delta["tool_calls"]) add_tool_delta(message["tool_calls"], call);
    if (!chunk["logprobs"].is_null()) {
      if (choice["logprobs"].is_null()) choice["logprobs"] = Json{{"content", Json::array()}};
      for (const Json& token : chunk["logprobs"]["content"]) choice["logprobs"]["content"].push_back(token);
    }
    if (!chunk["finish_reason"].is_null()) choice["finish_reason"] = chunk["finish_reason"];
  }
  return list;
}

TEST(Answer, StreamedCompletionsAreTheWholeOnes) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const bool logprobs = round % 2 == 1;
    std::vector<Script> scripts;
    for (std::size_t n = 1 + random() % 3; n > 0; --n) scripts.push_back(kScripts[random() % 3]);
    const Call whole = call_of(Call::Kind::completion, scripts.size(), false, logprobs, false);
    Call stream = whole;
    stream.stream = stream.include_usage = true;
    const Json body = Json::parse(run(whole, scripts, random));
    const std::vector<Json> events = events_of(run(stream, scripts, random));
    const Json choices = joined_completion(events, scripts.size());
    for (std::size_t i = 0; i < scripts.size(); ++i) {
      EXPECT_EQ(choices[i]["text"], body["choices"][i]["text"]);
      EXPECT_EQ(choices[i]["finish_reason"], body["choices"][i]["finish_reason"]);
      EXPECT_EQ(choices[i]["logprobs"], body["choices"][i]["logprobs"]);
    }
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_EQ(events[events.size() - 2]["usage"], body["usage"]);
  }
}

TEST(Answer, StreamedChatsAreTheWholeOnes) {
  std::mt19937 random(2);
  for (int round = 0; round < 400; ++round) {
    const bool logprobs = round % 2 == 1;
    const bool tools = round % 3 != 0;
    std::vector<Script> scripts;
    for (std::size_t n = 1 + random() % 3; n > 0; --n)
      scripts.push_back(kScripts[random() % kScripts.size()]);
    const Call whole = call_of(Call::Kind::chat, scripts.size(), false, logprobs, tools);
    Call stream = whole;
    stream.stream = stream.include_usage = true;
    const Json body = Json::parse(run(whole, scripts, random));
    const std::vector<Json> events = events_of(run(stream, scripts, random));
    const Json choices = joined_chat(events, scripts.size());
    for (std::size_t i = 0; i < scripts.size(); ++i) {
      Json message = body["choices"][i]["message"];
      if (!message.contains("tool_calls")) message["tool_calls"] = Json::array();
      if (message["content"].is_null()) message["content"] = "";
      EXPECT_EQ(choices[i]["message"]["content"], message["content"]);
      EXPECT_EQ(choices[i]["message"]["tool_calls"], message["tool_calls"]);
      EXPECT_EQ(choices[i]["message"]["role"], "assistant");
      EXPECT_EQ(choices[i]["finish_reason"], body["choices"][i]["finish_reason"]);
      const bool some = logprobs && !scripts[i].pieces.empty();
      if (some) {
        EXPECT_EQ(choices[i]["logprobs"]["content"], body["choices"][i]["logprobs"]["content"]);
      }
      if (some) {
        EXPECT_EQ(body["choices"][i]["logprobs"]["content"].size(), scripts[i].pieces.size());
      }
    }
    EXPECT_EQ(events[events.size() - 2]["usage"], body["usage"]);
  }
}

TEST(Answer, ToolCallsOfAChat) {
  std::mt19937 random(3);
  const Call call = call_of(Call::Kind::chat, 1, false, false, true);
  const Json choice = Json::parse(run(call, {kScripts[4]}, random))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "I look.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 2u);
  EXPECT_EQ(
      Json::parse(choice["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>())["x"][1], 2);
  EXPECT_NE(choice["message"]["tool_calls"][0]["id"], choice["message"]["tool_calls"][1]["id"]);
  const Json alone = Json::parse(run(call, {kScripts[3]}, random))["choices"][0];
  EXPECT_TRUE(alone["message"]["content"].is_null());
  EXPECT_EQ(Json::parse(run(call, {kScripts[5]}, random))["choices"][0]["finish_reason"], "length");
}

// Replays the events of a response and compares with the object that the last one holds.
void check_response_events(const std::vector<Json>& events) {
  Json output = Json::array();
  std::int64_t sequence = 0;
  for (const Json& event : events) {
    EXPECT_EQ(event["sequence_number"], sequence++);
    const std::string type = event["type"].get<std::string>();
    if (type == "response.output_item.added") {
      EXPECT_EQ(event["output_index"], output.size());
      output.push_back(event["item"]);
    } else if (type == "response.content_part.added") {
      output[event["output_index"].get<std::size_t>()]["content"].push_back(event["part"]);
    } else if (type == "response.output_text.delta") {
      Json& part = output[event["output_index"].get<std::size_t>()]["content"][0];
      part["text"] = part["text"].get<std::string>() + event["delta"].get<std::string>();
      for (const Json& token : event["logprobs"]) part["logprobs"].push_back(token);
    } else if (type == "response.function_call_arguments.delta") {
      Json& item = output[event["output_index"].get<std::size_t>()];
      item["arguments"] = item["arguments"].get<std::string>() + event["delta"].get<std::string>();
    } else if (type == "response.output_item.done") {
      Json& item = output[event["output_index"].get<std::size_t>()];
      item["status"] = event["item"]["status"];
      EXPECT_EQ(item, event["item"]);
    }
  }
  EXPECT_EQ(output, events.back()["response"]["output"]);
}

TEST(Answer, StreamedResponsesAreTheWholeOnes) {
  std::mt19937 random(4);
  for (int round = 0; round < 400; ++round) {
    const std::vector<Script> scripts = {kScripts[random() % kScripts.size()]};
    const Call whole = call_of(Call::Kind::response, 1, false, round % 3 == 0, round % 3 != 0);
    Call stream = whole;
    stream.stream = true;
    Json body = Json::parse(run(whole, scripts, random));
    const std::vector<Json> events = events_of(run(stream, scripts, random));
    check_response_events(events);
    EXPECT_EQ(events.front()["type"], "response.created");
    EXPECT_EQ(events.back()["type"],
              scripts[0].finish == Finish::stop ? "response.completed" : "response.incomplete");
    EXPECT_TRUE(events.back()["response"] == body) << round;
  }
}

TEST(Answer, EchoPutsThePromptFirst) {
  Call call = call_of(Call::Kind::completion, 1, false, true, false);
  call.echo = true;
  call.echo_texts = {""};
  Answer answer(call, make_writer(call, kHead));
  TextOutput output;
  output.prompt = {logprob_of("Gr\xc3", std::numeric_limits<float>::quiet_NaN()),
                   logprob_of("\xbc\xc3\x9f", -1)};
  output.prompt[0].top.clear();
  EXPECT_EQ(answer.update(0, output), "");
  output = {};
  output.prompt = {logprob_of("e", -2)};
  output.tokens = {5};
  output.text = " you";
  output.logprobs = {logprob_of(" you", -std::numeric_limits<float>::infinity())};
  output.finish = Finish::length;
  const Json choice = Json::parse(answer.update(0, output))["choices"][0];
  EXPECT_EQ(choice["text"],
            "Gr\xc3\xbc\xc3\x9f"
            "e you");
  const Json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"].dump(), R"(["bytes:\\x47\\x72\\xc3","bytes:\\xbc\\xc3\\x9f","e"," you"])");
  EXPECT_EQ(logprobs["token_logprobs"].dump(), "[null,-1.0,-2.0,-9999.0]");
  EXPECT_EQ(logprobs["text_offset"].dump(), "[0,3,4,5]");
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
}

TEST(Answer, UsageCountsPromptsOnceAndAnswersAll) {
  std::mt19937 random(5);
  Call call = call_of(Call::Kind::completion, 2, false, false, false);
  call.prompts.resize(2);
  const Json body = Json::parse(run(call, {kScripts[0], kScripts[0], kScripts[1], kScripts[0]}, random));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 20);
  EXPECT_EQ(body["usage"]["completion_tokens"], 19);
  EXPECT_EQ(body["usage"]["total_tokens"], 39);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
  EXPECT_EQ(body["quire"][1]["cache_miss"], "no_prefix");
}

TEST(Answer, UsageIsInStreamsOnlyWhenAsked) {
  std::mt19937 random(6);
  for (const Call::Kind kind : {Call::Kind::completion, Call::Kind::chat}) {
    Call call = call_of(kind, 1, true, false, false);
    for (const Json& event : events_of(run(call, {kScripts[0]}, random)))
      if (event != "[DONE]") {
        EXPECT_TRUE(event.contains("usage"));
      }
    call.include_usage = false;
    for (const Json& event : events_of(run(call, {kScripts[0]}, random)))
      if (event != "[DONE]") {
        EXPECT_FALSE(event.contains("usage"));
      }
  }
}

// The event that a failure after the first token ends a stream with.
Json failed_event(Answer& answer, TextOutput failure) {
  TextOutput begin;
  begin.text = "a";
  begin.tokens = {1};
  EXPECT_NE(answer.update(0, std::move(begin)), "");
  const std::vector<Json> events = events_of(answer.update(0, std::move(failure)));
  EXPECT_TRUE(answer.ended());
  EXPECT_TRUE(answer.failure());
  return events.at(0);
}

TEST(Answer, AFailureEndsTheStreamWithItsError) {
  for (const Call::Kind kind : {Call::Kind::completion, Call::Kind::chat, Call::Kind::response}) {
    for (const Finish finish : {Finish::failed, Finish::cancelled}) {
      Call call = call_of(kind, 1, true, false, false);
      Answer answer(call, make_writer(call, kHead));
      TextOutput failure;
      failure.finish = finish;
      failure.error = "no token \"may\" come";
      const Json event = failed_event(answer, std::move(failure));
      ASSERT_TRUE(answer.failure());
      EXPECT_EQ(answer.failure()->status, finish == Finish::failed ? 500 : 503);
      if (kind == Call::Kind::response) {
        EXPECT_EQ(event["response"]["status"], "failed");
      } else {
        EXPECT_EQ(event["error"]["type"], "server_error");
      }
    }
  }
}

// OpenAI's clients send again what failed with 500, and this would fail again.
TEST(Answer, WhatTheRequestsOwnGrammarEndedIsTheClientsError) {
  for (const Call::Kind kind : {Call::Kind::completion, Call::Kind::chat, Call::Kind::response}) {
    Call call = call_of(kind, 1, true, false, false);
    Answer answer(call, make_writer(call, kHead));
    TextOutput failure;
    failure.finish = Finish::failed;
    failure.error = "request 7: its guide gave up after position 3: too many ways";
    failure.guide_problem = "too many ways";
    const Json event = failed_event(answer, std::move(failure));
    ASSERT_TRUE(answer.failure());
    EXPECT_EQ(answer.failure()->status, 400);
    const Json& error = kind == Call::Kind::response ? event["response"]["error"] : event["error"];
    EXPECT_EQ(error["code"], "invalid_value");
    const std::string message = error["message"].get<std::string>();
    EXPECT_NE(message.find("too many ways"), std::string::npos) << message;
    EXPECT_EQ(message.find("request 7"), std::string::npos) << message;  // a number that no client knows
    if (kind != Call::Kind::response) {
      EXPECT_EQ(error["type"], "invalid_request_error");
    }
  }
}

TEST(JsonParts, Utf8IsTheStandards) {
  for (const char* good : {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good));
  }
  for (const char* bad : {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "a\xff"})
    EXPECT_FALSE(is_utf8(bad));
  EXPECT_EQ(characters("\xe2\x82\xac"
                       "a"),
            2u);
}

}  // namespace
}  // namespace quire::server::api
