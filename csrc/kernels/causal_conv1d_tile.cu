// Causal conv1d forward, channel-last ("tile"): neighbouring channels are neighbours in memory.
//
// A thread owns the kChannels channels of one 16-byte vector and walks a run of tokens. Their weights stay in registers; the last
// kWidth tokens are a ring in registers, whose positions the unrolled loop knows at compile time; kAhead tokens are loaded before
// they are needed, so that memory always has work. A run starts by reading the kWidth - 1 tokens before it, which its neighbour
// has just brought into the cache. Runs are independent: no LDS, no barrier.
//
// Bytes: each input read once from memory (and kWidth - 1 tokens a run once more from cache), each output written once.
#include <hip/hip_runtime.h>

#include "causal_conv1d_launchers.h"
#include "causal_conv1d_parts.h"
#include "check.h"

namespace hipconv {

constexpr int kTileThreads = 128;
constexpr int kMaxTokens = 128;  // of a run; measured on an H200, as is the number of tokens loaded ahead

// How a launch divides the work. A block is blockDim.x vectors of channels by blockDim.y rows; a row is a run of tokens of one
// sequence or, where sequences are no longer than a run, one whole sequence.
struct TilePlan {
    int tokens;                  // of a run
    bool rows_are_batches;
    uint32_t blocks_a_sequence;  // blocks along the runs of one sequence
    uint32_t row_blocks;         // blocks along the rows of all sequences
    uint32_t x_step, out_step;   // bytes from token to token
    uint32_t x_row, out_row;     // bytes from row to row of a block
};

template <int kChannels>
constexpr int kTileLanes = kChannels == 1 ? 64 : 32;  // the most vectors of channels that a block is wide

template <typename T, int kChannels, int kWidth, bool kSilu>
__global__ void HIPCONV_LAUNCH_BOUNDS(kTileThreads, 4) causal_conv1d_fwd_tile(CausalConv1dFwdParams p, TilePlan plan) {
    constexpr int kPairs = (kChannels + 1) / 2;
    constexpr int kAhead = 4 / kWidth * kWidth;  // a multiple of kWidth, so that ring positions repeat
    constexpr int kBlockChannels = kTileLanes<kChannels> * kChannels;
    using Vector = Words<T, kChannels>;

    // The block's weights and biases as floats, a row of channels for each tap: loaded once for all rows of the block, where each
    // thread fetching its own would cost more cache accesses than its tokens do.
    HIPCONV_SHARED(float, parameters, (kWidth + 1) * kBlockChannels);
    const uint32_t vectors = static_cast<uint32_t>(p.dim) / kChannels;
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    for (uint32_t group = blockIdx.y; group * blockDim.x < vectors; group += gridDim.y) {
        const int64_t first_channel = static_cast<int64_t>(group) * blockDim.x * kChannels;
        __syncthreads();  // of the group before
        for (int c = thread; c < static_cast<int>(blockDim.x) * kChannels; c += static_cast<int>(blockDim.x * blockDim.y)) {
            const int64_t channel = first_channel + c < p.dim ? first_channel + c : p.dim - 1;
            for (int i = 0; i < kWidth; ++i)
                parameters[i * kBlockChannels + c] =
                    load_parameter(p.weight, channel * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
            parameters[kWidth * kBlockChannels + c] =
                p.bias ? load_parameter(p.bias, channel * p.bias_stride, p.bias_dtype) : 0.0f;
        }
        __syncthreads();

        const uint32_t vector = group * blockDim.x + threadIdx.x;
        if (vector >= vectors) continue;
        const int64_t d = static_cast<int64_t>(vector) * kChannels;
        const float* mine = parameters + threadIdx.x * kChannels;
        const auto parameters_of = [&](int row, int j) {
            const float* both = mine + row * kBlockChannels + 2 * j;
            return make_pair(both[0], both[kChannels > 1]);
        };
        Pair weight[kWidth][kPairs], bias[kPairs];
        Pair probe = twice(0.0f);  // becomes NaN if a weight is not finite
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            bias[j] = parameters_of(kWidth, j);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                weight[i][j] = parameters_of(i, j);
                probe = multiply_add(weight[i][j], twice(0.0f), probe);
            }
        }

        for (uint32_t rows = blockIdx.x; rows < plan.row_blocks; rows += gridDim.x) {
            // The block's base address is the same for all lanes (scalar registers on AMD); a lane adds 32 bits to it.
            const int64_t block_batch =
                plan.rows_are_batches ? static_cast<int64_t>(rows) * blockDim.y : rows / plan.blocks_a_sequence;
            const int64_t block_token =
                plan.rows_are_batches ? 0 : static_cast<int64_t>(rows % plan.blocks_a_sequence) * blockDim.y * plan.tokens;
            const int64_t begin = plan.rows_are_batches ? 0 : block_token + static_cast<int64_t>(threadIdx.y) * plan.tokens;
            if (plan.rows_are_batches ? block_batch + threadIdx.y >= p.batch : begin >= p.seqlen) continue;
            const int tokens = static_cast<int>(p.seqlen - begin < plan.tokens ? p.seqlen - begin : plan.tokens);

            const char* x = reinterpret_cast<const char*>(static_cast<const T*>(p.x.data) + block_batch * p.x.batch_stride +
                                                          block_token * p.x.seqlen_stride);
            char* out = reinterpret_cast<char*>(static_cast<T*>(p.out.data) + block_batch * p.out.batch_stride +
                                                block_token * p.out.seqlen_stride);
            uint32_t x_at = threadIdx.y * plan.x_row + static_cast<uint32_t>(d * sizeof(T));
            uint32_t out_at = threadIdx.y * plan.out_row + static_cast<uint32_t>(d * sizeof(T));
            const auto load = [&](uint32_t at) { return *reinterpret_cast<const Vector*>(x + at); };

            Pair ring[kWidth][kPairs];
            const auto keep = [&](int slot, Vector v) {
#pragma unroll
                for (int j = 0; j < kPairs; ++j) ring[slot][j] = pair_of<T>(v, j);
            };
#pragma unroll
            for (int i = 0; i < kWidth - 1; ++i) {  // the tokens before the run
                const int back = kWidth - 1 - i;
                if (begin >= back) {
                    // For the block's first row these lie before its base, where a lane's 32 bits cannot reach.
                    const int64_t at = static_cast<int64_t>(x_at) - static_cast<int64_t>(back) * plan.x_step;
                    keep(i, *reinterpret_cast<const Vector*>(x + at));
                } else {
#pragma unroll
                    for (int j = 0; j < kPairs; ++j) ring[i][j] = twice(0.0f);
                }
            }

            const auto produce = [&](int slot) {  // the output of the token in this slot of the ring
                Vector result;
#pragma unroll
                for (int j = 0; j < kPairs; ++j) {
                    Pair sum = bias[j];
#pragma unroll
                    for (int i = 0; i < kWidth; ++i) sum = multiply_add(weight[i][j], ring[(slot + 1 + i) % kWidth][j], sum);
                    set_pair<T>(result, j, kSilu ? silu(sum) : sum);
                }
                *reinterpret_cast<Vector*>(out + out_at) = result;
                out_at += plan.out_step;
            };

            Vector ahead[kAhead];
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                ahead[j] = load(x_at);
                if (j + 1 < tokens) x_at += plan.x_step;  // at the end of the run, the last token again
            }
            int t = 0;
            for (; t + 2 * kAhead <= tokens; t += kAhead) {
#pragma unroll
                for (int j = 0; j < kAhead; ++j) {
                    keep((kWidth - 1 + j) % kWidth, ahead[j]);
                    ahead[j] = load(x_at);
                    if (j + 1 < kAhead || t + 2 * kAhead < tokens) x_at += plan.x_step;
                    produce((kWidth - 1 + j) % kWidth);
                }
            }
            for (; t < tokens; t += kAhead) {
#pragma unroll
                for (int j = 0; j < kAhead; ++j) {
                    keep((kWidth - 1 + j) % kWidth, ahead[j]);
                    ahead[j] = load(x_at);
                    if (t + kAhead + j + 1 < tokens) x_at += plan.x_step;
                    if (t + j < tokens) produce((kWidth - 1 + j) % kWidth);
                }
            }

            // Where a weight is infinite or NaN, the zeros that stood in for the tokens before the sequence made NaNs: do the
            // first outputs again without those taps.
            if (begin == 0 && !(low(probe) == 0.0f && high(probe) == 0.0f)) {
                x_at = threadIdx.y * plan.x_row + static_cast<uint32_t>(d * sizeof(T));
                out_at = threadIdx.y * plan.out_row + static_cast<uint32_t>(d * sizeof(T));
#pragma unroll
                for (int s = 0; s < kWidth - 1; ++s) {
                    if (s >= tokens) break;
                    keep(s, load(x_at));
                    x_at += plan.x_step;
                    Vector result;
#pragma unroll
                    for (int j = 0; j < kPairs; ++j) {
                        Pair sum = bias[j];
#pragma unroll
                        for (int i = kWidth - 1 - s; i < kWidth; ++i)
                            sum = multiply_add(weight[i][j], ring[i + s - (kWidth - 1)][j], sum);
                        set_pair<T>(result, j, kSilu ? silu(sum) : sum);
                    }
                    *reinterpret_cast<Vector*>(out + out_at) = result;
                    out_at += plan.out_step;
                }
            }
        }
    }
}

