// The launches of the causal conv1d's kernels share these helpers. The file is for files that include <hip/hip_runtime.h>.
#pragma once

#include <type_traits>

#include "device/dtype.h"

namespace hipconv {

// Calls f with a value of the element type and with the width, from kLeastWidth to kMostWidth, as an integral_constant: kernels
// are compiled for both.
template <int kMostWidth, int kLeastWidth = 2, typename F>
void with_instance(DType dtype, int width, F f) {
    if constexpr (kMostWidth > kLeastWidth) {
        if (width < kMostWidth) return with_instance<kMostWidth - 1, kLeastWidth>(dtype, width, f);
    }
    with_dtype(dtype, [&](auto type) { f(type, std::integral_constant<int, kMostWidth>{}); });
}

// The same of kernels that are compiled for the width, from 1 to kMostWidth.
template <int kMostWidth, typename F>
void with_width(int width, F f) {
    if constexpr (kMostWidth > 1) {
        if (width < kMostWidth) return with_width<kMostWidth - 1>(width, f);
    }
    f(std::integral_constant<int, kMostWidth>{});
}

// The same of kernels that serve two widths each, the even one given and the odd one below it.
template <int kMostWidth, typename F>
void with_even_width(int width, F f) {
    if constexpr (kMostWidth > 2) {
        if (width <= kMostWidth - 2) return with_even_width<kMostWidth - 2>(width, f);
    }
    f(std::integral_constant<int, kMostWidth>{});
}

constexpr int64_t kOffsetLimit = int64_t{1} << 31;  // the limit of a lane's 32-bit byte offset
constexpr int kEnoughThreads = 1 << 17;             // fill a large card; with fewer, a thread does less

// Returns how many threads side by side serve `size` elements: short rows share a block.
inline unsigned power_of_two_up_to(int64_t size, unsigned limit) {
    unsigned threads = 1;
    while (threads < limit && threads < size) threads *= 2;
    return threads;
}

// Returns how many blocks of `each` elements cover `size`, within the grid's limit; kernels loop over what is left.
inline unsigned blocks_up_to(int64_t size, int64_t each, int64_t limit) {
    const int64_t blocks = (size + each - 1) / each;
    return static_cast<unsigned>(blocks < limit ? blocks : limit);
}

// A grid of x by at least `rest` blocks, numbered blockIdx.z * gridDim.y + blockIdx.y: y and z end at 65,535 on NVIDIA, and AMD
// counts the threads along a dimension in 32 bits.
constexpr int64_t kGridLimit = 1 << 24;

inline dim3 grid_of(int64_t x, int64_t rest) {
    const unsigned y = blocks_up_to(rest, 1, 65535);
    return dim3(static_cast<unsigned>(x), y, blocks_up_to(rest, y, 65535));
}

}  // namespace hipconv
