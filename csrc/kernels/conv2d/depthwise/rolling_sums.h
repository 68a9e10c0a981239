// Sums of the rows of outputs that a row of x is part of. They move up by one row of outputs with each step, which costs
// nothing, as the first product of each is added to the one below.
#pragma once

#include "depthwise.h"

namespace hipconv {

HIPCONV_INLINE float multiply_add(float a, float b, float c) { return a * b + c; }

// Adds row j of a step to the sums of a channel, or of a pair of them, the oldest row of outputs first. `filter_at(tap)` is
// theirs; `counts(i)`: row i of outputs is wanted.
template <int kTaps, int kStride, typename Value, int kRows, int kColumns, typename Row, typename FilterAt, typename Counts>
HIPCONV_INLINE void add_row_of_x(Value (&sums)[kRows][kColumns], int j, const Row& x, Value bias, FilterAt filter_at,
                                 Counts counts) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        const int r = (kRows - 1 - i) * kStride + j;
        if (r >= kTaps || !counts(i)) continue;
        Value sum[kColumns];
#pragma unroll
        for (int q = 0; q < kColumns; ++q) sum[q] = j > 0 ? sums[i][q] : i + 1 < kRows ? sums[i + 1][q] : bias;
#pragma unroll
        for (int s = 0; s < kTaps; ++s) {
            const Value filter = filter_at(r * kTaps + s);
#pragma unroll
            for (int q = 0; q < kColumns; ++q) sum[q] = multiply_add(filter, x[q * kStride + s], sum[q]);
        }
#pragma unroll
        for (int q = 0; q < kColumns; ++q) sums[i][q] = sum[q];
    }
}

}  // namespace hipconv
