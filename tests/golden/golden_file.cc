#include "golden_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "checkpoint/safetensors.h"

namespace quire::golden {

namespace {

template <class T>
std::vector<T> read(const std::vector<checkpoint::TensorInfo>& tensors, const std::string& name,
                    bool required = true) {
  for (const checkpoint::TensorInfo& tensor : tensors) {
    if (tensor.name != name) continue;
    std::vector<T> values(static_cast<std::size_t>(tensor.bytes) / sizeof(T));
    std::memcpy(values.data(), tensor.data, values.size() * sizeof(T));
    return values;
  }
  QUIRE_CHECK(!required, "golden file lacks {}", name);
  return {};
}

}  // namespace

Golden load_golden(const std::string& path) {
  Result<checkpoint::MappedFile> file = checkpoint::MappedFile::open(path);
  QUIRE_CHECK(file.ok(), "{}", file.error().message);
  const auto tensors = checkpoint::parse_safetensors(file->bytes(), path);
  QUIRE_CHECK(tensors.ok(), "{}", tensors.error().message);
  Golden golden;
  golden.logit_std = read<float>(*tensors, "logit_std").at(0);
  for (int i = 0;; ++i) {
    const std::string prefix = fmt::format("case{}.", i);
    Case one;
    one.tokens = read<std::int32_t>(*tensors, prefix + "tokens", false);
    if (one.tokens.empty()) break;
    one.logprobs = read<float>(*tensors, prefix + "logprobs");
    one.argmax = read<std::int32_t>(*tensors, prefix + "argmax");
    one.margin = read<float>(*tensors, prefix + "margin");
    one.greedy = read<std::int32_t>(*tensors, prefix + "greedy");
    one.greedy_margin = read<float>(*tensors, prefix + "greedy_margin");
    one.bf16_logprobs = read<float>(*tensors, prefix + "bf16_logprobs");
    golden.cases.push_back(std::move(one));
  }
  QUIRE_CHECK(!golden.cases.empty(), "{} holds no case", path);
  return golden;
}

Errors errors_of(std::vector<double> absolute) {
  std::sort(absolute.begin(), absolute.end());
  Errors errors;
  for (const double value : absolute) errors.mean += value / static_cast<double>(absolute.size());
  errors.quantile90 = absolute[static_cast<std::size_t>(0.9 * static_cast<double>(absolute.size() - 1))];
  errors.largest = absolute.back();
  return errors;
}

}  // namespace quire::golden
