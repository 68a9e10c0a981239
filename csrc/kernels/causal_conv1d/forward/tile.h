// The kernels of "tile" share out their work by vectors of channels and runs of tokens.
#pragma once

#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "../common/vector_math.h"
#include "causal_conv1d/forward.h"

namespace hipconv {

constexpr int kTileThreads = 128;
constexpr int kTileLanes = 32;  // the most vectors of channels that a block is wide

// The longest run, in tokens: a wide window's first tokens are worth sharing among more.
constexpr int longest_run(int width) { return width <= 4 ? 16 : 32; }

// The plan says how a launch divides the work. A block is blockDim.x vectors of channels by blockDim.y rows; a row is one run
// of tokens. Where a sequence has fewer runs than the block has rows, the block takes several sequences.
struct TilePlan {
    int run;                     // tokens
    uint32_t log2_runs_a_block;  // of one sequence
    uint32_t sequences_a_block, blocks_a_sequence;
    int64_t x_step, out_step;  // bytes from token to token
};

// A thread's run.
struct TileRun {
    int64_t b, begin, vector;
};

HIPCONV_INLINE TileRun run_of_thread(const TilePlan& plan) {
    const int64_t rest = static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
    const uint32_t sequences = static_cast<uint32_t>(rest) / plan.blocks_a_sequence;
    const uint32_t first_run = (static_cast<uint32_t>(rest) - sequences * plan.blocks_a_sequence) << plan.log2_runs_a_block;
    const int64_t b = static_cast<int64_t>(sequences) * plan.sequences_a_block + (threadIdx.y >> plan.log2_runs_a_block);
    const int64_t begin = (static_cast<int64_t>(first_run) + (threadIdx.y & ((1u << plan.log2_runs_a_block) - 1))) * plan.run;
    return {b, begin, static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x};
}

// Tells how rows of threads share the runs.
struct TileShape {
    unsigned lanes, rows;
    int run;  // tokens
    unsigned runs_a_block, sequences_a_block;
    int64_t groups;  // blocks along the channels
    int64_t blocks_a_sequence, sequence_groups;

