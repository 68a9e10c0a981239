// This kernel is "tile" for calls in which taps may see nothing, and for memory in which no aligned vector lies.
//
// The structure is that of tile.cu: a thread owns a few neighbouring channels and walks a run of tokens, the last of which are
// a ring in registers. Which taps of a token see something is one byte, the same for all channels: a row of threads first makes
// the bytes of its run in LDS, a lane a token, while the first loads are under way. So the beginning of a row, its state, the
// ids, and the oldest tap of an odd width, for which the next even one is compiled, all cost one predicate of a multiply-add.
//
// Lanes are aligned vectors, or vectors anywhere (common/lanes.h). The latter exchange words with their neighbours in the wave
// where out has no alignment that all tokens share: then no lane leaves early or walks fewer tokens than others, and rows that
// several waves share overlap by a lane, which only gives. Each lane owns as many channels: those of a row's last lane overlap
// with those of the one before where the dim is odd, and so do those of the first where out begins in the middle of an aligned
// vector.
//
// Bytes: as tile.cu, and the ids once a row of threads.
#include <hip/hip_runtime.h>

#include "../common/lanes.h"
#include "../common/vector_math.h"
#include "final_states.h"
#include "kernels.h"
#include "launch/check.h"
#include "tile.h"
#include "token_taps.h"

