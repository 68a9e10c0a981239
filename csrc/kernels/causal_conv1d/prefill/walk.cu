// This kernel is the causal conv1d over packed sequences in place, where they are long ("walk"): the outputs overwrite x, in
// one launch and without a temporary.
//
// An output may be stored only when no other token needs the input under it any more, and blocks cannot wait for each other. So
// a block shares no input with another one: it has a strip of channels of one whole sequence, and walks through it tile by
// tile.
//
// In a tile, each row of threads has a run of tokens. Runs are in registers before anything is stored. A row gets its halo, the
// last inputs of the run before its own, through LDS, also where that run is in the tile before. While a tile is computed, the
// next one is being prefetched. The first row also makes the start of the sequence (begin.h), from x as it was, before any row
// stores.
//
// Bytes: they are those of `tile`. One sequence's tiles come one after the other: so there are more rows where sequences or
// channels are few.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "begin.h"
#include "kernels.h"
#include "launch/check.h"
#include "vectors.h"

namespace hipconv {

constexpr int kWalkThreads = 4096 / kLaneBytes;  // at most
constexpr int kWalkRun = 8;                      // tokens
constexpr int kWalkWidth = 4;                    // what models have
constexpr int kTilesCloser = 1;                  // that are asked for beyond the one in registers
constexpr int kStripLanes = 128 / kLaneBytes;    // a cache line
// The number of blocks of a compute unit. RDNA with clang 22 keeps all of a tile in flight, and spills, unless it is told that
// there are two.
constexpr int kWalkBlocks = kLaneBytes == 16 && kWaveSize == 32 ? 2 : 1;
constexpr int kMostRows = kWalkThreads / 4;

template <typename T, int kChannels, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kWalkThreads, kWalkBlocks)
    causal_conv1d_varlen_walk(CausalConv1dVarlenParams p, VarlenPlan plan) {
    constexpr int kPast = kWidth - 1, kPairs = kChannels / 2, kRun = kWalkRun;
    using Vector = Words<T, kChannels>;
    HIPCONV_SHARED(Vector, edges, 2 * kWalkThreads * kPast);  // the inputs just before each row's run, of two tiles in turn

    let_next_kernel_begin();
    wait_for_kernel_before();
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    const uint32_t block = blockIdx.z * gridDim.y + blockIdx.y;
    if (block >= plan.blocks) return;
    // Servers put long sequences, which take longest, last.
    const int32_t number = static_cast<int32_t>(plan.blocks - 1 - block);
    const PackedSequence s =
        plan.plain_indices ? packed_sequence(PlainIndices{again}, number) : packed_sequence(AnyIndices{again}, number);
    if (s.number < 0 || s.end <= s.begin) return;

    const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
    const int row = static_cast<int>(threadIdx.y), rows = static_cast<int>(blockDim.y);
    const int64_t channel = (static_cast<int64_t>(blockIdx.x) * lanes + lane) * kChannels;
    const bool works = channel < again.dim;
    const int32_t d = works ? static_cast<int32_t>(channel) : 0;
    const int32_t end = works ? s.end : 0;  // beyond all tokens of a lane without channels, which only keeps barriers

    const int64_t x_step = again.x_token_stride * static_cast<int64_t>(sizeof(T));
    int64_t first = static_cast<int64_t>(s.begin) + row * kRun;
    char* x = static_cast<char*>(p.out) + first * x_step + d * static_cast<int64_t>(sizeof(T));  // which is p.x
    const bool walks = s.end - s.begin > kPast;
    const int64_t tile_tokens = int64_t{rows} * kRun;
    Vector ahead[kRun];
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
        ahead[j] = Vector{};
        if (walks && first + j < end) ahead[j] = *reinterpret_cast<const Vector*>(x + j * x_step);
    }
    const auto bring_tile_closer = [&](int64_t tiles_on) {
        const int64_t token = first + tiles_on * tile_tokens;
#pragma unroll
        for (int j = 0; j < kRun; ++j) prefetch_if(x + (tiles_on * tile_tokens + j) * x_step, token + j < end);
    };
    for (int tile = 1; tile <= kTilesCloser; ++tile) bring_tile_closer(tile);

    Vector begun[kPast];
#pragma unroll
    for (int t = 0; t < kPast; ++t) begun[t] = Vector{};
    if (row == 0 && works) {
        if (sizeof(T) == sizeof(float) || again.state_dtype == kDTypeOf<T>) {
            const TapsInMemory<T, kChannels, kWidth, false> taps(p, d);
            begin_sequence<T, T, kChannels, kWidth, false>(p, plan.state_form, s, d, taps,
                                                           [&](int t, Vector result) { begun[t] = result; });
        } else {
            constexpr int kFew = channels_of_begin(kChannels, sizeof(T), sizeof(float));
            constexpr int kWords = kFew * static_cast<int>(sizeof(T)) / 4;
#pragma unroll
            for (int part = 0; part < kChannels / kFew; ++part) {
                const TapsInMemory<T, kFew, kWidth, false> taps(p, d + part * kFew);
                const auto keep = [&](int t, Words<T, kFew> result) {
#pragma unroll
                    for (int w = 0; w < kWords; ++w) set_word(begun[t], part * kWords + w, word(result, w));
                };
                begin_sequence<T, float, kFew, kWidth, false>(p, plan.state_form, s, d + part * kFew, taps, keep);
            }
        }
    }
    if (!walks) {
#pragma unroll
        for (int t = 0; t < kPast; ++t)
            if (row == 0 && first + t < end) *reinterpret_cast<Vector*>(x + t * x_step) = begun[t];
        return;
    }
    Pair weight[kPairs][kWidth], bias[kPairs];
    TapsInMemory<T, kChannels, kWidth, false> taps(p, d);
    taps.fetch();
