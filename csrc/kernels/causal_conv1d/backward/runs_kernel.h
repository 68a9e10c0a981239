// This kernel is the causal conv1d backward of few channels ("runs"), in any layouts, with states and ids.
//
// A thread owns a run of tokens of a channel. Neighbouring lanes are neighbouring channels, then runs, then rows. x and dout of
// a tile come to LDS as they lie in memory, in 16-byte units, wherever memory has them in one piece (runs_move.h): a token of
// three channels is less than a word of a lane, and lanes find their elements in LDS without meeting in banks.
//
// A thread walks its run from the end to the start, a chunk of tokens at a time. Token t brings in x[t - kPast] and dout[t],
// from which its gradient g follows, which completes dx[t]: the gradients after it are there already. dx takes dout's place in
// LDS. The gradients of the kPast tokens behind a run are made first, before any thread stores; they belong to the next run,
// which sums dweight over them.
//
// A byte a token has the taps that count. Chunks of which all taps count, and those of the tokens behind, take a path that
// looks at none. So do the ends of rows that are one sequence: the first tokens' taps are known when it is compiled, and what
// is behind the last token is zeros, if no weight or input is so large that zeros matter. All sums of a token are made in the
// order in which `tile` makes them: both kernels have the same dx.
//
// A block goes through some tiles, adds up its threads' dweight and dbias in LDS and leaves them in its row of the workspace.
//
// Bytes: x, dout and the states are read once (and kPast tokens on either side of a tile again), dx and the gradients of the
// initial states are written once.
#pragma once

#include <hip/hip_runtime.h>

#include <type_traits>

#include "../common/launch.h"
#include "causal_conv1d/states_formula.h"
#include "derivative.h"
#include "launch/check.h"
#include "runs_move.h"
#include "taps.h"
#include "weights.h"

