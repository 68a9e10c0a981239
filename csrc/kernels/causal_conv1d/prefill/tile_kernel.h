// This kernel is the causal conv1d over packed sequences ("tile"): one launch for any mix of lengths.
//
// A block is one of two kinds. Most blocks take runs of tokens: the packed tokens are cut into runs of equal length, whatever
// sequences they hold, and a thread walks the run of its row for the channels of one vector, as the kernel `tile` of
// causal_conv1d_fwd does. Such a thread makes the outputs of the tokens whose window lies within x. The first width - 1 tokens
// of each sequence belong to blocks of the second kind, in which each row takes the start of one sequence (begin.h): so only
// these blocks touch states, and all sequences' states are under way at once, however many sequences a run holds.
//
// A run's loads do not wait for its sequences to be known: the lanes of a row look up one token each, in query_start_loc on the
// device, and turn what they find into masks of the tokens to store.
//
// In place (`out` is x), there are two launches. The first one has the blocks of the second kind: they read all that becomes a
// state, and put first outputs aside, as other tokens need the inputs that these overwrite; only where a sequence is all start
// are they stored at once. It also saves the tokens before each block of the second launch, which has the runs. There a row
// reads its halo before any row of its block stores, and the block before it does not matter any more.
//
// Bytes: each input is read once from memory (and a few tokens a run and a sequence once more from cache), each output is
// written once, each state is read once and written once. In place, saved tokens are 1 or 2 % more, and the starts of sequences
// are read and written once more each.
#pragma once

#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "begin.h"
#include "launch/check.h"
#include "launch_plan.h"
#include "masks.h"

namespace hipconv {

// Threads of a block, and tokens of a run. Small blocks with short runs keep memory busier (measured on an H200).
constexpr int kUsualThreads = 64, kMostThreads = 128;
constexpr int kUsualRun = 16, kMostRun = 32;  // a mask has a bit for each token
constexpr int kMostLanes = 32;                // vectors of channels that a block is wide
// A row makes several starts of sequences where there are many. AMD's waves have no registers for a loop around that.
constexpr bool kSeveralBegins = kHasPredicates;

template <typename T, int kChannels, int kWidth, bool kAnyWidth>
__device__ __forceinline__ void convolve_run(const CausalConv1dVarlenParams& p, const VarlenPlan& plan, uint32_t block,
                                             BegunInRun* begun_in_runs) {
    const int32_t run = plan.run;
    constexpr int kPairs = (kChannels + 1) / 2;
    constexpr int kAhead = kWidth == 2 ? 4 : kWidth;  // a multiple of kWidth, so that ring positions repeat
    using Vector = Words<T, kChannels>;
    const int64_t begin = (static_cast<int64_t>(block) * blockDim.y + threadIdx.y) * run;
    const int64_t channel = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChannels;
    const bool works = channel < p.dim && begin < p.tokens;  // if not, it still looks up a token for its row
    const int64_t d = works ? channel : 0;
    const int tokens = !works ? 0 : p.tokens - begin < run ? static_cast<int>(p.tokens - begin) : run;

    const int64_t x_step = p.x_token_stride * static_cast<int64_t>(sizeof(T));
    const char* x = static_cast<const char*>(p.x) + begin * x_step + d * p.x_dim_stride * static_cast<int64_t>(sizeof(T));
    const auto load = [](const char* from) { return *reinterpret_cast<const Vector*>(from); };
    const auto store = [](char* to, Vector v) { *reinterpret_cast<Vector*>(to) = v; };
    Vector before[kWidth - 1], ahead[kAhead];
    // In place, the tokens before a block were saved.
    const bool saved = plan.halos && threadIdx.y == 0;
    const char* from = x - (kWidth - 1) * x_step;
    if (saved) from = plan.halos + ((int64_t{block} - 1) * (kWidth - 1) * p.dim + d) * static_cast<int64_t>(sizeof(T));
    const int64_t step = saved ? p.dim * static_cast<int64_t>(sizeof(T)) : x_step;
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) {
        before[i] = Vector{};
        if (works && begin >= kWidth - 1 - i) before[i] = load(from);
        from += step;
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
        ahead[j] = Vector{};
        if (j < tokens) ahead[j] = load(x);
        x += x_step;
    }
    TapsInMemory<T, kChannels, kWidth, kAnyWidth> taps(p, d);
    taps.fetch();
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    const auto find = [&](const auto& indices) {
        const SequenceFinders finders(indices, static_cast<int32_t>(blockDim.x),
                                      static_cast<int32_t>((threadIdx.y * blockDim.x + threadIdx.x) % kWaveSize));
        const int32_t first = static_cast<int32_t>(begin < p.tokens ? begin : p.tokens);
        return masks_of_run(finders, finders.sequence_near(first), first, run, kWidth - 1 - missing_taps<kWidth, kAnyWidth>(p));
    };
    RunMasks masks = plan.plain_indices ? find(PlainIndices{again}) : find(AnyIndices{again});
    if (plan.phase == VarlenPhase::runs) {
        begun_in_runs[threadIdx.y] = masks;
        __syncthreads();  // from here on, a row may store what the next one has read
    }
    if (!works) return;

