// This kernel makes sequences of few tokens whole, and the starts of longer ones, for calls in which most are short (short.h).
//
// It is decode by another name: a state, some tokens, the state again. A row of lanes makes one sequence after another; what
// lanes need of their channels, weights above all, stays in registers, and one thread a sequence looks it up for all. While a
// row makes a few tokens, its next tokens or its next sequence are on their way.
//
// A lane has words of two channels, or of one of float32, each a row of lanes apart, so that neighbours move neighbouring
// words at any alignment: halves of words are loaded one by one and stored together, as by `words`. States whose channels lie
// one behind another go through LDS.
#pragma once

#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "causal_conv1d/prefill_schedule.h"
#include "device/elements.h"
#include "launch/check.h"
#include "short.h"

namespace hipconv {

__device__ __forceinline__ int lowest_one(uint64_t bits) {
    const uint32_t low = static_cast<uint32_t>(bits), half = low != 0 ? low : static_cast<uint32_t>(bits >> 32);
    return __popc((half & (0 - half)) - 1) + (low != 0 ? 0 : 32);
}

// Calls f with the width, from 2 to kMost, as an integral_constant.
template <int kMost, typename F>
void with_width_from_two(int width, F f) {
    if constexpr (kMost > 2) {
        if (width < kMost) return with_width_from_two<kMost - 1>(width, f);
    }
    f(std::integral_constant<int, kMost>{});
}

struct ShortSequence {
    int32_t slot, begin;
    int32_t count;  // tokens to make, 0 of padding and empty sequences
    int32_t has_state;
};

// kStateRows: a slot has its channels one behind another, each with all of its columns. kWords: all else lies in aligned words.
template <typename T, int kWidth, bool kStateRows, bool kWords>
__global__ void HIPCONV_LAUNCH_BOUNDS(kShortThreads, (short_blocks(kWidth, kWords)))
    causal_conv1d_varlen_short(ShortCall call) {
    constexpr int kSize = static_cast<int>(sizeof(T)), kChannels = 4 / kSize;  // of a word
    constexpr bool kHalves = kChannels == 2;
    static_assert(kWords || kHalves, "an element of 32 bits is a word");
    constexpr int kPast = kWidth - 1, kItems = kWidth == 2 ? kItemsOfTwo : 1, kMoved = kItems * kPast + 1;
    // Where a channel's columns are one word or two, a lane moves them itself.
    constexpr bool kOwnRows = kHalves && kStateRows && (kPast == 2 || kPast == 4);
    constexpr bool kThroughLds = kStateRows && !kOwnRows;
    constexpr int kAhead = kItems > 1 ? 2 : 4;  // tokens on their way
    // Such chunks of tokens go without conditions; one kernel would spill registers.
    constexpr bool kWholeChunks = kAhead > 2 && (kWidth != 5 || kStateRows || kWords);
    HIPCONV_SHARED(ShortSequence, found, kShortFound);
    HIPCONV_SHARED(int32_t, lengths, kShortFound);
    HIPCONV_SHARED(uint32_t, waves_with_rare, kShortThreads / kWaveSize);
    HIPCONV_SHARED(uint32_t, slot_words, kThroughLds ? kShortThreads* kMoved : 1);
    const CausalConv1dVarlenParams& p = call.params;
    const ShortPlan& plan = call.plan;
    const uint32_t block = blockIdx.z * gridDim.y + blockIdx.y;
    const int thread = static_cast<int>(threadIdx.x), lanes = static_cast<int>(plan.lanes.value);
    int row = divide(thread, plan.lanes);
    in_a_register(row);
    const int lane = thread - row * lanes;
    const int32_t strip_d = static_cast<int32_t>(blockIdx.x) * lanes * kItems * kChannels;
    const int32_t d = strip_d + lane * kChannels;
    const int32_t left = row < plan.rows ? p.dim - d : 0;  // channels, from the lane's first one on
    const auto has = [&](int k) { return left > k * lanes * kChannels; };
    const auto has_second = [&](int k) { return kWords ? has(k) : left > k * lanes * 2 + 1; };
    let_next_kernel_begin();
    wait_for_kernel_before();

    // ---- accesses: words, or halves of words --------------------------------------------------------------------------------
    const auto ask = [&](uint32_t& low, uint32_t& high, const char* from, bool first, bool second) {
        if constexpr (kWords) {
            if (first) low = *global_pointer<const uint32_t>(from);  // high is 0
        } else {
            if (first) low = *global_pointer<const uint16_t>(from);
            if (second) high = *global_pointer<const uint16_t>(from + 2);
        }
    };
    const auto ask_alone = [&](const char* from, int k) {
        uint32_t low = 0, high = 0;
        ask(low, high, from, has(k), has_second(k));
        return low | high << 16;
    };
    const auto store_alone = [&](char* to, uint32_t both, int k) {
        if constexpr (!kHalves) {
            if (has(k)) *global_pointer<uint32_t>(to) = both;
            return;
        }
        if (has(k)) *global_pointer<uint16_t>(to) = static_cast<uint16_t>(both);
        if (has_second(k)) *global_pointer<uint16_t>(to + 2) = static_cast<uint16_t>(both >> 16);
    };
    // Bits: where a row of memory begins or ends in the lane's word, or the wave's part of it does; the same of outputs.
    uint32_t edges = 0;
    if constexpr (!kWords) {
#pragma unroll
        for (int k = 0; k < kItems; ++k) {
            const int32_t first = d + k * lanes * 2, next = first + 2;
            const bool splits = p.k_dim >= 0;
            const bool starts = lane == 0 || thread % kWaveSize == 0;
            const bool ends = lane == lanes - 1 || thread % kWaveSize == kWaveSize - 1 || next >= p.dim;
            const bool out_starts = starts || (splits && (first == p.k_dim || first == 2 * int64_t{p.k_dim}));
            const bool out_ends = ends || (splits && (next == p.k_dim || next == 2 * int64_t{p.k_dim}));
            const bool second = has_second(k);
            edges |= (starts | (ends && second) << 1 | out_starts << 2 | (out_ends && second) << 3 | !second << 4) << (8 * k);
        }
    }
    // All lanes of a wave store together.
    const auto store = [&](char* to, uint32_t both, bool wanted, int k, bool is_output) {
        if constexpr (kWords) {
            if (wanted) *global_pointer<uint32_t>(to) = both;
        } else {
            const uint32_t before = __shfl_up(both, 1);
            const int shift = 8 * k + (is_output ? 2 : 0);
            if (!wanted) return;
            if (reinterpret_cast<uintptr_t>(to) & 2) {
                if (edges >> shift & 1)
                    *global_pointer<uint16_t>(to) = static_cast<uint16_t>(both);
                else
                    *global_pointer<uint32_t>(to - 2) = shifted_left(before, both, 16);
                if (edges >> shift & 2) *global_pointer<uint16_t>(to + 2) = static_cast<uint16_t>(both >> 16);
            } else if (edges >> (8 * k) & 16) {
                *global_pointer<uint16_t>(to) = static_cast<uint16_t>(both);
            } else {
                *global_pointer<uint32_t>(to) = both;
            }
        }
    };

    const uint32_t item_bytes = static_cast<uint32_t>(lanes) * 4;
    const char* const x = kept(static_cast<const char*>(p.x) + d * int64_t{kSize});
    const auto x_at = [&](int32_t token, int k) {
        return x + static_cast<uint64_t>(static_cast<uint32_t>(token)) * plan.x_step + k * item_bytes;
    };
    if (block >= plan.blocks) {  // halos
        const int32_t each = plan.rows * plan.rounds, first = static_cast<int32_t>(block - plan.blocks) * each;
        for (int32_t q = first + row; q < first + each && q < plan.halos_to_save; q += plan.rows) {
            const int32_t number = q / plan.halo_tokens, i = q % plan.halo_tokens;
            const int32_t token = (number + 1) * plan.run_tokens - plan.halo_tokens + i;
#pragma unroll
            for (int k = 0; k < kItems; ++k)
                store_alone(plan.halos + (int64_t{q} * p.dim + d) * kSize + k * item_bytes, ask_alone(x_at(token, k), k), k);
        }
        return;
    }

    // ---- what the block shares, and what its lanes keep ---------------------------------------------------------------------
    const int32_t first_sequence = static_cast<int32_t>(block) * plan.rows * plan.rounds;
    const int32_t sequences_left = p.sequences - first_sequence;
    const int32_t here = sequences_left < plan.rows * plan.rounds ? sequences_left : plan.rows * plan.rounds;
    const PlainIndices indices{p};
    const auto mark = [&](int64_t begin, int64_t end, int first, int step, uint8_t value) {
#pragma unroll 1
        for (int64_t cell = (begin + kCellTokens - 1) / kCellTokens + first; cell * kCellTokens < end; cell += step)
            plan.long_cells[cell] = value;
    };
    // A thread's sequence is on its way while weights come.
    const int32_t own_number = first_sequence + (thread < here ? thread : 0);
    PlainIndices::Asked asked = indices.ask(own_number);
    Pair weight[kWidth][kItems], bias[kItems];
    bool finite = true;
    uint32_t bias_bits[kItems][2] = {};
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
        const int64_t first = has(k) ? d + k * lanes * kChannels : 0, second = kHalves && has_second(k) ? first + 1 : first;
        if (!p.bias) continue;
        bias_bits[k][0] = load_parameter_bits(p.bias, first * p.bias_stride, p.bias_dtype);
        bias_bits[k][1] = load_parameter_bits(p.bias, second * p.bias_stride, p.bias_dtype);
    }
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
        const int64_t first = has(k) ? d + k * lanes * kChannels : 0, second = kHalves && has_second(k) ? first + 1 : first;
        with_dtype(p.weight_dtype, [&](auto type) {
            using P = decltype(type);
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                weight[i][k] = make_pair(parameter<P>(p.weight, first * p.weight_dim_stride + i * p.weight_width_stride),
                                         parameter<P>(p.weight, second * p.weight_dim_stride + i * p.weight_width_stride));
        });
        bias[k] = make_pair(parameter_of(bias_bits[k][0], p.bias_dtype), parameter_of(bias_bits[k][1], p.bias_dtype));
        const auto is_finite = [](float v) { return (bit_cast<uint32_t>(v) & 0x7f800000u) != 0x7f800000u; };
#pragma unroll
        for (int i = 0; i < kWidth; ++i) finite = finite && is_finite(low(weight[i][k])) && is_finite(high(weight[i][k]));
    }
    ShortSequence own{kNoSlot, 0, 0, 0};
    int32_t own_length = 0;
    if (thread < here) {
        in_a_register(asked.begin);  // no use of it comes before
        const PackedSequence s = indices.sequence(asked, own_number);
        own_length = s.end > s.begin ? s.end - s.begin : 0;
        const int32_t count = s.number < 0 ? 0 : own_length <= kShortTokens ? own_length : plan.begun_tokens;
        own = {s.number < 0 ? kNoSlot : s.write_slot, s.begin, count, s.read_slot != kNoSlot && count > 0};
    }
    if (thread < plan.rows * plan.rounds) {
        found[thread] = own;
        lengths[thread] = own_length;
    }
    const bool is_rare = own_length > kShortTokens || (own_length > 0 && own.count == 0);
    const bool any_in_wave = __ballot(is_rare) != 0;
    if (thread % kWaveSize == 0) waves_with_rare[thread / kWaveSize] = any_in_wave;
    if (blockIdx.x == 0 && own_length <= kShortTokens) mark(own.begin, own.begin + own_length, 0, 1, 0);
    __syncthreads();

    // ---- what is rare: cells of longer sequences, which the first strip writes down; padding; tokens of no sequence ---------
    OutputColumn out[kItems];
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
        out[k] = output_column<T>(p, has(k) ? d + k * lanes * kChannels : 0);
        out[k].first = kept(out[k].first);
    }
    const auto bury = [&](int32_t t) {
#pragma unroll
        for (int k = 0; k < kItems; ++k) {
            const uint32_t both = p.dead_tokens == DeadTokens::copy ? ask_alone(x_at(t, k), k) : 0;
            store_alone(out[k].first + int64_t{t} * out[k].step, both, k);
        }
    };
    uint32_t any_rare = 0;
