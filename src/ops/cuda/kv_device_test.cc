// Rotation and the KV cache against the CPU's, for every format, scale kind and layout; gathering; pages and
// rows moved.
#include "ops/cuda/testing.h"
#include "tensor/kv_format.h"

namespace quire::ops::cuda {
namespace {

using testing::expect_close;
using testing::Host;
using testing::random_floats;
using testing::random_rows;
using testing::Rig;

// An arena of one group of two layers, on both sides.
struct Arena {
  Arena(Rig& rig, KvLayerShape shape, KvFormat format, std::int32_t page_size, std::int32_t pages,
        PageOrder order)
      : layout(make_kv_layout({shape, shape}, format, page_size, order, pages).value()),
        host(static_cast<std::size_t>(layout.page_stride() * pages + (1 << 16)), 0xee) {
    device = rig.upload(host);
  }
  KvLayout layout;
  std::vector<unsigned char> host;
  unsigned char* device = nullptr;
};

float decode(DType type, const unsigned char* at) {
  float f32;
  std::uint16_t half;
  switch (type) {
    case DType::f32:
      std::memcpy(&f32, at, 4);
      return f32;
    case DType::fp8_e4m3:
      return fp8_e4m3_to_f32(*at);
    default:
      std::memcpy(&half, at, 2);
      return type == DType::bf16 ? bf16_to_f32(half) : f16_to_f32(half);
  }
}

// Elements of the cache differ by at most a step of their type: rotation is rounded differently.
void expect_same_rows(const std::vector<unsigned char>& got, const std::vector<unsigned char>& want,
                      const KvView& kv, void* base, bool is_k, std::int64_t slot, std::int64_t heads,
                      std::int64_t dim, bool own_scale) {
  const KvStrides& stride = is_k ? kv.k_stride : kv.v_stride;
  const DType type = is_k ? kv.format.k_type : kv.format.v_type;
  const std::int64_t page = slot / kv.page_size, token = slot % kv.page_size;
  const auto start = static_cast<const char*>(is_k ? kv.k : kv.v) - static_cast<const char*>(base);
  for (std::int64_t h = 0; h < heads; ++h) {
    float scale_got = 1.0f, scale_want = 1.0f;
    if (own_scale) {
      const auto at = reinterpret_cast<const char*>(is_k ? kv.k_scale : kv.v_scale) -
                      static_cast<const char*>(base) + page * kv.scale_stride.page +
                      h * kv.scale_stride.head + token * kv.scale_stride.token;
      std::memcpy(&scale_got, got.data() + at, 4);
      std::memcpy(&scale_want, want.data() + at, 4);
      ASSERT_NEAR(scale_got, scale_want, 2e-6f * scale_want);
    }
    for (std::int64_t i = 0; i < dim; ++i) {
      const auto at = start + page * stride.page + h * stride.head + token * stride.token + i * stride.dim;
      const float a = decode(type, got.data() + at) * scale_got,
                  b = decode(type, want.data() + at) * scale_want;
      const float step = type == DType::f32        ? 4e-6f
                         : type == DType::fp8_e4m3 ? 0.126f
                         : type == DType::bf16     ? 0.0079f
                                                   : 0.001f;
      ASSERT_NEAR(a, b, step * std::fabs(b) + (type == DType::fp8_e4m3 ? scale_want * 0.002f : 1e-6f))
          << to_string(type) << (is_k ? " k" : " v") << " slot " << slot << " head " << h << " dim " << i;
    }
  }
}

struct Rope {
  bool interleaved;
  std::int32_t rotary, q_offset, k_offset;
  bool norms;
};

void check(Rig& rig, DType act, KvLayerShape shape, KvFormat format, PageOrder order, Rope rope) {
  const std::int32_t rows = 13, q_heads = 6, page_size = 16, pages = 5;
  const std::int64_t dim = shape.qk_dim;
  Arena arena(rig, shape, format, page_size, pages, order);
  const std::vector<float> k_scale = random_floats(shape.kv_heads, 41),
                           v_scale = random_floats(shape.kv_heads, 42);
  std::vector<float> ks, vs;
  for (float s : k_scale) ks.push_back(0.01f + 0.01f * std::fabs(s));
  for (float s : v_scale) vs.push_back(0.01f + 0.01f * std::fabs(s));
  const bool own = format.scale == KvScaleKind::token_head, fixed = !own && format.scale != KvScaleKind::none;
  Host q = random_rows(rows, q_heads * dim, q_heads * dim + 8, act, 1),
       k = random_rows(rows, shape.kv_heads * dim, shape.kv_heads * dim, act, 2),
       v = random_rows(rows, shape.kv_heads * shape.v_dim, shape.kv_heads * shape.v_dim, act, 3);
  const std::vector<float> norm_q = random_floats(dim, 4), norm_k = random_floats(dim, 5),
                           cos_sin = random_floats(rows * rope.rotary, 6);
  std::vector<std::int64_t> slots;
  for (std::int64_t r = 0; r < rows; ++r) slots.push_back(r == 4 ? 0 : page_size + (r * 7) % (page_size * 4));
  RopeAndKvWrite a;
  a.norm_eps = 1e-6f;
  a.rotary_dim = rope.rotary;
  a.q_rope_offset = rope.q_offset;
  a.k_rope_offset = rope.k_offset;
  a.interleaved = rope.interleaved;
  RopeAndKvWrite host = a;
  host.q = q.view.split_heads(q_heads);
  host.k = k.view.split_heads(shape.kv_heads);
  if (!shape.latent) host.v = v.view.split_heads(shape.kv_heads);
  if (rope.norms) host.q_norm = norm_q.data(), host.k_norm = norm_k.data();
  if (rope.rotary > 0) host.cos_sin = cos_sin.data();
  host.write_slot = slots.data();
  host.kv = arena.layout.view(arena.host.data(), 1, fixed ? ks.data() : nullptr, fixed ? vs.data() : nullptr);
  const TensorView dq = rig.mirror(q, act), dk = rig.mirror(k, act), dv = rig.mirror(v, act);
  rig.host_ops->rope_and_kv_write(host, *rig.host_stream);
  a.q = dq.split_heads(q_heads);
  a.k = dk.split_heads(shape.kv_heads);
  if (!shape.latent) a.v = dv.split_heads(shape.kv_heads);
  if (rope.norms) a.q_norm = rig.upload(norm_q), a.k_norm = rig.upload(norm_k);
  if (rope.rotary > 0) a.cos_sin = rig.upload(cos_sin);
  a.write_slot = rig.upload(slots);
  a.kv =
      arena.layout.view(arena.device, 1, fixed ? rig.upload(ks) : nullptr, fixed ? rig.upload(vs) : nullptr);
  rig.ops->rope_and_kv_write(a, *rig.stream);
  rig.finish();
  expect_close(rig.read(dq, q.values.size()), q.values, act, act == DType::f32 ? 16.0f : 0.6f, 4e-6f, "q");
  expect_close(rig.read(dk, k.values.size()), k.values, act, act == DType::f32 ? 16.0f : 0.6f, 4e-6f, "k");
  std::vector<unsigned char> got = rig.download(arena.device, arena.host.size());
  // `host` is what the CPU wrote; both started with the same bytes.
  for (std::int64_t slot : slots) {
    expect_same_rows(got, arena.host, host.kv, arena.host.data(), true, slot, shape.kv_heads, dim, own);
    if (!shape.latent)
      expect_same_rows(got, arena.host, host.kv, arena.host.data(), false, slot, shape.kv_heads, shape.v_dim,
                       own);
  }
  // Nothing else was touched: erase the rows on both sides and compare the rest.
  std::size_t different = 0;
  for (std::size_t i = 0; i < got.size(); ++i) different += (got[i] == 0xee) != (arena.host[i] == 0xee);
  EXPECT_LE(different, got.size() / 100) << "bytes outside the rows were written";
}

KvFormat plain(DType type) { return {.k_type = type, .v_type = type}; }
KvFormat scaled(KvScaleKind kind) {
  return {.k_type = DType::fp8_e4m3, .v_type = DType::fp8_e4m3, .scale = kind};
}

TEST(RopeDevice, EveryFormatAndScaleKind) {
  Rig rig;
  for (DType act : {DType::bf16, DType::f32}) {
    for (PageOrder order : {PageOrder::page_first, PageOrder::layer_first}) {
      for (const KvFormat& format :
           {plain(DType::f32), plain(DType::bf16), plain(DType::f16), scaled(KvScaleKind::tensor),
            scaled(KvScaleKind::layer_head), scaled(KvScaleKind::token_head)}) {
        check(rig, act, {2, 128, 128, false, -1}, format, order, {false, 128, 0, 0, false});
        check(rig, act, {3, 64, 64, false, -1}, format, order, {false, 64, 0, 0, true});
        check(rig, act, {3, 80, 48, false, -1}, format, order, {true, 32, 8, 8, true});
        rig.kept.clear();
      }
    }
  }
}

TEST(RopeDevice, HalvesInPartNormsAndLatentRows) {
  Rig rig;
  check(rig, DType::bf16, {2, 256, 256, false, -1}, plain(DType::bf16), PageOrder::page_first,
        {false, 64, 32, 32, true});
  check(rig, DType::bf16, {1, 256, 256, false, -1}, plain(DType::bf16), PageOrder::page_first,
        {false, 256, 0, 0, true});
  check(rig, DType::bf16, {1, 64, 64, false, -1}, plain(DType::bf16), PageOrder::page_first,
        {false, 0, 0, 0, true});
  for (const KvFormat& format : {plain(DType::bf16), scaled(KvScaleKind::token_head)})
    check(rig, DType::bf16, {1, 576, 512, true, -1}, format, PageOrder::page_first,
          {true, 64, 512, 512, false});
}

// Whole arenas, byte by byte, after the CPU's pages and rows were moved alike: rows of 16-byte units, of
// 4-byte units and of odd bytes, scales, latent rows, and more layers than one launch takes.
TEST(KvMoveDevice, PagesAndRowsAsOnTheCpu) {
  Rig rig;
  const std::int32_t page_size = 16, pages = 6;
  for (const auto& [shape, format, layer_count] :
       {std::tuple{KvLayerShape{3, 128, 128, false, -1}, plain(DType::bf16), 2},
        {KvLayerShape{2, 66, 34, false, -1}, plain(DType::bf16), 2},
        {KvLayerShape{2, 33, 35, false, -1}, scaled(KvScaleKind::tensor), 2},
        {KvLayerShape{3, 64, 64, false, -1}, scaled(KvScaleKind::token_head), 70},
        {KvLayerShape{1, 576, 512, true, -1}, scaled(KvScaleKind::token_head), 3},
        {KvLayerShape{1, 576, 512, true, -1}, plain(DType::f16), 3}}) {
    for (PageOrder order : {PageOrder::page_first, PageOrder::layer_first}) {
      const std::vector<KvLayerShape> shapes(static_cast<std::size_t>(layer_count), shape);
      const KvLayout layout = make_kv_layout(shapes, format, page_size, order, pages).value();
      const std::int64_t page_bytes = layout.page_stride() * pages;
      // Planes of layer_first are padded to lines.
      std::vector<unsigned char> host(static_cast<std::size_t>(page_bytes + (1 << 16)));
      std::mt19937 random(7);
      for (unsigned char& byte : host) byte = static_cast<unsigned char>(random());
      unsigned char* device = rig.upload(host);
      const auto layers_of = [&](unsigned char* base) {
        std::vector<PageCopyLayer> layers;
        for (int l = 0; l < layer_count; ++l)
          layers.push_back({layout.view(base, l, nullptr, nullptr), shape.kv_heads, shape.qk_dim,
                            shape.latent ? 0 : shape.v_dim});
        return layers;
      };
      const std::vector<PageCopyLayer> ours = layers_of(device), theirs = layers_of(host.data());
      const std::vector<std::int64_t> from = {40, 44, 47, 5, 80}, to = {39, 40, 44, 5, 47};
      const std::vector<unsigned char> before = host;
      for (const std::int32_t tokens : {page_size, 5}) {
        const PageCopy copy{nullptr, layer_count, tokens == 5 ? 4u : 1u, 3u, tokens};
        PageCopy mine = copy, reference = copy;
        mine.layers = ours.data(), reference.layers = theirs.data();
        rig.ops->page_copy(mine, *rig.stream);
        rig.host_ops->page_copy(reference, *rig.host_stream);
      }
      const auto count = static_cast<std::int32_t>(from.size());
      rig.ops->move_rows({ours.data(), layer_count, rig.upload(from), rig.upload(to), count}, *rig.stream);
      rig.host_ops->move_rows({theirs.data(), layer_count, from.data(), to.data(), count}, *rig.host_stream);
      rig.finish();
      EXPECT_EQ(rig.download(device, host.size()), host) << to_string(format) << " " << layer_count;
      EXPECT_NE(host, before);
      rig.kept.clear();
    }
  }
}

TEST(KvGatherDevice, DecodesStretchesOfTheCache) {
  Rig rig;
  for (const KvFormat& format :
       {plain(DType::bf16), scaled(KvScaleKind::token_head), scaled(KvScaleKind::tensor)}) {
    const std::int32_t dim = 576, page_size = 16, pages = 12;
    Arena arena(rig, {1, dim, 512, true, -1}, format, page_size, pages, PageOrder::page_first);
    std::mt19937 random(3);
    for (unsigned char& byte : arena.host) byte = static_cast<unsigned char>(random() % 0x70);  // no NaN
    arena.device = rig.upload(arena.host);
    const std::vector<float> scale = {0.5f};
    const bool tensor = format.scale == KvScaleKind::tensor;
    const std::vector<std::uint32_t> table = {3, 5, 1, 0, 7, 2, 9, 11};
    const std::vector<std::int32_t> begin = {5, 0, 20}, end = {40, 0, 41};
    const std::vector<std::int64_t> offsets = {21, 56, 0};
    KvGather host;
    host.kv = arena.layout.view(arena.host.data(), 1, tensor ? scale.data() : nullptr, nullptr);
    host.dim = dim;
    host.block_table = table.data();
    host.table_stride = 2;
    host.batch = 3;
    host.key_begin = begin.data();
    host.key_end = end.data();
    host.out_offsets = offsets.data();
    std::vector<float> want(56 * dim, NAN);
    host.out = want.data();
    KvGather a = host;
    a.kv = arena.layout.view(arena.device, 1, tensor ? rig.upload(scale) : nullptr, nullptr);
    a.block_table = rig.upload(table);
    a.key_begin = rig.upload(begin);
    a.key_end = rig.upload(end);
    a.out_offsets = rig.upload(offsets);
    rig.host_ops->kv_gather(host, *rig.host_stream);
    for (DType type : {DType::f32, DType::bf16}) {
      Host poison = testing::poisoned(56, dim, dim);
      const TensorView out = rig.mirror(poison, type);
      a.out = out.data;
      a.out_type = type;
      rig.ops->kv_gather(a, *rig.stream);
      rig.finish();
      expect_close(rig.read(out, want.size()), want, type, type == DType::f32 ? 1.0f : 0.51f, 1e-36f,
                   "gathered");
    }
  }
}

}  // namespace
}  // namespace quire::ops::cuda
