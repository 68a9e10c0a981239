// Small convolutions (`wave_gemm`): the matrix product of an implicit GEMM by waves that read both operands from memory
// straight into the registers of the matrix instruction. A wave makes 16 pixels by 32 filters; the waves of a block make other
// pixels, or share each sum, whose parts they add up through LDS. One launch, no workspace, nothing repacked: it costs the
// latency of a few reads, where the tiles of the other GEMMs would be mostly padding.
#pragma once

#include "../gemm/epilogue.h"
#include "launch/check.h"
#include "matrix/chunk_mma.h"
#include "params.h"

namespace hipconv {

constexpr int kWaveGemmMostWaves = kWaveGemmMostThreads / kWaveSize;  // in the device pass

// A pixel of out: where its first tap lies in x.
struct WavePixel {
    int64_t offset;  // elements; it may lie outside x
    int row, column;
};

// The filters of a block: the first one, and the one behind those of its group.
struct WaveFilters {
    int first, end, group;

    HIPCONV_INLINE WaveFilters(const WaveGemmParams& p, int filter_block)
        : group(static_cast<int>(divide(filter_block, p.divide_by_group_blocks))) {
        first = group * p.group_filters + (filter_block - group * p.group_blocks) * kWaveGemmFilters;
        end = (group + 1) * p.group_filters;
    }
};

// This is where a lane's chunk lies: its tap and first channel, and their offsets from a pixel's and a filter's first element.
struct WaveCursor {
    int64_t x, filter;
    int row, column;  // of the tap, in x
    int s;            // the tap's column
    int channel;
    bool exists;
};

// Operands that are read one by one have a table in LDS, with these for every product.
struct WaveEntries {
    int32_t* x;
    int32_t* filter;
    int32_t* tap;  // row in the upper half, column in the lower one

    static HIPCONV_INLINE WaveEntries in(Words4* lds) {
        int32_t* const words = reinterpret_cast<int32_t*>(lds);
        return {words, words + kWaveGemmMostEntries, words + 2 * kWaveGemmMostEntries};
    }
};

HIPCONV_INLINE void write_entries(const WaveGemmParams& p, WaveEntries entries, int thread) {
    const Conv2dParams& c = p.conv;
    const int products = c.in_channels * c.kernel_height * c.kernel_width;
    for (int i = thread; i < products; i += static_cast<int>(blockDim.x)) {
        const int outer = static_cast<int>(divide(i, p.divide_by_inner));  // a channel's taps are inner, or a tap's channels
        const int inner = i - outer * (p.channels_first ? c.kernel_height * c.kernel_width : c.in_channels);
        const int channel = p.channels_first ? outer : inner, tap = p.channels_first ? inner : outer;
        const int r = static_cast<int>(divide(tap, p.divide_by_taps_across)), s = tap - r * c.kernel_width;
        const int row = r * c.dilation_h, column = s * c.dilation_w;
        entries.x[i] = static_cast<int32_t>(channel * c.x.channel_stride + row * c.x.row_stride + column * c.x.column_stride);
        entries.filter[i] =
            static_cast<int32_t>(channel * c.weight.channel_stride + r * c.weight.row_stride + s * c.weight.column_stride);
        entries.tap[i] = row << 16 | column;
    }
}

// A lane reads these for a step: chunks of its pixels, and of its filters.
template <typename A, int kAtoms>
struct WaveOperands {
    Words4 pixels[A::kRows][A::kChunks];
    Words4 filters[kAtoms][A::kRows][A::kChunks];
};

HIPCONV_INLINE Words4 only_if(bool wanted, Words4 words) {
#pragma unroll
    for (int w = 0; w < 4; ++w) set_word(words, w, wanted ? word(words, w) : 0u);
    return words;
}

template <typename A, WaveGemmRead kRead>
struct WaveReader {
    static constexpr int kAtoms = kWaveGemmFilters / 16;
    using Operands = WaveOperands<A, kAtoms>;

    const WaveGemmParams& p;
    const uint16_t* x;
    const uint16_t* weight;
    WaveEntries entries;
    WavePixel pixels[A::kRows];
    int64_t filters[kAtoms][A::kRows];  // offsets

