// The facts that both GEMMs of conv2d derive from a call on the host: how filters lie, which sizes are aligned, the tiles of
// out.
#pragma once

#include "../common/epilogue.h"
#include "conv2d/conv2d.h"
#include "gemm.h"
#include "pack_filters.h"

namespace hipconv {

constexpr int64_t kLimit32 = int64_t{1} << 32, kLimit31 = int64_t{1} << 31;

// The stride of an axis of one element does not matter.
inline bool multiple_of(int64_t stride, int64_t size, int64_t of) { return size == 1 || stride % of == 0; }
inline bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

// Tells whether an image, or a filter, has neighbouring channels and every pixel begins at a multiple of so many elements.
inline bool begins_at_multiples(const Image& image, int64_t count, int64_t rows, int64_t columns, int64_t of, DType dtype) {
    const int64_t alignment = of * element_bytes(dtype) < 16 ? of * element_bytes(dtype) : 16;
    return image.channel_stride == 1 && reinterpret_cast<uintptr_t>(image.data) % alignment == 0 &&
           multiple_of(image.batch_stride, count, of) && multiple_of(image.row_stride, rows, of) &&
           multiple_of(image.column_stride, columns, of);
}

// Rows or columns from a filter's first tap to its last.
inline int64_t reach_of(int64_t taps, int64_t dilation) { return (taps - 1) * dilation + 1; }

// Tells whether a tap of some output may lie outside the image.
inline bool pads(const Conv2dParams& p) {
    const auto behind = [](int64_t outputs, int64_t stride, int64_t padding, int64_t taps, int64_t dilation, int64_t size) {
        return (outputs - 1) * stride - padding + reach_of(taps, dilation) > size;
    };
    return p.pad_top > 0 || p.pad_left > 0 ||
           behind(p.out_height, p.stride_h, p.pad_top, p.kernel_height, p.dilation_h, p.in_height) ||
           behind(p.out_width, p.stride_w, p.pad_left, p.kernel_width, p.dilation_w, p.in_width);
}

// The properties of a call, before a tile is chosen.
struct GemmLayout {
    int64_t element, elements, row_channels;  // bytes of an element; elements of a chunk, and of a row of LDS
    int64_t group_channels, group_filters, chunks, taps, steps;
    bool taps_inside, packs;
    bool bits;     // each row and column of taps has a bit, which is zero where the tap is outside x
    bool vectors;  // 16-byte vectors of channels are aligned
    int64_t filter_stride, filter_step, filter_wrap, filter_tap;  // bytes; filter_tap: to the same channels' next tap
    int64_t packed_bytes;                                         // of the workspace: 0 if the call gets its filters packed
    int64_t image_pixels, out_elements;

