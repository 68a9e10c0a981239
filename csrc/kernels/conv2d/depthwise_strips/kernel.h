// Depthwise layers of 16-bit types and channels_last images on matrix cores (`depthwise_strips`).
//
// A strip is kStripColumns columns of outputs, down a segment of rows. A block has 16 channels or 32 of up to 16 strips, of one
// image or of several, and goes down their rows of x in step. The strips are the rows of a matrix instruction, which multiplies
// a channel's row of x by bands, matrices with a row of taps on their diagonals, one for each row of taps. Sums of all rows of
// outputs that see the row of x stay in registers: they move up by one with each step, which costs nothing, as an instruction
// writes them elsewhere than it reads them. So memory, LDS and the instructions see each row of x once.
//
// Rows of x lie in LDS as in memory, column by column; a lane reads a few channels of two columns, and pairs them. What is read
// beside a strip's own columns meets a zero of the band. Stages are on their way to LDS while one is multiplied, and outputs go
// through LDS, so that memory sees whole vectors.
#pragma once

#include "../common/band_atom.h"
#include "../common/depthwise_formula.h"
#include "../common/epilogue.h"
#include "../common/padding.h"
#include "params.h"

namespace hipconv {

// Words of neighbouring channels, two each, as a lane reads and writes them.
template <int kPairs>
struct ChannelWords {
    uint32_t words[kPairs];
};

template <int kPairs>
HIPCONV_INLINE ChannelWords<kPairs> read_channels(const char* from) {
    ChannelWords<kPairs> read;
    if constexpr (kPairs == 2) {
        const Words2 both = *reinterpret_cast<const Words2*>(from);
        read.words[0] = word(both, 0);
        read.words[1] = word(both, 1);
    } else {
        read.words[0] = *reinterpret_cast<const uint32_t*>(from);
    }
    return read;
}

template <int kPairs>
HIPCONV_INLINE void write_channels(char* to, const ChannelWords<kPairs>& written) {
    if constexpr (kPairs == 2) {
        Words2 both;
        set_word(both, 0, written.words[0]);
        set_word(both, 1, written.words[1]);
        *reinterpret_cast<Words2*>(to) = both;
    } else {
        *reinterpret_cast<uint32_t*>(to) = written.words[0];
    }
}

// Where a vector of channels of a column lies in LDS: in every second group of eight columns, and of sixteen, vectors change
// places in pairs, so that lanes of neighbouring strips find theirs in different banks.
template <int kPitch>
HIPCONV_INLINE int place_of(int column, int chunk) {
    return column * kPitch + ((chunk ^ ((column >> 3 ^ column >> 4) & 1)) << 4);
}

// A strip: its image, and its first row and column of outputs.
struct Strip {
    int image, row, column;

    HIPCONV_INLINE Strip(const StripsParams& p, int number) {
        const int along = static_cast<int>(divide(number, p.divide_by_tiles));
        image = static_cast<int>(divide(along, p.divide_by_segments));
        row = (along - image * p.segments) * p.segment_rows;
        column = (number - along * p.tiles) * kStripColumns;
    }
};

// The number of a strip among those beside it.
HIPCONV_INLINE int tile_of(const StripsParams& p, int strip) {
    return strip - static_cast<int>(divide(strip, p.divide_by_tiles)) * p.tiles;
}

// A thread's share of each row of x: vectors of channels, each of one column of one strip.
// `kMore`: padding of any mode.
template <typename Shape, int kStride, int kThreads, bool kMore>
class StripsSource {
  public:
    HIPCONV_INLINE StripsSource(const StripsParams& p, int first, int channel, int thread) {
        const Conv2dParams& c = p.conv;
        const int behind = p.strips - first < p.block_strips ? p.strips : first + p.block_strips;
        // Strips beside each other, of which `ahead` are those of the first run.
        const int ahead = p.tiles - tile_of(p, first), first_run = ahead * Shape::kOwn + p.run_tail;
        const int of_run = Shape::kOwn * p.tiles + p.run_tail;
        const int place = thread / Shape::kChunks, chunk = thread % Shape::kChunks;
        to_ = place_of<Shape::kPitch>(place, chunk);
#pragma unroll
        for (int i = 0; i < Shape::kLoads; ++i) {
            // The vector lies `offset` columns behind its run's first one.
            const int at = place + i * kApart, run = at < first_run ? 0 : divide(at - first_run, p.divide_by_run);
            const int offset = at < first_run ? at : at - first_run - run * of_run;
            const int strip = at < first_run ? first : first + ahead + run * p.tiles;
            const Strip of(p, strip < behind ? strip : first);
            const int column = of.column * kStride - c.pad_left + offset;
            const int found = kMore ? padded_index_of(column, c.in_width, c.padding_mode) : column;
            const bool exists = strip < behind && found >= 0 && found < c.in_width && channel + chunk * 8 < c.in_channels &&
                                at * Shape::kPitch < p.row_bytes;
            row_[i] = exists ? of.row * kStride - c.pad_top : kNowhere;
            from_[i] = static_cast<const char*>(c.x.data) +
                       2 * offset_in(c.x, of.image, channel + chunk * 8, exists ? row_[i] : 0, exists ? found : 0);
        }
    }

