// This file finds which tokens of a run the kernels `tile` and `words` store, and, in place, brings outputs put aside to their
// places. It is for files that include <hip/hip_runtime.h>.
#pragma once

#include "causal_conv1d/prefill_schedule.h"
#include "thread.h"

namespace hipconv {

// In place, these wait in LDS until the run is done.
struct BegunInRun {
    uint32_t begun;    // the first tokens of live sequences of at least `past` tokens
    int32_t sequence;  // the one that the run begins in, or one before it
    int32_t begin;     // the run's first token
};

// These masks tell, with a bit for each token, which tokens of the run this row stores.
struct RunMasks : BegunInRun {
    uint32_t outputs;  // whole windows of live sequences
    uint32_t dead;     // tokens of no sequence or of padding
};

// Some `lanes`, a power of two of those of a wave, look at one sequence each.
template <typename Indices>
struct SequenceFinders {
    const Indices& indices;
    const int32_t lanes, lane, first_lane;

    HIPCONV_INLINE SequenceFinders(const Indices& all, int32_t number, int32_t in_wave)
        : indices(all), lanes(number), lane(in_wave & (number - 1)), first_lane(in_wave - lane) {}

    __device__ __forceinline__ uint32_t bits(bool bit) const {
        return static_cast<uint32_t>(__ballot(bit) >> first_lane) & lowest_bits(lanes);
    }
    // The last sequence that begins at a token or before, if any does, is this one or one of those behind it that the lanes see
    // at once. It is found in one step for each factor `lanes` of the number of sequences.
    __device__ __forceinline__ int32_t sequence_near(int32_t token) const {
        int32_t base = 0, span = indices.p.sequences;
        const int shift = lanes > 2 ? __popc(static_cast<uint32_t>(lanes) - 1) : 1;
        while (span > lanes) {
            span = ((span - 1) >> shift) + 1;
            const uint32_t b = static_cast<uint32_t>(base) + (static_cast<uint32_t>(lane) + 1) * static_cast<uint32_t>(span);
            const bool exists = b < static_cast<uint32_t>(indices.p.sequences);
            base += __popc(bits(exists && indices.start(static_cast<int32_t>(b)) <= token)) * span;
        }
        return base;
    }
};

// The masks of a run that begins at token `first`, in sequence `base` or a later one.
// Sequences of up to kWhole tokens have none to store here: others make them whole.
template <int kWhole = -1, typename Indices>
__device__ __forceinline__ RunMasks masks_of_run(const SequenceFinders<Indices>& finders, int32_t base, int32_t first,
                                                 int32_t run, int past) {
    const Indices& indices = finders.indices;
    const int32_t lanes = finders.lanes, lane = finders.lane;
    const CausalConv1dVarlenParams& p = indices.p;
    const uint32_t inside = lowest_bits(run < p.tokens - first ? run : p.tokens - first);
    uint32_t outputs = 0, live = 0, begun = 0;
    const int32_t first_sequence = base;
    bool more;
    do {
        const int32_t b = base + lane;
        more = false;
        if (b < p.sequences) {
            int32_t start = indices.start(b) - first;
            const int32_t end = indices.start(b + 1) - first;
            const bool is_live = indices.is_live(b);
            in_a_register(start);  // all three loads leave together
            if (is_live) {
                const bool in_runs = kWhole < 0 || end - start > kWhole;
                const uint32_t windows = in_runs ? inside & lowest_bits(end) & ~lowest_bits(start + past) : 0;
                const uint32_t tokens = inside & lowest_bits(end) & ~lowest_bits(start);
                outputs |= windows;
                live |= tokens;
                if (end - start >= past && in_runs) begun |= tokens & ~windows;
            }
            more = lane == lanes - 1 && end < run;
        }
        base += lanes;
    } while (__ballot(more) != 0);  // only where many sequences of the run are empty

    const bool one_sequence = finders.bits(outputs == inside) != 0;
    if (__ballot(!one_sequence) != 0) {
        for (int other = 1; other < lanes; other *= 2) {
            outputs |= __shfl_xor(outputs, other);
            live |= __shfl_xor(live, other);
            begun |= __shfl_xor(begun, other);
        }
    }
    return one_sequence ? RunMasks{{0, 0, first}, inside, 0}
                        : RunMasks{{begun, first_sequence, first}, outputs, inside & ~live};
}

// This is where an output of a sequence's start is put aside.
template <typename T>
HIPCONV_INLINE char* begun_place(const CausalConv1dVarlenParams& p, const VarlenPlan& plan, int32_t number, int32_t start,
                                 int64_t d, int32_t t) {
    const int32_t past = first_parameter_again(p).width - 1;
    const int64_t row = int64_t{plan.begun_by_token ? start / past : number} * past + t;
    return plan.begun + (row * p.dim + d) * static_cast<int64_t>(sizeof(T));
}

// Brings the first outputs of sequences to their places, when their inputs are not needed any more, by load(from) and
// store(to, loaded), of a sequence so many at once: in part `number` of `runs` of a row's run.
template <typename T, int kChannels, int kWidth, int kAtOnce, typename Begun, typename Load, typename Store>
__device__ __forceinline__ void place_begun(const CausalConv1dVarlenParams& p, const VarlenPlan& plan,
                                            const Begun* begun_in_runs, int runs, int number, Load load, Store store) {
    constexpr int kPast = kWidth - 1;
    if (plan.phase != VarlenPhase::runs) return;
    int row = static_cast<int>(threadIdx.y), across = static_cast<int>(threadIdx.x);
    from_here_on(row);
    from_here_on(across);
    uint32_t left = begun_in_runs[row * runs + number].begun;
    if (left == 0) return;
    int32_t b = begun_in_runs[row * runs + number].sequence;
    const int32_t begin = begun_in_runs[row * runs + number].begin;
    const EitherIndices indices{first_parameter_again(p), plan.plain_indices};
    const int64_t d = (static_cast<int64_t>(blockIdx.x) * blockDim.x + across) * kChannels;
    const OutputColumn column = output_column<T>(p, d);
    while (left != 0) {
        const int32_t token = begin + __popc((left & (0 - left)) - 1);
        while (b + 1 < p.sequences && indices.start(b + 1) <= token) ++b;
        const int32_t start = indices.start(b), first = token - start;
        uint32_t wanted = left >> (token - begin) << first;  // a bit for each of the sequence's outputs
        wanted &= lowest_bits(first_parameter_again(p).width - 1);
        left &= ~(wanted >> first << (token - begin));
        const char* const from = begun_place<T>(p, plan, b, start, d, 0);
        char* const to = column.first + int64_t{start} * column.step;
#pragma unroll
        for (int first_of_these = 0; first_of_these < kPast; first_of_these += kAtOnce) {
            decltype(load(from)) outputs[kAtOnce]{};
            const auto for_these = [&](auto f) {
#pragma unroll
                for (int k = 0; k < kAtOnce; ++k)
                    if (wanted >> (first_of_these + k) & 1) f(first_of_these + k, outputs[k]);
            };
            for_these([&](int t, auto& output) { output = load(from + t * p.dim * static_cast<int64_t>(sizeof(T))); });
            for_these([&](int t, const auto& output) { store(to + int64_t{t} * column.step, output); });
        }
    }
}

}  // namespace hipconv
