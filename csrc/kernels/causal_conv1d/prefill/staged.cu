// This kernel is the causal conv1d over packed sequences by way of LDS ("staged"): it serves every layout, stride and alignment
// of x and of the outputs, widths 1 to 8, and outputs that overwrite x.
//
// A block walks through a stretch of tokens, tile by tile, for a few channels. Lines of x go into LDS as memory holds them,
// tokens of a channel or channels of a token. There a thread finds a run of tokens of two channels, makes their outputs from
// registers, and puts them into another place in LDS, in lines as the output has them. So either side of the kernel moves whole
// lines, by lanes that are neighbours, and the two may be laid out differently. Then, if sequences begin in the tile, rows of
// lanes take one each, and make again the outputs that reach into its initial state (staged_begin.h).
//
// While a tile is computed, the next one is on its way into registers. What a tile needs of the one before stays in LDS. The
// sequences of a stretch's tiles are found at its beginning, by a wave a tile (staged.h).
//
// Most calls whose x lies along tokens take another kernel (rows_kernel.h), by the plan that is made here.
//
// In place, blocks would need inputs that a neighbour may have overwritten, and cannot wait for each other: so a small launch
// (save.cu) copies these inputs first.
//
// Bytes: each input is read once from memory (and the few before a stretch once more from cache), each output is written once,
// each state is read once and written once; in place the saved inputs come on top.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "kernels.h"
#include "launch/check.h"
#include "launch/division.h"
#include "launch_plan.h"
#include "rows.h"
#include "staged_begin.h"
#include "staged_load.h"
#include "staged_store.h"

namespace hipconv {

constexpr int kEnoughBlocks = 2048;
constexpr int kEnoughEvenBlocks = 700;                          // where no block has much more to do than the others
constexpr int kFewBlocks = 160;                                 // of a large card, one a compute unit
constexpr uint32_t kMostSpans = 4;                              // of a stretch in place, by rows of lanes
constexpr int kFoundBegins = kLdsBytes >= 128 << 10 ? 64 : 32;  // sequences that a block looks up together

// The number of blocks of a compute unit, which registers (more for wider windows) and LDS allow.
template <typename T, int kWidth>
constexpr int staged_blocks() {
    constexpr int kTaps = (kWidth + 1) * StagedShape<T>::kChannels * 4;
    constexpr int kFound =
        kMostTiles * static_cast<int>(sizeof(TileTokens)) + kFoundBegins * static_cast<int>(sizeof(BeginInTile));
    constexpr int kBytes = 2 * 16 * StagedShape<T>::kVectors + kFound + kTaps;
    constexpr int kMost = kWidth > 4 ? 5 : 6;
    return kLdsBytes / kBytes < kMost ? kLdsBytes / kBytes : kMost;
}

// A run of tokens of two channels, and kPast tokens before it. `from` is the first channel's place of the token kHalo before.
template <typename T, int kPast>
__device__ __forceinline__ void load_window(const char* from, bool tokens_inner, Pair (&window)[kPast + StagedShape<T>::kRun]) {
    constexpr int kSize = StagedShape<T>::kSize, kRun = StagedShape<T>::kRun;
    if (tokens_inner) {
        constexpr int kEach = 16 / kSize;
        constexpr int kSkipped = (kHalo - kPast) / kEach;  // vectors
        const char* const twin = from + StagedShape<T>::kLanes * StagedShape<T>::kTokenLineBytes;
#pragma unroll
        for (int v = kSkipped; v < (kHalo + kRun) / kEach; ++v) {
            const Words4 first = reinterpret_cast<const Words4*>(from)[v], second = reinterpret_cast<const Words4*>(twin)[v];
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                const int at = v * kEach + i - (kHalo - kPast);
                if (at < 0) continue;
                const Pair a = pair_of<T>(first, i / 2), b = pair_of<T>(second, i / 2);
                window[at] = i % 2 ? make_pair(high(a), high(b)) : make_pair(low(a), low(b));
            }
        }
    } else {
        using Both = Words<T, 2>;
#pragma unroll
        for (int t = 0; t < kPast + kRun; ++t)
            window[t] = pair_of<T>(*reinterpret_cast<const Both*>(from + (kHalo - kPast + t) * kChannelLineBytes), 0);
    }
}

