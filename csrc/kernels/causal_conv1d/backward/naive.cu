// Causal conv1d backward on GPUs: which kernel serves a call, the kernel that serves any, and the last step of all of them.
//
// `naive`: a thread makes one element of dx at a time, by the formula, and another kernel one partial sum of dweight or dbias.
// Any width, any strides, any sizes; every loop is grid-stride.
//
// Partial sums lie in the workspace as rows of (width + 1, dim), as many as a kernel has groups of tokens. `finish` adds them up.
// Behind them lies what `taps` makes of sequence ids for the other kernels. These begin while the one before them ends, where the
// card can do that.
#include <hip/hip_runtime.h>

#include <algorithm>
#include <iterator>

#include "causal_conv1d/forward_formula.h"
#include "causal_conv1d/states_formula.h"
#include "device/arch.h"
#include "launch/check.h"
#include "parts.h"

namespace hipconv {

constexpr int kNaiveThreads = 256;
constexpr int kNaiveTokens = 64;  // of a partial sum
constexpr int kFinishLanes = 32;  // columns of a block
constexpr int kFinishRows = 8;    // threads that share a column

// dx, and dinitial_states as the dx of `before` tokens before each row.
template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kNaiveThreads, 4)
    causal_conv1d_bwd_naive(CausalConv1dBwdParams p, int32_t before, bool lanes_along_dim) {
    const int64_t tokens = int64_t{p.in.seqlen} + before;
    const int64_t inner_size = lanes_along_dim ? p.in.dim : tokens;
    const int64_t outer_size = lanes_along_dim ? tokens : p.in.dim;
    const int64_t first_inner = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t first_outer = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
    for (int64_t b = blockIdx.z; b < p.in.batch; b += gridDim.z) {
        for (int64_t outer = first_outer; outer < outer_size; outer += static_cast<int64_t>(gridDim.y) * blockDim.y) {
            for (int64_t inner = first_inner; inner < inner_size; inner += static_cast<int64_t>(gridDim.x) * blockDim.x)
                bwd_one_input<T, float>(first_parameter_again(p), b, lanes_along_dim ? inner : outer,
                                        (lanes_along_dim ? outer : inner) - before);
        }
    }
}

// One partial sum a thread: of kNaiveTokens tokens of a sequence, for one of the width + 1 sums of a channel.
template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kNaiveThreads, 4) causal_conv1d_bwd_naive_sums(CausalConv1dBwdParams p, int64_t pieces) {
    const int64_t columns = (int64_t{p.in.width} + 1) * p.in.dim, rows = p.in.batch * pieces;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        const int64_t b = row / pieces, begin = (row - b * pieces) * kNaiveTokens;
        const int64_t end = begin + kNaiveTokens < p.in.seqlen ? begin + kNaiveTokens : p.in.seqlen;
        for (int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; c < columns;
             c += static_cast<int64_t>(gridDim.x) * blockDim.x) {
            const int i = static_cast<int>(c / p.in.dim);
            float sum = 0.0f;
            for (int64_t t = begin; t < end; ++t)
                sum += bwd_one_term<T, float>(first_parameter_again(p), b, c - int64_t{i} * p.in.dim, t, i);
            static_cast<float*>(p.partials)[row * columns + c] = sum;
        }
    }
}

