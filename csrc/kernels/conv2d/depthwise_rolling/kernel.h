// Depthwise layers of contiguous images on matrix cores, of 16-bit types or of f32 as TF32, from memory to memory without LDS
// (`depthwise_rolling`).
//
// A strip is kRollingColumns columns of outputs, down a segment of rows. A wave has a filter and 16 strips, of one image or of
// several, which are the rows of a matrix instruction: it multiplies a row of x of each by bands, matrices with a row of taps
// on their diagonals, one for each row of taps. Sums of all rows of outputs that see the row of x stay in registers and roll
// down: they move up by one with each step, which costs nothing, as an instruction writes them elsewhere than it reads them.
// So each row of x is read once, by lanes that have words beside each other, as the instruction wants them; the bands stay in
// registers, and waves wait for nobody. What is read beside a strip's own columns meets a zero of the band.
#pragma once

#include "../common/band_atom.h"
#include "../common/depthwise_formula.h"
#include "../common/epilogue.h"
#include "instances.h"
#include "launch/check.h"
#include "launch/compute_units.h"
#include "params.h"

namespace hipconv {

// A strip: its image, its class, and its first row, of the class, and column of outputs.
struct RollingStrip {
    int image, class_row, row, column, rows;  // none of one that does not exist

    RollingStrip() = default;
    HIPCONV_INLINE RollingStrip(const RollingParams& p, int number) {
        const int along = static_cast<int>(divide(number, p.divide_by_tiles));
        const int unit = static_cast<int>(divide(along, p.divide_by_segments));
        image = static_cast<int>(divide(unit, p.divide_by_classes));
        class_row = unit - image * p.classes;
        row = (along - unit * p.segments) * p.segment_rows;
        column = (number - along * p.tiles) * kRollingColumns;
        const int left = static_cast<int>(divide(p.conv.out_height - class_row + p.classes - 1, p.divide_by_classes)) - row;
        rows = number >= p.strips ? 0 : left < p.segment_rows ? left : p.segment_rows;
    }
    // The image's row of outputs that the strip's one of this number is.
    HIPCONV_INLINE int row_of_image(const RollingParams& p, int of_strip) const {
        return class_row + (row + of_strip) * p.classes;
    }
};

// A lane has to know this of a strip: where the window of its first outputs begins in x, where its outputs begin in front of
// those whose sums are under way, and what there is of both.
struct RollingPlace {
    const char *x, *out;
    int column, rows;  // of outputs: the first one, and how many
    int above, exist;  // rows of x that the strip sees above the image, and inside it

    RollingPlace() = default;
    HIPCONV_INLINE RollingPlace(const RollingParams& p, int bytes, int number, int channel, int filter, int step,
                                int under_way) {
        const Conv2dParams& c = p.conv;
        const RollingStrip strip(p, number);
        column = strip.column, rows = strip.rows;
        const int first = strip.row_of_image(p, 0) * c.stride_h - c.pad_top;
        const auto rows_of = [&](int height) {
            return static_cast<int>(divide(height + c.dilation_h - 1, p.divide_by_dilation));
        };
        above = first < 0 ? rows_of(-first) : 0;
        const int inside = first + above * c.dilation_h, seen = (rows - 1) * step + c.kernel_height - above;
        exist = inside < c.in_height ? rows_of(c.in_height - inside) : 0;
        exist = rows == 0 || seen < 0 ? 0 : seen < exist ? seen : exist;
        x = static_cast<const char*>(c.x.data) +
            bytes * (p.x.at(strip.image, channel, first) + strip.column * c.stride_w - c.pad_left - p.lead);
        out = static_cast<const char*>(c.out.data) +
              bytes * (p.out.at(strip.image, filter, strip.row_of_image(p, -under_way)) + strip.column);
    }
    // The place that lane `of` of the wave has found.
    __device__ __forceinline__ RollingPlace of_lane(int of) const {
        RollingPlace other;
        other.x = reinterpret_cast<const char*>(__shfl(reinterpret_cast<unsigned long long>(x), of));
        other.out = reinterpret_cast<const char*>(__shfl(reinterpret_cast<unsigned long long>(out), of));
        other.column = __shfl(column, of), other.rows = __shfl(rows, of);
        other.above = __shfl(above, of), other.exist = __shfl(exist, of);
        return other;
    }
};

// A row of x of a lane's strips, as the matrix instruction takes it: words, or elements that become words when they are used.
template <int kSteps, bool kWords>
struct RollingRow {
    uint32_t parts[kSteps][4][kWords ? 1 : 2];

