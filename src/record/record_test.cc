// The format: what is written comes back, and nothing else does.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "record/crc32c.h"
#include "record/file_reader.h"
#include "record/file_writer.h"
#include "record/frames.h"
#include "record/number_set.h"
#include "record/shadow.h"

namespace quire::record {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "quire-record-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_; }
  std::string file() const { return path_ + "/" + std::string(kFileName); }

 private:
  std::string path_;
};

EngineFrame small_engine() {
  EngineFrame engine;
  engine.architecture = "test";
  engine.threads = 1;
  engine.page_size = 4;
  engine.max_context = 64;
  attention::Problem problem;
  problem.q_heads = 2;
  problem.kv_heads = 1;
  problem.qk_dim = problem.v_dim = 8;
  problem.page_size = 4;
  engine.calls.push_back({"full.decode", "cpu", 0, attention::Determinism::schedule_invariant, problem});
  return engine;
}

StepFrame small_step(std::uint64_t step) {
  StepFrame frame;
  frame.step = step;
  frame.decode_rows = frame.total_q = 1;
  RecordedRow row;
  row.sequence = 3;
  row.query_count = 1;
  row.opens_slot = true;
  frame.rows.push_back(row);
  RecordedStart start;
  start.sequence = 3;
  start.seed = 42;
  start.bias_token = {7};
  start.bias = {-1.5f};
  frame.starts.push_back(start);
  frame.updates.push_back({0, 1, 2, 9});
  return frame;
}

// One sequence with five keys: a full page and one slot of the next.
CallFrame small_call(std::uint64_t step) {
  CallFrame f;
  f.step = step;
  f.layer = 1;
  f.total_q = f.max_q = 1;
  f.max_kv = 64;
  f.q_offsets = {0, 1};
  f.kv_lens = {5};
  f.table = {9, 11};
  f.q.assign(2 * 8 * 4, 1);
  f.out.assign(2 * 8 * 4, 2);
  f.kv.push_back(
      {9, 0, 4, std::vector<std::uint8_t>(4 * 8 * 2, 3), std::vector<std::uint8_t>(4 * 8 * 2, 4), {}, {}});
  f.kv.push_back(
      {11, 0, 1, std::vector<std::uint8_t>(8 * 2, 5), std::vector<std::uint8_t>(8 * 2, 6), {}, {}});
  return f;
}

std::vector<std::byte> small_file(int steps = 2) {
  std::vector<std::byte> file(kHeaderBytes);
  append(small_engine(), file);
  for (int s = 0; s < steps; ++s) {
    append(small_step(static_cast<std::uint64_t>(s)), file);
    append(small_call(static_cast<std::uint64_t>(s)), file);
    append(OutcomeFrame{static_cast<std::uint64_t>(s), {5}, {17}}, file);
  }
  const auto header = encode_header({file.size(), static_cast<std::uint64_t>(steps), Ended::complete});
  std::copy(header.begin(), header.end(), file.begin());
  return file;
}

// "" when all of it reads, else the error's message.
std::string read_all(std::span<const std::byte> file, int* calls = nullptr, ReaderOptions options = {}) {
  auto reader = FileReader::parse(file, "test", options);
  if (!reader.ok()) {
    EXPECT_EQ(reader.error().message.rfind("test", 0), 0u) << reader.error().message;
    return reader.error().message;
  }
  while (true) {
    auto frame = reader->next();
    if (!frame.ok()) {
      EXPECT_EQ(frame.error().message.rfind("test", 0), 0u) << frame.error().message;
      return frame.error().message;
    }
    if (!*frame) return "";
    if (calls != nullptr) *calls += std::holds_alternative<CallFrame>(**frame) ? 1 : 0;
  }
}

TEST(Crc32c, KnownValue) {
  const std::string text = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(text))), 0xe3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(NumberSet, ReadsNumbersAndRanges) {
  const auto set = NumberSet::parse("0,3-5,100-");
  ASSERT_TRUE(set.ok());
  for (const int in : {0, 3, 4, 5, 100, 1000000}) EXPECT_TRUE(set->contains(in)) << in;
  for (const int out : {1, 2, 6, 99}) EXPECT_FALSE(set->contains(out)) << out;
  EXPECT_TRUE(NumberSet::parse("all")->contains(7));
  EXPECT_FALSE(NumberSet::parse("none")->contains(7));
  EXPECT_EQ(set->beyond(100), std::nullopt);
  EXPECT_EQ(set->beyond(99), 100);
  EXPECT_EQ(set->beyond(4), 5);
  EXPECT_EQ(NumberSet::all().beyond(0), std::nullopt);
  for (const char* bad : {"", "x", "3-1", "1,", "-2", "1--2", "1-2-3", "99999999999999999999"})
    EXPECT_FALSE(NumberSet::parse(bad).ok()) << bad;
}

