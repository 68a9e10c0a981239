// The two launches of a call in place by `tile` or `words`, and the memory between them.
#pragma once

#include "kernels.h"
#include "launch_plan.h"
#include "staged.h"

namespace hipconv {

// The tokens before each block of runs but the first.
inline int64_t halo_bytes(const CausalConv1dVarlenParams& p, const PrefillShape& shape) {
    return (shape.run_blocks - 1) * shape.past() * p.dim * element_bytes(p.dtype);
}

// One launch of `staged` is faster than two of `tile` or `words` where it needs no other before it.
inline bool staged_needs_one_launch(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    return p.tokens <= kTileTokens && p.sequences <= 2 && !causal_conv1d_varlen_staged_in_place_refusal(p, tile);
}

// Sequences whose start is put aside begin at least its length apart.
inline bool begun_by_token(const CausalConv1dVarlenParams& p) { return p.tokens / (p.width - 1) + 1 < p.sequences; }

inline int64_t in_place_workspace(const CausalConv1dVarlenParams& p, const PrefillShape& shape) {
    const int64_t past = p.width - 1, begun = begun_by_token(p) ? p.tokens / past + 1 : p.sequences;
    return halo_bytes(p, shape) + begun * past * p.dim * element_bytes(p.dtype);
}

// launch(plan, runs, begins): so many blocks of each kind.
template <typename Plan, typename Launch>
void launch_in_place(const CausalConv1dVarlenParams& p, const PrefillShape& shape, void* workspace, Launch launch) {
    Plan plan{};
    plan.halos = static_cast<char*>(workspace);
    plan.begun = plan.halos + halo_bytes(p, shape);
    plan.begun_by_token = begun_by_token(p);
    plan.phase = VarlenPhase::begins;
    launch(plan, (shape.run_blocks - 1 + shape.rows - 1) / shape.rows, shape.begin_blocks);
    plan.phase = VarlenPhase::runs;
    launch(plan, shape.run_blocks, 0);
}

}  // namespace hipconv