namespace hipconv {

constexpr int kMaxCheckedRun = 32;  // tokens
constexpr int kShortWideRow = 64;   // tokens, of more than six taps (measured on an H100)
constexpr int kSegment = 32;        // lanes, of a wave or of half of one, that share out rows among them

// Tells how shifted lanes divide the work: `lanes` lanes of a segment have a row, which is a run of tokens, or a part of
// it.
struct ShiftedPlan {
    uint32_t lanes, lanes_step;  // of a row, in a segment; and from a part of a row to the next
    uint32_t reciprocal;         // of lanes
    uint32_t rows_a_segment;
    uint32_t rows, runs_a_sequence;
    int32_t vectors;  // of a row
    int32_t shift;    // channels that the first of them lacks
    bool composes, parameters_are_packed;
    bool states_are_whole;  // lanes of states are aligned vectors
};

// Tells what a thread does: its run, its first channel, and how it stores; and the place of its row's bytes in LDS, which
// it helps to make.
struct CheckedPlace {
    int64_t b, begin, d;
    int tokens;
    int row, lane, lanes;  // of the block's rows; in the row
    LaneStores stores;
};

template <int kChannels>
HIPCONV_INLINE CheckedPlace place_of_whole(const CausalConv1dFwdParams& p, const TilePlan& plan) {
    const TileRun run = run_of_thread(plan);
    const int64_t d = run.vector * kChannels;
    const bool has_tokens = run.b < p.batch && run.begin < p.seqlen;
    const int tokens = !has_tokens ? 0 : static_cast<int>(p.seqlen - run.begin < plan.run ? p.seqlen - run.begin : plan.run);
    const int row = static_cast<int>(threadIdx.y), lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
    return {run.b, run.begin, d, tokens, row, lane, lanes, {false, true, false, false}};
}

// Threads that are left over do what others do, and store nothing.
template <int kChannels>
HIPCONV_INLINE CheckedPlace place_of_shifted(const CausalConv1dFwdParams& p, const TilePlan& plan, const ShiftedPlan& shifted) {
    const uint32_t segment = threadIdx.x / kSegment, in_segment = threadIdx.x % kSegment;
    const auto least = [](uint32_t a, uint32_t b) { return a < b ? a : b; };
    const uint32_t row_in_segment = least(in_segment * shifted.reciprocal >> 16, shifted.rows_a_segment - 1);
    const uint32_t lane = in_segment - row_in_segment * shifted.lanes, row = segment * shifted.rows_a_segment + row_in_segment;
    const uint32_t first_row = (blockIdx.z * gridDim.y + blockIdx.y) * (kTileThreads / kSegment * shifted.rows_a_segment);
    const uint32_t taken = least(first_row + row, shifted.rows - 1), b = taken / shifted.runs_a_sequence;
    const int64_t begin = static_cast<int64_t>(taken - b * shifted.runs_a_sequence) * plan.run;
    const int tokens = static_cast<int>(p.seqlen - begin < plan.run ? p.seqlen - begin : plan.run);

    const int64_t vector = static_cast<int64_t>(blockIdx.x) * shifted.lanes_step + lane;
    const int64_t first = vector * kChannels - shifted.shift, last = p.dim - kChannels;
    const int64_t d = first < 0 ? 0 : first > last ? last : first;
    const bool only_gives = shifted.composes && lane == 0 && blockIdx.x > 0;
    const bool stores = first_row + row < shifted.rows && lane < shifted.lanes && vector < shifted.vectors && !only_gives;
    const bool is_whole = d == first, is_at_end = shifted.composes && (vector == 0 || d + kChannels > last);
    const LaneStores how{shifted.composes, stores && is_whole && !(shifted.composes && vector == 0),
                         stores && (!is_whole || is_at_end), false};
    return {b, begin, d, tokens, static_cast<int>(row), static_cast<int>(lane), static_cast<int>(shifted.lanes), how};
}

// The number of blocks of a compute unit, by the registers that a width and channels need.
constexpr int checked_blocks(int width, bool shifts, int channels, int lane_bytes) {
    if (channels == 2 && (lane_bytes == 4 || width <= 4)) return 9;
    return width <= 2 ? (shifts ? 7 : 8) : width == 4 ? (shifts ? 5 : 6) : width == 6 ? 4 : 3;
}

// kWritesStates: threads that end a row write its final state. It costs eight taps time where there is none to write.
template <typename T, typename Lane, int kWidth, bool kWritesStates>
__global__ void HIPCONV_LAUNCH_BOUNDS(kTileThreads,
                                      checked_blocks(kWidth, Lane::kShifts, Lane::kChannels, Lane::kChannels * sizeof(T)))
    causal_conv1d_fwd_tile_checked(CausalConv1dFwdParams p, TilePlan plan, ShiftedPlan shifted) {
    constexpr int kChannels = Lane::kChannels, kPairs = kChannels / 2, kParts = Lane::kParts;
    constexpr int kPast = kWidth - 1;
    constexpr int kAhead = kWidth == 2 ? 4 : kWidth;  // a multiple of kWidth, so that ring positions repeat; even
    using Part = typename Lane::Part;

    HIPCONV_SHARED(uint8_t, block_taps, kTileThreads* kMaxCheckedRun);
    CheckedPlace place;
    if constexpr (Lane::kShifts)
        place = place_of_shifted<kChannels>(p, plan, shifted);
    else
        place = place_of_whole<kChannels>(p, plan);
    if (Lane::kShifts) place.stores.any_elements = __ballot(place.stores.elements) != 0;
    const int64_t d = place.d, begin = place.begin;
    const int tokens = place.tokens;
    uint8_t* const taps = block_taps + place.row * plan.run;
    let_next_kernel_begin();
    wait_for_kernel_before();

    const char* x =
        reinterpret_cast<const char*>(static_cast<const T*>(p.x.data) + place.b * p.x.batch_stride + d) + begin * plan.x_step;
    char* out = reinterpret_cast<char*>(static_cast<T*>(p.out.data) + place.b * p.out.batch_stride + d) + begin * plan.out_step;
    // Tokens begin in the middle of a word, or do not, in turns if the pitch is odd. `x` goes from first word to first word.
    int bits[2] = {};
    int64_t steps[2] = {plan.x_step, plan.x_step};
    if constexpr (Lane::kShifts && sizeof(T) == 2) {
        const uint32_t bytes = reinterpret_cast<uintptr_t>(x) & 2, next = reinterpret_cast<uintptr_t>(x + plan.x_step) & 2;
        bits[0] = 8 * static_cast<int>(bytes);
        bits[1] = 8 * static_cast<int>(next);
        in_a_register(bits[0]);
        in_a_register(bits[1]);
        x -= bytes;
        steps[0] += static_cast<int>(bytes) - static_cast<int>(next);
        steps[1] += static_cast<int>(next) - static_cast<int>(bytes);
    }
    const auto state_of = [&](int64_t column) {
        return static_cast<const T*>(first_parameter_again(p).initial_states.data) + place.b * p.initial_states.batch_stride +
               d * p.initial_states.dim_stride + column * p.initial_states.seqlen_stride;
    };
    Part before[kPast][kParts], ahead[kAhead][kParts];
    const bool has_channels = Lane::kShifts || d < p.dim;
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
        const int back = kPast - i;
#pragma unroll
        for (int k = 0; k < kParts; ++k) before[i][k] = Part{};
        if (begin >= back && tokens > 0 && has_channels)
            Lane::load(x - (back / 2 * (steps[0] + steps[1]) + back % 2 * steps[1]), bits[back % 2], before[i]);
    }
    const bool has_whole_state = !Lane::kShifts && shifted.states_are_whole && begin == 0;
    if (has_whole_state && tokens > 0 && has_channels) {
        const T* from = state_of(0);
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            if (kPast - i >= p.width) continue;
            Lane::load(reinterpret_cast<const char*>(from), 0, before[i]);
            from += p.initial_states.seqlen_stride;
        }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
#pragma unroll
        for (int k = 0; k < kParts; ++k) ahead[j][k] = Part{};
        if (j < tokens && has_channels) Lane::load(x, bits[j % 2], ahead[j]);
        x += steps[j % 2];
    }
    // The ids of the first of the tokens of which this lane makes the bytes are under way while parameters are.
    const int first_token = static_cast<int>(begin) + place.lane;
    const bool has_byte = place.lane < tokens;
    TokenIds ids{};
    if (has_byte) ids.load(p, place.b, first_token);

    Pair weight[kWidth][kPairs], bias[kPairs];
    if constexpr (Lane::kShifts) {
        if (shifted.parameters_are_packed)
            packed_parameters<true, false>(p, d, weight, bias);
        else
            strided_parameters(p, d, weight, bias);
    } else {
        packed_parameters<true, true>(p, has_channels ? d : 0, weight, bias);
    }
    if (has_byte) taps[place.lane] = ids.taps(p, first_token);
    for (int t = place.lane + place.lanes; t < tokens; t += place.lanes)
        taps[t] = taps_of_token(p, place.b, static_cast<int>(begin) + t);
    __syncthreads();
    if (!Lane::kShifts && (!has_channels || tokens == 0)) return;

    Pair ring[kWidth][kPairs];
    const auto keep = [&](int slot, const Part(&parts)[kParts], int shift) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) ring[slot][j] = Lane::pair(parts, shift, j);
    };
