// The rings of tiles in LDS between producers and consumers.
#pragma once

#include "params.h"

namespace hipconv {

// Where in a ring: producers wait for phase ^ 1 of its "free" barriers, consumers for phase of its "full" ones.
struct RingState {
    int stage = 0, phase = 0;

    HIPCONV_INLINE void advance(int stages) {
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

struct Ring {
    Words4* tiles;
    int chunks, stages;  // of a tile
    Barrier *full, *empty;

    HIPCONV_INLINE Words4* at(RingState place) const { return tiles + place.stage * chunks; }
};

}  // namespace hipconv
