#include "session/jsonl.h"

#include <fmt/core.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace quire::session {
namespace {

using Json = nlohmann::json;

std::string error_line(const Error& error) { return json_text(Json{{"error", error.message}}); }

// One past the value that begins at `at` of valid JSON.
std::size_t value_end(std::string_view json, std::size_t at) {
  std::size_t depth = 0;
  bool in_string = false;
  for (; at < json.size(); ++at) {
    const char c = json[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']' || c == ',') {
      if (depth == 0) break;
      if (c != ',') --depth;
    }
  }
  return at;
}

// The fields of a line as the JSON text of their values: what is inside keeps the order that it was written
// in.
class Fields {
 public:
  static Result<Fields> read(std::string_view line) {
    if (line.size() > kJsonLineBytesMax) {
      return bad_input(
          fmt::format("a line of {} bytes is over the limit of {}", line.size(), kJsonLineBytesMax));
    }
    constexpr std::string_view kBlank = " \t\r\n";
    std::size_t at = line.find_first_not_of(kBlank);
    if (!Json::accept(line.begin(), line.end()) || at == std::string_view::npos || line[at] != '{') {
      return bad_input("the line is not a JSON object");
    }
    Fields fields;
    while (true) {
      at = line.find_first_not_of(" \t\r\n,", at + 1);
      if (line[at] == '}') return fields;
      std::size_t key_end = at + 1;
      while (line[key_end] != '"') key_end += line[key_end] == '\\' ? 2 : 1;
      const std::string key = Json::parse(line.substr(at, key_end + 1 - at)).get<std::string>();
      const std::size_t begin = line.find(':', key_end) + 1;
      const std::size_t end = value_end(line, begin);
      const std::string_view value = line.substr(begin, end - begin);
      const std::size_t first = value.find_first_not_of(kBlank);
      fields.values_[key] = value.substr(first, value.find_last_not_of(kBlank) + 1 - first);
      at = end - 1;
    }
  }

  // Absent and null are the same.
  std::string raw(const std::string& name) const {
    const auto it = values_.find(name);
    return it == values_.end() || it->second == "null" ? std::string() : std::string(it->second);
  }

  Result<std::string> text(const std::string& name, const std::string& other) const {
    const std::string json = raw(name);
    if (json.empty()) return other;
    if (json[0] != '"') return bad_input(fmt::format("\"{}\" is not a text", name));
    return Json::parse(json).get<std::string>();
  }

  Result<bool> flag(const std::string& name, bool other) const {
    const std::string json = raw(name);
    if (json.empty()) return other;
    if (json != "true" && json != "false")
      return bad_input(fmt::format("\"{}\" is neither true nor false", name));
    return json == "true";
  }

 private:
  std::map<std::string, std::string_view> values_;
};

Result<std::string> tokenized(const tokenizer::Tokenizer& tokenizer, std::string_view line) {
  QUIRE_TRY(fields, Fields::read(line));
  if (fields.raw("text").empty()) return bad_input("the line has no \"text\"");
  QUIRE_TRY(text, fields.text("text", ""));
  QUIRE_TRY(add_special, fields.flag("add_special_tokens", true));
  QUIRE_TRY(parse_special, fields.flag("parse_special", true));
  QUIRE_TRY(ids, tokenizer.encode(text, {.add_special = add_special, .parse_special = parse_special}));
  std::string out = "{\"ids\":[";
  for (std::size_t i = 0; i < ids.size(); ++i) out += fmt::format("{}{}", i == 0 ? "" : ",", ids[i]);
  return out + "]}";
}

Result<std::string> detokenized(const tokenizer::Tokenizer& tokenizer, std::string_view line) {
  QUIRE_TRY(fields, Fields::read(line));
  const std::string json = fields.raw("ids");
  if (json.empty() || json[0] != '[') return bad_input("the line has no list \"ids\"");
  QUIRE_TRY(skip_special, fields.flag("skip_special_tokens", false));
  std::vector<tokenizer::TokenId> ids;
  for (const Json& value : Json::parse(json)) {
    if (!value.is_number_integer() || value < 0 || value >= tokenizer.vocabulary_size()) {
      return bad_input(fmt::format("{} is not a token id in 0..{}", json_text(value).substr(0, 100),
                                   tokenizer.vocabulary_size() - 1));
    }
    ids.push_back(value.get<tokenizer::TokenId>());
  }
  return json_text(Json{{"text", tokenizer.decode(ids, skip_special)}});
}

Result<std::string> rendered(const ChatTemplate& chat_template, const TemplateTokens& defaults,
                             std::string_view line) {
  QUIRE_TRY(inputs, conversation_inputs(defaults, line));
  QUIRE_TRY(chat, chat_template.render(inputs));
  return json_text(Json{{"text", chat.text}});
}

std::string line_of(Result<std::string> result) { return result ? *result : error_line(result.error()); }

}  // namespace

Result<ChatInputs> conversation_inputs(const TemplateTokens& defaults, std::string_view conversation) {
  QUIRE_TRY(fields, Fields::read(conversation));
  ChatInputs inputs;
  inputs.messages = fields.raw("messages");
  if (inputs.messages.empty()) return bad_input("the line has no \"messages\"");
  inputs.tools = fields.raw("tools");
  inputs.documents = fields.raw("documents");
  inputs.kwargs = fields.raw("kwargs");
  QUIRE_TRY(generation, fields.flag("add_generation_prompt", true));
  inputs.add_generation_prompt = generation;
  QUIRE_TRY(bos, fields.text("bos_token", defaults.bos_token));
  QUIRE_TRY(eos, fields.text("eos_token", defaults.eos_token));
  QUIRE_TRY(now, fields.text("now", ""));
  inputs.bos_token = bos;
  inputs.eos_token = eos;
  inputs.now = now;
  return inputs;
}

std::string tokenize_line(const tokenizer::Tokenizer& tokenizer, std::string_view line) {
  return line_of(tokenized(tokenizer, line));
}

std::string detokenize_line(const tokenizer::Tokenizer& tokenizer, std::string_view line) {
  return line_of(detokenized(tokenizer, line));
}

std::string render_line(const ChatTemplate& chat_template, const TemplateTokens& defaults,
                        std::string_view line) {
  return line_of(rendered(chat_template, defaults, line));
}

}  // namespace quire::session
