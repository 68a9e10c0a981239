// This kernel is the causal conv1d backward of short rows ("rows"), in any layouts, with states and ids.
//
// A thread owns a channel and walks whole rows of it, one after another, so that no token is computed twice, no lane needs
// another's gradients, and what a row has before and behind its tokens is loaded and stored by the lanes of neighbouring
// channels side by side. Neighbouring lanes are neighbouring channels, then rows.
//
// A stage is some rows of the block's channels. Their x and dout come to LDS first: in whole vectors, wherever memory has them
// in one piece, so that neither the order of channels and tokens matters nor where rows begin; elsewhere each thread brings
// its own row, element by element. dx goes back in the same way, and takes dout's place in LDS where both lie alike. The states
// of a thread's next row are loaded while it walks through this one.
//
// A row's inputs, with those before it, and the sums of dx of these have registers of their own: which taps of the first tokens
// see nothing is known when it is compiled then. All sums of a token are made in the order in which `tile` makes them: both
// kernels have the same dx.
//
// A block of threads adds up its threads' dweight and dbias in LDS and leaves them in its row of the workspace.
//
// Bytes: x, dout and the states are read once, dx and the gradients of the initial states are written once.
#pragma once

#include <hip/hip_runtime.h>

#include <type_traits>

#include "../common/launch.h"
#include "causal_conv1d/states_formula.h"
#include "derivative.h"
#include "device/vec.h"
#include "launch/check.h"
#include "rows_plan.h"
#include "taps.h"
#include "weights.h"

namespace hipconv {

// The taps of a token, a bit each.
struct TapsOfByte {
    uint32_t byte;
    HIPCONV_INLINE bool sees(int i) const { return (byte >> i & 1) != 0; }
    // AMD has no scalar registers for all conditions, and NVIDIA sets all those of a byte at once if it does not know that they
    // are the ones of before (`nothing` is 0).
    HIPCONV_INLINE void look_again(uint32_t nothing) {
        byte += nothing;
        from_here_on(byte);
    }
};

// The taps of a filter from tap `first` on, which is known when it is compiled. Tap 0 may be left out.
struct TapsOfFilter {
    uint32_t has_zeroth;
    int first;
    HIPCONV_INLINE bool sees(int i) const { return i >= first && (i > 0 || has_zeroth != 0); }
    HIPCONV_INLINE void look_again(uint32_t) {}
};

// Calls f with the number of a row's tokens as a constant. (Sums whose place is known when it is compiled are in registers.)
template <int kTokens, typename F>
HIPCONV_INLINE void with_tokens(int tokens, const F& f) {
    if (tokens == kTokens) {
        keep_apart<kTokens>();
        f(std::integral_constant<int, kTokens>{});
    } else if constexpr (kTokens > 1) {
        with_tokens<kTokens - 1>(tokens, f);
    }
}

// A thread's part of a stage.
struct BwdRowsStage {
    int first_row, count;  // rows
    int first_channel, channels;
};

enum class BwdRowsSide { x, dout, dx };

template <BwdRowsSide kSide>
HIPCONV_INLINE const Sequences& bwd_rows_sequences(const BwdRowsCall& call) {
    return kSide == BwdRowsSide::x ? call.p.in.x : kSide == BwdRowsSide::dout ? call.p.dout : call.p.dx;
}
template <BwdRowsSide kSide>
HIPCONV_INLINE const BwdRowsTensor& bwd_rows_tensor(const BwdRowsCall& call) {
    return kSide == BwdRowsSide::x ? call.plan.x : kSide == BwdRowsSide::dout ? call.plan.dout : call.plan.dx;
}

// The place of a row's stretch in memory, and how many bytes that is behind a multiple of 16.
HIPCONV_INLINE char* bwd_rows_stretch(const Sequences& s, const BwdRowsTensor& how, const BwdRowsStage& stage, int n) {
    const int64_t row = int64_t{stage.first_row} + (how.rows_follow ? 0 : n);
    return global_pointer<char>(s.data) + row * how.row_memory + stage.first_channel * how.d_memory;
}
HIPCONV_INLINE int bwd_rows_early(const char* address) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(address) & (kBwdRowsUnit - 1));
}

// The stretches of a flat tensor's part of a stage; there are none of a tensor that is not flat.
struct BwdRowsStretches {
    char* first;
    int64_t row_memory;
    int row_step, begin, bytes, count;
};

