// Winograd's input transform: V = Bt d B of each tile and channel, in f16, each tile times a power of two.
#include <hip/hip_runtime.h>

#include "../common/padding.h"
#include "launch/check.h"
#include "params.h"
#include "transforms.h"

namespace hipconv {

// The inputs that a tile sees: where its rows and columns lie in x, or -1 for zeros.
template <int kInputs>
struct TileOfX {
    int64_t rows[kInputs], columns[kInputs];  // in elements
};

template <int kInputs>
HIPCONV_INLINE void locate(const WinogradInputParams& p, const WinogradTile& tile, TileOfX<kInputs>& to) {
    constexpr int kOutputs = kInputs - 2;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
        const int64_t row = padded_index(int64_t{tile.row} * kOutputs + i - p.pad_top, p.height, p.padding_mode);
        const int64_t column = padded_index(int64_t{tile.column} * kOutputs + i - p.pad_left, p.width, p.padding_mode);
        to.rows[i] = row < 0 ? -1 : row * p.x.row_stride;
        to.columns[i] = column < 0 ? -1 : column * p.x.column_stride;
    }
}

// Loads two channels of all inputs of a tile, a word each.
template <typename T, int kInputs>
HIPCONV_INLINE void load_tile(const WinogradInputParams& p, const T* image, const TileOfX<kInputs>& tile, int channel,
                              uint32_t (&words)[kInputs][kInputs]) {
    const T* const from = image + channel * p.x.channel_stride;
#pragma unroll
    for (int i = 0; i < kInputs; ++i)
#pragma unroll
        for (int j = 0; j < kInputs; ++j) {
            words[i][j] = 0;
            if (tile.rows[i] < 0 || tile.columns[j] < 0 || channel >= p.channels) continue;
            const T* const at = from + tile.rows[i] + tile.columns[j];
            if (p.by_pairs) {
                words[i][j] = *reinterpret_cast<const uint32_t*>(at);
            } else {
                words[i][j] = at->bits;
                if (channel + 1 < p.channels) words[i][j] |= static_cast<uint32_t>(at[p.x.channel_stride].bits) << 16;
            }
        }
}

// The larger of two numbers that are bits of absolute values: NaN is the largest.
HIPCONV_INLINE uint32_t larger(uint32_t a, uint32_t b) { return a < b ? b : a; }
HIPCONV_INLINE uint32_t magnitude(float v) { return bit_cast<uint32_t>(v) & 0x7fffffffu; }

// 2^log2_lanes threads of a block have a tile. They find its largest absolute value first, over all channels; tiles of so many
// channels that a thread has more than two of them are read twice.
template <typename T, int kOutputs>
__global__ void HIPCONV_LAUNCH_BOUNDS(kWinogradThreads, 2) conv2d_winograd_input(WinogradInputParams p) {
    constexpr int kInputs = Winograd<kOutputs>::kInputs, kGroup = 32;  // threads that exchange values by shuffles
    HIPCONV_SHARED(uint32_t, maxima, kWinogradThreads / kGroup);
    let_next_kernel_begin();
    wait_for_kernel_before();
    const int thread = threadIdx.x, lanes = 1 << p.log2_lanes, lane = thread % lanes;
    const int number = static_cast<int>(blockIdx.x) * (kWinogradThreads / lanes) + (thread >> p.log2_lanes);
    const bool is_there = number < p.tiles.count;
    const WinogradTile tile = winograd_tile(p.tiles, p.tiles.first + (is_there ? number : 0));
    const T* const image = global_pointer<const T>(p.x.data) + tile.image * p.x.batch_stride;
    TileOfX<kInputs> place;
    locate(p, tile, place);

    const int pairs = p.padded_channels / 2;
    uint32_t words[kInputs][kInputs];
    uint32_t largest = 0;
    for (int pair = lane; is_there && pair < pairs; pair += lanes) {
        load_tile<T>(p, image, place, pair * 2, words);
#pragma unroll
        for (int i = 0; i < kInputs; ++i)
#pragma unroll
            for (int j = 0; j < kInputs; ++j) {
                const Pair both = unpack<T>(words[i][j]);
                largest = larger(largest, larger(magnitude(low(both)), magnitude(high(both))));
            }
    }
#pragma unroll
    for (int distance = kGroup / 2; distance > 0; distance /= 2) largest = larger(largest, __shfl_xor(largest, distance));
    if (thread % kGroup == 0) maxima[thread / kGroup] = largest;
    __syncthreads();
    for (int group = (thread - lane) / kGroup; group < (thread - lane + lanes) / kGroup; ++group)
        largest = larger(largest, maxima[group]);
    if (!is_there) return;

    const int exponent = exponent_to(largest, kTileExponent);
    const float scale = power_of_two(exponent);
    if (lane == 0) global_pointer<int32_t>(p.exponents)[number] = exponent;
    uint32_t* const planes = global_pointer<uint32_t>(p.planes) + static_cast<int64_t>(number) * kInputs * kInputs * pairs;
    for (int pair = lane; pair < pairs; pair += lanes) {
        if (pairs > lanes) load_tile<T>(p, image, place, pair * 2, words);
        Pair columns[kInputs][kInputs];  // Bt d, by columns
#pragma unroll
        for (int j = 0; j < kInputs; ++j) {
            Pair d[kInputs];
#pragma unroll
            for (int i = 0; i < kInputs; ++i) d[i] = times(scale, unpack<T>(words[i][j]));
            Winograd<kOutputs>::of_inputs(d, columns[j]);
        }
#pragma unroll
        for (int i = 0; i < kInputs; ++i) {
            Pair d[kInputs], to[kInputs];
#pragma unroll
            for (int j = 0; j < kInputs; ++j) d[j] = columns[j][i];
            Winograd<kOutputs>::of_inputs(d, to);
#pragma unroll
            for (int j = 0; j < kInputs; ++j) planes[(i * kInputs + j) * pairs + pair] = pack<f16>(to[j]);
        }
    }
}

void launch_winograd_input(const WinogradInputParams& p, int outputs, void* stream) {
    const int tiles_of_block = kWinogradThreads >> p.log2_lanes;
    const dim3 grid(static_cast<unsigned>((p.tiles.count - 1) / tiles_of_block + 1), 1, 1);
    const bool is_bf16 = p.dtype == DType::bf16;
    const auto kernel = outputs == 2 ? is_bf16 ? conv2d_winograd_input<bf16, 2> : conv2d_winograd_input<f16, 2>
                        : is_bf16 ? conv2d_winograd_input<bf16, 4>
                                     : conv2d_winograd_input<f16, 4>;
    HIPCONV_LAUNCH(true, kernel, grid, dim3(kWinogradThreads, 1, 1), 0, static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

}  // namespace hipconv
