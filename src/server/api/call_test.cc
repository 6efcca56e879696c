// What a read request runs.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <tuple>

#include "server/api/chat_call.h"
#include "server/api/completion_call.h"
#include "server/api/json.h"
#include "server/api/response_call.h"

namespace quire::server::api {
namespace {

using Read = Problem (*)(const Json& body, const ModelFacts& facts, Call* call);

Call fine(Read read, const char* body, ModelFacts facts = {.name = "m", .tool_format = ToolFormat::hermes}) {
  Call call;
  const Problem problem = read(Json::parse(body), facts, &call);
  EXPECT_FALSE(problem) << body << ": " << problem->message;
  return call;
}

ApiError wrong(Read read, const char* body,
               ModelFacts facts = {.name = "m", .tool_format = ToolFormat::hermes}) {
  Call call;
  const Problem problem = read(Json::parse(body), facts, &call);
  EXPECT_TRUE(problem) << body << " is taken";
  return problem.value_or(ApiError{});
}

TEST(CompletionCall, PromptsInAllForms) {
  EXPECT_EQ(fine(read_completion, R"({"prompt":"a"})").prompts.at(0).text, "a");
  EXPECT_EQ(fine(read_completion, R"({"prompt":[1,2]})").prompts.at(0).ids,
            (std::vector<std::int32_t>{1, 2}));
  Call texts = fine(read_completion, R"({"prompt":["a","b"],"n":3})");
  ASSERT_EQ(texts.size(), 6u);
  const std::vector<TextRequest> requests = requests_of(texts, 17);
  EXPECT_EQ(requests[0].text, "a");
  EXPECT_EQ(requests[2].text, "");  // once, however many answers
  EXPECT_EQ(requests[3].text, "b");
  EXPECT_EQ(requests[4].text, "");
  EXPECT_EQ(requests[5].sequence_index, 2u);
  EXPECT_EQ(requests[5].sampling.seed, 17u);
  const Call lists = fine(read_completion, R"({"prompt":[[1],[2,3]]})");
  EXPECT_EQ(lists.prompts.at(1).ids, (std::vector<std::int32_t>{2, 3}));
  for (const auto& [body, param] : {std::pair{R"({"prompt":""})", "prompt"},
                                    {R"({"prompt":[]})", "prompt"},
                                    {R"({"prompt":["a",""]})", "prompt[1]"},
                                    {R"({"prompt":["a",1]})", "prompt[1]"},
                                    {R"({"prompt":[1,"a"]})", "prompt[1]"},
                                    {R"({"prompt":[1,-1]})", "prompt[1]"},
                                    {R"({"prompt":[1,2.5]})", "prompt[1]"},
                                    {R"({"prompt":[1,2147483648]})", "prompt[1]"},
                                    {R"({"prompt":[[1],[]]})", "prompt[1]"},
                                    {R"({"prompt":[[1],[18446744073709551615]]})", "prompt[1][0]"}}) {
    EXPECT_EQ(wrong(read_completion, body).param, param) << body;
  }
}

// Such are refused before they are rendered or tokenised.
TEST(Call, PromptsFarOverTheContextAreRefused) {
  const ModelFacts facts{.name = "m", .max_context = 8192};
  const std::string fits(2 << 20, 'a');
  const std::string over(2'100'000, 'a');
  const auto chat = [](const std::string& text) {
    return R"({"messages":[{"role":"user","content":")" + text + R"("}]})";
  };
  fine(read_completion, (R"({"prompt":")" + fits + R"("})").c_str(), facts);
  fine(read_chat, chat(std::string(2'000'000, 'a')).c_str(), facts);
  std::string ids = "0";
  for (int i = 1; i < 8192; ++i) ids += ",0";
  fine(read_completion, ("{\"prompt\":[" + ids + "]}").c_str(), facts);
  const std::tuple<Read, std::string, const char*> cases[] = {
      {read_completion, R"({"prompt":")" + over + R"("})", "prompt"},
      {read_completion, R"({"prompt":["a",")" + over + R"("]})", "prompt[1]"},
      {read_completion, "{\"prompt\":[[1],[0," + ids + "]]}", "prompt[1]"},
      {read_chat, chat(over), "messages"},
      {read_response, R"({"input":")" + over + R"("})", "input"}};
  for (const auto& [read, body, param] : cases) {
    const ApiError problem = wrong(read, body.c_str(), facts);
    EXPECT_EQ(problem.param, param);
    EXPECT_EQ(problem.code, "context_length_exceeded");
    EXPECT_NE(problem.message.find("8192"), std::string::npos) << problem.message;
  }
}

// Tools are part of what is counted, and the message does not blame the messages alone.
TEST(Call, ALargeToolIsCountedAndNamed) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f",
         "parameters":{"type":"object","title":")" +
      std::string(2'100'000, 'a') + R"("}}}]})";
  const ApiError problem =
      wrong(read_chat, body.c_str(), {.name = "m", .max_context = 8192, .tool_format = ToolFormat::hermes});
  EXPECT_EQ(problem.code, "context_length_exceeded");
  EXPECT_NE(problem.message.find("tools"), std::string::npos) << problem.message;
}

