// Depthwise conv2d of many outputs of contiguous images by square filters of 3, 5 or 7 taps ("columns").
//
// A block walks down the rows of planes, images of neighbouring channels, side by side. A thread has two columns of outputs of
// a plane, with its filter and the sums of all rows of outputs under way in registers. Rows of x come to LDS some chunks of
// rows ahead, and lie there with zeros beside them, so that no read has a condition. Blocks stay: each has about as many rows
// of outputs, of planes that follow each other, and loads go on from the last row of one plane to the first one of the next.
#include <hip/hip_runtime.h>

#include "../common/epilogue.h"
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

constexpr int kColumnsThreads = kCopiesPastRegisters ? 256 : 128;  // of a block, at most; AMD's cards have less LDS

// Elements of x have kBytes each and are loaded by kUnitBytes at once.
template <int kBytes_, int kTaps_, int kStride_, int kUnitBytes_>
struct ColumnsShape {
    static constexpr int kBytes = kBytes_, kTaps = kTaps_, kStride = kStride_, kUnitBytes = kUnitBytes_;
    static constexpr int kColumns = 2;                             // of outputs, of a thread
    static constexpr int kSteps = kStride == 1 ? 4 : 2;            // rows of outputs of a chunk
    static constexpr int kRowsOfX = kSteps * kStride;              // of a chunk
    static constexpr int kRows = (kTaps + kStride - 1) / kStride;  // of outputs, that a row of x is part of
    // A thread reads pairs of columns. Where padding is half a filter, the first pair begins a column in front of its window.
    static constexpr int kSkipped = kTaps / 2 % 2;
    static constexpr int kPairs = (kSkipped + (kColumns - 1) * kStride + kTaps + 1) / 2;
    // In a row of x, a thread has so many loads, or so many rows of threads load as many rows at once.
    static constexpr int kUnit = kUnitBytes / kBytes, kOfThread = kColumns * kStride;
    static constexpr int kLoads = kUnit < kOfThread ? kOfThread / kUnit : 1;
    static constexpr int kAtOnce = kUnit > kOfThread ? kUnit / kOfThread : 1;
    static_assert(kRowsOfX % kAtOnce == 0);
    // Bytes of LDS of a row of x of all planes of a block, and of a chunk.
    static constexpr int kRowBytes = (kColumnsThreads * kOfThread * 5 / 4 + 16) * kBytes, kChunkBytes = kRowsOfX * kRowBytes;
    // Copies past the registers are under way for all chunks but one.
    static constexpr bool kCopies = kCopiesPastRegisters && kUnitBytes >= 4;
    static constexpr int kChunks = kCopies ? 3 : 2;
    static constexpr int kLds = kChunks * kChunkBytes;
    // Outputs that a block makes of each plane, at least, or products of a compute unit: other kernels begin faster.
    static constexpr int kLeastOutputs = kTaps == 3 ? 180 : kTaps == 5 ? 80 : 30;
    static constexpr int64_t kLeastProducts = kTaps == 3 ? int64_t{1} << 40 : kTaps == 5 ? 150'000 : 75'000;
    // Blocks of a compute unit that registers and LDS have room for.
    static constexpr int kByRegisters = (kTaps == 3 ? 4 : kTaps == 5 ? 3 : 2) * 256 / kColumnsThreads;
    static constexpr int kByLds = (kCopiesPastRegisters ? 224 : 64) * 1024 / (kLds + 1024);
    static constexpr int kBlocks = kByRegisters < kByLds ? kByRegisters : kByLds;
};