    // Begins to copy the next rows; rows outside the image become zeros, or what padding finds there.
    HIPCONV_INLINE void load(char* stage, const StripsParams& p) {
        const Conv2dParams& c = p.conv;
        const int64_t down = 2 * c.x.row_stride;
#pragma unroll
        for (int i = 0; i < Shape::kLoads; ++i) {
            if (!fits(p, i)) break;
#pragma unroll
            for (int j = 0; j < Shape::kInRows; ++j) {
                int row = row_[i] + j;
                const char* from = from_[i];
                if (kMore && row > kNowhere / 2) {
                    row = padded_index_of(row, c.in_height, c.padding_mode);
                    from += down * (row - (row_[i] + j));
                }
                const bool inside = static_cast<uint32_t>(row) < static_cast<uint32_t>(c.in_height);
                if constexpr (kCopiesPastRegisters) {
                    copy_later(reinterpret_cast<Words4*>(stage + to_ + j * p.row_bytes + i * kApart * Shape::kPitch), from,
                               !inside);
                } else {
                    vectors_[j][i] = Words4{};
                    if (inside) vectors_[j][i] = *global_pointer<const Words4>(from);
                }
                from_[i] += down;
            }
            row_[i] += Shape::kInRows;
        }
    }

    // Writes to LDS what could not be copied past the registers.
    HIPCONV_INLINE void store(char* stage, const StripsParams& p) {
        if constexpr (!kCopiesPastRegisters) {
#pragma unroll
            for (int j = 0; j < Shape::kInRows; ++j)
#pragma unroll
                for (int i = 0; i < Shape::kLoads; ++i)
                    if (fits(p, i))
                        *reinterpret_cast<Words4*>(stage + to_ + j * p.row_bytes + i * kApart * Shape::kPitch) = vectors_[j][i];
        }
    }

  private:
    static constexpr int kApart = kThreads / Shape::kChunks;  // columns from one vector of a thread to the next
    static constexpr int kNowhere = -(1 << 30);
    static_assert(kApart % 32 == 0 && Shape::kLoads > 0);

    HIPCONV_INLINE bool fits(const StripsParams& p, int i) const { return to_ + i * kApart * Shape::kPitch < p.row_bytes; }

    const char* from_[Shape::kLoads];
    int row_[Shape::kLoads];
    int to_;
    Words4 vectors_[kCopiesPastRegisters ? 1 : Shape::kInRows][Shape::kLoads];
};

// A thread's share of each row of outputs: vectors of channels, each of one column of one strip.
template <typename Shape, int kThreads>
class StripsOutputs {
  public:
    HIPCONV_INLINE StripsOutputs(const StripsParams& p, int first, int channel, int thread) {
        const Conv2dParams& c = p.conv;
        const int place = thread / Shape::kChunks;
        channel_ = channel + thread % Shape::kChunks * 8;
        from_ = place_of<Shape::kPitch>(place, thread % Shape::kChunks);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const int at = place + i * kApart, number = at / kStripColumns;
            const bool is_strip = number < p.block_strips && first + number < p.strips;
            const Strip strip(p, is_strip ? first + number : first);
            const int column = strip.column + at % kStripColumns, left = c.out_height - strip.row;
            const bool exists = is_strip && column < c.out_width && channel_ < c.out_channels;
            rows_[i] = !exists ? 0 : left < p.segment_rows ? left : p.segment_rows;
            to_[i] =
                static_cast<char*>(c.out.data) + 2 * offset_in(c.out, strip.image, channel_, strip.row, exists ? column : 0);
        }
    }

