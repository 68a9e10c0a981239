// This divides by numbers that a launch knows.
#pragma once

#include "device/arch.h"

namespace hipconv {

// A divisor for dividends below 2^16.
struct Divisor {
    uint32_t value, inverse;

    HIPCONV_INLINE int divide(int n) const {
        return inverse == 0 ? n : static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(n)) * inverse >> 32);
    }
};
inline Divisor divisor(int64_t value) {
    const uint64_t inverse = ((uint64_t{1} << 32) + static_cast<uint64_t>(value) - 1) / static_cast<uint64_t>(value);
    return {static_cast<uint32_t>(value), value == 1 ? 0 : static_cast<uint32_t>(inverse)};
}

}  // namespace hipconv
