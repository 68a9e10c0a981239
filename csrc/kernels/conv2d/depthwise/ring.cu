// Depthwise conv2d of many outputs of channels_last images by square filters of 3 taps, or of 5 with a stride of 2 ("ring").
//
// A wave has some channels and some columns of outputs, and walks down the rows of x, with filters and sums in registers as the
// walking kernel has them. Rows come to a ring in LDS by vectors of 16 bytes, where the card can copy them past the registers a
// few steps ahead, and go on from one place to the wave's next one without a pause. A ring is its wave's alone: there is no
// barrier. In LDS a row of x lies as in memory, column by column: copies of neighbouring vectors to places that lie apart are
// requests of their own to the second cache.
#include <hip/hip_runtime.h>

#include "../common/depthwise_frame.h"
#include "../common/epilogue.h"
#include "../common/padding.h"
#include "../common/residual.h"
#include "filters.h"
#include "kernels.h"
#include "launch/check.h"
#include "launch/compute_units.h"
#include "launch/division.h"
#include "rolling_sums.h"
#include "store.h"

namespace hipconv {
namespace {

// A lane makes kColumns outputs of a row, of a pair of channels; kBytes are those of an element. kWaveColumns are those of the
// lanes beside each other; the other lanes lie along channels. The host has to say how many lanes a wave has.
template <int kTaps_, int kStride_, int kBytes_, int kWaveColumns_, int kLanes = kWaveSize>
struct RingShape {
    static constexpr int kTaps = kTaps_, kStride = kStride_, kBytes = kBytes_, kWaveColumns = kWaveColumns_;
    static constexpr int kColumns = kTaps == 3 ? 8 : 4, kWaves = kDepthwiseThreads / kLanes;
    static constexpr int kChannelLanes = kLanes / (kWaveColumns / kColumns), kWaveChannels = 2 * kChannelLanes;
    static constexpr int kReach = (kColumns - 1) * kStride + kTaps;  // columns of x that a lane sees
    static constexpr int kRows = (kTaps + kStride - 1) / kStride;    // of outputs, that a row of x is part of
    // A wave sees so many columns of x, and vectors of 16 bytes in a column. A lane moves kLoads vectors, in columns that lie
    // kApart; the last ones may be of columns that nobody sees.
    static constexpr int kSeen = (kWaveColumns - 1) * kStride + kTaps;
    static constexpr int kVectors = kWaveChannels * kBytes / 16, kApart = kLanes / kVectors;
    static constexpr int kLoads = (kSeen + kApart - 1) / kApart;
    // Bytes of LDS of a column and of a row of x; steps that a ring has room for; bytes of the rings of a block.
    static constexpr int kColumnBytes = kVectors * 16, kRowBytes = kLoads * kLanes * 16, kStageBytes = kStride * kRowBytes;
    static constexpr int kSteps = !kCopiesPastRegisters ? 1 : kStride == 2 ? 3 : 5;
    static constexpr int kLds = kSteps * kStageBytes * kWaves;
    // Blocks of a compute unit that registers and LDS have room for.
    static constexpr int kByLds = kCopiesPastRegisters ? 227 * 1024 / (kLds + 1024) : 64 * 1024 / kLds;
    static constexpr int kBlocks = kByLds < 4 ? kByLds : 4;
    static constexpr bool kServes = kCopiesPastRegisters || kStride * kBytes < 8;  // else AMD has too little LDS, and registers
};

struct RingParams {
    Conv2dParams conv;
    int32_t groups;  // of channels, each a wave's
    int32_t tiles, segments, segment_rows;
    int32_t places;  // of all images: tiles of all segments
    int32_t waves;   // of a group of channels: each has every so many places
    // Bytes from one row to the next, of columns, and of x from one vector of a lane to its next one.
    uint64_t x_row, out_row;
    uint32_t out_column, x_apart;
    int64_t x_column;     // bytes from a column of x to the next
    int64_t to_residual;  // bytes from an output to what is added to it
    Divisor divide_by_groups, divide_by_tiles, divide_by_segments;
};

// Where a wave works for some steps: its image, its first row and column of outputs, and how many rows.
struct RingPlace {
    int image, row, column, rows;

