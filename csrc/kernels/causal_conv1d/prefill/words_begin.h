// This file makes the starts of sequences for the kernel `words`: the outputs that depend on the initial state, and all states
// that the sequence leaves. A row of lanes makes one start after another; while it makes one, the inputs and the state of the
// next are on their way.
//
// One lane does all of this for its channels, except that states whose channels lie one behind another, column by column, come
// and go through LDS: a row's lanes move whole words, and a window's columns are in one lane's words. All of the initial state
// is read before any state of the sequence is written. So a slot may be both read and written by a sequence, and no other row
// needs to wait for it.
//
// All lanes of a block call together: they have sequences or not.
#pragma once

#include "masks.h"
#include "words_lane.h"

namespace hipconv {

// A lane has this of a start when its loads are on their way. The state is a word or an element each: see SlotOfRow.
template <typename T, int kWidth>
struct StartOnItsWay {
    static constexpr int kPast = kWidth - 1, kChannels = WordLane<T>::kChannels;
    typename WordLane<T>::Ahead first[kPast];
    uint32_t state[kPast * kChannels + 1];
};

constexpr int kWordsFound = 64;  // sequences that a block looks up; it has as many rows at most

// The words of LDS through which the states of a row come and go.
template <typename T, int kWidth>
constexpr int kSlotWords = (kWidth - 1) * WordLane<T>::kChannels * kMostWordsThreads + kWordsFound;

// A slot's part that belongs to a row: its channels in memory, and in LDS as memory has them.
template <typename T, typename S, int kWidth>
struct SlotOfRow {
    static constexpr int kPast = kWidth - 1, kChannels = WordLane<T>::kChannels, kSize = static_cast<int>(sizeof(S));
    static constexpr int kMostWords = kPast * kChannels * kSize / 4 + 1;  // of a lane
    using Bits = typename WordsOf<kSize>::type;

    char* first;    // the word that has the first element
    int elements;   // of the row; 0: no slot
    int skipped;    // elements of the first word that are others'
    uint32_t* lds;  // of the row

    HIPCONV_INLINE SlotOfRow(const CausalConv1dVarlenParams& p, int32_t slot, uint32_t* words)
        : elements(0), skipped(0), lds(words) {
        const int64_t first_channel = static_cast<int64_t>(blockIdx.x) * blockDim.x * kChannels;
        const int64_t left = p.dim - first_channel, channels = static_cast<int64_t>(blockDim.x) * kChannels;
        const int past = p.width - 1;
        first = static_cast<char*>(p.states) + (slot * p.slot_stride + first_channel * past) * kSize;
        if (slot == kNoSlot) return;
        elements = static_cast<int>(left < channels ? left : channels) * past;
        if (kSize == 2) {
            skipped = static_cast<int>(reinterpret_cast<uintptr_t>(first) % 4 / 2);
            first -= 2 * skipped;
        }
    }

    // Words of which all bytes are the row's own, those of which one half is, and this lane's number `k`.
    HIPCONV_INLINE int at(int k) const { return k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); }
    HIPCONV_INLINE bool has(int at) const { return at * 4 < (skipped + elements) * kSize; }
    HIPCONV_INLINE bool lower(int at) const { return kSize == 4 || at > 0 || skipped == 0; }
    HIPCONV_INLINE bool upper(int at) const { return kSize == 4 || at * 4 + 2 < (skipped + elements) * kSize; }

