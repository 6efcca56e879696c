// What of JSON schema an answer can be held to, and how much of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace quire::grammar {

inline constexpr std::size_t kSchemaDepthMax = 32;     // of the schema's own JSON
inline constexpr std::int64_t kRepetitionsMax = 1000;  // minLength, maxItems, ...: each becomes states
inline constexpr std::size_t kSchemaNodesMax = 2000;   // schemas within the schema
inline constexpr std::size_t kPatternBytesMax = 500;
inline constexpr std::int64_t kMultipleMax = 1024;

// Refuses what is not a JSON object or `true`, is over a limit, or names a keyword that would not be enforced
// (of a pattern: looking around, back references, word boundaries, classes of Unicode, anchors within): not,
// if/then/else, dependent*, uniqueItems, contains, allOf of several, and keywords beside $ref, anyOf, oneOf
// or allOf that these would hide, rules without the type that they are for, and multipleOf but of integers
// without bounds. Keywords that JSON schema does not define mean nothing, as it says. oneOf is read as anyOf:
// schemas that overlap may give an answer that more than one of them accepts. Messages begin with the place
// of what they are about, a JSON pointer for which `root` stands first: it says to a reader in which schema.
Status check_schema(std::string_view schema, std::string_view root = "#");

}  // namespace quire::grammar
