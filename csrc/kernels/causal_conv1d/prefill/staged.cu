// This kernel is the causal conv1d over packed sequences by way of LDS ("staged"): it serves every layout, stride and alignment
// of x and of the outputs, widths 1 to 8, and outputs that overwrite x.
//
// A block walks through a stretch of tokens, tile by tile, for a few channels. Lines of x go into LDS as memory holds them,
// tokens of a channel or channels of a token. There a thread finds a run of tokens of one channel, makes their outputs from
// registers, and puts them into another place in LDS, in lines as the output has them. So either side of the kernel moves whole
// lines, by lanes that are neighbours, and the two may be laid out differently. Then, if sequences begin in the tile, the rows
// of threads take one each, and make again the outputs that reach into its initial state (staged_begin.h).
//
// While a tile is computed, the next one is on its way into registers, and one wave finds its sequences (staged.h). What a tile
// needs of the one before stays in LDS.
//
// In place, blocks would need inputs that a neighbour may have overwritten, and cannot wait for each other: so a small launch
// (save.cu) copies these inputs first.
//
// Bytes: each input is read once from memory (and the few before a stretch once more from cache), each output is written once,
// each state is read once and written once; in place the saved inputs come on top.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "kernels.h"
#include "launch/check.h"
#include "staged_begin.h"
#include "staged_load.h"
#include "staged_store.h"
#include "vectors.h"

