// The channel-first backward kernel (vector.cu), in its forms (vector_walk.h).
#pragma once

#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "causal_conv1d/states_formula.h"
#include "launch/check.h"
#include "vector_step.h"
#include "vector_walk.h"
#include "whole_walk.h"

namespace hipconv {

// Those of the columns of a state that bits say: column `first` + k, if bit k is set. A state has the columns that are bits at
// first; those of tokens of other sequences than the last one are taken away.
template <typename T, int kWidth>
struct BwdVectorColumns {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    static constexpr int kSize = static_cast<int>(sizeof(T));
    Byte* at;
    int64_t step;  // bytes
    uint32_t bits;

    HIPCONV_INLINE BwdVectorColumns(const Sequences& s, int32_t b, uint32_t d, int32_t first)
        : at(global_pointer<Byte>(s.data) + (b * s.batch_stride + d * s.dim_stride + first * s.seqlen_stride) * kSize),
          step(s.seqlen_stride * kSize) {
        constexpr uint32_t kAll = (1u << (kWidth - 1)) - 1;
        bits = first < 0 ? kAll << -first : kAll >> first;
    }

    HIPCONV_INLINE bool has(int k) const { return (bits >> k & 1u) != 0; }

    // Takes away those that a final state does not have of its row: bit k is of token t + k.
    HIPCONV_INLINE void leave_final(const CausalConv1dInputs& in, int32_t b, int32_t t) {
        if (!in.initial_states.data && t < 0) bits &= ~0u << -t;
        if (!in.seq_idx.data) return;
#pragma unroll 1
        for (int k = 0; bits >> k; ++k)
            if (has(k) && !final_state_counts(in, b, t + k)) bits &= ~(1u << k);
    }

    // Calls use(k, value) for each of kCount that is there, of which some are on their way before one is used: as many as there
    // are registers for.
    template <int kCount, typename Use>
    HIPCONV_INLINE void load(Use use) const {
        constexpr int kAtOnce = !kHasPredicates || (std::is_same_v<T, const f16> && kWidth > 5) ? 1 : 4;
        Byte* next = at;
#pragma unroll
        for (int from = 0; from < kCount; from += kAtOnce) {
            std::remove_const_t<T> values[kAtOnce]{};
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k, next += step)
                if (from + k < kCount && has(from + k)) values[k] = *global_pointer<T>(next);
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k)
                if (from + k < kCount && has(from + k)) use(from + k, to_float(values[k]));
        }
    }

    // Loads each that is there to its place from kFirst on, where nothing is yet: so all of them are on their way at once, and
    // take no other registers.
    template <int kFirst, int kSize>
    HIPCONV_INLINE void load_into(float (&to)[kSize]) const {
        using Element = std::remove_const_t<T>;
        if constexpr (!kHasPredicates) {
            load<kSize - kFirst>([&](int k, float value) { to[kFirst + k] = value; });
        } else {
            using Bits = typename WordsOf<sizeof(T)>::type;
            Byte* next = at;
#pragma unroll
            for (int k = 0; k < kSize - kFirst; ++k, next += step)
                if (has(k)) to[kFirst + k] = bit_cast<float>(static_cast<uint32_t>(*global_pointer<const Bits>(next)));
            if constexpr (sizeof(T) == 2) {
#pragma unroll
                for (int k = 0; k < kSize - kFirst; ++k)
                    if (has(k)) to[kFirst + k] = low(unpack<Element>(bit_cast<uint32_t>(to[kFirst + k])));
            }
        }
    }

    template <int kCount, typename Value>
    HIPCONV_INLINE void store(Value value) const {
        Byte* next = at;
#pragma unroll
        for (int k = 0; k < kCount; ++k, next += step)
            if (has(k)) *global_pointer<T>(next) = from_float<T>(value(k));
    }
};

// Those of the tokens from t on that lie before the row's start come from the initial state.
template <typename T, int kWidth, int kOldest, int kWindow>
HIPCONV_INLINE void bwd_vector_load_state(const CausalConv1dInputs& in, int32_t b, uint32_t d, int32_t t,
                                          float (&window)[kWindow]) {
    const BwdVectorColumns<const T, kWidth> columns(in.initial_states, b, d, t);
    columns.template load_into<kOldest>(window);
}

