// This kernel is the causal conv1d forward, channel-last ("tile"): neighbouring channels are neighbours in memory.
//
// A thread owns the kChannels channels of one vector and walks a short run of tokens. Their weights stay in registers; the last
// kWidth tokens are a ring in registers, whose positions the unrolled loop knows at compile time; kAhead tokens are prefetched,
// so that memory always has work. A run starts by reading its halo, the kWidth - 1 tokens before it, which a neighbour has just
// brought into the cache. Runs are independent: there is no LDS and no barrier, and a thread's first loads, weights included,
// all leave together. Runs are short because many small blocks keep memory busier than few long ones, and blocks follow each
// other along the channels because that is the order of memory (both measured on an H200).
//
// Bytes: each input is read once from memory (and kWidth - 1 tokens a run once more from cache), each output is written once.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "../common/parts.h"
#include "kernels.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kTileThreads = 128;
constexpr int kTileLanes = 32;  // the most vectors of channels that a block is wide
constexpr int kMaxRun = 16;     // tokens
constexpr int kMaxRunOfF32 = 10;

// This plan says how a launch divides the work. A block is blockDim.x vectors of channels by blockDim.y rows; a row is one run
// of tokens. Where a sequence has fewer runs than the block has rows, the block takes several sequences.
struct TilePlan {
    int run;                     // tokens
    uint32_t log2_runs_a_block;  // of one sequence
    uint32_t sequences_a_block, blocks_a_sequence;
    int64_t x_step, out_step;  // bytes from token to token
};

// This is the number of blocks of a compute unit, by the registers that a width needs. (Where the activation is chosen at run
// time, AMD's compiler overlaps more tokens than the registers of four waves a SIMD allow, at width 4.)
constexpr int tile_blocks(int width, bool always_silu) {
    if (width == 4 && !always_silu && kLaneBytes == 16) return 6;
    return width <= 4 ? 8 : width == 5 ? 6 : width == 6 ? 5 : 4;
}

