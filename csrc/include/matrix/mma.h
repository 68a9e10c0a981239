// Multiplies two operand tiles in LDS, by a wave, whatever matrix instructions the target has.
//
//   Mma<T, kPixels, kFilters>::step(sums, pixels, filters, lane, row_of)   sums += a step of the inner product
//   Mma<...>::for_each<kFirst, kCount>(sums, lane, f)                      f(pixel, filter, kRun sums of consecutive filters)
//
// An operand tile holds a row of 128 bytes for each pixel or filter; element k of the row is channel k of the step: 64 elements
// of 16 bits, or 32 of f32. A row is 8 chunks of 16 bytes, swizzled: chunk c of row r lies at place c ^ (r % 8). Then neither
// the reads below nor writes along rows or columns have bank conflicts, and the order is the 128-byte swizzle of NVIDIA's TMA.
//
// The comments of the atoms, and simt/matrix.h, which executes them, say which lane holds which elements of an instruction's
// operands.
#pragma once

#include "device/vec.h"
#include "matrix/tf32.h"

#if defined(HIPCONV_HOST)
#include "simt/matrix.h"
#endif

namespace hipconv {

constexpr int kTileChunks = 8;  // chunks of a row
constexpr int kTileRowBytes = 128;

HIPCONV_INLINE int swizzled_chunk(int row, int chunk) {
    return row * kTileChunks + (chunk ^ static_cast<int>(static_cast<uint32_t>(row) % kTileChunks));
}

// The kCount floats that a lane hands to a matrix instruction.
#if defined(HIPCONV_AMD)
template <int kCount>
struct FloatsOf {
    using type = float __attribute__((ext_vector_type(kCount)));
};
template <>
struct FloatsOf<1> {
    struct type {  // a vector of one has no brackets
        float only;
        HIPCONV_INLINE float& operator[](int) { return only; }
        HIPCONV_INLINE const float& operator[](int) const { return only; }
    };
};
template <int kCount>
using Floats = typename FloatsOf<kCount>::type;
#else
template <int kCount>
struct Floats {
    float elements[kCount];
    HIPCONV_INLINE float& operator[](int i) { return elements[i]; }
    HIPCONV_INLINE const float& operator[](int i) const { return elements[i]; }
};
#endif

template <typename T>
inline constexpr bool kIsBf16 = false;
template <>
inline constexpr bool kIsBf16<bf16> = true;

// 8 of the 16 bytes.
HIPCONV_INLINE Words2 half_of(Words4 chunk, int half) { return Words2{word(chunk, 2 * half), word(chunk, 2 * half + 1)}; }

// ---- instructions -----------------------------------------------------------------------------------------------------

#if defined(HIPCONV_AMD_DEVICE)
using Half4 = _Float16 __attribute__((ext_vector_type(4)));
using Half8 = _Float16 __attribute__((ext_vector_type(8)));
using Half16 = _Float16 __attribute__((ext_vector_type(16)));
using Short4 = short __attribute__((ext_vector_type(4)));
using Short8 = short __attribute__((ext_vector_type(8)));
using Short16 = short __attribute__((ext_vector_type(16)));
#endif
#if defined(HIPCONV_HAS_MFMA_8_WIDE)
using Bfloat8 = __bf16 __attribute__((ext_vector_type(8)));
#endif

// An atom is one block of a wave's sums and the way in which a phase of a step is multiplied into it. `kPhases` phases make a
// step. With `kLoadsAhead`, a phase's operands are loaded while the one before it multiplies, with `kOneFilterAhead` in fewer
// registers; else `kAtATime` are unrolled.
// A lane loads from the rows pixel_row(lane) and filter_row(lane). Element e of its sums is of pixel(lane, e) and
// filter(lane, e), and kRun elements after one another are of consecutive filters.
template <MatrixUnit kUnit, typename T>
struct Atom;

// CDNA, 32x32: the instruction takes 4 elements of 16 bits or 1 of f32 from each lane, k = (lane / 32) * 4 + i or lane / 32. A
// chunk of 16 bytes feeds two or four instructions: the order in which the channels are summed does not matter as long as both
// operands agree. Filters are the rows of the instruction, so that a lane's sums are of consecutive filters.
template <typename T>
struct Atom<MatrixUnit::mfma, T> {
    static constexpr int kPixels = 32, kFilters = 32, kPhases = 4, kRun = 4;
    static constexpr bool kLoadsAhead = true, kOneFilterAhead = false;
    using Operand = Words4;
    using Sums = Floats<16>;

