// This is what the kernel "lines" does with memory: it brings x and states to LDS, and takes outputs away.
#pragma once

#include "lines_elements.h"
#include "lines_vectors.h"

namespace hipconv {

template <typename T>
HIPCONV_INLINE void bring_x(const LineShare<T>& share) {
    if (share.plan.x.moves == LineMoves::channel_vectors)
        bring_channel_vectors<T>(share);
    else if (share.plan.x.moves == LineMoves::token_vectors)
        bring_token_vectors<T>(share);
    else if (share.plan.x.moves == LineMoves::packed_rows)
        bring_packed_rows<T>(share);
    else
        bring_elements<T>(share);
}

template <typename T>
HIPCONV_INLINE void take_out(const LineShare<T>& share, const Sequences& out) {
    if (share.plan.out.moves == LineMoves::channel_vectors)
        take_channel_vectors<T>(share, out);
    else if (share.plan.out.moves == LineMoves::token_vectors)
        take_token_vectors<T>(share, out);
    else if (share.plan.out.moves == LineMoves::packed_rows)
        take_packed_rows<T>(share, out);
    else
        take_elements<T>(share, out);
}

// Brings the states of the rows that begin in the tile or in the places before it.
template <typename T>
HIPCONV_INLINE void bring_states(const LineShare<T>& share) {
    const LinesPlan& plan = share.plan;
    const Sequences& states = share.in.initial_states;
    const int past = share.in.width - 1, lines = 1 << plan.line_bits, places = 1 << plan.place_bits;
    const int in_reach = share.tile.skipped + places - 1;
    const int rows = (plan.of_pitch ? quotient(in_reach, plan.of_pitch) : in_reach >= plan.pitch ? 1 : 0) + 1;
    const int all = rows * past << plan.line_bits;
    for (int i = static_cast<int>(threadIdx.x); i < all; i += kLineThreads) {
        const int rest = plan.states_by_channel ? i >> plan.line_bits : quotient(i, plan.of_past);
        const int c = plan.states_by_channel ? i & (lines - 1) : rest & (lines - 1);
        const int row = plan.states_by_channel ? quotient(rest, plan.of_past) : rest >> plan.line_bits;
        const int column = (plan.states_by_channel ? rest : i) - (plan.states_by_channel ? row : rest) * past;
        const int n = row * plan.pitch + plan.head - past + column - share.tile.skipped;
        if (n < -kLineBefore || n >= places || share.tile.first_row + row >= share.in.batch || share.channels_left(c) <= 0)
            continue;
        *reinterpret_cast<T*>(share.at(line_of_channel(plan, c), n)) =
            *share.token(share.row(states, plan.states, c), plan.states, {row, column, true});
    }
}

}  // namespace hipconv
