// This says which chunks of x and of the filters a lane multiplies, and where it finds them.
#pragma once

#include "matrix/chunk_mma.h"
#include "params.h"

namespace hipconv {

template <typename T>
struct FewOperands {
    using A = WaveAtom<matrix_unit_of<T>(), T>;
    // Steps whose chunks are in registers, under way or not. RDNA has fewer registers, and more waves.
    static constexpr MatrixUnit kUnit = matrix_unit_of<T>();
    static constexpr int kBuffers = kUnit == MatrixUnit::wmma11 ? 1 : kUnit == MatrixUnit::wmma12 ? 2 : kFewSteps;
    // A wave has as many pixels as lanes: some rows of the square, each a block of the product.
    static constexpr int kBlocks = kWaveSize / kFewSide, kHalves = kFewColumns / 16;
    static constexpr int kRows = A::kRows;                                         // pixels of a block that a lane loads
    static constexpr int kParts = A::kChunks * (kFewStepChunks / A::kStepChunks);  // chunks of each
    static constexpr int kLanes = kUnit == MatrixUnit::wmma11 ? 16 : kWaveSize;    // others have the same filters
    static constexpr int kFragments = kHalves * kRows * kParts * kLanes;           // of a step, in LDS
    static_assert(kFragments == kFewColumns * kFewStepChunks, "each chunk of the filters is in LDS once");
    using Chunks = Words4[kBlocks][kRows][kParts];
    using Sums = typename A::Sums[kBlocks][kHalves];

    static HIPCONV_INLINE int chunk(int lane, int part) {
        return part / A::kChunks * A::kStepChunks + A::chunk(lane, part % A::kChunks);
    }

    static HIPCONV_INLINE void clear(Sums& sums) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
#pragma unroll
            for (int half = 0; half < kHalves; ++half)
#pragma unroll
                for (int e = 0; e < kElements; ++e) sums[block][half][e] = 0.0f;
    }

    static HIPCONV_INLINE void copy(Sums& to, const Sums& from) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
#pragma unroll
            for (int half = 0; half < kHalves; ++half) to[block][half] = from[block][half];
    }

    // Adds a step's products. `filters`: the fragments of the step.
    static HIPCONV_INLINE void multiply(Sums& sums, const Chunks& pixels, const Words4* filters, int lane) {
#pragma unroll
        for (int first = 0; first < kParts; first += A::kChunks)
#pragma unroll
            for (int half = 0; half < kHalves; ++half) {
                Words4 w[kRows][A::kChunks];
#pragma unroll
                for (int i = 0; i < kRows; ++i)
#pragma unroll
                    for (int c = 0; c < A::kChunks; ++c)
                        w[i][c] = filters[((half * kRows + i) * kParts + first + c) * kLanes + lane % kLanes];
#pragma unroll
                for (int block = 0; block < kBlocks; ++block) {
                    Words4 x[kRows][A::kChunks];
#pragma unroll
                    for (int i = 0; i < kRows; ++i)
#pragma unroll
                        for (int c = 0; c < A::kChunks; ++c) x[i][c] = pixels[block][i][first + c];
                    A::multiply_chunks(sums[block][half], x, w);
                }
            }
    }

    // Writes sums to LDS, column by column, those of a column by pixels of the square.
    static HIPCONV_INLINE void write(const Sums& sums, float* columns, uint32_t thread) {
        from_here_on(thread);  // places are worked out here, and not kept in registers beside the sums
        const int wave = thread / kWaveSize, lane = thread % kWaveSize;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
#pragma unroll
            for (int half = 0; half < kHalves; ++half)
#pragma unroll
                for (int e = 0; e < kElements; ++e)
                    columns[(half * 16 + A::filter(lane, e)) * kFewPitch + wave * kWaveSize + block * 16 + A::pixel(lane, e)] =
                        sums[block][half][e];
    }

  private:
    static constexpr int kElements = sizeof(typename A::Sums) / sizeof(float);
};

// All threads bring the filters of all taps to LDS, in the order in which lanes read them; columns of no filter are zeros.
template <typename T>
HIPCONV_INLINE void load_few_filters(const FewFiltersParams& p, Words4* lds, int thread) {
    using Operands = FewOperands<T>;
    constexpr int kEach = kFewFrames * kFewSteps * Operands::kFragments / kFewThreads;
    Words4 words[kEach];  // all are under way at once
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
        const int at = n * kFewThreads + thread, lane = at % Operands::kLanes;
        int rest = at / Operands::kLanes;
        const int part = rest % Operands::kParts;
        rest /= Operands::kParts;
        const int i = rest % Operands::kRows;
        rest /= Operands::kRows;
        const int half = rest % Operands::kHalves;
        rest /= Operands::kHalves;
        const int step = rest % kFewSteps, frame = rest / kFewSteps;
        const int column = half * 16 + Operands::A::row(lane, i), filter = column / p.taps, tap = column - filter * p.taps;
        const int chunk = step * kFewStepChunks + Operands::chunk(lane, part);
        const bool wanted = frame < p.conv.kernel_frames && filter < p.conv.out_channels && chunk < p.chunks;
        words[n] = load_chunk(reinterpret_cast<uint64_t>(p.filters) + filter * p.filter_stride +
                                  (frame * p.taps + tap) * p.tap_bytes + chunk * int64_t{16},
                              wanted);
    }
