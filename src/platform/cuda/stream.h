// What the host side of a kernel needs of the CUDA platform: the stream to launch on, and the check of every
// call. ops/cuda and the CUDA rows of attention include this; nobody else. Usable from .cu and .cc files.
//
//   kernel<<<grid, block, shared, native(stream)>>>(...);
//   QUIRE_CUDA_CHECK(cudaGetLastError());
#pragma once

#include <cuda_runtime_api.h>

#include "platform/platform.h"

namespace quire::platform::cuda {

// The stream's handle; makes its device the calling thread's current one. REQUIRES: a stream of a CUDA
// device.
cudaStream_t native(Stream& stream);

// Prints the call, what CUDA says and the crash note (the ledger), and aborts: a failing call is a bug of
// ours or broken hardware. An error of earlier asynchronous work can surface at any later call.
[[noreturn]] void fail(const char* file, int line, const char* call, cudaError_t error);

}  // namespace quire::platform::cuda

// Every call of the CUDA runtime but those whose failure is a legal answer.
#define QUIRE_CUDA_CHECK(call)                                               \
  do {                                                                       \
    if (const cudaError_t cuda_error_ = (call); cuda_error_ != cudaSuccess)  \
      ::quire::platform::cuda::fail(__FILE__, __LINE__, #call, cuda_error_); \
  } while (false)