template <typename T, BwdRowsSide kSide>
HIPCONV_INLINE BwdRowsStretches bwd_rows_stretches(const BwdRowsCall& call, const BwdRowsStage& stage) {
    const BwdRowsTensor& how = bwd_rows_tensor<kSide>(call);
    const int of_rows = how.rows_follow ? (stage.count - 1) * how.row_step : 0;
    return {bwd_rows_stretch(bwd_rows_sequences<kSide>(call), how, stage, 0),
            how.row_memory,
            how.row_step,
            how.begin,
            (stage.channels - 1) * how.d_step + (call.p.in.seqlen - 1) * how.t_step + of_rows + static_cast<int>(sizeof(T)),
            !how.is_flat      ? 0
            : how.rows_follow ? 1
                              : stage.count};
}

HIPCONV_INLINE bool bwd_rows_is_whole(int early, int bytes, int offset) {
    return offset >= early && offset + kBwdRowsUnit <= early + bytes;
}

// Moves what stretches have of whole units to LDS or, with kBack, from there.
template <bool kBack>
__device__ __forceinline__ void bwd_rows_move_units(const BwdRowsStretches& s, char* lds) {
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    const int units = (s.bytes + 2 * kBwdRowsUnit - 2) / kBwdRowsUnit;
    // Where stretches are short, threads move several of them at a time: each has the same unit of all of its stretches.
    const int at_once = s.count > 1 && units < threads ? threads / units : 1, own = at_once > 1 ? thread / units : 0;
    if (own >= at_once) return;
#pragma unroll 1
    for (int unit = thread - own * units; unit < units; unit += at_once > 1 ? units : threads) {
        const int offset = unit * kBwdRowsUnit;
#pragma unroll 1
        for (int n = own; n < s.count; n += at_once) {
            char* const stretch = s.first + n * s.row_memory;
            const int early = bwd_rows_early(stretch);
            if (!bwd_rows_is_whole(early, s.bytes, offset)) continue;
            Words4* const in_memory = reinterpret_cast<Words4*>(stretch - early + offset);
            Words4* const in_lds = reinterpret_cast<Words4*>(lds + s.begin + n * s.row_step + offset);
            if constexpr (kBack)
                *in_memory = *in_lds;
            else if constexpr (kCopiesPastRegisters)
                copy_later(in_lds, in_memory, /*zeros=*/false);
            else
                *in_lds = *in_memory;
        }
    }
}

// The same of the units at the ends of stretches of two tensors, of which only a part is the stretch's.
template <typename T, bool kBack>
__device__ __forceinline__ void bwd_rows_move_ends(const BwdRowsStretches& a, const BwdRowsStretches& b, char* lds) {
    constexpr int kSize = static_cast<int>(sizeof(T)), kElements = kBwdRowsUnit / kSize;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < 2 * (a.count + b.count); i += static_cast<int>(blockDim.x)) {
        const bool is_a = i < 2 * a.count;
        const int n = is_a ? i / 2 : i / 2 - a.count, bytes = is_a ? a.bytes : b.bytes;
        char* const stretch = (is_a ? a.first : b.first) + n * (is_a ? a.row_memory : b.row_memory);
        const int early = bwd_rows_early(stretch), end = early + bytes;
        const int offset = i % 2 ? (end - 1) / kBwdRowsUnit * kBwdRowsUnit : 0;
        if (bwd_rows_is_whole(early, bytes, offset) || (i % 2 && offset == 0)) continue;
        T* const in_memory = reinterpret_cast<T*>(stretch - early + offset);
        const int row = is_a ? a.begin + n * a.row_step : b.begin + n * b.row_step;
        T* const in_lds = reinterpret_cast<T*>(lds + row + offset);
        T elements[kElements];
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            const int at = offset + e * kSize;
            if (at >= early && at < end) elements[e] = kBack ? in_lds[e] : in_memory[e];
        }
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            const int at = offset + e * kSize;
            if (at < early || at >= end) continue;
            if constexpr (kBack)
                in_memory[e] = elements[e];
            else
                in_lds[e] = elements[e];
        }
    }
}