    HIPCONV_INLINE RingPlace(const RingParams& p, int number, int columns) {
        const int along = static_cast<int>(divide(static_cast<uint32_t>(number), p.divide_by_tiles));
        image = static_cast<int>(divide(static_cast<uint32_t>(along), p.divide_by_segments));
        row = (along - image * p.segments) * p.segment_rows;
        column = (number - along * p.tiles) * columns;
        rows = p.conv.out_height - row < p.segment_rows ? p.conv.out_height - row : p.segment_rows;
    }
};

HIPCONV_INLINE int lane_of_thread() { return static_cast<int>(threadIdx.x) % kWaveSize; }

// A lane's share of the rows of x: vectors of channels, each of one column.
// `kMore`: padding of any mode.
template <typename Shape, bool kMore>
class RingSource {
  public:
    HIPCONV_INLINE RingSource(const RingParams& p, int first_channel, int first_place)
        : place_(first_place), channel_(first_channel) {
        go_to_place(p);
    }

    // Begins to load the rows of the wave's next step, to the lane's place in a stage of the ring where the card can.
    HIPCONV_INLINE void load(const RingParams& parameter, char* to) {
        const RingParams& p = first_parameter_again(parameter);
#pragma unroll
        for (int j = 0; j < Shape::kStride; ++j) {
            const auto load_vector = [&](int i, const char* from, int bytes) {
                const bool exists = bytes_[i] & bytes;
                if constexpr (kCopiesPastRegisters) {
                    copy_later(reinterpret_cast<Words4*>(to + j * Shape::kRowBytes + i * (kWaveSize * 16)), from, !exists);
                } else {
                    vectors_[j][i] = Words4{};
                    if (exists) vectors_[j][i] = *global_pointer<const Words4>(from);
                }
            };
            const auto bytes_of = [&](int row) {
                return static_cast<uint32_t>(row) < static_cast<uint32_t>(p.conv.in_height) ? 16 : 0;
            };
            if constexpr (!kMore) {
                const int bytes = bytes_of(row_ + j);
#pragma unroll
                for (int i = 0; i < Shape::kLoads; ++i)
                    load_vector(i, from_ + static_cast<uint64_t>(p.x_apart) * static_cast<uint32_t>(i), bytes);
            } else {
                const int row = padded_index_of(row_ + j, p.conv.in_height, p.conv.padding_mode), bytes = bytes_of(row);
                const char* const here = from_ + static_cast<int64_t>(p.x_row) * (row - (row_ + j));
#pragma unroll
                for (int i = 0; i < Shape::kLoads; ++i) {
                    const int64_t columns = int64_t{bytes_[i] >> kColumnBits} * p.x_column;
                    load_vector(i, here + (static_cast<uint64_t>(p.x_apart) * static_cast<uint32_t>(i) + columns), bytes);
                }
            }
            from_ += p.x_row;
        }
        if constexpr (kCopiesPastRegisters) close_copies();
        row_ += Shape::kStride;
        if (--steps_ == 0) {
            place_ += p.waves;
            go_to_place(p);
        }
    }

    // Writes to LDS what could not be copied past the registers.
    HIPCONV_INLINE void store(char* to) const {
#pragma unroll
        for (int j = 0; j < Shape::kStride; ++j)
#pragma unroll
            for (int i = 0; i < Shape::kLoads; ++i)
                *reinterpret_cast<Words4*>(to + j * Shape::kRowBytes + i * (kWaveSize * 16)) = vectors_[j][i];
    }

  private:
    static constexpr int kColumnBits = 5;

