#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "checkpoint/test_files.h"

namespace quire::checkpoint {
namespace {

using testing::Bytes;
using testing::safetensors;

std::string problem(const std::vector<std::byte>& file) {
  const auto tensors = parse_safetensors(file, "f");
  return tensors.ok() ? "" : tensors.error().message;
}

constexpr std::string_view kTwo =
    R"({"__metadata__": {"format": "pt"}, "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [4, 16]}, )"
    R"("a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}})";

TEST(Safetensors, ReadsInFileOrder) {
  const auto file = safetensors(kTwo, 16);
  const auto tensors = parse_safetensors(file, "f");
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].format, WeightFormat::f32);
  EXPECT_EQ((*tensors)[1].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ((*tensors)[1].format, WeightFormat::bf16);
  EXPECT_EQ((*tensors)[1].data, file.data() + file.size() - 12);
  EXPECT_EQ((*tensors)[1].bytes, 12);
}

TEST(Safetensors, EveryCutAndEveryAddedByteIsRefused) {
  const auto file = safetensors(kTwo, 16);
  for (std::size_t size = 0; size < file.size(); ++size) {
    // A copy of just that size: a read past it is a read out of bounds that sanitizers see.
    EXPECT_NE(problem({file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)}), "") << size;
  }
  auto longer = file;
  longer.push_back(std::byte{0});
  EXPECT_NE(problem(longer).find("belong to none"), std::string::npos);
}

TEST(Safetensors, HostileHeaderLengths) {
  for (const std::uint64_t length :
       {std::uint64_t{9}, std::uint64_t{1} << 32, UINT64_MAX, UINT64_MAX - 7, std::uint64_t{1} << 63}) {
    EXPECT_NE(problem(Bytes().put(length).text("{}").take()), "") << length;
  }
  EXPECT_EQ(problem(Bytes().put<std::uint64_t>(2).text("{}").take()), "");
  EXPECT_NE(problem(Bytes().put<std::uint64_t>(2).text("[]").take()), "");
  EXPECT_NE(problem(Bytes().put<std::uint64_t>(0).take()), "");
}

struct Case {
  std::string_view header;
  std::size_t data;
  std::string_view message;
};

TEST(Safetensors, MismatchesAreNamed) {
  const Case cases[] = {
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", 4,
       "need 8 bytes, but data_offsets span 4"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 4, "cut short"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", 4, "[begin, end]"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}})", 4, "[begin, end]"},
      {R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", 4, "list of at most"},
      {R"({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}})", 4, "list of at most"},
      {R"({"a": {"dtype": "F32", "shape": [1,1,1,1,1,1,1,1,1], "data_offsets": [0, 4]}})", 4,
       "list of at most"},
      {R"({"a": {"dtype": "F32", "shape": [4611686018427387904], "data_offsets": [0, 0]}})", 0, "overflows"},
      {R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}})", 0,
       "overflows"},
      {R"({"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}})", 4, "unknown dtype \"F33\""},
      {R"({"a": {"dtype": 3, "shape": [1], "data_offsets": [0, 4]}})", 4, "not a string"},
      {R"({"a": {"dtype": "F32", "shape": [1]}})", 4, "exactly dtype"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "x": 1}})", 4, "exactly dtype"},
      {R"({"a": 5})", 0, "exactly dtype"},
      {R"({"": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 4, "its name"},
      {R"({"a\n": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 4, "its name"},
      {R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}})",
       6, "overlap"},
      {R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "b": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})",
       4, "overlap"},
      {R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "b": {"dtype": "U8", "shape": [4], "data_offsets": [6, 10]}})",
       10, "without a tensor"},
      {R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [1, 5]}})", 5, "without a tensor"},
      {R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})",
       1, "stands twice"},
      {R"({"__metadata__": {"x": 1}})", 0, "strings to strings"},
      {R"({"a": {"dtype": "U8", "shape": [[[[1]]]], "data_offsets": [0, 1]}})", 1, "nested deeper"},
  };
  for (const Case& c : cases) {
    const std::string message = problem(safetensors(c.header, c.data));
    EXPECT_NE(message.find(c.message), std::string::npos) << c.header << "\n" << message;
  }
}

TEST(Safetensors, EmptyTensorsNeedNoBytes) {
  const auto file = safetensors(
      R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "z": {"dtype": "F32", "shape": [0, 7], "data_offsets": [0, 0]}, )"
      R"("y": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]}})",
      4);
  EXPECT_EQ(problem(file), "");
}

}  // namespace
}  // namespace quire::checkpoint
