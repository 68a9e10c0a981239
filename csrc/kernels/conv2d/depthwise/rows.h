// A row of x as a thread of the walking kernel sees it: loaded as it is in memory, and turned into pairs of floats when its
// turn comes, so that nothing waits for a load before that. A pair has a column of both channels of the thread. A load brings
//
//                      across (channels_last)          rows (NCHW)
//   words, of 16 bits  a column of both channels       two columns of a channel
//   else               a column of a channel           a column of a channel
//   else, of vectors   a column of both channels (f32)
#pragma once

#include "depthwise.h"

namespace hipconv {

// These are the outputs: the columns of a thread, as the launch counts them.
template <int kTaps, bool kAcross>
constexpr int kWalkColumns = kAcross || kTaps == 7 ? 4 : 2;

// A lane of RDNA has too few registers for the sums of 7 rows of four pairs: it makes two columns after the other two.
constexpr bool kFewRegisters = kWaveSize == 32 && !kHasPredicates;

// This is what a thread reads of a row: the kReach columns that its outputs see. A word of two columns begins at an even one,
// which may lie in front of them (kOdd).
template <int kTaps_, int kStride_, bool kAcross_, bool kWords_>
struct RowShape {
    static constexpr bool kAcross = kAcross_, kWords = kWords_;
    static constexpr int kTaps = kTaps_, kStride = kStride_;
    static constexpr int kColumns = kTaps >= 7 && kFewRegisters ? 2 : kWalkColumns<kTaps, kAcross>;  // of outputs, at once
    static constexpr int kReach = (kColumns - 1) * kStride + kTaps;
    static constexpr int kEach = kWords && !kAcross ? 2 : 1;  // columns of a load
    static constexpr int kOdd = kEach == 2 ? (kTaps - 1) / 2 % 2 : 0;
    static constexpr int kLoads = (kReach + kOdd + kEach - 1) / kEach;          // of a channel, or of both at once
    static constexpr int kRegisters = kWords && kAcross ? kLoads : 2 * kLoads;  // of both channels
    // The loads that no other thread has as its own.
    static constexpr int kFirstOwn = (kTaps / 2 + kOdd) / kEach, kOwn = kColumns * kStride / kEach;
};

// Where a thread reads a row of x: its first load of each channel, and which of them are inside the image.
struct RowSource {
    const char *first, *second;
    int inside;  // a bit for each load; 0 if the row is outside
};

// Where a thread reads row y of x, from column `first` on, which may lie outside the image.
template <typename Shape>
HIPCONV_INLINE RowSource row_source(const DepthwiseParams& p, const DepthwisePlace& at, int y, int first) {
    const Image& x = p.conv.x;
    const int bytes = element_bytes(p.conv.dtype), k = at.unit * 2, second = k + 1 < p.conv.out_channels ? k + 1 : k;
    const int64_t origin = at.batch * x.batch_stride + y * x.row_stride + first * x.column_stride;
    const int64_t channels[2] = {k / p.multiplier, second / p.multiplier};
    RowSource from;
    from.first = static_cast<const char*>(x.data) + (origin + channels[0] * x.channel_stride) * bytes;
    from.second = static_cast<const char*>(x.data) + (origin + channels[1] * x.channel_stride) * bytes;
    from.inside = 0;
#pragma unroll
    for (int i = 0; i < Shape::kLoads; ++i) {
        const int z = first + i * Shape::kEach;
        if (z >= 0 && z < p.conv.in_width && at.has_work) from.inside |= 1 << i;
    }
    return from;
}

template <typename Memory>
HIPCONV_INLINE Memory load_global(const char* address) {
    return *global_pointer<const Memory>(address);
}

// Makes kCount loads, of which some may be outside the image: those leave zeros, or something that row_of replaces by zeros.
// `kBranches`: loads that are all inside have no predicates.
template <int kCount, bool kBranches, typename Load, typename Zero>
HIPCONV_INLINE void load_inside(int inside, Load load, Zero zero) {
    if ((kBranches || !kHasPredicates) && inside == (1 << kCount) - 1) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) load(i, i);
        return;
    }
    if constexpr (kHasPredicates) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            zero(i);
            if (inside >> i & 1) load(i, i);
        }
    } else if (inside == 0) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) zero(i);
    } else {
        const int safe = __builtin_ctz(static_cast<unsigned>(inside));
#pragma unroll
        for (int i = 0; i < kCount; ++i) load(i, inside >> i & 1 ? i : safe);
    }
}

