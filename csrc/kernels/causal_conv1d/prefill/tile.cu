// The host's side of the kernel of packed sequences (tile_kernel.h): how a launch divides tokens and starts; and its instances
// for f32.
#include <hip/hip_runtime.h>

#include "in_place.h"
#include "kernels.h"
#include "short.h"
#include "tile_kernel.h"

namespace hipconv {

namespace {

constexpr int64_t kEnoughForShort = 1 << 20;  // elements

// Tells whether `short` makes the sequences, by the mean of their lengths.
bool makes_short(const CausalConv1dVarlenParams& p, const VarlenTile& tile, bool in_place) {
    // In place, a start is put aside and comes back, which a whole sequence does without.
    const bool many = in_place || (p.width > 4 && element_bytes(p.dtype) == 2);
    return are_short(p, tile, many ? 12 : 3, kEnoughForShort);
}

struct TileShape : PrefillShape {
    int channels;  // of a vector
};

TileShape shape_of(const CausalConv1dVarlenParams& p, const VarlenTile& tile, bool in_place) {
    TileShape s{};
    // Models have width 4. The other widths share instances, two by two.
    s.width = p.width == 4 ? 4 : p.width < 4 ? 3 : p.width <= 6 ? 6 : 8;
    s.channels = vector_bytes(s.width) / element_bytes(p.dtype);
    s.items = p.dim / s.channels;
    const int warps = power_of_two("num_warps", tile.warps);
    // In place, a block has many rows, as the tokens before it are saved.
    const unsigned usual = in_place ? kMostThreads : kUsualThreads;
    const unsigned threads = warps == 0 ? usual : power_of_two_up_to(warps, kMostThreads / 32) * 32;
    const unsigned widest = in_place ? kMostLanes / 2 : kMostLanes;
    const unsigned most_lanes = widest < threads / 2 ? widest : threads / 2;  // there are two rows or more
    s.lanes = power_of_two_up_to(s.items, most_lanes);
    if (const int channels = power_of_two("block_n", tile.channels))
        s.lanes = power_of_two_up_to(channels / s.channels, most_lanes);
    s.rows = threads / s.lanes;
    const int enough = in_place && s.width > 4 ? kEnoughThreads / 2 : kEnoughThreads;
    cut_into_runs(s, p, tile, in_place, s.width > 4 ? kMostRun : kUsualRun, kMostRun, enough);
    const int few = channels_of_begin(s.channels, element_bytes(p.dtype), element_bytes(p.state_dtype));
    const int64_t rows = int64_t{s.rows} * few / s.channels;
    s.begins_a_row = kSeveralBegins ? begins_a_row(p, tile, rows, threads, s.run, s.items * s.channels / few) : 1;
    share_out_begins(s, p, rows);
    return s;
}

void launch(const CausalConv1dVarlenParams& p, const TileShape& shape, VarlenPlan plan, int64_t runs, int64_t begins,
            void* stream) {
    if (!plan_blocks(plan, p, shape, runs, begins)) return;
    const int few = channels_of_begin(shape.channels, element_bytes(p.dtype), element_bytes(p.state_dtype));
    plan.state_form = state_form(p, few, shape.width);
    const dim3 grid = grid_of((shape.items + shape.lanes - 1) / shape.lanes, plan.blocks), block(shape.lanes, shape.rows, 1);
    with_dtype(p.dtype, [&](auto type) {
        launch_varlen_tile<decltype(type)>(p, plan, shape.width, grid, block, static_cast<hipStream_t>(stream));
    });
}

}  // namespace

const char* causal_conv1d_varlen_tile_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/) {
    const bool near = p.out_token_stride >= 0 && p.out_token_stride * element_bytes(p.dtype) < kOffsetLimit;
    const bool states = p.state_dtype == p.dtype || p.state_dtype == DType::f32;
    if (p.width >= 2 && p.width <= 8 && states && near && channels_a_vector(p) > 1) return nullptr;
    return "widths 2 to 8, channels that are aligned neighbours, states of x's dtype or float32, and outputs whose tokens lie "
           "less than 2 GiB apart";
}

int64_t causal_conv1d_varlen_tile_workspace(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    return makes_short(p, tile, false) ? short_workspace(p, false) : 0;
}

void causal_conv1d_varlen_tile(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* workspace, void* stream) {
    if (makes_short(p, tile, false)) return launch_short(p, tile, false, workspace, stream);
    const TileShape shape = shape_of(p, tile, false);
    launch(p, shape, VarlenPlan{}, shape.run_blocks, shape.begin_blocks, stream);
}

bool causal_conv1d_varlen_tile_takes_in_place(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    return !staged_needs_one_launch(p, tile);
}

int64_t causal_conv1d_varlen_tile_in_place_workspace(const CausalConv1dVarlenParams& p, const VarlenTile& tile) {
    if (makes_short(p, tile, true)) return short_workspace(p, true);
    return in_place_workspace(p, shape_of(p, tile, true));
}

void causal_conv1d_varlen_tile_in_place(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* workspace,
                                        void* stream) {
    if (makes_short(p, tile, true)) return launch_short(p, tile, true, workspace, stream);
    const TileShape shape = shape_of(p, tile, true);
    launch_in_place<VarlenPlan>(p, shape, workspace, [&](const VarlenPlan& plan, int64_t runs, int64_t begins) {
        launch(p, shape, plan, runs, begins, stream);
    });
}

}  // namespace hipconv