struct ColumnsParams {
    Conv2dParams conv;
    int32_t planes;        // of a block
    int32_t groups;        // of planes, of an image
    int32_t tiles, width;  // of columns of outputs: how many tiles, and columns of a tile
    int32_t threads;       // of a plane
    int32_t units;         // of x in a row of a plane, that a tile sees
    int32_t begin;         // column of x of the first unit of the first tile
    // Elements of LDS: of a plane, in front of its first unit, and in front of the first pair that its first thread reads.
    int32_t pitch, lead, first;
    int32_t rows, block_rows;  // of outputs: of all planes, and of a block
    int64_t to_residual;       // bytes from an output to what is added to it
    bool has_pairs;            // a thread's two columns of outputs are one word, or two of float32
    SmallDivisor divide_by_threads, divide_by_units, divide_by_block_units;
    SmallDivisor divide_by_planes;  // of a block, and one more
    Divisor divide_by_height, divide_by_batch, divide_by_tiles;
    Divisor divide_by_multiplier;  // filters of a channel of x
};

// The rows of outputs of one group of planes that a block walks down without a pause.
struct ColumnsRun {
    int group, tile, image, row, rows;

    // The run that begins with row `at` of all; there are `left` of them, 0 or less behind the last run.
    HIPCONV_INLINE ColumnsRun(const ColumnsParams& p, int at, int left) {
        const uint32_t number = divide(static_cast<uint32_t>(at), p.divide_by_height);
        const uint32_t place = divide(number, p.divide_by_batch);
        row = at - static_cast<int>(number) * p.conv.out_height;
        image = static_cast<int>(number) - static_cast<int>(place) * p.conv.batch;
        group = static_cast<int>(divide(place, p.divide_by_tiles));
        tile = static_cast<int>(place) - group * p.tiles;
        rows = left < p.conv.out_height - row ? left : p.conv.out_height - row;
    }
};

// A load of a thread: its row, of those that are loaded at once, its plane of the block, and its unit of that plane's row.
template <typename Shape>
struct ColumnsLoad {
    int row = 0, plane, unit;
    bool exists;

    HIPCONV_INLINE ColumnsLoad(const ColumnsParams& p, int number) {
        int of_row = static_cast<int>(threadIdx.x) + number * static_cast<int>(blockDim.x);
        if constexpr (Shape::kAtOnce > 1) row = divide(of_row, p.divide_by_block_units);
        of_row -= row * p.planes * p.units;
        plane = divide(of_row, p.divide_by_units);
        unit = of_row - plane * p.units;
        exists = row < Shape::kAtOnce && plane < p.planes;
    }
};

// A thread's share of the rows of x, on their way to LDS.
template <typename Shape>
class ColumnsSource {
  public:
    using Unit = typename WordsOf<Shape::kUnitBytes>::type;

    HIPCONV_INLINE ColumnsSource(const ColumnsParams& p, int first, int rows) : at_(first), left_(rows) {
        row_ = ColumnsLoad<Shape>(p, 0).row;
#pragma unroll
        for (int k = 0; k < Shape::kLoads; ++k) {
            const ColumnsLoad<Shape> load(p, k);
            const int place = (load.plane * p.pitch + p.lead + load.unit * Shape::kUnit) * Shape::kBytes;
            to_[k] = load.exists ? load.row * Shape::kRowBytes + place : -1;
        }
        go_to_run(p);
    }

    // Begins to load the next chunk, to its place in LDS where the card can copy it there.
    HIPCONV_INLINE void load(const ColumnsParams& p, char* lds) {
        const int64_t pitch = p.conv.x.row_stride * Shape::kBytes;
#pragma unroll
        for (int i = 0; i < Shape::kRowsOfX; i += Shape::kAtOnce) {
#pragma unroll
            for (int k = 0; k < Shape::kLoads; ++k) {
                const bool exists = static_cast<uint32_t>(y_ + i) < static_cast<uint32_t>(behind_[k]);
                if constexpr (Shape::kCopies) {
                    auto* const to = reinterpret_cast<Unit*>(lds + to_[k] + i * Shape::kRowBytes);
                    if (to_[k] >= 0) copy_later(to, from_[k], !exists);
                } else {
                    units_[i][k] = Unit{};
                    if (exists) units_[i][k] = *global_pointer<const Unit>(from_[k]);
                }
                from_[k] += pitch * Shape::kAtOnce;
            }
        }
        if constexpr (Shape::kCopies) close_copies();
        y_ += Shape::kRowsOfX;
        if (y_ < end_) return;
        at_ += rows_;
        left_ -= rows_;
        go_to_run(p);
    }

