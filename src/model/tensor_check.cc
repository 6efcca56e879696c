#include "model/tensor_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "ops/expand.h"
#include "tensor/values.h"

namespace quire::model {
namespace {

constexpr std::size_t kNamed = 3;  // tensors that a message names

// Collects names and says how many there are.
class Offenders {
 public:
  void add(std::string what) {
    if (count_++ < kNamed) first_.push_back(std::move(what));
  }
  bool any() const { return count_ > 0; }
  std::string text(std::string_view singular, std::string_view plural) const {
    std::string names = comma_list(first_);
    if (count_ > kNamed) names += fmt::format(" and {} more", count_ - kNamed);
    return count_ == 1 ? fmt::format("{}: {}", singular, names)
                       : fmt::format("{} {}: {}", count_, plural, names);
  }

 private:
  std::size_t count_ = 0;
  std::vector<std::string> first_;
};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", comma_list(shape, [](std::int64_t size) { return std::to_string(size); }));
}

// Vectors, and matrices of Hugging Face folders, are of these: converted at load where that is needed.
constexpr std::array kPlain{WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16};

bool is_plain(WeightFormat format) { return std::find(kPlain.begin(), kPlain.end(), format) != kPlain.end(); }

// Of matrices. In GGUF files: what is multiplied where it lies, or can be expanded on its way to the device.
std::vector<WeightFormat> usable_formats(const ModelSpec& spec, const ops::Ops& ops,
                                         const LoadOptions& options) {
  if (spec.source == checkpoint::Source::huggingface) return {kPlain.begin(), kPlain.end()};
  if (options.apart) return ops::expandable_formats();
  std::vector<WeightFormat> formats;
  for (const ops::LinearFormat& line : ops.linear_formats()) formats.push_back(line.format);
  return formats;
}

std::string names_of(std::span<const WeightFormat> formats) {
  return comma_list(formats, [](WeightFormat format) { return weight_format_info(format).name; });
}

std::string usable_types(const ModelSpec& spec, const ops::Ops& ops, const LoadOptions& options) {
  std::vector<WeightFormat> formats = usable_formats(spec, ops, options);
  std::erase(formats, WeightFormat::fp8_e4m3);  // no GGUF file has it
  return names_of(formats);
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

// One scale for a matrix may be a scalar or a list of one.
bool has_shape(const ExpectedWeight& expected, const std::vector<std::int64_t>& shape) {
  return shape == expected.shape ||
         (expected.part == WeightPart::fp8_scale && expected.shape.size() == 1 && shape.empty());
}

struct Findings {
  Offenders missing, extra, shapes, types, vector_types, not_fp8, undeclared, in_ignore;
};

void check_tensor(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                  const ExpectedWeight& expected, const checkpoint::TensorInfo* tensor, const ops::Ops& ops,
                  const LoadOptions& options, Findings& findings) {
  if (tensor == nullptr) return findings.missing.add(expected.name);
  if (!has_shape(expected, tensor->shape))
    return findings.shapes.add(fmt::format("{} is {}, not {}", expected.name, shape_text(tensor->shape),
                                           shape_text(expected.shape)));
  const std::string stored = fmt::format("{} ({})", expected.name, tensor->type);
  if (expected.part == WeightPart::fp8) {
    if (tensor->format != WeightFormat::fp8_e4m3) findings.not_fp8.add(stored);
  } else if (!spec.quant && tensor->format == WeightFormat::fp8_e4m3) {
    findings.undeclared.add(expected.name);
  } else if (spec.quant && tensor->format == WeightFormat::fp8_e4m3 &&
             is_quant_ignored(spec, module_name(expected.name)) &&
             checkpoint.find(expected.name + "_scale") != nullptr) {
    findings.in_ignore.add(expected.name);
  } else if (!usable_type(spec, expected, *tensor, ops, options)) {
    (expected.shape.size() == 2 ? findings.types : findings.vector_types).add(stored);
  }
}

Status report(const Findings& findings, const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
              const ops::Ops& ops, const LoadOptions& options) {
  // All else that is wrong then follows from it: scales that nothing asks for, above all.
  if (findings.undeclared.any())
    return bad_input(fmt::format(
        "{}: config.json has no quantization_config that declares fp8, and {}; use the config.json that was "
        "published with these files, or a checkpoint in {}",
        checkpoint.path(),
        findings.undeclared.text("a tensor is stored as F8_E4M3", "tensors are stored as F8_E4M3"),
        usable_types(spec, ops, options)));
  if (findings.in_ignore.any())
    return bad_input(
        fmt::format("{}: quantization_config names layers in its ignore, and {}; take them out of ignore",
                    checkpoint.path(),
                    findings.in_ignore.text("one of them is stored as F8_E4M3 with a scale",
                                            "of them are stored as F8_E4M3 with scales")));
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
    lines.push_back(fmt::format("convert the file to one of {}", usable_types(spec, ops, options)));
  }
  if (findings.vector_types.any()) {
    lines.push_back(
        findings.vector_types.text("a vector is stored in a type that this build does not use for vectors",
                                   "vectors are stored in types that this build does not use for vectors"));
    lines.push_back(fmt::format("store vectors in one of {}", names_of(kPlain)));
  }
  if (findings.not_fp8.any()) {
    lines.push_back(
        findings.not_fp8.text("a tensor is not stored as F8_E4M3", "tensors are not stored as F8_E4M3"));
    lines.emplace_back("quantization_config says so of every linear layer that its ignore does not name");
  }
  if (lines.empty()) return {};
  return bad_input(fmt::format("{}: {}", checkpoint.path(), fmt::join(lines, "; ")));
}

}  // namespace

