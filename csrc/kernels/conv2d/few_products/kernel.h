// The first layers of networks (`few_products`): filters of few products, most of them taps of a few channels. As in
// `pointwise`, a block brings all filters to LDS once, in the order in which lanes read them, and each wave goes its own way
// through the pixels, 16 at a time. It gathers their factors from x, which the first cache has for most taps, straight into the
// registers of the matrix instruction: a table in LDS says where each product's factor lies from a pixel's first tap on.
//
// Where out is channels_last, columns of the matrix instruction are filters, dealt out so that a lane gets consecutive ones.
// Where it is contiguous, the operands change places, and a lane gets consecutive pixels of a filter.
#pragma once

#include "params.h"

namespace hipconv {

// Where a product's factors lie: the channel, row and column of the filter; or nowhere, if one of them is zero.
struct FewProduct {
    bool exists;
    int run, channel, row, column;
};

HIPCONV_INLINE FewProduct few_product(const FewProductsParams& p, int product) {
    const int run = static_cast<int>(divide(product, p.divide_by_run)), at = product - run * p.run_products - p.run_begin;
    const bool exists = run < p.runs && at >= 0 && at < p.run_length;
    const int outer = static_cast<int>(divide(p.channels_inside ? (exists ? at : 0) : run, p.divide_inside));
    if (p.channels_inside) return {exists, run, at - outer * p.conv.in_channels, run, outer};
    return {exists, run, outer, run - outer * p.conv.kernel_height, at};
}

// The tables of a block in LDS. In x, the factors of a product, or of a pair of them, lie so many elements behind a pixel's
// first tap; a place is their row behind it and their place in the row, in halves of a word. In a filter, a product's factor
// lies so many elements behind the first one. A mask has ones where the factors of a pair count.
struct FewTables {
    int *offsets, *of_filter;
    uint32_t *places, *masks;
};

template <int kPieces>
HIPCONV_INLINE FewTables few_tables(int* memory) {
    constexpr int kCount = kPieces * kRunPiece;
    uint32_t* const words = reinterpret_cast<uint32_t*>(memory + 2 * kCount);
    return {memory, memory + kCount, words, words + kCount};
}

template <int kPieces>
HIPCONV_INLINE void write_few_tables(const FewProductsParams& p, FewTables to, int thread) {
    const Conv2dParams& c = p.conv;
    for (int number = thread; number < kPieces * kRunPiece; number += kRunThreads) {
        const FewProduct product = few_product(p, number);
        to.of_filter[number] =
            product.exists ? static_cast<int>(offset_in(c.weight, 0, product.channel, product.row, product.column)) : -1;
        if (p.by_pairs && number % 2 == 1) continue;
        const FewProduct second = few_product(p, number + 1);
        const bool counts = product.exists || (p.by_pairs && second.exists);
        FewProduct known = second;
        if (product.exists) known = product;
        const int row = known.row * c.dilation_h, column = known.column * c.dilation_w;
        int offset = row * p.x_row + column * p.x_column + known.channel * static_cast<int>(c.x.channel_stride);
        if (!product.exists) --offset;  // known is the second one
        const int place = p.by_pairs ? number - known.run * p.run_products : column;
        const int at = p.by_pairs ? number / 2 : number;
        to.offsets[at] = counts ? offset : -p.run_begin;                          // where a pair may begin
        to.places[at] = counts ? static_cast<uint32_t>(row) << 16 | place : ~0u;  // which lies in no image
        if (number % 2 == 0) to.masks[number / 2] = (product.exists ? 0xffffu : 0) | (second.exists ? 0xffff0000u : 0);
    }
}

// A pixel of out, as lanes gather and store it: where its first tap lies, and its offset in out (0 where stores are not
// simple), negative if there is none.
struct FewPixel {
    int row, column, from, out;
};

HIPCONV_INLINE FewPixel few_pixel(const FewProductsParams& p, int number) {
    const Conv2dParams& c = p.conv;
    const OutPixel at = out_pixel(p, number < p.pixels ? number : p.pixels - 1);
    const int row = at.p * c.stride_h - c.pad_top, column = at.q * c.stride_w - c.pad_left;
    const int out = at.n * p.out_image + at.p * p.out_row + at.q * p.out_column;
    return {row, column, at.n * p.x_image + row * p.x_row + column * p.x_column, number < p.pixels ? out : -1};
}

HIPCONV_INLINE bool sees_no_padding(const Conv2dParams& c, const FewPixel& pixel) {
    return pixel.row >= 0 && pixel.column >= 0 && pixel.row + (c.kernel_height - 1) * c.dilation_h < c.in_height &&
           pixel.column + (c.kernel_width - 1) * c.dilation_w < c.in_width;
}

HIPCONV_INLINE Words4 words_of(const void* table, int at) {
    return *reinterpret_cast<const Words4*>(static_cast<const uint32_t*>(table) + at);
}

// A lane has loaded this of its pixels' factors, chunks of eight products in four words. Nobody waits for what is loaded
// ahead: there each factor has a word, or a pair has the first one of two.
template <typename A, int kSteps, bool kAhead>
struct FewLoaded {
    uint32_t bits[kSteps][A::kRows][kAhead ? 8 : 4];
};

// The pixels of a lane, as it gathers their factors: addresses of the first ones, and their places in rows of x.
template <typename A>
struct FewSources {
    uint64_t from[A::kRows];
    int row[A::kRows], place[A::kRows], to_first[A::kRows];  // to_first: from there to x's first factor
};

// Loads Each, a factor or a pair. What lies outside x is a zero; where a selection costs no more than a condition, x's first
// factor is read for it.
template <typename Each, bool kAtBorder, typename A, int kSteps, bool kAhead>
HIPCONV_INLINE void gather_places(FewLoaded<A, kSteps, kAhead>& to, const FewProductsParams& p, FewTables tables, int lane,
                                  const FewSources<A>& pixels) {
    constexpr int kCount = 16 / sizeof(Each);
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int four = 0; four < kCount; four += 4) {
            const int first = (s * A::kStepChunks + A::chunk(lane, 0)) * kCount + four;
            const Words4 offsets = words_of(tables.offsets, first);
            Words4 places{};
            if constexpr (kAtBorder) places = words_of(tables.places, first);
            uint32_t bits[A::kRows][4];
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int i = 0; i < A::kRows; ++i) {
                    int offset = static_cast<int>(word(offsets, e));
                    bool exists = true;
                    if constexpr (kAtBorder) {
                        const uint32_t y = pixels.row[i] + (word(places, e) >> 16),
                                       x = pixels.place[i] + (word(places, e) & 0xffff);
                        exists = y < static_cast<uint32_t>(p.conv.in_height) && x < static_cast<uint32_t>(p.row_length);
                        if constexpr (kHasPredicates) offset = exists ? offset : pixels.to_first[i];
                    }
                    if constexpr (kHasPredicates || !kAtBorder) {
                        const uint32_t loaded = *global_pointer<const Each>(pixels.from[i] + int64_t{offset} * 2);
                        bits[i][e] = exists ? loaded : 0;
                    } else {
                        bits[i][e] = 0;
                        if (exists) bits[i][e] = *global_pointer<const Each>(pixels.from[i] + int64_t{offset} * 2);
                    }
                }
#pragma unroll
            for (int i = 0; i < A::kRows; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if constexpr (sizeof(Each) == 4) {
                        to.bits[s][i][kAhead ? 2 * e : e] = bits[i][e];
                        if constexpr (kAhead) to.bits[s][i][2 * e + 1] = 0;
                    } else if constexpr (kAhead) {
                        to.bits[s][i][four + e] = bits[i][e];
                    } else if (e % 2 == 0) {
                        to.bits[s][i][(four + e) / 2] = bits[i][e] | bits[i][e + 1] << 16;
                    }
                }
        }
}

