// Integer division: the host's, rounded up, and the kernels', by numbers that their launch knows.
#pragma once

#include <cstdint>

#include "device/arch.h"

namespace hipconv {

constexpr int64_t ceil_of(int64_t value, int64_t by) { return (value + by - 1) / by; }
constexpr int64_t round_up(int64_t value, int64_t to) { return ceil_of(value, to) * to; }

// This divides a number below 2^31.
struct Divisor {
    uint32_t multiplier, shift;
};

HIPCONV_INLINE uint32_t divide(uint32_t number, Divisor by) {
    return static_cast<uint32_t>(static_cast<uint64_t>(number) * by.multiplier >> by.shift);
}

inline Divisor divisor_of(uint32_t by) {
    uint32_t log2 = 0;
    while ((uint64_t{1} << log2) < by) ++log2;
    return {static_cast<uint32_t>(((uint64_t{1} << (31 + log2)) + by - 1) / by), 31 + log2};
}

// This divides a number below 2^16, by the upper word of a product alone, and keeps the divisor.
struct SmallDivisor {
    uint32_t value, inverse;
};

HIPCONV_INLINE int divide(int number, SmallDivisor by) {
    return by.inverse == 0 ? number : static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(number)) * by.inverse >> 32);
}

inline SmallDivisor small_divisor_of(int64_t by) {
    const int64_t inverse = ceil_of(int64_t{1} << 32, by);
    return {static_cast<uint32_t>(by), by == 1 ? 0 : static_cast<uint32_t>(inverse)};
}

}  // namespace hipconv
