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

// Adds the residual to a row of a tile's outputs of two filters, activates and stores them. Out is out's type where two filters
// are an aligned word, in the residual, too; else float, for any type and layout.
template <typename Out, int kOutputs>
HIPCONV_INLINE void finish_row(const WinogradOutputParams& p, const WinogradTile& tile, int filter, int row, int column,
                               Pair (&v)[kOutputs]) {
    const Conv2dParams& c = p.conv;
    constexpr bool kByPairs = sizeof(Out) == 2;
    const bool has_second = filter + 1 < c.out_channels;
    if (c.residual.data) {
        const int64_t first = offset_in(c.residual, tile.image, filter, row, column);
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) {
            if (column + j >= c.out_width) continue;
            const int64_t at = first + j * c.residual.column_stride;
            const void* const residual = global_pointer<void>(c.residual.data);
            v[j] = add(v[j], kByPairs ? load_two(residual, at, c.residual_dtype)
                                      : make_pair(load_parameter(residual, at, c.residual_dtype),
                                                  load_parameter(residual, at + (has_second ? c.residual.channel_stride : 0),
                                                                 c.residual_dtype)));
        }
    }
    if (c.activation != Conv2dActivation::none) {
        float eight[8] = {};
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) eight[2 * j] = low(v[j]), eight[2 * j + 1] = high(v[j]);
        activate_eight(eight, c.activation);
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) v[j] = make_pair(eight[2 * j], eight[2 * j + 1]);
    }
    const int64_t first = offset_in(c.out, tile.image, filter, row, column);
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
        if (column + j >= c.out_width) continue;
        const int64_t at = first + j * c.out.column_stride;
        if constexpr (kByPairs) {
            *reinterpret_cast<uint32_t*>(global_pointer<uint16_t>(c.out.data) + at) =
                pack<Out>(make_pair(canonical_nan(low(v[j])), canonical_nan(high(v[j]))));
        } else {
            void* const out = global_pointer<void>(c.out.data);
            store_rounded(out, at, c.out_dtype, low(v[j]));
            if (has_second) store_rounded(out, at + c.out.channel_stride, c.out_dtype, high(v[j]));
        }
    }
}

// The bias of two filters.
HIPCONV_INLINE Pair load_bias_of_two(const Conv2dParams& c, int filter) {
    if (!c.bias) return twice(0.0f);
    const void* const bias = global_pointer<void>(c.bias);
    const int second = filter + 1 < c.out_channels ? filter + 1 : filter;
    return make_pair(load_parameter(bias, filter * c.bias_stride, c.bias_dtype),
                     load_parameter(bias, second * c.bias_stride, c.bias_dtype));
}

// A thread has a tile and two filters.
template <typename Out, int kOutputs>
__global__ void HIPCONV_LAUNCH_BOUNDS(kWinogradThreads, 2) conv2d_winograd_output(WinogradOutputParams p) {
    constexpr int kInputs = Winograd<kOutputs>::kInputs;
    let_next_kernel_begin();
    wait_for_kernel_before();
    const uint32_t unit = blockIdx.x * kWinogradThreads + threadIdx.x;
    if (unit >= static_cast<uint32_t>(p.units)) return;
    const int number = static_cast<int>(divide(unit, p.divide_by_pairs));
    const int filter = (static_cast<int>(unit) - number * p.pairs) * 2;
    const uint32_t plane = static_cast<uint32_t>(p.padded_filters) / 2;
    const uint32_t* const planes =
        global_pointer<const uint32_t>(p.planes) + static_cast<int64_t>(number) * kInputs * kInputs * plane + filter / 2;
    uint32_t words[kInputs][kInputs];
#pragma unroll
    for (int i = 0; i < kInputs; ++i)
#pragma unroll
        for (int j = 0; j < kInputs; ++j) words[i][j] = planes[(i * kInputs + j) * plane];
    const int32_t* const exponents = global_pointer<const int32_t>(p.filter_exponents) + filter;
    const int of_tile = global_pointer<const int32_t>(p.tile_exponents)[number];
    const int first = -of_tile - exponents[0], second = -of_tile - exponents[1];
    const Pair scale = make_pair(power_of_two(clamped(first, 126)), power_of_two(clamped(second, 126)));
    const bool is_far = clamped(first, 126) != first || clamped(second, 126) != second;  // the factor is beyond f32
    const Pair bias = load_bias_of_two(p.conv, filter);

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
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
        Pair v[kOutputs];
        Winograd<kOutputs>::of_products(rows[i], v);
        if (row + i >= p.conv.out_height) continue;
        if (is_far) {
            const Pair rest = make_pair(power_of_two(first - clamped(first, 126)), power_of_two(second - clamped(second, 126)));
#pragma unroll
            for (int j = 0; j < kOutputs; ++j) v[j] = multiply(v[j], rest);
        }
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) v[j] = multiply_add(v[j], scale, bias);
        finish_row<Out, kOutputs>(p, tile, filter, row + i, column, v);
    }
}

template <int kOutputs>
void launch_output(const WinogradOutputParams& p, hipStream_t stream) {
    const dim3 grid(static_cast<unsigned>((p.units - 1) / kWinogradThreads + 1), 1, 1);
    const auto kernel = !p.by_pairs || p.conv.out_dtype == DType::f32 ? conv2d_winograd_output<float, kOutputs>
                        : p.conv.out_dtype == DType::bf16             ? conv2d_winograd_output<bf16, kOutputs>
                                                                      : conv2d_winograd_output<f16, kOutputs>;
    HIPCONV_LAUNCH(true, kernel, grid, dim3(kWinogradThreads, 1, 1), 0, stream, p);
    check_launch("conv2d");
}

void launch_winograd_output(const WinogradOutputParams& p, int outputs, void* stream) {
    (outputs == 2 ? launch_output<2> : launch_output<4>)(p, static_cast<hipStream_t>(stream));
}

}  // namespace hipconv
