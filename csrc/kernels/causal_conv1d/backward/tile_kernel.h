// This kernel is the causal conv1d backward, channel-last ("tile"): neighbouring channels are neighbours in memory.
//
// A lane owns a vector of a token's channels (tile_lane.h) and walks a run of tokens, as the forward's kernel of this name
// does, with a second ring beside the ring of inputs: the last kWidth gradients g of the sums. Token t brings in x[t] and
// dout[t], from which g[t] follows, which completes dx[t - kWidth + 1]. So a run reads a halo of kWidth - 1 inputs before it
// and kWidth - 1 tokens of both after it; these tokens belong to its neighbours, who sum dweight over them.
//
// The mainloop does kBlock tokens at a time. Where memory can be copied past the registers, these are a stage in LDS, and the
// next stages are on their way: the rings, weights and sums of eight taps of four channels fit the registers then, and vectors
// may begin anywhere, because the lane shifts them when it reads them. Elsewhere the tokens ahead are loaded into registers.
//
// Thin lanes, of two channels, do so on cards with such copies, too: in float32, and for vectors of four channels that are not
// aligned, where two channels mostly are or cost two accesses. Their steady path has no branch: a block stores its dx at its
// end, and the last block has code of its own.
//
// Blocks of which all taps count take a path that checks none (steady). Where memory is copied past the registers, it also has
// the first block of a run, which stores nothing of its halo, and the last one, which sums nothing: short runs, of small
// problems, have few others. Other blocks check of each token whether to load, sum and store, and of each tap whether it
// counts (checked); but thin lanes and those of aligned vectors look at taps alone in blocks that complete no gradient of a
// state (seen). A byte a token has the taps that count, and for blocks that look at taps alone another one has those by which
// the token completes dx, so that each sets its conditions at once: where rows hold several sequences, the lanes of a run make
// these bytes in LDS before they walk it.
//
// A block of threads adds up its threads' dweight and dbias in LDS and leaves them in its row of the workspace.
//
// Bytes: x and dout are read once from memory (and kWidth - 1 tokens a run again from cache), dx is written once.
#pragma once

#include <hip/hip_runtime.h>

#include <type_traits>

#include "causal_conv1d/states_formula.h"
#include "derivative.h"
#include "launch/check.h"
#include "tile_lane.h"
#include "tile_plan.h"
#include "tile_sums.h"

