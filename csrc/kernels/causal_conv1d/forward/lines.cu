// This kernel is the causal conv1d forward by way of LDS in the tensors' own type ("lines"): it serves what the kernels that
// read memory as they compute are slow at. These are x and out of different layouts, and short rows in any layout.
//
// A block's tile comes to LDS with a line a channel (lines.h, lines_move.h), whatever the layout of x. A thread makes 16 places
// of a line: it reads them and the 8 before them in whole vectors, and puts outputs back where they were. A byte says which
// taps of a place see something; threads of which all taps do, or none, do without looking at it. So the rows of a tile need
// not begin anywhere in particular: rows of one token are 16 a thread.
//
// Bytes: each input is read once, those before a tile once more from the cache; each output is written once.
#include <hip/hip_runtime.h>

#include "../common/vector_math.h"
#include "channel_parameters.h"
#include "kernels.h"
#include "launch/check.h"
#include "lines_move.h"
#include "tile.h"
#include "token_taps.h"

namespace hipconv {

constexpr int kHalfRun = kLineRun / 2;
// Blocks of a compute unit, by the registers that they need.
template <typename T>
constexpr int line_blocks(int width) {
    return width <= 4 && (sizeof(T) == 2 || kHasPredicates) ? 4 : 3;  // AMD has LDS for three in 32 bits
}
constexpr int64_t kEnoughBlocksOfLines = 2048;  // for a large card

template <typename T>
constexpr int kLineBytes =
    ((kLineBefore + (kTilePlaces >> kMostLineBits)) * static_cast<int>(sizeof(T)) / 16 | 1) * 16 << kMostLineBits;

// The window of a thread as pairs of places half a run apart, from the one `kBack` before its first.
template <typename T, int kBack>
HIPCONV_INLINE void load_window(const char* own, Pair (&window)[kBack + kHalfRun]) {
    constexpr int kVector = kVectorOf<T>, kAll = kLineBefore + kLineRun;
    float values[kAll];
#pragma unroll
    for (int v = 0; v < kAll / kVector; ++v) {
        if ((v + 1) * kVector <= kLineBefore - kBack) continue;
        const Words4 words = reinterpret_cast<const Words4*>(own - kLineBefore * static_cast<int>(sizeof(T)))[v];
#pragma unroll
        for (int j = 0; j < kVector / 2; ++j) {
            const Pair both = pair_of<T>(words, j);
            values[v * kVector + 2 * j] = low(both);
            values[v * kVector + 2 * j + 1] = high(both);
        }
    }
#pragma unroll
    for (int i = 0; i < kBack + kHalfRun; ++i)
        window[i] = make_pair(values[kLineBefore - kBack + i], values[kLineBefore - kBack + i + kHalfRun]);
}

template <typename T>
HIPCONV_INLINE void store_run(char* own, const Pair (&sums)[kHalfRun]) {
    constexpr int kVector = kVectorOf<T>;
#pragma unroll
    for (int v = 0; v < kLineRun / kVector; ++v) {
        const auto value = [&](int i) { return i < kHalfRun ? low(sums[i % kHalfRun]) : high(sums[i % kHalfRun]); };
        Words4 words{};
#pragma unroll
        for (int j = 0; j < kVector / 2; ++j)
            set_pair<T>(words, j, make_pair(value(v * kVector + 2 * j), value(v * kVector + 2 * j + 1)));
        reinterpret_cast<Words4*>(own)[v] = words;
    }
}

// The sums of a thread's run. `found` has a byte for each of its places, or is null if all taps see something. All lanes of a
// wave call.
template <typename T, int kWidth>
__device__ __forceinline__ void make_run(const char* own, const Words4* found, int width, const float (&weight)[kWidth],
                                         float bias, Pair (&sums)[kHalfRun]) {
    constexpr int kPast = kWidth - 1;
    Pair window[kPast + kHalfRun];
    load_window<T, kPast>(own, window);
    Words4 sights{};
    bool sees_all = true, sees_one = false;  // itself only
    if (found) {
        sights = *found;
        const uint32_t each_byte = 0x01010101u * ((1u << (width - 1)) - 1);
        sees_one = true;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            sees_all = sees_all && word(sights, k) == each_byte;
            sees_one = sees_one && (word(sights, k) & 0x7f7f7f7fu) == 0;
        }
    }
#pragma unroll
    for (int t = 0; t < kHalfRun; ++t) sums[t] = twice(bias);
    if (__ballot(!sees_all) == 0) {
        const int left_out = kWidth - width;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            if (i < left_out) continue;
#pragma unroll
            for (int t = 0; t < kHalfRun; ++t) sums[t] = multiply_add(twice(weight[i]), window[t + i], sums[t]);
        }
    } else if (__ballot(!sees_one) != 0) {
#pragma unroll
        for (int t = 0; t < kHalfRun; ++t) {
            const uint32_t first = word(sights, t / 4) >> t % 4 * 8, second = word(sights, t / 4 + 2) >> t % 4 * 8;
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                const int bit = kPast - 1 - i;
                sums[t] = multiply_add_where(first >> bit & 1, second >> bit & 1, twice(weight[i]), window[t + i], sums[t]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < kHalfRun; ++t) sums[t] = multiply_add(twice(weight[kPast]), window[t + kPast], sums[t]);
}

// Tells for each place of some tiles what a token there sees.
HIPCONV_INLINE void find_sights(const LinesCall& p, uint32_t first_tile, uint32_t tiles, uint8_t* found) {
    const int all = static_cast<int>(tiles << p.plan.place_bits);
    for (int i = static_cast<int>(threadIdx.x); i < all; i += kLineThreads) {
        const uint32_t of_tile = static_cast<uint32_t>(i) >> p.plan.place_bits;
        const LineTile tile(p, p.plan, first_tile + of_tile);
        const LinePlace place = tile.place(p, p.plan, i - static_cast<int>(of_tile << p.plan.place_bits));
        found[i] = place.is_token ? taps_of_token(p, tile.first_row + place.row, place.t) : uint8_t{0};
    }
}

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kLineThreads, line_blocks<T>(kWidth)) causal_conv1d_fwd_lines(LinesCall p) {
    HIPCONV_SHARED(Words4, lds, kLineBytes<T> / 16);
    HIPCONV_SHARED(uint32_t, found, kMostPlaces / 4);
    const auto again = [&]() -> const LinesCall& { return first_parameter_again(p); };
    const int thread = static_cast<int>(threadIdx.x);
    const uint32_t rest = blockIdx.z * gridDim.y + blockIdx.y;
    const bool channels_first = again().plan.channels_first;
    const uint32_t block = channels_first ? rest : blockIdx.x, channel_block = channels_first ? blockIdx.x : rest;
    if (block >= again().plan.blocks || channel_block >= again().plan.channel_blocks) return;
    let_next_kernel_begin();
    const int line_bits = again().plan.line_bits, line = thread & ((1 << line_bits) - 1), run = thread >> line_bits;
    const int first_channel = static_cast<int>(channel_block << line_bits);

    wait_for_kernel_before();
    ChannelParameters<kWidth, kWidth <= 4 ? 1 : 5> parameters;
    const int d = first_channel + channel_of_line(again().plan, line);
    parameters.load(again(), d < again().dim ? d : 0);
    const uint32_t first_tile = block * again().plan.tiles_a_block;
    uint32_t last_tile = first_tile + again().plan.tiles_a_block;
    last_tile = last_tile < again().plan.tiles ? last_tile : again().plan.tiles;
    for (uint32_t at = first_tile; at < last_tile; ++at) {
        const LineTile tile(again(), again().plan, at);
        const auto share = [&]() -> LineShare<T> {
            const LinesCall& call = again();
            return {call, call.plan, tile, first_channel, reinterpret_cast<char*>(lds)};
        };
        if (at != first_tile) __syncthreads();  // the outputs are taken away
        bring_x<T>(share());
        const bool all_see = tile.within && !again().seq_idx.data;
        uint32_t in_found = 0;       // the tile, of those whose sights are there
        if (again().seq_idx.data) {  // so that the ids of some tiles are waited for at once
            const uint32_t at_once = kMostPlaces >> again().plan.place_bits, left = last_tile - at;
            in_found = (at - first_tile) % at_once;
            if (in_found == 0) find_sights(again(), at, left < at_once ? left : at_once, reinterpret_cast<uint8_t*>(found));
        } else if (!all_see) {
            find_sights(again(), at, 1, reinterpret_cast<uint8_t*>(found));
        }
        if (again().initial_states.data && !tile.within) {
            __syncthreads();  // where vectors of channels have left zeros
            bring_states<T>(share());
        }
        __syncthreads();

        char* const own = share().at(line, run * kLineRun);
        if (at == first_tile) parameters.convert(again());
        float weight[kWidth];
        parameters.weights(weight);
        const Words4* const own_found =
            reinterpret_cast<const Words4*>(found) + (in_found << (again().plan.place_bits - 4)) + run;
        Pair sums[kHalfRun];
        make_run<T, kWidth>(own, all_see ? nullptr : own_found, again().width, weight, parameters.bias(), sums);
        if (again().use_silu) {
#pragma unroll
            for (int t = 0; t < kHalfRun; ++t) sums[t] = silu(sums[t]);
        }
        if (again().seq_idx.data) {
            const Words4 sights = *own_found;
#pragma unroll
            for (int t = 0; t < kHalfRun; ++t) {
                const bool first = word(sights, t / 4) >> (t % 4 * 8 + kPaddingBit) & 1;
                const bool second = word(sights, t / 4 + 2) >> (t % 4 * 8 + kPaddingBit) & 1;
                sums[t] = make_pair(first ? 0.0f : low(sums[t]), second ? 0.0f : high(sums[t]));
            }
        }
        __syncthreads();  // now outputs may take the place of inputs
        store_run<T>(own, sums);
        __syncthreads();
        take_out<T>(share(), again().out);
    }
}

