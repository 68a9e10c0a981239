// Convolutions by plain products on a patch of x in LDS (`fma_direct`): few channels of a group, and any number of filters.
//
// Outputs that lie `apart` from each other see rows and columns of x that are a dilation apart, so the outputs of an image
// fall into apart x apart grids, each of them a convolution without dilation. A block walks down some columns of a grid. The
// rows of x that it sees come to a ring in LDS ahead of their use, with zeros, or what else padding is, where the image ends,
// so that nothing behind them has a condition. There a column has all channels that the block's filters see, whatever the
// layout of x. A thread makes kFmaDirectColumns outputs of a row, of four filters: a window of as many columns slides along a
// row of x, and a tap costs one column, loaded and turned into floats once. Where outputs are several columns of the grid
// apart, the taps fall into as many phases, which share no column and take their turns.
#pragma once

#include "../common/epilogue.h"
#include "../common/padding.h"
#include "device/vec.h"
#include "params.h"

namespace hipconv {

// A block makes columns and rows of a grid of an image, of some filters.
struct FmaDirectPlace {
    int filter, column, row, behind, grid_row, grid_column, image;

    HIPCONV_INLINE FmaDirectPlace(const FmaDirectParams& p, uint32_t block) {
        const auto take = [&](int32_t count, Divisor by) {
            const uint32_t rest = divide(block, by), taken = block - rest * static_cast<uint32_t>(count);
            block = rest;
            return static_cast<int>(taken);
        };
        filter = take(p.quad_blocks, p.divide_by_quad_blocks) * p.quads * kQuad;
        column = take(p.tiles, p.divide_by_tiles) * p.groups * kFmaDirectColumns;
        grid_column = take(p.apart_w, p.divide_by_apart_w);
        row = take(p.segments, p.divide_by_segments) * p.segment_rows;
        grid_row = take(p.apart_h, p.divide_by_apart_h);
        image = static_cast<int>(block);
        const int rows = (p.conv.out_height - grid_row + p.apart_h - 1) / p.apart_h;
        behind = row + p.segment_rows < rows ? row + p.segment_rows : rows;
    }
};

// The part of x that a block sees.
struct FmaDirectSource {
    const char* image;
    int first_channel, first_column, first_row;