    HIPCONV_INLINE void words(uint32_t (&x)[4], int step) const {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            if constexpr (kWords)
                x[w] = parts[step][w][0];
            else
                x[w] = lower_halves(parts[step][w][0], parts[step][w][1]);
        }
    }
};

// Where a lane reads x. Outside the image it finds zeros, without reading.
template <typename A, int kSteps, bool kWords, int kBytes>
class RollingSource {
  public:
    HIPCONV_INLINE RollingSource(const RollingParams& p, const RollingPlace (&places)[A::kRows], int lane) {
        const Conv2dParams& c = p.conv;
#pragma unroll
        for (int r = 0; r < A::kRows; ++r) {
            const int column = places[r].column * c.stride_w - c.pad_left - p.lead + A::x_column(lane);
            from_[r] = places[r].x + kBytes * A::x_column(lane);
            row_[r] = -places[r].above;
#pragma unroll
            for (int s = 0; s < kSteps; ++s)
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    if (A::x_row(w) != r) continue;
#pragma unroll
                    for (int e = 0; e < kParts; ++e) {
                        const int at = column + s * A::kDepth + A::x_step(w) + e;
                        limits_[s][w][e] = static_cast<uint32_t>(at) < static_cast<uint32_t>(c.in_width) ? places[r].exist : 0;
                        in_a_register(limits_[s][w][e]);
                    }
                }
        }
    }

    // Begins to read the next row.
    HIPCONV_INLINE void load(RollingRow<kSteps, kWords>& next, int64_t pitch) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < kParts; ++e) {
                    const char* const from = from_[A::x_row(w)] + (s * A::kDepth + A::x_step(w) + e) * kBytes;
                    next.parts[s][w][e] = 0;
                    if (static_cast<uint32_t>(row_[A::x_row(w)]) >= static_cast<uint32_t>(limits_[s][w][e])) continue;
                    if constexpr (kWords)
                        next.parts[s][w][e] = *global_pointer<const uint32_t>(from);
                    else
                        next.parts[s][w][e] = *global_pointer<const uint16_t>(from);
                }
#pragma unroll
        for (int r = 0; r < A::kRows; ++r) {
            from_[r] += pitch;
            in_a_register(from_[r]);
            promise_global(from_[r]);
            ++row_[r];
        }
    }

  private:
    static constexpr int kParts = kWords ? 1 : 2;

    const char* from_[A::kRows];
    int row_[A::kRows];              // counted from the image's first one on
    int limits_[kSteps][4][kParts];  // rows that there are to read
};

// Two outputs beside each other of a 16-bit type, or of f32, on their way between registers and memory.
template <int kBytes>
struct RollingPair {
    using Memory = uint32_t;
    using Element = uint16_t;

    static HIPCONV_INLINE Memory pack_elements(Element first, Element second) { return first | uint32_t{second} << 16; }
    static HIPCONV_INLINE Element element(Memory pair, int of) { return static_cast<Element>(of ? pair >> 16 : pair); }
    static HIPCONV_INLINE Memory rounded(DType dtype, Pair pair) { return rounded_pair(dtype, pair); }
};
template <>
struct RollingPair<4> {
    using Memory = Words2;
    using Element = uint32_t;

    static HIPCONV_INLINE Memory pack_elements(Element first, Element second) { return Memory{first, second}; }
    static HIPCONV_INLINE Element element(Memory pair, int of) { return word(pair, of); }
    static HIPCONV_INLINE Memory rounded(DType, Pair pair) {
        return Memory{bit_cast<uint32_t>(low(pair)), bit_cast<uint32_t>(high(pair))};
    }
};

// Where a lane writes its outputs, two columns at a time.
template <typename A, bool kWords, int kBytes>
class RollingOutputs {
    using InMemory = RollingPair<kBytes>;
    using Memory = typename InMemory::Memory;
    using Element = typename InMemory::Element;

  public:
    HIPCONV_INLINE RollingOutputs(const RollingParams& p, const RollingPlace (&places)[A::kRows], int lane) {
#pragma unroll
        for (int r = 0; r < A::kRows; ++r) to_[r] = places[r].out + kBytes * A::sum_column(lane, r * (A::kSums / A::kRows));
#pragma unroll
        for (int e = 0; e < A::kSums; ++e) {
            if (kWords && e % 2 != 0) continue;
            const RollingPlace& place = places[A::sum_row(e)];
            rows_[e] = place.column + A::sum_column(lane, e) < p.conv.out_width ? place.rows : 0;
            in_a_register(rows_[e]);
        }
    }

