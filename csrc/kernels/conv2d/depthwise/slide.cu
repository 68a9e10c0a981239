// Depthwise conv2d of images whose channels are the densest (channels_last) and vectors of four, by filters of any size, stride
// and dilation, with zeros around the image ("slide").
//
// A thread makes kColumns outputs of a row and of four channels, which one access brings. Its outputs are so far apart that
// the columns which a tap sees are those that another tap sees, one output on: so a window of kColumns columns slides along a
// row of x, and a tap costs one column, loaded and turned into floats once. Where the stride has a factor that the dilation
// lacks, taps fall into as many `phases`, which share no column and take their turns. Filters pass through LDS, all at once if
// they have room. Where it is cheaper the window slides along columns of x: then the image is turned on its side.
#include <hip/hip_runtime.h>

#include "../common/axes.h"
#include "../common/epilogue.h"
#include "kernels.h"
#include "launch/check.h"
#include "launch/compute_units.h"
#include "store.h"

namespace hipconv {

namespace {

constexpr int kQuad = 4;            // channels of a thread: a unit
constexpr int kSlideVectors = 640;  // of four floats, in LDS: 71 taps of 32 channels

struct SlideParams {
    DepthwiseParams all;
    int32_t phases;        // of taps that share columns of x with no other phase
    int32_t apart;         // columns from one output of a thread to the next
    int32_t step;          // columns of x from one place of the window to the next
    int32_t taps_at_once;  // in LDS
    bool taps_in_a_row;    // a filter's rows follow one another without a gap
};

constexpr int slide_blocks(int columns) { return columns == 8 ? 4 : 6; }

// Loads four channels of column z of a row, which begins at `line` and has it `at`; zeros where the column is outside the image
// or not `wanted`.
template <typename T>
HIPCONV_INLINE Words<T, kQuad> load_quad(const Conv2dParams& c, const char* line, const char* at, int32_t z, bool wanted) {
    using Vector = Words<T, kQuad>;
    Vector words{};
    const bool inside = wanted && static_cast<uint32_t>(z) < static_cast<uint32_t>(c.in_width);
    if constexpr (kHasPredicates) {
        if (inside) words = *global_pointer<const Vector>(at);
    } else {
        const Vector loaded = *global_pointer<const Vector>(inside ? at : line);
        words = inside ? loaded : words;
    }
    return words;
}

// Brings taps `first` to `first` + `count` - 1 of the block's filters to LDS, as vectors of four channels in the order of taps.
template <typename T>
HIPCONV_INLINE void stage_quads(Words4* lds, const SlideParams& parameter, const DepthwisePlace& at, int first, int count,
                                int pitch) {
    const SlideParams& p = first_parameter_again(parameter);
    const Conv2dParams& c = p.all.conv;
    const T* const weights = global_pointer<const T>(c.weight.data);
    float* const filters = reinterpret_cast<float*>(lds);
    // A thread's places follow one another at a distance, which is divided once for all of them.
    struct Place {
        int channel, tap;
    };
    const int thread = static_cast<int>(threadIdx.x), skipped = kDepthwiseThreads / count;
    const int channels = static_cast<int>(at.block_units) * kQuad;
    Place to_load{thread / count, thread % count}, to_store = to_load;
    const auto advance = [&](Place& place) {
        place.channel += skipped, place.tap += kDepthwiseThreads - skipped * count;
        if (place.tap >= count) place.tap -= count, ++place.channel;
    };
    constexpr int kAtOnce = 4;  // under way together
    while (to_load.channel < channels) {
        T loaded[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int channel = to_load.channel < channels ? to_load.channel : channels - 1, tap = first + to_load.tap;
            const int all = at.first_of_image * kQuad + channel, k = all < c.out_channels ? all : c.out_channels - 1;
            const int r = p.taps_in_a_row ? 0 : tap / c.kernel_width, s = tap - r * c.kernel_width;
            loaded[i] = weights[offset_in(c.weight, k, 0, r, s)];
            advance(to_load);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (to_store.channel < channels) filters[to_store.tap * pitch * kQuad + to_store.channel] = to_float(loaded[i]);
            advance(to_store);
        }
    }
}

// Finishes and stores the outputs of a row, whose bias is added already.
template <int kColumns>
HIPCONV_INLINE void store_quads(const SlideParams& parameter, Pair (&v)[2 * kColumns], int n, int k, int row, int column) {
    const SlideParams& p = first_parameter_again(parameter);
    const Conv2dParams& c = p.all.conv;
    const int channels = c.out_channels - k < kQuad ? c.out_channels - k : kQuad;
    const int columns = (c.out_width - column + p.apart - 1) / p.apart;
    if (p.all.has_residual) {
        const int64_t first = offset_in(c.residual, n, k, row, column);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            if (i >= columns) continue;
            float of[kQuad] = {low(v[2 * i]), high(v[2 * i]), low(v[2 * i + 1]), high(v[2 * i + 1])};
            const int64_t at = first + i * p.apart * c.residual.column_stride;
            add_each(of, channels, c.residual.data, at, c.residual.channel_stride, c.residual_dtype);
            v[2 * i] = make_pair(of[0], of[1]);
            v[2 * i + 1] = make_pair(of[2], of[3]);
        }
    }
    if (c.activation != Conv2dActivation::none) activate_pairs(v, c.activation);
    if (c.dtype == DType::f32 && c.out_dtype != DType::f32) {  // whose NaN may have its bits where rounding would lose them
#pragma unroll
        for (int i = 0; i < 2 * kColumns; ++i) v[i] = make_pair(canonical_nan(low(v[i])), canonical_nan(high(v[i])));
    }
    with_dtype(c.out_dtype, [&](auto type) {
        using T = decltype(type);
        T* const out = global_pointer<T>(c.out.data) + offset_in(c.out, n, k, row, column);
        const int64_t next = p.apart * c.out.column_stride;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            if (i >= columns) continue;
            if (p.all.out_by_vectors) {
                Words<T, kQuad> words{};
                set_pair<T>(words, 0, v[2 * i]);
                set_pair<T>(words, 1, v[2 * i + 1]);
                *global_pointer<Words<T, kQuad>>(out + i * next) = words;
                continue;
            }
            const float each[kQuad] = {low(v[2 * i]), high(v[2 * i]), low(v[2 * i + 1]), high(v[2 * i + 1])};
#pragma unroll
            for (int j = 0; j < kQuad; ++j)
                if (j < channels) out[i * next + j * c.out.channel_stride] = from_float<T>(each[j]);
        }
    });
}