namespace {

// Tells how a tensor is moved, and whether tokens are what lies side by side.
struct Layout {
    bool along_tokens, dense, in_words, aligned;
};

Layout layout_of(const Sequences& s, int size) {
    const auto magnitude = [](int64_t stride) { return stride < 0 ? -stride : stride; };
    Layout found{};
    found.along_tokens = magnitude(s.seqlen_stride) < magnitude(s.dim_stride);
    const int64_t inner = found.along_tokens ? s.seqlen_stride : s.dim_stride;
    const int64_t outer = found.along_tokens ? s.dim_stride : s.seqlen_stride;
    const auto begin_at = [&](int bytes) {
        return reinterpret_cast<uintptr_t>(s.data) % static_cast<unsigned>(bytes) == 0 && outer * size % bytes == 0 &&
               s.batch_stride * size % bytes == 0;
    };
    found.dense = inner == 1;
    found.in_words = begin_at(4);
    found.aligned = begin_at(16);
    return found;
}

LineTensor line_tensor(const Sequences& s, int size, LineMoves moves, bool aligned, const LinesPlan& plan, int32_t seqlen) {
    const int32_t granules = moves == LineMoves::packed_rows ? ((seqlen << plan.line_bits) * size + 14) / 16 + 1 : 0;
    return {moves,
            aligned,
            static_cast<int32_t>(s.dim_stride * size),
            static_cast<int32_t>(s.seqlen_stride * size),
            granules,
            granules > 0 ? reciprocal_of(granules) : 0,
            s.batch_stride * size,
            (s.batch_stride - (plan.pitch - 1) * s.seqlen_stride) * size};
}
bool steps_fit(const Sequences& s, int size) {
    const int64_t limit = (int64_t{1} << 31) / size;
    const auto fits = [&](int64_t stride) { return -limit < stride && stride < limit; };
    return !s.data || (fits(s.dim_stride) && fits(s.seqlen_stride));
}

// This takes, of 64, 32 and 16 lines, those that leave the fewest idle; wider tiles have longer lines of memory.
int line_bits_for(int32_t dim) {
    int best = kMostLineBits;
    double least = 0;
    for (int bits = kMostLineBits; bits >= 4; --bits) {
        const int64_t lines = int64_t{1} << bits, covered = (dim + lines - 1) / lines * lines;
        const double cost = static_cast<double>(covered) * (bits == 6 ? 1.0 : bits == 5 ? 1.1 : 1.3);
        if (bits == kMostLineBits || cost < least) {
            best = bits;
            least = cost;
        }
    }
    while (best > kLeastLineBits && 1 << (best - 1) >= dim) --best;
    return best;
}

}  // namespace