#pragma unroll
    for (int wave = 0; wave < kShortThreads / kWaveSize; ++wave) any_rare |= waves_with_rare[wave];
    bool any_long = false;
    for (int32_t group = 0; any_rare != 0 && group < here; group += kWaveSize) {
        const int32_t n = group + thread % kWaveSize, length = n < here ? lengths[n] : 0;
        const uint64_t all_long = __ballot(length > kShortTokens);
        any_long = any_long || all_long != 0;
        for (uint64_t left_long = blockIdx.x == 0 ? all_long : 0; left_long != 0; left_long &= left_long - 1) {
            const int32_t of = group + lowest_one(left_long);
            mark(found[of].begin, found[of].begin + lengths[of], thread, kShortThreads, 1);
        }
        const bool dead = length > 0 && length <= kShortTokens && found[n].count == 0;
        for (uint64_t all = p.dead_tokens != DeadTokens::leave ? __ballot(dead) : 0; all != 0; all &= all - 1) {
            const int32_t of = group + lowest_one(all);
            for (int32_t t = row; t < lengths[of]; t += plan.rows) bury(found[of].begin + t);
        }
    }
    if (blockIdx.x == 0 && block == 0) mark(0, indices.start(0), thread, kShortThreads, 0);
    if (blockIdx.x == 0 && block + 1 == plan.blocks) mark(indices.start(p.sequences), p.tokens, thread, kShortThreads, 0);
    if (p.dead_tokens != DeadTokens::leave) {
        const int32_t first_live = indices.start(0), last_live = indices.start(p.sequences);
        const int64_t outside = int64_t{first_live} + p.tokens - last_live;
        for (int64_t n = int64_t{block} * plan.rows + row; n < outside; n += int64_t{plan.blocks} * plan.rows)
            bury(static_cast<int32_t>(n < first_live ? n : n - first_live + last_live));
    }

    // ---- loads of a row's tokens and state ----------------------------------------------------------------------------------
    uint32_t token_low[kAhead][kItems] = {}, token_high[kAhead][kItems] = {};  // on their way
    uint32_t state_low[kPast][kItems] = {}, state_high[kPast][kItems] = {}, moved[kMoved] = {};
    // Threads of no row go along with the last one, without channels.
    const bool works = row < plan.rows;
    int own_row = works ? row : plan.rows - 1;
    in_a_register(own_row);
    const auto record = [&](int32_t round) { return found[own_row + round * plan.rows]; };
    const auto ask_tokens = [&](int32_t first_token, int32_t count) {
        const char* from = x_at(first_token, 0);
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            if (j == 1 && __ballot(count > 1) == 0) break;
#pragma unroll
            for (int k = 0; k < kItems; ++k)
                ask(token_low[j][k], token_high[j][k], from + k * item_bytes, j < (has(k) ? count : 0),
                    j < (has_second(k) ? count : 0));
            from += plan.x_step;
        }
    };
    char* const pool =
        kept(plan.states + (kThroughLds ? strip_d * int64_t{kPast} : d * int64_t{kStateRows ? kPast : 1}) * kSize);
    const auto slot_of = [&](const ShortSequence& s) {
        return pool + static_cast<uint64_t>(static_cast<uint32_t>(s.count > 0 ? s.slot : 0)) * plan.slot_step;
    };
    // Rows of columns: the strip's words, of which the first and the last may be others' by half.
    const int32_t strip_left = p.dim - strip_d < kChannels * kItems * lanes ? p.dim - strip_d : kChannels * kItems * lanes;
    uint32_t* const row_words = slot_words + row * (lanes * (kMoved - 1) + 1);
    const auto rows_in_words = [&] { return !kHalves || plan.rows_in_words; };
    const auto skipped_of = [](const char* slot) { return static_cast<int>(reinterpret_cast<uintptr_t>(slot) % 4 / 2); };
    const auto lane_now = [&] {  // sums of it are not kept in registers
        int own = lane;
        from_here_on(own);
        return own;
    };
    const auto ask_state = [&](const ShortSequence& s) {
        const char* from = slot_of(s);
        if constexpr (kOwnRows) {
            using Both = typename WordsOf<4 * kPast>::type;
            using One = typename WordsOf<2 * kPast>::type;
            const bool both = plan.rows_in_vectors;
            if (both && s.has_state && has(0)) {
                const Both words = *global_pointer<const Both>(from);
#pragma unroll
                for (int i = 0; i < kPast; ++i) moved[i] = word(words, i);
            }
            if (!both && s.has_state && has(0)) {
                const One words = *global_pointer<const One>(from);
#pragma unroll
                for (int i = 0; i < kPast / 2; ++i) moved[i] = word(words, i);
            }
            if (!both && s.has_state && has_second(0)) {
                const One words = *global_pointer<const One>(from + 2 * kPast);
#pragma unroll
                for (int i = 0; i < kPast / 2; ++i) moved[kPast / 2 + i] = word(words, i);
            }
        } else if (kStateRows && rows_in_words()) {
            const int words = works && s.has_state ? strip_left * kPast / kChannels : 0;
            int at = lane_now();
#pragma unroll
            for (int m = 0; m < kMoved - 1; ++m, at += lanes)
                if (at < words) moved[m] = global_pointer<const uint32_t>(from)[at];
        } else if constexpr (kStateRows) {
            const int skipped = skipped_of(from), halves = works && s.has_state ? skipped + strip_left * kPast : 0;
            from -= 2 * skipped;
            int at = lane_now();
#pragma unroll
            for (int m = 0; m < kMoved; ++m, at += lanes) {
                if (2 * at + 1 < halves)
                    moved[m] = global_pointer<const uint32_t>(from)[at];
                else if (2 * at < halves)
                    moved[m] = global_pointer<const uint16_t>(from)[2 * at];
            }
        } else {
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
#pragma unroll
                for (int k = 0; k < kItems; ++k)
                    ask(state_low[i][k], state_high[i][k], from + k * item_bytes, s.has_state && has(k),
                        s.has_state && has_second(k));
                from += plan.column_step;
            }
        }
    };
    const auto sync_row = [&] {
        if (plan.rows_in_waves)
            sync_wave();
        else
            __syncthreads();
    };
    const auto state_element = [&](int skipped, int k, int c, int i) -> uint16_t& {
        return reinterpret_cast<uint16_t*>(row_words)[skipped + ((k * lanes + lane) * 2 + c) * kPast + i];
    };

    // A lane asks for a sector of the strip, of one of the first tokens, and of those further on that the lanes have in turn.
    const int sectors = (lanes * kItems + 7) / 8, token_of_sector = lane / sectors, sector = lane - token_of_sector * sectors;
    const char* const sector_x = x + (sector * 32 - lane * 4 + static_cast<int64_t>(token_of_sector) * plan.x_step);
    const int sector_needs = works && sector * (32 / kSize) < strip_left ? token_of_sector + 1 : kShortTokens + 1;  // tokens

    // ---- sequences ----------------------------------------------------------------------------------------------------------
    const bool use_silu = p.use_silu;
    const int32_t rounds = (here + plan.rows - 1) / plan.rows;
    {
        const ShortSequence s = record(0);
        ask_tokens(s.begin, s.count);
        ask_state(s);
    }
    const bool all_finite = __ballot(!finite) == 0;
