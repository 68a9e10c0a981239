// Behind the sums of a depthwise convolution come these: residual, activation, one rounding, and the store of a few columns of
// outputs.
#pragma once

#include "../common/epilogue.h"
#include "depthwise.h"

namespace hipconv {

template <int kColumns>
HIPCONV_INLINE void activate_pairs(Pair (&v)[kColumns], Conv2dActivation activation) {
    with_activation(activation, [&](Conv2dActivation kind) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) v[i] = make_pair(activate(low(v[i]), kind), activate(high(v[i]), kind));
    });
}

template <typename Memory>
HIPCONV_INLINE void store_global(char* address, Memory value) {
    *global_pointer<Memory>(address) = value;
}

// Stores pairs by two elements of type T at a time: both channels of a column (across), or two columns of a channel.
template <typename T, bool kAcross, int kColumns>
HIPCONV_INLINE void store_vectors(const Pair (&v)[kColumns], const DepthwiseParams& p, char* out, int columns) {
    const auto store = [](char* at, Pair pair) {
        Words<T, 2> words{};
        set_pair<T>(words, 0, pair);
        store_global(at, words);
    };
    if constexpr (kAcross) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            if (i < columns) store(out + static_cast<uint64_t>(p.out_step) * static_cast<uint32_t>(i), v[i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < kColumns; i += 2) {
            if (i >= columns) continue;
            char* const at = out + i * static_cast<int>(sizeof(T));
            store(at, make_pair(low(v[i]), low(v[i + 1])));
            store(at + p.out_channel, make_pair(high(v[i]), high(v[i + 1])));
        }
    }
}

// Where a thread writes a row: the address of its first column, and how many columns and channels there are.
struct RowTarget {
    char* first;
    int columns, channels;
};

// Finishes and stores pairs whose bias is added already: outputs of image n, channel k, row and column.
template <bool kAcross, int kColumns>
HIPCONV_INLINE void store_pairs(const DepthwiseParams& parameter, Pair (&v)[kColumns], const RowTarget& to, int n, int k,
                                int row, int column) {
    const DepthwiseParams& p = first_parameter_again(parameter);
    if (p.has_residual) {
        const Image& residual = p.conv.residual;
        const int64_t first = offset_in(residual, n, k, row, column), next = to.channels > 1 ? residual.channel_stride : 0;
        float of_first[kColumns], of_second[kColumns];
#pragma unroll
        for (int i = 0; i < kColumns; ++i) of_first[i] = low(v[i]), of_second[i] = high(v[i]);
        add_each(of_first, to.columns, residual.data, first, residual.column_stride, p.conv.residual_dtype);
        add_each(of_second, to.columns, residual.data, first + next, residual.column_stride, p.conv.residual_dtype);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) v[i] = make_pair(of_first[i], of_second[i]);
    }
    if (p.conv.activation != Conv2dActivation::none) activate_pairs(v, p.conv.activation);
    const auto store = [&](auto type) {
        using T = decltype(type);
        if (p.out_by_vectors) return store_vectors<T, kAcross>(v, p, to.first, to.columns);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            if (i >= to.columns) continue;
            char* const at = to.first + static_cast<uint64_t>(p.out_step) * static_cast<uint32_t>(i);
            store_global(at, from_float<T>(low(v[i])));
            if (to.channels > 1) store_global(at + p.out_channel, from_float<T>(high(v[i])));
        }
    };
    if (p.conv.out_dtype != DType::f32) {
        if (p.conv.dtype == DType::f32) {  // whose NaN may have its bits where rounding would lose them
#pragma unroll
            for (int i = 0; i < kColumns; ++i) v[i] = make_pair(canonical_nan(low(v[i])), canonical_nan(high(v[i])));
        }
    }
    with_dtype(p.conv.out_dtype, store);
}

}  // namespace hipconv