namespace hipconv {

template <int kWidth>
constexpr int kBwdBlock = bwd_tile_block(kWidth, false);
template <int kWidth>
constexpr int kBwdThinBlock = bwd_tile_block(kWidth, true);
template <int kWidth>
constexpr int kBwdStagesInLds = kWidth <= 4 ? 3 : 2;  // of a block each

// Bytes of LDS for x or dout of a token: a vector for each thread, and one more for each row if vectors are not aligned.
template <bool kAligned>
constexpr int kBwdSlot = (kBwdTileThreads + (kAligned ? 0 : kBwdTileRows)) * static_cast<int>(kBwdGranule);

template <int kWidth, bool kAligned>
constexpr int kBwdStageBytes = 2 * kBwdBlock<kWidth> * kBwdSlot<kAligned>;

// The ways in which x and dout come to a lane.
enum class BwdTileMoves {
    granules,   // through LDS, from any address
    vectors,    // through LDS, of vectors that lie at multiples of their size
    registers,  // tokens ahead are loaded into registers, from any address
    pairs,      // the same for two channels a lane, which are aligned in 16-bit types
    halves,     // the same where they are not
};

HIPCONV_INLINE constexpr bool bwd_tile_stages(BwdTileMoves moves) {
    return moves == BwdTileMoves::granules || moves == BwdTileMoves::vectors;
}

template <typename T, int kWidth, BwdTileMoves kMoves>
constexpr int kBwdTileChannels = bwd_tile_channels(sizeof(T), kWidth, kMoves >= BwdTileMoves::pairs);

template <typename T, int kWidth, BwdTileMoves kMoves>
HIPCONV_INLINE constexpr int bwd_tile_lds() {
    const int sums = kBwdTileThreads * (kWidth + 1) * kBwdTileChannels<T, kWidth, kMoves> * 4;
    constexpr bool kAligned = kMoves == BwdTileMoves::vectors;
    const int stages = kBwdStagesInLds<kWidth> * kBwdStageBytes<kWidth, kAligned>;
    const int moved = bwd_tile_stages(kMoves) ? stages : 0;
    return sums > moved ? sums : moved;
}

// Tells whether a path is there for blocks that look at taps alone: for aligned vectors of two taps it was no faster.
template <int kWidth, BwdTileMoves kMoves>
constexpr bool kBwdSeesBlocks = kMoves == BwdTileMoves::vectors ? kWidth > 2
                                : kMoves >= BwdTileMoves::pairs ? bwd_tile_sees_blocks(kWidth, kMoves == BwdTileMoves::halves)
                                                                : false;

template <int kWidth, BwdTileMoves kMoves>
HIPCONV_INLINE constexpr int bwd_tile_tap_lds() {  // words
    return kBwdTileTapWords * (kBwdSeesBlocks<kWidth, kMoves> ? 2 : 1);
}

template <typename T, int kWidth, BwdTileMoves kMoves>
__device__ __forceinline__ void bwd_tile_walk(const BwdTileCall& call, Words2* lds, uint32_t* taps_of_tokens) {
    const CausalConv1dBwdParams& p = call.p;
    const BwdTilePlan& plan = call.plan;
    constexpr bool kStaged = bwd_tile_stages(kMoves), kAligned = kMoves == BwdTileMoves::vectors;
    constexpr bool kHalves = kMoves == BwdTileMoves::halves, kThin = kMoves == BwdTileMoves::pairs || kHalves;
    constexpr int kChannels = kBwdTileChannels<T, kWidth, kMoves>, kPast = kWidth - 1;
    constexpr int kBlock = kThin ? kBwdThinBlock<kWidth> : kBwdBlock<kWidth>;
    constexpr int kStages = kBwdStagesInLds<kWidth>, kSlot = kBwdSlot<kAligned>, kStage = kBwdStageBytes<kWidth, kAligned>;
    // A steady path that has the first and the last block of a run, too.
    constexpr bool kHasEnds = kStaged || kThin;
    using Channels = ChannelsOf<kChannels>;
    using Value = typename Channels::Value;
    using Vector = Words<T, kChannels>;

    let_next_kernel_begin();
    wait_for_kernel_before();
    const uint32_t block = blockIdx.z * gridDim.y + blockIdx.y;
    if (block >= plan.blocks) return;
    const uint32_t sequences = block / plan.blocks_a_sequence;
    const uint32_t first_run = (block - sequences * plan.blocks_a_sequence) << plan.log2_runs_a_block;
    const uint32_t b = sequences * plan.sequences_a_block + (threadIdx.y >> plan.log2_runs_a_block);
    const uint32_t begin = (first_run + (threadIdx.y & ((1u << plan.log2_runs_a_block) - 1))) * static_cast<uint32_t>(plan.run);
    uint32_t d = (blockIdx.x * blockDim.x + threadIdx.x) * kChannels;
    const auto below = [](uint32_t value, int32_t size) { return value < static_cast<uint32_t>(size); };
    const bool active = below(d, p.in.dim) && below(b, p.in.batch) && (below(begin, p.in.seqlen) || begin == 0);
    // The last lane of a dim that kChannels does not divide has fewer channels; in registers it has kChannels all the same,
    // some of which its neighbour has, too.
    int channels = kChannels;
    if (!kAligned && d + kChannels > static_cast<uint32_t>(p.in.dim)) {
        if (kHasEnds)
            channels = p.in.dim - static_cast<int>(d);
        else
            d = p.in.dim - kChannels;
    }
    // These count the tokens of the row from here on, and those of this run. The run visits kPast more tokens than it has.
    const int left = active ? p.in.seqlen - static_cast<int>(begin) : 0;
    const int tokens = !active ? -kPast : left < plan.run ? left : plan.run;
    const int stop = tokens + kPast, loaded = stop < left ? stop : left;

    // The same as `left`, where a lane is active: aligned vectors have no register for it.
    const auto left_again = [&]() {
        return kAligned ? first_parameter_again(call).p.in.seqlen - static_cast<int>(begin) : left;
    };
    const auto base = [&](const Sequences& s, int64_t step) {
        return static_cast<char*>(s.data) + (int64_t{b} * s.batch_stride + d) * static_cast<int64_t>(sizeof(T)) +
               int64_t{begin} * step;
    };
    const char* x = base(p.in.x, plan.x_step);
    const char* dout = base(p.dout, plan.dout_step);
    char* dx = base(p.dx, plan.dx_step) - kPast * plan.dx_step;

    // Few tokens need what follows: neither the params nor an address is kept in registers for them.
    const auto again = [&]() -> const CausalConv1dBwdParams& { return first_parameter_again(call).p; };
    uint32_t flags = plan.flags;
    const auto has = [&](BwdTileFlags flag) { return (flags & flag) != 0; };
    // Channel c at a column of a state, of any strides.
    const auto state = [&](const Sequences& s, int column, int c) -> T& {
        int row = static_cast<int>(b), channel = static_cast<int>(d) + c;
        if constexpr (kAligned) {  // no register has the channel until then
            int lane = static_cast<int>(threadIdx.x);
            from_here_on(lane);
            channel = (static_cast<int>(blockIdx.x * blockDim.x) + lane) * kChannels + c;
        }
        from_here_on(row);
        from_here_on(channel);
        return global_pointer<T>(
            s.data)[int64_t{row} * s.batch_stride + int64_t{channel} * s.dim_stride + int64_t{column} * s.seqlen_stride];
    };
    // Its channels are one vector, where that lies at a multiple of its size.
    const auto vector_of_state = [&](const Sequences& s, int column) -> Vector* {
        Vector* const vector = reinterpret_cast<Vector*>(&state(s, column, 0));
        const bool is_aligned = reinterpret_cast<uintptr_t>(vector) % sizeof(Vector) == 0;
        return s.dim_stride == 1 && channels == kChannels && is_aligned ? vector : nullptr;
    };
    const auto value_of_state = [&](const Sequences& s, int column) {
        if (const Vector* const vector = vector_of_state(s, column)) return Channels::template unpack<T>(*vector);
        return Channels::make([&](int c) { return c < channels ? to_float(state(s, column, c)) : 0.0f; });
    };

    // ---- x and dout ---------------------------------------------------------------------------------------------------------
    // In LDS, a stage has x and dout of its tokens by turns. A lane copies the granule that its vector begins in; the last lane
    // of a row copies the next one, too, if its vector ends there.
    char* const staged =
        reinterpret_cast<char*>(lds) + (threadIdx.y * (blockDim.x + (kAligned ? 0 : 1)) + threadIdx.x) * kBwdGranule;
    const bool is_last = threadIdx.x + 1 == blockDim.x || d + kChannels >= static_cast<uint32_t>(p.in.dim);
    const uint32_t ends_here = is_last ? kBwdGranule - channels * static_cast<uint32_t>(sizeof(T)) : kBwdGranule;
    uint32_t x_in_granule = place_in_granule(x), dout_in_granule = place_in_granule(dout);  // of the token that is computed
    const auto copy = [&](int offset, const char* from) {
        if constexpr (kAligned) {
            copy_later(reinterpret_cast<Words2*>(staged + offset), from);
        } else {
            const char* const granule = granule_of(from);
            copy_later(reinterpret_cast<Words2*>(staged + offset), granule);
            if (place_in_granule(from) > ends_here)
                copy_later(reinterpret_cast<Words2*>(staged + offset) + 1, granule + kBwdGranule);
        }
    };
    // The granules around the tensor's last vector may reach past its end: what is inside is copied element by element.
    const bool may_end = static_cast<int>(b) + 1 == p.in.batch || (plan.flags & kBwdAllRowsEnd) != 0;
    const bool ends_tensor = !kAligned && is_last && active && may_end && loaded == left;
    const int whole = ends_tensor ? loaded - 1 : loaded;
    const auto copy_elements = [&](int offset, const char* from) {
        const int place = static_cast<int>(place_in_granule(from)), size = static_cast<int>(sizeof(T));
#pragma unroll 1
        for (int o = 0; o < place + channels * size; o += size)
            *reinterpret_cast<T*>(staged + offset + o) = *reinterpret_cast<const T*>(from - place + o);
    };
    const auto copied = [&](int offset, uint32_t place) {
        if constexpr (kAligned || !kStaged)
            return *reinterpret_cast<const Vector*>(staged + offset);
        else
            return bit_cast<Vector>(from_granules<T>(staged + offset, place));
    };
    // Copies the block of tokens from t on into a stage.
    const auto copy_block = [&](int t, int stage) {
        const int in_row = left_again(), until = !kAligned ? whole : stop < in_row ? stop : in_row;
#pragma unroll
        for (int j = 0; j < kBlock; ++j) {
            if (t + j < until) {
                copy(stage + 2 * j * kSlot, x);
                copy(stage + (2 * j + 1) * kSlot, dout);
            }
            x += plan.x_step;
            dout += plan.dout_step;
        }
        if (ends_tensor && t <= whole && whole < t + kBlock) {
            const int slot = stage + 2 * (whole - t) * kSlot, back = t + kBlock - whole;
            copy_elements(slot, x - back * plan.x_step);
            copy_elements(slot + kSlot, dout - back * plan.dout_step);
        }
    };
    const auto is_in_row = [&](int i) { return active && static_cast<int64_t>(begin) + i >= kPast; };
    // A thin lane's vector on its way. Halves are put together where they are used: nothing waits for them before.
    using Ahead = std::conditional_t<kHalves, BwdHalves, Vector>;
    const auto has_vectors = [&](BwdTileFlags flag) { return sizeof(T) == 2 && !kHalves ? true : (plan.flags & flag) != 0; };
    const auto load_elements = [&](const char* from) {
        if constexpr (kHalves) {
            const uint16_t* const halves = global_pointer<const uint16_t>(from);
            return Ahead{halves[0], channels > 1 ? uint32_t{halves[1]} : 0};
        } else {
            return load_part<T, kChannels>(global_pointer<const T>(from), 0, channels);
        }
    };
    const auto load_vector = [&](const char* from) { return *global_pointer<const Vector>(from); };
    const auto load_from = [&](const char* from, BwdTileFlags flag) {
        if constexpr (!kThin)
            return load_anywhere<Vector>(from);
        else if constexpr (kHalves)  // with no branch where one tensor has vectors
            return load_elements(from);
        else
            return has_vectors(flag) ? load_vector(from) : load_elements(from);
    };
    const int with_second = channels > 1 ? loaded : 0;
    const auto unpack_ahead = [&](const Ahead& ahead) {
        if constexpr (kHalves)
            return make_pair(low(unpack<T>(ahead.first)), low(unpack<T>(ahead.second)));
        else
            return Channels::template unpack<T>(ahead);
    };
    constexpr int kAhead = kStaged ? 1 : kBlock, kHalo = (kStages - 1) * kStage + (kBlock - kPast) * 2 * kSlot;
    Ahead x_ahead[kAhead], dout_ahead[kAhead], before[kPast + 1];
    if constexpr (kStaged) {
#pragma unroll
        for (int i = 0; i < kPast; ++i)
            if (is_in_row(i)) copy(kHalo + 2 * i * kSlot, x - (kPast - i) * plan.x_step);
#pragma unroll
        for (int s = 0; s + 1 < kStages; ++s) {
            copy_block(s * kBlock, s * kStage);
            close_copies();
        }
    } else {
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            before[i] = Ahead{};
            if (is_in_row(i)) before[i] = load_from(x - (kPast - i) * plan.x_step, kBwdXHasVectors);
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            x_ahead[j] = dout_ahead[j] = Ahead{};
            if (j < loaded) {
                x_ahead[j] = load_from(x, kBwdXHasVectors);
                dout_ahead[j] = load_from(dout, kBwdDoutHasVectors);
            }
            x += plan.x_step;
            dout += plan.dout_step;
        }
    }
    // These are a thin lane's, of a block of tokens.
    Ahead x_of_block[kThin ? kBlock : 1]{};
    Value dout_of_block[kThin ? kBlock : 1]{};
    Vector dx_of_block[kThin ? kBlock : 1]{};

