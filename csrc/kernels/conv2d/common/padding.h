// This says where a padded image finds a row or column that lies outside it.
#pragma once

#include "conv2d/params.h"

namespace hipconv {

// The row or column of the image that index `at` of the padded image stands for, or -1 for a zero. The padding is at most what
// torch allows: size - 1 for reflect, size for circular.
template <typename Index>
HIPCONV_INLINE Index padded_index_of(Index at, int32_t size, PaddingMode mode) {
    if (at >= 0 && at < size) return at;
    switch (mode) {
        case PaddingMode::reflect:
            return at < 0 ? -at : 2 * (static_cast<Index>(size) - 1) - at;
        case PaddingMode::replicate:
            return at < 0 ? 0 : size - 1;
        case PaddingMode::circular:
            return at < 0 ? at + size : at - size;
        default:
            return -1;
    }
}

HIPCONV_INLINE int64_t padded_index(int64_t at, int32_t size, PaddingMode mode) { return padded_index_of(at, size, mode); }

}  // namespace hipconv