TEST(Frames, WhatIsWrittenComesBack) {
  const std::vector<std::byte> file = small_file(1);
  auto reader = FileReader::parse(file, "test");
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ(reader->engine().calls[0].name, "full.decode");
  EXPECT_EQ(reader->engine().calls[0].problem.qk_dim, 8);
  auto first = reader->next();
  ASSERT_TRUE(first.ok() && *first);
  const auto& step = std::get<StepFrame>(**first);
  EXPECT_EQ(step.rows[0].sequence, 3u);
  EXPECT_TRUE(step.rows[0].opens_slot);
  EXPECT_EQ(step.starts[0].seed, 42u);
  EXPECT_EQ(step.starts[0].bias[0], -1.5f);
  EXPECT_EQ(step.updates[0].page, 9u);
  auto second = reader->next();
  ASSERT_TRUE(second.ok() && *second) << second.error().message;
  const auto& call = std::get<CallFrame>(**second);
  EXPECT_EQ(call.table, (std::vector<std::uint32_t>{9, 11}));
  EXPECT_EQ(call.kv[1].v, std::vector<std::uint8_t>(16, 6));
  auto third = reader->next();
  ASSERT_TRUE(third.ok() && *third);
  EXPECT_EQ(std::get<OutcomeFrame>(**third).sampled, std::vector<std::int32_t>{17});
}

TEST(Frames, EveryShorterFileIsRefused) {
  const std::vector<std::byte> file = small_file();
  for (std::size_t size = 0; size < file.size(); ++size)
    EXPECT_NE(read_all(std::span(file).first(size)), "") << size;
}

TEST(Frames, EveryFlippedBitIsSeen) {
  std::vector<std::byte> file = small_file(1);
  for (std::size_t at = 0; at < file.size(); ++at) {
    file[at] ^= std::byte{4};
    EXPECT_NE(read_all(file), "") << at;
    file[at] ^= std::byte{4};
  }
  EXPECT_EQ(read_all(file), "");
}

TEST(Frames, AnotherVersionIsNamed) {
  std::vector<std::byte> file = small_file();
  file[8] = std::byte{9};
  EXPECT_NE(read_all(file).find("version 9"), std::string::npos) << read_all(file);
}

// With the checksums out of the way the decoder itself has to hold: no input ends the process or takes more
// memory than the file warrants.
TEST(Frames, HostileBytesAreRefusedOrRead) {
  std::mt19937 random(1);
  const std::vector<std::byte> good = small_file();
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> file = good;
    for (int n = 0; n <= static_cast<int>(random() % 3); ++n) {
      const std::size_t at = kHeaderBytes + random() % (file.size() - kHeaderBytes - 8);
      const std::uint64_t values[] = {
          0, 1, 0xff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff};
      std::memcpy(file.data() + at, &values[random() % 7], random() % 2 == 0 ? 4 : 8);
    }
    read_all(file, nullptr, {.checksums = false});
  }
}

TEST(Frames, SizesThatDoNotFitTogetherAreRefused) {
  const EngineFrame engine = small_engine();
  const auto refused = [&](auto change) {
    CallFrame call = small_call(0);
    change(call);
    std::vector<std::byte> bytes;
    append(call, bytes);
    return !decode_call(std::span(bytes).subspan(kFrameHeadBytes), engine).ok();
  };
  EXPECT_FALSE(refused([](CallFrame&) {}));
  EXPECT_TRUE(refused([](CallFrame& f) { f.call = 1; }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.q_offsets[1] = 2; }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.kv_lens[0] = 65; }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.kv_lens[0] = -1; }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.table.pop_back(); }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.q.pop_back(); }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.out.push_back(0); }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.mask = attention::MaskKind::window; }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.sink = {1, 2}; }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.part_begin = f.part_end = {0}; }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.tree_bits = {1}; }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.kv[0].page = 0; }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.kv[0].begin = 1; }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.kv[1].k.pop_back(); }));
  EXPECT_TRUE(refused([](CallFrame& f) { f.dense_k = {1}; }));
}

// The seeds of fuzz_record, and the proof that this version still reads what it once wrote.
TEST(Frames, CommittedRecordsAreRead) {
  for (const char* name : {"gemma3", "deepseek_v3"}) {
    const std::string path = std::string(QUIRE_SOURCE_DIR) + "/tests/data/golden/records/" + name + ".qrec";
    auto file = checkpoint::MappedFile::open(path);
    ASSERT_TRUE(file.ok()) << file.error().message;
    int calls = 0;
    EXPECT_EQ(read_all(file->bytes(), &calls), "") << name;
    EXPECT_GE(calls, 4) << name;
  }
}

