// The layout adapter of the channel-first backward kernel: it brings a lane's tokens, and those before them, into registers,
// from rows that lie at any address.
//
// A lane's own tokens are whole 16-byte vectors of dx. Where a row of an input lies at the same place of its 16-byte vectors,
// its tokens are loaded in such vectors; no load leaves the vectors that hold a part of the row. Elsewhere, and where such a
// vector reaches past the tensor's first or last byte, they are loaded in words of four bytes that hold a part of the row, and
// shifted where a word begins at an odd token. Of a word that reaches past the tensor's first or last byte only the token that
// is inside is loaded: no other byte is read. Tokens that are not neighbours are loaded and stored one by one: the lanes of a
// wave are neighbours along channels then, too.
#pragma once

#include <type_traits>

#include "device/vec.h"

namespace hipconv {

constexpr int kBwdVectorThreads = 128;

// The tokens of a lane: at least the width - 1 that its gradients reach back, and whole 16-byte vectors.
HIPCONV_INLINE constexpr int bwd_vector_tokens(int element_bytes, int width) {
    return element_bytes == 4 && width <= 5 ? 4 : 8;
}

// Tells how the tokens of a lane lie in registers, in words: those before its own, then its own.
template <typename T, int kWidth>
struct BwdVectorLayout {
    static constexpr int kSize = static_cast<int>(sizeof(T));
    static constexpr int kEach = 4 / kSize;  // tokens of a word
    static constexpr int kPast = kWidth - 1;
    static constexpr int kTokens = bwd_vector_tokens(kSize, kWidth);
    static constexpr int kOwn = kTokens / kEach;  // words
    static constexpr int kBefore = (kPast + kEach - 1) / kEach + ((kPast + kEach - 1) / kEach % 4 == 3 ? 1 : 0);
    static constexpr int kOldest = kBefore * kEach - kPast;  // the first token that a tap sees
    static constexpr int kWindow = kBefore * kEach + kTokens;
};

// The bytes from a tensor's first to its last element, whatever the order in which its strides go through them.
struct BwdMemory {
    const char *begin, *end;
    HIPCONV_INLINE bool has(const char* first, const char* past) const { return first >= begin && past <= end; }
};

template <int kCount, int kSize>
HIPCONV_INLINE void load_words(const char* from, uint32_t (&words)[kSize], int to) {
    using Vector = typename WordsOf<kCount * 4>::type;
    const Vector vector = *global_pointer<const Vector>(from);
#pragma unroll
    for (int k = 0; k < kCount; ++k) words[to + k] = word(vector, k);
}

// Loads the vectors of tokens that lie at `from`, a multiple of 16, and kBefore words before them.
template <int kBefore, int kOwn, int kSize>
HIPCONV_INLINE void load_whole_vectors(const char* from, uint32_t (&words)[kSize]) {
    constexpr int kNear = kBefore < 4 ? kBefore : 4, kFar = kBefore - kNear;
    load_words<4>(from, words, kBefore);
    if constexpr (kOwn > 4) load_words<4>(from + 16, words, kBefore + 4);
    if constexpr (kNear > 0) load_words<kNear>(from - kNear * 4, words, kFar);
    if constexpr (kFar > 0) load_words<kFar>(from - kBefore * 4, words, 0);
}

// Loads the tokens of a row from t on, which lie at `from`, a multiple of 16, and kBefore words before them. Vectors that have
// no token of the row are not loaded: those before it are zeros, of those behind it nothing is known. With kWhole, all tokens
// from t on are in the row; otherwise at least one of them is.
template <typename T, int kBefore, int kOwn, bool kWhole, int kSize>
HIPCONV_INLINE void load_vectors(const char* from, int32_t t, int32_t seqlen, uint32_t (&words)[kSize]) {
    constexpr int kEach = 4 / static_cast<int>(sizeof(T));
    constexpr int kNear = kBefore < 4 ? kBefore : 4, kFar = kBefore - kNear;
#pragma unroll
    for (int k = 0; k < kBefore; ++k) words[k] = 0;
    load_words<4>(from, words, kBefore);
    if constexpr (kOwn > 4) {
        if (kWhole || t + 4 * kEach < seqlen) load_words<4>(from + 16, words, kBefore + 4);
    }
    if constexpr (kNear > 0) {
        if (t > 0) load_words<kNear>(from - kNear * 4, words, kFar);
    }
    if constexpr (kFar > 0) {
        if (t > 4 * kEach) load_words<kFar>(from - kBefore * 4, words, 0);
    }
}

// The same from any address, in words, from word kFirst on: those before the row hold anything. Returns by how many bits the
// tokens lie higher in these than in words of their own: `words` has one more.
template <typename T, int kBefore, int kOwn, int kFirst, typename Memory, int kSize>
HIPCONV_INLINE uint32_t load_single_words(const char* from, int32_t t, int32_t seqlen, Memory memory_of_tensor,
                                          uint32_t (&words)[kSize]) {
    constexpr int kEach = 4 / static_cast<int>(sizeof(T)), kWords = kBefore + kOwn;
    const uint32_t early = sizeof(T) == 2 ? static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) & 2 : 0;
    const int32_t first = t - kBefore * kEach - static_cast<int32_t>(early / 2);
    from -= kBefore * 4 + early;
    if (first + kFirst * kEach >= 0 && t + (kOwn + 1) * kEach <= seqlen) {
#pragma unroll
        for (int k = kFirst; k < kWords; ++k) load_words<1>(from + k * 4, words, k);
        if constexpr (sizeof(T) == 2) load_words<1>(from + kWords * 4, words, kWords);
    } else {
        // The first tokens of words that may be loaded: `spare` before the row and those of the row, or all but its last.
        uint32_t spare = kEach - 1, count = static_cast<uint32_t>(seqlen) + spare;
        if constexpr (sizeof(T) == 2) {
            uint32_t size = static_cast<uint32_t>(seqlen);
            from_here_on(size);  // scalar registers have no room for its like
            const char* const row = from - int64_t{first} * 2;
            if (row - 2 < memory_of_tensor().begin) spare = 0;
            if (row + (int64_t{size} + 1) * 2 > memory_of_tensor().end) --count;
            count -= 1 - spare;
            from_here_on(spare);
            from_here_on(count);
        }
#pragma unroll
        for (int k = kFirst; k <= kWords; ++k) {
            const uint32_t token = static_cast<uint32_t>(first + k * kEach) + spare;
            if (token < count && (k < kWords || early)) load_words<1>(from + k * 4, words, k);
        }
        if constexpr (sizeof(T) == 2) {
            if (count <= static_cast<uint32_t>(seqlen)) {
                uint32_t last = static_cast<uint32_t>(seqlen) - 1;
                from_here_on(last);
                const char* const row = from - int64_t{first} * 2;
                const uint32_t high = uint32_t{*global_pointer<const uint16_t>(row)} << 16;
                const uint32_t low = *global_pointer<const uint16_t>(row + int64_t{last} * 2);
#pragma unroll
                for (int k = kFirst; k <= kWords; ++k) {
                    if (first + 2 * k == -1) words[k] = high;
                    if (static_cast<uint32_t>(first + 2 * k) == last) words[k] = low;
                }
            }
        }
    }
    return early * 8;
}