namespace {

// Channels of one vector: 16 bytes of them, if every vector of x and out is aligned; else one.
int channels_a_vector(const CausalConv1dFwdParams& p) {
    const int bytes = element_bytes(p.dtype);
    const int wanted = 16 / bytes;
    const auto aligned = [&](const Sequences& s) {
        return reinterpret_cast<uintptr_t>(s.data) % (wanted * bytes) == 0 && s.seqlen_stride % wanted == 0 &&
               s.batch_stride % wanted == 0;
    };
    return p.dim % wanted == 0 && aligned(p.x) && aligned(p.out) ? wanted : 1;
}

// Long runs re-read few tokens, short ones make many threads: the longest that make enough to fill a large card.
int tokens_of_a_run(const CausalConv1dFwdParams& p, int64_t vectors) {
    int tokens = kMaxTokens;
    while (tokens > 8 && static_cast<int64_t>(p.batch) * p.seqlen / tokens * vectors < (1 << 16)) tokens /= 2;
    return p.seqlen < tokens ? p.seqlen : tokens;
}

template <typename T, int kChannels, int kWidth, bool kSilu>
void launch(const CausalConv1dFwdParams& p, hipStream_t stream) {
    const int64_t vectors = p.dim / kChannels;
    const unsigned lanes = power_of_two_up_to(vectors, kTileLanes<kChannels>);
    const unsigned rows = kTileThreads / lanes;
    TilePlan plan{};
    plan.tokens = tokens_of_a_run(p, vectors);
    plan.rows_are_batches = p.seqlen <= plan.tokens;
    const int64_t block_tokens = static_cast<int64_t>(rows) * plan.tokens;
    plan.blocks_a_sequence = static_cast<uint32_t>((p.seqlen + block_tokens - 1) / block_tokens);
    plan.row_blocks = plan.rows_are_batches ? (p.batch + rows - 1) / rows : p.batch * plan.blocks_a_sequence;
    plan.x_step = static_cast<uint32_t>(p.x.seqlen_stride * sizeof(T));
    plan.out_step = static_cast<uint32_t>(p.out.seqlen_stride * sizeof(T));
    plan.x_row = plan.rows_are_batches ? static_cast<uint32_t>(p.x.batch_stride * sizeof(T)) : plan.tokens * plan.x_step;
    plan.out_row = plan.rows_are_batches ? static_cast<uint32_t>(p.out.batch_stride * sizeof(T)) : plan.tokens * plan.out_step;

    const dim3 grid(blocks_up_to(plan.row_blocks, 1, 1 << 22), blocks_up_to(vectors, lanes, 65535), 1);
    hipLaunchKernelGGL((causal_conv1d_fwd_tile<T, kChannels, kWidth, kSilu>), grid, dim3(lanes, rows, 1), 0, stream, p, plan);
    check_launch("causal_conv1d_fwd");
}

template <typename T, int kChannels, int kWidth>
void with_activation(const CausalConv1dFwdParams& p, hipStream_t stream) {
    p.use_silu ? launch<T, kChannels, kWidth, true>(p, stream) : launch<T, kChannels, kWidth, false>(p, stream);
}

template <typename T, int kWidth>
void with_channels(const CausalConv1dFwdParams& p, hipStream_t stream) {
    constexpr int kWide = 16 / sizeof(T);
    channels_a_vector(p) == 1 ? with_activation<T, 1, kWidth>(p, stream) : with_activation<T, kWide, kWidth>(p, stream);
}

template <typename T>
void with_width(const CausalConv1dFwdParams& p, hipStream_t stream) {
    switch (p.width) {
        case 2:
            return with_channels<T, 2>(p, stream);
        case 3:
            return with_channels<T, 3>(p, stream);
        case 4:
            return with_channels<T, 4>(p, stream);
    }
}

}  // namespace

