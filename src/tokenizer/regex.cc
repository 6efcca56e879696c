#include "tokenizer/regex.h"

#include <fmt/core.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <chrono>

namespace quire::tokenizer {
namespace {

// White_Space without U+180E, which PCRE2's \s counts and Oniguruma's does not.
constexpr std::string_view kSpaces =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

constexpr std::size_t kJitStackBytesMax = 8 << 20;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;
constexpr std::size_t kMatchesPerClockLook = 256;

Error bad_pattern(std::string_view pattern, const std::string& why) {
  return bad_input(
      fmt::format("pattern of the tokenizer is not supported: {} in \"{}\"", why, pattern.substr(0, 200)));
}

// What stands for one escape of Oniguruma outside and inside a class; empty: the same in PCRE2.
std::string translated_escape(char escape, bool in_class) {
  switch (escape) {
    case 's':
      return in_class ? std::string(kSpaces) : fmt::format("[{}]", kSpaces);
    case 'S':
      return in_class ? "" : fmt::format("[^{}]", kSpaces);
    case 'h':
      return in_class ? "0-9a-fA-F" : "[0-9a-fA-F]";
    default:
      return "";
  }
}

Result<std::string> translate(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const std::string other = translated_escape(pattern[i + 1], in_class);
      out += other.empty() ? std::string(pattern.substr(i, 2)) : other;
      ++i;
      continue;
    }
    if (in_class && c == '&' && pattern.substr(i, 2) == "&&")
      return bad_pattern(pattern, "a set operation (&&)");
    if (in_class && c == '[' && pattern.substr(i, 2) != "[:")
      return bad_pattern(pattern, "a class within a class");
    out += c;
    if (!in_class && c == '[') {
      in_class = true;
      // "[]" and "[^]": a bracket right after the opening is a member.
      if (pattern.substr(i + 1, 1) == "^") out += pattern[++i];
      if (pattern.substr(i + 1, 1) == "]") out += pattern[++i];
    } else if (in_class && c == '[') {
      const std::size_t end = pattern.find(":]", i);
      if (end == std::string_view::npos) return bad_pattern(pattern, "an open character class name");
      out += pattern.substr(i + 1, end + 1 - i);
      i = end + 1;
    } else if (in_class && c == ']') {
      in_class = false;
    }
  }
  return out;
}

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};
using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

// The JIT's stack for backtracking: one per thread, made at the first match.
pcre2_jit_stack* thread_jit_stack(void*) {
  thread_local const JitStack stack{pcre2_jit_stack_create(32 * 1024, kJitStackBytesMax, nullptr)};
  return stack.get();
}

// Total time of all matches in one text: generous for honest patterns (they need some 20 ns per byte), an end
// for those whose single matches stay just under the match limit.
class Deadline {
 public:
  explicit Deadline(std::size_t bytes)
      : end_(std::chrono::steady_clock::now() + std::chrono::seconds(10) +
             std::chrono::microseconds(10) * bytes) {}
  bool passed() {
    if (++looks_ % kMatchesPerClockLook != 0) return false;
    return std::chrono::steady_clock::now() > end_;
  }

 private:
  std::chrono::steady_clock::time_point end_;
  std::size_t looks_ = 0;
};

}  // namespace

struct Regex::Impl {
  Code code;
  std::string pattern;
};

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return bad_pattern(pattern,
                       fmt::format("{} bytes are over the limit of {}", pattern.size(), kPatternBytesMax));
  }
  QUIRE_TRY(translated, translate(pattern));
  CompileContext context{pcre2_compile_context_create(nullptr)};
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  const std::uint32_t options =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int code = 0;
  PCRE2_SIZE at = 0;
  auto impl = std::make_unique<Impl>();
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options,
                                 &code, &at, context.get()));
  if (!impl->code) return bad_pattern(pattern, fmt::format("{} at byte {}", message_of(code), at));
  // Without JIT (not built in, no executable memory) the interpreter gives the same matches.
  pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);
  impl->pattern = std::string(pattern.substr(0, 200));
  return Regex(std::move(impl));
}

Result<Regex> Regex::literal(std::string_view text) {
  if (text.empty()) return bad_input("a pattern of the tokenizer is an empty string");
  std::string quoted;
  for (char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c))) {
      quoted += fmt::format("\\x{{{:x}}}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return compile(quoted);
}

Status Regex::find_all(std::string_view text, std::vector<ByteRange>& out) const {
  MatchData data{pcre2_match_data_create(1, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
  pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(
                                           1'000'000 + 32 * std::min<std::size_t>(text.size(), 1 << 26)));
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  pcre2_jit_stack_assign(context.get(), thread_jit_stack, nullptr);
  Deadline deadline(text.size());
  std::size_t at = 0;
  std::uint32_t options = 0;
  while (at <= text.size()) {
    const int count = pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  at, options, data.get(), context.get());
    if (count == PCRE2_ERROR_NOMATCH) {
      if (options == 0 || at >= text.size()) break;
      // After an empty match: look again one character further.
      ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
      options = 0;
      continue;
    }
    const PCRE2_SIZE* where = pcre2_get_ovector_pointer(data.get());
    if (count < 0 || deadline.passed()) {
      return bad_input(
          fmt::format("pattern \"{}\" of the tokenizer takes too long on a text of {} bytes ({})",
                      impl_->pattern, text.size(), count < 0 ? message_of(count) : "time limit"));
    }
    if (where[1] < where[0] || where[0] < at) {
      return bad_input(fmt::format("pattern \"{}\" of the tokenizer moves backwards", impl_->pattern));
    }
    out.push_back({where[0], where[1]});
    options = where[0] == where[1] ? PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED : 0;
    at = where[1];
  }
  return {};
}

}  // namespace quire::tokenizer
