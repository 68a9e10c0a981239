// These move tiles of (channel, token) elements between any strides in memory and rows of floats along channels. Whichever axis
// is the denser one in memory is read and written in whole vectors, and a tile that has the other order is transposed in
// registers.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "simd.h"

namespace hipconv {
namespace simd {

// ---- elements of 16 bits that only move, as the low halves of lanes --------------------------------------------------------

struct Bits {
    uint16_t bits;
};

HIPCONV_SIMD Floats load(const Bits* from) {
#if HIPCONV_VECTOR_BYTES == 64
    return bit_cast<Floats>(_mm512_maskz_cvtepu16_epi32(kAll, read<__m256i>(from)));
#else
    return bit_cast<Floats>(__builtin_convertvector(read<Halves>(from), Words));
#endif
}

HIPCONV_SIMD void store(Bits* to, Floats v) {
#if HIPCONV_VECTOR_BYTES == 64
    write(to, _mm512_maskz_cvtepi32_epi16(kAll, bit_cast<__m512i>(v)));
#else
    write(to, __builtin_convertvector(bit_cast<Words>(v), Halves));
#endif
}

// ---- vectors of elements that are a stride apart ---------------------------------------------------------------------------

constexpr int64_t kFarthest = int64_t{1} << 26;  // a gather's offsets have 32 bits

#if HIPCONV_VECTOR_BYTES >= 32
// Loads the 32-bit words base[index[lane]], or zero in the lanes from `count` on.
HIPCONV_SIMD Words gather(const void* base, Words index, int64_t count) {
#if HIPCONV_VECTOR_BYTES == 64
    const auto lanes = static_cast<__mmask16>(count >= kLanes ? 0xffff : (1 << count) - 1);
    return bit_cast<Words>(_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), lanes, bit_cast<__m512i>(index), base, 4));
#else
    const auto lanes = bit_cast<__m256i>(lane_numbers() < static_cast<uint32_t>(count));
    const auto* words = static_cast<const int*>(base);
    return bit_cast<Words>(_mm256_mask_i32gather_epi32(_mm256_setzero_si256(), words, bit_cast<__m256i>(index), lanes, 4));
#endif
}

// Loads elements of 16 bits: the aligned words that hold them, of which the other half may be a neighbour's.
HIPCONV_SIMD Words gather(const uint16_t* from, int64_t stride, int64_t count) {
    const auto address = reinterpret_cast<uintptr_t>(from);
    const Words index = lane_numbers() * static_cast<uint32_t>(stride) + static_cast<uint32_t>(address / 2 % 2);
    const auto word = bit_cast<Words>(bit_cast<Integers>(index) >> 1);
    return gather(reinterpret_cast<const void*>(address & ~uintptr_t{3}), word, count) >> (index % 2 * 16) & 0xffffu;
}

HIPCONV_SIMD Floats gather(const float* from, int64_t stride, int64_t count) {
    return bit_cast<Floats>(gather(from, lane_numbers() * static_cast<uint32_t>(stride), count));
}
HIPCONV_SIMD Floats gather(const Bits* from, int64_t stride, int64_t count) {
    return bit_cast<Floats>(gather(&from->bits, stride, count));
}
HIPCONV_SIMD Floats gather(const bf16* from, int64_t stride, int64_t count) {
    return bit_cast<Floats>(gather(&from->bits, stride, count) << 16);
}
HIPCONV_SIMD Floats gather(const f16* from, int64_t stride, int64_t count) {
    const Words halves = gather(&from->bits, stride, count);
    f16 lanes[kLanes];
    write(lanes, __builtin_convertvector(halves, Halves));
    return load(lanes);
}
#endif

// Elements from `count` on are zero.
template <typename T>
HIPCONV_SIMD Floats load_strided(const T* from, int64_t stride, int64_t count) {
    if (stride == 1) return load_some(from, count);
#if HIPCONV_VECTOR_BYTES >= 32
    if (stride <= kFarthest && stride >= -kFarthest) return gather(from, stride, count);
#endif
    T lanes[kLanes] = {};
    for (int64_t i = 0; i < std::min<int64_t>(count, kLanes); ++i) lanes[i] = from[i * stride];
    return load(lanes);
}