// The same of tokens that lie `step` bytes apart, from word kFirst on. Those that are not in the row are zeros.
template <typename T, int kBefore, int kOwn, int kFirst, int kSize>
HIPCONV_INLINE void load_single_tokens(const char* from, int64_t step, int32_t t, int32_t seqlen, uint32_t (&words)[kSize]) {
    constexpr int kEach = 4 / static_cast<int>(sizeof(T)), kCount = (kBefore + kOwn) * kEach;
    constexpr int kOldest = kFirst * kEach;
    using Bits = typename WordsOf<sizeof(T)>::type;
    const int32_t first = t - kBefore * kEach;
    const char* at = from - (kBefore * kEach - kOldest) * step;
    uint32_t tokens[kCount];
    keep_order();
    if (first + kOldest >= 0 && first + kCount <= seqlen) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
            tokens[k] = 0;
            if (k < kOldest) continue;
            tokens[k] = *global_pointer<const Bits>(at);
            at += step;
            keep_order();
        }
    } else {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
            tokens[k] = 0;
            if (k < kOldest) continue;
            if (first + k >= 0 && first + k < seqlen) tokens[k] = *global_pointer<const Bits>(at);
            at += step;
            keep_order();
        }
    }
#pragma unroll
    for (int k = 0; k < kCount / kEach; ++k)
        words[k] = kEach == 1 ? tokens[k] : tokens[k * kEach] | tokens[k * kEach + 1] << 16;
    keep_order();
}

