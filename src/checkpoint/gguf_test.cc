#include "checkpoint/gguf.h"

#include <gtest/gtest.h>

#include "checkpoint/test_files.h"

namespace quire::checkpoint {
namespace {

using testing::Bytes;

constexpr std::uint32_t kU32 = 4;
constexpr std::uint32_t kString = 8;
constexpr std::uint32_t kArray = 9;

Bytes header(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
  return Bytes().text("GGUF").put(version).put(tensors).put(keys);
}

std::string problem(const std::vector<std::byte>& file) {
  const auto gguf = GgufFile::parse(file, "f.gguf");
  return gguf.ok() ? "" : gguf.error().message;
}
std::string problem(const Bytes& file) { return problem(file.take()); }

void tensor(Bytes& out, std::string_view name, std::vector<std::uint64_t> dims, std::uint32_t type,
            std::uint64_t offset) {
  out.string(name).put<std::uint32_t>(static_cast<std::uint32_t>(dims.size()));
  for (const std::uint64_t dim : dims) out.put(dim);
  out.put(type).put(offset);
}

// Every kind of value, and two tensors: F32 [3, 2] (rows of 2) and Q8_0 [1, 32].
Bytes small_file() {
  Bytes file = header(2, 6);
  file.string("n").put(kU32).put<std::uint32_t>(7);
  file.string("s").put(kString).string("text");
  file.string("f").put<std::uint32_t>(6).put(0.5f);
  file.string("b").put<std::uint32_t>(7).put<std::uint8_t>(1);
  file.string("words").put(kArray).put(kString).put<std::uint64_t>(3).string("a").string("").string("ccc");
  file.string("ints")
      .put(kArray)
      .put<std::uint32_t>(5)
      .put<std::uint64_t>(2)
      .put<std::int32_t>(-1)
      .put<std::int32_t>(9);
  tensor(file, "one", {2, 3}, 0, 0);
  tensor(file, "two", {32}, 8, 32);
  file.align(32).fill(24 + 8 + 34);
  return file;
}

TEST(Gguf, ReadsValuesAndTensors) {
  const auto bytes = small_file().take();
  const auto gguf = GgufFile::parse(bytes, "f.gguf");
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_EQ(*gguf->integer("n", 0, 10), 7);
  EXPECT_EQ(*gguf->number("n", 0, 10), 7.0);
  EXPECT_EQ(*gguf->number("f", 0, 1), 0.5);
  EXPECT_EQ(*gguf->string("s"), "text");
  EXPECT_TRUE(*gguf->boolean_or("b", false));
  EXPECT_EQ(*gguf->strings("words"), (std::vector<std::string_view>{"a", "", "ccc"}));
  EXPECT_EQ(*gguf->integers("ints"), (std::vector<std::int64_t>{-1, 9}));
  EXPECT_EQ(*gguf->integers("n"), (std::vector<std::int64_t>{7}));
  ASSERT_EQ(gguf->tensors().size(), 2u);
  EXPECT_EQ(gguf->tensors()[0].shape, (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(gguf->tensors()[0].bytes, 24);
  EXPECT_EQ(gguf->tensors()[1].format, WeightFormat::q8_0);
  EXPECT_EQ(gguf->tensors()[1].bytes, 34);
  EXPECT_EQ(gguf->tensors()[1].data, bytes.data() + bytes.size() - 34);
}

TEST(Gguf, AccessorsNameFileKeyAndType) {
  const auto bytes = small_file().take();
  const auto gguf = GgufFile::parse(bytes, "f.gguf");
  ASSERT_TRUE(gguf.ok());
  EXPECT_EQ(gguf->integer("n", 8, 9).error().message, "f.gguf: n is 7, but must be from 8 to 9");
  EXPECT_EQ(gguf->integer("s", 8, 9).error().message, "f.gguf: s must be an integer, found string");
  EXPECT_EQ(gguf->string("words").error().message,
            "f.gguf: words must be a string, found an array of 3 x string");
  EXPECT_EQ(gguf->integer("q", 8, 9).error().message, "f.gguf: the metadata key q is missing");
  EXPECT_EQ(*gguf->integer_or("q", 3, 8, 9), 3);
  EXPECT_FALSE(gguf->strings("ints").ok());
  EXPECT_FALSE(gguf->integers("words").ok());
  EXPECT_FALSE(gguf->numbers("words").ok());
  EXPECT_FALSE(gguf->numbers("s").ok());
}

TEST(Gguf, EveryCutIsRefused) {
  const auto file = small_file().take();
  ASSERT_EQ(problem(file), "");
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(problem(std::vector<std::byte>(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size))),
              "")
        << size;
  }
}

TEST(Gguf, VersionsAndMagic) {
  EXPECT_EQ(problem(header(0, 0, 2)), "");
  EXPECT_EQ(problem(header(0, 0, 3)), "");
  EXPECT_NE(problem(header(0, 0, 1)).find("version 1"), std::string::npos);
  EXPECT_NE(problem(header(0, 0, 0x03000000)).find("big-endian"), std::string::npos);
  EXPECT_NE(problem(Bytes().text("GGUX").fill(20)), "");
}

TEST(Gguf, HostileCountsAndLengths) {
  const std::uint64_t huge[] = {1000, std::uint64_t{1} << 32, std::uint64_t{1} << 61, std::uint64_t{1} << 63,
                                UINT64_MAX};
  for (const std::uint64_t count : huge) {
    EXPECT_NE(problem(header(count, 0).fill(100)), "") << count;
    EXPECT_NE(problem(header(0, count).fill(100)), "") << count;
    EXPECT_NE(problem(header(0, 1).put(count).text("abcdefgh").fill(100)), "") << count;
    EXPECT_NE(problem(header(0, 1).string("k").put(kString).put(count).fill(100)), "") << count;
    for (std::uint32_t element = 0; element < 13; ++element) {
      EXPECT_NE(problem(header(0, 1).string("k").put(kArray).put(element).put(count).fill(100)), "")
          << count << " " << element;
    }
  }
}

TEST(Gguf, TypesAndNames) {
  EXPECT_NE(problem(header(0, 1).string("k").put<std::uint32_t>(13).fill(64)).find("unknown type 13"),
            std::string::npos);
  EXPECT_NE(
      problem(header(0, 1).string("k").put(kArray).put<std::uint32_t>(99).put<std::uint64_t>(0).fill(64))
          .find("unknown type 99"),
      std::string::npos);
  EXPECT_NE(problem(header(0, 1).string("k").put(kArray).put(kArray).put<std::uint64_t>(1).fill(64))
                .find("array of arrays"),
            std::string::npos);
  EXPECT_NE(problem(header(0, 1).string("").put(kU32).put<std::uint32_t>(1)), "");
  EXPECT_NE(problem(header(0, 1).string("\xff").put(kU32).put<std::uint32_t>(1)), "");
  EXPECT_NE(
      problem(
          header(0, 2).string("k").put(kU32).put<std::uint32_t>(1).string("k").put(kU32).put<std::uint32_t>(
              1))
          .find("twice"),
      std::string::npos);
}

TEST(Gguf, Alignment) {
  const auto with = [](std::uint32_t type, std::uint64_t value) {
    Bytes file = header(0, 1).string("general.alignment").put(type);
    return problem(type == kU32 ? file.put(static_cast<std::uint32_t>(value)) : file.put(value));
  };
  EXPECT_EQ(with(kU32, 1), "");
  EXPECT_EQ(with(kU32, 4096), "");
  EXPECT_NE(with(kU32, 0), "");
  EXPECT_NE(with(kU32, 24).find("power of two"), std::string::npos);
  EXPECT_NE(with(kU32, 0x80000000u), "");
  EXPECT_NE(with(10, std::uint64_t{1} << 63), "");
}

struct TensorCase {
  std::vector<std::uint64_t> dims;
  std::uint32_t type;
  std::uint64_t offset;
  std::string_view message;
};

TEST(Gguf, HostileTensors) {
  const std::uint64_t top = std::uint64_t{1} << 63;
  const TensorCase cases[] = {
      {{4}, 0, 0, ""},
      {{}, 0, 0, "0 dimensions"},
      {{1, 1, 1, 1, 1}, 0, 0, "5 dimensions"},
      {{0}, 0, 0, "at least 1"},
      {{top}, 0, 0, "at least 1"},
      {{UINT64_MAX}, 0, 0, "at least 1"},
      {{4, 0}, 0, 0, "at least 1"},
      {{top - 1}, 0, 0, "overflows"},
      {{std::uint64_t{1} << 32, std::uint64_t{1} << 32}, 0, 0, "overflows"},
      {{32, std::uint64_t{1} << 40, std::uint64_t{1} << 40}, 2, 0, "overflows"},
      {{33}, 8, 0, "whole blocks"},
      {{4}, 4, 0, "unknown type 4"},
      {{4}, UINT32_MAX, 0, "unknown type"},
      {{4}, 0, 16, "alignment"},
      {{4}, 0, 4096, "cut short"},
      {{4}, 0, UINT64_MAX - 31, "cut short"},
      {{4096}, 0, 0, "cut short"},
  };
  for (const TensorCase& c : cases) {
    Bytes file = header(1, 0);
    tensor(file, "t", c.dims, c.type, c.offset);
    file.align(32).fill(1024);
    const std::string message = problem(file);
    if (c.message.empty()) {
      EXPECT_EQ(message, "");
    } else {
      EXPECT_NE(message.find(c.message), std::string::npos) << c.message << ": " << message;
    }
  }
}

TEST(Gguf, OverlapsAndDuplicates) {
  const auto pair = [](std::string_view second, std::uint64_t offset) {
    Bytes file = header(2, 0);
    tensor(file, "a", {16}, 0, 0);
    tensor(file, second, {16}, 0, offset);
    return problem(file.align(32).fill(256));
  };
  EXPECT_EQ(pair("b", 64), "");
  EXPECT_NE(pair("b", 32).find("overlap"), std::string::npos);
  EXPECT_NE(pair("b", 0).find("overlap"), std::string::npos);
  EXPECT_NE(pair("a", 64).find("twice"), std::string::npos);
}

TEST(Gguf, TypesWithoutAFormatAreNamed) {
  Bytes file = header(1, 0);
  tensor(file, "t", {256}, 16, 0);
  const auto bytes = file.align(32).fill(66).take();
  const auto gguf = GgufFile::parse(bytes, "f");
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_EQ(gguf->tensors()[0].type, "IQ2_XXS");
  EXPECT_FALSE(gguf->tensors()[0].format.has_value());
}

}  // namespace
}  // namespace quire::checkpoint
