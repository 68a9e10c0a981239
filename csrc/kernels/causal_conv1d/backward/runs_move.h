// The kernel "runs" moves x and dout to LDS, and dx from there, by what is in this file.
#pragma once

#include "device/vec.h"
#include "runs_plan.h"

namespace hipconv {

// A block's part of a tile: some rows, from a token on.
struct BwdRunsTile {
    int first_row, rows;
    int first_token, tokens;  // tokens may reach past the row's end
};

// Some tokens of each row of a tile, counted from its first one.
struct BwdRunsRange {
    int from, to;
};

// A tensor's part of a tile in memory: where its first token lies, and steps from there, in bytes. A tile is not so large that
// 32 bits could not hold them.
struct BwdRunsMemory {
    char* base;
    int32_t row, d, t;

    HIPCONV_INLINE BwdRunsMemory(const Sequences& s, const BwdRunsTensor& how, const BwdRunsTile& tile)
        : base(global_pointer<char>(s.data) + tile.first_row * how.row_memory + tile.first_token * how.t_memory),
          row(static_cast<int32_t>(how.row_memory)), d(static_cast<int32_t>(how.d_memory)),
          t(static_cast<int32_t>(how.t_memory)) {}

    // The bytes by which a stretch that begins here lies behind a multiple of 16.
    HIPCONV_INLINE int early(int offset) const {
        return static_cast<int>((static_cast<uint32_t>(reinterpret_cast<uintptr_t>(base)) + static_cast<uint32_t>(offset)) &
                                (kBwdRunsUnit - 1));
    }
};

// The byte of LDS where the tile's first token of channel c of row n lies.
HIPCONV_INLINE int bwd_runs_place(const BwdRunsMemory& memory, const BwdRunsTensor& how, int n, int c, int size) {
    const bool apart = how.stretches > 1;
    const int early = how.is_flat ? memory.early(n * memory.row + (apart ? c * memory.d : 0)) : 0;
    return how.begin + (apart ? n * how.stretches + c : n) * how.stretch_step + how.head + early + (apart ? 0 : c * size);
}

// Tells how the stretches of a range lie, of a flat tensor.
struct BwdRunsStretches {
    int begin, end;  // bytes of the range, counted from the tile's first token
    int count;
};

HIPCONV_INLINE BwdRunsStretches bwd_runs_stretches(const BwdRunsTensor& how, const BwdRunsTile& tile, BwdRunsRange range,
                                                   int channels, int size) {
    return {range.from * how.t_step, (range.to - 1) * how.t_step + (how.stretches > 1 ? size : channels * size),
            tile.rows * how.stretches};
}

HIPCONV_INLINE bool bwd_runs_is_whole(const BwdRunsStretches& s, int early, int offset) {
    return offset >= early + s.begin && offset + kBwdRunsUnit <= early + s.end;
}

// The offset of stretch i in memory.
HIPCONV_INLINE int bwd_runs_offset(const BwdRunsMemory& memory, const BwdRunsTensor& how, SmallDivisor by_channels, int i) {
    if (how.stretches == 1) return i * memory.row;
    const int n = divide(i, by_channels);
    return n * memory.row + (i - n * how.stretches) * memory.d;
}

// Moves what stretches have of whole units to LDS or, with kBack, from there. Units that two runs share come to both, and are
// left to bwd_runs_move_ends on their way back.
template <bool kBack>
__device__ __forceinline__ void bwd_runs_move_units(const BwdRunsPlan& plan, const BwdRunsMemory& memory,
                                                    const BwdRunsTensor& how, const BwdRunsTensor& in_lds,
                                                    const BwdRunsTile& tile, BwdRunsRange range, int channels, int size,
                                                    char* lds) {
    const BwdRunsStretches all = bwd_runs_stretches(how, tile, range, channels, size);
    const SmallDivisor by_run = in_lds.units_of_run, by_stretch = how.units_of_stretch, by_channels = plan.of_channels;
    const int units_of_run = static_cast<int>(by_run.value), gap = in_lds.gap, step = in_lds.stretch_step;
    const int first_shared = in_lds.head > 0 ? 0 : 1;
    char* const place_of_first = lds + in_lds.begin + in_lds.head;
    // Moves a whole unit of a stretch, which lies so many bytes on in LDS, and in memory, there in a unit's middle.
    const auto move = [&](int in_all, int of_stretch, int early, int unit) {
        const int run = divide(unit + units_of_run, by_run) - 1, offset = unit * kBwdRunsUnit;
        const bool is_shared = early > 0 && unit == run * units_of_run && run >= first_shared;
        char* const in_memory = memory.base + (of_stretch - early + offset);
        char* const place = place_of_first + (in_all + offset + run * gap);
        if constexpr (kBack) {
            if (!is_shared) *reinterpret_cast<Words4*>(in_memory) = *reinterpret_cast<const Words4*>(place);
        } else if constexpr (kCopiesPastRegisters) {
            copy_later(reinterpret_cast<Words4*>(place), in_memory, /*zeros=*/false);
            if (is_shared) copy_later(reinterpret_cast<Words4*>(place - gap), in_memory, /*zeros=*/false);
        } else {
            const Words4 words = *reinterpret_cast<const Words4*>(in_memory);
            *reinterpret_cast<Words4*>(place) = words;
            if (is_shared) *reinterpret_cast<Words4*>(place - gap) = words;
        }
    };
    if (!(plan.flags & kRunsWholeRows)) {  // stretches are few and long
#pragma unroll 1
        for (int stretch = 0; stretch < all.count; ++stretch) {
            const int of_stretch = bwd_runs_offset(memory, how, by_channels, stretch), early = memory.early(of_stretch);
            const int past = (early + all.end) >> 4;
#pragma unroll 1
            for (int unit = (early + all.begin + kBwdRunsUnit - 1) >> 4; unit < past; unit += kBwdRunsThreads) {
                const int own = unit + static_cast<int>(threadIdx.x);
                if (own < past) move(stretch * step, of_stretch, early, own);
            }
        }
        return;
    }
    const int first = all.begin >> 4, count = ((all.end + 2 * kBwdRunsUnit - 2) >> 4) - first;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < all.count * count; i += kBwdRunsThreads) {
        const int stretch = divide(i, by_stretch), unit = i + first - stretch * count;
        const int of_stretch = bwd_runs_offset(memory, how, by_channels, stretch), early = memory.early(of_stretch);
        if (bwd_runs_is_whole(all, early, unit * kBwdRunsUnit)) move(stretch * step, of_stretch, early, unit);
    }
}

