// Winograd's output transform: Y = At m A of each tile and filter, with the powers of two taken back; then bias, residual and
// activation, and one rounding.
#include <hip/hip_runtime.h>

#include "../gemm/epilogue.h"
#include "launch/check.h"
#include "params.h"
#include "transforms.h"

namespace hipconv {

// Two neighbouring elements of a type known at run time.
HIPCONV_INLINE Pair load_two(const void* base, int64_t index, DType dtype) {
    if (dtype == DType::f32) return pair_of<float>(*global_pointer<const Words2>(static_cast<const float*>(base) + index), 0);
    const uint32_t both = *global_pointer<const uint32_t>(static_cast<const uint16_t*>(base) + index);
    return dtype == DType::bf16 ? unpack<bf16>(both) : unpack<f16>(both);
}

HIPCONV_INLINE void store_two(void* base, int64_t index, DType dtype, float first, float second) {
    const Pair both = make_pair(canonical_nan(first), canonical_nan(second));
    if (dtype == DType::f32) {
        Words2 words{};
        set_pair<float>(words, 0, both);
        *global_pointer<Words2>(static_cast<float*>(base) + index) = words;
        return;
    }
    *global_pointer<uint32_t>(static_cast<uint16_t*>(base) + index) = dtype == DType::bf16 ? pack<bf16>(both) : pack<f16>(both);
}

// Finishes and stores four pixels of two filters: kColumns of them in each row.
template <int kColumns>
HIPCONV_INLINE void store_pixels(const WinogradOutputParams& p, const WinogradTile& tile, int filter, int row, int column,
                                 const Pair(&bias), float (&v)[8]) {
    const Conv2dParams& c = p.conv;
    const int64_t more = filter + 1 < c.out_channels ? c.residual.channel_stride : 0;
    bool is_inside[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int at_row = row + i / kColumns, at_column = column + i % kColumns;
        is_inside[i] = at_row < c.out_height && at_column < c.out_width;
        v[2 * i] += low(bias);
        v[2 * i + 1] += high(bias);
        if (!c.residual.data || !is_inside[i]) continue;
        const int64_t offset = offset_in(c.residual, tile.image, filter, at_row, at_column);
        if (p.by_pairs) {
            const Pair two = load_two(c.residual.data, offset, c.residual_dtype);
            v[2 * i] += low(two);
            v[2 * i + 1] += high(two);
        } else {
            v[2 * i] += load_parameter(global_pointer<void>(c.residual.data), offset, c.residual_dtype);
            v[2 * i + 1] += load_parameter(global_pointer<void>(c.residual.data), offset + more, c.residual_dtype);
        }
    }
    activate_eight(v, c.activation);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (!is_inside[i]) continue;
        const int64_t offset = offset_in(c.out, tile.image, filter, row + i / kColumns, column + i % kColumns);
        if (p.by_pairs) {
            store_two(c.out.data, offset, c.out_dtype, v[2 * i], v[2 * i + 1]);
        } else {
            store_rounded(global_pointer<void>(c.out.data), offset, c.out_dtype, v[2 * i]);
            if (filter + 1 < c.out_channels)
                store_rounded(global_pointer<void>(c.out.data), offset + c.out.channel_stride, c.out_dtype, v[2 * i + 1]);
        }
    }
}

// A thread has a tile and two filters.
template <int kOutputs>
__global__ void HIPCONV_LAUNCH_BOUNDS(kWinogradThreads, 2) conv2d_winograd_output(WinogradOutputParams p) {
    constexpr int kInputs = Winograd<kOutputs>::kInputs;
    let_next_kernel_begin();
    wait_for_kernel_before();
    const uint32_t unit = blockIdx.x * kWinogradThreads + threadIdx.x;
    if (unit >= static_cast<uint32_t>(p.units)) return;
    const int number = static_cast<int>(divide(unit, p.divide_by_pairs));
    const int filter = (static_cast<int>(unit) - number * p.pairs) * 2;
    const uint32_t* const planes = global_pointer<const uint32_t>(p.planes) +
                                   (static_cast<int64_t>(number) * kInputs * kInputs * p.padded_filters + filter) / 2;
    uint32_t words[kInputs][kInputs];
#pragma unroll
    for (int i = 0; i < kInputs; ++i)
#pragma unroll
        for (int j = 0; j < kInputs; ++j) words[i][j] = planes[(i * kInputs + j) * (p.padded_filters / 2)];
    const int32_t* const exponents = global_pointer<const int32_t>(p.filter_exponents) + filter;
    const int of_tile = global_pointer<const int32_t>(p.tile_exponents)[number];
    const int first = -of_tile - exponents[0], second = -of_tile - exponents[1];
    // Two factors each, as their product may be beyond f32.
    const Pair once = make_pair(power_of_two(first / 2), power_of_two(second / 2));
    const Pair again = make_pair(power_of_two(first - first / 2), power_of_two(second - second / 2));
    const Conv2dParams& c = p.conv;
    Pair bias = twice(0.0f);
    if (c.bias)
        bias = make_pair(load_parameter(global_pointer<void>(c.bias), filter * c.bias_stride, c.bias_dtype),
                         load_parameter(global_pointer<void>(c.bias), (filter + (filter + 1 < c.out_channels)) * c.bias_stride,
                                        c.bias_dtype));

    Pair rows[kOutputs][kInputs];  // At m
#pragma unroll
    for (int j = 0; j < kInputs; ++j) {
        Pair m[kInputs], to[kOutputs];
#pragma unroll
        for (int i = 0; i < kInputs; ++i) m[i] = unpack<f16>(words[i][j]);
        Winograd<kOutputs>::of_products(m, to);
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) rows[i][j] = to[i];
    }
    const WinogradTile tile = winograd_tile(p.tiles, p.tiles.first + number);
    const int row = tile.row * kOutputs, column = tile.column * kOutputs;
    constexpr int kRows = 4 / kOutputs;  // that make four pixels
#pragma unroll
    for (int i = 0; i < kOutputs; i += kRows) {
        float v[8];
#pragma unroll
        for (int of_four = 0; of_four < kRows; ++of_four) {
            Pair to[kOutputs];
            Winograd<kOutputs>::of_products(rows[i + of_four], to);
#pragma unroll
            for (int j = 0; j < kOutputs; ++j) {
                const Pair finished = multiply(multiply(to[j], once), again);
                v[2 * (of_four * kOutputs + j)] = low(finished);
                v[2 * (of_four * kOutputs + j) + 1] = high(finished);
            }
        }
        store_pixels<kOutputs>(p, tile, filter, row + i, column, bias, v);
    }
}

void launch_winograd_output(const WinogradOutputParams& p, int outputs, void* stream) {
    const dim3 grid(static_cast<unsigned>((p.units - 1) / kWinogradThreads + 1), 1, 1);
    const auto kernel = outputs == 2 ? conv2d_winograd_output<2> : conv2d_winograd_output<4>;
    HIPCONV_LAUNCH(true, kernel, grid, dim3(kWinogradThreads, 1, 1), 0, static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

}  // namespace hipconv
