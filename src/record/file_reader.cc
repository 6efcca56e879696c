#include "record/file_reader.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <utility>

#include "record/crc32c.h"

namespace quire::record {
namespace {

template <class Frame>
Result<Frame> named(Result<Frame> frame, const std::string& name) {
  if (frame.ok()) return frame;
  return Error{frame.error().code, fmt::format("{}: {}", name, frame.error().message)};
}

}  // namespace

Result<FileReader> FileReader::open(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / kFileName).string();
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    return bad_input(
        fmt::format("{} holds no record ({}): give the folder that --record wrote", folder, kFileName));
  QUIRE_TRY(mapped, checkpoint::MappedFile::open(path));
  QUIRE_TRY(reader, parse(mapped.bytes(), path));
  reader.mapped_ = std::move(mapped);
  return std::move(reader);
}

Result<FileReader> FileReader::parse(std::span<const std::byte> file, const std::string& name,
                                     ReaderOptions options) {
  QUIRE_TRY(header, decode_header(file, name));
  FileReader reader;
  reader.name_ = name;
  reader.options_ = options;
  reader.header_ = header;
  reader.rest_ = file.first(static_cast<std::size_t>(header.bytes)).subspan(kHeaderBytes);
  QUIRE_TRY(raw, reader.take());
  if (raw.kind != FrameKind::engine)
    return bad_input(
        fmt::format("{} does not begin with what ran it: the file is damaged, record again", name));
  QUIRE_TRY(engine, named(decode_engine(raw.payload), name));
  reader.engine_ = std::move(engine);
  return reader;
}

Result<FileReader::Raw> FileReader::take() {
  std::uint32_t head[2] = {};
  std::uint64_t bytes = 0;
  if (rest_.size() >= kFrameHeadBytes) {
    std::memcpy(head, rest_.data(), sizeof(head));
    std::memcpy(&bytes, rest_.data() + sizeof(head), sizeof(bytes));
  }
  if (rest_.size() < kFrameHeadBytes || bytes > rest_.size() - kFrameHeadBytes)
    return bad_input(fmt::format("{} ends inside a frame: the file is damaged, record again", name_));
  const Raw raw{static_cast<FrameKind>(head[0]),
                rest_.subspan(kFrameHeadBytes, static_cast<std::size_t>(bytes))};
  if (options_.checksums && crc32c(raw.payload) != head[1])
    return bad_input(
        fmt::format("{}: a frame's checksum is wrong: the file is damaged, record again", name_));
  rest_ = rest_.subspan(kFrameHeadBytes + static_cast<std::size_t>(bytes));
  return raw;
}

Result<std::optional<FileReader::Frame>> FileReader::next() {
  if (rest_.empty()) return std::optional<Frame>();
  QUIRE_TRY(raw, take());
  const auto misplaced = [&] {
    return bad_input(fmt::format("{}: frames are out of order: the file is damaged, record again", name_));
  };
  switch (raw.kind) {
    case FrameKind::step: {
      QUIRE_TRY(frame, named(decode_step(raw.payload), name_));
      if (in_step_) return misplaced();
      in_step_ = true;
      step_ = frame.step;
      return std::optional<Frame>(std::move(frame));
    }
    case FrameKind::call: {
      QUIRE_TRY(frame, named(decode_call(raw.payload, engine_), name_));
      if (!in_step_ || frame.step != step_) return misplaced();
      return std::optional<Frame>(std::move(frame));
    }
    case FrameKind::outcome: {
      QUIRE_TRY(frame, named(decode_outcome(raw.payload), name_));
      if (!in_step_ || frame.step != step_) return misplaced();
      in_step_ = false;
      return std::optional<Frame>(std::move(frame));
    }
    default:
      return bad_input(fmt::format("{}: a frame of unknown kind {}: the file is damaged, record again", name_,
                                   static_cast<std::uint32_t>(raw.kind)));
  }
}

}  // namespace quire::record
