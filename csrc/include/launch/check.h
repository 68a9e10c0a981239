// Launch errors become exceptions: they are never swallowed and never abort. This is for files that include
// <hip/hip_runtime.h>.
#pragma once

#include "device/error.h"

namespace hipconv {

// Call right after a launch, with the name of the op for the message.
inline void check_launch(const char* op) {
    const hipError_t error = hipGetLastError();
    if (error == hipSuccess) return;
    throw Error({"hipconv: ", op, ": the kernel could not be launched: ", hipGetErrorName(error), " (",
                 hipGetErrorString(error), "). `python -m hipconv env` shows the devices and the architectures built for."});
}

}  // namespace hipconv
