#include "cli/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

namespace quire::cli {

namespace {

using attention::Backend;
using attention::Box;
using Json = nlohmann::ordered_json;

// The columns that users know from other engines, each a question to the boxes.
struct Column {
  const char* key;  // in JSON
  const char* title;
  bool (*holds)(const Box& box);
};
constexpr Column kColumns[] = {
    {"page_size_gt_1", "page > 1",
     [](const Box& b) { return b.page.kind == attention::PageRule::Kind::set || b.page.max > 1; }},
    {"speculation", "speculation",
     [](const Box& b) {
       return (b.phases & attention::bit(attention::Phase::verify)) != 0 &&
              (b.features & attention::kTree) != 0;
     }},
    {"mla", "MLA", [](const Box& b) { return (b.features & attention::kLatent) != 0; }},
    {"chunked", "chunked prefill",
     [](const Box& b) { return (b.phases & attention::bit(attention::Phase::extend)) != 0; }},
    {"multimodal", "multimodal",
     [](const Box& b) { return (b.masks & attention::bit(attention::MaskKind::rows)) != 0; }},
    {"fp8_kv", "fp8 KV", [](const Box& b) { return (b.kv.types & attention::bit(DType::fp8_e4m3)) != 0; }},
};

bool any_box(const Backend& row, bool (*holds)(const Box& box)) {
  return std::any_of(row.caps.boxes.begin(), row.caps.boxes.end(), holds);
}

// Names of the set bits of a mask, by the enum's own to_string.
template <class E>
std::vector<std::string> names(std::uint32_t bits, int count) {
  std::vector<std::string> list;
  for (int i = 0; i < count; ++i) {
    if ((bits >> i & 1u) != 0) list.emplace_back(to_string(static_cast<E>(i)));
  }
  return list;
}

std::vector<std::string> dims(const Box& box) {
  std::vector<std::string> list;
  for (int i = 0; i < box.dims.count; ++i) {
    const attention::DimPair& pair = box.dims.values[i];
    list.push_back(pair.qk == pair.v ? std::to_string(pair.qk) : fmt::format("{}/{}", pair.qk, pair.v));
  }
  if (list.empty()) list.emplace_back("any");
  return list;
}

std::string page_rule(const attention::PageRule& rule) {
  if (rule.kind == attention::PageRule::Kind::set) {
    std::string text;
    for (int i = 0; i < rule.values.count; ++i)
      text += fmt::format("{}{}", i > 0 ? ", " : "", rule.values.values[i]);
    return text;
  }
  if (rule.kind == attention::PageRule::Kind::multiple)
    return fmt::format("multiples of {} up to {}", rule.multiple, rule.max);
  return fmt::format("{}..{}", rule.min, rule.max);
}

std::string row_page_rule(const Backend& row) {
  std::vector<std::string> rules;
  for (const Box& box : row.caps.boxes) {
    if ((box.sources & attention::bit(attention::KvSource::paged)) == 0) continue;
    const std::string rule = page_rule(box.page);
    if (std::find(rules.begin(), rules.end(), rule) == rules.end()) rules.push_back(rule);
  }
  return fmt::format("{}", fmt::join(rules, "; "));
}

std::string_view capture_name(attention::Capture capture) {
  switch (capture) {
    case attention::Capture::no:
      return "no";
    case attention::Capture::fixed_shapes:
      return "fixed shapes";
    case attention::Capture::any:
      return "any";
  }
  return "no";
}

Json box_to_json(const Box& box) {
  Json json;
  json["phases"] = names<attention::Phase>(box.phases, 3);
  json["head_dims"] = dims(box);
  json["ratio"] = {box.ratio_min, box.ratio_max};
  json["q_types"] = names<DType>(box.q_types, 9);
  json["kv_types"] = names<DType>(box.kv.types, 9);
  json["kv_scales"] = names<KvScaleKind>(box.kv.scales, 5);
  json["page_rule"] = page_rule(box.page);
  json["page_orders"] = names<PageOrder>(box.orders, 2);
  json["sources"] = names<attention::KvSource>(box.sources, 2);
  json["masks"] = names<attention::MaskKind>(box.masks, 5);
  json["features"] = attention::features_to_string(box.features);
  return json;
}

// Empty, or why no call of that device can go to the row, whatever the build.
std::string wrong_device(const Backend& row, const platform::DeviceInfo& device) {
  std::vector<std::string> ranges;
  for (const Box& box : row.caps.boxes) {
    if (device.arch >= box.arch_min && device.arch <= box.arch_max) return "";
    std::string range = box.arch_max < Box().arch_max ? fmt::format("{} to {}", box.arch_min, box.arch_max)
                                                      : fmt::format("{} and above", box.arch_min);
    if (std::find(ranges.begin(), ranges.end(), range) == ranges.end()) ranges.push_back(std::move(range));
  }
  return fmt::format("sm{}: architectures {} only", device.arch, fmt::join(ranges, " or "));
}

std::string why_not(const Backend& row, const platform::DeviceInfo& device) {
  std::string why = wrong_device(row, device);
  if (why.empty() && row.make == nullptr) why = "not in this build: it has no CUDA";
  return why;
}

}  // namespace

Json rows_to_json(std::span<const Backend> table, const platform::DeviceInfo& device) {
  Json rows = Json::array();
  for (const Backend& row : table) {
    Json json;
    json["name"] = row.name;
    json["description"] = row.description;
    const std::string why = why_not(row, device);
    json["available"] = why.empty();
    json["why_not"] = why.empty() ? Json() : Json(why);
    for (const Column& column : kColumns) json["features"][column.key] = any_box(row, column.holds);
    json["boxes"] = Json::array();
    for (const Box& box : row.caps.boxes) json["boxes"].push_back(box_to_json(box));
    json["capture"] = capture_name(row.caps.capture);
    json["determinism"] = attention::to_string(row.caps.determinism);
    json["page_rule"] = row_page_rule(row);
    json["recommended_page_size"] =
        row.caps.recommended_page == 0 ? Json(nullptr) : Json(row.caps.recommended_page);
    rows.push_back(std::move(json));
  }
  return rows;
}

std::string matrix_as_text(std::span<const Backend> table, const platform::DeviceInfo& device) {
  std::string text;
  for (const Backend& row : table) {
    text += fmt::format("{}: {}\n", row.name, row.description);
    if (const std::string why = why_not(row, device); !why.empty())
      text += fmt::format("    {:<16} {}\n", "not available", why);
    for (const Column& column : kColumns)
      text += fmt::format("    {:<16} {}\n", column.title, any_box(row, column.holds) ? "yes" : "no");
    text += fmt::format("    {:<16} {}\n    {:<16} {}\n    {:<16} {}\n", "page sizes", row_page_rule(row),
                        "graph capture", capture_name(row.caps.capture), "determinism",
                        attention::to_string(row.caps.determinism));
    for (const Box& box : row.caps.boxes) {
      text += fmt::format("    dims {}; KV {}; masks {}; {}; {}\n", fmt::join(dims(box), " "),
                          fmt::join(names<DType>(box.kv.types, 9), " "),
                          fmt::join(names<attention::MaskKind>(box.masks, 5), " "),
                          fmt::join(names<attention::KvSource>(box.sources, 2), " "),
                          attention::features_to_string(box.features));
    }
  }
  return text;
}

std::string matrix_as_markdown(std::span<const Backend> table, const platform::DeviceInfo& device) {
  std::string text = "| backend |";
  for (const Column& column : kColumns) text += fmt::format(" {} |", column.title);
  text += " page sizes | head dims | KV types | graph capture | determinism |\n|---|";
  for (std::size_t i = 0; i < std::size(kColumns) + 5; ++i) text += "---|";
  text += "\n";
  for (const Backend& row : table) {
    std::vector<std::string> all_dims, all_types;
    for (const Box& box : row.caps.boxes) {
      for (std::string& name : dims(box)) {
        if (std::find(all_dims.begin(), all_dims.end(), name) == all_dims.end())
          all_dims.push_back(std::move(name));
      }
      for (std::string& name : names<DType>(box.kv.types, 9)) {
        if (std::find(all_types.begin(), all_types.end(), name) == all_types.end())
          all_types.push_back(std::move(name));
      }
    }
    const std::string why = wrong_device(row, device);
    text += why.empty() ? fmt::format("| `{}` |", row.name)
                        : fmt::format("| `{}` (not available on {}) |", row.name, why);
    for (const Column& column : kColumns) text += any_box(row, column.holds) ? " yes |" : " no |";
    text += fmt::format(" {} | {} | {} | {} | {} |\n", row_page_rule(row), fmt::join(all_dims, ", "),
                        fmt::join(all_types, ", "), capture_name(row.caps.capture),
                        attention::to_string(row.caps.determinism));
  }
  return text;
}

}  // namespace quire::cli