// Adds the final state's part to the gradients of inputs from t on, which is `from_end` tokens behind the row's end. Some of
// them may be in the initial state.
template <typename T, int kWidth, bool kWhole, int kCount>
HIPCONV_INLINE void bwd_vector_add_final(const CausalConv1dBwdParams& p, int32_t b, uint32_t d, int32_t t, int32_t from_end,
                                         float (&gradients)[kCount]) {
    BwdVectorColumns<const T, kWidth> columns(p.dfinal_states, b, d, from_end + kWidth - 1);
    // Where columns are known when it is compiled, and on AMD, which has no scalar registers for it, ids are looked at one by
    // one.
    constexpr bool kFirst = kHasPredicates && !kWhole;
    if constexpr (kFirst) columns.leave_final(p.in, b, t);
    columns.template load<kCount>([&](int k, float value) {
        if (kFirst || final_state_counts(p.in, b, t + k)) gradients[k] += value;
    });
}

template <typename T, int kWidth, BwdForm kForm>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdVectorThreads, bwd_vector_blocks(kWidth, kForm, static_cast<int>(sizeof(T))))
    causal_conv1d_bwd_vector(BwdVectorParams p, BwdVectorPlan plan) {
    using Layout = BwdVectorLayout<T, kWidth>;
    constexpr int kSize = Layout::kSize, kTokens = Layout::kTokens, kPast = Layout::kPast, kOldest = Layout::kOldest;
    constexpr int kBefore = Layout::kBefore, kOwn = Layout::kOwn, kWindow = Layout::kWindow;
    constexpr bool kPlain = kForm == BwdForm::plain, kAcross = kForm == BwdForm::across;
    constexpr bool kWhole = kPlain || kForm == BwdForm::aligned;  // rows are whole vectors on 16-byte boundaries
    constexpr bool kAnySteps = kForm == BwdForm::any_with_states,
                   kHasStates = (kAnySteps || kAcross || kForm == BwdForm::aligned) && kPast > 0;
    constexpr bool kAllFirst = kForm != BwdForm::any || kWidth > 3;  // short filters have predicates for two tokens
    using Across = BwdAcross<T, kWidth>;
    constexpr int kSpill = kPast > 0 ? kPast : 1, kMore = kWhole ? 0 : 1;
    constexpr int kSums = kBwdVectorSums<kTokens, kWidth>;
    using Sum = BwdVectorSum;
    using Bits = TapsOfBits<kTokens, kWidth>;

    constexpr bool kFirstAtOnce = bwd_vector_loads_first_at_once(kWidth, kForm, kSize);

    constexpr int kSumsOfRows = kWhole ? 1 : kBwdVectorThreads * (kWidth + 1);
    constexpr bool kMakesTaps = !kPlain && kBwdVectorOwnTaps > 0;
    HIPCONV_SHARED(float, sums_of_rows, kSumsOfRows);
    HIPCONV_SHARED(Words4, x_staged, kAcross ? 2 * Across::kStage / 16 : 1);
    HIPCONV_SHARED(uint32_t, own_taps, kMakesTaps ? (kBwdVectorOwnTaps + 2 * kBwdVectorOwnTapsAround) / 4 : 1);

    let_next_kernel_begin();
    wait_for_kernel_before();
    Piece piece = piece_of_block(plan.taper, blockIdx.y * gridDim.x + blockIdx.x);
    if (piece.count == 0) return;
    uint32_t row_of_sums = piece.number;
    from_here_on(row_of_sums);  // on AMD lanes have room for it, scalar registers have not
    const int32_t lanes = static_cast<int32_t>(blockDim.x), lane = static_cast<int32_t>(threadIdx.x);
    const uint32_t first_vector = piece.first * blockDim.x;
    if constexpr (kMakesTaps) {
        if (plan.makes_taps) {
            const int32_t words = (piece.count * static_cast<int32_t>(blockDim.x) * kTokens + 2 * kBwdVectorOwnTapsAround) / 4;
            for (int32_t i = static_cast<int32_t>(threadIdx.y * blockDim.x + threadIdx.x); i < words; i += kBwdVectorThreads) {
                const int32_t token = i * 4 - kBwdVectorOwnTapsAround;  // of the piece
                const int64_t vector =
                    int64_t{first_vector} + (token < 0 ? -((kTokens - 1 - token) / kTokens) : token / kTokens);
                const uint32_t row = static_cast<uint32_t>(vector) / plan.vectors;
                uint32_t word = 0;
                if (vector >= 0 && row < static_cast<uint32_t>(p.in.batch)) {
                    const uint32_t of_row = static_cast<uint32_t>(vector) - row * plan.vectors;
                    const int32_t t = static_cast<int32_t>(of_row) * kTokens + (token & (kTokens - 1));
                    word = plan.ids_in_quads ? bwd_taps_of_quad<kWidth>(p.in, row, t)
                                             : bwd_taps_of_four<kWidth, kHasPredicates>(p.in, row, t);
                }
                own_taps[i] = word;
            }
            __syncthreads();
        }
    }
    uint32_t d = piece.row * blockDim.y + threadIdx.y, part = 0;
    if constexpr (!kWhole) {
        if (plan.channels < blockDim.y) {  // each part is as long as all of them; the last ones may be behind the stream's end
            const uint32_t parts = blockDim.y / plan.channels;
            part = threadIdx.y / plan.channels;
            d = piece.row * plan.channels + (threadIdx.y - part * plan.channels);
            piece.count = (piece.count + static_cast<int>(parts) - 1) / static_cast<int>(parts);
            piece.first += part * static_cast<uint32_t>(piece.count);
        }
    }
    const bool has_channel =
        d < static_cast<uint32_t>(p.in.dim);  // lanes that have none do the last one's work again: shuffles are for whole waves
    if (!has_channel) d = static_cast<uint32_t>(p.in.dim) - 1;
    const int32_t seqlen = p.in.seqlen;
    const bool has_ids = !kPlain && p.in.seq_idx.data, has_states = kHasStates && plan.has_states;
    const bool has_initial = has_states && p.in.initial_states.data;

    // This is what comes next of a lane's tokens: where it lies, and what was loaded of it.
    const uint32_t end = (piece.first + static_cast<uint32_t>(piece.count)) * static_cast<uint32_t>(lanes);
    const BwdVectorPlace place = bwd_vector_place<T, kTokens>(p, plan, d, end);
    int32_t t_next = place.t, b_next = place.b;
    const auto row_of = [&](const Sequences& s, int64_t batch_bytes) {
        return global_pointer<char>(s.data) + int64_t{d} * s.dim_stride * kSize + place.b * batch_bytes;
    };
    const char* x_row = row_of(p.in.x, plan.x_batch);
    // This is where the lane has x of the stage that comes next in LDS, and how far the channel lies from the block's first.
    char* staged = reinterpret_cast<char*>(x_staged) + (static_cast<int>(part) * lanes + lane) * Across::kLaneBytes;
    int to_other_stage = Across::kStage, group_bytes = 0, channel_bytes = 0;
    if constexpr (kAcross) {
        const uint32_t first = piece.row * Across::kChannels;
        channel_bytes = static_cast<int>(d - first) * kSize;
        group_bytes = (p.in.dim - static_cast<int>(first)) * kSize;
        x_row -= channel_bytes;
    }
    const char* dout_row = row_of(p.dout, plan.dout_batch);
    char* dx_row = row_of(p.dx, plan.dx_batch);
    // AMD has no scalar registers for it.
    const auto dx_batch = [&]() {
        return kHasPredicates ? plan.dx_batch : first_parameter_again(p).dx.batch_stride * int64_t{kSize};
    };
    const uint8_t* taps_row = nullptr;
    if (!(kMakesTaps && plan.makes_taps)) {
        if (has_ids) taps_row = bwd_taps_of(p, place.b, 0);
    } else {
        const int32_t vectors_on = static_cast<int32_t>(static_cast<uint32_t>(place.b) * plan.vectors - first_vector);
        taps_row = reinterpret_cast<const uint8_t*>(own_taps) + kBwdVectorOwnTapsAround + vectors_on * kTokens;
    }
    constexpr int kXWords = kBefore + kOwn + kMore, kDoutWords = kOwn + kMore;
    uint32_t x_words[kXWords]{}, dout_words[kDoutWords]{};
    TapWords taps_words{};
    uint32_t x_shift = 0, dout_shift = 0;
    const auto step_of = [&](int64_t step) { return kAnySteps ? step : int64_t{kSize}; };
    // Lanes at a row's start or end tell whether their vectors leave the tensor, and then load words.
    const auto x_memory = [&]() { return first_parameter_again(p).x_memory; };
    const auto dout_memory = [&]() { return first_parameter_again(p).dout_memory; };
    const auto holds_vectors = [&](const auto& memory, const char* from, int before) {
        const bool inside = t_next >= before * Layout::kEach && t_next + kTokens <= seqlen;
        return inside || memory().has(from - before * 4, from + kOwn * 4);
    };
    const auto leaves_nothing = [&]() {
        if (t_next >= kBefore * Layout::kEach && t_next + kTokens <= seqlen) return true;
        const char *const x = x_row + int64_t{t_next} * kSize, *const dout = dout_row + int64_t{t_next} * kSize;
        return (kAcross || x_memory().has(x - kBefore * 4, x + kOwn * 4)) && dout_memory().has(dout, dout + kOwn * 4);
    };
    // Most walks leave the tensor nowhere, whatever their rows' ends are: so their steps need not look.
    bool may_leave = true;
    if (kHasPredicates && !kWhole && plan.loads_vectors) {
        const int64_t rows_back = place.b - static_cast<int32_t>(piece.first * blockDim.x / plan.vectors);
        const int64_t x_back = rows_back * plan.x_batch, dout_back = rows_back * plan.dout_batch;
        constexpr int64_t kFirst = (1 - kTokens) * kSize, kFirstOfX = kFirst - kBefore * 4;
        const int64_t past = (int64_t{seqlen} + kTokens - 1) * kSize;
        may_leave = !dout_memory().has(dout_row + kFirst, dout_row + past) ||
                    !dout_memory().has(dout_row - dout_back + kFirst, dout_row - dout_back + past);
        if (!kAcross)
            may_leave |= !x_memory().has(x_row + kFirstOfX, x_row + past) ||
                         !x_memory().has(x_row - x_back + kFirstOfX, x_row - x_back + past);
    }
    const auto load_x = [&](uint32_t(&words)[kXWords], uint32_t& shift) {
        const char* const x = x_row + t_next * step_of(plan.x_step);
        if (kAnySteps && plan.x_step != kSize)
            load_single_tokens<T, kBefore, kOwn, kOldest / Layout::kEach>(x, plan.x_step, t_next, seqlen, words);
        else if (kWhole || (plan.x_is_aligned && holds_vectors(x_memory, x, kBefore)))
            load_vectors<T, kBefore, kOwn, kWhole>(x, t_next, seqlen, words);
        else if constexpr (!kWhole)
            shift = load_single_words<T, kBefore, kOwn, kOldest / Layout::kEach>(x, t_next, seqlen, x_memory, words);
    };
    const auto load = [&](uint32_t(&to_x)[kXWords], uint32_t& shift_of_x, uint32_t(&to_dout)[kDoutWords],
                          uint32_t& shift_of_dout, TapWords& to_taps) {
        // Vectors are loaded whole, and what they have of other rows is not looked at, but where they leave the tensor. (AMD
        // has no scalar registers for this.)
        if (kHasPredicates && !kWhole && (!may_leave || (plan.loads_vectors && leaves_nothing()))) {
            if constexpr (!kAcross) load_whole_vectors<kBefore, kOwn>(x_row + int64_t{t_next} * kSize, to_x);
            load_whole_vectors<0, kOwn>(dout_row + int64_t{t_next} * kSize, to_dout);
        } else {
            if (!kWhole) from_here_on(t_next);  // so that NVIDIA's compiler has no registers for addresses of both branches
            if constexpr (!kAcross) load_x(to_x, shift_of_x);
            const char* const dout = dout_row + t_next * step_of(plan.dout_step);
            if (kAnySteps && plan.dout_step != kSize)
                load_single_tokens<T, 0, kOwn, 0>(dout, plan.dout_step, t_next, seqlen, to_dout);
            else if (kWhole || (plan.dout_is_aligned && holds_vectors(dout_memory, dout, 0)))
                load_vectors<T, 0, kOwn, kWhole>(dout, t_next, seqlen, to_dout);
            else if constexpr (!kWhole)
                shift_of_dout = load_single_words<T, 0, kOwn, 0>(dout, t_next, seqlen, dout_memory, to_dout);
        }
        if (has_ids) to_taps = load_taps<kTokens, kWhole>(taps_row, t_next);
    };
    // Dx of a lane's channels begins so many tokens, or fewer, before a multiple of kTokens.
    const auto before_multiple = [&]() { return -t_next & (kTokens - 1); };
    const auto copy_x = [&]() {
        const int32_t first = t_next + before_multiple() - Across::kBefore;
        const int skipped = Across::kBefore - kPast - plan.most_before;
        const int i = static_cast<int>(threadIdx.y % Across::kChannels);
        if (plan.piece == 16)
            copy_across<16, Across::kRows, Across::kChannels>(staged, x_row, plan.x_step, i, skipped, first, seqlen,
                                                              group_bytes);
        else
            copy_across<4, Across::kRows, Across::kChannels>(staged, x_row, plan.x_step, i, skipped, first, seqlen,
                                                             group_bytes);
        close_copies();
    };
    const auto go_to_other_stage = [&]() {
        staged += to_other_stage;
        to_other_stage = -to_other_stage;
    };
    // All threads of a block come here, and have what was copied, but for the last copies that may be under way, and no more of
    // the stage before, when they go on.
    const auto take_x = [&](bool all, int before, float(&window)[kWindow]) {
        if (all)
            wait_for_copies<0>();
        else
            wait_for_copies<1>();
        __syncthreads();
        const char* const at = staged + channel_bytes - before * kBwdAcrossBytes;
#pragma unroll
        for (int m = kOldest; m < kWindow; ++m) {
            const int row = Across::kBefore - kPast + m - kOldest;
            window[m] = to_float(*reinterpret_cast<const T*>(at + row * kBwdAcrossBytes));
        }
        go_to_other_stage();
    };
    const auto unpack = [&](uint32_t(&of_x)[kXWords], uint32_t shift_of_x, uint32_t(&of_dout)[kDoutWords],
                            uint32_t shift_of_dout, float(&window)[kWindow], float(&gradients)[kTokens]) {
        if constexpr (kAcross) {
            if (kSize == 2 && !plan.dout_is_aligned) shift_tokens(shift_of_dout, of_dout);
            unpack_tokens<T>(of_dout, gradients);
            return;
        }
        if constexpr (!kWhole && kSize == 2) {
            if (kHasPredicates ? plan.shifts : !(plan.x_is_aligned && plan.dout_is_aligned)) {
                shift_tokens(shift_of_x, of_x);
                shift_tokens(shift_of_dout, of_dout);
            }
        }
        unpack_tokens<T>(of_x, window);
        unpack_tokens<T>(of_dout, gradients);
    };
    const auto go_back = [&](int32_t tokens) {
        t_next -= tokens;
        if (t_next <= -kTokens) {
            t_next += bwd_vector_row_before<kTokens, kWhole>(plan, t_next);
            x_row -= kHasPredicates ? plan.x_batch : first_parameter_again(p).in.x.batch_stride * int64_t{kSize};
            dout_row -= plan.dout_batch;
            if (has_ids) taps_row -= plan.taps_batch;
            --b_next;
        }
    };
    const auto taps_of = [&](int32_t t, const TapWords& words) {
        if (has_ids) return taps_of_words<kTokens, kWidth, kWhole>(t, seqlen, words);
        Bits bits = taps_inside<kTokens, kWidth>();
        if (t < kPast || t + kTokens > seqlen) bits = taps_of_row<kTokens, kWidth>(t, seqlen, has_initial);
        return bits;
    };

    // Where a row goes on after this walk, the gradients of its next tokens have a part in the last lane's dx. All lanes make
    // it alike.
    float weight[kWidth], bias, carried[kSpill];
#pragma unroll
    for (float& each : carried) each = 0.0f;
    const int32_t t_after = t_next, b_after = b_next;
    const bool goes_on = kPast > 0 && t_after > 0 && t_after < seqlen;
    uint32_t x_apart[kXWords]{}, dout_apart[kDoutWords]{}, x_shift_apart = 0, dout_shift_apart = 0;
    TapWords taps_apart{};
    auto& x_after = kFirstAtOnce ? x_apart : x_words;
    auto& dout_after = kFirstAtOnce ? dout_apart : dout_words;
    auto& taps_after = kFirstAtOnce ? taps_apart : taps_words;
    uint32_t &x_shift_after = kFirstAtOnce ? x_shift_apart : x_shift,
             &dout_shift_after = kFirstAtOnce ? dout_shift_apart : dout_shift;
    const int after_multiple = before_multiple();
    if (kAcross && kPast > 0) copy_x();
    if (goes_on) load(x_after, x_shift_after, dout_after, dout_shift_after, taps_after);
    const auto load_first = [&]() {
        go_back((lanes - lane) * kTokens);
        if (b_next != place.b) dx_row -= dx_batch();
        if constexpr (kAcross) {
            if (kFirstAtOnce && kPast > 0) go_to_other_stage();
            copy_x();
            if (kFirstAtOnce && kPast > 0) go_to_other_stage();
        }
        if (t_next < seqlen) {
            load(x_words, x_shift, dout_words, dout_shift, taps_words);
        } else if constexpr (kPlain) {  // behind the stream's end are zeros
#pragma unroll
            for (uint32_t& word : x_words) word = 0;
#pragma unroll
            for (uint32_t& word : dout_words) word = 0;
        }
    };
    // The first step is on its way before anything waits for what comes after it.
    if constexpr (kFirstAtOnce) load_first();
    bwd_vector_parameters<T>(p.in, d, weight, bias);
    float window_after[kWindow];
    if constexpr (kAcross && kPast > 0) take_x(!kFirstAtOnce, after_multiple, window_after);
    if (goes_on) {
        const int32_t t = kFirstAtOnce ? t_after : t_next, b = kFirstAtOnce ? b_after : b_next;
        float(&window)[kWindow] = window_after;
        float gradients[kTokens];
        unpack(x_after, x_shift_after, dout_after, dout_shift_after, window, gradients);
        if (!kWhole && has_initial && t < kPast)
            bwd_vector_load_state<T, kWidth, kOldest>(first_parameter_again(p).in, b, d, t, window);
        if constexpr (kPlain)
            bwd_vector_spill<T, kTokens, kWidth, kOldest>(AllTaps{}, p.in.use_silu, window, gradients, weight, bias, carried);
        else
            bwd_vector_spill<T, kTokens, kWidth, kOldest>(taps_of(t, taps_after), p.in.use_silu, window, gradients, weight,
                                                          bias, carried);
    }
    if constexpr (!kFirstAtOnce) load_first();

    const uint32_t wave_lane = (threadIdx.y * blockDim.x + threadIdx.x) % kWaveSize;
    int next_lane = static_cast<int>((wave_lane & ~(blockDim.x - 1)) | ((wave_lane + 1) & (blockDim.x - 1)));
    int to_end = has_channel ? seqlen : 0, left = piece.count;
    int back = lanes * kTokens;
    in_a_register(next_lane);
    in_a_register(to_end);
    in_a_register(back);
    Pair dweight[kWidth], dbias = twice(0.0f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) dweight[i] = twice(0.0f);

    do {
        enter_loop_here();
        // Load: this step's words become floats, the next step's are fetched.
        const int32_t t = t_next, b = b_next;
        Bits bits{};
        if constexpr (!kPlain) bits = taps_of(t, taps_words);
        float window[kWindow], gradients[kTokens];
        if constexpr (kAcross) take_x(true, before_multiple(), window);
        // In a vector in front of a lane's own tokens no tap may see the first word, and NVIDIA's compiler gives its register
        // to what comes next, which waits for the load then, in each step. So let it be used, where nothing ever is.
        if constexpr (kHasPredicates && !kAcross && kOldest >= Layout::kEach) {
            if (plan.vectors == 0) dbias = twice(bit_cast<float>(x_words[0]));
        }
        unpack(x_words, x_shift, dout_words, dout_shift, window, gradients);
        // No tap sees the other half of the oldest input's word either, and the compiler moves this half elsewhere right behind
        // the load: 10 % of a copy.
        if constexpr (kHasPredicates && std::is_same_v<T, f16> && kOldest % 2 == 1) {
            if (!kAcross && plan.vectors == 0) dbias = twice(window[kOldest - 1]);
        }
        if (std::is_same_v<T, bf16>) {  // else NVIDIA's compiler keeps the words, and unpacks them for each use
#pragma unroll
            for (int k = kOldest; k < kWindow; ++k) in_a_register(window[k]);
#pragma unroll
            for (int k = 0; k < kTokens; ++k) in_a_register(gradients[k]);
        }
        if (--left > 0) {
            go_back(back);
            if constexpr (kAcross) copy_x();
            if (kWhole || t_next < seqlen) load(x_words, x_shift, dout_words, dout_shift, taps_words);
            // Narrow filters wait for x and dout, which come into the second cache a step before they are copied.
            if (kAcross && plan.ahead > 0 && left > 1 && t_next >= plan.ahead) {
                const int32_t token = t_next - plan.ahead + static_cast<int32_t>(threadIdx.y & (kTokens - 1));
                if (threadIdx.y < kTokens) prefetch(x_row + int64_t{token} * plan.x_step);
                prefetch(dout_row + int64_t{t_next - plan.ahead} * kSize);
            }
            if (bwd_vector_fetches(kWidth, kForm, kSize) && plan.ahead > 0 && left > 1 && t_next >= plan.ahead) {
                prefetch(x_row + int64_t{t_next - plan.ahead} * kSize);
                prefetch(dout_row + int64_t{t_next - plan.ahead} * kSize);
            }
        }
        // Where rows are whole vectors, only the first of them sees a state, and only the last one has a part in one.
        const int32_t state_t = kWhole ? 0 : t;
        if (has_initial && (kWhole ? t == 0 : t < kPast))
            bwd_vector_load_state<T, kWidth, kOldest>(first_parameter_again(p).in, b, d, state_t, window);

        // Compute: the gradients of the sums, and their part in the gradients of the parameters and of x.
        Sum sums[kSums];
#pragma unroll
        for (Sum& each : sums) each = bwd_vector_zero(Sum{});
        if constexpr (kPlain) {
            const bool begins_row = t == 0, may_begin = kHasPredicates || __ballot(begins_row);
            bwd_vector_plain_step<T, kTokens, kWidth, kOldest>(may_begin, begins_row, p.in.use_silu, window, gradients, weight,
                                                               bias, dweight, dbias, sums);
        } else {
            const auto step = [&](auto seen) {
                bwd_vector_step<T, kAllFirst, kTokens, kWidth, kOldest>(seen, first_parameter_again(p).in.use_silu, window,
                                                                        gradients, weight, bias, dweight, dbias, sums);
            };
            const bool is_inside = bits.bytes == taps_inside<kTokens, kWidth>().bytes;
            if (kHasPredicates || __ballot(!is_inside))
                step(bits);
            else
                step(AllTaps{});
        }

        // Share: the next lane's gradients have a part in the dx of this one's last tokens; after the last lane comes the first
        // one of the step before.
        float own[kTokens], before[kSpill], of_next[kSpill];
#pragma unroll
        for (int k = 0; k < kTokens; ++k) own[k] = total<kTokens / 2>(sums, kPast + k);
#pragma unroll
        for (int m = 0; m < kPast; ++m) {
            before[m] = total<kTokens / 2>(sums, m);
            of_next[m] = __shfl(lane == 0 ? carried[m] : before[m], next_lane);
            carried[m] = before[m];
        }
        if (t + kTokens < seqlen) {
            keep_apart<0>();
#pragma unroll
            for (int m = 0; m < kPast; ++m) own[kTokens - kPast + m] += of_next[m];
        }

        const bool reaches_end = kWhole ? t + kTokens == seqlen : t + kTokens > seqlen - kPast;
        if (has_states && (t <= 0 || reaches_end)) {
            const CausalConv1dBwdParams& states = first_parameter_again(p);
            if (states.dfinal_states.data && reaches_end && (kWhole || t < seqlen)) {
                const int32_t from_end = kWhole ? -kTokens : t - seqlen;
                bwd_vector_add_final<T, kWidth, kWhole>(states, b, d, t, from_end, own);
                if (!kWhole && t <= 0)
                    bwd_vector_add_final<T, kWidth, kWhole>(states, b, d, t - kPast, from_end - kPast, before);
            }
            if (first_parameter_again(p).dinitial_states.data && t <= 0 && has_channel) {
                const BwdVectorColumns<T, kWidth> columns(first_parameter_again(p).dinitial_states, b, d, state_t);
                columns.template store<kPast + kTokens>([&](int k) { return k < kPast ? before[k % kSpill] : own[k - kPast]; });
            }
        }
        char* const dx = dx_row + t * step_of(plan.dx_step);
        if (kAnySteps && plan.dx_step != kSize)
            store_single_tokens<T>(dx, plan.dx_step, t, to_end, own);
        else
            store_tokens<T, kWhole>(dx, t, to_end, plan.may_store_vectors, own);
        if (t_next > t - back) dx_row -= dx_batch();  // what comes next is of the row before
    } while (left > 0);

    const CausalConv1dBwdParams& again = first_parameter_again(p);
    const float scale = bwd_scale<T>(again.in);
    if (kWhole || plan.channels == blockDim.y)
        bwd_vector_store_sums(dweight, dbias, again, row_of_sums, d, has_channel, scale);
    else
        bwd_vector_store_sums_of_parts(dweight, dbias, again, row_of_sums, d, has_channel, scale, plan.channels, sums_of_rows);
}