// The same of units of which only a part is the stretch's, and, with kBack, of those that two runs share: an element a lane.
template <typename T, bool kBack>
__device__ __forceinline__ void bwd_runs_move_ends(const BwdRunsPlan& plan, const BwdRunsMemory& memory,
                                                   const BwdRunsTensor& how, const BwdRunsTensor& in_lds,
                                                   const BwdRunsTile& tile, BwdRunsRange range, int channels, char* lds) {
    constexpr int kSize = static_cast<int>(sizeof(T)), kElements = kBwdRunsUnit / kSize;
    const BwdRunsStretches all = bwd_runs_stretches(how, tile, range, channels, kSize);
    const bool is_aligned = kBack ? (plan.flags & kRunsDxIsAligned) != 0 : how.is_aligned;
    if (is_aligned && (all.end & (kBwdRunsUnit - 1)) == 0 && (all.begin & (kBwdRunsUnit - 1)) == 0) return;
    const int ends = is_aligned && all.begin == 0 ? 1 : kBack ? plan.runs + 2 : 2;  // of a stretch, its last one first
    const SmallDivisor by_run = in_lds.units_of_run, by_channels = plan.of_channels;
    const int units_of_run = static_cast<int>(by_run.value), gap = in_lds.gap, step = in_lds.stretch_step;
    const int first_shared = in_lds.head > 0 ? 0 : 1;
    char* const place_of_first = lds + in_lds.begin + in_lds.head;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < all.count * ends * kElements; i += kBwdRunsThreads) {
        const int end = i / kElements;
        const int stretch = static_cast<int>(static_cast<uint32_t>(end) / static_cast<uint32_t>(ends));
        const int number = end - stretch * ends;
        const int of_stretch = bwd_runs_offset(memory, how, by_channels, stretch), early = memory.early(of_stretch);
        const int last = (early + all.end - 1) >> 4;
        const int unit = number == 0 ? last : kBack ? (number - 1) * units_of_run : (early + all.begin) >> 4;
        if (number > 0 && unit >= last) continue;
        int run = divide(unit + units_of_run, by_run) - 1;
        const bool is_shared = early > 0 && unit == run * units_of_run && run >= first_shared;
        const int at = unit * kBwdRunsUnit + i % kElements * kSize;
        if (at < early + all.begin || at >= early + all.end) continue;
        if (bwd_runs_is_whole(all, early, unit * kBwdRunsUnit) && !(kBack && is_shared)) continue;
        T* const in_memory = reinterpret_cast<T*>(memory.base + (of_stretch - early + at));
        char* const place = place_of_first + (stretch * step + at);
        if constexpr (kBack) {
            if (is_shared && at < unit * kBwdRunsUnit + early) --run;
            *in_memory = *reinterpret_cast<const T*>(place + run * gap);
        } else {
            if constexpr (kSize == 4 && kCopiesPastRegisters) {
                copy_later(reinterpret_cast<uint32_t*>(place + run * gap), in_memory);
                if (is_shared) copy_later(reinterpret_cast<uint32_t*>(place + run * gap - gap), in_memory);
            } else {
                const T element = *in_memory;
                *reinterpret_cast<T*>(place + run * gap) = element;
                if (is_shared) *reinterpret_cast<T*>(place + run * gap - gap) = element;
            }
        }
    }
}

