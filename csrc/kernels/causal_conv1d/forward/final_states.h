// A thread that ends a row may write its final state, whose inputs it has just read.
#pragma once

#include "causal_conv1d/states_formula.h"
#include "kernels.h"

namespace hipconv {

// Kernels leave final states alone of which ids hide a part, and those that lie in the memory of the initial ones, which other
// threads may still read.
inline bool threads_write_final_states(const CausalConv1dFwdParams& p) {
    return p.final_states.data && !p.seq_idx.data && p.final_states.data != p.initial_states.data;
}

// Writes the final state of row b at channel d in elements E, of one channel or some: kPast columns, of which a width may leave
// out the first. token(i) is the input so many before the row's end.
template <typename T, int kPast, typename E = T, typename Token>
HIPCONV_INLINE void write_final_state(const CausalConv1dFwdParams& p, int64_t b, int64_t d, Token token) {
    const int past = p.width - 1;
    E values[kPast + 1];
#pragma unroll
    for (int i = kPast; i > 0; --i) {
        values[i] = E{};
        if (i > past) continue;
        if (i <= p.seqlen) {
            values[i] = token(i);
            keep_apart<0>();  // one side may read LDS
        } else if (p.initial_states.data) {
            values[i] = *global_pointer<const E>(&at<const T>(p.initial_states, b, d, p.seqlen + past - i));
            keep_apart<1>();
        }
    }
    char* to = reinterpret_cast<char*>(&at<T>(p.final_states, b, d, 0));
#pragma unroll
    for (int i = kPast; i > 0; --i) {
        if (i > past) continue;
        *global_pointer<E>(to) = values[i];
        to += p.final_states.seqlen_stride * static_cast<int64_t>(sizeof(T));
    }
}

}  // namespace hipconv