template <typename T>
HIPCONV_SIMD void store_strided(T* to, int64_t stride, Floats v, int64_t count) {
    if (stride == 1) return store_some(to, v, count);
    T lanes[kLanes];
    store(lanes, v);
    if (count >= kLanes)
        for (int i = 0; i < kLanes; ++i) to[i * stride] = lanes[i];
    else
        for (int i = 0; i < count; ++i) to[i * stride] = lanes[i];
}

// ---- transposition ---------------------------------------------------------------------------------------------------------

// This exchanges, of each pair of rows kStep apart, the lanes of the first that have bit kStep with those of the second that
// lack it.
template <int kStep>
HIPCONV_SIMD void exchange(Floats (&rows)[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
        if (i & kStep) continue;
        const Floats a = rows[i], b = rows[i + kStep];
#if HIPCONV_VECTOR_BYTES == 64
        const Words odd = lane_numbers() & static_cast<uint32_t>(kStep);  // of two vectors' 32 lanes, b's are the second half
        const auto upper = bit_cast<__m512i>(odd != 0 ? lane_numbers() + 16 : lane_numbers() + static_cast<uint32_t>(kStep));
        const auto lower = bit_cast<__m512i>(odd != 0 ? lane_numbers() + static_cast<uint32_t>(16 - kStep) : lane_numbers());
        rows[i] = bit_cast<Floats>(_mm512_permutex2var_ps(bit_cast<__m512>(a), lower, bit_cast<__m512>(b)));
        rows[i + kStep] = bit_cast<Floats>(_mm512_permutex2var_ps(bit_cast<__m512>(a), upper, bit_cast<__m512>(b)));
#elif HIPCONV_VECTOR_BYTES == 32
        const auto x = bit_cast<__m256>(a), y = bit_cast<__m256>(b);
        if constexpr (kStep == 4) {
            rows[i] = bit_cast<Floats>(_mm256_permute2f128_ps(x, y, 0x20));
            rows[i + kStep] = bit_cast<Floats>(_mm256_permute2f128_ps(x, y, 0x31));
        } else if constexpr (kStep == 2) {
            rows[i] = bit_cast<Floats>(_mm256_shuffle_ps(x, y, 0x44));
            rows[i + kStep] = bit_cast<Floats>(_mm256_shuffle_ps(x, y, 0xee));
        } else {
            rows[i] = bit_cast<Floats>(_mm256_blend_ps(x, _mm256_moveldup_ps(y), 0xaa));
            rows[i + kStep] = bit_cast<Floats>(_mm256_blend_ps(_mm256_movehdup_ps(x), y, 0xaa));
        }
#else
        for (int lane = 0; lane < kLanes; ++lane) {
            rows[i][lane] = lane & kStep ? b[lane - kStep] : a[lane];
            rows[i + kStep][lane] = lane & kStep ? b[lane] : a[lane + kStep];
        }
#endif
    }
}

HIPCONV_SIMD void transpose(Floats (&rows)[kLanes]) {
#if HIPCONV_VECTOR_BYTES == 64
    exchange<8>(rows);
#endif
#if HIPCONV_VECTOR_BYTES >= 32
    exchange<4>(rows);
#endif
    exchange<2>(rows);
    exchange<1>(rows);
}

// ---- tiles -----------------------------------------------------------------------------------------------------------------

// Vectors lie along tokens where these are the nearer neighbours in memory, and are more than a few (a gather of each costs
// less).
inline bool tokens_are_nearer(int64_t channel_stride, int64_t token_stride, int tokens) {
    return tokens > 8 && std::abs(channel_stride) != 1 && std::abs(token_stride) < std::abs(channel_stride);
}

// Three tokens of a channel side by side, channel after channel: a state of width 4.
inline bool in_threes(int64_t channel_stride, int64_t token_stride, int tokens) {
    return tokens == 3 && channel_stride == 3 && token_stride == 1;
}

template <typename T>
using ElementBits = std::conditional_t<sizeof(T) == 4, float, uint16_t>;

