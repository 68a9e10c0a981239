// The host side of `skinny_gemm`: what it serves, its tiles and its launch.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "../gemm/layout.h"
#include "params.h"

namespace hipconv {

namespace {

// Tells whether the channels of all taps lie in memory one after another, in the layout `channels_inside` says.
bool is_row(const Conv2dParams& p, const Image& image, bool channels_inside) {
    const int64_t channels = p.in_channels, height = p.in_height, width = p.in_width;
    const auto has = [](int64_t stride, int64_t size, int64_t wanted) { return size == 1 || stride == wanted; };
    const int64_t column = channels_inside ? channels : 1;
    return has(image.channel_stride, channels, channels_inside ? 1 : height * width) &&
           has(image.column_stride, width, column) && has(image.row_stride, height, column * width);
}

// The call as one of 1x1 filters, with the channels of a group: taps that cover the whole image are channels. Other calls are
// returned with the taps that they have.
Conv2dParams joined(const Conv2dParams& p) {
    Conv2dParams of = p;
    of.in_channels = p.in_channels / p.groups;
    const bool covers = p.kernel_height == p.in_height && p.kernel_width == p.in_width && p.groups == 1 && !pads(p);
    if ((p.kernel_height == 1 && p.kernel_width == 1) || !covers) return of;
    for (const bool inside : {true, false}) {
        if (!is_row(p, p.x, inside) || !is_row(p, p.weight, inside)) continue;
        const int64_t products = static_cast<int64_t>(p.in_channels) * p.in_height * p.in_width;
        if (products >= kLimit31) return of;
        of.in_channels = static_cast<int32_t>(products);
        of.in_height = of.in_width = of.kernel_height = of.kernel_width = 1;
        of.x.channel_stride = of.weight.channel_stride = 1;
        return of;
    }
    return of;
}

bool by_vectors(const Conv2dParams& p) {
    return p.in_channels % kSkinnyChunk == 0 &&
           begins_at_multiples(p.x, p.batch, p.in_height, p.in_width, kSkinnyChunk, p.dtype) &&
           begins_at_multiples(p.weight, p.out_channels, p.kernel_height, p.kernel_width, kSkinnyChunk, p.dtype);
}

// The elements between the first and the last of an image.
int64_t reach(const Image& image, int64_t batch, int64_t channels, int64_t rows, int64_t columns) {
    return image.batch_stride * (batch - 1) + image.channel_stride * (channels - 1) + image.row_stride * (rows - 1) +
           image.column_stride * (columns - 1);
}

// The threads of a team: each has two chunks, up to the most threads. A team within a block is a power of two; one that is a
// block has whole waves.
int team_of(int64_t chunks) {
    const int64_t wanted = ceil_of(chunks, 2);
    if (wanted > kSkinnyThreads / 2)
        return static_cast<int>(wanted < kSkinnyMostThreads ? round_up(wanted, 64) : kSkinnyMostThreads);
    int team = 4;
    while (team < wanted) team *= 2;
    return team;
}

int log2_of(int64_t value) {  // rounded up
    int log2 = 0;
    while (int64_t{1} << log2 < value) ++log2;
    return log2;
}

}  // namespace

std::vector<Conv2dTile> conv2d_skinny_gemm_tiles(const std::string&, DType) {
    return {std::begin(kSkinnyTiles), std::end(kSkinnyTiles)};
}

const char* conv2d_skinny_gemm_refusal(const Conv2dParams& call, const Conv2dPlan& plan) {
    const Conv2dParams p = joined(call);
    if (p.kernel_height != 1 || p.kernel_width != 1) return "1x1 filters, or such as cover the whole of x and lie as it does";
    if (pads(p)) return "images without padding";
    if (static_cast<int64_t>(p.batch) * p.out_height * p.out_width > kSkinnyPixels) return "up to 64 output pixels";
    if (plan.tile_m > kSkinnyElementPixels && !by_vectors(p))
        return "tiles of up to 4 pixels where it reads element by element";
    if (plan.split_k != 1) return "split_k of 1";
    for (const Image& image : {p.x, p.weight})
        for (const int64_t stride : {image.batch_stride, image.channel_stride, image.row_stride, image.column_stride})
            if (stride < 0) return "x and filters without negative strides";
    if (reach(p.x, p.batch, int64_t{p.in_channels} * p.groups, p.in_height, p.in_width) >= kLimit31 / 2 ||
        reach(p.weight, p.out_channels, p.in_channels, 1, 1) >= kLimit31 / 2)
        return "x and filters of less than 2^30 elements";
    if (p.out_channels >= 1 << 17) return "less than 2^17 filters";  // and so less than 2^32 threads
    return nullptr;
}

void conv2d_skinny_gemm(const Conv2dParams& call, const Conv2dPlan& plan, void* /*workspace*/, void* stream) {
    const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
    const auto by = [](int64_t value) { return divisor_of(static_cast<uint32_t>(value)); };
    SkinnyGemmParams g{};
    g.conv = joined(call);
    const Conv2dParams& p = g.conv;
    g.by_vectors = by_vectors(p);
    g.pixels = p.batch * p.out_height * p.out_width;
    g.chunks = number(ceil_of(p.in_channels, kSkinnyChunk));
    g.team = team_of(g.chunks);
    g.log2_team = log2_of(g.team);
    const int threads = g.team < kSkinnyThreads ? kSkinnyThreads : g.team;
    g.log2_teams = log2_of(threads / g.team);
    g.group_filters = p.out_channels / p.groups;
    g.group_blocks = number(ceil_of(g.group_filters, int64_t{plan.tile_n} << g.log2_teams));
    g.filter_blocks = g.group_blocks * p.groups;
    g.divide_by_image = by(int64_t{p.out_height} * p.out_width), g.divide_by_row = by(p.out_width);
    g.divide_by_filter_blocks = by(g.filter_blocks), g.divide_by_group_blocks = by(g.group_blocks);
    const int64_t blocks = ceil_of(g.pixels, plan.tile_m) * g.filter_blocks;
    launch_skinny_gemm(g, {plan.tile_m, plan.tile_n}, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), stream);
}

}  // namespace hipconv
