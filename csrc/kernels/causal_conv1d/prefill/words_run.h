// This file makes the outputs of runs of tokens for the kernel `words`.
#pragma once

#include "masks.h"
#include "words_lane.h"

namespace hipconv {

// A lane has this of a run when its loads are on their way.
template <typename T, int kWidth>
struct RunOnItsWay {
    // A multiple of kWidth, so that ring positions repeat.
    static constexpr int kAhead = WordLane<T>::kHalves ? 8 : kWidth;
    typename WordLane<T>::Ahead before[kWidth - 1], ahead[kAhead];
    const char* x;  // of the first token that has not been loaded
    int64_t x_step;
    int tokens;
};

// Makes the outputs of a run and stores them. The first kMissing taps of the instance are not the call's.
template <typename T, int kWidth, int kMissing>
__device__ __forceinline__ void convolve_tokens(RunOnItsWay<T, kWidth>& on_its_way, WordStores<T>& stores, const float* taps,
                                                const WordLane<T>& lane, OutputColumn out, int run, bool use_silu) {
    constexpr int kAhead = RunOnItsWay<T, kWidth>::kAhead;
    using Ahead = typename WordLane<T>::Ahead;
    Pair weight[kWidth];
#pragma unroll
    for (int i = kMissing; i < kWidth; ++i) weight[i] = tap_of_lane<T>(taps, i);
    const Pair bias = tap_of_lane<T>(taps, kWidth);
    auto& [before, ahead, x, x_step, tokens] = on_its_way;
    Pair ring[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) ring[i] = WordLane<T>::pair(before[i]);
    // The output of the token in this slot of the ring, stored if it is this row's.
    const auto produce = [&](int slot, int token) {
        uint32_t result{};
        Pair sum = bias;
#pragma unroll
        for (int i = kMissing; i < kWidth; ++i) sum = multiply_add(weight[i], ring[(slot + 1 + i) % kWidth], sum);
        set_pair<T>(result, 0, silu_where(use_silu, sum));  // without an instance for each: memory sets the time
        stores.store(out.first, result, token);
        out.first += out.step;
    };

    int t = 0;
    // Where conditions cost selections, whole pieces of a run go without them.
    for (; !kHasPredicates && !stores.kTogether && t + 2 * kAhead <= tokens; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            ring[(kWidth - 1 + j) % kWidth] = WordLane<T>::pair(ahead[j]);
            lane.ask(ahead[j], x, 0, 1);
            x += x_step;
            produce((kWidth - 1 + j) % kWidth, j);
        }
        stores.next(kAhead);
    }
    const int end = stores.kTogether ? run : tokens;
    for (; t < end; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            ring[(kWidth - 1 + j) % kWidth] = WordLane<T>::pair(ahead[j]);
            if (!kHasPredicates) ahead[j] = Ahead{};  // so that what is past the end need not be kept
            lane.ask(ahead[j], x, t + kAhead + j, tokens);
            x += x_step;
            produce((kWidth - 1 + j) % kWidth, j);  // there are no bits past the end
        }
        stores.next(kAhead);
    }
}