    // Adds what lies `apart` bytes from the outputs of the next rows, of which the first has the number `row`.
    template <int kNext>
    HIPCONV_INLINE void add_residual(typename A::Sums* sums, DType dtype, int row, int64_t pitch, int64_t apart) const {
        Memory pairs[kNext][A::kSums / 2];
#pragma unroll
        for (int i = 0; i < kNext; ++i) {
#pragma unroll
            for (int e = 0; e < A::kSums; e += 2) {
                const char* const from = address(e) + (apart + i * pitch);
                const auto exists = [&](int of) { return static_cast<uint32_t>(row + i) < static_cast<uint32_t>(rows_[of]); };
                pairs[i][e / 2] = Memory{};
                if constexpr (kWords) {
                    if (exists(e)) pairs[i][e / 2] = *global_pointer<const Memory>(from);
                } else {
                    const auto* const elements = global_pointer<const Element>(from);
                    Element first = 0, second = 0;
                    if (exists(e)) first = elements[0];
                    if (exists(e + 1)) second = elements[1];
                    pairs[i][e / 2] = InMemory::pack_elements(first, second);
                }
            }
        }
        const auto add_as = [&](auto like) {
#pragma unroll
            for (int i = 0; i < kNext; ++i)
#pragma unroll
                for (int e = 0; e < A::kSums; e += 2) {
                    const Pair both = pair_of<decltype(like)>(pairs[i][e / 2], 0);
                    sums[i][e] += low(both);
                    sums[i][e + 1] += high(both);
                }
        };
        if constexpr (kBytes == 4)
            add_as(float{});
        else
            dtype == DType::bf16 ? add_as(bf16{}) : add_as(f16{});
    }

    // Writes the next row, of number `row`; those in front of the first one are none.
    HIPCONV_INLINE void write(const typename A::Sums& sums, DType dtype, int row, int64_t pitch) {
#pragma unroll
        for (int e = 0; e < A::kSums; e += 2) {
            const Memory both = InMemory::rounded(dtype, make_pair(sums[e], sums[e + 1]));
            const char* const to = address(e);
            const auto exists = [&](int of) { return static_cast<uint32_t>(row) < static_cast<uint32_t>(rows_[of]); };
            if constexpr (kWords) {
                if (exists(e)) *global_pointer<Memory>(to) = both;
            } else {
                if (exists(e)) global_pointer<Element>(to)[0] = InMemory::element(both, 0);
                if (exists(e + 1)) global_pointer<Element>(to)[1] = InMemory::element(both, 1);
            }
        }
#pragma unroll
        for (int r = 0; r < A::kRows; ++r) {
            to_[r] += pitch;
            in_a_register(to_[r]);
            promise_global(to_[r]);
        }
    }

  private:
    // Where sum e of the next row goes.
    HIPCONV_INLINE const char* address(int e) const {
        const int of_row = A::sum_row(e) * (A::kSums / A::kRows);
        return to_[A::sum_row(e)] + (A::sum_column(0, e) - A::sum_column(0, of_row)) * kBytes;
    }

    const char* to_[A::kRows];
    int rows_[A::kSums];  // of outputs, 0 in columns beside the image
};

// A filter's taps on their way to LDS: rows of taps behind a zero, and zeros behind them and between dilated ones. Those of 16
// bits are there twice, the second time an element further to the front, so that any two neighbours are a word of one or the
// other; of f32 an element is a word.
template <int kTaps, int kReach, int kBytes>
class RollingFilter {
  public:
    using Element = typename RollingPair<kBytes>::Element;
    static constexpr int kPitch = kReach + 3, kElements = kTaps * kPitch;
    static constexpr int kRowWords = kPitch * kBytes / 4;  // from a word to that of the next row of taps