    HIPCONV_INLINE FmaDirectSource(const FmaDirectParams& p, const FmaDirectPlace& at, int element) {
        const Conv2dParams& c = p.conv;
        const int of_unit = p.unit_bytes / element, group = divide(static_cast<uint32_t>(at.filter), p.divide_by_group_filters);
        first_channel = group * p.group_channels / of_unit * of_unit;
        first_column = at.grid_column * c.stride_w - c.pad_left + at.column * p.step_w * c.dilation_w;
        first_row = at.grid_row * c.stride_h - c.pad_top + at.row * p.step_h * c.dilation_h;
        image = static_cast<const char*>(c.x.data) + at.image * c.x.batch_stride * element;
    }
};

// Brings `count` rows of x, from row `first` of the block's on, to row `slot` of the ring and those behind it.
template <typename Unit, int kElement>
HIPCONV_INLINE void bring_units(const FmaDirectParams& parameter, const FmaDirectSource& source, char* ring, int first,
                                int count, int slot) {
    constexpr bool kCopies = kCopiesPastRegisters && sizeof(Unit) >= 4;
    constexpr int kAtOnce = kCopies ? 4 : 2, kOfUnit = static_cast<int>(sizeof(Unit)) / kElement;
    const FmaDirectParams& p = first_parameter_again(parameter);
    const Conv2dParams& c = p.conv;
    const int64_t pitch = c.x.row_stride * kElement;
    const int height = c.in_height, dilation = c.dilation_h, row_bytes = p.row_bytes, ring_bytes = p.ring_rows * row_bytes;
    const int splits = p.splits, of_row = p.columns * p.units, threads = static_cast<int>(blockDim.x);
    const bool is_zeros = c.padding_mode == PaddingMode::zeros;
    for (int i = static_cast<int>(threadIdx.x); i < of_row * splits; i += threads) {
        const int split = divide(i, p.divide_by_row), in_row = i - split * of_row;
        const int outer = divide(in_row, p.divide_by_inner), inner = in_row - outer * static_cast<int>(p.divide_by_inner.value);
        const int column = p.across ? outer : inner, unit = p.across ? inner : outer;
        const int of_x = source.first_column + column * c.dilation_w, channel = source.first_channel + unit * kOfUnit;
        const int z = is_zeros ? of_x : padded_index_of(of_x, c.in_width, c.padding_mode);
        const bool inside = static_cast<uint32_t>(z) < static_cast<uint32_t>(c.in_width) && channel < c.in_channels;
        const char* const from = source.image + (z * c.x.column_stride + channel * c.x.channel_stride) * kElement;
        char* const to = ring + column * p.column_bytes + unit * static_cast<int>(sizeof(Unit));
        int y = source.first_row + (first + split) * dilation, at = (slot + split) * row_bytes;
        if (at >= ring_bytes) at -= ring_bytes;
        const char* row = from + y * pitch;
        const int next_y = splits * dilation, next_at = splits * row_bytes;
        const auto bring = [&](const auto& next_row) {
            for (int j = split; j < count; j += kAtOnce * splits) {
                Unit loaded[kAtOnce];
                int places[kAtOnce];
#pragma unroll
                for (int b = 0; b < kAtOnce; ++b) {
                    if (j + b * splits >= count) continue;
                    places[b] = at;
                    bool exists = inside;
                    const char* const there = next_row(exists);
                    if constexpr (kCopies) {
                        copy_later(reinterpret_cast<Unit*>(to + at), there, !exists);
                    } else {
                        loaded[b] = Unit{};
                        if (exists) loaded[b] = *global_pointer<const Unit>(there);
                    }
                    y += next_y;
                    at += next_at;
                    if (at >= ring_bytes) at -= ring_bytes;
                }
                if constexpr (!kCopies) {
#pragma unroll
                    for (int b = 0; b < kAtOnce; ++b)
                        if (j + b * splits < count) *reinterpret_cast<Unit*>(to + places[b]) = loaded[b];
                }
            }
        };
        if (is_zeros) {
            const int64_t down = next_y * pitch;
            bring([&](bool& exists) {
                exists = exists && static_cast<uint32_t>(y) < static_cast<uint32_t>(height);
                const char* const there = row;
                row += down;
                return there;
            });
        } else {
            bring([&](bool& exists) {
                const int found = padded_index_of(y, height, c.padding_mode);
                exists = exists && static_cast<uint32_t>(found) < static_cast<uint32_t>(height);
                return from + found * pitch;
            });
        }
    }
}

template <int kElement>
HIPCONV_INLINE void bring_rows(const FmaDirectParams& parameter, const FmaDirectSource& source, char* ring, int first,
                               int count, int slot) {
    const FmaDirectParams& p = first_parameter_again(parameter);
    if (p.unit_bytes == 16)
        bring_units<Words4, kElement>(parameter, source, ring, first, count, slot);
    else if (p.unit_bytes == 4)
        bring_units<uint32_t, kElement>(parameter, source, ring, first, count, slot);
    else if constexpr (kElement == 2)
        bring_units<uint16_t, kElement>(parameter, source, ring, first, count, slot);
}

// Brings the block's filters to LDS: for each product of a filter a vector of the same one of four filters.
template <typename T>
HIPCONV_INLINE void bring_filters(const FmaDirectParams& parameter, float* lds, int first_filter) {
    const FmaDirectParams& p = first_parameter_again(parameter);
    const Conv2dParams& c = p.conv;
    const T* const weights = global_pointer<const T>(c.weight.data);
    const int taps = static_cast<int>(p.divide_by_taps.value), products = static_cast<int>(p.divide_by_products.value);
    const int all = p.quads * kQuad * products, threads = static_cast<int>(blockDim.x);
    constexpr int kAtOnce = 4;  // under way together
    for (int base = static_cast<int>(threadIdx.x); base < all; base += kAtOnce * threads) {
        T loaded[kAtOnce];
        int places[kAtOnce];
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b) {
            const int i = base + b * threads < all ? base + b * threads : base;
            const int filter = divide(i, p.divide_by_products), product = i - filter * products;
            const int channel = divide(product, p.divide_by_taps), tap = product - channel * taps;
            const int r = divide(tap, p.divide_by_width), s = tap - r * c.kernel_width;
            const int k = first_filter + filter < c.out_channels ? first_filter + filter : c.out_channels - 1;
            loaded[b] = weights[offset_in(c.weight, k, channel, r, s)];
            places[b] = product * p.filter_pitch * kQuad + filter;
        }
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b) lds[places[b]] = to_float(loaded[b]);
    }
}

