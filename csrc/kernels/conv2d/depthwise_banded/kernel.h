// Depthwise layers of 16-bit types and contiguous planes on matrix cores (`depthwise_banded`): memory is all that they should
// wait for.
//
// A row of outputs is a row of x times a matrix with the taps of a filter's row on diagonals: a band. A wave brings a channel's
// plane of x to LDS, as it lies in memory, takes 16 rows of outputs as the rows of a matrix instruction, and adds up a product
// for each row of taps. Of its other factor a lane reads pairs of taps from LDS, or zeros, by their distance from the diagonal:
// stride, dilation and the number of taps change nothing but these distances. Planes of small images pass several at a time.
#pragma once

#include <type_traits>

#include "../common/depthwise_formula.h"
#include "launch/check.h"
#include "planes.h"

namespace hipconv {

// A row of outputs of a step: its image, counted in the step, and its number in the strip, if it exists.
struct BandedRow {
    int of, row;
    bool exists;

    // Row `of_atom` of the i-th atom down.
    HIPCONV_INLINE BandedRow(const BandedParams& p, const BandedPlace& at, int image, int i, int of_atom) {
        const int number = of_atom + (p.interleaves ? 0 : 16 * i);
        of = divide(number, p.divide_by_rows);
        row = number - of * static_cast<int>(p.divide_by_rows.value);
        if (p.interleaves) row = 2 * row + i;
        exists = of < images_of_step(p, at, image) && row < at.rows;
    }

    // The element of LDS where it begins, or -1.
    HIPCONV_INLINE int place(const BandedParams& p, const BandedPlace& at, int image) const {
        return exists ? of * p.out_plane + run_of_out(p, at, image + of).at + row * p.conv.out_width : -1;
    }
};

// The rows of a step that a lane has: of x and of outputs.
template <typename A>
struct BandedRows {
    int x[kBandedDown][A::kRows];    // the element of LDS where the first row begins that it sees; of another row of the same
                                     // parity for one that does not exist
    int out[kBandedDown][A::kRows];  // BandedRow::place

    HIPCONV_INLINE BandedRows(const BandedParams& p, const BandedPlace& at, int image, int lane) {
        const Conv2dParams& c = p.conv;
#pragma unroll
        for (int i = 0; i < kBandedDown; ++i)
#pragma unroll
            for (int r = 0; r < A::kRows; ++r) {
                const BandedRow own(p, at, image, i, A::row(lane, r));
                const int of = own.exists ? own.of : 0, row = own.exists ? own.row : p.interleaves ? i : 0;
                x[i][r] = of * p.plane + run_of_x(p, at, image + of).at +
                          (row * c.stride_h - (at.from_row - at.patch_row)) * c.in_width;
                out[i][r] = own.place(p, at, image);
            }
    }
};

// The words of two columns from `column` on that lie in a row of so many.
HIPCONV_INLINE uint32_t pair_inside(int column, int width) {
    const bool first = static_cast<uint32_t>(column) < static_cast<uint32_t>(width);
    const bool second = static_cast<uint32_t>(column + 1) < static_cast<uint32_t>(width);
    return (first ? 0xffffu : 0u) | (second ? 0xffff0000u : 0u);
}

// A step of the products of kAcross atoms beside each other: which words of a filter's row a lane reads, in bytes, and which of
// its columns lie in x, from which it reads from column `column` on. The window begins `odd` columns in front of the first tap.
template <typename A, int kStride, int kAcross>
struct BandedWindow {
    int column, words[A::kWords];
    uint32_t inside[kAcross][4];

    HIPCONV_INLINE void set(const BandedParams& p, int step, int odd, int first_column, int lane) {
        const Conv2dParams& c = p.conv;
        const int stride = kStride > 0 ? kStride : c.stride_w;
        column = first_column * stride - c.pad_left - odd + step * A::kDepth + A::x_column(lane);
#pragma unroll
        for (int w = 0; w < A::kWords; ++w) {
            const int q = step * A::kDepth + A::band_element(lane, w) - A::band_column(lane) * stride - odd + 1;
            words[w] = (static_cast<uint32_t>(q) < static_cast<uint32_t>(p.band) ? q : p.band - 1) * 4;
        }
        // Where all windows lie within rows of x, no lane has to look.
        const int begin = column - A::x_column(lane), behind = begin + (kAcross - 1) * A::kColumns * stride + A::kDepth;
        const bool all = begin >= 0 && behind <= c.in_width;
#pragma unroll
        for (int j = 0; j < kAcross; ++j)
#pragma unroll
            for (int w = 0; w < 4; ++w) inside[j][w] = ~0u;
        if (all) return;
#pragma unroll
        for (int j = 0; j < kAcross; ++j)
#pragma unroll
            for (int w = 0; w < 4; ++w)
                inside[j][w] = pair_inside(column + j * A::kColumns * stride + A::x_step(w), c.in_width);
    }
};

// The passes of a wave's products: a step each. Where rows of x begin at even and at odd places of LDS, a pass has those of one
// kind.
struct BandedPasses {
    bool alternates;  // from one row of taps to the next
    int kinds, steps;