// Sequences of up to kWhole tokens are others' work.
template <typename T, int kWidth, int kWhole = -1>
__device__ __forceinline__ void convolve_run_in_words(const WordsCall& call, uint32_t block, BegunInRun* begun_in_runs,
                                                      float* taps) {
    const CausalConv1dVarlenParams& p = call.params;
    const WordsPlan& plan = call.plan;
    const int32_t run = plan.run;
    RunOnItsWay<T, kWidth> on_its_way;
    constexpr int kAhead = RunOnItsWay<T, kWidth>::kAhead, kChannels = WordLane<T>::kChannels;
    using Ahead = typename WordLane<T>::Ahead;
    const int64_t begin = (static_cast<int64_t>(block) * blockDim.y + threadIdx.y) * run;
    const int64_t channel = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kChannels;
    const bool works = channel < p.dim && begin < p.tokens;  // if not, it still looks up a token for its row
    const int64_t d = works ? channel : 0;
    const int tokens = !works ? 0 : p.tokens - begin < run ? static_cast<int>(p.tokens - begin) : run;
    const WordLane<T> lane(d, p.dim);

    const int64_t x_step = p.x_token_stride * static_cast<int64_t>(sizeof(T));
    const char* x = static_cast<const char*>(p.x) + begin * x_step + d * static_cast<int64_t>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) {
        const int back = kWidth - 1 - i;
        on_its_way.before[i] = Ahead{};
        const char* from = x - back * x_step;
        if (plan.halos && threadIdx.y == 0)
            from = plan.halos + ((int64_t{block} * (kWidth - 1) - back) * p.dim + d) * static_cast<int64_t>(sizeof(T));
        lane.ask(on_its_way.before[i], from, 0, works && begin >= back ? 1 : 0);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
        on_its_way.ahead[j] = Ahead{};
        lane.ask(on_its_way.ahead[j], x, j, tokens);
        x += x_step;
    }
    on_its_way.x = x;
    on_its_way.x_step = x_step;
    on_its_way.tokens = tokens;
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    const int missing = missing_taps<kWidth, true>(p);
    const BlockTaps<T, kWidth> block_taps(again, static_cast<int32_t>(blockIdx.x * blockDim.x) * kChannels, missing);
    const RunMasks masks = masks_of_run<kWhole>(EitherIndices{again, plan.plain_indices}, begin, run, kWidth - 1);
    block_taps.put(first_parameter_again(p), missing, taps);
    begun_in_runs[threadIdx.y] = {masks.begun, masks.sequence};
    __syncthreads();  // in place, from here on a row may store what the next one has read

    const CausalConv1dVarlenParams& late = first_parameter_again(p);
    OutputColumn out = output_column<T>(p, d);
    out.first += begin * out.step;
    if (works && masks.dead != 0 && late.dead_tokens != DeadTokens::leave) {
#pragma unroll 1
        for (int t = 0; t < tokens; ++t)
            if (masks.dead >> t & 1)
                lane.store(out.first + int64_t{t} * out.step,
                           late.dead_tokens == DeadTokens::zero ? 0 : lane.load(x + (t - kAhead) * x_step));
    }
    WordStores<T> stores(late, first_parameter_again(call).plan, d, out.first, out.step, works ? masks.outputs : 0);
    const bool has_outputs = works && masks.outputs != 0;
    if (stores.kTogether ? __ballot(has_outputs) != 0 : has_outputs) {
        with_columns<kWidth - 1>(missing, [&](auto columns) {
            constexpr int kMissing = kWidth - 1 - decltype(columns)::value;
            convolve_tokens<T, kWidth, kMissing>(on_its_way, stores, taps, lane, out, run, late.use_silu);
        });
    }
    if (!works) return;
    place_begun<T, kChannels, kWidth, (kWidth <= 4 ? kWidth - 1 : 4)>(
        first_parameter_again(p), first_parameter_again(call).plan, block, begun_in_runs,
        [&](const char* from) { return lane.load(from); }, [&](char* to, uint32_t v) { lane.store(to, v); });
}

// Saves the tokens before a block of the next launch, for each row one, after the first.
template <typename T, int kWidth>
__device__ __forceinline__ void save_halo_in_words(const CausalConv1dVarlenParams& p, const WordsPlan& plan, uint32_t block) {
    constexpr int kPast = kWidth - 1;
    constexpr int64_t kSize = sizeof(T);
    const int64_t number = int64_t{block} * blockDim.y + threadIdx.y + 1, end = number * blockDim.y * plan.run;
    const int64_t d = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * WordLane<T>::kChannels;
    if (d >= p.dim || end >= p.tokens) return;
    const WordLane<T> lane(d, p.dim);
    const char* from = static_cast<const char*>(p.x) + ((end - kPast) * p.x_token_stride + d) * kSize;
    char* to = plan.halos + ((number - 1) * kPast * p.dim + d) * kSize;
    uint32_t halo[kPast];
#pragma unroll
    for (int i = 0; i < kPast; ++i) halo[i] = lane.load(from + i * p.x_token_stride * kSize);
#pragma unroll
    for (int i = 0; i < kPast; ++i) lane.store(to + i * p.dim * kSize, halo[i]);
}

}  // namespace hipconv
