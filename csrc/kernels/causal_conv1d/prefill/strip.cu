// This kernel is the causal conv1d over packed sequences of any lengths in place ("strip"): the outputs overwrite x, in one
// launch and without a temporary.
//
// As in `walk`, a block shares no input with another one. Here it has a strip of channels of all tokens, whatever sequences
// they belong to, and walks through it tile by tile. Where strips are too few to fill a card, the tokens are also cut into
// groups of whole sequences: each block finds its own group on the device.
//
// In a tile, each row of threads has a run of tokens. Before anything of the tile is stored, the runs are in registers, and LDS
// holds the other values that a run needs: its halo of inputs just before it, and the first outputs of the sequences that begin
// in the tile (begin.h). The rows divide these sequences, and their states, among themselves. Meanwhile the next tile is being
// prefetched.
//
// Bytes: they are those of `tile`. A tile waits for the first outputs of its sequences: so a tile is long, and a compute unit
// has two or more blocks.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "begin.h"
#include "kernels.h"
#include "launch/check.h"
#include "vectors.h"

namespace hipconv {

constexpr int kStripThreads = 256;                  // of a block
constexpr int kStripBlocks = 2;                     // on a compute unit, at least: one computes while another one waits
constexpr int kFewestLanes = 4, kMostLanes = 64;    // of a row
constexpr int kFewestBytes = 32, kUsualBytes = 64;  // of a row of a strip
constexpr int kUsualBlocks = 256;
constexpr int32_t kMostStripTokens = 1 << 30;  // so that sums of two are integers, too

// Tokens of a row, as many as LDS has room for.
template <int kChannels>
constexpr int kStripRun = kLaneBytes == 16 && kChannels > 1 ? 4 : 8;

struct StripPlan {
    uint32_t groups;  // of sequences, of about as many tokens each
    StateForm state_form;
    bool plain_indices;
};

// A tile has consecutive tokens, and knows the sequences that begin in it. It ends early where otherwise the first tokens of a
// sequence would lie in two tiles.
struct StripTile {
    int32_t begin, end;        // tokens
    int32_t first, sequences;  // that begin in it
};

// Taps in registers.
template <int kPairs, int kWidth>
struct TapsAtHand {
    const Pair (&weights)[kPairs][kWidth];
    const Pair (&biases)[kPairs];
    int first_pair;

    HIPCONV_INLINE void fetch() const {}
    HIPCONV_INLINE void unpack(int j, Pair (&weight)[kWidth], Pair& bias) const {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) weight[i] = weights[first_pair + j][i];
        bias = biases[first_pair + j];
    }
};