    // With `steps_across_taps`, a step may hold chunks of several taps where taps do not have whole steps.
    explicit GemmLayout(const Conv2dParams& p, bool steps_across_taps) {
        element = element_bytes(p.dtype);
        elements = 16 / element;
        row_channels = kTileRowBytes / element;
        group_channels = p.in_channels / p.groups;
        group_filters = p.out_channels / p.groups;
        chunks = ceil_of(group_channels, elements);
        taps = static_cast<int64_t>(p.kernel_height) * p.kernel_width;
        taps_inside = steps_across_taps && chunks % kTileChunks == 0;
        steps = ceil_of(taps * chunks, kTileChunks);
        bits = p.padding_mode == PaddingMode::zeros && p.kernel_height <= kMaxTapsAcross && p.kernel_width <= kMaxTapsAcross;
        const bool whole = group_channels % elements == 0;
        vectors = whole && bits && (p.x.channel_stride == 1 || p.in_channels == 1) && is_aligned(p.x.data) &&
                  multiple_of(p.x.column_stride, p.in_width, elements) && multiple_of(p.x.row_stride, p.in_height, elements) &&
                  multiple_of(p.x.batch_stride, p.batch, elements);
        image_pixels = static_cast<int64_t>(p.out_height) * p.out_width;
        out_elements = image_pixels * p.batch * p.out_channels;

        const int64_t tap_stride = p.kernel_width > 1    ? p.weight.column_stride
                                   : p.kernel_height > 1 ? p.weight.row_stride
                                                         : group_channels;
        const bool even_taps =
            p.kernel_width == 1 || p.kernel_height == 1 || p.weight.row_stride == p.kernel_width * tap_stride;
        const bool whole_steps = taps_inside || (tap_stride == group_channels && taps * chunks % kTileChunks == 0);
        const bool steps_fit = steps_across_taps ? whole_steps : p.weight.batch_stride > 0 || p.out_channels == 1;
        const bool in_place = whole && (p.weight.channel_stride == 1 || group_channels == 1) && is_aligned(p.weight.data) &&
                              multiple_of(p.weight.batch_stride, p.out_channels, elements) && tap_stride % elements == 0 &&
                              tap_stride >= group_channels && p.weight.batch_stride >= 0 && even_taps && steps_fit;
        packs = !in_place;
        filter_stride = packs ? steps * kTileRowBytes : p.weight.batch_stride * element;
        filter_step = packs || !taps_inside ? kTileRowBytes : tap_stride * element;
        filter_wrap = packs || !taps_inside ? 0 : kTileRowBytes - taps * filter_step;
        filter_tap = packs ? chunks * 16 : tap_stride * element;
        packed_bytes = p.packed_filters ? 0 : bytes_of_packed(p);
    }

    int64_t bytes_of_packed(const Conv2dParams& p) const { return packs ? round_up(filter_stride * p.out_channels, 256) : 0; }

    // Where the filters lie that the GEMM reads.
    const void* filters(const Conv2dParams& p, const void* workspace) const {
        return !packs ? p.weight.data : p.packed_filters ? p.packed_filters : workspace;
    }

