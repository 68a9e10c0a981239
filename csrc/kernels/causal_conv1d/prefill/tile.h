// The kernel `tile`, which tile.cu describes, and its launch for one type of x. The file is for files that include
// <hip/hip_runtime.h>; each type has one, as its instances take long to compile.
#pragma once

#include "../common/launch.h"
#include "begin.h"
#include "launch/check.h"
#include "masks.h"
#include "vectors.h"

namespace hipconv {

// Threads of a block, and tokens of a run. Small blocks with short runs keep memory busier (measured on an H200).
constexpr int kUsualThreads = 64, kMostThreads = 128;
constexpr int kUsualRun = 16, kMostRun = 32;  // a mask has a bit for each token
constexpr int kMostLanes = 32;                // vectors of channels that a block is wide
constexpr int32_t kMostTileChannels = 1 << 30;

// Where an output of a sequence's start is put aside.
template <typename T, int kWidth>
HIPCONV_INLINE char* begun_place(const CausalConv1dVarlenParams& p, const VarlenPlan& plan, int32_t number, int32_t start,
                                 int64_t d, int32_t t) {
    constexpr int kPast = kWidth - 1;
    const int64_t row = int64_t{plan.begun_by_token ? start / kPast : number} * kPast + t;
    return plan.begun + (row * p.dim + d) * static_cast<int64_t>(sizeof(T));
}

// Brings the first outputs of sequences to their places in a run, when their inputs are not needed any more.
template <typename T, int kChannels, int kWidth>
__device__ __forceinline__ void place_begun(const TileCall& call, uint32_t block, const BegunInRun* begun_in_runs) {
    const CausalConv1dVarlenParams& p = first_parameter_again(call).params;
    const VarlenPlan& plan = first_parameter_again(call).plan;
    if (plan.phase != VarlenPhase::runs) return;
    int row = static_cast<int>(threadIdx.y);
    from_here_on(row);
    uint32_t left = begun_in_runs[row].tokens;
    const int64_t d = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChannels;
    if (left == 0 || d >= p.dim) return;
    int32_t b = begun_in_runs[row].sequence;
    const EitherIndices indices{p, plan.plain_indices};
    const int64_t begin = (static_cast<int64_t>(block) * blockDim.y + row) * plan.run;
    const OutputColumn to = output_column<T>(p, d);
    const LaneAccess<T, kChannels> access(d, p.dim);
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
        const int32_t token = static_cast<int32_t>(begin) + __popc((left & (0 - left)) - 1);
        while (b + 1 < p.sequences && indices.start(b + 1) <= token) ++b;
        const int32_t start = indices.start(b);
        access.store(to.first + int64_t{token} * to.step,
                     access.load(begun_place<T, kWidth>(p, plan, b, start, d, token - start)));
    }
}

template <int kChannels>  // of a block
constexpr int kBlockChannels = kMostLanes * kChannels;

// What a thread has of a run when its loads are on their way.
template <typename T, int kChannels, int kWidth>
struct RunOnItsWay {
    // A multiple of kWidth, so that ring positions repeat.
    static constexpr int kAhead = kWidth == 3 ? 3 : LaneAccess<T, kChannels>::kHalves ? 8 : kWidth;
    typename LaneAccess<T, kChannels>::Ahead before[kWidth - 1], ahead[kAhead];
    const char* x;  // of the first token that has not been loaded
    int64_t x_step;
    int tokens;
};