// ---- x through LDS ----------------------------------------------------------------------------------------------------------
//
// Where channels are neighbours in x, and tokens in the other tensors, the threads of a block that have the same lane bring x
// of its tokens to LDS, which lie there as in memory: 64 bytes of channels for each token, from those on that any channel's
// first tap may see. A lane's part of LDS is 16 bytes longer, so that lanes of a wave meet in no bank.
constexpr int kBwdAcrossBytes = 64;

template <typename T, int kWidth>
struct BwdAcross {
    using Layout = BwdVectorLayout<T, kWidth>;
    static constexpr int kChannels = kBwdAcrossBytes / Layout::kSize, kLanes = kBwdVectorThreads / kChannels;
    static constexpr int kBefore = Layout::kPast + 16 / Layout::kSize - 1;  // tokens, the most that dx has before a boundary
    static constexpr int kRows = kBefore + Layout::kTokens;
    static constexpr int kLaneBytes = kRows * kBwdAcrossBytes + 16;
    static constexpr int kStage = kLanes * kLaneBytes;
};

// Copies pieces of x to a lane's part of LDS, for a thread that is number `i` of the lane's: rows of LDS are the tokens from
// `first` on, of which `skipped` are not needed, and `from` is token 0. Of a token, `bytes` are channels of the tensor.
template <int kPiece, int kRows, int kThreads>
HIPCONV_INLINE void copy_across(char* to, const char* from, int64_t step, int i, int skipped, int32_t first, int32_t seqlen,
                                int bytes) {
    constexpr int kPieces = kBwdAcrossBytes / kPiece, kEach = kThreads / kPieces;
    using Piece = std::conditional_t<kPiece == 16, Words4, uint32_t>;
    const int place = i % kPieces * kPiece, row = skipped + i / kPieces;
    const int32_t past = first + kRows < seqlen ? first + kRows : seqlen;
    if (place >= bytes || past <= 0) return;
    const uint32_t token = static_cast<uint32_t>(first + row);  // those before the row are no less than `past` so
    char* const piece = to + row * kBwdAcrossBytes + place;
    const char* memory = from + static_cast<int32_t>(token) * step + place;
#pragma unroll
    for (int r = 0; r < kRows; r += kEach, memory += kEach * step) {
        if (token + static_cast<uint32_t>(r) >= static_cast<uint32_t>(past)) continue;
        Piece* const at = reinterpret_cast<Piece*>(piece + r * kBwdAcrossBytes);
        if constexpr (kPiece == 16)
            copy_later(at, memory, false);
        else
            copy_later(at, memory);
    }
}

// Stores tokens that lie `step` bytes apart, as far as they are in the row.
template <typename T, int kTokens>
HIPCONV_INLINE void store_single_tokens(char* to, int64_t step, int32_t t, int32_t seqlen, const float (&values)[kTokens]) {
    keep_order();
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
        if (t + k >= 0 && t + k < seqlen) *global_pointer<T>(to) = from_float<T>(values[k]);
        to += step;
        keep_order();  // AMD's compiler has no registers for the addresses of all
    }
}

// Moves tokens to words of their own.
template <int kSize>
HIPCONV_INLINE void shift_tokens(uint32_t shift, uint32_t (&words)[kSize]) {
#pragma unroll
    for (int k = 0; k + 1 < kSize; ++k) words[k] = static_cast<uint32_t>((uint64_t{words[k + 1]} << 32 | words[k]) >> shift);
}

// Converts the first tokens of words to floats.
template <typename T, int kSize, int kCount>
HIPCONV_INLINE void unpack_tokens(const uint32_t (&words)[kSize], float (&values)[kCount]) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) values[k] = bit_cast<float>(words[k]);
    } else {
#pragma unroll
        for (int k = 0; k < kCount / 2; ++k) {
            const Pair both = unpack<T>(words[k]);
            values[2 * k] = low(both);
            values[2 * k + 1] = high(both);
        }
    }
}