    HIPCONV_INLINE void ask(uint32_t* words) const {
#pragma unroll
        for (int k = 0; k < kMostWords; ++k) {
            if (!has(at(k))) continue;
            if (upper(at(k)))
                words[k] =
                    global_pointer<const uint32_t>(first)[at(k)];  // of a lower half that is not the row's nothing is used
            else
                words[k] = global_pointer<const uint16_t>(first)[2 * at(k)];
        }
    }
    HIPCONV_INLINE void put(const uint32_t* words) const {
#pragma unroll
        for (int k = 0; k < kMostWords; ++k)
            if (has(at(k))) lds[at(k)] = words[k];
    }
    HIPCONV_INLINE void store() const {
#pragma unroll
        for (int k = 0; k < kMostWords; ++k) {
            const int own = at(k);
            if (!has(own)) continue;
            const uint32_t both = lds[own];
            if (lower(own) && upper(own))
                global_pointer<uint32_t>(first)[own] = both;
            else if (lower(own))
                global_pointer<uint16_t>(first)[2 * own] = static_cast<uint16_t>(both);
            else if (upper(own))
                global_pointer<uint16_t>(first)[2 * own + 1] = static_cast<uint16_t>(both >> 16);
        }
    }
    // A lane's element in LDS: column i of channel c.
    HIPCONV_INLINE Bits& element(int past, int c, int i) const {
        return reinterpret_cast<Bits*>(lds)[skipped + (static_cast<int>(threadIdx.x) * kChannels + c) * past + i];
    }
};

// The same of states of any layout, by the lane's own elements; or words of two channels in a column (StateForm::columns).
template <typename T, typename S, int kWidth>
struct SlotOfLane {
    static constexpr int kPast = kWidth - 1, kChannels = WordLane<T>::kChannels;
    static constexpr bool kColumns = sizeof(S) * kChannels == 4 && kChannels == 2;  // there are such words
    using Bits = typename WordsOf<sizeof(S)>::type;

    const CausalConv1dVarlenParams& p;
    bool columns, has_second;
    S* first;  // null: no slot

    HIPCONV_INLINE SlotOfLane(const CausalConv1dVarlenParams& params, StateForm form, int32_t slot, int64_t d, bool second)
        : p(params), columns(kColumns && form == StateForm::columns), has_second(second), first(nullptr) {
        if (slot != kNoSlot)
            first =
                static_cast<S*>(p.states) + slot * p.slot_stride + d * p.state_dim_stride + p.first_column * p.column_stride;
    }
    HIPCONV_INLINE Bits* place(int c, int column) const {
        return global_pointer<Bits>(first + c * p.state_dim_stride + column * p.column_stride);
    }
    // In `words`, column i of channel c is number i * kChannels + c, or both channels are its first word.
    HIPCONV_INLINE void ask(uint32_t* words, int missing) const {
        if (!first) return;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            if (i < missing) continue;
            if (columns) {
                words[i * kChannels] = *global_pointer<const uint32_t>(first + (i - missing) * p.column_stride);
                continue;
            }
            words[i * kChannels] = *place(0, i - missing);
            if (kChannels == 2 && has_second) words[i * kChannels + 1] = *place(1, i - missing);
        }
    }
    HIPCONV_INLINE void store(const Words<S, kChannels> (&window)[kPast], int missing) const {
        if (!first) return;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            if (i < missing) continue;
            if (columns) {
                *global_pointer<uint32_t>(first + (i - missing) * p.column_stride) = word(window[i], 0);
                continue;
            }
            *place(0, i - missing) = static_cast<Bits>(element<S, kChannels>(&window[i], 0));
            if (kChannels == 2 && has_second)
                *place(1, i - missing) = static_cast<Bits>(element<S, kChannels>(&window[i], kChannels - 1));
        }
    }
};

// A lane's part in the starts of a row's sequences. S is the states' type; taps and `slot_words` (the row's) are in LDS.
template <typename T, typename S, int kWidth>
struct StartOfRow {
    static constexpr int kPast = kWidth - 1, kChannels = WordLane<T>::kChannels;
    using Lane = WordLane<T>;
    using Ahead = typename Lane::Ahead;
    using Start = StartOnItsWay<T, kWidth>;
    using StateVector = Words<S, kChannels>;

    const WordsCall& call;
    const float* taps;
    uint32_t* slot_words;
    int32_t d;  // the lane's first channel
    HIPCONV_INLINE bool works() const { return d < params().dim; }

