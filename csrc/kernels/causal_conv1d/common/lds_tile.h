// A tile of tokens and channels in LDS, as floats: channels in pairs, tokens in groups of 16. It is the same whatever the
// layout of the memory that the tokens come from or go to; the functions below move it.
//
// A line is a pair of channels. A group takes 9 vectors of 16 bytes: two tokens of the pair each, and one that stays empty, so
// that threads which read a group each, side by side, read from different banks.
#pragma once

#include "causal_conv1d/states.h"
#include "device/vec.h"

namespace hipconv {

constexpr int kGroupTokens = 16;
constexpr int kGroupFloats = 36;

// A tensor's memory is moved in vectors of 16 bytes or one element at a time, by lanes that lie along tokens or channels.
enum class TileMoves : int32_t { token_vectors, channel_vectors, tokens, channels };

inline TileMoves tile_moves(const Sequences& s, int element_bytes) {
    const int elements = 16 / element_bytes;
    const auto magnitude = [](int64_t stride) { return stride < 0 ? -stride : stride; };
    const bool along_tokens = magnitude(s.seqlen_stride) <= magnitude(s.dim_stride);
    const int64_t inner = along_tokens ? s.seqlen_stride : s.dim_stride, outer = along_tokens ? s.dim_stride : s.seqlen_stride;
    const bool in_vectors =
        inner == 1 && outer % elements == 0 && s.batch_stride % elements == 0 && reinterpret_cast<uintptr_t>(s.data) % 16 == 0;
    if (in_vectors) return along_tokens ? TileMoves::token_vectors : TileMoves::channel_vectors;
    return along_tokens ? TileMoves::tokens : TileMoves::channels;
}

// A block's share of a tensor. Its threads are as many as the pairs times the groups of tokens that it makes.
struct TilePart {
    Sequences rows;  // `data` is that of the block's sequence
    TileMoves moves;
    int32_t first_channel, channels;  // the first and all of the tensor
    int32_t first_token, tokens;      // of the tile, a multiple of 16, and the end of the sequence
    int32_t pair_bits, group_bits;    // the block has 1 << pair_bits pairs, and 1 << group_bits threads for each
};

HIPCONV_INLINE int group_of_token(int token) { return token / kGroupTokens; }
// The first float of a token in a line.
HIPCONV_INLINE int float_of_token(int token) { return 2 * token + 4 * group_of_token(token); }

// A thread's share in moving `count` tokens: a channel, a pair of channels, or a vector of them, and every `step`-th token (or
// vector of tokens) from `begin` to `end`, counted from the tile's first.
struct TileLane {
    int channel, channels_left;  // the first channel, counted from the block's, and those that exist from it on
    int begin, end, step;

    HIPCONV_INLINE TileLane(const TilePart& part, int count, int vector) {
        const bool along_tokens = part.moves == TileMoves::token_vectors || part.moves == TileMoves::tokens;
        const bool in_vectors = part.moves == TileMoves::token_vectors || part.moves == TileMoves::channel_vectors;
        // The lanes are side by side along the inner axis. A pair has 1 << group_bits lanes, a channel half of them.
        const int vector_bits = vector == 8 ? 3 : 2;
        const int bits = along_tokens ? part.group_bits - !in_vectors : part.pair_bits + 1 - (in_vectors ? vector_bits : 0);
        const int thread = static_cast<int>(threadIdx.x), each = in_vectors ? vector : 1;
        const int inner = (thread & ((1 << bits) - 1)) * each, outer = thread >> bits;
        channel = along_tokens ? outer << in_vectors : inner;
        channels_left = part.channels - part.first_channel - channel;
        begin = (part.first_token < 0 ? -part.first_token : 0) + (along_tokens ? inner : outer);
        end = part.tokens - part.first_token < count ? part.tokens - part.first_token : count;
        step = along_tokens ? each << bits : static_cast<int>(blockDim.x) >> bits;
    }
};

// A loop whose loads go out some at a time before anything waits for them.
template <int kAtOnce, typename V, typename Load, typename Put>
HIPCONV_INLINE void load_and_put(int begin, int end, int step, Load load, Put put) {
    for (int t = begin; t < end; t += kAtOnce * step) {
        V some[kAtOnce];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) some[u] = t + u * step < end ? load(t + u * step) : V{};
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u)
            if (t + u * step < end) put(t + u * step, some[u]);
    }
}