template <typename T, int kColumns>
__global__ void HIPCONV_LAUNCH_BOUNDS(kDepthwiseThreads, slide_blocks(kColumns)) conv2d_depthwise_slide(SlideParams p) {
    HIPCONV_SHARED(Words4, lds, kSlideVectors);
    const int taps = p.all.conv.kernel_height * p.all.conv.kernel_width, pitch = static_cast<int>(p.all.block_units) + 1;
    for (uint64_t block = blockIdx.x; block < p.all.blocks; block += gridDim.x) {
        const DepthwiseParams& all = first_parameter_again(p).all;
        const auto at = depthwise_place(all, block, threadIdx.x);
        const int k = at.unit * kQuad, apart = p.apart, of_apart = at.tile / apart;
        const int column = of_apart * apart * kColumns + at.tile - of_apart * apart;
        const char* image = nullptr;
        Pair bias[2] = {};
        if (at.has_work) {
            const Conv2dParams& c = all.conv;
            image = static_cast<const char*>(c.x.data) +
                    (at.batch * c.x.batch_stride + k * c.x.channel_stride) * static_cast<int64_t>(sizeof(T));
            if (c.bias) {
                float of[kQuad];
#pragma unroll
                for (int i = 0; i < kQuad; ++i)
                    of[i] = load_parameter(global_pointer<void>(c.bias), (k + i) * c.bias_stride, c.bias_dtype);
                bias[0] = make_pair(of[0], of[1]), bias[1] = make_pair(of[2], of[3]);
            }
        }
        for (int i = 0; i < p.all.segment_rows; ++i) {
            const int row = at.segment * p.all.segment_rows + i;
            const bool has_work = at.has_work && row < p.all.conv.out_height;
            Pair sums[2 * kColumns];
#pragma unroll
            for (int j = 0; j < 2 * kColumns; ++j) sums[j] = bias[j % 2];
            for (int first = 0; first < taps; first += p.taps_at_once) {
                const int behind = first + p.taps_at_once < taps ? first + p.taps_at_once : taps;
                if (i == 0 || p.taps_at_once < taps) {
                    __syncthreads();
                    stage_quads<T>(lds, p, at, first, behind - first, pitch);
                    __syncthreads();
                }
                if (!has_work) continue;
                const Conv2dParams& c = first_parameter_again(p).all.conv;
                const int64_t bytes = c.x.column_stride * static_cast<int64_t>(sizeof(T)), step_bytes = p.step * bytes;
                const int phases = p.phases, step = p.step;
                // The taps of a row of the filter, from one of a phase on.
                const auto slide = [&](const char* line, int s, int end, const Words4* filter) {
                    int z = column * c.stride_w - c.pad_left + s * c.dilation_w;
                    const char* x = line + z * bytes;
                    const auto load = [&](bool wanted) {
                        const auto words = load_quad<T>(c, line, x, z, wanted);
                        z += step, x += step_bytes;
                        return words;
                    };
                    Pair window[kColumns][2];
                    const auto fill = [&](int place, const Words<T, kQuad>& words) {
                        window[place][0] = pair_of<T>(words, 0), window[place][1] = pair_of<T>(words, 1);
                    };
#pragma unroll
                    for (int q = 0; q + 1 < kColumns; ++q) fill(q, load(true));
                    auto next = load(true);
                    for (;;) {
#pragma unroll
                        for (int u = 0; u < kColumns; ++u) {
                            fill((u + kColumns - 1) % kColumns, next);
                            const Words4 weights = *filter;
                            const Pair w[2] = {pair_of<float>(weights, 0), pair_of<float>(weights, 1)};
                            s += phases;
                            next = load(s < end);
#pragma unroll
                            for (int q = 0; q < kColumns; ++q) {
                                const auto& x = window[(u + q) % kColumns];
                                sums[2 * q] = multiply_add(w[0], x[0], sums[2 * q]);
                                sums[2 * q + 1] = multiply_add(w[1], x[1], sums[2 * q + 1]);
                            }
                            if (s >= end) return;
                            filter += phases * pitch;
                        }
                    }
                };
                int r = first / c.kernel_width, s = first - r * c.kernel_width;
                for (int tap = first; tap < behind; s = 0, ++r) {
                    const int end = c.kernel_width - s < behind - tap ? c.kernel_width : s + behind - tap;
                    const int64_t y = int64_t{row} * c.stride_h - c.pad_top + int64_t{r} * c.dilation_h;
                    const Words4* const filter = lds + (tap - first) * pitch + at.of_block;
                    const char* const line = image + y * c.x.row_stride * static_cast<int64_t>(sizeof(T));
                    if (y >= 0 && y < c.in_height)
                        for (int phase = 0; phase < phases && s + phase < end; ++phase)
                            slide(line, s + phase, end, filter + phase * pitch);
                    tap += end - s;
                }
            }
            if (has_work) store_quads<kColumns>(p, sums, at.batch, k, row, column);
        }
    }
}

