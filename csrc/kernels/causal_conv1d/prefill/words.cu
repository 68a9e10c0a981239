// This kernel is the causal conv1d over packed sequences for channels that are neighbours but not aligned ("words"): slices at
// any channel, odd dims, weights and biases of any type and stride.
//
// The schedule is that of `tile` (tile.cu): blocks of runs of tokens, and blocks of the starts of sequences; in place, two
// launches. A lane has one word of channels, two of 16 bits or one of 32 (words_lane.h). Few bytes a lane make a start a matter
// of latencies: so a row makes several, and has the next one's inputs and state on their way (words_begin.h).
//
// Bytes: as `tile`.
#include <hip/hip_runtime.h>

#include <stdexcept>

#include "../common/launch.h"
#include "in_place.h"
#include "kernels.h"
#include "launch/check.h"
#include "launch_plan.h"
#include "short.h"
#include "words_begin.h"
#include "words_run.h"

namespace hipconv {

constexpr int32_t kMostWordsDim = 1 << 29;
constexpr int64_t kEnoughForShort = 1 << 18;  // elements

// A compute unit has as many blocks as the registers and the LDS of a width allow: the waves of six or five of kWordsThreads.
constexpr int words_threads(int width, int bytes) {
    return kMostWordsThreads == kWordsThreads ? kWordsThreads
           : width <= 4 && bytes == 4         ? 256
           : width <= 4 || bytes == 4         ? 192
                                              : 160;
}
constexpr int words_blocks(int width) { return kMostWordsThreads > kWordsThreads ? 4 : width <= 4 ? 6 : 5; }

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(words_threads(kWidth, sizeof(T)), words_blocks(kWidth))
    causal_conv1d_varlen_words(WordsCall call) {
    const CausalConv1dVarlenParams& p = call.params;
    const WordsPlan& plan = call.plan;
    HIPCONV_SHARED(RunMasks, masks_of_rows, kWordsFound);
    HIPCONV_SHARED(float, taps, (BlockTaps<T, kWidth>::kFloats));
    HIPCONV_SHARED(PackedSequence, found, kWordsFound);
    HIPCONV_SHARED(uint32_t, slot_words, (kSlotWords<T, kWidth>));
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
        if (plan.phase == VarlenPhase::begins) return save_halo_in_words<T, kWidth>(p, plan, block - begins);
        return convolve_run_in_words<T, kWidth>(call, block - begins, masks_of_rows, taps);
    }

    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    const int32_t first_channel = static_cast<int32_t>(blockIdx.x * blockDim.x) * WordLane<T>::kChannels;
    const int missing = missing_taps<kWidth, true>(p);
    const BlockTaps<T, kWidth> block_taps(again, first_channel, missing);
    const int rows = static_cast<int>(blockDim.y), count = static_cast<int>(plan.begins_a_row);
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x), row = static_cast<int>(threadIdx.y);
    const int64_t first = int64_t{begins} * rows * count;
    if (thread < rows * count) {
        PackedSequence s{-1, 0, 0, kNoSlot, kNoSlot};
        if (first + thread < p.sequences)
            s = EitherIndices{again, plan.plain_indices}.sequence(static_cast<int32_t>(first) + thread);
        found[thread] = s;
    }
    block_taps.put(first_parameter_again(p), missing, taps);
    __syncthreads();
    const int32_t d = first_channel + static_cast<int32_t>(threadIdx.x) * WordLane<T>::kChannels;
    const int row_words = (kWidth - 1) * WordLane<T>::kChannels * static_cast<int>(blockDim.x) + 1;
    const auto make_starts = [&](auto state_type) {
        using S = decltype(state_type);
        const StartOfRow<T, S, kWidth> row_of{call, taps, slot_words + row * row_words, d};
        // Wider states leave no registers for it, nor do wide windows of two channels.
        constexpr bool kNextEarly = sizeof(S) == sizeof(T) && (kWidth <= 4 || !WordLane<T>::kHalves);
        StartOnItsWay<T, kWidth> start, next;
        if (kNextEarly) row_of.ask(start, found[row]);
#pragma unroll 1
        for (int k = 0; k < count; ++k) {
            if (!kNextEarly) row_of.ask(start, found[k * rows + row]);
            if (kNextEarly && k + 1 < count) row_of.ask(next, found[(k + 1) * rows + row]);
            row_of.make(start, found[k * rows + row]);
            if (kNextEarly) start = next;
        }
    };
    if (sizeof(T) == sizeof(float) || again.state_dtype == kDTypeOf<T>) return make_starts(T{});
    make_starts(float{});
}

