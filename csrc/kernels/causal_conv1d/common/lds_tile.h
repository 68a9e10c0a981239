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

// How a tensor's memory is moved: in vectors of 16 bytes or one element at a time, by lanes that lie along tokens or channels.
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

// This is a loop whose loads go out some at a time before anything waits for them.
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

// This brings `count` tokens (a multiple of 16) from part.first_token on, but for those outside the sequence, which are left
// alone. With a shift of 1, the first one has no place, and the next one takes its: so the windows of outputs begin where
// groups do.
template <typename T, int kShift>
HIPCONV_INLINE void bring_tile(const TilePart& part, int count, float* lines, int pitch) {
    constexpr int kVector = 16 / static_cast<int>(sizeof(T)), kAtOnce = 4;
    const T* const data = global_pointer<const T>(part.rows.data);
    const int64_t channel_step = part.rows.dim_stride, token_step = part.rows.seqlen_stride;
    const int thread = static_cast<int>(threadIdx.x), left = part.channels - part.first_channel;
    const int end = part.tokens - part.first_token < count ? part.tokens - part.first_token : count;
    const int begin = part.first_token < 0 ? -part.first_token : 0;
    if (part.moves == TileMoves::token_vectors) {
        const int pair = thread >> part.group_bits, lane = thread & ((1 << part.group_bits) - 1);
        if (2 * pair >= left) return;
        const T* const first = data + (part.first_channel + 2 * pair) * channel_step + part.first_token;
        const bool has_both = 2 * pair + 1 < left;
        float* const line = lines + pair * pitch;
        const int step = kVector << part.group_bits;
        const auto load = [&](const T* row, int t) {
            return t + kVector <= end ? *reinterpret_cast<const Words<T, kVector>*>(row + t)
                                      : load_part<T, kVector>(row, t, end);
        };
        for (int t = begin + lane * kVector; t < end; t += 2 * step) {
            const bool goes_on = t + step < end;
            Words<T, kVector> a[2] = {}, b[2] = {};
            a[0] = load(first, t);
            if (has_both) b[0] = load(first + channel_step, t);
            if (goes_on) a[1] = load(first, t + step);
            if (goes_on && has_both) b[1] = load(first + channel_step, t + step);
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                if (u == 1 && !goes_on) continue;
#pragma unroll
                for (int i = 0; i < kVector; ++i) {
                    const int place = t + u * step + i - kShift;
                    if (place < 0) continue;
                    const Pair of_a = pair_of<T>(a[u], i / 2), of_b = pair_of<T>(b[u], i / 2);
                    *reinterpret_cast<Pair*>(line + float_of_token(place)) =
                        i % 2 ? make_pair(high(of_a), high(of_b)) : make_pair(low(of_a), low(of_b));
                }
            }
        }
    } else if (part.moves == TileMoves::channel_vectors) {
        const int bits = part.pair_bits + 1 - (kVector == 8 ? 3 : 2);  // of the vectors of a token
        const int channel = (thread & ((1 << bits) - 1)) * kVector;
        if (channel >= left) return;
        const T* const first = data + part.first_channel + channel + part.first_token * token_step;
        using Vector = Words<T, kVector>;
        load_and_put<kAtOnce, Vector>(
            begin + (thread >> bits), end, static_cast<int>(blockDim.x) >> bits,
            [&](int t) {
                const T* const from = first + t * token_step;
                return channel + kVector <= left ? *reinterpret_cast<const Vector*>(from)
                                                 : load_part<T, kVector>(from, 0, left - channel);
            },
            [&](int t, const Vector& words) {
                if (t < kShift) return;
#pragma unroll
                for (int j = 0; j < kVector / 2; ++j)
                    *reinterpret_cast<Pair*>(lines + (channel / 2 + j) * pitch + float_of_token(t - kShift)) =
                        pair_of<T>(words, j);
            });
    } else {
        const bool along_tokens = part.moves == TileMoves::tokens;
        const int bits = along_tokens ? part.group_bits - 1 : part.pair_bits + 1;  // of the lanes along the inner axis
        const int lane = thread & ((1 << bits) - 1), other = thread >> bits;
        const int channel = along_tokens ? other : lane, step = along_tokens ? 1 << bits : static_cast<int>(blockDim.x) >> bits;
        if (channel >= left) return;
        const T* const first = data + (part.first_channel + channel) * channel_step + part.first_token * token_step;
        float* const line = lines + channel / 2 * pitch + channel % 2;
        load_and_put<kAtOnce, T>(
            begin + (along_tokens ? lane : other), end, step, [&](int t) { return first[t * token_step]; },
            [&](int t, T value) {
                if (t >= kShift) line[float_of_token(t - kShift)] = to_float(value);
            });
    }
}