template <typename A, int kSteps, bool kAhead>
__device__ __forceinline__ void gather_pixels(FewLoaded<A, kSteps, kAhead>& to, const FewProductsParams& p, FewTables tables,
                                              int lane, const FewPixel (&pixels)[A::kRows]) {
    static_assert(A::kChunks == 1, "a lane has one chunk of a step's");
    FewSources<A> sources;
    bool inside = true;
#pragma unroll
    for (int i = 0; i < A::kRows; ++i) {
        sources.from[i] = reinterpret_cast<uint64_t>(p.conv.x.data) + 2 * int64_t{pixels[i].from};
        sources.row[i] = pixels[i].row;
        sources.place[i] = pixels[i].column * p.column_length - p.run_begin;
        sources.to_first[i] = -pixels[i].from;
        inside = inside && sees_no_padding(p.conv, pixels[i]);
    }
    const bool at_border = __ballot(!inside) != 0;
    if (p.by_pairs) {
        if (at_border)
            gather_places<uint32_t, true>(to, p, tables, lane, sources);
        else
            gather_places<uint32_t, false>(to, p, tables, lane, sources);
    } else if (at_border) {
        gather_places<uint16_t, true>(to, p, tables, lane, sources);
    } else {
        gather_places<uint16_t, false>(to, p, tables, lane, sources);
    }
}