    // Pixels and filters beyond the last are read as the last: what comes of them is not stored.
    HIPCONV_INLINE WaveReader(const WaveGemmParams& params, Words4* lds, int first_pixel, const WaveFilters& of, int lane)
        : p(params), x(global_pointer<const uint16_t>(params.conv.x.data) + of.group * params.group_distance),
          weight(global_pointer<const uint16_t>(params.conv.weight.data)), entries(WaveEntries::in(lds)) {
        const Conv2dParams& c = p.conv;
#pragma unroll
        for (int i = 0; i < A::kRows; ++i) {
            int number = first_pixel + A::row(lane, i);
            if (number >= p.pixels) number = p.pixels - 1;
            const OutPixel at = out_pixel(p, number);
            const int row = at.p * c.stride_h - c.pad_top, column = at.q * c.stride_w - c.pad_left;
            pixels[i] = {offset_in(c.x, at.n, 0, row, column), row, column};
#pragma unroll
            for (int j = 0; j < kAtoms; ++j) {
                int k = of.first + 16 * j + A::row(lane, i);
                if (k >= of.end) k = of.end - 1;
                filters[j][i] = k * c.weight.batch_stride;
            }
        }
    }

    HIPCONV_INLINE bool is_inside(const WavePixel& pixel, int row, int column) const {
        return !p.pads || (static_cast<uint32_t>(pixel.row + row) < static_cast<uint32_t>(p.conv.in_height) &&
                           static_cast<uint32_t>(pixel.column + column) < static_cast<uint32_t>(p.conv.in_width));
    }

    HIPCONV_INLINE WaveCursor cursor_at(int number) const {
        const Conv2dParams& c = p.conv;
        const int tap = static_cast<int>(divide(number, p.divide_by_tap_chunks));
        const int r = static_cast<int>(divide(tap, p.divide_by_taps_across)), s = tap - r * c.kernel_width;
        const int channel = (number - tap * p.tap_chunks) * kWaveGemmChunk;
        return {r * c.dilation_h * c.x.row_stride + s * c.dilation_w * c.x.column_stride + channel * c.x.channel_stride,
                r * c.weight.row_stride + s * c.weight.column_stride + channel,
                r * c.dilation_h,
                s * c.dilation_w,
                s,
                channel,
                number < p.chunks};
    }

    // Moves a cursor by so many chunks; `number` is that of its chunk then.
    HIPCONV_INLINE void advance(WaveCursor& at, int chunks, int number) const {
        const int tap_channels = p.tap_chunks * kWaveGemmChunk;
        at.exists = number < p.chunks;
        at.channel += chunks * kWaveGemmChunk;
        at.x += chunks * kWaveGemmChunk * p.conv.x.channel_stride;
        at.filter += chunks * kWaveGemmChunk;
        while (at.channel >= tap_channels && at.exists) {  // which is rare: its strides are not kept in registers
            const Conv2dParams& c = first_parameter_again(p).conv;
            at.channel -= tap_channels;
            at.x += c.dilation_w * c.x.column_stride - tap_channels * c.x.channel_stride;
            at.filter += c.weight.column_stride - tap_channels;
            at.column += c.dilation_w;
            if (++at.s < c.kernel_width) continue;
            at.s = 0;
            at.x += c.dilation_h * c.x.row_stride - at.column * c.x.column_stride;
            at.filter += c.weight.row_stride - c.kernel_width * c.weight.column_stride;
            at.row += c.dilation_h;
            at.column = 0;
        }
    }

    // An offset that is not wanted is that of the first element, which is always there.
    static HIPCONV_INLINE Words4 read_vector(const uint16_t* from, int64_t offset, bool wanted) {
        return only_if(wanted, *reinterpret_cast<const Words4*>(from + (wanted ? offset : 0)));
    }
    static HIPCONV_INLINE Words4 read_words(const uint16_t* from, int64_t offset, bool wanted, int count) {
        Words4 words{};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const bool exists = wanted && 2 * w < count;
            const uint32_t bits = *reinterpret_cast<const uint32_t*>(from + (exists ? offset + 2 * w : 0));
            set_word(words, w, exists ? bits : 0u);
        }
        return words;
    }
    static HIPCONV_INLINE Words4 read_planes(const uint16_t* from, int64_t offset, bool wanted, int64_t stride) {
        const uint16_t* at = from + (wanted ? offset : 0);
        uint32_t bits[kWaveGemmChunk];
#pragma unroll
        for (int i = 0; i < kWaveGemmChunk; ++i) {
            bits[i] = *at;
            at += stride;
        }
        Words4 words{};
#pragma unroll
        for (int w = 0; w < 4; ++w) set_word(words, w, wanted ? bits[2 * w] | bits[2 * w + 1] << 16 : 0u);
        return words;
    }

