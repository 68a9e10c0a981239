// Split-K by clusters: the blocks that share an output tile run at the same time. Each makes a share of the tile: the others
// send it their sums of that share, from LDS to LDS, and it adds them up in order.
#pragma once

#include "../gemm/warpgroup_epilogue.h"
#include "matrix/cluster.h"
#include "tile_scheduler.h"

namespace hipconv {

// The LDS that a block needs for what it gets from others, of a tile of so many sums.
HIPCONV_INLINE constexpr int cluster_sums_bytes(int sums, int parts) {
    return (sums / WarpgroupEpilogue::kFloats + parts - 1) / parts * (parts - 1) * WarpgroupEpilogue::kFloats * 4;
}

// Sums go as epilogue tiles, which the blocks of a cluster get in turn: block n % parts makes number n. `kSums` are those of a
// tile.
template <int kSums>
struct ClusterSplit {
    static constexpr int kPixels = WarpgroupEpilogue::kPixels, kFilters = WarpgroupEpilogue::kFilters;
    static constexpr int kFloats = kPixels * kFilters, kBytes = kFloats * 4, kEpilogueTiles = kSums / kFloats;
    int parts;
    SmallDivisor divide_by_parts;

    explicit HIPCONV_INLINE ClusterSplit(const SplitK& split) : parts(split.parts), divide_by_parts(split.divide_by_parts) {}

    // The epilogue tiles that a block makes.
    HIPCONV_INLINE int tiles_of(int rank) const { return divide(kEpilogueTiles - rank + parts - 1, divide_by_parts); }

    // One thread initialises two barriers: of the waves of the block when all have multiplied, and of the sums of the share,
    // which their threads write or other blocks send.
    HIPCONV_INLINE void init_barriers(Barrier* barriers, int waves) const {
        const int block = static_cast<int>(blockIdx.x);
        init_barrier(barriers, waves);
        init_barrier(barriers + 1, waves * 32 + 1);
        arrive_expect_bytes(barriers + 1, tiles_of(block - divide(block, divide_by_parts) * parts) * (parts - 1) * kBytes);
    }

    // Waits until all blocks have begun, and so have their barriers; threads have arrived there before.
    static HIPCONV_INLINE void wait_for_blocks() {
        sync_wave();
        wait_for_cluster();
    }

    // Stores the block's share of a tile. `sent` is where the rings were, and `received` has cluster_sums_bytes().
    template <typename T, bool kPlanes, int kTileN, int kBlocks>
    HIPCONV_INLINE void store_sums(const WarpgroupGemmParams& p, const WarpgroupTile& t, int waves,
                                   const WarpgroupSums<kTileN> (&sums)[kBlocks], const float (&lane_bias)[kTileN / 32],
                                   EpilogueLds lds, float* sent, float* received, Barrier* barriers, int thread) const {
        const int lane = thread % 32, wave = thread / 32;
        constexpr int kOfWave = kBlocks * (kTileN / kFilters);  // epilogue tiles
        lds.share_bias(lane_bias, lane);
        if (lane == 0) arrive(barriers);
        const int number = wave * kOfWave + lane, index = divide(number, divide_by_parts), rank = number - index * parts;
        wait_for_phase(barriers, 0);  // no wave reads the rings any more
#pragma unroll
        for (int i = 0; i < kOfWave; ++i) write_epilogue_tile(sums, i, lane, sent + (wave * kOfWave + i) * kFloats);
        fence_async_proxy();
        arrive(barriers + 1);  // every thread, for what it has written of the block's own part
        wait_for_blocks();
        if (lane < kOfWave && rank != t.part)
            copy_to_block(received + place_of_part(index, t.part, rank), sent + number * kFloats, kBytes, barriers + 1, rank);
        const Share<kTileN, kBlocks> share{*this, t, sent, received, lds.bias};
        if (p.gemm.vector_stores && p.gemm.along_filters)
            share.template store_vectors<kPlanes, true>(p, barriers + 1, waves * 32, thread);
        else if (p.gemm.vector_stores)
            share.template store_vectors<kPlanes, false>(p, barriers + 1, waves * 32, thread);
        else
            share.template store_elements<kPlanes>(p, barriers + 1, waves * 32, thread);
        wait_for_cluster();  // no block ends before the others have what it has sent them
    }

    // Where a block has the part of another one of its epilogue tile `index`, in floats.
    HIPCONV_INLINE int place_of_part(int index, int part, int rank) const {
        return (index * (parts - 1) + part - (part > rank ? 1 : 0)) * kFloats;
    }

  private:
    // The epilogue tiles that this block makes.
    template <int kTileN, int kBlocks>
    struct Share {
        const ClusterSplit& split;
        const WarpgroupTile& t;
        const float *sent, *received, *bias;

        // Adds up elements of all parts of epilogue tile `index` of the share, in order: add(part) has a part.
        template <typename Add>
        HIPCONV_INLINE void for_each_part(int index, const Add& add) const {
            const float* const own = sent + (t.part + index * split.parts) * kFloats;
            const float* next = received + index * (split.parts - 1) * kFloats;
#pragma unroll 2
            for (int part = 0; part < split.parts; ++part) {
                add(part == t.part ? own : next);
                if (part != t.part) next += kFloats;
            }
        }