// The taps of four tokens of each row a thread.
__global__ void HIPCONV_LAUNCH_BOUNDS(kNaiveThreads, 4) causal_conv1d_bwd_taps(CausalConv1dBwdParams p, uint32_t* taps) {
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
__global__ void HIPCONV_LAUNCH_BOUNDS(kFinishLanes * kFinishRows, 4)
    causal_conv1d_bwd_finish(CausalConv1dBwdParams p, BwdPartials partials) {
    HIPCONV_SHARED(float, sums, kFinishLanes * kFinishRows);
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

int64_t naive_pieces(const CausalConv1dBwdParams& p) { return (int64_t{p.in.seqlen} + kNaiveTokens - 1) / kNaiveTokens; }

BwdPartials partials_of(const CausalConv1dBwdParams& p, const std::string& kernel) {
    if (kernel == "vector") return causal_conv1d_bwd_vector_partials(p);
    return equal_partials(kernel == "tile" ? causal_conv1d_bwd_tile_partials(p) : p.in.batch * naive_pieces(p));
}

int64_t numbers_of(const CausalConv1dBwdParams& p, const BwdPartials& partials) {
    return *std::max_element(std::begin(partials.rows), std::end(partials.rows)) * (int64_t{p.in.width} + 1) * p.in.dim;
}

bool looks_at_taps(const CausalConv1dBwdParams& p, const std::string& kernel) { return kernel != "naive" && p.in.seq_idx.data; }

void launch_taps(CausalConv1dBwdParams& p, const BwdPartials& partials, hipStream_t stream) {
    uint32_t* taps = reinterpret_cast<uint32_t*>(static_cast<float*>(p.partials) + numbers_of(p, partials));
    p.taps = reinterpret_cast<const uint8_t*>(taps);
    const dim3 grid(blocks_up_to(bwd_taps_pitch(p.in.seqlen) / 4, kNaiveThreads, 65535), blocks_up_to(p.in.batch, 1, 65535), 1);
    hipLaunchKernelGGL(causal_conv1d_bwd_taps, grid, dim3(kNaiveThreads, 1, 1), 0, stream, p, taps);
    check_launch("causal_conv1d_bwd");
}

template <typename T>
void launch_naive(const CausalConv1dBwdParams& p, hipStream_t stream) {
    const bool lanes_along_dim = dim_is_inner(p.in.x);
    const int32_t before = p.dinitial_states.data ? p.in.width - 1 : 0;
    const int64_t tokens = int64_t{p.in.seqlen} + before;
    const int64_t inner = lanes_along_dim ? p.in.dim : tokens, outer = lanes_along_dim ? tokens : p.in.dim;
    if (tokens > 0) {
        const unsigned lanes = power_of_two_up_to(inner, kNaiveThreads);
        const dim3 block(lanes, kNaiveThreads / lanes, 1);
        const dim3 grid(blocks_up_to(inner, block.x, 65535), blocks_up_to(outer, block.y, 65535),
                        blocks_up_to(p.in.batch, 1, 65535));
        hipLaunchKernelGGL(causal_conv1d_bwd_naive<T>, grid, block, 0, stream, p, before, lanes_along_dim);
        check_launch("causal_conv1d_bwd");
    }
    if (p.in.seqlen > 0) {
        const int64_t columns = (int64_t{p.in.width} + 1) * p.in.dim, pieces = naive_pieces(p);
        const dim3 grid(blocks_up_to(columns, kNaiveThreads, 65535), blocks_up_to(p.in.batch * pieces, 1, 65535), 1);
        hipLaunchKernelGGL(causal_conv1d_bwd_naive_sums<T>, grid, dim3(kNaiveThreads, 1, 1), 0, stream, p, pieces);
        check_launch("causal_conv1d_bwd");
    }
}

}  // namespace

std::vector<std::string> causal_conv1d_bwd_kernels() {
    return {std::begin(kCausalConv1dBwdGpuKernels), std::end(kCausalConv1dBwdGpuKernels)};
}

bool causal_conv1d_bwd_serves_f64() { return false; }

const char* causal_conv1d_bwd_choice(const CausalConv1dBwdParams& p) {
    if (causal_conv1d_bwd_tile_serves(p)) return "tile";
    if (causal_conv1d_bwd_vector_serves(p)) return "vector";
    return "naive";
}

const char* causal_conv1d_bwd_refusal(const CausalConv1dBwdParams& p, const std::string& kernel) {
    if (kernel == "tile" && !causal_conv1d_bwd_tile_serves(p))
        return "channel-last x, dout and dx (stride 1 along dim), widths 2 to 4; with seq_idx or states, of aligned vectors";
    if (kernel == "vector" && !causal_conv1d_bwd_vector_serves(p))
        return "channel-first x, dout and dx (stride 1 along seqlen) of at least one token, widths 2 to 4";
    return nullptr;
}

int64_t causal_conv1d_bwd_workspace(const CausalConv1dBwdParams& p, const std::string& kernel) {
    return numbers_of(p, partials_of(p, kernel)) +
           (looks_at_taps(p, kernel) ? p.in.batch * bwd_taps_pitch(p.in.seqlen) / 4 : 0);
}

void causal_conv1d_bwd(const CausalConv1dBwdParams& params, const std::string& kernel, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    CausalConv1dBwdParams p = params;
    const BwdPartials partials = partials_of(p, kernel);
    if (looks_at_taps(p, kernel)) launch_taps(p, partials, hip_stream);
    if (kernel == "tile") {
        causal_conv1d_bwd_tile(p, stream);
    } else if (kernel == "vector") {
        causal_conv1d_bwd_vector(p, stream);
    } else {
        switch (p.in.dtype) {
            case DType::f16:
                launch_naive<f16>(p, hip_stream);
                break;
            case DType::bf16:
                launch_naive<bf16>(p, hip_stream);
                break;
            default:
                launch_naive<float>(p, hip_stream);
        }
    }
    const int64_t columns = (int64_t{p.in.width} + 1) * p.in.dim;
    const dim3 grid(blocks_up_to(columns, kFinishLanes, 1 << 20), 1, 1), block(kFinishLanes, kFinishRows, 1);
    HIPCONV_LAUNCH(true, causal_conv1d_bwd_finish, grid, block, 0, hip_stream, p, partials);
    check_launch("causal_conv1d_bwd");
}

}  // namespace hipconv
