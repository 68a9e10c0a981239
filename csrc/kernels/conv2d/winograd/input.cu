// Winograd's input transform: V = Bt d B of each tile and channel, in f16, each tile times a power of two.
#include <hip/hip_runtime.h>

#include "../common/padding.h"
#include "launch/check.h"
#include "params.h"
#include "transforms.h"

namespace hipconv {

constexpr int kGroup = 32;  // threads that exchange values by shuffles

// The inputs that a tile sees: where its rows and columns lie in x, in elements, or -1 for zeros.
template <int kInputs>
struct TileOfX {
    int64_t rows[kInputs], columns[kInputs];
};

template <int kInputs>
HIPCONV_INLINE TileOfX<kInputs> locate(const WinogradInputParams& p, const WinogradTile& tile) {
    constexpr int kOutputs = kInputs - 2;
    TileOfX<kInputs> to;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
        const int64_t row = padded_index(int64_t{tile.row} * kOutputs + i - p.pad_top, p.height, p.padding_mode);
        const int64_t column = padded_index(int64_t{tile.column} * kOutputs + i - p.pad_left, p.width, p.padding_mode);
        to.rows[i] = row < 0 ? -1 : row * p.x.row_stride;
        to.columns[i] = column < 0 ? -1 : column * p.x.column_stride;
    }
    return to;
}

// The largest absolute value is found among the bits of floats, by integers, as compilers make one instruction of three.
HIPCONV_INLINE uint32_t larger(uint32_t a, uint32_t b) { return a < b ? b : a; }
HIPCONV_INLINE uint32_t size_of(float v) { return bit_cast<uint32_t>(v) & 0x7fffffffu; }

// Loads two channels of all inputs of a tile.
template <typename T, int kInputs>
HIPCONV_INLINE void load_anything(const WinogradInputParams& p, const T* image, const TileOfX<kInputs>& tile, int channel,
                                  Pair (&d)[kInputs][kInputs]) {
    const T* const from = image + channel * p.x.channel_stride;
    const int64_t next = channel + 1 < p.channels ? p.x.channel_stride : 0;
#pragma unroll
    for (int i = 0; i < kInputs; ++i)
#pragma unroll
        for (int j = 0; j < kInputs; ++j) {
            d[i][j] = twice(0.0f);
            if (tile.rows[i] < 0 || tile.columns[j] < 0 || channel >= p.channels) continue;
            const T* const at = from + tile.rows[i] + tile.columns[j];
            d[i][j] = make_pair(to_float(at[0]), next ? to_float(at[next]) : 0.0f);
        }
}