// Moves dx of a stage from LDS, element by element, in the order of memory.
template <typename T>
__device__ __forceinline__ void bwd_rows_take_elements(const BwdRowsCall& call, const BwdRowsStage& stage, char* lds) {
    const BwdRowsCall& again = first_parameter_again(call);
    const BwdRowsTensor& how = again.plan.dx;
    const bool tokens_inside = how.tokens_inside;
    const int threads = static_cast<int>(blockDim.x);
    const SmallDivisor by_row = again.plan.of_row, by_line = again.plan.of_line;
    const int row = static_cast<int>(by_row.value), line = static_cast<int>(by_line.value);
    char* const first_stretch = bwd_rows_stretch(again.p.dx, how, stage, 0);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < row * stage.count; i += threads) {
        const int n = divide(i, by_row), of_row = i - n * row;
        const int outer = divide(of_row, by_line), inner = of_row - outer * line;
        const int c = tokens_inside ? outer : inner, t = tokens_inside ? inner : outer;
        if (c >= stage.channels) continue;
        char* const stretch = first_stretch + n * how.row_memory;
        const int at = c * how.d_step + t * how.t_step, early = bwd_rows_early(stretch);
        *reinterpret_cast<T*>(stretch + at) = *reinterpret_cast<const T*>(lds + how.begin + early + n * how.row_step + at);
    }
}

// The byte of LDS where row n of channel c of the block begins.
template <BwdRowsSide kSide>
HIPCONV_INLINE int bwd_rows_place(const BwdRowsCall& call, const BwdRowsStage& stage, int n, int c) {
    const BwdRowsTensor& how = bwd_rows_tensor<kSide>(call);
    const int early = how.is_flat ? bwd_rows_early(bwd_rows_stretch(bwd_rows_sequences<kSide>(call), how, stage, n)) : 0;
    return how.begin + early + n * how.row_step + c * how.d_step;
}

// Brings the part of a stage to LDS that is of a tensor that is not flat: each thread its own rows, from row `own` on.
template <typename T, BwdRowsSide kSide>
__device__ __forceinline__ void bwd_rows_bring_own(const BwdRowsCall& call, const BwdRowsStage& stage, int own, int c,
                                                   char* lds) {
    if (bwd_rows_tensor<kSide>(first_parameter_again(call)).is_flat) return;
    if (c >= stage.channels) return;
    constexpr int kAtOnce = kHasPredicates ? 8 : 4;
    const BwdRowsCall& again = first_parameter_again(call);
    const BwdRowsTensor& how = bwd_rows_tensor<kSide>(again);
    const int64_t t_memory = how.t_memory;
    const int seqlen = again.p.in.seqlen, t_step = how.t_step, rows = again.plan.rows;
#pragma unroll 1
    for (int n = own; n < stage.count; n += rows) {
        const char* from = global_pointer<char>(bwd_rows_sequences<kSide>(again).data) +
                           (int64_t{stage.first_row} + n) * how.row_memory + int64_t{stage.first_channel + c} * how.d_memory;
        char* to = lds + bwd_rows_place<kSide>(again, stage, n, c);
#pragma unroll 1
        for (int t = 0; t < seqlen; t += kAtOnce) {
            T tokens[kAtOnce];
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                if (t + k < seqlen) tokens[k] = *global_pointer<const T>(from);
                from += t_memory;
            }
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                if (t + k < seqlen) *reinterpret_cast<T*>(to) = tokens[k];
                to += t_step;
            }
        }
    }
}

// Makes the bytes of the taps of a row's tokens, whose ids are all on their way before one is looked at.
template <int kWidth>
HIPCONV_INLINE void bwd_rows_make_taps(const CausalConv1dInputs& in, int64_t b, int left_out, uint8_t* bytes) {
    constexpr int kMost = kBwdRowsMostTokens, kPast = kWidth - 1;
    const bool has_initial = in.initial_states.data;
    int32_t ids[kMost];
#pragma unroll
    for (int t = 0; t < kMost; ++t) ids[t] = t < in.seqlen ? sequence_of(in, b, t) : -1;
#pragma unroll
    for (int t = 0; t < kMost; ++t) {
        uint32_t byte = 0;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            const int at = t - kPast + i;  // in front of a row are inputs of its first sequence
            if ((at >= 0 || has_initial) && ids[at < 0 ? 0 : at] == ids[t]) byte |= 1u << i;
        }
        if (t < in.seqlen) bytes[t] = static_cast<uint8_t>(ids[t] < 0 ? 0 : byte >> left_out);
    }
}