template <typename T, int kChannels, int kWidth, bool kAnyWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kStripThreads, kStripBlocks)
    causal_conv1d_varlen_strip(CausalConv1dVarlenParams p, StripPlan plan) {
    constexpr int kPast = kWidth - 1, kPairs = (kChannels + 1) / 2, kRun = kStripRun<kChannels>;
    using Vector = Words<T, kChannels>;
    HIPCONV_SHARED(Vector, edges, kStripThreads * kPast);  // the inputs just before each row's run
    HIPCONV_SHARED(Vector, begun, kStripThreads * kRun);   // outputs at the start of sequences, by token and lane
    HIPCONV_SHARED(uint32_t, marks, kStripThreads / kFewestLanes * kRun);  // of a tile's tokens

    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
    const int row = static_cast<int>(threadIdx.y), rows = static_cast<int>(blockDim.y);
    const int wave_lane = (row * lanes + lane) % kWaveSize;
    const int32_t tile_tokens = rows * kRun;
    const int64_t channel = (static_cast<int64_t>(blockIdx.x) * lanes + lane) * kChannels;
    const bool works = channel < p.dim;
    const int32_t d = works ? static_cast<int32_t>(channel) : 0;
    for (int i = row * lanes + lane; i < tile_tokens; i += kStripThreads) marks[i] = 0;

    let_next_kernel_begin();
    wait_for_kernel_before();
    const auto indices = [&] { return EitherIndices{first_parameter_again(p), plan.plain_indices}; };
    const auto start_of = [&](int32_t b) { return indices().start(b); };
    const auto first_of_group = [&](uint32_t group) {
        if (group == 0) return 0;
        if (group == plan.groups) return p.sequences;
        const int32_t token = static_cast<int32_t>(static_cast<int64_t>(p.tokens) * group / plan.groups);
        const int32_t first = last_begun(start_of, p.sequences, token - 1) + 1;
        return first < p.sequences ? first : p.sequences;
    };
    const int32_t first_sequence = first_of_group(blockIdx.y), end_sequence = first_of_group(blockIdx.y + 1);
    const int32_t end = indices().start(end_sequence);

    // All waves find the same tile.
    const auto tile_from = [&](int32_t begin, int32_t first) {
        StripTile tile{begin, end - begin > tile_tokens ? begin + tile_tokens : end, first, 0};
        const int32_t whole = tile.end == end ? end : tile.end - (kPast - 1);
        int count;
        do {
            const int32_t b = first + tile.sequences + wave_lane;
            count = __popcll(__ballot(b < end_sequence && indices().start(b) < whole));
            tile.sequences += count;
        } while (count == kWaveSize);
        if (first + tile.sequences < end_sequence) {
            const int32_t next = indices().start(first + tile.sequences);
            if (next < tile.end) tile.end = next < begin ? begin : next;
        }
        return tile;
    };

    const int64_t x_step = p.x_token_stride * static_cast<int64_t>(sizeof(T));
    char* const x = static_cast<char*>(p.out) + d * p.x_dim_stride * static_cast<int64_t>(sizeof(T));  // which is p.x
    const auto run_of = [&](const StripTile& tile) { return tile.begin + row * kRun; };
    // A lane without channels only keeps barriers.
    const auto end_of = [&](const StripTile& tile) { return works ? tile.end : 0; };

    StripTile tile = tile_from(indices().start(first_sequence), first_sequence);
    Vector ahead[kRun];
#pragma unroll
    for (int t = 0; t < kRun; ++t) {
        const int32_t token = run_of(tile) + t;
        ahead[t] = Vector{};
        if (token < end_of(tile)) ahead[t] = *reinterpret_cast<const Vector*>(x + token * x_step);
    }

    Pair weight[kPairs][kWidth], bias[kPairs];
    {
        TapsInMemory<T, kChannels, kWidth, kAnyWidth> taps(p, d);
        taps.fetch();
#pragma unroll
        for (int j = 0; j < kPairs; ++j) taps.unpack(j, weight[j], bias[j]);
    }

    Vector last[kPast]{};      // inputs at the end of the row's run in the tile before
    bool goes_on_live = true;  // the sequence that the tile before ended in
    __syncthreads();
    for (uint32_t mark = 2; tile.begin < end; mark += 2) {  // `mark`: the start of a sequence; `mark` + 1: padding
        const StripTile next = tile_from(tile.end, tile.first + tile.sequences);
        const int32_t first_live = goes_on_live ? 0 : tile.first < end_sequence ? indices().start(tile.first) : end;  // token
        if (tile.sequences > 0) goes_on_live = indices().is_live(tile.first + tile.sequences - 1);

        const int32_t closer = run_of(next) + tile_tokens;
        const char* asked = x + closer * x_step;
#pragma unroll
        for (int t = 0; t < kRun; ++t, asked += x_step) prefetch_if(asked, works && closer + t < end);
        for (int32_t i = row; i < next.sequences && kPrefetches; i += rows) {
            const CausalConv1dVarlenParams& pool = first_parameter_again(p);
            const PackedSequence s = indices().sequence(next.first + i);
            const int64_t first = s.read_slot * pool.slot_stride + d * pool.state_dim_stride;
#pragma unroll
            for (int column = 0; column < kPast; ++column)
                prefetch_if(static_cast<const char*>(p.states) +
                                (first + column * pool.column_stride) * element_bytes(pool.state_dtype),
                            s.number >= 0 && s.read_slot != kNoSlot);
        }
        for (int32_t i = row; i < tile.sequences; i += rows) {
            const PackedSequence s = indices().sequence(tile.first + i);
            const int32_t from = s.begin - tile.begin, length = s.end - s.begin;
            const bool live = s.number >= 0;
            const auto in_tile = [&](int32_t at) { return at >= 0 && at < tile_tokens; };
            for (int32_t t = lane; t < length && t < (live ? kPast : tile_tokens); t += lanes)
                if (in_tile(from + t)) marks[from + t] = live ? mark : mark + 1;
            if (!live || length <= 0 || !works) continue;
            if (sizeof(T) == sizeof(float) || again.state_dtype == kDTypeOf<T>) {
                begin_sequence<T, T, kChannels, kWidth, kAnyWidth>(
                    p, plan.state_form, s, d, TapsAtHand<kPairs, kWidth>{weight, bias, 0}, [&](int t, Vector result) {
                        if (in_tile(from + t)) begun[(from + t) * lanes + lane] = result;
                    });
            } else {
                constexpr int kFew = channels_of_begin(kChannels, sizeof(T), sizeof(float)), kFewPairs = (kFew + 1) / 2;
#pragma unroll
                for (int part = 0; part < kChannels / kFew; ++part)
                    begin_sequence<T, float, kFew, kWidth, kAnyWidth>(
                        p, plan.state_form, s, d + part * kFew, TapsAtHand<kPairs, kWidth>{weight, bias, part * kFewPairs},
                        [&](int t, Words<T, kFew> result) {
                            if (in_tile(from + t))
                                reinterpret_cast<Words<T, kFew>*>(begun + (from + t) * lanes + lane)[part] = result;
                        });
            }
        }
        Vector* const next_edge = edges + (row + 1) % rows * kPast * lanes + lane;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            const Vector current = ahead[kRun - kPast + i];
            next_edge[i * lanes] = row + 1 == rows ? last[i] : current;
            last[i] = current;
        }
        __syncthreads();

        Pair ring[kWidth][kPairs];
        const auto keep = [&](int slot, Vector v) {
#pragma unroll
            for (int j = 0; j < kPairs; ++j) ring[slot][j] = pair_of<T>(v, j);
        };
#pragma unroll
        for (int i = 0; i < kPast; ++i) keep(i, edges[(row * kPast + i) * lanes + lane]);
        const int missing = missing_taps<kWidth, kAnyWidth>(p);
        const bool use_silu = first_parameter_again(p).use_silu;
        // These masks have a bit for each of the run's tokens, so that no access is behind a branch.
        int at_hand = static_cast<int>(lowest_bits(end_of(next) - run_of(next)));
        int stored = static_cast<int>(lowest_bits(end_of(tile) - run_of(tile)) & ~lowest_bits(first_live - run_of(tile))),
            begins = 0;
#pragma unroll
        for (int t = 0; t < kRun; ++t) {
            const uint32_t found = marks[row * kRun + t];
            if (found == mark) begins |= 1 << t;
            if (found == mark + 1) stored &= ~(1 << t);
        }
        in_a_register(at_hand), in_a_register(stored), in_a_register(begins);
        char* to = x + run_of(tile) * x_step;
        const char* from = x + run_of(next) * x_step;
        const Vector* const begun_here = begun + row * kRun * lanes + lane;
#pragma unroll
        for (int t = 0; t < kRun; ++t) {
            keep((kPast + t) % kWidth, ahead[t]);
            if (at_hand >> t & 1) ahead[t] = *reinterpret_cast<const Vector*>(from);
            from += x_step;
            Vector result{};
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
                Pair sum = bias[j];
#pragma unroll
                for (int i = 0; i < kWidth; ++i)
                    if (i >= missing) sum = multiply_add(weight[j][i], ring[(t + i) % kWidth][j], sum);
                const Pair activated = silu(sum);
                set_pair<T>(result, j, make_pair(use_silu ? low(activated) : low(sum), use_silu ? high(activated) : high(sum)));
            }
            if (begins >> t & 1) result = begun_here[t * lanes];
            if (stored >> t & 1) *reinterpret_cast<Vector*>(to) = result;
            to += x_step;
        }
        tile = next;
        __syncthreads();  // LDS is for the next tile now
    }
}