// The same where two channels are an aligned word, a row of x is within 2^31 elements, and padding is by zeros. All lanes of a
// wave have the same tile, and most tiles are inside.
template <typename T, int kInputs>
HIPCONV_INLINE void load_pairs(const WinogradInputParams& p, const T* image, const WinogradTile& tile, int channel,
                               Pair (&d)[kInputs][kInputs]) {
    constexpr int kOutputs = kInputs - 2;
    const int row = tile.row * kOutputs - p.pad_top, column = tile.column * kOutputs - p.pad_left;
    const int step = static_cast<int>(p.x.column_stride);
    const bool is_inside = row >= 0 && column >= 0 && row + kInputs <= p.height && column + kInputs <= p.width;
    const bool has_channels = channel < p.channels;
    uint32_t words[kInputs][kInputs];
    const T* from = image + row * p.x.row_stride + int64_t{column} * step + channel;
    if (is_inside && has_channels) {
#pragma unroll
        for (int i = 0; i < kInputs; ++i, from += p.x.row_stride)
#pragma unroll
            for (int j = 0; j < kInputs; ++j) words[i][j] = *reinterpret_cast<const uint32_t*>(from + j * step);
    } else {
#pragma unroll
        for (int i = 0; i < kInputs; ++i, from += p.x.row_stride) {
            const bool has_row = has_channels && row + i >= 0 && row + i < p.height;
#pragma unroll
            for (int j = 0; j < kInputs; ++j) {
                words[i][j] = 0;
                if (has_row && column + j >= 0 && column + j < p.width)
                    words[i][j] = *reinterpret_cast<const uint32_t*>(from + j * step);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < kInputs; ++i)
#pragma unroll
        for (int j = 0; j < kInputs; ++j) d[i][j] = unpack<T>(words[i][j]);
}

template <int kInputs>
HIPCONV_INLINE uint32_t largest_of(const Pair (&d)[kInputs][kInputs], uint32_t largest) {
#pragma unroll
    for (int i = 0; i < kInputs; ++i)
#pragma unroll
        for (int j = 0; j < kInputs; ++j) largest = larger(largest, larger(size_of(low(d[i][j])), size_of(high(d[i][j]))));
    return largest;
}

// The largest value of a tile's threads, `lanes` from thread `first` on.
HIPCONV_INLINE uint32_t largest_of_tile(uint32_t largest, uint32_t* maxima, int thread, int first, int lanes) {
#pragma unroll
    for (int distance = kGroup / 2; distance > 0; distance /= 2) largest = larger(largest, __shfl_xor(largest, distance));
    if (thread % kGroup == 0) maxima[thread / kGroup] = largest;
    __syncthreads();
    for (int group = first / kGroup; group < (first + lanes) / kGroup; ++group) largest = larger(largest, maxima[group]);
    return largest;
}

// Transforms two channels of a tile and stores them in its planes, `pairs` words apart.
template <int kOutputs, int kInputs>
HIPCONV_INLINE void transform_inputs(const Pair (&d)[kInputs][kInputs], float scale, uint32_t* planes, uint32_t pairs) {
    Pair columns[kInputs][kInputs];  // Bt d, by columns
#pragma unroll
    for (int j = 0; j < kInputs; ++j) {
        Pair of_column[kInputs];
#pragma unroll
        for (int i = 0; i < kInputs; ++i) of_column[i] = times(scale, d[i][j]);
        Winograd<kOutputs>::of_inputs(of_column, columns[j]);
    }
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
        Pair of_row[kInputs], to[kInputs];
#pragma unroll
        for (int j = 0; j < kInputs; ++j) of_row[j] = columns[j][i];
        Winograd<kOutputs>::of_inputs(of_row, to);
#pragma unroll
        for (int j = 0; j < kInputs; ++j) planes[(i * kInputs + j) * pairs] = pack<f16>(to[j]);
    }
}

// 2^log2_lanes threads of a block have a tile. They find its largest absolute value first, over all channels. With kOnce, each
// thread has two of these, which it loads by pairs and keeps; else tiles are read twice, in any layout and padding mode.
template <typename T, int kOutputs, bool kOnce>
__global__ void HIPCONV_LAUNCH_BOUNDS(kWinogradThreads, 2) conv2d_winograd_input(WinogradInputParams p) {
    constexpr int kInputs = Winograd<kOutputs>::kInputs;
    HIPCONV_SHARED(uint32_t, maxima, kWinogradThreads / kGroup);
    let_next_kernel_begin();
    wait_for_kernel_before();
    const int thread = threadIdx.x, lanes = 1 << p.log2_lanes, lane = thread % lanes;
    const int number = static_cast<int>(blockIdx.x) * (kWinogradThreads >> p.log2_lanes) + (thread >> p.log2_lanes);
    const bool is_there = number < p.tiles.count;
    const WinogradTile tile = winograd_tile(p.tiles, p.tiles.first + (is_there ? number : 0));
    const T* const image = global_pointer<const T>(p.x.data) + tile.image * p.x.batch_stride;
    const int pairs = p.padded_channels / 2;
    uint32_t* const planes = global_pointer<uint32_t>(p.planes) + static_cast<int64_t>(number) * kInputs * kInputs * pairs;
    Pair d[kInputs][kInputs];
    uint32_t largest = 0;
    if constexpr (kOnce) {
        load_pairs<T>(p, image, tile, lane * 2, d);
        largest = largest_of_tile(largest_of(d, 0), maxima, thread, thread - lane, lanes);
    } else {
        const TileOfX<kInputs> place = locate<kInputs>(p, tile);
        for (int pair = lane; pair < pairs; pair += lanes) {
            load_anything<T>(p, image, place, pair * 2, d);
            largest = largest_of(d, largest);
        }
        largest = largest_of_tile(largest, maxima, thread, thread - lane, lanes);
    }
    if (!is_there) return;
    const int exponent = exponent_to(largest, kTileExponent);
    const float scale = power_of_two(exponent);
    if (lane == 0) global_pointer<int32_t>(p.exponents)[number] = exponent;
    if constexpr (kOnce) {
        if (lane < pairs) transform_inputs<kOutputs>(d, scale, planes + lane, static_cast<uint32_t>(pairs));
    } else {
        const TileOfX<kInputs> place = locate<kInputs>(p, tile);
        for (int pair = lane; pair < pairs; pair += lanes) {
            load_anything<T>(p, image, place, pair * 2, d);
            transform_inputs<kOutputs>(d, scale, planes + pair, static_cast<uint32_t>(pairs));
        }
    }
}

template <typename T, int kOutputs>
void launch_input(const WinogradInputParams& p, hipStream_t stream) {
    const int tiles_of_block = kWinogradThreads >> p.log2_lanes;
    const dim3 grid(static_cast<unsigned>((p.tiles.count - 1) / tiles_of_block + 1), 1, 1);
    const auto kernel = p.by_pairs && p.padded_channels / 2 <= kWinogradThreads ? conv2d_winograd_input<T, kOutputs, true>
                                                                                : conv2d_winograd_input<T, kOutputs, false>;
    HIPCONV_LAUNCH(true, kernel, grid, dim3(kWinogradThreads, 1, 1), 0, stream, p);
    check_launch("conv2d");
}

void launch_winograd_input(const WinogradInputParams& p, int outputs, void* stream) {
    const bool is_bf16 = p.dtype == DType::bf16;
    const auto launch = outputs == 2 ? is_bf16 ? launch_input<bf16, 2> : launch_input<f16, 2>
                        : is_bf16 ? launch_input<bf16, 4>
                                     : launch_input<f16, 4>;
    launch(p, static_cast<hipStream_t>(stream));
}

}  // namespace hipconv