    // ---- weights and taps ---------------------------------------------------------------------------------------------------
    constexpr int kParameters = kChannels * kWidth;
    Value weight[kWidth], bias = Channels::all(0.0f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) weight[i] = Channels::all(0.0f);
    if (active) {
        const CausalConv1dInputs& in = again().in;
        const void* const weights = global_pointer<const void>(in.weight);
        uint32_t bias_bits[kChannels] = {};
        if (in.bias) {
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                const int channel = static_cast<int>(d) + (c < channels ? c : 0);
                bias_bits[c] = load_parameter_bits(in.bias, channel * in.bias_stride, in.bias_dtype);
            }
        }
        with_dtype(in.weight_dtype, [&](auto type) {
            using P = decltype(type);
            if (has(kBwdPacked)) {
                float all[kParameters];
                load_packed(static_cast<const P*>(weights) + int64_t{d} * kWidth, all);
#pragma unroll
                for (int i = 0; i < kWidth; ++i) weight[i] = Channels::make([&](int c) { return all[c * kWidth + i]; });
                return;
            }
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                weight[i] = Channels::make([&](int c) {
                    const int64_t channel = static_cast<int>(d) + (c < channels ? c : 0);
                    return parameter<P>(weights, channel * in.weight_dim_stride + i * in.weight_width_stride);
                });
        });
        bias = Channels::make([&](int c) { return parameter_of(bias_bits[c], in.bias_dtype); });
    }

    // The bytes of the tokens that this run visits: bit i is set if the token's tap i sees an input; none is, if it is padding.
    // They lie in words of four tokens, of which the first begins at a multiple of four. Where blocks look at taps alone, other
    // words have the taps by which a token completes dx (taps.h).
    constexpr bool kSeesBlocks = kBwdSeesBlocks<kWidth, kMoves>;
    const int tap_words = bwd_tile_tap_words(plan.run + kPast), lead = kHasPredicates ? static_cast<int>(begin & 3) : 0;
    constexpr int kLaterTaps = kSeesBlocks ? kBwdTileTapWords : 0;
    const int first_tap = static_cast<int>(threadIdx.y) * tap_words * 4 + lead;  // a byte's place
    if (has(kBwdTaps)) {
        const uint32_t period = plan.period;
        const auto place_in = [&](uint32_t row, int64_t position) {
            return static_cast<int32_t>(position) - static_cast<int32_t>(row * period);
        };
        uint32_t* const own_words = taps_of_tokens + static_cast<int>(threadIdx.y) * tap_words;
        // Four tokens may be of several sequences, and are in most words where these are short. AMD has no scalar registers for
        // what serves four.
        constexpr uint32_t kShortPeriod = 64;
        if (!kHasPredicates || (period % 4 != 0 && period < kShortPeriod)) {
            const int count = kHasPredicates ? tap_words * 4 : plan.run + kPast;
            for (int t = static_cast<int>(threadIdx.x); t < count; t += static_cast<int>(blockDim.x)) {
                const CausalConv1dInputs& in = again().in;
                const int64_t position = int64_t{begin} - lead + t;
                uint32_t byte = 0;
                if (below(b, in.batch) && position < in.seqlen) {
                    const uint32_t row = period ? static_cast<uint32_t>(position) / period : b;
                    byte = bwd_taps_of_token<kWidth>(in, row, period ? place_in(row, position) : position);
                }
                reinterpret_cast<uint8_t*>(own_words)[t] = static_cast<uint8_t>(byte);
            }
        } else {
            for (int i = static_cast<int>(threadIdx.x); i < tap_words; i += static_cast<int>(blockDim.x)) {
                const CausalConv1dInputs& in = again().in;
                const int64_t position = int64_t{begin} - lead + 4 * i;
                uint32_t word = 0;
                if (below(b, in.batch) && position < in.seqlen) {
                    const uint32_t row = period ? static_cast<uint32_t>(position) / period : b;
                    const int32_t place = period ? place_in(row, position) : static_cast<int32_t>(position);
                    if (period != 0 && static_cast<uint32_t>(place) + 4 > period) {
#pragma unroll 1
                        for (int e = 0; e < 4 && position + e < in.seqlen; ++e) {
                            const uint32_t own = static_cast<uint32_t>(position + e) / period;
                            word |= bwd_taps_of_token<kWidth>(in, own, place_in(own, position + e)) << e * 8;
                        }
                    } else if (!in.seq_idx.data)
                        word = static_cast<uint32_t>(taps_of_row<4, kWidth>(place, static_cast<int32_t>(period), false).bytes);
                    else if (has(kBwdIdsInQuads))
                        word = bwd_taps_of_quad<kWidth>(in, row, place);
                    else
                        word = bwd_taps_of_four<kWidth, kHasPredicates>(in, row, place);
                }
                own_words[i] = word;
            }
        }
        __syncthreads();
        if constexpr (kSeesBlocks) {
            for (int i = static_cast<int>(threadIdx.x); i < tap_words; i += static_cast<int>(blockDim.x)) {
                const uint32_t far = i > 1 ? own_words[i - 2] : 0, near = i > 0 ? own_words[i - 1] : 0;
                own_words[kLaterTaps + i] = later_taps_of_four(far, near, own_words[i]);
            }
            __syncthreads();
        }
    }
    const auto byte_of_taps = [&](int t) -> uint32_t {
        return reinterpret_cast<const uint8_t*>(taps_of_tokens)[first_tap + t];
    };
    // The bytes of eight tokens from t on.
    const auto eight_at = [&](const uint32_t* words, int t) {
        const uint32_t* const from = words + (first_tap + t) / 4;
        const int bits = ((first_tap + t) & 3) * 8;
        const uint32_t first = static_cast<uint32_t>((uint64_t{from[1]} << 32 | from[0]) >> bits);
        return uint64_t{static_cast<uint32_t>((uint64_t{from[2]} << 32 | from[1]) >> bits)} << 32 | first;
    };
    constexpr uint32_t kAllTaps = (1u << kWidth) - 1;
    const auto taps_of = [&](int t) -> uint32_t {
        if (has(kBwdTaps)) return byte_of_taps(t);
        const int64_t position = int64_t{begin} + t;
        if (position >= p.in.seqlen) return 0;
        const bool sees_all = position >= kPast || has(kBwdInitial);
        return sees_all ? kAllTaps : kAllTaps << (kPast - position) & kAllTaps;
    };

    // ---- the walk -----------------------------------------------------------------------------------------------------------
    Value inputs[kWidth], gradients[kWidth], dweight[kWidth], dbias = Channels::all(0.0f);
    if constexpr (kStaged) {
        wait_for_copies<kStages - 2>();
        if (!kAligned) sync_wave();
    }
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
        inputs[i + 1] = Channels::all(0.0f);
        if (is_in_row(i)) {
            const uint32_t place = x_in_granule - static_cast<uint32_t>((kPast - i) * plan.x_step);
            if constexpr (kStaged)
                inputs[i + 1] = Channels::template unpack<T>(copied(kHalo + 2 * i * kSlot, place));
            else
                inputs[i + 1] = unpack_ahead(before[i]);
        } else if (active && has(kBwdInitial)) {
            inputs[i + 1] = value_of_state(again().in.initial_states, static_cast<int>(begin) + i);
        }
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) gradients[i] = dweight[i] = Channels::all(0.0f);

    // These masks have a bit for each tap that counts, of a token and of the kPast tokens before it: each token shifts the
    // earlier bits up by kWidth.
    using Taps = std::conditional_t<kWidth <= 5, uint32_t, uint64_t>;
    Taps taps = 0;
    int stage = 0;  // of this block in LDS; the next one to copy takes that of the block before

    // Blocks that check no token have a copy for calls without SiLU, which makes no sum. Lanes of four channels have no
    // registers for it at five and eight taps, and choose a gradient late; on AMD, float32 would have fewer waves, and checks
    // such calls.
    constexpr bool kSiluHasCopies = !kHasPredicates ? sizeof(T) == 2 : kThin || (kWidth != 5 && kWidth != 8);
    const auto with_silu = [&](auto do_tokens) {
        if constexpr (kSiluHasCopies) {
            if (!has(kBwdSilu)) return do_tokens(std::false_type{});
        }
        do_tokens(std::true_type{});
    };

    // The halos of a steady block: the tokens in front of the run, whose dx is not the run's, are in its first block, and those
    // behind it, which its neighbour sums, are its last block.
    bool in_front = false, behind = false;

    // Does token t, the j-th of its block, which takes a slot of the rings. (Thin lanes have a copy of it for tokens behind the
    // run.)
    enum { kBwdChecked, kBwdSeen, kBwdSteady, kBwdBehind };
    using Checked = std::integral_constant<int, kBwdChecked>;
    using Seen = std::integral_constant<int, kBwdSeen>;
    using Steady = std::integral_constant<int, kBwdSteady>;
    using Behind = std::integral_constant<int, kBwdBehind>;
    uint64_t own_of_block = 0, sums_of_block = 0, later_of_block = 0;  // bytes of taps, of a block that looks at these alone
    const auto step = [&](auto checked, auto silu, int t, int j, int slot) {
        constexpr bool kChecked = decltype(checked)::value == kBwdChecked, kBehind = decltype(checked)::value == kBwdBehind;
        constexpr bool kSeen = decltype(checked)::value == kBwdSeen;
        using Bits = TapsOfBits<8, kWidth>;
        Value g;
        if constexpr (kStaged) {
            inputs[slot] = Channels::template unpack<T>(copied(stage + 2 * j * kSlot, x_in_granule));
            g = Channels::template unpack<T>(copied(stage + (2 * j + 1) * kSlot, dout_in_granule));
            x_in_granule += static_cast<uint32_t>(plan.x_step);
            dout_in_granule += static_cast<uint32_t>(plan.dout_step);
        } else if constexpr (kThin) {
            inputs[slot] = unpack_ahead(x_of_block[j]);
            g = dout_of_block[j];
        } else {
            const int next = j % kAhead;
            inputs[slot] = Channels::template unpack<T>(x_ahead[next]);
            g = Channels::template unpack<T>(dout_ahead[next]);
            if (!kChecked || t + kAhead < loaded) {
                x_ahead[next] = load_anywhere<Vector>(x);
                dout_ahead[next] = load_anywhere<Vector>(dout);
            }
            x += plan.x_step;
            dout += plan.dout_step;
        }
        // Lanes of four channels have no registers for the bytes of a block.
        constexpr bool kSeenInBits = kSeen && !kStaged, kSeenInBytes = kSeen && kStaged;
        const uint32_t own_taps = kChecked ? taps_of(t) : kSeenInBytes ? byte_of_taps(t) : kAllTaps;
        if (kChecked) taps = taps << kWidth | own_taps;
        const auto counts = [&](int i) {
            return kSeenInBits ? Bits{own_of_block}.sees(j, i) : !(kChecked || kSeenInBytes) || (own_taps >> i & 1) != 0;
        };
        const uint32_t later_taps = kSeenInBytes ? byte_of_taps(kLaterTaps * 4 + t) : 0;
        // A neighbour sums over tokens behind the run. (The addition of zero makes NVIDIA's compiler set all conditions of a
        // byte at once again.)
        const uint32_t summed_taps = kSeenInBytes ? (t < tokens ? own_taps : 0) + (kWidth > 6 ? threadIdx.z : 0) : 0;
        const auto sums_count = [&](int i) {
            return kSeenInBits ? Bits{sums_of_block}.sees(j, i) : kSeenInBytes ? (summed_taps >> i & 1) != 0 : counts(i);
        };

        const auto sum_and_derivative = [&]() {
            Value sum = bias;
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                if (counts(i)) sum = multiply_add(weight[i], inputs[(slot + 1 + i) % kWidth], sum);
            return multiply(g, silu_derivative(sum));
        };
        if constexpr (kHasPredicates && !kChecked && !kSiluHasCopies) {
            const Value activated = sum_and_derivative();
            if (has(kBwdSilu)) g = activated;
        } else if (kChecked ? has(kBwdSilu) : decltype(silu)::value) {
            g = sum_and_derivative();
        }
        if (kChecked && !counts(kPast)) g = Channels::all(0.0f);  // after the row, or padding
        gradients[slot] = g;
        if (kSeen ? sums_count(kPast) : kChecked ? t < tokens : !(kBehind || (kStaged && behind))) {
            dbias = add(dbias, g);
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                if (sums_count(i)) dweight[i] = multiply_add(g, inputs[(slot + 1 + i) % kWidth], dweight[i]);
        }

        Value result = Channels::all(0.0f);
        const auto completes = [&](int i) {
            if (kSeenInBits) return Bits{later_of_block}.sees(j, i);
            if (kSeenInBytes) return (later_taps >> i & 1) != 0;
            return !kChecked || (taps >> i * (kWidth + 1) & 1) != 0;
        };
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
            if (completes(kPast - k)) result = multiply_add(weight[kPast - k], gradients[(slot + 1 + k) % kWidth], result);
        if (kChecked && has(kBwdFinal)) {
            // The final state's gradient is added to those of the inputs that it holds.
            const CausalConv1dBwdParams& params = again();
            const int32_t position = static_cast<int32_t>(begin) + t - kPast, column = position - params.in.seqlen + kPast;
            if (column >= 0 && column < kPast && final_state_counts(params.in, b, position))
                result = add(result, value_of_state(params.dfinal_states, column));
        }
        if (kChecked ? t >= kPast : kSeen && kStaged ? t < stop && t >= kPast : !(kStaged && in_front && j < kPast)) {
            const Vector vector = Channels::template pack<T>(result);
            if constexpr (kThin) {
                if (!kChecked)
                    dx_of_block[j] = vector;
                else if (has_vectors(kBwdDxHasVectors))
                    *global_pointer<Vector>(dx) = vector;
                else
                    store_part<T, kChannels>(global_pointer<T>(dx), 0, channels, vector);
            } else if constexpr (!kStaged)
                store_anywhere(dx, vector);
            else if constexpr (kAligned)
                *reinterpret_cast<Vector*>(dx) = vector;
            else
                store_at_place<T>(dx, bit_cast<Words2>(vector), channels);
        } else if (kChecked && begin == 0 && has(kBwdGivesInitial)) {
            if (Vector* const vector = vector_of_state(again().dinitial_states, t)) {
                *vector = Channels::template pack<T>(result);
            } else {
#pragma unroll
                for (int c = 0; c < kChannels; ++c)
                    if (c < channels) state(again().dinitial_states, t, c) = from_float<T>(Channels::get(result, c));
            }
        }
        if (!kThin || kChecked) dx += plan.dx_step;
    };
    // Stores the dx that some tokens of a steady block completed.
    const auto store_block = [&](int from, int to) {
        const auto store_all = [&](auto store) {
#pragma unroll
            for (int j = 0; j < kBlock; ++j) {
                if (j >= from && j < to) store(dx_of_block[j]);
                dx += plan.dx_step;
            }
        };
        if (has_vectors(kBwdDxHasVectors))
            store_all([&](const Vector& vector) { *global_pointer<Vector>(dx) = vector; });
        else
            store_all([&](const Vector& vector) { store_part<T, kChannels>(global_pointer<T>(dx), 0, channels, vector); });
    };
    // The block behind the run has kPast tokens, if the run has whole blocks and the row goes on for as long.
    const auto is_behind = [&](int t) { return kHasEnds && kPast > 0 && t == tokens && stop <= left_again(); };
    // Blocks of the steady path have all their tokens, after the first kPast, and so have those that are loaded meanwhile. The
    // first block of a row is another matter: its taps may reach in front of it.
    const auto has_all_tokens = [&](int t) {
        if constexpr (kHasEnds)
            return (t > 0 || begin >= static_cast<uint32_t>(kPast)) && (t + kBlock <= tokens || is_behind(t));
        else
            return t > 0 && t + kBlock <= tokens && t + kBlock + kAhead <= loaded;
    };
    const auto has_all_taps = [&](int t) {
        if (!has(kBwdTaps)) return true;  // but in a block that is not steady
        const int count = t + kBlock <= tokens ? kBlock : is_behind(t) ? kPast : 0;
        if constexpr (!kHasPredicates) {
            uint32_t seen_by_all = count ? kAllTaps : 0;
#pragma unroll
            for (int j = 0; j < kBlock; ++j)
                if (j < count) seen_by_all &= byte_of_taps(t + j);
            return seen_by_all == kAllTaps;
        }
        const uint64_t all = count >= 8 ? ~uint64_t{0} : (uint64_t{1} << count * 8) - 1;
        return count > 0 && ((eight_at(taps_of_tokens, t) ^ kTapsInside<kWidth>)&all) == 0;
    };
    const auto look_at_block = [&](int t) {
        const int32_t position = static_cast<int32_t>(begin) + t, seqlen = p.in.seqlen, count = tokens - t;
        if (has(kBwdTaps)) {
            own_of_block = eight_at(taps_of_tokens, t);
            later_of_block = eight_at(taps_of_tokens + kLaterTaps, t);
        } else {
            own_of_block = taps_of_row<8, kWidth>(position, seqlen, has(kBwdInitial)).bytes;
            later_of_block = later_taps_of_row<kWidth>(seqlen - position);
        }
        // A neighbour sums over the tokens behind the run.
        sums_of_block = count >= 8 ? own_of_block : count > 0 ? own_of_block & ((uint64_t{1} << count * 8) - 1) : 0;
    };
    // The masks as a checked block finds them, after blocks that do not keep them.
    const auto look_back = [&](int t) {
        taps = 0;
#pragma unroll 1
        for (int i = t < kPast ? t : kPast; i > 0; --i) taps = taps << kWidth | taps_of(t - i);
    };
    // Tells whether a block completes gradients of a state.
    const auto sees_states = [&](int t) {
        return (has(kBwdGivesInitial) && begin == 0 && t < kPast) || (has(kBwdFinal) && t + kBlock > left_again());
    };
    // Where rings are long, one body does all checked tokens, in slot 0, and the rings move on behind it: as many bodies as
    // slots are more than the caches of instructions hold. After whole turns, tokens are in the slots where the steady path
    // looks for them.
    constexpr bool kRingsMove = kStaged && kWidth >= 6;
    bool had_all = kHasEnds;           // whether all taps of the block before count, or dx of none of its tokens is the run's
    const int end = plan.run + kPast;  // lanes wait for each other
    for (int t = 0; t < end; t += kBlock) {
        if constexpr (kThin) {
#pragma unroll
            for (int j = 0; j < kBlock; ++j) {
                x_of_block[j] = x_ahead[j];
                dout_of_block[j] = unpack_ahead(dout_ahead[j]);
            }
            const auto load_ahead = [&](const char*& from, int64_t step, BwdTileFlags flag, Ahead(&ahead)[kAhead]) {
                const auto load_all = [&](auto load) {
#pragma unroll
                    for (int j = 0; j < kBlock; ++j) {
                        if (t + kBlock + j < loaded) ahead[j] = load(from);
                        from += step;
                    }
                };
                if constexpr (kHalves) {  // each load has a predicate, and no branch; a second half that is none stays zero
#pragma unroll
                    for (int j = 0; j < kBlock; ++j) {
                        const uint16_t* const halves = global_pointer<const uint16_t>(from);
                        if (t + kBlock + j < loaded) ahead[j].first = halves[0];
                        if (t + kBlock + j < with_second) ahead[j].second = halves[1];
                        from += step;
                    }
                } else if (has_vectors(flag)) {
                    load_all(load_vector);
                } else {
                    load_all(load_elements);
                }
            };
            load_ahead(x, plan.x_step, kBwdXHasVectors, x_ahead);
            load_ahead(dout, plan.dout_step, kBwdDoutHasVectors, dout_ahead);
        }
        if constexpr (kStaged) {
            wait_for_copies<kStages - 2>();
            if (!kAligned) sync_wave();
            copy_block(t + (kStages - 1) * kBlock, (stage == 0 ? kStages * kStage : stage) - kStage);
            close_copies();
        }
        flags = first_parameter_again(call).plan.flags;
        const bool has_all = t < stop && has_all_taps(t);
        if (has_all && had_all && has_all_tokens(t) && (kHasPredicates || kSiluHasCopies || has(kBwdSilu))) {
            // Where tokens come through registers, no lane waits for others, and steady blocks have a loop of their own.
            in_front = kPast > 0 && t == 0;
            behind = t >= tokens;
            with_silu([&](auto silu) {
                for (;; t += kBlock) {
                    if (kThin && behind) {
#pragma unroll
                        for (int j = 0; j < kPast; ++j) step(Behind{}, silu, t + j, j, j % kWidth);
                        if constexpr (kThin) store_block(0, kPast);
                        break;
                    }
#pragma unroll
                    for (int j = 0; j < kBlock; ++j) {
                        if (kStaged && behind && j >= kPast) break;
                        step(Steady{}, silu, t + j, j, j % kWidth);
                    }
                    if constexpr (kThin) store_block(in_front ? kPast : 0, kBlock);
                    if (kHasEnds || !has_all_tokens(t + kBlock) || !has_all_taps(t + kBlock)) break;
                }
            });
            taps = static_cast<Taps>(-1);  // all taps of these tokens count
        } else if (kSeesBlocks && t < stop && !sees_states(t) && (!kStaged || has(kBwdTaps))) {
            if constexpr (kSeesBlocks) {
                if (!kStaged) look_at_block(t);
                with_silu([&](auto silu) {
#pragma unroll
                    for (int j = 0; j < kBlock; ++j) step(Seen{}, silu, t + j, j, j % kWidth);
                });
                if constexpr (kThin) store_block(t == 0 ? kPast : 0, stop - t < kBlock ? stop - t : kBlock);
            }
        } else if constexpr (kRingsMove) {
            if constexpr (kSeesBlocks) look_back(t);
#pragma unroll 1
            for (int j = 0; j < kBlock && t + j < stop; ++j) {
                step(Checked{}, std::true_type{}, t + j, j, 0);
#pragma unroll
                for (int i = 1; i < kWidth; ++i) inputs[i] = inputs[(i + 1) % kWidth];
#pragma unroll
                for (int i = 1; i < kWidth; ++i) gradients[i] = gradients[(i + 1) % kWidth];
            }
        } else {
            if constexpr (kSeesBlocks) look_back(t);
#pragma unroll
            for (int j = 0; j < kBlock; ++j)
                if (t + j < stop) step(Checked{}, std::true_type{}, t + j, j, j % kWidth);
        }
        had_all = has_all;
        stage = stage + kStage == kStages * kStage ? 0 : stage + kStage;
    }

    // ---- dweight and dbias of the block -------------------------------------------------------------------------------------
    if constexpr (kStaged) wait_for_copies<0>();
    if constexpr (kHasEnds) __syncthreads();
    leave_partial_sums<kWidth, kChannels, !kHasEnds>(call, reinterpret_cast<float*>(lds), block, dweight, dbias);
}

