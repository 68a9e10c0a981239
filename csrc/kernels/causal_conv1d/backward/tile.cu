// This kernel is the causal conv1d backward, channel-last ("tile"): neighbouring channels are neighbours in memory.
//
// A lane owns four bytes of a token, two channels or one (tile_lane.h), and walks a run of tokens, as the forward's kernel of
// this name does, with a second ring beside the ring of inputs: the last kWidth gradients g of the sums. Token t brings in x[t]
// and dout[t], from which g[t] follows, which completes dx[t - kWidth + 1]. So a run reads a halo of kWidth - 1 inputs before it
// and kWidth - 1 tokens of both after it; these tokens belong to its neighbours, who sum dweight over them.
//
// Lanes are narrow because rings, weights and sums take four floats a channel and tap: with four bytes a lane there are
// registers for width 8, and twice the threads at width 4; and four bytes can lie anywhere.
//
// The mainloop does kBlock tokens at a time. Blocks inside a run take a path without conditions (steady, with SiLU); others
// check of each token whether to load, sum and store, and of each tap whether it counts (checked). A byte a token has the taps
// that count: where rows have sequence ids, the lanes of a run make these bytes in LDS before they walk it.
//
// A block of threads adds up its threads' dweight and dbias in LDS and leaves them in its row of the workspace.
//
// Bytes: x and dout are read once from memory (and kWidth - 1 tokens a run again from cache), dx is written once.
#include <hip/hip_runtime.h>

#include "causal_conv1d/states_formula.h"
#include "kernels.h"
#include "launch/check.h"
#include "parts.h"
#include "sums.h"
#include "tile_lane.h"

