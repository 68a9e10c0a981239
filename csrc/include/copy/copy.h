// The yardstick: copying the same bytes, which is the least that a memory-bound kernel can do. Used by the benchmarks.
#pragma once

#include <cstdint>

namespace hipconv {

// Defined in csrc/kernels and in csrc/cpu; both pointers are aligned to 16 bytes and `bytes` is a multiple of 16.
void copy(void* to, const void* from, int64_t bytes, void* stream);

}  // namespace hipconv
