#include "engine/recording.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace quire::engine {
namespace {

class RecordingTest : public ::testing::Test {
 protected:
  RecordingTest() {
    auto opened = platform::open_device("cpu", platform::ThreadPlan{2});
    device_ = std::move(*opened);
    stream_ = device_->make_stream();
  }
  // step = (a -> b), host work, (b -> c): only in that order does c get a's value plus one.
  void put(model::Recorder* recorder) {
    stream_->copy(&b_, &a_, 4);
    const auto work = [this] {
      stream_->synchronize();
      ++b_;
      ++works_;
    };
    recorder == nullptr ? work() : recorder->apart(work);
    stream_->copy(&c_, &b_, 4);
  }

  std::unique_ptr<platform::Device> device_;
  std::unique_ptr<platform::Stream> stream_;
  std::int32_t a_ = 0, b_ = 0, c_ = 0;
  int works_ = 0;
};

TEST_F(RecordingTest, WorkApartRunsBetweenThePiecesAndOnlyAtReplay) {
  Recording recording(*stream_);
  recording.begin();
  put(&recording);
  recording.end();
  stream_->synchronize();
  EXPECT_EQ(works_, 0);
  EXPECT_EQ(recording.pieces(), 3u);
  for (const std::int32_t value : {10, 20, 30}) {
    a_ = value;
    recording.replay();
    stream_->synchronize();
    EXPECT_EQ(c_, value + 1);
  }
  EXPECT_EQ(works_, 3);
}

TEST_F(RecordingTest, AStepThatIsAllRecordedIsOnePiece) {
  Recording recording(*stream_);
  recording.begin();
  stream_->copy(&b_, &a_, 4);
  stream_->copy(&c_, &b_, 4);
  recording.end();
  EXPECT_EQ(recording.pieces(), 1u);
  a_ = 7;
  recording.replay();
  stream_->synchronize();
  EXPECT_EQ(c_, 7);
}

TEST_F(RecordingTest, WorkAtTheEdgesLeavesNoEmptyPieces) {
  Recording recording(*stream_);
  int order = 0;
  std::array<int, 2> seen{};
  recording.begin();
  recording.apart([&] { seen[0] = ++order; });
  recording.apart([&] { seen[1] = ++order; });
  recording.end();
  EXPECT_EQ(recording.pieces(), 2u);
  recording.replay();
  EXPECT_EQ(seen, (std::array<int, 2>{1, 2}));
}

}  // namespace
}  // namespace quire::engine