    // Writes to LDS what could not be copied past the registers.
    HIPCONV_INLINE void store(char* lds) const {
#pragma unroll
        for (int i = 0; i < Shape::kRowsOfX; i += Shape::kAtOnce)
#pragma unroll
            for (int k = 0; k < Shape::kLoads; ++k)
                if (to_[k] >= 0) *reinterpret_cast<Unit*>(lds + to_[k] + i * Shape::kRowBytes) = units_[i][k];
    }

  private:
    HIPCONV_INLINE void go_to_run(const ColumnsParams& p) {
        const Conv2dParams& c = p.conv;
        const ColumnsRun run(p, left_ > 0 ? at_ : 0, left_);
        rows_ = run.rows;
        y_ = run.row * Shape::kStride - c.pad_top;
        end_ = left_ > 0 ? y_ + (run.rows + Shape::kRows - 1) * Shape::kStride : 1 << 30;
        const int seen = y_ + (run.rows - 1) * Shape::kStride + Shape::kTaps;
        const int behind = left_ <= 0 || seen < 0 ? 0 : seen < c.in_height ? seen : c.in_height;
        y_ += row_;
        end_ += row_;
        const int first = run.tile * p.width * Shape::kStride + p.begin;
#pragma unroll
        for (int k = 0; k < Shape::kLoads; ++k) {
            const ColumnsLoad<Shape> load(p, k);
            const int column = first + load.unit * Shape::kUnit, channel = run.group * p.planes + load.plane;
            const bool is_inside = static_cast<uint32_t>(column) < static_cast<uint32_t>(c.in_width);
            const int of_x = static_cast<int>(divide(static_cast<uint32_t>(channel), p.divide_by_multiplier));
            behind_[k] = load.exists && channel < c.out_channels && is_inside ? behind : 0;
            from_[k] = static_cast<const char*>(c.x.data) + offset_in(c.x, run.image, of_x, y_, column) * Shape::kBytes;
        }
    }

    const char* from_[Shape::kLoads];
    int to_[Shape::kLoads];  // bytes in a chunk; less than 0: nowhere
    // Rows of x: the next one, the first one that nobody sees or is outside (none is loaded of 0), and the first of no step.
    int y_, behind_[Shape::kLoads], end_;
    int at_, left_, rows_, row_;
    Unit units_[Shape::kCopies ? 1 : Shape::kRowsOfX][Shape::kCopies ? 1 : Shape::kLoads];
};

// Calls run(T{}) with the type of a call's elements, of kBytes each.
template <int kBytes, typename Run>
HIPCONV_INLINE void with_type(DType dtype, const Run& run) {
    if constexpr (kBytes == 4)
        run(float{});
    else
        dtype == DType::bf16 ? run(bf16{}) : run(f16{});
}

// The columns of a row of x that a thread sees, which it reads by pairs.
template <typename Shape>
struct ColumnsSeen {
    Pair pairs[Shape::kPairs];

    HIPCONV_INLINE ColumnsSeen(const char* row, DType dtype) {
        using Memory = typename WordsOf<2 * Shape::kBytes>::type;
        Memory words[Shape::kPairs];
#pragma unroll
        for (int s = 0; s < Shape::kPairs; ++s) words[s] = reinterpret_cast<const Memory*>(row)[s];
        with_type<Shape::kBytes>(dtype, [&](auto like) {
#pragma unroll
            for (int s = 0; s < Shape::kPairs; ++s) pairs[s] = pair_of<decltype(like)>(words[s], 0);
        });
    }
    HIPCONV_INLINE float operator[](int column) const {
        const Pair pair = pairs[(column + Shape::kSkipped) / 2];
        return (column + Shape::kSkipped) % 2 ? high(pair) : low(pair);
    }
};

