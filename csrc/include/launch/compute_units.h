// The compute units of the card at hand, for launches. This is for files that include <hip/hip_runtime.h>.
#pragma once

namespace hipconv {

inline int compute_units_here() {
    int device = 0, units = 0;
    (void)hipGetDevice(&device);
    (void)hipDeviceGetAttribute(&units, hipDeviceAttributeMultiprocessorCount, device);
    return units > 0 ? units : 1;
}

}  // namespace hipconv
