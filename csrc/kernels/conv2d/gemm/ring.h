// The rings of stages in LDS between producers and consumers. Each stage has two barriers: "full" tells consumers that it is
// filled, "empty" tells the producer that it may be filled again.
#pragma once

#include "matrix/tma.h"

namespace hipconv {

// A thread's position in a ring: the stage, and the parity of its barriers' phase. Producers wait for `phase ^ 1` of "empty",
// consumers for `phase` of "full".
struct RingState {
    int stage = 0, phase = 0;

    HIPCONV_INLINE void advance(int stages) {
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
    HIPCONV_INLINE void skip(int count, int stages) {
        for (stage += count; stage >= stages; stage -= stages) phase ^= 1;
    }
};

struct Ring {
    Words4* tiles;
    int chunks, stages;  // of a stage; of the ring
    Barrier *full, *empty;

    HIPCONV_INLINE Words4* at(RingState place) const { return tiles + place.stage * chunks; }

    // For the producer: waits until a stage is empty, and returns the barrier at which so many bytes are to arrive.
    HIPCONV_INLINE Barrier* begin_filling(RingState place, int bytes) const {
        wait_for_phase(&empty[place.stage], place.phase ^ 1);
        arrive_expect_bytes(&full[place.stage], bytes);
        return &full[place.stage];
    }
};

}  // namespace hipconv
