// This file declares the forward of the causal depthwise conv1d (states.h says what it computes). It depends on neither torch
// nor HIP.
#pragma once

#include <type_traits>

#include "causal_conv1d/states.h"
#include "launch/kernel_table.h"

namespace hipconv {

struct CausalConv1dFwdParams : CausalConv1dInputs {
    Sequences out;
    Sequences final_states;  // (batch, dim, width - 1), or null; may be the initial states' memory
};

constexpr KernelNames kCausalConv1dFwdNames = {"HIPCONV_CONV1D_KERNEL",
                                               {"tile", "vector", "shared", "lines", "staged", "naive"},
                                               {"simd", "openmp"}};

// These are defined twice: in csrc/kernels for GPUs and simt, in csrc/cpu for host memory (whose launches ignore the stream).
// In calls, no size is zero; for launches, every tensor lies on the current device. They write `out` and the final states, if
// any. A kernel that refuses a call for its states or ids may serve it if its rows are taken for plain ones, and then
// causal_conv1d_mend makes the outputs that differ. The last kernel of the table serves everything.
KernelTable<CausalConv1dFwdParams> causal_conv1d_fwd_kernels();
bool causal_conv1d_fwd_serves_f64();
void causal_conv1d_mend(const CausalConv1dFwdParams& params, void* stream);

// Writes the final states, and runs last: they may lie in the memory of the initial states. The seqlen may be zero.
void causal_conv1d_final_states(const CausalConv1dFwdParams& params, void* stream);

// A kernel whose launch returns a bool tells by it whether it has written the final states. After the others, they are copied.
template <auto kLaunch>
void launch_and_final_states(const CausalConv1dFwdParams& p, void* workspace, void* stream) {
    bool written = false;
    if constexpr (std::is_same<decltype(kLaunch(p, workspace, stream)), bool>::value)
        written = kLaunch(p, workspace, stream);
    else
        kLaunch(p, workspace, stream);
    if (p.final_states.data && !written) causal_conv1d_final_states(p, stream);
}

}  // namespace hipconv
