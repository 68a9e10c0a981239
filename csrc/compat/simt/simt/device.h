// device/host.h leaves this to simt, as kernels alone call it: lanes that wait for each other, and copies to LDS under way.
#pragma once

#include "device/arch.h"
#include "simt/block.h"

namespace hipconv {

inline void sync_wave() { (void)__ballot(1); }

inline void copy_later(Words4* to, const void* from, bool zeros) {
    simt::Block::current()->copy_later(to, from, zeros ? 0 : 16, zeros ? 16 : 0);
}
inline void copy_later(Words2* to, const void* from, bool zeros) {
    simt::Block::current()->copy_later(to, from, zeros ? 0 : 8, zeros ? 8 : 0);
}
inline void copy_later(uint32_t* to, const void* from, bool zeros) {
    simt::Block::current()->copy_later(to, from, zeros ? 0 : 4, zeros ? 4 : 0);
}
inline void copy_later_if(bool wanted, Words4* to, const void* from) {
    if (wanted) copy_later(to, from, false);
}
inline void copy_later(uint32_t* to, const void* from) { simt::Block::current()->copy_later(to, from, sizeof(*to), 0); }
inline void copy_later(Words2* to, const void* from) { simt::Block::current()->copy_later(to, from, sizeof(*to), 0); }
inline void close_copies() { simt::Block::current()->close_copy_group(); }
template <int kGroupsLeft>
inline void wait_for_copies() {
    simt::Block::current()->wait_for_copies(kGroupsLeft);
}

}  // namespace hipconv
