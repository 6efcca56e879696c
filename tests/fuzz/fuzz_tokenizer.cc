// tokenizer.json from any bytes; what loads must encode and decode without harm.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto made = quire::tokenizer::Tokenizer::from_json(text);
  if (!made) return 0;
  const std::string_view sample = text.substr(0, 200);
  const std::string_view words =
      "Hello  world's 1234, na\xC3\xAFve \xE4\xB8\xAD\xE6\x96\x87 \xFF<|im_end|>\n\n";
  for (const std::string_view input : {words, sample}) {
    const auto ids = made->encode(input, {});
    if (!ids) continue;
    const std::string whole = made->decode(*ids, false);
    quire::tokenizer::Detokenizer stream(*made, false);
    std::string joined;
    for (const auto id : *ids) joined += stream.push(id);
    joined += stream.flush();
    QUIRE_CHECK(joined == whole, "the stream gives {} bytes, decode {}", joined.size(), whole.size());
  }
  return 0;
}