#pragma unroll
    for (int i = 0; i < kPast; ++i) keep(i, before[i], bits[(kPast - i) % 2]);
    if (begin < kPast && p.initial_states.data && !has_whole_state) {
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            const int64_t column = begin - (kPast - i) + p.width - 1;
            if (begin >= kPast - i || column < 0) continue;
            const T* from = state_of(column);
            const auto channel = [&](int c) { return to_float(from[c * p.initial_states.dim_stride]); };
#pragma unroll
            for (int j = 0; j < kPairs; ++j) ring[i][j] = make_pair(channel(2 * j), channel(2 * j + 1));
        }
    }

    // Makes the output of token t of the run, which is in this slot of the ring.
    const auto produce = [&](int slot, int t, bool wanted) {
        if (!Lane::kShifts && !wanted) return;
        const int token_taps = taps[t];
        Pair sums[kPairs];
        const auto add_taps = [&](auto sees) {
#pragma unroll
            for (int j = 0; j < kPairs; ++j) sums[j] = bias[j];
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                if (i < kPast && !sees(kPast - i)) continue;
#pragma unroll
                for (int j = 0; j < kPairs; ++j)
                    sums[j] = multiply_add(weight[i][j], ring[(slot + 1 + i) % kWidth][j], sums[j]);
            }
        };
        if (!kHasPredicates && token_taps == (1 << kPast) - 1)
            add_taps([](int) { return true; });
        else
            add_taps([&](int back) { return (token_taps >> (back - 1) & 1) != 0; });
#pragma unroll
        for (int j = 0; j < kPairs; ++j) sums[j] = silu_where(p.use_silu, sums[j]);
        Words<T, kChannels> words{};
