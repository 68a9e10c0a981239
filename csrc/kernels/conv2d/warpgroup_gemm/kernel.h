// The kernel of params.h. A block takes tile after tile; its producers are ahead of its consumers by what the
// rings hold, across tiles too, so that the products stop only while sums leave the registers.
#pragma once

#include "../gemm/epilogue.h"
#include "launch/check.h"
#include "matrix/warpgroup_mma.h"
#include "params.h"

namespace hipconv {

// ---- tiles and rings --------------------------------------------------------------------------------------------------

struct WarpgroupTile {
    int part, group, first_filter;
    int image, row, column;  // of the first pixel, or of the patch's
    int first_pixel;         // numbered through; not of patches
    int first_filling, end_filling;
};

template <int kTileM>
HIPCONV_INLINE WarpgroupTile warpgroup_tile(const WarpgroupGemmParams& p, int number) {
    const ConvGemmParams& g = p.gemm;
    WarpgroupTile t{};
    t.part = number / p.tiles_a_part;
    number -= t.part * p.tiles_a_part;
    // Tiles of the same pixels follow each other, so that they find x in the cache.
    int tile_m = static_cast<int>(divide(number, g.divide_by_tiles_n));
    t.first_filter = (number - tile_m * g.tiles_n) * p.tile_n;
    const int of_image = static_cast<int>(divide(tile_m, g.divide_by_tiles_m));
    tile_m -= of_image * g.tiles_m;
    if (p.patches) {  // images of a group follow each other, then groups
        t.group = of_image / g.conv.batch;
        t.image = of_image - t.group * g.conv.batch;
        const int down = static_cast<int>(divide(tile_m, g.divide_by_patches));
        t.row = down * (kTileM / p.patch_columns);
        t.column = (tile_m - down * g.patches_across) * p.patch_columns;
    } else {
        t.group = of_image;
        t.first_pixel = tile_m * kTileM;
        t.image = static_cast<int>(divide(t.first_pixel, g.divide_by_image));
        const int pixel = t.first_pixel - t.image * g.conv.out_height * g.conv.out_width;
        t.row = static_cast<int>(divide(pixel, g.divide_by_row));
        t.column = pixel - t.row * g.conv.out_width;
    }
    t.first_filling = t.part * p.fillings_a_part;
    t.end_filling = t.first_filling + p.fillings_a_part < p.fillings ? t.first_filling + p.fillings_a_part : p.fillings;
    return t;
}

// Its pixels, as the way out asks for them.
struct WarpgroupPixels {
    int patch_columns;
    const WarpgroupTile& tile;
    int first;

    HIPCONV_INLINE PixelOfOut at(const ConvGemmParams& p, int i) const {
        switch (patch_columns) {
            case kNarrow: return patch<kNarrow>().at(p, i);
            case kWide: return patch<kWide>().at(p, i);
            default: return run().at(p, i);
        }
    }
    HIPCONV_INLINE bool has(const ConvGemmParams& p, int i) const {
        switch (patch_columns) {
            case kNarrow: return patch<kNarrow>().has(p, i);
            case kWide: return patch<kWide>().has(p, i);
            default: return run().has(p, i);
        }
    }

  private:
    template <int kColumns>
    HIPCONV_INLINE PixelPatch<kColumns> patch() const {
        return {tile.image, tile.row, tile.column, first};
    }
    HIPCONV_INLINE PixelRun run() const { return {tile.image, tile.first_pixel + first}; }
};

// A filling's channels and tap, from its number: taps follow each other for the same channels.
struct Filling {
    int turn, tap, row, column;

    HIPCONV_INLINE Filling(const WarpgroupGemmParams& p, int number) : turn(number), tap(0), row(0), column(0) {
        if (p.patches) return;
        turn = number / p.gemm.taps;
        tap = number - turn * p.gemm.taps;
        row = tap / p.gemm.conv.kernel_width;
        column = tap - row * p.gemm.conv.kernel_width;
    }
    HIPCONV_INLINE void advance(const WarpgroupGemmParams& p) {
        if (p.patches || ++tap == p.gemm.taps) {
            tap = row = column = 0;
            ++turn;
        } else if (++column == p.gemm.conv.kernel_width) {
            column = 0;
            ++row;
        }
    }
};

// Where in a ring: producers wait for parity ^ 1 of its "free" barriers, consumers for parity of its "full" ones.
struct RingPlace {
    int stage = 0, parity = 0;