#pragma unroll
    for (int j = 0; j < kPairs; ++j) taps.unpack(j, weight[j], bias[j]);
    const bool use_silu = again.use_silu;

    Vector last[kPast]{};  // inputs at the end of the row's run in the tile before
    bool begins = row == 0;
    const int64_t tiles = (s.end - s.begin + tile_tokens - 1) / tile_tokens;
    for (int64_t tile = 0; tile < tiles; ++tile) {
        Vector* const buffer = edges + (tile & 1) * (kWalkThreads * kPast);
        Vector* const next_edge = buffer + (row + 1) % rows * kPast * lanes + lane;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            const Vector current = ahead[kRun - kPast + i];
            next_edge[i * lanes] = row + 1 == rows ? last[i] : current;
            last[i] = current;
        }
        __syncthreads();  // what a row stores, and an edge that it writes, is needed by no other row any more

        Pair ring[kWidth][kPairs];
        const auto keep = [&](int slot, Vector v) {
#pragma unroll
            for (int j = 0; j < kPairs; ++j) ring[slot][j] = pair_of<T>(v, j);
        };
#pragma unroll
        for (int i = 0; i < kPast; ++i) keep(i, buffer[(row * kPast + i) * lanes + lane]);
        bring_tile_closer(kTilesCloser + 1);
        const char* next = x + tile_tokens * x_step;
        char* to = x;  // step by step: AMD has no scalar registers for all multiples
#pragma unroll
        for (int t = 0; t < kRun; ++t) {
            keep((kPast + t) % kWidth, ahead[t]);
            if (first + tile_tokens + t < end) ahead[t] = *reinterpret_cast<const Vector*>(next);
            next += x_step;
            Vector result{};
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
                Pair sum = bias[j];
#pragma unroll
                for (int i = 0; i < kWidth; ++i) sum = multiply_add(weight[j][i], ring[(t + i) % kWidth][j], sum);
                set_pair<T>(result, j, silu_where(use_silu, sum));
            }
            if (t < kPast && begins) result = begun[t < kPast ? t : 0];
            if (first + t < end) *reinterpret_cast<Vector*>(kHasPredicates ? x + t * x_step : to) = result;
            to += x_step;
        }
        x += tile_tokens * x_step;
        first += tile_tokens;
        begins = false;
    }
}

namespace {

constexpr int64_t kFullCard = 1 << 16;  // threads
constexpr int64_t kFewVectors = 512;    // of all sequences: then narrow strips, and twice the rows, are faster
constexpr int64_t kFewestTokens = 64;

int64_t vectors_of(const CausalConv1dVarlenParams& p) { return p.dim / (kLaneBytes / element_bytes(p.dtype)); }

// A block has enough rows to fill the card, and enough that one sequence with all of the tokens does not take long: lengths are
// not known here.
unsigned rows_of(const CausalConv1dVarlenParams& p) {
    const int64_t vectors = vectors_of(p), bytes = vectors * kLaneBytes;
    const int64_t to_fill = kFullCard / (vectors * p.sequences), to_keep_up = (1 << 17) / bytes;
    const int most = vectors * p.sequences < kFewVectors ? kMostRows : kMostRows / 2;
    return power_of_two_up_to(to_fill > to_keep_up ? to_fill : to_keep_up, most);
}

template <typename T>
void launch(const CausalConv1dVarlenParams& p, const VarlenTile& tile, hipStream_t stream) {
    constexpr int kChannels = kLaneBytes / static_cast<int>(sizeof(T));
    const int64_t vectors = vectors_of(p);
    unsigned rows = rows_of(p);
    if (const int tokens = power_of_two("block_m", tile.tokens)) rows = power_of_two_up_to(tokens / kWalkRun, kMostRows);
    const unsigned most_lanes = kWalkThreads / rows;
    unsigned lanes = power_of_two_up_to(vectors, kStripLanes < most_lanes ? kStripLanes : most_lanes);
    if (const int channels = power_of_two("block_n", tile.channels))
        lanes = power_of_two_up_to(channels / kChannels, most_lanes);

    VarlenPlan plan{};
    plan.run = kWalkRun;
    plan.blocks = static_cast<uint32_t>(p.sequences);
    plan.state_form = state_form(p, channels_of_begin(kChannels, sizeof(T), element_bytes(p.state_dtype)), kWalkWidth);
    plan.plain_indices = PlainIndices::fit(p);
    const dim3 grid = grid_of((vectors + lanes - 1) / lanes, plan.blocks), block(lanes, rows, 1);
    HIPCONV_LAUNCH(true, (causal_conv1d_varlen_walk<T, kChannels, kWalkWidth>), grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_varlen");
}

}  // namespace

const char* causal_conv1d_varlen_walk_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    if (!causal_conv1d_varlen_tile_refusal(p, tile) && p.width == kWalkWidth && channels_a_vector(p) > 1) return nullptr;
    return "width 4, states of x's dtype or float32, and channels that are aligned neighbours";
}

// Sequences shorter than a tile leave rows of a block without work.
bool causal_conv1d_varlen_walk_is_faster(const CausalConv1dVarlenParams& p, const VarlenTile& forced) {
    if (causal_conv1d_varlen_strip_refusal(p, forced)) return true;
    const int64_t tile = int64_t{rows_of(p)} * kWalkRun;
    return p.tokens >= p.sequences * (tile > kFewestTokens ? tile : kFewestTokens);
}

void causal_conv1d_varlen_walk(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* /*workspace*/, void* stream) {
    with_dtype(p.dtype, [&](auto type) { launch<decltype(type)>(p, tile, static_cast<hipStream_t>(stream)); });
}

}  // namespace hipconv