namespace hipconv {

constexpr int kBwdTileMaxWidth = 8;
constexpr int kBwdTileThreads = 128;
constexpr int kBwdTileLanes = 32;    // the most lanes that a block is wide
constexpr int kBwdTileMaxRun = 128;  // tokens
constexpr int kBwdTileMinRun = 8;

// This plan says how a launch divides the work. A block is blockDim.x lanes by blockDim.y rows; a row is one run of tokens.
// Where a sequence has fewer runs than the block has rows, the block takes several sequences.
struct BwdTilePlan {
    int run;                     // tokens
    uint32_t log2_runs_a_block;  // of one sequence
    uint32_t sequences_a_block, blocks_a_sequence;
    uint32_t blocks;                     // of all sequences: the rows of the workspace
    int64_t x_step, dout_step, dx_step;  // bytes from token to token
    uint32_t log2_channels;              // of a block
    uint32_t flags;                      // of BwdTileFlags
};

// What a call has.
enum BwdTileFlags : uint32_t { kBwdSilu = 1, kBwdIds = 2, kBwdInitial = 4, kBwdGivesInitial = 8, kBwdFinal = 16 };

struct BwdTileCall {  // the kernel's parameter, which it reads again (device/arch.h) rather than keep it in registers
    CausalConv1dBwdParams p;
    BwdTilePlan plan;
};

template <int kWidth>
constexpr int kBwdBlock = kWidth <= 2 ? 4 : kWidth;  // tokens of a block: whole turns of a ring of the width
template <int kWidth, bool kWhole>
constexpr int kBwdAhead = kWidth == 8 && !kWhole ? 4 : kBwdBlock<kWidth>;  // tokens loaded ahead: whole turns of these, too

// Blocks of a compute unit, by the registers that a width needs. (AMD's compiler overlaps more tokens.)
HIPCONV_INLINE constexpr int bwd_tile_blocks(int width, bool whole) {
    if (!kHasPredicates) return width <= 4 ? 5 : 2;
    return width <= 3 ? 6 + whole : width == 4 ? 5 + whole : width == 5 ? 4 + whole : 4;
}

// Bytes for the sums of a block, or for the taps of the tokens of its runs, of which even the shortest runs have fewer.
HIPCONV_INLINE constexpr int bwd_tile_lds(int width, int channels) { return kBwdTileThreads * (width + 1) * channels * 4; }

template <typename T, int kWidth, bool kWhole>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdTileThreads, bwd_tile_blocks(kWidth, kWhole))
    causal_conv1d_bwd_tile_kernel(BwdTileCall call) {
    const CausalConv1dBwdParams& p = call.p;
    const BwdTilePlan& plan = call.plan;
    using Lane = BwdLane<T, kWhole>;
    using Value = typename Lane::Value;
    constexpr int kChannels = Lane::kChannels, kPast = kWidth - 1, kBlock = kBwdBlock<kWidth>,
                  kAhead = kBwdAhead<kWidth, kWhole>;
    constexpr int kSums = bwd_tile_lds(kWidth, kChannels) / 4;
    HIPCONV_SHARED(float, sums, kSums);

    let_next_kernel_begin();
    wait_for_kernel_before();
    const uint32_t block = blockIdx.z * gridDim.y + blockIdx.y;
    if (block >= plan.blocks) return;
    const uint32_t sequences = block / plan.blocks_a_sequence;
    const uint32_t first_run = (block - sequences * plan.blocks_a_sequence) << plan.log2_runs_a_block;
    const uint32_t b = sequences * plan.sequences_a_block + (threadIdx.y >> plan.log2_runs_a_block);
    const uint32_t begin = (first_run + (threadIdx.y & ((1u << plan.log2_runs_a_block) - 1))) * static_cast<uint32_t>(plan.run);
    uint32_t d = (blockIdx.x * blockDim.x + threadIdx.x) * kChannels;
    const auto below = [](uint32_t value, int32_t size) { return value < static_cast<uint32_t>(size); };
    const bool active = below(d, p.in.dim) && below(b, p.in.batch) && (below(begin, p.in.seqlen) || begin == 0);
    // The last lane of an odd dim makes its first channel a second time, as its neighbour does.
    if (!kWhole && d + kChannels > static_cast<uint32_t>(p.in.dim)) d = p.in.dim - kChannels;
    // These count the tokens of the row from here on, and those of this run. The run visits kPast more tokens than it has.
    const int left = active ? p.in.seqlen - static_cast<int>(begin) : 0;
    const int tokens = !active ? -kPast : left < plan.run ? left : plan.run;
    const int stop = tokens + kPast, loaded = stop < left ? stop : left;

    const auto base = [&](const Sequences& s, int64_t step) {
        return static_cast<char*>(s.data) + (int64_t{b} * s.batch_stride + d) * static_cast<int64_t>(sizeof(T)) +
               int64_t{begin} * step;
    };
    const char* x = base(p.in.x, plan.x_step);
    const char* dout = base(p.dout, plan.dout_step);
    char* dx = base(p.dx, plan.dx_step) - kPast * plan.dx_step;

    // Few tokens need what follows: neither the params nor an address is kept in registers for them.
    const auto again = [&]() -> const CausalConv1dBwdParams& { return first_parameter_again(call).p; };
    uint32_t flags = plan.flags;
    const auto has = [&](BwdTileFlags flag) { return (flags & flag) != 0; };
    // Channel c at a column of a state, of any strides.
    const auto state = [&](const Sequences& s, int column, int c) -> T& {
        int row = static_cast<int>(b), channel = static_cast<int>(d) + c;
        from_here_on(row);
        from_here_on(channel);
        return global_pointer<T>(
            s.data)[int64_t{row} * s.batch_stride + int64_t{channel} * s.dim_stride + int64_t{column} * s.seqlen_stride];
    };
    Lane x_ahead[kAhead], dout_ahead[kAhead], before[kPast + 1];
#pragma unroll
    for (int i = 0; i + 1 < kWidth; ++i) {
        before[i] = Lane{};
        if (active && static_cast<int64_t>(begin) + i >= kPast)
            Lane::load(x - (kPast - i) * plan.x_step, before[i]);
        else if (active && has(kBwdInitial))
            before[i] = Lane::of(state(again().in.initial_states, static_cast<int>(begin) + i, 0),
                                 state(again().in.initial_states, static_cast<int>(begin) + i, kChannels - 1));
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
        x_ahead[j] = dout_ahead[j] = Lane{};
        if (j < loaded) {
            Lane::load(x, x_ahead[j]);
            Lane::load(dout, dout_ahead[j]);
        }
        x += plan.x_step;
        dout += plan.dout_step;
    }

    Value weight[kWidth], bias = all_of<Value>(0.0f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) weight[i] = all_of<Value>(0.0f);
    if (active) {
        const CausalConv1dInputs& in = again().in;
        const void *weights = global_pointer<const void>(in.weight), *biases = global_pointer<const void>(in.bias);
        const int64_t of_channel = in.weight_dim_stride, of_tap = in.weight_width_stride, next = kChannels - 1;
        with_dtype(in.weight_dtype, [&](auto type) {
            using P = decltype(type);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                const int64_t at = int64_t{d} * of_channel + i * of_tap;
                weight[i] = value_of<Value>(parameter<P>(weights, at), parameter<P>(weights, at + next * of_channel));
            }
        });
        if (biases) {
            bias = value_of<Value>(load_parameter(biases, d * in.bias_stride, in.bias_dtype),
                                   load_parameter(biases, (d + next) * in.bias_stride, in.bias_dtype));
        }
    }

    // The bytes of the tokens that this run visits: bit i is set if the token's tap i sees an input; none is, if it is padding.
    uint8_t* const bytes = reinterpret_cast<uint8_t*>(sums) + threadIdx.y * (plan.run + kPast);
    if (has(kBwdIds)) {
        for (int t = static_cast<int>(threadIdx.x); t < plan.run + kPast; t += static_cast<int>(blockDim.x)) {
            const CausalConv1dInputs& in = again().in;
            const int64_t position = int64_t{begin} + t;
            uint32_t byte = 0;
            if (below(b, in.batch) && position < in.seqlen && !is_padding(in, b, position)) {
#pragma unroll
                for (int i = 0; i < kWidth; ++i)
                    if (sees(in, b, position, position - kPast + i)) byte |= 1u << i;
            }
            bytes[t] = static_cast<uint8_t>(byte);
        }
        __syncthreads();
    }
    constexpr uint32_t kAllTaps = (1u << kWidth) - 1;
    const auto taps_of = [&](int t) -> uint32_t {
        if (has(kBwdIds)) return bytes[t];
        const int64_t position = int64_t{begin} + t;
        if (position >= p.in.seqlen) return 0;
        const bool sees_all = position >= kPast || has(kBwdInitial);
        return sees_all ? kAllTaps : kAllTaps << (kPast - position) & kAllTaps;
    };

    Value inputs[kWidth], gradients[kWidth], dweight[kWidth], dbias = all_of<Value>(0.0f);
