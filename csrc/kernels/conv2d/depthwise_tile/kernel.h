// Depthwise convolutions by plain products on a tile of x in LDS: any filter, stride, dilation, padding and layout.
//
// A block brings what it sees of some channels to LDS as floats, with zeros, or what else padding is, where an image ends, so
// that nothing behind it has a condition. A column of x is a run of words there: a thread makes kTileRows outputs of a column,
// and for each column of taps it reads one window of that run, at offsets that the compiler knows, which all its outputs and
// taps share. Lanes lie along what is dense in memory, columns or channels; runs have odd lengths, so that lanes read other
// banks. Where outputs see rows of x that are several rows apart, a run has these beside each other.
#pragma once

#include "../common/column_store.h"
#include "../common/padding.h"
#include "device/vec.h"
#include "params.h"

namespace hipconv {

struct DepthwiseTilePlace {
    int image, first_channel, row, column;

    HIPCONV_INLINE DepthwiseTilePlace(const DepthwiseTileParams& p, uint32_t block) {
        const auto take = [&](int32_t count, Divisor by) {
            const uint32_t rest = divide(block, by), taken = block - rest * static_cast<uint32_t>(count);
            block = rest;
            return static_cast<int>(taken);
        };
        column = take(p.column_blocks, p.divide_by_column_blocks) * p.block_columns;
        row = take(p.row_blocks, p.divide_by_row_blocks) * p.block_rows;
        first_channel = take(p.channel_blocks, p.divide_by_channel_blocks) * p.block_channels;
        image = static_cast<int>(block);
    }
};

// Where the next row of a column of x comes in LDS.
template <bool kPhases>
struct DepthwiseTileCursor {
    float* to;
    int step, phase_rows, phase;

    // Row `at` of those that come next, which are asked for one after the other.
    HIPCONV_INLINE float* next(int at) {
        if constexpr (!kPhases) return to + at;
        float* const here = to;
        to += phase_rows;
        if (++phase == step) phase = 0, to -= step * phase_rows - 1;
        return here;
    }
    HIPCONV_INLINE void store(int at, bool wanted, float value) {
        float* const here = next(at);
        if (wanted) *here = value;
    }
    HIPCONV_INLINE void move_by(int rows) {
        if constexpr (!kPhases) to += rows;
    }
};

// Brings `rows` rows of a column of x to LDS, of which the first one is row `y` of the image, or lies in front of it.
template <typename T, bool kPhases>
HIPCONV_INLINE void stage_column(const DepthwiseTileParams& p, DepthwiseTileCursor<kPhases> cursor, const char* column,
                                 bool inside, int y, int rows) {
    constexpr int kAtOnce = 8, kOfMargin = 4;
    constexpr bool kCopies = kCopiesPastRegisters && sizeof(T) == 4;
    const Conv2dParams& c = p.conv;
    const int pitch = p.x.row * static_cast<int>(sizeof(T)), height = c.in_height;
    // Rows of the image are those from `begin` to `end`. What lies beside them is padding.
    int begin = y < 0 ? -y : 0, end = height - y;
    if (begin > rows) begin = rows;
    if (end > rows) end = rows;
    if (end < begin) end = begin;
    const int direction = c.padding_mode == PaddingMode::reflect ? -1 : c.padding_mode == PaddingMode::circular ? 1 : 0;
    const auto bring_margin = [&](int at, int behind) {
        if (c.padding_mode == PaddingMode::zeros) {
#pragma unroll 1
            for (; at < behind; ++at) {
                cursor.store(0, true, 0.0f);
                cursor.move_by(1);
            }
            return;
        }
        int found = padded_index_of(y + at, height, c.padding_mode);
        const char* row = column + int64_t{found} * pitch;
#pragma unroll 1
        for (; at < behind; at += kOfMargin) {
            T loaded[kOfMargin];
#pragma unroll
            for (int b = 0; b < kOfMargin; ++b) {
                loaded[b] = T{};
                if (inside && at + b < behind && static_cast<uint32_t>(found) < static_cast<uint32_t>(height))
                    loaded[b] = *global_pointer<const T>(row);
                found += direction;
                row += direction * pitch;
            }
#pragma unroll
            for (int b = 0; b < kOfMargin; ++b)
                if (!kPhases || at + b < behind) cursor.store(b, at + b < behind, to_float(loaded[b]));
            cursor.move_by(behind - at < kOfMargin ? behind - at : kOfMargin);
        }
    };
    bring_margin(0, begin);
    const char* row = column + int64_t{y + begin} * pitch;
    int left = end - begin;
#pragma unroll 1
    for (; left >= kAtOnce; left -= kAtOnce) {
        if constexpr (kCopies) {
#pragma unroll
            for (int b = 0; b < kAtOnce; ++b) {
                copy_later(reinterpret_cast<uint32_t*>(cursor.next(b)), row, !inside);
                row += pitch;
            }
            cursor.move_by(kAtOnce);
            continue;
        }
        T loaded[kAtOnce];
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b) {
            loaded[b] = T{};
            if (inside) loaded[b] = *global_pointer<const T>(row);
            row += pitch;
        }
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b) cursor.store(b, true, to_float(loaded[b]));
        cursor.move_by(kAtOnce);
    }
    if (left > 0) {
        T loaded[kAtOnce];
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b) {
            loaded[b] = T{};
            if (inside && b < left) loaded[b] = *global_pointer<const T>(row);
            row += pitch;
        }
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b)
            if (!kPhases || b < left) cursor.store(b, b < left, to_float(loaded[b]));
        cursor.move_by(left);
    }
    bring_margin(end, rows);
}

