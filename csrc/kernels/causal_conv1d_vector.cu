// Causal conv1d forward, channel-first ("vector"): neighbouring tokens are neighbours in memory.
//
// A thread makes the kTokens outputs of one 16-byte vector from that vector of x and the kWidth - 1 tokens before it, which are
// in the vector before: the same cache line, or the one the neighbouring lane reads. No LDS, no barrier. Where rows do not
// begin and end on 16-byte boundaries, a vector is one token.
//
// Bytes: each input read once from memory (and once more from cache), each output written once.
#include <hip/hip_runtime.h>

#include "causal_conv1d_launchers.h"
#include "causal_conv1d_parts.h"
#include "check.h"

namespace hipconv {

constexpr int kVectorThreads = 256;
constexpr int kItems = 4;  // vectors of a thread: 2 leave memory waiting, 8 cost too many registers (measured on an H200)

// How a launch divides the work. A block is blockDim.x vectors of tokens by blockDim.y channels. Each thread makes kItems vectors
// of its channel, loaded together before the first is used, so that memory always has work: the items of a channel are the
// stretches of blockDim.x vectors of each of its sequences, one sequence after another.
struct VectorPlan {
    uint32_t stretches;       // of a sequence
    uint32_t items;           // of a channel: batch * stretches
    uint32_t x_row, out_row;  // bytes from channel to channel
};

template <typename T, int kTokens, int kWidth, bool kSilu>
__global__ void HIPCONV_LAUNCH_BOUNDS(kVectorThreads, 3) causal_conv1d_fwd_vector(CausalConv1dFwdParams p, VectorPlan plan) {
    constexpr int kBefore = (kWidth - 1 + kTokens - 1) / kTokens;  // vectors that hold the tokens before
    constexpr int kHalf = kTokens / 2;
    constexpr int kPairs = (kTokens + 1) / 2;
    using Vector = Words<T, kTokens>;

    for (int64_t block_dim = static_cast<int64_t>(blockIdx.y) * blockDim.y; block_dim < p.dim;
         block_dim += static_cast<int64_t>(gridDim.y) * blockDim.y) {
        const int64_t d = block_dim + threadIdx.y;
        if (d >= p.dim) continue;
        // The block's base address is the same for all lanes (scalar registers on AMD); a lane adds 32 bits to it.
        const T* x_block = static_cast<const T*>(p.x.data) + block_dim * p.x.dim_stride;
        T* out_block = static_cast<T*>(p.out.data) + block_dim * p.out.dim_stride;
        const uint32_t x_row = threadIdx.y * plan.x_row, out_row = threadIdx.y * plan.out_row;

        for (uint32_t item = blockIdx.x * kItems; item < plan.items; item += gridDim.x * kItems) {
            Vector loaded[kItems][kBefore + 1];
            uint32_t b = item / plan.stretches, stretch = item % plan.stretches;
            uint32_t batch[kItems], token[kItems];  // of each item
#pragma unroll
            for (int u = 0; u < kItems; ++u) {
                const uint32_t t = (stretch * blockDim.x + threadIdx.x) * kTokens;
                batch[u] = b;
                token[u] = t;
                const char* x = reinterpret_cast<const char*>(x_block + b * p.x.batch_stride);
                const bool inside = item + u < plan.items && t < static_cast<uint32_t>(p.seqlen);
#pragma unroll
                for (int k = 0; k <= kBefore; ++k) {
                    const uint32_t back = static_cast<uint32_t>(kBefore - k) * kTokens;
                    loaded[u][k] = Vector{};
                    const uint32_t at = x_row + (t - back) * static_cast<uint32_t>(sizeof(T));
                    if (inside && t >= back) loaded[u][k] = *reinterpret_cast<const Vector*>(x + at);
                }
                if (++stretch == plan.stretches) {
                    stretch = 0;
                    ++b;
                }
            }

            Pair weight[kWidth];
            float probe = 0.0f;  // becomes NaN if a weight is not finite
            with_dtype(p.weight_dtype, [&](auto type) {
                using P = decltype(type);
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                    const float w = parameter<P>(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride);
                    weight[i] = twice(w);
                    probe += w * 0.0f;
                }
            });
            const float bias = p.bias ? load_parameter(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;

#pragma unroll
            for (int u = 0; u < kItems; ++u) {
                if (item + u >= plan.items) break;
                const uint32_t t = token[u];
                if (t >= static_cast<uint32_t>(p.seqlen)) continue;

                float window[(kBefore + 1) * kTokens];  // tokens from t - kBefore * kTokens on
#pragma unroll
                for (int k = 0; k <= kBefore; ++k) {
#pragma unroll
                    for (int j = 0; j < kPairs; ++j) {
                        const Pair both = pair_of<T>(loaded[u][k], j);
                        window[k * kTokens + 2 * j] = low(both);
                        if (kTokens > 1) window[k * kTokens + 2 * j + 1] = high(both);
                    }
                }
                // Outputs are paired half a vector apart, not side by side: then all taps see the same pairs of inputs.
                constexpr int kOldest = kBefore * kTokens - (kWidth - 1);
                Pair sums[kPairs];
#pragma unroll
                for (int j = 0; j < kPairs; ++j) {
                    sums[j] = twice(bias);
#pragma unroll
                    for (int i = 0; i < kWidth; ++i) {
                        const int at = kOldest + j + i;
                        sums[j] = multiply_add(weight[i], make_pair(window[at], window[at + kHalf]), sums[j]);
                    }
                }
                if (t < kWidth - 1 && probe != 0.0f) {
                    // Zeros stood in for the tokens before the row, and some weight is infinite or NaN: skip those taps instead.
                    const auto sum_of = [&](int e) {
                        float sum = bias;
#pragma unroll
                        for (int i = 0; i < kWidth; ++i)
                            if (t + kOldest + e + i >= static_cast<uint32_t>(kBefore * kTokens))
                                sum += low(weight[i]) * window[kOldest + e + i];
                        return sum;
                    };
#pragma unroll
                    for (int j = 0; j < kPairs; ++j) sums[j] = make_pair(sum_of(j), sum_of(j + kHalf));
                }
                float results[2 * kPairs];
#pragma unroll
                for (int j = 0; j < kPairs; ++j) {
                    if (kSilu) sums[j] = silu(sums[j]);
                    results[j] = low(sums[j]);
                    results[j + kPairs] = high(sums[j]);
                }
                Vector result;
#pragma unroll
                for (int j = 0; j < kPairs; ++j) set_pair<T>(result, j, make_pair(results[2 * j], results[2 * j + 1]));
                char* out = reinterpret_cast<char*>(out_block + batch[u] * p.out.batch_stride);
                *reinterpret_cast<Vector*>(out + (out_row + t * static_cast<uint32_t>(sizeof(T)))) = result;
            }
        }
    }
}

namespace {

// Whether a vector is 16 bytes of tokens: if every row of x and out begins and ends on such a boundary. Else it is one token.
bool rows_are_aligned(const CausalConv1dFwdParams& p) {
    const int tokens = 16 / element_bytes(p.dtype);
    const auto aligned = [&](const Sequences& s) {
        return reinterpret_cast<uintptr_t>(s.data) % 16 == 0 && s.dim_stride % tokens == 0 && s.batch_stride % tokens == 0;
    };
    return p.seqlen % tokens == 0 && aligned(p.x) && aligned(p.out);
}

template <typename T, int kTokens, int kWidth, bool kSilu>
void launch(const CausalConv1dFwdParams& p, hipStream_t stream) {
    const int64_t vectors = (static_cast<int64_t>(p.seqlen) + kTokens - 1) / kTokens;
    const unsigned lanes = power_of_two_up_to(vectors, kVectorThreads);
    VectorPlan plan{};
    plan.stretches = static_cast<uint32_t>((vectors + lanes - 1) / lanes);
    plan.items = plan.stretches * static_cast<uint32_t>(p.batch);
    plan.x_row = static_cast<uint32_t>(p.x.dim_stride * sizeof(T));
    plan.out_row = static_cast<uint32_t>(p.out.dim_stride * sizeof(T));

    const dim3 block(lanes, kVectorThreads / lanes, 1);
    const dim3 grid(blocks_up_to(plan.items, kItems, 1 << 22), blocks_up_to(p.dim, block.y, 65535), 1);
    hipLaunchKernelGGL((causal_conv1d_fwd_vector<T, kTokens, kWidth, kSilu>), grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_fwd");
}

template <typename T, int kWidth>
void with_width(const CausalConv1dFwdParams& p, hipStream_t stream) {
    constexpr int kWide = 16 / sizeof(T);
    if (rows_are_aligned(p))
        p.use_silu ? launch<T, kWide, kWidth, true>(p, stream) : launch<T, kWide, kWidth, false>(p, stream);
    else
        p.use_silu ? launch<T, 1, kWidth, true>(p, stream) : launch<T, 1, kWidth, false>(p, stream);
}

template <typename T>
void with_dtype_of_x(const CausalConv1dFwdParams& p, hipStream_t stream) {
    switch (p.width) {
        case 2:
            return with_width<T, 2>(p, stream);
        case 3:
            return with_width<T, 3>(p, stream);
        case 4:
            return with_width<T, 4>(p, stream);
    }
}

}  // namespace

bool causal_conv1d_vector_serves(const CausalConv1dFwdParams& p) {
    if (p.width < 2 || p.width > 4 || p.x.seqlen_stride != 1 || p.out.seqlen_stride != 1) return false;
    const auto near = [&](const Sequences& s) {  // a block spans at most 256 channels, and only one of a sequence of many vectors
        const int64_t rows = p.seqlen > 128 * 8 ? 2 : 256;
        return s.dim_stride >= 0 && (s.dim_stride * rows + p.seqlen) * element_bytes(p.dtype) < kOffsetLimit;
    };
    if (static_cast<int64_t>(p.batch) * (p.seqlen / 32 + 1) >= int64_t{1} << 31) return false;  // items are counted in 32 bits
    return near(p.x) && near(p.out);
}

void causal_conv1d_vector(const CausalConv1dFwdParams& p, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    switch (p.dtype) {
        case DType::f32:
            return with_dtype_of_x<float>(p, hip_stream);
        case DType::f16:
            return with_dtype_of_x<f16>(p, hip_stream);
        case DType::bf16:
            return with_dtype_of_x<bf16>(p, hip_stream);
    }
}

}  // namespace hipconv
