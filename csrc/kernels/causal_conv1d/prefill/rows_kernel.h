// Rows of lanes make the prefill of an x that lies along tokens, whatever its alignment ("staged" goes this way).
//
// A block has a span of tokens, 16 bytes for each of 32 lanes, of a few channels; a row of lanes has one channel after another.
// All vectors of x are on their way at once while the sequences of the span are looked up. They go into LDS, a line a channel.
// Then rows of lanes that are channels make the starts of sequences, each walked token by token as decode would, and put the
// first outputs into other lines, and the states into the pool. At last the rows along tokens make all outputs whose window is
// within x, take the first ones from LDS, and store vectors. Where lines of the output begin at other boundaries than those of
// x, outputs move by way of LDS; those that are laid out along channels are stored from there, too.
//
// A span of a channel begins where a vector does (rows.h), so that no lane moves elements and each vector is one block's. The
// first outputs of a sequence that lie in two spans are all the later one's, as those in two tiles of `staged` are. In place, a
// block walks through several spans, and a small launch before (save.cu) copies what it would need of others.
#pragma once

#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "launch/check.h"
#include "rows.h"
#include "rows_pairs.h"

namespace hipconv {

// The number of blocks of a compute unit, which registers and LDS allow.
template <typename T, int kWidth>
constexpr int rows_blocks() {
    constexpr int kBytes = 16 * (RowsShape<T>::kXCells + RowsShape<T>::kOutCells + kRowsChannels * ((kWidth + 4) / 4)) +
                           kRowsFound * static_cast<int>(sizeof(BeginInTile)) + 1024;
    constexpr int kMost = kWidth > 4 ? 4 : 5;
    return kLdsBytes / kBytes < kMost ? kLdsBytes / kBytes : kMost;
}

struct BegunInWaves {
    int32_t counts[kRowsThreads / kWaveSize];
};

// The outputs of a lane's tokens, of the channel whose line of x is here.
template <typename T, int kWidth>
__device__ __forceinline__ Words4 make_run(const Words4* cell, const Words4* taps, bool has_first_tap, bool use_silu) {
    using Shape = RowsShape<T>;
    constexpr int kPast = kWidth - 1, kTokens = Shape::kTokens, kHalf = kTokens / 2;
    constexpr int kBefore = (kPast + kTokens - 1) / kTokens;  // cells
    float window[kPast + kTokens];
#pragma unroll
    for (int c = 0; c <= kBefore; ++c) {
        const Words4 words = cell[c - kBefore];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            const int at = (c - kBefore) * kTokens + i + kPast;
            if (at < 0) continue;
            const Pair both = pair_of<T>(words, i / 2);
            window[at] = i % 2 ? high(both) : low(both);
        }
    }
    float weights[(kWidth + 4) / 4 * 4];
#pragma unroll
    for (int v = 0; v < (kWidth + 4) / 4; ++v) {
        const Words4 words = taps[v];
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[4 * v + i] = bit_cast<float>(word(words, i));
    }
    Pair sums[kHalf];
#pragma unroll
    for (int t = 0; t < kHalf; ++t) sums[t] = twice(weights[kWidth]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
        if (i == 0 && !has_first_tap) continue;
#pragma unroll
        for (int t = 0; t < kHalf; ++t)
            sums[t] = multiply_add(twice(weights[i]), make_pair(window[t + i], window[t + i + kHalf]), sums[t]);
    }
    if (use_silu) {
#pragma unroll
        for (int t = 0; t < kHalf; ++t) sums[t] = silu(sums[t]);
    }
    return vector_of_halves<T, kTokens>(sums);
}

