// This kernel is the causal conv1d over packed sequences ("tile"): one launch for any mix of lengths.
//
// A block is one of two kinds. Most blocks take runs of tokens: the packed tokens are cut into runs of equal length, whatever
// sequences they hold, and a thread walks the run of its row for the channels of one vector, or of one word where vectors are
// not aligned (access.h), as the kernel `tile` of causal_conv1d_fwd does. Such a thread makes the outputs of the tokens whose
// window lies within x. The first width - 1 tokens of each sequence belong to blocks of the second kind, in which each row
// takes the start of one sequence (begin.h): so only these blocks touch states, and all sequences' states are under way at
// once, however many sequences a run holds.
//
// A run's loads do not wait for its sequences to be known: the lanes of a row look up one token each, in query_start_loc on the
// device, and turn what they find into masks of the tokens to store.
//
// In place (`out` is x), there are two launches. The first one has the blocks of the second kind: they read all that becomes a
// state, and put first outputs aside, as other tokens need the inputs that these overwrite; only where a sequence is all start
// are they stored at once. It also saves the tokens before each block of the second launch, which has the runs. There a row
// reads its halo before any row of its block stores, and the block before it does not matter any more.
//
// Bytes: each input is read once from memory (and a few tokens a run and a sequence once more from cache), each output is
// written once, each state is read once and written once. In place, saved tokens are 1 or 2 % more, and the starts of sequences
// are read and written once more each.
#include <hip/hip_runtime.h>

#include <stdexcept>

#include "kernels.h"
#include "tile.h"

namespace hipconv {

namespace {

TileShape shape_of(const CausalConv1dVarlenParams& p, const VarlenTile& tile, bool in_place) {
    TileShape s{};
    s.channels = channels_a_vector(p);
    const bool words = s.channels * element_bytes(p.dtype) == 4;
    s.width = instance_width(p.width, words);
    s.vectors = (int64_t{p.dim} + s.channels - 1) / s.channels;
    const int warps = power_of_two("num_warps", tile.warps);
    // In place, a block has many rows, as the tokens before it are saved.
    const unsigned usual = in_place || words ? kMostThreads : kUsualThreads;
    const unsigned threads = warps == 0 ? usual : power_of_two_up_to(warps, kMostThreads / 32) * 32;
    const unsigned widest = in_place && !words ? kMostLanes / 2 : kMostLanes;
    const unsigned most_lanes = widest < threads / 2 ? widest : threads / 2;  // there are two rows or more
    s.lanes = power_of_two_up_to(s.vectors, most_lanes);
    const auto idle = [&](int64_t lanes) { return (s.vectors + lanes - 1) / lanes * lanes - s.vectors; };
    while (words && s.lanes > 8 && idle(s.lanes) * 8 > s.vectors) s.lanes /= 2;
    if (const int channels = power_of_two("block_n", tile.channels))
        s.lanes = power_of_two_up_to(channels / s.channels, most_lanes);
    s.rows = threads / s.lanes;
    s.run = s.width > 4 || words ? kMostRun : kUsualRun;
    while (s.run > 4 && s.vectors * (p.tokens / s.run) < kEnoughThreads) s.run /= 2;  // short enough that a large card is full
    if (const int tokens = power_of_two("block_m", tile.tokens))
        s.run = static_cast<int32_t>(power_of_two_up_to(tokens / static_cast<int>(s.rows), kMostRun));
    while (in_place && s.run < s.past()) s.run *= 2;  // a row's halo lies in the row before
    const int64_t block_tokens = int64_t{s.rows} * s.run;
    s.run_blocks = (p.tokens + block_tokens - 1) / block_tokens;
    const int few = channels_of_begin(s.channels, element_bytes(p.dtype), element_bytes(p.state_dtype));
    const int64_t begin_rows = int64_t{s.rows} * few / s.channels;
    s.begin_blocks = (p.sequences + begin_rows - 1) / begin_rows;
    return s;
}

int64_t halo_bytes(const CausalConv1dVarlenParams& p, const TileShape& s) {
    return (s.run_blocks - 1) * s.past() * p.dim * element_bytes(p.dtype);
}

// Sequences whose start is put aside begin at least its length apart.
bool begun_by_token(const CausalConv1dVarlenParams& p, const TileShape& s) { return p.tokens / s.past() + 1 < p.sequences; }

void launch(const CausalConv1dVarlenParams& p, const TileShape& shape, const VarlenPlan& plan, int64_t runs, int64_t begins,
            void* stream) {
    with_dtype(p.dtype,
               [&](auto type) { launch_tile<decltype(type)>(p, shape, plan, runs, begins, static_cast<hipStream_t>(stream)); });
}

}  // namespace

const char* causal_conv1d_varlen_tile_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/) {
    const bool near = p.out_token_stride >= 0 && p.out_token_stride * element_bytes(p.dtype) < kOffsetLimit;
    const bool states = p.state_dtype == p.dtype || p.state_dtype == DType::f32;
    const bool outputs = p.k_dim < 0 ? p.out_dim_stride == 1 : p.k_dim % 2 == 0;
    const bool neighbours = p.x_dim_stride == 1 && outputs;
    if (p.width >= 2 && p.width <= 8 && states && near && neighbours && p.dim <= kMostTileChannels) return nullptr;
    return "widths 2 to 8, channels that are neighbours, up to 2^30, an even number of those of q and k, states of x's dtype "
           "or "
           "float32, and outputs whose tokens lie less than 2 GiB apart";
}

void causal_conv1d_varlen_tile(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* /*workspace*/, void* stream) {
    const TileShape shape = shape_of(p, tile, false);
    launch(p, shape, VarlenPlan{}, shape.run_blocks, shape.begin_blocks, stream);
}

int64_t causal_conv1d_varlen_tile_workspace(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    const TileShape shape = shape_of(p, tile, true);
    const int64_t begun = begun_by_token(p, shape) ? p.tokens / shape.past() + 1 : p.sequences;
    return halo_bytes(p, shape) + begun * shape.past() * p.dim * element_bytes(p.dtype);
}

void causal_conv1d_varlen_tile_in_place(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* workspace,
                                        void* stream) {
    const TileShape shape = shape_of(p, tile, true);
    VarlenPlan plan{};
    plan.halos = static_cast<char*>(workspace);
    plan.begun = plan.halos + halo_bytes(p, shape);
    plan.begun_by_token = begun_by_token(p, shape);
    plan.phase = VarlenPhase::begins;
    launch(p, shape, plan, (shape.run_blocks - 1 + shape.rows - 1) / shape.rows, shape.begin_blocks, stream);
    plan.phase = VarlenPhase::runs;
    launch(p, shape, plan, shape.run_blocks, 0, stream);
}

}  // namespace hipconv
