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
// Bytes: each input is read once from memory (and a few tokens a run and a sequence once more from cache), each output is
// written once, each state is read once and written once.
#include <hip/hip_runtime.h>

#include <stdexcept>

#include "../common/launch.h"
#include "begin.h"
#include "kernels.h"
#include "launch/check.h"
#include "vectors.h"

namespace hipconv {

// Threads of a block, and tokens of a run. Small blocks with short runs keep memory busier (measured on an H200).
constexpr int kUsualThreads = 64, kMostThreads = 128;
constexpr int kUsualRun = 16, kMostRun = 32;  // a mask has a bit for each token
constexpr int kMostLanes = 32;                // vectors of channels that a block is wide

// These masks tell, with a bit for each token, which tokens of the run this row stores.
struct RunMasks {
    uint32_t outputs;  // whole windows of live sequences
    uint32_t dead;     // tokens of no sequence or of padding
};

// The lanes of a row look at one sequence each, starting with the sequence that the run begins in. That sequence is found in
// one step for each factor `lanes + 1` of the number of sequences.
template <typename Indices>
__device__ __forceinline__ RunMasks masks_of_run(const Indices& indices, int64_t begin, int32_t run, int past) {
    const CausalConv1dVarlenParams& p = indices.p;
    const int32_t lanes = static_cast<int32_t>(blockDim.x), lane = static_cast<int32_t>(threadIdx.x);
    const int row_in_wave = static_cast<int>((threadIdx.y * blockDim.x) % kWaveSize);
    const auto bits_of_row = [&](bool bit) { return static_cast<uint32_t>(__ballot(bit) >> row_in_wave) & lowest_bits(lanes); };
    const int32_t first = static_cast<int32_t>(begin < p.tokens ? begin : p.tokens);

    int32_t base = 0, span = p.sequences;  // the last sequence that begins at `first` or before, if any, is one of these
    while (span > lanes) {
        span = (span + lanes) / (lanes + 1);
        const int64_t b = base + (lane + int64_t{1}) * span;
        base += __popc(bits_of_row(b < p.sequences && indices.start(static_cast<int32_t>(b)) <= first)) * span;
    }

    const uint32_t inside = lowest_bits(run < p.tokens - first ? run : p.tokens - first);
    uint32_t outputs = 0, live = 0;
    bool more;
    do {
        const int32_t b = base + lane;
        more = false;
        if (b < p.sequences) {
            const int32_t start = indices.start(b) - first, end = indices.start(b + 1) - first;
            if (indices.slots(b).live) {
                outputs |= inside & lowest_bits(end) & ~lowest_bits(start + past);
                live |= inside & lowest_bits(end) & ~lowest_bits(start);
            }
            more = lane == lanes - 1 && end < run;
        }
        base += lanes;
    } while (__ballot(more) != 0);  // only where many sequences of the run are empty

    const bool one_sequence = bits_of_row(outputs == inside) != 0;
    if (__ballot(!one_sequence) != 0) {
        for (int other = 1; other < lanes; other *= 2) {
            outputs |= __shfl_xor(outputs, other);
            live |= __shfl_xor(live, other);
        }
    }
    return one_sequence ? RunMasks{inside, 0} : RunMasks{outputs, inside & ~live};
}

template <typename T, int kChannels, int kWidth, bool kAnyWidth>
__device__ __forceinline__ void convolve_run(const CausalConv1dVarlenParams& p, const VarlenPlan& plan, uint32_t block) {
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
    Vector before[kWidth - 1], ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) {
        const int back = kWidth - 1 - i;
        before[i] = Vector{};
        if (works && begin >= back) before[i] = load(x - back * x_step);
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
    if (!works) return;

    const OutputColumn column = output_column<T>(p, d);
    char* out = column.first + begin * column.step;
    if (masks.dead != 0 && p.dead_tokens != DeadTokens::leave) {
        for (int t = 0; t < tokens; ++t)
            if (masks.dead >> t & 1)
                *reinterpret_cast<Vector*>(out + int64_t{t} * column.step) =
                    p.dead_tokens == DeadTokens::zero ? Vector{} : load(x + (t - kAhead) * x_step);
    }
    if (masks.outputs == 0) return;

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
                if (i >= missing) sum = multiply_add(weight[j][i], ring[(slot + 1 + i) % kWidth][j], sum);
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
}

template <typename T, int kChannels, int kWidth, bool kAnyWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kMostThreads, 8) causal_conv1d_varlen_tile(CausalConv1dVarlenParams p, VarlenPlan plan) {
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
    if (begins_among(uint64_t{block} + 1) == begins)
        return convolve_run<T, kChannels, kWidth, kAnyWidth>(p, plan, block - begins);

    // A thread has fewer channels where states are wider than x: a block then has twice as many lanes, half as many rows.
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    const uint32_t few = channels_of_begin(kChannels, sizeof(T), element_bytes(again.state_dtype));
    const uint32_t lanes = blockDim.x * (kChannels / few), thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int64_t d = static_cast<int64_t>(blockIdx.x) * blockDim.x * kChannels + thread % lanes * few;
    const int64_t b = static_cast<int64_t>(begins) * (blockDim.x * blockDim.y / lanes) + thread / lanes;
    if (d >= p.dim || b >= p.sequences) return;
    const int32_t number = static_cast<int32_t>(b);
    const PackedSequence s =
        plan.plain_indices ? packed_sequence(PlainIndices{again}, number) : packed_sequence(AnyIndices{again}, number);
    if (s.number < 0 || s.end <= s.begin) return;  // an empty sequence keeps its state
    const int32_t first = static_cast<int32_t>(d);
    const auto store = [&](int t, auto result) {
        const OutputColumn column = output_column<T>(p, first);
        *reinterpret_cast<decltype(result)*>(column.first + static_cast<int64_t>(s.begin) * column.step + t * column.step) =
            result;
    };
    if (sizeof(T) == sizeof(float) || again.state_dtype == kDTypeOf<T>) {
        const TapsInMemory<T, kChannels, kWidth, kAnyWidth> taps(p, first);
        return begin_sequence<T, T, kChannels, kWidth, kAnyWidth>(p, plan.state_form, s, first, taps, store);
    }
    constexpr int kFew = channels_of_begin(kChannels, sizeof(T), sizeof(float));
    const TapsInMemory<T, kFew, kWidth, kAnyWidth> taps(p, first);
    begin_sequence<T, float, kFew, kWidth, kAnyWidth>(p, plan.state_form, s, first, taps, store);
}

