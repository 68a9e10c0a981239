// This is what the threads of the kernel "lines" share, and how they load a vector.
#pragma once

#include "causal_conv1d/states_formula.h"
#include "lines.h"

namespace hipconv {

template <typename T>
constexpr int kVectorOf = 16 / static_cast<int>(sizeof(T));
template <typename T>
constexpr int kWordElements = 4 / static_cast<int>(sizeof(T));
template <typename T>
using BitsOf = typename WordsOf<sizeof(T)>::type;

// This is what the threads of a block share.
template <typename T>
struct LineShare {
    const CausalConv1dInputs& in;
    const LinesPlan& plan;
    const LineTile& tile;
    int first_channel;
    char* lines;

    HIPCONV_INLINE char* at(int line, int n) const {
        return lines + line * plan.bytes + (kLineBefore + n) * static_cast<int>(sizeof(T));
    }
    HIPCONV_INLINE int channels_left(int c) const { return in.dim - first_channel - c; }
    // Where the tile's first row has the block's channel c, and the step from there to a place.
    HIPCONV_INLINE T* row(const Sequences& s, const LineTensor& how, int c) const {
        return reinterpret_cast<T*>(global_pointer<char>(s.data) + tile.first_row * how.row_step +
                                    int64_t{how.channel_step} * (first_channel + c));
    }
    // The place behind one, and the step to it.
    HIPCONV_INLINE int64_t go_on(const LineTensor& how, LinePlace* at) const {
        if (tile.within) {
            ++at->t;
            return how.token_step;
        }
        const bool wraps = at->t + 1 == plan.pitch - plan.head;
        at->row += wraps ? 1 : 0;
        at->t = wraps ? -plan.head : at->t + 1;
        at->is_token = at->t >= 0 && at->t < in.seqlen && tile.first_row + at->row < in.batch;
        return wraps ? how.wrap_step : int64_t{how.token_step};
    }
    HIPCONV_INLINE T* token(T* row, const LineTensor& how, LinePlace at) const {
        return reinterpret_cast<T*>(reinterpret_cast<char*>(row) + static_cast<uint32_t>(at.row) * how.row_step +
                                    int64_t{how.token_step} * at.t);
    }
};

// 16 bytes from the address of an element, as they were loaded: the words that hold them, and the bits before the first one.
// Nothing beyond these words is read, nor a word of which nothing is needed.
template <typename T>
struct LoadedVector {
    static constexpr bool kShifts = sizeof(T) == 2 && !kUnalignedVectors;
    static constexpr int kVector = kVectorOf<T>;
    Words4 words;
    uint32_t last, bits;

    HIPCONV_INLINE void load(const T* from, bool aligned) {
        if constexpr (kUnalignedVectors) {
            words = load_unaligned<Words4>(reinterpret_cast<const char*>(from));
        } else if (aligned) {
            words = *reinterpret_cast<const Words4*>(from);
        } else {
            const uint32_t bytes = kShifts ? static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) & 2 : 0;
            const uint32_t* const first = reinterpret_cast<const uint32_t*>(reinterpret_cast<const char*>(from) - bytes);
#pragma unroll
            for (int k = 0; k < 4; ++k) set_word(words, k, first[k]);
            bits = 8 * bytes;
            if (kShifts && bytes != 0) last = *reinterpret_cast<const uint16_t*>(first + 4);
        }
    }
    HIPCONV_INLINE void load_part_of(const T* from, int count) { words = load_part<T, kVector>(from, 0, count); }

    HIPCONV_INLINE Words4 vector() const {
        if constexpr (!kShifts) return words;
        Words4 all{};
#pragma unroll
        for (int k = 0; k < 4; ++k)
            set_word(all, k, shifted_right(word(words, k), k < 3 ? word(words, k < 3 ? k + 1 : 3) : last, bits));
        return all;
    }
};

}  // namespace hipconv