// The sums of a thread: of each column two pairs of filters.
struct FmaDirectSums {
    Pair v[2 * kFmaDirectColumns];

    HIPCONV_INLINE float get(int column, int filter) const {
        const Pair pair = v[2 * column + filter / 2];
        return filter % 2 ? high(pair) : low(pair);
    }
    HIPCONV_INLINE void set(int column, int filter, float value) {
        Pair& pair = v[2 * column + filter / 2];
        pair = filter % 2 ? make_pair(low(pair), value) : make_pair(value, high(pair));
    }
};

// Finishes and stores the outputs of a row, whose bias is added already.
HIPCONV_INLINE void store_quads(const FmaDirectParams& parameter, FmaDirectSums& sums, int n, int k, int row, int column) {
    constexpr int kColumns = kFmaDirectColumns;
    const FmaDirectParams& p = first_parameter_again(parameter);
    const Conv2dParams& c = p.conv;
    const int filters = c.out_channels - k < kQuad ? c.out_channels - k : kQuad;
    const int columns = (c.out_width - column + p.apart_w - 1) / p.apart_w;
    const int64_t out_at = offset_in(c.out, n, k, row, column), next = p.apart_w * c.out.column_stride;
    if (p.residual_by_quads) {
        with_dtype(c.out_dtype, [&](auto type) {
            using T = decltype(type);
            using Memory = Words<T, kQuad>;
            const char* const from = static_cast<const char*>(c.out.data) + p.to_residual + out_at * int64_t{sizeof(T)};
            Memory words[kColumns];
#pragma unroll
            for (int q = 0; q < kColumns; ++q) {
                words[q] = Memory{};
                if (q < columns) words[q] = *global_pointer<const Memory>(from + q * next * int64_t{sizeof(T)});
            }
#pragma unroll
            for (int i = 0; i < 2 * kColumns; ++i) sums.v[i] = add(sums.v[i], pair_of<T>(words[i / 2], i % 2));
        });
    } else if (c.residual.data) {
        const int64_t apart = p.apart_w * c.residual.column_stride;
#pragma unroll
        for (int f = 0; f < kQuad; ++f) {
            if (f >= filters) continue;
            float of[kColumns];
#pragma unroll
            for (int q = 0; q < kColumns; ++q) of[q] = sums.get(q, f);
            add_each(of, columns, c.residual.data, offset_in(c.residual, n, k + f, row, column), apart, c.residual_dtype);
#pragma unroll
            for (int q = 0; q < kColumns; ++q) sums.set(q, f, of[q]);
        }
    }
    with_activation(c.activation, [&](Conv2dActivation kind) {
#pragma unroll
        for (Pair& v : sums.v) v = make_pair(activate(low(v), kind), activate(high(v), kind));
    });
    if (c.dtype == DType::f32 && c.out_dtype != DType::f32) {  // whose NaN may have its bits where rounding would lose them
#pragma unroll
        for (Pair& v : sums.v) v = make_pair(canonical_nan(low(v)), canonical_nan(high(v)));
    }
    with_dtype(c.out_dtype, [&](auto type) {
        using T = decltype(type);
        T* const out = global_pointer<T>(c.out.data) + out_at;
        if (p.out_by_quads) {
#pragma unroll
            for (int q = 0; q < kColumns; ++q) {
                Words<T, kQuad> words{};
                set_pair<T>(words, 0, sums.v[2 * q]);
                set_pair<T>(words, 1, sums.v[2 * q + 1]);
                if (q < columns) *global_pointer<Words<T, kQuad>>(out + q * next) = words;
            }
            return;
        }
        constexpr int kVector = 16 / static_cast<int>(sizeof(T));
#pragma unroll
        for (int f = 0; f < kQuad; ++f) {
            if (f >= filters) continue;
            T* const to = out + f * c.out.channel_stride;
            if (p.out_by_rows && columns >= kColumns) {
#pragma unroll
                for (int q = 0; q < kColumns; q += kVector) {
                    Words4 words{};
#pragma unroll
                    for (int i = 0; i < kVector; i += 2)
                        set_pair<T>(words, i / 2, make_pair(sums.get(q + i, f), sums.get(q + i + 1, f)));
                    *global_pointer<Words4>(to + q) = words;
                }
                continue;
            }
#pragma unroll
            for (int q = 0; q < kColumns; ++q)
                if (q < columns) to[q * next] = from_float<T>(sums.get(q, f));
        }
    });
}