namespace hipconv {

constexpr int kMostTiles = 8;  // of a stretch
constexpr int kUsualTiles = 4;
constexpr int kEnoughBlocks = 2048;
constexpr int kChunk = 8;  // tokens that a thread makes at a time

// The number of blocks of a compute unit, which registers (more for wider windows) and LDS allow.
template <typename T, int kWidth>
constexpr int staged_blocks() {
    constexpr int kTaps = (kWidth + 1) * StagedShape<T>::kChannels * 4;
    constexpr int kBytes = 2 * 16 * StagedShape<T>::kVectors + 2 * static_cast<int>(sizeof(TileTokens)) + kTaps;
    constexpr int kMost = kWidth > 4 ? 3 : 4;
    return kLdsBytes / kBytes < kMost ? kLdsBytes / kBytes : kMost;
}

// Eight tokens of a channel in LDS.
template <typename T>
__device__ __forceinline__ void load_chunk(const char* from, bool tokens_inner, float (&to)[kChunk]) {
    if (tokens_inner) {
        constexpr int kEach = 16 / static_cast<int>(sizeof(T));
#pragma unroll
        for (int v = 0; v < kChunk / kEach; ++v) {
            const Words4 words = reinterpret_cast<const Words4*>(from)[v];
#pragma unroll
            for (int i = 0; i < kEach / 2; ++i) {
                const Pair both = pair_of<T>(words, i);
                to[v * kEach + 2 * i] = low(both);
                to[v * kEach + 2 * i + 1] = high(both);
            }
        }
    } else {
#pragma unroll
        for (int t = 0; t < kChunk; ++t) to[t] = to_float(*reinterpret_cast<const T*>(from + t * kChannelLineBytes));
    }
}

// Pair i holds the tokens i and i + 4.
template <typename T>
__device__ __forceinline__ void store_chunk(char* to, bool tokens_inner, const Pair (&halves)[kChunk / 2]) {
    if (tokens_inner) {
        if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int v = 0; v < 2; ++v) {
                Words4 words{};
#pragma unroll
                for (int i = 0; i < 4; ++i) set_word(words, i, bit_cast<uint32_t>(v ? high(halves[i]) : low(halves[i])));
                reinterpret_cast<Words4*>(to)[v] = words;
            }
        } else {
            *reinterpret_cast<Words4*>(to) = vector_of_halves<T, kChunk>(halves);
        }
    } else {
#pragma unroll
        for (int i = 0; i < kChunk / 2; ++i) {
            *reinterpret_cast<T*>(to + i * kChannelLineBytes) = from_float<T>(low(halves[i]));
            *reinterpret_cast<T*>(to + (i + kChunk / 2) * kChannelLineBytes) = from_float<T>(high(halves[i]));
        }
    }
}

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kStagedThreads, (staged_blocks<T, kWidth>()))
    causal_conv1d_varlen_staged(StagedCall call) {
    using Shape = StagedShape<T>;
    constexpr int kPast = kWidth - 1, kRun = Shape::kRun;
    HIPCONV_SHARED(Words4, x_lines, Shape::kVectors);
    HIPCONV_SHARED(Words4, out_lines, Shape::kVectors);
    HIPCONV_SHARED(TileTokens, found_tiles, 2);
    HIPCONV_SHARED(float, taps, (kWidth + 1) * Shape::kChannels);  // weights and biases, for which there are no registers

    const CausalConv1dVarlenParams& p = call.params;
    const auto params = [&]() -> const CausalConv1dVarlenParams& { return first_parameter_again(p); };
    const auto plan = [&]() -> const StagedPlan& { return first_parameter_again(call).plan; };
    const uint32_t stretch = blockIdx.z * gridDim.y + blockIdx.y;
    if (stretch >= plan().stretches) return;
    let_next_kernel_begin();
    wait_for_kernel_before();
    const auto indices = [&] { return EitherIndices{params(), plan().plain_indices}; };
    const int thread = static_cast<int>(threadIdx.x), wave = thread / kWaveSize, lane = thread % kWaveSize;
    const int32_t stretch_begin = static_cast<int32_t>(stretch * plan().tiles) * kTileTokens;
    const int32_t left = (params().tokens - stretch_begin + kTileTokens - 1) / kTileTokens;
    const int tiles = left < static_cast<int32_t>(plan().tiles) ? left : static_cast<int32_t>(plan().tiles);
    const int32_t first_channel = static_cast<int32_t>(blockIdx.x) * Shape::kChannels, channels = params().dim - first_channel;

    uint32_t ahead[kWords], last = 0;
    bring_tile<T>(call, first_channel, stretch_begin, ahead, last);
    const TileLayout<T> x_layout{plan().x_tokens_inner};
    char* const x_bytes = reinterpret_cast<char*>(x_lines);
    const HaloPart<T> halo_part(thread, x_layout);
    char* const halo_place = x_bytes + halo_part.place(x_layout);
    uint32_t halo = bring_halo<T>(call, halo_part, stretch, first_channel, stretch_begin);

    // The run of tokens that this thread makes.
    const int channel = thread % Shape::kChannels, row = thread / Shape::kChannels;
    const bool works = channel < channels;
    const int32_t d = first_channel + (works ? channel : 0);
    float* const taps_here = taps + channel;
    if (row == 0) {
        const int missing = missing_taps<kWidth, true>(p);
        with_dtype(params().weight_dtype, [&](auto type) {
            using P = decltype(type);
            for (int i = missing; i < kWidth; ++i)
                taps_here[i * Shape::kChannels] =
                    parameter<P>(p.weight, d * params().weight_dim_stride + (i - missing) * params().weight_width_stride);
        });
        taps_here[kWidth * Shape::kChannels] =
            p.bias ? load_parameter(p.bias, d * params().bias_stride, params().bias_dtype) : 0.0f;
    }

    const TileLayout<T> out_layout{plan().out_tokens_inner};
    char* const out_bytes = reinterpret_cast<char*>(out_lines);
    const char* const run_in_x = x_bytes + channel * x_layout.channel_step() + row * kRun * x_layout.token_step();
    char* const run_in_out = out_bytes + channel * out_layout.channel_step() + (kHalo + row * kRun) * out_layout.token_step();

    if (wave == 0) {
        const TileTokens found = first_tile<kPast>(indices(), stretch_begin, lane);
        if (lane == 0) found_tiles[0] = found;
    }
    for (int n = 0; n < tiles; ++n) {
        const int32_t begin = stretch_begin + n * kTileTokens;
        put_tile<T>(call, first_channel, begin, x_bytes, ahead, last);
        *reinterpret_cast<uint32_t*>(halo_place) = halo;
        __syncthreads();

        const TileTokens& tile = found_tiles[n % 2];
        if (n + 1 < tiles) {
            bring_tile<T>(call, first_channel, begin + kTileTokens, ahead, last);
            if (wave == n % (kStagedThreads / kWaveSize)) {
                const TileTokens next = tile_tokens<kPast>(indices(), begin + kTileTokens, tile.end, tile.sequences_end, lane);
                if (lane == 0) found_tiles[(n + 1) % 2] = next;
            }
        }
        halo = *reinterpret_cast<const uint32_t*>(halo_place + kTileTokens * x_layout.token_step());

        float window[2 * kChunk];
        {
            float halo_chunk[kChunk];
            load_chunk<T>(run_in_x, plan().x_tokens_inner, halo_chunk);
#pragma unroll
            for (int t = 0; t < kChunk; ++t) window[kChunk + t] = halo_chunk[t];
        }
        const bool use_silu = params().use_silu;
        float weight[kWidth];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) weight[i] = taps_here[i * Shape::kChannels];
        const float bias = taps_here[kWidth * Shape::kChannels];
#pragma unroll
        for (int chunk = 0; chunk < kRun / kChunk; ++chunk) {
            float current[kChunk];
            load_chunk<T>(run_in_x + (chunk + 1) * kChunk * x_layout.token_step(), plan().x_tokens_inner, current);
#pragma unroll
            for (int t = 0; t < kChunk; ++t) {
                window[t] = window[kChunk + t];
                window[kChunk + t] = current[t];
            }
            Pair sums[kChunk / 2];
            const int missing = missing_taps<kWidth, true>(p);
#pragma unroll
            for (int j = 0; j < kChunk / 2; ++j) {
                sums[j] = twice(bias);
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                    const int at = kChunk - kPast + j + i;
                    if (i >= missing)
                        sums[j] = multiply_add(twice(weight[i]), make_pair(window[at], window[at + kChunk / 2]), sums[j]);
                }
            }
            if (use_silu) {
#pragma unroll
                for (int j = 0; j < kChunk / 2; ++j) sums[j] = silu(sums[j]);
            }
            store_chunk<T>(run_in_out + chunk * kChunk * out_layout.token_step(), plan().out_tokens_inner, sums);
        }
        const DeadTokens mode = params().dead_tokens;
        if (~tile.live != 0 && mode != DeadTokens::leave) {
#pragma unroll 1
            for (int t = 0; t < kRun; ++t) {
                if (tile.live >> (row * kRun + t) & 1) continue;
                const T input = *reinterpret_cast<const T*>(run_in_x + (kHalo + t) * x_layout.token_step());
                *reinterpret_cast<T*>(run_in_out + t * out_layout.token_step()) =
                    mode == DeadTokens::zero ? from_float<T>(0.0f) : input;
            }
        }
        if (tile.sequence < tile.sequences_end) {
            __syncthreads();  // the first outputs of sequences come over the others
            const ChannelInTile<T> in_x{x_bytes + channel * x_layout.channel_step(), x_layout.token_step(), begin};
            const ChannelInTile<T> in_out{out_bytes + channel * out_layout.channel_step(), out_layout.token_step(), begin};
#pragma unroll 1
            for (int32_t b = tile.sequence + row; b < tile.sequences_end; b += kStagedThreads / Shape::kChannels) {
                const PackedSequence s = indices().sequence(b);
                if (s.number >= 0 && s.end > s.begin && works) begin_channel<T, kWidth>(call, s, d, in_x, in_out, taps_here);
            }
        }
        __syncthreads();
        store_tile<T>(call, tile, begin, first_channel, out_bytes);
    }
}