    int64_t workspace_bytes(int split_k) const { return packed_bytes + (split_k > 1 ? out_elements * 4 * split_k : 0); }
};

// Tells whether tiles of tile_m pixels are patches of so many columns: taps are 3x3 of stride 1, and few of their pixels lie
// beyond the image. python/hipconv/ops/conv2d/costs.py has the same rule, and op_tests/conv2d/test_router.py checks that both
// agree.
inline bool patches_serve(const Conv2dParams& p, const GemmLayout& l, int tile_m, int columns) {
    if (p.kernel_height != kPatchTaps || p.kernel_width != kPatchTaps) return false;
    if (p.stride_h != 1 || p.stride_w != 1 || p.dilation_h != 1 || p.dilation_w != 1) return false;
    const int64_t covered = round_up(p.out_height, tile_m / columns) * round_up(p.out_width, columns);
    return covered * 4 <= l.image_pixels * 5;
}

// The refusal of a split into more parts than the inner product has steps.
inline const char* refusal_of_split(const Conv2dPlan& plan, const GemmLayout& l, int64_t steps) {
    if (plan.split_k > 1 && l.out_elements >= kLimit31) return "outputs of less than 2^31 elements with split_k";
    if (plan.split_k >= 1 && plan.split_k <= 64 && plan.split_k <= steps) return nullptr;
    return "split_k from 1 to 64, up to the steps of its product";
}

// Tells whether so many consecutive elements of out and of the residual are an aligned vector, wherever a tile begins: along a
// group's filters, or along an image's pixels.
inline bool stores_by(int elements, const Conv2dParams& p, const GemmLayout& l, const ConvGemmParams& g) {
    const auto fits = [&](const Image& image, DType dtype) {
        const int64_t each = dtype == DType::f32 && elements > 4 ? 4 : elements;  // 16 bytes at most
        if (reinterpret_cast<uintptr_t>(image.data) % (each * element_bytes(dtype)) != 0) return false;
        if (!multiple_of(image.batch_stride, p.batch, each)) return false;
        if (g.along_filters)
            return (image.channel_stride == 1 || p.out_channels == 1) && multiple_of(image.row_stride, p.out_height, each) &&
                   multiple_of(image.column_stride, p.out_width, each);
        return image.column_stride == 1 && (image.row_stride == p.out_width || p.out_height == 1) &&
               multiple_of(image.channel_stride, p.out_channels, each);
    };
    if ((g.along_filters ? l.group_filters : g.patches_across ? p.out_width : l.image_pixels) % elements != 0) return false;
    return fits(p.out, p.out_dtype) && (!p.residual.data || fits(p.residual, p.residual_dtype));
}

// The pixels of a tile: consecutive ones of all images or of one image, or a rectangle of this many columns.
struct GemmTiling {
    bool by_image;
    int patch_columns;  // or 0
};

// The parameters that the kernels of both GEMMs have in common.
inline ConvGemmParams common_params(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan, GemmTiling tiling,
                                    void* workspace) {
    ConvGemmParams g{};
    g.conv = p;
    if (plan.split_k > 1) {
        g.conv.out = {static_cast<char*>(workspace) + l.packed_bytes, l.image_pixels * p.out_channels, 1,
                      static_cast<int64_t>(p.out_width) * p.out_channels, p.out_channels};
        g.conv.out_dtype = DType::f32;
        g.conv.bias = nullptr;
        g.conv.residual.data = nullptr;
        g.conv.activation = Conv2dActivation::none;
        g.part_stride = l.out_elements;
    }
    g.by_image = tiling.by_image;
    g.pixels = static_cast<int32_t>(g.by_image ? l.image_pixels : l.image_pixels * p.batch);
    g.tiles_m = static_cast<int32_t>(ceil_of(g.pixels, plan.tile_m));
    if (tiling.patch_columns) {
        g.patches_across = static_cast<int32_t>(ceil_of(p.out_width, tiling.patch_columns));
        g.divide_by_patches = divisor_of(static_cast<uint32_t>(g.patches_across));
        g.tiles_m = static_cast<int32_t>(g.patches_across * ceil_of(p.out_height, plan.tile_m / tiling.patch_columns));
    }
    g.tiles_n = static_cast<int32_t>(ceil_of(l.group_filters, plan.tile_n));
    g.divide_by_image = divisor_of(static_cast<uint32_t>(l.image_pixels));
    g.divide_by_row = divisor_of(static_cast<uint32_t>(p.out_width));
    g.divide_by_tiles_m = divisor_of(static_cast<uint32_t>(g.tiles_m));
    g.divide_by_tiles_n = divisor_of(static_cast<uint32_t>(g.tiles_n));
    g.group_channels = static_cast<int32_t>(l.group_channels);
    g.group_filters = static_cast<int32_t>(l.group_filters);
    g.taps = static_cast<int32_t>(l.taps);
    // With fewer filters than a vector has elements, most lanes along filters would be idle.
    g.along_filters = (g.conv.out.channel_stride < g.conv.out.column_stride && l.group_filters >= 8) || l.image_pixels == 1;
    g.vector_stores = stores_by(8, g.conv, l, g);
    g.pair_stores = stores_by(2, g.conv, l, g);
    return g;
}

// The kinds of packings, with which their forms begin.
enum : int64_t { kChunkPacking, kDirectPacking, kWinogradPacking };

// See Conv2dPacking.
inline Conv2dPacking packing_of(const PackParams& p, int64_t bytes, bool splits) {
    return {bytes,
            {kChunkPacking, splits, p.filter_elements, p.channels, p.chunks, p.kernel_height, p.kernel_width, p.padding,
             p.taps_inside}};
}

// The packing of filters that the GEMM cannot read in place, and its launch. `early`: see HIPCONV_LAUNCH.
Conv2dPacking packing_of(const Conv2dParams& p, const GemmLayout& l);
void pack_filters(const Conv2dParams& p, const GemmLayout& l, bool early, void* packed, void* stream);

}  // namespace hipconv