    HIPCONV_INLINE void advance(int stages) {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct Ring {
    Words4* tiles;
    int chunks, stages;  // of a tile
    Barrier *full, *free;

    HIPCONV_INLINE Words4* at(RingPlace place) const { return tiles + place.stage * chunks; }
};

// ---- x, brought by waves ----------------------------------------------------------------------------------------------

// Threads take blocks of eight pixels by eight channels in turns, lanes along channels, so that in LDS they lie along a row. The
// pixels are eight after one another of a row of x, from a multiple of eight on, or of an image where taps are 1x1.
template <int kTileM, int kThreads>
HIPCONV_INLINE void gather_filling(const WarpgroupGemmParams& p, const WarpgroupTile& t, int turn, int thread, Words4* to) {
    constexpr int kRowsOfX = kTileM / kWide + kPatchTaps - 1, kPitch = kWide + kPatchTaps - 1;
    constexpr int kAcross = (kPitch + 7 + 7) / 8;  // blocks that a row of a patch touches, wherever it begins
    const Conv2dParams& c = p.gemm.conv;
    const int chunk = thread % kTileChunks, channels = p.gemm.group_channels - turn * 64 - chunk * 8;  // that there are
    const int y = t.row - c.pad_top, x = t.column - c.pad_left, begins_at = x & 7;
    const int64_t first_channel = static_cast<int64_t>(t.group) * p.gemm.group_channels + turn * 64 + chunk * 8;
    const char* const base = global_pointer<const char>(c.x.data) +
                             (first_channel * c.x.channel_stride + (p.patches ? t.image * c.x.batch_stride : 0)) * 2;
    const int blocks = p.patches ? kRowsOfX * kAcross : kTileM / 8;
#pragma unroll 1
    for (int block = thread / kTileChunks; block < blocks; block += kThreads / kTileChunks) {
        int64_t offset;
        bool is_inside;
        int row, column = 0;  // of LDS, of the block's first pixel; of the patch: those of its pixels that are in it are wanted
        if (p.patches) {
            const int down = block / kAcross;
            column = (block - down * kAcross) * 8 - begins_at;
            is_inside = y + down >= 0 && y + down < c.in_height && x + column >= 0 && x + column < c.in_width;
            offset = static_cast<int64_t>(y + down) * c.x.row_stride + x + column;
            row = down * kPitch + column;
        } else {
            const int pixel = t.first_pixel + block * 8, n = static_cast<int>(divide(pixel, p.gemm.divide_by_image));
            is_inside = pixel < p.gemm.pixels;
            offset = n * c.x.batch_stride + (pixel - n * c.out_height * c.out_width);
            row = block * 8;
        }
        const char* from = base + offset * 2;
        Words4 loaded[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            loaded[i] = Words4{};
            if (is_inside && i < channels) loaded[i] = *reinterpret_cast<const Words4*>(from);
            from += c.x.channel_stride * 2;
        }
#pragma unroll
        for (int pixel = 0; pixel < 8; ++pixel) {
            Words4 words{};
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const uint32_t low = word(loaded[2 * n], pixel / 2), high = word(loaded[2 * n + 1], pixel / 2);
                set_word(words, n, pixel % 2 ? low >> 16 | (high & 0xffff0000u) : (low & 0xffffu) | high << 16);
            }
            if (static_cast<uint32_t>(column + pixel) < kPitch) to[chunk_at(row + pixel, chunk)] = words;
        }
    }
}

template <int kTileM, int kThreads>
HIPCONV_INLINE void gather_x(const WarpgroupGemmParams& p, int thread, const Ring& ring) {
    RingPlace place;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
#pragma unroll 1
        for (int filling = t.first_filling; filling < t.end_filling; ++filling) {  // which is a turn
            wait_for(&ring.free[place.stage], place.parity ^ 1);
            int again = number;  // cheaper than to keep what follows from it
            from_here_on(again);
            gather_filling<kTileM, kThreads>(p, warpgroup_tile<kTileM>(p, again), filling, thread, ring.at(place));
            show_lds_to_matrix_cores();
            arrive(&ring.full[place.stage]);
            place.advance(ring.stages);
        }
    }
}

// ---- the producers ----------------------------------------------------------------------------------------------------

// One thread: a box of filters a step.
template <int kTileM, int kTileN>
HIPCONV_INLINE void bring_filters(const WarpgroupGemmParams& p, const Ring& ring) {
    RingPlace place;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
        const Filling first(p, t.first_filling);
        int turn = first.turn, tap = first.tap;
        const int steps = (t.end_filling - t.first_filling) * p.taps_a_filling;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            wait_for(&ring.free[place.stage], place.parity ^ 1);
            arrive_expecting(&ring.full[place.stage], kTileN * kTileRowBytes);
            copy_box(ring.at(place), p.filters, &ring.full[place.stage],
                     {turn * 64, tap, t.group * p.gemm.group_filters + t.first_filter});
            place.advance(ring.stages);
            if (++tap == p.gemm.taps) {
                tap = 0;
                ++turn;
            }
        }
    }
}