// Stores a vector's elements of 16 bits from `first` to `past`, which are its first or its last ones: by a store of eight
// bytes, of four, and of two, as far as there is something for it, rather than one by one.
HIPCONV_INLINE void store_end_of_vector(char* to, int first, int past, Words4 vector) {
    const bool is_last = first > 0;
    const int count = past - first;
    const auto at_place = [&](uint32_t i) {
        const uint32_t low = i & 1 ? word(vector, 1) : word(vector, 0), high = i & 1 ? word(vector, 3) : word(vector, 2);
        return i & 2 ? high : low;
    };
    if (count & 4) {
        Words2 half{};
        set_word(half, 0, is_last ? word(vector, 2) : word(vector, 0));
        set_word(half, 1, is_last ? word(vector, 3) : word(vector, 1));
        *global_pointer<Words2>(to + (is_last ? 8 : 0)) = half;
    }
    if (count & 2) {
        const uint32_t i = (count & 4 ? 2 : 0) ^ (is_last ? 3 : 0);
        *global_pointer<uint32_t>(to + i * 4) = at_place(i);
    }
    if (count & 1) {
        const uint32_t i = static_cast<uint32_t>(is_last ? first : past - 1);
        *global_pointer<uint16_t>(to + i * 2) = static_cast<uint16_t>(at_place(i / 2) >> i % 2 * 16);
    }
}

// Stores the tokens of a row from t on, at `to`, as far as they are in the row: 16-byte vectors where these are aligned and
// whole, else words or elements. With kWhole, they are, if any of them is in the row.
template <typename T, bool kWhole, int kTokens>
HIPCONV_INLINE void store_tokens(char* to, int32_t t, int32_t seqlen, bool aligned, const float (&values)[kTokens]) {
    constexpr int kEach = 4 / static_cast<int>(sizeof(T)), kWords = kTokens / kEach;
    uint32_t words[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
        if constexpr (sizeof(T) == 4)
            words[k] = bit_cast<uint32_t>(values[k]);
        else
            words[k] = pack<T>(make_pair(values[2 * k], values[2 * k + 1]));
    }
    const bool whole = t >= 0 && t + kTokens <= seqlen;
    const auto for_vectors = [&](auto store) {
#pragma unroll
        for (int k = 0; k < kWords; k += 4) {
            Words4 vector{};
#pragma unroll
            for (int i = 0; i < 4; ++i) set_word(vector, i, words[k + i]);
            store(k * 4, vector);
        }
    };
    if (kWhole ? t < seqlen : aligned && whole) {
        for_vectors([&](int offset, Words4 vector) { *global_pointer<Words4>(to + offset) = vector; });
    } else if constexpr (!kWhole) {
        if (whole && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
#pragma unroll
            for (int k = 0; k < kWords; ++k) *global_pointer<uint32_t>(to + k * 4) = words[k];
            return;
        }
        if constexpr (sizeof(T) == 2) {
            if (aligned && (t >= 0 || t + kTokens <= seqlen)) {  // the vector does not have both ends of the row
                for_vectors([&](int, Words4 vector) {
                    const int first = t < 0 ? -t : 0, past = seqlen - t < kTokens ? seqlen - t : kTokens;
                    if (past > first) store_end_of_vector(to, first, past, vector);
                });
                return;
            }
        }
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
            const int32_t token = t + k * kEach;
            if constexpr (sizeof(T) == 4) {
                if (token >= 0 && token < seqlen) *global_pointer<uint32_t>(to + k * 4) = words[k];
            } else {
                if (token >= 0 && token < seqlen) *global_pointer<uint16_t>(to + k * 4) = static_cast<uint16_t>(words[k]);
                if (token + 1 >= 0 && token + 1 < seqlen)
                    *global_pointer<uint16_t>(to + k * 4 + 2) = static_cast<uint16_t>(words[k] >> 16);
            }
        }
    }
}

}  // namespace hipconv
