// Checkpoint: the files of one model, opened and checked. A Hugging Face folder (config.json, one or more
// safetensors files) or one GGUF file. Owns the mappings; tensors and views borrow from it and stay valid
// as long as it lives. Immutable after opening: any thread may read.
//
// A folder (or a config.json given directly) without weight files opens in config-only mode: enough for
// choosing backends, `info`, and dummy weights.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/gguf.h"
#include "checkpoint/json.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/tensor_info.h"

namespace quire::checkpoint {

enum class Source { huggingface, gguf };

class Checkpoint {
 public:
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  Source source() const { return gguf_.empty() ? Source::huggingface : Source::gguf; }
  const std::string& path() const { return path_; }      // as opened: folder or file
  const std::string& folder() const { return folder_; }  // where tokenizer.json and the like lie
  bool has_weights() const { return !tensors_.empty(); }
  // Sorted by name.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // Null when there is none of that name.
  const TensorInfo* find(std::string_view name) const;
  // Bytes of all weight files; 0 in config-only mode.
  std::int64_t file_bytes() const { return file_bytes_; }
  // After a tensor was copied to memory of ours: lets the kernel drop its pages.
  void release(const TensorInfo& tensor) const;

  // config.json. REQUIRES source() == huggingface.
  JsonView config() const;
  // The metadata. REQUIRES source() == gguf.
  const GgufFile& gguf() const;

  friend Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& path);

 private:
  Checkpoint() = default;
  Status open_folder(const std::string& config_path);
  Status open_gguf();
  Status add_safetensors(const std::string& path, std::string_view name);
  Status add_shards(const std::string& index_path);
  Status index_tensors();

  std::string path_;
  std::string folder_;
  std::vector<MappedFile> files_;
  std::vector<JsonDocument> config_;  // none or one
  std::vector<GgufFile> gguf_;        // none or one
  std::vector<TensorInfo> tensors_;
  std::int64_t file_bytes_ = 0;
};

// `path`: a folder with config.json, a config.json, or a .gguf file. Never touches the network.
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& path);

}  // namespace quire::checkpoint