// One thread: a box of x a filling.
template <int kTileM>
HIPCONV_INLINE void bring_x(const WarpgroupGemmParams& p, const Ring& ring) {
    const Conv2dParams& c = p.gemm.conv;
    RingPlace place;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
        Filling f(p, t.first_filling);
#pragma unroll 1
        for (int filling = t.first_filling; filling < t.end_filling; ++filling) {
            Barrier* const full = &ring.full[place.stage];
            const int channel = t.group * p.gemm.group_channels + f.turn * 64;
            wait_for(&ring.free[place.stage], place.parity ^ 1);
            arrive_expecting(full, (p.patches ? patch_rows(kTileM, kNarrow) : kTileM) * kTileRowBytes);
            if (p.patches)
                copy_box(ring.at(place), p.x, full, {channel, t.column - c.pad_left, t.row - c.pad_top, t.image});
            else
                copy_pixels(ring.at(place), p.x, full,
                            {channel, t.column * c.stride_w - c.pad_left, t.row * c.stride_h - c.pad_top, t.image},
                            f.row * c.dilation_h, f.column * c.dilation_w);
            f.advance(p);
            place.advance(ring.stages);
        }
    }
}

// ---- sums -------------------------------------------------------------------------------------------------------------

// A lane's share of a tile's bias, zeros if there is none: it comes while the products are made.
template <typename B, int kEach>
HIPCONV_INLINE void load_bias(const void* bias, int64_t first, int64_t stride, int filters, int lane, float (&to)[kEach]) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int filter = lane + i * 32;
        to[i] = filter < filters ? to_float(static_cast<const B*>(bias)[(first + filter) * stride]) : 0.0f;
    }
}

template <int kEach>
HIPCONV_INLINE void load_bias(const WarpgroupGemmParams& p, const WarpgroupTile& t, int lane, float (&to)[kEach]) {
    const Conv2dParams& c = p.gemm.conv;
    const void* bias = global_pointer<const void>(c.bias);
    const int64_t first = static_cast<int64_t>(t.group) * p.gemm.group_filters + t.first_filter;
    const int filters = c.bias ? p.gemm.group_filters - t.first_filter : 0;
    switch (c.bias_dtype) {
        case DType::f32: return load_bias<float>(bias, first, c.bias_stride, filters, lane, to);
        case DType::f16: return load_bias<f16>(bias, first, c.bias_stride, filters, lane, to);
        case DType::bf16: return load_bias<bf16>(bias, first, c.bias_stride, filters, lane, to);
    }
}

