// The atoms of mma.h for f32 whose products are those of TF32: mma.sync (sm_80 and later), and MFMA where it has them (gfx942).
#pragma once

#include "matrix/mma.h"

namespace hipconv {

// NVIDIA, two of m16n8k8 a phase. 16 bytes of a row are four elements of TF32 or eight of 16 bits, and in either case a lane of
// ldmatrix gets those 4 bytes that the instruction takes from it.
template <typename T>
struct MmaSyncTf32 : Atom<MatrixUnit::mma_sync, f16> {
    static HIPCONV_INLINE Operand load_pixels(const Words4* tile, int row, int phase, int lane) {
        return rounded_to_tf32(Atom<MatrixUnit::mma_sync, f16>::load_pixels(tile, row, phase, lane));
    }
    static HIPCONV_INLINE Operand load_filters(const Words4* tile, int row, int phase, int lane) {
        return rounded_to_tf32(Atom<MatrixUnit::mma_sync, f16>::load_filters(tile, row, phase, lane));
    }
    static HIPCONV_INLINE void multiply(Sums& sums, Words4 pixels, Words4 filters) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
            multiply_eight(sums, 4 * half, pixels, word(filters, 2 * half), word(filters, 2 * half + 1));
    }

    // The products of eight filters: one instruction, four sums, of which `at` is the first.
    template <typename Four>
    static HIPCONV_INLINE void multiply_eight(Four& c, int at, Words4 pixels, uint32_t first, uint32_t second) {
#if defined(HIPCONV_HAS_MMA_SYNC)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[at]), "+f"(c[at + 1]), "+f"(c[at + 2]), "+f"(c[at + 3])
            : "r"(pixels.x), "r"(pixels.y), "r"(pixels.z), "r"(pixels.w), "r"(first), "r"(second));
#elif defined(HIPCONV_HOST)
        const uint32_t both[] = {first, second};
        simt::multiply_tf32<simt::MmaM16n8k8>(reinterpret_cast<const float*>(&pixels), reinterpret_cast<const float*>(both),
                                              &c[at]);
#else
        (void)c, (void)at, (void)pixels, (void)first, (void)second;
#endif
    }
};

// Three products for one. What is left out, the product of both small parts, is 2^-24 of the whole. The matrix unit rounds its
// sums towards zero, so it makes those of two phases only, the small products of each first, and the rest is added up outside.
template <typename T>
struct MmaSyncSplit : Atom<MatrixUnit::mma_sync, f16> {
    using Whole = Atom<MatrixUnit::mma_sync, f16>;
    using Part = MmaSyncTf32<T>;
    static constexpr int kPhasesInUnit = 2;
    using Operand = SplitWords;

    static HIPCONV_INLINE Operand load_pixels(const Words4* tile, int row, int phase, int lane) {
        return split_to_tf32(Whole::load_pixels(tile, row, phase, lane));
    }
    static HIPCONV_INLINE Operand load_filters(const Words4* tile, int row, int phase, int lane) {
        return split_to_tf32(Whole::load_filters(tile, row, phase, lane));
    }
    static HIPCONV_INLINE void multiply(Sums& sums, const Operand& pixels, const Operand& filters) {
        Part::multiply(sums, pixels.small, filters.large);
        Part::multiply(sums, pixels.large, filters.small);
        Part::multiply(sums, pixels.large, filters.large);
    }
};

// gfx942, 32x32x4: two elements a lane, k = lane / 32 * 2 + i. Tiles are rounded on their way to LDS (kRoundsOnStore), where
// each element is stored once and read by several waves.
template <typename T>
struct MfmaTf32 : Atom<MatrixUnit::mfma, float> {
    static HIPCONV_INLINE void multiply(Sums& sums, Operand pixels, Operand filters) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#if defined(HIPCONV_HAS_XF32)
            using Float2 = float __attribute__((ext_vector_type(2)));
            const Words2 f{word(filters, 2 * i), word(filters, 2 * i + 1)}, p{word(pixels, 2 * i), word(pixels, 2 * i + 1)};
            sums = __builtin_amdgcn_mfma_f32_32x32x4_xf32(bit_cast<Float2>(f), bit_cast<Float2>(p), sums, 0, 0, 0);
#elif defined(HIPCONV_HOST)
            const uint32_t f[] = {word(filters, 2 * i), word(filters, 2 * i + 1)};
            const uint32_t p[] = {word(pixels, 2 * i), word(pixels, 2 * i + 1)};
            simt::multiply_tf32<simt::Mfma32x32x4>(reinterpret_cast<const float*>(f), reinterpret_cast<const float*>(p),
                                                   &sums[0]);
#else
            (void)sums, (void)pixels, (void)filters;
#endif
        }
    }
};

template <>
struct Atom<MatrixUnit::mma_sync, tf32> : MmaSyncTf32<tf32> {};
template <>
struct Atom<MatrixUnit::mma_sync, split_f32> : MmaSyncSplit<split_f32> {};
template <>
struct Atom<MatrixUnit::mfma, tf32> : MfmaTf32<tf32> {};

}  // namespace hipconv