LinesPlan lines_plan(const CausalConv1dFwdParams& p) {
    const int size = element_bytes(p.dtype), vector = 16 / size;
    LinesPlan plan{};
    const Layout x = layout_of(p.x, size), out = layout_of(p.out, size);
    // Rows shorter than two or three vectors would leave too many places empty. They come whole and by elements, in longer
    // tiles.
    const bool long_rows = p.seqlen >= 3 * vector || p.seqlen % vector == 0;
    plan.line_bits = line_bits_for(p.dim);
    const int most_bits = long_rows || !(x.along_tokens || out.along_tokens) ? kMostLineBits
                          : x.along_tokens && out.along_tokens               ? 4
                                                                             : 5;
    if (plan.line_bits > most_bits) plan.line_bits = most_bits;
    plan.place_bits = 12 - plan.line_bits;
    static_assert(kTilePlaces == 1 << 12, "lines and places of a tile");
    const int lines = 1 << plan.line_bits, places = 1 << plan.place_bits;
    const bool has_vectors = lines >= vector && p.dim >= vector;
    plan.vector_bits = lines < vector ? 0 : vector == 8 ? 3 : 2;

    const auto moves = [&](const Layout& s, const Sequences& rows, bool words_do) {
        if (!s.along_tokens)
            return s.dense && has_vectors && (s.aligned || s.in_words || words_do) ? LineMoves::channel_vectors
                                                                                   : LineMoves::channels;
        if (s.dense && long_rows) return LineMoves::token_vectors;
        if (p.seqlen >= places / 4) return LineMoves::tokens;
        return s.dense && rows.dim_stride == p.seqlen ? LineMoves::packed_rows : LineMoves::rows;
    };
    const LineMoves x_moves = moves(x, p.x, true), out_moves = moves(out, p.out, false);
    const auto either = [&](LineMoves m) { return x_moves == m || out_moves == m; };
    const int64_t past = p.initial_states.data ? p.width - 1 : 0;
    const auto whole = [&](int64_t n) { return either(LineMoves::token_vectors) ? (n + vector - 1) / vector * vector : n; };
    plan.head = static_cast<int32_t>(whole(past));
    const int64_t pitch = plan.head + whole(p.seqlen);
    plan.pitch = static_cast<int32_t>(pitch);
    plan.x = line_tensor(p.x, size, x_moves, x.aligned, plan, p.seqlen);
    plan.out = line_tensor(p.out, size, out_moves, out.aligned, plan, p.seqlen);
    plan.states = line_tensor(p.initial_states, size, LineMoves::tokens, false, plan, p.seqlen);
    plan.made =
        static_cast<int32_t>(either(LineMoves::rows) || either(LineMoves::packed_rows) ? places / pitch * pitch : places);
    plan.of_pitch = pitch < places ? reciprocal_of(pitch) : 0;
    plan.of_seqlen = reciprocal_of(p.seqlen);
    plan.of_past = past > 0 ? reciprocal_of(past) : 0;
    plan.bytes = ((kLineBefore + places) * size / 16 | 1) * 16;
    plan.channels_first = !x.along_tokens;
    plan.states_by_channel = p.initial_states.data && !layout_of(p.initial_states, size).along_tokens;
    const bool fits = steps_fit(p.x, size) && steps_fit(p.out, size) && steps_fit(p.initial_states, size);
    if (!fits || static_cast<double>(pitch) * p.batch > 2e9) return plan;
    plan.of_long_pitch = long_reciprocal_of(static_cast<uint32_t>(pitch));
    const int64_t tiles = (pitch * p.batch + plan.made - 1) / plan.made, channel_blocks = (int64_t{p.dim} + lines - 1) / lines;
    plan.tiles = static_cast<uint32_t>(tiles);
    // A block has more tiles where that leaves enough of them for a large card.
    plan.tiles_a_block = 1;
    while (plan.tiles_a_block < 8 && channel_blocks * tiles / (2 * plan.tiles_a_block) >= kEnoughBlocksOfLines)
        plan.tiles_a_block *= 2;
    plan.channel_blocks = static_cast<uint32_t>(channel_blocks);
    const int64_t blocks = (tiles + plan.tiles_a_block - 1) / plan.tiles_a_block;
    plan.blocks = (plan.channels_first ? channel_blocks : blocks) <= kGridLimit ? static_cast<uint32_t>(blocks) : 0;
    return plan;
}

