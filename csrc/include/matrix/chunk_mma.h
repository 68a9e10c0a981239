// The blocks of small_mma.h, with operands that a lane reads from memory by chunks of 16 bytes. The order of the products does
// not matter as long as both operands agree, so that a lane's chunk feeds whatever elements of the instruction are the lane's.
#pragma once

#include "matrix/small_mma.h"

namespace hipconv {

// The chunk at an address in device memory that nobody writes meanwhile, or zeros. There is no branch on NVIDIA.
HIPCONV_INLINE Words4 load_chunk(uint64_t address, bool wanted) {
#if defined(HIPCONV_HAS_MMA_SYNC)
    Words4 v;
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.s32 wanted, %5, 0;\n"
        "mov.b32 %0, 0;\n"
        "mov.b32 %1, 0;\n"
        "mov.b32 %2, 0;\n"
        "mov.b32 %3, 0;\n"
        "@wanted ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
        : "l"(address), "r"(int{wanted}));
    return v;
#else
    Words4 words{};
    if (wanted) words = *global_pointer<const Words4>(address);
    return words;
#endif
}

// A step takes kStepChunks chunks of each of 16 pixels and 16 filters. A lane reads those of `kRows` pixels and filters,
// row(lane, i), and of each so many as kChunks, chunk(lane, i).
template <MatrixUnit kUnit, typename T>
struct WaveAtom : SmallAtom<kUnit, T> {  // CDNA and RDNA 4
    static constexpr int kRows = 1, kChunks = 1;
    static HIPCONV_INLINE int row(int lane, int) { return lane % 16; }
    static HIPCONV_INLINE int chunk(int lane, int) { return lane / 16; }
    static HIPCONV_INLINE void multiply_chunks(typename SmallAtom<kUnit, T>::Sums& sums, const Words4 (&pixels)[1][1],
                                               const Words4 (&filters)[1][1]) {
        SmallAtom<kUnit, T>::multiply(sums, pixels[0][0], filters[0][0]);
    }
};

// RDNA 3: a lane has both chunks of its pixel and filter.
template <typename T>
struct WaveAtom<MatrixUnit::wmma11, T> : SmallAtom<MatrixUnit::wmma11, T> {
    using Base = SmallAtom<MatrixUnit::wmma11, T>;
    static constexpr int kRows = 1, kChunks = 2;
    static HIPCONV_INLINE int row(int lane, int) { return lane % 16; }
    static HIPCONV_INLINE int chunk(int, int i) { return i; }
    static HIPCONV_INLINE void multiply_chunks(typename Base::Sums& sums, const Words4 (&pixels)[1][2],
                                               const Words4 (&filters)[1][2]) {
        Base::multiply(sums, {pixels[0][0], pixels[0][1]}, {filters[0][0], filters[0][1]});
    }
};

// NVIDIA: a lane has a chunk of two pixels and two filters, which feeds two instructions' steps of 16 products.
template <typename T>
struct WaveAtom<MatrixUnit::mma_sync, T> : SmallAtom<MatrixUnit::mma_sync, T> {
    using Base = SmallAtom<MatrixUnit::mma_sync, T>;
    static constexpr int kStepChunks = 4, kRows = 2, kChunks = 1;
    static HIPCONV_INLINE int row(int lane, int i) { return lane / 4 + 8 * i; }
    static HIPCONV_INLINE int chunk(int lane, int) { return lane % 4; }
    static HIPCONV_INLINE void multiply_chunks(typename Base::Sums& sums, const Words4 (&pixels)[2][1],
                                               const Words4 (&filters)[2][1]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int w = 2 * half;
            const Words4 p{word(pixels[0][0], w), word(pixels[1][0], w), word(pixels[0][0], w + 1), word(pixels[1][0], w + 1)};
            const Words4 f{word(filters[0][0], w), word(filters[0][0], w + 1), word(filters[1][0], w),
                           word(filters[1][0], w + 1)};
            Base::multiply(sums, p, f);
        }
    }
};

}  // namespace hipconv
