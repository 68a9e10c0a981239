// The inner part of the depthwise kernel: adds a row of x, times a row of filters, to a thread's sums.
#pragma once

#include "device/vec.h"
#include "params.h"

namespace hipconv {

// The elements of an aligned vector, or zeros. `safe` is an address that may be read.
template <typename T>
HIPCONV_INLINE void load_vector(float* v, uint64_t address, bool inside, uint64_t safe) {
    const Words4 loaded = *global_pointer<const Words4>(inside ? address : safe);
    Words4 words{};
#pragma unroll
    for (int i = 0; i < 4; ++i) set_word(words, i, inside ? word(loaded, i) : 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (sizeof(T) == 4) {
            v[i] = bit_cast<float>(word(words, i));
        } else {
            const Pair pair = pair_of<T>(words, i);
            v[2 * i] = low(pair);
            v[2 * i + 1] = high(pair);
        }
    }
}

// A row of x that a thread's outputs see: where it begins, and how its columns lie.
template <typename T>
struct DepthwiseRow {
    static constexpr int kEach = 16 / static_cast<int>(sizeof(T));  // of a vector

    uint64_t address;       // of the thread's first channel in column 0
    int64_t column_stride;  // bytes
    int first, last;        // the column of the first tap of the first output, and the last that any output sees
    int width;
    PaddingMode mode;

    template <int kUnit>
    HIPCONV_INLINE void load(float (&v)[kUnit], int column) const {
        int at = column < last ? column : last;  // outputs behind the last one are not stored
        if (mode != PaddingMode::zeros) at = static_cast<int>(padded_index(at, width, mode));
        const bool inside = static_cast<uint32_t>(at) < static_cast<uint32_t>(width);
        const uint64_t place = address + (inside ? at * column_stride : int64_t{0});
        if constexpr (kUnit == 1) {
            const float element = to_float(*global_pointer<const T>(place));
            v[0] = inside ? element : 0.0f;
        } else {
#pragma unroll
            for (int i = 0; i < kUnit; i += kEach) load_vector<T>(v + i, place + i * sizeof(T), inside, address);
        }
    }

    // The columns beside a column that begins a vector, from kEach in front of it on; a vector lies within the row or outside.
    template <int kCount>
    HIPCONV_INLINE void load_columns(float (&v)[kCount], int column) const {
#pragma unroll
        for (int i = 0; i < kCount; i += kEach) {
            const int at = column - kEach + i;
            const bool inside = static_cast<uint32_t>(at) < static_cast<uint32_t>(width);
            load_vector<T>(v + i, address + at * static_cast<int64_t>(sizeof(T)), inside, address);
        }
    }
};

template <int kUnit>
HIPCONV_INLINE void load_filter(float (&f)[kUnit], const float* lds) {
    if constexpr (kUnit == 1) {
        f[0] = lds[0];
    } else {
#pragma unroll
        for (int i = 0; i < kUnit; i += 4) {
            const Words4 words = reinterpret_cast<const Words4*>(lds)[i / 4];
#pragma unroll
            for (int k = 0; k < 4; ++k) f[i + k] = bit_cast<float>(word(words, k));
        }
    }
}

template <int kUnit, int kColumns, int kLoaded>
HIPCONV_INLINE void add_tap(float (&sums)[kColumns][kUnit], const float* filters, const float (&values)[kLoaded][kUnit],
                            int first) {
    float filter[kUnit];
    load_filter(filter, filters);
#pragma unroll
    for (int q = 0; q < kColumns; ++q)
#pragma unroll
        for (int c = 0; c < kUnit; ++c) sums[q][c] = fmaf(filter[c], values[first + q][c], sums[q][c]);
}

// Outputs are `stride` columns apart and taps `dilation`; a tap's filters are `pitch` floats behind those of the one before.
template <typename T, int kUnit, int kColumns>
HIPCONV_INLINE void add_row(float (&sums)[kColumns][kUnit], const DepthwiseRow<T>& row, const float* filters, int pitch,
                            int taps, int stride, int dilation) {
    constexpr int kAtOnce = 3, kKept = kColumns - 1;  // taps whose loads are under way together; columns of the taps before
    if (stride != dilation) {
#pragma unroll 1
        for (int s = 0; s < taps; ++s) {
            float values[kColumns][kUnit];
#pragma unroll
            for (int q = 0; q < kColumns; ++q) row.load(values[q], row.first + q * stride + s * dilation);
            add_tap(sums, filters + s * pitch, values, 0);
        }
        return;
    }
    float window[kKept + kAtOnce][kUnit];
#pragma unroll
    for (int q = 0; q < kKept; ++q) row.load(window[kAtOnce + q], row.first + q * stride);
#pragma unroll 1
    for (int s = 0; s < taps; s += kAtOnce) {
#pragma unroll
        for (int q = 0; q < kKept; ++q)
#pragma unroll
            for (int c = 0; c < kUnit; ++c) window[q][c] = window[kAtOnce + q][c];
#pragma unroll
        for (int t = 0; t < kAtOnce; ++t) row.load(window[kKept + t], row.first + (kKept + s + t) * stride);
#pragma unroll
        for (int t = 0; t < kAtOnce; ++t)
            if (s + t < taps) add_tap(sums, filters + (s + t) * pitch, window, t);
    }
}

// The same with stride and dilation 1 where vectors are columns; `pad` columns of padding stand before the first.
template <typename T, int kColumns>
HIPCONV_INLINE void add_row_of_vectors(float (&sums)[kColumns][1], const DepthwiseRow<T>& row, const float* filters, int pitch,
                                       int taps, int pad) {
    constexpr int kEach = DepthwiseRow<T>::kEach;
    static_assert(kDepthwiseHalo <= kEach && kColumns % kEach == 0, "whole vectors");
    float window[kColumns + 2 * kEach];
    row.load_columns(window, row.first + pad);
#pragma unroll
    for (int d = -kDepthwiseHalo; d <= kDepthwiseHalo; ++d) {
        const int s = d + pad;
        if (s < 0 || s >= taps) continue;
        const float filter = filters[s * pitch];
#pragma unroll
        for (int q = 0; q < kColumns; ++q) sums[q][0] = fmaf(filter, window[kEach + q + d], sums[q][0]);
    }
}

}  // namespace hipconv