namespace {

template <typename T, int kWidth>
void launch(const CausalConv1dFwdParams& p, const LinesPlan& plan, hipStream_t stream) {
    LinesCall call{};
    static_cast<CausalConv1dFwdParams&>(call) = p;
    call.plan = plan;
    const dim3 grid =
        plan.channels_first ? grid_of(plan.channel_blocks, plan.blocks) : grid_of(plan.blocks, plan.channel_blocks);
    HIPCONV_LAUNCH(true, (causal_conv1d_fwd_lines<T, kWidth>), grid, dim3(kLineThreads, 1, 1), 0, stream, call);
    check_launch("causal_conv1d_fwd");
}

}  // namespace

namespace {

// Rows of few channels, those along tokens, and x and out of different orders, which in float32 and on AMD's cards are rows of
// out that begin anywhere (measured on an H100 and an H200).
bool tile_of_lds_is_faster(const CausalConv1dFwdParams& p) {
    const int size = element_bytes(p.dtype);
    const Layout x = layout_of(p.x, size), out = layout_of(p.out, size);
    if (p.seqlen == 1 || !x.dense || !out.dense || !causal_conv1d_tile_lds_fits(p)) return false;
    const bool aligned_rows = out.aligned && p.seqlen % (16 / size) == 0;
    const bool crosses_well = !aligned_rows || (kHasPredicates && size == 2);
    return p.dim < 32 || (out.along_tokens && (x.along_tokens || crosses_well));
}

}  // namespace

