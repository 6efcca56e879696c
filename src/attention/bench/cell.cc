#include "attention/bench/cell.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

namespace quire::attention::bench {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kPool = 1 << 20;  // random elements, of which every layer copies shifted stretches

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void append(std::vector<std::uint8_t>& bytes, const void* value, std::size_t size) {
  const auto* at = static_cast<const std::uint8_t*>(value);
  bytes.insert(bytes.end(), at, at + size);
}

void append_as(std::vector<std::uint8_t>& bytes, DType type, float x) {
  const std::uint16_t half = type == DType::bf16 ? f32_to_bf16(x) : f32_to_f16(x);
  const std::uint8_t small = f32_to_fp8_e4m3(x);
  if (type == DType::f32) append(bytes, &x, 4);
  if (type == DType::bf16 || type == DType::f16) append(bytes, &half, 2);
  if (type == DType::fp8_e4m3) append(bytes, &small, 1);
}

// kPool random elements of a type, of size 1 times the inverse of the fp8 scale.
std::vector<std::uint8_t> random_elements(DType type, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<std::uint8_t> bytes;
  bytes.reserve(static_cast<std::size_t>(kPool) * dtype_bytes(type));
  const float size = type == DType::fp8_e4m3 ? 64.0f : 1.0f;
  for (std::int64_t i = 0; i < kPool; ++i) append_as(bytes, type, normal(rng) * size);
  return bytes;
}

// (row, key) pairs of one sequence that the mask lets through.
double visible_pairs(const CellSpec& spec) {
  double pairs = 0;
  for (std::int32_t r = 0; r < spec.shape.q_len; ++r) {
    const double p = spec.shape.context - spec.shape.q_len + r;
    double seen = p + 1;
    if (spec.mask == MaskKind::full) seen = spec.shape.context;
    if (spec.mask == MaskKind::window) seen = std::min<double>(seen, spec.mask_width);
    if (spec.mask == MaskKind::chunked) seen = std::fmod(p, spec.mask_width) + 1;
    pairs += seen;
  }
  return pairs;
}

// Keys of one sequence that some row sees.
double visible_keys(const CellSpec& spec) {
  const double all = spec.shape.context;
  if (spec.mask == MaskKind::window) return std::min<double>(all, spec.mask_width + spec.shape.q_len - 1);
  if (spec.mask == MaskKind::chunked) {
    const std::int32_t first = spec.shape.context - spec.shape.q_len;
    return all - first / spec.mask_width * spec.mask_width;
  }
  return all;
}

}  // namespace

Problem problem_of(const CellSpec& spec, const platform::DeviceInfo& info) {
  Problem p;
  p.platform = info.kind;
  p.arch = info.arch;
  p.phase = phase_of(spec.shape.q_len, false, 1);
  p.q_heads = spec.shape.q_heads;
  p.kv_heads = spec.shape.kv_heads;
  p.qk_dim = spec.shape.qk_dim;
  p.v_dim = spec.shape.v_dim;
  // A GPU computes in the cache's 16-bit type, bf16 beside an fp8 cache.
  if (info.kind == platform::Kind::cuda) p.q_type = spec.kv.k_type == DType::f16 ? DType::f16 : DType::bf16;
  p.kv = spec.kv;
  p.page_size = spec.page_size;
  p.order = info.page_order;
  p.mask = spec.mask;
  if (spec.shape.latent) p.features |= kLatent;
  return p;
}

Cell::Cell(platform::Device& device, platform::Stream& stream, const CellSpec& spec)
    : device_(device), stream_(stream), spec_(spec), problem_(problem_of(spec, device.info())) {}

Result<std::unique_ptr<Cell>> Cell::make(platform::Device& device, platform::Stream& stream,
                                         const Backend& row, const CellSpec& spec, std::int64_t cache_bytes,
                                         int threads) {
  std::unique_ptr<Cell> cell(new Cell(device, stream, spec));
  QUIRE_TRY_STATUS(cell->lay_out(cache_bytes));
  QUIRE_TRY_STATUS(cell->make_inputs());
  QUIRE_TRY_STATUS(cell->make_plan(row, threads));
  return cell;
}

Result<void*> Cell::upload(const void* data, std::int64_t bytes) {
  QUIRE_TRY(buffer, device_.allocate(std::max<std::int64_t>(bytes, 64), "bench"));
  stream_.copy(buffer->data(), data, bytes);
  stream_.synchronize();
  buffers_.push_back(std::move(buffer));
  return buffers_.back()->data();
}