// A run of outputs; `to` is the first channel's place of its first token.
template <typename T>
__device__ __forceinline__ void store_run(char* to, bool tokens_inner, uint32_t twin, const Pair (&run)[StagedShape<T>::kRun]) {
    constexpr int kSize = StagedShape<T>::kSize, kRun = StagedShape<T>::kRun;
    if (tokens_inner) {
        Words4 first{}, second{};
        static_assert(kRun * kSize == 16, "a run is a vector");
#pragma unroll
        for (int i = 0; i < kRun / 2; ++i) {
            set_pair<T>(first, i, make_pair(low(run[2 * i]), low(run[2 * i + 1])));
            set_pair<T>(second, i, make_pair(high(run[2 * i]), high(run[2 * i + 1])));
        }
        *reinterpret_cast<Words4*>(to) = first;
        *reinterpret_cast<Words4*>(to + twin) = second;
    } else if (twin == kSize) {
        using Both = Words<T, 2>;
#pragma unroll
        for (int t = 0; t < kRun; ++t) {
            Both both{};
            set_pair<T>(both, 0, run[t]);
            *reinterpret_cast<Both*>(to + t * kChannelLineBytes) = both;
        }
    } else {
#pragma unroll
        for (int t = 0; t < kRun; ++t) {
            *reinterpret_cast<T*>(to + t * kChannelLineBytes) = from_float<T>(low(run[t]));
            *reinterpret_cast<T*>(to + t * kChannelLineBytes + twin) = from_float<T>(high(run[t]));
        }
    }
}

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kStagedThreads, (staged_blocks<T, kWidth>()))
    causal_conv1d_varlen_staged(StagedCall call) {
    using Shape = StagedShape<T>;
    constexpr bool kAnyWidth = kWidth != kUsualStagedWidth;
    constexpr int kPast = kWidth - 1, kRun = Shape::kRun;
    HIPCONV_SHARED(Words4, x_lines, Shape::kVectors);
    HIPCONV_SHARED(Words4, out_lines, Shape::kVectors);
    HIPCONV_SHARED(TileTokens, found_tiles, kMostTiles);
    HIPCONV_SHARED(BeginInTile, found, kFoundBegins);
    HIPCONV_SHARED(Pair, pairs_of_taps, (kWidth + 1) * Shape::kLanes);

    const CausalConv1dVarlenParams& p = call.params;
    const auto params = [&]() -> const CausalConv1dVarlenParams& { return first_parameter_again(p); };
    const auto plan = [&]() -> const StagedPlan& { return first_parameter_again(call).plan; };
    uint32_t stretch;
    if (!begin_stretch(call, stretch, true)) return;
    const int thread = static_cast<int>(threadIdx.x), wave = thread / kWaveSize, lane = thread % kWaveSize;
    const int32_t stretch_begin = static_cast<int32_t>(stretch * plan().tiles) * kTileTokens;
    const int32_t left = (params().tokens - stretch_begin + kTileTokens - 1) / kTileTokens;
    const int tiles = left < static_cast<int32_t>(plan().tiles) ? left : static_cast<int32_t>(plan().tiles);
    const int32_t first_channel = static_cast<int32_t>(blockIdx.x) * Shape::kChannels, channels = params().dim - first_channel;

    uint32_t ahead[kWords], last = 0;
    bring_tile<T>(call, first_channel, stretch_begin, ahead, last);
    const TileLayout<T> x_layout{plan().x_tokens_inner};
    char* const x_bytes = reinterpret_cast<char*>(x_lines);
    const auto halo_place = [&](int k) { return x_bytes + HaloPart<T>(k, x_layout).place(x_layout); };
    uint32_t halo[kHaloWords];
#pragma unroll
    for (int k = 0; k < kHaloWords; ++k)
        halo[k] = bring_halo<T>(call, HaloPart<T>(k, x_layout), stretch, first_channel, stretch_begin);

    // Weights and biases, which are on their way while sequences are found.
    float* const taps = reinterpret_cast<float*>(pairs_of_taps);
    uint32_t tap_bits[kWidth + 1]{};
    if (thread < Shape::kChannels) {
        const int64_t d = first_channel + (thread < channels ? thread : 0);
        const int missing = missing_taps<kWidth, kAnyWidth>(p);
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
            if (i >= missing)
                tap_bits[i] =
                    load_parameter_bits(p.weight, d * params().weight_dim_stride + (i - missing) * params().weight_width_stride,
                                        params().weight_dtype);
        if (p.bias) tap_bits[kWidth] = load_parameter_bits(p.bias, d * params().bias_stride, params().bias_dtype);
    }

    // The run of tokens that this thread makes.
    const TileLayout<T> out_layout{plan().out_tokens_inner};
    char* const out_bytes = reinterpret_cast<char*>(out_lines);
    const int row = thread / Shape::kLanes;
    const ChannelPair<T> pair(thread % Shape::kLanes, plan().x_tokens_inner);
    const char* const run_in_x =
        x_bytes + pair.first * x_layout.channel_step() + row * Shape::kRuns * kRun * x_layout.token_step();
    char* const run_in_out =
        out_bytes + pair.first * out_layout.channel_step() + (kHalo + row * Shape::kRuns * kRun) * out_layout.token_step();

    // Waves find a tile each, so that no tile waits for the one before.
    for (int n = wave; n < tiles; n += kStagedThreads / kWaveSize) {
        const TileTokens found = first_tile(indices_of(call), stretch_begin + n * kTileTokens, lane);
        if (lane == 0) found_tiles[n] = found;
    }
    if (thread < Shape::kChannels) {
        constexpr int kLanes = Shape::kLanes;  // a lane's two channels are neighbours
        float* const to = taps + (plan().x_tokens_inner ? thread % kLanes * 2 + thread / kLanes : thread);
#pragma unroll
        for (int i = 0; i <= kWidth; ++i)
            to[i * Shape::kChannels] = parameter_of(tap_bits[i], i < kWidth ? params().weight_dtype : params().bias_dtype);
    }
    for (int n = 0; n < tiles; ++n) {
        const int32_t begin = stretch_begin + n * kTileTokens;
        put_tile<T>(call, first_channel, begin, x_bytes, ahead, last);
#pragma unroll
        for (int k = 0; k < kHaloWords; ++k) *reinterpret_cast<uint32_t*>(halo_place(k)) = halo[k];
        __syncthreads();

        const TileTokens& tile = found_tiles[n];
        if (n + 1 < tiles) bring_tile<T>(call, first_channel, begin + kTileTokens, ahead, last);
#pragma unroll
        for (int k = 0; k < kHaloWords; ++k)
            halo[k] = *reinterpret_cast<const uint32_t*>(halo_place(k) + kTileTokens * x_layout.token_step());
        const int missing = missing_taps<kWidth, kAnyWidth>(p);
        const auto tap = [&](int i) { return pairs_of_taps[i * Shape::kLanes + thread % Shape::kLanes]; };
        Pair taps_of_run[kWidth + 1];  // wide windows leave no registers for them
#pragma unroll
        for (int i = 0; i <= kWidth && !kAnyWidth; ++i) taps_of_run[i] = tap(i);
#pragma unroll 1
        for (int run = 0, runs = tile.has_runs ? Shape::kRuns : 0; run < runs; ++run) {
            Pair window[kPast + kRun], sums[kRun];
            load_window<T, kPast>(run_in_x + run * kRun * x_layout.token_step(), plan().x_tokens_inner, window);
#pragma unroll
            for (int t = 0; t < kRun; ++t) sums[t] = kAnyWidth ? tap(kWidth) : taps_of_run[kWidth];
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                if (i < missing) continue;
                const Pair weight = kAnyWidth ? tap(i) : taps_of_run[i];
#pragma unroll
                for (int t = 0; t < kRun; ++t) sums[t] = multiply_add(weight, window[t + i], sums[t]);
            }
            if (params().use_silu) {
#pragma unroll
                for (int t = 0; t < kRun; ++t) sums[t] = silu(sums[t]);
            }
            store_run<T>(run_in_out + run * kRun * out_layout.token_step(), plan().out_tokens_inner,
                         (pair.second - pair.first) * out_layout.channel_step(), sums);
        }
        const DeadTokens mode = params().dead_tokens;
        if (~tile.live != 0 && mode != DeadTokens::leave) {
#pragma unroll 1
            for (int t = 0; t < 2 * Shape::kRuns * kRun; ++t) {
                const int token = t / 2, twin = t % 2 * (pair.second - pair.first);
                if (tile.live >> (row * Shape::kRuns * kRun + token) & 1) continue;
                const T input = *reinterpret_cast<const T*>(run_in_x + (kHalo + token) * x_layout.token_step() +
                                                            twin * x_layout.channel_step());
                *reinterpret_cast<T*>(run_in_out + token * out_layout.token_step() + twin * out_layout.channel_step()) =
                    mode == DeadTokens::zero ? from_float<T>(0.0f) : input;
            }
        }
        if (tile.sequence < tile.sequences_end) {
            __syncthreads();  // the first outputs of sequences come over the others
#pragma unroll 1
            for (int32_t base = tile.sequence; base < tile.sequences_end; base += kFoundBegins) {
                const int left = tile.sequences_end - base, count = left < kFoundBegins ? left : kFoundBegins;
                if (thread < count) found[thread] = begin_in_tile(indices_of(call), base + thread, begin);
                __syncthreads();
                const bool has_boundaries = params().block_idx_first.data;
#pragma unroll 1
                for (int step = has_boundaries ? 0 : 1; step < (has_boundaries ? 3 : 2); ++step) {
                    if (step == 1) {
                        with_dtype(params().state_dtype, [&](auto type) {
                            make_begins<T, decltype(type), kWidth>(call, found, count, begin, first_channel, x_bytes, out_bytes,
                                                                   pairs_of_taps);
                        });
                    } else {
                        keep_boundaries<T>(call, found, count, base, first_channel, step == 2);
                    }
                    if (has_boundaries) __syncthreads();
                }
                if (left > kFoundBegins) __syncthreads();
            }
        }
        __syncthreads();
        store_tile<T>(call, tile, begin, first_channel, out_bytes);
    }
}

