// Lays a Logical out: arena, page ids, tables, strides, poison.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "attention/conformance/inputs.h"
#include "attention/conformance/rng.h"
#include "attention/conformance/values.h"
#include "base/check.h"

namespace quire::conformance {
namespace {

constexpr std::uint32_t kNoPage = 0xffffffffu;
constexpr std::int32_t kJunk = -777;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Hands out page ids, each once. 0 is the padding page.
class PageIds {
 public:
  PageIds(Pages pages, std::int64_t first, std::int64_t total, std::uint64_t seed)
      : in_order_(pages == Pages::in_order), first_(first), total_(total), rng_(seed) {}
  std::uint32_t take() {
    if (in_order_) return static_cast<std::uint32_t>(next_++);
    for (;;) {
      const auto id = static_cast<std::uint32_t>(
          first_ + static_cast<std::int64_t>(rng_.next() % static_cast<std::uint64_t>(total_ - first_)));
      if (used_.insert(id).second) return id;
    }
  }

 private:
  bool in_order_;
  std::int64_t first_;
  std::int64_t total_;
  std::int64_t next_ = 1;
  Rng rng_;
  std::unordered_set<std::uint32_t> used_;
};

template <class T>
T* data_or_null(std::vector<T>& list) {
  return list.empty() ? nullptr : list.data();
}

// Which pages of a sequence hold a key that some row sees; the others are never to be read.
std::vector<bool> live_pages(const Logical& l, const Sequence& s, int page_size) {
  std::vector<bool> live(static_cast<std::size_t>(ceil_div(s.kv_len, page_size)));
  const auto see = [&](int row, int key) {
    if (key >= 0 && l.visible(s, row, key)) live[static_cast<std::size_t>(key / page_size)] = true;
  };
  for (int row = 0; row < s.q_len; ++row) {
    if (s.sparse.empty()) {
      for (int key = 0; key < s.kv_len; ++key) see(row, key);
    } else {
      const int width = l.index_heads * l.sparse_k;
      for (int i = 0; i < width; ++i) see(row, s.sparse[static_cast<std::size_t>(row * width + i)]);
    }
  }
  return live;
}

struct PageRange {  // ids that may be handed out
  std::int64_t first = 1;
  std::int64_t total = 0;
};

// Where the cache of one placement lies: its layers, the page ids to draw from, and the bytes over all.
struct ArenaPlan {
  PageRange range;
  KvLayout layout;
  std::int64_t bytes = 0;
};

ArenaPlan plan_arena(const Logical& l, const Placement& p) {
  std::int64_t needed = 1;
  for (const Sequence& s : l.sequences) needed += ceil_div(s.kv_len, p.page_size);
  const attention::Problem& problem = l.problem;
  const bool latent = l.has(attention::kLatent);
  // A small first layer, so that the tested one does not start at the page's first byte.
  const std::vector<KvLayerShape> layers = {
      {.kv_heads = 1, .qk_dim = 8, .v_dim = 8, .latent = latent},
      {.kv_heads = problem.kv_heads, .qk_dim = problem.qk_dim, .v_dim = problem.v_dim, .latent = latent}};
  const auto make = [&](std::int64_t pages) {
    auto layout = make_kv_layout(layers, problem.kv, p.page_size, p.order, pages);
    QUIRE_CHECK(layout.ok(), "{}", layout.error().message);
    return std::move(*layout);
  };
  PageRange range{1, needed * 3 + 8};
  if (p.pages == Pages::far) {
    constexpr std::int64_t kFarBytes = std::int64_t{5} << 30;
    constexpr std::int64_t kMostBytes = std::int64_t{48} << 30;
    const std::int64_t page_bytes = make(1).page_stride();
    range.total = std::min(std::max<std::int64_t>(70'000, kFarBytes / page_bytes), kMostBytes / page_bytes);
    range.first = range.total * 4 / 5;
    if (range.total > 66'000 + needed) range.first = std::max<std::int64_t>(65'537, range.first);
    range.total = std::max(range.total, range.first + needed * 2);
  }
  KvLayout layout = make(range.total);
  const std::int64_t bytes = (layout.page_stride() + 64) * range.total + 4096;
  return {range, std::move(layout), bytes};
}

void* map_range(std::int64_t bytes) {
  return mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

}  // namespace

bool Reserved::possible(std::int64_t bytes) {
  void* at = map_range(bytes);
  if (at == MAP_FAILED) return false;
  munmap(at, static_cast<std::size_t>(bytes));
  return true;
}

Reserved::Reserved(std::int64_t bytes) : bytes_(bytes) {
  void* at = map_range(bytes);
  QUIRE_CHECK(at != MAP_FAILED, "no address range of {} bytes", bytes);
  data_ = static_cast<char*>(at);
}
Reserved::~Reserved() { munmap(data_, static_cast<std::size_t>(bytes_)); }

Guarded::Guarded(std::int64_t bytes, std::uint8_t fill)
    : bytes_(static_cast<std::size_t>(bytes + 2 * kGuard), static_cast<char>(fill)) {
  std::fill(bytes_.begin(), bytes_.begin() + kGuard, static_cast<char>(0xa5));
  std::fill(bytes_.end() - kGuard, bytes_.end(), static_cast<char>(0xa5));
}

bool Guarded::intact() const {
  const auto is_guard = [](char c) { return c == static_cast<char>(0xa5); };
  return std::all_of(bytes_.begin(), bytes_.begin() + kGuard, is_guard) &&
         std::all_of(bytes_.end() - kGuard, bytes_.end(), is_guard);
}

void Guarded::refill(std::uint8_t fill) {
  std::fill(bytes_.begin() + kGuard, bytes_.end() - kGuard, static_cast<char>(fill));
}

Placed::Placed(const Logical& logical, const Placement& placement) : problem_(logical.problem) {
  problem_.page_size = placement.page_size;
  problem_.order = placement.order;
  args_.scale = logical.scale;
  args_.q_descale = logical.q_descale;
  args_.softcap = logical.softcap;
  sink_ = logical.sink;
  args_.sink = data_or_null(sink_);
  k_scale_ = logical.k_scale;
  v_scale_ = logical.v_scale;
  place_step(logical);
  place_rows(logical);
  if (problem_.source == attention::KvSource::paged)
    place_paged(logical, placement);
  else
    place_dense(logical, placement);
  place_queries(logical, placement);
}

void Placed::place_step(const Logical& l) {
  shape_.batch = static_cast<std::int32_t>(l.sequences.size());
  lead_ = l.lead_rows;
  shape_.total_q = lead_ + l.rows() + l.tail_rows;
  shape_.max_kv = 1;
  q_offsets_.push_back(lead_);
  for (const Sequence& s : l.sequences) {
    q_offsets_.push_back(q_offsets_.back() + s.q_len);
    kv_lens_.push_back(s.kv_len);
    shape_.max_q = std::max(shape_.max_q, s.q_len);
    shape_.max_kv = std::max(shape_.max_kv, s.kv_len);
    tree_base_.push_back(s.tree_base);
    part_begin_.push_back(s.part_begin);
    part_end_.push_back(s.part_end);
  }
  real_kv_lens_ = kv_lens_;
  if (l.origin.loose) {  // the host's numbers are bounds, not lengths
    shape_.max_kv += 37;
    shape_.max_q += 3;
  }
  shape_.mask = problem_.mask;
  shape_.mask_width = l.mask_width;
  shape_.q_offsets = q_offsets_.data();
  shape_.kv_lens = data_or_null(kv_lens_);
  if (l.has(attention::kPart)) {
    shape_.part_begin = data_or_null(part_begin_);
    shape_.part_end = data_or_null(part_end_);
  }
}

void Placed::place_rows(const Logical& l) {
  const auto total = static_cast<std::size_t>(shape_.total_q);
  const auto rows = [&](auto& target, auto member, auto junk, std::size_t width) {
    target.assign(total * width, junk);
    auto at = target.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(lead_) * width);
    for (const Sequence& s : l.sequences) at = std::copy((s.*member).begin(), (s.*member).end(), at);
  };
  if (problem_.mask == attention::MaskKind::rows) {
    rows(row_begin_, &Sequence::row_begin, kJunk, 1);
    rows(row_end_, &Sequence::row_end, kJunk, 1);
    shape_.row_begin = data_or_null(row_begin_);
    shape_.row_end = data_or_null(row_end_);
  }
  if (l.has(attention::kTree)) {
    rows(tree_bits_, &Sequence::tree_bits, ~std::uint64_t{0}, 1);
    rows(tree_depth_, &Sequence::tree_depth, kJunk, 1);
    shape_.tree_bits = data_or_null(tree_bits_);
    shape_.tree_words = 1;
    shape_.tree_base = data_or_null(tree_base_);
    shape_.tree_depth = data_or_null(tree_depth_);
  }
  if (l.has(attention::kSparse)) {
    rows(sparse_, &Sequence::sparse, std::int32_t{-1}, static_cast<std::size_t>(l.index_heads * l.sparse_k));
    args_.sparse.index = data_or_null(sparse_);
    args_.sparse.index_heads = l.index_heads;
    args_.sparse.k = l.sparse_k;
  }
}

void Placed::write_key(const Logical& l, const Sequence& s, int key, std::int64_t page, std::int64_t token) {
  const KvView& kv = args_.kv;
  const auto put = [&](void* base, const KvStrides& stride, const void* from, int index, std::int64_t bytes,
                       int head) {
    char* at = static_cast<char*>(base) + page * stride.page + head * stride.head + token * stride.token;
    std::memcpy(at, static_cast<const char*>(from) + index * bytes, static_cast<std::size_t>(bytes));
  };
  const std::int64_t k_bytes = problem_.qk_dim * static_cast<std::int64_t>(dtype_bytes(problem_.kv.k_type));
  const std::int64_t v_bytes = problem_.v_dim * static_cast<std::int64_t>(dtype_bytes(problem_.kv.v_type));
  for (int head = 0; head < problem_.kv_heads; ++head) {
    const int index = key * problem_.kv_heads + head;
    put(kv.k, kv.k_stride, s.k.data(), index, k_bytes, head);
    if (!l.has(attention::kLatent)) put(kv.v, kv.v_stride, s.v.data(), index, v_bytes, head);
    if (problem_.kv.scale != KvScaleKind::token_head) continue;
    put(const_cast<float*>(kv.k_scale), kv.scale_stride, s.k_scale.data(), index, sizeof(float), head);
    put(const_cast<float*>(kv.v_scale), kv.scale_stride, s.v_scale.data(), index, sizeof(float), head);
  }
}

std::int64_t Placed::arena_bytes(const Logical& logical, const Placement& placement) {
  return logical.problem.source == attention::KvSource::paged ? plan_arena(logical, placement).bytes : 0;
}

void Placed::poison_page(std::int64_t page) {
  const auto fill = [&](char* at, std::int64_t bytes) {
    std::memset(at, 0xff, static_cast<std::size_t>(bytes));
    written_.push_back({at - arena_->data(), bytes});
  };
  if (problem_.order == PageOrder::page_first)
    return fill(arena_->data() + page * page_stride_, page_stride_);
  const auto plane = [&](const void* base, const KvStrides& stride) {
    fill(static_cast<char*>(const_cast<void*>(base)) + page * stride.page, stride.page);
  };
  plane(args_.kv.k, args_.kv.k_stride);
  plane(args_.kv.v, args_.kv.v_stride);
  if (problem_.kv.scale != KvScaleKind::token_head) return;
  plane(args_.kv.k_scale, args_.kv.scale_stride);
  plane(args_.kv.v_scale, args_.kv.scale_stride);
}

void Placed::place_paged(const Logical& l, const Placement& p) {
  const ArenaPlan plan = plan_arena(l, p);
  page_stride_ = plan.layout.page_stride();
  arena_ = std::make_unique<Reserved>(plan.bytes);
  args_.kv = plan.layout.view(arena_->data(), 1, data_or_null(k_scale_), data_or_null(v_scale_));
  poison_page(0);
  PageIds ids(p.pages, plan.range.first, plan.range.total, p.seed);
  shape_.table_stride = ceil_div(shape_.max_kv, p.page_size) + 2;
  table_.assign(static_cast<std::size_t>(shape_.table_stride * std::max(1, shape_.batch)), kNoPage);
  std::vector<std::uint32_t> first_ids;  // of sequence 0
  const std::uint32_t dropped = p.seed % 2 && !p.safe_dropped ? kNoPage : 0;
  int shared = std::numeric_limits<int>::max();
  for (std::size_t i = 0; i < l.sequences.size(); ++i) {
    const Sequence& s = l.sequences[i];
    std::uint32_t* row = table_.data() + static_cast<std::int64_t>(i) * shape_.table_stride;
    if (s.kv_len == 0) row[0] = row[1] = 0;
    const std::vector<bool> live = live_pages(l, s, p.page_size);
    if (i > 0) shared = std::min(shared, s.shared_len / p.page_size * p.page_size);
    for (int page = 0; page < static_cast<int>(live.size()); ++page) {
      const bool is_shared = (page + 1) * p.page_size <= s.shared_len;
      const std::uint32_t id = is_shared ? first_ids[static_cast<std::size_t>(page)] : ids.take();
      if (i == 0) first_ids.push_back(id);
      if (!is_shared) poison_page(id);
      for (int t = 0; t < p.page_size && page * p.page_size + t < s.kv_len; ++t)
        write_key(l, s, page * p.page_size + t, id, t);
      row[page] = live[static_cast<std::size_t>(page)] ? id : dropped;
    }
  }
  shape_.block_table = table_.data();
  if (l.sequences.size() > 1 && shared > 0) {
    groups_.push_back({0, shape_.batch, shared});
    shape_.prefix_groups = groups_.data();
    shape_.prefix_group_count = 1;
  }
}

void Placed::place_dense(const Logical& l, const Placement& p) {
  constexpr std::int64_t kGap = 3;  // tokens between sequences, poisoned
  std::int64_t tokens = kGap;
  for (const Sequence& s : l.sequences) {
    kv_offsets_.push_back(tokens);
    tokens += s.kv_len + kGap;
  }
  KvView& kv = args_.kv;
  kv.format = problem_.kv;
  const auto strides = [&](DType type, std::int64_t dim) {
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(type));
    return KvStrides{0, dim * bytes, problem_.kv_heads * dim * bytes + (p.loose ? 64 : 0), bytes};
  };
  kv.k_stride = strides(problem_.kv.k_type, problem_.qk_dim);
  kv.v_stride = l.has(attention::kLatent) ? kv.k_stride : strides(problem_.kv.v_type, problem_.v_dim);
  kv.scale_stride = KvStrides{0, sizeof(float), static_cast<std::int64_t>(sizeof(float)) * problem_.kv_heads,
                              sizeof(float)};
  const std::int64_t k_bytes = ceil_div(tokens * kv.k_stride.token, 64) * 64;
  const std::int64_t v_bytes = ceil_div(tokens * kv.v_stride.token, 64) * 64;
  const std::int64_t scale_bytes = tokens * kv.scale_stride.token;
  arena_ = std::make_unique<Reserved>(k_bytes + v_bytes + 2 * scale_bytes + 4096);
  std::memset(arena_->data(), 0xff, static_cast<std::size_t>(k_bytes + v_bytes + 2 * scale_bytes));
  written_.push_back({0, k_bytes + v_bytes + 2 * scale_bytes});
  kv.k = arena_->data();
  kv.v = l.has(attention::kLatent) ? kv.k : arena_->data() + k_bytes;
  kv.k_scale = data_or_null(k_scale_);
  kv.v_scale = data_or_null(v_scale_);
  if (problem_.kv.scale == KvScaleKind::token_head) {
    kv.k_scale = reinterpret_cast<const float*>(arena_->data() + k_bytes + v_bytes);
    kv.v_scale = reinterpret_cast<const float*>(arena_->data() + k_bytes + v_bytes + scale_bytes);
  }
  for (std::size_t i = 0; i < l.sequences.size(); ++i)
    for (int key = 0; key < l.sequences[i].kv_len; ++key)
      write_key(l, l.sequences[i], key, 0, kv_offsets_[i] + key);
  shape_.kv_offsets = data_or_null(kv_offsets_);
}

void Placed::place_queries(const Logical& l, const Placement& p) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(problem_.q_type));
  const std::int64_t dim = problem_.qk_dim;
  args_.q_head_stride = dim + (p.loose ? 8 : 0);
  args_.q_row_stride = problem_.q_heads * args_.q_head_stride + (p.loose ? 24 : 0);
  args_.out_head_stride = problem_.v_dim;
  args_.out_row_stride = problem_.q_heads * problem_.v_dim + (p.loose ? 16 : 0);
  q_.assign(static_cast<std::size_t>(shape_.total_q * args_.q_row_stride * bytes), static_cast<char>(0xff));
  q_f32_.assign(static_cast<std::size_t>(shape_.total_q * problem_.q_heads * dim),
                std::numeric_limits<float>::quiet_NaN());
  std::int64_t row = lead_;
  for (const Sequence& s : l.sequences)
    for (int r = 0; r < s.q_len; ++r, ++row)
      for (std::int64_t h = 0; h < problem_.q_heads; ++h)
        for (std::int64_t d = 0; d < dim; ++d) {
          const float value = s.q[static_cast<std::size_t>((r * problem_.q_heads + h) * dim + d)];
          encode(problem_.q_type, value,
                 q_.data() + (row * args_.q_row_stride + h * args_.q_head_stride + d) * bytes);
          q_f32_[static_cast<std::size_t>((row * problem_.q_heads + h) * dim + d)] = value;
        }
  args_.q = q_.data();
  make_outputs();
}