Status Cell::lay_out(std::int64_t cache_bytes) {
  const Shape& s = spec_.shape;
  const KvLayerShape layer{s.kv_heads, s.qk_dim, s.v_dim, s.latent, -1};
  QUIRE_TRY(one, make_kv_layout({layer}, spec_.kv, spec_.page_size, problem_.order, 1));
  const std::int64_t shared_pages = s.shared / spec_.page_size;
  const std::int64_t own_pages = ceil_div(s.context, spec_.page_size) - shared_pages;
  pages_ = 1 + shared_pages + s.batch * own_pages;
  layers_ = static_cast<int>(
      std::max<std::int64_t>(1, ceil_div(cache_bytes, one.bytes_per_token() * pages_ * spec_.page_size)));
  QUIRE_TRY(layout, make_kv_layout(std::vector<KvLayerShape>(static_cast<std::size_t>(layers_), layer),
                                   spec_.kv, spec_.page_size, problem_.order, pages_));
  const std::int64_t bytes =
      ceil_div(std::max(pages_ * layout.page_stride(), pages_ * layers_ * one.page_stride()), kMiB) * kMiB;
  QUIRE_TRY(arena, device_.reserve_arena(bytes));
  QUIRE_TRY_STATUS(arena->back(bytes));
  arena_ = std::move(arena);
  std::mt19937 rng(7);
  const std::vector<std::uint8_t> pool = random_elements(spec_.kv.k_type, rng);
  QUIRE_TRY(device_pool, upload(pool.data(), static_cast<std::int64_t>(pool.size())));
  const std::int64_t piece = static_cast<std::int64_t>(pool.size()) / 2;
  for (std::int64_t at = 0; at < bytes; at += piece) {
    const std::int64_t shift = static_cast<std::int64_t>(rng() % static_cast<std::uint32_t>(piece)) / 64 * 64;
    stream_.copy(static_cast<char*>(arena_->base()) + at, static_cast<const char*>(device_pool) + shift,
                 std::min(piece, bytes - at));
  }
  stream_.synchronize();
  const std::vector<float> scales(static_cast<std::size_t>(s.kv_heads), 1.0f / 64.0f);
  QUIRE_TRY(device_scales, upload(scales.data(), static_cast<std::int64_t>(scales.size() * sizeof(float))));
  for (int i = 0; i < layers_; ++i) {
    const auto* given = static_cast<const float*>(device_scales);
    views_.push_back(layout.view(arena_->base(), i, given, given));
    fill_scales(views_.back());
  }
  layer_bytes_ = static_cast<double>(one.bytes_per_token()) *
                 (s.batch * visible_keys(spec_) - (s.batch - 1.0) * s.shared);
  layer_flops_ = 2.0 * (s.qk_dim + s.v_dim) * s.q_heads * s.batch * visible_pairs(spec_);
  return {};
}

// token_head scales lie in the pages, those of a page and head side by side.
void Cell::fill_scales(const KvView& view) {
  if (view.format.scale != KvScaleKind::token_head) return;
  const std::vector<float> scales(static_cast<std::size_t>(spec_.page_size), 1.0f / 64.0f);
  for (std::int64_t page = 0; page < pages_; ++page)
    for (std::int64_t head = 0; head < spec_.shape.kv_heads; ++head) {
      const std::int64_t at = page * view.scale_stride.page + head * view.scale_stride.head;
      for (const float* base : {view.k_scale, view.v_scale})
        stream_.copy(reinterpret_cast<char*>(const_cast<float*>(base)) + at, scales.data(),
                     spec_.page_size * std::int64_t{sizeof(float)});
    }
  stream_.synchronize();
}

// Sequence after sequence: the shared pages, the same for all, then its own.
std::vector<std::uint32_t> Cell::table_of(const std::vector<std::uint32_t>& ids) {
  const Shape& s = spec_.shape;
  const auto shared = static_cast<std::ptrdiff_t>(s.shared / spec_.page_size);
  const auto own = static_cast<std::ptrdiff_t>(ceil_div(s.context, spec_.page_size)) - shared;
  std::vector<std::uint32_t> table;
  for (std::int32_t i = 0; i < s.batch; ++i) {
    table.insert(table.end(), ids.begin(), ids.begin() + shared);
    table.insert(table.end(), ids.begin() + shared + i * own, ids.begin() + shared + (i + 1) * own);
  }
  group_ = {0, s.batch, s.shared};
  if (s.hinted) {
    shape_.prefix_groups = &group_;
    shape_.prefix_group_count = 1;
  }
  return table;
}