    static HIPCONV_INLINE int pixel_row(int lane) { return lane % 32; }
    static HIPCONV_INLINE int filter_row(int lane) { return lane % 32; }
    static HIPCONV_INLINE Operand load_pixels(const Words4* tile, int row, int phase, int lane) {
        return tile[swizzled_chunk(row, 2 * phase + lane / 32)];
    }
    static HIPCONV_INLINE Operand load_filters(const Words4* tile, int row, int phase, int lane) {
        return load_pixels(tile, row, phase, lane);
    }
    static HIPCONV_INLINE int pixel(int lane, int) { return lane % 32; }
    static HIPCONV_INLINE int filter(int lane, int e) { return e / 4 * 8 + lane / 32 * 4 + e % 4; }

    static HIPCONV_INLINE void multiply(Sums& sums, Operand pixels, Operand filters) {
#if defined(HIPCONV_HAS_MFMA_8_WIDE)
        if constexpr (sizeof(T) == 2) {
            if constexpr (kIsBf16<T>)
                sums = __builtin_amdgcn_mfma_f32_32x32x16_bf16(bit_cast<Bfloat8>(filters), bit_cast<Bfloat8>(pixels), sums, 0,
                                                               0, 0);
            else
                sums = __builtin_amdgcn_mfma_f32_32x32x16_f16(bit_cast<Half8>(filters), bit_cast<Half8>(pixels), sums, 0, 0, 0);
            return;
        }
#endif
#if defined(HIPCONV_HAS_MFMA)
        if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sums = __builtin_amdgcn_mfma_f32_32x32x2f32(bit_cast<float>(word(filters, i)), bit_cast<float>(word(pixels, i)),
                                                            sums, 0, 0, 0);
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const Words2 f = half_of(filters, i), p = half_of(pixels, i);
                if constexpr (kIsBf16<T>)
                    sums = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(bit_cast<Short4>(f), bit_cast<Short4>(p), sums, 0, 0, 0);
                else
                    sums = __builtin_amdgcn_mfma_f32_32x32x8f16(bit_cast<Half4>(f), bit_cast<Half4>(p), sums, 0, 0, 0);
            }
        }
#elif defined(HIPCONV_HOST)
        for (int i = 0; i < (sizeof(T) == 4 ? 4 : 2); ++i) {
            if constexpr (sizeof(T) == 4) {
                const float f = bit_cast<float>(word(filters, i)), p = bit_cast<float>(word(pixels, i));
                simt::multiply<simt::Mfma32x32x2>(&f, &p, &sums[0]);
            } else {
                const Words2 f = half_of(filters, i), p = half_of(pixels, i);
                simt::multiply<simt::Mfma32x32x8>(reinterpret_cast<const T*>(&f), reinterpret_cast<const T*>(&p), &sums[0]);
            }
        }
#else
        (void)sums, (void)pixels, (void)filters;
#endif
    }
};

// RDNA 3, 16x16x16: a lane takes all 16 elements of row lane % 16, and both halves of the wave take the same. A lane's sums
// belong to every other row, so the pixels are the rows here.
template <typename T>
struct Atom<MatrixUnit::wmma11, T> {
    static constexpr int kPixels = 16, kFilters = 16, kPhases = 4, kRun = 1;
    static constexpr bool kLoadsAhead = true, kOneFilterAhead = true;
    struct Operand {
        Words4 low, high;
    };
    using Sums = Floats<8>;