// ---- the launch -------------------------------------------------------------------------------------------------------------

// Plans a call with `columns` outputs a thread, and estimates its cycles.
SlideParams slide_plan(const Conv2dParams& c, int columns, int64_t compute_units, double& cycles) {
    SlideParams p{};
    const GridAxis axis(c.stride_w, c.dilation_w);
    p.phases = axis.step, p.apart = axis.apart, p.step = c.stride_w * p.apart;
    const int taps = c.kernel_height * c.kernel_width;
    p.all = depthwise_blocks(c, true, kQuad, 1, 1);
    const int32_t each = columns * p.apart;
    p.all.tiles = (c.out_width + each - 1) / each * p.apart;
    uint32_t most = kMostUnits;
    while (most > 8 && (most + 1) * static_cast<uint32_t>(taps) > kSlideVectors) most /= 2;
    p.all.block_units = depthwise_block_units(static_cast<uint32_t>(p.all.units), most);
    p.all.unit_blocks = (static_cast<uint32_t>(p.all.units) + p.all.block_units - 1) / p.all.block_units;
    const int room = kSlideVectors / static_cast<int>(p.all.block_units + 1);
    p.taps_at_once = taps < room ? taps : room;
    p.taps_in_a_row = c.weight.row_stride == c.kernel_width * c.weight.column_stride;
    p.all.out_by_vectors = columns_are_vectors(c.out, c.out_channels, kQuad, element_bytes(c.out_dtype));
    // Instructions: of a column that is loaded, and of a tap; of a row of outputs; of a block's filters.
    const double loads = double(c.kernel_height) * (double(p.phases) * (columns - 1) + c.kernel_width);
    const double row = 10 * loads + double(taps) * (kQuad * columns + 6) + 12 * columns + 20 * c.kernel_height;
    const double filters = 14.0 * taps * p.all.block_units * kQuad / kDepthwiseThreads + 300;
    const double resident = slide_blocks(columns);
    int32_t best = 1;
    for (int32_t rows = 1; rows <= 16 && rows <= c.out_height; rows *= 2) {
        if (rows > 1 && p.taps_at_once < taps) break;
        cut_segments(p.all, rows);
        const double a_unit = double(p.all.blocks) / double(compute_units);
        const double together = a_unit < 1 ? 1 : a_unit < resident ? a_unit : resident;
        const double rounds = a_unit / resident > 6 ? a_unit / resident + 0.5 : double(int64_t(a_unit / resident + 0.97));
        const double block = filters + rows * row;
        const double time = (rounds < 1 ? 1 : rounds) * (1000 + block * (together + 2.5));
        if (rows == 1 || time < 0.97 * cycles) cycles = time, best = rows;
    }
    cut_segments(p.all, best);
    return p;
}

}  // namespace

