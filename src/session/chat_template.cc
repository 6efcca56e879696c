#include "session/chat_template.h"

#include <fmt/core.h>
#include <jinja/lexer.h>
#include <jinja/limits.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>

#include <cstdio>
#include <ctime>

#include "session/json_values.h"

namespace quire::session {
namespace {

constexpr std::size_t kNestingMax = 400;
constexpr std::uint64_t kStepsMax = 1'000'000;
// Text is copied some dozens of times on its way through a template.
constexpr std::uint64_t kBytesMax = 256u << 20;
constexpr std::uint64_t kBytesPerInputByte = 64;

// What raise_exception throws: passes through the engine as its limits do, without a place in the source.
struct RaisedByTemplate : jinja::limit_error {
  using jinja::limit_error::limit_error;
};

// "...While executing X at line 1, column 2 in source:\n...\nError: why" -> "why (line 1, column 2)"
std::string short_message(const std::string& what) {
  constexpr std::string_view kWhy = "Error: ";
  constexpr std::string_view kPlace = " at line ";
  const std::size_t why = what.rfind(kWhy);
  const std::size_t place = what.find(kPlace);
  if (why == std::string::npos || place == std::string::npos) return what;
  const std::size_t begin = place + 4;
  const std::size_t end = what.find(" in source", begin);
  return fmt::format("{} ({})", what.substr(why + kWhy.size()), what.substr(begin, end - begin));
}

std::string with_unix_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      out += '\n';
    }
  }
  return out;
}

Result<std::tm> time_of(const std::string& now) {
  std::tm time = {};
  if (now.empty()) {
    const std::time_t seconds = std::time(nullptr);
    localtime_r(&seconds, &time);
    return time;
  }
  int read = 0;
  const int fields = std::sscanf(now.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%n", &time.tm_year, &time.tm_mon,
                                 &time.tm_mday, &time.tm_hour, &time.tm_min, &time.tm_sec, &read);
  if (fields != 6 || static_cast<std::size_t>(read) > now.size() || time.tm_mon < 1 || time.tm_mon > 12) {
    return bad_input(fmt::format("now \"{}\" is not a time like 2026-03-05T09:07:00", now));
  }
  time.tm_year -= 1900;
  time.tm_mon -= 1;
  timegm(&time);  // fills the day of the week and of the year
  return time;
}

jinja::value function(const std::string& name, const jinja::func_handler& handler) {
  return jinja::mk_val<jinja::value_func>(name, handler);
}

jinja::value text_value(const std::string& text) { return jinja::mk_val<jinja::value_string>(text); }

void set_functions(jinja::context& context, const std::tm& time) {
  context.set_val("raise_exception",
                  function("raise_exception", [](const jinja::func_args& args) -> jinja::value {
                    throw RaisedByTemplate(args.get_pos(0)->as_string().str());
                  }));
  context.set_val("strftime_now",
                  function("strftime_now", [time](const jinja::func_args& args) -> jinja::value {
                    const std::string format = args.get_pos(0)->as_string().str();
                    char buffer[1024];
                    const std::size_t n = std::strftime(buffer, sizeof(buffer), format.c_str(), &time);
                    if (n == 0 && !format.empty())
                      throw jinja::limit_error("strftime_now: the format is too long");
                    return text_value(std::string(buffer, n));
                  }));
}

Status set_inputs(jinja::context& context, const ChatInputs& inputs) {
  const std::pair<const char*, const std::string&> from_user[] = {
      {"messages", inputs.messages}, {"tools", inputs.tools}, {"documents", inputs.documents}};
  for (const auto& [name, json] : from_user) {
    jinja::value value = jinja::mk_val<jinja::value_none>();
    if (!json.empty()) {
      QUIRE_TRY(parsed, json_to_value(json, name, true));
      value = std::move(parsed);
    }
    context.set_val(name, value);
  }
  context.set_val("add_generation_prompt", jinja::mk_val<jinja::value_bool>(inputs.add_generation_prompt));
  context.set_val("bos_token", text_value(inputs.bos_token));
  context.set_val("eos_token", text_value(inputs.eos_token));
  if (inputs.kwargs.empty()) return {};
  QUIRE_TRY(kwargs, json_to_value(inputs.kwargs, "kwargs", true));
  if (kwargs->is_none()) return {};
  if (!jinja::is_val<jinja::value_object>(kwargs)) return bad_input("kwargs is not an object");
  for (const auto& [key, value] : kwargs->as_ordered_object()) {
    const std::string name = key->as_string().str();
    if (!context.get_val(name)->is_undefined()) {
      return bad_input(fmt::format("kwargs cannot replace \"{}\": give it as a field of its own", name));
    }
    context.set_val(name, value);
  }
  return {};
}

RenderedChat joined(const jinja::value& output) {
  const jinja::value_string parts = jinja::runtime::gather_string_parts(output);
  RenderedChat chat;
  for (const jinja::string_part& part : parts->val_str.parts) {
    const std::size_t begin = chat.text.size();
    chat.text += part.val;
    if (part.is_input && chat.text.size() > begin) chat.user.push_back({begin, chat.text.size()});
  }
  return chat;
}

std::size_t input_bytes(const ChatInputs& inputs) {
  return inputs.messages.size() + inputs.tools.size() + inputs.documents.size() + inputs.kwargs.size();
}

}  // namespace

struct ChatTemplate::Impl {
  std::string name;
  std::string source;
  jinja::program program;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view name) {
  if (source.size() > kTemplateBytesMax) {
    return bad_input(
        fmt::format("{} has {} bytes, over the limit of {}", name, source.size(), kTemplateBytesMax));
  }
  auto impl = std::make_unique<Impl>();
  impl->name = name;
  try {
    jinja::limits::here().reset(kNestingMax, kStepsMax, kBytesMax);
    jinja::lexer lexer;
    const jinja::lexer_result tokens = lexer.tokenize(with_unix_lines(source));
    if (tokens.tokens.size() > kTemplateTokensMax) {
      return bad_input(fmt::format("{} has {} tokens, over the limit of {}", name, tokens.tokens.size(),
                                   kTemplateTokensMax));
    }
    impl->program = jinja::parse_from_tokens(tokens);
    impl->source = tokens.source;
  } catch (const std::exception& e) {
    return bad_input(fmt::format("{}: {}", name, e.what()));
  }
  return ChatTemplate(std::move(impl));
}

Result<RenderedChat> ChatTemplate::render(const ChatInputs& inputs) const {
  const std::size_t bytes = input_bytes(inputs);
  if (bytes > kTemplateInputBytesMax) {
    return bad_input(fmt::format("the messages and their companions have {} bytes, over the limit of {}",
                                 bytes, kTemplateInputBytesMax));
  }
  QUIRE_TRY(time, time_of(inputs.now));
  try {
    jinja::limits::here().reset(kNestingMax, kStepsMax, kBytesMax + kBytesPerInputByte * bytes);
    jinja::context context(impl_->source);
    set_functions(context, time);
    QUIRE_TRY_STATUS(set_inputs(context, inputs));
    return joined(jinja::runtime(context).execute(impl_->program));
  } catch (const RaisedByTemplate& e) {
    return bad_input(e.what());
  } catch (const std::exception& e) {
    return bad_input(fmt::format("{}: {}", impl_->name, short_message(e.what())));
  }
}

}  // namespace quire::session
