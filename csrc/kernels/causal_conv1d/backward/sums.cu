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
constexpr int kFinishLanes = 32;  // columns of a block
constexpr int kFinishRows = 8;    // threads that share a column

// A thread makes the taps of four tokens of each row.
__global__ void HIPCONV_LAUNCH_BOUNDS(kTapsThreads, 4) causal_conv1d_bwd_taps(CausalConv1dBwdParams p, uint32_t* taps) {
    let_next_kernel_begin();
    const int64_t words = bwd_taps_pitch(p.in.seqlen) / 4;
    for (int64_t b = blockIdx.y; b < p.in.batch; b += gridDim.y) {
        for (int64_t w = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; w < words;
             w += static_cast<int64_t>(gridDim.x) * blockDim.x) {
            uint32_t word = 0;
            for (int e = 0; e < 4; ++e) {
                const int64_t t = w * 4 + e - kTapsBefore;
                if (t < 0 || t >= p.in.seqlen || is_padding(p.in, b, t)) continue;
                for (int i = 0; i < p.in.width; ++i)
                    if (sees(p.in, b, t, t - p.in.width + 1 + i)) word |= 1u << (e * 8 + i);
            }
            taps[b * words + w] = word;
        }
    }
}

// A block adds up kFinishLanes columns of the workspace; kFinishRows threads share a column.
__global__ void HIPCONV_LAUNCH_BOUNDS(kFinishLanes* kFinishRows, 4)
    causal_conv1d_bwd_finish(CausalConv1dBwdParams p, BwdPartials partials) {
    HIPCONV_SHARED(float, sums, kFinishLanes* kFinishRows);
    let_next_kernel_begin();
    wait_for_kernel_before();
    const int64_t columns = (int64_t{p.in.width} + 1) * p.in.dim;
    for (int64_t first = static_cast<int64_t>(blockIdx.x) * kFinishLanes; first < columns;
         first += static_cast<int64_t>(gridDim.x) * kFinishLanes) {
        const int64_t c = first + threadIdx.x;
        const int i = static_cast<int>(c / p.in.dim);
        const int64_t d = c - int64_t{i} * p.in.dim;
        int64_t rows = partials.rows[0];
        for (int zone = 1; zone < kTaperZones; ++zone)
            if (d >= partials.first_channel[zone]) rows = partials.rows[zone];
        float sum = 0.0f;
        if (c < columns) {
            const float* column = static_cast<const float*>(p.partials) + c;
#pragma unroll 8
            for (int64_t row = threadIdx.y; row < rows; row += kFinishRows) sum += column[row * columns];
        }
        sums[threadIdx.y * kFinishLanes + threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y == 0 && c < columns) {
            for (int row = 1; row < kFinishRows; ++row) sum += sums[row * kFinishLanes + threadIdx.x];
            bwd_store_sum<float>(p, d, i, sum);
        }
        __syncthreads();
    }
}

namespace {

int64_t numbers_of(const CausalConv1dBwdParams& p, const BwdPartials& partials) {
    return *std::max_element(std::begin(partials.rows), std::end(partials.rows)) * (int64_t{p.in.width} + 1) * p.in.dim;
}

void make_taps(const CausalConv1dBwdParams& p, uint32_t* taps, hipStream_t stream) {
    const dim3 grid(blocks_up_to(bwd_taps_pitch(p.in.seqlen) / 4, kTapsThreads, 65535), blocks_up_to(p.in.batch, 1, 65535), 1);
    hipLaunchKernelGGL(causal_conv1d_bwd_taps, grid, dim3(kTapsThreads, 1, 1), 0, stream, p, taps);
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
    p.partials = workspace;
    if (looks_at_taps && p.in.seq_idx.data) {
        uint32_t* taps = reinterpret_cast<uint32_t*>(static_cast<float*>(workspace) + numbers_of(p, partials));
        p.taps = reinterpret_cast<const uint8_t*>(taps);
        make_taps(p, taps, stream);
    }
    return p;
}

void bwd_sums_add_up(const CausalConv1dBwdParams& p, const BwdPartials& partials, hipStream_t stream) {
    const int64_t columns = (int64_t{p.in.width} + 1) * p.in.dim;
    const dim3 grid(blocks_up_to(columns, kFinishLanes, 1 << 20), 1, 1), block(kFinishLanes, kFinishRows, 1);
    HIPCONV_LAUNCH(true, causal_conv1d_bwd_finish, grid, block, 0, stream, p, partials);
    check_launch("causal_conv1d_bwd");
}

}  // namespace hipconv
