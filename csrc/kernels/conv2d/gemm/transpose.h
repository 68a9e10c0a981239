// Transposes vectors of pixels, one for each channel, into vectors of channels, one for each pixel.
#pragma once

#include "device/vec.h"

namespace hipconv {

// The eight 16-bit channels of one pixel; each vector holds a channel of several consecutive pixels.
template <typename Vector>
HIPCONV_INLINE Words4 channels_of_pixel(const Vector (&channels)[8], int pixel) {
    Words4 words{};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const uint32_t low = word(channels[2 * n], pixel / 2), high = word(channels[2 * n + 1], pixel / 2);
        set_word(words, n, pixel % 2 ? low >> 16 | (high & 0xffff0000u) : (low & 0xffffu) | high << 16);
    }
    return words;
}

// The same of four channels of f32.
template <typename Vector>
HIPCONV_INLINE Words4 channels_of_pixel(const Vector (&channels)[4], int pixel) {
    Words4 words{};
#pragma unroll
    for (int n = 0; n < 4; ++n) set_word(words, n, word(channels[n], pixel));
    return words;
}

}  // namespace hipconv