TEST(CompletionCall, TooManyAnswersAreRefusedWithTheirNumbers) {
  std::string body = R"({"n":128,"prompt":["a")";
  for (int i = 1; i < 9; ++i) body += R"(,"a")";
  const ApiError problem = wrong(read_completion, (body + "]}").c_str());
  EXPECT_EQ(problem.param, "n");
  EXPECT_EQ(problem.message, "9 prompts with 'n' 128 are 1152 answers: at most 1024");
}

TEST(CompletionCall, EchoAndLogprobs) {
  Call call = fine(read_completion, R"({"prompt":"a","echo":true,"logprobs":2,"max_tokens":0})");
  EXPECT_TRUE(call.prompts[0].score);
  EXPECT_FALSE(call.prompts[0].answer);
  EXPECT_EQ(call.prompts[0].score_top, 2);
  EXPECT_EQ(call.echo_texts, std::vector<std::string>{"a"});
  call = fine(read_completion, R"({"prompt":"a","echo":true})");
  EXPECT_FALSE(call.prompts[0].score);  // its text is known
  EXPECT_TRUE(call.prompts[0].answer);
  call = fine(read_completion, R"({"prompt":[1],"echo":true})");
  EXPECT_TRUE(call.prompts[0].score);  // its text is that of its tokens
  call = fine(read_completion, R"({"prompt":"a","logprobs":0})");
  EXPECT_EQ(call.prompts[0].logprobs, 0);
  EXPECT_FALSE(call.prompts[0].score);
  EXPECT_EQ(fine(read_completion, R"({"prompt":"a"})").prompts[0].logprobs, -1);
  EXPECT_EQ(wrong(read_completion, R"({"prompt":"a","max_tokens":0})").param, "max_tokens");
  EXPECT_EQ(wrong(read_completion, R"({"prompt":"a","n":129})").param, "n");
}

