// The end of outputs of a column that a thread has made: residual, activation, one rounding, and the store.
#pragma once

#include "epilogue.h"

namespace hipconv {

// Where outputs of a column, or what is added to them, lie in memory: elements to the first one, and from each to the next.
struct ColumnPlace {
    int64_t first, next;
};

// Finishes and stores the first `rows` outputs of a column, whose bias is added already. The struct may be one that
// first_parameter_again gave.
template <int kRows>
HIPCONV_INLINE void store_rows(const Conv2dParams& c, float (&v)[kRows], int rows, ColumnPlace to, ColumnPlace residual) {
    if (c.residual.data) add_each(v, rows, c.residual.data, residual.first, residual.next, c.residual_dtype);
    with_activation(c.activation, [&](Conv2dActivation kind) {
#pragma unroll
        for (int q = 0; q < kRows; ++q) v[q] = activate(v[q], kind);
    });
    if (c.dtype == DType::f32 && c.out_dtype != DType::f32) {  // whose NaN may have its bits where rounding would lose them
#pragma unroll
        for (int q = 0; q < kRows; ++q) v[q] = canonical_nan(v[q]);
    }
    with_dtype(c.out_dtype, [&](auto type) {
        using T = decltype(type);
        char* out = static_cast<char*>(c.out.data) + to.first * static_cast<int64_t>(sizeof(T));
        const int64_t next = to.next * static_cast<int64_t>(sizeof(T));
#pragma unroll
        for (int q = 0; q < kRows; ++q) {
            if (q < rows) *global_pointer<T>(out) = from_float<T>(v[q]);
            out += next;
        }
    });
}

}  // namespace hipconv