#pragma unroll
    for (int i = 0; i < kPast; ++i) inputs[i + 1] = before[i].value();
#pragma unroll
    for (int i = 0; i < kWidth; ++i) gradients[i] = dweight[i] = all_of<Value>(0.0f);

    // These masks have a bit for each tap that counts, of a token and of the kPast tokens before it: each token shifts the
    // earlier bits up by kWidth.
    using Taps = std::conditional_t<kWidth <= 5, uint32_t, uint64_t>;
    Taps taps = 0;

    // This does token t, the j-th of its block.
    const auto step = [&](auto checked, int t, int j) {
        constexpr bool kChecked = decltype(checked)::value;
        const int slot = j % kWidth, next = j % kAhead;
        inputs[slot] = x_ahead[next].value();
        Value g = dout_ahead[next].value();
        if (!kChecked || t + kAhead < loaded) {
            Lane::load(x, x_ahead[next]);
            Lane::load(dout, dout_ahead[next]);
        }
        x += plan.x_step;
        dout += plan.dout_step;
        const uint32_t own_taps = kChecked ? taps_of(t) : kAllTaps;
        if (kChecked) taps = taps << kWidth | own_taps;
        const auto counts = [&](int i) { return !kChecked || (own_taps >> i & 1); };

        if (!kChecked || has(kBwdSilu)) {
            Value sum = bias;
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                if (counts(i)) sum = multiply_add(weight[i], inputs[(slot + 1 + i) % kWidth], sum);
            g = multiply(g, silu_derivative(sum));
        }
        if (!counts(kPast)) g = all_of<Value>(0.0f);  // after the row, or padding
        gradients[slot] = g;
        if (!kChecked || t < tokens) {
            dbias = add(dbias, g);
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                if (counts(i)) dweight[i] = multiply_add(g, inputs[(slot + 1 + i) % kWidth], dweight[i]);
        }

        Value result = all_of<Value>(0.0f);
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
            if (!kChecked || (taps >> (kPast - k) * (kWidth + 1) & 1))
                result = multiply_add(weight[kPast - k], gradients[(slot + 1 + k) % kWidth], result);
        if (kChecked && has(kBwdFinal)) {
            // The final state's gradient is added to those of the inputs that it holds.
            const CausalConv1dBwdParams& params = again();
            const int32_t position = static_cast<int32_t>(begin) + t - kPast, column = position - params.in.seqlen + kPast;
            if (column >= 0 && column < kPast && final_state_counts(params.in, b, position))
                result = add(result, value_of<Value>(to_float(state(params.dfinal_states, column, 0)),
                                                     to_float(state(params.dfinal_states, column, kChannels - 1))));
        }
        if (!kChecked || t >= kPast) {
            Lane::store(dx, result);
        } else if (begin == 0 && has(kBwdGivesInitial)) {
#pragma unroll
            for (int c = 0; c < kChannels; ++c) state(again().dinitial_states, t, c) = from_float<T>(channel_of(result, c));
        }
        dx += plan.dx_step;
    };
    // Blocks from kBlock to last_steady have all their tokens, and so have those that are loaded meanwhile.
    const int last_of_tokens = tokens - kBlock, last_of_loads = loaded - kBlock - kAhead;
    const int last_steady = !has(kBwdSilu) ? 0 : last_of_tokens < last_of_loads ? last_of_tokens : last_of_loads;
    const auto has_all_taps = [&](int t) {
        if (!has(kBwdIds)) return true;  // but in a block that is not steady
        uint32_t all = kAllTaps;
#pragma unroll
        for (int j = 0; j < kBlock; ++j) all &= bytes[t + j];
        return all == kAllTaps;
    };
    bool had_all = false;  // whether all taps of the block before count
    for (int t = 0; t < stop;) {
        flags = first_parameter_again(call).plan.flags;
        int steady_end = t;
        if (had_all)
            while (steady_end <= last_steady && has_all_taps(steady_end)) steady_end += kBlock;
        for (; t < steady_end; t += kBlock) {
#pragma unroll
            for (int j = 0; j < kBlock; ++j) step(std::false_type{}, t + j, j);
            taps = static_cast<Taps>(-1);  // all taps of these tokens count
        }
        had_all = t + kBlock <= stop && has_all_taps(t);
#pragma unroll
        for (int j = 0; j < kBlock; ++j)
            if (t + j < stop) step(std::true_type{}, t + j, j);
        t += kBlock;
    }

    // ---- dweight and dbias of the block -------------------------------------------------------------------------------------
    if (again().in.seq_idx.data) __syncthreads();  // the bytes of taps lie there
    const int threads = static_cast<int>(blockDim.x * blockDim.y);
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
#pragma unroll
    for (int i = 0; i <= kWidth; ++i) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c)
            sums[(i * kChannels + c) * threads + thread] = channel_of(i < kWidth ? dweight[i < kWidth ? i : 0] : dbias, c);
    }
    __syncthreads();
    const int channels = 1 << plan.log2_channels;
    const int64_t first_channel = static_cast<int64_t>(blockIdx.x) * channels, dim = again().in.dim;
    float* partials =
        global_pointer<float>(again().partials) + static_cast<int64_t>(block) * (kWidth + 1) * dim + first_channel;
    for (int e = thread; e < (kWidth + 1) * channels; e += threads) {
        const int i = e >> plan.log2_channels, c = e & (channels - 1);
        if (first_channel + c >= dim) continue;
        const bool is_last = !kWhole && first_channel + c + 1 == dim;
        const float* column = sums + (i * kChannels + (is_last ? kChannels - 1 : c % kChannels)) * threads + c / kChannels;
        float sum = 0.0f;
        for (unsigned row = 0; row < blockDim.y; ++row) sum += column[row * blockDim.x];
        partials[i * dim + c] = sum;
    }
}