TEST(CompletionCall, SamplingAndDefaults) {
  TextRequest request = fine(read_completion, R"({"prompt":"a"})").prompts[0];
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  request = fine(read_completion,
                 R"({"prompt":"a","temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.25,"seed":-1,"stop":"x",
                     "logit_bias":{"7":-100},"frequency_penalty":-2,"presence_penalty":2,"ignore_eos":true,
                     "repetition_penalty":1.5,"priority":63,"deadline_s":2.5,"cache_salt":"s","max_tokens":3.0})")
                .prompts[0];
  EXPECT_EQ(request.sampling.temperature, 0.0f);
  EXPECT_EQ(request.sampling.top_p, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.min_p, 0.25f);
  EXPECT_EQ(request.sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(request.stop, std::vector<std::string>{"x"});
  ASSERT_EQ(request.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(request.sampling.logit_bias[0], (std::pair{7, -100.0f}));
  EXPECT_EQ(request.sampling.frequency_penalty, -2.0f);
  EXPECT_EQ(request.sampling.presence_penalty, 2.0f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.priority, 63);
  EXPECT_EQ(request.deadline_s, 2.5);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.max_tokens, 3);
  // The greatest id that is one, which the document's pattern takes too.
  request = fine(read_completion, R"({"prompt":"a","logit_bias":{"2147483647":1}})").prompts[0];
  EXPECT_EQ(request.sampling.logit_bias.at(0).first, INT32_MAX);
  const Json bias = Json::parse(completion_schema())["properties"]["logit_bias"];
  const std::regex ids(bias["propertyNames"]["pattern"].get<std::string>());
  EXPECT_TRUE(std::regex_match("2147483647", ids));
  EXPECT_FALSE(std::regex_match("01", ids));
  ModelFacts says{.name = "m"};
  says.defaults = {.do_sample = true, .temperature = 0.6f, .top_p = 0.9f, .top_k = 20};
  request = fine(read_completion, R"({"prompt":"a","top_p":1})", says).prompts[0];
  EXPECT_EQ(request.sampling.temperature, 0.6f);
  EXPECT_EQ(request.sampling.top_p, 1.0f);
  EXPECT_EQ(request.sampling.top_k, 20);
  for (const auto& [body, param] :
       {std::pair{R"({"prompt":"a","logit_bias":{"x":1}})", "logit_bias.x"},
        {R"({"prompt":"a","logit_bias":{"1":101}})", "logit_bias.1"},
        {R"({"prompt":"a","logit_bias":{"01":1}})", "logit_bias.01"},
        {R"({"prompt":"a","logit_bias":{"-0":1}})", "logit_bias.-0"},
        {R"({"prompt":"a","logit_bias":{"2147483648":1}})", "logit_bias.2147483648"},
        {R"({"prompt":"a","logit_bias":{"99999999999":1}})", "logit_bias.99999999999"},
        {R"({"prompt":"a","stop":["a",""]})", "stop[1]"},
        {R"({"prompt":"a","stop":[1]})", "stop[0]"},
        {R"({"prompt":"a","stream_options":{}})", "stream_options"},
        {R"({"prompt":"a","stream":true,"stream_options":{"include_usage":1}})",
         "stream_options.include_usage"},
        {R"({"prompt":"a","best_of":2})", "best_of"},
        {R"({"prompt":"a","suffix":"x"})", "suffix"}}) {
    EXPECT_EQ(wrong(read_completion, body).param, param) << body;
  }
}

TEST(ChatCall, MessagesAsTemplatesReadThem) {
  const Call call = fine(read_chat, R"({"messages":[
      {"role":"developer","content":"be brief"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"n"},
      {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",
        "function":{"name":"f","arguments":"{\"z\":1,\"a\":2}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"r"},
      {"role":"assistant","tool_calls":[{"id":"c2","type":"function","function":{"name":"f","arguments":"no JSON"}}]},
      {"role":"tool","tool_call_id":"c2","content":"r"}],
      "reasoning_effort":"low","chat_template_kwargs":{"enable_thinking":false},"documents":[{"text":"d"}]})");
  const Json conversation = Json::parse(call.prompts[0].conversation);
  const Json& messages = conversation["messages"];
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[1]["content"], "a\nb");
  EXPECT_EQ(messages[1]["name"], "n");
  EXPECT_EQ(messages[2]["content"], "");
  // Arguments are an object in the order of the text.
  EXPECT_EQ(messages[2]["tool_calls"][0]["function"]["arguments"].dump(), R"({"z":1,"a":2})");
  EXPECT_EQ(messages[4]["tool_calls"][0]["function"]["arguments"], "no JSON");
  EXPECT_EQ(messages[3]["tool_call_id"], "c1");
  EXPECT_EQ(conversation["kwargs"].dump(), R"({"enable_thinking":false,"reasoning_effort":"low"})");
  EXPECT_EQ(conversation["documents"][0]["text"], "d");
  for (const auto& [body, param] :
       {std::pair{R"({"messages":[]})", "messages"},
        {R"({"messages":[1]})", "messages[0]"},
        {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
        {R"({"messages":[{"role":"user","content":null}]})", "messages[0].content"},
        {R"({"messages":[{"content":"a"}]})", "messages[0].role"},
        {R"({"messages":[{"role":"king","content":"a"}]})", "messages[0].role"},
        {R"({"messages":[{"role":"user","content":[]}]})", "messages[0].content"},
        {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
         "messages[0].content[0].type"},
        {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text"},
        {R"({"messages":[{"role":"tool","content":"a"}]})", "messages[0].tool_call_id"},
        {R"({"messages":[{"role":"user","content":"a","tool_calls":[{"id":"1","function":{"name":"f",
             "arguments":""}}]}]})",
         "messages[0].tool_calls"},
        {R"({"messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f"}}]}]})",
         "messages[0].tool_calls[0].function.arguments"}}) {
    EXPECT_EQ(wrong(read_chat, body).param, param) << body;
  }
}

