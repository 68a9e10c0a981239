// Depthwise conv2d: which outputs a thread makes, and the filters that its block keeps in LDS.
//
// A thread makes the outputs of a few columns, down a segment of rows, of one unit: one channel, two or four. In
// channels_last memory lanes lie along units, and a block has all its units at several places of images. In rows of columns
// (NCHW) they lie along columns, then segments, then units.
#pragma once

#include "../common/padding.h"
#include "conv2d/params.h"
#include "device/vec.h"

namespace hipconv {

constexpr int kDepthwiseThreads = 128;
constexpr int kMostUnits = 32;  // of a block: their filters fit into LDS
// This is the pitch of a tap's filters in LDS, in units: one more than lanes read at once, so that writes of neighbouring taps
// have no bank conflicts.
constexpr int kFilterPitch = kMostUnits + 1;

struct DepthwiseParams {
    Conv2dParams conv;
    int32_t multiplier;  // filters of a channel of x
    int32_t units;       // of an image
    int32_t tiles;       // a row of outputs has, of the columns that a thread makes
    int32_t segments, segment_rows;
    bool across;  // lanes lie along units
    bool has_residual;
    bool x_by_vectors, out_by_vectors;  // whether two elements are read, or written, at once
    uint32_t block_units;               // lanes along units, if they lie so
    uint32_t unit_blocks;               // blocks along units
    uint32_t block_items;               // threads of a block that have work
    uint64_t items, blocks;             // of all: units and places; see DepthwisePlace
    // Bytes from one to the next: rows of x, loads in a row of it; rows, channels and columns of out.
    uint64_t x_row, out_row, out_channel;
    uint32_t x_step, out_step;
    // Elements from one to the next of the weight, for the walking kernel: filters, rows, columns.
    int32_t weight_filter, weight_row, weight_column;
};

// The outputs of a thread, and the units of its block.
struct DepthwisePlace {
    int32_t first_of_image;  // the block's first unit, in its image
    uint32_t block_units;    // whose filters the block needs
    uint32_t of_block;       // the thread's unit, counted in the block
    int32_t batch, unit, segment, tile;
    bool has_work;
};

template <typename Number>
HIPCONV_INLINE DepthwisePlace depthwise_place(const DepthwiseParams& p, Number block, uint32_t thread) {
    DepthwisePlace at;
    const Number tiles = static_cast<Number>(p.tiles), segments = static_cast<Number>(p.segments);
    const Number units = static_cast<Number>(p.units), places = tiles * segments;
    Number rest, unit;
    if (p.across) {
        const Number along = block / p.unit_blocks;
        const uint32_t place = thread / p.block_units;
        const Number first_unit = (block - along * p.unit_blocks) * p.block_units;
        at.first_of_image = static_cast<int32_t>(first_unit);
        at.of_block = thread - place * p.block_units;
        unit = first_unit + at.of_block;
        rest = along * (kDepthwiseThreads / p.block_units) + place;
        const Number left = units - first_unit;
        at.block_units = left < p.block_units ? static_cast<uint32_t>(left) : p.block_units;
        at.has_work = thread < p.block_items && unit < units && rest < static_cast<Number>(p.items);
        const Number row = rest / tiles;
        at.tile = static_cast<int32_t>(rest - row * tiles);
        const Number image = row / segments;
        at.segment = static_cast<int32_t>(row - image * segments);
        at.batch = static_cast<int32_t>(image);
        at.unit = static_cast<int32_t>(unit);
        return at;
    }
    const Number first = block * p.block_items, all = static_cast<Number>(p.items);
    const Number behind = all - first < p.block_items ? all : first + p.block_items;
    const Number first_unit = first / places;
    at.first_of_image = static_cast<int32_t>(first_unit % units);
    at.block_units = static_cast<uint32_t>((behind - 1) / places - first_unit) + 1;
    rest = first + thread;
    at.has_work = thread < p.block_items && rest < all;
    const Number row = rest / tiles;
    at.tile = static_cast<int32_t>(rest - row * tiles);
    unit = row / segments;
    at.segment = static_cast<int32_t>(row - unit * segments);
    at.of_block = at.has_work ? static_cast<uint32_t>(unit - first_unit) : 0;
    const Number image = unit / units;
    at.batch = static_cast<int32_t>(image);
    at.unit = static_cast<int32_t>(unit - image * units);
    return at;
}

// The place of a block of any number, which 32 bits find where they can.
HIPCONV_INLINE DepthwisePlace depthwise_place(const DepthwiseParams& p, uint64_t block, uint32_t thread) {
    const bool few = p.items < (1u << 31) && p.blocks < (1u << 24);
    return few ? depthwise_place<uint32_t>(p, static_cast<uint32_t>(block), thread)
               : depthwise_place<uint64_t>(p, block, thread);
}

// The unit of an image that a unit of the block is; a block may have units of several images.
HIPCONV_INLINE int32_t depthwise_unit(const DepthwiseParams& p, const DepthwisePlace& at, uint32_t of_block) {
    const uint32_t unit = static_cast<uint32_t>(at.first_of_image) + of_block, units = static_cast<uint32_t>(p.units);
    return static_cast<int32_t>(unit < units ? unit : unit % units);
}

// The threads of a block load values 0 to count - 1, kBatch of each under way at once, and store them.
template <int kBatch, typename Load, typename Store>
HIPCONV_INLINE void load_and_store(int count, Load load, Store store) {
    for (int base = 0; base < count; base += kBatch * kDepthwiseThreads) {
        decltype(load(0)) loaded[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
            if (base + b * kDepthwiseThreads >= count) continue;
            const int i = base + b * kDepthwiseThreads + static_cast<int>(threadIdx.x);
            loaded[b] = load(i < count ? i : count - 1);
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
            const int i = base + b * kDepthwiseThreads + static_cast<int>(threadIdx.x);
            if (i < count) store(i, loaded[b]);
        }
    }
}

// ---- which outputs a thread makes, as the launch decides --------------------------------------------------------------------

// Tells whether lanes lie along channels: where the result is denser along them.
inline bool depthwise_lies_across(const Conv2dParams& c) { return c.out.channel_stride < c.out.column_stride; }

// Tells whether 32 bits count columns and rows, also those beside the image that a kernel looks at.
inline bool depthwise_counts_in_32_bits(const Conv2dParams& c) {
    constexpr int64_t kLimit = int64_t{1} << 24;
    const auto fits = [](int64_t in, int64_t out, int64_t taps, int64_t stride, int64_t dilation) {
        return in < kLimit && out < kLimit && stride < kLimit / 64 && dilation < kLimit / 64 && stride * dilation < kLimit &&
               taps * dilation + out * stride < 4 * kLimit;
    };
    return int64_t{c.kernel_height} * c.kernel_width < kLimit &&
           fits(c.in_height, c.out_height, c.kernel_height, c.stride_h, c.dilation_h) &&
           fits(c.in_width, c.out_width, c.kernel_width, c.stride_w, c.dilation_w);
}

// Tells whether the strides along images and rows, and the first address, are multiples of so many elements.
inline bool rows_begin_at_multiples(const Image& image, int elements, int bytes) {
    return reinterpret_cast<uint64_t>(image.data) % static_cast<unsigned>(elements * bytes) == 0 &&
           image.batch_stride % elements == 0 && image.row_stride % elements == 0;
}

// Tells whether columns of as many channels, which are dense, are vectors.
inline bool columns_are_vectors(const Image& image, int64_t all_channels, int channels, int bytes) {
    return all_channels % channels == 0 && image.channel_stride == 1 && rows_begin_at_multiples(image, channels, bytes) &&
           image.column_stride % channels == 0;
}

// Lanes along units: as many as leave few of them idle, and read whole sectors of 32 bytes where that costs nothing.
inline uint32_t depthwise_block_units(uint32_t units, uint32_t lanes_at_most = kMostUnits) {
    uint32_t best = 1;
    double most = 0;
    for (uint32_t lanes = lanes_at_most; lanes > 0; --lanes) {
        const uint32_t rounded = (units + lanes - 1) / lanes * lanes, busy = kDepthwiseThreads / lanes * lanes;
        double share = double(units) / rounded * busy / kDepthwiseThreads;
        if (lanes % 8 != 0) share *= lanes < 8 ? 0.1 * lanes : 0.9;
        if (share > most + 0.02) most = share, best = lanes;
    }
    return best;
}

// Cuts all work into blocks, given how many segments the rows of an image are.
inline void cut_places(DepthwiseParams& p, int32_t segments) {
    p.segments = segments;
    const uint64_t places = static_cast<uint64_t>(p.tiles) * static_cast<uint64_t>(p.segments);
    p.items = places * static_cast<uint64_t>(p.conv.batch);
    if (p.across) {
        const uint32_t each = kDepthwiseThreads / p.block_units;
        p.block_items = each * p.block_units;
        p.blocks = (p.items + each - 1) / each * p.unit_blocks;
        return;
    }
    p.items *= static_cast<uint64_t>(p.units);
    const uint64_t fit = (kMostUnits - 1) * places;  // that touch kMostUnits units at most
    p.block_items = static_cast<uint32_t>(fit < kDepthwiseThreads ? fit : kDepthwiseThreads);
    p.blocks = (p.items + p.block_items - 1) / p.block_items;
}

// Cuts the rows of images into segments, and all work into blocks.
inline void cut_segments(DepthwiseParams& p, int32_t segment_rows) {
    p.segment_rows = segment_rows;
    cut_places(p, (p.conv.out_height + segment_rows - 1) / segment_rows);
}

// The blocks of a launch whose blocks take turns where there are more than these.
inline unsigned depthwise_grid(const DepthwiseParams& p) {
    constexpr uint64_t kMost = 1 << 22;
    return static_cast<unsigned>(p.blocks < kMost ? p.blocks : kMost);
}

// Cuts the work of a call, given the number of rows of a segment. `unit` and `columns` are those of the kernel: channels of a
// unit, and columns of a thread.
inline DepthwiseParams depthwise_blocks(const Conv2dParams& conv, bool across, int unit, int columns, int32_t segment_rows) {
    DepthwiseParams p{};
    p.conv = conv;
    p.across = across;
    p.has_residual = conv.residual.data != nullptr;
    p.multiplier = conv.out_channels / conv.groups;
    p.units = (conv.out_channels + unit - 1) / unit;
    p.tiles = (conv.out_width + columns - 1) / columns;
    if (across) {
        p.block_units = depthwise_block_units(static_cast<uint32_t>(p.units));
        p.unit_blocks = (static_cast<uint32_t>(p.units) + p.block_units - 1) / p.block_units;
    } else {
        p.block_units = 1;
        p.unit_blocks = 1;
    }
    cut_segments(p, segment_rows);
    return p;
}

}  // namespace hipconv
