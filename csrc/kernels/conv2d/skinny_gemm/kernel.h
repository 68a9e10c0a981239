// Products of few pixels (`skinny_gemm`): 1x1 filters on up to 64 output pixels of all images, such as squeeze-and-excitation
// and heads. Such a call takes as long as a launch and a few waits for memory, so a team of threads makes few sums, and of all
// channels at once: its lanes lie along channels, read vectors of some pixels and filters into registers, all under way
// together, and multiply them by plain FMAs. No operand passes through LDS. At the end lanes add up their parts of each sum,
// and waves theirs through LDS.
//
// A team has as many threads as the channels need, from 4 to 256; small teams share a block.
#pragma once

#include "../gemm/epilogue.h"
#include "launch/check.h"
#include "params.h"

namespace hipconv {

template <typename T>
using SkinnyWords = Words<T, kSkinnyChunk>;

// Reads at 32 bits of offset, in bytes, from an address that all lanes share.
template <typename V>
HIPCONV_INLINE V skinny_read(const void* from, uint32_t bytes) {
    return *reinterpret_cast<const V*>(static_cast<const char*>(from) + bytes);
}

// A chunk of a row of channels, which begins at `row`; zeros stand for the channels behind the last one.
template <typename T, bool kVectors>
HIPCONV_INLINE SkinnyWords<T> skinny_chunk(const void* from, uint32_t row, int chunk, int channels, uint32_t channel_bytes) {
    if constexpr (kVectors) {
        return skinny_read<SkinnyWords<T>>(from, row + static_cast<uint32_t>(chunk) * sizeof(SkinnyWords<T>));
    } else {
        SkinnyWords<T> words{};
#pragma unroll
        for (int e = 0; e < kSkinnyChunk; ++e) {
            const int channel = chunk * kSkinnyChunk + e;
            const bool exists = channel < channels;
            const auto read = skinny_read<typename WordsOf<sizeof(T)>::type>(
                from, row + static_cast<uint32_t>(exists ? channel : 0) * channel_bytes);
            const uint32_t bits = exists ? read : 0u;
            if constexpr (sizeof(T) == 4)
                set_word(words, e, bits);
            else
                set_word(words, e / 2, e % 2 == 0 ? bits : word(words, e / 2) | bits << 16);
        }
        return words;
    }
}

// The sums of even channels and of odd ones.
template <typename T, int kPixels, int kFilters>
HIPCONV_INLINE void multiply_skinny(Pair (&sums)[kPixels][kFilters], const SkinnyWords<T> (&x)[kPixels],
                                    const SkinnyWords<T> (&filters)[kFilters]) {
#pragma unroll
    for (int i = 0; i < kSkinnyChunk / 2; ++i)
#pragma unroll
        for (int pixel = 0; pixel < kPixels; ++pixel)
#pragma unroll
            for (int filter = 0; filter < kFilters; ++filter)
                sums[pixel][filter] =
                    multiply_add(pair_of<T>(x[pixel], i), pair_of<T>(filters[filter], i), sums[pixel][filter]);
}

// A step of adding up kCount sums over lanes: this lane keeps half of them, and gets its neighbour's parts of these.
template <int kCount>
__device__ __forceinline__ void share_sums(float* v, bool keeps_upper, int apart) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
        const float lower = v[i], upper = v[i + kCount / 2];  // a choice of elements would be one of their addresses
        const float others = __shfl_xor(keeps_upper ? lower : upper, apart);
        v[i] = (keeps_upper ? upper : lower) + others;
    }
}

