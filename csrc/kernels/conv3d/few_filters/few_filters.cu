// This file has the kernel of few filters (params.h), what it serves and its launch.
#include <hip/hip_runtime.h>

#include "../../conv2d/common/units.h"
#include "../common/launchers.h"
#include "launch/check.h"
#include "operands.h"

namespace hipconv {

namespace {

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

// Makes a tile, frame by frame of x. The chunks of the next frame are loaded as soon as those of this frame are multiplied.
template <typename T>
__device__ __forceinline__ void make_few_tile(const FewFiltersParams& parameter, const FewTile& tile, const Words4* lds,
                                              float* columns, const float* bias, int thread) {
    using Operands = FewOperands<T>;
    const FewFiltersParams& p = first_parameter_again(parameter);
    const int wave = thread / kWaveSize, lane = thread % kWaveSize;
    const int last_tap = p.conv.kernel_frames - 1, seen = tile.count + last_tap, time = tile.begin - p.conv.front;
    const FewPixels<T> pixels(p, wave, lane, tile.out_row, tile.out_column);
    const auto frame_of = [&](int frame) {
        const Conv3dParams& c = first_parameter_again(p).conv;
        return frame_at<T>(c, tile.sample, frame_number(c, time + frame, c.time_mode));
    };
    // Steps of channels. Where not all of a frame's are in registers at once, a buffer has every other one.
    constexpr int kBuffers = Operands::kBuffers;
    const int steps = kBuffers == 2 ? (p.steps + 1) / 2 * 2 : p.steps;
    typename Operands::Chunks chunks[kBuffers];
    const auto load = [&](const Frame<T>& frame, int step) { pixels.load(p, frame, step, chunks[step % kBuffers]); };
    Frame<T> current = frame_of(0);
#pragma unroll
    for (int step = 0; step < kBuffers; ++step)
        if (step < steps) load(current, step);

    // Sums [slot] are of the frame of the result whose tap `last_tap - slot` of time sees this frame.
    typename Operands::Sums sums[kFewFrames];
#pragma unroll
    for (int slot = 0; slot < kFewFrames; ++slot) Operands::clear(sums[slot]);
#pragma unroll 1
    for (int frame = 0; frame < seen; ++frame) {
        const bool has_next = frame + 1 < seen;
        const Frame<T> next = frame_of(has_next ? frame + 1 : frame);
        const SavedFrame saved(first_parameter_again(p), tile.sample, time + frame);
#pragma unroll
        for (int step = 0; step < kFewSteps; ++step) {
            if (step >= steps) continue;
            const typename Operands::Chunks& x = chunks[step % kBuffers];
#pragma unroll
            for (int slot = 0; slot < kFewFrames; ++slot) {
                const int out = frame - last_tap + slot;
                if (slot > last_tap || out < 0 || out >= tile.count) continue;
                const Words4* const filters = lds + ((last_tap - slot) * kFewSteps + step) * Operands::kFragments;
                Operands::multiply(sums[slot], x, filters, lane);
                keep_order();
            }
            if (saved.address) pixels.save(p, saved.address, step, x);
            if (step + kBuffers < steps)
                load(current, step + kBuffers);
            else if (has_next)
                load(next, step % kBuffers);
        }
        current = next;
        if (frame >= last_tap) {
            __syncthreads();  // the sums before are read
            Operands::write(sums[0], columns, thread);
            __syncthreads();
            const FewFiltersParams& q = first_parameter_again(p);
            const int out_frame = tile.sample * q.frames_of_sample + tile.begin + frame - last_tap;
            if (q.conv.kernel_height == 3 && q.conv.kernel_width == 3)
                store_square<3>(q, columns, bias, thread, out_frame, tile);
            else
                store_square<0>(q, columns, bias, thread, out_frame, tile);
        }
#pragma unroll
        for (int slot = 0; slot + 1 < kFewFrames; ++slot) Operands::copy(sums[slot], sums[slot + 1]);
        Operands::clear(sums[kFewFrames - 1]);
    }
}

}  // namespace

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kFewThreads, 1) conv3d_few_filters_kernel(FewFiltersParams p) {
    constexpr bool kIsLegal = kMatrixUnit != MatrixUnit::fma;
    HIPCONV_LARGE_SHARED(Words4, lds, kIsLegal ? kFewBytes / 16 : 1);
    if constexpr (kIsLegal) {
        const int thread = threadIdx.x;
        float* const columns = reinterpret_cast<float*>(lds + kFewFilterBytes / 16);
        float* const bias = columns + kFewSumBytes / 4;
        load_few_filters<T>(p, lds, thread);
        if (thread < kFewMostFilters) {
            const Conv3dParams& c = p.conv;
            bias[thread] = c.bias && thread < c.out_channels
                               ? load_parameter(global_pointer<const void>(c.bias), thread * c.bias_stride, c.bias_dtype)
                               : 0.0f;
        }
        __syncthreads();
#pragma unroll 1
        for (int number = blockIdx.x; number < p.tiles; number += gridDim.x)
            make_few_tile<T>(p, FewTile(first_parameter_again(p), number), lds, columns, bias, thread);
    }
}