// A thread's sums of 32 filters, number `number` of all, from number kNumber on: of each 8 filters, two of one pixel and two of
// another.
template <int kNumber, int kTileN, int kBlocks>
HIPCONV_INLINE void take_sums(const WarpgroupSums<kTileN> (&sums)[kBlocks], int number, float (&v)[16]) {
    if constexpr (kNumber < kBlocks * kTileN / 32) {
        if (number != kNumber) return take_sums<kNumber + 1>(sums, number, v);
#pragma unroll
        for (int i = 0; i < 16; ++i) v[i] = sums[kNumber / (kTileN / 32)].values[kNumber % (kTileN / 32) * 16 + i];
        keep_apart<kNumber>();
    }
}

// To out of 16 bits: rounded where they are, then turned between lanes. Where eight elements are aligned, until each lane has
// eight after one another; else until lanes lie along pixels, each with two. In a loop that is not unrolled, because the
// activations are long.
template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE void store_halves(const WarpgroupGemmParams& p, const WarpgroupTile& t,
                                 const WarpgroupSums<kTileN> (&sums)[kBlocks], const float* bias, int wave_pixel, int lane) {
    const ConvGemmParams& g = p.gemm;
    const Conv2dParams& c = g.conv;
    const int of_four = lane % 4, row = lane / 4;
    const int64_t first_filter = static_cast<int64_t>(t.group) * g.group_filters + t.first_filter;
    const int filters = g.group_filters - t.first_filter;
    // The pixels that this lane stores: two and eight filters of each; eight after one another; or two and two.
    const int first_pixel = g.along_filters ? row : g.vector_stores ? of_four % 2 * 8 : of_four * 2;
    const int filter = g.along_filters ? of_four * 8 : g.vector_stores ? of_four / 2 * 8 + row : row;  // of 32
    T* place[4] = {};  // of first_pixel, that + 8, and of the pixels behind these
    bool is_inside[4] = {};
#pragma unroll 1
    for (int number = 0; number < kBlocks * kTileN / 32; ++number) {
        const int first = number % (kTileN / 32) * 32;
        if (first == 0) {
            const WarpgroupPixels pixels{p.patch_columns, t, wave_pixel + number / (kTileN / 32) * kWarpgroupPixels};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int pixel = first_pixel + i % 2 * 8 + i / 2;
                is_inside[i] = pixels.has(g, pixel);
                const PixelOfOut at = pixels.at(g, pixel);
                place[i] = global_pointer<T>(c.out.data) +
                           offset_in(c.out, at.n, first_filter + filter, at.p, at.q);
                if (i == 1 && (g.along_filters || g.vector_stores)) break;
            }
        }
        float v[16];
        take_sums<0>(sums, number, v);
        uint32_t words[2][4];  // of the first and the second pixel of this thread's sums, two filters of eight each
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Words2 more = *reinterpret_cast<const Words2*>(&bias[first + i * 8 + of_four * 2]);
#pragma unroll
            for (int e = 0; e < 4; ++e) v[i * 4 + e] += bit_cast<float>(word(more, e % 2));
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float eight[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) eight[i] = v[half * 8 + i];
            activate_eight(eight, c.activation);
#pragma unroll
            for (int i = 0; i < 4; ++i) words[i % 2][half * 2 + i / 2] = pack<T>(make_pair(eight[i * 2], eight[i * 2 + 1]));
        }
        if (g.along_filters) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                turn_in_fours(words[i], lane);
                Words4 eight{};