#pragma unroll 1
    for (int32_t round = 0; round < rounds; ++round) {
        const ShortSequence s = record(round);
        const int32_t count = s.count, length = any_long ? lengths[own_row + round * plan.rows] : 0;
        const bool has_state = s.has_state != 0, is_long = length > kShortTokens;
        uint32_t window[kPast + kAhead][kItems];
        // A lane's part of rows of columns is kPast words, of which its first channel has half. Half `e` is in word e / 2.
        const auto set_columns = [&](const auto& words) {
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                if constexpr (!kHalves) {
                    window[i][0] = has_state ? words(i) : 0;
                    continue;
                }
                const uint32_t first = has_state ? words(i / 2) : 0, second = has_state ? words((kPast + i) / 2) : 0;
                window[i][0] = two_halves(i, first, kPast + i, second);
            }
        };
        if constexpr (kOwnRows) {
            set_columns([&](int j) {
                int own = static_cast<int>(moved[j]);
                from_here_on(own);
                return static_cast<uint32_t>(own);
            });
        } else if (kStateRows && rows_in_words()) {
            const int words = works && has_state ? strip_left * kPast / kChannels : 0;
            int at = lane_now();
#pragma unroll
            for (int m = 0; m < kMoved - 1; ++m, at += lanes)
                if (at < words) row_words[at] = moved[m];
            sync_row();
            set_columns([&](int j) { return has(0) ? row_words[lane * kPast + j] : 0; });
        } else if constexpr (kStateRows) {
            const int skipped = skipped_of(slot_of(s)), halves = works && has_state ? skipped + strip_left * kPast : 0;
            int at = lane_now();
#pragma unroll
            for (int m = 0; m < kMoved; ++m, at += lanes)
                if (2 * at < halves) row_words[at] = moved[m];
            sync_row();
#pragma unroll
            for (int i = 0; i < kPast; ++i)
#pragma unroll
                for (int k = 0; k < kItems; ++k) {
                    window[i][k] = 0;
                    if (has_state && has(k)) window[i][k] = state_element(skipped, k, 0, i);
                    if (has_state && has_second(k))
                        window[i][k] |= static_cast<uint32_t>(state_element(skipped, k, 1, i)) << 16;
                }
        } else {
#pragma unroll
            for (int i = 0; i < kPast; ++i)
#pragma unroll
                for (int k = 0; k < kItems; ++k) {
                    int both = static_cast<int>(has_state ? state_low[i][k] | state_high[i][k] << 16 : 0);
                    from_here_on(both);
                    window[i][k] = static_cast<uint32_t>(both);
                }
        }
        const auto ask_next = [&] {
            if (round + 1 >= rounds) return;
            const ShortSequence next = record(round + 1);
            ask_tokens(next.begin, next.count);
            ask_state(next);
            if (!kPrefetches || round + 3 >= rounds) return;
            const ShortSequence later = record(round + 3);
            const char* const tokens = sector_x + static_cast<uint64_t>(static_cast<uint32_t>(later.begin)) * plan.x_step;
            prefetch_if(tokens, later.count >= sector_needs);
            if constexpr (kHalves && kItems == 1) {
#pragma unroll 1
                for (int i = 1; later.count >= sector_needs + i * plan.further; ++i)
                    prefetch_if(tokens + i * plan.further_step, true);
            }
            const bool live = later.count > 0 && works;
            const char* columns = slot_of(later) + lane * (kThroughLds ? 32 : kStateRows ? 32 - 4 * kPast : 28);
            constexpr int kLines = kStateRows ? 1 : kPast;
#pragma unroll
            for (int i = 0; i < kLines; ++i) {
                prefetch_if(columns, live && lane * (32 / kSize) < strip_left * (kPast / kLines));
                columns += plan.column_step;
            }
        };
        const auto finished = [&](Pair sum) {
            uint32_t result{};
            set_pair<T>(result, 0, use_silu ? silu(sum) : sum);
            return result;
        };
        // In place, outputs of longer sequences are put aside. And without a state, taps before the sequence are left out where
        // a weight is infinite, not multiplied by zero. Both are rare, and go token by token.
        const bool aside = plan.begun && is_long, careful = !all_finite && !has_state;
        if ((any_long || !all_finite) && __ballot(aside || careful) != 0) {
#pragma unroll 1
            for (int32_t t = 0; __ballot(t < count) != 0; ++t) {
                const bool wanted = t < count;
#pragma unroll
                for (int k = 0; k < kItems; ++k) {
                    uint32_t token = 0, token_second = 0;
                    ask(token, token_second, x_at(wanted ? s.begin + t : 0, k), wanted && has(k), wanted && has_second(k));
                    token |= token_second << 16;
                    Pair sum = bias[k];
#pragma unroll
                    for (int i = 0; i < kWidth; ++i) {
                        const Pair longer = multiply_add(weight[i][k], pair_of<T>(i < kPast ? window[i][k] : token, 0), sum);
                        if (i == kPast || has_state || t + i >= kPast) sum = longer;
                    }
                    char* to = out[k].first + int64_t{s.begin + t} * out[k].step;
                    if (aside) {
                        const int32_t number =
                            plan.begun_by_token ? s.begin / plan.begun_tokens : first_sequence + round * plan.rows + row;
                        to = plan.begun + ((int64_t{number} * plan.begun_tokens + t) * p.dim + d) * kSize + k * item_bytes;
                    }
                    store(to, finished(sum), wanted && has(k), k, true);
#pragma unroll
                    for (int i = 0; i < kPast; ++i)
                        window[i][k] = !wanted ? window[i][k] : i + 1 < kPast ? window[i + 1][k] : token;
                }
            }
            ask_next();
        } else {
#pragma unroll 1
            for (int32_t first = 0;; first += kAhead) {
#pragma unroll
                for (int j = 0; j < kAhead; ++j)
#pragma unroll
                    for (int k = 0; k < kItems; ++k) {
                        int both = static_cast<int>(token_low[j][k] | token_high[j][k] << 16);
                        from_here_on(both);  // so that the halves are not needed any more
                        window[kPast + j][k] = static_cast<uint32_t>(both);
                    }
                const bool more = __ballot(first + kAhead < count) != 0;
                if (more)
                    ask_tokens(s.begin + first + kAhead, count - first - kAhead);
                else
                    ask_next();
                const auto make_token = [&](int j, bool wanted) {
#pragma unroll
                    for (int k = 0; k < kItems; ++k) {
                        Pair sum = bias[k];
#pragma unroll
                        for (int i = 0; i < kWidth; ++i) sum = multiply_add(weight[i][k], pair_of<T>(window[j + i][k], 0), sum);
                        char* const to =
                            out[k].first + static_cast<uint64_t>(static_cast<uint32_t>(s.begin + first + j)) * out[k].step;
                        store(to, finished(sum), wanted && has(k), k, true);
                    }
                };
                if (kWholeChunks && __ballot(first + kAhead > count) == 0) {
#pragma unroll
                    for (int j = 0; j < kAhead; ++j) make_token(j, true);
#pragma unroll
                    for (int i = 0; i < kPast; ++i)
#pragma unroll
                        for (int k = 0; k < kItems; ++k) window[i][k] = window[kAhead + i][k];
                    if (!more) break;
                    continue;
                }
                uint32_t after[kPast][kItems];
#pragma unroll
                for (int i = 0; i < kPast; ++i)
#pragma unroll
                    for (int k = 0; k < kItems; ++k) after[i][k] = window[i][k];
#pragma unroll
                for (int j = 0; j < kAhead; ++j) {
                    const bool wanted = first + j < count;
                    if (j > 0 && __ballot(wanted) == 0) break;
                    make_token(j, wanted);
#pragma unroll
                    for (int i = 0; i < kPast; ++i)
#pragma unroll
                        for (int k = 0; k < kItems; ++k) after[i][k] = wanted ? window[j + 1 + i][k] : after[i][k];
                }
#pragma unroll
                for (int i = 0; i < kPast; ++i)
#pragma unroll
                    for (int k = 0; k < kItems; ++k) window[i][k] = after[i][k];
                if (!more) break;
            }
        }

        // ---- the new state --------------------------------------------------------------------------------------------------
        if (any_long && __ballot(is_long && count > 0) != 0) {
#pragma unroll
            for (int i = 0; i < kPast; ++i)
#pragma unroll
                for (int k = 0; k < kItems; ++k)
                    if (is_long && count > 0) window[i][k] = ask_alone(x_at(s.begin + length - kPast + i, k), k);
        }
        char* to = slot_of(s);
        const auto columns_as_words = [&](int j) {
            if constexpr (!kHalves) return window[j][0];
            const int first = 2 * j, second = first + 1;  // halves
            return two_halves(first / kPast, window[first % kPast][0], second / kPast, window[second % kPast][0]);
        };
        if constexpr (kOwnRows) {
            using Both = typename WordsOf<4 * kPast>::type;
            using One = typename WordsOf<2 * kPast>::type;
            Both both{};
            One first{}, second{};
#pragma unroll
            for (int j = 0; j < kPast; ++j) {
                set_word(both, j, columns_as_words(j));
                set_word(j < kPast / 2 ? first : second, j % (kPast / 2), columns_as_words(j));
            }
            if (plan.rows_in_vectors) {
                if (count > 0 && has(0)) *global_pointer<Both>(to) = both;
            } else {
                if (count > 0 && has(0)) *global_pointer<One>(to) = first;
                if (count > 0 && has_second(0)) *global_pointer<One>(to + 2 * kPast) = second;
            }
        } else if (kStateRows && rows_in_words()) {
#pragma unroll
            for (int j = 0; j < kPast; ++j)
                if (count > 0 && has(0)) row_words[lane * kPast + j] = columns_as_words(j);
            sync_row();
            const int words = works && count > 0 ? strip_left * kPast / kChannels : 0;
            int at = lane_now();
#pragma unroll
            for (int m = 0; m < kMoved - 1; ++m, at += lanes)
                if (at < words) global_pointer<uint32_t>(to)[at] = row_words[at];
        } else if constexpr (kStateRows) {
            const int skipped = skipped_of(to), halves = works && count > 0 ? skipped + strip_left * kPast : 0;
            to -= 2 * skipped;
#pragma unroll
            for (int i = 0; i < kPast; ++i)
#pragma unroll
                for (int k = 0; k < kItems; ++k) {
                    if (count > 0 && has(k)) state_element(skipped, k, 0, i) = static_cast<uint16_t>(window[i][k]);
                    if (count > 0 && has_second(k)) state_element(skipped, k, 1, i) = static_cast<uint16_t>(window[i][k] >> 16);
                }
            sync_row();
            int at = lane_now();
#pragma unroll
            for (int m = 0; m < kMoved; ++m, at += lanes) {  // a lane stores the words that it puts there for the next sequence
                const bool lower = 2 * at < halves && at >= skipped, upper = 2 * at + 1 < halves;
                const uint32_t both = 2 * at < halves ? row_words[at] : 0;
                if (lower && upper)
                    global_pointer<uint32_t>(to)[at] = both;
                else if (lower)
                    global_pointer<uint16_t>(to)[2 * at] = static_cast<uint16_t>(both);
                else if (upper)
                    global_pointer<uint16_t>(to)[2 * at + 1] = static_cast<uint16_t>(both >> 16);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
#pragma unroll
                for (int k = 0; k < kItems; ++k) store(to + k * item_bytes, window[i][k], count > 0 && has(k), k, false);
                to += plan.column_step;
            }
        }
    }
}

template <typename T>
void launch_short_instance(const ShortCall& call, bool state_rows, bool words, dim3 grid, hipStream_t stream) {
    const auto launch = [&](auto width, auto rows, auto in_words) {
        constexpr int kWidth = decltype(width)::value;
        constexpr bool kStateRows = decltype(rows)::value, kWords = decltype(in_words)::value;
        const dim3 block(kShortThreads, 1, 1);
        HIPCONV_LAUNCH(true, (causal_conv1d_varlen_short<T, kWidth, kStateRows, kWords>), grid, block, 0, stream, call);
        check_launch("causal_conv1d_varlen");
    };
    with_width_from_two<8>(call.params.width, [&](auto width) {
        const auto with_rows = [&](auto rows) {
            if constexpr (sizeof(T) == 2) {
                if (!words) return launch(width, rows, std::false_type{});
            }
            launch(width, rows, std::true_type{});
        };
        if constexpr (decltype(width)::value > 2) {
            if (state_rows) return with_rows(std::true_type{});
        }
        with_rows(std::false_type{});
    });
}

}  // namespace hipconv