bool depthwise_slide_serves(const Conv2dParams& c) {
    return depthwise_lies_across(c) && depthwise_counts_in_32_bits(c) && c.out_channels == c.in_channels &&
           columns_are_vectors(c.x, c.in_channels, kQuad, element_bytes(c.dtype)) && c.padding_mode == PaddingMode::zeros;
}

void depthwise_slide(const Conv2dParams& conv, void* stream) {
    const int64_t units = compute_units_here();
    SlideParams p{};
    int columns = 0;
    double least = 0;
    for (const Conv2dParams& c : {conv, turned(conv)})
        for (int of_thread : {4, 8}) {
            double cycles = 0;
            const SlideParams plan = slide_plan(c, of_thread, units, cycles);
            if (columns != 0 && cycles >= least) continue;
            p = plan, columns = of_thread, least = cycles;
        }
    const dim3 grid(depthwise_grid(p.all), 1, 1);
    with_dtype(conv.dtype, [&](auto type) {
        using T = decltype(type);
        const auto slide = columns == 8 ? conv2d_depthwise_slide<T, 8> : conv2d_depthwise_slide<T, 4>;
        hipLaunchKernelGGL(slide, grid, dim3(kDepthwiseThreads, 1, 1), 0, static_cast<hipStream_t>(stream), p);
    });
    check_launch("conv2d");
}

}  // namespace hipconv