namespace {

template <typename T, int kChannels, int kWidth, bool kAnyWidth>
void launch(const CausalConv1dVarlenParams& p, const VarlenTile& tile, hipStream_t stream) {
    const int64_t vectors = p.dim / kChannels;
    const int warps = power_of_two("num_warps", tile.warps);
    const unsigned threads = warps == 0 ? kUsualThreads : power_of_two_up_to(warps, kMostThreads / 32) * 32;
    const unsigned most_lanes = kMostLanes < threads / 2 ? kMostLanes : threads / 2;  // there are two rows or more
    unsigned lanes = power_of_two_up_to(vectors, most_lanes);
    if (const int channels = power_of_two("block_n", tile.channels))
        lanes = power_of_two_up_to(channels / kChannels, most_lanes);
    const unsigned rows = threads / lanes;
    VarlenPlan plan{};
    plan.run = kUsualRun;
    while (plan.run > 4 && vectors * (p.tokens / plan.run) < kEnoughThreads)
        plan.run /= 2;  // short enough that a large card is full
    if (const int tokens = power_of_two("block_m", tile.tokens))
        plan.run = static_cast<int32_t>(power_of_two_up_to(tokens / static_cast<int>(rows), kMostRun));
    const int64_t block_tokens = static_cast<int64_t>(rows) * plan.run;
    const int64_t runs = (p.tokens + block_tokens - 1) / block_tokens;
    const int few = channels_of_begin(kChannels, sizeof(T), element_bytes(p.state_dtype));
    const int64_t begin_rows = rows * few / kChannels;
    const int64_t begins = (p.sequences + begin_rows - 1) / begin_rows;
    plan.blocks = static_cast<uint32_t>(runs + begins);
    plan.begins_of = (static_cast<uint64_t>(begins) << 32) / plan.blocks;
    plan.state_form = state_form(p, few, kWidth);
    plan.plain_indices = PlainIndices::fit(p);

    const dim3 grid = grid_of((vectors + lanes - 1) / lanes, plan.blocks), block(lanes, rows, 1);
    HIPCONV_LAUNCH(true, (causal_conv1d_varlen_tile<T, kChannels, kWidth, kAnyWidth>), grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_varlen");
}

// Models have width 4. The smaller widths share an instance.
template <typename T>
void with_width(const CausalConv1dVarlenParams& p, const VarlenTile& tile, hipStream_t stream) {
    constexpr int kWide = kLaneBytes / static_cast<int>(sizeof(T));
    p.width == 4 ? launch<T, kWide, 4, false>(p, tile, stream) : launch<T, kWide, 3, true>(p, tile, stream);
}

}  // namespace

const char* causal_conv1d_varlen_tile_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/) {
    const bool near = p.out_token_stride >= 0 && p.out_token_stride * element_bytes(p.dtype) < kOffsetLimit;
    const bool states = p.state_dtype == p.dtype || p.state_dtype == DType::f32;
    if (p.width >= 2 && p.width <= 4 && states && near && channels_a_vector(p) > 1) return nullptr;
    return "widths 2 to 4, channels that are aligned neighbours, states of x's dtype or float32, and outputs whose tokens lie "
           "less "
           "than 2 GiB apart";
}

void causal_conv1d_varlen_tile(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* /*workspace*/, void* stream) {
    with_dtype(p.dtype, [&](auto type) { with_width<decltype(type)>(p, tile, static_cast<hipStream_t>(stream)); });
}

}  // namespace hipconv