// This takes `count` tokens (a multiple of 16) away to part.first_token (also one) and on, those outside the sequence excepted.
template <typename T>
HIPCONV_INLINE void take_tile_away(const TilePart& part, int count, const float* lines, int pitch) {
    constexpr int kVector = 16 / static_cast<int>(sizeof(T));
    T* const data = global_pointer<T>(part.rows.data);
    const int64_t channel_step = part.rows.dim_stride, token_step = part.rows.seqlen_stride;
    const int thread = static_cast<int>(threadIdx.x), left = part.channels - part.first_channel;
    const int end = part.tokens - part.first_token < count ? part.tokens - part.first_token : count;
    const int begin = part.first_token < 0 ? -part.first_token : 0;
    if (part.moves == TileMoves::token_vectors) {
        const int pair = thread >> part.group_bits, lane = thread & ((1 << part.group_bits) - 1);
        if (2 * pair >= left) return;
        T* const first = data + (part.first_channel + 2 * pair) * channel_step + part.first_token;
        const bool has_both = 2 * pair + 1 < left;
        const float* const line = lines + pair * pitch;
        for (int t = begin + lane * kVector; t < end; t += kVector << part.group_bits) {
            Words<T, kVector> both[2] = {};
#pragma unroll
            for (int i = 0; i < kVector / 2; ++i) {
                const Words4 tokens = *reinterpret_cast<const Words4*>(line + float_of_token(t + 2 * i));
                const Pair a = pair_of<float>(tokens, 0), b = pair_of<float>(tokens, 1);
                set_pair<T>(both[0], i, make_pair(low(a), low(b)));
                set_pair<T>(both[1], i, make_pair(high(a), high(b)));
            }
            if (t + kVector <= end) {
                *reinterpret_cast<Words<T, kVector>*>(first + t) = both[0];
                if (has_both) *reinterpret_cast<Words<T, kVector>*>(first + channel_step + t) = both[1];
            } else {
                store_part<T, kVector>(first, t, end, both[0]);
                if (has_both) store_part<T, kVector>(first + channel_step, t, end, both[1]);
            }
        }
    } else if (part.moves == TileMoves::channel_vectors) {
        const int bits = part.pair_bits + 1 - (kVector == 8 ? 3 : 2);  // of the vectors of a token
        const int channel = (thread & ((1 << bits) - 1)) * kVector;
        if (channel >= left) return;
        T* const first = data + part.first_channel + channel + part.first_token * token_step;
        for (int t = begin + (thread >> bits); t < end; t += static_cast<int>(blockDim.x) >> bits) {
            Words<T, kVector> words{};
#pragma unroll
            for (int j = 0; j < kVector / 2; ++j)
                set_pair<T>(words, j, *reinterpret_cast<const Pair*>(lines + (channel / 2 + j) * pitch + float_of_token(t)));
            if (channel + kVector <= left)
                *reinterpret_cast<Words<T, kVector>*>(first + t * token_step) = words;
            else
                store_part<T, kVector>(first + t * token_step, 0, left - channel, words);
        }
    } else {
        const bool along_tokens = part.moves == TileMoves::tokens;
        const int bits = along_tokens ? part.group_bits - 1 : part.pair_bits + 1;
        const int lane = thread & ((1 << bits) - 1), other = thread >> bits;
        const int channel = along_tokens ? other : lane, step = along_tokens ? 1 << bits : static_cast<int>(blockDim.x) >> bits;
        if (channel >= left) return;
        T* const first = data + (part.first_channel + channel) * channel_step + part.first_token * token_step;
        const float* const line = lines + channel / 2 * pitch + channel % 2;
        for (int t = begin + (along_tokens ? lane : other); t < end; t += step)
            first[t * token_step] = from_float<T>(line[float_of_token(t)]);
    }
}

}  // namespace hipconv