TEST(ChatCall, LengthsAndLogprobs) {
  const auto with = [](const char* more) {
    return std::string(R"({"messages":[{"role":"user","content":"a"}],)") + more + "}";
  };
  EXPECT_EQ(fine(read_chat, with(R"("max_tokens":5)").c_str()).prompts[0].max_tokens, 5);
  EXPECT_EQ(fine(read_chat, with(R"("max_completion_tokens":6)").c_str()).prompts[0].max_tokens, 6);
  EXPECT_EQ(
      fine(read_chat, with(R"("max_tokens":6,"max_completion_tokens":6)").c_str()).prompts[0].max_tokens, 6);
  EXPECT_EQ(wrong(read_chat, with(R"("max_tokens":5,"max_completion_tokens":6)").c_str()).param,
            "max_tokens");
  EXPECT_EQ(wrong(read_chat, with(R"("max_tokens":0)").c_str()).param, "max_tokens");
  EXPECT_EQ(fine(read_chat, with(R"("logprobs":true,"top_logprobs":20)").c_str()).prompts[0].logprobs, 20);
  EXPECT_EQ(fine(read_chat, with(R"("logprobs":true)").c_str()).prompts[0].logprobs, 0);
  EXPECT_EQ(fine(read_chat, with(R"("logprobs":false)").c_str()).prompts[0].logprobs, -1);
  EXPECT_EQ(wrong(read_chat, with(R"("top_logprobs":1)").c_str()).param, "top_logprobs");
  EXPECT_EQ(wrong(read_chat, with(R"("logprobs":true,"top_logprobs":21)").c_str()).param, "top_logprobs");
  EXPECT_EQ(wrong(read_chat, with(R"("audio":{"voice":"x"})").c_str()).code, "unsupported_value");
  EXPECT_EQ(wrong(read_chat, with(R"("store":true)").c_str()).param, "store");
}

TEST(ChatCall, ResponseFormats) {
  const auto with = [](const char* format) {
    return std::string(R"({"messages":[{"role":"user","content":"a"}],"response_format":)") + format + "}";
  };
  EXPECT_EQ(fine(read_chat, with(R"({"type":"text"})").c_str()).prompts[0].format, AnswerFormat::text);
  EXPECT_EQ(fine(read_chat, with(R"({"type":"json_object"})").c_str()).prompts[0].format,
            AnswerFormat::json_object);
  TextRequest request = fine(read_chat, with(R"({"type":"json_schema","json_schema":{"name":"n","strict":true,
           "schema":{"type":"object","properties":{"z":{},"a":{}}}}})")
                                            .c_str())
                            .prompts[0];
  EXPECT_EQ(request.format, AnswerFormat::json_schema);
  EXPECT_EQ(request.schema, R"({"type":"object","properties":{"z":{},"a":{}}})");
  request = fine(read_chat, with(R"({"type":"grammar","grammar":"root ::= \"a\""})").c_str()).prompts[0];
  EXPECT_EQ(request.format, AnswerFormat::grammar);
  EXPECT_EQ(request.schema, "root ::= \"a\"");
  for (const auto& [format, param] :
       {std::pair{R"({})", "response_format.type"},
        {R"({"type":"xml"})", "response_format.type"},
        {R"({"type":"json_schema"})", "response_format.json_schema"},
        {R"({"type":"json_schema","json_schema":{"name":"n"}})", "response_format.json_schema.schema"},
        {R"({"type":"json_schema","json_schema":{"name":"a b","schema":{}}})",
         "response_format.json_schema.name"},
        {R"({"type":"json_schema","json_schema":{"name":"n","schema":[]}})",
         "response_format.json_schema.schema"}}) {
    EXPECT_EQ(wrong(read_chat, with(format).c_str()).param, param) << format;
  }
}

