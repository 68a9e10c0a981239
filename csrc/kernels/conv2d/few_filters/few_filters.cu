// The host side of `few_filters`: what it serves, its tiles and its launch.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "../gemm/run_layout.h"
#include "params.h"

namespace hipconv {

namespace {

constexpr int64_t kFewResident = 256;  // blocks, where only LDS matters

FewReads reads_of(const Conv2dParams& p) {
    if (p.in_channels % 8 == 0 && begins_at_multiples(p.x, p.batch, p.in_height, p.in_width, 8, p.dtype))
        return FewReads::vectors;
    const bool pairs = p.x.column_stride == 1 && p.in_width % 2 == 0 && reinterpret_cast<uintptr_t>(p.x.data) % 4 == 0 &&
                       multiple_of(p.x.row_stride, p.in_height, 2) && multiple_of(p.x.channel_stride, p.in_channels, 2) &&
                       multiple_of(p.x.batch_stride, p.batch, 2) && p.padding_mode == PaddingMode::zeros;
    return pairs ? FewReads::pairs : FewReads::elements;
}

// A rectangle of outputs, and what it takes.
struct FewTiling {
    FewReads reads;
    int64_t columns, groups, pieces, passes;
    int64_t tile_rows = 0, tile_columns, patch_rows, patch_columns, patch_begin, pitch, lds;

    // The rectangle is one that fits LDS, and the one of these by which so many resident blocks are done first, and together.
    FewTiling(const Conv2dParams& p, int64_t resident) : reads(reads_of(p)) {
        columns = int64_t{p.out_channels} * p.kernel_height * p.kernel_width;
        groups = columns > kRunFilters ? 2 : 1;
        const int64_t all = ceil_of(p.in_channels, kRunPiece);
        pieces = all > 2 && groups == 1 ? 4 : all > 1 ? 2 : 1;  // of which the registers have room
        passes = ceil_of(all, pieces);
        const int64_t each = reads == FewReads::pairs ? 2 : 1;
        patch_begin = reads == FewReads::pairs ? p.pad_left % 2 : 0;
        const int64_t halo_rows = int64_t{p.kernel_height - 1} * p.dilation_h,
                      halo_columns = int64_t{p.kernel_width - 1} * p.dilation_w;
        int64_t least = -1;
        for (const int64_t most_columns : {64, 48, 32, 24, 16}) {
            FewTiling t = *this;
            t.tile_columns = round_up(ceil_of(p.out_width, ceil_of(p.out_width, most_columns)), each);
            t.patch_columns = round_up(t.patch_begin + t.tile_columns + halo_columns, each);
            const int64_t free_bytes = kFewFiltersLds - few_filters_lds(groups, passes * pieces * kRunPiece, 0, 0);
            // A row of a channel lies in sectors of 16 elements, and begins anywhere in one.
            const int64_t read_columns = reads == FewReads::vectors ? t.patch_columns : round_up(t.patch_columns + 8, 16);
            const int64_t most_rows = (free_bytes / (4 * columns) - 4) / t.patch_columns - halo_rows;
            if (most_rows < 1) continue;
            const int64_t fewest = ceil_of(p.out_height, most_rows);
            for (int64_t down = fewest; down <= p.out_height; down = down < fewest + 8 ? down + 1 : 2 * down) {
                t.tile_rows = ceil_of(p.out_height, down);
                t.patch_rows = t.tile_rows + halo_rows;
                t.pitch = round_up(t.patch_rows * t.patch_columns, 4) + 1;
                t.lds = few_filters_lds(groups, passes * pieces * kRunPiece, columns, t.pitch);
                const int64_t pixels = t.patch_rows * t.patch_columns;
                const int64_t tiles = ceil_of(p.out_height, t.tile_rows) * ceil_of(p.out_width, t.tile_columns) * p.batch;
                const int64_t round = round_up(pixels, kRunThreads / 2) + kRunThreads / 2;
                const int64_t cost = ceil_of(tiles, resident) * round + tiles * t.patch_rows * read_columns / resident;
                if (least >= 0 && cost >= least) continue;
                least = cost;
                *this = t;
            }
        }
    }
};

}  // namespace

std::vector<Conv2dTile> conv2d_few_filters_tiles(const std::string& arch, DType dtype) {
    return conv2d_pointwise_tiles(arch, dtype);  // the same matrix instructions, fed in the same way
}

const char* conv2d_few_filters_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype == DType::f32) return "x of 16-bit types";
    if (p.groups != 1 || p.stride_h != 1 || p.stride_w != 1) return "groups of 1 and strides of 1";
    if (int64_t{p.out_channels} * p.kernel_height * p.kernel_width > kFewMostColumns)
        return "up to 64 taps of all filters together";
    if (p.kernel_height == 1 && p.kernel_width == 1) return "filters of more than one tap";
    const FewTiling t(p, kFewResident);
    if (t.tile_rows == 0) return "filters and a patch of x that fit LDS";
    if (ceil_of(p.out_height, t.tile_rows) * ceil_of(p.out_width, t.tile_columns) * p.batch >= kLimit31)
        return "outputs of less than 2^31 rectangles";
    if (plan.split_k != 1) return "split_k of 1";
    return nullptr;
}

void conv2d_few_filters(const Conv2dParams& p, const Conv2dPlan&, void* /*workspace*/, void* stream) {
    const int64_t resident = kFewFiltersBlocks * compute_units_here();
    const FewTiling t(p, resident);
    const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
    const auto by = [](int64_t value) { return divisor_of(static_cast<uint32_t>(value)); };
    FewFiltersParams f{};
    f.conv = p;
    f.reads = t.reads;
    f.taps = p.kernel_height * p.kernel_width;
    f.columns = number(t.columns);
    f.passes = number(t.passes);
    f.tile_rows = number(t.tile_rows);
    f.tile_columns = number(t.tile_columns);
    f.patch_columns = number(t.patch_columns);
    f.patch_pixels = number(t.patch_rows * t.patch_columns);
    f.patch_begin = number(t.patch_begin);
    f.pitch = number(t.pitch);
    f.across = number(ceil_of(p.out_width, t.tile_columns));
    f.down = number(ceil_of(p.out_height, t.tile_rows));
    f.tiles = f.across * f.down * p.batch;
    f.divide_by_patch_columns = by(t.patch_columns);
    f.divide_by_across = by(f.across);
    f.divide_by_down = by(f.down);
    f.divide_by_tile_columns = by(t.tile_columns);
    f.divide_by_taps = by(f.taps);
    f.divide_by_width = by(p.kernel_width);
    launch_few_filters(f, number(t.groups), number(t.pieces), static_cast<unsigned>(f.tiles < resident ? f.tiles : resident),
                       static_cast<int>(t.lds), stream);
}

}  // namespace hipconv
