// KvFormat, KvLayout, KvView: how keys and values lie in pages. Plain data shared by the writer
// (ops: rope_and_kv_write), every reader (attention rows) and everything that moves pages. The page
// contract is docs/ARCHITECTURE.md, "The paged KV cache".
//
// A page of a group holds P tokens of all its layers: K and V, all heads, and the sidecars (scales).
// Inside a page heads lie outside tokens: [layer][K | V][head][token][dim]. All strides are in BYTES and
// 64-bit: no offset is ever formed in 32 bits.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace quire {

// stored = saturate(x / scale).
enum class KvScaleKind : std::uint8_t {
  none,        // 16 and 32 bit types: stored as they are
  tensor,      // one float for all K and one for all V
  layer_head,  // float [layers, kv_heads], given with the checkpoint
  token_head,  // float32 per token and head, kept in the page: amax / 448
  block,       // per block inside the row (rows with several sections; later formats)
};
enum class KvPacking : std::uint8_t { plain, vnni };
enum class PageOrder : std::uint8_t { page_first, layer_first };

// One stretch of a cache row, e.g. latent 512 | rope 64.
struct KvSection {
  DType type = DType::f32;
  std::uint16_t dims = 0;
};

// One per group; the writer and every reader name the same one or refuse.
struct KvFormat {
  std::uint32_t size = sizeof(KvFormat);
  DType k_type = DType::bf16;
  DType v_type = DType::bf16;
  KvScaleKind scale = KvScaleKind::none;
  KvPacking packing = KvPacking::plain;
  std::uint16_t tokens_per_entry = 1;
  std::uint16_t section_count = 0;  // 0: one section of the layer's own dim
  std::array<KvSection, 4> sections{};
};
bool operator==(const KvFormat& a, const KvFormat& b);
std::string to_string(const KvFormat& format);  // "bf16", "fp8_e4m3 (per token and head)"
std::string_view to_string(KvScaleKind kind);
std::string_view to_string(PageOrder order);

// What one layer keeps per token. `latent`: one row per token, V is its first v_dim elements (aliased).
struct KvLayerShape {
  std::int32_t kv_heads = 0;
  std::int32_t qk_dim = 0;
  std::int32_t v_dim = 0;
  bool latent = false;
  std::int32_t shares_layer = -1;  // index in the group whose KV this layer reads instead of its own
};

struct KvStrides {
  std::int64_t page = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;
  std::int64_t dim = 0;
};

// One layer of the cache as a kernel sees it. Key j of a sequence, head h:
//   paged: k + page_id * page + h * head + (j % P) * token      page_id = table[j / P]
//   dense: k + (kv_offset + j) * token + h * head               (page stride unused)
// Scales (fp8): value = stored * scale. `tensor`: k_scale[0]; `layer_head`: k_scale[h];
// `token_head`: k_scale + page_id*page + h*head + (j % P)*token, float32, in the page.
struct KvView {
  std::uint32_t size = sizeof(KvView);
  void* k = nullptr;
  void* v = nullptr;  // latent: == k
  KvStrides k_stride;
  KvStrides v_stride;
  KvFormat format;
  std::int32_t page_size = 1;
  const float* k_scale = nullptr;  // `tensor`, `layer_head`: device floats; `token_head`: first page's
  const float* v_scale = nullptr;
  KvStrides scale_stride;  // of both scale sidecars, for token_head
};

// Where everything of one group lies. Computed once by make_kv_layout; never changed.
class KvLayout {
 public:
  struct Layer {
    std::int64_t k_offset = 0;  // bytes from the page (page_first) or from the arena's start (layer_first)
    std::int64_t v_offset = 0;
    std::int64_t k_scale_offset = -1;
    std::int64_t v_scale_offset = -1;
  };
  std::int32_t page_size() const { return page_size_; }
  PageOrder order() const { return order_; }
  const KvFormat& format() const { return format_; }
  // Bytes between page p and p + 1 of this group in the arena (page_first), padded where needed.
  std::int64_t page_stride() const { return page_stride_; }
  // Bytes of all layers and sidecars of one page, without padding: what the ledger counts as used.
  std::int64_t page_bytes() const { return page_bytes_; }
  std::int64_t bytes_per_token() const { return page_bytes_ / page_size_; }
  const std::vector<KvLayerShape>& layers() const { return shapes_; }
  // The same layout with pages `page_stride` bytes apart (page_first; at least page_stride()): what kv/slabs
  // asks for where the groups' strides have no common multiple of a sane size.
  KvLayout padded_to(std::int64_t page_stride) const;
  // The view of layer `layer` (index in the group). `arena` is the arena's base address; static scales
  // (tensor, layer_head) are given by the caller, device pointers.
  KvView view(void* arena, int layer, const float* k_scale, const float* v_scale) const;

  // layer_first needs the number of pages of the whole arena up front: pages_total; page_first ignores it.
  friend Result<KvLayout> make_kv_layout(const std::vector<KvLayerShape>& layers, const KvFormat& format,
                                         std::int32_t page_size, PageOrder order, std::int64_t pages_total);

 private:
  std::int32_t page_size_ = 0;
  PageOrder order_ = PageOrder::page_first;
  KvFormat format_;
  std::int64_t page_stride_ = 0;
  std::int64_t page_bytes_ = 0;
  std::vector<KvLayerShape> shapes_;
  std::vector<Layer> layers_;
};

// Rows are dense: no padding between tokens, heads, K and V or layers, so rows of 64 bytes (or a multiple)
// are aligned to 64 bytes and others to what their length gives. Token scales lie at the end of the page.
// Only the page stride is padded, to 64 bytes or to as much of that as costs at most 1 % (never less than
// the longest element). layer_first: planes of all pages, each aligned to 64 bytes, one per layer and K, V,
// scales; it fits a model with one group, whose ids then run over the whole arena.
Result<KvLayout> make_kv_layout(const std::vector<KvLayerShape>& layers, const KvFormat& format,
                                std::int32_t page_size, PageOrder order, std::int64_t pages_total);

}  // namespace quire