    static HIPCONV_INLINE int pixel_row(int lane) { return lane % 16; }
    static HIPCONV_INLINE int filter_row(int lane) { return lane % 16; }
    // The lane tells a row's swizzle, because all its rows have the same remainder of 8.
    static HIPCONV_INLINE Operand load_pixels(const Words4* tile, int row, int phase, int lane) {
        const Words4* const chunks = tile + row * kTileChunks;
        const auto place = [&](int chunk) { return static_cast<uint32_t>(chunk ^ lane) % kTileChunks; };
        return {chunks[place(2 * phase)], chunks[place(2 * phase + 1)]};
    }
    static HIPCONV_INLINE Operand load_filters(const Words4* tile, int row, int phase, int lane) {
        return load_pixels(tile, row, phase, lane);
    }
    static HIPCONV_INLINE int pixel(int lane, int e) { return 2 * e + lane / 16; }
    static HIPCONV_INLINE int filter(int lane, int) { return lane % 16; }

    static HIPCONV_INLINE void multiply(Sums& sums, const Operand& pixels, const Operand& filters) {
#if defined(HIPCONV_HAS_WMMA11)
        if constexpr (kIsBf16<T>)
            sums = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(joined<Short16>(pixels), joined<Short16>(filters), sums);
        else
            sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(joined<Half16>(pixels), joined<Half16>(filters), sums);
#elif defined(HIPCONV_HOST)
        simt::multiply<simt::Wmma11>(reinterpret_cast<const T*>(&pixels), reinterpret_cast<const T*>(&filters), &sums[0]);
#else
        (void)sums, (void)pixels, (void)filters;
#endif
    }

#if defined(HIPCONV_HAS_WMMA11)
    template <typename Vector>
    static HIPCONV_INLINE Vector joined(const Operand& o) {
        using Words8 = uint32_t __attribute__((ext_vector_type(8)));
        return bit_cast<Vector>(Words8{o.low.x, o.low.y, o.low.z, o.low.w, o.high.x, o.high.y, o.high.z, o.high.w});
    }
#endif
};

// RDNA 4, 16x16x16: a lane takes 8 elements of row lane % 16, k = (lane / 16) * 8 + i, and its sums are of 8 consecutive rows.
template <typename T>
struct Atom<MatrixUnit::wmma12, T> {
    static constexpr int kPixels = 16, kFilters = 16, kPhases = 4, kRun = 4;
    static constexpr bool kLoadsAhead = true, kOneFilterAhead = false;
    using Operand = Words4;
    using Sums = Floats<8>;

    static HIPCONV_INLINE int pixel_row(int lane) { return lane % 16; }
    static HIPCONV_INLINE int filter_row(int lane) { return lane % 16; }
    static HIPCONV_INLINE Operand load_pixels(const Words4* tile, int row, int phase, int lane) {
        return tile[swizzled_chunk(row, 2 * phase + lane / 16)];
    }
    static HIPCONV_INLINE Operand load_filters(const Words4* tile, int row, int phase, int lane) {
        return load_pixels(tile, row, phase, lane);
    }
    static HIPCONV_INLINE int pixel(int lane, int) { return lane % 16; }
    static HIPCONV_INLINE int filter(int lane, int e) { return lane / 16 * 8 + e; }

    static HIPCONV_INLINE void multiply(Sums& sums, Operand pixels, Operand filters) {
#if defined(HIPCONV_HAS_WMMA12)
        if constexpr (kIsBf16<T>)
            sums = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(bit_cast<Short8>(filters), bit_cast<Short8>(pixels), sums);
        else
            sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(bit_cast<Half8>(filters), bit_cast<Half8>(pixels), sums);
#elif defined(HIPCONV_HOST)
        simt::multiply<simt::Wmma12>(reinterpret_cast<const T*>(&filters), reinterpret_cast<const T*>(&pixels), &sums[0]);
#else
        (void)sums, (void)pixels, (void)filters;
#endif
    }
};

// NVIDIA, two of m16n8k16: pixels are the rows. ldmatrix loads the operands, four 8x8 matrices at a time: lane l names row l %
// 8 of matrix l / 8 and gets two elements of row l / 4 of each.
template <typename T>
struct Atom<MatrixUnit::mma_sync, T> {
    static constexpr int kPixels = 16, kFilters = 16, kPhases = 4, kAtATime = 4, kRun = 2;
    static constexpr bool kLoadsAhead = false;
    using Operand = Words4;
    using Sums = Floats<8>;

