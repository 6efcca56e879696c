#include "model/tensor_check.h"

#include <fmt/format.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ops/expand.h"

namespace quire::model {
namespace {

constexpr std::size_t kNamed = 3;  // tensors that a message names

std::string joined(const std::vector<std::string>& texts, std::string_view between) {
  std::string out;
  for (const std::string& text : texts) {
    if (!out.empty()) out += between;
    out += text;
  }
  return out;
}

// Collects names and says how many there are.
class Offenders {
 public:
  void add(std::string what) {
    if (count_++ < kNamed) first_.push_back(std::move(what));
  }
  bool any() const { return count_ > 0; }
  std::string text(std::string_view singular, std::string_view plural) const {
    std::string names = joined(first_, ", ");
    if (count_ > kNamed) names += fmt::format(" and {} more", count_ - kNamed);
    return count_ == 1 ? fmt::format("{}: {}", singular, names)
                       : fmt::format("{} {}: {}", count_, plural, names);
  }

 private:
  std::size_t count_ = 0;
  std::vector<std::string> first_;
};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(std::to_string(size));
  return fmt::format("[{}]", joined(sizes, ", "));
}

// Of a GGUF file's matrices: what is multiplied where it lies, or can be expanded on its way to the device.
std::vector<WeightFormat> usable_formats(const ops::Ops& ops, const LoadOptions& options) {
  if (options.apart) return ops::expandable_formats();
  std::vector<WeightFormat> formats;
  for (const ops::LinearFormat& line : ops.linear_formats()) formats.push_back(line.format);
  return formats;
}

std::string usable_types(const ops::Ops& ops, const LoadOptions& options) {
  std::vector<std::string> names;
  for (const WeightFormat format : usable_formats(ops, options))
    names.emplace_back(weight_format_info(format).name);
  return joined(names, ", ");
}

bool usable_type(const ModelSpec& spec, const ExpectedWeight& expected, const checkpoint::TensorInfo& tensor,
                 const ops::Ops& ops, const LoadOptions& options) {
  if (!tensor.format) return false;
  if (expected.shape.size() != 2 || spec.source == checkpoint::Source::huggingface)
    return is_plain(*tensor.format);
  const bool usable =
      options.apart ? ops::can_expand(*tensor.format) : find_linear_format(ops, *tensor.format) != nullptr;
  return usable && expected.shape.back() % weight_format_info(*tensor.format).block_elements == 0;
}

struct Findings {
  Offenders missing, extra, shapes, types;
};

Status report(const Findings& findings, const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops,
              const LoadOptions& options) {
  std::vector<std::string> lines;
  if (findings.missing.any())
    lines.push_back(findings.missing.text("a tensor is missing", "tensors are missing"));
  if (findings.extra.any())
    lines.push_back(findings.extra.text("a tensor is not part of this architecture",
                                        "tensors are not part of this architecture"));
  if (findings.shapes.any())
    lines.push_back(findings.shapes.text("a tensor has another shape than the config says",
                                         "tensors have other shapes than the config says"));
  if (findings.types.any()) {
    lines.push_back(findings.types.text("a tensor is stored in a type that this build does not use",
                                        "tensors are stored in types that this build does not use"));
    lines.push_back(fmt::format("convert the file to one of {}", usable_types(ops, options)));
  }
  if (lines.empty()) return {};
  return bad_input(fmt::format("{}: {}", checkpoint.path(), joined(lines, "; ")));
}

}  // namespace

std::uint64_t weight_key(WeightId id, std::int32_t layer, std::int32_t expert) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(layer)) << 32) |
         (static_cast<std::uint64_t>(static_cast<std::uint32_t>(expert) & 0xffffffu) << 8) |
         static_cast<std::uint64_t>(id);
}

bool is_plain(WeightFormat format) {
  return format == WeightFormat::f32 || format == WeightFormat::f16 || format == WeightFormat::bf16;
}

const ops::LinearFormat* find_linear_format(const ops::Ops& ops, WeightFormat format) {
  for (const ops::LinearFormat& line : ops.linear_formats())
    if (line.format == format) return &line;
  return nullptr;
}

Result<FoundTensors> check_tensors(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                                   const ops::Ops& ops, const LoadOptions& options) {
  FoundTensors found;
  if (!options.dummy && !checkpoint.has_weights())
    return bad_input(
        fmt::format("{} holds no weights: give a folder with safetensors files, or use "
                    "--load-format dummy",
                    checkpoint.path()));
  Findings findings;
  std::unordered_set<std::string> names;
  for (ExpectedWeight& expected : expected_weights(spec)) {
    FoundTensor entry{expected, nullptr};
    if (!options.dummy) {
      entry.tensor = checkpoint.find(expected.name);
      if (entry.tensor == nullptr) {
        findings.missing.add(expected.name);
      } else if (entry.tensor->shape != expected.shape) {
        findings.shapes.add(fmt::format("{} is {}, not {}", expected.name, shape_text(entry.tensor->shape),
                                        shape_text(expected.shape)));
      } else if (!usable_type(spec, expected, *entry.tensor, ops, options)) {
        findings.types.add(fmt::format("{} ({})", expected.name, entry.tensor->type));
      }
    }
    names.insert(entry.expected.name);
    found.emplace(weight_key(expected.id, expected.layer, expected.expert), std::move(entry));
  }
  if (!options.dummy) {
    for (const checkpoint::TensorInfo& tensor : checkpoint.tensors())
      if (!names.contains(tensor.name) && !is_ignored_tensor(spec, tensor.name))
        findings.extra.add(tensor.name);
    QUIRE_TRY_STATUS(report(findings, checkpoint, ops, options));
  }
  return found;
}

}  // namespace quire::model
