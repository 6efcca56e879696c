#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

namespace quire::tokenizer {
namespace {

constexpr std::int32_t kReplacement = 0xFFFD;

// What a lead byte promises: length, and the range of the second byte. Length 0: not a lead byte.
struct Lead {
  std::size_t length = 0;
  std::uint8_t second_min = 0x80;
  std::uint8_t second_max = 0xBF;
};

Lead lead_of(std::uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte >= 0xC2 && byte <= 0xDF) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

// How many bytes from `at` are the beginning of one character (at least 1); whole says whether it is all of
// it.
std::size_t well_formed_part(std::string_view text, std::size_t at, bool& whole) {
  const Lead lead = lead_of(static_cast<std::uint8_t>(text[at]));
  whole = lead.length == 1;
  if (lead.length <= 1) return 1;
  std::size_t n = 1;
  while (n < lead.length && at + n < text.size()) {
    const auto byte = static_cast<std::uint8_t>(text[at + n]);
    const std::uint8_t low = n == 1 ? lead.second_min : 0x80;
    const std::uint8_t high = n == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) break;
    ++n;
  }
  whole = n == lead.length;
  return n;
}

// Sorts every run of combining marks by class. utf8proc's own ordering takes quadratic time on long runs.
void order_marks(std::vector<utf8proc_int32_t>& points) {
  const auto mark_class = [](utf8proc_int32_t p) { return utf8proc_get_property(p)->combining_class; };
  for (std::size_t i = 0; i < points.size();) {
    if (mark_class(points[i]) == 0) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < points.size() && mark_class(points[end]) != 0) ++end;
    std::stable_sort(points.begin() + static_cast<std::ptrdiff_t>(i),
                     points.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](auto a, auto b) { return mark_class(a) < mark_class(b); });
    i = end;
  }
}

void normalize_points(std::vector<utf8proc_int32_t>& points, int flags, std::string& out) {
  if (points.empty()) return;
  order_marks(points);
  auto length = static_cast<utf8proc_ssize_t>(points.size());
  if (flags & UTF8PROC_COMPOSE) {
    length = utf8proc_normalize_utf32(points.data(), length, static_cast<utf8proc_option_t>(flags));
  }
  for (utf8proc_ssize_t i = 0; i < length; ++i) append_utf8(points[static_cast<std::size_t>(i)], out);
  points.clear();
}

int flags_of(NormalForm form) {
  switch (form) {
    case NormalForm::nfc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case NormalForm::nfd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case NormalForm::nfkc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case NormalForm::nfkd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
  return 0;
}

}  // namespace

CodePoint code_point_at(std::string_view text, std::size_t at) {
  bool whole = false;
  const std::size_t n = well_formed_part(text, at, whole);
  if (!whole) return {kBroken, 1};
  const auto byte = [&](std::size_t i) {
    return static_cast<std::int32_t>(static_cast<std::uint8_t>(text[at + i]));
  };
  switch (n) {
    case 1:
      return {byte(0), 1};
    case 2:
      return {((byte(0) & 0x1F) << 6) | (byte(1) & 0x3F), 2};
    case 3:
      return {((byte(0) & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F), 3};
    default:
      return {
          ((byte(0) & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F),
          4};
  }
}

CodePoint last_code_point(std::string_view text) {
  for (std::size_t n = 1; n <= 4 && n <= text.size(); ++n) {
    const CodePoint point = code_point_at(text, text.size() - n);
    if (point.value != kBroken && point.bytes == n) return point;
  }
  return {kBroken, 1};
}

void append_utf8(std::int32_t code_point, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(code_point, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(n));
}

bool is_white_space(std::int32_t p) {
  return (p >= 0x09 && p <= 0x0D) || p == 0x20 || p == 0x85 || p == 0xA0 || p == 0x1680 ||
         (p >= 0x2000 && p <= 0x200A) || p == 0x2028 || p == 0x2029 || p == 0x202F || p == 0x205F ||
         p == 0x3000;
}

bool is_word(std::int32_t p) {
  if (p == kBroken) return false;
  // Joiners, and the circled and squared letters, which are alphabetic although their category is So.
  if (p == 0x200C || p == 0x200D || (p >= 0x24B6 && p <= 0x24E9) || (p >= 0x1F130 && p <= 0x1F149) ||
      (p >= 0x1F150 && p <= 0x1F169) || (p >= 0x1F170 && p <= 0x1F189)) {
    return true;
  }
  switch (utf8proc_category(p)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool is_numeric(std::int32_t p) {
  if (p == kBroken) return false;
  const auto category = utf8proc_category(p);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(std::int32_t p) {
  if (p == kBroken) return false;
  if ((p >= 0x21 && p <= 0x2F) || (p >= 0x3A && p <= 0x40) || (p >= 0x5B && p <= 0x60) ||
      (p >= 0x7B && p <= 0x7E))
    return true;
  const auto category = utf8proc_category(p);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

std::string lossy_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    bool whole = false;
    const std::size_t n = well_formed_part(bytes, at, whole);
    if (whole) {
      out.append(bytes.substr(at, n));
    } else {
      append_utf8(kReplacement, out);
    }
    at += n;
  }
  return out;
}

std::string normalize(std::string_view text, NormalForm form) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<std::uint8_t>(c) < 0x80; })) {
    return std::string(text);
  }
  const int flags = flags_of(form);
  const auto decompose = static_cast<utf8proc_option_t>((flags | UTF8PROC_DECOMPOSE) & ~UTF8PROC_COMPOSE);
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (point.value == kBroken) {
      normalize_points(points, flags, out);
      out.push_back(text[at]);
    } else {
      utf8proc_int32_t parts[32];
      int boundary = 0;
      const auto n = utf8proc_decompose_char(point.value, parts, 32, decompose, &boundary);
      // 18 is the longest decomposition of Unicode, so the parts always fit.
      if (n > 0 && n <= 32) points.insert(points.end(), parts, parts + n);
    }
    at += point.bytes;
  }
  normalize_points(points, flags, out);
  return out;
}

}  // namespace quire::tokenizer
