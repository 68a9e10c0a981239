// The epilogue of a tile: its warpgroups store their sums.
#pragma once

#include "../gemm/warpgroup_epilogue.h"
#include "matrix/store_matrix.h"
#include "tile_scheduler.h"

namespace hipconv {

// Returns a thread's number among those that make its tile, which in turns are those of a warpgroup.
template <bool kInTurns>
HIPCONV_INLINE int thread_of_tile() {
    return kInTurns ? thread_again() % kWarpgroupThreads : thread_again();
}

// ---- by TMA -------------------------------------------------------------------------------------------------------------

// Stores a tile along filters. A wave writes its sums of 16 pixels, by 128 bytes of filters, to its epilogue tile, as a box of
// out; one lane has it stored, while the wave goes on.
template <typename T, bool kInTurns, int kTileN, int kBlocks>
HIPCONV_INLINE void store_boxes_of_filters(const WarpgroupGemmParams& p, const WarpgroupTile& t,
                                           const WarpgroupSums<kTileN> (&sums)[kBlocks], EpilogueLds lds) {
    constexpr int kFilters = kTileRowBytes / static_cast<int>(sizeof(T)), kPieces = kTileN / kFilters;
    Words4* const box = reinterpret_cast<Words4*>(lds.tile);
#pragma unroll 1
    for (int number = 0; number < kBlocks * kPieces; ++number) {
        const int first = number % kPieces * kFilters;
        if (t.first_filter + first >= p.gemm.group_filters) continue;
        const int lane = thread_again() % 32, row = lane / 4, of_four = lane % 4;  // places are not kept beside the sums
        float v[kFilters / 2];
        finish_piece(p.gemm.conv, sums, number, lds.bias, first, lane, v);
        if (lane == 0) wait_for_stores();
        sync_wave();  // the box before is read
#pragma unroll
        for (int i = 0; i < kFilters / 4; ++i) {  // of eight filters, this thread's two of a pixel
            const int of_box = row + i % 2 * 8;
            if constexpr (sizeof(T) == 2) {
                reinterpret_cast<uint32_t*>(&box[swizzled_chunk(of_box, i / 2)])[of_four] =
                    pack<T>(make_pair(v[i * 2], v[i * 2 + 1]));
            } else {
                Words2 two{};
                set_word(two, 0, bit_cast<uint32_t>(v[i * 2]));
                set_word(two, 1, bit_cast<uint32_t>(v[i * 2 + 1]));
                reinterpret_cast<Words2*>(&box[swizzled_chunk(of_box, i / 2 * 2 + of_four / 2)])[of_four % 2] = two;
            }
        }
        fence_async_proxy();
        sync_wave();  // the box is written
        if (lane != 0) continue;
        const int filter = t.first_filter + first;
        const int pixel = first_pixel_of_wave<kBlocks>(thread_of_tile<kInTurns>()) + number / kPieces * kWarpgroupPixels;
        if (p.patches) {
            const int down = rows_of_patch(pixel, p.patch_columns);
            tma_store_box(p.out, box, {filter, t.group, t.column + pixel - down * p.patch_columns, t.row + down, t.image});
        } else {
            tma_store_box(p.out, box, {filter, t.group, t.first_pixel + pixel});
        }
        commit_stores();
    }
}

// Where 64 pixels of a tile lie in out, as the coordinates of a box: in a row of a patch, or in an image.
struct PlaceOfPixels {
    int first, row, image;
    bool by_tma;  // they are in one image: TMA takes no coordinates below zero

