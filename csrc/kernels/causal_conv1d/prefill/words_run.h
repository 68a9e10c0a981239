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

// A lane's part of the run that its row has.
template <typename T>
struct LaneOfRun {
    int64_t begin, d;  // its first token, and the lane's first channel
    bool works;        // if not, it still looks up a token for a row
    int tokens;
    WordLane<T> lane;

    HIPCONV_INLINE LaneOfRun(const WordsCall& call, uint32_t block) : LaneOfRun(call, block, threadIdx.x, threadIdx.y) {}
    HIPCONV_INLINE const char* x(const CausalConv1dVarlenParams& p) const {
        return static_cast<const char*>(p.x) + (begin * p.x_token_stride + d) * static_cast<int64_t>(sizeof(T));
    }

  private:
    HIPCONV_INLINE LaneOfRun(const WordsCall& call, uint32_t block, int across, int row) : lane(0, 0) {
        from_here_on(across);
        from_here_on(row);
        const CausalConv1dVarlenParams& p = first_parameter_again(call).params;
        const int32_t run = first_parameter_again(call).plan.run;
        begin = (static_cast<int64_t>(block) * blockDim.y + row) * run;
        d = (static_cast<int64_t>(blockIdx.x) * blockDim.x + across) * WordLane<T>::kChannels;
        works = d < p.dim && begin < p.tokens;
        if (!works) d = 0;
        tokens = !works ? 0 : p.tokens - begin < run ? static_cast<int>(p.tokens - begin) : run;
        lane = WordLane<T>(d, p.dim);
    }
};

// Makes the outputs of a run and stores them: those of `masks`, one for each kMaskTokens tokens. The first kMissing taps of the
// instance are not the call's.
template <typename T, int kWidth, int kMissing, bool kShifts>
__device__ __forceinline__ void convolve_tokens(const WordsCall& call, RunOnItsWay<T, kWidth>& on_its_way,
                                                const RunMasks* masks, const float* taps, const WordLane<T>& lane, int64_t d,
                                                bool works, OutputColumn out, int run) {
    constexpr int kAhead = RunOnItsWay<T, kWidth>::kAhead;
    using Ahead = typename WordLane<T>::Ahead;
    using Stores = WordStores<T, kShifts>;
    const bool use_silu = first_parameter_again(call).params.use_silu;
    Pair weight[kWidth];
#pragma unroll
    for (int i = kMissing; i < kWidth; ++i) weight[i] = tap_of_lane<T>(taps, i);
    const Pair bias = tap_of_lane<T>(taps, kWidth);
    auto& [before, ahead, x, x_step, tokens] = on_its_way;
    Pair ring[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i) {
        WordLane<T>::wait_for(before[i]);
        ring[i] = WordLane<T>::pair(before[i]);
    }
    // The output of the token in this slot of the ring, stored if it is this row's.
    const auto produce = [&](Stores& stores, int slot, int token) {
        uint32_t result{};
        Pair sum = bias;
#pragma unroll
        for (int i = kMissing; i < kWidth; ++i) sum = multiply_add(weight[i], ring[(slot + 1 + i) % kWidth], sum);
        set_pair<T>(result, 0, silu_where(use_silu, sum));  // without an instance for each: memory sets the time
        stores.store(out.first, result, token);
        out.first += out.step;
    };

    int t = 0;
#pragma unroll 1
    for (const int all = Stores::kTogether ? run : tokens; t < all; ++masks) {
        const int end = t + kMaskTokens < all ? t + kMaskTokens : all;
        Stores stores(first_parameter_again(call).params, first_parameter_again(call).plan, d, out.first, out.step,
                      works ? masks->outputs : 0);
        // Where conditions cost selections, whole pieces of a run go without them.
        for (; !kHasPredicates && !Stores::kTogether && t < end && t + 2 * kAhead <= tokens; t += kAhead) {
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                ring[(kWidth - 1 + j) % kWidth] = WordLane<T>::pair(ahead[j]);
                lane.ask(ahead[j], x, 0, 1);
                x += x_step;
                produce(stores, (kWidth - 1 + j) % kWidth, j);
            }
            stores.next(kAhead);
        }
        for (; t < end; t += kAhead) {
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                ring[(kWidth - 1 + j) % kWidth] = WordLane<T>::pair(ahead[j]);
                if (!kHasPredicates) ahead[j] = Ahead{};  // so that what is past the end need not be kept
                lane.ask(ahead[j], x, t + kAhead + j, tokens);
                x += x_step;
                produce(stores, (kWidth - 1 + j) % kWidth, j);  // there are no bits past the end
            }
            stores.next(kAhead);
        }
    }
}