void Placed::poison_outputs_in_place() {
  out_->refill(0xff);
  lse_->refill(0xff);
}

void Placed::set_lengths(bool real) {
  for (std::size_t i = 0; i < kv_lens_.size(); ++i) kv_lens_[i] = real ? real_kv_lens_[i] : 0;
}

void Placed::make_outputs() {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(problem_.q_type));
  out_ = std::make_unique<Guarded>(shape_.total_q * args_.out_row_stride * bytes);
  lse_ = std::make_unique<Guarded>(std::int64_t{shape_.total_q} * problem_.q_heads *
                                   static_cast<std::int64_t>(sizeof(float)));
  args_.out = out_->data();
  args_.lse = (problem_.features & attention::kLse) ? reinterpret_cast<float*>(lse_->data()) : nullptr;
}

attention::Limits Placed::limits(int threads) const {
  attention::Limits limits;
  limits.max_batch = shape_.batch;
  limits.max_total_q = shape_.total_q;
  limits.max_q = shape_.max_q;
  limits.max_kv = shape_.max_kv;
  limits.threads = threads;
  return limits;
}

attention::Args Placed::oracle_args(float* out, float* lse) const {
  attention::Args args = args_;
  args.q = q_f32_.data();
  args.q_head_stride = problem_.qk_dim;
  args.q_row_stride = std::int64_t{problem_.q_heads} * problem_.qk_dim;
  args.out = out;
  args.out_head_stride = problem_.v_dim;
  args.out_row_stride = std::int64_t{problem_.q_heads} * problem_.v_dim;
  args.lse = lse;
  return args;
}