    HIPCONV_INLINE RollingFilter(const RollingParams& p, int filter, int lane) {
        const Conv2dParams& c = p.conv;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const int tap = lane + i * kWaveSize, r = divide(tap, p.divide_by_columns), s = tap - r * c.kernel_width;
            to_[i] = r < c.kernel_height ? r * kPitch + s * c.dilation_w : -1;
            from_[i] = static_cast<const char*>(c.weight.data) + kBytes * p.weight.at(filter, r, s);
        }
    }
    HIPCONV_INLINE void load() {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            values_[i] = 0;
            if (to_[i] >= 0) values_[i] = *global_pointer<const Element>(from_[i]);
        }
    }
    static HIPCONV_INLINE void clear(uint32_t* lds, int lane) {
#pragma unroll
        for (int i = 0; i < kElements; i += kWaveSize)
            if (lane + i < kElements) lds[lane + i] = 0;
        sync_wave();
    }
    HIPCONV_INLINE void store(uint32_t* lds) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            if (to_[i] < 0) continue;
            if constexpr (kBytes == 4) {
                lds[to_[i] + 1] = rounded_to_tf32(values_[i]);
            } else {
                uint16_t* const halves = reinterpret_cast<uint16_t*>(lds);
                halves[to_[i] + 1] = values_[i];
                halves[kElements + to_[i]] = values_[i];
            }
        }
        sync_wave();
    }
    // The word of a band whose first tap has this number, counted from the zero in front of a row, in the first row.
    static HIPCONV_INLINE const uint32_t* word(const uint32_t* lds, int tap) {
        const int at = tap < 0 || tap > kReach ? kReach + 1 : tap;
        if constexpr (kBytes == 4) return lds + at;
        return reinterpret_cast<const uint32_t*>(reinterpret_cast<const uint16_t*>(lds) + (at % 2) * kElements + at / 2 * 2);
    }

  private:
    static constexpr int kCount = (kTaps * kReach + kWaveSize - 1) / kWaveSize;

    int to_[kCount];
    const char* from_[kCount];
    Element values_[kCount];
};

// Makes all outputs of a wave again, by the formula.
template <typename A>
HIPCONV_INLINE void make_strips_again(const RollingParams& p, int first, int channel, int filter, int lane) {
    const Conv2dParams& c = p.conv;
#pragma unroll 1
    for (int at = lane; at < kRollingStrips * kRollingColumns; at += kWaveSize) {
        const RollingStrip strip(p, first + at / kRollingColumns);
        const int column = strip.column + at % kRollingColumns;
        if (column >= c.out_width) continue;
#pragma unroll 1
        for (int of_strip = 0; of_strip < strip.rows; ++of_strip) {
            const int row = strip.row_of_image(p, of_strip);
            float sum = depthwise_by_formula(c, strip.image, channel, filter, row, column);
            conv2d_store(c, strip.image, filter, row, column, sum);
        }
    }
}