    // The four matrices of pixels are the upper and lower pixels' first 8 channels, then their other 8. Those of filters are
    // the first 8 filters' two halves of the channels, then the other filters'.
    static HIPCONV_INLINE int pixel_row(int lane) { return lane % 16; }
    static HIPCONV_INLINE int filter_row(int lane) { return lane / 16 * 8 + lane % 8; }
    static HIPCONV_INLINE Operand load_pixels(const Words4* tile, int row, int phase, int lane) {
        return load_matrices(&tile[swizzled_chunk(row, lane / 16) ^ 2 * phase]);
    }
    static HIPCONV_INLINE Operand load_filters(const Words4* tile, int row, int phase, int lane) {
        return load_matrices(&tile[swizzled_chunk(row, lane / 8 % 2) ^ 2 * phase]);
    }
    static HIPCONV_INLINE int pixel(int lane, int e) { return lane / 4 + e / 2 % 2 * 8; }
    static HIPCONV_INLINE int filter(int lane, int e) { return e / 4 * 8 + lane % 4 * 2 + e % 2; }

    static HIPCONV_INLINE Words4 load_matrices(const Words4* row) {
#if defined(HIPCONV_HAS_MMA_SYNC)
        Words4 v;
        const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(address));
        return v;
#elif defined(HIPCONV_HOST)
        Words4 v;
        simt::load_matrices(row, &v);
        return v;
#else
        return *row;
#endif
    }

    static HIPCONV_INLINE void multiply(Sums& sums, Operand pixels, Operand filters) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
            multiply_eight(sums, 4 * half, pixels, word(filters, 2 * half), word(filters, 2 * half + 1));
    }

    // The products of eight filters: one instruction, four sums, of which `at` is the first.
    template <typename Four>
    static HIPCONV_INLINE void multiply_eight(Four& c, int at, Operand pixels, uint32_t first, uint32_t second) {
#if defined(HIPCONV_HAS_MMA_SYNC)
        if constexpr (kIsBf16<T>)
            asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                : "+f"(c[at]), "+f"(c[at + 1]), "+f"(c[at + 2]), "+f"(c[at + 3])
                : "r"(pixels.x), "r"(pixels.y), "r"(pixels.z), "r"(pixels.w), "r"(first), "r"(second));
        else
            asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                : "+f"(c[at]), "+f"(c[at + 1]), "+f"(c[at + 2]), "+f"(c[at + 3])
                : "r"(pixels.x), "r"(pixels.y), "r"(pixels.z), "r"(pixels.w), "r"(first), "r"(second));
#elif defined(HIPCONV_HOST)
        const uint32_t both[] = {first, second};
        simt::multiply<simt::MmaM16n8k16>(reinterpret_cast<const T*>(&pixels), reinterpret_cast<const T*>(both), &c[at]);
#else
        (void)c, (void)at, (void)pixels, (void)first, (void)second;
#endif
    }
};

// No matrix instruction: a lane multiplies one of 8 pixels by one filter. f32 has no other way except on CDNA.
template <typename T>
struct Atom<MatrixUnit::fma, T> {
    static constexpr int kPixels = 8, kFilters = kWaveSize / 8, kPhases = 8, kRun = 1;
    static constexpr int kAtATime = 2;  // phases; more of them take registers and gain nothing
    static constexpr bool kLoadsAhead = false;
    using Operand = Words4;
    using Sums = Floats<1>;

    static HIPCONV_INLINE int pixel_row(int lane) { return pixel(lane, 0); }
    static HIPCONV_INLINE int filter_row(int lane) { return filter(lane, 0); }
    static HIPCONV_INLINE Operand load_pixels(const Words4* tile, int row, int phase, int) {
        return tile[swizzled_chunk(row, phase)];
    }
    static HIPCONV_INLINE Operand load_filters(const Words4* tile, int row, int phase, int) {
        return tile[swizzled_chunk(row, phase)];
    }
    static HIPCONV_INLINE int pixel(int lane, int) { return lane / kFilters; }
    static HIPCONV_INLINE int filter(int lane, int) { return lane % kFilters; }