namespace {

template <typename T, int kChannels, int kWidth, bool kAnyWidth>
void launch(const CausalConv1dVarlenParams& p, const VarlenTile& tile, hipStream_t stream) {
    const int64_t vectors = p.dim / kChannels;
    const auto lanes_of = [&](int bytes) {
        return power_of_two_up_to(bytes / kChannels / static_cast<int>(sizeof(T)), kMostLanes);
    };
    unsigned lanes = lanes_of(kUsualBytes);
    while (lanes > lanes_of(kFewestBytes) && vectors / lanes * p.sequences < kUsualBlocks) lanes /= 2;
    if (const int tokens = power_of_two("block_m", tile.tokens))
        lanes = kStripThreads / power_of_two_up_to(tokens / kStripRun<kChannels>, kStripThreads / kFewestLanes);
    if (const int channels = power_of_two("block_n", tile.channels))
        lanes = power_of_two_up_to(channels / kChannels, kMostLanes);
    lanes = lanes < kFewestLanes ? kFewestLanes : lanes > kMostLanes ? kMostLanes : lanes;

    const unsigned strips = static_cast<unsigned>((vectors + lanes - 1) / lanes);
    StripPlan plan{};
    const bool forced = tile.tokens || tile.channels;  // a forced tile meets all sequences, as groups of one or two would not
    plan.groups = strips < kUsualBlocks && !forced ? kUsualBlocks / strips : 1;
    if (plan.groups > static_cast<unsigned>(p.sequences)) plan.groups = static_cast<unsigned>(p.sequences);
    plan.state_form = state_form(p, channels_of_begin(kChannels, sizeof(T), element_bytes(p.state_dtype)), kWidth);
    plan.plain_indices = PlainIndices::fit(p);
    HIPCONV_LAUNCH(true, (causal_conv1d_varlen_strip<T, kChannels, kWidth, kAnyWidth>), dim3(strips, plan.groups, 1),
                   dim3(lanes, kStripThreads / lanes, 1), 0, stream, p, plan);
    check_launch("causal_conv1d_varlen");
}

template <typename T>
void with_width(const CausalConv1dVarlenParams& p, const VarlenTile& tile, hipStream_t stream) {
    constexpr int kWide = kLaneBytes / static_cast<int>(sizeof(T));
    const bool wide = channels_a_vector(p) > 1;
    if (wide && p.width == 4) return launch<T, kWide, 4, false>(p, tile, stream);
    wide&& p.width < 4 ? launch<T, kWide, 3, true>(p, tile, stream) : launch<T, 1, 6, true>(p, tile, stream);
}

}  // namespace

const char* causal_conv1d_varlen_strip_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    if (!causal_conv1d_varlen_tile_refusal(p, tile) && p.tokens <= kMostStripTokens) return nullptr;
    return "widths 2 to 6, states of x's dtype or float32, and 2^30 tokens";
}

void causal_conv1d_varlen_strip(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* /*workspace*/, void* stream) {
    with_dtype(p.dtype, [&](auto type) { with_width<decltype(type)>(p, tile, static_cast<hipStream_t>(stream)); });
}

}  // namespace hipconv
