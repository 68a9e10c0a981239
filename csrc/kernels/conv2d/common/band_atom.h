// The matrix instruction as `depthwise_banded`, `depthwise_strips` and `depthwise_rolling` see it: 16 rows of outputs by
// kColumns columns, from kDepth columns of x.
//
// A lane has kRows rows, row(lane, i), of x and of sums. Word w of x is a pair of columns (of f32 a column) of number x_row(w)
// of them: of a window's columns, from x_column(lane) + x_step(w) on. Word w of the band belongs to output band_column(lane),
// and is the pair of the window's columns from band_element(lane, w) on. Sum e belongs to row number sum_row(e) and to
// sum_column(lane, e).
#pragma once

#include "matrix/small_mma.h"
#include "matrix/tf32_atoms.h"

namespace hipconv {

template <MatrixUnit kUnit, typename T>
struct BandAtomOf {  // AMD
    using Small = SmallAtom<kUnit, T>;
    using Sums = typename Small::Sums;
    static constexpr int kColumns = 16, kDepth = Small::kStepChunks * 8, kWords = 4, kRows = 1;
    static constexpr int kSums = sizeof(Sums) / sizeof(float);

    static HIPCONV_INLINE int row(int lane, int) { return lane % 16; }
    static HIPCONV_INLINE constexpr int x_row(int) { return 0; }
    static HIPCONV_INLINE int x_column(int lane) { return lane / 16 * 8; }
    static HIPCONV_INLINE constexpr int x_step(int w) { return 2 * w; }
    static HIPCONV_INLINE int band_column(int lane) { return lane % 16; }
    static HIPCONV_INLINE int band_element(int lane, int w) { return lane / 16 * 8 + 2 * w; }
    static HIPCONV_INLINE constexpr int sum_row(int) { return 0; }
    static HIPCONV_INLINE int sum_column(int lane, int e) { return Small::filter(lane, e); }
    template <typename Like>
    static HIPCONV_INLINE void multiply(Sums& sums, const uint32_t (&x)[4], const uint32_t (&band)[kWords]) {
        Words4 factors{}, words{};
#pragma unroll
        for (int w = 0; w < 4; ++w) set_word(factors, w, x[w]), set_word(words, w, band[w]);
        SmallAtom<kUnit, Like>::multiply(sums, factors, words);
    }
};

template <typename T>
struct BandAtomOf<MatrixUnit::mma_sync, T> {  // NVIDIA
    using Sums = Floats<4>;
    static constexpr int kColumns = 8, kDepth = 16, kWords = 2, kRows = 2, kSums = 4;

    static HIPCONV_INLINE int row(int lane, int i) { return lane / 4 + i * 8; }
    static HIPCONV_INLINE constexpr int x_row(int w) { return w % 2; }
    static HIPCONV_INLINE int x_column(int lane) { return lane % 4 * 2; }
    static HIPCONV_INLINE constexpr int x_step(int w) { return w / 2 * 8; }
    static HIPCONV_INLINE int band_column(int lane) { return lane / 4; }
    static HIPCONV_INLINE int band_element(int lane, int w) { return w * 8 + lane % 4 * 2; }
    static HIPCONV_INLINE constexpr int sum_row(int e) { return e / 2; }
    static HIPCONV_INLINE int sum_column(int lane, int e) { return lane % 4 * 2 + e % 2; }
    template <typename Like>
    static HIPCONV_INLINE void multiply(Sums& sums, const uint32_t (&x)[4], const uint32_t (&band)[kWords]) {
        Atom<MatrixUnit::mma_sync, Like>::multiply_eight(sums, 0, Words4{x[0], x[1], x[2], x[3]}, band[0], band[1]);
    }
};

template <>
struct BandAtomOf<MatrixUnit::mma_sync, tf32> : BandAtomOf<MatrixUnit::mma_sync, f16> {  // NVIDIA
    static constexpr int kDepth = 8;

    static HIPCONV_INLINE int x_column(int lane) { return lane % 4; }
    static HIPCONV_INLINE constexpr int x_step(int w) { return w / 2 * 4; }
    static HIPCONV_INLINE int band_element(int lane, int w) { return w * 4 + lane % 4; }
    template <typename Like>
    static HIPCONV_INLINE void multiply(Sums& sums, const uint32_t (&x)[4], const uint32_t (&band)[kWords]) {
        const Words4 factors = rounded_to_tf32(Words4{x[0], x[1], x[2], x[3]});
        Atom<MatrixUnit::mma_sync, tf32>::multiply_eight(sums, 0, factors, band[0], band[1]);
    }
};

// RDNA 3's lanes take whole rows of a product, which are not theirs alone.
template <typename T>
constexpr bool kHasBandAtom = kIsTf32<T> ? matrix_unit_of<T>() == MatrixUnit::mma_sync
                                         : matrix_unit_of<T>() != MatrixUnit::fma && matrix_unit_of<T>() != MatrixUnit::wmma11;

template <typename T>
using BandAtom = BandAtomOf<matrix_unit_of<T>(), T>;

}  // namespace hipconv
