#include "model/testing/fp8_folder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "tensor/values.h"

namespace quire::model::testing {
namespace {

using nlohmann::json;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_safetensors(const std::string& path, const StoredTensors& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.type},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out << text << data;
}

std::vector<float> values_of(const checkpoint::TensorInfo& tensor) {
  const DType type = tensor.type == "F32" ? DType::f32 : tensor.type == "F16" ? DType::f16 : DType::bf16;
  std::vector<float> values(static_cast<std::size_t>(tensor.bytes) / dtype_bytes(type));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = load_value(type, tensor.data, static_cast<std::int64_t>(i));
  return values;
}

std::string bytes_of(const std::vector<float>& values, const std::string& type) {
  std::string out;
  for (const float value : values) {
    const std::uint16_t half = type == "F16" ? f32_to_f16(value) : f32_to_bf16(value);
    const void* from = type == "F32" ? static_cast<const void*>(&value) : &half;
    out.append(static_cast<const char*>(from), type == "F32" ? 4 : 2);
  }
  return out;
}

bool is_linear(const std::string& name) { return name.ends_with("_proj.weight") || name == "lm_head.weight"; }

// One matrix: its e4m3 bytes and scales, and in place of its values what they stand for.
struct Quantised {
  StoredTensor matrix, scales;
};
Quantised quantise(const checkpoint::TensorInfo& tensor, const Fp8Folder& kind, std::vector<float>& values) {
  const auto cols = static_cast<std::size_t>(tensor.shape[1]);
  const std::size_t step = kind.per_row ? cols : values.size();
  std::vector<float> scales;
  std::string bytes;
  for (std::size_t begin = 0; begin < values.size(); begin += step) {
    float largest = 0.0f;
    for (std::size_t i = begin; i < begin + step; ++i) largest = std::max(largest, std::fabs(values[i]));
    scales.push_back(std::max(largest / kFp8E4m3Max, 1e-6f));
    const std::string stored = bytes_of({scales.back()}, kind.scale_type);
    const DType type = kind.scale_type == "F32"   ? DType::f32
                       : kind.scale_type == "F16" ? DType::f16
                                                  : DType::bf16;
    const float scale = load_value(type, stored.data());
    for (std::size_t i = begin; i < begin + step; ++i) {
      bytes.push_back(static_cast<char>(f32_to_fp8_e4m3(values[i] / scale)));
      values[i] = fp8_e4m3_to_f32(static_cast<std::uint8_t>(bytes.back())) * scale;
    }
  }
  std::vector<std::int64_t> shape{1};
  if (kind.per_row) shape = {tensor.shape[0], 1};
  if (!kind.per_row && kind.scalar) shape.clear();
  return {{"F8_E4M3", tensor.shape, bytes}, {kind.scale_type, shape, bytes_of(scales, kind.scale_type)}};
}

}  // namespace

std::string quantization_config(bool per_row, const std::vector<std::string>& ignored) {
  json config = json::parse(R"({
    "config_groups": {"group_0": {
      "input_activations": {"block_structure": null, "dynamic": true, "group_size": null, "num_bits": 8,
        "observer": "memoryless", "observer_kwargs": {}, "strategy": "token", "symmetric": true,
        "type": "float"},
      "output_activations": null,
      "targets": ["Linear"],
      "weights": {"block_structure": null, "dynamic": false, "group_size": null, "num_bits": 8,
        "observer": "minmax", "observer_kwargs": {}, "strategy": "channel", "symmetric": true,
        "type": "float"}}},
    "format": "float-quantized",
    "global_compression_ratio": 1.24,
    "kv_cache_scheme": null,
    "quant_method": "compressed-tensors",
    "quantization_status": "frozen"})");
  if (!per_row) config["config_groups"]["group_0"]["weights"]["strategy"] = "tensor";
  config["ignore"] = ignored;
  return config.dump();
}

void write_fp8_folders(const std::string& from, const std::string& to, const Fp8Folder& kind) {
  const auto opened = checkpoint::open_checkpoint(from);
  QUIRE_CHECK(opened.ok(), "{}", opened.error().message);
  std::vector<std::string> ignored = kind.ignored;
  if (kind.keep_head) ignored.emplace_back("lm_head");
  StoredTensors fp8, wide;
  for (const checkpoint::TensorInfo& tensor : (*opened)->tensors()) {
    std::vector<float> values = values_of(tensor);
    const std::string module = tensor.name.substr(0, tensor.name.rfind(".weight"));
    if (is_linear(tensor.name) && std::find(ignored.begin(), ignored.end(), module) == ignored.end()) {
      Quantised quantised = quantise(tensor, kind, values);
      fp8[tensor.name] = std::move(quantised.matrix);
      fp8[tensor.name + "_scale"] = std::move(quantised.scales);
    } else {
      fp8[tensor.name] = {
          tensor.type, tensor.shape,
          std::string(reinterpret_cast<const char*>(tensor.data), static_cast<std::size_t>(tensor.bytes))};
    }
    wide[tensor.name] = {"F32", tensor.shape, bytes_of(values, "F32")};
  }
  const std::string plain = read_file(from + "/config.json");
  json config = json::parse(plain);
  config["quantization_config"] = json::parse(quantization_config(kind.per_row, ignored));
  std::string text = config.dump(1);
  if (kind.edit) kind.edit(fp8, text);
  for (const char* name : {"fp8", "wide"}) {
    const std::string folder = to + "/" + name;
    std::filesystem::create_directories(folder);
    write_safetensors(folder + "/model.safetensors", name[0] == 'f' ? fp8 : wide);
    std::ofstream(folder + "/config.json") << (name[0] == 'f' ? text : plain);
  }
}

}  // namespace quire::model::testing
