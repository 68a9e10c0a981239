// The consumers: warpgroups that multiply the stages of the rings, and so make the sums of a tile.
#pragma once

#include "../gemm/ring.h"
#include "../gemm/warpgroup_epilogue.h"
#include "matrix/cluster.h"
#include "tile_scheduler.h"

namespace hipconv {

// Multiplies one tap of x by a stage of the filters: the channels of 128 bytes, kWgmmaBytes of them at a time.
template <typename T, bool kPlanes = false, int kTileN, int kBlocks>
HIPCONV_INLINE void multiply_stage(const WarpgroupGemmParams& p, WgmmaOperand x, WgmmaOperand filters, bool keeps_sums,
                                   WarpgroupSums<kTileN> (&sums)[kBlocks]) {
#pragma unroll
    for (int bytes = 0; bytes < kTileRowBytes; bytes += kWgmmaBytes) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
            wgmma<T, kTileN, kPlanes>(sums[block], x.at(0, block * p.rows_of_64), filters, bytes, keeps_sums || bytes > 0);
    }
}

// The same, under way; the products of the step before are done.
template <typename T, bool kPlanes, int kTileN, int kBlocks>
HIPCONV_INLINE void multiply_later(const WarpgroupGemmParams& p, WgmmaOperand x, WgmmaOperand filters, bool keeps_sums,
                                   WarpgroupSums<kTileN> (&sums)[kBlocks]) {
    wgmma_fence();
    multiply_stage<T, kPlanes>(p, x, filters, keeps_sums, sums);
    wgmma_commit();
    wgmma_wait<1>();
}

// The products of split f32, done: of the large parts, which a stage has first, and of each small part and the other's large
// one. The matrix cores round towards zero, so they make the sums of one step only, the smallest products first.
template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE void multiply_parts(const WarpgroupGemmParams& p, WgmmaOperand x, int x_chunks, WgmmaOperand filters,
                                   int filter_chunks, WarpgroupSums<kTileN> (&sums)[kBlocks]) {
    wgmma_fence();
    multiply_stage<T>(p, x.at(x_chunks, 0), filters, false, sums);
    multiply_stage<T>(p, x, filters.at(filter_chunks, 0), true, sums);
    multiply_stage<T>(p, x, filters, true, sums);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) fence_sums(sums[block]);
}

// The "empty" barriers of a ring: those of this block, at which a wave's lane 0 arrives, and if blocks share what the ring has,
// those of the other one, at which lane 1 does.
struct EmptyBarriers {
    BarriersOfBlock of_lane;
    bool arrives;

    HIPCONV_INLINE EmptyBarriers(const WarpgroupGemmParams& p, Barrier* first, bool is_shared, int lane)
        : of_lane(is_shared && lane == 1 ? barriers_of_block(first, rank_of_block(p) ^ 1) : barriers_of_this_block(first)),
          arrives(lane <= (is_shared ? 1 : 0)) {}
    HIPCONV_INLINE void arrive_at(int stage) const {
        if (arrives) arrive(of_lane.at(stage));
    }
};

template <int kTileN, int kBlocks>
HIPCONV_INLINE void clear_sums(WarpgroupSums<kTileN> (&sums)[kBlocks]) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int e = 0; e < kTileN / 2; ++e) sums[block].values[e] = 0.0f;
}

template <int kTileN, int kBlocks>
HIPCONV_INLINE void add_sums(WarpgroupSums<kTileN> (&sums)[kBlocks], const WarpgroupSums<kTileN> (&more)[kBlocks]) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int e = 0; e < kTileN / 2; ++e) sums[block].values[e] += more[block].values[e];
}

