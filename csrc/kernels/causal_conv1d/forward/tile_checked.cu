// This kernel is "tile" for calls in which taps may see nothing, and for memory in which no aligned vector lies.
//
// The structure is that of tile.cu: a thread owns a few neighbouring channels and walks a run of tokens, the last of which are a
// ring in registers. Which taps of a token see something is one byte, the same for all channels: a row of threads first makes the
// bytes of its run in LDS, a lane a token, while the first loads are under way. So the beginning of a row, its state, the ids, and
// the oldest tap of an odd width, for which the next even one is compiled, all cost one predicate of a multiply-add.
//
// Lanes are aligned vectors, or a word of channels at any address (common/lanes.h).
//
// Bytes: as tile.cu, and the ids once a row of threads.
#include <hip/hip_runtime.h>

#include "../common/lanes.h"
#include "../common/parts.h"
#include "causal_conv1d/states_formula.h"
#include "kernels.h"
#include "launch/check.h"
#include "tile.h"

namespace hipconv {

constexpr int kMaxCheckedRun = 2 * kMaxRun;  // tokens
constexpr int kPaddingBit = 7;               // of a token's byte; bit k - 1 is set if the token sees the one k before it

// This makes the byte of token t.
HIPCONV_INLINE uint8_t taps_of_token(const CausalConv1dInputs& p, int64_t b, int64_t t) {
    const bool has_ids = p.seq_idx.data;
    const int32_t id = has_ids ? sequence_of(p, b, t) : 0;
    const int64_t oldest = p.initial_states.data ? 1 - int64_t{p.width} : 0;
    int taps = id < 0 ? 1 << kPaddingBit : 0;
#pragma unroll
    for (int k = 1; k < kMaxFastWidth; ++k) {
        if (k >= p.width || t - k < oldest) break;
        if (!has_ids || sequence_of(p, b, t - k) == id) taps |= 1 << (k - 1);
    }
    return static_cast<uint8_t>(taps);
}

// This is the number of blocks of a compute unit, by the registers that a width needs.
constexpr int checked_blocks(int width, int channels) {
    if (channels <= 2) return width <= 4 ? 8 : width == 6 ? 6 : 5;
    return width <= 2 ? 8 : width == 4 ? 6 : width == 6 ? 4 : 3;
}

template <typename T, typename Lane, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kTileThreads, checked_blocks(kWidth, Lane::kChannels))
    causal_conv1d_fwd_tile_checked(CausalConv1dFwdParams p, TilePlan plan) {
    constexpr int kChannels = Lane::kChannels, kPairs = (kChannels + 1) / 2, kParts = Lane::kParts;
    constexpr int kPast = kWidth - 1;
    constexpr int kAhead = kWidth == 2 ? 4 : kWidth;  // a multiple of kWidth, so that ring positions repeat
    using Part = typename Lane::Part;

    HIPCONV_SHARED(uint8_t, block_taps, kTileThreads* kMaxCheckedRun);
    const TileRun run = run_of_thread(plan);
    const int64_t first = run.vector * kChannels - plan.shift, d = first < 0 ? 0 : first, begin = run.begin;
    const bool both = first >= 0 && d + 1 < p.dim;
    int tokens = 0;
    if (run.b < p.batch && begin < p.seqlen)
        tokens = static_cast<int>(p.seqlen - begin < plan.run ? p.seqlen - begin : plan.run);
    uint8_t* const taps = block_taps + threadIdx.y * plan.run;
    let_next_kernel_begin();
    wait_for_kernel_before();

    const char* x =
        reinterpret_cast<const char*>(static_cast<const T*>(p.x.data) + run.b * p.x.batch_stride + d) + begin * plan.x_step;
    char* out = reinterpret_cast<char*>(static_cast<T*>(p.out.data) + run.b * p.out.batch_stride + d) + begin * plan.out_step;
    Part before[kPast][kParts], ahead[kAhead][kParts];
    const bool has_channels = d < p.dim;
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
        const int back = kPast - i;
#pragma unroll
        for (int k = 0; k < kParts; ++k) before[i][k] = Part{};
        if (begin >= back && tokens > 0 && has_channels) Lane::load(x - back * plan.x_step, both, before[i]);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
#pragma unroll
        for (int k = 0; k < kParts; ++k) ahead[j][k] = Part{};
        if (j < tokens && has_channels) Lane::load(x, both, ahead[j]);
        x += plan.x_step;
    }
    for (int t = static_cast<int>(threadIdx.x); t < tokens; t += static_cast<int>(blockDim.x))
        taps[t] = taps_of_token(p, run.b, begin + t);
    __syncthreads();
    if (!has_channels || tokens == 0) return;

    Pair weight[kWidth][kPairs], bias[kPairs];
    if constexpr (kParts == 1 && kChannels > 1)
        packed_parameters<true>(p, d, weight, bias);
    else
        strided_parameters(p, d, both, weight, bias);

    Pair ring[kWidth][kPairs];
    const auto keep = [&](int slot, const Part(&parts)[kParts]) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) ring[slot][j] = Lane::pair(parts, j);
    };