    // Writes the next rows of the strips, from number `row` on; those in front of the first one are none.
    HIPCONV_INLINE void write(const char* outputs, const StripsParams& p, int row) {
        Words4 vectors[Shape::kOutRows][kCount];
#pragma unroll
        for (int sub = 0; sub < Shape::kOutRows; ++sub)
#pragma unroll
            for (int i = 0; i < kCount; ++i)
                vectors[sub][i] = *reinterpret_cast<const Words4*>(
                    outputs + from_ + (sub * kMostStrips * kStripColumns + i * kApart) * Shape::kPitch);
#pragma unroll
        for (int sub = 0; sub < Shape::kOutRows; ++sub) {
            if (row + sub < 0) continue;
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
                if (row + sub < rows_[i]) *global_pointer<Words4>(to_[i]) = vectors[sub][i];
                to_[i] += 2 * p.conv.out.row_stride;
            }
        }
    }

    // Writes all rows again, by the formula.
    HIPCONV_INLINE void make_again(const StripsParams& p, int first, int thread) const {
        const Conv2dParams& c = p.conv;
#pragma unroll 1
        for (int at = thread / Shape::kChunks; at < p.block_strips * kStripColumns; at += kApart) {
            const int number = first + at / kStripColumns;
            const Strip strip(p, number < p.strips ? number : first);
            const int column = strip.column + at % kStripColumns;
            const int behind = strip.row + p.segment_rows < c.out_height ? strip.row + p.segment_rows : c.out_height;
            if (number >= p.strips || column >= c.out_width || channel_ >= c.out_channels) continue;
#pragma unroll 1
            for (int row = strip.row; row < behind; ++row)
#pragma unroll 1
                for (int k = channel_; k < channel_ + 8; ++k) {
                    float sum = depthwise_by_formula(c, strip.image, k, k, row, column, c.padding_mode);
                    conv2d_store(c, strip.image, k, row, column, sum);
                }
        }
    }

  private:
    static constexpr int kApart = kThreads / Shape::kChunks;
    static constexpr int kCount = kMostStrips * kStripColumns / kApart;
    static_assert(kApart % 32 == 0 && kCount * kApart == kMostStrips * kStripColumns);

    char* to_[kCount];
    int rows_[kCount];
    int from_, channel_;
};

// A lane's elements of a row of the residual, as it has sums: of `channel` and those behind it, under way until they are added.
// Their places are worked out for each row again, as registers are few.
template <typename A, int kPairs>
class StripsResidual {
  public:
    HIPCONV_INLINE void load(const StripsParams& p, int first, int channel, int lane, int row) {
        const Conv2dParams& c = p.conv;
#pragma unroll
        for (int r = 0; r < A::kRows; ++r) {
            const int of_block = A::row(lane, r);
            const bool is_strip = of_block < p.block_strips && first + of_block < p.strips;
            const Strip strip(p, is_strip ? first + of_block : first);
            const int left = c.out_height - strip.row, rows = left < p.segment_rows ? left : p.segment_rows;
            const bool has_row =
                is_strip && static_cast<uint32_t>(row) < static_cast<uint32_t>(rows) && channel < c.out_channels;
            const char* const line = static_cast<const char*>(c.residual.data) +
                                     2 * offset_in(c.residual, strip.image, channel, strip.row + row, strip.column);
#pragma unroll
            for (int e = 0; e < A::kSums; ++e) {
                if (A::sum_row(e) != r) continue;
                const int column = A::sum_column(lane, e);
                words_[e] = Memory{};
                if (has_row && strip.column + column < c.out_width)
                    words_[e] = *global_pointer<const Memory>(line + 2 * column * c.residual.column_stride);
            }
        }
    }
    HIPCONV_INLINE void add_to(typename A::Sums (&sums)[2 * kPairs], DType dtype) const {
        const auto add_as = [&](auto like) {
#pragma unroll
            for (int e = 0; e < A::kSums; ++e)
#pragma unroll
                for (int pair = 0; pair < kPairs; ++pair) {
                    const Pair both = pair_of<decltype(like)>(words_[e], pair);
                    sums[2 * pair][e] += low(both);
                    sums[2 * pair + 1][e] += high(both);
                }
        };
        dtype == DType::bf16 ? add_as(bf16{}) : add_as(f16{});
    }

  private:
    using Memory = Words<f16, 2 * kPairs>;

    Memory words_[A::kSums];
};