// kAligned: vectors lie at multiples of their size. (It matters where they come through LDS.)
template <typename T, int kWidth, bool kAligned>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdTileThreads, bwd_tile_blocks(kWidth, kAligned))
    causal_conv1d_bwd_tile_kernel(BwdTileCall call) {
    constexpr BwdTileMoves kMoves = !kBwdStages ? BwdTileMoves::registers
                                    : kAligned  ? BwdTileMoves::vectors
                                                : BwdTileMoves::granules;
    HIPCONV_SHARED(Words2, lds, (bwd_tile_lds<T, kWidth, kMoves>() / 8));
    HIPCONV_SHARED(uint32_t, taps_of_tokens, (bwd_tile_tap_lds<kWidth, kMoves>()));
    bwd_tile_walk<T, kWidth, kMoves>(call, lds, taps_of_tokens);
}

// The same for two channels a lane.
template <typename T, int kWidth, bool kHalves>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdTileThreads, bwd_tile_thin_blocks(kWidth, static_cast<int>(sizeof(T)), kHalves))
    causal_conv1d_bwd_tile_pairs_kernel(BwdTileCall call) {
    constexpr BwdTileMoves kMoves = kHalves ? BwdTileMoves::halves : BwdTileMoves::pairs;
    HIPCONV_SHARED(Words2, lds, (bwd_tile_lds<T, kWidth, kMoves>() / 8));
    HIPCONV_SHARED(uint32_t, taps_of_tokens, (bwd_tile_tap_lds<kWidth, kMoves>()));
    bwd_tile_walk<T, kWidth, kMoves>(call, lds, taps_of_tokens);
}