namespace {

int bwd_channels_a_lane(const CausalConv1dBwdParams& p) { return 4 / element_bytes(p.in.dtype); }

// Tells whether every lane's channels of every token are a word of memory.
bool bwd_lanes_are_whole(const CausalConv1dBwdParams& p) {
    const int channels = bwd_channels_a_lane(p);
    const auto aligned = [&](const Sequences& s) {
        return reinterpret_cast<uintptr_t>(s.data) % 4 == 0 && s.seqlen_stride % channels == 0 &&
               s.batch_stride % channels == 0;
    };
    return p.in.dim % channels == 0 && aligned(p.in.x) && aligned(p.dout) && aligned(p.dx);
}

struct BwdTileShape {
    unsigned lanes, rows;
    int run;  // tokens
    unsigned runs_a_block, sequences_a_block;
    int64_t groups;  // blocks along the channels
    int64_t blocks_a_sequence, blocks;
};

BwdTileShape bwd_tile_shape_of_run(const CausalConv1dBwdParams& p, int run) {
    BwdTileShape s{};
    const int channels = bwd_channels_a_lane(p);
    const int64_t lanes = (int64_t{p.in.dim} + channels - 1) / channels, seqlen = p.in.seqlen > 0 ? p.in.seqlen : 1;
    s.lanes = power_of_two_up_to(lanes, kBwdTileLanes);
    s.rows = kBwdTileThreads / s.lanes;
    const auto runs_of = [&](int tokens) { return (seqlen + tokens - 1) / tokens; };
    s.runs_a_block = power_of_two_up_to(runs_of(run), s.rows);
    const int64_t wanted = (runs_of(run) + s.runs_a_block - 1) / s.runs_a_block * s.runs_a_block;
    s.run = static_cast<int>((seqlen + wanted - 1) / wanted);
    s.sequences_a_block = s.rows / s.runs_a_block;
    s.groups = (lanes + s.lanes - 1) / s.lanes;
    s.blocks_a_sequence = (runs_of(s.run) + s.runs_a_block - 1) / s.runs_a_block;
    s.blocks = s.blocks_a_sequence * ((static_cast<int64_t>(p.in.batch) + s.sequences_a_block - 1) / s.sequences_a_block);
    return s;
}

// Takes the length of run that costs a large card least: rounds of the blocks that it holds at once, times the tokens that a
// run takes, with its halo and its start and end, which take as long as some tokens. (The card is one and the same everywhere,
// so that the order of sums is.)
BwdTileShape bwd_tile_shape(const CausalConv1dBwdParams& p) {
    constexpr int64_t kComputeUnits = 132, kOfStartAndEnd = 8;
    const int channels = bwd_channels_a_lane(p);
    const int64_t room = kComputeUnits * (p.in.width <= 3 ? 7 : p.in.width <= 5 ? 5 : 4);
    BwdTileShape best{};
    double least = 0;
    for (int run = kBwdTileMaxRun; run >= kBwdTileMinRun; run = run % 3 ? run / 4 * 3 : run / 3 * 2) {
        const BwdTileShape s = bwd_tile_shape_of_run(p, run);
        if (p.in.seq_idx.data && static_cast<int>(s.rows) * (s.run + p.in.width - 1) > bwd_tile_lds(p.in.width, channels))
            continue;
        const int64_t blocks = s.groups * s.blocks, rest = blocks % room;
        // A round of less than half the card is no faster than half a round.
        const double rounds = blocks / room + (rest == 0 ? 0.0 : 2 * rest < room ? 0.5 : static_cast<double>(rest) / room);
        const double cost = rounds * static_cast<double>(s.run + p.in.width - 1 + kOfStartAndEnd);
        if (best.run && cost >= least) continue;
        best = s;
        least = cost;
    }
    return best;
}

template <typename T, int kWidth, bool kWhole>
void launch(const CausalConv1dBwdParams& p, hipStream_t stream) {
    const BwdTileShape shape = bwd_tile_shape(p);
    BwdTilePlan plan{};
    plan.run = shape.run;
    while (1u << plan.log2_runs_a_block < shape.runs_a_block) ++plan.log2_runs_a_block;
    plan.sequences_a_block = shape.sequences_a_block;
    plan.blocks_a_sequence = static_cast<uint32_t>(shape.blocks_a_sequence);
    plan.blocks = static_cast<uint32_t>(shape.blocks);
    plan.x_step = p.in.x.seqlen_stride * static_cast<int64_t>(sizeof(T));
    plan.dout_step = p.dout.seqlen_stride * static_cast<int64_t>(sizeof(T));
    plan.dx_step = p.dx.seqlen_stride * static_cast<int64_t>(sizeof(T));
    plan.flags = (p.in.use_silu ? kBwdSilu : 0) | (p.in.seq_idx.data ? kBwdIds : 0) |
                 (p.in.initial_states.data ? kBwdInitial : 0) | (p.dinitial_states.data ? kBwdGivesInitial : 0) |
                 (p.dfinal_states.data ? kBwdFinal : 0);
    while (1u << plan.log2_channels < shape.lanes * BwdLane<T, kWhole>::kChannels) ++plan.log2_channels;
    const dim3 grid = grid_of(shape.groups, shape.blocks), block(shape.lanes, shape.rows, 1);
    HIPCONV_LAUNCH(true, (causal_conv1d_bwd_tile_kernel<T, kWidth, kWhole>), grid, block, 0, stream, (BwdTileCall{p, plan}));
    check_launch("causal_conv1d_bwd");
}

BwdPartials partials_of(const CausalConv1dBwdParams& p) { return equal_partials(bwd_tile_shape(p).blocks); }

}  // namespace