// Stores the outputs of a span from LDS, where they lie along channels in memory: two channels of 16 bits a lane where they
// share words. Channels begin and end at different tokens, but most tokens are all theirs.
template <typename T, bool kWordPairs>
__device__ __forceinline__ void store_tokens(const StagedCall& call, int32_t begin, int32_t first_channel, int32_t channels,
                                             int32_t left, bool some_left, const uint8_t* kinds, const SpanEnds* ends,
                                             const char* out_lines) {
    constexpr bool kPairs = kWordPairs && sizeof(T) == 2;
    using Shape = RowsShape<T>;
    using Bits = typename WordsOf<sizeof(T)>::type;
    using Stored = typename WordsOf<kPairs ? 4 : sizeof(T)>::type;
    constexpr int kLanes = kRowsChannels / (kPairs ? 2 : 1), kStep = kRowsThreads / kLanes;  // tokens at a time
    constexpr int kPlaceStep = kStep * Shape::kTokenBytes + kStep / Shape::kTokens * 4;
    static_assert(kStep % Shape::kTokens == 0, "places of a thread are equally far apart");
    const CausalConv1dVarlenParams& p = call.params;
    const auto params = [&]() -> const CausalConv1dVarlenParams& { return first_parameter_again(p); };
    const int thread = thread_from_here_on();
    const int channel = thread % kLanes * (kPairs ? 2 : 1);
    if (channel >= channels) return;
    const auto apart_of = [&](int channel) {
        return elements_apart<T>(static_cast<const T*>(params().x) +
                                 ((int64_t{first_channel} + channel) * params().x_dim_stride + begin));
    };
    const bool both = kPairs && channel + 1 < channels;
    const int apart = apart_of(channel), next_apart = both ? apart_of(channel + 1) : 0;
    // Tokens of each channel, from `begin` on.
    const int first = ends[apart].first - apart, end = ends[apart].end - apart;
    const int next_first = both ? ends[next_apart].first - next_apart : 0,
              next_end = both ? ends[next_apart].end - next_apart : 0;
    const int first_of_both = first > next_first ? first : next_first, end_of_both = end < next_end ? end : next_end;
    const OutputColumn column = output_column<T>(p, int64_t{first_channel} + channel);

    int token = thread / kLanes - (begin < 2 * kHalo ? begin : 2 * kHalo);
    char* to = column.first + (int64_t{begin} + token) * column.step;
    const auto place_of = [&](int channel, int position) {  // which may lie before all places, and is not used then
        constexpr int kBefore = 2 * kHalo;
        return out_lines + OutPlace<T>(channel, false)(position + kBefore) -
               (kBefore * Shape::kTokenBytes + kBefore / Shape::kTokens * 4);
    };
    const char* place = place_of(channel, token + apart);
    const char* next_place = both ? place_of(channel + 1, token + next_apart) : place;
    const int64_t step = int64_t{kStep} * column.step;
    const int until = left < Shape::kSpan ? left : Shape::kSpan;
    const auto store_fast = [&] {
        if constexpr (kPairs)
            *reinterpret_cast<Stored*>(to) = *reinterpret_cast<const uint16_t*>(place) |
                                             static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(next_place)) << 16;
        else
            *reinterpret_cast<Stored*>(to) = *reinterpret_cast<const Stored*>(place);
    };
    const auto move_on = [&] {
        token += kStep;
        to += step;
        place += kPlaceStep;
        next_place += kPlaceStep;
    };
    while (token < until) {
        if (!some_left) {
            constexpr int kAtOnce = 4;
            while ((kPairs ? token >= first_of_both : token >= first) &&
                   token + (kAtOnce - 1) * kStep < (kPairs ? end_of_both : end)) {
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) store_fast(), move_on();
            }
            if (token >= until) return;
        }
        const bool has = token >= first && token < end, has_next = both && token >= next_first && token < next_end;
        const bool is_left = some_left && token >= -kHalo && kinds[token] == kDeadToken;
        if (!is_left) {
            if (kPairs && has && has_next) {
                store_fast();
            } else {
                if (has) *reinterpret_cast<Bits*>(to) = *reinterpret_cast<const Bits*>(place);
                if (has_next) *reinterpret_cast<Bits*>(to + sizeof(T)) = *reinterpret_cast<const Bits*>(next_place);
            }
        }
        move_on();
    }
}