// Makes the outputs of a run and stores them. The first kMissing taps of the instance are not the call's.
template <typename T, int kChannels, int kWidth, int kMissing>
__device__ __forceinline__ void convolve_tokens(RunOnItsWay<T, kChannels, kWidth>& on_its_way, RunStores<T, kChannels>& stores,
                                                const LaneTaps<kWidth, kBlockChannels<kChannels>, kChannels>& taps,
                                                const LaneAccess<T, kChannels>& access, OutputColumn out, int run,
                                                bool use_silu) {
    constexpr int kPairs = (kChannels + 1) / 2, kAhead = RunOnItsWay<T, kChannels, kWidth>::kAhead;
    using Access = LaneAccess<T, kChannels>;
    using Vector = Words<T, kChannels>;
    Pair weight[kPairs][kWidth], bias[kPairs];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
#pragma unroll
        for (int i = kMissing; i < kWidth; ++i) weight[j][i] = taps.tap(i, j);
        bias[j] = taps.tap(kWidth, j);
    }
    auto& [before, ahead, x, x_step, tokens] = on_its_way;
    Pair ring[kWidth][kPairs];
    const auto keep = [&](int slot, typename Access::Ahead v) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) ring[slot][j] = Access::pair(v, j);
    };
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) keep(i, before[i]);
    // The output of the token in this slot of the ring, stored if it is this row's.
    const auto produce = [&](int slot, int token) {
        Vector result;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            Pair sum = bias[j];
#pragma unroll
            for (int i = kMissing; i < kWidth; ++i) sum = multiply_add(weight[j][i], ring[(slot + 1 + i) % kWidth][j], sum);
            set_pair<T>(result, j, silu_where(use_silu, sum));  // without an instance for each: memory sets the time
        }
        stores.store(out.first, result, token);
        out.first += out.step;
    };

    int t = 0;
    // Where conditions cost selections, whole pieces of a run go without them.
    for (; !kHasPredicates && !stores.kTogether && t + 2 * kAhead <= tokens; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            keep((kWidth - 1 + j) % kWidth, ahead[j]);
            access.ask(ahead[j], x, 0, 1);
            x += x_step;
            produce((kWidth - 1 + j) % kWidth, j);
        }
        stores.next(kAhead);
    }
    const int end = stores.kTogether ? run : tokens;
    for (; t < end; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            keep((kWidth - 1 + j) % kWidth, ahead[j]);
            if (!kHasPredicates) ahead[j] = typename Access::Ahead{};  // so that what is past the end need not be kept
            access.ask(ahead[j], x, t + kAhead + j, tokens);
            x += x_step;
            produce((kWidth - 1 + j) % kWidth, j);  // there are no bits past the end
        }
        stores.next(kAhead);
    }
}

template <typename T, int kChannels, int kWidth, bool kAnyWidth>
__device__ __forceinline__ void convolve_run(const TileCall& call, uint32_t block, BegunInRun* begun_in_runs, float* taps) {
    const CausalConv1dVarlenParams& p = call.params;
    const VarlenPlan& plan = call.plan;
    const int32_t run = plan.run;
    RunOnItsWay<T, kChannels, kWidth> on_its_way;
    constexpr int kAhead = RunOnItsWay<T, kChannels, kWidth>::kAhead;
    using Vector = Words<T, kChannels>;
    using Ahead = typename LaneAccess<T, kChannels>::Ahead;
    const int64_t begin = (static_cast<int64_t>(block) * blockDim.y + threadIdx.y) * run;
    const int64_t channel = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChannels;
    const bool works = channel < p.dim && begin < p.tokens;  // if not, it still looks up a token for its row
    const int64_t d = works ? channel : 0;
    const int tokens = !works ? 0 : p.tokens - begin < run ? static_cast<int>(p.tokens - begin) : run;
    const LaneAccess<T, kChannels> access(d, p.dim);

    const int64_t x_step = p.x_token_stride * static_cast<int64_t>(sizeof(T));
    const char* x = static_cast<const char*>(p.x) + begin * x_step + d * p.x_dim_stride * static_cast<int64_t>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) {
        const int back = kWidth - 1 - i;
        on_its_way.before[i] = Ahead{};
        const char* from = x - back * x_step;
        if (plan.halos && threadIdx.y == 0)
            from = plan.halos + ((int64_t{block} * (kWidth - 1) - back) * p.dim + d) * static_cast<int64_t>(sizeof(T));
        access.ask(on_its_way.before[i], from, 0, works && begin >= back ? 1 : 0);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
        on_its_way.ahead[j] = Ahead{};
        access.ask(on_its_way.ahead[j], x, j, tokens);
        x += x_step;
    }
    on_its_way.x = x;
    on_its_way.x_step = x_step;
    on_its_way.tokens = tokens;
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    const int missing = missing_taps<kWidth, kAnyWidth>(p);
    const BlockTaps<kWidth, kBlockChannels<kChannels>, kChannels> block_taps(
        again, static_cast<int32_t>(blockIdx.x * blockDim.x) * kChannels, missing);
    RunMasks masks = masks_of_run(EitherIndices{again, plan.plain_indices}, begin, run, kWidth - 1);
    block_taps.put(first_parameter_again(p), missing, taps);
    begun_in_runs[threadIdx.y] = {masks.begun, masks.sequence};
    __syncthreads();  // in place, from here on a row may store what the next one has read

    const CausalConv1dVarlenParams& late = first_parameter_again(p);
    OutputColumn out = output_column<T>(p, d);
    out.first += begin * out.step;
    if (works && masks.dead != 0 && late.dead_tokens != DeadTokens::leave) {
#pragma unroll 1
        for (int t = 0; t < tokens; ++t)
            if (masks.dead >> t & 1)
                access.store(out.first + int64_t{t} * out.step,
                             late.dead_tokens == DeadTokens::zero ? Vector{} : access.load(x + (t - kAhead) * x_step));
    }
    RunStores<T, kChannels> stores(late, first_parameter_again(call).plan, d, out.first, out.step, works ? masks.outputs : 0);
    const bool has_outputs = works && masks.outputs != 0;
    if (stores.kTogether ? __ballot(has_outputs) != 0 : has_outputs) {
        const LaneTaps<kWidth, kBlockChannels<kChannels>, kChannels> own{taps, static_cast<int>(threadIdx.x) * kChannels};
        with_columns<kWidth - 1>(kAnyWidth ? missing : 0, [&](auto columns) {
            constexpr int kMissing = kWidth - 1 - decltype(columns)::value;
            convolve_tokens<T, kChannels, kWidth, kMissing>(on_its_way, stores, own, access, out, run, late.use_silu);
        });
    }
    place_begun<T, kChannels, kWidth>(call, block, begun_in_runs);
}