template <int kBytes, int kTaps, int kStride, int kUnitBytes>
__global__ void HIPCONV_LAUNCH_BOUNDS(kColumnsThreads, (ColumnsShape<kBytes, kTaps, kStride, kUnitBytes>::kBlocks))
    conv2d_depthwise_columns(ColumnsParams p) {
    using Shape = ColumnsShape<kBytes, kTaps, kStride, kUnitBytes>;
    constexpr int kColumns = Shape::kColumns, kRows = Shape::kRows, kSteps = Shape::kSteps, kAllTaps = kTaps * kTaps;
    constexpr int kLastChunk = Shape::kLds - Shape::kChunkBytes;
    HIPCONV_LARGE_SHARED(Words4, lds, kCopiesPastRegisters ? 1 : Shape::kLds / 16);

    let_next_kernel_begin();
    const int thread = static_cast<int>(threadIdx.x);
    // Zeros in front of each plane's units, and behind the last one's.
    const int gap = p.pitch - p.units * Shape::kUnit, rows_of_planes = p.planes + 1;
    for (int i = thread; i < Shape::kLds / Shape::kRowBytes * rows_of_planes; i += static_cast<int>(blockDim.x)) {
        const int row = divide(i, p.divide_by_planes), of_row = i - row * rows_of_planes;
        char* const zeros = reinterpret_cast<char*>(lds) + row * Shape::kRowBytes + (of_row * p.pitch + p.lead - gap) * kBytes;
        for (int e = of_row == 0 && gap > p.lead ? gap - p.lead : 0; e < gap; ++e)
            *reinterpret_cast<typename WordsOf<kBytes>::type*>(zeros + e * kBytes) = 0;
    }
    int at = static_cast<int>(blockIdx.x) * p.block_rows;
    int left = p.rows - at < p.block_rows ? p.rows - at : p.block_rows;
    const int plane = divide(thread, p.divide_by_threads), place = (thread - plane * p.threads) * kColumns;
    const int first_read = p.first + (plane < p.planes ? plane * p.pitch + place * kStride : 0);
    char* const all = reinterpret_cast<char*>(lds);
    const char* const read = all + first_read * kBytes;
    ColumnsSource<Shape> source(p, at, left);
    wait_for_kernel_before();
    __syncthreads();
    int chunk = 0;  // where LDS has this step's rows
    if constexpr (Shape::kCopies) {
#pragma unroll 1
        for (int i = 0; i < kLastChunk; i += Shape::kChunkBytes) source.load(p, all + i);
    } else {
        source.load(p, all);
        source.store(all);
        source.load(p, all);
        __syncthreads();
    }

    float taps[kAllTaps], bias = 0.0f;
    int group = -1;  // whose filters these are
#pragma unroll 1
    while (left > 0) {
        const ColumnsRun run(p, at, left);
        const Conv2dParams& c = first_parameter_again(p).conv;
        const int channel = run.group * p.planes + plane, column = run.tile * p.width + place;
        const int k = channel < c.out_channels ? channel : 0;
        if (run.group != group) {
            group = run.group;
            const char* const from = static_cast<const char*>(c.weight.data) + int64_t{k} * (kAllTaps * kBytes);
            const uint32_t bits = load_bias_bits(c, k);
#pragma unroll
            for (int i = 0; i < kAllTaps; ++i) {
                with_type<kBytes>(c.dtype,
                                  [&](auto like) { taps[i] = to_float(global_pointer<const decltype(like)>(from)[i]); });
                in_a_register(taps[i]);
            }
            bias = parameter_of(bits, c.bias_dtype);
        }
        const bool has_work = plane < p.planes && channel < c.out_channels && place < p.width;
        const int columns = has_work ? c.out_width - column : 0;
        char* out = static_cast<char*>(c.out.data) + offset_in(c.out, run.image, k, run.row, column) * kBytes;
        const int64_t out_pitch = c.out.row_stride * kBytes;
        out -= (kRows - 1) * out_pitch;  // the rows of the first steps are none
        float sums[kRows][kColumns];
#pragma unroll
        for (int i = 0; i < kRows * kColumns; ++i) sums[i / kColumns][i % kColumns] = bias;
        const int steps = run.rows + kRows - 1;
#pragma unroll 1
        for (int t = 0; t < steps; t += kSteps) {
            if constexpr (Shape::kCopies) {
                wait_for_copies<Shape::kChunks - 2>();
                __syncthreads();
                source.load(p, all + (chunk == 0 ? kLastChunk : chunk - Shape::kChunkBytes));
            }
            Pair results[kSteps];
#pragma unroll
            for (int i = 0; i < kSteps; ++i) {
#pragma unroll
                for (int j = 0; j < kStride; ++j) {
                    const ColumnsSeen<Shape> x(read + chunk + (i * kStride + j) * Shape::kRowBytes, p.conv.dtype);
                    add_row_of_x<kTaps, kStride>(
                        sums, j, x, bias, [&](int tap) { return taps[tap]; }, [](int) { return true; });
                }
                results[i] = make_pair(sums[0][0], sums[0][1]);
            }
            const auto is_row = [&](int i) {
                return static_cast<uint32_t>(t + i - (kRows - 1)) < static_cast<uint32_t>(run.rows);
            };
            if (const ColumnsParams& again = first_parameter_again(p); again.conv.residual.data) {
                with_type<kBytes>(p.conv.dtype, [&](auto like) {
                    using T = decltype(like);
                    const char* from = out + again.to_residual;
                    T more[kSteps][kColumns] = {};
#pragma unroll
                    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
                        for (int q = 0; q < kColumns; ++q)
                            if (is_row(i) && columns > q) more[i][q] = global_pointer<const T>(from)[q];
                        from += out_pitch;
                    }
#pragma unroll
                    for (int i = 0; i < kSteps; ++i)
                        results[i] = add(results[i], make_pair(to_float(more[i][0]), to_float(more[i][1])));
                });
            }
            if (p.conv.activation != Conv2dActivation::none) activate_pairs(results, p.conv.activation);
            with_type<kBytes>(p.conv.dtype, [&](auto like) {
                using T = decltype(like);
#pragma unroll
                for (int i = 0; i < kSteps; ++i) {
                    if (p.has_pairs) {
                        Words<T, 2> words{};
                        set_pair<T>(words, 0, results[i]);
                        if (is_row(i) && columns > 0) store_global(out, words);
                    } else {
                        if (is_row(i) && columns > 0) store_global(out, from_float<T>(low(results[i])));
                        if (is_row(i) && columns > 1) store_global(out + kBytes, from_float<T>(high(results[i])));
                    }
                    out += out_pitch;
                }
            });
            chunk = chunk == kLastChunk ? 0 : chunk + Shape::kChunkBytes;
            if constexpr (!Shape::kCopies) {
                source.store(all + chunk);
                source.load(p, all);
                __syncthreads();
            }
        }
        at += run.rows;
        left -= run.rows;
    }
}

