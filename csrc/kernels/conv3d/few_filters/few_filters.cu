// This file has the kernel of few filters (params.h), what it serves and its launch.
#include <hip/hip_runtime.h>

#include "../../conv2d/common/units.h"
#include "../common/launchers.h"
#include "launch.h"
#include "launch/check.h"
#include "operands.h"
#include "square.h"

namespace hipconv {

namespace {

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

}  // namespace

const char* conv3d_few_filters_refusal(const Conv3dParams& p, const Conv3dCard& card) {
    if (p.dtype == DType::f32) return "x of 16-bit types";
    if (unit_of(card.arch) == MatrixUnit::fma) return "cards with matrix cores";
    if (const char* served = few_filters_shape_refusal(p, card)) return served;
    if (!has_vectors(p)) return "C a multiple of 8, in channels_last_3d memory with 16-byte alignment";
    const auto fits = [&](const Volume& v) { return v.column_stride >= 0 && p.in_width * v.column_stride < kLimit31 / 2; };
    if ((p.in_frames && !fits(p.x)) || (p.cached && !fits(p.cache))) return "rows of less than 2 GB";
    return nullptr;
}

int64_t conv3d_few_filters_workspace(const Conv3dParams& p, const Conv3dCard&) { return FilterLayout(p, false).packed_bytes; }

void conv3d_few_filters(const Conv3dParams& all, const Conv3dCard& card, void* workspace, void* stream) {
    const FilterLayout l(all, false);
    if (l.packs) conv3d_pack_filters(all, workspace, stream);
    const bool saves = saves_on_the_way(all);
    launch_samples(all, [&](const Conv3dParams& p) {
        const FewFiltersParams f = few_filters_params(p, l, l.packs ? workspace : p.weight.data, saves, card);
        (p.dtype == DType::bf16 ? launch_few_filters<bf16> : launch_few_filters<f16>)(f, card.compute_units, stream);
    });
    if (!saves) conv3d_save(all, stream);
}

}  // namespace hipconv
