// The kernel "tile" by way of LDS (tile_lds.cu): for memory in which no aligned vector lies, and for few channels, of which a
// token takes less memory than accesses of a wave should have in one piece.
//
// A tile is some channels of some tokens, cut out of x. It comes to LDS in whole aligned vectors, and lies there in its 16
// bytes as it lies in memory: from token to token and from sequence to sequence, LDS has steps of as many bytes, modulo 16,
// as memory. So nothing is shifted. A thread walks a run of one channel, the last tokens of which are a ring in registers,
// and puts outputs into another such tile, that of out.
//
// Memory without gaps comes and goes in one piece: a token, the tokens of a sequence, or all sequences of a tile. Of out,
// vectors that hold something else too are written element by element. A run belongs to one sequence, so only its first tokens
// may see a state, or nothing. With ids, a byte a token says which taps see something (token_taps.h); a wave of which all do
// looks no further.
//
// Bytes: each input is read once (and kWidth - 1 tokens a tile once more), each output is written once.
#pragma once

#include "../common/vector_math.h"
#include "channel_parameters.h"
#include "final_states.h"
#include "launch/check.h"
#include "tile.h"
#include "tile_lds.h"
#include "token_taps.h"

namespace hipconv {

template <typename T, int kWidth, bool kDirect>
__global__ void HIPCONV_LAUNCH_BOUNDS(kTileThreadsOf<T>, lds_tile_blocks(kWidth)) causal_conv1d_fwd_tile_lds(LdsCall call) {
    const auto again = [&]() -> const LdsCall& { return first_parameter_again(call); };
    constexpr int kThreads = kTileThreadsOf<T>, kPast = kWidth - 1, kSize = static_cast<int>(sizeof(T));
    // Tokens that are made at a time; a multiple of the ring's size, so that its positions repeat.
    constexpr int kBatch = kTapGroup, kRing = kWidth > 4 ? 8 : kWidth;
    // The tile of x, that of out, of runs whether a tap sees nothing, and of tokens what taps see: as much as the plan takes.
    HIPCONV_LARGE_SHARED(Words4, in, kCopiesPastRegisters ? 1 : (kMostLds - (kDirect ? kInBytes : 0)) / 16);

    const uint32_t block = blockIdx.z * gridDim.y + blockIdx.y;
    if (block >= again().plan.all_blocks) return;
    let_next_kernel_begin();
    const int thread = static_cast<int>(threadIdx.x);
    Words4* const results = in + again().plan.results_at;
    uint8_t* const differs = reinterpret_cast<uint8_t*>(in + again().plan.differs_at);
    uint32_t* const taps = reinterpret_cast<uint32_t*>(differs + kThreads);
    const uint64_t of_blocks = again().plan.of_blocks;
    const uint32_t of_sequences = of_blocks != 0 ? long_quotient(block, of_blocks) : block;
    const int b = static_cast<int>(of_sequences) * again().plan.sequences;
    const int t = static_cast<int>(block - of_sequences * again().plan.blocks_a_sequence) * again().plan.tokens_on;
    const int sequences = again().batch - b < again().plan.sequences ? again().batch - b : again().plan.sequences;
    const int tokens = again().seqlen - t < again().plan.tokens ? again().seqlen - t : again().plan.tokens;
    const int first_channel = static_cast<int>(blockIdx.x) * again().plan.channels_on, left = again().dim - first_channel;
    const int channels = left < again().plan.channels ? left : again().plan.channels;

    // The thread's run.
    const int outer = quotient(thread, again().plan.tokens_first ? again().plan.of_runs : again().plan.of_channels);
    const int rest = thread - outer * (again().plan.tokens_first ? again().plan.runs : again().plan.channels);
    int c = again().plan.tokens_first ? outer : rest, number = again().plan.tokens_first ? rest : outer;
    int first_sequence = quotient(number, again().plan.of_sequence_runs);
    int begin = (number - first_sequence * again().plan.sequence_runs) * again().plan.run;
    for (int* value : {&c, &number, &first_sequence, &begin}) in_a_register(*value);  // or they are worked out anew, later
    const bool begins_row = t + begin == 0, may_run = number < again().plan.runs && begin < tokens && c < channels;
    int run_tokens = !may_run ? 0 : tokens - begin < again().plan.run ? tokens - begin : again().plan.run;
    in_a_register(run_tokens);  // or each round works it out anew
    const int d = first_channel + (c < channels ? c : 0);

    wait_for_kernel_before();
    const int left_out = kWidth - again().width;  // taps: none, or one, the oldest
    const auto has_tap = [&](int i) { return i > 0 || left_out == 0; };
    const auto part_of = [&](const Sequences& tensor, const LdsTensor& how, Words4* lds, int past) -> LdsPart {
        char* const memory = static_cast<char*>(tensor.data) + b * how.batch_step + int64_t{t - past} * how.token_step +
                             int64_t{first_channel} * how.channel_step;
        const int inner = how.along_tokens ? tokens + past : channels, lines = how.along_tokens ? channels : tokens + past;
        return {how,       memory, reinterpret_cast<char*>(lds) + reinterpret_cast<uintptr_t>(memory) % 16, inner, lines,
                sequences, kSize};
    };
    const int past = t == 0 ? 0 : kPast - left_out;
    const LdsPart x = part_of(again().x, again().plan.x, in, past), out = part_of(again().out, again().plan.out, results, 0);
    if constexpr (!kDirect) bring_tile<T>(x, again().plan.x_begin, again().plan.x_end);
    const bool has_ids = again().seq_idx.data, has_states = again().initial_states.data;
    if (has_ids) {
        differs[thread] = 0;
        __syncthreads();
        const int groups = again().plan.tap_groups;
        for (int i = thread; i < groups * sequences; i += kThreads) {
            const int of_tile = sequences > 1 ? quotient(i, again().plan.of_tap_groups) : 0,
                      own = (i - of_tile * groups) * kTapGroup;
            if (own >= tokens) continue;
            const GroupTaps found = taps_of_group(again(), b + of_tile, t + own);
#pragma unroll
            for (int w = 0; w < kTapGroup / 4; ++w) taps[i * (kTapGroup / 4) + w] = found.words[w];
            if (!found.differ) continue;
            const int at_once = of_tile - quotient(of_tile, again().plan.of_at_once) * again().plan.at_once;
            const int last = own + kTapGroup < tokens ? own + kTapGroup - 1 : tokens - 1;
            uint8_t* const of_sequence = differs + at_once * again().plan.sequence_runs;
            of_sequence[quotient(own, again().plan.of_run)] = of_sequence[quotient(last, again().plan.of_run)] = 1;
        }
    }
    // The state of a sequence is under way while what comes before it is made.
    T state[kPast + 1];
    const T* next_state = has_states ? &at<const T>(again().initial_states, b + first_sequence, d, 0) : nullptr;
    const auto load_state = [&](int s) {
        if (run_tokens == 0 || s >= sequences) return;
        const T* from = next_state;
        next_state += again().plan.states_on;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            if (!has_tap(i)) continue;
            state[i] = *global_pointer<const T>(from);
            from += again().initial_states.seqlen_stride;
        }
    };
#pragma unroll
    for (int i = 0; i < kPast; ++i) state[i] = T{};
    if (has_states && begins_row) load_state(first_sequence);
    ChannelParameters<kWidth, kWidth - 1> parameters;
    parameters.load(again(), d);
    if constexpr (kCopiesPastRegisters && !kDirect) wait_for_copies<0>();
    if (!kDirect || has_ids) __syncthreads();

