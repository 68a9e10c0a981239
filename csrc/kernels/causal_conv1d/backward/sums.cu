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

constexpr int kTapsThreads = 256, kTapsOfThread = 8;
constexpr int kFinishThreads = 1024;                   // of a block, at most,
constexpr int kLeastFinishThreads = 256;               // and at least
constexpr int kFinishLanes = 32, kFewFinishLanes = 8;  // columns of a block; more where few rows leave enough blocks
constexpr int64_t kEnoughFinishBlocks = 2 * kUnitsOfLargeCard;
constexpr int64_t kManyFinishColumns = 32 * kFinishLanes;  // that are enough for blocks of the wider kind
constexpr int kFinishLoads = 8;                            // of a thread, which are under way at once

// A thread makes the taps of eight neighbouring tokens of a row. It has ids of the tokens before them from the lane before.
template <int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kTapsThreads, 4)
    causal_conv1d_bwd_taps(CausalConv1dBwdParams p, Words2* taps, bool in_quads) {
    let_next_kernel_begin();
    wait_for_kernel_before();
    constexpr int kPast = kWidth - 1;
    const int lane = static_cast<int>(threadIdx.x) % kWaveSize;
    const int64_t of_row = bwd_taps_pitch(p.in.seqlen) / kTapsOfThread, all = of_row * p.in.batch + 1;
    const int64_t step = p.in.seq_idx.seqlen_stride;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i - lane < all;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x) {  // lanes of a wave go on together
        if (i == 0) taps[0] = Words2{};                        // before the first row
        const int64_t group = i == 0 ? 0 : i < all ? i - 1 : all - 2;
        // A division of 64 bits would take as long as all the rest.
        const int64_t b = all <= UINT32_MAX ? static_cast<uint32_t>(group) / static_cast<uint32_t>(of_row) : group / of_row;
        const int32_t t = static_cast<int32_t>((group - b * of_row) * kTapsOfThread);
        const int32_t* const from = global_pointer<const int32_t>(p.in.seq_idx.data) + b * p.in.seq_idx.batch_stride + t * step;
        int32_t ids[kPast + kTapsOfThread];
        const auto is_in_row = [&](int32_t token) { return token < p.in.seqlen; };
#pragma unroll
        for (int k = 0; k < kTapsOfThread; ++k) ids[kPast + k] = -1;  // as padding has
        if (in_quads) {
#pragma unroll
            for (int k = 0; k < kTapsOfThread; k += 4) {
                if (!is_in_row(t + k)) continue;
                const Words4 quad = *reinterpret_cast<const Words4*>(from + k);
#pragma unroll
                for (int e = 0; e < 4; ++e) ids[kPast + k + e] = static_cast<int32_t>(word(quad, e));
            }
        } else {
#pragma unroll
            for (int k = 0; k < kTapsOfThread; ++k)
                if (is_in_row(t + k)) ids[kPast + k] = from[k * step];
        }
#pragma unroll
        for (int k = 0; k < kPast; ++k) ids[k] = __shfl_up(ids[kTapsOfThread + k], 1);
        if (lane == 0 && t > 0 && is_in_row(t)) {
#pragma unroll
            for (int k = 0; k < kPast; ++k) ids[k] = from[(k - kPast) * step];
        }
        if (t == 0) {  // in front of a row are inputs of its first sequence
#pragma unroll
            for (int k = 0; k < kPast; ++k) ids[k] = ids[kPast];
        }
        Words2 words{};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t four = 0;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int32_t id = ids[kPast + half * 4 + e];
                uint32_t byte = 1u << kPast;
#pragma unroll
                for (int k = 0; k < kPast; ++k)
                    if (ids[half * 4 + e + k] == id) byte |= 1u << k;
                if (id >= 0) four |= byte << e * 8;
            }
            if (t == 0 && !p.in.initial_states.data) four &= static_cast<uint32_t>(kTapsOfFirst<kWidth> >> half * 32);
            set_word(words, half, four);
        }
        if (i > 0 && i < all) taps[i] = words;
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

// The floats of the partial sums, an even number of them: taps follow, in words of eight bytes.
int64_t numbers_of(const CausalConv1dBwdParams& p, const BwdPartials& partials) {
    if (partials.are_sums) return 0;
    const int64_t rows = *std::max_element(std::begin(partials.rows), std::end(partials.rows));
    return (rows * (int64_t{p.in.width} + 1) * p.in.dim + 1) / 2 * 2;
}

int64_t taps_bytes(const CausalConv1dBwdParams& p) { return kTapsBefore + p.in.batch * bwd_taps_pitch(p.in.seqlen); }

void make_taps(const CausalConv1dBwdParams& p, Words2* taps, hipStream_t stream) {
    const int64_t threads = taps_bytes(p) / kTapsOfThread;
    const dim3 grid(blocks_up_to(threads, kTapsThreads, 1 << 20), 1, 1);
    with_width<kMostTaps>(p.in.width, [&](auto width) {
        HIPCONV_LAUNCH(true, (causal_conv1d_bwd_taps<decltype(width)::value>), grid, dim3(kTapsThreads, 1, 1), 0, stream, p,
                       taps, bwd_ids_are_quads(p.in));
    });
    check_launch("causal_conv1d_bwd");
}

}  // namespace

int64_t bwd_sums_workspace(const CausalConv1dBwdParams& p, const BwdPartials& partials, bool looks_at_taps) {
    const bool has_taps = looks_at_taps && p.in.seq_idx.data;
    return numbers_of(p, partials) * static_cast<int64_t>(sizeof(float)) + (has_taps ? taps_bytes(p) : 0);
}

CausalConv1dBwdParams bwd_sums_begin(const CausalConv1dBwdParams& params, const BwdPartials& partials, bool looks_at_taps,
                                     void* workspace, hipStream_t stream) {
    CausalConv1dBwdParams p = params;
    p.partials = partials.are_sums ? nullptr : workspace;
    if (looks_at_taps && p.in.seq_idx.data) {
        Words2* taps = reinterpret_cast<Words2*>(static_cast<float*>(workspace) + numbers_of(p, partials));
        p.taps = reinterpret_cast<const uint8_t*>(taps);
        make_taps(p, taps, stream);
    }
    return p;
}

void bwd_sums_add_up(const CausalConv1dBwdParams& p, const BwdPartials& partials, hipStream_t stream) {
    if (partials.are_sums) return;
    const int64_t columns = (int64_t{p.in.width} + 1) * p.in.dim;
    unsigned lanes = columns >= kManyFinishColumns ? kFinishLanes : kFewFinishLanes;
    const int64_t most = *std::max_element(std::begin(partials.rows), std::end(partials.rows));
    unsigned rows = power_of_two_up_to((most + kFinishLoads - 1) / kFinishLoads, kFinishThreads / lanes);
    while (lanes * rows < kLeastFinishThreads && columns >= kEnoughFinishBlocks * 2 * lanes) lanes *= 2;
    if (rows < kLeastFinishThreads / lanes) rows = kLeastFinishThreads / lanes;
    const dim3 grid(blocks_up_to(columns, lanes, 1 << 20), 1, 1), block(lanes, rows, 1);
    HIPCONV_LAUNCH(true, causal_conv1d_bwd_finish, grid, block, 0, stream, p, partials);
    check_launch("causal_conv1d_bwd");
}

}  // namespace hipconv