// The filters of a block's channels on their way to LDS: rows of taps behind a zero, and zeros behind them and between dilated
// ones. They are there twice, the second time an element further to the front, so that any two neighbours are a word of one or
// the other.
template <typename Shape, int kTaps, int kThreads>
class StripsFilters {
  public:
    HIPCONV_INLINE StripsFilters(const StripsParams& p, int channel, int thread) {
        const Conv2dParams& c = p.conv;
        const int taps = c.kernel_height * c.kernel_width, channels = c.out_channels - channel;
#pragma unroll
        for (int i = 0; i < Shape::kTapsAhead; ++i) {
            const int number = thread + i * kThreads, k = divide(number, p.divide_by_taps), tap = number - k * taps;
            const int r = divide(tap, p.divide_by_columns), s = tap - r * c.kernel_width;
            to_[i] = k < Shape::kChannels ? (k * kTaps + r * c.dilation_h) * kStripsTapPitch + s * c.dilation_w : -1;
            values_[i] = 0;
            if (to_[i] >= 0 && k < channels)
                values_[i] = global_pointer<const uint16_t>(c.weight.data)[offset_in(c.weight, channel + k, 0, r, s)];
        }
    }
    HIPCONV_INLINE void store(uint16_t* filters) const {
#pragma unroll
        for (int i = 0; i < Shape::kTapsAhead; ++i) {
            if (to_[i] < 0) continue;
            filters[to_[i] + 1] = values_[i];
            filters[Shape::kFilters / 2 + to_[i]] = values_[i];
        }
    }

  private:
    int to_[Shape::kTapsAhead];
    uint16_t values_[Shape::kTapsAhead];
};