std::span<const char> Placed::out_bits(int row, int head) const {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(problem_.q_type));
  const std::int64_t element = (lead_ + row) * args_.out_row_stride + head * args_.out_head_stride;
  return {static_cast<const char*>(args_.out) + element * bytes,
          static_cast<std::size_t>(problem_.v_dim * bytes)};
}

std::vector<float> Placed::out_row(int row, int head) const {
  const std::span<const char> bits = out_bits(row, head);
  const std::size_t bytes = dtype_bytes(problem_.q_type);
  std::vector<float> values(static_cast<std::size_t>(problem_.v_dim));
  for (std::size_t d = 0; d < values.size(); ++d)
    values[d] = load_value(problem_.q_type, bits.data() + d * bytes);
  return values;
}

float Placed::lse(int row, int head) const {
  return args_.lse[(lead_ + row) * std::int64_t{problem_.q_heads} + head];
}

const char* Placed::stray_write() const {
  if (!out_->intact()) return "wrote outside out";
  if (!lse_->intact()) return "wrote outside lse";
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(problem_.q_type));
  const std::int64_t used = problem_.q_heads * std::int64_t{problem_.v_dim} * bytes;
  const int live_begin = q_offsets_.front();
  const int live_end = q_offsets_.back();
  for (int r = 0; r < shape_.total_q; ++r) {
    const char* row = static_cast<const char*>(args_.out) + r * args_.out_row_stride * bytes;
    for (std::int64_t i = used; i < args_.out_row_stride * bytes; ++i)
      if (row[i] != static_cast<char>(0xff)) return "wrote between the rows of out";
    if (r >= live_begin && r < live_end) continue;
    for (std::int64_t i = 0; i < used / bytes; ++i)
      if (load_value(problem_.q_type, row + i * bytes) != 0.0f)
        return "a row that belongs to no sequence is not 0";
    for (int h = 0; args_.lse != nullptr && h < problem_.q_heads; ++h)
      if (args_.lse[r * problem_.q_heads + h] != -std::numeric_limits<float>::infinity())
        return "the lse of a row that belongs to no sequence is not -inf";
  }
  return nullptr;
}

}  // namespace quire::conformance