    // Reads the chunk of a cursor.
    HIPCONV_INLINE void load_chunk_at(Operands& to, const WaveCursor& at, int i_chunk) const {
        const int count = p.conv.in_channels - at.channel;
#pragma unroll
        for (int i = 0; i < A::kRows; ++i) {
            const bool inside = at.exists && is_inside(pixels[i], at.row, at.column);
            const int64_t offset = pixels[i].offset + at.x;
            if constexpr (kRead == WaveGemmRead::vectors)
                to.pixels[i][i_chunk] = read_vector(x, offset, inside);
            else if constexpr (kRead == WaveGemmRead::words)
                to.pixels[i][i_chunk] = read_words(x, offset, inside, count);
            else
                to.pixels[i][i_chunk] = read_planes(x, offset, inside, p.conv.x.channel_stride);
#pragma unroll
            for (int j = 0; j < kAtoms; ++j) {
                if constexpr (kRead == WaveGemmRead::words)
                    to.filters[j][i][i_chunk] = read_words(weight, filters[j][i] + at.filter, at.exists, count);
                else
                    to.filters[j][i][i_chunk] = read_vector(weight, filters[j][i] + at.filter, at.exists);
            }
        }
    }

    // Reads chunk `number` by the table.
    HIPCONV_INLINE void load_entries(Operands& to, int number, int i_chunk) const {
        const int products = p.conv.in_channels * p.conv.kernel_height * p.conv.kernel_width;
        const int first = number * kWaveGemmChunk;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            uint32_t of_pixels[A::kRows] = {}, of_filters[kAtoms][A::kRows] = {};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int at = first + 2 * w + half, entry = at < products ? at : 0, tap = entries.tap[entry];
                const bool exists = at < products;
#pragma unroll
                for (int i = 0; i < A::kRows; ++i) {
                    const bool inside = exists && is_inside(pixels[i], tap >> 16, tap & 0xffff);
                    const uint32_t bits = x[inside ? pixels[i].offset + entries.x[entry] : 0];
                    of_pixels[i] |= (inside ? bits : 0u) << 16 * half;
#pragma unroll
                    for (int j = 0; j < kAtoms; ++j) {
                        const uint32_t factor = weight[filters[j][i] + entries.filter[entry]];
                        of_filters[j][i] |= (exists ? factor : 0u) << 16 * half;
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < A::kRows; ++i) {
                set_word(to.pixels[i][i_chunk], w, of_pixels[i]);
#pragma unroll
                for (int j = 0; j < kAtoms; ++j) set_word(to.filters[j][i][i_chunk], w, of_filters[j][i]);
            }
        }
    }
};

// The steps of a wave, one after another, each `parts` behind the one before.
template <typename A, WaveGemmRead kRead>
struct WaveSteps {
    static constexpr bool kByCursor = kRead != WaveGemmRead::elements;
    const WaveReader<A, kRead>& reader;
    int step, parts, lane;
    WaveCursor cursors[A::kChunks];

    HIPCONV_INLINE WaveSteps(const WaveReader<A, kRead>& of, int first, int parts_of, int of_lane)
        : reader(of), step(first), parts(parts_of), lane(of_lane) {
        if constexpr (kByCursor) {
#pragma unroll
            for (int i = 0; i < A::kChunks; ++i) cursors[i] = reader.cursor_at(step * A::kStepChunks + A::chunk(lane, i));
        }
    }

    HIPCONV_INLINE void load_next(typename WaveReader<A, kRead>::Operands& to) {
#pragma unroll
        for (int i = 0; i < A::kChunks; ++i) {
            const int number = step * A::kStepChunks + A::chunk(lane, i), ahead = parts * A::kStepChunks;
            if constexpr (kByCursor) {
                reader.load_chunk_at(to, cursors[i], i);
                reader.advance(cursors[i], ahead, number + ahead);
            } else {
                reader.load_entries(to, number, i);
            }
        }
        step += parts;
    }
};

// Adds up the parts of kCount sums of which the first is at `from` and the others `step` apart. The block's waves have a row of
// LDS for each of their pixels: `rows` of each part.
template <int kCount>
HIPCONV_INLINE void add_wave_parts(float (&v)[kCount], const float* from, int step, int rows) {
    const int all_rows = static_cast<int>(blockDim.x) / kWaveSize * kWaveGemmPixels;
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = 0.0f;
#pragma unroll 4
    for (int first = 0; first < all_rows; first += rows) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) v[i] += from[first * kWaveGemmPitch + i * step];
    }
}

