// What not to keep in registers, where a compiler would.
#pragma once

#include "device/arch.h"

namespace hipconv {

// A kernel's first argument, read again from where the launch put it. AMD's compiler reads all arguments at the begin and then keeps
// them in scalar registers, of which a large struct has too many. Pointers in the struct count as any pointer after that: use
// GlobalPointer for what they point to.
template <typename Argument>
HIPCONV_INLINE const Argument& first_argument_again(const Argument& argument) {
#if defined(HIPCONV_AMD_DEVICE)
    (void)argument;
    const __attribute__((address_space(4))) void* place =
        (const __attribute__((address_space(4))) void*)__builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(place));
    return *(const Argument*)place;
#else
    return argument;
#endif
}

// What follows from `value` is worked out behind this, and not kept in registers from before a loop.
HIPCONV_INLINE void from_here_on(int& value) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    asm volatile("" : "+r"(value));
#else
    (void)value;
#endif
}

// The value is kept in a register from here on, on NVIDIA, and not worked out again wherever it is used.
HIPCONV_INLINE void in_a_register(int& value) { from_here_on(value); }
HIPCONV_INLINE void in_a_register(float& value) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    asm volatile("" : "+f"(value));
#else
    (void)value;
#endif
}

// At the begin of a loop that starts with a condition. AMD's compiler would copy the condition to the end of the loop, which then
// would have two entries.
HIPCONV_INLINE void enter_loop_here() {
#if defined(HIPCONV_AMD_DEVICE)
    asm volatile("; the loop begins");
#endif
}

#if defined(HIPCONV_AMD_DEVICE)
template <typename T>
using GlobalPointer = __attribute__((address_space(1))) T*;
#else
template <typename T>
using GlobalPointer = T*;
#endif

}  // namespace hipconv
