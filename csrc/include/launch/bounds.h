// The smaller and the larger of two numbers: torch's loader for ROCm makes those of the standard library the device's own.
#pragma once

namespace hipconv {

template <typename T>
constexpr T smaller(T a, T b) {
    return b < a ? b : a;
}
template <typename T>
constexpr T larger(T a, T b) {
    return a < b ? b : a;
}

}  // namespace hipconv