// Makes chunks of what is loaded.
template <typename A, int kSteps, bool kAhead>
HIPCONV_INLINE void make_chunks(PixelChunks<A, kSteps>& to, const FewLoaded<A, kSteps, kAhead>& loaded, FewTables tables,
                                int lane) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        const Words4 masks = words_of(tables.masks, (s * A::kStepChunks + A::chunk(lane, 0)) * 4);
#pragma unroll
        for (int i = 0; i < A::kRows; ++i)
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                uint32_t pair = loaded.bits[s][i][kAhead ? 2 * w : w];
                if constexpr (kAhead) pair |= loaded.bits[s][i][2 * w + 1] << 16;
                int word_of_chunk = static_cast<int>(pair & word(masks, w));
                in_a_register(word_of_chunk);  // it is not made again for every filter
                set_word(to.chunks[s][i][0], w, word_of_chunk);
            }
    }
}

// Brings filters to LDS, vectors of a lane behind each other: by filters, steps, atoms, then rows of the lane.
template <typename T, int kSteps, bool kAlongPixels>
HIPCONV_INLINE void stage_few_filters(const FewProductsParams& p, FewTables tables, Words4* filters, float* bias, int thread) {
    using P = RunAtom<T>;
    using A = typename P::A;
    const Conv2dParams& c = p.conv;
    const int count = p.filter_groups * kSteps * 2 * A::kRows * kWaveSize;
#pragma unroll 2
    for (int at = thread; at < count; at += kRunThreads) {
        const int lane = at % kWaveSize;
        int rest = at / kWaveSize;
        const int row = A::row(lane, rest % A::kRows);
        rest /= A::kRows;
        const int atom = rest % 2, s = rest / 2 % kSteps, group = rest / 2 / kSteps;
        const int filter =
            group * kRunFilters + (kAlongPixels ? atom * kRunFilters / 2 + row : P::template filter_of_column<2>(atom, row));
        const int first = (s * A::kStepChunks + A::chunk(lane, 0)) * 8;
        const uint64_t from = reinterpret_cast<uint64_t>(c.weight.data) + 2 * filter * c.weight.batch_stride;
        Words4 words{};
#pragma unroll
        for (int four = 0; four < 8; four += 4) {
            const Words4 offsets = words_of(tables.of_filter, first + four);
            uint32_t bits[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int offset = static_cast<int>(word(offsets, e));
                const bool exists = offset >= 0 && filter < c.out_channels;
                bits[e] = exists ? uint32_t{*global_pointer<const uint16_t>(from + 2 * int64_t{offset})} : 0;
            }
#pragma unroll
            for (int w = 0; w < 2; ++w) set_word(words, four / 2 + w, bits[2 * w] | bits[2 * w + 1] << 16);
        }
        filters[at] = words;
    }
    stage_bias(c, bias, p.filter_groups * kRunFilters, thread);
}