const char* causal_conv1d_bwd_tile_refusal(const CausalConv1dBwdParams& p) {
    const char* served = "channel-last x, dout and dx (stride 1 along dim), widths 1 to 8; two channels or more of 16 bits";
    if (p.in.width > kBwdTileMaxWidth || p.in.seqlen > INT32_MAX - 4096 || p.in.dim < bwd_channels_a_lane(p)) return served;
    if (p.in.x.dim_stride != 1 || p.dout.dim_stride != 1 || p.dx.dim_stride != 1) return served;
    const BwdTileShape shape = bwd_tile_shape(p);
    return shape.groups <= kGridLimit && shape.blocks < int64_t{1} << 31 ? nullptr : served;
}

int64_t causal_conv1d_bwd_tile_workspace(const CausalConv1dBwdParams& p) {
    return bwd_sums_workspace(p, partials_of(p), /*looks_at_taps=*/false);
}

void causal_conv1d_bwd_tile(const CausalConv1dBwdParams& params, void* workspace, void* stream) {
    const hipStream_t s = static_cast<hipStream_t>(stream);
    const BwdPartials partials = partials_of(params);
    const CausalConv1dBwdParams p = bwd_sums_begin(params, partials, /*looks_at_taps=*/false, workspace, s);
    with_instance<kBwdTileMaxWidth, 1>(p.in.dtype, p.in.width, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        if constexpr (sizeof(T) == 2) {
            if (!bwd_lanes_are_whole(p)) return launch<T, kWidth, false>(p, s);
        }
        launch<T, kWidth, true>(p, s);
    });
    bwd_sums_add_up(p, partials, s);
}

}  // namespace hipconv
