// A hint on what not to keep in registers.
#pragma once

#include "arch.h"

namespace hipconv {

// What was read from memory before this is read again after it. In a loop, values that wait in LDS for a rare passage then leave their
// registers to it, instead of being spilled there.
HIPCONV_INLINE void forget_loaded_values() { asm volatile("" ::: "memory"); }

}  // namespace hipconv
