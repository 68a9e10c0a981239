// These kernels complete the causal conv1d forward of rows that continue from a state, end in one, or hold packed sequences.
// They serve any width and any strides; every loop is grid-stride.
//
// "mend" runs after a kernel that has made such rows as if they were plain, and makes only the outputs that differ. The threads
// of a block look at a token each. For the tokens that see something else, a few at the start of each sequence, they together
// make all channels by the formula.
//
// "final_states" has a thread a vector of a row's channels, which it puts together from single ones where those of x are not
// aligned, or a channel where the states have no aligned neighbours. It copies their last inputs: the channels of all rows
// follow one another, so that rows of few channels fill blocks, too. As that state may lie in the memory of the initial one, it
// runs when all outputs are there.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "causal_conv1d/forward_formula.h"
#include "device/arch.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kMendThreads = 256;

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kMendThreads, 4) causal_conv1d_fwd_mend(CausalConv1dFwdParams p, int64_t tokens) {
    constexpr int kWaves = kMendThreads / kWaveSize;
    HIPCONV_SHARED(uint64_t, differing, kWaves);  // a bit for each of the block's tokens
    const int thread = static_cast<int>(threadIdx.x);
    for (int64_t b = blockIdx.z; b < p.batch; b += gridDim.z) {
        for (int64_t first = static_cast<int64_t>(blockIdx.x) * kMendThreads; first < tokens;
             first += static_cast<int64_t>(gridDim.x) * kMendThreads) {
            const int64_t own = first + thread;
            const uint64_t bits = __ballot(own < tokens && differs_from_plain_row(first_parameter_again(p), b, own));
            __syncthreads();  // those of the round before are done with
            if (thread % kWaveSize == 0) differing[thread / kWaveSize] = bits;
            __syncthreads();
            for (int wave = 0; wave < kWaves; ++wave) {
                uint64_t left = differing[wave];
                for (int64_t t = first + wave * kWaveSize; left != 0; ++t, left >>= 1) {
                    if ((left & 1) == 0) continue;
                    for (int64_t d = static_cast<int64_t>(blockIdx.y) * kMendThreads + thread; d < p.dim;
                         d += static_cast<int64_t>(gridDim.y) * kMendThreads)
                        causal_conv1d_one_output<T, float>(first_parameter_again(p), b, d, t);
                }
            }
        }
    }
}

// An element of bits E of a token of x; or, where x has none at this place, one put together from neighbours of bits X.
template <typename E, typename X>
HIPCONV_INLINE E load_bits(const X* token) {
    if constexpr (sizeof(E) == sizeof(X)) {
        return *token;
    } else {
        E all{};
#pragma unroll
        for (int w = 0; w < static_cast<int>(sizeof(E)) / 4; ++w) {
            uint32_t bits = *token++;
            if constexpr (sizeof(X) == 2) bits |= static_cast<uint32_t>(*token++) << 16;
            set_word(all, w, bits);
        }
        return all;
    }
}

// Writes the final state of a row without ids, in elements of bits. Some columns are under way together, oldest first: each
// comes from a column that is not older, so it may lie where the initial state does. One that comes from nowhere is read from
// where it goes, as a condition would make the others wait.
template <typename E, typename X>
HIPCONV_INLINE void copy_final_state(const CausalConv1dFwdParams& p, int64_t b, int64_t d) {
    constexpr int kAtOnce = sizeof(E) <= 8 ? 8 : 4;
    const int past = p.width - 1;
    const bool has_state = p.initial_states.data;
    E* to = &at<E>(p.final_states, b, d, 0);
    const X* x = &at<const X>(p.x, b, d * static_cast<int>(sizeof(E) / sizeof(X)), int64_t{p.seqlen} - past);
    const E* state = has_state ? &at<const E>(p.initial_states, b, d, p.seqlen) : to;
    for (int first = 0; first < past; first += kAtOnce) {
        E values[kAtOnce];
        E* place = to;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const bool is_token = p.seqlen - past + first + i >= 0;
            values[i] = E{};
            if (first + i >= past) break;
            if constexpr (sizeof(E) == sizeof(X))
                values[i] = *(is_token ? x : has_state ? state : place);
            else
                values[i] = is_token ? load_bits<E>(x) : *(has_state ? state : place);
            if (!is_token && !has_state) values[i] = E{};
            x += p.x.seqlen_stride;
            state += p.initial_states.seqlen_stride;
            place += p.final_states.seqlen_stride;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (first + i >= past) break;
            *to = values[i];
            to += p.final_states.seqlen_stride;
        }
    }
}