#pragma unroll
                for (int n = 0; n < 4; ++n) set_word(eight, n, words[i][n]);
                if (is_inside[i] && first + filter < filters) *reinterpret_cast<Words4*>(place[i] + first) = eight;
            }
        } else if (g.vector_stores) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {  // 16 filters each
                uint32_t turned[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) turned[i] = turn_8x8(words[i % 2][half * 2 + i / 2], lane);
                turn_in_fours(turned, lane);
                Words4 eight{};
#pragma unroll
                for (int n = 0; n < 4; ++n) set_word(eight, n, turned[n]);
                if (is_inside[0] && first + half * 16 + filter < filters)
                    *reinterpret_cast<Words4*>(place[0] + (first + half * 16) * c.out.channel_stride) = eight;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int eight = i / 2 * 8;  // filters
                const uint32_t two = turn_8x8(words[i % 2][i / 2], lane);
                if (first + eight + filter >= filters) continue;
                const int64_t offset = (first + eight) * c.out.channel_stride;
                if (g.pair_stores) {  // then both are inside or none is
                    if (is_inside[i % 2]) *reinterpret_cast<uint32_t*>(place[i % 2] + offset) = two;
                    continue;
                }
                if (is_inside[i % 2]) place[i % 2][offset] = bit_cast<T>(static_cast<uint16_t>(two));
                if (is_inside[2 + i % 2]) place[2 + i % 2][offset] = bit_cast<T>(static_cast<uint16_t>(two >> 16));
            }
        }
    }
}

// A thread's share of slab `number` of a wave.
template <int kTileN, int kBlocks>
HIPCONV_INLINE void write_slab(const WarpgroupSums<kTileN> (&sums)[kBlocks], int number, int lane, float* slab) {
    float v[16];
    take_sums<0>(sums, number, v);
#pragma unroll
    for (int e = 0; e < 16; e += 2) {
        Words2 both{};
        set_word(both, 0, bit_cast<uint32_t>(v[e]));
        set_word(both, 1, bit_cast<uint32_t>(v[e + 1]));
        const int at = slab_at<WarpgroupShape::kSlabFilters>(sums[0].pixel(lane, e), sums[0].filter(lane, e));
        *reinterpret_cast<Words2*>(&slab[at]) = both;
    }
}

// The bias of a slab's filters, in LDS.
struct BiasInLds {
    const float* values;

    HIPCONV_INLINE void add_to(float (&v)[8], int filter, bool of_each) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] += values[of_each ? filter + i : filter];
    }
};

// Everything else goes through each wave's slab, 16 pixels by 32 filters, and from there by lanes along what is dense in out. One
// slab after the other, in a loop that is not unrolled: the way out is long.
template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE void store_sums(const WarpgroupGemmParams& p, const WarpgroupTile& t, const WarpgroupSums<kTileN> (&sums)[kBlocks],
                               const float (&lane_bias)[kTileN / 32], float* slabs, int thread) {
    constexpr int kPixels = WarpgroupShape::kSlabPixels, kFilters = WarpgroupShape::kSlabFilters, kSlabs = kTileN / kFilters;
    const ConvGemmParams& g = p.gemm;
    const Conv2dParams& c = g.conv;
    const int of_warpgroup = thread % kWarpgroupThreads, lane = thread % 32;
    const int wave_pixel = thread / kWarpgroupThreads * kBlocks * kWarpgroupPixels + of_warpgroup / 32 * kPixels;
    float* const slab = slabs + thread / 32 * WarpgroupShape::slab_floats(kTileN);
    float* const bias = slab + kPixels * kFilters;
    sync_wave();  // the tile before has left
#pragma unroll
    for (int i = 0; i < kTileN / 32; ++i) bias[lane + i * 32] = lane_bias[i];
    sync_wave();  // the bias is there
    const bool is_of_halves = c.out_dtype == (kIsBf16<T> ? DType::bf16 : DType::f16) && !c.residual.data;
    if (is_of_halves && (g.vector_stores || !g.along_filters))
        return store_halves<T>(p, t, sums, bias, wave_pixel, lane);
#pragma unroll 1
    for (int number = 0; number < kBlocks * kSlabs; ++number) {
        const WarpgroupPixels pixels{p.patch_columns, t, wave_pixel + number / kSlabs * kWarpgroupPixels};
        const int first_filter = number % kSlabs * kFilters;
        sync_wave();  // the slab before is read
        write_slab(sums, number, lane, slab);
        sync_wave();
        store_slab<kPixels, kFilters>(g, slab, lane, pixels, t.first_filter + first_filter, t.group, t.part,
                                      BiasInLds{bias + first_filter});
    }
}

// ---- the kernel -------------------------------------------------------------------------------------------------------

