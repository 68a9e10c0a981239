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
#include <hip/hip_runtime.h>

#include <stdexcept>

#include "../common/launch.h"
#include "begin.h"
#include "in_place.h"
#include "kernels.h"
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
    const auto copy = [&](char* to, const char* from) { *reinterpret_cast<Vector*>(to) = load(from); };
    Vector before[kWidth - 1], ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) {
        const int back = kWidth - 1 - i;
        before[i] = Vector{};
        const char* from = x - back * x_step;
        if (plan.halos && threadIdx.y == 0)
            from = plan.halos + ((int64_t{block} * (kWidth - 1) - back) * p.dim + d) * static_cast<int64_t>(sizeof(T));
        if (works && begin >= back) before[i] = load(from);
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
    RunMasks masks = plan.plain_indices ? masks_of_run(PlainIndices{again}, begin, run, kWidth - 1)
                                        : masks_of_run(AnyIndices{again}, begin, run, kWidth - 1);
    if (plan.phase == VarlenPhase::runs) {
        begun_in_runs[threadIdx.y] = {masks.begun, masks.sequence};
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
    if (masks.outputs == 0) return place_begun<T, kChannels, kWidth>(p, plan, block, begun_in_runs, copy);

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
    place_begun<T, kChannels, kWidth>(p, plan, block, begun_in_runs, copy);
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
            const auto store = [&](int t, auto result) {
                const OutputColumn column = output_column<T>(p, first);
                char* to = column.first + static_cast<int64_t>(s.begin) * column.step + t * column.step;
                if (plan.begun && s.end - s.begin >= kWidth - 1)
                    to = begun_place<T, kWidth>(p, plan, s.number, s.begin, first, t);
                *reinterpret_cast<decltype(result)*>(to) = result;
            };
            const TapsInMemory<T, kFew, kWidth, kAnyWidth> taps(p, first);
            begin_sequence<T, S, kFew, kWidth, kAnyWidth>(p, plan.state_form, s, first, taps, store);
        };
        if constexpr (!kSeveralBegins) return make(look_up(thread / lanes), static_cast<int32_t>(d));
#pragma unroll 1
        for (uint32_t at = thread / lanes; at < starts; at += rows) make(found[at], static_cast<int32_t>(d));
    };
    if (sizeof(T) == sizeof(float) || again.state_dtype == kDTypeOf<T>) return make_starts(T{});
    make_starts(float{});
}

namespace {

struct TileShape : PrefillShape {
    int channels;  // of a vector
};

TileShape shape_of(const CausalConv1dVarlenParams& p, const VarlenTile& tile, bool in_place) {
    TileShape s{};
    // Models have width 4. The other widths share instances, two by two.
    s.width = p.width == 4 ? 4 : p.width < 4 ? 3 : p.width <= 6 ? 6 : 8;
    s.channels = vector_bytes(s.width) / element_bytes(p.dtype);
    s.items = p.dim / s.channels;
    const int warps = power_of_two("num_warps", tile.warps);
    // In place, a block has many rows, as the tokens before it are saved.
    const unsigned usual = in_place ? kMostThreads : kUsualThreads;
    const unsigned threads = warps == 0 ? usual : power_of_two_up_to(warps, kMostThreads / 32) * 32;
    const unsigned widest = in_place ? kMostLanes / 2 : kMostLanes;
    const unsigned most_lanes = widest < threads / 2 ? widest : threads / 2;  // there are two rows or more
    s.lanes = power_of_two_up_to(s.items, most_lanes);
    if (const int channels = power_of_two("block_n", tile.channels))
        s.lanes = power_of_two_up_to(channels / s.channels, most_lanes);
    s.rows = threads / s.lanes;
    cut_into_runs(s, p, tile, in_place, s.width > 4 ? kMostRun : kUsualRun, kMostRun);
    const int few = channels_of_begin(s.channels, element_bytes(p.dtype), element_bytes(p.state_dtype));
    const int64_t rows = int64_t{s.rows} * few / s.channels;
    s.begins_a_row = kSeveralBegins ? begins_a_row(p, tile, rows, threads, s.run, s.items * s.channels / few) : 1;
    share_out_begins(s, p, rows);
    return s;
}

template <typename T, int kWidth>
void launch(const CausalConv1dVarlenParams& p, const TileShape& shape, VarlenPlan plan, int64_t runs, int64_t begins,
            hipStream_t stream) {
    constexpr int kChannels = vector_bytes(kWidth) / static_cast<int>(sizeof(T));
    if (!plan_blocks(plan, p, shape, runs, begins)) return;
    plan.state_form = state_form(p, channels_of_begin(kChannels, sizeof(T), element_bytes(p.state_dtype)), kWidth);
    const dim3 grid = grid_of((shape.items + shape.lanes - 1) / shape.lanes, plan.blocks), block(shape.lanes, shape.rows, 1);
    constexpr bool kAnyWidth = kWidth != 4;
    HIPCONV_LAUNCH(true, (causal_conv1d_varlen_tile<T, kChannels, kWidth, kAnyWidth>), grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_varlen");
}

void launch(const CausalConv1dVarlenParams& p, const TileShape& shape, const VarlenPlan& plan, int64_t runs, int64_t begins,
            void* stream) {
    const hipStream_t s = static_cast<hipStream_t>(stream);
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        if (shape.width == 4) return launch<T, 4>(p, shape, plan, runs, begins, s);
        if (shape.width == 3) return launch<T, 3>(p, shape, plan, runs, begins, s);
        shape.width == 6 ? launch<T, 6>(p, shape, plan, runs, begins, s) : launch<T, 8>(p, shape, plan, runs, begins, s);
    });
}

}  // namespace

const char* causal_conv1d_varlen_tile_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/) {
    const bool near = p.out_token_stride >= 0 && p.out_token_stride * element_bytes(p.dtype) < kOffsetLimit;
    const bool states = p.state_dtype == p.dtype || p.state_dtype == DType::f32;
    if (p.width >= 2 && p.width <= 8 && states && near && channels_a_vector(p) > 1) return nullptr;
    return "widths 2 to 8, channels that are aligned neighbours, states of x's dtype or float32, and outputs whose tokens lie "
           "less than 2 GiB apart";
}

void causal_conv1d_varlen_tile(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* /*workspace*/, void* stream) {
    const TileShape shape = shape_of(p, tile, false);
    launch(p, shape, VarlenPlan{}, shape.run_blocks, shape.begin_blocks, stream);
}

int64_t causal_conv1d_varlen_tile_workspace(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    return in_place_workspace(p, shape_of(p, tile, true));
}

void causal_conv1d_varlen_tile_in_place(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* workspace,
                                        void* stream) {
    const TileShape shape = shape_of(p, tile, true);
    launch_in_place<VarlenPlan>(p, shape, workspace, [&](const VarlenPlan& plan, int64_t runs, int64_t begins) {
        launch(p, shape, plan, runs, begins, stream);
    });
}

}  // namespace hipconv