#pragma unroll
        for (int j = 0; j < kPairs; ++j) set_pair<T>(words, j, sums[j]);
        if (token_taps >> kPaddingBit) words = Words<T, kChannels>{};
        Lane::store(out, place.stores, wanted, words);
        out += plan.out_step;
    };

    // Shifted lanes walk the same number of tokens.
    const int steady = !Lane::kShifts || __ballot(tokens < plan.run) == 0 ? tokens : 0;
    const int walked = Lane::kShifts ? plan.run : tokens;
    int t = 0;
    for (; t + 2 * kAhead <= steady; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            const int slot = (kPast + j) % kWidth;
            keep(slot, ahead[j], bits[j % 2]);
            Lane::load(x, bits[j % 2], ahead[j]);
            x += steps[j % 2];
            produce(slot, t + j, true);
        }
    }
    for (; t < walked; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            const int slot = (kPast + j) % kWidth;
            keep(slot, ahead[j], bits[j % 2]);
            if (t + kAhead + j < tokens) Lane::load(x, bits[j % 2], ahead[j]);
            x += steps[j % 2];
            if (t + j < walked) produce(slot, t + j, t + j < tokens);
        }
    }
    if constexpr (kWritesStates) {
        if (p.final_states.data && begin + tokens == p.seqlen) {
            const char* const row_end =
                reinterpret_cast<const char*>(&at<const T>(p.x, place.b, d, 0)) + p.seqlen * plan.x_step;
            write_final_state<T, kPast, Part>(
                p, place.b, d, [&](int back) { return *global_pointer<const Part>(row_end - back * plan.x_step); });
        }
    }
}

namespace {

// A form of the kernel and the shape of its launch.
struct CheckedForm {
    bool whole;  // lanes are aligned vectors
    bool writes_states;
    bool pairs;  // of two channels
    TileShape shape;
    int run;
    int64_t groups, row_groups;
    ShiftedPlan shifted;
};

// The parts into which a row is divided are those that leave the fewest lanes of segments idle.
void divide_rows(CheckedForm* form) {
    ShiftedPlan& plan = form->shifted;
    const int overlap = plan.composes;
    const int64_t fewest = plan.vectors <= kSegment ? 1 : (plan.vectors - overlap - 1) / (kSegment - overlap) + 1;
    double least = 0;  // segments that a row takes
    for (int64_t groups = fewest; groups < fewest + 16 && (groups == fewest || plan.vectors / groups >= 7); ++groups) {
        const int64_t lanes = (plan.vectors + (groups - 1) * overlap + groups - 1) / groups;
        const double taken = static_cast<double>(groups) / static_cast<double>(kSegment / lanes);
        if (groups > fewest && taken >= least) continue;
        least = taken;
        form->groups = groups;
        plan.lanes = static_cast<uint32_t>(lanes);
    }
    plan.lanes_step = plan.lanes - overlap;
    plan.reciprocal = (65536 + plan.lanes - 1) / plan.lanes;
    plan.rows_a_segment = kSegment / plan.lanes;
}

CheckedForm form_of(const CausalConv1dFwdParams& p) {
    CheckedForm form{};
    form.pairs = tile_is_of_pairs(p);
    const int size = element_bytes(p.dtype), bytes = form.pairs ? 4 : lane_bytes(p.width), channels = bytes / size;
    form.whole = tile_is_whole(p, bytes);
    if (form.whole) {
        const auto are_whole = [&](const Sequences& states) {
            return states.data && states.dim_stride == 1 && states.batch_stride % channels == 0 &&
                   states.seqlen_stride % channels == 0 &&
                   reinterpret_cast<uintptr_t>(states.data) % static_cast<unsigned>(bytes) == 0;
        };
        form.shifted.states_are_whole = are_whole(p.initial_states);
        const bool is_worth_it = p.width <= 6 || p.seqlen <= kShortWideRow;
        form.writes_states = is_worth_it && threads_write_final_states(p) && are_whole(p.final_states) &&
                             (!p.initial_states.data || form.shifted.states_are_whole);
        form.shape = tile_shape(p, p.dim / channels);
        form.run = form.shape.run;
        return form;
    }
    const int alignment = kVectorsBeginAtWords ? 4 : bytes;
    ShiftedPlan& plan = form.shifted;
    plan.parameters_are_packed = parameters_are_packed(p);
    plan.composes = p.out.seqlen_stride * size % alignment != 0 || p.out.batch_stride * size % alignment != 0;
    if (!plan.composes) plan.shift = static_cast<int32_t>(reinterpret_cast<uintptr_t>(p.out.data) % alignment) / size;
    plan.vectors = static_cast<int32_t>((int64_t{p.dim} + plan.shift + channels - 1) / channels);
    divide_rows(&form);
    const int run = run_for(p, plan.vectors);
    const int64_t runs = (static_cast<int64_t>(p.seqlen) + run - 1) / run, rows = runs * p.batch;
    form.run = static_cast<int>((p.seqlen + runs - 1) / runs);
    plan.runs_a_sequence = static_cast<uint32_t>(runs);
    plan.rows = static_cast<uint32_t>(rows);
    const int64_t rows_a_block = int64_t{kTileThreads / kSegment} * plan.rows_a_segment;
    form.row_groups = rows < int64_t{1} << 30 ? (rows + rows_a_block - 1) / rows_a_block : 0;
    return form;
}

// A row's last lane, and its first, lie within the row.
bool may_shift(const CausalConv1dFwdParams& p) {
    const bool short_rows = p.seqlen <= kShortShiftedRow && !p.initial_states.data;
    return element_bytes(p.dtype) == 2 && p.width <= (short_rows ? kMostShiftedWidthOfShortRows : kMostShiftedWidth) &&
           p.dim >= lane_bytes(p.width) / element_bytes(p.dtype);
}

template <typename T, typename Lane, int kWidth>
void launch(const CausalConv1dFwdParams& p, const CheckedForm& form, hipStream_t stream) {
    TilePlan plan{};
    dim3 grid, block(kTileThreads, 1, 1);
    if constexpr (Lane::kShifts) {
        plan.run = form.run;
        set_steps(p, &plan);
        grid = grid_of(form.groups, form.row_groups);
    } else {
        plan = tile_plan(p, form.shape);
        grid = tile_grid(form.shape);
        block = tile_block(form.shape);
    }
    constexpr bool kMayWrite = !Lane::kShifts, kHasBoth = kMayWrite && kWidth > 6;
    if (!kHasBoth || form.writes_states)
        HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile_checked<T, Lane, kWidth, kMayWrite>), grid, block, 0, stream, p, plan,
                       form.shifted);
    else
        HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile_checked < T, Lane, kWidth, kMayWrite && !kHasBoth >), grid, block, 0,
                       stream, p, plan, form.shifted);
    check_launch("causal_conv1d_fwd");
}

}  // namespace

