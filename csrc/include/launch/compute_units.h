// The compute units and the waves of the card at hand, for launches. This is for files that include <hip/hip_runtime.h>.
#pragma once

namespace hipconv {

inline int compute_units_here() {
    int device = 0, units = 0;
    (void)hipGetDevice(&device);
    (void)hipDeviceGetAttribute(&units, hipDeviceAttributeMultiprocessorCount, device);
    return units > 0 ? units : 1;
}

// The lanes of a wave of the card at hand, which a host pass of AMD's compiler does not know.
inline int wave_size_here() {
    int device = 0, lanes = 0;
    (void)hipGetDevice(&device);
    (void)hipDeviceGetAttribute(&lanes, hipDeviceAttributeWarpSize, device);
    return lanes > 0 ? lanes : 64;
}

}  // namespace hipconv
