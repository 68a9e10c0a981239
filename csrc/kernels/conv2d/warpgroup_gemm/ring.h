// The rings of stages in LDS between producers and consumers. Each stage has two barriers: "full" tells consumers that it is
// filled, "empty" tells the producer that it may be filled again.
#pragma once

#include "params.h"

namespace hipconv {

// Which stage of a ring a thread is at, and the parity of the barriers' phase: producers wait for `phase ^ 1` of "empty",
// consumers for `phase` of "full".
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
    int chunks, stages;  // of a stage; of the ring
    Barrier *full, *empty;

    HIPCONV_INLINE Words4* at(RingState place) const { return tiles + place.stage * chunks; }
};

}  // namespace hipconv