// The last part of the kernel, along tokens.
template <typename T, int kWidth>
__device__ __forceinline__ void make_rows(const StagedCall& call, int32_t begin, int32_t first_channel, int32_t channels,
                                          int32_t left, const SpanOfRows& span, const SpanEnds* ends, const uint8_t* kinds,
                                          const Words4* x_cells, const Words4* tap_cells, Words4* out_cells) {
    using Shape = RowsShape<T>;
    using Bits = typename WordsOf<sizeof(T)>::type;
    constexpr int kSize = Shape::kSize, kTokens = Shape::kTokens, kSpan = Shape::kSpan, kLineBytes = Shape::kLineBytes;
    constexpr int kHaloCells = Shape::kHaloCells, kTapCells = (kWidth + 4) / 4;
    const CausalConv1dVarlenParams& p = call.params;
    const auto params = [&]() -> const CausalConv1dVarlenParams& { return first_parameter_again(p); };
    const auto plan = [&]() -> const StagedPlan& { return first_parameter_again(call).plan; };
    const int thread = thread_from_here_on();
    const int row = thread / kRowLanes, lane = thread % kRowLanes;
    const int missing = missing_in_rows<kWidth>(p);
    char* const out_lines = reinterpret_cast<char*>(out_cells);
    const int apart =
        elements_apart<T>(static_cast<const T*>(params().x) + ((int64_t{first_channel} + row) * params().x_dim_stride + begin));

    // The tokens of this lane, by bits: those that are stored, and those whose outputs come from LDS.
    const DeadTokens mode = params().dead_tokens;
    const bool leaves = mode == DeadTokens::leave, tokens_inner = plan().out_tokens_inner, alike = plan().alike;
    uint32_t from_lds[4]{}, stored = lowest_bits(kTokens);
    bool any_dead = false;
    const SpanEnds own_ends = ends[apart];
    const auto is_stored = [&](int position) {
        return position >= own_ends.first && position < own_ends.end && (!leaves || kinds[position - apart] != kDeadToken);
    };
    const bool has_runs = span.has_runs;
    if (own_ends.end - lane * kTokens < kTokens) stored = lowest_bits(own_ends.end - lane * kTokens);
    if (own_ends.first > lane * kTokens) stored &= ~lowest_bits(own_ends.first - lane * kTokens);
    if (span.has_begins || span.has_dead) {
        // A byte a token, in sums, as branches would need masks of lanes.
        const int first_kind = kHalo + lane * kTokens - apart;
        const uint32_t* const of_lane = reinterpret_cast<const uint32_t*>(kinds - kHalo) + first_kind / 4;
        constexpr uint32_t kEach = 0x01010101u;
        uint32_t kind[kTokens / 4], low = of_lane[0], all = 0;
#pragma unroll
        for (int w = 0; w < kTokens / 4; ++w) {
            const uint32_t high = of_lane[w + 1];
            kind[w] = static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (first_kind % 4 * 8));
            low = high;
            all |= kind[w];
            const uint32_t taken = kind[w] | (leaves ? 0 : kind[w] / kDeadToken);
#pragma unroll
            for (int i = 0; i < kSize; ++i) {
                const uint32_t own = taken >> (i * 32 / kSize);
                const uint32_t ones = kSize == 4 ? (0 - (own & 1)) : ((own & 1) | (own << 8 & 0x10000)) * 0xffff;
                from_lds[w * kSize + i] = ones;
            }
        }
        any_dead = (all & kEach * kDeadToken) != 0;
        if (any_dead && leaves) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i) stored &= ~((kind[i / 4] >> (i % 4 * 8) & kDeadToken) / kDeadToken << i);
        }
    }
    const bool any_from_lds = (from_lds[0] | from_lds[1] | from_lds[2] | from_lds[3]) != 0;
    // Most vectors are stored whole, without a detour.
    const bool is_whole = alike && tokens_inner && !any_dead && stored == lowest_bits(kTokens);
    const auto take_from_lds = [&](Words4& result, const Words4& made) {
#pragma unroll
        for (int w = 0; w < 4; ++w) set_word(result, w, (word(result, w) & ~from_lds[w]) | (word(made, w) & from_lds[w]));
    };
    const int64_t own_place = (int64_t{first_channel} + row) * params().out_dim_stride + begin - apart + lane * kTokens;
    char* own_line = static_cast<char*>(params().out) + own_place * kSize;
    const int64_t line_step = kRowsOfBlock * params().out_dim_stride * int64_t{kSize};
    constexpr bool kShares = kWaveSize > kRowLanes;  // rows that share a wave go on together
    const int end = kShares ? plan().channels_of_block : channels;
    const Words4* own_x = x_cells + row * Shape::kCells + kHaloCells + lane;
    const Words4* own_taps = tap_cells + row * kTapCells;