// Row t of the tile, at to + t * pitch, gets token t of all channels, and zeros up to a whole vector.
template <typename T>
void load_tile(float* to, int64_t pitch, const T* from, int64_t channel_stride, int64_t token_stride, int channels,
               int tokens) {
    int begin = 0;
    if (in_threes(channel_stride, token_stride, tokens)) {
        for (; begin + kLanes <= channels; begin += kLanes) {
            Row<ElementBits<T>> rows[3];
            unzip3(reinterpret_cast<const ElementBits<T>*>(from + begin * 3), rows[0], rows[1], rows[2]);
            for (int t = 0; t < 3; ++t) store(to + t * pitch + begin, load(reinterpret_cast<const T*>(&rows[t])));
        }
    }
    if (!tokens_are_nearer(channel_stride, token_stride, tokens)) {
        for (int t = 0; t < tokens; ++t)
            for (int c = begin; c < channels; c += kLanes)
                store(to + t * pitch + c,
                      load_strided(from + t * token_stride + c * channel_stride, channel_stride, channels - c));
        return;
    }
    for (int c = 0; c < channels; c += kLanes) {
        for (int t = 0; t < tokens; t += kLanes) {
            const T* corner = from + t * token_stride + c * channel_stride;
            Floats block[kLanes];
            if (token_stride == 1 && channels - c >= kLanes && tokens - t >= kLanes) {
                for (int i = 0; i < kLanes; ++i) block[i] = load(corner + i * channel_stride);
                transpose(block);
                for (int i = 0; i < kLanes; ++i) store(to + (t + i) * pitch + c, block[i]);
            } else {
                for (int i = 0; i < kLanes; ++i)
                    block[i] =
                        c + i < channels ? load_strided(corner + i * channel_stride, token_stride, tokens - t) : Floats{};
                transpose(block);
                for (int i = 0; i < kLanes && t + i < tokens; ++i) store(to + (t + i) * pitch + c, block[i]);
            }
        }
    }
}

template <typename T>
void store_tile(T* to, int64_t channel_stride, int64_t token_stride, const float* from, int64_t pitch, int channels,
                int tokens) {
    int begin = 0;
    if (in_threes(channel_stride, token_stride, tokens)) {
        for (; begin + kLanes <= channels; begin += kLanes) {
            Row<ElementBits<T>> rows[3];
            for (int t = 0; t < 3; ++t) store(reinterpret_cast<T*>(&rows[t]), load(from + t * pitch + begin));
            zip3(reinterpret_cast<ElementBits<T>*>(to + begin * 3), rows[0], rows[1], rows[2]);
        }
    }
    if (!tokens_are_nearer(channel_stride, token_stride, tokens)) {
        for (int t = 0; t < tokens; ++t)
            for (int c = begin; c < channels; c += kLanes)
                store_strided(to + t * token_stride + c * channel_stride, channel_stride, load(from + t * pitch + c),
                              channels - c);
        return;
    }
    for (int c = 0; c < channels; c += kLanes) {
        for (int t = 0; t < tokens; t += kLanes) {
            T* corner = to + t * token_stride + c * channel_stride;
            Floats block[kLanes];
            for (int i = 0; i < kLanes; ++i) block[i] = t + i < tokens ? load(from + (t + i) * pitch + c) : Floats{};
            transpose(block);
            if (token_stride == 1 && channels - c >= kLanes && tokens - t >= kLanes)
                for (int i = 0; i < kLanes; ++i) store(corner + i * channel_stride, block[i]);
            else
                for (int i = 0; i < kLanes && c + i < channels; ++i)
                    store_strided(corner + i * channel_stride, token_stride, block[i], tokens - t);
        }
    }
}

// Asks for the lines of a tile that `store_tile` will write: a transposed tile has them far apart, where no prefetcher of
// the hardware follows.
template <typename T>
void ask_tile(const T* to, int64_t channel_stride, int64_t token_stride, int channels, int tokens) {
    constexpr int kLine = 64 / sizeof(T);
    if (token_stride != 1 || !tokens_are_nearer(channel_stride, token_stride, tokens)) return;
    for (int c = 0; c < channels; ++c)
        for (int t = 0; t < tokens; t += kLine) __builtin_prefetch(to + c * channel_stride + t, 1);
}

}  // namespace simd
}  // namespace hipconv