    HIPCONV_INLINE BandedPasses(const BandedParams& p, int columns, int depth) {
        const Conv2dParams& c = p.conv;
        alternates = c.dilation_h * c.in_width % 2 != 0;
        kinds = alternates || p.interleaves ? 2 : 1;
        steps = (2 + (columns - 1) * c.stride_w + (c.kernel_width - 1) * c.dilation_w + depth - 1) / depth;
    }
    HIPCONV_INLINE int count() const { return kinds * steps; }
    HIPCONV_INLINE int step(int pass) const { return kinds == 1 ? pass : pass >> 1; }
    // The kind of a pass's rows, where the first row that it sees has this one.
    HIPCONV_INLINE int kind(int pass, int first) const { return kinds == 1 ? first : pass & 1; }
    // The first row of taps of a pass, and how many lie between two of them.
    HIPCONV_INLINE int first_tap(int pass, int first, int taps) const {
        const int away = first ^ kind(pass, first);
        return alternates || away == 0 ? away : taps;
    }
    HIPCONV_INLINE int every() const { return alternates ? 2 : 1; }
};

// Adds up a pass's products of kCount atoms beside each other.
template <typename Like, typename A, int kStride, int kCount, int kAcross>
HIPCONV_INLINE void add_products(typename A::Sums (&sums)[kAcross], const BandedParams& p,
                                 const BandedWindow<A, kStride, kAcross>& window, const char* planes, const char* band,
                                 const int (&rows)[A::kRows], int first, int every) {
    const Conv2dParams& c = p.conv;
    const int stride = kStride > 0 ? kStride : c.stride_w, down = c.dilation_h * c.in_width * 2;
    const char* from[A::kRows];
#pragma unroll
    for (int r = 0; r < A::kRows; ++r) from[r] = planes + (rows[r] + window.column) * 2 + first * down;
    band += first * p.band * 4;
#pragma unroll 1
    for (int r = first; r < c.kernel_height; r += every) {
        uint32_t words[A::kWords];
#pragma unroll
        for (int w = 0; w < A::kWords; ++w) words[w] = *reinterpret_cast<const uint32_t*>(band + window.words[w]);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
            uint32_t x[4];
#pragma unroll
            for (int w = 0; w < 4; ++w)
                x[w] = *reinterpret_cast<const uint32_t*>(from[A::x_row(w)] + (j * A::kColumns * stride + A::x_step(w)) * 2) &
                       window.inside[j][w];
            A::template multiply<Like>(sums[j], x, words);
        }
#pragma unroll
        for (int i = 0; i < A::kRows; ++i) from[i] += every * down;
        band += every * p.band * 4;
    }
}

// Writes the outputs of two columns to LDS: as a word, or the first one and, if it exists, the second.
HIPCONV_INLINE void store_pair(uint16_t* to, uint32_t both, bool as_word, bool has_second) {
    if (as_word) {
        *reinterpret_cast<uint32_t*>(to) = both;
    } else {
        to[0] = static_cast<uint16_t>(both);
        if (has_second) to[1] = static_cast<uint16_t>(both >> 16);
    }
}

// Writes sums of an atom to LDS as outputs, which finish(row of the lane, column, sum) makes.
template <typename A, typename Finish>
HIPCONV_INLINE void store_atom(uint16_t* planes, const typename A::Sums& sums, const Conv2dParams& c,
                               const int (&rows)[A::kRows], int first_column, int lane, Finish finish) {
#pragma unroll
    for (int e = 0; e < A::kSums; e += 2) {
        const int r = A::sum_row(e), column = first_column + A::sum_column(lane, e), at = rows[r] + column;
        if (rows[r] < 0 || column >= c.out_width) continue;
        const bool has_second = column + 1 < c.out_width;
        const float first = finish(r, column, sums[e]), second = finish(r, has_second ? column + 1 : column, sums[e + 1]);
        const Pair v = make_pair(first, second);
        const uint32_t both = rounded_pair(c.out_dtype, v);
        store_pair(planes + at, both, c.out_width % 2 == 0 && at % 2 == 0, has_second);
    }
}