template <typename T, int kTileM, int kTileN, bool kByBoxes>
__global__ void HIPCONV_LAUNCH_BOUNDS((warpgroup_shape(kTileM, kTileN, kByBoxes).threads()),
                                      (warpgroup_shape(kTileM, kTileN, kByBoxes).blocks_a_unit))
    conv2d_warpgroup_gemm_kernel(HIPCONV_IN_PLACE const WarpgroupGemmParams p) {
    constexpr WarpgroupShape kShape = warpgroup_shape(kTileM, kTileN, kByBoxes);
    HIPCONV_LARGE_SHARED(Words4, lds, kHasWarpgroups ? kShape.shared_bytes() / 16 : 1);
    if constexpr (kHasWarpgroups) {
        constexpr int kWarpgroups = kShape.consumers() / kWarpgroupThreads, kBlocks = kTileM / kWarpgroupPixels / kWarpgroups;
        constexpr int kLoaders = kByBoxes ? 1 : kShape.producers - 32;  // threads that bring x
        const int thread = threadIdx.x, wave = thread / 32, lane = thread % 32;

        Barrier* const barriers = reinterpret_cast<Barrier*>(lds + kShape.barriers_at() / 16);
        const int stages = kShape.stages(p.patches);
        const Ring x{lds, (p.patches ? kShape.patch_bytes() : kShape.run_bytes()) / 16, p.patches ? 2 : stages, barriers,
                     barriers + kMostStages};
        const Ring filters{lds + kShape.x_bytes(p.patches) / 16, kShape.filter_bytes() / 16, stages, barriers + 2 * kMostStages,
                           barriers + 3 * kMostStages};
        if (thread == 0) {
            if constexpr (kByBoxes) fetch_map(p.x);
            fetch_map(p.filters);
            for (int i = 0; i < kMostStages; ++i) {
                begin_barrier(&x.full[i], kLoaders);
                begin_barrier(&filters.full[i], 1);
                begin_barrier(&x.free[i], kShape.consumers() / 32);
                begin_barrier(&filters.free[i], kShape.consumers() / 32);
            }
            show_barriers_to_copy_engine();
        }
        __syncthreads();
        let_next_kernel_begin();
        wait_for_kernel_before();

        constexpr int kFirstProducer = kShape.consumers() / 32, kFirstLoader = kShape.consumers() + 32;
        if (wave >= kFirstProducer) {
            if constexpr (kShape.producer_registers != 0) give_back_registers<kShape.producer_registers>();
            if (wave == kFirstProducer) {
                if (lane == 0) bring_filters<kTileM, kTileN>(p, filters);
            } else if constexpr (kByBoxes) {
                if (thread == kFirstLoader) bring_x<kTileM>(p, x);
            } else {
                gather_x<kTileM, kLoaders>(p, thread - kFirstLoader, x);
            }
            return;
        }
        if constexpr (kShape.consumer_registers != 0) take_registers<kShape.consumer_registers>();

        const int first_row = wave / 4 * kBlocks * kWarpgroupPixels;  // of the warpgroup's pixels
        const int first_block_row = first_row / kWarpgroupPixels * p.rows_of_64;
        RingPlace x_place, filter_place;
        for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
            const WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
            WarpgroupSums<kTileN> sums[kBlocks];
            float bias[kTileN / 32];
            load_bias(p, t, lane, bias);
            int read_filters = -1, read_x = -1;  // stages that the step before read last
            bool keeps_sums = false;
#pragma unroll 1
            for (int filling = t.first_filling; filling < t.end_filling; ++filling) {
                wait_for(&x.full[x_place.stage], x_place.parity);
                int tap_row = 0, column = 0;  // of LDS, behind that of the first tap; of the tap
#pragma unroll 1
                for (int tap = 0; tap < p.taps_a_filling; ++tap) {
                    wait_for(&filters.full[filter_place.stage], filter_place.parity);
                    begin_products();
#pragma unroll
                    for (int k = 0; k < 64; k += kProductDepth) {
#pragma unroll
                        for (int block = 0; block < kBlocks; ++block) {
                            const int row = first_block_row + block * p.rows_of_64 + tap_row;
                            multiply<T>(sums[block], x.at(x_place), row, p.group_bytes, filters.at(filter_place), k * 2,
                                        keeps_sums || k > 0);
                        }
                    }
                    end_products();
                    wait_for_products<1>();
                    if (lane == 0) {  // the step before is done
                        if (read_filters >= 0) arrive(&filters.free[read_filters]);
                        if (read_x >= 0) arrive(&x.free[read_x]);
                    }
                    keeps_sums = true;
                    read_filters = filter_place.stage;
                    read_x = -1;
                    filter_place.advance(filters.stages);
                    ++tap_row;
                    if (++column == kPatchTaps) {
                        column = 0;
                        tap_row += p.patch_pitch - kPatchTaps;
                    }
                }
                read_x = x_place.stage;
                x_place.advance(x.stages);
            }
            wait_for_products<0>();
            if (lane == 0) {
                arrive(&filters.free[read_filters]);
                arrive(&x.free[read_x]);
            }
#pragma unroll
            for (int block = 0; block < kBlocks; ++block) show(sums[block]);
            int again = number;
            from_here_on(again);
            if (p.split.parts > 1) {
                const int part = again / p.tiles_a_part, tile = again - part * p.tiles_a_part;
                if (!add_other_parts(p.split, tile, part, kShape.consumers() / 32, thread_again(), sums)) continue;
            }
            float* const slabs = reinterpret_cast<float*>(lds + kShape.slabs_at() / 16);
            store_sums<T>(p, warpgroup_tile<kTileM>(p, again), sums, bias, slabs, thread_again());
        }
    }
}

