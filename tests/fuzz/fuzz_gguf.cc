// GGUF: the parser, every accessor on every key, and what is read from an accepted file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/text_settings.h"
#include "model/names.h"
#include "model/rope.h"
#include "model/spec.h"

namespace {

using namespace quire::checkpoint;

// Sums keep the reads from being dropped.
std::size_t read_all(const GgufFile& gguf) {
  std::size_t sum = 0;
  for (const auto& [key, value] : gguf.metadata()) {
    sum += gguf.integer(key, INT64_MIN, INT64_MAX).ok() + gguf.number(key, -1e300, 1e300).ok();
    sum += gguf.boolean_or(key, false).ok() + gguf.string(key).ok();
    if (const auto list = gguf.integers(key); list.ok()) sum += list->size();
    if (const auto list = gguf.numbers(key); list.ok()) sum += list->size();
    if (const auto list = gguf.strings(key); list.ok()) {
      for (const std::string_view text : *list)
        sum += text.empty() ? 0 : static_cast<unsigned char>(text.back());
    }
  }
  for (const TensorInfo& tensor : gguf.tensors()) {
    if (tensor.bytes > 0)
      sum +=
          static_cast<std::size_t>(tensor.data[0]) + static_cast<std::size_t>(tensor.data[tensor.bytes - 1]);
  }
  return sum;
}

void read_as_model(const std::uint8_t* data, std::size_t size) {
  const int file = ::memfd_create("fuzz", 0);
  if (file < 0 || ::write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  const auto checkpoint = open_checkpoint("/proc/self/fd/" + std::to_string(file));
  ::close(file);
  if (!checkpoint.ok()) return;
  (void)read_text_settings(**checkpoint);
  (void)read_generation_defaults(**checkpoint);
  const auto spec = quire::model::read_spec(**checkpoint);
  if (!spec.ok()) return;
  (void)quire::model::to_string(*spec);
  (void)quire::model::expected_weights(*spec);
  for (const auto& rope : spec->ropes) (void)quire::model::rope_inv_freq(rope);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto gguf = GgufFile::parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
  if (!gguf.ok()) return 0;
  volatile std::size_t sum = read_all(*gguf);
  (void)sum;
  read_as_model(data, size);
  return 0;
}