namespace {

StagedPlan plan_of(const CausalConv1dVarlenParams& p, const VarlenTile& forced, bool in_place) {
    StagedPlan plan{};
    const int64_t tiles = (int64_t{p.tokens} + kTileTokens - 1) / kTileTokens;
    const int64_t columns = (int64_t{p.dim} * element_bytes(p.dtype) + kChannelLineBytes - 1) / kChannelLineBytes;
    plan.tiles = in_place ? kMostTiles : kUsualTiles;
    while (plan.tiles > 1 && columns * tiles / plan.tiles < kEnoughBlocks) plan.tiles /= 2;
    power_of_two("block_n", forced.channels), power_of_two("num_warps", forced.warps);
    if (const int tokens = power_of_two("block_m", forced.tokens))
        plan.tiles = power_of_two_up_to(tokens / kTileTokens, kMostTiles);
    plan.stretches = static_cast<uint32_t>((tiles + plan.tiles - 1) / plan.tiles);
    plan.plain_indices = PlainIndices::fit(p);

    const auto form_of = [&](const void* data, int64_t inner, int64_t outer) {
        const int in_vector = 16 / element_bytes(p.dtype), in_word = 4 / element_bytes(p.dtype);
        if (inner != 1) return LineForm::elements;
        if (outer % in_vector == 0 && aligned(data, 16)) return LineForm::vectors;
        return outer % in_word == 0 && aligned(data, 4) ? LineForm::words : LineForm::shifted;
    };
    plan.x_tokens_inner = p.x_token_stride < p.x_dim_stride;
    plan.x_form =
        plan.x_tokens_inner ? form_of(p.x, p.x_token_stride, p.x_dim_stride) : form_of(p.x, p.x_dim_stride, p.x_token_stride);
    plan.out_tokens_inner = p.k_dim < 0 && p.out_token_stride < p.out_dim_stride;
    plan.out_form = plan.out_tokens_inner ? form_of(p.out, p.out_token_stride, p.out_dim_stride)
                                          : form_of(p.out, p.out_dim_stride, p.out_token_stride);
    if (p.k_dim >= 0) {  // two neighbours may belong to different tensors
        plan.out_form = LineForm::vectors;
        for (const LineForm form :
             {form_of(p.out, 1, p.k_dim), form_of(p.k, 1, p.k_dim), form_of(p.v, 1, p.dim - int64_t{2} * p.k_dim)})
            if (form > plan.out_form) plan.out_form = form;
        if (plan.out_form == LineForm::shifted) plan.out_form = LineForm::elements;
    }
    if (in_place) {
        plan.saved_tokens = most_past(p);
        plan.saved_dim = (p.dim + 7) / 8 * 8;
    }
    return plan;
}

// Of the inputs saved before stretches, and at the end of sequences.
int64_t saved_bytes(const CausalConv1dVarlenParams& p, const StagedPlan& plan) {
    return int64_t{plan.stretches - 1} * kHalo * plan.saved_dim * element_bytes(p.dtype);
}

template <typename T>
void launch(const CausalConv1dVarlenParams& p, const StagedPlan& plan, hipStream_t stream) {
    const int64_t columns = (int64_t{p.dim} + StagedShape<T>::kChannels - 1) / StagedShape<T>::kChannels;
    const dim3 grid = grid_of(columns, plan.stretches), block(kStagedThreads, 1, 1);
    if (most_past(p) == 3)
        HIPCONV_LAUNCH(true, (causal_conv1d_varlen_staged<T, 4>), grid, block, 0, stream, StagedCall{p, plan});
    else
        HIPCONV_LAUNCH(true, (causal_conv1d_varlen_staged<T, kMostStagedWidth>), grid, block, 0, stream, StagedCall{p, plan});
    check_launch("causal_conv1d_varlen");
}

}  // namespace