    const OutputColumn column = output_column<T>(p, d);
    char* out = column.first + begin * column.step;
    if (masks.dead != 0 && p.dead_tokens != DeadTokens::leave) {
        for (int t = 0; t < tokens; ++t)
            if (masks.dead >> t & 1)
                *reinterpret_cast<Vector*>(out + int64_t{t} * column.step) =
                    p.dead_tokens == DeadTokens::zero ? Vector{} : load(x + (t - kAhead) * x_step);
    }
    const auto place = [&] { place_begun<T, kChannels, kWidth, kWidth - 1>(p, plan, begun_in_runs, 1, 0, load, store); };
    if (masks.outputs == 0) return place();

    Pair weight[kPairs][kWidth], bias[kPairs];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) taps.unpack(j, weight[j], bias[j]);
    const int missing = missing_taps<kWidth, kAnyWidth>(p);
    Pair ring[kWidth][kPairs];
    const auto keep = [&](int slot, Vector v) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) ring[slot][j] = pair_of<T>(v, j);
    };
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) keep(i, before[i]);
    const bool use_silu = p.use_silu;
    // The output of the token in this slot of the ring, stored if it is this row's.
    const auto produce = [&](int slot, bool stored) {
        Vector result;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            Pair sum = bias[j];
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                if (has_tap(i, missing)) sum = multiply_add(weight[j][i], ring[(slot + 1 + i) % kWidth][j], sum);
            set_pair<T>(result, j, silu_where(use_silu, sum));  // without an instance for each: the time is that of the memory
        }
        if (stored) *reinterpret_cast<Vector*>(out) = result;
        out += column.step;
    };

    int t = 0;
    for (; t + 2 * kAhead <= tokens; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            keep((kWidth - 1 + j) % kWidth, ahead[j]);
            ahead[j] = load(x);
            x += x_step;
            produce((kWidth - 1 + j) % kWidth, masks.outputs >> j & 1);
        }
        masks.outputs >>= kAhead;
    }
    for (; t < tokens; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            keep((kWidth - 1 + j) % kWidth, ahead[j]);
            if (!kHasPredicates) ahead[j] = Vector{};  // so that what is past the end need not be kept
            if (t + kAhead + j < tokens) ahead[j] = load(x);
            x += x_step;
            produce((kWidth - 1 + j) % kWidth, masks.outputs >> j & 1);  // there are no bits past the end
        }
        masks.outputs >>= kAhead;
    }
    place();
}

// The number of blocks of a compute unit, by the registers that a width needs.
constexpr int tile_blocks(int width) { return width <= 4 ? 8 : width <= 6 ? 5 : 4; }

// Saves the tokens before a block of the next launch, for each row one, after the first.
template <typename T, int kChannels, int kWidth>
__device__ __forceinline__ void save_halo(const CausalConv1dVarlenParams& p, const VarlenPlan& plan, uint32_t block) {
    using Vector = Words<T, kChannels>;
    constexpr int kPast = kWidth - 1;
    constexpr int64_t kSize = sizeof(T);
    const int64_t number = int64_t{block} * blockDim.y + threadIdx.y + 1, end = number * blockDim.y * plan.run;
    const int64_t d = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChannels;
    if (d >= p.dim || end >= p.tokens) return;
    const char* from = static_cast<const char*>(p.x) + ((end - kPast) * p.x_token_stride + d) * kSize;
    char* to = plan.halos + ((number - 1) * kPast * p.dim + d) * kSize;
    Vector halo[kPast];
#pragma unroll
    for (int i = 0; i < kPast; ++i) halo[i] = *reinterpret_cast<const Vector*>(from + i * p.x_token_stride * kSize);
#pragma unroll
    for (int i = 0; i < kPast; ++i) *reinterpret_cast<Vector*>(to + i * p.dim * kSize) = halo[i];
}