TEST(ChatCall, Tools) {
  const auto with = [](const char* more) {
    return std::string(R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":
        {"name":"f","description":"d","parameters":{"type":"object"}}},{"type":"function","function":{"name":"g"}}])") +
           more + "}";
  };
  Call call = fine(read_chat, with("").c_str());
  EXPECT_TRUE(call.tools);
  EXPECT_EQ(call.tool_names, (std::vector<std::string>{"f", "g"}));
  EXPECT_TRUE(call.prompts[0].keep_tool_markers);
  EXPECT_EQ(call.prompts[0].tool_use, ToolUse::automatic);
  EXPECT_EQ(Json::parse(call.prompts[0].conversation)["tools"][0]["function"]["description"], "d");
  EXPECT_EQ(fine(read_chat, with(R"(,"tool_choice":"required")").c_str()).prompts[0].tool_use,
            ToolUse::required);
  call = fine(read_chat, with(R"(,"tool_choice":{"type":"function","function":{"name":"g"}},
                                 "parallel_tool_calls":false)")
                             .c_str());
  EXPECT_EQ(call.prompts[0].tool_use, ToolUse::named);
  EXPECT_EQ(call.prompts[0].tool_name, "g");
  EXPECT_FALSE(call.prompts[0].parallel_tool_calls);
  call = fine(read_chat, with(R"(,"tool_choice":"none")").c_str());
  EXPECT_FALSE(call.tools);
  EXPECT_FALSE(Json::parse(call.prompts[0].conversation).contains("tools"));
  EXPECT_EQ(
      wrong(read_chat, with(R"(,"tool_choice":{"type":"function","function":{"name":"h"}})").c_str()).param,
      "tool_choice");
  EXPECT_EQ(
      wrong(read_chat, R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required"})").param,
      "tool_choice");
  const ApiError none =
      wrong(read_chat, with("").c_str(), {.name = "m"});  // a model without a form for calls
  EXPECT_EQ(none.param, "tools");
  EXPECT_FALSE(fine(read_chat, with(R"(,"tool_choice":"none")").c_str(), {.name = "m"}).tools);
  EXPECT_EQ(wrong(read_chat, R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function",
      "function":{"name":"f"}},{"type":"function","function":{"name":"f"}}]})")
                .param,
            "tools[1]");
}

TEST(ResponseCall, InputItemsBecomeMessages) {
  const Call call = fine(read_response, R"({"instructions":"brief","input":[
      {"role":"user","content":[{"type":"input_text","text":"a"}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"b","annotations":[]}]},
      {"type":"function_call","call_id":"1","name":"f","arguments":"{\"x\":1}"},
      {"type":"function_call","call_id":"2","name":"g","arguments":"{}"},
      {"type":"function_call_output","call_id":"1","output":"r"},
      {"type":"function_call_output","call_id":"2","output":"s"}],
      "tools":[{"type":"function","name":"f","parameters":{}}],"max_output_tokens":9,"temperature":0.5})");
  const Json messages = Json::parse(call.prompts[0].conversation)["messages"];
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0].dump(), R"({"role":"system","content":"brief"})");
  EXPECT_EQ(messages[2]["content"], "b");
  EXPECT_EQ(messages[2]["tool_calls"].size(), 2u);
  EXPECT_EQ(messages[2]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_EQ(messages[3]["role"], "tool");
  EXPECT_EQ(call.prompts[0].max_tokens, 9);
  EXPECT_EQ(call.tool_names, std::vector<std::string>{"f"});
  const Json repeated = Json::parse(call.repeated);
  EXPECT_EQ(repeated["temperature"], 0.5);
  EXPECT_EQ(repeated["tools"][0]["name"], "f");
  EXPECT_EQ(repeated["instructions"], "brief");
  for (
      const auto& [body, param] :
      {std::pair{R"({"input":""})", "input"},
       {R"({"input":[]})", "input"},
       {R"({"input":[{"type":"reasoning"}]})", "input[0].type"},
       {R"({"input":[{"role":"user"}]})", "input[0].content"},
       {R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})", "input[0].content[0].type"},
       {R"({"input":[{"type":"function_call","call_id":"1"}]})", "input[0].name"},
       {R"({"input":"a","previous_response_id":"resp_1"})", "previous_response_id"},
       {R"({"input":"a","store":true})", "store"},
       {R"({"input":"a","background":true})", "background"},
       {R"({"input":"a","truncation":"auto"})", "truncation"},
       {R"({"input":"a","top_logprobs":1})", "top_logprobs"},
       {R"({"input":"a","include":["reasoning.encrypted_content"]})", "include[0]"},
       {R"({"input":"a","include":["message.output_text.logprobs"],"tools":[{"type":"function","name":"f"}]})",
        "include"},
       {R"({"input":"a","text":{"format":{"type":"json_schema","name":"n"}}})", "text.format.schema"}}) {
    EXPECT_EQ(wrong(read_response, body).param, param) << body;
  }
}

}  // namespace
}  // namespace quire::server::api