    static HIPCONV_INLINE void multiply(Sums& sums, Operand pixels, Operand filters) {
#pragma unroll
        for (int i = 0; i < 16 / static_cast<int>(sizeof(T)) / 2; ++i) {
            const Pair p = pair_of<T>(pixels, i), f = pair_of<T>(filters, i);
            sums[0] = fmaf(low(p), low(f), sums[0]);
            sums[0] = fmaf(high(p), high(f), sums[0]);
        }
    }
};

// ---- a wave's tile ----------------------------------------------------------------------------------------------------

// f32 itself has matrix instructions on CDNA only; tf32_atoms.h has those of its parts.
template <typename T>
HIPCONV_INLINE constexpr MatrixUnit matrix_unit_of() {
    const bool has_matrices = sizeof(T) == 2 || kIsTf32<T> || kIsSplit<T> || kMatrixUnit == MatrixUnit::mfma;
    return has_matrices ? kMatrixUnit : MatrixUnit::fma;
}

template <typename T, int kPixels, int kFilters>
struct Mma {
    using A = Atom<matrix_unit_of<T>(), T>;
    static constexpr int kRows = kPixels / A::kPixels, kColumns = kFilters / A::kFilters;
    static_assert(kRows * A::kPixels == kPixels && kColumns * A::kFilters == kFilters, "a wave's tile is made of whole atoms");
    using Sums = typename A::Sums[kRows][kColumns];

    static HIPCONV_INLINE void clear(Sums& sums) {
#pragma unroll
        for (int i = 0; i < kRows; ++i)
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
#pragma unroll
                for (int e = 0; e < kElements; ++e) sums[i][j][e] = 0.0f;
    }

    // Takes one step, over the 128 bytes of each row. `filters` is the row of the wave's first filter, a multiple of 8, and the
    // others follow it; the pixels' rows are row_of(0) to row_of(kPixels - 1). With kFreesAddresses, which is for RDNA 3 alone,
    // addresses of LDS are worked out in the step, and not kept in registers from before the loop of steps.
    template <bool kFreesAddresses = false, typename RowOf>
    static HIPCONV_INLINE void step(Sums& sums, const Words4* pixels, const Words4* filters, int lane, RowOf row_of) {
        if constexpr (kIsSplit<T>) {
#pragma unroll 1
            for (int first = 0; first < A::kPhases; first += A::kPhasesInUnit) {
                Sums more;
                clear(more);
#pragma unroll
                for (int phase = 0; phase < A::kPhasesInUnit; ++phase)
                    add_phase(more, pixels, filters, lane, row_of, first + phase);
                add(sums, more);
            }
        } else if constexpr (A::kLoadsAhead) {
            if constexpr (A::kOneFilterAhead)
                step_with_one_filter_ahead<kFreesAddresses>(sums, pixels, filters, lane, row_of);
            else
                step_with_loads_ahead(sums, pixels, filters, lane, row_of);
        } else if constexpr (A::kAtATime == A::kPhases) {
#pragma unroll
            for (int phase = 0; phase < A::kPhases; ++phase) add_phase(sums, pixels, filters, lane, row_of, phase);
        } else {
#pragma unroll 1
            for (int first = 0; first < A::kPhases; first += A::kAtATime) {
#pragma unroll
                for (int phase = 0; phase < A::kAtATime; ++phase) add_phase(sums, pixels, filters, lane, row_of, first + phase);
            }
        }
    }

    // The operands of a row of atoms, of this one and of the next.
    struct Ahead {
        typename A::Operand pixels[2], filters[2][kColumns];
    };

    // The operands of a step in LDS: see step().
    template <typename RowOf>
    struct Tile {
        const Words4 *pixels, *filters;
        RowOf row_of;
    };

