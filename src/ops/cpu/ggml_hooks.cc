#include "ops/cpu/ggml_hooks.h"

#include <ggml-impl.h>
#include <ggml.h>

#include "base/check.h"

extern "C" {

float ggml_table_f32_f16[1 << 16];
float ggml_table_f32_e8m0_half[1 << 8];
float ggml_table_f32_ue4m3[1 << 8];

void ggml_barrier(ggml_threadpool*) {}
void ggml_threadpool_chunk_set(ggml_threadpool* pool, int value) { pool->next_chunk = value; }
int ggml_threadpool_chunk_add(ggml_threadpool* pool, int value) {
  const int chunk = pool->next_chunk;
  pool->next_chunk += value;
  return chunk;
}

void ggml_abort(const char* file, int line, const char* format, ...) {
  quire::check_failed(file, line, "inside ggml", format);
}
void ggml_log_internal(ggml_log_level, const char* format, ...) {
  quire::check_failed("ggml", 0, "ggml has something to say", format);
}

// Only ggml's validation and importance-weighted quantisers ask for these; Quire calls neither.
size_t ggml_type_size(ggml_type type) {
  quire::check_failed("ggml", 0, "ggml_type_size is not used",
                      fmt::format("type {}", static_cast<int>(type)));
}
size_t ggml_row_size(ggml_type type, int64_t count) {
  quire::check_failed("ggml", 0, "ggml_row_size is not used",
                      fmt::format("type {} x {}", static_cast<int>(type), count));
}
const char* ggml_type_name(ggml_type type) {
  quire::check_failed("ggml", 0, "ggml_type_name is not used",
                      fmt::format("type {}", static_cast<int>(type)));
}
}

namespace quire::ops::cpu {

bool fill_ggml_tables() {
  for (unsigned i = 0; i < (1u << 16); ++i) {
    ggml_table_f32_f16[i] = GGML_COMPUTE_FP16_TO_FP32(static_cast<ggml_fp16_t>(i));
  }
  for (unsigned i = 0; i < (1u << 8); ++i) {
    ggml_table_f32_e8m0_half[i] = GGML_E8M0_TO_FP32_HALF(static_cast<std::uint8_t>(i));
    ggml_table_f32_ue4m3[i] = ggml_ue4m3_to_fp32(static_cast<std::uint8_t>(i));
  }
  return true;
}

}  // namespace quire::ops::cpu