TEST(FileWriter, EndsAtItsLimitWithWholeSteps) {
  const Folder folder;
  std::vector<std::byte> engine, step;
  append(small_engine(), engine);
  append(small_step(0), step);
  append(OutcomeFrame{0, {5}, {17}}, step);
  const auto limit =
      static_cast<std::int64_t>(kHeaderBytes + engine.size() + 2 * step.size() + step.size() / 2);
  {
    auto writer = FileWriter::create(folder.path(), limit, engine);
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    (*writer)->keep();
    EXPECT_TRUE((*writer)->write_step(step));
    EXPECT_TRUE((*writer)->write_step(step));
    EXPECT_FALSE((*writer)->write_step(step));
    EXPECT_EQ((*writer)->ended(), Ended::limit);
    EXPECT_NE((*writer)->message().find("limit"), std::string::npos);
  }
  EXPECT_LE(static_cast<std::int64_t>(fs::file_size(folder.file())), limit);
  auto reader = FileReader::open(folder.path());
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ(reader->header().ended, Ended::limit);
  EXPECT_EQ(reader->header().steps, 2u);
  EXPECT_FALSE(FileWriter::create(folder.path(), limit, engine).ok());  // it would be overwritten
  EXPECT_EQ(static_cast<std::uint64_t>(fs::file_size(folder.file())), reader->header().bytes);
}

TEST(FileWriter, WhatWasRefusedOrNeverBeganLeavesNothing) {
  const Folder folder;
  std::vector<std::byte> engine;
  append(small_engine(), engine);
  const std::string path = folder.path() + "/made/here";
  const auto least = static_cast<std::int64_t>(kHeaderBytes + engine.size());
  const auto refused = FileWriter::create(path, least - 1, engine);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("use " + std::to_string(least) + " or more"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder.path()));
  for (const bool kept : {false, true}) {
    {
      auto writer = FileWriter::create(path, least, engine);
      ASSERT_TRUE(writer.ok()) << writer.error().message;
      EXPECT_TRUE(fs::exists(path));
      if (kept) (*writer)->keep();
    }
    EXPECT_EQ(fs::exists(path), kept);
    EXPECT_EQ(fs::is_empty(folder.path()), !kept);
  }
}

// A file size limit of the system stands for a full disk: the write that does not fit fails, the run goes on.
TEST(FileWriter, AFullDiskEndsTheRecordAndKeepsWhatWasThere) {
  const Folder folder;
  std::vector<std::byte> engine, step;
  append(small_engine(), engine);
  append(small_step(0), step);
  append(OutcomeFrame{0, {5}, {17}}, step);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  {
    auto writer = FileWriter::create(folder.path(), 1 << 20, engine);
    ASSERT_TRUE(writer.ok());
    (*writer)->keep();
    ASSERT_TRUE((*writer)->write_step(step));
    rlimit small = before;
    small.rlim_cur = static_cast<rlim_t>((*writer)->bytes()) + step.size() / 2;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    EXPECT_FALSE((*writer)->write_step(step));
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ((*writer)->ended(), Ended::disk);
    EXPECT_FALSE((*writer)->message().empty());
  }
  std::signal(SIGXFSZ, old);
  auto reader = FileReader::open(folder.path());
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ(reader->header().ended, Ended::disk);
  EXPECT_EQ(reader->header().steps, 1u);
}

// The header counts a step only once all of it is there, so a process that dies loses the step in progress.
TEST(FileWriter, WhatADeadProcessLeftIsReadUpToTheLastStep) {
  const Folder folder;
  {
    std::vector<std::byte> file = small_file(2);
    const auto header = encode_header({small_file(1).size(), 1, Ended::open});
    std::copy(header.begin(), header.end(), file.begin());
    file.resize(file.size() - 20);
    std::ofstream(folder.file(), std::ios::binary)
        .write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
  }
  auto reader = FileReader::open(folder.path());
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ(reader->header().ended, Ended::open);
  int frames = 0;
  for (auto frame = reader->next(); frame.ok() && *frame; frame = reader->next()) ++frames;
  EXPECT_EQ(frames, 3);
}

TEST(Shadow, WishesAreReadAndStepsAreChosenByTheirNumber) {
  const auto wish = parse_shadow("reference:0.25");
  ASSERT_TRUE(wish.ok());
  EXPECT_EQ(wish->backend, "reference");
  EXPECT_EQ(wish->fraction, 0.25);
  for (const char* bad :
       {"reference", ":0.5", "reference:", "reference:0", "reference:1.5", "reference:x", "r:nan"})
    EXPECT_FALSE(parse_shadow(bad).ok()) << bad;
  int chosen = 0;
  for (std::uint64_t step = 0; step < 10000; ++step) chosen += is_shadowed(step, 0.25) ? 1 : 0;
  EXPECT_NEAR(chosen, 2500, 200);
  for (std::uint64_t step = 0; step < 100; ++step) {
    EXPECT_TRUE(is_shadowed(step, 1));
    EXPECT_EQ(is_shadowed(step, 0.25), is_shadowed(step, 0.25));
    EXPECT_LE(is_shadowed(step, 0.1),
              is_shadowed(step, 0.2));  // a smaller fraction is a part of a larger one
  }
}

}  // namespace
}  // namespace quire::record