    bool fits() const { return groups <= kGridLimit && blocks_a_sequence * sequence_groups < int64_t{1} << 31; }
};

// Runs are short enough that there are threads for a large card.
inline int run_for(const CausalConv1dFwdParams& p, int64_t vectors) {
    const auto threads = [&](int run) { return vectors * p.batch * ((static_cast<int64_t>(p.seqlen) + run - 1) / run); };
    const int longest = longest_run(p.width), longest_of_f32 = longest * 5 / 8;
    int run = longest;
    while (run > 4 && threads(run) < kEnoughThreads) run /= 2;
    return p.dtype == DType::f32 && threads(longest_of_f32) >= 4 * kEnoughThreads ? longest_of_f32 : run;
}

inline TileShape tile_shape(const CausalConv1dFwdParams& p, int64_t vectors) {
    TileShape s{};
    s.lanes = power_of_two_up_to(vectors, kTileLanes);
    s.rows = kTileThreads / s.lanes;
    s.run = run_for(p, vectors);
    // They are of equal length then, so that a block's last rows are not idle.
    const auto runs_of = [&](int run) { return (static_cast<int64_t>(p.seqlen) + run - 1) / run; };
    s.runs_a_block = power_of_two_up_to(runs_of(s.run), s.rows);
    const int64_t wanted = (runs_of(s.run) + s.runs_a_block - 1) / s.runs_a_block * s.runs_a_block;
    s.run = static_cast<int>((p.seqlen + wanted - 1) / wanted);
    s.sequences_a_block = s.rows / s.runs_a_block;
    s.groups = (vectors + s.lanes - 1) / s.lanes;
    s.blocks_a_sequence = (runs_of(s.run) + s.runs_a_block - 1) / s.runs_a_block;
    s.sequence_groups = (static_cast<int64_t>(p.batch) + s.sequences_a_block - 1) / s.sequences_a_block;
    return s;
}

inline void set_steps(const CausalConv1dFwdParams& p, TilePlan* plan) {
    plan->x_step = p.x.seqlen_stride * element_bytes(p.dtype);
    plan->out_step = p.out.seqlen_stride * element_bytes(p.dtype);
}

inline TilePlan tile_plan(const CausalConv1dFwdParams& p, const TileShape& shape) {
    TilePlan plan{};
    plan.run = shape.run;
    while (1u << plan.log2_runs_a_block < shape.runs_a_block) ++plan.log2_runs_a_block;
    plan.sequences_a_block = shape.sequences_a_block;
    plan.blocks_a_sequence = static_cast<uint32_t>(shape.blocks_a_sequence);
    set_steps(p, &plan);
    return plan;
}

inline dim3 tile_grid(const TileShape& shape) { return grid_of(shape.groups, shape.blocks_a_sequence * shape.sequence_groups); }
inline dim3 tile_block(const TileShape& shape) { return dim3(shape.lanes, shape.rows, 1); }

// The bytes of a lane of the aligned vectors.
constexpr int lane_bytes(int width) { return width <= 4 ? kLaneBytes : 8; }

// Tells whether lanes of that many bytes are aligned vectors of x and out, and of parameters that are packed.
inline bool tile_is_whole(const CausalConv1dFwdParams& p, int bytes) {
    const int channels = bytes / element_bytes(p.dtype);
    const auto aligned = [&](const Sequences& s) {
        return reinterpret_cast<uintptr_t>(s.data) % static_cast<unsigned>(bytes) == 0 && s.seqlen_stride % channels == 0 &&
               s.batch_stride % channels == 0;
    };
    return p.dim % channels == 0 && aligned(p.x) && aligned(p.out) && parameters_are_packed(p);
}

// Lanes of two channels are words of memory in which no larger vectors are aligned: a wave then writes 128 bytes of a token, of
// which sectors of 32 bytes that it shares with another are fewer. An H100 showed that faster for many plain rows of three or
// four taps, and for others not.
constexpr int kFewestTokensOfPairs = 64, kFewestChannelsOfPairs = 64, kFewestOutputsOfPairs = 32 * kEnoughThreads;
template <typename T, int kWidth>
constexpr bool kHasPairs = kHasPredicates && sizeof(T) == 2 && kWidth == 4;
inline bool tile_is_of_pairs(const CausalConv1dFwdParams& p) {
    return kHasPredicates && element_bytes(p.dtype) == 2 && (p.width == 3 || p.width == 4) && rows_are_plain(p) &&
           p.seqlen >= kFewestTokensOfPairs && p.dim >= kFewestChannelsOfPairs &&
           static_cast<int64_t>(p.batch) * p.dim * p.seqlen >= kFewestOutputsOfPairs &&
           !tile_is_whole(p, lane_bytes(p.width)) && tile_is_whole(p, 4);
}

// Loads packed biases of kChannels channels.
template <typename P, int kTogether, int kChannels>
HIPCONV_INLINE void packed_biases(const P* from, float (&to)[kChannels]) {
#pragma unroll
    for (int first = 0; first < kChannels; first += kTogether) {
        float some[kTogether];
        load_packed(from + first, some);
#pragma unroll
        for (int c = 0; c < kTogether; ++c) to[first + c] = some[c];
    }
}

// Loads packed weights of kChannels channels from d, of the last kTaps taps of kWidth, kTogether channels at a time. Biases of
// the weights' type come with them, by loads that are under way together; where there are none, others are loaded.
template <int kTaps, int kTogether, int kChannels, int kWidth>
HIPCONV_INLINE void packed_weights(const CausalConv1dInputs& p, int64_t d, float (&to)[kChannels * kWidth],
                                   float (&biases)[kChannels]) {
    with_dtype(p.weight_dtype, [&](auto type) {
        using P = decltype(type);
#pragma unroll
        for (int first = 0; first < kChannels; first += kTogether) {
            const P* from = static_cast<const P*>(p.weight) + (d + first) * kTaps;
            if constexpr (kTogether == 1 && (kTaps % 2 || kUnalignedVectors)) {  // AMD's compiler finds vectors itself
#pragma unroll
                for (int i = 0; i < kTaps; ++i) to[first * kWidth + kWidth - kTaps + i] = parameter<P>(from, i);
            } else {
                float weights[kTogether * kTaps];
                load_packed(from, weights);
#pragma unroll
                for (int c = 0; c < kTogether; ++c) {
#pragma unroll
                    for (int i = 0; i < kTaps; ++i) to[(first + c) * kWidth + kWidth - kTaps + i] = weights[c * kTaps + i];
                }
            }
        }
        packed_biases<P, kTogether>(static_cast<const P*>(p.bias_dtype == p.weight_dtype && p.bias ? p.bias : p.weight) + d,
                                    biases);
    });
}

// Loads packed weights and bias of a vector of channels, as pairs. The width is kWidth or, with kOrOneLess, one less; then
// the oldest tap is zero. Only with kAligned, d is a multiple of the vector.
template <bool kOrOneLess, bool kAligned, int kWidth, int kPairs>
HIPCONV_INLINE void packed_parameters(const CausalConv1dInputs& p, int64_t d, Pair (&weight)[kWidth][kPairs],
                                      Pair (&bias)[kPairs]) {
    constexpr int kTogether = kAligned ? 2 * kPairs : 1;
    float weights[2 * kPairs * kWidth] = {}, biases[2 * kPairs] = {};
    if (!kOrOneLess || p.width == kWidth) {
        packed_weights<kWidth, kTogether, 2 * kPairs, kWidth>(p, d, weights, biases);
    } else if constexpr (kOrOneLess) {
        packed_weights<kWidth - 1, kTogether, 2 * kPairs, kWidth>(p, d, weights, biases);
    }
    if (p.bias && p.bias_dtype != p.weight_dtype) {
        with_dtype(p.bias_dtype, [&](auto type) {
            packed_biases<decltype(type), kTogether>(static_cast<const decltype(type)*>(p.bias) + d, biases);
        });
    }
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        bias[j] = p.bias ? make_pair(biases[2 * j], biases[2 * j + 1]) : twice(0.0f);
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
            weight[i][j] = make_pair(weights[2 * j * kWidth + i], weights[(2 * j + 1) * kWidth + i]);
    }
}