// With kAlwaysSilu, the usual activation of models has an instance of its own; the others choose at run time, for an
// instruction an element.
template <typename T, int kChannels, int kWidth, bool kAlwaysSilu>
__global__ void HIPCONV_LAUNCH_BOUNDS(kTileThreads, tile_blocks(kWidth, kAlwaysSilu))
    causal_conv1d_fwd_tile(CausalConv1dFwdParams p, TilePlan plan) {
    constexpr int kPairs = (kChannels + 1) / 2;
    constexpr int kAhead = kWidth == 2 ? 4 : kWidth;  // a multiple of kWidth, so that ring positions repeat
    using Vector = Words<T, kChannels>;

    const int64_t rest = static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
    const uint32_t sequences = static_cast<uint32_t>(rest) / plan.blocks_a_sequence;
    const uint32_t first_run = (static_cast<uint32_t>(rest) - sequences * plan.blocks_a_sequence) << plan.log2_runs_a_block;
    const int64_t b = static_cast<int64_t>(sequences) * plan.sequences_a_block + (threadIdx.y >> plan.log2_runs_a_block);
    const int64_t begin = (static_cast<int64_t>(first_run) + (threadIdx.y & ((1u << plan.log2_runs_a_block) - 1))) * plan.run;
    const int64_t d = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChannels;
    if (d >= p.dim || b >= p.batch || begin >= p.seqlen) return;
    let_next_kernel_begin();
    const int tokens = static_cast<int>(p.seqlen - begin < plan.run ? p.seqlen - begin : plan.run);
    const T* x_channels = static_cast<const T*>(p.x.data) + b * p.x.batch_stride + d;
    T* out_channels = static_cast<T*>(p.out.data) + b * p.out.batch_stride + d;
    const char* x = reinterpret_cast<const char*>(x_channels) + begin * plan.x_step;
    char* out = reinterpret_cast<char*>(out_channels) + begin * plan.out_step;
    const auto load = [](const char* from) { return *reinterpret_cast<const Vector*>(from); };

    wait_for_kernel_before();
    Vector before[kWidth - 1], ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) {
        const int back = kWidth - 1 - i;
        before[i] = Vector{};
        if (begin >= back) before[i] = load(x - back * plan.x_step);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
        ahead[j] = Vector{};
        if (j < tokens) ahead[j] = load(x);
        x += plan.x_step;
    }

    Pair weight[kWidth][kPairs], bias[kPairs];
    bool redo;  // the first outputs: see below
    {
        Pair probe = twice(0.0f);  // becomes NaN if a weight is not finite
        float weights[kChannels * kWidth], biases[kChannels] = {};
        with_dtype(p.weight_dtype, [&](auto type) {
            using P = decltype(type);
            if constexpr (kChannels > 1) {
                load_packed(static_cast<const P*>(p.weight) + d * kWidth, weights);
            } else {
                for (int i = 0; i < kWidth; ++i)
                    weights[i] = parameter<P>(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride);
            }
        });
        if (p.bias) {
            with_dtype(p.bias_dtype, [&](auto type) {
                using P = decltype(type);
                if constexpr (kChannels > 1)
                    load_packed(static_cast<const P*>(p.bias) + d, biases);
                else
                    biases[0] = parameter<P>(p.bias, d * p.bias_stride);
            });
        }
        constexpr int kHigh = kChannels > 1;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            bias[j] = make_pair(biases[2 * j], biases[2 * j + kHigh]);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                weight[i][j] = make_pair(weights[2 * j * kWidth + i], weights[(2 * j + kHigh) * kWidth + i]);
                probe = multiply_add(weight[i][j], twice(0.0f), probe);
            }
        }
        redo = begin == 0 && !(low(probe) == 0.0f && high(probe) == 0.0f);
    }

    Pair ring[kWidth][kPairs];
    const auto keep = [&](int slot, Vector v) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) ring[slot][j] = pair_of<T>(v, j);
    };
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) keep(i, before[i]);

    const bool use_silu = kAlwaysSilu || p.use_silu;
    // This makes the output of the token in this slot of the ring, from taps that begin `skipped` tokens later than they might.
    const auto produce = [&](int slot, int skipped) {
        Vector result;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            Pair sum = bias[j];
#pragma unroll
            for (int i = skipped; i < kWidth; ++i) sum = multiply_add(weight[i][j], ring[(slot + 1 + i) % kWidth][j], sum);
            const Pair activated = silu(sum);
            set_pair<T>(result, j, make_pair(use_silu ? low(activated) : low(sum), use_silu ? high(activated) : high(sum)));
        }
        *reinterpret_cast<Vector*>(out) = result;
        out += plan.out_step;
    };

    int t = 0;
    for (; t + 2 * kAhead <= tokens; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            keep((kWidth - 1 + j) % kWidth, ahead[j]);
            ahead[j] = load(x);
            x += plan.x_step;
            produce((kWidth - 1 + j) % kWidth, 0);
        }
    }
    for (; t < tokens; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            keep((kWidth - 1 + j) % kWidth, ahead[j]);
            if (t + kAhead + j < tokens) ahead[j] = load(x);
            x += plan.x_step;
            if (t + j < tokens) produce((kWidth - 1 + j) % kWidth, 0);
        }
    }

    // Where a weight is infinite or NaN, the zeros that stood in for the tokens before the sequence made NaNs: do the first
    // outputs again without those taps.
    if (redo) {
        x -= (t + kAhead) * plan.x_step;
        out -= tokens * plan.out_step;
#pragma unroll
        for (int s = 0; s < kWidth - 1; ++s) {
            if (s >= tokens) break;
            keep(s, load(x));
            x += plan.x_step;
            produce(s, kWidth - 1 - s);
        }
    }
}

