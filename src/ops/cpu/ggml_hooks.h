// What ggml's CPU backend and ggml.c would own and the files named in cmake/ggml.cmake need: the team hooks
// of the tiled products, the float tables, and how ggml fails.
#pragma once

#include <cstddef>

extern "C" {
// A product here always has one thread: a barrier is nothing and the next chunk is a plain count.
struct ggml_threadpool {
  int next_chunk;
};
// As ggml-cpu-impl.h declares it; that header is not for C++ of our own flags.
struct ggml_compute_params {
  int ith, nth;
  std::size_t wsize;
  void* wdata;
  ggml_threadpool* threadpool;
  bool use_ref;
};
}

namespace quire::ops::cpu {

// Before the first product. Always true.
bool fill_ggml_tables();

}  // namespace quire::ops::cpu