// E: bits of states, or with ids the type of x; X: bits of x.
template <typename E, typename X, bool kIds>
__global__ void HIPCONV_LAUNCH_BOUNDS(kMendThreads, 4) causal_conv1d_fwd_final_states(CausalConv1dFwdParams p) {
    let_next_kernel_begin();
    wait_for_kernel_before();
    const int64_t all = static_cast<int64_t>(p.batch) * p.dim;
    for (int64_t own = static_cast<int64_t>(blockIdx.x) * kMendThreads + threadIdx.x; own < all;
         own += static_cast<int64_t>(gridDim.x) * kMendThreads) {
        // A division of 64 bits would take longer than all the rest.
        const bool fits = all <= UINT32_MAX;
        const int64_t row = fits ? static_cast<uint32_t>(own) / static_cast<uint32_t>(p.dim) : own / p.dim;
        if constexpr (kIds)
            causal_conv1d_one_final_state<E>(p, row, own - row * p.dim);
        else
            copy_final_state<E, X>(p, row, own - row * p.dim);
    }
}

// The channels of the largest vectors that the states have at the same places, and x too where it counts.
int final_state_channels(const CausalConv1dFwdParams& p, bool x_counts) {
    const int size = element_bytes(p.dtype);
    const auto in_vectors = [&](const Sequences& s, int channels) {
        return !s.data ||
               (s.dim_stride == 1 && (p.batch == 1 || s.batch_stride % channels == 0) && s.seqlen_stride % channels == 0 &&
                reinterpret_cast<uintptr_t>(s.data) % static_cast<uintptr_t>(channels * size) == 0);
    };
    int channels = 16 / size;
    while (channels > 1 && (p.dim % channels != 0 || (x_counts && !in_vectors(p.x, channels)) ||
                            !in_vectors(p.initial_states, channels) || !in_vectors(p.final_states, channels)))
        channels /= 2;
    return channels;
}

template <typename E, typename X = E, bool kIds = false>
void launch_final_states(CausalConv1dFwdParams p, void* stream) {
    if constexpr (!kIds) {  // channels, and steps, of vectors
        const int channels = static_cast<int>(sizeof(E)) / element_bytes(p.dtype);
        p.dim /= channels;
        for (Sequences* s : {&p.x, &p.initial_states, &p.final_states})
            if (s != &p.x || sizeof(X) == sizeof(E)) s->batch_stride /= channels, s->seqlen_stride /= channels;
    }
    const dim3 grid(blocks_up_to(static_cast<int64_t>(p.batch) * p.dim, kMendThreads, kGridLimit / 2), 1, 1);
    HIPCONV_LAUNCH(true, (causal_conv1d_fwd_final_states<E, X, kIds>), grid, dim3(kMendThreads, 1, 1), 0,
                   static_cast<hipStream_t>(stream), p);
    check_launch("causal_conv1d_fwd");
}

void causal_conv1d_mend(const CausalConv1dFwdParams& p, void* stream) {
    // Without sequences in a row, only its first tokens can differ.
    const int64_t near_begin = p.seqlen < p.width ? p.seqlen : p.width - 1;
    const int64_t tokens = p.seq_idx.data ? p.seqlen : near_begin;
    const dim3 grid(blocks_up_to(tokens, kMendThreads, 65535), blocks_up_to(p.dim, kMendThreads, 16),
                    blocks_up_to(p.batch, 1, 65535));
    with_dtype(p.dtype, [&](auto type) {
        hipLaunchKernelGGL(causal_conv1d_fwd_mend<decltype(type)>, grid, dim3(kMendThreads, 1, 1), 0,
                           static_cast<hipStream_t>(stream), p, tokens);
    });
    check_launch("causal_conv1d_fwd");
}

void causal_conv1d_final_states(const CausalConv1dFwdParams& p, void* stream) {
    if (p.seq_idx.data)
        return with_dtype(p.dtype, [&](auto type) {
            using T = decltype(type);
            launch_final_states<T, T, true>(p, stream);
        });
    const int size = element_bytes(p.dtype), bytes = final_state_channels(p, true) * size;
    if (bytes < 16 && p.x.dim_stride == 1 && final_state_channels(p, false) * size == 16)
        return size == 2 ? launch_final_states<Words4, uint16_t>(p, stream) : launch_final_states<Words4, uint32_t>(p, stream);
    const auto launch = bytes == 16  ? launch_final_states<Words4>
                        : bytes == 8 ? launch_final_states<Words2>
                        : bytes == 4 ? launch_final_states<uint32_t>
                                     : launch_final_states<uint16_t>;
    launch(p, stream);
}

}  // namespace hipconv
