// The host's side of the launch that makes short sequences (short_kernel.h): which calls have one, and how it is laid out.
#include <hip/hip_runtime.h>

#include "in_place.h"
#include "launch/check.h"
#include "launch/compute_units.h"
#include "short.h"
#include "words_run.h"

namespace hipconv {

// AMD's waves have no scalar registers for a loop around a run.
constexpr bool kSeveralRuns = kHasPredicates;

// A block has this of the runs of longer sequences.
struct LongRuns {
    const uint8_t* cells;
    uint32_t each, all;  // runs of tokens for all rows of a block: so many for this one, of these
};

// Tells whether a longer sequence has any of these tokens, or of those in the cells around them.
__device__ __forceinline__ bool has_long_sequences(const CausalConv1dVarlenParams& p, const uint8_t* cells, int64_t first,
                                                   int32_t tokens) {
    const int64_t last = first + tokens < p.tokens ? first + tokens - 1 : p.tokens - 1;
    const int32_t last_of_all = (p.tokens - 1) / kCellTokens, next = static_cast<int32_t>(last / kCellTokens) + 1;
    const int32_t end = next < last_of_all ? next : last_of_all;
    const int lane = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x) % kWaveSize;
    uint32_t found = 0;
    constexpr int kAtOnce = 4;  // loads on their way
#pragma unroll 1
    for (int32_t cell = static_cast<int32_t>(first / kCellTokens) + lane; cell <= end; cell += kAtOnce * kWaveSize) {
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
            found |= global_pointer<const uint8_t>(cells)[cell + k * kWaveSize <= end ? cell + k * kWaveSize : end];
    }
    return __ballot(found != 0) != 0;
}

// The number of blocks of a compute unit, by registers.
constexpr int long_blocks(int width) { return !kHasPredicates ? 3 : width <= 4 ? 6 : 5; }

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kWordsThreads, long_blocks(kWidth))
    causal_conv1d_varlen_long(WordsCall call, LongRuns runs) {
    HIPCONV_SHARED(RunMasks, masks_of_rows, kWordsThreads);
    HIPCONV_SHARED(float, taps, (BlockTaps<T, kWidth>::kFloats));
    const CausalConv1dVarlenParams& p = call.params;
    const uint32_t first = (blockIdx.z * gridDim.y + blockIdx.y) * runs.each;
    const uint32_t end = first + runs.each < runs.all ? first + runs.each : runs.all;
    const int32_t tokens = static_cast<int32_t>(blockDim.y) * call.plan.run;
    let_next_kernel_begin();
    wait_for_kernel_before();
    if (first >= end || !has_long_sequences(p, runs.cells, int64_t{first} * tokens, static_cast<int32_t>(end - first) * tokens))
        return;
    if constexpr (!kSeveralRuns) return convolve_run_in_words<T, kWidth, kShortTokens>(call, first, masks_of_rows, taps);
#pragma unroll 1
    for (uint32_t number = first; number < end; ++number) {
        if (!has_long_sequences(p, runs.cells, int64_t{number} * tokens, tokens)) continue;
        convolve_run_in_words<T, kWidth, kShortTokens>(call, number, masks_of_rows, taps);
        __syncthreads();
    }
}

