// Matrix instructions on blocks of 16 pixels by 16 filters, for products of few channels or few filters, of which the blocks of
// mma.h would be mostly padding on CDNA. Elsewhere they are the blocks of mma.h.
//
// The inner product runs over chunks of 16 bytes, 8 elements of 16 bits: a step takes kStepChunks of them. The chunks of
// pixels lie in LDS, anywhere. Those of filters lie in the order of packed_place(), so that a lane reads 16 bytes at once.
#pragma once

#include "matrix/mma.h"

namespace hipconv {

template <MatrixUnit kUnit, typename T>
struct SmallAtom : Atom<kUnit, T> {  // without matrix instructions there is none
    static constexpr int kStepChunks = 2;
};

// Where a lane finds the chunk that it reads, in bytes, beyond the first one of its pixel; RDNA 3 reads two.
struct Places {
    int first, second;
};

// A lane reads one chunk, that of number lane / 16 of its pixel.
struct ChunkOfLane {
    static HIPCONV_INLINE Places places(const int* table, int lane) { return {table[lane / 16], 0}; }
    static HIPCONV_INLINE Words4 load_pixels(const char* pixel, Places at) {
        return *reinterpret_cast<const Words4*>(pixel + at.first);
    }
    static HIPCONV_INLINE Words4 load_filters(const Words4* step, int lane) { return step[lane]; }
};

// NVIDIA: lanes 0 to 15 name the 16 pixels' first chunk for ldmatrix, the others their second.
template <typename T>
struct SmallAtom<MatrixUnit::mma_sync, T> : Atom<MatrixUnit::mma_sync, T> {
    using Base = Atom<MatrixUnit::mma_sync, T>;
    static constexpr int kStepChunks = 2;
    static HIPCONV_INLINE Places places(const int* table, int lane) { return {table[lane / 16], 0}; }
    static HIPCONV_INLINE Words4 load_pixels(const char* pixel, Places at) {
        return Base::load_matrices(reinterpret_cast<const Words4*>(pixel + at.first));
    }
    static HIPCONV_INLINE Words4 load_filters(const Words4* step, int lane) { return step[lane]; }
};

// RDNA 3: a lane reads both chunks of pixel or filter lane % 16.
template <typename T>
struct SmallAtom<MatrixUnit::wmma11, T> : Atom<MatrixUnit::wmma11, T> {
    using Base = Atom<MatrixUnit::wmma11, T>;
    static constexpr int kStepChunks = 2;
    static HIPCONV_INLINE Places places(const int* table, int) { return {table[0], table[1]}; }
    static HIPCONV_INLINE typename Base::Operand load_pixels(const char* pixel, Places at) {
        return {*reinterpret_cast<const Words4*>(pixel + at.first), *reinterpret_cast<const Words4*>(pixel + at.second)};
    }
    static HIPCONV_INLINE typename Base::Operand load_filters(const Words4* step, int lane) {
        return {step[lane % 16], step[16 + lane % 16]};
    }
};

// RDNA 4: lane / 16 is the chunk.
template <typename T>
struct SmallAtom<MatrixUnit::wmma12, T> : Atom<MatrixUnit::wmma12, T>, ChunkOfLane {
    static constexpr int kStepChunks = 2;
    using ChunkOfLane::load_filters;
    using ChunkOfLane::load_pixels;
};

// CDNA, 16x16: the instruction takes 4 elements from each lane, k = lane / 16 * 4 + i; a chunk of 16 bytes feeds two
// (gfx950 has one that takes 8). Filters are the rows of the instruction.
template <typename T>
struct SmallAtom<MatrixUnit::mfma, T> : ChunkOfLane {
    static constexpr int kStepChunks = 4, kRun = 4;
    using Operand = Words4;
    using Sums = Floats<4>;

    static HIPCONV_INLINE int pixel(int lane, int) { return lane % 16; }
    static HIPCONV_INLINE int filter(int lane, int e) { return lane / 16 * 4 + e; }

    static HIPCONV_INLINE void multiply(Sums& sums, Operand pixels, Operand filters) {
#if defined(HIPCONV_HAS_MFMA_8_WIDE)
        if constexpr (kIsBf16<T>)
            sums =
                __builtin_amdgcn_mfma_f32_16x16x32_bf16(bit_cast<Bfloat8>(filters), bit_cast<Bfloat8>(pixels), sums, 0, 0, 0);
        else
            sums = __builtin_amdgcn_mfma_f32_16x16x32_f16(bit_cast<Half8>(filters), bit_cast<Half8>(pixels), sums, 0, 0, 0);
#elif defined(HIPCONV_HAS_MFMA)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const Words2 f = half_of(filters, i), p = half_of(pixels, i);
            if constexpr (kIsBf16<T>)
                sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(bit_cast<Short4>(f), bit_cast<Short4>(p), sums, 0, 0, 0);
            else
                sums = __builtin_amdgcn_mfma_f32_16x16x16f16(bit_cast<Half4>(f), bit_cast<Half4>(p), sums, 0, 0, 0);
        }
#elif defined(HIPCONV_HOST)
        for (int i = 0; i < 2; ++i) {
            const Words2 f = half_of(filters, i), p = half_of(pixels, i);
            simt::multiply<simt::Mfma16x16x16>(reinterpret_cast<const T*>(&f), reinterpret_cast<const T*>(&p), &sums[0]);
        }
#else
        (void)sums, (void)pixels, (void)filters;
#endif
    }
};

// These are the two elements of word `w` of vector `lane` of a step's filters: the filter, and the first one's number in the
// step.
struct PackedPlace {
    int filter, element;
};

HIPCONV_INLINE PackedPlace packed_place(MatrixUnit unit, int lane, int w) {
    if (unit == MatrixUnit::mma_sync) return {w / 2 * 8 + lane / 4, w % 2 * 8 + lane % 4 * 2};
    return {lane % 16, lane / 16 * 8 + 2 * w};
}

}  // namespace hipconv