bool causal_conv1d_tile_checked_fits(const CausalConv1dFwdParams& p) {
    const CheckedForm form = form_of(p);
    return form.whole ? form.shape.fits() : may_shift(p) && form.groups <= kGridLimit && form.row_groups > 0;
}

bool causal_conv1d_tile_checked_fills_lanes(const CausalConv1dFwdParams& p) {
    const CheckedForm form = form_of(p);
    return form.whole || 4 * form.shifted.lanes * form.shifted.rows_a_segment >= 3 * kSegment;
}

bool causal_conv1d_tile_checked(const CausalConv1dFwdParams& all, hipStream_t stream) {
    const CheckedForm form = form_of(all);
    CausalConv1dFwdParams p = all;
    if (!form.writes_states) p.final_states = {};
    with_even_width<kMaxFastWidth>(p.width, [&](auto width) {
        with_dtype(p.dtype, [&](auto type) {
            using T = decltype(type);
            constexpr int kWidth = decltype(width)::value, kChannels = lane_bytes(kWidth) / static_cast<int>(sizeof(T));
            if constexpr (kHasPairs<T, kWidth>) {
                if (form.pairs) return launch<T, WholeLane<T, 2>, kWidth>(p, form, stream);
            }
            if (form.whole) return launch<T, WholeLane<T, kChannels>, kWidth>(p, form, stream);
            if constexpr (kMayShift<T, kWidth>) launch<T, ShiftedLane<T, kChannels>, kWidth>(p, form, stream);
        });
    });
    return form.writes_states;
}

}  // namespace hipconv