// ---- launches ---------------------------------------------------------------------------------------------------------

template <typename T, int kTileM, int kTileN, bool kByBoxes>
void launch_warpgroup_instance(const WarpgroupGemmParams& p, int units, void* stream) {
    constexpr WarpgroupShape kShape = warpgroup_shape(kTileM, kTileN, kByBoxes);
    const auto kernel = conv2d_warpgroup_gemm_kernel<T, kTileM, kTileN, kByBoxes>;
    // A compute unit each, if there are enough: blocks that begin early would else share those that are free first.
    const bool are_alone = kShape.blocks_a_unit > 1 && p.tiles <= units;
    const int shared = launch_shared_bytes(are_alone ? WarpgroupShape::kMostBytes / 2 + 1024 : kShape.shared_bytes());
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    const int blocks = units * kShape.blocks_a_unit;
    const dim3 grid(p.tiles < blocks ? p.tiles : blocks, 1, 1), block(kShape.threads(), 1, 1);
    HIPCONV_LAUNCH(true, (conv2d_warpgroup_gemm_kernel<T, kTileM, kTileN, kByBoxes>), grid, block, shared,
                   static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

template <bool kByBoxes>
void launch_warpgroup_gemm(const WarpgroupGemmParams& p, Conv2dTile tile, int units, void* stream) {
    const auto by_type = [&](auto launch_bf16, auto launch_f16) {
        (p.gemm.conv.dtype == DType::bf16 ? launch_bf16 : launch_f16)(p, units, stream);
    };
    if constexpr (kByBoxes) {
        if (tile.tile_m == 256)
            return by_type(launch_warpgroup_instance<bf16, 256, 128, true>, launch_warpgroup_instance<f16, 256, 128, true>);
        if (tile.tile_m == 64)
            return by_type(launch_warpgroup_instance<bf16, 64, 64, true>, launch_warpgroup_instance<f16, 64, 64, true>);
    }
    if (tile.tile_n == 128)
        return by_type(launch_warpgroup_instance<bf16, 128, 128, kByBoxes>, launch_warpgroup_instance<f16, 128, 128, kByBoxes>);
    by_type(launch_warpgroup_instance<bf16, 128, 64, kByBoxes>, launch_warpgroup_instance<f16, 128, 64, kByBoxes>);
}

}  // namespace hipconv