// T is the type of x and filters; where kHalvesShareKernels, f16 stands for both types of 16 bits.
template <typename T, bool kVectors, int kPixels, int kFilters>
__global__ void HIPCONV_LAUNCH_BOUNDS(kSkinnyMostThreads, 1)
    conv2d_skinny_gemm(HIPCONV_IN_PLACE const SkinnyGemmParams parameter) {
    constexpr int kSums = kPixels * kFilters, kPitch = kPixels > 1 ? kSums + 4 : kSums;  // no bank conflicts
    constexpr int kHalvings = kSums >= 4 ? 2 : 1, kKept = kSums >> kHalvings;
    constexpr int kRounds = 2;                                             // chunks of a thread that are read at once
    HIPCONV_SHARED(uint32_t, pixel_rows, kPixels);                         // bytes in x
    HIPCONV_SHARED(int64_t, pixel_outs, kPixels);                          // elements in out
    HIPCONV_SHARED(uint32_t, filter_rows, kSkinnyThreads / 4 * kFilters);  // bytes
    // Rows of sums: of teams of four threads, or of the waves of a team.
    HIPCONV_SHARED(float, lds, kSkinnyThreads / 4 * kPitch);
    let_next_kernel_begin();
    const SkinnyGemmParams& p = first_parameter_again(parameter);
    const Conv2dParams& c = p.conv;
    const int thread = threadIdx.x, team = thread >> p.log2_team, of_team = thread - (team << p.log2_team);
    const int pixel_block = static_cast<int>(divide(blockIdx.x, p.divide_by_filter_blocks));
    const int filter_block = static_cast<int>(blockIdx.x) - pixel_block * p.filter_blocks;
    const int group = static_cast<int>(divide(filter_block, p.divide_by_group_blocks));
    const int log2_filters = p.log2_teams + (kFilters == 4 ? 2 : 1);  // of a block
    const int first_pixel = pixel_block * kPixels, end_filter = (group + 1) * p.group_filters;
    const int first_filter = group * p.group_filters + ((filter_block - group * p.group_blocks) << log2_filters);

    // Pixels and filters beyond the last are read as the last: what comes of them is not stored.
    if (thread < kPixels) {
        const int number = first_pixel + thread;
        const OutPixel at = out_pixel(p, number < p.pixels ? number : p.pixels - 1);
        const int64_t in_x = offset_in(c.x, at.n, group * c.in_channels, at.p * c.stride_h, at.q * c.stride_w);
        pixel_rows[thread] = static_cast<uint32_t>(in_x) * sizeof(T);
        pixel_outs[thread] = offset_in(c.out, at.n, 0, at.p, at.q);
    }
    if (const int k = first_filter + thread; thread < 1 << log2_filters)
        filter_rows[thread] = static_cast<uint32_t>((k < end_filter ? k : end_filter - 1) * c.weight.batch_stride) * sizeof(T);
    const T* const x = global_pointer<const T>(c.x.data);
    const T* const weight = global_pointer<const T>(c.weight.data);
    const uint32_t x_channel = static_cast<uint32_t>(c.x.channel_stride) * sizeof(T);
    const uint32_t filter_channel = static_cast<uint32_t>(c.weight.channel_stride) * sizeof(T);
    Pair sums[kPixels][kFilters];
#pragma unroll
    for (int i = 0; i < kPixels; ++i)
#pragma unroll
        for (int j = 0; j < kFilters; ++j) sums[i][j] = make_pair(0.0f, 0.0f);

    // The filter whose sums this thread stores, and the first pixel.
    const int own_filter = thread & ((1 << log2_filters) - 1), own_k = first_filter + own_filter;
    const int own_pixel = thread >> log2_filters;
    const bool stores = own_k < end_filter && own_pixel < kPixels;
    __syncthreads();
    wait_for_kernel_before();
    uint32_t rows[kPixels], own_rows[kFilters];
#pragma unroll
    for (int i = 0; i < kPixels; ++i) rows[i] = pixel_rows[i];
#pragma unroll
    for (int j = 0; j < kFilters; ++j) own_rows[j] = filter_rows[team * kFilters + j];
    uint32_t bias_bits = 0;
    if (stores && c.bias) bias_bits = load_parameter_bits(c.bias, own_k * c.bias_stride, c.bias_dtype);

#pragma unroll 1
    for (int first = of_team; first - of_team < p.chunks; first += kRounds * p.team) {
        SkinnyWords<T> of_x[kRounds][kPixels], of_filters[kRounds][kFilters];
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int chunk = first + round * p.team;
#pragma unroll
            for (int i = 0; i < kPixels; ++i) of_x[round][i] = SkinnyWords<T>{};
#pragma unroll
            for (int j = 0; j < kFilters; ++j) of_filters[round][j] = SkinnyWords<T>{};
            if (chunk >= p.chunks) continue;
#pragma unroll
            for (int i = 0; i < kPixels; ++i)
                of_x[round][i] = skinny_chunk<T, kVectors>(x, rows[i], chunk, c.in_channels, x_channel);
#pragma unroll
            for (int j = 0; j < kFilters; ++j)
                of_filters[round][j] = skinny_chunk<T, kVectors>(weight, own_rows[j], chunk, c.in_channels, filter_channel);
        }
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            with_halves<T>(c.dtype, [&](auto like) { multiply_skinny<decltype(like)>(sums, of_x[round], of_filters[round]); });
        }
    }

    float v[kSums];
#pragma unroll
    for (int i = 0; i < kPixels; ++i)
#pragma unroll
        for (int j = 0; j < kFilters; ++j) v[i * kFilters + j] = low(sums[i][j]) + high(sums[i][j]);
    share_sums<kSums>(v, thread & 1, 1);
    if constexpr (kHalvings == 2) share_sums<kSums / 2>(v, thread & 2, 2);
    const int lanes = p.team < kWaveSize ? p.team : kWaveSize;
#pragma unroll 1
    for (int apart = 1 << kHalvings; apart < lanes; apart *= 2) {
#pragma unroll
        for (int i = 0; i < kKept; ++i) v[i] += __shfl_xor(v[i], apart);
    }
    constexpr int kMostParts = kSkinnyMostThreads / kWaveSize;
    const int parts = p.team <= kWaveSize ? 1 : static_cast<int>(static_cast<uint32_t>(p.team) / kWaveSize);  // waves of a team
    const int lane = of_team & (lanes - 1);
    if (lane < 1 << kHalvings) {
        const int of_lane = (lane & 1) * (kSums / 2) + (kHalvings == 2 ? (lane >> 1) * (kSums / 4) : 0);
        const int part = static_cast<int>(static_cast<uint32_t>(of_team) / kWaveSize);
#pragma unroll
        for (int i = 0; i < kKept; ++i) lds[(team * parts + part) * kPitch + of_lane + i] = v[i];
    }
    __syncthreads();

    if (!stores) return;
    const float bias = c.bias ? parameter_of(bias_bits, c.bias_dtype) : 0.0f;
    const float* const from = lds + own_filter / kFilters * parts * kPitch + own_filter % kFilters;
#pragma unroll 1
    for (int pixel = own_pixel; pixel < kPixels; pixel += static_cast<int>(blockDim.x) >> log2_filters) {
        const int number = first_pixel + pixel;
        if (number >= p.pixels) return;
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < kMostParts; ++part)
            if (part < parts) sum += from[part * kPitch + pixel * kFilters];
        sum += bias;
        if (c.residual.data) {
            const OutPixel at = out_pixel(p, number);
            sum += load_parameter(global_pointer<void>(c.residual.data), offset_in(c.residual, at.n, own_k, at.p, at.q),
                                  c.residual_dtype);
        }
        store_rounded(global_pointer<void>(c.out.data), pixel_outs[pixel] + own_k * c.out.channel_stride, c.out_dtype,
                      activate(sum, c.activation));
    }
}

}  // namespace hipconv