// Brings what a block sees of x to LDS: a thread brings a part of a column of a channel after the other.
template <typename T, bool kPhases>
HIPCONV_INLINE void stage_tile(const DepthwiseTileParams& parameter, const DepthwiseTilePlace& at, float* tile) {
    const DepthwiseTileParams& p = first_parameter_again(parameter);
    const Conv2dParams& c = p.conv;
    const int items = p.staged * p.parts;
#pragma unroll 1
    for (int item = static_cast<int>(threadIdx.x); item < items; item += kTileThreads) {
        const int part = divide(item, p.divide_by_staged), of_part = item - part * p.staged;
        const int outer = divide(of_part, p.divide_by_inner);
        const int inner = of_part - outer * static_cast<int>(p.divide_by_inner.value);
        const int of_block = p.across ? inner : outer, column = p.across ? outer : inner;
        int channel = at.first_channel + of_block, image = at.image;
        if (channel >= p.channels) continue;
        if (!p.across) {
            image = static_cast<int>(divide(static_cast<uint32_t>(channel), p.divide_by_channels));
            channel -= image * c.in_channels;
        }
        const int z = padded_index_of(at.column * c.stride_w - c.pad_left + column, c.in_width, c.padding_mode);
        const bool inside = static_cast<uint32_t>(z) < static_cast<uint32_t>(c.in_width);
        const char* const from =
            static_cast<const char*>(c.x.data) + p.x.at(image, channel, 0, z) * static_cast<int64_t>(sizeof(T));
        const int of_phase = divide(column, p.divide_by_column_phases);
        const int phase = column - of_phase * static_cast<int>(p.divide_by_column_phases.value);
        const int place = phase * p.phase_columns + of_phase;
        const int first = part * p.part_rows, rows = p.in_rows - first < p.part_rows ? p.in_rows - first : p.part_rows;
        // A part begins where a row of the first phase is.
        const DepthwiseTileCursor<kPhases> cursor{
            tile + place * p.column_words + of_block * p.channel_words + part * p.part_lines, p.step, p.phase_rows, 0};
        stage_column<T>(p, cursor, from, inside, at.row * c.stride_h - c.pad_top + first, rows);
    }
}