// ---- the launch -------------------------------------------------------------------------------------------------------------

// Cuts planes into blocks, and returns how many threads these have: none where there are too few rows of outputs.
template <typename Shape>
int64_t cut_columns(ColumnsParams& p) {
    const Conv2dParams& c = p.conv;
    constexpr int64_t kColumns = Shape::kColumns, kStride = Shape::kStride, kSkipped = Shape::kSkipped, kUnit = Shape::kUnit;
    const int64_t lanes = wave_size_here(), compute_units = compute_units_here(), most = kColumnsThreads;
    // A tile of columns: all of them, or as many as a block has threads for, those that load the columns beside it included.
    p.tiles =
        static_cast<int32_t>(c.out_width <= most * kColumns ? 1 : ceil_of(c.out_width, (most - Shape::kTaps - 1) * kColumns));
    if (p.tiles > 1 && Shape::kUnitBytes == 16) return 0;
    // A block that had one plane alone would make so many outputs of it; one of several planes makes fewer of each.
    const int64_t rows_of_planes = int64_t{c.out_channels} * p.tiles * c.batch * c.out_height;
    const bool is_much =
        rows_of_planes * c.out_width * (Shape::kTaps * Shape::kTaps) >= Shape::kLeastProducts * p.tiles * compute_units;
    if (!is_much && (rows_of_planes / (compute_units * Shape::kBlocks) + 1) * c.out_width < Shape::kLeastOutputs) return 0;
    p.width = static_cast<int32_t>(round_up(ceil_of(c.out_width, p.tiles), kColumns));
    p.threads = static_cast<int32_t>(p.width / kColumns);
    const int64_t padding = c.pad_left + kSkipped, window = kSkipped + (p.width - 1) * kStride + Shape::kTaps;
    // A zero beside one tile is an element of x in the tile beside it.
    const int64_t lead = p.tiles == 1 ? round_up(padding, kUnit) : 0, first = p.tiles == 1 ? lead - padding : 0;
    const int64_t of_image = c.in_width < window - padding ? c.in_width : window - padding,
                  seen = p.tiles == 1 ? of_image : window;
    if (seen <= 0 || first % 2 != 0 || (p.tiles > 1 && padding % kUnit != 0)) return 0;
    p.lead = static_cast<int32_t>(lead);
    p.first = static_cast<int32_t>(first);
    p.begin = static_cast<int32_t>(lead - first - padding);
    p.units = static_cast<int32_t>(ceil_of(seen, kUnit));
    const int64_t loaded = lead + p.units * kUnit, zeros = first + window - lead;
    p.pitch = static_cast<int32_t>(round_up(loaded > zeros ? loaded : zeros, kUnit > 2 ? kUnit : 2));
    int64_t best = 0;
    double most_busy = 0;
    for (int64_t planes = 1; planes <= c.out_channels; ++planes) {
        const int64_t loading = Shape::kAtOnce * ceil_of(planes * p.units, int64_t{Shape::kLoads});
        const int64_t threads = round_up(loading < planes * p.threads ? planes * p.threads : loading, lanes);
        if (threads > most || (planes * p.pitch + lead) * Shape::kBytes > Shape::kRowBytes) break;
        const double blocks = double(ceil_of(c.out_channels, planes));
        const double busy = double(c.out_channels) * p.threads / (blocks * threads) * (threads * 2 < most ? 0.9 : 1);
        if (busy >= most_busy) most_busy = busy, best = threads, p.planes = static_cast<int32_t>(planes);
    }
    if (best == 0) return 0;
    p.groups = static_cast<int32_t>(ceil_of(c.out_channels, p.planes));
    const int64_t rows = int64_t{p.groups} * p.tiles * c.batch * c.out_height;
    if (rows >= int64_t{1} << 30) return 0;
    // Blocks have as many rows each, or whole planes, where that is less work: to begin in the middle of one takes steps.
    const int64_t resident = compute_units * (Shape::kBlocks * most / best), even = ceil_of(rows, resident);
    const int64_t planes = even / c.out_height, whole = round_up(even, c.out_height), rest = even - planes * c.out_height;
    const auto chunks_of = [&](int64_t of_run) { return ceil_of(of_run + Shape::kRows - 1, int64_t{Shape::kSteps}); };
    const int64_t of_parts = planes * chunks_of(c.out_height) + 2 * chunks_of((rest + 1) / 2);
    const int64_t block_rows = whole / c.out_height * chunks_of(c.out_height) <= of_parts ? whole : even;
    p.rows = static_cast<int32_t>(rows);
    p.block_rows = static_cast<int32_t>(block_rows);
    p.divide_by_threads = small_divisor_of(p.threads);
    p.divide_by_units = small_divisor_of(p.units);
    p.divide_by_block_units = small_divisor_of(p.units * p.planes);
    p.divide_by_planes = small_divisor_of(p.planes + 1);
    p.divide_by_height = divisor_of(static_cast<uint32_t>(c.out_height));
    p.divide_by_batch = divisor_of(static_cast<uint32_t>(c.batch));
    p.divide_by_tiles = divisor_of(static_cast<uint32_t>(p.tiles));
    p.divide_by_multiplier = divisor_of(static_cast<uint32_t>(c.out_channels / c.groups));
    return is_much || even * c.out_width >= Shape::kLeastOutputs ? best : 0;
}

