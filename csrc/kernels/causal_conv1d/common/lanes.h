// A lane's neighbouring channels of a token, as they lie in channel-last memory and as pairs of floats. The parts of a lane are
// what it loads at once; they are an array, so that loads run ahead of their use.
#pragma once

#include "device/vec.h"

namespace hipconv {

// A lane may store its channels as part of vectors and one by one: what is written twice is the same.
struct LaneStores {
    bool composes;      // the same for all lanes of a launch: memory has aligned vectors, but they are not what the lanes own
    bool vector;        // the aligned vector that ends in this lane's channels, or, unless it composes, this lane's channels
    bool elements;      // this lane's channels one by one, at the ends of a row
    bool any_elements;  // of a lane of the wave
};

// These lie in one aligned vector.
template <typename T, int kLaneChannels>
struct WholeLane {
    static constexpr int kChannels = kLaneChannels, kParts = 1;
    static constexpr bool kShifts = false;
    using Part = Words<T, kChannels>;

    static HIPCONV_INLINE void load(const char* from, int, Part (&parts)[kParts]) {
        parts[0] = *reinterpret_cast<const Part*>(from);
    }
    static HIPCONV_INLINE Pair pair(const Part (&parts)[kParts], int, int j) { return pair_of<T>(parts[0], j); }
    static HIPCONV_INLINE void store(char* to, LaneStores, bool, Part words) { *reinterpret_cast<Part*>(to) = words; }
};

// These lie anywhere. The words of memory that hold them are loaded, and shifted by the bits that the first word has before the
// first channel: 16 or none. The last of these words holds one channel only then: that is loaded alone, so nothing behind it is
// read; and before the first channel, no more than the half of its word.
//
// Aligned vectors that begin in the lane before are put together from its words and this lane's: all lanes of a wave must store
// at the same time, whether each has something `wanted` or not, and neighbours in memory must be neighbours in the wave.
template <typename T, int kLaneChannels>
struct ShiftedLane {
    static constexpr int kChannels = kLaneChannels, kWords = kChannels * static_cast<int>(sizeof(T)) / 4;
    static constexpr bool kShifts = true, kHasHalves = sizeof(T) == 2;
    static constexpr int kParts = kWords + kHasHalves;
    // The addresses of vectors are multiples of this.
    static constexpr int kAlignment = kVectorsBeginAtWords ? 4 : 4 * kWords;
    using Part = uint32_t;
    using Vector = Words<T, kChannels>;

    // `from` is the address of the first word.
    static HIPCONV_INLINE void load(const char* from, int bits, Part (&parts)[kParts]) {
        const uint32_t* words = reinterpret_cast<const uint32_t*>(from);
#pragma unroll
        for (int k = 0; k < kWords; ++k) parts[k] = words[k];
        if constexpr (kHasHalves) {
            if (bits) parts[kWords] = *reinterpret_cast<const uint16_t*>(words + kWords);
        }
    }
    static HIPCONV_INLINE Pair pair(const Part (&parts)[kParts], int bits, int j) {
        if constexpr (kHasHalves)
            return unpack<T>(shifted_right(parts[j], parts[j + 1], static_cast<uint32_t>(bits)));
        else
            return make_pair(bit_cast<float>(parts[2 * j]), bit_cast<float>(parts[2 * j + 1]));
    }

    // The aligned vector that ends in this lane's channels.
    static HIPCONV_INLINE Vector composed(const char* to, Vector own) {
        const uint32_t address = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(to)), bits = (address & 2) * 8;
        Vector all = own;
        if constexpr (kAlignment == 4) {
            const uint32_t before = __shfl_up(word(own, kWords - 1), 1);
#pragma unroll
            for (int k = 0; k < kWords; ++k)
                set_word(all, k, shifted_left(k ? word(own, k ? k - 1 : 0) : before, word(own, k), bits));
        } else {
            static_assert(kAlignment == 4 || kWords == 2, "vectors of two words");
            const uint32_t newer = __shfl_up(word(own, 1), 1), older = kHasHalves ? __shfl_up(word(own, 0), 1) : 0;
            const bool by_word = address & 4;
            const uint32_t middle = by_word ? newer : word(own, 0), last = by_word ? word(own, 0) : word(own, 1);
            set_word(all, 0, kHasHalves ? shifted_left(by_word ? older : newer, middle, bits) : middle);
            set_word(all, 1, kHasHalves ? shifted_left(middle, last, bits) : last);
        }
        return all;
    }

    static HIPCONV_INLINE void store(char* to, LaneStores stores, bool wanted, Vector own) {
        if (stores.any_elements) {
            sync_wave();  // keeps this a branch, which most waves do not take
            if (stores.elements && wanted) store_part<T, kChannels>(reinterpret_cast<T*>(to), 0, kChannels, own);
        }
        if (kAlignment > static_cast<int>(sizeof(T)) && stores.composes) {
            own = composed(to, own);
            to -= reinterpret_cast<uintptr_t>(to) % kAlignment;
        }
        if (!stores.vector || !wanted) return;
        if constexpr (kVectorsBeginAtWords) {
#pragma unroll
            for (int k = 0; k < kWords; ++k) reinterpret_cast<uint32_t*>(to)[k] = word(own, k);
        } else {
            *reinterpret_cast<Vector*>(to) = own;
        }
    }
};

}  // namespace hipconv