template <typename T, int kChannels, int kWidth, bool kAnyWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kMostThreads, tile_blocks(kWidth))
    causal_conv1d_varlen_tile(CausalConv1dVarlenParams p, VarlenPlan plan) {
    HIPCONV_SHARED(BegunInRun, begun_in_runs, kMostThreads);  // one a row
    HIPCONV_SHARED(PackedSequence, found, kSeveralBegins ? kMostThreads : 1);
    const uint32_t block = blockIdx.z * gridDim.y + blockIdx.y;
    if (block >= plan.blocks) return;
    let_next_kernel_begin();
    wait_for_kernel_before();
    // This counts the blocks of the second kind among the first `count` ones. It is rounded up, so that a sequence's start
    // comes before its other tokens.
    const auto begins_among = [&](uint64_t count) {
        return static_cast<uint32_t>((count * plan.begins_of + 0xffffffffu) >> 32);
    };
    const uint32_t begins = begins_among(block);
    if (begins_among(uint64_t{block} + 1) == begins) {
        if (plan.phase == VarlenPhase::begins) return save_halo<T, kChannels, kWidth>(p, plan, block - begins);
        return convolve_run<T, kChannels, kWidth, kAnyWidth>(p, plan, block - begins, begun_in_runs);
    }

    // A thread has fewer channels where states are wider than x: a block then has twice as many lanes, half as many rows.
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    const uint32_t few = channels_of_begin(kChannels, sizeof(T), element_bytes(again.state_dtype));
    const uint32_t lanes = blockDim.x * (kChannels / few), thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int64_t d = static_cast<int64_t>(blockIdx.x) * blockDim.x * kChannels + thread % lanes * few;
    const uint32_t rows = blockDim.x * blockDim.y / lanes, starts = kSeveralBegins ? rows * plan.begins_a_row : rows;
    const int64_t first_sequence = static_cast<int64_t>(begins) * starts;
    const auto look_up = [&](uint32_t number) {
        const int64_t b = first_sequence + number;
        if (b >= p.sequences) return PackedSequence{-1, 0, 0, kNoSlot, kNoSlot};
        return plan.plain_indices ? packed_sequence(PlainIndices{again}, static_cast<int32_t>(b))
                                  : packed_sequence(AnyIndices{again}, static_cast<int32_t>(b));
    };
    if constexpr (kSeveralBegins) {
        if (thread < starts) found[thread] = look_up(thread);
        __syncthreads();
    }
    if (d >= p.dim) return;
    const auto make_starts = [&](auto state_type) {
        using S = decltype(state_type);
        constexpr int kFew = channels_of_begin(kChannels, sizeof(T), sizeof(S));
        const auto make = [&](const PackedSequence& s, int32_t first) {
            if (s.number < 0 || s.end <= s.begin) return;  // an empty sequence keeps its state
            const auto outputs_of = [&] {
                if (plan.begun && s.end - s.begin >= first_parameter_again(p).width - 1)
                    return OutputColumn{begun_place<T>(p, plan, s.number, s.begin, first, 0),
                                        static_cast<uint32_t>(p.dim) * static_cast<uint32_t>(sizeof(T))};
                OutputColumn column = output_column<T>(p, first);
                column.first += static_cast<int64_t>(s.begin) * column.step;
                return column;
            };
            const TapsInMemory<T, kFew, kWidth, kAnyWidth> taps(p, first);
            begin_sequence<T, S, kFew, kWidth, kAnyWidth>(p, plan.state_form, s, first, taps, outputs_of);
        };
        if constexpr (!kSeveralBegins) return make(look_up(thread / lanes), static_cast<int32_t>(d));
#pragma unroll 1
        for (uint32_t at = thread / lanes; at < starts; at += rows) make(found[at], static_cast<int32_t>(d));
    };
    if (sizeof(T) == sizeof(float) || again.state_dtype == kDTypeOf<T>) return make_starts(T{});
    make_starts(float{});
}

// Launches the instance for the element type and the width (tile.cu rounds it up). Each type has a file of its own.
template <typename T, int kWidth>
void launch_varlen_tile_instance(const CausalConv1dVarlenParams& p, const VarlenPlan& plan, dim3 grid, dim3 block,
                                 hipStream_t stream) {
    constexpr int kChannels = vector_bytes(kWidth) / static_cast<int>(sizeof(T));
    constexpr bool kAnyWidth = kWidth != 4;
    HIPCONV_LAUNCH(true, (causal_conv1d_varlen_tile<T, kChannels, kWidth, kAnyWidth>), grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_varlen");
}
template <typename T>
void launch_varlen_tile(const CausalConv1dVarlenParams& p, const VarlenPlan& plan, int width, dim3 grid, dim3 block,
                        hipStream_t stream) {
    const auto launch = width == 4   ? launch_varlen_tile_instance<T, 4>
                        : width == 3 ? launch_varlen_tile_instance<T, 3>
                        : width == 6 ? launch_varlen_tile_instance<T, 6>
                                     : launch_varlen_tile_instance<T, 8>;
    launch(p, plan, grid, block, stream);
}
extern template void launch_varlen_tile<f16>(const CausalConv1dVarlenParams&, const VarlenPlan&, int, dim3, dim3, hipStream_t);
extern template void launch_varlen_tile<bf16>(const CausalConv1dVarlenParams&, const VarlenPlan&, int, dim3, dim3, hipStream_t);

}  // namespace hipconv