namespace hipconv {

// All taps of a filter, of which the first one may be left out, and those that reach further back than some tokens: of a row
// that begins with token 0, `before` is the number of taps in front of a token's own, else 0.
struct AllTapsBut {
    uint32_t has_first;
    int before;
    HIPCONV_INLINE bool sees(int e, int i) const { return e + i >= before && (i > 0 || has_first != 0); }
    HIPCONV_INLINE bool has(int) const { return true; }
    HIPCONV_INLINE AllTapsBut again(uint32_t) const { return *this; }
    HIPCONV_INLINE void look_from_here_on() {}
};

// Sums of eight products of such values are finite, and so is SiLU's derivative of them.
HIPCONV_INLINE bool is_moderate(float value) { return (value < 0.0f ? -value : value) < 1e18f; }

// This stands in front of each token. AMD keeps a condition in scalar registers, of which there are not enough for those of all
// tokens.
template <typename Taps>
HIPCONV_INLINE void look_at_next_token(Taps& taps) {
    if constexpr (!kHasPredicates && !std::is_same_v<Taps, AllTapsBut>) {
        keep_order();
        taps.look_from_here_on();
    }
}

// This stands behind each token: its part in the sums is added before conditions of the next one are looked at.
template <typename Taps, int kWidth>
HIPCONV_INLINE void finish_token(const Taps&, float (&sums)[kWidth]) {
    if constexpr (!kHasPredicates && !std::is_same_v<Taps, AllTapsBut>) {
#pragma unroll
        for (float& each : sums) in_a_register(each);
    }
}

// kWidth is even; the filter may be one tap narrower. Its taps are the last ones then.
template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdRunsThreads, bwd_runs_blocks(kWidth)) causal_conv1d_bwd_runs(BwdRunsCall call) {
    constexpr int kPast = kWidth - 1, kChunk = kBwdRunsChunk, kSize = static_cast<int>(sizeof(T));
    constexpr bool kKnowsEnds = kWidth > 6;  // of rows; shorter filters gained nothing
    using Bits = TapsOfBits<kChunk, kWidth>;
    HIPCONV_LARGE_SHARED(Words4, shared, kCopiesPastRegisters ? 1 : kBwdRunsLds / 16);
    char* const lds = reinterpret_cast<char*>(shared);
    const auto again = [&]() -> const BwdRunsCall& { return first_parameter_again(call); };

    let_next_kernel_begin();
    wait_for_kernel_before();
    const int thread = static_cast<int>(threadIdx.x);
    int c = 0, n = 0, run = 0;  // the thread's
    {
        const BwdRunsPlan& plan = again().plan;
        const int line = divide(thread, plan.of_channels);
        c = thread - line * static_cast<int>(plan.of_channels.value);
        n = divide(line, plan.of_runs);
        run = line - n * plan.runs;
    }
    const int seqlen = again().p.in.seqlen, left_out = kWidth - again().p.in.width;
    uint32_t flags = again().plan.flags;
    const auto has = [&](BwdRunsFlags flag) { return (flags & flag) != 0; };

    float weight[kWidth], dweight[kWidth], bias = 0.0f, dbias = 0.0f;
    load_bwd_weights(again().p.in, c, left_out, weight, bias);
#pragma unroll
    for (float& each : dweight) each = 0.0f;

    bool is_moderate_filter = is_moderate(bias);
#pragma unroll
    for (const float each : weight) is_moderate_filter = is_moderate_filter && is_moderate(each);
    const uint64_t all_taps = left_out ? kTapsInside<kWidth> & ~uint64_t{0x0101010101010101u} : kTapsInside<kWidth>;
#pragma unroll 1
    for (int stage = 0;; ++stage) {
        BwdRunsTile tile{};
        {
            const BwdRunsCall& of = again();
            const int tile_number = static_cast<int>(blockIdx.x) * of.plan.stages + stage;
            if (stage >= of.plan.stages || tile_number >= of.plan.tiles) break;
            tile.tokens = of.plan.run * of.plan.runs;
            if (of.plan.flags & kRunsWholeRows) {
                tile.first_row = tile_number * of.plan.rows;
                const int left = of.p.in.batch - tile.first_row;
                tile.rows = left < of.plan.rows ? left : of.plan.rows;
            } else {
                tile.first_row =
                    static_cast<int>(static_cast<uint32_t>(tile_number) / static_cast<uint32_t>(of.plan.tiles_of_row));
                tile.first_token = (tile_number - tile.first_row * of.plan.tiles_of_row) * tile.tokens;
                tile.rows = 1;
            }
        }
        if (stage > 0) __syncthreads();  // LDS has been read

        // ---- x, dout and taps come to LDS -----------------------------------------------------------------------------------
        {
            const auto range_of = [&](bool is_x) {
                const CausalConv1dInputs& in = again().p.in;
                const int past = in.width - 1, left = in.seqlen - tile.first_token;
                return BwdRunsRange{is_x && tile.first_token > 0 ? -past : 0,
                                    tile.tokens + past < left ? tile.tokens + past : left};
            };
            const auto bring = [&](auto ends, bool is_x, const Sequences& s, const BwdRunsTensor& how) {
                bwd_runs_bring<T, decltype(ends)::value>(again().plan, s, how, tile, range_of(is_x), again().p.in.dim, lds);
            };
            bring(std::false_type{}, true, again().p.in.x, again().plan.x);
            bring(std::false_type{}, false, again().p.dout, again().plan.dout);
            bring(std::true_type{}, true, again().p.in.x, again().plan.x);
            bring(std::true_type{}, false, again().p.dout, again().plan.dout);
        }
        if (has(kRunsIds)) {
            const BwdRunsPlan& plan = again().plan;
            const SmallDivisor by_taps = plan.of_taps;
            const bool in_quads = has(kRunsIdsInQuads);
            const int fours = static_cast<int>(by_taps.value), all = tile.rows * fours;
            uint32_t* const words = reinterpret_cast<uint32_t*>(lds + plan.taps_begin);
#pragma unroll 1
            for (int i = thread; i < all; i += kBwdRunsThreads) {
                const int row = divide(i, by_taps), t = tile.first_token + (i - row * fours) * 4;
                const int64_t b = int64_t{tile.first_row} + row;
                const uint32_t taps = in_quads ? bwd_taps_of_quad<kWidth>(again().p.in, b, t)
                                               : bwd_taps_of_four<kWidth, kHasPredicates>(again().p.in, b, t);
                words[i] = taps & static_cast<uint32_t>(all_taps);
            }
        }
        if constexpr (kCopiesPastRegisters) {
            close_copies();
            wait_for_copies<0>();
        }
        __syncthreads();

        // ---- the walk -------------------------------------------------------------------------------------------------------
        const int run_tokens = again().plan.run, first = tile.first_token + run * run_tokens;
        const bool is_active = n < tile.rows && first < seqlen;
        const int x_step = again().plan.x.t_step, dout_step = again().plan.dout.t_step;
        const int x_gap = again().plan.x.gap;
        int x_at = 0, dout_at = 0, taps_at = 0;           // in LDS: of x[t - kPast], of dout[t], and of the byte of t
        float window[kChunk + kPast], g[kChunk + kPast];  // from the first input that token t sees on, and from its gradient on
#pragma unroll
        for (int k = 0; k < kPast; ++k) window[kChunk + k] = g[kChunk + k] = 0.0f;
        const auto element = [&](int place) { return to_float(*reinterpret_cast<const T*>(lds + place)); };
        const auto bits_of = [&](int t) -> uint64_t {
            if (has(kRunsIds)) return *reinterpret_cast<const uint64_t*>(lds + taps_at);
            if (t >= kPast && t + kChunk <= seqlen) return all_taps;
            return taps_of_row<kChunk, kWidth>(t, seqlen, has(kRunsInitial)).bytes & all_taps;
        };
        // The gradient of a token, from what is in `inputs` from its first tap on.
        const auto gradient = [&](const auto& taps, int e, const float* inputs, float g_out) {
            float sum = bias;
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                if (taps.sees(e, i)) sum = weight[i] * inputs[i] + sum;
            return g_out * low(silu_derivative(twice(sum)));
        };
        const auto activated = [&](const auto& taps, int e, const float* inputs, float g_out) {
            if constexpr (kHasPredicates) {
                const float other = gradient(taps, e, inputs, g_out);
                return has(kRunsSilu) ? other : g_out;
            } else {
                return has(kRunsSilu) ? gradient(taps, e, inputs, g_out) : g_out;
            }
        };
        Bits next{0};
        if (is_active) {
            const BwdRunsCall& of = again();
            const BwdRunsMemory of_x(of.p.in.x, of.plan.x, tile), of_dout(of.p.dout, of.plan.dout, tile);
            x_at = bwd_runs_place(of_x, of.plan.x, n, c, kSize) + run * (of.plan.x.run + x_gap) + (run_tokens - kPast) * x_step;
            dout_at = bwd_runs_place(of_dout, of.plan.dout, n, c, kSize) + run * (of.plan.dout.run + of.plan.dout.gap) +
                      run_tokens * dout_step;
            taps_at = of.plan.taps_begin + n * of.plan.taps_pitch + run * run_tokens + run_tokens;
            const int t = first + run_tokens;
            uint32_t own_x_step = x_step, own_dout_step = dout_step;
            from_here_on(own_x_step);
            from_here_on(own_dout_step);
            if constexpr (kPast > 0) {
#pragma unroll
                for (int k = 0; k < kPast; ++k) window[kChunk + k] = element(x_at + k * static_cast<int>(own_x_step));
                if (t < seqlen) {
                    next.bytes = bits_of(t);
                    float inputs[2 * kPast], gradients[kPast];
#pragma unroll
                    for (int k = 0; k < kPast; ++k) {
                        inputs[k] = window[kChunk + k];
                        inputs[kPast + k] = element(x_at + (kPast + k) * static_cast<int>(own_x_step) + x_gap);
                        gradients[k] = element(dout_at + k * static_cast<int>(own_dout_step) + again().plan.dout.gap);
                    }
                    Bits taps = next;
#pragma unroll
                    for (int k = 0; k < kPast; ++k) {
                        look_at_next_token(taps);
                        const float made = activated(taps, k, inputs + k, gradients[k]);
                        g[kChunk + k] = taps.has(k) ? made : 0.0f;
                    }
                }
            }
        }
        __syncthreads();  // now dx may take dout's place

        if (is_active) {
            // Does the tokens from t on: `seen` tells which of the kWidth tokens from each on see its input.
            const auto do_chunk = [&](auto taps, auto seen, int t, int step, const auto& add_final) {
#pragma unroll
                for (int e = kChunk - 1; e >= 0; --e) {
                    look_at_next_token(taps);
                    look_at_next_token(seen);
                    float own = activated(taps, e, window + e, g[e]);
                    if (!taps.has(e)) own = 0.0f;
                    g[e] = own;
                    dbias += own;
                    float result = 0.0f;
                    const auto taps_again = taps.again(kWidth > 6 ? threadIdx.z : 0);
#pragma unroll
                    for (int i = 0; i < kWidth; ++i)
                        if (taps_again.sees(e, i)) dweight[i] = own * window[e + i] + dweight[i];
#pragma unroll
                    for (int k = 0; k < kWidth; ++k)
                        if (seen.sees(e, kPast - k)) result = weight[kPast - k] * g[e + k] + result;
                    finish_token(taps, dweight);
                    add_final(t + e, result);
                    *reinterpret_cast<T*>(lds + dout_at + e * step) = from_float<T>(result);
                }
            };
            // The bits of the last token tell which of the inputs in the final state count.
            const auto add_final = [&](int t, float& result) {
                const CausalConv1dBwdParams& p = again().p;
                const int past = p.in.width - 1, column = t - p.in.seqlen + past, b = tile.first_row + n;
                if (column < 0 || column >= past || !final_state_counts(p.in, b, t)) return;
                result += to_float(at<const T>(p.dfinal_states, b, c, column));
            };
#pragma unroll 1
            for (int t = first + run_tokens - kChunk; t >= first; t -= kChunk) {
                x_at -= kChunk * x_step;
                dout_at -= kChunk * dout_step;
                taps_at -= kChunk;
                uint32_t own_x_step = x_step, own_dout_step = dout_step;
                from_here_on(own_x_step);  // AMD has no scalar registers for multiples of these
                from_here_on(own_dout_step);
                const int in_front = t == first ? x_gap : 0;  // tokens before the run lie in the run before
#pragma unroll
                for (int e = 0; e < kChunk; ++e) {
                    if (e < kPast) {
                        window[e] = 0.0f;
                        if (t > 0) window[e] = element(x_at + e * static_cast<int>(own_x_step) - in_front);
                    } else {
                        window[e] = element(x_at + e * static_cast<int>(own_x_step));
                    }
                    g[e] = element(dout_at + e * static_cast<int>(own_dout_step));
                }
                if (kPast > 0 && t == 0 && has(kRunsInitial)) {
                    const CausalConv1dInputs& in = again().p.in;
#pragma unroll
                    for (int k = 0; k < kPast; ++k) {
                        const int column = k - kWidth + in.width;
                        if (column >= 0) window[k] = to_float(at<const T>(in.initial_states, tile.first_row + n, c, column));
                    }
                }
                const Bits own{bits_of(t)};
                constexpr uint64_t kBehind = kPast > 0 ? ~uint64_t{0} >> (64 - 8 * (kPast > 0 ? kPast : 1)) : 0;
                flags = again().plan.flags;
                bool is_usual = own.bytes == all_taps && ((next.bytes ^ all_taps) & kBehind) == 0, begins_row = false;
                if (kKnowsEnds && !has(kRunsIds) && !is_usual) {
                    is_usual = is_moderate_filter && !(has(kRunsFinal) && t + kChunk > seqlen - kPast);
                    begins_row = kPast > 0 && t == 0 && !has(kRunsInitial);
                    const int left = seqlen - t;
                    if (left < kChunk) {
#pragma unroll
                        for (int k = 0; k < kChunk + kPast; ++k) {
                            if (k >= left + kPast) window[k] = 0.0f;
                            is_usual = is_usual && is_moderate(window[k]);
                        }
#pragma unroll
                        for (int e = 0; e < kChunk; ++e)
                            if (e >= left) g[e] = 0.0f;
                    }
                }
                if (is_usual) {
                    const uint32_t has_first = left_out ? 0u : 1u;
                    const AllTapsBut all{has_first, 0};
                    const auto no_final = [](int, float&) {};
                    if (kKnowsEnds && begins_row)
                        do_chunk(AllTapsBut{has_first, kPast}, all, t, static_cast<int>(own_dout_step), no_final);
                    else
                        do_chunk(all, all, t, static_cast<int>(own_dout_step), no_final);
                } else {
                    // Bit i of a token's byte is tap i of the token that has the token's input there.
                    uint64_t seen = 0;
#pragma unroll
                    for (int k = 0; k < kWidth; ++k) {
                        const uint64_t later = k == 0 ? own.bytes : own.bytes >> 8 * k | next.bytes << (64 - 8 * k) % 64;
                        seen |= later & uint64_t{0x0101010101010101u} << (kPast - k);
                    }
                    const Bits seen_by{seen};
                    if (has(kRunsFinal) && t + kChunk > again().p.in.seqlen - kPast)
                        do_chunk(own, seen_by, t, static_cast<int>(own_dout_step), add_final);
                    else
                        do_chunk(own, seen_by, t, static_cast<int>(own_dout_step), [](int, float&) {});
                }
                next = own;
#pragma unroll
                for (int k = 0; k < kPast; ++k) {
                    window[kChunk + k] = window[k];
                    g[kChunk + k] = g[k];
                }
            }
            if (kPast > 0 && first == 0 && has(kRunsGiveInitial)) {
                Bits taps = next;
#pragma unroll
                for (int m = 1; m <= kPast; ++m) {  // the input m tokens before the row
                    const CausalConv1dBwdParams& p = again().p;
                    const int column = p.in.width - 1 - m;
                    if (column < 0) continue;
                    look_at_next_token(taps);
                    float result = 0.0f;
#pragma unroll
                    for (int k = m; k < kWidth; ++k)
                        if (taps.sees(k - m, kPast - k)) result = weight[kPast - k] * g[kChunk + k - m] + result;
                    if (has(kRunsFinal)) add_final(-m, result);
                    at<T>(p.dinitial_states, tile.first_row + n, c, column) = from_float<T>(result);
                }
            }
        }
        __syncthreads();

        const BwdRunsCall& of = again();
        const int left = of.p.in.seqlen - tile.first_token;
        bwd_runs_take<T>(of.plan, of.p.dx, of.p.dout, tile, {0, left < tile.tokens ? left : tile.tokens}, of.p.in.dim, lds);
    }

    // ---- dweight and dbias of the block -------------------------------------------------------------------------------------
    __syncthreads();
    float* const of_threads = reinterpret_cast<float*>(lds);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) of_threads[i * kBwdRunsThreads + thread] = dweight[i];
    of_threads[kWidth * kBwdRunsThreads + thread] = dbias;
    __syncthreads();
    const BwdRunsCall& last = again();
    float* const partials = global_pointer<float>(last.p.partials);
    const int dim = last.p.in.dim, lines = last.plan.runs * last.plan.rows;
    for (int e = thread; e < (last.p.in.width + 1) * dim; e += kBwdRunsThreads) {
        const int i = divide(e, last.plan.of_channels), of_channel = e - i * dim;
        float sum = 0.0f;
        for (int line = 0; line < lines; ++line) sum += of_threads[(i + left_out) * kBwdRunsThreads + line * dim + of_channel];
        if (partials)
            partials[(int64_t{blockIdx.x} * (last.p.in.width + 1) + i) * dim + of_channel] = sum;
        else
            bwd_store_sum<float>(last.p, of_channel, i, sum);
    }
}

template <typename T, int kWidth = kBwdRunsMaxWidth>
void launch_bwd_runs_of(const BwdRunsCall& call, hipStream_t stream) {
    if constexpr (kWidth > 2) {
        if (call.p.in.width <= kWidth - 2) return launch_bwd_runs_of<T, kWidth - 2>(call, stream);
    }
    const dim3 grid(call.plan.blocks, 1, 1), block(kBwdRunsThreads, 1, 1);
    HIPCONV_LAUNCH(true, (causal_conv1d_bwd_runs<T, kWidth>), grid, block, launch_shared_bytes(call.plan.lds_bytes), stream,
                   call);
    check_launch("causal_conv1d_bwd");
}

}  // namespace hipconv
