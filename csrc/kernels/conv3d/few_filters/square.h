// The squares of pixels that blocks make, and how a square's sums of a frame become outputs.
#pragma once

#include "params.h"

namespace hipconv {

// A block makes a square of some frames of a sample's result. Squares of a strip follow each other, row by row, so that they
// find their halo in the L2 cache.
struct FewTile {
    int sample, begin, count, out_row, out_column;

    HIPCONV_INLINE FewTile(const FewFiltersParams& p, int number) {
        const int squares = p.across * p.down, walk = number / squares;
        number -= walk * squares;
        sample = walk / p.walks;
        begin = (walk - sample * p.walks) * p.walk;
        count = p.conv.out_frames - begin < p.walk ? p.conv.out_frames - begin : p.walk;
        const int first = number / (p.down * kFewStrip) * kFewStrip;
        const int wide = p.across - first < kFewStrip ? p.across - first : kFewStrip;
        number -= first * p.down;
        const int row = number / wide;
        out_row = row * p.out_rows;
        out_column = (first + number - row * wide) * p.out_columns;
    }
};

// Adds what the taps of a frame saw, and stores the outputs of a square. Thread i has the output whose first tap sees pixel i.
// kTaps: along a row and a column, or 0 where it is known only at run time.
template <int kTaps>
HIPCONV_INLINE void store_square(const FewFiltersParams& p, const float* columns, const float* bias, uint32_t of_thread,
                                 int out_frame, const FewTile& tile) {
    from_here_on(of_thread);
    const int thread = static_cast<int>(of_thread), row = thread / kFewSide, column = thread % kFewSide;
    const int out_row = tile.out_row + row, out_column = tile.out_column + column;
    if (row >= p.out_rows || column >= p.out_columns || out_row >= p.conv.out_height || out_column >= p.conv.out_width) return;
    const float* at = columns + thread;
    const int64_t first = offset_in(p.frame.out, out_frame, 0, out_row, out_column);
#pragma unroll 1
    for (int filter = 0; filter < p.conv.out_channels; ++filter) {
        float sum = bias[filter];
        if constexpr (kTaps > 0) {
#pragma unroll
            for (int tap = 0; tap < kTaps * kTaps; ++tap) sum += at[tap * kFewPitch + tap / kTaps * kFewSide + tap % kTaps];
            at += kTaps * kTaps * kFewPitch;
        } else {
#pragma unroll 1
            for (int r = 0; r < p.conv.kernel_height; ++r) {
#pragma unroll 4
                for (int s = 0; s < p.conv.kernel_width; ++s, at += kFewPitch) sum += at[r * kFewSide + s];
            }
        }
        const Conv2dParams& c = first_parameter_again(p).frame;
        conv2d_store_at(
            c, filter, [&] { return first + filter * c.out.channel_stride; },
            [&] { return offset_in(c.residual, out_frame, filter, out_row, out_column); }, sum);
    }
}

// The frame of the next call's cache that the frame at this time is, if it is one that the walk writes.
struct SavedFrame {
    uint64_t address = 0;

    HIPCONV_INLINE SavedFrame(const FewFiltersParams& p, int sample, int time) {
        const int number = time - (p.conv.cached + p.conv.in_frames - p.conv.saved_frames);
        if (p.saves && number >= 0 && number < p.conv.saved_frames)
            address = reinterpret_cast<uint64_t>(p.conv.saved.data) +
                      (sample * p.conv.saved.batch_stride + number * p.conv.saved.frame_stride) * 2;
    }
};

}  // namespace hipconv