    HIPCONV_INLINE const CausalConv1dVarlenParams& params() const { return first_parameter_again(call).params; }
    HIPCONV_INLINE const WordsPlan& plan() const { return first_parameter_again(call).plan; }
    HIPCONV_INLINE int missing_now() const { return missing_taps<kWidth, true>(call.params); }  // no registers for what follows
    HIPCONV_INLINE int64_t x_step() const { return params().x_token_stride * static_cast<int64_t>(sizeof(T)); }
    HIPCONV_INLINE const char* x_of(const PackedSequence& s) const {
        return static_cast<const char*>(params().x) + s.begin * x_step() + d * static_cast<int64_t>(sizeof(T));
    }
    HIPCONV_INLINE int32_t length(const PackedSequence& s) const { return works() && s.number >= 0 ? s.end - s.begin : 0; }
    // An empty sequence keeps its state.
    static HIPCONV_INLINE int32_t read_slot(const PackedSequence& s) {
        return s.number >= 0 && s.end > s.begin ? s.read_slot : kNoSlot;
    }
    static HIPCONV_INLINE int32_t write_slot(const PackedSequence& s) {
        return s.number >= 0 && s.end > s.begin ? s.write_slot : kNoSlot;
    }

    HIPCONV_INLINE void ask(Start& start, const PackedSequence& s) const {
        const Lane lane(d, params().dim);
        const char* x = x_of(s);
        const int32_t tokens = length(s);
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            start.first[i] = Ahead{};
            lane.ask(start.first[i], x, i, tokens);
            x += x_step();
        }
#pragma unroll
        for (int i = 0; i <= kPast * kChannels; ++i) start.state[i] = 0;
        if (plan().state_form == StateForm::rows)
            SlotOfRow<T, S, kWidth>(params(), read_slot(s), slot_words).ask(start.state);
        else
            SlotOfLane<T, S, kWidth>(params(), plan().state_form, works() ? read_slot(s) : kNoSlot, d, lane.has_second)
                .ask(start.state, missing_now());
    }

    static HIPCONV_INLINE StateVector converted(uint32_t input) {
        StateVector to{};
        if constexpr (sizeof(S) == sizeof(T))
            to = input;
        else
            set_pair<S>(to, 0, pair_of<T>(input, 0));
        return to;
    }
    // The state after `position` tokens, of which `inputs` are the last ones; close to the start, it is the initial state with
    // the first inputs shifted in.
    static HIPCONV_INLINE void new_state(StateVector (&window)[kPast], const StateVector (&state)[kPast],
                                         const uint32_t (&first)[kPast], const Ahead (&inputs)[kPast], int32_t position) {
#pragma unroll
        for (int i = 0; i < kPast; ++i) window[i] = position < kPast ? state[i] : converted(Lane::joined(inputs[i]));
        if (position >= kPast) return;
#pragma unroll
        for (int step = 0; step < kPast - 1; ++step) {
            if (step >= position) continue;
#pragma unroll
            for (int i = 0; i < kPast - 1; ++i) window[i] = window[i + 1];
            window[kPast - 1] = converted(first[step]);
        }
    }

    __device__ __forceinline__ void make(const Start& start, const PackedSequence& s) const {
        const Lane lane(d, params().dim);
        const int32_t tokens = length(s);
        const char* const x = x_of(s);
        Ahead last[kPast];
        const auto ask_last = [&](int32_t position) {
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                last[i] = Ahead{};
                lane.ask(last[i], x + (int64_t{position} - kPast + i) * x_step(), kPast - 1, position);
            }
        };
        ask_last(tokens);

        const bool rows = plan().state_form == StateForm::rows;
        StateVector state[kPast]{};
        const auto vector_of = [](uint32_t low, uint32_t high) {
            StateVector to{};
            if constexpr (sizeof(S) == 4 && kChannels == 2) {
                set_word(to, 0, low);
                set_word(to, 1, high);
            } else {
                to = kChannels == 2 ? low | high << 16 : low;
            }
            return to;
        };
        const int32_t from = read_slot(s);
        const auto sync_row = [&] {
            if (plan().rows_in_waves)
                sync_wave();
            else
                __syncthreads();
        };
        if (rows) {
            const SlotOfRow<T, S, kWidth> slot(params(), from, slot_words);
            slot.put(start.state);
            sync_row();
            const int missing = missing_now();
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                if (i < missing || from == kNoSlot) continue;
                const int past = kPast - missing, column = i - missing;
                state[i] = vector_of(slot.element(past, 0, column), slot.element(past, kChannels - 1, column));
            }
            sync_row();
        } else {
            const bool columns = SlotOfLane<T, S, kWidth>::kColumns && plan().state_form == StateForm::columns;
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                const uint32_t low = start.state[i * kChannels], high = start.state[i * kChannels + kChannels - 1];
                state[i] = vector_of(low, columns ? 0 : high);
            }
        }
        uint32_t first[kPast];