// kWidth is even; the filter may be one tap narrower. Its taps are the last ones then.
template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdRowsThreads, bwd_rows_blocks(kWidth)) causal_conv1d_bwd_rows(BwdRowsCall call) {
    constexpr int kPast = kWidth - 1, kMost = kBwdRowsMostTokens;
    HIPCONV_LARGE_SHARED(Words4, shared, kCopiesPastRegisters ? 1 : kBwdRowsLds / 16);
    char* const lds = reinterpret_cast<char*>(shared);
    const auto again = [&]() -> const BwdRowsCall& { return first_parameter_again(call); };

    let_next_kernel_begin();
    wait_for_kernel_before();
    const uint32_t piece = blockIdx.z * gridDim.y + blockIdx.y;
    if (piece >= again().plan.pieces) return;
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    BwdRowsStage part{};
    int own_row = 0, c = 0;
    {
        const BwdRowsCall& first = again();
        own_row = thread / first.plan.channels;
        c = thread - own_row * first.plan.channels;
        part.first_channel = static_cast<int>(blockIdx.x) * first.plan.channels;
        const int channels_left = first.p.in.dim - part.first_channel;
        part.channels = channels_left < first.plan.channels ? channels_left : first.plan.channels;
    }
    const bool has_channel = c < part.channels;
    const int d = part.first_channel + (has_channel ? c : 0);
    const int left_out = kWidth - again().p.in.width, past = kPast - left_out, seqlen = again().p.in.seqlen;
    uint32_t flags = again().plan.flags;
    const auto has = [&](BwdRowsFlags flag) { return (flags & flag) != 0; };
    const auto has_tap = [&](int i) { return i > 0 || left_out == 0; };

    float weight[kWidth], dweight[kWidth], bias = 0.0f, dbias = 0.0f;
    load_bwd_weights(again().p.in, d, left_out, weight, bias);
#pragma unroll
    for (float& each : dweight) each = 0.0f;

    // Loads the states of a row, a column for each tap but the last.
    T initial[kPast], final[kPast];
    const auto load_state = [&](const Sequences& s, int64_t b, T(&columns)[kPast]) {
        const T* from = &at<const T>(s, b, d, 0);
        const int64_t step = s.seqlen_stride;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            if (!has_tap(i)) continue;
            columns[i] = *from;
            from += step;
        }
    };
    const auto load_initial = [&](int64_t b) {
        if (has(kRowsInitial)) load_state(again().p.in.initial_states, b, initial);
    };
    const auto load_final = [&](int64_t b) {
        if (has(kRowsFinal)) load_state(again().p.dfinal_states, b, final);
    };

    // Walks through row n of the stage, and loads the states of the row `next` meanwhile, if there is one.
    const auto walk = [&](int n, int64_t next) {
        const int64_t b = int64_t{part.first_row} + n;
        flags = again().plan.flags;
        int x_at = bwd_rows_place<BwdRowsSide::x>(again(), part, n, c);
        int dout_at = bwd_rows_place<BwdRowsSide::dout>(again(), part, n, c);
        int dx_in_lds = 0;
        char* dx_in_memory = nullptr;
        if (has(kRowsDxIsFlat)) {
            dx_in_lds = bwd_rows_place<BwdRowsSide::dx>(again(), part, n, c);
        } else {
            const BwdRowsCall& of_dx = again();
            dx_in_memory = global_pointer<char>(of_dx.p.dx.data) + b * of_dx.plan.dx.row_memory + d * of_dx.plan.dx.d_memory;
        }
        const int x_step = again().plan.x.t_step, dout_step = again().plan.dout.t_step, dx_step = again().plan.dx.t_step;
        const int bytes_at = again().plan.taps_begin + n * seqlen;
        const auto store_next = [&](float value) {
            const T element = from_float<T>(value);
            if (has(kRowsDxIsFlat)) {
                *reinterpret_cast<T*>(lds + dx_in_lds) = element;
                dx_in_lds += dx_step;
            } else {
                *global_pointer<T>(dx_in_memory) = element;
                dx_in_memory += again().plan.dx.t_memory;
            }
        };

        // These are the inputs that the tokens see, and their gradients: those before the row first.
        float window[kPast + kMost], sums[kPast + kMost];
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            window[i] = has(kRowsInitial) && has_tap(i) ? to_float(initial[i]) : 0.0f;
            sums[i] = 0.0f;
        }
        if (next >= 0) load_initial(next);

        // Does token t, whose taps see `taps`.
        const auto step = [&](auto taps, int t) {
            window[kPast + t] = to_float(*reinterpret_cast<const T*>(lds + x_at));
            float g = to_float(*reinterpret_cast<const T*>(lds + dout_at));
            x_at += x_step;
            dout_at += dout_step;
            sums[kPast + t] = 0.0f;
            const auto activated = [&]() {
                float sum = bias;
#pragma unroll
                for (int i = 0; i < kWidth; ++i)
                    if (taps.sees(i)) sum = weight[i] * window[t + i] + sum;
                return g * low(silu_derivative(twice(sum)));
            };
            if constexpr (kHasPredicates) {
                const float other = activated();
                if (has(kRowsSilu)) g = other;
            } else {
                if (has(kRowsSilu)) g = activated();
            }
            taps.look_again(kWidth > 6 ? threadIdx.z : 0);
            if (taps.sees(kPast)) dbias += g;
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                if (!taps.sees(i)) continue;
                dweight[i] = g * window[t + i] + dweight[i];
                sums[t + i] = weight[i] * g + sums[t + i];
            }
        };
        // AMD has no scalar registers for conditions of all tokens from one use to the next.
        const auto tokens = [&]() { return again().p.in.seqlen; };
        constexpr uint32_t kAll = (2u << kPast) - 1;
        const uint32_t all = ((1u << (past + 1)) - 1) << left_out;
        const int first_seen = has(kRowsInitial) || tokens() > past ? 0 : past + 1 - tokens();
        uint32_t own = all << first_seen & all;             // the bits of the last token's taps
        bool begins = !has(kRowsInitial), is_usual = true;  // taps see what they do in a row that is one sequence
        if (has(kRowsIds)) {
            const int count = tokens();
            uint32_t of_first = 0, behind = 0;
#pragma unroll
            for (int t = 0; t < kMost; ++t) {
                if (t >= count) continue;
                own = uint32_t{reinterpret_cast<const uint8_t*>(lds)[bytes_at + t]} << left_out;
                of_first |= own ^ (t < kPast ? kAll << (kPast - t) & kAll : kAll);
                behind |= own ^ kAll;
            }
            begins = (of_first & all) == 0;
            is_usual = begins || (behind & all) == 0;
        }
        const int count = tokens();
        if (!is_usual) {
#pragma unroll
            for (int t = 0; t < kMost; ++t)
                if (t < count) step(TapsOfByte{uint32_t{reinterpret_cast<const uint8_t*>(lds)[bytes_at + t]} << left_out}, t);
        } else if (!begins) {
#pragma unroll
            for (int t = 0; t < kMost; ++t)
                if (t < count) step(TapsOfFilter{has_tap(0) ? 1u : 0u, 0}, t);
        } else {
#pragma unroll
            for (int t = 0; t < kMost; ++t)
                if (t < count) step(TapsOfFilter{has_tap(0) ? 1u : 0u, kPast - t}, t);
        }
        // The final state has the last inputs, of which the last token sees those that count.
        if (has(kRowsFinal)) {
            with_tokens<kMost>(tokens(), [&](auto end) {
#pragma unroll
                for (int i = 0; i < kPast; ++i)
                    if (has_tap(i) && (own >> (i + 1) & 1)) sums[decltype(end)::value + i] += to_float(final[i]);
            });
        }
        if (next >= 0) load_final(next);
        if (has(kRowsGiveInitial)) {
            const Sequences& s = again().p.dinitial_states;
            T* to = &at<T>(s, b, d, 0);
            const int64_t step_of_column = s.seqlen_stride;
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                if (!has_tap(i)) continue;
                *to = from_float<T>(sums[i]);
                to += step_of_column;
            }
        }
        const int stored = tokens();