namespace {

constexpr int lane_bytes(int width) { return width <= 4 ? kLaneBytes : 8; }

// The number of channels of one vector: as many as a lane's bytes hold, if every vector of x and out is aligned and the
// parameters are packed; else one.
int channels_a_vector(const CausalConv1dFwdParams& p) {
    const int wanted = lane_bytes(p.width) / element_bytes(p.dtype);
    const auto aligned = [&](const Sequences& s) {
        return reinterpret_cast<uintptr_t>(s.data) % lane_bytes(p.width) == 0 && s.seqlen_stride % wanted == 0 &&
               s.batch_stride % wanted == 0;
    };
    return p.dim % wanted == 0 && aligned(p.x) && aligned(p.out) && parameters_are_packed(p) ? wanted : 1;
}

// How rows of threads share the runs.
struct TileShape {
    int64_t vectors;  // of channels
    unsigned lanes, rows;
    int run;  // tokens
    unsigned runs_a_block, sequences_a_block;
    int64_t groups;  // blocks along the channels
    int64_t blocks_a_sequence, sequence_groups;
};

TileShape shape_of(const CausalConv1dFwdParams& p, int channels) {
    TileShape s{};
    s.vectors = p.dim / channels;
    s.lanes = power_of_two_up_to(s.vectors, kTileLanes);
    s.rows = kTileThreads / s.lanes;
    // Runs are short enough that there are threads for a large card, and then of equal length, so that a block's last rows are
    // not idle.
    const auto runs_of = [&](int run) { return (static_cast<int64_t>(p.seqlen) + run - 1) / run; };
    const auto threads = [&](int run) { return s.vectors * p.batch * runs_of(run); };
    s.run = kMaxRun;
    while (s.run > 4 && threads(s.run) < kEnoughThreads) s.run /= 2;
    if (p.dtype == DType::f32 && threads(kMaxRunOfF32) >= 4 * kEnoughThreads) s.run = kMaxRunOfF32;
    s.runs_a_block = power_of_two_up_to(runs_of(s.run), s.rows);
    const int64_t wanted = (runs_of(s.run) + s.runs_a_block - 1) / s.runs_a_block * s.runs_a_block;
    s.run = static_cast<int>((p.seqlen + wanted - 1) / wanted);
    s.sequences_a_block = s.rows / s.runs_a_block;
    s.groups = (s.vectors + s.lanes - 1) / s.lanes;
    s.blocks_a_sequence = (runs_of(s.run) + s.runs_a_block - 1) / s.runs_a_block;
    s.sequence_groups = (static_cast<int64_t>(p.batch) + s.sequences_a_block - 1) / s.sequences_a_block;
    return s;
}

template <typename T, int kChannels, int kWidth, bool kAlwaysSilu>
void launch(const CausalConv1dFwdParams& p, hipStream_t stream) {
    const TileShape shape = shape_of(p, kChannels);
    TilePlan plan{};
    plan.run = shape.run;
    while (1u << plan.log2_runs_a_block < shape.runs_a_block) ++plan.log2_runs_a_block;
    plan.sequences_a_block = shape.sequences_a_block;
    plan.blocks_a_sequence = static_cast<uint32_t>(shape.blocks_a_sequence);
    plan.x_step = p.x.seqlen_stride * static_cast<int64_t>(sizeof(T));
    plan.out_step = p.out.seqlen_stride * static_cast<int64_t>(sizeof(T));

    const dim3 grid = grid_of(shape.groups, shape.blocks_a_sequence * shape.sequence_groups), block(shape.lanes, shape.rows, 1);
    HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile<T, kChannels, kWidth, kAlwaysSilu>), grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_fwd");
}

}  // namespace

const char* causal_conv1d_tile_refusal(const CausalConv1dFwdParams& p) {
    const char* served = "channel-last x and out (stride 1 along dim), widths 2 to 8, plain rows";
    if (!rows_are_plain(p) || p.width < 2 || p.width > kMaxFastWidth || p.x.dim_stride != 1 || p.out.dim_stride != 1)
        return served;
    const TileShape shape = shape_of(p, channels_a_vector(p));
    const bool fits = shape.groups <= kGridLimit && shape.blocks_a_sequence * shape.sequence_groups < int64_t{1} << 31;
    return fits ? nullptr : served;
}

void causal_conv1d_tile(const CausalConv1dFwdParams& p, void* /*workspace*/, void* stream) {
    with_instance<kMaxFastWidth>(p.dtype, p.width, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        constexpr int kWide = lane_bytes(kWidth) / static_cast<int>(sizeof(T));
        const hipStream_t s = static_cast<hipStream_t>(stream);
        if (channels_a_vector(p) == 1) return launch<T, 1, kWidth, false>(p, s);
        if constexpr (kWidth <= 4) {
            if (p.use_silu) return launch<T, kWide, kWidth, true>(p, s);
        }
        launch<T, kWide, kWidth, false>(p, s);
    });
}

}  // namespace hipconv