// Brings `count` tokens (a multiple of 16) from part.first_token on, but for those outside the sequence, which are left
// alone. With a shift of 1, the first one has no place, and the next one takes its: so the windows of outputs begin where
// groups do.
template <typename T, int kShift>
HIPCONV_INLINE void bring_tile(const TilePart& part, int count, float* lines, int pitch) {
    constexpr int kVector = 16 / static_cast<int>(sizeof(T)), kAtOnce = 4;
    const int64_t channel_step = part.rows.dim_stride, token_step = part.rows.seqlen_stride;
    const TileLane lane(part, count, kVector);
    if (lane.channels_left <= 0) return;
    const T* const first = global_pointer<const T>(part.rows.data) + (part.first_channel + lane.channel) * channel_step +
                           part.first_token * token_step;
    float* const line = lines + lane.channel / 2 * pitch + lane.channel % 2;
    if (part.moves == TileMoves::token_vectors) {
        const bool has_both = lane.channels_left > 1;
        const auto load = [&](const T* row, int t) {
            return t + kVector <= lane.end ? *reinterpret_cast<const Words<T, kVector>*>(row + t)
                                           : load_part<T, kVector>(row, t, lane.end);
        };
        for (int t = lane.begin; t < lane.end; t += 2 * lane.step) {
            const bool goes_on = t + lane.step < lane.end;
            Words<T, kVector> a[2] = {}, b[2] = {};
            a[0] = load(first, t);
            if (has_both) b[0] = load(first + channel_step, t);
            if (goes_on) a[1] = load(first, t + lane.step);
            if (goes_on && has_both) b[1] = load(first + channel_step, t + lane.step);
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                if (u == 1 && !goes_on) continue;
#pragma unroll
                for (int i = 0; i < kVector; ++i) {
                    const int place = t + u * lane.step + i - kShift;
                    if (place < 0) continue;
                    const Pair of_a = pair_of<T>(a[u], i / 2), of_b = pair_of<T>(b[u], i / 2);
                    *reinterpret_cast<Pair*>(line + float_of_token(place)) =
                        i % 2 ? make_pair(high(of_a), high(of_b)) : make_pair(low(of_a), low(of_b));
                }
            }
        }
    } else if (part.moves == TileMoves::channel_vectors) {
        using Vector = Words<T, kVector>;
        load_and_put<kAtOnce, Vector>(
            lane.begin, lane.end, lane.step,
            [&](int t) {
                const T* const from = first + t * token_step;
                return kVector <= lane.channels_left ? *reinterpret_cast<const Vector*>(from)
                                                     : load_part<T, kVector>(from, 0, lane.channels_left);
            },
            [&](int t, const Vector& words) {
                if (t < kShift) return;
#pragma unroll
                for (int j = 0; j < kVector / 2; ++j)
                    *reinterpret_cast<Pair*>(line + j * pitch + float_of_token(t - kShift)) = pair_of<T>(words, j);
            });
    } else {
        load_and_put<kAtOnce, T>(
            lane.begin, lane.end, lane.step, [&](int t) { return first[t * token_step]; },
            [&](int t, T value) {
                if (t >= kShift) line[float_of_token(t - kShift)] = to_float(value);
            });
    }
}

// Takes `count` tokens (a multiple of 16) away to part.first_token and on, those outside the sequence excepted.
template <typename T>
HIPCONV_INLINE void take_tile_away(const TilePart& part, int count, const float* lines, int pitch) {
    constexpr int kVector = 16 / static_cast<int>(sizeof(T));
    const int64_t channel_step = part.rows.dim_stride, token_step = part.rows.seqlen_stride;
    const TileLane lane(part, count, kVector);
    if (lane.channels_left <= 0) return;
    T* const first =
        global_pointer<T>(part.rows.data) + (part.first_channel + lane.channel) * channel_step + part.first_token * token_step;
    const float* const line = lines + lane.channel / 2 * pitch + lane.channel % 2;
    if (part.moves == TileMoves::token_vectors) {
        const bool has_both = lane.channels_left > 1;
        for (int t = lane.begin; t < lane.end; t += lane.step) {
            Words<T, kVector> both[2] = {};
#pragma unroll
            for (int i = 0; i < kVector / 2; ++i) {
                const Words4 tokens = *reinterpret_cast<const Words4*>(line + float_of_token(t + 2 * i));
                const Pair a = pair_of<float>(tokens, 0), b = pair_of<float>(tokens, 1);
                set_pair<T>(both[0], i, make_pair(low(a), low(b)));
                set_pair<T>(both[1], i, make_pair(high(a), high(b)));
            }
            if (t + kVector <= lane.end) {
                *reinterpret_cast<Words<T, kVector>*>(first + t) = both[0];
                if (has_both) *reinterpret_cast<Words<T, kVector>*>(first + channel_step + t) = both[1];
            } else {
                store_part<T, kVector>(first, t, lane.end, both[0]);
                if (has_both) store_part<T, kVector>(first + channel_step, t, lane.end, both[1]);
            }
        }
    } else if (part.moves == TileMoves::channel_vectors) {
        for (int t = lane.begin; t < lane.end; t += lane.step) {
            Words<T, kVector> words{};
#pragma unroll
            for (int j = 0; j < kVector / 2; ++j)
                set_pair<T>(words, j, *reinterpret_cast<const Pair*>(line + j * pitch + float_of_token(t)));
            if (kVector <= lane.channels_left)
                *reinterpret_cast<Words<T, kVector>*>(first + t * token_step) = words;
            else
                store_part<T, kVector>(first + t * token_step, 0, lane.channels_left, words);
        }
    } else {
        for (int t = lane.begin; t < lane.end; t += lane.step) first[t * token_step] = from_float<T>(line[float_of_token(t)]);
    }
}

}  // namespace hipconv
