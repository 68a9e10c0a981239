// The decode kernels whose lanes have a word of x at a time, two channels of 16 bits or one of float32, share these parts. The
// file is for files that include <hip/hip_runtime.h>.
#pragma once

#include "../common/vector_math.h"
#include "causal_conv1d/decode_row.h"
#include "device/elements.h"

namespace hipconv {

// An integer of the indices, asked for and not yet looked at: `load_index` would wait for its sign.
struct LateIndex {
    uint32_t low, high;

    static HIPCONV_INLINE LateIndex load(const Indices& from, int64_t row) {
        const int64_t at = row * from.row_stride;
        const uint32_t* const words = from.data.as<const uint32_t>() + (from.wide ? 2 * at : at);
        LateIndex late{words[0], 0};
        if (from.wide) late.high = words[1];
        return late;
    }
    HIPCONV_INLINE int64_t value(const Indices& from) const {
        const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(low) >> 31);
        return static_cast<int64_t>(static_cast<uint64_t>(from.wide ? high : sign) << 32 | low);
    }
};

// This finds what `indices_of_row` does, but for the rest: all are asked for before one of them is looked at.
HIPCONV_INLINE RowIndices indices_at_once(const CausalConv1dUpdateParams& p, int64_t b) {
    const bool by_starts(p.query_start_loc.data), drafts(p.num_accepted_tokens.data),
        plain = p.write_slots.data && !p.write_columns.data;
    LateIndex first{}, end{}, accepted{}, slot{};
    if (plain) slot = LateIndex::load(p.write_slots, b);
    if (by_starts) {
        first = LateIndex::load(p.query_start_loc, b);
        end = LateIndex::load(p.query_start_loc, b + 1);
    }
    if (drafts) accepted = LateIndex::load(p.num_accepted_tokens, b);
    RowIndices row{};
    row.write_slot = b;
    if (plain)
        row.write_slot = slot.value(p.write_slots);
    else if (p.write_slots.data)
        row.write_slot = load_slot(p.write_slots, p.write_columns, b);
    if (__builtin_expect(p.fork, 0)) row.read_slot = load_slot(p.read_slots, p.read_columns, b);
    if (by_starts) {
        row.first_token = first.value(p.query_start_loc);
        row.end_token = end.value(p.query_start_loc);
    }
    if (drafts) row.position = accepted.value(p.num_accepted_tokens);
    return row;
}

// Elements as bits: 16-bit ones take no more instructions so.
template <typename E>
HIPCONV_INLINE uint32_t bits_at(const E* at) {
    return bit_cast<typename WordsOf<sizeof(E)>::type>(*at);
}
template <typename E>
HIPCONV_INLINE float float_of_bits(uint32_t bits) {
    return std::is_same_v<E, bf16> ? bit_cast<float>(bits << 16) : to_float(from_bits<E>(bits));
}

// The channels of a word of x, and a column of their state: as elements if these are (kApart) apart, else as one word.
template <typename T, bool kApart>
struct WordOfChannels {
    static constexpr int kOwn = 4 / static_cast<int>(sizeof(T));
    using Values = std::conditional_t<kOwn == 2, Pair, float>;
    struct Column {
        uint32_t bits[kApart ? kOwn : 1];
    };

    static HIPCONV_INLINE Column column_of(uint32_t x) {
        Column column;
        if constexpr (kApart && kOwn == 2) {
            column.bits[0] = x & 0xffffu;
            column.bits[1] = x >> 16;
        } else {
            column.bits[0] = x;
        }
        return column;
    }
    static HIPCONV_INLINE Column load(const T* from, int apart) {
        Column column;
        if constexpr (kApart) {
#pragma unroll
            for (int k = 0; k < kOwn; ++k) column.bits[k] = bits_at(from + k * apart);
        } else {
            column.bits[0] = *reinterpret_cast<const uint32_t*>(from);
        }
        return column;
    }
    static HIPCONV_INLINE void store(T* to, int apart, Column column) {
        if constexpr (kApart) {
#pragma unroll
            for (int k = 0; k < kOwn; ++k) to[k * apart] = from_bits<T>(column.bits[k]);
        } else {
            *reinterpret_cast<uint32_t*>(to) = column.bits[0];
        }
    }
    static HIPCONV_INLINE Values values(Column column) {
        if constexpr (kOwn == 1)
            return bit_cast<float>(column.bits[0]);
        else if constexpr (kApart)
            return make_pair(float_of_bits<T>(column.bits[0]), float_of_bits<T>(column.bits[1]));
        else
            return pair_of<T>(column.bits[0], 0);
    }
    static HIPCONV_INLINE Values add_product(Values a, Values b, Values sum) {
        if constexpr (kOwn == 2)
            return multiply_add(a, b, sum);
        else
            return a * b + sum;
    }
    static HIPCONV_INLINE uint32_t result(bool use_silu, Values sum) {
        uint32_t word{};
        if constexpr (kOwn == 2)
            set_pair<T>(word, 0, silu_where(use_silu, sum));
        else
            word = bit_cast<uint32_t>(use_silu ? silu(sum) : sum);
        return word;
    }
};

// The columns of a word's channels, where a slot has four or eight of a channel, as vectors of four: lanes side by side would
// use few banks for one column after the other.
template <typename T, int kColumns, typename Column>
HIPCONV_INLINE void load_fours(const T* from, int columns, int first, bool drafts, Column* ring) {
    using Four = Words<T, 4>;
    constexpr int kOwn = 4 / static_cast<int>(sizeof(T)), kWords = 8 / kOwn;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
        const Four* const channel = reinterpret_cast<const Four*>(from + k * columns);
        Four both[2] = {channel[0], Four{}};
        if (columns > 4) both[1] = channel[1];
        uint32_t words[kWords + 1];
#pragma unroll
        for (int w = 0; w < kWords; ++w) words[w] = word(both[w / (kWords / 2)], w % (kWords / 2));
        words[kWords] = 0;
        if (drafts) {  // the window begins at any column
#pragma unroll
            for (int step = 4; step > 0; step /= 2) {
                const bool shifts = first & step;
#pragma unroll
                for (int w = 0; w < kWords; ++w) {
                    if (step >= kOwn)
                        words[w] = shifts && w + step / kOwn < kWords ? words[w + step / kOwn] : words[w];
                    else
                        words[w] = shifted_right(words[w], words[w + 1], shifts ? 16 : 0);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < kColumns; ++i)
            ring[i].bits[k] = kOwn == 1 ? words[i] : words[i / kOwn] >> (i % kOwn * 16) & 0xffffu;
    }
}
template <typename T, int kColumns, typename Column>
HIPCONV_INLINE void store_fours(T* to, int columns, const Column* ring) {
    using Four = Words<T, 4>;
    constexpr int kOwn = 4 / static_cast<int>(sizeof(T));
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
        Four* const channel = reinterpret_cast<Four*>(to + k * columns);
#pragma unroll
        for (int begin = 0; begin < kColumns; begin += 4) {
            Four rest{};
            if (begin + 4 > kColumns) rest = channel[begin / 4];
            T four[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                four[i] = from_bits<T>(begin + i < kColumns ? ring[begin + i].bits[k] : element<T, 4>(&rest, i));
            channel[begin / 4] = join<T>(four);
        }
    }
}

}  // namespace hipconv