namespace {

// The number of lanes of a row that leaves the fewest of a block's threads without a word. Of nearly equal ones, the most, as
// short pieces of rows begin and end in the middle of sectors.
int lanes_of_row(int64_t items) {
    int best = 32;
    int64_t best_of = 0;
    const auto consider = [&](int64_t lanes) {
        if (lanes < 1 || lanes > kShortThreads) return;
        const int64_t strips = ceil_of(items, lanes), rows = kShortThreads / lanes;
        const int64_t gain = lanes < 32 ? -100 : (lanes < 128 ? lanes : 128) / 3;
        const int64_t of = items * 1000 / (strips * lanes) * (rows * lanes) / kShortThreads + gain;
        if (of <= best_of) return;
        best = static_cast<int>(lanes);
        best_of = of;
    };
    for (int64_t lanes : {128, 64, 32}) consider(lanes);
    for (int64_t strips = 1; strips <= 8; ++strips) consider(ceil_of(items, strips));
    return best;
}

// The number of sequences that a row makes one after another, where `resident` blocks are under way at once: as many as leave
// enough blocks, or about as many, so that the last ones are not much fewer than those. A forced tile has as many as fit.
int32_t rounds_of_rows(const CausalConv1dVarlenParams& p, const VarlenTile& tile, int64_t rows, int64_t strips,
                       int64_t resident) {
    constexpr int64_t kEnoughBlocks = 1024, kMostRounds = 32;
    const int64_t most = kShortFound / rows < kMostRounds ? kShortFound / rows : kMostRounds;
    if (tile.tokens) {
        const int64_t all = p.sequences / rows;
        return static_cast<int32_t>(all < 1 ? 1 : all < most ? all : most);
    }
    int64_t rounds = 1;
    while (rounds * 2 <= most && strips * (p.sequences / (rows * rounds * 2)) >= kEnoughBlocks) rounds *= 2;
    if (rounds == 1) return 1;
    const int64_t waves = ceil_of(strips * ceil_of(p.sequences, rows * rounds), resident);
    double least = 0;
    for (int64_t n = waves > 1 ? waves - 1 : 1; n <= waves + 1; ++n) {
        const int64_t across = n * resident / strips;
        if (across == 0) continue;
        const int64_t each = ceil_of(p.sequences, rows * across);
        if (each > most) continue;
        // A state takes as long as some tokens, and so does a block's beginning.
        const double states = p.sequences, tokens = p.tokens + 2 * states;
        const double time = static_cast<double>(n) * (static_cast<double>(each) * tokens + 4 * states);
        if (least > 0 && time >= least) continue;
        least = time;
        rounds = each;
    }
    return static_cast<int32_t>(rounds);
}

// The runs of longer sequences: blocks of whole rows, as there are few of them.
PrefillShape shape_of_runs(const CausalConv1dVarlenParams& p) {
    PrefillShape s{};
    s.width = p.width > 4 ? 8 : 4;
    s.items = ceil_of(p.dim, 4 / element_bytes(p.dtype));
    s.lanes = power_of_two_up_to(s.items, 32);
    s.rows = kWordsThreads / s.lanes;
    s.run = 32;
    s.run_blocks = ceil_of(p.tokens, int64_t{s.rows} * s.run);
    return s;
}

int64_t cells_bytes(const CausalConv1dVarlenParams& p) { return p.tokens / kCellTokens + 1; }

}  // namespace

bool are_short(const CausalConv1dVarlenParams& p, const VarlenTile& tile, int32_t mean, int64_t enough) {
    if (p.state_dtype != p.dtype || p.width < 2 || p.width > 8) return false;
    if (p.tokens > int64_t{mean} * p.sequences) return false;
    if (!tile.tokens && int64_t{p.tokens} * p.dim < enough) return false;
    if (!PlainIndices::fit(p)) return false;  // so that a sequence reads the slot that it writes, and leaves one state
    const bool rows = p.column_stride == 1 && p.state_dim_stride == p.width - 1 && p.first_column == 0;
    const int64_t bytes = element_bytes(p.dtype);
    const bool near = p.x_token_stride >= 0 && p.x_token_stride * bytes < kOffsetLimit &&
                      p.slot_stride * bytes < kOffsetLimit && p.column_stride * bytes < kOffsetLimit;
    // So many bytes rows of 16-bit columns must be aligned to.
    const int own = bytes == 2 && p.width % 2 != 0 ? (p.width == 7 ? 4 : (p.width - 1) * 2) : 2;
    const bool aligned_rows = aligned(p.states, own) && p.slot_stride * bytes % own == 0;
    return (p.state_dim_stride == 1 || (rows && aligned_rows)) && near && p.x_dim_stride == 1 &&
           (p.k_dim < 0 || bytes == 4 || p.k_dim % 2 == 0);
}

int64_t short_workspace(const CausalConv1dVarlenParams& p, bool in_place) {
    return cells_bytes(p) + (in_place ? in_place_workspace(p, shape_of_runs(p)) : 0);
}

