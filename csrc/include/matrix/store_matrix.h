// Stores of matrices to LDS by a wave of 32 lanes (stmatrix of sm_90).
#pragma once

#include <cstring>

#include "matrix/mma.h"
#include "matrix/tma.h"

namespace hipconv {

// Writes sums of 16 pixels by 16 filters, in 16 bits, as rows of pixels: to chunks `chunk` and `chunk` + 1 of rows `row` to
// `row` + 15, swizzled. Of word n a lane has two filters, row + n / 2 * 8 + lane % 4 * 2 and the next, of pixel
// n % 2 * 8 + lane / 4.
HIPCONV_INLINE void store_transposed(Words4* rows, int row, int chunk, const uint32_t (&words)[4], int lane) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    const Words4* const to = &rows[swizzled_chunk(row + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2)];
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(lds_address(to)), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
#elif defined(HIPCONV_HOST)
    for (int n = 0; n < 4; ++n)
        for (int i = 0; i < 2; ++i) {
            Words4* const to = &rows[swizzled_chunk(row + n / 2 * 8 + lane % 4 * 2 + i, chunk + n % 2)];
            const uint16_t bits = static_cast<uint16_t>(words[n] >> i * 16);
            std::memcpy(reinterpret_cast<char*>(to) + lane / 4 * 2, &bits, 2);
        }
#else
    (void)rows, (void)row, (void)chunk, (void)words, (void)lane;
#endif
}

}  // namespace hipconv
