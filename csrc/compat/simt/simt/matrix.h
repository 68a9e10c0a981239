// The matrix instructions of the GPUs, which a wave executes together: each lane brings its registers, and the
// elements are where the vendors' manuals put them. So a kernel that has a lane's row or channel wrong is wrong here too.
#pragma once

#include <cmath>

#include "device/dtype.h"
#include "simt/block.h"

namespace simt {

// An instruction multiplies kRows x kDepth by kDepth x kColumns. Element i of a lane's first operand is at (a_row, a_depth),
// element i of its second at (b_depth, b_column), and element i of its sums at (row, column).

struct Mfma32x32x8 {  // gfx90a, gfx942: 16-bit types
    static constexpr const char* kName = "mfma_f32_32x32x8";
    static constexpr int kRows = 32, kColumns = 32, kDepth = 8, kA = 4, kB = 4, kSums = 16, kWave = 64;
    static int a_row(int lane, int) { return lane % 32; }
    static int a_depth(int lane, int i) { return lane / 32 * 4 + i; }
    static int b_column(int lane, int) { return lane % 32; }
    static int b_depth(int lane, int i) { return lane / 32 * 4 + i; }
    static int row(int lane, int i) { return i / 4 * 8 + lane / 32 * 4 + i % 4; }
    static int column(int lane, int) { return lane % 32; }
};

struct Mfma32x32x2 : Mfma32x32x8 {  // gfx90a, gfx942: f32
    static constexpr const char* kName = "mfma_f32_32x32x2f32";
    static constexpr int kDepth = 2, kA = 1, kB = 1;
    static int a_depth(int lane, int) { return lane / 32; }
    static int b_depth(int lane, int) { return lane / 32; }
};

struct Mfma16x16x16 {  // gfx90a, gfx942: 16-bit types
    static constexpr const char* kName = "mfma_f32_16x16x16";
    static constexpr int kRows = 16, kColumns = 16, kDepth = 16, kA = 4, kB = 4, kSums = 4, kWave = 64;
    static int a_row(int lane, int) { return lane % 16; }
    static int a_depth(int lane, int i) { return lane / 16 * 4 + i; }
    static int b_column(int lane, int) { return lane % 16; }
    static int b_depth(int lane, int i) { return lane / 16 * 4 + i; }
    static int row(int lane, int i) { return lane / 16 * 4 + i; }
    static int column(int lane, int) { return lane % 16; }
};

struct Mfma32x32x4 : Mfma32x32x8 {  // gfx942: f32 of which 11 bits count
    static constexpr const char* kName = "mfma_f32_32x32x4_xf32";
    static constexpr int kDepth = 4, kA = 2, kB = 2;
    static int a_depth(int lane, int i) { return lane / 32 * 2 + i; }
    static int b_depth(int lane, int i) { return lane / 32 * 2 + i; }
};

struct Wmma11 {  // gfx11, wave 32: lanes 16 to 31 bring the same as lanes 0 to 15
    static constexpr const char* kName = "wmma_f32_16x16x16_w32";
    static constexpr int kRows = 16, kColumns = 16, kDepth = 16, kA = 16, kB = 16, kSums = 8, kWave = 32;
    static int a_row(int lane, int) { return lane % 16; }
    static int a_depth(int, int i) { return i; }
    static int b_column(int lane, int) { return lane % 16; }
    static int b_depth(int, int i) { return i; }
    static int row(int lane, int i) { return 2 * i + lane / 16; }
    static int column(int lane, int) { return lane % 16; }
};

struct Wmma12 {  // gfx12, wave 32
    static constexpr const char* kName = "wmma_f32_16x16x16_w32_gfx12";
    static constexpr int kRows = 16, kColumns = 16, kDepth = 16, kA = 8, kB = 8, kSums = 8, kWave = 32;
    static int a_row(int lane, int) { return lane % 16; }
    static int a_depth(int lane, int i) { return lane / 16 * 8 + i; }
    static int b_column(int lane, int) { return lane % 16; }
    static int b_depth(int lane, int i) { return lane / 16 * 8 + i; }
    static int row(int lane, int i) { return lane / 16 * 8 + i; }
    static int column(int lane, int) { return lane % 16; }
};

struct MmaM16n8k16 {  // sm_80 and later
    static constexpr const char* kName = "mma.sync.m16n8k16";
    static constexpr int kRows = 16, kColumns = 8, kDepth = 16, kA = 8, kB = 4, kSums = 4, kWave = 32;
    static int a_row(int lane, int i) { return lane / 4 + i / 2 % 2 * 8; }
    static int a_depth(int lane, int i) { return lane % 4 * 2 + i % 2 + i / 4 * 8; }
    static int b_column(int lane, int) { return lane / 4; }
    static int b_depth(int lane, int i) { return lane % 4 * 2 + i % 2 + i / 2 * 8; }
    static int row(int lane, int i) { return lane / 4 + i / 2 * 8; }
    static int column(int lane, int i) { return lane % 4 * 2 + i % 2; }
};

struct MmaM16n8k8 {  // sm_80 and later: TF32
    static constexpr const char* kName = "mma.sync.m16n8k8.tf32";
    static constexpr int kRows = 16, kColumns = 8, kDepth = 8, kA = 4, kB = 2, kSums = 4, kWave = 32;
    static int a_row(int lane, int i) { return lane / 4 + i % 2 * 8; }
    static int a_depth(int lane, int i) { return lane % 4 + i / 2 * 4; }
    static int b_column(int lane, int) { return lane / 4; }
    static int b_depth(int lane, int i) { return lane % 4 + i * 4; }
    static int row(int lane, int i) { return lane / 4 + i / 2 * 8; }
    static int column(int lane, int i) { return lane % 4 * 2 + i % 2; }
};

template <typename T>
struct Operands {
    const T *a, *b;
    float* sums;
};

inline float sum_of_products(float sum, const float* x, const float* y, int depth) {
    for (int k = 0; k < depth; ++k) sum += x[k] * y[k];
    return sum;
}

// TF32: the low 13 bits of the factors do not count. Products are exact, and the sum is rounded towards zero, as GPUs do.
inline float sum_of_tf32_products(float sum, const float* x, const float* y, int depth) {
    const auto factor = [](float v) { return hipconv::bit_cast<float>(hipconv::bit_cast<uint32_t>(v) & 0xffffe000u); };
    double exact = sum;
    for (int k = 0; k < depth; ++k) exact += static_cast<double>(factor(x[k])) * factor(y[k]);
    const float rounded = static_cast<float>(exact);
    if (!(std::abs(exact) < std::abs(static_cast<double>(rounded)))) return rounded;
    return hipconv::bit_cast<float>(hipconv::bit_cast<uint32_t>(rounded) - 1);  // the next one towards zero
}

template <typename I, typename T, bool kTf32>
void multiply_lanes(void* const* lanes) {
    float a[I::kRows][I::kDepth], b[I::kColumns][I::kDepth];
    for (int lane = 0; lane < I::kWave; ++lane) {
        const Operands<T>& mine = *static_cast<const Operands<T>*>(lanes[lane]);
        for (int i = 0; i < I::kA; ++i) a[I::a_row(lane, i)][I::a_depth(lane, i)] = hipconv::to_float(mine.a[i]);
        for (int i = 0; i < I::kB; ++i) b[I::b_column(lane, i)][I::b_depth(lane, i)] = hipconv::to_float(mine.b[i]);
    }
    constexpr auto kSum = kTf32 ? sum_of_tf32_products : sum_of_products;
    for (int lane = 0; lane < I::kWave; ++lane) {
        float* const sums = static_cast<const Operands<T>*>(lanes[lane])->sums;
        for (int i = 0; i < I::kSums; ++i) sums[i] = kSum(sums[i], a[I::row(lane, i)], b[I::column(lane, i)], I::kDepth);
    }
}

// All lanes of the wave compute sums += a b. Where lanes share elements, the last one's count, so that a stale copy shows.
template <typename I, typename T, bool kTf32 = false>
void multiply(const T* a, const T* b, float* sums, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    static_assert(I::kWave == hipconv::kWaveSize, "the instruction is another wave size's");
    Operands<T> mine{a, b, sums};
    Block::current()->wave_collective(&multiply_lanes<I, T, kTf32>, &mine, {I::kName, file, line});
}
template <typename I>
void multiply_tf32(const float* a, const float* b, float* sums, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
    multiply<I, float, true>(a, b, sums, file, line);
}

// ldmatrix.x4: lane l names row l % 8 of matrix l / 8, 16 bytes, and gets from each matrix the two elements of 16 bits
// at row l / 4, columns l % 4 * 2 and l % 4 * 2 + 1.
struct MatrixRow {
    const void* row;
    void* elements;
};

inline void load_matrix_lanes(void* const* lanes) {
    for (int lane = 0; lane < 32; ++lane)
        for (int matrix = 0; matrix < 4; ++matrix) {
            const void* row = static_cast<const MatrixRow*>(lanes[matrix * 8 + lane / 4])->row;
            std::memcpy(static_cast<char*>(static_cast<const MatrixRow*>(lanes[lane])->elements) + 4 * matrix,
                        static_cast<const char*>(row) + lane % 4 * 4, 4);
        }
}

inline void load_matrices(const void* row, void* elements, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    MatrixRow mine{row, elements};
    Block::current()->wave_collective(&load_matrix_lanes, &mine, {"ldmatrix.x4", file, line});
}

}  // namespace simt
