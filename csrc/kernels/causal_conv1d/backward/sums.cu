// These kernels of the causal conv1d backward on GPUs run before and after each of the others: they make taps of sequence ids
// and add up partial sums. They, and the kernel between them, begin while the one before them ends, where the card can do that.
#include <hip/hip_runtime.h>

#include "sums.h"

#include <algorithm>
#include <iterator>

#include "../common/launch.h"
#include "causal_conv1d/states_formula.h"
#include "device/arch.h"
#include "launch/check.h"
#include "taps.h"

namespace hipconv {

constexpr int kTapsThreads = 256;
constexpr int kFinishThreads = 1024;                       // of a block, at most,
constexpr int kLeastFinishThreads = 256;                   // and at least
constexpr int kFinishLanes = 32, kFewFinishLanes = 8;      // columns of a block
constexpr int64_t kManyFinishColumns = 32 * kFinishLanes;  // that are enough for blocks of the wider kind
constexpr int kFinishLoads = 8;                            // of a thread, which are under way at once

// A thread makes the taps of four tokens of each row.
__global__ void HIPCONV_LAUNCH_BOUNDS(kTapsThreads, 4)
    causal_conv1d_bwd_taps(CausalConv1dBwdParams p, uint32_t* taps, bool in_quads) {
    let_next_kernel_begin();
    wait_for_kernel_before();
    constexpr int kMost = 8;  // taps
    const int left_out = kMost - p.in.width;
    const int64_t words = bwd_taps_pitch(p.in.seqlen) / 4, all = words * p.in.batch;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        // A division of 64 bits would take as long as all the rest.
        const bool fits = all <= UINT32_MAX;
        const int64_t b = fits ? static_cast<uint32_t>(i) / static_cast<uint32_t>(words) : i / words;
        const int32_t first = static_cast<int32_t>((i - b * words) * 4 - kTapsBefore);
        const uint32_t word =
            in_quads ? bwd_taps_of_quad<kMost>(p.in, b, first) : bwd_taps_of_four<kMost, true>(p.in, b, first);
        taps[i] = word >> left_out & 0x01010101u * (0xffu >> left_out);
    }
}

// A block adds up blockDim.x columns of the workspace at a time; blockDim.y threads, a power of two, share a column.
__global__ void HIPCONV_LAUNCH_BOUNDS(kFinishThreads, 1)
    causal_conv1d_bwd_finish(CausalConv1dBwdParams p, BwdPartials partials) {
    HIPCONV_SHARED(float, sums, kFinishThreads);
    let_next_kernel_begin();
    const int64_t columns = (int64_t{p.in.width} + 1) * p.in.dim, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, d = 0, rows = 0;
    int i = 0;
    const auto look_up = [&]() {
        i = static_cast<int>(c / p.in.dim);
        d = c - int64_t{i} * p.in.dim;
        rows = partials.rows[0];
        for (int zone = 1; zone < kTaperZones; ++zone)
            if (d >= partials.first_channel[zone]) rows = partials.rows[zone];
        if (i < partials.empty_taps) rows = 0;
    };
    look_up();  // while the kernel before ends
    wait_for_kernel_before();
    for (;;) {
        float sum = 0.0f;
        if (c < columns) {
            const int64_t threads = blockDim.y;
            const float* column = static_cast<const float*>(p.partials) + c + threadIdx.y * columns;
#pragma unroll 1
            for (int64_t left = rows - threadIdx.y; left > 0; left -= kFinishLoads * threads) {
                float loaded[kFinishLoads];
#pragma unroll
                for (int k = 0; k < kFinishLoads; ++k) {
                    loaded[k] = 0.0f;
                    if (left > k * threads) loaded[k] = *column;
                    column += threads * columns;
                }
#pragma unroll
                for (int k = 0; k < kFinishLoads; ++k)
                    if (left > k * threads) sum += loaded[k];
            }
        }
        float* const own = sums + threadIdx.y * blockDim.x + threadIdx.x;
        *own = sum;
        for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.y < half) *own += own[half * blockDim.x];
        }
        if (threadIdx.y == 0 && c < columns) bwd_store_sum<float>(p, d, i, *own);
        c += step;
        if (c - threadIdx.x >= columns) break;
        look_up();
        __syncthreads();
    }
}

namespace {

int64_t numbers_of(const CausalConv1dBwdParams& p, const BwdPartials& partials) {
    if (partials.are_sums) return 0;
    return *std::max_element(std::begin(partials.rows), std::end(partials.rows)) * (int64_t{p.in.width} + 1) * p.in.dim;
}

void make_taps(const CausalConv1dBwdParams& p, uint32_t* taps, hipStream_t stream) {
    const dim3 grid(blocks_up_to(bwd_taps_pitch(p.in.seqlen) / 4 * p.in.batch, kTapsThreads, 1 << 20), 1, 1);
    HIPCONV_LAUNCH(true, causal_conv1d_bwd_taps, grid, dim3(kTapsThreads, 1, 1), 0, stream, p, taps, bwd_ids_are_quads(p.in));
    check_launch("causal_conv1d_bwd");
}

}  // namespace

int64_t bwd_sums_workspace(const CausalConv1dBwdParams& p, const BwdPartials& partials, bool looks_at_taps) {
    const bool has_taps = looks_at_taps && p.in.seq_idx.data;
    return numbers_of(p, partials) * static_cast<int64_t>(sizeof(float)) +
           (has_taps ? p.in.batch * bwd_taps_pitch(p.in.seqlen) : 0);
}

CausalConv1dBwdParams bwd_sums_begin(const CausalConv1dBwdParams& params, const BwdPartials& partials, bool looks_at_taps,
                                     void* workspace, hipStream_t stream) {
    CausalConv1dBwdParams p = params;
    p.partials = partials.are_sums ? nullptr : workspace;
    if (looks_at_taps && p.in.seq_idx.data) {
        uint32_t* taps = reinterpret_cast<uint32_t*>(static_cast<float*>(workspace) + numbers_of(p, partials));
        p.taps = reinterpret_cast<const uint8_t*>(taps);
        make_taps(p, taps, stream);
    }
    return p;
}

void bwd_sums_add_up(const CausalConv1dBwdParams& p, const BwdPartials& partials, hipStream_t stream) {
    if (partials.are_sums) return;
    const int64_t columns = (int64_t{p.in.width} + 1) * p.in.dim;
    const unsigned lanes = columns >= kManyFinishColumns ? kFinishLanes : kFewFinishLanes;
    const int64_t most = *std::max_element(std::begin(partials.rows), std::end(partials.rows));
    unsigned rows = power_of_two_up_to((most + kFinishLoads - 1) / kFinishLoads, kFinishThreads / lanes);
    if (rows < kLeastFinishThreads / lanes) rows = kLeastFinishThreads / lanes;
    const dim3 grid(blocks_up_to(columns, lanes, 1 << 20), 1, 1), block(lanes, rows, 1);
    HIPCONV_LAUNCH(true, causal_conv1d_bwd_finish, grid, block, 0, stream, p, partials);
    check_launch("causal_conv1d_bwd");
}

}  // namespace hipconv