#pragma unroll
    for (int n = 0; n < kEach; ++n) lds[n * kFewThreads + thread] = words[n];
}

// The pixels of the square that a lane loads: rows of its wave, and columns of its own.
template <typename T>
struct FewPixels {
    using Operands = FewOperands<T>;

    int lane;
    int rows[Operands::kBlocks], columns[Operands::kRows];  // of x; -1: zeros
    uint32_t own_rows, own_columns;                         // a bit each: they are not of the square's halo

    HIPCONV_INLINE FewPixels(const FewFiltersParams& p, int wave, int of_lane, int out_row, int out_column) : lane(of_lane) {
        own_rows = own_columns = 0;
#pragma unroll
        for (int block = 0; block < Operands::kBlocks; ++block) {
            const int at = out_row - p.conv.pad_top + wave * Operands::kBlocks + block;
            if (at >= out_row && at < out_row + p.out_rows && at < p.conv.in_height) own_rows |= 1u << block;
            rows[block] = place(at, p.conv.in_height, p.conv.padding_mode);
        }
#pragma unroll
        for (int i = 0; i < Operands::kRows; ++i) {
            const int at = out_column - p.conv.pad_left + Operands::A::row(lane, i);
            if (at >= out_column && at < out_column + p.out_columns && at < p.conv.in_width) own_columns |= 1u << i;
            columns[i] = place(at, p.conv.in_width, p.conv.padding_mode);
        }
    }

    // Pixels that no output sees may lie far outside.
    static HIPCONV_INLINE int place(int at, int size, PaddingMode mode) {
        const int found = static_cast<int>(padded_index(at, size, mode));
        return static_cast<uint32_t>(found) < static_cast<uint32_t>(size) ? found : -1;
    }

    HIPCONV_INLINE void load(const FewFiltersParams& parameter, const Frame<T>& frame, int step,
                             typename Operands::Chunks& chunks) const {
        const FewFiltersParams& p = first_parameter_again(parameter);
        uint32_t of_lane = lane, at[Operands::kRows];
        from_here_on(of_lane);  // which lanes load is worked out again, and not kept in scalar registers
#pragma unroll
        for (int i = 0; i < Operands::kRows; ++i) {
            at[i] = columns[i];
            from_here_on(at[i]);
        }
        const int lane_stride = static_cast<int>(frame.column_stride) * 2;
#pragma unroll
        for (int block = 0; block < Operands::kBlocks; ++block) {
            uint32_t row = rows[block];
            from_here_on(row);
            const bool has_row = static_cast<int>(row) >= 0 && frame.address != 0;
            const uint64_t first = frame.address + static_cast<int>(row) * frame.row_stride * 2 + step * (kFewStepChunks * 16);
#pragma unroll
            for (int i = 0; i < Operands::kRows; ++i)
#pragma unroll
                for (int part = 0; part < Operands::kParts; ++part) {
                    const int chunk = Operands::chunk(of_lane, part);
                    const bool wanted = has_row && static_cast<int>(at[i]) >= 0 && step * kFewStepChunks + chunk < p.chunks;
                    chunks[block][i][part] = load_chunk(first + (at[i] * lane_stride + chunk * 16), wanted);
                }
        }
    }

    // Stores what was loaded to a frame of the next call's cache.
    HIPCONV_INLINE void save(const FewFiltersParams& parameter, uint64_t frame, int step,
                             const typename Operands::Chunks& chunks) const {
        const FewFiltersParams& p = first_parameter_again(parameter);
        uint32_t of_lane = lane;
        from_here_on(of_lane);  // which lanes load is worked out again, and not kept in scalar registers
        uint32_t own_lanes = own_columns;
        from_here_on(own_lanes);
        const int lane_stride = static_cast<int>(p.conv.saved.column_stride) * 2;
#pragma unroll
        for (int block = 0; block < Operands::kBlocks; ++block) {
            uint32_t own = own_rows;
            from_here_on(own);
            if (!(own >> block & 1)) continue;
            const uint64_t first = frame + rows[block] * p.conv.saved.row_stride * 2 + step * (kFewStepChunks * 16);
#pragma unroll
            for (int i = 0; i < Operands::kRows; ++i)
#pragma unroll
                for (int part = 0; part < Operands::kParts; ++part) {
                    const int chunk = Operands::chunk(of_lane, part);
                    if ((own_lanes >> i & 1) && step * kFewStepChunks + chunk < p.chunks)
                        *global_pointer<Words4>(first + static_cast<uint32_t>(columns[i] * lane_stride + chunk * 16)) =
                            chunks[block][i][part];
                }
        }
    }
};

}  // namespace hipconv