    float weight[kWidth], probe = 0.0f;
    parameters.convert(again());
    parameters.weights(weight);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) probe += weight[i] * 0.0f;
    const float bias = parameters.bias();
    using Step = typename std::conditional<kDirect, int64_t, int>::type;
    const Step x_step = kDirect ? again().plan.x.token_step : again().plan.x.lds_token_step;
    const int out_step = again().plan.out.lds_token_step;
    const bool use_silu = again().use_silu;
    const auto input = [&](const char* from) { return to_float(*reinterpret_cast<const T*>(from)); };

    // One sequence after another, if they are short.
    const char* first_from;
    Step round_step;
    if constexpr (kDirect) {
        round_step = again().plan.at_once * again().plan.x.batch_step;
        first_from = global_address<const char>(again().x.data) + (b + first_sequence) * again().plan.x.batch_step +
                     int64_t{t + begin} * x_step + int64_t{d} * again().plan.x.channel_step;
    } else {
        round_step = again().plan.at_once * again().plan.x.lds_batch_step;
        first_from = x.lds + first_sequence * again().plan.x.lds_batch_step + (past + begin) * x_step +
                     c * again().plan.x.lds_channel_step;
    }
    char* first_to =
        out.lds + first_sequence * again().plan.out.lds_batch_step + begin * out_step + c * again().plan.out.lds_channel_step;
    int first_found = first_sequence * again().plan.tap_groups * kTapGroup + begin;
    const bool looks = has_ids && __ballot(differs[number < again().plan.runs ? number : 0]) != 0;
    for (int s = first_sequence, round = 0; round < again().plan.rounds; ++round, s += again().plan.at_once) {
        const int count = s < sequences ? run_tokens : 0;
        float ring[kRing];  // the token before the run is in slot kPast - 1
#pragma unroll
        for (int i = 0; i < kRing; ++i) ring[i] = 0.0f;
        if (count > 0 && !begins_row) {
#pragma unroll
            for (int i = 0; i < kPast; ++i)
                if (has_tap(i)) ring[i] = input(first_from - (kPast - i) * x_step);
        } else if (has_states) {
#pragma unroll
            for (int i = 0; i < kPast; ++i) ring[i] = to_float(state[i]);
            if (round + 1 < again().plan.rounds) load_state(s + again().plan.at_once);
        }

        const auto walk = [&](auto looks, auto oldest, auto activates) {
            constexpr bool kLooks = decltype(looks)::value, kHasOldest = decltype(oldest)::value;
            constexpr bool kActivates = decltype(activates)::value;
            const char* from = first_from;
            char* to = first_to;
            const uint32_t* found = taps + first_found / 4;
            const int found_bits = first_found % 4 * 8;
            // The output of the token in this slot of the ring.
            const auto output = [&](int slot, int token_taps) {
                float sum = bias;
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                    if (kLooks ? i < kPast && !(token_taps >> (kPast - 1 - i) & 1) : i == 0 && !kHasOldest) continue;
                    sum = low(multiply_add(twice(weight[i]), twice(ring[(slot + kRing - kPast + i) % kRing]),
                                           twice(sum)));  // as the others
                }
                return kActivates ? silu(sum) : sum;
            };
            // The inputs of `most` tokens, and their outputs. From memory, the next ones are under way meanwhile.
            T ahead[kBatch];
            const auto fetch = [&](int begin, int end, int most) {
#pragma unroll
                for (int j = 0; j < kBatch; ++j) {
                    if (j < begin || j >= end) continue;
                    ahead[j] = T{};
                    if (j >= most) continue;
                    ahead[j] = *reinterpret_cast<const T*>(from);
                    from += x_step;
                }
            };
            const auto make_some = [&](int begin, int end, int most, int next) {
                if (!kDirect) fetch(begin, end, most);
                float inputs[kBatch], outputs[kBatch];
                uint32_t seen[kTapGroup / 4];  // a byte a token, from words, in which a run begins anywhere
#pragma unroll
                for (int w = 0; w < kTapGroup / 4; ++w)
                    seen[w] = kLooks ? static_cast<uint32_t>((uint64_t{found[w + 1]} << 32 | found[w]) >> found_bits) : 0;
#pragma unroll
                for (int j = 0; j < kBatch; ++j) {
                    if (j < begin || j >= end) continue;
                    inputs[j] = to_float(ahead[j]);
                }
                if (kDirect) fetch(begin, end, next);
#pragma unroll
                for (int j = 0; j < kBatch; ++j) {
                    if (j < begin || j >= end) continue;
                    ring[(kPast + j) % kRing] = inputs[j];
                    outputs[j] = output((kPast + j) % kRing, static_cast<int>(seen[j / 4] >> j % 4 * 8));
                    if (kLooks) keep_order();  // or the masks of all tokens take scalar registers at once
                }
                if (kLooks && ((seen[0] | seen[1]) & 0x01010101u << kPaddingBit) != 0) {
#pragma unroll
                    for (int j = 0; j < kBatch; ++j) {
                        if (j < begin || j >= end) continue;
                        if (seen[j / 4] >> (j % 4 * 8 + kPaddingBit) & 1) outputs[j] = 0.0f;
                    }
                }
#pragma unroll
                for (int j = 0; j < kBatch; ++j) {
                    if (j < begin || j >= end) continue;
                    if (j < most) *reinterpret_cast<T*>(to) = from_float<T>(outputs[j]);
                    to += out_step;
                }
            };
            const auto make = [&](int most, int next) {
                make_some(0, kBatch, most, next);
                found += kBatch / 4;
            };
            // The same of a run's end: tokens that are not there are not made.
            const auto make_last = [&](int most, int next) {
                make_some(0, 1, most, next);
                if (most > 1) make_some(1, 4, most, next);
                if (most > 4) make_some(4, kBatch, most, next);
                found += kBatch / 4;
            };
            int left_over = count;
            constexpr int kSteady = kDirect ? 2 * kBatch : kBatch;
            if (kDirect) fetch(0, kBatch, left_over);
            for (; left_over >= kSteady; left_over -= kBatch) make(kBatch, kBatch);
            for (; left_over > 0; left_over -= kBatch) make_last(left_over, left_over - kBatch);
        };
        const auto walk_all = [&](auto looks, auto oldest) {
            if (use_silu)
                walk(looks, oldest, std::true_type{});
            else
                walk(looks, oldest, std::false_type{});
        };
        if (looks)
            walk_all(std::true_type{}, std::true_type{});
        else if (left_out == 0)
            walk_all(std::false_type{}, std::true_type{});
        else
            walk_all(std::false_type{}, std::false_type{});
        if (begins_row && !looks && !has_states && !(probe == 0.0f)) {
            // Zeros stood in for the tokens before the row, and some weight is infinite or NaN: skip those taps instead.
#pragma unroll 1
            for (int own = 0; own < kPast && own < count; ++own) {
                float sum = bias;
#pragma unroll
                for (int i = 0; i < kWidth; ++i)
                    if (own + i >= kPast) sum += weight[i] * input(first_from + (own + i - kPast) * x_step);
                *reinterpret_cast<T*>(first_to + own * out_step) = from_float<T>(use_silu ? silu(sum) : sum);
            }
        }
        if (count > 0 && again().final_states.data && t + begin + count == again().seqlen)
            write_final_state<T, kPast>(
                again(), b + s, d, [&](int back) { return *reinterpret_cast<const T*>(first_from + (count - back) * x_step); });
        first_from += round_step;
        first_to += again().plan.at_once * again().plan.out.lds_batch_step;
        first_found += again().plan.at_once * again().plan.tap_groups * kTapGroup;
    }
    __syncthreads();
    const bool along_tokens = again().plan.out.along_tokens;
    take_tile<T>(out, along_tokens ? t == 0 : first_channel == 0,
                 along_tokens ? t + tokens == again().seqlen : first_channel + channels == again().dim);
}

template <typename T>
void launch_tile_lds(const LdsCall& call, dim3 grid, bool direct, int shared, hipStream_t stream) {
    const dim3 block(kTileThreadsOf<T>, 1, 1);
    with_even_width<kMaxFastWidth>(call.width, [&](auto width) {
        constexpr int kWidth = decltype(width)::value;
        if constexpr (sizeof(T) == 4) {
            if (direct) HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile_lds<T, kWidth, true>), grid, block, shared, stream, call);
        }
        if (sizeof(T) == 2 || !direct)
            HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile_lds<T, kWidth, false>), grid, block, shared, stream, call);
    });
    check_launch("causal_conv1d_fwd");
}

}  // namespace hipconv