    HIPCONV_INLINE PlaceOfPixels(const WarpgroupGemmParams& p, const WarpgroupTile& t, int pixel) : row(0), by_tma(true) {
        const ConvGemmParams& g = p.gemm;
        if (p.patches) {
            const int down = rows_of_patch(pixel, p.patch_columns);
            first = t.column + pixel - down * p.patch_columns, row = t.row + down, image = t.image;
            return;
        }
        const int number = t.first_pixel + pixel;
        if (p.patch_columns == kOfImages) {
            const int piece = number / kWarpgroupPixels;
            image = static_cast<int>(divide(piece, g.divide_by_patches));
            first = (piece - image * g.patches_across) * kWarpgroupPixels;
            return;
        }
        const int image_pixels = g.conv.out_height * g.conv.out_width;
        image = static_cast<int>(divide(number, g.divide_by_image));
        first = number - image * image_pixels;
        by_tma = !p.boxes_by_lanes && first + kWarpgroupPixels <= image_pixels;
    }
};

// The lanes of a warpgroup store its box of 64 pixels, from `first` of an image on, by `filters` filters: each has a pixel, and
// every second filter.
template <typename T>
HIPCONV_INLINE void store_box_by_lanes(const ConvGemmParams& g, const Words4* box, PlaceOfPixels at, int64_t filter,
                                       int filters, int of_warpgroup) {
    using Bits = typename WordsOf<sizeof(T)>::type;
    constexpr int kElements = 16 / static_cast<int>(sizeof(T)), kRowPixels = kTileRowBytes / static_cast<int>(sizeof(T));
    const Conv2dParams& c = g.conv;
    const int pixel = of_warpgroup % kWarpgroupPixels, of_row = pixel % kRowPixels;
    const int number = at.image * c.out_height * c.out_width + at.first + pixel;
    if (number >= g.pixels) return;
    const OutPixel to = out_pixel(g, number);
    Bits* out = global_pointer<Bits>(c.out.data) + offset_in(c.out, to.n, filter, to.p, to.q);
    const Words4* const rows = box + pixel / kRowPixels * (WarpgroupEpilogue::kFilters * kTileChunks);
#pragma unroll 4
    for (int i = of_warpgroup / kWarpgroupPixels; i < filters; i += 2)
        out[i * c.out.channel_stride] =
            reinterpret_cast<const Bits*>(&rows[swizzled_chunk(i, of_row / kElements)])[of_row % kElements];
}

// The same along pixels: all waves of a warpgroup write its sums of 64 pixels, by 32 filters, as rows of 128 bytes of pixels.
// They meet at the warpgroup's barrier when the box is written; then the box before has been read too. Of 16 bits there are two
// boxes, of which that one is the place of the next; for f32, waves also meet before they write. `phase` is the barrier's.
template <typename T, bool kInTurns, int kTileN, int kBlocks>
HIPCONV_INLINE void store_boxes_of_pixels(const WarpgroupGemmParams& p, const WarpgroupTile& t,
                                          const WarpgroupSums<kTileN> (&sums)[kBlocks], EpilogueLds lds, Barrier* barrier,
                                          int& phase) {
    constexpr bool kIs16Bit = sizeof(T) == 2;
    constexpr int kFilters = WarpgroupEpilogue::kFilters, kPieces = kTileN / kFilters;
    constexpr int kBoxChunks = kWarpgroupPixels * kFilters * 2 / 16;  // of 16 bits
    const auto meet = [&] {
        sync_wave();
        if (thread_again() % 32 == 0) arrive(barrier);
        wait_for_phase(barrier, phase);
        phase ^= 1;
    };
#pragma unroll 1
    for (int number = 0; number < kBlocks * kPieces; ++number) {
        const int first = number % kPieces * kFilters;
        if (t.first_filter + first >= p.gemm.group_filters) continue;
        const int thread = thread_again();  // places are not kept beside the sums
        const int lane = thread % 32, of_warpgroup = thread % kWarpgroupThreads, wave = of_warpgroup / 32;
        Words4* const box = reinterpret_cast<Words4*>(lds.tile - wave * WarpgroupEpilogue::kFloats) + phase * kBoxChunks;
        float v[kFilters / 2];
        finish_piece(p.gemm.conv, sums, number, lds.bias, first, lane, v);
        if constexpr (!kIs16Bit) {
            if (of_warpgroup == 0) wait_for_stores();
            meet();  // the box before is read
        }
        if constexpr (kIs16Bit) {
#pragma unroll
            for (int i = 0; i < kFilters / 16; ++i) {
                uint32_t words[4];  // two of the filters of each eight, by eight pixels each
#pragma unroll
                for (int n = 0; n < 4; ++n) words[n] = pack<T>(make_pair(v[i * 8 + n * 2], v[i * 8 + n * 2 + 1]));
                store_transposed(box, i * 16, wave * 2, words, lane);
            }
        } else {  // a row has 32 pixels, so that two waves share it
            Words4* const half = box + wave / 2 * (kFilters * kTileChunks);
#pragma unroll
            for (int of_four = 0; of_four < 4; ++of_four) {
                const int row = lane % 4 * 2 + of_four % 2, pixel = wave % 2 * 16 + of_four / 2 * 8 + lane / 4;
                float* const to = reinterpret_cast<float*>(&half[swizzled_chunk(row, pixel / 4)]) + pixel % 4;
#pragma unroll
                for (int i = 0; i < kFilters / 8; ++i) to[i * 8 * kTileRowBytes / 4] = v[i * 4 + of_four];
            }
        }
        fence_async_proxy();
        if (kIs16Bit && of_warpgroup == 0) wait_for_stores();
        meet();  // the box is written
        const int pixel = (thread_of_tile<kInTurns>() / kWarpgroupThreads * kBlocks + number / kPieces) * kWarpgroupPixels;
        const int filter = t.first_filter + first, filters = p.gemm.group_filters - filter;
        const PlaceOfPixels at(p, t, pixel);
        if (!at.by_tma) {
            store_box_by_lanes<T>(p.gemm, box, at, static_cast<int64_t>(t.group) * p.gemm.group_filters + filter,
                                  filters < kFilters ? filters : kFilters, of_warpgroup);
            continue;
        }
        if (of_warpgroup != 0 || at.image >= p.gemm.conv.batch) continue;
        tma_store_box(p.out, box, {at.first, at.row, filter, t.group, at.image});
        if constexpr (!kIs16Bit)
            tma_store_box(p.out, box + kFilters * kTileChunks,
                          {at.first + kWarpgroupPixels / 2, at.row, filter, t.group, at.image});
        commit_stores();
    }
}

template <typename T, BoxesOf kBoxes, bool kInTurns, int kTileN, int kBlocks>
HIPCONV_INLINE void store_boxes(const WarpgroupGemmParams& p, const WarpgroupTile& t,
                                const WarpgroupSums<kTileN> (&sums)[kBlocks], const float (&lane_bias)[kTileN / 32],
                                EpilogueLds lds, Barrier* barriers, int& phase) {
    lds.share_bias(lane_bias, thread_again() % 32);
    if constexpr (kBoxes == BoxesOf::filters)
        return store_boxes_of_filters<T, kInTurns>(p, t, sums, lds);
    else
        store_boxes_of_pixels<T, kInTurns>(p, t, sums, lds, barriers + thread_again() / kWarpgroupThreads, phase);
}

// ---- by lanes -----------------------------------------------------------------------------------------------------------

template <typename T, bool kPlanes, int kTileN, int kBlocks>
HIPCONV_INLINE void store_sums(const WarpgroupGemmParams& p, const WarpgroupTile& t, const RowsOfOut<kBlocks>& rows,
                               const WarpgroupSums<kTileN> (&sums)[kBlocks], const float (&lane_bias)[kTileN / 32],
                               EpilogueLds lds, int thread) {
    const auto pixels_from = [&](int first) { return WarpgroupPixels{columns_of<kPlanes>(p), t, first}; };
    store_warpgroup_sums<T>(p.gemm, t.group, t.first_filter, t.part, pixels_from, rows, sums, lane_bias, lds, thread);
}

}  // namespace hipconv
