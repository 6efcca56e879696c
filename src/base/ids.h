// Strong ids: four bytes, compared and printed, never mixed up. Never a bare int across a module border.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace quire {

template <class Tag>
struct StrongId {
  std::uint32_t value = 0;
  friend auto operator<=>(const StrongId&, const StrongId&) = default;
};

using PageId = StrongId<struct PageTag>;     // a page of one KV group; page 0 is reserved (kv/)
using SequenceId = StrongId<struct SeqTag>;  // one running or waiting sequence, never reused
using SlotId = StrongId<struct SlotTag>;     // a row of the device-side sequence state; slot 0 is padding
using GroupId = StrongId<struct GroupTag>;   // a KV group of the model, 0..groups-1

inline constexpr PageId kPaddingPage{0};
inline constexpr SlotId kPaddingSlot{0};

}  // namespace quire

template <class Tag>
struct std::hash<quire::StrongId<Tag>> {
  std::size_t operator()(quire::StrongId<Tag> id) const { return std::hash<std::uint32_t>()(id.value); }
};