// Brings the block's filters to LDS: the taps of a column that see rows of the same phase follow each other.
template <typename T>
HIPCONV_INLINE void stage_taps(const DepthwiseTileParams& parameter, const DepthwiseTilePlace& at, float* filters) {
    constexpr int kAtOnce = 2;
    const DepthwiseTileParams& p = first_parameter_again(parameter);
    const Conv2dParams& c = p.conv;
    const int taps = static_cast<int>(p.divide_by_taps.value), width = c.kernel_width, all = p.block_filters * taps;
    const int first = at.first_channel * static_cast<int>(p.divide_by_multiplier.value);
#pragma unroll 1
    for (int base = 0; base < all; base += kAtOnce * kTileThreads) {
        T loaded[kAtOnce];
        int places[kAtOnce];
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b) {
            if (base + b * kTileThreads >= all) continue;  // for all threads
            const int mine = base + b * kTileThreads + static_cast<int>(threadIdx.x), i = mine < all ? mine : 0;
            const int filter = divide(i, p.divide_by_taps), tap = i - filter * taps;
            const int r = divide(tap, p.divide_by_width), s = tap - r * width;
            const int of_phase = divide(r, p.divide_by_tap_phases), phase = r - of_phase * p.tap_phases;
            const uint32_t of_all = static_cast<uint32_t>(first + filter);  // of all images, which have the same ones
            const int k =
                static_cast<int>(of_all - divide(of_all, p.divide_by_filters) * static_cast<uint32_t>(c.out_channels));
            loaded[b] = global_pointer<const T>(c.weight.data)[p.weight.at(k, 0, r, s)];
            places[b] = filter * p.filter_pitch + (s * p.tap_phases + phase) * p.tap_pitch + of_phase;
        }
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b)
            if (base + b * kTileThreads < all) filters[places[b]] = to_float(loaded[b]);
    }
}

// Where the columns of x lie that the columns of a filter see.
struct DepthwiseTileColumns {
    int width, next, next_wraps, phase_step, phases;  // see DepthwiseTileParams
    int taps_step;                                    // floats from a column of taps to the next
};

// Adds up kTaps rows of taps, in all columns of a filter.
template <int kTaps>
HIPCONV_INLINE void add_columns(float (&sums)[kTileRows], const float* x, const float* taps, const DepthwiseTileColumns& of) {
    constexpr int kVectors = (kTaps + 3) / 4;
    int phase = 0;
#pragma unroll 1
    for (int s = 0; s < of.width; ++s) {
        Words4 words[kVectors];
        float window[kTileRows + kTaps - 1];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) words[i] = reinterpret_cast<const Words4*>(taps)[i];
#pragma unroll
        for (int i = 0; i < kTileRows + kTaps - 1; ++i) window[i] = x[i];
#pragma unroll
        for (int r = 0; r < kTaps; ++r) {
            const float tap = bit_cast<float>(word(words[r / 4], r % 4));
#pragma unroll
            for (int q = 0; q < kTileRows; ++q) sums[q] = tap * window[q + r] + sums[q];
        }
        taps += of.taps_step;
        x += of.next;
        phase += of.phase_step;
        if (phase >= of.phases) phase -= of.phases, x += of.next_wraps;
    }
}