// The same of parameters with any strides.
template <int kWidth, int kPairs>
HIPCONV_INLINE void strided_parameters(const CausalConv1dInputs& p, int64_t d, Pair (&weight)[kWidth][kPairs],
                                       Pair (&bias)[kPairs]) {
    const bool has_oldest = p.width == kWidth;
    const int first_tap = kWidth - p.width;
    uint32_t bias_bits[2 * kPairs] = {};
    if (p.bias) {
#pragma unroll
        for (int c = 0; c < 2 * kPairs; ++c) bias_bits[c] = load_parameter_bits(p.bias, (d + c) * p.bias_stride, p.bias_dtype);
    }
    with_dtype(p.weight_dtype, [&](auto type) {
        using P = decltype(type);
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            const int64_t first = (d + 2 * j) * p.weight_dim_stride;
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                weight[i][j] = twice(0.0f);
                if (i == 0 && !has_oldest) continue;
                const int64_t at = first + (i - first_tap) * p.weight_width_stride;
                weight[i][j] = make_pair(parameter<P>(p.weight, at), parameter<P>(p.weight, at + p.weight_dim_stride));
            }
        }
    });
#pragma unroll
    for (int j = 0; j < kPairs; ++j)
        bias[j] = make_pair(parameter_of(bias_bits[2 * j], p.bias_dtype), parameter_of(bias_bits[2 * j + 1], p.bias_dtype));
}

// The launches of these tell whether they have written the final states, too.
//
// tile_checked.cu. Filters of memory in which no aligned vector lies are of 16 bits. They have two taps at most, or four where
// rows are so short that threads do most before their first token (measured on an H100 and an H200).
constexpr int kMostShiftedWidth = 2, kMostShiftedWidthOfShortRows = 4, kShortShiftedRow = 8;
template <typename T, int kWidth>
constexpr bool kMayShift = sizeof(T) == 2 && kWidth <= kMostShiftedWidthOfShortRows;
bool causal_conv1d_tile_checked_fits(const CausalConv1dFwdParams& p);
bool causal_conv1d_tile_checked_fills_lanes(const CausalConv1dFwdParams& p);  // most of them
bool causal_conv1d_tile_checked(const CausalConv1dFwdParams& p, hipStream_t stream);

// tile_single.cu
bool causal_conv1d_tile_single_fits(const CausalConv1dFwdParams& p);
bool causal_conv1d_tile_single(const CausalConv1dFwdParams& p, hipStream_t stream);

// tile_lds.cu
bool causal_conv1d_tile_lds_fits(const CausalConv1dFwdParams& p);
bool causal_conv1d_tile_lds_fills_threads(const CausalConv1dFwdParams& p);  // if it fits
bool causal_conv1d_tile_lds(const CausalConv1dFwdParams& p, hipStream_t stream);

}  // namespace hipconv