const char* causal_conv1d_varlen_staged_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/) {
    const bool near = p.out_token_stride >= 0 && p.out_token_stride * element_bytes(p.dtype) < kOffsetLimit;
    if (p.width <= kMostStagedWidth && p.tokens <= kMostStagedSize && p.dim <= kMostStagedSize && near) return nullptr;
    return "widths 1 to 8, up to 2^30 tokens and channels, and outputs whose tokens lie less than 2 GiB apart";
}

void causal_conv1d_varlen_staged(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* /*workspace*/, void* stream) {
    const StagedPlan plan = plan_of(p, tile, false);
    with_dtype(p.dtype, [&](auto type) { launch<decltype(type)>(p, plan, static_cast<hipStream_t>(stream)); });
}

const char* causal_conv1d_varlen_staged_in_place_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    if (!causal_conv1d_varlen_staged_refusal(p, tile) && !p.block_idx_first.data) return nullptr;
    return "widths 1 to 8, up to 2^30 tokens and channels, no states at block boundaries, and outputs whose tokens lie less "
           "than "
           "2 GiB apart";
}

int64_t causal_conv1d_varlen_staged_workspace(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    return 2 * saved_bytes(p, plan_of(p, tile, true));
}

void causal_conv1d_varlen_staged_in_place(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* workspace,
                                          void* stream) {
    StagedPlan plan = plan_of(p, tile, true);
    if (plan.stretches > 1) {
        plan.halos = static_cast<char*>(workspace);
        plan.lasts = plan.halos + saved_bytes(p, plan);
        save_inputs(p, plan, stream);
    }
    with_dtype(p.dtype, [&](auto type) { launch<decltype(type)>(p, plan, static_cast<hipStream_t>(stream)); });
}

}  // namespace hipconv