    template <typename RowOf>
    static HIPCONV_INLINE void load_first(Ahead& ahead, const Tile<RowOf>& tile, int lane) {
        load_filters(ahead, tile, lane, 0);
        load_pixels(ahead, tile, lane, 0, 0);
    }

    // Takes one step whose first operands are loaded, and loads those of the next one meanwhile, so that products go on where
    // steps meet. `during(row)` runs before each row's products, of which a step has kStepRows; `next()` runs when all of this
    // step's operands are read or on their way, makes sure that the next ones, if any, are there, and returns their tile.
    static constexpr int kStepRows = A::kPhases * kRows;
    template <typename RowOf, typename During, typename Next>
    static HIPCONV_INLINE Tile<RowOf> step_into_next(Sums& sums, Ahead& ahead, const Tile<RowOf>& tile, int lane, During during,
                                                     Next next) {
        constexpr int kMeeting = kStepRows - (kRows > 1 ? 2 : 1);  // the first row behind which no operand is to be read
        static_assert(A::kPhases % 2 == 0 && kStepRows > 3, "steps take operands in turns, and begin with the same ones");
        Tile<RowOf> later = tile;
#pragma unroll
        for (int row = 0; row < kStepRows; ++row) {
            const int phase = row / kRows, i = row % kRows;
            if (i == 0 && phase + 1 < A::kPhases) load_filters(ahead, tile, lane, phase + 1);
            if (row + 1 < kStepRows) load_pixels(ahead, tile, lane, (row + 1) / kRows, (row + 1) % kRows);
            during(row);
            if (row == kMeeting) {
                later = next();
                load_filters(ahead, later, lane, 0);
            }
            if (row + 1 == kStepRows) load_pixels(ahead, later, lane, 0, 0);
#pragma unroll
            for (int j = 0; j < kColumns; ++j) A::multiply(sums[i][j], ahead.pixels[row % 2], ahead.filters[phase % 2][j]);
        }
        return later;
    }

    static constexpr int kRun = A::kRun;

    // Calls f(pixel - kFirst, filter, Words<float, kRun>) for the sums of pixels kFirst to kFirst + kCount - 1.
    template <int kFirst, int kCount, typename F>
    static HIPCONV_INLINE void for_each(const Sums& sums, int lane, F f) {
        static_assert(kFirst % A::kPixels == 0 && kCount % A::kPixels == 0, "whole atoms");
#pragma unroll
        for (int i = 0; i < kCount / A::kPixels; ++i)
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
#pragma unroll
                for (int e = 0; e < kElements; e += kRun) {
                    Words<float, kRun> run{};
#pragma unroll
                    for (int n = 0; n < kRun; ++n)
                        set_word(run, n, bit_cast<uint32_t>(static_cast<float>(sums[kFirst / A::kPixels + i][j][e + n])));
                    f(i * A::kPixels + A::pixel(lane, e), j * A::kFilters + A::filter(lane, e), run);
                }
    }

  private:
    static constexpr int kElements = sizeof(typename A::Sums) / sizeof(float);

