// Shapes of `bench attention` as text: heads=32/8,dim=128,batch=1,ctx=8192,q=1.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attention/bench/bench.h"
#include "cli/settings.h"

namespace quire::cli {

// Unsaid parts are those of bench::Shape. dim=QK/V; 576/512 with one KV head is the latent form.
Result<attention::bench::Shape> parse_bench_shape(const std::string& text);
std::vector<std::string> default_bench_shapes();

// --page-size 1,16,64, which may repeat. `target` holds the default, and outlives the settings.
void add_page_sizes(Settings& settings, std::vector<int>* target);

// Every shape with every page size, for the rows called `backend`; "all": every row but the oracle, which is
// only timed when it is asked for by name.
Result<std::vector<attention::bench::CellSpec>> bench_cells(const std::string& backend,
                                                            const std::vector<std::string>& shapes,
                                                            const std::vector<int>& page_sizes,
                                                            const std::string& kv_dtype,
                                                            std::span<const attention::Backend> table);

}  // namespace quire::cli