#pragma unroll
        for (int t = 0; t < kMost; ++t)
            if (t < stored) store_next(sums[kPast + t]);
    };

    int rows = 0, rows_a_stage = 0, first_stage = 0, last_stage = 0;
    int end = 0;  // of the piece's rows
    {
        const BwdRowsCall& first = again();
        rows = first.plan.rows;
        rows_a_stage = rows * first.plan.turns;
        first_stage = static_cast<int>(piece) * first.plan.stages;
        last_stage = first_stage + first.plan.stages;
        if (last_stage > first.plan.all_stages) last_stage = first.plan.all_stages;
        end = last_stage == first.plan.all_stages ? first.p.in.batch : last_stage * rows_a_stage;
    }
    const int64_t first_row = int64_t{first_stage * rows_a_stage} + own_row;
    if (has_channel && first_row < end) {
        load_initial(first_row);
        load_final(first_row);
    }
#pragma unroll 1
    for (int stage = first_stage; stage < last_stage; ++stage) {
        part.first_row = stage * rows_a_stage;
        const int left = end - part.first_row;
        part.count = left < rows_a_stage ? left : rows_a_stage;
        if (stage != first_stage) __syncthreads();
        {
            const BwdRowsStretches of_x = bwd_rows_stretches<T, BwdRowsSide::x>(again(), part);
            const BwdRowsStretches of_dout = bwd_rows_stretches<T, BwdRowsSide::dout>(again(), part);
            bwd_rows_move_units</*kBack=*/false>(of_x, lds);
            bwd_rows_move_units</*kBack=*/false>(of_dout, lds);
            bwd_rows_move_ends<T, /*kBack=*/false>(of_x, of_dout, lds);
        }
        bwd_rows_bring_own<T, BwdRowsSide::x>(call, part, own_row, c, lds);
        bwd_rows_bring_own<T, BwdRowsSide::dout>(call, part, own_row, c, lds);
        if (has(kRowsIds)) {
            uint8_t* const bytes = reinterpret_cast<uint8_t*>(lds + again().plan.taps_begin);
#pragma unroll 1
            for (int n = thread; n < part.count; n += threads)
                bwd_rows_make_taps<kWidth>(again().p.in, int64_t{part.first_row} + n, left_out, bytes + n * seqlen);
        }
        if constexpr (kCopiesPastRegisters) {
            close_copies();
            wait_for_copies<0>();
        }
        __syncthreads();
#pragma unroll 1
        for (int n = own_row; has_channel && n < part.count; n += rows) {
            const int64_t next = int64_t{part.first_row} + n + rows;
            walk(n, next < end ? next : -1);
        }
        if (has(kRowsDxIsFlat)) {
            __syncthreads();
            if (again().plan.dx.has_gaps) {
                bwd_rows_take_elements<T>(call, part, lds);
            } else {
                const BwdRowsStretches of_dx = bwd_rows_stretches<T, BwdRowsSide::dx>(again(), part);
                bwd_rows_move_units</*kBack=*/true>(of_dx, lds);
                bwd_rows_move_ends<T, /*kBack=*/true>(of_dx, {}, lds);
            }
        }
    }

    // ---- dweight and dbias of the block -------------------------------------------------------------------------------------
    __syncthreads();
    float* const of_threads = reinterpret_cast<float*>(lds);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) of_threads[i * threads + thread] = dweight[i];
    of_threads[kWidth * threads + thread] = dbias;
    __syncthreads();
    const BwdRowsCall& last = again();
    float* const partials = global_pointer<float>(last.p.partials);
    const int channels = last.plan.channels;
    for (int e = thread; e < (past + 2) * part.channels; e += threads) {
        const int i = e / part.channels, of_block = e - i * part.channels;
        float sum = 0.0f;
        for (int row = 0; row < rows; ++row) sum += of_threads[(i + left_out) * threads + row * channels + of_block];
        const int64_t channel = int64_t{part.first_channel} + of_block;
        if (partials)
            partials[(int64_t{piece} * (past + 2) + i) * last.p.in.dim + channel] = sum;
        else
            bwd_store_sum<float>(last.p, channel, i, sum);
    }
}

template <typename T, int kWidth = kBwdRowsMaxWidth>
void launch_bwd_rows_of(const BwdRowsCall& call, hipStream_t stream) {
    if constexpr (kWidth > 2) {
        if (call.p.in.width <= kWidth - 2) return launch_bwd_rows_of<T, kWidth - 2>(call, stream);
    }
    const BwdRowsPlan& plan = call.plan;
    const dim3 grid = grid_of(plan.groups, plan.pieces), block(static_cast<unsigned>(plan.channels * plan.rows), 1, 1);
    HIPCONV_LAUNCH(true, (causal_conv1d_bwd_rows<T, kWidth>), grid, block, launch_shared_bytes(plan.lds_bytes), stream, call);
    check_launch("causal_conv1d_bwd");
}

}  // namespace hipconv