__global__ void HIPCONV_LAUNCH_BOUNDS(kTileThreads, kTileBlocks)
    conv2d_depthwise_by_tiles(HIPCONV_IN_PLACE const DepthwiseTileParams parameter) {
    HIPCONV_LARGE_SHARED(Words4, lds, kCopiesPastRegisters ? 1 : kTileLds / 16);
    let_next_kernel_begin();
    const DepthwiseTileParams& p = first_parameter_again(parameter);
    const DepthwiseTilePlace at(p, blockIdx.x);
    float* const tile = reinterpret_cast<float*>(lds);
    float* const filters = tile + p.filters_at;
    wait_for_kernel_before();
    with_dtype(p.conv.dtype, [&](auto type) {
        stage_taps<decltype(type)>(parameter, at, filters);
        if (p.step == 1)
            stage_tile<decltype(type), false>(parameter, at, tile);
        else
            stage_tile<decltype(type), true>(parameter, at, tile);
    });
    close_copies();
    wait_for_copies<0>();
    __syncthreads();
    const int columns = p.block_columns, block_filters = p.block_filters;
    const int items = p.row_groups * columns * block_filters;
#pragma unroll 1
    for (int item = static_cast<int>(threadIdx.x); item < items; item += kTileThreads) {
        const DepthwiseTileParams& again = first_parameter_again(parameter);
        const Conv2dParams& c = again.conv;
        int column, filter, group;
        if (again.across) {
            const int rest = divide(item, again.divide_by_block_filters);
            filter = item - rest * block_filters;
            group = divide(rest, again.divide_by_block_columns);
            column = rest - group * columns;
        } else {
            const int rest = divide(item, again.divide_by_block_columns);
            column = item - rest * columns;
            group = divide(rest, again.divide_by_block_filters);
            filter = rest - group * block_filters;
        }
        const int first_line = divide(group, again.divide_by_apart), in_apart = group - first_line * again.apart;
        const int row = at.row + in_apart + first_line * (kTileRows * again.apart);
        const int behind = at.row + again.block_rows < c.out_height ? at.row + again.block_rows : c.out_height;
        const int rows = divide(behind - row + again.apart - 1, again.divide_by_apart);
        const int channel = divide(filter, again.divide_by_multiplier);
        if (row >= behind || at.column + column >= c.out_width || at.first_channel + channel >= again.channels) continue;
        const uint32_t of_all =
            static_cast<uint32_t>(at.first_channel * static_cast<int>(again.divide_by_multiplier.value) + filter);
        const int images = static_cast<int>(divide(of_all, again.divide_by_filters));  // in front of that of a plane
        const int k = static_cast<int>(of_all) - images * c.out_channels, n = again.across ? at.image : images;
        const uint32_t bias_bits = load_bias_bits(c, k);
        const float* const x = tile + first_line * kTileRows + column * again.next_column + channel * again.channel_words;
        const float* const taps = filters + filter * again.filter_pitch;
        const DepthwiseTileColumns of{c.kernel_width,       again.next_tap,          again.next_tap_wraps,
                                      again.tap_phase_step, again.tap_phase_columns, again.tap_phases * again.tap_pitch};
        const int tap_phases = again.tap_phases, height = c.kernel_height;
        float sums[kTileRows] = {};
        int seen = in_apart * c.stride_h;
#pragma unroll 1
        for (int phase = 0; phase < tap_phases && phase < height; ++phase, seen += c.dilation_h) {
            const bool wraps = seen >= again.step;
            const float* of_phase = x + (wraps ? (seen - again.step) * again.phase_rows + 1 : seen * again.phase_rows);
            const float* of_taps = taps + phase * again.tap_pitch;
            int left = divide(height - phase + tap_phases - 1, again.divide_by_tap_phases);
#pragma unroll 1
            while (left > 0) {
                const int now = left > kTileTaps ? 8 : left;
                switch (now) {
                    case 1:
                        add_columns<1>(sums, of_phase, of_taps, of);
                        break;
                    case 2:
                        add_columns<2>(sums, of_phase, of_taps, of);
                        break;
                    case 3:
                        add_columns<3>(sums, of_phase, of_taps, of);
                        break;
                    case 4:
                        add_columns<4>(sums, of_phase, of_taps, of);
                        break;
                    case 5:
                        add_columns<5>(sums, of_phase, of_taps, of);
                        break;
                    case 6:
                        add_columns<6>(sums, of_phase, of_taps, of);
                        break;
                    case 7:
                        add_columns<7>(sums, of_phase, of_taps, of);
                        break;
                    case 8:
                        add_columns<8>(sums, of_phase, of_taps, of);
                        break;
                    case 9:
                        add_columns<9>(sums, of_phase, of_taps, of);
                        break;
                    case 10:
                        add_columns<10>(sums, of_phase, of_taps, of);
                        break;
                    default:
                        add_columns<11>(sums, of_phase, of_taps, of);
                        break;
                }
                left -= now, of_phase += now, of_taps += now;
            }
        }
        const DepthwiseTileParams& last = first_parameter_again(parameter);
        const float bias = last.conv.bias ? parameter_of(bias_bits, last.conv.bias_dtype) : 0.0f;
#pragma unroll
        for (int q = 0; q < kTileRows; ++q) sums[q] += bias;
        const auto place = [&](const ImageStrides& image) {
            return ColumnPlace{image.at(n, k, row, at.column + column), int64_t{last.apart} * image.row};
        };
        store_rows(last.conv, sums, rows, place(last.out), place(last.residual));
    }
}

}  // namespace hipconv
