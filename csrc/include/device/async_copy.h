// Copies from memory to LDS past the registers, where kCopiesPastRegisters; under way while the thread goes on, finished in
// groups.
#pragma once

#include "device/vec.h"

namespace hipconv {

// 16 bytes, or 16 zero bytes, in which case `from` is not read but must be an address that could be.
HIPCONV_INLINE void copy_later(Words4* to, const void* from, bool zeros) {
#if defined(HIPCONV_HAS_MMA_SYNC)
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(zeros ? 0 : 16) : "memory");
#elif defined(HIPCONV_HOST)
    simt::Block::current()->copy_later(to, from, zeros ? 0 : 16, zeros ? 16 : 0);
#else
    (void)to, (void)from, (void)zeros;
#endif
}

// The copies asked for since the last call are a group; it may be empty.
HIPCONV_INLINE void close_copies() {
#if defined(HIPCONV_HAS_MMA_SYNC)
    asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(HIPCONV_HOST)
    simt::Block::current()->close_copy_group();
#endif
}

// This thread's copies are done, but for those of the last kGroupsLeft groups.
template <int kGroupsLeft>
HIPCONV_INLINE void wait_for_copies() {
#if defined(HIPCONV_HAS_MMA_SYNC)
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
#elif defined(HIPCONV_HOST)
    simt::Block::current()->wait_for_copies(kGroupsLeft);
#endif
}

}  // namespace hipconv