// Makes a tile's sums over its k-blocks. The products of a step are under way while the warpgroup waits for the operands of the
// next; a step's stages go back to the producers one step later, when its products are done. meanwhile() is called while the
// last ones are under way.
template <typename T, bool kPlanes, int kTileN, int kBlocks, typename Meanwhile>
HIPCONV_INLINE void mainloop(const WarpgroupGemmParams& p, int k_blocks, const Ring& x, RingState& x_state, const Ring& filters,
                             RingState& filter_state, int first_block_row, int lane, const Meanwhile& meanwhile,
                             WarpgroupSums<kTileN> (&sums)[kBlocks]) {
    int read_filters = -1, read_x = -1;  // the stages that the step before was the last to read
    bool keeps_sums = false;
    const WgmmaOperand all_x = kept(wgmma_operand(x.tiles, first_block_row, p.group_bytes));
    const WgmmaOperand all_filters = kept(wgmma_operand(filters.tiles, 0, 8 * kTileRowBytes));
    const Barriers x_full = barriers_from(x.full), filters_full = barriers_from(filters.full);
    const bool in_common = kPlanes || !p.patches;  // the barriers of both rings
    const EmptyBarriers x_empty(p, x.empty, false, lane), filters_empty(p, filters.empty, p.shared != Shared::nothing, lane);
    int taps = p.taps_per_k_block, to_next_row = p.patch_pitch - kPatchTaps;
    in_a_register(taps), in_a_register(to_next_row);
    if constexpr (kIsSplit<T>) clear_sums(sums);
#pragma unroll 1
    for (; k_blocks > 0; --k_blocks) {
        wait_for_phase(x_full.at(x_state.stage), x_state.phase);
        int tap_row = 0, column = 0;  // the tap's first row of LDS, counted from the first tap's; its column
#pragma unroll 1
        for (int tap = 0; tap < taps; ++tap) {
            if (!in_common) wait_for_phase(filters_full.at(filter_state.stage), filter_state.phase);
            const WgmmaOperand of_x = all_x.at(x_state.stage * x.chunks, tap_row);
            const WgmmaOperand of_filters = all_filters.at(filter_state.stage * filters.chunks, 0);
            if constexpr (kIsSplit<T>) {
                WarpgroupSums<kTileN> more[kBlocks];
                multiply_parts<T>(p, of_x, x.chunks / 2, of_filters, filters.chunks / 2, more);
                filters_empty.arrive_at(filter_state.stage);
                if (!in_common && tap == taps - 1) x_empty.arrive_at(x_state.stage);
                add_sums(sums, more);
            } else {
                multiply_later<T, kPlanes>(p, of_x, of_filters, keeps_sums, sums);
                if (read_filters >= 0) filters_empty.arrive_at(read_filters);
                if (read_x >= 0) x_empty.arrive_at(read_x);
            }
            keeps_sums = true;
            read_filters = filter_state.stage;
            read_x = -1;
            filter_state.advance(filters.stages);
            ++tap_row;
            if (++column == kPatchTaps) {
                column = 0;
                tap_row += to_next_row;
            }
        }
        if (!in_common) read_x = x_state.stage;
        x_state.advance(x.stages);
    }
    meanwhile();
    if constexpr (kIsSplit<T>) return;
    wgmma_wait<0>();
    filters_empty.arrive_at(read_filters);
    if (!in_common) x_empty.arrive_at(read_x);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) fence_sums(sums[block]);
}

// The same of TF32 in planes, whose pixels the lanes bring to registers, kWgmmaBytes of channels at a time. The pixels of the
// next step are read, and those of this one put in order, while kUnderWay products of the steps before still read theirs. This
// warpgroup's pixels begin at a block of 64 of the tile.
template <int kUnderWay, int kTileN, int kBlocks, typename Meanwhile>
HIPCONV_INLINE void mainloop_by_registers(const WarpgroupGemmParams& p, int k_blocks, const Ring& x, const Ring& filters,
                                          RingState& place, int first_block, const Meanwhile& meanwhile,
                                          WarpgroupSums<kTileN> (&sums)[kBlocks]) {
    constexpr int kSteps = kTileRowBytes / kWgmmaBytes;
    const int thread = thread_again();
    const bool later_first = LaneInPlanes::reads_later_first(thread);
    const LaneInPlanes all_x(x.tiles + first_block * (kWarpgroupPixels * kTileChunks), thread);
    const WgmmaOperand all_filters = kept(wgmma_operand(filters.tiles, 0, 8 * kTileRowBytes));
    const Barriers barriers = barriers_from(x.full);
    const EmptyBarriers empty(p, x.empty, p.shared != Shared::nothing, thread % 32);
    int read_stage = -1;  // the one before, of both rings
    const auto give_back = [&] {
        if (read_stage >= 0) empty.arrive_at(read_stage);
    };
#pragma unroll 1
    for (; k_blocks > 0; --k_blocks) {
        const int stage = place.stage;
        wait_for_phase(barriers.at(stage), place.phase);
        const LaneInPlanes of_x = all_x.at(stage * x.chunks);
        const WgmmaOperand of_filters = all_filters.at(stage * filters.chunks, 0);
        WgmmaPixels next[kBlocks];
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) next[block] = of_x.read(block, 0);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            wgmma_wait<kUnderWay>();
            if (step == kUnderWay) give_back();  // the stage before is multiplied
            WgmmaPixels pixels[kBlocks];
#pragma unroll
            for (int block = 0; block < kBlocks; ++block) {
                pixels[block] = LaneInPlanes::in_order(next[block], later_first);
                if (step + 1 < kSteps) next[block] = of_x.read(block, (step + 1) * kWgmmaBytes);
            }
            wgmma_fence();
#pragma unroll
            for (int block = 0; block < kBlocks; ++block)
                wgmma(sums[block], pixels[block], of_filters, step * kWgmmaBytes, read_stage >= 0 || step > 0);
            wgmma_commit();
        }
        read_stage = stage;
        place.advance(x.stages);
    }
    meanwhile();
    wgmma_wait<0>();
    give_back();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) fence_sums(sums[block]);
}

}  // namespace hipconv