// Moves the tokens of a tensor that is not flat, or of a dx that lies otherwise than dout does, by pieces, in the order of
// memory. `of_lds` is the tensor whose place they have in LDS.
template <typename T, typename Piece, bool kBack>
__device__ __forceinline__ void bwd_runs_move_pieces(const BwdRunsPlan& plan, const BwdRunsMemory& memory,
                                                     const BwdRunsTensor& how, const BwdRunsMemory& of_lds,
                                                     const BwdRunsTensor& in_lds, const BwdRunsTile& tile, BwdRunsRange range,
                                                     char* lds) {
    constexpr int kSize = static_cast<int>(sizeof(T)), kPiece = static_cast<int>(sizeof(Piece));
    constexpr int kAtOnce = kHasPredicates && !kBack && kPiece == 2 ? 7 : 2;  // what is under way is more than one waits for
    constexpr int kEach = kPiece / kSize;                                     // elements of a piece
    constexpr bool kPastRegisters = !kBack && kPiece >= 4 && kCopiesPastRegisters;
    const int tokens = range.to - range.from, pieces = how.pieces, all = tile.rows * tokens * pieces;
    const SmallDivisor by_pieces = how.of_pieces, by_run = plan.of_run, by_tokens = plan.of_tokens;
    const bool whole_rows = (plan.flags & kRunsWholeRows) != 0;
    const int run_tokens = plan.run, from = range.from;
#pragma unroll 1
    for (int begin = static_cast<int>(threadIdx.x); begin < all; begin += kAtOnce * kBwdRunsThreads) {
        Piece values[kAtOnce];
        char* places[kAtOnce];
        int offsets[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
            const int i = begin + k * kBwdRunsThreads;
            const int token = divide(i, by_pieces), c = (i - token * pieces) * kEach;
            const int n = whole_rows ? divide(token, by_tokens) : 0, t = token - n * tokens + from;
            const int run = divide(t + run_tokens, by_run) - 1;
            places[k] = lds + (bwd_runs_place(of_lds, in_lds, n, c, kSize) + t * in_lds.t_step + run * in_lds.gap);
            offsets[k] = n * memory.row + t * memory.t + c * memory.d;
            if (i >= all) continue;
            if constexpr (kPastRegisters && kPiece == 16)
                copy_later(reinterpret_cast<Words4*>(places[k]), memory.base + offsets[k], /*zeros=*/false);
            else if constexpr (kPastRegisters)
                copy_later(reinterpret_cast<uint32_t*>(places[k]), memory.base + offsets[k]);
            else
                values[k] = *reinterpret_cast<const Piece*>(kBack ? places[k] : memory.base + offsets[k]);
        }
        if constexpr (!kPastRegisters) {
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k)
                if (begin + k * kBwdRunsThreads < all)
                    *reinterpret_cast<Piece*>(kBack ? memory.base + offsets[k] : places[k]) = values[k];
        }
    }
}

// Brings a range of x or dout: all but the ends of stretches, or, with kEnds, these, for which lanes may wait.
template <typename T, bool kEnds>
__device__ __forceinline__ void bwd_runs_bring(const BwdRunsPlan& plan, const Sequences& s, const BwdRunsTensor& how,
                                               const BwdRunsTile& tile, BwdRunsRange range, int channels, char* lds) {
    const BwdRunsMemory memory(s, how, tile);
    if constexpr (kEnds) {
        if (how.is_flat) bwd_runs_move_ends<T, /*kBack=*/false>(plan, memory, how, how, tile, range, channels, lds);
    } else if (how.is_flat) {
        bwd_runs_move_units</*kBack=*/false>(plan, memory, how, how, tile, range, channels, static_cast<int>(sizeof(T)), lds);
    } else if (how.pieces < channels) {
        bwd_runs_move_pieces<T, Words4, /*kBack=*/false>(plan, memory, how, memory, how, tile, range, lds);
    } else {
        bwd_runs_move_pieces<T, T, /*kBack=*/false>(plan, memory, how, memory, how, tile, range, lds);
    }
}

// Takes dx away from dout's place.
template <typename T>
__device__ __forceinline__ void bwd_runs_take(const BwdRunsPlan& plan, const Sequences& s, const Sequences& dout,
                                              const BwdRunsTile& tile, BwdRunsRange range, int channels, char* lds) {
    const BwdRunsMemory memory(s, plan.dx, tile), of_lds(dout, plan.dout, tile);
    if (plan.flags & kRunsDxHasUnits) {
        constexpr int kSize = static_cast<int>(sizeof(T));
        bwd_runs_move_units</*kBack=*/true>(plan, memory, plan.dx, plan.dout, tile, range, channels, kSize, lds);
        bwd_runs_move_ends<T, /*kBack=*/true>(plan, memory, plan.dx, plan.dout, tile, range, channels, lds);
    } else if (plan.dx.pieces < channels) {
        bwd_runs_move_pieces<T, Words4, /*kBack=*/true>(plan, memory, plan.dx, of_lds, plan.dout, tile, range, lds);
    } else {
        bwd_runs_move_pieces<T, T, /*kBack=*/true>(plan, memory, plan.dx, of_lds, plan.dout, tile, range, lds);
    }
}

}  // namespace hipconv