// Finishes and stores four sums of a filter, of the pixels from `number` on, which lie beside each other in out.
HIPCONV_INLINE void store_few_pixels(const FewProductsParams& p, float (&v)[4], int number, int filter) {
    const Conv2dParams& c = p.conv;
    const OutPixel first = out_pixel(p, number);
    if (c.residual.data) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const OutPixel at = out_pixel(p, number + i);
            v[i] += load_parameter(global_pointer<void>(c.residual.data), offset_in(c.residual, at.n, filter, at.p, at.q),
                                   c.residual_dtype);
        }
    }
    with_activation(c.activation, [&](Conv2dActivation kind) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = canonical_nan(activate(v[i], kind));
    });
    const int64_t out = offset_in(c.out, first.n, filter, first.p, first.q);
    store_rounded(v, reinterpret_cast<uint64_t>(c.out.data) + element_bytes(c.out_dtype) * out, c.out_dtype);
}

// Finishes and stores the sums of a tile by 16 filters from `first` on, that lie in scratch, one by one: lanes lie along
// pixels, so that elements of a sector are written together.
HIPCONV_INLINE void store_few_elements(const FewProductsParams& p, const float* scratch, int tile, int first, int lane) {
    const Conv2dParams& c = p.conv;
    const int number = tile * kRunPixels + lane % kRunPixels;
    if (number >= p.pixels) return;
    const OutPixel at = out_pixel(p, number);
    const int64_t out = offset_in(c.out, at.n, 0, at.p, at.q), residual = offset_in(c.residual, at.n, 0, at.p, at.q);
#pragma unroll 4
    for (int filter = lane / kRunPixels; filter < kFewScratchFilters; filter += kWaveSize / kRunPixels) {
        const int k = first + filter;
        if (k >= c.out_channels) break;
        float v = scratch[filter * kFewPitch + lane % kRunPixels];
        if (c.residual.data)
            v += load_parameter(global_pointer<void>(c.residual.data), residual + k * c.residual.channel_stride,
                                c.residual_dtype);
        if (c.activation != Conv2dActivation::none) v = activate(v, c.activation);
        store_rounded(global_pointer<void>(c.out.data), out + k * c.out.channel_stride, c.out_dtype, v);
    }
}

// Stores sums that are rounded to T, or `least` where they are less, beside each other. Where rounding would not keep a NaN,
// there is none.
template <typename T, int kCount>
HIPCONV_INLINE void store_simple(const float (&v)[kCount], float least, uint64_t address) {
    Words<uint16_t, kCount> words{};
#pragma unroll
    for (int w = 0; w < kCount / 2; ++w)
        set_word(words, w, pack<T>(make_pair(at_least(v[2 * w], least), at_least(v[2 * w + 1], least))));
    *global_pointer<Words<uint16_t, kCount>>(address) = words;
}

