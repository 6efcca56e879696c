#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/check.h"
#include "base/nearest.h"
#include "checkpoint/printable.h"
#include "checkpoint/safetensors.h"

namespace quire::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxShards = 10000;
constexpr std::size_t kMaxListed = 4096;  // entries of a folder that are looked at for messages
constexpr JsonLimits kIndexLimits{.bytes = std::size_t{256} << 20, .depth = 8, .nodes = 2 * kMaxTensors};
constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// A link whose target is not there, as an interrupted download into a cache of links leaves it.
bool is_dead_link(const std::string& path) {
  std::error_code ignored;
  return fs::is_symlink(fs::symlink_status(path, ignored)) && !exists(path);
}

Error dead_link(const std::string& path) {
  std::error_code ignored;
  return bad_input(fmt::format("{} is a link to {}, which is not there: fetch the file", printable(path),
                               printable(fs::read_symlink(path, ignored).string())));
}

// Names in a folder, sorted.
std::vector<std::string> list_folder(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end && names.size() < kMaxListed;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "model-00001-of-00003.safetensors": the names that sharded checkpoints use.
bool is_shard_name(std::string_view name) {
  return name.starts_with("model-") && name.ends_with(".safetensors") &&
         name.find("-of-") != std::string_view::npos;
}

std::string join(const std::vector<std::string>& names, std::size_t most = 5) {
  std::string out;
  for (std::size_t i = 0; i < names.size() && i < most; ++i)
    out += (i == 0 ? "" : ", ") + printable(names[i]);
  if (names.size() > most) out += fmt::format(" and {} more", names.size() - most);
  return out;
}

Error no_such_path(const std::string& path) {
  if (path.empty()) return bad_input("the model's path is empty: give a Hugging Face folder or a .gguf file");
  if (is_dead_link(path)) return dead_link(path);
  const fs::path parent = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  if (!exists(parent.string())) {
    // "meta-llama/Llama-3.1-8B": a name of a hub, which other programs would download.
    const bool hub_name = std::count(path.begin(), path.end(), '/') == 1 && path.find('.') != 0;
    return bad_input(fmt::format("there is no {}{}", printable(path),
                                 hub_name
                                     ? ": models are not downloaded, give the path of a Hugging Face folder "
                                       "or a .gguf file"
                                     : ""));
  }
  const std::vector<std::string> names = list_folder(parent.string());
  const std::vector<std::string_view> views(names.begin(), names.end());
  const auto near = nearest(fs::path(path).filename().string(), views);
  const std::string hint =
      near.empty() ? "" : fmt::format(" (did you mean {}?)", printable((parent / near[0]).string()));
  return bad_input(fmt::format("there is no {}{}", printable(path), hint));
}

Error no_config(const std::string& folder) {
  if (const std::string config = folder + "/config.json"; is_dead_link(config)) return dead_link(config);
  std::vector<std::string> ggufs;
  for (const std::string& name : list_folder(folder)) {
    if (name.ends_with(".gguf")) ggufs.push_back(name);
  }
  if (ggufs.empty()) {
    return bad_input(fmt::format("{} holds no config.json: a model is a Hugging Face folder or a .gguf file",
                                 printable(folder)));
  }
  return bad_input(
      fmt::format("{} holds no config.json but {}: name the file itself", printable(folder), join(ggufs)));
}

bool is_gguf(const MappedFile& file) {
  constexpr std::string_view kMagic = "GGUF";
  return file.bytes().size() >= kMagic.size() &&
         std::equal(kMagic.begin(), kMagic.end(), reinterpret_cast<const char*>(file.bytes().data()));
}

// Tensor -> shard file, checked: names are plain file names of this folder.
Result<std::map<std::string, std::string>> read_weight_map(const JsonView& index) {
  QUIRE_TRY(map, index.object("weight_map"));
  std::map<std::string, std::string> out;
  std::set<std::string> shards;
  for (const std::string& tensor : map.keys()) {
    QUIRE_TRY(shard, map.string(tensor));
    const bool plain = is_plain_name(shard, 255) && shard.find_first_of("/\\") == std::string::npos &&
                       shard.ends_with(".safetensors") && !shard.starts_with('.');
    if (!plain) {
      return bad_input(fmt::format("{}: \"{}\" is not the plain name of a .safetensors file of this folder",
                                   map.where(), printable(shard)));
    }
    shards.insert(shard);
    out.emplace(tensor, shard);
  }
  if (out.empty()) return bad_input(fmt::format("{} is empty", map.where()));
  if (shards.size() > kMaxShards)
    return bad_input(fmt::format("{} names more than {} files", map.where(), kMaxShards));
  return out;
}

// The shards there are must be the shards that are named.
Status compare_shards(const std::string& folder, const std::set<std::string>& named) {
  std::vector<std::string> lost;
  for (const std::string& name : named) {
    const std::string path = folder + "/" + name;
    if (is_dead_link(path)) return dead_link(path);
    if (!exists(path)) lost.push_back(name);
  }
  if (!lost.empty()) {
    return bad_input(fmt::format("{} names {}, which {} not in {}: fetch the missing files", kIndexFile,
                                 join(lost), lost.size() == 1 ? "is" : "are", printable(folder)));
  }
  std::vector<std::string> extra;
  for (const std::string& name : list_folder(folder)) {
    if (is_shard_name(name) && !named.contains(name)) extra.push_back(name);
  }
  if (!extra.empty()) {
    return bad_input(fmt::format("{} holds {}, which {} does not name: remove what belongs to another model",
                                 printable(folder), join(extra), kIndexFile));
  }
  return {};
}

}  // namespace

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto place = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorInfo& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return place == tensors_.end() || place->name != name ? nullptr : &*place;
}