#pragma unroll
        for (int i = 0; i < kPast; ++i) first[i] = Lane::joined(start.first[i]);

        const auto window = [&](int i) { return i < kPast ? pair_of<S>(state[i], 0) : pair_of<T>(first[i - kPast], 0); };
        const OutputColumn column = output_column<T>(params(), works() ? d : 0);
        char* to = column.first + static_cast<int64_t>(s.begin) * column.step;
        uint32_t step = column.step;
        const int32_t past = params().width - 1, outputs = tokens < past ? tokens : past;
        if (plan().phase == VarlenPhase::begins && tokens >= past) {
            to = begun_place<T>(params(), plan(), s.number, s.begin, d, 0);
            step = static_cast<uint32_t>(params().dim) * static_cast<uint32_t>(sizeof(T));
        }
        const WordStores<T, true> stores(params(), plan(), d, to, step, lowest_bits(outputs));
        const bool use_silu = params().use_silu;
#pragma unroll
        for (int t = 0; t < kPast; ++t) {
            if (__ballot(t < outputs) == 0) continue;
            // Without a state, taps before the sequence are left out, not multiplied by zero: the weight may be infinite.
            int first_tap = missing_now();
            if (from == kNoSlot && first_tap < kPast - t) first_tap = kPast - t;
            Pair sum = tap_of_lane<T>(taps, kWidth);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                const Pair longer = multiply_add(tap_of_lane<T>(taps, i), window(t + i), sum);
                sum = i >= first_tap ? longer : sum;
            }
            uint32_t result{};
            set_pair<T>(result, 0, silu_where(use_silu, sum));
            stores.store(to, result, t);
            to += step;
        }

        StateVector after[kPast];
        new_state(after, state, first, last, tokens);
        if (rows) {
            const SlotOfRow<T, S, kWidth> slot(params(), write_slot(s), slot_words);
            using Bits = typename SlotOfRow<T, S, kWidth>::Bits;
            const int missing = missing_now();
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                if (i < missing || !works() || slot.elements == 0) continue;
#pragma unroll
                for (int c = 0; c < kChannels; ++c)
                    if (c == 0 || lane.has_second)
                        slot.element(kPast - missing, c, i - missing) = static_cast<Bits>(element<S, kChannels>(&after[i], c));
            }
            sync_row();
            slot.store();
            sync_row();
            return;
        }
        const auto slot_of = [&](int32_t slot) {
            return SlotOfLane<T, S, kWidth>(params(), plan().state_form, slot, d, lane.has_second);
        };
        if (!works() || tokens == 0) return;
        const Boundaries boundaries = boundaries_of(params(), s);
        StateToWrite target{s.write_slot, tokens};
#pragma unroll 1
        for (int32_t n = 1;; ++n) {  // one body for all states, since the code of it is long
            if (target.slot != kNoSlot) slot_of(target.slot).store(after, missing_now());
            if (n > boundaries.count) break;
            target = boundary_state(params(), s, boundaries, n);
            if (target.slot == kNoSlot) continue;
            ask_last(target.position);
            new_state(after, state, first, last, target.position);
        }
    }
};

}  // namespace hipconv