// Finishes and stores a block's sums, eight filters of a pixel at a time. `bias` has that of the block's filters.
HIPCONV_INLINE void store_wave_vectors(const WaveGemmParams& p, const float* sums, const float* bias, int first_pixel,
                                       const WaveFilters& of, int thread) {
    const Conv2dParams& c = p.conv;
    constexpr int kEach = 8, kUnits = kWaveGemmFilters / kEach;
    const int filters = of.end - of.first, rows = kWaveGemmPixels << p.log2_groups;
#pragma unroll 1
    for (int unit = thread; unit < rows * kUnits; unit += static_cast<int>(blockDim.x)) {
        const int row = unit / kUnits, filter = unit % kUnits * kEach;
        if (filter >= filters || first_pixel + row >= p.pixels) continue;
        const OutPixel at = out_pixel(p, first_pixel + row);
        const int64_t k = of.first + filter;
        float v[kEach], more[kEach];
        add_wave_parts(v, sums + row * kWaveGemmPitch + filter, 1, rows);
#pragma unroll
        for (int i = 0; i < kEach; ++i) v[i] += bias[filter + i];
        if (c.residual.data) {
            load_eight(more, c.residual.data, offset_in(c.residual, at.n, k, at.p, at.q), c.residual_dtype);
#pragma unroll
            for (int i = 0; i < kEach; ++i) v[i] += more[i];
        }
        activate_eight(v, c.activation);
        store_eight(v, c.out.data, offset_in(c.out, at.n, k, at.p, at.q), c.out_dtype);
    }
}

// The same one by one, two of a thread under way at once: a filter's, of pixels that lie apart, or the other way round.
HIPCONV_INLINE void store_wave_elements(const WaveGemmParams& p, const float* sums, const float* bias, int first_pixel,
                                        const WaveFilters& of, int thread) {
    constexpr int kAtOnce = 2;
    const Conv2dParams& c = p.conv;
    const int log2_rows = p.log2_groups + 4, rows = kWaveGemmPixels << p.log2_groups;
    const int threads = static_cast<int>(blockDim.x);
    const int own_row = p.along_filters ? thread / kWaveGemmFilters : thread & (rows - 1);
    const int own_filter = p.along_filters ? thread % kWaveGemmFilters : thread >> log2_rows;
    const int count = kWaveGemmFilters * rows / threads;  // of a thread: one, or an even number
    const int row_step = p.along_filters && count > 1 ? threads / kWaveGemmFilters : 0;
    const int filter_step = !p.along_filters && count > 1 ? threads >> log2_rows : 0;
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce) {
        float v[kAtOnce];
        int64_t out[kAtOnce];
        bool exists[kAtOnce];
        const int first_row = own_row + first * row_step, filter_of_first = own_filter + first * filter_step;
        if (first_pixel + first_row >= p.pixels) return;  // its other pixels lie behind
        add_wave_parts(v, sums + first_row * kWaveGemmPitch + filter_of_first, row_step * kWaveGemmPitch + filter_step, rows);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int64_t k = of.first + filter_of_first + i * filter_step;
            const int number = first_pixel + first_row + i * row_step;
            exists[i] = first + i < count && k < of.end && number < p.pixels;
            const OutPixel at = out_pixel(p, exists[i] ? number : 0);
            out[i] = offset_in(c.out, at.n, k, at.p, at.q);
            v[i] += bias[filter_of_first + i * filter_step];
            if (c.residual.data && exists[i])
                v[i] += load_parameter(global_pointer<void>(c.residual.data), offset_in(c.residual, at.n, k, at.p, at.q),
                                       c.residual_dtype);
        }
        with_activation(c.activation, [&](Conv2dActivation kind) {
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) v[i] = activate(v[i], kind);
        });
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (exists[i]) store_rounded(global_pointer<void>(c.out.data), out[i], c.out_dtype, v[i]);
    }
}

// Vectors of 16 bytes: the table, and later the sums with the bias behind them.
constexpr int kWaveGemmBias = kWaveGemmMostWaves * kWaveGemmPixels * kWaveGemmPitch;
HIPCONV_INLINE constexpr int wave_gemm_lds(WaveGemmRead read) {
    const int sums = (kWaveGemmBias + kWaveGemmFilters) / 4;
    const int entries = (3 * kWaveGemmMostEntries + 3) / 4;
    return read == WaveGemmRead::elements && entries > sums ? entries : sums;
}

