// Test only: an executor below any scheduler, for the host's tests and a device's alike. Decode steps with
// given tokens, recorded or eager, and what they leave in the logits and in the arena.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/golden_dir.h"
#include "engine/parts.h"

namespace quire::engine::testing {

class ExecutorCase {
 public:
  static constexpr std::int32_t kSlots = 8;
  static constexpr std::int32_t kContext = 64;
  static constexpr std::int32_t kPage = 16;

  // A golden model of one KV group; null (with a test failure) when it does not open.
  static std::unique_ptr<ExecutorCase> open(const std::string& device, const std::string& model,
                                            bool graphs) {
    Options options;
    options.device = device;
    options.max_running = kSlots;
    options.max_context = kContext;
    options.page_size = kPage;
    options.kv_memory_bytes = 16 << 20;
    options.graphs = graphs;
    auto parts = assemble(quire::testing::golden_dir() + "/models/" + model, options, {});
    EXPECT_TRUE(parts.ok()) << parts.error().message;
    if (!parts.ok()) return nullptr;
    return std::unique_ptr<ExecutorCase>(new ExecutorCase(std::move(*parts)));
  }

  // One token for each of the first tokens.size() slots, in the bucket that holds them; rows after them are
  // padding. Returns the logits of every row of the bucket, padding included.
  std::vector<float> decode(const std::vector<std::int32_t>& tokens, std::int32_t least_rows = 1) {
    const auto live = static_cast<std::int32_t>(tokens.size());
    const std::int32_t rows = parts_->executor->bucket(std::max(live, least_rows));
    upload(tokens, rows);
    replayed_ = parts_->executor->forward({.decode_rows = rows, .total_q = rows, .logit_rows = rows});
    parts_->ops->end_step({parts_->buffers->state, parts_->buffers->upload.rows, rows}, *parts_->stream);
    if (live > 0) ++length_;
    const std::int64_t count = std::int64_t{rows} * parts_->buffers->limits().vocab;
    return copy_back<float>(parts_->buffers->logits.data, count);
  }
  bool replayed() const { return replayed_; }

  // A mixed step: slot 1 decodes `token`, slot 2 extends by `chunk`; by `recording` when there is one. The
  // logits of both.
  std::vector<float> mix(std::int32_t token, const std::vector<std::int32_t>& chunk,
                         const Recording* recording) {
    upload_mix(token, chunk);
    if (recording != nullptr) {
      recording->replay();
    } else {
      parts_->executor->forward(mix_launch(chunk.size()));
    }
    parts_->ops->end_step({parts_->buffers->state, parts_->buffers->upload.rows, 2}, *parts_->stream);
    ++length_;
    return copy_back<float>(parts_->buffers->logits.data, std::int64_t{2} * parts_->buffers->limits().vocab);
  }
  // Such a step with a chunk of `tokens`, recorded; `apart`: as if no attention row could be.
  std::unique_ptr<Recording> record_mix(std::size_t tokens, bool apart) {
    for (model::BoundCall& call : parts_->calls) call.capturable = call.capturable && !apart;
    return parts_->executor->record_step(mix_launch(tokens));
  }

  void fill_arena(std::uint8_t byte) {
    parts_->stream->fill(parts_->arena->base(), byte, parts_->arena->backed_bytes());
  }
  // Bytes of the arena behind page 0 that are not `byte`.
  std::int64_t changed_behind_page_zero(std::uint8_t byte) {
    const std::int64_t begin = parts_->kv.slabs.page_strides[0];
    const auto bytes = copy_back<std::uint8_t>(static_cast<char*>(parts_->arena->base()) + begin,
                                               parts_->arena->backed_bytes() - begin);
    return std::count_if(bytes.begin(), bytes.end(), [byte](std::uint8_t b) { return b != byte; });
  }
  std::int32_t vocab() const { return parts_->buffers->limits().vocab; }

 private:
  explicit ExecutorCase(std::unique_ptr<EngineParts> parts) : parts_(std::move(parts)) {}

  static StepLaunch mix_launch(std::size_t tokens) {
    const auto q_len = static_cast<std::int32_t>(tokens);
    return {
        .decode_rows = 1, .extend_rows = 1, .total_q = 1 + q_len, .longest_extend = q_len, .logit_rows = 2};
  }

  void upload_mix(std::int32_t token, const std::vector<std::int32_t>& chunk) {
    parts_->stream->synchronize();
    Upload& host = parts_->buffers->host_upload(0);
    const auto q_len = static_cast<std::int32_t>(chunk.size());
    host.rows[0] = {1, 1, 0, 0};
    host.rows[1] = {2, q_len, 1, 1};
    host.logit_row[0] = host.logit_row[1] = -1;
    host.logit_hidden[0] = 0;
    host.logit_hidden[1] = q_len;
    host.extend_offsets[0] = 0;
    host.extend_offsets[1] = q_len;
    host.literals[0] = token;
    std::copy(chunk.begin(), chunk.end(), host.literals + 1);
    *host.delta_count = 0;
    for (std::int32_t slot = 1; slot <= 2 && length_ == 0; ++slot) {
      for (std::int32_t entry = 0; entry < kContext / kPage; ++entry) {
        const auto page = static_cast<std::uint32_t>(1 + slot * (kContext / kPage) + entry);
        host.deltas[(*host.delta_count)++] = {0, slot, entry, page};
      }
    }
    const auto* begin = reinterpret_cast<const char*>(host.delta_count);
    parts_->stream->copy(parts_->buffers->upload.delta_count, begin,
                         reinterpret_cast<const char*>(host.literals + 1 + q_len) - begin);
  }

