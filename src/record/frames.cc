#include "record/frames.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <limits>

#include "record/check.h"
#include "record/codec.h"
#include "record/crc32c.h"

namespace quire::record {
namespace {

constexpr std::array<char, 8> kMagic = {'Q', 'U', 'I', 'R', 'E', 'R', 'E', 'C'};

// ---- the fields, in the order of the file ---------------------------------------------------------------

template <class Coder>
void fields(Coder& c, KvFormat& f) {
  c(f.k_type), c(f.v_type), c(f.scale), c(f.packing), c(f.tokens_per_entry), c(f.section_count);
  for (KvSection& section : f.sections) c(section.type), c(section.dims);
}

template <class Coder>
void fields(Coder& c, attention::Problem& p) {
  c(p.platform), c(p.arch), c(p.phase), c(p.q_heads), c(p.kv_heads), c(p.qk_dim), c(p.v_dim), c(p.q_type);
  fields(c, p.kv);
  c(p.page_size), c(p.order), c(p.source), c(p.mask), c(p.features);
}

template <class Coder>
void fields(Coder& c, EngineFrame& f) {
  c(f.program), c(f.architecture), c(f.device), c(f.threads), c(f.page_size), c(f.max_context);
  c.list(f.calls, [](auto& coder, RecordedCall& call) {
    coder(call.name), coder(call.backend), coder(call.group), coder(call.level);
    fields(coder, call.problem);
  });
}

template <class Coder>
void fields(Coder& c, StepFrame& f) {
  c(f.step), c(f.decode_rows), c(f.verify_rows), c(f.extend_rows), c(f.total_q);
  c.list(f.rows, [](auto& coder, RecordedRow& r) {
    coder(r.sequence), coder(r.slot), coder(r.kind), coder(r.input), coder(r.opens_slot),
        coder(r.yields_token);
    coder(r.first_row), coder(r.query_begin), coder(r.query_count), coder(r.visible), coder(r.allocated);
    coder(r.logits_begin), coder(r.logits_count), coder(r.output_index);
  });
  c.list(f.starts, [](auto& coder, RecordedStart& s) {
    coder(s.sequence), coder(s.prompt_tokens), coder(s.max_new_tokens), coder(s.seed),
        coder(s.sequence_index);
    coder(s.temperature), coder(s.top_k), coder(s.top_p), coder(s.min_p), coder(s.repetition_penalty);
    coder(s.frequency_penalty), coder(s.presence_penalty), coder(s.bias_token), coder(s.bias);
  });
  c.list(f.updates, [](auto& coder, RecordedUpdate& u) {
    coder(u.group), coder(u.slot), coder(u.entry), coder(u.page);
  });
  c(f.retracted);
}

template <class Coder>
void fields(Coder& c, OutcomeFrame& f) {
  c(f.step), c(f.tokens), c(f.sampled);
}

template <class Coder>
void fields(Coder& c, CallFrame& f) {
  c(f.step), c(f.call), c(f.layer), c(f.first_token);
  c(f.total_q), c(f.max_q), c(f.max_kv), c(f.mask), c(f.mask_width);
  c(f.q_offsets), c(f.kv_lens), c(f.table), c(f.kv_offsets), c(f.row_begin), c(f.row_end);
  c(f.tree_bits), c(f.tree_words), c(f.tree_base), c(f.tree_depth), c(f.part_begin), c(f.part_end);
  c(f.scale), c(f.q_descale), c(f.softcap), c(f.sink), c(f.k_scale), c(f.v_scale);
  c(f.sparse), c(f.index_heads), c(f.sparse_k), c(f.q), c(f.out), c(f.lse);
  c.list(f.kv, [](auto& coder, KvRows& rows) {
    coder(rows.page), coder(rows.begin), coder(rows.count);
    coder(rows.k), coder(rows.v), coder(rows.k_scale), coder(rows.v_scale);
  });
  c(f.dense_k), c(f.dense_v);
}

template <class Frame>
void append_frame(FrameKind kind, const Frame& frame, std::vector<std::byte>& out) {
  const std::size_t begin = out.size();
  out.resize(begin + kFrameHeadBytes);
  Encoder encoder(out);
  fields(encoder, const_cast<Frame&>(frame));  // an encoder only reads
  const std::size_t payload = begin + kFrameHeadBytes;
  const std::uint32_t head[2] = {static_cast<std::uint32_t>(kind), crc32c(std::span(out).subspan(payload))};
  const std::uint64_t bytes = out.size() - payload;
  std::memcpy(out.data() + begin, head, sizeof(head));
  std::memcpy(out.data() + begin + sizeof(head), &bytes, sizeof(bytes));
}

template <class Frame>
Result<Frame> decode_frame(std::span<const std::byte> payload, std::string_view what) {
  Frame frame;
  Decoder decoder(payload);
  fields(decoder, frame);
  if (!decoder.at_end())
    return bad_input(fmt::format(
        "the {} frame of {} bytes does not hold what it announces: the file is damaged, record again", what,
        payload.size()));
  return frame;
}

}  // namespace

std::string_view to_string(Ended ended) {
  switch (ended) {
    case Ended::open:
      return "not closed";
    case Ended::complete:
      return "complete";
    case Ended::limit:
      return "at the size limit";
    case Ended::disk:
      return "by a failed write";
  }
  return "unknown";
}

bool is_latent(const attention::Problem& problem) {
  return (problem.features & attention::kLatent) != 0 && problem.source == attention::KvSource::paged;
}

std::int64_t fixed_scales(const attention::Problem& problem) {
  if (problem.kv.scale == KvScaleKind::tensor) return 1;
  return problem.kv.scale == KvScaleKind::layer_head ? problem.kv_heads : 0;
}

std::int64_t k_row_bytes(const attention::Problem& problem) {
  return problem.qk_dim * static_cast<std::int64_t>(dtype_bytes(problem.kv.k_type));
}

std::int64_t v_row_bytes(const attention::Problem& problem) {
  return problem.v_dim * static_cast<std::int64_t>(dtype_bytes(problem.kv.v_type));
}

void append(const EngineFrame& frame, std::vector<std::byte>& out) {
  append_frame(FrameKind::engine, frame, out);
}
void append(const StepFrame& frame, std::vector<std::byte>& out) {
  append_frame(FrameKind::step, frame, out);
}
void append(const OutcomeFrame& frame, std::vector<std::byte>& out) {
  append_frame(FrameKind::outcome, frame, out);
}
void append(const CallFrame& frame, std::vector<std::byte>& out) {
  append_frame(FrameKind::call, frame, out);
}

Result<EngineFrame> decode_engine(std::span<const std::byte> payload) {
  QUIRE_TRY(frame, decode_frame<EngineFrame>(payload, "engine"));
  QUIRE_TRY_STATUS(check(frame));
  return std::move(frame);
}

Result<StepFrame> decode_step(std::span<const std::byte> payload) {
  QUIRE_TRY(frame, decode_frame<StepFrame>(payload, "step"));
  QUIRE_TRY_STATUS(check(frame));
  return std::move(frame);
}

Result<OutcomeFrame> decode_outcome(std::span<const std::byte> payload) {
  return decode_frame<OutcomeFrame>(payload, "outcome");
}

Result<CallFrame> decode_call(std::span<const std::byte> payload, const EngineFrame& engine) {
  QUIRE_TRY(frame, decode_frame<CallFrame>(payload, "call"));
  QUIRE_TRY_STATUS(check(frame, engine));
  return std::move(frame);
}

// ---- the header -----------------------------------------------------------------------------------------

std::vector<std::byte> encode_header(const Header& header) {
  std::vector<std::byte> out;
  Encoder encoder(out);
  for (const char c : kMagic) encoder(c);
  encoder(kVersion), encoder(header.ended), encoder(header.bytes), encoder(header.steps);
  out.resize(kHeaderBytes - sizeof(std::uint32_t));
  encoder(crc32c(out));
  return out;
}

Result<Header> decode_header(std::span<const std::byte> file, std::string_view name) {
  if (file.size() < kHeaderBytes || std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0)
    return bad_input(fmt::format("{} is no record: give the folder that --record wrote", name));
  Decoder decoder(file.subspan(kMagic.size(), kHeaderBytes - kMagic.size()));
  std::uint32_t version = 0;
  Header header;
  decoder(version), decoder(header.ended), decoder(header.bytes), decoder(header.steps);
  if (version != kVersion)
    return bad_input(
        fmt::format("{} is a record of version {}, this program reads version {}: record again, or "
                    "use the program that wrote it",
                    name, version, kVersion));
  std::uint32_t checksum = 0;
  std::memcpy(&checksum, file.data() + kHeaderBytes - sizeof(checksum), sizeof(checksum));
  if (checksum != crc32c(file.first(kHeaderBytes - sizeof(checksum))))
    return bad_input(
        fmt::format("{}: the header's checksum is wrong, the file is damaged: record again", name));
  if (header.bytes < kHeaderBytes || header.bytes > file.size())
    return bad_input(fmt::format("{} is truncated: {} bytes of {}: record again, or copy it whole", name,
                                 file.size(), header.bytes));
  return header;
}

}  // namespace quire::record