namespace {

// Tells whether `short` makes the sequences, by the mean of their lengths.
bool makes_short(const CausalConv1dVarlenParams& p, const VarlenTile& tile, bool in_place) {
    return are_short(p, tile, element_bytes(p.dtype) == 2 || in_place ? 12 : 3, kEnoughForShort);
}

// Rows of any number of lanes, where a power of two leaves too many without a word: the longest of which a block has enough.
// Short pieces of rows begin and end in the middle of sectors, which L2 then reads and writes twice.
void take_whole_rows(PrefillShape& s, int64_t fewest_rows) {
    for (int64_t strips = 1; strips <= 8; ++strips) {
        const int64_t lanes = ceil_of(s.items, strips), rows = kMostWordsThreads / lanes;
        if (lanes < 8 || lanes > kMostWordsLanes || rows < fewest_rows || rows * s.items * 4 < strips * kMostWordsThreads * 3)
            continue;
        s.lanes = static_cast<unsigned>(lanes);
        s.rows = static_cast<unsigned>(rows);
        return;
    }
}

// Long runs take fewer instructions a token, but fewer of them are on their way. So float32 gains only where starts take the
// time, and 16-bit types do not where all of an output's rows may begin in the middle of words.
bool gains_by_long_runs(const CausalConv1dVarlenParams& p, const PrefillShape& s, bool in_place) {
    if (in_place || s.items * (p.tokens / (2 * kMaskTokens)) < 2 * kEnoughThreads) return false;
    if (element_bytes(p.dtype) == 2) return p.k_dim >= 0 || outputs_in_words(p);
    return p.tokens < int64_t{8} * (p.width - 1) * p.sequences;
}

// Long pieces of rows begin and end in the middle of fewer sectors, but leave fewer blocks, which gain nothing in place.
bool gains_by_long_pieces(const CausalConv1dVarlenParams& p, const PrefillShape& s, bool in_place) {
    constexpr int64_t kEnoughWords = 2048, kEnoughTokens = 64;
    return kMostWordsLanes >= 64 && !in_place && s.items >= kEnoughWords && p.tokens >= kEnoughTokens;
}

PrefillShape words_shape(const CausalConv1dVarlenParams& p, const VarlenTile& tile, bool in_place) {
    PrefillShape s{};
    s.width = p.width > 4 ? 8 : 4;
    const int channels = 4 / element_bytes(p.dtype);
    s.items = (int64_t{p.dim} + channels - 1) / channels;
    const int warps = power_of_two("num_warps", tile.warps);
    const unsigned threads = warps == 0 ? kWordsThreads : power_of_two_up_to(warps, kWordsThreads / 32) * 32;
    const unsigned widest = gains_by_long_pieces(p, s, in_place) ? 64 : 32;
    const unsigned most_lanes = widest < threads / 2 ? widest : threads / 2;  // there are two rows or more
    s.lanes = power_of_two_up_to(s.items, most_lanes);
    const int forced = power_of_two("block_n", tile.channels);
    if (forced) s.lanes = power_of_two_up_to(forced / channels, most_lanes);
    if (s.lanes < kWordsThreads / kWordsFound) s.lanes = kWordsThreads / kWordsFound;
    s.rows = threads / s.lanes;
    if (warps == 0 && forced == 0 && (ceil_of(s.items, s.lanes) * s.lanes - s.items) * 8 > s.items)
        take_whole_rows(s, in_place || p.tokens < int64_t{64} * p.sequences ? 7 : 2);
    const int32_t most_run = 2 * s.rows > kWordsFound ? kMaskTokens : 2 * kMaskTokens;
    // A run of a wide window takes as many instructions before its first token as some tokens do.
    const int enough = s.width > 4 ? kEnoughThreads / 2 : kEnoughThreads;
    cut_into_runs(s, p, tile, in_place, gains_by_long_runs(p, s, in_place) ? most_run : kMaskTokens, most_run, enough);
    s.begins_a_row = begins_a_row(p, tile, s.rows, kWordsFound, s.run, s.items);
    share_out_begins(s, p, s.rows);
    return s;
}

// The form in which the kernel sees states.
StateForm words_state_form(const CausalConv1dVarlenParams& p) {
    const bool halves = element_bytes(p.dtype) == 2 && p.state_dtype == p.dtype;
    if (halves && p.state_dim_stride == 1 && p.dim % 2 == 0 && p.slot_stride % 2 == 0 && p.column_stride % 2 == 0 &&
        aligned(p.states, 4))
        return StateForm::columns;
    const bool lines = p.column_stride == 1 && p.state_dim_stride == p.width - 1 && p.first_column == 0;
    return lines && !p.block_idx_first.data ? StateForm::rows : StateForm::elements;
}

void launch(const CausalConv1dVarlenParams& p, const PrefillShape& shape, WordsPlan plan, int64_t runs, int64_t begins,
            void* stream) {
    if (!plan_blocks(plan, p, shape, runs, begins)) return;
    plan.state_form = words_state_form(p);
    plan_lanes(plan, p, shape.lanes);
    const dim3 grid = grid_of((shape.items + shape.lanes - 1) / shape.lanes, plan.blocks), block(shape.lanes, shape.rows, 1);
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        const hipStream_t s = static_cast<hipStream_t>(stream);
        if (shape.width == 4)
            HIPCONV_LAUNCH(true, (causal_conv1d_varlen_words<T, 4>), grid, block, 0, s, WordsCall{p, plan});
        else
            HIPCONV_LAUNCH(true, (causal_conv1d_varlen_words<T, 8>), grid, block, 0, s, WordsCall{p, plan});
    });
    check_launch("causal_conv1d_varlen");
}

}  // namespace