#pragma unroll 1
    for (int channel = row; channel < end; channel += kRowsOfBlock, own_line += line_step,
             own_x += kRowsOfBlock * Shape::kCells, own_taps += kRowsOfBlock * kTapCells) {
        // AMD's compiler would make masks of lanes of these bits in front of the loop: too many for its registers.
#pragma unroll
        for (int w = 0; w < 4; ++w) beside_access(from_lds[w]);
        beside_access(stored);
        const bool works = !kShares || channel < channels;
        Words4 result{};
        if (works && has_runs) result = make_run<T, kWidth>(own_x, own_taps, missing == 0, params().use_silu);
        if (is_whole) {
            if (any_from_lds) take_from_lds(result, out_cells[own_x - x_cells]);
            if (works) *reinterpret_cast<Words4*>(own_line) = result;
            continue;
        }
        const int own_cell = channel * Shape::kCells + kHaloCells + lane;
        if (any_dead && !leaves) {
            const OutPlace<T> place(channel, tokens_inner);
#pragma unroll 1
            for (int i = 0; i < kTokens; ++i) {
                if (kinds[lane * kTokens + i - apart] != kDeadToken) continue;
                const Bits input = reinterpret_cast<const Bits*>(x_cells + own_cell)[i];
                *reinterpret_cast<Bits*>(out_lines + place(lane * kTokens + i)) = mode == DeadTokens::zero ? Bits{} : input;
            }
        }
        if (!tokens_inner) {
            char* const to =
                out_lines + channel * kSize + (kHalo + lane * kTokens) * Shape::kTokenBytes + (kHaloCells + lane) * 4;
            const auto put = [&](int i) {
                const uint32_t bits = kSize == 4 ? word(result, i) : word(result, i / 2) >> (i % 2 * 16);
                *reinterpret_cast<Bits*>(to + i * Shape::kTokenBytes) = static_cast<Bits>(bits);
            };
            if (!any_from_lds) {
#pragma unroll
                for (int i = 0; i < kTokens; ++i) put(i);
            } else {
#pragma unroll
                for (int i = 0; i < kTokens; ++i)
                    if (!(from_lds[i * kSize / 4] >> (i * kSize % 4 * 8) & 1)) put(i);
            }
            continue;
        }
        Words4* const own = out_cells + own_cell;
        if (any_from_lds) take_from_lds(result, *own);
        if (alike) {
            if (!works) continue;
            Bits* const to = reinterpret_cast<Bits*>(own_line);
            if (stored == lowest_bits(kTokens)) {
                *reinterpret_cast<Words4*>(to) = result;
            } else if (stored != 0) {
                *own = result;
#pragma unroll 1
                for (int i = 0; i < kTokens; ++i)
                    if (stored >> i & 1) to[i] = reinterpret_cast<const Bits*>(own)[i];
            }
            continue;
        }
        // The output's vectors begin so many elements before those of x.
        *own = result;
        sync_wave();
        const int before = elements_apart<T>(own_line);
        Bits* const line = reinterpret_cast<Bits*>(own_line) - lane * kTokens;
        const Bits* const made_line = reinterpret_cast<const Bits*>(out_lines + channel * kLineBytes) + kHalo;
        const int first = lane * kTokens - before;
        if (before != 0) {
            const uint32_t* const words = reinterpret_cast<const uint32_t*>(own) - (before * kSize + 3) / 4;
            uint32_t low = words[0];
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                const uint32_t high = kSize == 2 ? words[w + 1] : 0;
                set_word(result, w, kSize == 2 ? shifted_right(low, high, before % 2 * 16) : words[w]);
                low = high;
            }
            // The vectors at both ends are not all this span's.
            const int at = lane < kTokens ? lane : kSpan - 2 * kTokens + lane;
            const bool is_own = lane < kTokens ? at < kTokens - before : lane < 2 * kTokens && at >= kSpan - before;
            if (works && is_own && is_stored(at)) line[at] = made_line[at];
        }
        if (!works || first < 0) continue;
        const bool all = first >= own_ends.first && first + kTokens <= own_ends.end;
        if (all && !(leaves && span.has_dead)) {
            *reinterpret_cast<Words4*>(line + first) = result;
        } else {
#pragma unroll 1
            for (int at = first; at < first + kTokens; ++at)
                if (is_stored(at)) line[at] = made_line[at];
        }
    }
    if (tokens_inner) {
        // The tokens before the span, which are one sequence's.
        const int channel = thread % kRowsChannels;
        if (span.has_begins && channel < channels) {
            const T* const x =
                static_cast<const T*>(params().x) + ((int64_t{first_channel} + channel) * params().x_dim_stride + begin);
            const int own_apart = elements_apart<T>(x);
            Bits* const to = static_cast<Bits*>(params().out) +
                             ((int64_t{first_channel} + channel) * params().out_dim_stride + begin - own_apart);
            const OutPlace<T> place(channel, true);
            for (int at = ends[own_apart].first + thread / kRowsChannels; at < 0; at += kRowsThreads / kRowsChannels)
                to[at] = *reinterpret_cast<const Bits*>(out_lines + place(at));
        }
    } else {
        __syncthreads();
        const bool has_left = leaves && span.has_dead;
        if (sizeof(T) == 2 && plan().out_form <= LineForm::words)
            store_tokens<T, true>(call, begin, first_channel, channels, left, has_left, kinds, ends, out_lines);
        else
            store_tokens<T, false>(call, begin, first_channel, channels, left, has_left, kinds, ends, out_lines);
    }
}

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kRowsThreads, (rows_blocks<T, kWidth>())) causal_conv1d_varlen_rows(StagedCall call) {
    using Shape = RowsShape<T>;
    using Bits = typename WordsOf<sizeof(T)>::type;
    constexpr int kSize = Shape::kSize, kTokens = Shape::kTokens, kSpan = Shape::kSpan;
    constexpr int kMine = kRowsChannels / kRowsOfBlock;  // channels of a row
    constexpr int kTapCells = (kWidth + 4) / 4;
    HIPCONV_SHARED(Words4, x_cells, Shape::kXCells);
    HIPCONV_SHARED(Words4, out_cells, Shape::kOutCells);
    HIPCONV_SHARED(Words4, tap_cells, kRowsChannels * kTapCells);
    HIPCONV_SHARED(BeginInTile, found, kRowsFound);
    HIPCONV_SHARED(uint32_t, kind_words, (kHalo + kSpan) / 4 + 1);  // of four tokens, read by twos
    HIPCONV_SHARED(SpanEnds, ends, kTokens);
    HIPCONV_SHARED(SpanOfRows, shared_span, 1);
    HIPCONV_SHARED(BegunInWaves, begun_in_waves, 2);

    uint8_t* const kinds = reinterpret_cast<uint8_t*>(kind_words) + kHalo;
    const CausalConv1dVarlenParams& p = call.params;
    const auto params = [&]() -> const CausalConv1dVarlenParams& { return first_parameter_again(p); };
    const auto plan = [&]() -> const StagedPlan& { return first_parameter_again(call).plan; };
    uint32_t stretch;
    if (!begin_stretch(call, stretch, !loads_early(call))) return;
    const int32_t first_channel = static_cast<int32_t>(blockIdx.x) * plan().channels_of_block;
    // The same, worked out again: there are no registers for it everywhere.
    const auto first_channel_here = [&] {
        int number = static_cast<int>(blockIdx.x);
        from_here_on(number);
        return number * plan().channels_of_block;
    };
    const auto channels_here = [&] {
        const int32_t channels_left = params().dim - first_channel_here();
        return channels_left < plan().channels_of_block ? channels_left : plan().channels_of_block;
    };
    const auto begins_stretch = [&](int32_t token) { return (token & ((1 << plan().log2_tokens) - 1)) == 0; };
#pragma unroll 1
    for (int32_t begin = static_cast<int32_t>(stretch << plan().log2_tokens);; begin += kSpan) {
        from_here_on(begin);
        const int thread = thread_from_here_on();
        const int row = thread / kRowLanes, lane = thread % kRowLanes;
        const int32_t left = params().tokens - begin;  // tokens from `begin` on
        const int32_t channels_left = params().dim - first_channel;
        const int32_t channels = channels_left < plan().channels_of_block ? channels_left : plan().channels_of_block;

        // A lane's vectors of x: the first channel's, the way to the next one, and which of them are here.
        struct LaneOfX {
            const char* at;
            int64_t step;
            int first_token;  // from `begin` on; it may be negative
            bool has_tokens;
        };
        const auto lane_of_x = [&](int row, int lane) {
            const char* at =
                static_cast<const char*>(params().x) + ((int64_t{first_channel} + row) * params().x_dim_stride + begin) * kSize;
            const int first_token = lane * kTokens - elements_apart<T>(at);
            return LaneOfX{at + first_token * kSize, kRowsOfBlock * params().x_dim_stride * int64_t{kSize}, first_token,
                           first_token < params().tokens - begin};
        };
        // Only vectors around the first and the last tokens may reach out of a row, and only those of the first and the last
        // channels out of x.
        const auto is_edge = [&] { return begin == 0 || params().tokens - begin <= 2 * kSpan; };
        const auto may_reach_out = [&] {
            return is_edge() &&
                   (first_channel == 0 || first_channel + kRowsChannels >= params().dim || params().tokens < kTokens);
        };
        const auto is_inside = [&](const char* at) {
            const uint64_t address = reinterpret_cast<uint64_t>(at);
            return address >= plan().x_begin && address + 16 <= plan().x_end;
        };

        // x, the vectors before it, and weights and biases are on their way while sequences are looked up.
        Words4 cells[kMine], halo{};
        uint32_t weight = 0, bias = 0;
        const int missing = missing_in_rows<kWidth>(p);
        const int tap_channel = thread % kRowsChannels, own_tap = thread / kRowsChannels;
        constexpr int kHaloCells = Shape::kHaloCells, kAllHaloCells = kRowsChannels * kHaloCells;
        static_assert(kAllHaloCells <= kRowsThreads && kWidth <= kRowsThreads / kRowsChannels, "a thread has one at most");
        {
            LaneOfX x = lane_of_x(row, lane);
            if (!is_edge() && channels == kRowsChannels) {
#pragma unroll
                for (int k = 0; k < kMine; ++k) {
                    cells[k] = load_past_first_cache(reinterpret_cast<const Words4*>(x.at));
                    x.at += x.step;
                }
            } else {
                const bool inside = !may_reach_out();
#pragma unroll
                for (int k = 0; k < kMine; ++k) {
                    cells[k] = Words4{};
                    if (row + k * kRowsOfBlock < channels && x.has_tokens && (inside || is_inside(x.at)))
                        cells[k] = load_past_first_cache(reinterpret_cast<const Words4*>(x.at));
                    x.at += x.step;
                }
            }
        }
        if (begin == static_cast<int32_t>(stretch << plan().log2_tokens) && loads_early(call)) wait_for_kernel_before();
        if (!begins_stretch(begin)) {
            if (thread < kAllHaloCells) halo = x_cells[thread / kHaloCells * Shape::kCells + kRowLanes + thread % kHaloCells];
        } else if (begin > 0 && thread < kAllHaloCells && thread / kHaloCells < channels) {
            const int32_t d = first_channel + thread / kHaloCells;
            const char* from =
                plan().halos + (int64_t{(begin >> plan().log2_tokens) - 1} * plan().saved_dim + d) * (kHalo * kSize);
            if (!plan().halos) {
                from = static_cast<const char*>(params().x) + (d * params().x_dim_stride + begin) * kSize;
                from -= elements_apart<T>(from) * kSize + kHalo * kSize;
            }
            halo = *global_pointer<const Words4>(from + thread % kHaloCells * 16);
        }
        const int64_t tap_d = int64_t{first_channel} + (tap_channel < channels ? tap_channel : 0);
        if (own_tap >= missing && own_tap < kWidth)
            weight = load_parameter_bits(
                params().weight, tap_d * params().weight_dim_stride + (own_tap - missing) * params().weight_width_stride,
                params().weight_dtype);
        if (own_tap == 0 && params().bias)
            bias = load_parameter_bits(params().bias, tap_d * params().bias_stride, params().bias_dtype);

        // The sequences of the span.
        int32_t sequence;  // the first one to look at
        const auto find_first = [&](const auto& indices) {
            const int32_t first = indices.start(0), end = indices.start(params().sequences);
            // The last sequence that has begun before, if any has, is one of `span` from `base` on.
            int32_t base = 0, span = params().sequences;
            for (int step = 0;; step ^= 1) {
                const bool is_last = span <= kRowsThreads;
                if (!is_last) span = (span + kRowsThreads) / (kRowsThreads + 1);
                const int64_t b = base + (is_last ? int64_t{thread} : (thread + int64_t{1}) * span);
                const bool has_begun = b < params().sequences && indices.start(static_cast<int32_t>(b)) <= begin - kTokens;
                const int begun = __popcll(__ballot(has_begun));
                if (thread % kWaveSize == 0) begun_in_waves[step].counts[thread / kWaveSize] = begun;
                if (base == 0) {
                    static_assert(kSpan <= kRowsThreads, "a thread has one token of the span");
                    const auto begin_kind = [&](int i) {
                        const int32_t token = begin + i;
                        kinds[i] = token < first || token >= end ? kDeadToken : kRunToken;
                    };
                    if (thread < kSpan) begin_kind(thread);
                    if (thread < kHalo) begin_kind(thread - kHalo);
                    if (thread < kTokens)
                        ends[thread] = {begin < thread ? thread : 0, left + thread < kSpan ? left + thread : kSpan};
                    if (thread == 0) shared_span[0] = {0, 0, 0, 0, begin - kTokens < first || begin + kSpan > end, 0};
                }
                __syncthreads();
                int all = 0;
#pragma unroll
                for (int w = 0; w < kRowsThreads / kWaveSize; ++w) all += begun_in_waves[step].counts[w];
                base += all * (is_last ? 1 : span);
                if (is_last) break;
            }
            sequence = base > 0 ? base - 1 : 0;  // the one before may go on here
        };
        // Loads wait for each other where the kinds of indices are told apart between them.
        if (plan().plain_indices)
            find_first(PlainIndices{params()});
        else
            find_first(AnyIndices{params()});
        SpanOfRows& span = shared_span[0];
        char* const x_lines = reinterpret_cast<char*>(x_cells);
        char* const out_lines = reinterpret_cast<char*>(out_cells);
        float* const taps = reinterpret_cast<float*>(tap_cells);
        {
            const int own = thread_from_here_on(), own_row = own / kRowLanes, own_lane = own % kRowLanes;
            Words4* cell = x_cells + own_row * Shape::kCells + kHaloCells + own_lane;
#pragma unroll
            for (int k = 0; k < kMine; ++k) cell[k * kRowsOfBlock * Shape::kCells] = cells[k];
            if (may_reach_out()) {
                LaneOfX x = lane_of_x(own_row, own_lane);
#pragma unroll 1
                for (int channel = own_row; channel < channels && x.has_tokens; channel += kRowsOfBlock) {
#pragma unroll 1
                    for (int i = 0; i < kTokens && !is_inside(x.at); ++i) {
                        const int token = begin + x.first_token + i;
                        if (token >= 0 && token < params().tokens)
                            reinterpret_cast<Bits*>(cell)[i] = reinterpret_cast<const Bits*>(x.at)[i];
                    }
                    x.at += x.step;
                    cell += kRowsOfBlock * Shape::kCells;
                }
            }
            if (own < kAllHaloCells) x_cells[own / kHaloCells * Shape::kCells + own % kHaloCells] = halo;
            const int tap = own / kRowsChannels;
            float* const to = taps + own % kRowsChannels * (4 * kTapCells);
            if (tap >= missing && tap < kWidth) to[tap] = parameter_of(weight, params().weight_dtype);
            if (tap == 0) to[kWidth] = params().bias ? parameter_of(bias, params().bias_dtype) : 0.0f;
        }
        // Threads look up a sequence each, in order, so that few sequences are one wave's work. A row of lanes makes the start
        // of its own number, and of those a whole number of times the rows of a block behind it.
        const int again = thread_from_here_on();
        const auto look_up = [&](int32_t first) {
            if (again >= kRowsFound) return;
            PackedSequence s{};
            if (first + again < params().sequences) s = indices_of(call).sequence(first + again);
            mark_begin<T>(params(), s, first + again, again, begin, found, kinds, ends, span);
        };
#pragma unroll 1
        while (true) {
            look_up(sequence);
            if (again == 0) span.sequence = sequence;  // there are no registers for it while starts are made
            __syncthreads();
            const int count = span.count;
            const int own = thread_from_here_on();
            if (kPairs<T, kWidth> && plan().starts_in_pairs) {
                constexpr int kLanes = kRowsChannels / 2;
                if (span.has_begins && own / kLanes < count && own % kLanes * 2 < channels_here()) {
                    if constexpr (kPairs<T, kWidth>)
                        make_begins_of_pairs<T, kWidth>(call, found, count, begin, first_channel_here(), x_lines, out_lines,
                                                        taps);
                }
            } else if (span.has_begins && own / kRowsChannels < count && own % kRowsChannels < channels_here()) {
                make_row_begins<T, kWidth>(call, found, count, begin, first_channel_here(), x_lines, out_lines, taps);
            }
            const bool more = span.more;
            if (more || span.has_begins) __syncthreads();
            if (!more) break;
            if (again == 0) span.count = span.more = 0;
            sequence = span.sequence + kRowsFound;
            __syncthreads();
        }

        make_rows<T, kWidth>(call, begin, first_channel_here(), channels_here(), params().tokens - begin, span, ends, kinds,
                             x_cells, tap_cells, out_cells);
        if (begins_stretch(begin + kSpan) || params().tokens - begin <= kSpan - (kTokens - 1)) break;
        __syncthreads();
    }
}

template <typename T>
void launch_rows(const StagedCall& call, void* stream) {
    const int64_t columns = (int64_t{call.params.dim} + call.plan.channels_of_block - 1) / call.plan.channels_of_block;
    const dim3 grid = grid_of(columns, call.plan.stretches), block(kRowsThreads, 1, 1);
    const hipStream_t s = static_cast<hipStream_t>(stream);
    const auto launch = [&](auto width) {
        HIPCONV_LAUNCH(true, (causal_conv1d_varlen_rows<T, decltype(width)::value>), grid, block, 0, s, call);
    };
    if (call.params.width <= 2)
        launch(std::integral_constant<int, 2>{});
    else if (call.params.width <= 4)
        launch(std::integral_constant<int, 4>{});
    else if (call.params.width <= 6)
        launch(std::integral_constant<int, 6>{});
    else
        launch(std::integral_constant<int, 8>{});
    check_launch("causal_conv1d_varlen");
}

}  // namespace hipconv