std::uint64_t weight_key(WeightId id, std::int32_t layer, std::int32_t expert, bool scale) {
  static_assert(static_cast<int>(WeightId::shared_down) < 128);
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(layer)) << 32) |
         (static_cast<std::uint64_t>(static_cast<std::uint32_t>(expert) & 0xffffffu) << 8) |
         (std::uint64_t{scale} << 7) | static_cast<std::uint64_t>(id);
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
      check_tensor(spec, checkpoint, expected, entry.tensor, ops, options, findings);
    }
    names.insert(entry.expected.name);
    const bool scale = expected.part == WeightPart::fp8_scale;
    found.emplace(weight_key(expected.id, expected.layer, expected.expert, scale), std::move(entry));
  }
  if (!options.dummy) {
    for (const checkpoint::TensorInfo& tensor : checkpoint.tensors())
      if (!names.contains(tensor.name) && !is_ignored_tensor(spec, tensor.name))
        findings.extra.add(tensor.name);
    QUIRE_TRY_STATUS(report(findings, spec, checkpoint, ops, options));
  }
  return found;
}

Status check_scales(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                    const FoundTensors& found) {
  Offenders wrong;
  for (const ExpectedWeight& expected : expected_weights(spec)) {
    if (expected.part != WeightPart::fp8_scale) continue;
    const FoundTensor& entry = found.at(weight_key(expected.id, expected.layer, expected.expert, true));
    if (entry.tensor == nullptr) continue;
    const DType type = *element_type(*entry.tensor->format);
    bool all_zero = true;
    for (std::int64_t i = 0; i < expected.shape[0]; ++i) {
      const float scale = load_value(type, entry.tensor->data, i);
      all_zero = all_zero && scale == 0.0f;
      if (std::isfinite(scale) && scale >= 0.0f) continue;
      wrong.add(fmt::format("{}[{}] is {}", expected.name, i, scale));
      break;
    }
    if (all_zero) wrong.add(fmt::format("{} is 0 throughout", expected.name));
  }
  if (!wrong.any()) return {};
  return bad_input(fmt::format(
      "{}: {}; scales are finite, not negative and not all 0: the file is damaged, or was made by another "
      "method",
      checkpoint.path(), wrong.text("a scale cannot be used", "tensors have scales that cannot be used")));
}

}  // namespace quire::model