// Finishes all sums of a lane, atoms from column `first_column` on, and writes them to LDS.
template <typename T, typename A, int kAcross>
HIPCONV_INLINE void store_sums(uint16_t* planes, typename A::Sums (&sums)[kBandedDown][kAcross], const BandedParams& p,
                               const BandedPlace& at, const BandedRows<A>& rows, float bias, int image, int first_column,
                               bool are_finite, int lane) {
    const Conv2dParams& c = p.conv;
    const bool clamps = c.activation == Conv2dActivation::none || c.activation == Conv2dActivation::relu;
    const bool has_type = kHalvesShareKernels || c.out_dtype == (kIsBf16<T> ? DType::bf16 : DType::f16);
    if (clamps && has_type && !c.residual.data && are_finite) {
        const float least = c.activation == Conv2dActivation::none ? -__builtin_huge_valf() : 0.0f;
        const auto store = [&](auto type, auto pairs) {
            using Out = decltype(type);
#pragma unroll
            for (int i = 0; i < kBandedDown; ++i)
#pragma unroll
                for (int j = 0; j < kAcross; ++j)
                    if (first_column + j * A::kColumns < c.out_width && (i == 0 || p.has_two)) {
                        const int left = c.out_width - first_column - j * A::kColumns;
#pragma unroll
                        for (int e = 0; e < A::kSums; e += 2) {
                            const int column = A::sum_column(lane, e), row = rows.out[i][A::sum_row(e)];
                            if (row < 0 || column >= left) continue;
                            const Pair v =
                                make_pair(at_least(sums[i][j][e] + bias, least), at_least(sums[i][j][e + 1] + bias, least));
                            store_pair(planes + row + first_column + column + j * A::kColumns, rounded_pair<Out>(v), pairs(),
                                       column + 1 < left);
                        }
                    }
        };
        // On NVIDIA there is code for either; AMD's compiler would keep the sums in scratch memory then.
        const auto with_pairs = [&](auto type) {
            if (!kCopiesPastRegisters)
                store(type, [&] { return p.out_by_pairs; });
            else if (p.out_by_pairs)
                store(type, [] { return true; });
            else
                store(type, [] { return false; });
        };
        with_halves<T>(c.out_dtype, with_pairs);
        return;
    }
    // Sums pass by in turns, so that the code for all activations is there once.
#pragma unroll 1
    for (int atom = 0; atom < kBandedDown * kAcross; ++atom) {
        const int i = atom / kAcross, j = atom - i * kAcross;
        int places[A::kRows];
#pragma unroll
        for (int r = 0; r < A::kRows; ++r) places[r] = BandedRow(p, at, image, i, A::row(lane, r)).place(p, at, image);
        store_atom<A>(planes, sums[0][0], c, places, first_column + j * A::kColumns, lane, [&](int r, int column, float sum) {
            const BandedRow own(p, at, image, i, A::row(lane, r));
            if (!are_finite) sum = depthwise_by_formula(c, image + own.of, at.channel, at.filter, at.row + own.row, column);
            sum += bias;
            if (c.residual.data)
                sum += load_parameter(global_pointer<void>(c.residual.data),
                                      offset_in(c.residual, image + own.of, at.filter, at.row + own.row, column),
                                      c.residual_dtype);
            return activate(sum, c.activation);
        });
#pragma unroll
        for (int next = 1; next < kBandedDown * kAcross; ++next)
#pragma unroll
            for (int e = 0; e < A::kSums; ++e)
                sums[(next - 1) / kAcross][(next - 1) % kAcross][e] = sums[next / kAcross][next % kAcross][e];
    }
}

// Calls run with 1, 2 or 4 atoms across, at least `count` of them, as a constant.
template <int kMost, typename Run>
HIPCONV_INLINE void with_atoms(int count, Run run) {
    if constexpr (kMost == 1) {
        run(std::integral_constant<int, 1>{});
    } else {
        if (count > kMost / 2) return run(std::integral_constant<int, kMost>{});
        with_atoms<kMost / 2>(count, run);
    }
}

