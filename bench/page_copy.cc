// What a copy within the KV cache takes, by tokens, one at a time with its wait: the curve of
// docs/PREFIX_CACHE.md. Pages of a model of 30 layers with 3 heads of 64 in bf16 (SmolLM2-135M), on two
// threads.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "ops/cpu/cpu_ops.h"
#include "platform/entry.h"
#include "tensor/kv_format.h"

int main() {
  using namespace quire;
  constexpr std::int32_t kPage = 256;
  constexpr std::int32_t kPages = 64;
  constexpr std::uint32_t kRounds = 400;
  const std::vector<KvLayerShape> shapes(30, KvLayerShape{3, 64, 64, false});
  const KvLayout layout = make_kv_layout(shapes, KvFormat{}, kPage, PageOrder::page_first, kPages).value();
  std::vector<unsigned char> bytes(static_cast<std::size_t>(layout.page_stride() * kPages), 1);
  std::vector<ops::PageCopyLayer> layers;
  for (int l = 0; l < 30; ++l) layers.push_back({layout.view(bytes.data(), l, nullptr, nullptr), 3, 64, 64});
  const auto device = platform::cpu::open(platform::ThreadPlan{2}).value();
  const auto stream = device->make_stream();
  const auto ops = ops::cpu::make_cpu_ops(platform::cpu::isa());
  for (std::int32_t tokens = 1; tokens <= kPage; tokens *= 2) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint32_t i = 0; i < kRounds; ++i) {
      ops->page_copy({layers.data(), 30, i * 7 % kPages, (i * 7 + 3) % kPages, tokens}, *stream);
      stream->synchronize();
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    std::printf("%3d tokens: %.1f us\n", tokens, took.count() / kRounds);
  }
}