// T is a 16-bit type; where kHalvesShareKernels, f16 stands for both. A sum has kPieces times 32 products, or fewer.
template <typename T, int kPieces, bool kAlongPixels>
__global__ void HIPCONV_LAUNCH_BOUNDS(kRunThreads, few_products_blocks(kPieces, kAlongPixels))
    conv2d_few_products(HIPCONV_IN_PLACE const FewProductsParams parameter) {
    constexpr bool kIsLegal = kHasRunAtom<T>;
    HIPCONV_LARGE_SHARED(Words4, lds, kIsLegal && !kCopiesPastRegisters ? kFewProductsLds / 16 : 1);
    let_next_kernel_begin();
    if constexpr (kIsLegal) {
        using P = RunAtom<T>;
        using A = typename P::A;
        constexpr int kSteps = kPieces * 4 / A::kStepChunks, kWaves = kRunThreads / kWaveSize;
        constexpr int kGroupVectors = kSteps * 2 * A::kRows * kWaveSize;  // of 32 filters
        constexpr bool kLoadsAhead = kPieces == 1;                        // else registers would not do
        constexpr int kRun = P::kFilters;                                 // pixels of a lane, or filters, beside each other
        const FewProductsParams& p = first_parameter_again(parameter);
        const int thread = threadIdx.x, wave = thread / kWaveSize, lane = thread % kWaveSize;
        float* const bias = reinterpret_cast<float*>(lds + p.filter_groups * kGroupVectors);
        const FewTables tables = few_tables<kPieces>(reinterpret_cast<int*>(bias + p.filter_groups * kRunFilters));
        float* const scratch =
            reinterpret_cast<float*>(tables.masks + kPieces * kRunPiece) + wave * kFewScratchFilters * kFewPitch;
        const int of_lane = P::lane_of_filters(lane) * kRun, step = static_cast<int>(gridDim.x) * kWaves;
        // Waves of a block take tiles beside each other, so that they share x in the first cache, and lines of out. Where there
        // are fewer tiles than waves, blocks do, so that every compute unit has some.
        int tile = p.tiles >= step ? static_cast<int>(blockIdx.x) * kWaves + wave
                                   : static_cast<int>(blockIdx.x) + wave * static_cast<int>(gridDim.x);

        write_few_tables<kPieces>(p, tables, thread);
        __syncthreads();
        wait_for_kernel_before();
        stage_few_filters<T, kSteps, kAlongPixels>(p, tables, lds, bias, thread);
        __syncthreads();
        // Gathers a tile, and tells where its sums go: those of a lane's rows, or of the first of every four of its pixels.
        constexpr int kStored = kAlongPixels ? kRun / 4 : A::kRows;
        const auto gather = [&](FewLoaded<A, kSteps, kLoadsAhead>& to, int(&out)[kStored], int of_tile) {
            const FewProductsParams& here = first_parameter_again(parameter);
            FewPixel pixels[A::kRows];
#pragma unroll
            for (int i = 0; i < A::kRows; ++i) {
                const int row = A::row(lane, i);
                pixels[i] =
                    few_pixel(here, of_tile * kRunPixels + (kAlongPixels ? P::template filter_of_column<1>(0, row) : row));
                if constexpr (!kAlongPixels) out[i] = pixels[i].out;
            }
            if constexpr (kAlongPixels) {
#pragma unroll
                for (int part = 0; part < kStored; ++part)
                    out[part] = few_pixel(here, of_tile * kRunPixels + of_lane + 4 * part).out;
            }
            gather_pixels(to, here, tables, lane, pixels);
        };
        const float least = p.conv.activation == Conv2dActivation::relu ? 0.0f : -bit_cast<float>(0x7f800000u);
        const uint64_t address = reinterpret_cast<uint64_t>(p.conv.out.data);
        const int next_filter = static_cast<int>(p.conv.out.channel_stride);
        const int out_channels = p.conv.out_channels;
        const bool is_simple = p.simple;
        FewLoaded<A, kSteps, kLoadsAhead> loaded;
        int next_out[kStored];
        if (kLoadsAhead && tile < p.tiles) gather(loaded, next_out, tile);
#pragma unroll 1
        for (; tile < p.tiles; tile += step) {
            if constexpr (!kLoadsAhead) gather(loaded, next_out, tile);
            PixelChunks<A, kSteps> x;
            make_chunks(x, loaded, tables, lane);
            int out[kStored];
#pragma unroll
            for (int i = 0; i < kStored; ++i) out[i] = next_out[i];
            if (kLoadsAhead && tile + step < p.tiles) gather(loaded, next_out, tile + step);
            const Words4* filters = lds + lane;
#pragma unroll 1
            for (int first = 0; first < out_channels; first += kRunFilters) {
                typename A::Sums sums[2];
#pragma unroll
                for (int atom = 0; atom < 2; ++atom)
#pragma unroll
                    for (int e = 0; e < P::kElements; ++e) {
                        const int filter = kAlongPixels ? atom * (kRunFilters / 2) + A::row(lane, P::pixel_of(e))
                                                        : 2 * of_lane + atom * kRun + P::filter_of(e);
                        sums[atom][e] = bias[first + filter];
                    }
                // Calls store(v, at, filter, pixel) for the lane's sums that exist, those that lie beside each other at once:
                // their offset in out, but for the filter, the filter, and the pixel of the tile.
                const auto for_each_run = [&](auto store) {
                    if constexpr (kAlongPixels) {
#pragma unroll
                        for (int atom = 0; atom < 2; ++atom)
#pragma unroll
                            for (int i = 0; i < P::kPixels; ++i)
#pragma unroll
                                for (int part = 0; part < kRun; part += 4) {
                                    float v[4];
#pragma unroll
                                    for (int e = 0; e < P::kElements; ++e)
                                        if (P::pixel_of(e) == i && P::filter_of(e) / 4 * 4 == part)
                                            v[P::filter_of(e) % 4] = sums[atom][e];
                                    const int filter = first + atom * (kRunFilters / 2) + A::row(lane, i);
                                    if (out[part / 4] >= 0 && filter < out_channels)
                                        store(v, out[part / 4], filter, of_lane + part);
                                }
                    } else {
                        for_each_eight<P>(sums, [&](float(&v)[8], int i, int eight) {
                            const int filter = first + 2 * of_lane + eight;
                            if (out[i] >= 0 && filter < out_channels) store(v, out[i], filter, A::row(lane, i));
                        });
                    }
                };
                // Multiplies, and tells whether it has also stored the sums.
                const bool is_stored = with_halves<T>(p.conv.dtype, [&](auto like) {
#pragma unroll
                    for (int s = 0; s < kSteps; ++s)
#pragma unroll
                        for (int atom = 0; atom < 2; ++atom) {
                            Words4 f[A::kRows][1];
#pragma unroll
                            for (int i = 0; i < A::kRows; ++i) f[i][0] = filters[((s * 2 + atom) * A::kRows + i) * kWaveSize];
                            if constexpr (kAlongPixels)
                                P::template multiply<decltype(like)>(sums[atom], f, x.chunks[s]);
                            else
                                P::template multiply<decltype(like)>(sums[atom], x.chunks[s], f);
                        }
                    bool nan = false;
                    if constexpr (!kRoundsNan) {
#pragma unroll
                        for (int atom = 0; atom < 2; ++atom)
#pragma unroll
                            for (int e = 0; e < P::kElements; ++e) nan = nan || sums[atom][e] != sums[atom][e];
                    }
                    if (!is_simple || nan) return false;
                    for_each_run([&](const auto& v, int at, int filter, int) {
                        store_simple<decltype(like)>(v, least, address + 2 * int64_t{at + filter * next_filter});
                    });
                    return true;
                });
                filters += kGroupVectors;
                if (is_stored) continue;
                if (kAlongPixels && !p.by_vectors) {
#pragma unroll
                    for (int part = 0; part < kRunFilters; part += kFewScratchFilters) {
                        for_each_run([&](const auto& v, int, int filter, int pixel) {
                            const int of_part = filter - first - part;
#pragma unroll
                            for (int i = 0; i < static_cast<int>(sizeof(v) / sizeof(float)); ++i)
                                if (of_part >= 0 && of_part < kFewScratchFilters)
                                    scratch[of_part * kFewPitch + pixel + i] = v[i];
                        });
                        sync_wave();
                        store_few_elements(first_parameter_again(parameter), scratch, tile, first + part, lane);
                        sync_wave();  // what is there is stored
                    }
                    continue;
                }
                for_each_run([&](auto& v, int, int filter, int pixel) {
                    const FewProductsParams& here = first_parameter_again(parameter);
                    const int number = tile * kRunPixels + pixel;
                    if constexpr (kAlongPixels) {
                        store_few_pixels(here, v, number, filter);
                    } else {
                        const OutPixel of = out_pixel(here, number);
                        store_finished_eight(here.conv, v, offset_in(here.conv.out, of.n, filter, of.p, of.q),
                                             offset_in(here.conv.residual, of.n, filter, of.p, of.q), filter, here.by_vectors);
                    }
                });
            }
        }
    }
}

template <typename T, int kPieces, bool kAlongPixels>
void launch_few_products_instance(const FewProductsParams& p, unsigned blocks, int lds_bytes, void* stream) {
    const int shared = launch_shared_bytes(lds_bytes);
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(conv2d_few_products<T, kPieces, kAlongPixels>),
                              hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    HIPCONV_LAUNCH(true, (conv2d_few_products<T, kPieces, kAlongPixels>), dim3(blocks, 1, 1), dim3(kRunThreads, 1, 1), shared,
                   static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

}  // namespace hipconv