namespace {

// Tells whether rows of lanes along the tokens can serve the call.
bool rows_serve(const CausalConv1dVarlenParams& p) {
    const bool x = p.x_token_stride == 1 && p.x_dim_stride >= p.tokens;
    const bool out = p.k_dim >= 0 || p.out_token_stride != 1 || p.out_dim_stride >= p.tokens;
    const int64_t in_slot =
        (p.dim * p.state_dim_stride + (p.first_column + p.width) * p.column_stride) * element_bytes(p.dtype);
    const bool near = p.state_dim_stride >= 0 && p.column_stride >= 0 && in_slot < kOffsetLimit && p.slot_stride >= 0 &&
                      p.slot_stride * element_bytes(p.dtype) < kOffsetLimit;
    const bool counts = p.tokens < 1 << 30;  // spans behind the last token have 32-bit numbers, too
    return x && out && near && counts && p.width >= 2 && p.state_dtype == p.dtype && !p.block_idx_first.data;
}

// Tells whether they are faster than tiles, by what an H100 and an H200 took.
bool rows_are_faster(const CausalConv1dVarlenParams& p, bool in_place) {
    if (!in_place && p.tokens < 256 && p.dim > 2048) return false;
    const int64_t elements = int64_t{p.dim} * p.tokens;
    const bool narrow = p.width <= kUsualStagedWidth;
    if (elements >= 1 << 18 && elements < 1 << 21 && (narrow || p.k_dim >= 0)) return false;
    const bool few_starts = p.tokens >= int64_t{64} * p.sequences;
    if (element_bytes(p.dtype) == 4 && p.width <= 5 && elements < 8 << 20 && few_starts) return false;
    if ((p.k_dim < 0 && p.out_token_stride == 1) || !narrow || p.tokens <= int64_t{4} * p.sequences) return true;
    // Tiles are wider: the last ones may lie mostly beyond few channels. Small calls lose nevertheless.
    const int64_t bytes = int64_t{p.dim} * element_bytes(p.dtype);
    return elements >= 16 << 20 && round_up(bytes, kChannelLineBytes) * 5 >= bytes * 6;
}

StagedPlan plan_of(const CausalConv1dVarlenParams& p, const VarlenTile& forced, bool in_place) {
    StagedPlan plan{};
    const int64_t tiles = (int64_t{p.tokens} + kTileTokens - 1) / kTileTokens;
    const int64_t columns = (int64_t{p.dim} * element_bytes(p.dtype) + kChannelLineBytes - 1) / kChannelLineBytes;
    plan.tiles = kMostTiles;
    // The starts of few sequences are less than a tile may have alone, wherever they are.
    const int enough = p.sequences <= kTileTokens ? kEnoughEvenBlocks : kEnoughBlocks;
    while (plan.tiles > 1 && columns * tiles / plan.tiles < enough) plan.tiles /= 2;
    power_of_two("block_n", forced.channels), power_of_two("num_warps", forced.warps);
    plan.by_rows = rows_serve(p) && (forced.tokens || rows_are_faster(p, in_place));
    if (plan.by_rows) {
        constexpr uint64_t kVector = 16;
        const uint64_t x = reinterpret_cast<uintptr_t>(p.x), out = reinterpret_cast<uintptr_t>(p.out);
        plan.x_begin = (x + kVector - 1) / kVector * kVector;
        plan.x_end = (x + ((p.dim - 1) * p.x_dim_stride + p.tokens) * element_bytes(p.dtype)) / kVector * kVector;
        plan.alike = (x - out) % kVector == 0 && (p.x_dim_stride - p.out_dim_stride) * element_bytes(p.dtype) % kVector == 0;
    }
    if (const int tokens = power_of_two("block_m", forced.tokens))
        plan.tiles = power_of_two_up_to(tokens / kTileTokens, kMostTiles);
    plan.stretches = static_cast<uint32_t>((tiles + plan.tiles - 1) / plan.tiles);
    if (plan.by_rows) {
        const int in_vector = 16 / element_bytes(p.dtype), span = kRowLanes * in_vector;
        const int64_t spans = (int64_t{p.tokens} + in_vector - 1 + span - 1) / span;  // rows begin anywhere
        plan.channels_of_block = kRowsChannels;
        const auto blocks = [&] { return (int64_t{p.dim} + plan.channels_of_block - 1) / plan.channels_of_block * spans; };
        // The starts of many sequences take as long for few channels as for many.
        while (plan.channels_of_block > kRowsOfBlock && blocks() < kFewBlocks && p.sequences <= kTileTokens)
            plan.channels_of_block /= 2;
        if (forced.channels)
            plan.channels_of_block =
                kRowsOfBlock * power_of_two_up_to(forced.channels / kRowsOfBlock, kRowsChannels / kRowsOfBlock);
        // In place, as much is saved for a long stretch as for a short one; but starts pile up there.
        plan.tiles = 1;
        const bool many = p.sequences > p.tokens / 4;
        while (in_place && !many && plan.tiles < kMostSpans && blocks() / plan.tiles >= 2 * kEnoughEvenBlocks) plan.tiles *= 2;
        if (forced.tokens) plan.tiles = power_of_two_up_to(forced.tokens / span, kMostTiles);
        plan.stretches = static_cast<uint32_t>((spans + plan.tiles - 1) / plan.tiles);
    }
    const int tile_tokens = plan.by_rows ? kRowLanes * 16 / element_bytes(p.dtype) : kTileTokens;
    while ((1 << plan.log2_tokens) < static_cast<int>(plan.tiles) * tile_tokens) ++plan.log2_tokens;
    plan.plain_indices = PlainIndices::fit(p);
    plan.state_pairs = p.width % 2 == 1 && element_bytes(p.state_dtype) == 2 && p.column_stride == 1 &&
                       p.first_column % 2 == 0 && p.state_dim_stride % 2 == 0 && p.slot_stride % 2 == 0 && aligned(p.states, 4);

    plan.state_form = StateForm::elements;
    if (element_bytes(p.dtype) == 2 && p.dim % 2 == 0 && p.slot_stride % 2 == 0 && aligned(p.states, 4) &&
        p.first_column == 0) {
        if (p.state_dim_stride == 1 && (p.width == 2 || p.column_stride % 2 == 0)) plan.state_form = StateForm::columns;
        if (p.column_stride == 1 && p.state_dim_stride == p.width - 1) plan.state_form = StateForm::rows;
    }
    // Wide windows gain where columns of a channel are neighbours, whose halves of words neighbouring lanes would have.
    const bool singles = p.tokens <= int64_t{2} * p.sequences && (p.width == 2 || plan.state_form == StateForm::rows);
    plan.starts_in_pairs = plan.state_form != StateForm::elements && (singles || forced.tokens);

    const auto form_of = [&](const void* data, int64_t inner, int64_t outer) {
        const int in_vector = 16 / element_bytes(p.dtype), in_word = 4 / element_bytes(p.dtype);
        if (inner != 1) return LineForm::elements;
        if (outer % in_vector == 0 && aligned(data, 16)) return LineForm::vectors;
        return outer % in_word == 0 && aligned(data, 4) ? LineForm::words : LineForm::shifted;
    };
    plan.x_tokens_inner = p.x_token_stride < p.x_dim_stride;
    plan.x_form =
        plan.x_tokens_inner ? form_of(p.x, p.x_token_stride, p.x_dim_stride) : form_of(p.x, p.x_dim_stride, p.x_token_stride);
    plan.out_tokens_inner = p.k_dim < 0 && (plan.by_rows ? p.out_token_stride == 1 : p.out_token_stride < p.out_dim_stride);
    plan.out_form = plan.out_tokens_inner ? form_of(p.out, p.out_token_stride, p.out_dim_stride)
                                          : form_of(p.out, p.out_dim_stride, p.out_token_stride);
    if (p.k_dim >= 0) {  // two neighbours may belong to different tensors
        plan.out_form = LineForm::vectors;
        for (const LineForm form :
             {form_of(p.out, 1, p.k_dim), form_of(p.k, 1, p.k_dim), form_of(p.v, 1, p.dim - int64_t{2} * p.k_dim)})
            if (form > plan.out_form) plan.out_form = form;
        if (plan.out_form == LineForm::shifted) plan.out_form = LineForm::elements;
    }
    if (in_place) {
        plan.saved_tokens = most_past(p);
        plan.saved_dim = (p.dim + 7) / 8 * 8;
    }
    return plan;
}

// This counts the bytes of the inputs saved before stretches, and at the end of sequences.
int64_t saved_bytes(const CausalConv1dVarlenParams& p, const StagedPlan& plan) {
    return int64_t{plan.stretches - 1} * kHalo * plan.saved_dim * element_bytes(p.dtype);
}

template <typename T>
void launch(const CausalConv1dVarlenParams& p, const StagedPlan& plan, hipStream_t stream) {
    if (plan.by_rows) return launch_rows<T>(StagedCall{p, plan}, stream);
    const int64_t columns = (int64_t{p.dim} + StagedShape<T>::kChannels - 1) / StagedShape<T>::kChannels;
    const dim3 grid = grid_of(columns, plan.stretches), block(kStagedThreads, 1, 1);
    if (p.width == kUsualStagedWidth)
        HIPCONV_LAUNCH(true, (causal_conv1d_varlen_staged<T, kUsualStagedWidth>), grid, block, 0, stream, StagedCall{p, plan});
    else
        HIPCONV_LAUNCH(true, (causal_conv1d_varlen_staged<T, kMostStagedWidth>), grid, block, 0, stream, StagedCall{p, plan});
    check_launch("causal_conv1d_varlen");
}

}  // namespace