const char* causal_conv1d_varlen_words_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/) {
    const bool near = p.out_token_stride >= 0 && p.out_token_stride * element_bytes(p.dtype) < kOffsetLimit;
    const bool states = p.state_dtype == p.dtype || p.state_dtype == DType::f32;
    const bool outputs = p.k_dim < 0 ? p.out_dim_stride == 1 : p.k_dim % 2 == 0;
    const bool neighbours = p.x_dim_stride == 1 && outputs;
    if (p.width >= 2 && p.width <= 8 && states && near && neighbours && p.dim <= kMostWordsDim) return nullptr;
    return "widths 2 to 8, channels that are neighbours, up to 2^29, an even number of those of q and k, states of x's dtype "
           "or float32, and outputs whose tokens lie less than 2 GiB apart";
}

int64_t causal_conv1d_varlen_words_workspace(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    return makes_short(p, tile, false) ? short_workspace(p, false) : 0;
}

void causal_conv1d_varlen_words(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* workspace, void* stream) {
    if (makes_short(p, tile, false)) return launch_short(p, tile, false, workspace, stream);
    const PrefillShape shape = words_shape(p, tile, false);
    launch(p, shape, WordsPlan{}, shape.run_blocks, shape.begin_blocks, stream);
}

// Most of a short sequence is its start where windows are wide, and starts are put aside in place: `staged` is faster then, if
// there is enough to do.
bool causal_conv1d_varlen_words_takes_in_place(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    if (staged_needs_one_launch(p, tile)) return false;
    if (makes_short(p, tile, true)) return true;
    constexpr int64_t kFewElements = 1 << 21;
    return p.width <= 4 || p.tokens < int64_t{4} * p.sequences || p.tokens >= int64_t{32} * p.sequences ||
           int64_t{p.tokens} * p.dim <= kFewElements;
}

int64_t causal_conv1d_varlen_words_in_place_workspace(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    if (makes_short(p, tile, true)) return short_workspace(p, true);
    return in_place_workspace(p, words_shape(p, tile, true));
}

void causal_conv1d_varlen_words_in_place(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* workspace,
                                         void* stream) {
    if (makes_short(p, tile, true)) return launch_short(p, tile, true, workspace, stream);
    const PrefillShape shape = words_shape(p, tile, true);
    launch_in_place<WordsPlan>(p, shape, workspace, [&](const WordsPlan& plan, int64_t runs, int64_t begins) {
        launch(p, shape, plan, runs, begins, stream);
    });
}

}  // namespace hipconv