    template <typename RowOf>
    static HIPCONV_INLINE void load_pixels(Ahead& ahead, const Tile<RowOf>& tile, int lane, int phase, int i) {
        ahead.pixels[(phase * kRows + i) % 2] =
            A::load_pixels(tile.pixels, tile.row_of(i * A::kPixels + A::pixel_row(lane)), phase, lane);
    }
    template <typename RowOf>
    static HIPCONV_INLINE void load_filters(Ahead& ahead, const Tile<RowOf>& tile, int lane, int phase) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
            ahead.filters[phase % 2][j] = A::load_filters(tile.filters, j * A::kFilters + A::filter_row(lane), phase, lane);
    }

    static HIPCONV_INLINE void add(Sums& sums, Sums& more) {
#pragma unroll
        for (int i = 0; i < kRows; ++i)
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
#pragma unroll
                for (int e = 0; e < kElements; ++e) sums[i][j][e] += more[i][j][e];
    }

    // A row of atoms is multiplied while the pixels of the next one are loaded, and the first row of a phase while the next
    // phase's filters are: no product waits for LDS but the first one of the step.
    template <typename RowOf>
    static HIPCONV_INLINE void step_with_loads_ahead(Sums& sums, const Words4* pixels, const Words4* filters, int lane,
                                                     RowOf row_of) {
        typename A::Operand a[2], b[2][kColumns];
        const auto load_pixels = [&](int phase, int i) {
            a[(phase * kRows + i) % 2] = A::load_pixels(pixels, row_of(i * A::kPixels + A::pixel_row(lane)), phase, lane);
        };
        const auto load_filters = [&](int phase) {
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
                b[phase % 2][j] = A::load_filters(filters, j * A::kFilters + A::filter_row(lane), phase, lane);
        };
        load_filters(0);
        load_pixels(0, 0);
#pragma unroll
        for (int phase = 0; phase < A::kPhases; ++phase) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                if (i + 1 < kRows)
                    load_pixels(phase, i + 1);
                else if (phase + 1 < A::kPhases)
                    load_pixels(phase + 1, 0);
                if (i == 0 && phase + 1 < A::kPhases) load_filters(phase + 1);
                keep_order();
#pragma unroll
                for (int j = 0; j < kColumns; ++j) A::multiply(sums[i][j], a[(phase * kRows + i) % 2], b[phase % 2][j]);
                keep_order();
            }
        }
    }

    // The same in fewer registers: all of the next phase's filters but the first take the registers of filters that the last
    // row has just multiplied. As many products as a row has still lie between the read of each and its own product.
    template <bool kFreesAddresses, typename RowOf>
    static HIPCONV_INLINE void step_with_one_filter_ahead(Sums& sums, const Words4* pixels, const Words4* filters, int lane,
                                                          RowOf row_of) {
        constexpr int kSlots = kColumns + 1;
        int here = lane;
        if constexpr (kFreesAddresses) {
            uint32_t bytes = static_cast<uint32_t>(lane % kTileChunks) * sizeof(Words4);  // an address needs no shift then
            from_here_on(bytes);
            here = static_cast<int>(bytes / sizeof(Words4) % kTileChunks);
        }
        typename A::Operand a[2], b[kSlots];
        const auto load_pixels = [&](int phase, int i) {
            a[(phase * kRows + i) % 2] = A::load_pixels(pixels, row_of(i * A::kPixels + A::pixel_row(lane)), phase, here);
        };
        const auto load_filters = [&](int phase, int j) {
            b[(phase * kColumns + j) % kSlots] = A::load_filters(filters, j * A::kFilters + A::filter_row(lane), phase, here);
        };
#pragma unroll
        for (int j = 0; j < kColumns; ++j) load_filters(0, j);
        load_pixels(0, 0);
#pragma unroll
        for (int phase = 0; phase < A::kPhases; ++phase) {
            const bool is_last = phase + 1 == A::kPhases;
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                if (i + 1 < kRows)
                    load_pixels(phase, i + 1);
                else if (!is_last)
                    load_pixels(phase + 1, 0);
                if (i == 0 && !is_last) load_filters(phase + 1, 0);
                keep_order();
#pragma unroll
                for (int j = 0; j < kColumns; ++j) {
                    A::multiply(sums[i][j], a[(phase * kRows + i) % 2], b[(phase * kColumns + j) % kSlots]);
                    if (i + 1 == kRows && !is_last && j + 1 < kColumns) {
                        keep_order();
                        load_filters(phase + 1, j + 1);
                        keep_order();
                    }
                }
                keep_order();
            }
        }
    }

    template <typename RowOf>
    static HIPCONV_INLINE void add_phase(Sums& sums, const Words4* pixels, const Words4* filters, int lane, RowOf row_of,
                                         int phase) {
        typename A::Operand b[kColumns];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) b[j] = A::load_filters(filters, j * A::kFilters + A::filter_row(lane), phase, lane);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const typename A::Operand a = A::load_pixels(pixels, row_of(i * A::kPixels + A::pixel_row(lane)), phase, lane);
#pragma unroll
            for (int j = 0; j < kColumns; ++j) A::multiply(sums[i][j], a, b[j]);
        }
    }
};

}  // namespace hipconv