// The number of blocks of a compute unit, by the registers that a width needs.
template <typename T, int kChannels>
constexpr int tile_blocks(int width) {
    return (width <= 4 ? 8 : 4) + (LaneAccess<T, kChannels>::kHalves ? (width <= 4 ? -2 : 1) : 0);
}

// Saves the tokens before a block of the next launch, for each row one, after the first.
template <typename T, int kChannels, int kWidth>
__device__ __forceinline__ void save_halo(const CausalConv1dVarlenParams& p, const VarlenPlan& plan, uint32_t block) {
    using Vector = Words<T, kChannels>;
    constexpr int kPast = kWidth - 1;
    constexpr int64_t kSize = sizeof(T);
    const int64_t number = int64_t{block} * blockDim.y + threadIdx.y + 1, end = number * blockDim.y * plan.run;
    const int64_t d = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChannels;
    if (d >= p.dim || end >= p.tokens) return;
    const LaneAccess<T, kChannels> access(d, p.dim);
    const char* from = static_cast<const char*>(p.x) + ((end - kPast) * p.x_token_stride + d) * kSize;
    char* to = plan.halos + ((number - 1) * kPast * p.dim + d) * kSize;
    Vector halo[kPast];
#pragma unroll
    for (int i = 0; i < kPast; ++i) halo[i] = access.load(from + i * p.x_token_stride * kSize);
#pragma unroll
    for (int i = 0; i < kPast; ++i) access.store(to + i * p.dim * kSize, halo[i]);
}