  void upload(const std::vector<std::int32_t>& tokens, std::int32_t rows) {
    parts_->stream->synchronize();
    Upload& host = parts_->buffers->host_upload(0);
    std::int32_t deltas = 0;
    for (std::int32_t r = 0; r < rows; ++r) {
      const bool live = r < static_cast<std::int32_t>(tokens.size());
      host.rows[r] = live ? ops::StepRow{r + 1, 1, r, r} : ops::StepRow{0, 1, r, -1};
      host.logit_row[r] = -1;
      host.logit_hidden[r] = r;
      if (!live) continue;
      host.literals[r] = tokens[static_cast<std::size_t>(r)];
      const std::int32_t entry = length_ / kPage;
      const auto page = static_cast<std::uint32_t>(1 + r * (kContext / kPage) + entry);
      if (length_ % kPage == 0) host.deltas[deltas++] = {0, r + 1, entry, page};
    }
    *host.delta_count = deltas;
    const auto* begin = reinterpret_cast<const char*>(host.delta_count);
    parts_->stream->copy(parts_->buffers->upload.delta_count, begin,
                         reinterpret_cast<const char*>(host.literals + rows) - begin);
  }

  template <class T>
  std::vector<T> copy_back(const void* source, std::int64_t count) {
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
    auto pinned = parts_->device->allocate_pinned(bytes, "test");
    EXPECT_TRUE(pinned.ok());
    parts_->stream->copy((*pinned)->data(), source, bytes);
    parts_->stream->synchronize();
    std::vector<T> values(static_cast<std::size_t>(count));
    std::memcpy(values.data(), (*pinned)->data(), static_cast<std::size_t>(bytes));
    return values;
  }

  std::unique_ptr<EngineParts> parts_;
  std::int32_t length_ = 0;  // of every live slot
  bool replayed_ = false;
};

// Recorded and eager steps of the same bucket give the same bits, while contexts cross page borders.
inline void expect_recorded_equals_eager(const std::string& device, const std::string& model) {
  for (const std::int32_t live : {1, 3, 8}) {
    const auto recorded = ExecutorCase::open(device, model, true);
    const auto eager = ExecutorCase::open(device, model, false);
    ASSERT_TRUE(recorded != nullptr && eager != nullptr);
    for (std::int32_t step = 0; step < 40; ++step) {
      std::vector<std::int32_t> tokens;
      for (std::int32_t r = 0; r < live; ++r) tokens.push_back((step * 7 + r * 31 + 1) % recorded->vocab());
      const std::vector<float> a = recorded->decode(tokens), b = eager->decode(tokens);
      ASSERT_TRUE(recorded->replayed());
      ASSERT_FALSE(eager->replayed());
      const auto used = static_cast<std::size_t>(live) * static_cast<std::size_t>(recorded->vocab());
      ASSERT_EQ(std::memcmp(a.data(), b.data(), used * sizeof(float)), 0)
          << model << ": " << live << " sequences differ at step " << step;
      ASSERT_NE(a[0], a[1]) << "no logits were computed";
    }
  }
}

// Mixed steps, recorded once and replayed over growing contexts, in one piece and with attention apart, give
// the bits of eager ones.
inline void expect_recorded_mix_equals_eager(const std::string& device, const std::string& model) {
  for (const bool apart : {false, true}) {
    const auto recorded = ExecutorCase::open(device, model, false);
    const auto eager = ExecutorCase::open(device, model, false);
    ASSERT_TRUE(recorded != nullptr && eager != nullptr);
    std::unique_ptr<Recording> recording;
    for (std::int32_t step = 0; step < 4; ++step) {
      std::vector<std::int32_t> chunk;
      for (std::int32_t i = 0; i < 15; ++i) chunk.push_back((step * 41 + i * 17 + 3) % eager->vocab());
      const std::int32_t token = (step * 7 + 1) % eager->vocab();
      const std::vector<float> a = recorded->mix(token, chunk, recording.get()),
                               b = eager->mix(token, chunk, nullptr);
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << model << " step " << step;
      ASSERT_NE(a[0], a[1]) << "no logits were computed";
      if (step == 0) recording = recorded->record_mix(chunk.size(), apart);
      if (apart) {
        EXPECT_GT(recording->pieces(), 2u);
      } else {
        EXPECT_EQ(recording->pieces(), 1u);
      }
    }
  }
}

// A step whose rows are all padding is legal and writes to no page but page 0; what such rows hold harms
// nobody.
inline void expect_padding_touches_page_zero_only(const std::string& device, const std::string& model) {
  for (const bool graphs : {true, false}) {
    const auto one = ExecutorCase::open(device, model, graphs);
    const auto other = ExecutorCase::open(device, model, graphs);
    ASSERT_TRUE(one != nullptr && other != nullptr);
    one->fill_arena(0xff);  // NaN in every type
    for (std::int32_t rows : {1, 4, 8}) one->decode({}, rows);
    EXPECT_EQ(one->changed_behind_page_zero(0xff), 0) << model;
    const std::vector<float> after = one->decode({5, 6, 7}), alone = other->decode({5, 6, 7});
    const auto used = static_cast<std::size_t>(3 * one->vocab());
    EXPECT_EQ(std::memcmp(after.data(), alone.data(), used * sizeof(float)), 0) << model;
  }
}

}  // namespace quire::engine::testing
