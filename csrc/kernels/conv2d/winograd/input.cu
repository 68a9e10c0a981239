// Winograd's input transform: V = Bt d B of each tile and channel, in f16, each tile times a power of two.
#include <hip/hip_runtime.h>

#include "../common/padding.h"
#include "launch/check.h"
#include "params.h"
#include "transforms.h"

namespace hipconv {

constexpr int kGroup = 32;  // threads that exchange values by shuffles

// The inputs that a tile sees: where its rows and columns lie in x, in elements, and masks that are zero outside x.
template <int kInputs>
struct TileOfX {
    int64_t rows[kInputs], columns[kInputs];
    uint32_t row_masks[kInputs], column_masks[kInputs];
};

HIPCONV_INLINE uint32_t mask_of(bool is_there) {
    uint32_t mask = is_there ? 0xffffu : 0;
    from_here_on(mask);  // a register, and no condition for each of its uses
    return mask;
}

template <int kInputs>
HIPCONV_INLINE TileOfX<kInputs> locate(const WinogradInputParams& p, const WinogradTile& tile) {
    constexpr int kOutputs = kInputs - 2;
    TileOfX<kInputs> to;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
        const int64_t row = padded_index(int64_t{tile.row} * kOutputs + i - p.pad_top, p.height, p.padding_mode);
        const int64_t column = padded_index(int64_t{tile.column} * kOutputs + i - p.pad_left, p.width, p.padding_mode);
        to.rows[i] = row < 0 ? 0 : row * p.x.row_stride;
        to.columns[i] = column < 0 ? 0 : column * p.x.column_stride;
        to.row_masks[i] = mask_of(row >= 0);
        to.column_masks[i] = mask_of(column >= 0);
    }
    return to;
}

// The largest absolute value is found among the bits of floats, by integers, as compilers make one instruction of three.
HIPCONV_INLINE uint32_t larger(uint32_t a, uint32_t b) { return a < b ? b : a; }
HIPCONV_INLINE uint32_t size_of(float v) { return bit_cast<uint32_t>(v) & 0x7fffffffu; }

// Two channels of x, wherever they lie, and masks that are zero where there is no channel.
template <typename T>
struct TwoChannels {
    const T *first, *second;
    uint32_t first_mask, second_mask;
};

template <typename T>
HIPCONV_INLINE TwoChannels<T> two_channels(const WinogradInputParams& p, const T* image, int channel) {
    const bool has_first = channel < p.channels, has_second = channel + 1 < p.channels;
    return {image + (has_first ? channel * p.x.channel_stride : 0),
            image + (has_second ? (channel + 1) * p.x.channel_stride : 0), mask_of(has_first), mask_of(has_second)};
}

// Loads a column of a tile: the first element of the image, masked, in the place of what is not there.
template <typename T, int kInputs>
HIPCONV_INLINE void load_column(const TwoChannels<T>& x, const TileOfX<kInputs>& tile, int column, Pair (&d)[kInputs]) {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
        const int64_t at = tile.rows[i] + tile.columns[column];
        const uint32_t mask = tile.row_masks[i] & tile.column_masks[column];
        const uint32_t first = x.first[at].bits & mask & x.first_mask, second = x.second[at].bits & mask & x.second_mask;
        d[i] = make_pair(to_float(T{static_cast<uint16_t>(first)}), to_float(T{static_cast<uint16_t>(second)}));
    }
    keep_order();  // the loads of a tile at once would take more registers than there are
}

// Loads two channels of a tile where they are an aligned word, a row of x is within 2^31 elements, and padding is by zeros. All
// lanes of a wave have the same tile, and most tiles are inside.
template <typename T, int kInputs>
HIPCONV_INLINE void load_pairs(const WinogradInputParams& p, const T* image, const WinogradTile& tile, int channel,
                               Pair (&columns)[kInputs][kInputs]) {
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
        for (int j = 0; j < kInputs; ++j) columns[j][i] = unpack<T>(words[i][j]);
}

template <int kInputs>
HIPCONV_INLINE uint32_t largest_of(const Pair (&d)[kInputs], uint32_t largest) {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) largest = larger(largest, larger(size_of(low(d[i])), size_of(high(d[i]))));
    return largest;
}

// The largest value of a tile's threads, `lanes` from thread `first` on.
__device__ __forceinline__ uint32_t largest_of_tile(uint32_t largest, uint32_t* maxima, int thread, int first, int lanes) {
#pragma unroll
    for (int distance = kGroup / 2; distance > 0; distance /= 2) largest = larger(largest, __shfl_xor(largest, distance));
    if (thread % kGroup == 0) maxima[thread / kGroup] = largest;
    __syncthreads();
    for (int group = first / kGroup; group < (first + lanes) / kGroup; ++group) largest = larger(largest, maxima[group]);
    return largest;
}

template <int kOutputs, int kInputs>
HIPCONV_INLINE void transform_column(const Pair (&d)[kInputs], float scale, Pair (&to)[kInputs]) {
    Pair scaled[kInputs];
#pragma unroll
    for (int i = 0; i < kInputs; ++i) scaled[i] = times(scale, d[i]);
    Winograd<kOutputs>::of_inputs(scaled, to);
}

// Transforms the columns of two channels along rows, and stores them in their planes, `pairs` words apart.
template <int kOutputs, int kInputs>
HIPCONV_INLINE void transform_rows(const Pair (&columns)[kInputs][kInputs], uint32_t* planes, uint32_t pairs) {
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
__global__ void HIPCONV_LAUNCH_BOUNDS(kWinogradThreads, kOnce ? 2 : 1) conv2d_winograd_input(WinogradInputParams p) {
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
    Pair d[kInputs][kInputs];  // by columns
    TileOfX<kInputs> place;
    uint32_t largest = 0;
    if constexpr (kOnce) {
        load_pairs<T>(p, image, tile, lane * 2, d);
#pragma unroll
        for (int j = 0; j < kInputs; ++j) largest = largest_of(d[j], largest);
    } else {
        place = locate<kInputs>(p, tile);
#pragma unroll 1
        for (int pair = lane; pair < pairs; pair += lanes) {
            const TwoChannels<T> x = two_channels<T>(p, image, pair * 2);
#pragma unroll
            for (int j = 0; j < kInputs; ++j) {
                load_column(x, place, j, d[0]);
                largest = largest_of(d[0], largest);
            }
        }
    }
    largest = largest_of_tile(largest, maxima, thread, thread - lane, lanes);
    if (!is_there) return;
    const int exponent = exponent_to(largest, kTileExponent);
    const float scale = power_of_two(exponent);
    if (lane == 0) global_pointer<int32_t>(p.exponents)[number] = exponent;
    if constexpr (kOnce) {
        if (lane >= pairs) return;
#pragma unroll
        for (int j = 0; j < kInputs; ++j) transform_column<kOutputs>(d[j], scale, d[j]);
        transform_rows<kOutputs>(d, planes + lane, static_cast<uint32_t>(pairs));
    } else {
#pragma unroll 1
        for (int pair = lane; pair < pairs; pair += lanes) {
            const TwoChannels<T> x = two_channels<T>(p, image, pair * 2);
#pragma unroll
            for (int j = 0; j < kInputs; ++j) {
                Pair loaded[kInputs];
                load_column(x, place, j, loaded);
                transform_column<kOutputs>(loaded, scale, d[j]);
            }
            transform_rows<kOutputs>(d, planes + pair, static_cast<uint32_t>(pairs));
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