// T is tf32 or a 16-bit type; where kHalvesShareKernels, f16 stands for both. `Shape` is a RollingShape.
// Pairs of columns of x and of out are words of memory where kWords and kOutWords say so. `kResidual`: there may be one.
template <typename T, typename Shape, bool kWords, bool kOutWords, bool kResidual>
__global__ void HIPCONV_LAUNCH_BOUNDS(kRollingThreads, Shape::blocks(kWords))
    conv2d_depthwise_rolling(HIPCONV_IN_PLACE const RollingParams parameter) {
    constexpr bool kIsLegal = kHasBandAtom<T> && (kWaveSize == 64 || kCopiesPastRegisters);
    constexpr int kTaps = Shape::kTaps, kStep = Shape::kStep, kRows = Shape::kRows, kBytes = sizeof(T);
    static_assert(Shape::kSingle == (kBytes == 4));
    using Filter = RollingFilter<kTaps, Shape::kReach, kBytes>;
    constexpr int kWaves = kRollingThreads / kWaveSize;
    HIPCONV_SHARED(Words4, lds, (kIsLegal ? (kWaves * Filter::kElements + 3) / 4 : 1));
    let_next_kernel_begin();
    if constexpr (kIsLegal) {
        using A = BandAtom<T>;
        static_assert(A::kColumns == kRollingColumns);
        constexpr int kSteps = (Shape::kWindow + A::kDepth - 1) / A::kDepth, kAhead = Shape::ahead(kWords);
        const int lane = threadIdx.x % kWaveSize, wave = threadIdx.x / kWaveSize;
        uint32_t* const taps = reinterpret_cast<uint32_t*>(lds) + wave * Filter::kElements;
        const int number = static_cast<int>(blockIdx.x) * kWaves + wave;
        const RollingParams& all = first_parameter_again(parameter);
        // Waves beside each other have groups of strips of an image, then filters beside each other: what runs at a time lies
        // together in memory.
        const int bundle = static_cast<int>(divide(number, all.divide_by_bundle)), of_bundle = number - bundle * all.bundle;
        const int of_images = static_cast<int>(divide(bundle, all.divide_by_filters));
        const int filter = bundle - of_images * all.conv.out_channels;
        const int first = (of_images * all.bundle + of_bundle) * kRollingStrips;
        const int channel = static_cast<int>(divide(filter, all.divide_by_multiplier));
        Filter from_memory(all, filter, lane);
        from_memory.clear(taps, lane);
        const RollingParams& more = first_parameter_again(parameter);
        // A lane looks for a strip, and asks the others for those of its rows.
        const RollingPlace own(more, kBytes, first + lane % kRollingStrips, channel, filter, kStep, kRows - 1);
        RollingPlace places[A::kRows];
#pragma unroll
        for (int r = 0; r < A::kRows; ++r) places[r] = A::kRows == 1 ? own : own.of_lane(A::row(lane, r));
        RollingSource<A, kSteps, kWords, kBytes> source(more, places, lane);
        RollingOutputs<A, kOutWords, kBytes> outputs(more, places, lane);
        const int64_t x_pitch = int64_t{kBytes} * more.x.row * more.conv.dilation_h;
        const int64_t out_pitch = int64_t{kBytes} * more.out.row * more.classes;
        const int behind = more.segment_rows, lead = more.lead, count = more.strips, stride = more.conv.stride_w;
        const DType dtype = more.conv.dtype, out_dtype = more.conv.out_dtype;
        const Conv2dActivation activation = more.conv.activation;
        const bool clamps = activation == Conv2dActivation::none || activation == Conv2dActivation::relu;
        const float least = activation == Conv2dActivation::relu ? 0.0f : -__builtin_huge_valf();

        using Rows = RollingRow<kSteps, kWords>[kAhead][kStep];
        Rows first_rows, second_rows;
        const auto load = [&](Rows& rows) {
#pragma unroll
            for (int i = 0; i < kAhead; ++i)
#pragma unroll
                for (int j = 0; j < kStep; ++j) source.load(rows[i][j], x_pitch);
        };
        wait_for_kernel_before();
        if (first >= count) return;
        from_memory.load();
        load(first_rows);
        float bias = 0.0f;  // it waits for memory here, when x is on its way
        {
            const Conv2dParams& c = first_parameter_again(parameter).conv;
            if (c.bias) bias = load_parameter(global_pointer<void>(c.bias), filter * c.bias_stride, c.bias_dtype);
        }
        from_memory.store(taps);
        typename A::Sums begin;
#pragma unroll
        for (int e = 0; e < A::kSums; ++e) begin[e] = bias;
        uint32_t band[kTaps][kSteps][A::kWords];
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
#pragma unroll
            for (int w = 0; w < A::kWords; ++w) {
                const int column = s * A::kDepth + A::band_element(lane, w) - A::band_column(lane) * stride;
                const uint32_t* const from = Filter::word(taps, column - lead + 1);
#pragma unroll
                for (int r = 0; r < kTaps; ++r) band[r][s][w] = from[r * Filter::kRowWords];
            }
        typename A::Sums sums[kRows] = {};  // of the rows of outputs that are under way; the first is not used
        float zero = 0.0f;
        int row = 1 - kRows;  // the next one of outputs; those in front of the first one are none
        // Multiplies row j of the kStep ones that row i of outputs begins with.
        const auto multiply = [&](auto like, const Rows& x, int i, int j, typename A::Sums& done) {
#pragma unroll
            for (int up = kRows - 1; up >= 0; --up) {
                const int r = up * kStep + j;
                if (r >= kTaps) continue;
                // The sums of the row that is `up` above the lowest one under way.
                typename A::Sums& to = up == kRows - 1 ? done : sums[up + 1];
                typename A::Sums next = j > 0 ? to : up > 0 ? sums[up] : begin;
#pragma unroll
                for (int s = 0; s < kSteps; ++s) {
                    uint32_t words[4];
                    x[i][j].words(words, s);
                    A::template multiply<decltype(like)>(next, words, band[r][s]);
                }
                to = next;
            }
        };
        // Makes the rows of outputs whose last x is `x`, while what comes next is on its way.
        const auto roll = [&](Rows& x, Rows& next) {
            if constexpr (!Shape::kInPlace) load(next);
            typename A::Sums done[kAhead];
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                if constexpr (Shape::kInPlace) {
#pragma unroll
                    for (int j = 0; j < kStep; ++j) {
                        with_halves<T>(dtype, [&](auto like) { multiply(like, x, i, j, done[i]); });
                        source.load(x[i][j], x_pitch);
                    }
                } else {
                    with_halves<T>(dtype, [&](auto like) {
#pragma unroll
                        for (int j = 0; j < kStep; ++j) multiply(like, x, i, j, done[i]);
                    });
                }
#pragma unroll
                for (int e = 0; e < A::kSums; ++e) {
                    zero = fmaf(done[i][e], 0.0f, zero);
                    if (!kResidual) done[i][e] = at_least(done[i][e], least);
                }
            }
            if constexpr (kResidual) {
                constexpr int kAtOnce = kAhead < 2 ? 1 : 2;  // rows of the residual: registers have no room for more
                const RollingParams& p = first_parameter_again(parameter);
                if (p.conv.residual.data) {
#pragma unroll
                    for (int i = 0; i < kAhead; i += kAtOnce)
                        outputs.template add_residual<kAtOnce>(done + i, out_dtype, row + i, out_pitch,
                                                               p.to_residual + i * out_pitch);
                }
#pragma unroll
                for (int i = 0; i < kAhead; ++i)
#pragma unroll
                    for (int e = 0; e < A::kSums; ++e) done[i][e] = at_least(done[i][e], least);
            }
            if (!clamps) {
                // A sum at a time, so that the text of all activations stays short.
#pragma unroll 1
                for (int turn = 0; turn < kAhead * A::kSums; ++turn) {
                    const float own = activate(done[0][0], activation);
#pragma unroll
                    for (int e = 1; e < kAhead * A::kSums; ++e)
                        done[(e - 1) / A::kSums][(e - 1) % A::kSums] = done[e / A::kSums][e % A::kSums];
                    done[kAhead - 1][A::kSums - 1] = own;
                }
            }
#pragma unroll
            for (int i = 0; i < kAhead; ++i) outputs.write(done[i], out_dtype, row + i, out_pitch);
            row += kAhead;
        };
#pragma unroll 1
        for (;;) {
            roll(first_rows, second_rows);
            if (row >= behind) break;
            if constexpr (!Shape::kInPlace) roll(second_rows, first_rows);
            if (row >= behind) break;
        }
        if (__ballot(zero != 0.0f) != 0) make_strips_again<A>(first_parameter_again(parameter), first, channel, filter, lane);
    }
}

