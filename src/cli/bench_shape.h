// Shapes of `bench attention` as text: heads=32/8,dim=128,batch=1,ctx=8192,q=1.
#pragma once

#include <string>
#include <vector>

#include "attention/bench/bench.h"

namespace quire::cli {

// Unsaid parts are those of bench::Shape. dim=QK/V; 576/512 with one KV head is the latent form.
Result<attention::bench::Shape> parse_bench_shape(const std::string& text);
std::vector<std::string> default_bench_shapes();
Result<KvFormat> bench_kv_format(const std::string& kv_dtype);

}  // namespace quire::cli