// T is a 16-bit type; where kHalvesShareKernels, f16 stands for both. A stride of 0 is any.
template <typename T, int kStride>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBandedThreads, kBandedBlocks)
    conv2d_depthwise_banded(HIPCONV_IN_PLACE const BandedParams parameter) {
    constexpr bool kIsLegal = kHasBandAtom<T>;
    HIPCONV_LARGE_SHARED(Words4, lds, kIsLegal && !kCopiesPastRegisters ? kBandedLds / 16 : 1);
    let_next_kernel_begin();
    if constexpr (kIsLegal) {
        using A = BandAtom<T>;
        constexpr int kAcross = kBandedColumns / A::kColumns, kWaves = kBandedThreads / kWaveSize;
        using Window = BandedWindow<A, kStride, kAcross>;
        constexpr bool kKeepsWindows = kCopiesPastRegisters;  // AMD has no registers for them
        const int thread = threadIdx.x, wave = thread / kWaveSize, lane = thread % kWaveSize;
        char* const own = reinterpret_cast<char*>(lds) + wave * first_parameter_again(parameter).bytes;
        uint16_t *planes, *others, *outputs;
        {
            const BandedParams& p = first_parameter_again(parameter);
            outputs = reinterpret_cast<uint16_t*>(own + p.outputs_at);
            planes = others = reinterpret_cast<uint16_t*>(own + p.planes_at);
            if constexpr (kBandedBuffers == 2) others += p.step_images * p.plane;
            for (int i = lane; i < (p.outputs_at - p.planes_at) / 16; i += kWaveSize)
                reinterpret_cast<Words4*>(planes)[i] = Words4{};
        }
        sync_wave();
        wait_for_kernel_before();
        const int number = static_cast<int>(blockIdx.x) * kWaves + wave;
        if (number >= first_parameter_again(parameter).waves) return;
        const BandedPlace at(first_parameter_again(parameter), number);
        BandedSource source;
        source.load(planes, first_parameter_again(parameter), at, at.image, lane);
        const Conv2dParams& all = first_parameter_again(parameter).conv;
        const uint32_t bias_bits = load_bias_bits(all, at.filter);
        stage_band(reinterpret_cast<uint32_t*>(own), first_parameter_again(parameter), at, lane);
        BandedRows<A> rows(first_parameter_again(parameter), at, at.image, lane);
        Window first, second;
        bool keeps_windows = false;
        {
            const BandedParams& p = first_parameter_again(parameter);
            const Conv2dParams& c = p.conv;
            if constexpr (kKeepsWindows) {
                // Where all have one set of columns, and rows their parity, what two passes need does not change.
                const BandedPasses passes(p, A::kColumns, A::kDepth);
                keeps_windows = p.keeps_rows && passes.count() <= 2 && c.out_width <= kBandedColumns;
                const int parity = (rows.x[0][0] - c.pad_left) & 1;
                first.set(p, passes.step(0), passes.kind(0, parity), 0, lane);
                second.set(p, passes.step(1), passes.kind(1, parity), 0, lane);
            }
        }
        const float bias = parameter_of(bias_bits, all.bias_dtype);
#pragma unroll 1
        for (int image = at.image; image < at.behind_image;) {
            const BandedParams& p = first_parameter_again(parameter);
            const Conv2dParams& c = p.conv;
            source.store(planes, p, at, image, lane);
            sync_wave();
            if (image + p.step_images < at.behind_image) source.load(others, p, at, image + p.step_images, lane);
            if (!p.keeps_rows && image > at.image) rows = BandedRows<A>(p, at, image, lane);
            const BandedPasses passes(p, A::kColumns, A::kDepth);
#pragma unroll 1
            for (int column = 0; column < c.out_width; column += kBandedColumns) {
                typename A::Sums sums[kBandedDown][kAcross] = {};
#pragma unroll 1
                for (int pass = 0; pass < passes.count(); ++pass) {
                    Window window;
                    if (kKeepsWindows && keeps_windows)
                        window = pass == 0 ? first : second;
                    else
                        window.set(p, passes.step(pass), passes.kind(pass, (rows.x[0][0] - c.pad_left) & 1), column, lane);
                    with_halves<T>(c.dtype, [&](auto like) {
                        with_atoms<kAcross>((c.out_width - column + A::kColumns - 1) / A::kColumns, [&](auto across) {
#pragma unroll
                            for (int i = 0; i < kBandedDown; ++i) {
                                if (i > 0 && !p.has_two) continue;
                                const int parity = (rows.x[i][0] - c.pad_left) & 1;
                                const int begin = passes.first_tap(pass, parity, c.kernel_height);
                                add_products<decltype(like), A, kStride, decltype(across)::value, kAcross>(
                                    sums[i], p, window, reinterpret_cast<const char*>(planes), own, rows.x[i], begin,
                                    passes.every());
                            }
                        });
                    });
                }
                float zero = 0.0f;
#pragma unroll
                for (int i = 0; i < kBandedDown; ++i)
                    if (i == 0 || p.has_two) {
#pragma unroll
                        for (int j = 0; j < kAcross; ++j)
#pragma unroll
                            for (int e = 0; e < A::kSums; ++e) zero = fmaf(sums[i][j][e], 0.0f, zero);
                    }
                const bool are_finite = __ballot(zero != 0.0f) == 0;
                store_sums<T, A>(outputs, sums, first_parameter_again(parameter), at, rows, bias, image, column, are_finite,
                                 lane);
            }
            sync_wave();
            write_planes(outputs, first_parameter_again(parameter), at, image, lane);
            if constexpr (kBandedBuffers == 2) {
                uint16_t* const next = others;
                others = planes;
                planes = next;
            }
            image += first_parameter_again(parameter).step_images;
            sync_wave();
        }
    }
}

}  // namespace hipconv