// Launches the instance for widths kLeast to kMost: tile.cu has the narrowest, and each other file is called after its widest.
// On cards that load tokens ahead into registers, vectors lie anywhere.
template <int kMost, int kLeast>
void launch_bwd_tile(const BwdTileCall& call, hipStream_t stream) {
    with_instance<kMost, kLeast>(call.p.in.dtype, call.p.in.width, [&](auto type, auto width) {
        using T = decltype(type);
        const dim3 grid = grid_of(call.groups, call.plan.blocks), block(call.lanes, call.rows, 1);
        if constexpr (kBwdStages && sizeof(T) == 2) {
            if (call.aligned) {
                HIPCONV_LAUNCH(true, (causal_conv1d_bwd_tile_kernel<T, decltype(width)::value, true>), grid, block, 0, stream,
                               call);
                return;
            }
        }
        HIPCONV_LAUNCH(true, (causal_conv1d_bwd_tile_kernel<T, decltype(width)::value, false>), grid, block, 0, stream, call);
    });
    check_launch("causal_conv1d_bwd");
}

// The same of thin lanes, for all widths: pairs of each type, and halves, have a file of their own.
template <typename T, bool kHalves, int kWidth = kBwdTileMaxWidth>
void launch_bwd_tile_thin(const BwdTileCall& call, hipStream_t stream) {
    if constexpr (kWidth > 1) {
        if (call.p.in.width < kWidth) return launch_bwd_tile_thin<T, kHalves, kWidth - 1>(call, stream);
    }
    if constexpr (kBwdStages) {
        const dim3 grid = grid_of(call.groups, call.plan.blocks), block(call.lanes, call.rows, 1);
        HIPCONV_LAUNCH(true, (causal_conv1d_bwd_tile_pairs_kernel<T, kWidth, kHalves>), grid, block, 0, stream, call);
        check_launch("causal_conv1d_bwd");
    }
}

extern template void launch_bwd_tile_thin<float, false>(const BwdTileCall&, hipStream_t);
extern template void launch_bwd_tile_thin<f16, false>(const BwdTileCall&, hipStream_t);
extern template void launch_bwd_tile_thin<f16, true>(const BwdTileCall&, hipStream_t);
extern template void launch_bwd_tile_thin<bf16, false>(const BwdTileCall&, hipStream_t);
extern template void launch_bwd_tile_thin<bf16, true>(const BwdTileCall&, hipStream_t);

extern template void launch_bwd_tile<5, 4>(const BwdTileCall&, hipStream_t);
extern template void launch_bwd_tile<6, 6>(const BwdTileCall&, hipStream_t);
extern template void launch_bwd_tile<7, 7>(const BwdTileCall&, hipStream_t);
extern template void launch_bwd_tile<8, 8>(const BwdTileCall&, hipStream_t);

}  // namespace hipconv