void Checkpoint::release(const TensorInfo& tensor) const {
  for (const MappedFile& file : files_) {
    const auto bytes = file.bytes();
    if (tensor.data >= bytes.data() && tensor.data < bytes.data() + bytes.size()) {
      file.release(static_cast<std::size_t>(tensor.data - bytes.data()),
                   static_cast<std::size_t>(tensor.bytes));
    }
  }
}

JsonView Checkpoint::config() const {
  QUIRE_CHECK(!config_.empty(), "config() of a GGUF checkpoint {}", path_);
  return config_.front().root();
}

const GgufFile& Checkpoint::gguf() const {
  QUIRE_CHECK(!gguf_.empty(), "gguf() of a Hugging Face checkpoint {}", path_);
  return gguf_.front();
}

Status Checkpoint::add_safetensors(const std::string& path, std::string_view name) {
  QUIRE_TRY(file, MappedFile::open(path));
  QUIRE_TRY(tensors, parse_safetensors(file.bytes(), name));
  file_bytes_ += static_cast<std::int64_t>(file.bytes().size());
  files_.push_back(std::move(file));
  std::move(tensors.begin(), tensors.end(), std::back_inserter(tensors_));
  return {};
}

Status Checkpoint::add_shards(const std::string& index_path) {
  QUIRE_TRY(index, JsonDocument::read(index_path, kIndexLimits));
  QUIRE_TRY(map, read_weight_map(index.root()));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map) shards.insert(shard);
  QUIRE_TRY_STATUS(compare_shards(folder_, shards));
  for (const std::string& shard : shards) {
    const std::size_t first = tensors_.size();
    QUIRE_TRY_STATUS(add_safetensors(folder_ + "/" + shard, shard));
    for (std::size_t i = first; i < tensors_.size(); ++i) {
      const auto place = map.find(tensors_[i].name);
      if (place == map.end() || place->second != shard) {
        return bad_input(fmt::format(
            "{} holds the tensor {}, which {} {}", printable(shard), printable(tensors_[i].name), kIndexFile,
            place == map.end() ? "does not name" : "places in " + printable(place->second)));
      }
      map.erase(place);
    }
  }
  if (!map.empty()) {
    return bad_input(fmt::format("{} places the tensor {} in {}, which does not hold it", kIndexFile,
                                 printable(map.begin()->first), printable(map.begin()->second)));
  }
  return {};
}

Status Checkpoint::index_tensors() {
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < tensors_.size(); ++i) {
    if (tensors_[i - 1].name == tensors_[i].name) {
      return bad_input(fmt::format("the tensor {} stands in two files", printable(tensors_[i].name)));
    }
  }
  return {};
}

Status Checkpoint::open_folder(const std::string& config_path) {
  QUIRE_TRY(config, JsonDocument::read(config_path));
  config_.push_back(std::move(config));
  const std::string single_path = folder_ + "/" + std::string(kSingleFile);
  const std::string index_path = folder_ + "/" + std::string(kIndexFile);
  for (const std::string& path : {single_path, index_path})
    if (is_dead_link(path)) return dead_link(path);
  const bool single = exists(single_path);
  if (single && exists(index_path)) {
    return bad_input(fmt::format("{} holds both {} and {}: remove the one that is stale", printable(folder_),
                                 kSingleFile, kIndexFile));
  }
  if (single) {
    QUIRE_TRY_STATUS(add_safetensors(single_path, kSingleFile));
  } else if (exists(index_path)) {
    QUIRE_TRY_STATUS(add_shards(index_path));
  } else {
    for (const std::string& name : list_folder(folder_)) {
      if (is_shard_name(name)) {
        return bad_input(fmt::format("{} holds {} but no {}: fetch the index", printable(folder_),
                                     printable(name), kIndexFile));
      }
    }
  }
  return index_tensors();
}

Status Checkpoint::open_gguf() {
  const std::string name = fs::path(path_).filename().string();
  QUIRE_TRY(gguf, GgufFile::parse(files_.front().bytes(), name));
  QUIRE_TRY(splits, gguf.integer_or("split.count", 1, 0, 65535));
  if (splits > 1) {
    return bad_input(
        fmt::format("{} is one of {} parts of a split GGUF: join them first (llama-gguf-split --merge)",
                    printable(name), splits));
  }
  file_bytes_ = static_cast<std::int64_t>(files_.front().bytes().size());
  tensors_ = gguf.tensors();
  gguf_.push_back(std::move(gguf));
  return index_tensors();
}

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& path) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->path_ = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return no_such_path(path);
  if (fs::is_directory(status)) {
    checkpoint->folder_ = path;
    const std::string config = path + "/config.json";
    if (!exists(config)) return no_config(path);
    QUIRE_TRY_STATUS(checkpoint->open_folder(config));
    return checkpoint;
  }
  const fs::path parent = fs::path(path).parent_path();
  checkpoint->folder_ = parent.empty() ? "." : parent.string();
  const std::string name = fs::path(path).filename().string();
  if (name == "config.json") {
    QUIRE_TRY_STATUS(checkpoint->open_folder(path));
    return checkpoint;
  }
  if (name.ends_with(".json")) {
    QUIRE_TRY(config, JsonDocument::read(path));
    checkpoint->config_.push_back(std::move(config));
    return checkpoint;
  }
  QUIRE_TRY(file, MappedFile::open(path));
  if (!is_gguf(file)) {
    return bad_input(
        fmt::format("{} is not a GGUF file{}", printable(path),
                    name.ends_with(".safetensors") ? ": name the folder that holds it and config.json" : ""));
  }
  checkpoint->files_.push_back(std::move(file));
  QUIRE_TRY_STATUS(checkpoint->open_gguf());
  return checkpoint;
}

}  // namespace quire::checkpoint
