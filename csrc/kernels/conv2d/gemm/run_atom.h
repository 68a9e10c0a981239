// This is shared by kernels whose blocks bring all filters to LDS once, and whose waves each go their own way through the
// pixels, 16 at a time (`pointwise`, `few_products`, `few_filters`): a matrix instruction whose lanes get the sums of
// consecutive filters, or pixels, which they store from registers as vectors. Which filter, or pixel, is which column of it is
// free.
#pragma once

#include "epilogue.h"
#include "launch/check.h"
#include "matrix/chunk_mma.h"

namespace hipconv {

constexpr int kRunThreads = 256;
constexpr int kRunPixels = 16;   // of a wave, at once
constexpr int kRunFilters = 32;  // whose sums a wave makes at once
constexpr int kRunPiece = 32;    // products

// RDNA 3's lanes read operands twice, and have no registers for that.
template <typename T>
constexpr bool kHasRunAtom = matrix_unit_of<T>() != MatrixUnit::fma && matrix_unit_of<T>() != MatrixUnit::wmma11;

// The matrix instruction as this kernel sees it: a lane has sums of kPixels pixels, row(lane, i), each of kFilters consecutive
// filters of an atom's 16, if these are numbered by filter_of_column.
template <typename T>
struct RunAtom {
    using A = WaveAtom<matrix_unit_of<T>(), T>;
    static constexpr MatrixUnit kUnit = matrix_unit_of<T>();
    static constexpr int kPixels = A::kRows, kElements = sizeof(typename A::Sums) / sizeof(float);
    static constexpr int kFilters = kElements / kPixels, kLanes = 16 / kFilters;  // lanes: that share a pixel

    static HIPCONV_INLINE int lane_of_filters(int lane) { return kUnit == MatrixUnit::mma_sync ? lane % 4 : lane / 16; }
    // The filter of a column, counted from those of kAtoms atoms.
    template <int kAtoms>
    static HIPCONV_INLINE int filter_of_column(int atom, int column) {
        int owner = column / kFilters, of_owner = column % kFilters;
        if constexpr (kUnit == MatrixUnit::mma_sync) owner = column % 8 / 2, of_owner = column / 8 * 2 + column % 2;
        return owner * kAtoms * kFilters + atom * kFilters + of_owner;
    }
    // The pixel and the filter of a lane's sum.
    static HIPCONV_INLINE constexpr int pixel_of(int e) { return kUnit == MatrixUnit::mma_sync ? e / 2 % 2 : 0; }
    static HIPCONV_INLINE constexpr int filter_of(int e) { return kUnit == MatrixUnit::mma_sync ? e / 4 * 2 + e % 2 : e; }

    template <typename Like, typename Operand>
    static HIPCONV_INLINE void multiply(typename A::Sums& sums, const Operand& pixels, const Operand& filters) {
        WaveAtom<matrix_unit_of<Like>(), Like>::multiply_chunks(sums, pixels, filters);  // T, or what it stands for
    }
};

// The chunks of all products of a lane's pixels.
template <typename A, int kSteps>
struct PixelChunks {
    Words4 chunks[kSteps][A::kRows][A::kChunks];
};

// Brings the bias of so many filters to LDS, zeros where there is none.
HIPCONV_INLINE void stage_bias(const Conv2dParams& c, float* bias, int count, int thread) {
    for (int k = thread; k < count; k += kRunThreads)
        bias[k] =
            c.bias && k < c.out_channels ? load_parameter(global_pointer<void>(c.bias), k * c.bias_stride, c.bias_dtype) : 0.0f;
}

// Finishes and stores eight sums of a pixel one by one or in pairs, of `count` filters.
HIPCONV_INLINE void store_eight_by_elements(const Conv2dParams& c, const float (&v)[8], int64_t out, int64_t residual,
                                            int count) {
    const bool pairs = c.out_dtype != DType::f32 && !c.residual.data && c.activation == Conv2dActivation::none;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        if (i >= count) continue;
        if (pairs) {
            const Pair pair = make_pair(canonical_nan(v[i]), canonical_nan(v[i + 1]));
            *global_pointer<uint32_t>(reinterpret_cast<uint64_t>(c.out.data) + (out + i) * 2) =
                c.out_dtype == DType::bf16 ? pack<bf16>(pair) : pack<f16>(pair);
            continue;
        }
#pragma unroll
        for (int e = i; e < i + 2; ++e) {
            float sum = v[e];
            if (c.residual.data) sum += load_parameter(global_pointer<void>(c.residual.data), residual + e, c.residual_dtype);
            store_rounded(global_pointer<void>(c.out.data), out + e, c.out_dtype, activate(sum, c.activation));
        }
    }
}

// Finishes and stores eight sums of a pixel, from `filter` on.
HIPCONV_INLINE void store_finished_eight(const Conv2dParams& c, float (&v)[8], int64_t out, int64_t residual, int filter,
                                         bool by_vectors) {
    if (!by_vectors) return store_eight_by_elements(c, v, out, residual, c.out_channels - filter);
    if (c.residual.data) {
        float more[8];
        load_eight(more, c.residual.data, residual, c.residual_dtype);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] += more[i];
    }
    activate_eight(v, c.activation);
    store_eight(v, c.out.data, out, c.out_dtype);
}

// Calls store(v, i, eight) for all sums of a lane, of two atoms: for its pixel i and the eight filters behind its first
// `eight`, at once.
template <typename P, typename Store>
HIPCONV_INLINE void for_each_eight(const typename P::A::Sums (&sums)[2], Store store) {
#pragma unroll
    for (int i = 0; i < P::kPixels; ++i)
#pragma unroll
        for (int eight = 0; eight < 2 * P::kFilters; eight += 8) {
            float v[8];
#pragma unroll
            for (int atom = 0; atom < 2; ++atom)
#pragma unroll
                for (int e = 0; e < P::kElements; ++e) {
                    const int of_lane = atom * P::kFilters + P::filter_of(e) - eight;
                    if (P::pixel_of(e) == i && of_lane >= 0 && of_lane < 8) v[of_lane] = sums[atom][e];
                }
            store(v, i, eight);
        }
}

}  // namespace hipconv
