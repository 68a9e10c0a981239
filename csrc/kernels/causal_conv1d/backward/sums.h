// The gradients of weight and bias are sums over all tokens. A kernel leaves rows of partial sums in the workspace, each of
// (width + 1, dim) floats, as many as it has groups of tokens; `add_up` makes the gradients of them, in a fixed order. After
// the rows lie the taps that `begin` makes of sequence ids for kernels that look at `taps` (taps.h).
#pragma once

#include "causal_conv1d/backward.h"
#include "launch/taper.h"

namespace hipconv {

// Kernels divide tokens as costs a card of so many compute units least, as an H100 has. It is one and the same card everywhere,
// so that the order of sums is.
constexpr int64_t kUnitsOfLargeCard = 132;

// Returns how many rows of partial sums there are. Kernels may leave more of some channels than of others: the channels from
// first_channel[zone] on have rows[zone].
struct BwdPartials {
    int64_t first_channel[kTaperZones], rows[kTaperZones];
    bool are_sums;   // there is one row, which the kernel, as it has no address for it, makes gradients of itself
    int empty_taps;  // so many taps in front see nothing; no row has sums of theirs
};

inline BwdPartials equal_partials(int64_t rows) {
    BwdPartials partials{};
    for (int64_t& each : partials.rows) each = rows;
    return partials;
}

// The same of kernels that can do without a row.
inline BwdPartials sums_or_partials(BwdPartials partials) {
    partials.are_sums = true;
    for (const int64_t rows : partials.rows) partials.are_sums = partials.are_sums && rows <= 1;
    return partials;
}

// The bytes of a kernel's workspace.
int64_t bwd_sums_workspace(const CausalConv1dBwdParams& params, const BwdPartials& partials, bool looks_at_taps);

// This runs before the kernel: it returns the kernel's params with the addresses in the workspace, and makes taps where the
// kernel looks at them.
CausalConv1dBwdParams bwd_sums_begin(const CausalConv1dBwdParams& params, const BwdPartials& partials, bool looks_at_taps,
                                     void* workspace, hipStream_t stream);

// This runs after the kernel.
void bwd_sums_add_up(const CausalConv1dBwdParams& params, const BwdPartials& partials, hipStream_t stream);

}  // namespace hipconv