template <typename T, typename Shape, bool kWords, bool kOutWords, bool kResidual>
void launch_rolling(const RollingParams& p, void* stream) {
    const unsigned blocks = static_cast<unsigned>(ceil_of(p.waves, kRollingThreads / wave_size_here()));
    HIPCONV_LAUNCH(true, (conv2d_depthwise_rolling<T, Shape, kWords, kOutWords, kResidual>), dim3(blocks, 1, 1),
                   dim3(kRollingThreads, 1, 1), 0, static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

// A kernel looks for a residual where that costs it no time and no register that it lacks.
template <typename T, typename Shape>
void launch_rolling_units(const RollingParams& p, void* stream) {
    const bool adds = p.conv.residual.data != nullptr;
    if constexpr (Shape::kSingle) {
        p.has_out_words ? launch_rolling<T, Shape, true, true, true>(p, stream)
                        : launch_rolling<T, Shape, true, false, true>(p, stream);
    } else {
        constexpr bool kFewOutputs = Shape::kStep > 2;  // beside x: they are written by elements
        if (!kFewOutputs && p.has_out_words) return launch_rolling<T, Shape, true, !kFewOutputs, true>(p, stream);
        if constexpr (Shape::kStride > 1) {
            constexpr bool kMayAdd = Shape::kStep != 2;
            if (p.has_words && (kMayAdd || !adds)) return launch_rolling<T, Shape, true, false, kMayAdd>(p, stream);
        }
        if constexpr (Shape::kStep == 1)
            if (!adds) return launch_rolling<T, Shape, false, false, false>(p, stream);
        launch_rolling<T, Shape, false, false, true>(p, stream);
    }
}

template <typename T, typename Shape>
RollingKernels rolling_kernels() {
    return {Shape::kTaps,
            Shape::kStep,
            Shape::kWindow,
            Shape::kReach,
            Shape::blocks(false),
            Shape::blocks(true),
            launch_rolling_units<T, Shape>};
}

// Calls do_it(T()) for the type that a call's kernels have. A static variable that is kept by type belongs in a nameless
// namespace: of a template with a name it is one variable for all modules of a process.
template <typename DoIt>
decltype(auto) with_rolling_type(DType dtype, DoIt do_it) {
    if constexpr (!kHalvesShareKernels)
        if (dtype == DType::bf16) return do_it(bf16());
    return do_it(f16());
}

}  // namespace hipconv
