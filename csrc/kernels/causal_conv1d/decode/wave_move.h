// The decode kernel "wave" moves rows between memory and LDS by this. The file is for files that include <hip/hip_runtime.h>.
#pragma once

#include "causal_conv1d/decode.h"
#include "device/vec.h"

namespace hipconv {

constexpr int kFewestMovers = 8;  // lanes that move a row: one for each word before and behind its vectors

// A stretch of whole words of memory. In LDS it begins as far behind a multiple of 16 bytes as in memory; `kToLds` says which
// way it moves. Each of the lanes that move it has some of its vectors of 16 bytes, and one of the words before or behind them.
template <bool kToLds>
HIPCONV_INLINE void move_stretch(Address address, int bytes, char* lds, int member, int members) {
    char* const memory = address.as<char>();
    promise_global(memory);
    int head = static_cast<int>(-static_cast<uint32_t>(address.bits) & 15u);
    if (head > bytes) head = bytes;
    const int end = (bytes - head) & ~15;  // of the vectors, from the first one on
    const int edge = member < 4 ? 4 * member : head + end + 4 * member - 16;
    const bool has_edge = edge < (member < 4 ? head : bytes) && member < kFewestMovers;
    char *const vectors = memory + head, *const vectors_lds = lds + head;
    if constexpr (kToLds && kCopiesPastRegisters) {
        if (has_edge) copy_later(reinterpret_cast<uint32_t*>(lds + edge), memory + edge);
#pragma unroll 2
        for (int at = 16 * member; at < end; at += 16 * members)
            copy_later(reinterpret_cast<Words4*>(vectors_lds + at), vectors + at, false);
    } else {
        constexpr int kAtOnce = kToLds ? 4 : 2;
        const char *const from = kToLds ? vectors : vectors_lds, *const from_edge = kToLds ? memory : lds;
        char *const to = kToLds ? vectors_lds : vectors, *const to_edge = kToLds ? lds : memory;
        uint32_t word{};
        if (has_edge) word = *reinterpret_cast<const uint32_t*>(from_edge + edge);
#pragma unroll 1
        for (int begin = 16 * member; begin < end; begin += 16 * kAtOnce * members) {
            Words4 some[kAtOnce];
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k)
                if (begin + 16 * k * members < end) some[k] = *reinterpret_cast<const Words4*>(from + begin + 16 * k * members);
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k)
                if (begin + 16 * k * members < end) *reinterpret_cast<Words4*>(to + begin + 16 * k * members) = some[k];
        }
        if (has_edge) *reinterpret_cast<uint32_t*>(to_edge + edge) = word;
    }
}

}  // namespace hipconv