const char* causal_conv1d_lines_refusal(const CausalConv1dFwdParams& p) {
    const bool fits = p.width <= kMaxFastWidth && lines_plan(p).blocks > 0;
    return fits ? nullptr
                : "widths 1 to 8, steps of less than 2^31 bytes from token to token and from channel to channel, fewer than 2 "
                  "* 10^9 tokens";
}

// Measured on an H200. One token with a state is mostly state, which "tile" reads in vectors; rows of more tokens along many
// channels fill the lanes of "tile" and "vector".
bool lines_is_faster(const CausalConv1dFwdParams& p) {
    constexpr int kShortRow = 24;       // tokens
    constexpr int kFewChannels = 64;    // that short rows do not fill a block with
    constexpr int kManyRows = 1 << 12;  // of a batch
    const bool many = p.batch >= kManyRows || static_cast<int64_t>(p.batch) * p.dim * p.seqlen >= kEnoughThreads;
    if (!many || p.seqlen >= kShortRow || causal_conv1d_lines_refusal(p)) return false;
    if (p.seqlen == 1) return !p.initial_states.data && !shared_is_faster(p);
    const bool whole_vectors = rows_are_plain(p) && p.seqlen % (16 / element_bytes(p.dtype)) == 0;  // "vector" makes those
    const bool channel_last = p.x.dim_stride == 1 && p.out.dim_stride == 1;
    return p.dim <= kFewChannels && !channel_last && !whole_vectors && !shared_is_faster(p);
}

bool causal_conv1d_lines(const CausalConv1dFwdParams& p, void* /*workspace*/, void* stream) {
    if (tile_of_lds_is_faster(p)) return causal_conv1d_tile_lds(p, static_cast<hipStream_t>(stream));
    const LinesPlan plan = lines_plan(p);
    const hipStream_t s = static_cast<hipStream_t>(stream);
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        if (p.width <= 4)
            launch<T, 4>(p, plan, s);
        else
            launch<T, 8>(p, plan, s);
    });
    return false;
}

}  // namespace hipconv
