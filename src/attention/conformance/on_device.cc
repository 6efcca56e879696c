#include "attention/conformance/on_device.h"

#include <algorithm>

#include "base/check.h"

namespace quire::conformance {
namespace {

constexpr std::int64_t kPieces = std::int64_t{96} << 20;
constexpr std::int64_t kAlign = 256;
constexpr std::int64_t kGuard = Guarded::kGuard;

}  // namespace

char* DeviceMemory::at_least(std::unique_ptr<platform::Buffer>& buffer, std::int64_t bytes) {
  if (buffer == nullptr || buffer->bytes() < bytes) {
    buffer.reset();
    auto larger = device_.allocate(bytes, "conformance");
    QUIRE_CHECK(larger.ok(), "{}", larger.error().message);
    buffer = std::move(*larger);
  }
  return buffer->as<char>();
}

char* DeviceMemory::take(std::int64_t bytes) {
  char* base = at_least(pieces_, kPieces);
  const std::int64_t at = used_;
  used_ += (std::max<std::int64_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  QUIRE_CHECK(used_ <= kPieces, "a case of more than {} bytes beside its cache", kPieces);
  return base + at;
}

template <class T>
const T* OnDevice::copy_in(const T* host, std::int64_t count, platform::Stream& stream) {
  if (host == nullptr) return nullptr;
  const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
  char* target = memory_.take(bytes);
  stream.copy(target, host, bytes);
  return reinterpret_cast<const T*>(target);
}

void OnDevice::make_workspace(std::int64_t bytes, std::uint8_t fill, platform::Stream& stream) {
  char* base = memory_.workspace(bytes + 2 * kAlign);
  stream.fill(base, 0xa5, kAlign);
  stream.fill(base + kAlign, fill, bytes);
  stream.fill(base + kAlign + bytes, 0xa5, kAlign);
  workspace_ = {base + kAlign, bytes};
}

void OnDevice::plan(const attention::StepShape& shape, attention::PlanBuffer, platform::Stream& stream) {
  upload_shape(shape, stream);
  inner_->plan(shape_, workspace_, stream);
}

void OnDevice::run(const attention::StepShape&, const attention::Args& args, attention::PlanBuffer buffer,
                   platform::Stream& stream) {
  upload_args(args, stream);
  inner_->run(shape_, args_, workspace_, stream);
  download(buffer, stream);
}

void OnDevice::upload(const attention::StepShape& shape, const attention::Args& args,
                      platform::Stream& stream) {
  upload_shape(shape, stream);
  upload_args(args, stream);
}

void OnDevice::record(platform::Stream& stream) {
  inner_->plan(shape_, workspace_, stream);
  inner_->run(shape_, args_, workspace_, stream);
}

// Pieces are taken in the same order every time, so a second upload writes to the same addresses.
void OnDevice::upload_shape(const attention::StepShape& shape, platform::Stream& stream) {
  memory_.reset();
  shape_ = shape;
  shape_.q_offsets = copy_in(shape.q_offsets, shape.batch + 1, stream);
  shape_.kv_lens = copy_in(shape.kv_lens, shape.batch, stream);
  shape_.block_table = copy_in(shape.block_table, shape.batch * shape.table_stride, stream);
  shape_.kv_offsets = copy_in(shape.kv_offsets, shape.batch, stream);
  shape_.row_begin = copy_in(shape.row_begin, shape.total_q, stream);
  shape_.row_end = copy_in(shape.row_end, shape.total_q, stream);
  shape_.tree_bits = copy_in(shape.tree_bits, std::int64_t{shape.total_q} * shape.tree_words, stream);
  shape_.tree_base = copy_in(shape.tree_base, shape.batch, stream);
  shape_.tree_depth = copy_in(shape.tree_depth, shape.total_q, stream);
  shape_.part_begin = copy_in(shape.part_begin, shape.batch, stream);
  shape_.part_end = copy_in(shape.part_end, shape.batch, stream);
}

// Scales that lie in the cache move with it, others are copied.
const float* OnDevice::scales_in(const float* host, std::int64_t count, platform::Stream& stream) {
  if (host == nullptr) return nullptr;
  const std::int64_t at = reinterpret_cast<const char*>(host) - placed_.arena().data();
  if (at >= 0 && at < placed_.arena().bytes()) return reinterpret_cast<const float*>(arena_ + at);
  return copy_in(host, count, stream);
}

void OnDevice::upload_args(const attention::Args& args, platform::Stream& stream) {
  arena_ = memory_.arena(placed_.arena().bytes());
  for (const Placed::Stretch& s : placed_.written())
    stream.copy(arena_ + s.offset, placed_.arena().data() + s.offset, s.bytes);
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(problem_.q_type));
  const std::int64_t rows = placed_.total_rows();
  args_ = args;
  args_.q = copy_in(static_cast<const char*>(args.q), rows * args.q_row_stride * bytes, stream);
  out_bytes_ = rows * args.out_row_stride * bytes;
  lse_bytes_ = rows * problem_.q_heads * static_cast<std::int64_t>(sizeof(float));
  const auto guarded = [&](void* host, std::int64_t size) -> char* {
    if (host == nullptr) return nullptr;
    char* target = memory_.take(size + 2 * kAlign) + kAlign;
    stream.copy(target - kGuard, static_cast<char*>(host) - kGuard, size + 2 * kGuard);
    return target;
  };
  args_.out = guarded(args.out, out_bytes_);
  args_.lse = reinterpret_cast<float*>(guarded(args.lse, lse_bytes_));
  args_.sink = copy_in(args.sink, problem_.q_heads, stream);
  args_.sparse.index =
      copy_in(args.sparse.index, rows * args.sparse.index_heads * std::int64_t{args.sparse.k}, stream);
  const auto moved = [&](void* host) { return arena_ + (static_cast<char*>(host) - placed_.arena().data()); };
  args_.kv.k = moved(args.kv.k);
  args_.kv.v = moved(args.kv.v);
  const std::int64_t scales = problem_.kv.scale == KvScaleKind::tensor ? 1 : problem_.kv_heads;
  args_.kv.k_scale = scales_in(args.kv.k_scale, scales, stream);
  args_.kv.v_scale = scales_in(args.kv.v_scale, scales, stream);
  host_args_ = args;
}

void OnDevice::download(attention::PlanBuffer buffer, platform::Stream& stream) {
  const auto back = [&](void* host, const void* device, std::int64_t size) {
    if (host == nullptr) return;
    stream.copy(static_cast<char*>(host) - kGuard, static_cast<const char*>(device) - kGuard,
                size + 2 * kGuard);
  };
  back(host_args_.out, args_.out, out_bytes_);
  back(host_args_.lse, args_.lse, lse_bytes_);
  std::vector<std::uint8_t> guards(2 * kAlign);
  const char* workspace = static_cast<const char*>(workspace_.data);
  stream.copy(guards.data(), workspace - kAlign, kAlign);
  stream.copy(guards.data() + kAlign, workspace + workspace_.bytes, kAlign);
  stream.synchronize();
  const bool intact = std::all_of(guards.begin(), guards.end(), [](std::uint8_t b) { return b == 0xa5; });
  if (!intact) static_cast<char*>(buffer.data)[buffer.bytes] ^= 1;
}

}  // namespace quire::conformance