void launch_short(const CausalConv1dVarlenParams& p, const VarlenTile& tile, bool in_place, void* workspace, void* stream) {
    const PrefillShape shape = shape_of_runs(p);
    WordsPlan runs{};
    if (in_place) {
        runs.halos = static_cast<char*>(workspace);
        runs.begun = runs.halos + halo_bytes(p, shape);
        runs.begun_by_token = begun_by_token(p);
        runs.phase = VarlenPhase::runs;
    }
    ShortCall call{p, {}};
    ShortPlan& plan = call.plan;
    plan.long_cells = static_cast<uint8_t*>(workspace) + (in_place ? in_place_workspace(p, shape) : 0);
    const bool state_rows = p.state_dim_stride != 1;
    const int items = p.width == 2 ? kItemsOfTwo : 1;
    const int64_t bytes = element_bytes(p.dtype), lane_items = ceil_of(p.dim, 4 / bytes * items);
    const int lanes = lanes_of_row(lane_items);
    plan.lanes = small_divisor_of(lanes);
    plan.rows = kShortThreads / lanes;
    const int64_t strips = ceil_of(lane_items, lanes);
    plan.states = static_cast<char*>(p.states) + p.first_column * p.column_stride * bytes;
    const bool states_in_words =
        state_rows || (aligned(plan.states, 4) && p.slot_stride % 2 == 0 && (p.width == 2 || p.column_stride % 2 == 0));
    const bool words = p.dim % 2 == 0 && aligned(p.x, 4) && p.x_token_stride % 2 == 0 && outputs_in_words(p) && states_in_words;
    plan.rounds =
        rounds_of_rows(p, tile, plan.rows, strips, int64_t{compute_units_here()} * short_blocks(p.width, bytes == 4 || words));
    const int64_t each = int64_t{plan.rows} * plan.rounds;
    plan.blocks = static_cast<uint32_t>(ceil_of(p.sequences, each));
    plan.begun_tokens = p.width - 1;
    plan.halo_tokens = shape.past();
    plan.run_tokens = static_cast<int32_t>(shape.rows) * shape.run;
    plan.halos_to_save = in_place ? static_cast<int32_t>((shape.run_blocks - 1) * shape.past()) : 0;
    plan.x_step = static_cast<uint32_t>(p.x_token_stride * bytes);
    // In place, all tokens of sequences are asked for ahead; in new tensors that is no faster.
    plan.further = in_place ? lanes / ((lanes * items + 7) / 8) : kShortTokens;
    plan.further_step = plan.further * int64_t{plan.x_step};
    plan.slot_step = static_cast<uint32_t>(p.slot_stride * bytes);
    plan.column_step = static_cast<uint32_t>(p.column_stride * bytes);
    const int both = 4 * (p.width - 1);
    plan.rows_in_vectors = state_rows && p.dim % 2 == 0 && aligned(p.states, both) && p.slot_stride * 2 % both == 0;
    plan.rows_in_words = p.width == 7 || (p.dim % 2 == 0 && aligned(p.states, 4) && p.slot_stride % 2 == 0);
    plan.rows_in_waves = 32 % lanes == 0;
    plan.begun_by_token = runs.begun_by_token;
    plan.halos = runs.halos;
    plan.begun = runs.begun;
    const hipStream_t s = static_cast<hipStream_t>(stream);
    const dim3 grid = grid_of(strips, plan.blocks + ceil_of(plan.halos_to_save, each));
    with_dtype(p.dtype, [&](auto type) { launch_short_instance<decltype(type)>(call, state_rows, words, grid, s); });

    runs.run = shape.run;
    runs.plain_indices = true;
    plan_lanes(runs, p, shape.lanes);
    const int64_t across = ceil_of(shape.items, shape.lanes);
    LongRuns all{plan.long_cells, 1, static_cast<uint32_t>(shape.run_blocks)};
    constexpr int64_t kEnoughToLook = 1024;
    while (kSeveralRuns && all.each < 64 && across * all.all / all.each > kEnoughToLook) all.each *= 2;
    const dim3 runs_grid = grid_of(across, ceil_of(all.all, all.each)), block(shape.lanes, shape.rows, 1);
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        if (shape.width == 4)
            HIPCONV_LAUNCH(true, (causal_conv1d_varlen_long<T, 4>), runs_grid, block, 0, s, WordsCall{p, runs}, all);
        else
            HIPCONV_LAUNCH(true, (causal_conv1d_varlen_long<T, 8>), runs_grid, block, 0, s, WordsCall{p, runs}, all);
    });
    check_launch("causal_conv1d_varlen");
}

}  // namespace hipconv