bool causal_conv1d_tile_serves(const CausalConv1dFwdParams& p) {
    if (p.width < 2 || p.width > 4 || p.x.dim_stride != 1 || p.out.dim_stride != 1) return false;
    // A block spans at most 256 runs, or 256 sequences no longer than a run.
    const auto near = [&](const Sequences& s) {
        const int64_t bytes = element_bytes(p.dtype), run = s.seqlen_stride * (kMaxTokens + 8);
        return (s.seqlen_stride >= 0 && s.batch_stride >= 0) &&
               (256 * run + p.dim) * bytes < kOffsetLimit &&
               (p.seqlen > kMaxTokens || (256 * s.batch_stride + run + p.dim) * bytes < kOffsetLimit);
    };
    if (static_cast<int64_t>(p.batch) * (p.seqlen / 8 + 1) >= int64_t{1} << 31) return false;  // runs are counted in 32 bits
    return near(p.x) && near(p.out);
}

void causal_conv1d_tile(const CausalConv1dFwdParams& p, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    switch (p.dtype) {
        case DType::f32:
            return with_width<float>(p, hip_stream);
        case DType::f16:
            return with_width<f16>(p, hip_stream);
        case DType::bf16:
            return with_width<bf16>(p, hip_stream);
    }
}

}  // namespace hipconv