#pragma unroll
    for (int i = 0; i < kPast; ++i) keep(i, before[i]);
    if (begin < kPast && p.initial_states.data) {
        const T* state = static_cast<const T*>(p.initial_states.data) + run.b * p.initial_states.batch_stride +
                         d * p.initial_states.dim_stride;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            const int64_t column = begin - (kPast - i) + p.width - 1;
            if (begin >= kPast - i || column < 0) continue;
            const T* from = state + column * p.initial_states.seqlen_stride;
            const auto channel = [&](int c) {
                return c == 0 || kChannels > 2 || both ? to_float(from[c * p.initial_states.dim_stride]) : 0.0f;
            };
#pragma unroll
            for (int j = 0; j < kPairs; ++j) ring[i][j] = make_pair(channel(2 * j), kChannels > 1 ? channel(2 * j + 1) : 0.0f);
        }
    }

    // This makes the output of token t of the run, which is in this slot of the ring.
    const auto produce = [&](int slot, int t) {
        const int token_taps = taps[t];
        Pair sums[kPairs];
        const auto add_taps = [&](auto sees) {
#pragma unroll
            for (int j = 0; j < kPairs; ++j) sums[j] = bias[j];
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                if (i < kPast && !sees(kPast - i)) continue;
#pragma unroll
                for (int j = 0; j < kPairs; ++j)
                    sums[j] = multiply_add(weight[i][j], ring[(slot + 1 + i) % kWidth][j], sums[j]);
            }
        };
        if (!kHasPredicates && token_taps == (1 << kPast) - 1)
            add_taps([](int) { return true; });
        else
            add_taps([&](int back) { return (token_taps >> (back - 1) & 1) != 0; });
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            sums[j] = silu_where(p.use_silu, sums[j]);
            if (token_taps >> kPaddingBit) sums[j] = twice(0.0f);
        }
        Lane::store(out, both, sums);
        out += plan.out_step;
    };

    int t = 0;
    for (; t + 2 * kAhead <= tokens; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            const int slot = (kPast + j) % kWidth;
            keep(slot, ahead[j]);
            Lane::load(x, both, ahead[j]);
            x += plan.x_step;
            produce(slot, t + j);
        }
    }
    for (; t < tokens; t += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            const int slot = (kPast + j) % kWidth;
            keep(slot, ahead[j]);
            if (t + kAhead + j < tokens) Lane::load(x, both, ahead[j]);
            x += plan.x_step;
            if (t + j < tokens) produce(slot, t + j);
        }
    }
}

namespace {

// A form of the kernel: whether lanes are aligned vectors, and the shape of its launch.
struct CheckedForm {
    bool whole;
    int shift;
    TileShape shape;
};

CheckedForm form_of(const CausalConv1dFwdParams& p) {
    CheckedForm form{};
    const int size = element_bytes(p.dtype);
    form.whole = tile_is_whole(p, lane_bytes(p.width));
    if (form.whole) {
        form.shape = tile_shape(p, p.dim / (lane_bytes(p.width) / size), kMaxRun);
    } else {
        // Where all rows of out begin in the middle of a word, the first lane has one channel, and the pairs that follow are
        // words.
        const bool alike = p.out.seqlen_stride % 2 == 0 && p.out.batch_stride % 2 == 0;
        form.shift = size == 2 && alike && reinterpret_cast<uintptr_t>(p.out.data) % 4 != 0;
        const int channels = 4 / size;
        form.shape = tile_shape(p, (int64_t{p.dim} + form.shift + channels - 1) / channels, kMaxCheckedRun);
    }
    return form;
}

template <typename T, typename Lane, int kWidth>
void launch(const CausalConv1dFwdParams& p, const CheckedForm& form, hipStream_t stream) {
    TilePlan plan = tile_plan(p, form.shape);
    plan.shift = form.shift;
    HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile_checked<T, Lane, kWidth>), tile_grid(form.shape), tile_block(form.shape), 0,
                   stream, p, plan);
    check_launch("causal_conv1d_fwd");
}

}  // namespace

bool causal_conv1d_tile_checked_fits(const CausalConv1dFwdParams& p) { return form_of(p).shape.fits(); }

void causal_conv1d_tile_checked(const CausalConv1dFwdParams& p, hipStream_t stream) {
    const CheckedForm form = form_of(p);
    with_even_width<kMaxFastWidth>(p.dtype, p.width, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        if (form.whole)
            launch<T, WholeLane<T, lane_bytes(kWidth) / static_cast<int>(sizeof(T))>, kWidth>(p, form, stream);
        else
            launch<T, SplitLane<T>, kWidth>(p, form, stream);
    });
}

}  // namespace hipconv