template <typename T, int kChannels, int kWidth, bool kAnyWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kMostThreads, (tile_blocks<T, kChannels>(kWidth)))
    causal_conv1d_varlen_tile(TileCall call) {
    const CausalConv1dVarlenParams& p = call.params;
    const VarlenPlan& plan = call.plan;
    HIPCONV_SHARED(BegunInRun, begun_in_runs, kMostThreads);  // one a row
    HIPCONV_SHARED(float, taps, (BlockTaps<kWidth, kBlockChannels<kChannels>, kChannels>::kFloats));
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
        return convolve_run<T, kChannels, kWidth, kAnyWidth>(call, block - begins, begun_in_runs, taps);
    }

    // A thread has fewer channels where states are wider than x: a block then has twice as many lanes, half as many rows.
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    const uint32_t few = channels_of_begin(kChannels, sizeof(T), element_bytes(again.state_dtype));
    const uint32_t lanes = blockDim.x * (kChannels / few), thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int own = static_cast<int>(thread % lanes * few);  // channel of the block
    const int32_t first_channel = static_cast<int32_t>(blockIdx.x * blockDim.x) * kChannels, d = first_channel + own;
    const int64_t b = static_cast<int64_t>(begins) * (blockDim.x * blockDim.y / lanes) + thread / lanes;
    const int32_t number = static_cast<int32_t>(b);
    const int missing = missing_taps<kWidth, kAnyWidth>(p);
    const BlockTaps<kWidth, kBlockChannels<kChannels>, kChannels> block_taps(again, first_channel, missing);
    PackedSequence s{-1, 0, 0, kNoSlot, kNoSlot};
    if (d < p.dim && b < p.sequences) s = EitherIndices{again, plan.plain_indices}.sequence(number);
    block_taps.put(first_parameter_again(p), missing, taps);
    __syncthreads();
    if (s.number < 0 || s.end <= s.begin) return;  // an empty sequence keeps its state
    const auto store = [&](int t, auto result) {
        const OutputColumn column = output_column<T>(p, d);
        char* to = column.first + static_cast<int64_t>(s.begin) * column.step + t * column.step;
        const VarlenPlan& plan = first_parameter_again(call).plan;
        if (plan.phase == VarlenPhase::begins && s.end - s.begin >= kWidth - 1)
            to = begun_place<T, kWidth>(p, plan, number, s.begin, d, t);
        LaneAccess<T, static_cast<int>(sizeof(result) / sizeof(T))>(d, p.dim).store(to, result);
    };
    if (sizeof(T) == sizeof(float) || again.state_dtype == kDTypeOf<T>) {
        const LaneTaps<kWidth, kBlockChannels<kChannels>, kChannels> lane_taps{taps, own};
        return begin_sequence<T, T, kChannels, kWidth, kAnyWidth>(p, plan.state_form, s, d, lane_taps, store);
    }
    constexpr int kFew = channels_of_begin(kChannels, sizeof(T), sizeof(float));
    const LaneTaps<kWidth, kBlockChannels<kChannels>, kFew> lane_taps{taps, own};
    begin_sequence<T, float, kFew, kWidth, kAnyWidth>(p, plan.state_form, s, d, lane_taps, store);
}

// ---- launches -------------------------------------------------------------------------------------------------------------

// How a launch is laid out, in place or not.
struct TileShape {
    int channels, width;  // of the kernel's instance
    int64_t vectors;
    unsigned lanes, rows;
    int32_t run;
    int64_t run_blocks, begin_blocks;

    int past() const { return width - 1; }
};

template <typename T, int kChannels, int kWidth, bool kAnyWidth>
void launch_tile(const CausalConv1dVarlenParams& p, const TileShape& shape, VarlenPlan plan, int64_t runs, int64_t begins,
                 hipStream_t stream) {
    plan.run = shape.run;
    plan.blocks = static_cast<uint32_t>(runs + begins);
    if (plan.blocks == 0) return;
    plan.begins_of = (static_cast<uint64_t>(begins) << 32) / plan.blocks;
    plan.state_form = state_form(p, channels_of_begin(kChannels, sizeof(T), element_bytes(p.state_dtype)));
    plan.plain_indices = PlainIndices::fit(p);
    plan.shifts = LaneAccess<T, kChannels>::kHalves && !outputs_in_words(p);
    const dim3 grid = grid_of((shape.vectors + shape.lanes - 1) / shape.lanes, plan.blocks), block(shape.lanes, shape.rows, 1);
    HIPCONV_LAUNCH(true, (causal_conv1d_varlen_tile<T, kChannels, kWidth, kAnyWidth>), grid, block, 0, stream,
                   TileCall{p, plan});
    check_launch("causal_conv1d_varlen");
}

// A launch of so many blocks of either kind. It is defined for each type in a file of its own.
template <typename T>
void launch_tile(const CausalConv1dVarlenParams& p, const TileShape& shape, const VarlenPlan& plan, int64_t runs,
                 int64_t begins, hipStream_t stream);

template <typename T>
void choose_tile(const CausalConv1dVarlenParams& p, const TileShape& shape, const VarlenPlan& plan, int64_t runs,
                 int64_t begins, hipStream_t stream) {
    constexpr int kSize = static_cast<int>(sizeof(T)), kWord = 4 / kSize;
    if (shape.channels == kWord && shape.width == 4)
        return launch_tile<T, kWord, 4, true>(p, shape, plan, runs, begins, stream);
    if (shape.channels == kWord) return launch_tile<T, kWord, 8, true>(p, shape, plan, runs, begins, stream);
    if (shape.width == 4) return launch_tile<T, vector_bytes(4) / kSize, 4, false>(p, shape, plan, runs, begins, stream);
    if (shape.width == 3) return launch_tile<T, vector_bytes(3) / kSize, 3, true>(p, shape, plan, runs, begins, stream);
    launch_tile<T, vector_bytes(8) / kSize, 8, true>(p, shape, plan, runs, begins, stream);
}

}  // namespace hipconv