namespace {

template <typename T>
void launch_few_filters(const FewFiltersParams& p, int units, void* stream) {
    const auto kernel = conv3d_few_filters_kernel<T>;
    const int shared = launch_shared_bytes(kFewBytes);
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    const dim3 grid(static_cast<unsigned>(p.tiles < units ? p.tiles : units), 1, 1);
    hipLaunchKernelGGL((conv3d_few_filters_kernel<T>), grid, dim3(kFewThreads, 1, 1), shared, static_cast<hipStream_t>(stream),
                       p);
    check_launch("conv3d");
}

// Blocks that share a sample's frames: as many as leave no unit idle, since each reads two frames more than it makes.
int32_t walks_of(const Conv3dParams& p, int64_t squares, const Conv3dCard& card) {
    const int64_t wanted = ceil_of(card.compute_units, squares * p.batch);
    return static_cast<int32_t>(wanted < p.out_frames ? wanted : p.out_frames);
}

// The next call's cache can be written by those who have read its frames: pixel by pixel, by 16 bytes.
bool saves_on_the_way(const Conv3dParams& p) {
    const Volume& v = p.saved;
    const int64_t frames = int64_t{p.cached} + p.in_frames;
    if (!v.data || frames < p.saved_frames || p.out_height != p.in_height || p.out_width != p.in_width) return false;
    if (p.pad_top >= p.kernel_height || p.pad_left >= p.kernel_width) return false;
    if (-int64_t{p.front} > frames - p.saved_frames || int64_t{p.out_frames} - p.front + p.kernel_frames - 1 < frames)
        return false;
    return has_vectors(p, v, p.saved_frames) && p.in_width * v.column_stride < kLimit31 / 2 && v.column_stride >= 0;
}

}  // namespace

const char* conv3d_few_filters_refusal(const Conv3dParams& p, const Conv3dCard& card) {
    if (p.dtype == DType::f32) return "x of 16-bit types";
    if (unit_of(card.arch) == MatrixUnit::fma) return "cards with matrix cores";
    const int64_t taps = int64_t{p.kernel_height} * p.kernel_width;
    if (p.out_channels > kFewMostFilters || taps * p.out_channels > kFewColumns || p.kernel_frames > kFewFrames ||
        p.kernel_height > kFewSide / 2 || p.kernel_width > kFewSide / 2)
        return "up to 8 filters, of 3 taps of time and, all filters together, 32 taps of rows and columns";
    if (p.groups != 1) return "one group";
    if (p.stride_t != 1 || p.stride_h != 1 || p.stride_w != 1 || p.dilation_t != 1 || p.dilation_h != 1 || p.dilation_w != 1)
        return "stride 1 and dilation 1";
    if (p.in_channels > kFewSteps * kFewStepChunks * 8) return "up to 128 channels";
    if (!has_vectors(p)) return "C a multiple of 8, in channels_last_3d memory with 16-byte alignment";
    const auto fits = [&](const Volume& v) { return v.column_stride >= 0 && p.in_width * v.column_stride < kLimit31 / 2; };
    if ((p.in_frames && !fits(p.x)) || (p.cached && !fits(p.cache))) return "rows of less than 2 GB";
    const int64_t reach = int64_t{p.out_frames} + p.front;
    if (p.pad_top >= kLimit31 / 2 || p.pad_left >= kLimit31 / 2 || reach >= kLimit31 / 2 || p.out_height >= kLimit31 / 2 ||
        p.out_width >= kLimit31 / 2)
        return "sizes and padding of less than 2^30";
    const int64_t rows = kFewSide + 1 - p.kernel_height, columns = kFewSide + 1 - p.kernel_width;
    const int64_t squares = ceil_of(p.out_height, rows) * ceil_of(p.out_width, columns);
    if (squares * walks_of(p, squares, card) * p.batch >= kLimit31 / 2) return "up to 2^30 squares of 16 by 16 pixels";
    return nullptr;
}

int64_t conv3d_few_filters_workspace(const Conv3dParams& p, const Conv3dCard&) { return FilterLayout(p, false).packed_bytes; }

void conv3d_few_filters(const Conv3dParams& all, const Conv3dCard& card, void* workspace, void* stream) {
    const FilterLayout l(all, false);
    if (l.packs) conv3d_pack_filters(all, workspace, stream);
    const bool saves = saves_on_the_way(all);
    launch_samples(all, [&](const Conv3dParams& p) {
        FewFiltersParams f{};
        f.conv = p;
        f.frame = frame_params(p);
        f.frame.bias = nullptr;
        f.saves = saves;
        f.frames_of_sample = frames_of_sample(p);
        f.out_rows = kFewSide + 1 - p.kernel_height, f.out_columns = kFewSide + 1 - p.kernel_width;
        f.across = static_cast<int32_t>(ceil_of(p.out_width, f.out_columns));
        f.down = static_cast<int32_t>(ceil_of(p.out_height, f.out_rows));
        f.walk = static_cast<int32_t>(ceil_of(p.out_frames, walks_of(p, int64_t{f.across} * f.down, card)));
        f.walks = static_cast<int32_t>(ceil_of(p.out_frames, f.walk));
        f.tiles = f.across * f.down * f.walks * p.batch;
        f.taps = p.kernel_height * p.kernel_width;
        f.chunks = static_cast<int32_t>(l.chunks);
        f.steps = static_cast<int32_t>(ceil_of(l.chunks, kFewStepChunks));
        f.filters = l.packs ? workspace : p.weight.data;
        f.filter_stride = l.filter_stride, f.tap_bytes = l.tap_bytes;
        (p.dtype == DType::bf16 ? launch_few_filters<bf16> : launch_few_filters<f16>)(f, card.compute_units, stream);
    });
    if (!saves) conv3d_save(all, stream);
}

}  // namespace hipconv