        // Where outputs of epilogue tile `index` lie, from a pixel and a filter of it on.
        struct Place {
            int tile_filter, of_group;  // the epilogue tile's first filter, in the tile; the first output's, in the group
            bool has_pixel;
            OutPixel at;
            int64_t k;  // the first output's filter among all
        };
        template <bool kPlanes>
        HIPCONV_INLINE Place place_of(const WarpgroupGemmParams& p, int index, int pixel, int filter) const {
            constexpr int kAcross = kTileN / kFilters, kOfWave = kBlocks * kAcross;
            const uint32_t number = t.part + index * split.parts;
            const int of = number / kOfWave, inside = number % kOfWave;  // the wave that has multiplied it; which of its tiles
            const int first_pixel = (of / 4 * kBlocks + inside / kAcross) * kWarpgroupPixels + of % 4 * kPixels;
            const int tile_filter = inside % kAcross * kFilters, of_group = t.first_filter + tile_filter + filter;
            const WarpgroupPixels pixels{columns_of<kPlanes>(p), t, first_pixel};
            return {tile_filter, of_group, pixels.has(p.gemm, pixel), pixels.at(p.gemm, pixel),
                    static_cast<int64_t>(t.group) * p.gemm.group_filters + of_group};
        }

        HIPCONV_INLINE void wait_for_parts(const Barrier* have_come) const {
            wait_for_phase(have_come, 0);
            sync_wave();
            arrive_at_cluster();
        }

        // A thread makes vectors of eight elements along out's filters or pixels. It finds the first one's place, and loads the
        // residual, before the sums are there.
        template <bool kPlanes, bool kAlongFilters>
        HIPCONV_INLINE void store_vectors(const WarpgroupGemmParams& p, const Barrier* have_come, int threads,
                                          int thread) const {
            constexpr int kVectors = kFloats / 8;
            const ConvGemmParams& g = p.gemm;
            const Conv2dParams& c = g.conv;
            const int vectors = split.tiles_of(t.part) * kVectors;
#pragma unroll 1
            for (int begin = 0; begin < vectors; begin += threads) {
                const uint32_t number = begin + thread, of = number % kVectors;
                const int index = number / kVectors;
                const int pixel = kAlongFilters ? of / (kFilters / 8) : of % (kPixels / 8) * 8;
                const int filter = kAlongFilters ? of % (kFilters / 8) * 8 : of / (kPixels / 8);
                const Place place = place_of<kPlanes>(p, index, pixel, filter);
                const bool is_there = static_cast<int>(number) < vectors && place.of_group < g.group_filters && place.has_pixel;
                const int64_t to = offset_in(c.out, place.at.n, place.k, place.at.p, place.at.q);
                float v[8] = {}, more[8] = {};
                if (is_there && c.residual.data)
                    load_eight(more, c.residual.data, offset_in(c.residual, place.at.n, place.k, place.at.p, place.at.q),
                               c.residual_dtype);
                if (begin == 0) wait_for_parts(have_come);
                if (!is_there) continue;
                for_each_part(index, [&](const float* from) {
                    if constexpr (kAlongFilters) {
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            const Words4 four =
                                *reinterpret_cast<const Words4*>(&from[epilogue_index<kFilters>(pixel, filter + half * 4)]);
#pragma unroll
                            for (int e = 0; e < 4; ++e) v[half * 4 + e] += bit_cast<float>(word(four, e));
                        }
                    } else {
#pragma unroll
                        for (int i = 0; i < 8; ++i) v[i] += from[epilogue_index<kFilters>(pixel + i, filter)];
                    }
                });
                BiasInLds{bias + place.tile_filter}.add_to(v, filter, kAlongFilters);
                if (c.residual.data) {
#pragma unroll
                    for (int i = 0; i < 8; ++i) v[i] += more[i];
                }
                activate_eight(v, c.activation);
                store_eight(v, c.out.data, to, c.out_dtype);
            }
        }

        // A thread makes four filters of a pixel, and stores them by elements; lanes lie along the denser of out's filters and
        // pixels. It finds the first one's place before the sums are there.
        template <bool kPlanes>
        HIPCONV_INLINE void store_elements(const WarpgroupGemmParams& p, const Barrier* have_come, int threads,
                                           int thread) const {
            constexpr int kEach = 4, kUnits = kFloats / kEach, kAcross = kFilters / kEach;
            const ConvGemmParams& g = p.gemm;
            const Conv2dParams& c = g.conv;
            const int units = split.tiles_of(t.part) * kUnits;
#pragma unroll 1
            for (int begin = 0; begin < units; begin += threads) {
                const uint32_t number = begin + thread, of = number % kUnits;
                const int index = number / kUnits;
                const int pixel = g.along_filters ? of / kAcross : of % kPixels;
                const int filter = (g.along_filters ? of % kAcross : of / kPixels) * kEach;
                const Place place = place_of<kPlanes>(p, index, pixel, filter);
                const bool is_there = static_cast<int>(number) < units && place.has_pixel;
                const auto offset = [&](const auto& tensor) {
                    return offset_in(tensor, place.at.n, place.k, place.at.p, place.at.q);
                };
                const int64_t to = offset(c.out), from_residual = c.residual.data ? offset(c.residual) : 0;
                float v[kEach] = {};
                if (begin == 0) wait_for_parts(have_come);
                if (!is_there) continue;
                for_each_part(index, [&](const float* from) {
                    const Words4 four = *reinterpret_cast<const Words4*>(&from[epilogue_index<kFilters>(pixel, filter)]);
#pragma unroll
                    for (int e = 0; e < kEach; ++e) v[e] += bit_cast<float>(word(four, e));
                });
#pragma unroll
                for (int e = 0; e < kEach; ++e)
                    if (place.of_group + e < g.group_filters)
                        conv2d_store_at(
                            c, place.k + e, [&] { return to + e * c.out.channel_stride; },
                            [&] { return from_residual + e * c.residual.channel_stride; }, v[e]);
            }
        }
    };
};

}  // namespace hipconv