Status Cell::make_inputs() {
  const Shape& s = spec_.shape;
  const std::int64_t rows = std::int64_t{s.batch} * s.q_len;
  std::mt19937 rng(11);
  std::normal_distribution<float> normal;
  std::vector<std::uint8_t> q;
  for (std::int64_t i = 0; i < rows * s.q_heads * s.qk_dim; ++i) append_as(q, problem_.q_type, normal(rng));
  std::vector<std::int32_t> offsets, lengths(static_cast<std::size_t>(s.batch), s.context);
  for (std::int32_t i = 0; i <= s.batch; ++i) offsets.push_back(i * s.q_len);
  std::vector<std::uint32_t> ids(static_cast<std::size_t>(pages_ - 1));
  std::iota(ids.begin(), ids.end(), 1u);
  std::shuffle(ids.begin(), ids.end(), rng);
  const std::vector<std::uint32_t> table = table_of(ids);
  const std::vector<std::uint8_t> out(static_cast<std::size_t>(rows * s.q_heads * s.v_dim) *
                                      dtype_bytes(problem_.q_type));
  QUIRE_TRY(device_q, upload(q.data(), static_cast<std::int64_t>(q.size())));
  QUIRE_TRY(device_out, upload(out.data(), static_cast<std::int64_t>(out.size())));
  QUIRE_TRY(device_offsets, upload(offsets.data(), static_cast<std::int64_t>(offsets.size() * 4)));
  QUIRE_TRY(device_lengths, upload(lengths.data(), static_cast<std::int64_t>(lengths.size() * 4)));
  QUIRE_TRY(device_table, upload(table.data(), static_cast<std::int64_t>(table.size() * 4)));
  shape_.batch = s.batch;
  shape_.total_q = static_cast<std::int32_t>(rows);
  shape_.max_q = s.q_len;
  shape_.max_kv = s.context;
  shape_.q_offsets = static_cast<const std::int32_t*>(device_offsets);
  shape_.kv_lens = static_cast<const std::int32_t*>(device_lengths);
  shape_.block_table = static_cast<const std::uint32_t*>(device_table);
  shape_.table_stride = ceil_div(s.context, spec_.page_size);
  shape_.mask = spec_.mask;
  shape_.mask_width = spec_.mask_width;
  args_.q = device_q;
  args_.q_row_stride = std::int64_t{s.q_heads} * s.qk_dim;
  args_.q_head_stride = s.qk_dim;
  out_ = device_out;
  args_.out = out_;
  args_.out_row_stride = std::int64_t{s.q_heads} * s.v_dim;
  args_.out_head_stride = s.v_dim;
  args_.scale = 1.0f / std::sqrt(static_cast<float>(s.qk_dim));
  return {};
}

Status Cell::make_plan(const Backend& row, int threads) {
  attention_ = row.make(problem_, device_);
  Limits limits;
  limits.max_batch = shape_.batch;
  limits.max_total_q = shape_.total_q;
  limits.max_q = shape_.max_q;
  limits.max_kv = shape_.max_kv;
  limits.threads = threads;
  plan_.bytes = attention_->workspace_bytes(limits);
  QUIRE_TRY(buffer, device_.allocate(std::max<std::int64_t>(plan_.bytes, 64), "bench plan"));
  plan_.data = buffer->data();
  buffers_.push_back(std::move(buffer));
  stream_.fill(plan_.data, 0, plan_.bytes);
  stream_.synchronize();
  return {};
}

void Cell::run_layers() {
  for (const KvView& view : views_) {
    args_.kv = view;
    attention_->run(shape_, args_, plan_, stream_);
  }
}

void Cell::enqueue() {
  attention_->plan(shape_, plan_, stream_);
  run_layers();
}

// A replay should be long beside its launch: enough rounds over the layers for that.
void Cell::record() {
  constexpr int kRuns = 16;
  attention_->plan(shape_, plan_, stream_);
  stream_.begin_capture();
  for (runs_ = 0; runs_ < kRuns; runs_ += layers_) run_layers();
  graph_ = stream_.end_capture();
}

std::vector<float> Cell::output() const {
  const std::int64_t count = std::int64_t{shape_.total_q} * args_.out_row_stride;
  const std::size_t width = dtype_bytes(problem_.q_type);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count) * width);
  stream_.copy(bytes.data(), out_, static_cast<std::int64_t>(bytes.size()));
  stream_.synchronize();
  std::vector<float> out;
  for (std::size_t at = 0; at < bytes.size(); at += width) {
    float x = 0;
    std::uint16_t half = 0;
    std::memcpy(width == 4 ? static_cast<void*>(&x) : &half, bytes.data() + at, width);
    if (width == 2) x = problem_.q_type == DType::bf16 ? bf16_to_f32(half) : f16_to_f32(half);
    out.push_back(x);
  }
  return out;
}

}  // namespace quire::attention::bench