// T is a 16-bit type; where kHalvesShareKernels, f16 stands for both.
template <typename T, WaveGemmRead kRead>
__global__ void HIPCONV_LAUNCH_BOUNDS(kWaveGemmMostThreads, 1)
    conv2d_wave_gemm(HIPCONV_IN_PLACE const WaveGemmParams parameter) {
    constexpr bool kIsLegal = matrix_unit_of<T>() != MatrixUnit::fma;
    HIPCONV_SHARED(Words4, lds, kIsLegal ? wave_gemm_lds(kRead) : 1);
    let_next_kernel_begin();
    if constexpr (kIsLegal) {
        using A = WaveAtom<matrix_unit_of<T>(), T>;
        using Reader = WaveReader<A, kRead>;
        constexpr int kElements = sizeof(typename A::Sums) / sizeof(float);
        const WaveGemmParams& p = first_parameter_again(parameter);
        const int thread = threadIdx.x, wave = thread / kWaveSize, lane = thread % kWaveSize;
        const int pixel_block = static_cast<int>(divide(blockIdx.x, p.divide_by_filter_blocks));
        const int filter_block = static_cast<int>(blockIdx.x) - pixel_block * p.filter_blocks;
        const int first_pixel = pixel_block * (kWaveGemmPixels << p.log2_groups);
        const WaveFilters of(p, filter_block);

        if constexpr (kRead == WaveGemmRead::elements) {
            write_entries(p, WaveEntries::in(lds), thread);
            __syncthreads();
        }
        const int part = wave >> p.log2_groups,
                  parts = (static_cast<int>(blockDim.x) / kWaveSize) >> p.log2_groups;  // of a sum
        const int group = wave - (part << p.log2_groups);
        const Reader reader(p, lds, first_pixel + group * kWaveGemmPixels, of, lane);
        typename A::Sums sums[Reader::kAtoms];
#pragma unroll
        for (int j = 0; j < Reader::kAtoms; ++j)
#pragma unroll
            for (int e = 0; e < kElements; ++e) sums[j][e] = 0.0f;

        const auto multiply = [&](const typename Reader::Operands& operands) {
#pragma unroll
            for (int j = 0; j < Reader::kAtoms; ++j) {
                with_halves<T>(p.conv.dtype, [&](auto like) {
                    WaveAtom<matrix_unit_of<decltype(like)>(), decltype(like)>::multiply_chunks(sums[j], operands.pixels,
                                                                                                operands.filters[j]);
                });
            }
        };
        WaveSteps<A, kRead> steps(reader, part, parts, lane);
        wait_for_kernel_before();
        const bool has_bias = p.conv.bias && thread < kWaveGemmFilters && of.first + thread < of.end;
        uint32_t bias_bits = 0;
        if (has_bias) bias_bits = load_parameter_bits(p.conv.bias, (of.first + thread) * p.conv.bias_stride, p.conv.bias_dtype);
        // Steps come in pairs, whose reads are under way together.
        const int end = (p.chunks + A::kStepChunks - 1) / A::kStepChunks;
#pragma unroll 1
        while (steps.step + parts < end) {
            typename Reader::Operands first, second;
            steps.load_next(first);
            steps.load_next(second);
            multiply(first);
            multiply(second);
        }
        if (steps.step < end) {
            typename Reader::Operands last;
            steps.load_next(last);
            multiply(last);
        }

        float* const floats = reinterpret_cast<float*>(lds);
        if constexpr (kRead == WaveGemmRead::elements) __syncthreads();  // the table is read
#pragma unroll
        for (int j = 0; j < Reader::kAtoms; ++j)
#pragma unroll
            for (int e = 0; e < kElements; ++e)
                floats[(wave * kWaveGemmPixels + A::pixel(lane, e)) * kWaveGemmPitch + 16 * j + A::filter(lane, e)] =
                    sums[j][e];
        float* const bias = floats + kWaveGemmBias;
        if (thread < kWaveGemmFilters) bias[thread] = has_bias ? parameter_of(bias_bits, p.conv.bias_dtype) : 0.0f;
        __syncthreads();
        if (p.vector_stores)
            store_wave_vectors(p, floats, bias, first_pixel, of, thread);
        else
            store_wave_elements(p, floats, bias, first_pixel, of, thread);
    }
}

}  // namespace hipconv