template <typename Shape, typename Memory, bool kBranches, typename Row>
HIPCONV_INLINE void load_each_channel(Row& row, const DepthwiseParams& p, const RowSource& from) {
    const uint32_t step = Shape::kWords ? sizeof(Memory) : p.x_step;
    const auto load = [&](int i, int at) {
        const uint64_t offset = static_cast<uint64_t>(step) * static_cast<uint32_t>(at);
        row[2 * i] = load_global<Memory>(from.first + offset);
        row[2 * i + 1] = load_global<Memory>(from.second + offset);
    };
    load_inside<Shape::kLoads, kBranches>(from.inside, load, [&](int i) { row[2 * i] = row[2 * i + 1] = 0; });
}

// `row` is an array of Shape::kRegisters words.
template <typename Shape, bool kBranches = true, typename Row>
HIPCONV_INLINE void load_row(Row& row, const DepthwiseParams& p, const RowSource& from) {
    const auto address = [&](int at) { return from.first + static_cast<uint64_t>(p.x_step) * static_cast<uint32_t>(at); };
    if constexpr (Shape::kWords && Shape::kAcross) {
        const auto load = [&](int i, int at) { row[i] = load_global<uint32_t>(address(at)); };
        load_inside<Shape::kLoads, kBranches>(from.inside, load, [&](int i) { row[i] = 0; });
    } else if constexpr (Shape::kWords) {
        load_each_channel<Shape, uint32_t, kBranches>(row, p, from);
    } else {
        if (Shape::kAcross && p.x_by_vectors) {
            const auto load = [&](int i, int at) {
                const Words2 both = load_global<Words2>(address(at));
                row[2 * i] = word(both, 0);
                row[2 * i + 1] = word(both, 1);
            };
            return load_inside<Shape::kLoads, kBranches>(from.inside, load, [&](int i) { row[2 * i] = row[2 * i + 1] = 0; });
        }
        if (p.conv.dtype == DType::f32) return load_each_channel<Shape, uint32_t, kBranches>(row, p, from);
        load_each_channel<Shape, uint16_t, kBranches>(row, p, from);
    }
}

// Has the second cache fetch a row that lies `bytes` below: what this thread alone brings of it.
template <typename Shape>
HIPCONV_INLINE void fetch_row(const DepthwiseParams& p, const RowSource& from, uint64_t bytes) {
    const uint32_t step = Shape::kWords && !Shape::kAcross ? 4 : p.x_step;
#pragma unroll
    for (int i = Shape::kFirstOwn; i < Shape::kFirstOwn + Shape::kOwn && i < Shape::kLoads; ++i) {
        const uint64_t offset = bytes + static_cast<uint64_t>(step) * static_cast<uint32_t>(i);
        prefetch_if(from.first + offset, from.inside >> i & 1);
        if constexpr (!Shape::kAcross) prefetch_if(from.second + offset, from.inside >> i & 1);
    }
}

// Turns what load_row loaded into Shape::kReach pairs.
template <typename Shape, typename Pairs, typename Row>
HIPCONV_INLINE void row_of(Pairs& x, Row& row, const DepthwiseParams& p, int inside) {
    if constexpr (!kHasPredicates) {
        if (inside != (1 << Shape::kLoads) - 1) {
#pragma unroll
            for (int i = 0; i < Shape::kRegisters; ++i) {
                const int load = Shape::kRegisters == Shape::kLoads ? i : i / 2;
                row[i] = inside >> load & 1 ? row[i] : 0;
            }
        }
    }
    const auto halves = [&](auto type) {
        using T = decltype(type);
#pragma unroll
        for (int i = 0; i < Shape::kReach; ++i) {
            if constexpr (Shape::kWords && Shape::kAcross) {
                x[i] = unpack<T>(row[i]);
            } else if constexpr (Shape::kWords) {
                const int at = i + Shape::kOdd, of_word = at / 2 * 2;
                const Pair a = unpack<T>(row[of_word]), b = unpack<T>(row[of_word + 1]);
                x[i] = at % 2 ? make_pair(high(a), high(b)) : make_pair(low(a), low(b));
            } else {
                x[i] = make_pair(to_float(T{static_cast<uint16_t>(row[2 * i])}),
                                 to_float(T{static_cast<uint16_t>(row[2 * i + 1])}));
            }
        }
    };
    if (p.conv.dtype == DType::bf16) return halves(bf16{});
    if (Shape::kWords || p.conv.dtype == DType::f16) return halves(f16{});
    if constexpr (!Shape::kWords) {
#pragma unroll
        for (int i = 0; i < Shape::kReach; ++i) x[i] = make_pair(bit_cast<float>(row[2 * i]), bit_cast<float>(row[2 * i + 1]));
    }
}

}  // namespace hipconv
