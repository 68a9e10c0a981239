// The matrix unit of an architecture, by its name: the compiler's host pass does not know the device.
#pragma once

#include <cstdlib>
#include <string>

#include "device/arch.h"

namespace hipconv {

inline bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

inline MatrixUnit unit_of(const std::string& arch) {
    if (starts_with(arch, "wave")) return kMatrixUnit;  // simt: the unit that it was built for
    if (starts_with(arch, "sm_")) return MatrixUnit::mma_sync;
    for (const char* start : {"gfx90a", "gfx94", "gfx950"})
        if (starts_with(arch, start)) return MatrixUnit::mfma;
    if (starts_with(arch, "gfx11")) return MatrixUnit::wmma11;
    if (starts_with(arch, "gfx12") && !starts_with(arch, "gfx125")) return MatrixUnit::wmma12;
    return MatrixUnit::fma;
}

inline int nvidia_number(const std::string& arch) { return starts_with(arch, "sm_") ? std::atoi(arch.c_str() + 3) : 0; }

// Tells whether an architecture's matrix cores multiply TF32: sm_80 and later, and gfx942.
inline bool has_tf32(const std::string& arch) {
    if (starts_with(arch, "wave")) return kMatrixUnit == MatrixUnit::mma_sync || kMatrixUnit == MatrixUnit::mfma;
    return nvidia_number(arch) >= 80 || starts_with(arch, "gfx94");
}

}  // namespace hipconv
