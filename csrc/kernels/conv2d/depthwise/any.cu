// Depthwise conv2d of any filter, stride, dilation and padding, of images whose channels are not the densest ("any").
//
// Lanes lie along the columns of a row. A thread makes kAnyRows outputs of a column and a channel. Where the dilation is a
// multiple of the stride, they are so far apart that the rows which a tap sees are those that another tap sees, one output on:
// a window of kAnyRows rows slides down a column of x, and a tap costs one row, loaded and turned into a float once. Else the
// taps of a row follow each other, as they find the same sectors of memory in the first cache. A row of outputs alone, by
// filters of one row, is folded: a thread has outputs that lie a part of the row apart.
#include <hip/hip_runtime.h>

#include "../common/column_store.h"
#include "kernels.h"
#include "launch/check.h"
#include "launch/division.h"

namespace hipconv {
namespace {

constexpr int kAnyRows = 8;  // of outputs, of a thread

struct AnyParams {
    DepthwiseParams all;
    bool slides;          // outputs of a thread share rows of x
    int32_t apart;        // rows from one output of a thread to the next
    int32_t step;         // rows of x from one place of the window to the next
    int32_t row_columns;  // columns of x from one row of a folded row to the next
};

// The way in which the outputs of a thread see x.
enum class AnyWay {
    slides,   // rows of x are shared: a window slides down
    spreads,  // no row of x is shared
    folds,    // the image is a folded row
};

// An element of x, or a zero.
template <typename T>
HIPCONV_INLINE T element_if(bool exists, const char* from) {
    T value{};
    if (exists) value = *global_pointer<const T>(from);
    return value;
}

// Filters have kHeight rows; 0: the call says how many.
template <typename T, AnyWay kWay, int kHeight = 0>
__global__ void HIPCONV_LAUNCH_BOUNDS(kDepthwiseThreads, 6) conv2d_depthwise_any(AnyParams p) {
    constexpr int kRows = kAnyRows;
    constexpr int64_t kBytes = sizeof(T);
    for (uint64_t block = blockIdx.x; block < p.all.blocks; block += gridDim.x) {
        const DepthwiseParams& all = first_parameter_again(p).all;
        const Conv2dParams& c = all.conv;
        const auto at = depthwise_place(all, block, threadIdx.x);
        if (!at.has_work) continue;
        const int k = at.unit, column = at.tile, of_apart = at.segment / p.apart;
        const int row = of_apart * p.apart * kRows + at.segment - of_apart * p.apart;
        int rows = (c.out_height - row + p.apart - 1) / p.apart;  // of outputs, if there are so many
        if (kWay == AnyWay::folds && column + (c.out_height - 1) * all.tiles >= c.out_width) --rows;
        if (rows <= 0) continue;
        const char* const image = static_cast<const char*>(c.x.data) +
                                  (at.batch * c.x.batch_stride + int64_t{k / all.multiplier} * c.x.channel_stride) * kBytes;
        const char* const filter = static_cast<const char*>(c.weight.data) + k * c.weight.batch_stride * kBytes;
        const int64_t next_tap = c.weight.row_stride * kBytes, next_taps = c.weight.column_stride * kBytes;
        const int64_t pitch = c.x.row_stride * kBytes, column_pitch = c.x.column_stride * kBytes;
        const int height = c.kernel_height, width = c.kernel_width, in_height = c.in_height, in_width = c.in_width;
        const int step = p.step, dilation = c.dilation_h;
        const int64_t step_pitch = kWay == AnyWay::folds ? p.row_columns * column_pitch : step * pitch;
        const int first_row = row * c.stride_h - c.pad_top, first_column = column * c.stride_w - c.pad_left;
        const PaddingMode mode = c.padding_mode;
        float sums[kRows];
        const float bias = c.bias ? load_parameter(global_pointer<void>(c.bias), k * c.bias_stride, c.bias_dtype) : 0.0f;
#pragma unroll
        for (int q = 0; q < kRows; ++q) sums[q] = bias;
        const auto tap_at = [](const char* from) { return to_float(*global_pointer<const T>(from)); };
        const auto is_inside = [](int at, int size) { return static_cast<uint32_t>(at) < static_cast<uint32_t>(size); };
        const int last_row = first_row + (kRows - 1) * step + (height - 1) * dilation, next_column = c.dilation_w;
        const int64_t next_columns = next_column * column_pitch;
        const char* const first_of_image = image + first_column * column_pitch;
        // Finds the column of x that a tap sees; false if that is zeros. `from` is where it would be inside the image.
        const auto find_column = [&](int z, const char*& from) {
            if (is_inside(z, in_width)) return true;
            if (mode == PaddingMode::zeros) return false;
            const int64_t place = padded_index(z, in_width, mode);
            from = image + place * column_pitch;
            return place >= 0 && place < in_width;  // or there is no such output
        };
        int z = first_column;
        if constexpr (kWay == AnyWay::folds) {
            const char *taps = filter, *columns = first_of_image;
            for (int s = 0; s < width; ++s) {
                const float tap = tap_at(taps);
                const char* from = columns;
                int of_row = z;
#pragma unroll
                for (int q = 0; q < kRows; ++q) {
                    sums[q] = tap * to_float(element_if<T>(is_inside(of_row, in_width), from)) + sums[q];
                    of_row += p.row_columns;
                    from += step_pitch;
                }
                taps += next_taps;
                columns += next_columns;
                z += next_column;
            }
        } else if (mode != PaddingMode::zeros && (first_row < 0 || last_row >= in_height)) {
            for (int s = 0; s < width; ++s, z += next_column) {
                const char* columns = image + z * column_pitch;
                if (!find_column(z, columns)) continue;
                for (int r = 0; r < height; ++r) {
                    const float tap = tap_at(filter + r * next_tap + s * next_taps);
#pragma unroll
                    for (int q = 0; q < kRows; ++q) {
                        const int64_t line = padded_index(first_row + r * dilation + q * step, in_height, mode);
                        const bool exists = line >= 0 && line < in_height;  // or there is no such output
                        sums[q] = tap * to_float(element_if<T>(exists, columns + line * pitch)) + sums[q];
                    }
                }
            }
        } else if constexpr (kWay == AnyWay::spreads) {
            int first_y = first_row;
            for (int r = 0; r < height; ++r, first_y += dilation) {
                const char *taps = filter + r * next_tap, *columns = first_of_image;
                const int64_t down = first_y * pitch;
                z = first_column;
                for (int s = 0; s < width; ++s) {
                    const char* from = columns;
                    if (find_column(z, from)) {
                        const float tap = tap_at(taps);
                        int y = first_y;
                        from += down;
#pragma unroll
                        for (int q = 0; q < kRows; ++q) {
                            sums[q] = tap * to_float(element_if<T>(is_inside(y, in_height), from)) + sums[q];
                            y += step;
                            from += step_pitch;
                        }
                    }
                    taps += next_taps;
                    columns += next_columns;
                    z += next_column;
                }
            }
        } else {
            const char* columns = first_of_image;
            const int64_t down = first_row * pitch;
            for (int s = 0; s < width; ++s, z += next_column, columns += next_columns) {
                const char* from = columns;
                if (!find_column(z, from)) continue;
                const char* taps = filter + s * next_taps;
                int y = first_row;
                from += down;
                const auto next_row = [&](bool wanted) {
                    const T value = element_if<T>(wanted && is_inside(y, in_height), from);
                    y += step;
                    from += step_pitch;
                    return value;
                };
                if constexpr (kHeight > 0) {
                    T loaded[kRows + kHeight - 1];
#pragma unroll
                    for (int i = 0; i < kRows + kHeight - 1; ++i) loaded[i] = next_row(true);
#pragma unroll
                    for (int r = 0; r < kHeight; ++r) {
                        const float tap = tap_at(taps + r * next_tap);
#pragma unroll
                        for (int q = 0; q < kRows; ++q) sums[q] = tap * to_float(loaded[q + r]) + sums[q];
                    }
                    continue;
                }
                float window[kRows];
                T loaded[kRows];
#pragma unroll
                for (int q = 0; q < kRows; ++q) loaded[q] = next_row(true);
#pragma unroll
                for (int q = 0; q + 1 < kRows; ++q) window[q] = to_float(loaded[q]);
                T next = loaded[kRows - 1];
                int r = 0;
                for (bool is_done = false; !is_done;) {
#pragma unroll
                    for (int u = 0; u < kRows; ++u) {
                        if (is_done) continue;
                        window[(u + kRows - 1) % kRows] = to_float(next);
                        const float tap = tap_at(taps);
                        taps += next_tap;
                        is_done = ++r >= height;
                        next = next_row(!is_done);
#pragma unroll
                        for (int q = 0; q < kRows; ++q) sums[q] = tap * window[(u + q) % kRows] + sums[q];
                    }
                }
            }
        }
        const AnyParams& again = first_parameter_again(p);
        const Conv2dParams& call = again.all.conv;
        const auto place = [&](const Image& image) {
            return ColumnPlace{offset_in(image, at.batch, k, row, column), again.apart * image.row_stride};
        };
        store_rows(call, sums, rows, place(call.out), place(call.residual));
    }
}

// ---- the launch -------------------------------------------------------------------------------------------------------------

AnyParams plan_any(const Conv2dParams& conv) {
    AnyParams p{};
    Conv2dParams c = conv;
    const bool folds = c.padding_mode == PaddingMode::zeros && c.out_height == 1 && c.kernel_height == 1 && c.pad_top == 0 &&
                       c.out_width > kDepthwiseThreads;
    int32_t columns = c.out_width;
    if (folds) {
        columns = static_cast<int32_t>(round_up(ceil_of(c.out_width, kAnyRows), 32));
        p.row_columns = columns * c.stride_w;
        c.out_height = static_cast<int32_t>(ceil_of(c.out_width, columns));
        c.stride_h = 1;
        for (Image* image : {&c.out, &c.residual}) image->row_stride = columns * image->column_stride;
    }
    // Rows are shared where the dilation is a multiple of the stride, if an image has room for half of a thread's outputs.
    const int32_t apart = c.dilation_h / c.stride_h;
    p.slides = c.kernel_height > 1 && c.dilation_h % c.stride_h == 0 && 2 * ceil_of(c.out_height, apart) >= kAnyRows;
    p.apart = p.slides ? apart : 1;
    p.step = c.stride_h * p.apart;
    p.all = depthwise_blocks(c, false, 1, 1, 1);
    p.all.tiles = columns;
    const int32_t each = kAnyRows * p.apart;
    cut_places(p.all, (c.out_height + each - 1) / each * p.apart);
    return p;
}

}  // namespace

bool depthwise_any_serves(const Conv2dParams& c) { return depthwise_counts_in_32_bits(c); }

void depthwise_any(const Conv2dParams& conv, void* stream) {
    const AnyParams p = plan_any(conv);
    with_dtype(conv.dtype, [&](auto type) {
        using T = decltype(type);
        const int height = p.all.conv.kernel_height;
        const auto any = p.row_columns > 0 ? conv2d_depthwise_any<T, AnyWay::folds>
                         : !p.slides       ? conv2d_depthwise_any<T, AnyWay::spreads>
                         : height == 3     ? conv2d_depthwise_any<T, AnyWay::slides, 3>
                         : height == 5     ? conv2d_depthwise_any<T, AnyWay::slides, 5>
                         : height == 7     ? conv2d_depthwise_any<T, AnyWay::slides, 7>
                                           : conv2d_depthwise_any<T, AnyWay::slides>;
        hipLaunchKernelGGL(any, dim3(depthwise_grid(p.all), 1, 1), dim3(kDepthwiseThreads, 1, 1), 0,
                           static_cast<hipStream_t>(stream), p);
    });
    check_launch("conv2d");
}

}  // namespace hipconv
