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

// A word of x: two neighbours of 16 bits come one by one where no word holds both.
template <typename T>
__device__ __forceinline__ uint32_t load_word(const char* from, bool words, bool second, int64_t step) {
    if (sizeof(T) == 4 || words) return *reinterpret_cast<const uint32_t*>(from);
    const uint32_t low_half = *reinterpret_cast<const uint16_t*>(from);
    return second ? low_half | static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(from + step)) << 16 : low_half;
}

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kStagedThreads, (staged_blocks<T, kWidth>()))
    causal_conv1d_varlen_staged(StagedCall call) {
    using Shape = StagedShape<T>;
    constexpr int kPast = kWidth - 1, kSize = Shape::kSize, kInWord = 4 / kSize, kRun = Shape::kRun;
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

    // The words of x that this thread brings: one in each of `kWords` lines, and one before the tile.
    const TileLayout<T> x_layout{plan().x_tokens_inner};
    const int line = thread >> x_layout.log2_words(), lines_step = kStagedThreads >> x_layout.log2_words();
    const int inner = (thread & ((1 << x_layout.log2_words()) - 1)) * kInWord;
    const int64_t outer_step = (plan().x_tokens_inner ? params().x_dim_stride : params().x_token_stride) * kSize;
    const int64_t inner_step = (plan().x_tokens_inner ? params().x_token_stride : params().x_dim_stride) * kSize;
    const char* x = static_cast<const char*>(p.x) +
                    (first_channel * params().x_dim_stride + stretch_begin * params().x_token_stride) * kSize +
                    line * outer_step + inner * inner_step;
    const uint32_t x_main = plan().x_tokens_inner ? kHalo * kSize : kHalo * kChannelLineBytes;
    char* const x_bytes = reinterpret_cast<char*>(x_lines);
    char* const x_place = x_bytes + x_main + line * x_layout.line_bytes() + inner * kSize;
    uint32_t ahead[kWords];
    const auto bring_tile = [&](int32_t begin) {
        const int32_t tokens = params().tokens - begin;
        const int32_t lines = plan().x_tokens_inner ? channels : tokens, elements = plan().x_tokens_inner ? tokens : channels;
        const char* from = x;
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
            ahead[k] = 0;
            if (line + k * lines_step < lines && inner < elements)
                ahead[k] = load_word<T>(from, plan().x_words, inner + 1 < elements, inner_step);
            from += lines_step * outer_step;
        }
        x += kTileTokens * params().x_token_stride * kSize;
    };
    bring_tile(stretch_begin);

    const int halo_line = thread >> x_layout.log2_halo_words();
    const int halo_inner = (thread & ((1 << x_layout.log2_halo_words()) - 1)) * kInWord;
    char* const halo_place = x_bytes + halo_line * x_layout.line_bytes() + halo_inner * kSize;
    uint32_t halo = 0;
    {
        const int32_t channel = plan().x_tokens_inner ? halo_line : halo_inner;
        const bool second = plan().x_tokens_inner || channel + 1 < channels;
        if (stretch > 0 && channel < channels) {
            if (plan().halos) {
                const int64_t saved = int64_t{stretch - 1} * kHalo * plan().saved_dim;
                const int64_t at = plan().x_tokens_inner ? int64_t{first_channel + halo_line} * kHalo + halo_inner
                                                         : int64_t{halo_line} * plan().saved_dim + first_channel + halo_inner;
                halo = *reinterpret_cast<const uint32_t*>(plan().halos + (saved + at) * kSize);
            } else {
                const int64_t token = stretch_begin - kHalo + (plan().x_tokens_inner ? halo_inner : halo_line);
                const char* from =
                    static_cast<const char*>(p.x) +
                    ((first_channel + channel) * params().x_dim_stride + token * params().x_token_stride) * kSize;
                halo = load_word<T>(from, plan().x_words, second, inner_step);
            }
        }
    }

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
#pragma unroll
        for (int k = 0; k < kWords; ++k)
            *reinterpret_cast<uint32_t*>(x_place + k * lines_step * x_layout.line_bytes()) = ahead[k];
        *reinterpret_cast<uint32_t*>(halo_place) = halo;
        __syncthreads();

        const TileTokens& tile = found_tiles[n % 2];
        if (n + 1 < tiles) {
            bring_tile(begin + kTileTokens);
            if (wave == n % (kStagedThreads / kWaveSize)) {
                const TileTokens next = tile_tokens<kPast>(indices(), begin + kTileTokens, tile.end, tile.sequences_end, lane);
                if (lane == 0) found_tiles[(n + 1) % 2] = next;
            }
        }
        halo = *reinterpret_cast<const uint32_t*>(halo_place + kTileTokens * x_layout.token_step());

        float window[2 * kChunk];
        {
            float before[kChunk];
            load_chunk<T>(run_in_x, plan().x_tokens_inner, before);
#pragma unroll
            for (int t = 0; t < kChunk; ++t) window[kChunk + t] = before[t];
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
                sums[j] = silu_where(use_silu, sums[j]);
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

    const bool halves = element_bytes(p.dtype) == 2;
    plan.x_tokens_inner = p.x_token_stride < p.x_dim_stride;
    const int64_t x_inner = plan.x_tokens_inner ? p.x_token_stride : p.x_dim_stride;
    const int64_t x_outer = plan.x_tokens_inner ? p.x_dim_stride : p.x_token_stride;
    plan.x_words = x_inner == 1 && x_outer % 2 == 0 && aligned(p.x, 4);
    if (p.k_dim >= 0) {
        const bool words = p.k_dim % 2 == 0 && p.dim % 2 == 0 && aligned(p.out, 4) && aligned(p.k, 4) && aligned(p.v, 4);
        plan.out_form = words || !halves ? StoreForm::words : StoreForm::elements;
    } else {
        plan.out_tokens_inner = p.out_token_stride < p.out_dim_stride;
        const int64_t inner = plan.out_tokens_inner ? p.out_token_stride : p.out_dim_stride;
        const int64_t outer = plan.out_tokens_inner ? p.out_dim_stride : p.out_token_stride;
        const bool words = inner == 1 && outer % 2 == 0 && aligned(p.out, 4);
        plan.out_form = words || !halves ? StoreForm::words : inner == 1 ? StoreForm::shifted : StoreForm::elements;
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