    // Behind the wave's last place there are zeros.
    HIPCONV_INLINE void go_to_place(const RingParams& p) {
        const Conv2dParams& c = p.conv;
        int lane = lane_of_thread();
        from_here_on(lane);  // what follows from it stays in no register meanwhile
        const int of_lane = lane / Shape::kVectors, channel = channel_ + lane % Shape::kVectors * (16 / Shape::kBytes);
        const bool is_place = place_ < p.places;
        const RingPlace at(p, is_place ? place_ : 0, Shape::kWaveColumns);
        const int first = at.column * Shape::kStride - c.pad_left + of_lane;
        row_ = at.row * Shape::kStride - c.pad_top;
        steps_ = at.rows + Shape::kRows - 1;
#pragma unroll
        for (int i = 0; i < Shape::kLoads; ++i) {
            const int column = i * Shape::kApart;
            const bool inside = static_cast<uint32_t>(first + column) < static_cast<uint32_t>(c.in_width);
            const bool wanted = is_place && channel < c.in_channels && of_lane + column < Shape::kSeen;
            bytes_[i] = wanted && inside ? 16 : 0;
            if (!kMore || inside || !wanted) continue;
            const int found = padded_index_of(first + column, c.in_width, c.padding_mode);
            if (static_cast<uint32_t>(found) < static_cast<uint32_t>(c.in_width))
                bytes_[i] = 16 | (found - (first + column)) * (1 << kColumnBits);
        }
        from_ = static_cast<const char*>(c.x.data) + offset_in(c.x, at.image, channel, row_, first) * Shape::kBytes;
    }