// Where a thread's filters find their channels, in bytes from the first one of a column in LDS.
template <QuadSees kSees>
struct QuadChannels {
    int bytes[kSees == QuadSees::any_channels ? kQuad : 1];
};

// Four filters see this of a column, as memory has it.
template <typename T, QuadSees kSees>
struct QuadOfColumn {
    static constexpr int kElements = kSees == QuadSees::any_channels ? kQuad : 1;
    T each[kElements];

    HIPCONV_INLINE void load(const char* column, const QuadChannels<kSees>& channels) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) each[i] = *reinterpret_cast<const T*>(column + channels.bytes[i]);
    }
    HIPCONV_INLINE void get(Pair (&to)[2]) const {
        if constexpr (kElements == 1)
            to[0] = to[1] = twice(to_float(each[0]));
        else
            to[0] = make_pair(to_float(each[0]), to_float(each[1])), to[1] = make_pair(to_float(each[2]), to_float(each[3]));
    }
};
template <typename T>
struct QuadOfColumn<T, QuadSees::four_channels> {
    Words<T, kQuad> words;

    HIPCONV_INLINE void load(const char* column, const QuadChannels<QuadSees::four_channels>& channels) {
        words = *reinterpret_cast<const Words<T, kQuad>*>(column + channels.bytes[0]);
    }
    HIPCONV_INLINE void get(Pair (&to)[2]) const { to[0] = pair_of<T>(words, 0), to[1] = pair_of<T>(words, 1); }
};

template <typename T, QuadSees kSees>
__global__ void HIPCONV_LAUNCH_BOUNDS(kFmaDirectThreads, 2)
    conv2d_fma_direct(HIPCONV_IN_PLACE const FmaDirectParams parameter) {
    HIPCONV_LARGE_SHARED(Words4, lds, kCopiesPastRegisters ? 1 : kFmaDirectLds / 16);
    constexpr int kBytes = sizeof(T), kColumns = kFmaDirectColumns;
    let_next_kernel_begin();
    const FmaDirectParams& p = first_parameter_again(parameter);
    const FmaDirectPlace at(p, blockIdx.x);
    const FmaDirectSource source(p, at, kBytes);
    char* const ring = reinterpret_cast<char*>(lds) + p.filters_bytes;
    const int thread = static_cast<int>(threadIdx.x);
    const int along = divide(thread, p.divide_by_quads), quad = thread - along * p.quads;
    const int group = divide(along, p.divide_by_rows), row_of_step = along - group * p.rows;
    const int k = at.filter + quad * kQuad;
    const bool has_work = group < p.groups && k < p.conv.out_channels;
    const int rows_of_x = (at.behind - at.row - 1) * p.step_h + p.conv.kernel_height;  // that the block sees
    wait_for_kernel_before();
    bring_filters<T>(parameter, reinterpret_cast<float*>(lds), at.filter);

    QuadChannels<kSees> channels;
    Pair bias[2] = {};
    {
        const FmaDirectParams& again = first_parameter_again(parameter);
        const Conv2dParams& c = again.conv;
        const auto filter = [&](int i) { return k + i < c.out_channels ? k + i : c.out_channels - 1; };
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(channels.bytes) / sizeof(int)); ++i) {
            const int of_group = divide(static_cast<uint32_t>(filter(i)), again.divide_by_group_filters);
            channels.bytes[i] = (of_group * again.group_channels - source.first_channel) * kBytes;
        }
        if (c.bias) {
            float of[kQuad];
#pragma unroll
            for (int i = 0; i < kQuad; ++i)
                of[i] = load_parameter(global_pointer<void>(c.bias), filter(i) * c.bias_stride, c.bias_dtype);
            bias[0] = make_pair(of[0], of[1]), bias[1] = make_pair(of[2], of[3]);
        }
    }
    const char* const columns = ring + group * (kColumns * p.step_w * p.column_bytes);
    int slot = row_of_step * p.step_h;  // where the ring has the thread's first row of x
    int brought = 0, next_slot = 0;     // how many rows were brought to LDS, and where the next ones come