// Tells whether there is an instance. Plain rows of the widths between have the kernel of whole rows (whole.cu). Other calls of
// f32, for which bytes count more than instructions, have one form for all.
template <typename T, int kWidth, BwdForm kForm>
constexpr bool kHasBwdVector = kForm == BwdForm::plain     ? !bwd_whole_has_width(kWidth)
                               : kForm == BwdForm::aligned ? kHasPredicates
                               : kForm == BwdForm::across  ? kCopiesPastRegisters && (sizeof(T) == 2 || kWidth > 5)
                                                           : sizeof(T) == 2 || kForm == BwdForm::any_with_states;

// Launches the instance for the width, from 1 to kWidth.
template <typename T, BwdForm kForm, int kWidth = kMaxBwdVectorWidth>
void launch_bwd_vector_of(const BwdVectorParams& p, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream) {
    if constexpr (kWidth > 1) {
        if (p.in.width < kWidth) return launch_bwd_vector_of<T, kForm, kWidth - 1>(p, plan, grid, block, stream);
    }
    if constexpr (kHasBwdVector<T, kWidth, kForm>) {
        const bool early = p.in.seq_idx.data;
        HIPCONV_LAUNCH(early, (causal_conv1d_bwd_vector<T, kWidth, kForm>), grid, block, 0, stream, p, plan);
        check_launch("causal_conv1d_bwd");
    }
}

// The same for the type. Of two forms each type has a file of its own.
template <BwdForm kForm>
void launch_bwd_vector(const BwdVectorParams& p, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream) {
    with_dtype(p.in.dtype, [&](auto type) { launch_bwd_vector_of<decltype(type), kForm>(p, plan, grid, block, stream); });
}
#define HIPCONV_BWD_VECTOR_OF(T, form) \
    template void launch_bwd_vector_of<T, BwdForm::form>(const BwdVectorParams&, const BwdVectorPlan&, dim3, dim3, hipStream_t)
extern HIPCONV_BWD_VECTOR_OF(f16, any_with_states);
extern HIPCONV_BWD_VECTOR_OF(bf16, any_with_states);
extern HIPCONV_BWD_VECTOR_OF(f16, across);
extern HIPCONV_BWD_VECTOR_OF(bf16, across);

}  // namespace hipconv