// T is a 16-bit type; where kHalvesShareKernels, f16 stands for both. `kMore`: there is a residual, or padding that is not
// zeros.
template <typename T, int kTaps, int kStride, bool kMore>
__global__ void HIPCONV_LAUNCH_BOUNDS((StripsShape<kTaps, kStride>::kWaves * kWaveSize), 1)
    conv2d_depthwise_strips(HIPCONV_IN_PLACE const StripsParams parameter) {
    using Shape = StripsShape<kTaps, kStride>;
    constexpr bool kIsLegal = kHasBandAtom<T> && (kWaveSize == 64 || kCopiesPastRegisters);
    HIPCONV_LARGE_SHARED(Words4, lds, kIsLegal && !kCopiesPastRegisters ? kStripsLds / 16 : 1);
    let_next_kernel_begin();
    if constexpr (kIsLegal) {
        using A = BandAtom<T>;
        constexpr int kThreads = Shape::kWaves * kWaveSize, kPairs = Shape::kPairs, kRows = Shape::kRows;
        constexpr int kSteps = ((kStripColumns - 1) * kStride + kStripsMostTaps + A::kDepth - 1) / A::kDepth;
        constexpr int kOutRowBytes = kMostStrips * kStripColumns * Shape::kPitch;
        static_assert(A::kColumns == kStripColumns);
        const StripsParams& all = first_parameter_again(parameter);
        const int thread = threadIdx.x, wave = thread / kWaveSize, lane = thread % kWaveSize;
        char* const base = reinterpret_cast<char*>(lds);
        int* const mark = reinterpret_cast<int*>(base + all.mark_at);
        const int group = static_cast<int>(divide(blockIdx.x, all.divide_by_channel_blocks)), first = group * all.block_strips;
        const int channel = (static_cast<int>(blockIdx.x) - group * all.channel_blocks) * Shape::kChannels;
        // Windows find zeros behind a stage's last strip.
        for (int i = thread; i < Shape::kStages * kStripsBehind * Shape::kPitch / 16; i += kThreads) {
            const int of = i / (kStripsBehind * Shape::kPitch / 16), at = i - of * (kStripsBehind * Shape::kPitch / 16);
            reinterpret_cast<Words4*>(base + (of + 1) * all.stage_bytes - kStripsBehind * Shape::kPitch)[at] = Words4{};
        }
        for (int i = thread; i < Shape::kFilters / 8; i += kThreads)
            reinterpret_cast<Words4*>(base + all.filters_at)[i] = Words4{};
        if (thread == 0) *mark = 0;
        __syncthreads();
        wait_for_kernel_before();
        const StripsFilters<Shape, kTaps, kThreads> from_memory(all, channel, thread);
        StripsSource<Shape, kStride, kThreads, kMore> source(first_parameter_again(parameter), first, channel, thread);
        int stage = 0;  // whose turn it is to be filled
        const int steps = (all.segment_rows + kRows - 1 + Shape::kOutRows - 1) / Shape::kOutRows;
        const auto load_next = [&](int step) {
            const StripsParams& p = first_parameter_again(parameter);
            if (step < steps) source.load(base + stage * p.stage_bytes, p);
            close_copies();
        };
        const auto store_next = [&] {
            const StripsParams& p = first_parameter_again(parameter);
            source.store(base + stage * p.stage_bytes, p);
            stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
        };
#pragma unroll 1
        for (int i = 0; i < Shape::kStages - 1; ++i) load_next(i), store_next();

        const StripsParams& more = first_parameter_again(parameter);
        uint32_t bias_bits[2 * kPairs];
#pragma unroll
        for (int k = 0; k < 2 * kPairs; ++k) {
            const int of = channel + wave * 2 * kPairs + k;
            const bool exists = more.conv.bias && of < more.conv.out_channels;
            bias_bits[k] = exists ? load_parameter_bits(more.conv.bias, of * more.conv.bias_stride, more.conv.bias_dtype) : 0;
        }
        // Where the lane reads x, by the strip and by eight columns, and where it writes outputs.
        const int chunk = wave * kPairs / 4, in_chunk = wave * kPairs % 4 * 4;
        int x_at[A::kRows][kSteps * A::kDepth / 8], out_at[A::kRows];
#pragma unroll
        for (int i = 0; i < A::kRows; ++i) {
            const int strip = A::row(lane, i);
            const int runs =
                strip < more.block_strips ? static_cast<int>(divide(tile_of(more, first) + strip, more.divide_by_tiles)) : 0;
            const int column = (strip < more.block_strips ? strip * Shape::kOwn : 0) + runs * more.run_tail + A::x_column(lane);
#pragma unroll
            for (int eight = 0; eight < kSteps * A::kDepth / 8; ++eight)
                x_at[i][eight] = place_of<Shape::kPitch>(column + 8 * eight, chunk) - 8 * eight * Shape::kPitch + in_chunk;
            const int of_sums = i * (A::kSums / A::kRows);
            out_at[i] =
                more.out_at + place_of<Shape::kPitch>(strip * kStripColumns + A::sum_column(lane, of_sums), chunk) + in_chunk;
        }
        StripsOutputs<Shape, kThreads> outputs(more, first, channel, thread);

        uint16_t* const filters = reinterpret_cast<uint16_t*>(base + more.filters_at);
        from_memory.store(filters);
        __syncthreads();
        uint32_t band[kTaps][kSteps][2 * kPairs][A::kWords];
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
#pragma unroll
            for (int w = 0; w < A::kWords; ++w) {
                // The first of two taps counts from the zero in front of a row.
                const int tap = s * A::kDepth + A::band_element(lane, w) - A::band_column(lane) * kStride + 1;
                const int at = tap < 0 || tap > kStripsMostTaps ? kStripsMostTaps + 1 : tap;
                const uint16_t* const from =
                    filters + (at % 2) * (Shape::kFilters / 2) + at / 2 * 2 + wave * 2 * kPairs * kTaps * kStripsTapPitch;
#pragma unroll
                for (int r = 0; r < kTaps; ++r)
#pragma unroll
                    for (int k = 0; k < 2 * kPairs; ++k)
                        band[r][s][k][w] = *reinterpret_cast<const uint32_t*>(from + (k * kTaps + r) * kStripsTapPitch);
            }
        float bias[2 * kPairs];
#pragma unroll
        for (int k = 0; k < 2 * kPairs; ++k) bias[k] = parameter_of(bias_bits[k], more.conv.bias_dtype);
        typename A::Sums sums[kRows][2 * kPairs] = {};  // of the rows of outputs that are under way; the first is not used
        int turn = 0;                                   // the stage to be multiplied
#pragma unroll 1
        for (int step = 0;; ++step) {
            const StripsParams& p = first_parameter_again(parameter);
            const Conv2dParams& c = p.conv;
            wait_for_copies<Shape::kStages - 2>();
            __syncthreads();
            // The outputs of the step before.
            if (step > 0)
                outputs.write(base + p.out_at + ((step - 1) & 1) * p.out_bytes, p, (step - 1) * Shape::kOutRows - (kRows - 1));
            if (step == steps) break;
            load_next(step + Shape::kStages - 1);
            const char* const of_turn = base + turn * p.stage_bytes;
            turn = turn + 1 == Shape::kStages ? 0 : turn + 1;
#pragma unroll 1
            for (int sub = 0; sub < Shape::kOutRows; ++sub) {
                StripsResidual<A, kPairs> residual;
                if (kMore && c.residual.data)
                    residual.load(p, first, channel + wave * 2 * kPairs, lane, step * Shape::kOutRows + sub - (kRows - 1));
                const char* const x_rows = of_turn + sub * kStride * p.row_bytes;
                typename A::Sums done[2 * kPairs];
#pragma unroll
                for (int j = 0; j < kStride; ++j) {
                    uint32_t x[kSteps][2 * kPairs][4];
#pragma unroll
                    for (int s = 0; s < kSteps; ++s)
#pragma unroll
                        for (int w = 0; w < 4; ++w) {
                            const int step_w = A::x_step(w);
                            const char* const from = x_rows + j * p.row_bytes +
                                                     x_at[A::x_row(w)][(s * A::kDepth + step_w) / 8] +
                                                     (s * A::kDepth + step_w) * Shape::kPitch;
                            const auto left = read_channels<kPairs>(from), right = read_channels<kPairs>(from + Shape::kPitch);
#pragma unroll
                            for (int pair = 0; pair < kPairs; ++pair) {
                                x[s][2 * pair][w] = lower_halves(left.words[pair], right.words[pair]);
                                x[s][2 * pair + 1][w] = upper_halves(left.words[pair], right.words[pair]);
                            }
                        }
                    with_halves<T>(c.dtype, [&](auto like) {
#pragma unroll
                        for (int i = kRows - 1; i >= 0; --i) {
                            const int r = i * kStride + j;
                            if (r >= kTaps) continue;
#pragma unroll
                            for (int k = 0; k < 2 * kPairs; ++k) {
                                // The sums of the row that is i above the lowest one under way.
                                typename A::Sums& to = i == kRows - 1 ? done[k] : sums[i + 1][k];
                                typename A::Sums next = j > 0 ? to : i > 0 ? sums[i][k] : typename A::Sums{};
#pragma unroll
                                for (int s = 0; s < kSteps; ++s)
                                    A::template multiply<decltype(like)>(next, x[s][k], band[r][s][k]);
                                to = next;
                            }
                        }
                    });
                }
                // The first rows of outputs are none.
                float zeros[2 * kPairs] = {};
#pragma unroll
                for (int e = 0; e < A::kSums; ++e)
#pragma unroll
                    for (int k = 0; k < 2 * kPairs; ++k) zeros[k] = fmaf(done[k][e], 0.0f, zeros[k]);
#pragma unroll
                for (int k = 1; k < 2 * kPairs; ++k) zeros[0] += zeros[k];
                if (zeros[0] != 0.0f) *mark = 1;
#pragma unroll
                for (int k = 0; k < 2 * kPairs; ++k)
#pragma unroll
                    for (int e = 0; e < A::kSums; ++e) done[k][e] += bias[k];
                if (kMore && c.residual.data) residual.add_to(done, c.residual_dtype);
                if (c.activation == Conv2dActivation::none) {
                } else if (c.activation == Conv2dActivation::relu) {
#pragma unroll
                    for (int k = 0; k < 2 * kPairs; ++k)
#pragma unroll
                        for (int e = 0; e < A::kSums; ++e) done[k][e] = at_least(done[k][e], 0.0f);
                } else {
                    // A channel of each pair at a time, so that the text of all activations stays short.
#pragma unroll 1
                    for (int turns = 0; turns < kPairs * 2; turns += kPairs) {
                        with_activation(c.activation, [&](Conv2dActivation kind) {
#pragma unroll
                            for (int k = 0; k < kPairs; ++k)
#pragma unroll
                                for (int e = 0; e < A::kSums; ++e) done[k][e] = activate(done[k][e], kind);
                        });
#pragma unroll
                        for (int k = 0; k < kPairs; ++k) {
                            const typename A::Sums other = done[k];
                            done[k] = done[k + kPairs];
                            done[k + kPairs] = other;
                        }
                    }
                }
                char* const to = base + (step & 1) * p.out_bytes + sub * kOutRowBytes;
#pragma unroll
                for (int e = 0; e < A::kSums; ++e) {
                    const int row = A::sum_row(e);
                    const int apart = A::sum_column(0, e) - A::sum_column(0, row * (A::kSums / A::kRows));
                    ChannelWords<kPairs> written;
#pragma unroll
                    for (int pair = 0; pair < kPairs; ++pair)
                        written.words[pair] = rounded_pair(c.out_dtype, make_pair(done[2 * pair][e], done[2 * pair + 1][e]));
                    write_channels<kPairs>(to + out_at[row] + apart * Shape::kPitch, written);
                }
            }
            store_next();
        }
        if (*mark != 0) outputs.make_again(first_parameter_again(parameter), first, thread);
    }
}

}  // namespace hipconv
