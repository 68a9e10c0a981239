// The rings of tiles in LDS between producers and consumers.
#pragma once

#include "params.h"

namespace hipconv {

// Where in a ring: producers wait for parity ^ 1 of its "free" barriers, consumers for parity of its "full" ones.
struct RingPlace {
    int stage = 0, parity = 0;

    HIPCONV_INLINE void advance(int stages) {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct Ring {
    Words4* tiles;
    int chunks, stages;  // of a tile
    Barrier *full, *free;

    HIPCONV_INLINE Words4* at(RingPlace place) const { return tiles + place.stage * chunks; }
};

}  // namespace hipconv