    const char* from_;  // the lane's first vector of the next row
    int place_, channel_, row_, steps_;
    // These say of each vector how many bytes are in the image, 16 or 0, and how many columns from its place padding finds it.
    int bytes_[Shape::kLoads];
    Words4 vectors_[kCopiesPastRegisters ? 1 : Shape::kStride][kCopiesPastRegisters ? 1 : Shape::kLoads];
};

// Adds a lane's columns of a row of the residual, `columns` of them at most, all of which are under way at once.
template <typename T, int kColumns>
HIPCONV_INLINE void add_columns(Pair (&results)[kColumns], const char* from, uint32_t step, int columns) {
    using Memory = Words<T, 2>;
    Memory words[kColumns];
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
        words[q] = Memory{};
        if (q < columns)
            words[q] = *global_pointer<const Memory>(from + static_cast<uint64_t>(step) * static_cast<uint32_t>(q));
    }
#pragma unroll
    for (int q = 0; q < kColumns; ++q) results[q] = add(results[q], pair_of<T>(words[q], 0));
}

// Stores a lane's columns of a row of outputs, `columns` of them at most.
template <typename T, int kColumns>
HIPCONV_INLINE void store_columns(const Pair (&results)[kColumns], char* out, uint32_t step, int columns) {
    const auto store = [&](int q) {
        Words<T, 2> words{};
        set_pair<T>(words, 0, results[q]);
        store_global(out + static_cast<uint64_t>(step) * static_cast<uint32_t>(q), words);
    };
    if (columns >= kColumns) {
#pragma unroll
        for (int q = 0; q < kColumns; ++q) store(q);
        return;
    }
#pragma unroll
    for (int q = 0; q + 1 < kColumns; ++q)
        if (q < columns) store(q);
}

// `kMore`: there is a residual, or padding that is not zeros.
template <typename T, int kTaps, int kStride, int kWaveColumns, bool kMore>
__global__ void HIPCONV_LAUNCH_BOUNDS(kDepthwiseThreads, (RingShape<kTaps, kStride, sizeof(T), kWaveColumns>::kBlocks))
    conv2d_depthwise_ring(RingParams p) {
    constexpr int kBytes = sizeof(T);
    using Shape = RingShape<kTaps, kStride, kBytes, kWaveColumns>;
    using Memory = Words<T, 2>;
    constexpr int kColumns = Shape::kColumns, kRows = Shape::kRows, kChannelLanes = Shape::kChannelLanes;
    constexpr int kSteps = Shape::kSteps, kLastStage = (kSteps - 1) * Shape::kStageBytes;
    HIPCONV_LARGE_SHARED(Words4, lds, kCopiesPastRegisters ? 1 : Shape::kLds / 16);

    let_next_kernel_begin();
    const int wave = static_cast<int>(threadIdx.x) / kWaveSize, lane = lane_of_thread();
    const uint32_t number = blockIdx.x * Shape::kWaves + static_cast<uint32_t>(wave);
    const int first_place = static_cast<int>(divide(number, p.divide_by_groups));
    if (first_place >= p.waves) return;
    const int first_channel = (static_cast<int>(number) - first_place * p.groups) * Shape::kWaveChannels;
    char* const ring = reinterpret_cast<char*>(lds) + wave * (kSteps * Shape::kStageBytes);
    // The lane's places in a stage: of the first vector that it loads, and of the first column that it sees.
    char* const written = ring + lane * 16;
    const char* const read = ring + lane / kChannelLanes * (kColumns * kStride * Shape::kColumnBytes) +
                             lane % kChannelLanes * static_cast<int>(sizeof(Memory));

    RingSource<Shape, kMore> source(p, first_channel, first_place);
    wait_for_kernel_before();
    source.load(p, written);
    if constexpr (kCopiesPastRegisters) {
#pragma unroll 1
        for (int i = 1; i + 1 < kSteps; ++i) source.load(p, written + i * Shape::kStageBytes);
    }

    Pair taps[kTaps * kTaps], bias;
    {
        const Conv2dParams& c = first_parameter_again(p).conv;
        const int channel = first_channel + lane % kChannelLanes * 2, k = channel < c.out_channels ? channel : 0;
        const PairOfBias bias_bits(c, k);
        load_dense_filters<T>(taps, c.weight.data, k);
        bias = bias_bits.get(c);
    }

    Pair sums[kRows][kColumns];
#pragma unroll
    for (int i = 0; i < kRows * kColumns; ++i) sums[i / kColumns][i % kColumns] = Pair{};
    int stage = 0;  // where the ring has this step's rows
#pragma unroll 1
    for (int number_of_place = first_place; number_of_place < p.places; number_of_place += p.waves) {
        const RingPlace at(p, number_of_place, kWaveColumns);
        char* out;
        int columns;
        {
            const Conv2dParams& c = first_parameter_again(p).conv;
            int again = lane_of_thread();
            from_here_on(again);
            const int channel = first_channel + again % kChannelLanes * 2;
            const int column = at.column + again / kChannelLanes * kColumns;
            columns = channel < c.out_channels ? c.out_width - column : 0;
            out = static_cast<char*>(c.out.data) + offset_in(c.out, at.image, channel, at.row, column) * kBytes;
        }
        // The first steps begin sums whose rows of x follow; the last ones begin none.
#pragma unroll 1
        for (int t = 1 - kRows; t < at.rows; ++t) {
            if constexpr (kCopiesPastRegisters) wait_for_copies<(kSteps > 1 ? kSteps - 2 : 0)>();
            sync_wave();
            if constexpr (!kCopiesPastRegisters) {
                source.store(written);
                sync_wave();
            }
            source.load(p, written + (stage == 0 ? kLastStage : stage - Shape::kStageBytes));  // the stage of the step before
#pragma unroll
            for (int j = 0; j < kStride; ++j) {
                const char* const from = read + stage + j * Shape::kRowBytes;
                Memory words[Shape::kReach];
                Pair x[Shape::kReach];
#pragma unroll
                for (int s = 0; s < Shape::kReach; ++s)
                    words[s] = *reinterpret_cast<const Memory*>(from + s * Shape::kColumnBytes);
#pragma unroll
                for (int s = 0; s < Shape::kReach; ++s) x[s] = pair_of<T>(words[s], 0);
                const auto add_row = [&](auto counts) {
                    add_row_of_x<kTaps, kStride>(sums, j, x, bias, [&](int tap) { return taps[tap]; }, counts);
                };
                if (t >= 0 && t + kRows <= at.rows)
                    add_row([](int) { return true; });
                else
                    add_row([&](int i) { return i >= -t && i < at.rows - t; });
            }
            stage = stage == kLastStage ? 0 : stage + Shape::kStageBytes;
            if (t < 0) continue;
            const RingParams& anew = first_parameter_again(p);
            if (anew.conv.activation == Conv2dActivation::none && (!kMore || !anew.conv.residual.data)) {
                store_columns<T>(sums[0], out, anew.out_column, columns);
            } else {
                Pair results[kColumns];
#pragma unroll
                for (int q = 0; q < kColumns; ++q) results[q] = sums[0][q];
                if (kMore && anew.conv.residual.data) add_columns<T>(results, out + anew.to_residual, anew.out_column, columns);
                activate_pairs(results, anew.conv.activation);
                store_columns<T>(results, out, anew.out_column, columns);
            }
            out += anew.out_row;
        }
    }
}

// ---- the launch -------------------------------------------------------------------------------------------------------------

// Cuts a call into waves and segments of rows by the cycles of the longest wave, if these are less than `least`. Returns the
// fewer. The cycles were fitted to 25 layers on an H100, cut in all ways.
template <typename Shape>
double cut_ring(RingParams& p, int32_t compute_units, double least) {
    const Conv2dParams& c = p.conv;
    constexpr double kStart = 3900, kStep = 600;
    constexpr double kBlock = Shape::kTaps == 5 ? 350 : Shape::kStride == 1 ? 440 : 580;  // of a step, for each on a unit
    constexpr double kTimes = Shape::kWaveColumns == 8 ? 1 : 1.06;
    const int32_t groups = static_cast<int32_t>(ceil_of(c.out_channels, Shape::kWaveChannels));
    const int32_t tiles = static_cast<int32_t>(ceil_of(c.out_width, Shape::kWaveColumns));
    const int32_t resident = compute_units * Shape::kBlocks * Shape::kWaves;
    for (int32_t segments = 1; segments <= 64 && segments <= c.out_height; segments += 1 + segments / 6) {
        const int32_t rows = (c.out_height + segments - 1) / segments,
                      places = (c.out_height + rows - 1) / rows * tiles * c.batch;
        const int32_t each = static_cast<int32_t>(ceil_of(int64_t{places} * groups, resident)),
                      waves = (places + each - 1) / each;
        const double blocks = double(waves) * groups / (double(Shape::kWaves) * compute_units);
        const double cycles = kTimes * (kStart + each * (rows + 0.6 * (Shape::kRows - 1)) * (kStep + kBlock * blocks));
        if (cycles >= 0.98 * least) continue;
        least = cycles;
        p.groups = groups;
        p.tiles = tiles;
        p.segment_rows = rows;
        p.segments = (c.out_height + rows - 1) / rows;
        p.places = places;
        p.waves = waves;
    }
    return least;
}

template <typename T, int kTaps, int kStride, int kWaveColumns>
void launch_instance(RingParams& p, int lanes, hipStream_t stream) {
    constexpr int kBytes = sizeof(T);
    const Conv2dParams& c = p.conv;
    const auto launch = [&](auto shape) {
        using Shape = decltype(shape);
        p.x_row = static_cast<uint64_t>(c.x.row_stride) * kBytes;
        p.out_row = static_cast<uint64_t>(c.out.row_stride) * kBytes;
        p.out_column = static_cast<uint32_t>(c.out.column_stride * kBytes);
        p.x_column = c.x.column_stride * kBytes;
        p.to_residual = bytes_to_residual(c);
        p.x_apart = static_cast<uint32_t>(Shape::kApart * c.x.column_stride * kBytes);
        p.divide_by_groups = divisor_of(static_cast<uint32_t>(p.groups));
        p.divide_by_tiles = divisor_of(static_cast<uint32_t>(p.tiles));
        p.divide_by_segments = divisor_of(static_cast<uint32_t>(p.segments));
        const int bytes = launch_shared_bytes(Shape::kLds);
        const unsigned blocks = static_cast<unsigned>(ceil_of(int64_t{p.waves} * p.groups, Shape::kWaves));
        auto ring = conv2d_depthwise_ring<T, kTaps, kStride, kWaveColumns, false>;
        if constexpr (kTaps == 3 && kStride == 1)
            if (depthwise_has_more(c)) ring = conv2d_depthwise_ring<T, kTaps, kStride, kWaveColumns, true>;
        (void)hipFuncSetAttribute(reinterpret_cast<const void*>(ring), hipFuncAttributeMaxDynamicSharedMemorySize, bytes);
        HIPCONV_LAUNCH(true, ring, dim3(blocks, 1, 1), dim3(kDepthwiseThreads, 1, 1), bytes, stream, p);
        check_launch("conv2d");
    };
    lanes == 64 ? launch(RingShape<kTaps, kStride, kBytes, kWaveColumns, 64>{})
                : launch(RingShape<kTaps, kStride, kBytes, kWaveColumns, 32>{});
}

template <typename T, int kTaps, int kStride>
bool launch_ring(const Conv2dParams& c, double cycles, hipStream_t stream) {
    if constexpr (RingShape<kTaps, kStride, sizeof(T), 8>::kServes) {
        RingParams p{};
        p.conv = c;
        const int32_t units = static_cast<int32_t>(compute_units_here());
        const int lanes = wave_size_here();
        const auto cut = [&](auto columns, double least) {
            constexpr int kWaveColumns = decltype(columns)::value;
            return lanes == 64 ? cut_ring<RingShape<kTaps, kStride, sizeof(T), kWaveColumns, 64>>(p, units, least)
                               : cut_ring<RingShape<kTaps, kStride, sizeof(T), kWaveColumns, 32>>(p, units, least);
        };
        const double by_8 = cut(std::integral_constant<int, 8>{}, cycles);
        const double by_16 = cut(std::integral_constant<int, 16>{}, by_8);
        if (by_16 < cycles) {
            by_16 < by_8 ? launch_instance<T, kTaps, kStride, 16>(p, lanes, stream)
                         : launch_instance<T, kTaps, kStride, 8>(p, lanes, stream);
            return true;
        }
    }
    return false;
}

// Tells whether the walking kernel's call has what this one needs: vectors of channels, all of one type, and dense filters.
bool ring_serves(const Conv2dParams& c) {
    const int bytes = element_bytes(c.dtype), taps = c.kernel_height;
    if (depthwise_has_more(c) && (taps != 3 || c.stride_h != 1)) return false;
    return (taps == 3 || (taps == 5 && c.stride_h == 2)) && c.out_channels == c.in_channels && c.out_dtype == c.dtype &&
           residual_lies_as_out(c) && has_dense_filters(c) && columns_are_vectors(c.x, c.in_channels, 16 / bytes, bytes) &&
           (c.padding_mode == PaddingMode::zeros || c.in_width < 1 << 25) &&
           columns_are_vectors(c.out, c.out_channels, 2, bytes);
}

}  // namespace

bool depthwise_ring(const Conv2dParams& c, double cycles, void* on) {
    if (!ring_serves(c)) return false;
    const hipStream_t stream = static_cast<hipStream_t>(on);
    bool is_launched = false;
    with_dtype(c.dtype, [&](auto type) {
        using T = decltype(type);
        is_launched = c.kernel_height == 5 ? launch_ring<T, 5, 2>(c, cycles, stream)
                      : c.stride_h == 1    ? launch_ring<T, 3, 1>(c, cycles, stream)
                                           : launch_ring<T, 3, 2>(c, cycles, stream);
    });
    return is_launched;
}

}  // namespace hipconv