template <int kBytes, int kTaps, int kStride, int kUnitBytes>
bool launch_instance(const Conv2dParams& c, hipStream_t stream) {
    using Shape = ColumnsShape<kBytes, kTaps, kStride, kUnitBytes>;
    ColumnsParams p{};
    p.conv = c;
    const int64_t threads = cut_columns<Shape>(p);
    if (threads == 0) return false;
    p.to_residual = bytes_to_residual(c);
    p.has_pairs = c.out_width % 2 == 0 && rows_begin_at_multiples(c.out, 2, kBytes) && c.out.channel_stride % 2 == 0;
    const unsigned blocks = static_cast<unsigned>(ceil_of(p.rows, p.block_rows));
    const auto columns = conv2d_depthwise_columns<kBytes, kTaps, kStride, kUnitBytes>;
    const int bytes = launch_shared_bytes(Shape::kLds);
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(columns), hipFuncAttributeMaxDynamicSharedMemorySize, bytes);
    HIPCONV_LAUNCH(true, columns, dim3(blocks, 1, 1), dim3(static_cast<unsigned>(threads), 1, 1), bytes, stream, p);
    check_launch("conv2d");
    return true;
}

template <int kTaps, int kStride>
bool launch_columns(const Conv2dParams& c, hipStream_t stream) {
    const int bytes = element_bytes(c.dtype);
    const auto comes_by = [&](int elements) {
        return c.in_width % elements == 0 && rows_begin_at_multiples(c.x, elements, bytes) &&
               c.x.channel_stride % elements == 0;
    };
    if (bytes == 4) {
        if (comes_by(4) && launch_instance<4, kTaps, kStride, 16>(c, stream)) return true;
        if (comes_by(2) && launch_instance<4, kTaps, kStride, 8>(c, stream)) return true;
        return launch_instance<4, kTaps, kStride, 4>(c, stream);
    }
    if constexpr (kTaps == 3 && kStride == 2) return launch_instance<2, kTaps, kStride, 2>(c, stream);
    return false;
}

}  // namespace

bool depthwise_columns(const Conv2dParams& c, void* on) {
    const hipStream_t stream = static_cast<hipStream_t>(on);
    if (c.kernel_height > 7 || (c.dtype != DType::f32 && c.in_width % 2 == 0) || c.out_dtype != c.dtype ||
        !residual_lies_as_out(c) || !has_dense_filters(c) || c.x.column_stride != 1 || c.out.column_stride != 1)
        return false;
    if (c.kernel_height == 3) return c.stride_h == 1 ? launch_columns<3, 1>(c, stream) : launch_columns<3, 2>(c, stream);
    if (c.kernel_height == 5) return c.stride_h == 1 ? launch_columns<5, 1>(c, stream) : launch_columns<5, 2>(c, stream);
    return c.stride_h == 1 ? launch_columns<7, 1>(c, stream) : launch_columns<7, 2>(c, stream);
}

}  // namespace hipconv