// Sequences of up to kWhole tokens are others' work. A row has `masks_of_rows` for each kMaskTokens tokens of its run.
template <typename T, int kWidth, int kWhole = -1>
__device__ __forceinline__ void convolve_run_in_words(const WordsCall& call, uint32_t block, RunMasks* masks_of_rows,
                                                      float* taps) {
    const CausalConv1dVarlenParams& p = call.params;
    const WordsPlan& plan = call.plan;
    const int32_t run = plan.run;
    RunOnItsWay<T, kWidth> on_its_way;
    constexpr int kAhead = RunOnItsWay<T, kWidth>::kAhead, kChannels = WordLane<T>::kChannels;
    using Ahead = typename WordLane<T>::Ahead;
    {
        const LaneOfRun<T> own(call, block);
        const char* x = own.x(p);
        const int64_t x_step = p.x_token_stride * static_cast<int64_t>(sizeof(T));
        // In place, those before a block were saved.
        constexpr int kPast = kWidth - 1;
        const bool saved = plan.halos && threadIdx.y == 0;
        const char* from = x - kPast * x_step;
        if (saved) from = plan.halos + ((int64_t{block} - 1) * kPast * p.dim + own.d) * static_cast<int64_t>(sizeof(T));
        const int64_t step = saved ? p.dim * static_cast<int64_t>(sizeof(T)) : x_step;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            on_its_way.before[i] = Ahead{};
            own.lane.ask(on_its_way.before[i], from, 0, own.works && own.begin >= kPast - i ? 1 : 0);
            from += step;
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            on_its_way.ahead[j] = Ahead{};
            own.lane.ask(on_its_way.ahead[j], x, j, own.tokens);
            x += x_step;
        }
    }
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    const int missing = missing_taps<kWidth, true>(p);
    const BlockTaps<T, kWidth> block_taps(again, static_cast<int32_t>(blockIdx.x * blockDim.x) * kChannels, missing);
    const int masks = run > kMaskTokens ? 2 : 1, tokens_of_mask = run > kMaskTokens ? kMaskTokens : run;
    {
        const int32_t log2 = first_parameter_again(call).plan.finders;
        const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x), row = thread >> log2;
        const auto find = [&](const auto& indices) {
            const SequenceFinders finders(indices, 1 << log2, thread % kWaveSize);
            const auto token_of = [&](int n) {
                const int64_t token = (int64_t{block} * blockDim.y + row) * run + n * tokens_of_mask;
                return static_cast<int32_t>(token < p.tokens ? token : p.tokens);
            };
            const int32_t near = finders.sequence_near(token_of(0));
#pragma unroll 1
            for (int n = 0; n < masks; ++n) {
                const RunMasks found = masks_of_run<kWhole>(finders, near, token_of(n), tokens_of_mask, again.width - 1);
                if (row << log2 == thread && row < static_cast<int>(blockDim.y)) masks_of_rows[row * masks + n] = found;
            }
        };
        // Where rows have more lanes than find sequences, waves are left without a row here. Loads wait for each other where
        // the kinds of indices are told apart between them.
        const bool has_row = thread / kWaveSize * kWaveSize >> log2 < static_cast<int>(blockDim.y);
        if constexpr (kWhole >= 0) {
            if (has_row) find(PlainIndices{again});
        } else if (has_row && plan.plain_indices) {
            find(PlainIndices{again});
        } else if (has_row) {
            find(AnyIndices{again});
        }
    }
    block_taps.put(first_parameter_again(p), missing, taps);
    __syncthreads();                      // in place, from here on a row may store what the next one has read
    const LaneOfRun<T> own(call, block);  // again: there are no registers for it while sequences are found
    const WordLane<T>& lane = own.lane;
    const int64_t d = own.d;
    const bool works = own.works;
    on_its_way.tokens = own.tokens;
    on_its_way.x_step = first_parameter_again(p).x_token_stride * static_cast<int64_t>(sizeof(T));
    on_its_way.x = own.x(first_parameter_again(p)) + kAhead * on_its_way.x_step;
    const RunMasks* const masks_of_row = masks_of_rows + static_cast<int>(threadIdx.y) * masks;
    uint32_t any_output = 0, any_dead = 0;
    for (int n = 0; n < masks; ++n) {
        any_output |= masks_of_row[n].outputs;
        any_dead |= masks_of_row[n].dead;
    }

    const CausalConv1dVarlenParams& late = first_parameter_again(p);
    OutputColumn out = output_column<T>(p, d);
    out.first += own.begin * out.step;
    if (works && any_dead != 0 && late.dead_tokens != DeadTokens::leave) {
#pragma unroll 1
        for (int t = 0; t < own.tokens; ++t)
            if (masks_of_row[t / kMaskTokens].dead >> t % kMaskTokens & 1)
                lane.store(out.first + int64_t{t} * out.step, late.dead_tokens == DeadTokens::zero
                                                                  ? 0
                                                                  : lane.load(on_its_way.x + (t - kAhead) * on_its_way.x_step));
    }
    const auto convolve = [&](auto shifts) {
        constexpr bool kShifts = decltype(shifts)::value;
        const bool has_outputs = works && any_output != 0;
        if (!(WordStores<T, kShifts>::kTogether ? __ballot(has_outputs) != 0 : has_outputs)) return;
        with_columns<kWidth - 1>(missing, [&](auto columns) {
            constexpr int kMissing = kWidth - 1 - decltype(columns)::value;
            convolve_tokens<T, kWidth, kMissing, kShifts>(call, on_its_way, masks_of_row, taps, lane, d, works, out, run);
        });
    };
    if (WordLane<T>::kHalves && first_parameter_again(call).plan.shifts)
        convolve(std::integral_constant<bool, WordLane<T>::kHalves>{});
    else
        convolve(std::false_type{});
    if (!works) return;
#pragma unroll 1
    for (int n = 0; n < masks; ++n)
        place_begun<T, kChannels, kWidth, (kWidth <= 4 ? kWidth - 1 : 4)>(
            first_parameter_again(p), first_parameter_again(call).plan, masks_of_rows, masks, n,
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