#pragma unroll 1
    for (int row = at.row, rows = p.rows; row < at.behind; row += rows) {
        const FmaDirectParams& step = first_parameter_again(parameter);
        const int first_seen = (row - at.row) * step.step_h;
        int seen = first_seen + (step.rows - 1) * step.step_h + step.conv.kernel_height;
        if (seen > rows_of_x) seen = rows_of_x;
        if (first_seen > brought) {  // nobody sees the rows between
            next_slot += first_seen - brought, brought = first_seen;
            while (next_slot >= step.ring_rows) next_slot -= step.ring_rows;
        }
        bring_rows<kBytes>(parameter, source, ring, brought, seen - brought, next_slot);
        next_slot += seen - brought, brought = seen;
        if (next_slot >= step.ring_rows) next_slot -= step.ring_rows;
        close_copies();
        wait_for_copies<0>();
        __syncthreads();
        if (has_work && row + row_of_step < at.behind) {
            const FmaDirectParams& again = first_parameter_again(parameter);
            const int height = again.conv.kernel_height, width = again.conv.kernel_width, pitch = again.filter_pitch;
            const int phases = again.step_w < width ? again.step_w : width, all_channels = again.group_channels;
            const int next_column = again.step_w * again.column_bytes, next_tap = phases * pitch;
            FmaDirectSums sums;
#pragma unroll
            for (int j = 0; j < 2 * kColumns; ++j) sums.v[j] = bias[j % 2];
            int of_ring = slot;
#pragma unroll 1
            for (int r = 0; r < height; ++r) {
                const char* const line = columns + of_ring * again.row_bytes;
                of_ring = of_ring + 1 == again.ring_rows ? 0 : of_ring + 1;
#pragma unroll 1
                for (int phase = 0; phase < phases; ++phase) {
                    const char* of_phase = line + phase * again.column_bytes;
                    const Words4* filters = lds + quad + (r * width + phase) * pitch;
#pragma unroll 1
                    for (int channel = 0; channel < all_channels; ++channel) {
                        const char* x = of_phase;
                        const Words4* filter = filters;
                        QuadOfColumn<T, kSees> first[kColumns];
#pragma unroll
                        for (int q = 0; q < kColumns; ++q) first[q].load(x, channels), x += next_column;
                        Pair window[kColumns][2];
#pragma unroll
                        for (int q = 0; q + 1 < kColumns; ++q) first[q].get(window[q]);
                        auto next = first[kColumns - 1];
                        int s = phase;
                        for (bool is_done = false; !is_done;) {
#pragma unroll
                            for (int u = 0; u < kColumns; ++u) {
                                if (is_done) continue;
                                next.get(window[(u + kColumns - 1) % kColumns]);
                                const Words4 weights = *filter;
                                const Pair w[2] = {pair_of<float>(weights, 0), pair_of<float>(weights, 1)};
                                next.load(x, channels);  // behind the last tap it means nothing
                                x += next_column;
                                filter += next_tap;
                                s += phases;
                                is_done = s >= width;
#pragma unroll
                                for (int q = 0; q < kColumns; ++q) {
                                    const auto& seen = window[(u + q) % kColumns];
                                    sums.v[2 * q] = multiply_add(w[0], seen[0], sums.v[2 * q]);
                                    sums.v[2 * q + 1] = multiply_add(w[1], seen[1], sums.v[2 * q + 1]);
                                }
                            }
                        }
                        of_phase += kBytes;
                        filters += height * width * pitch;
                    }
                }
            }
            const int of_grid = at.column + group * kColumns;
            store_quads(parameter, sums, at.image, k, at.grid_row + (row + row_of_step) * again.apart_h,
                        at.grid_column + of_grid * again.apart_w);
        }
        slot += step.rows * step.step_h;
        while (slot >= step.ring_rows) slot -= step.ring_rows;
        __syncthreads();
    }
}

}  // namespace hipconv