const char* causal_conv1d_varlen_staged_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/) {
    const bool near = p.out_token_stride >= 0 && p.out_token_stride * element_bytes(p.dtype) < kOffsetLimit;
    if (p.width <= kMostStagedWidth && p.tokens <= kMostStagedSize && p.dim <= kMostStagedSize && near) return nullptr;
    return "widths 1 to 8, up to 2^30 tokens and channels, and outputs whose tokens lie less than 2 GiB apart";
}

void causal_conv1d_varlen_staged(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* /*workspace*/, void* stream) {
    const StagedPlan plan = plan_of(p, tile, false);
    with_dtype(p.dtype, [&](auto type) { launch<decltype(type)>(p, plan, static_cast<hipStream_t>(stream)); });
}

const char* causal_conv1d_varlen_staged_in_place_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    if (!causal_conv1d_varlen_staged_refusal(p, tile) && !p.block_idx_first.data) return nullptr;
    return "widths 1 to 8, up to 2^30 tokens and channels, no states at block boundaries, and outputs whose tokens lie less "
           "than 2 GiB apart";
}

int64_t causal_conv1d_varlen_staged_workspace(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    const StagedPlan plan = plan_of(p, tile, true);
    const int64_t vectors = plan.by_rows ? int64_t{plan.stretches - 1} * plan.saved_dim * 16 : 0;  // where last inputs end
    return 2 * saved_bytes(p, plan) + vectors;
}

void causal_conv1d_varlen_staged_in_place(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* workspace,
                                          void* stream) {
    StagedPlan plan = plan_of(p, tile, true);
    if (plan.stretches > 1) {
        plan.halos = static_cast<char*>(workspace);
        plan.lasts = plan.halos + saved_bytes(p, plan);
        if (plan.by_rows)
            save_inputs_of_rows(StagedCall{p, plan}, stream);
        else
            save_inputs(p, plan, stream);
    }
    with_dtype(p.dtype, [&](auto type) { launch<decltype(type)>(p, plan, static_cast<hipStream_t>(stream)); });
}

}  // namespace hipconv
