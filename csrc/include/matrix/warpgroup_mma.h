// wgmma: four waves together (a warpgroup) multiply tiles in LDS on the matrix cores of sm_90. The sums stay in the waves'
// registers, the operands are read from LDS as they are, and the products run asynchronously until the waves wait for them.
//
//   wgmma_fence(); wgmma<T, kFilters>(…), …; wgmma_commit(); wgmma_wait<kGroupsLeft>();
//
// An operand is rows of 128 bytes, swizzled as swizzled_chunk says, from a multiple of 1024 bytes on: since the swizzle follows
// from the address, an operand may begin at any row. Its rows form groups of eight, each `group_bytes` behind the one before.
// Rows hold channels of a pixel or a filter each; with kPlanes, those of the pixels hold 64 pixels of a channel each. For TF32
// there is no such form. There, the pixels of planes come from registers (WgmmaPixels).
#pragma once

#include "matrix/mma.h"
#include "matrix/tma.h"

namespace hipconv {

constexpr int kWarpgroupThreads = 128, kWarpgroupPixels = 64, kWgmmaBytes = 32;

// Set how many registers each thread of a warpgroup has from here on; all of its threads must come. Producers free registers
// that consumers then allocate.
template <int kRegisters>
HIPCONV_INLINE void dealloc_registers() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
HIPCONV_INLINE void alloc_registers() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// Reads threadIdx.x here, so that it is not kept in a register from before a loop.
HIPCONV_INLINE int thread_again() {
#if defined(HIPCONV_NVIDIA_DEVICE)
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
#elif defined(HIPCONV_HOST) || defined(HIPCONV_AMD_DEVICE)
    return static_cast<int>(threadIdx.x);
#else
    return 0;
#endif
}

// Sums of 64 pixels by kFilters filters. Sum e of a thread is of pixel(thread, e) and filter(thread, e).
template <int kFilters>
struct WarpgroupSums {
    float values[kFilters / 2];

    static HIPCONV_INLINE int pixel(int thread, int e) { return thread / 32 * 16 + thread % 32 / 4 + e / 2 % 2 * 8; }
    static HIPCONV_INLINE int filter(int thread, int e) { return e / 4 * 8 + thread % 4 * 2 + e % 2; }
};

HIPCONV_INLINE void wgmma_fence() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

HIPCONV_INLINE void wgmma_commit() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until all committed groups of products but the last kGroupsLeft are done. Their operands may then be written again;
// with no group left, the sums may be read.
template <int kGroupsLeft>
HIPCONV_INLINE void wgmma_wait() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroupsLeft) : "memory");
#elif defined(HIPCONV_HOST)
    (void)__ballot(1);  // all lanes of the wave have come
#endif
}

// Keeps the compiler from moving a use of the sums before the last wait.
template <int kFilters>
HIPCONV_INLINE void fence_sums(WarpgroupSums<kFilters>& sums) {
#if defined(HIPCONV_HAS_WARPGROUPS)
#pragma unroll
    for (int e = 0; e < kFilters / 2; ++e) asm volatile("" : "+f"(sums.values[e])::"memory");
#else
    (void)sums;
#endif
}

// ---- values of other lanes --------------------------------------------------------------------------------------------

// The word of another lane.
HIPCONV_INLINE uint32_t word_of_lane(uint32_t word, int lane) {
#if defined(HIPCONV_HAS_WARPGROUPS) || defined(HIPCONV_HOST)
    return __shfl(word, lane, 32);
#else
    return word + lane;
#endif
}

// The value that lane `lane` of the wave has.
HIPCONV_INLINE uint64_t value_of_lane(uint64_t value, int lane) {
#if defined(HIPCONV_HAS_WARPGROUPS) || defined(HIPCONV_HOST)
    return __shfl(static_cast<unsigned long long>(value), lane, 32);
#else
    return value + lane;
#endif
}

// Keeps the value in a register from here on.
HIPCONV_INLINE uint64_t kept(uint64_t value) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("" : "+l"(value));
#endif
    return value;
}

// ---- transposes between lanes -----------------------------------------------------------------------------------------

// Transposes the four words of four lanes: word i of lane c of the four becomes word c of lane i.
HIPCONV_INLINE void transpose_4x4(uint32_t (&words)[4], int lane) {
#if defined(HIPCONV_HAS_WARPGROUPS) || defined(HIPCONV_HOST)
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
        const bool is_upper = (lane & apart) != 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & apart) continue;
            const uint32_t got = __shfl_xor(is_upper ? words[i] : words[i + apart], apart, 32);
            (is_upper ? words[i] : words[i + apart]) = got;
        }
    }
#else
    (void)words, (void)lane;
#endif
}

// Transposes a matrix of 8 by 8 elements of 16 bits. A lane holds elements 2 (lane % 4) and the next of row lane / 4.
HIPCONV_INLINE uint32_t transpose_8x8(uint32_t elements, int lane) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    (void)lane;
    uint32_t transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(elements));
    return transposed;
#elif defined(HIPCONV_HOST)
    const int row = lane / 4, column = lane % 4 * 2;  // of the result
    const uint32_t first = __shfl(elements, column * 4 + row / 2, 32),
                   second = __shfl(elements, (column + 1) * 4 + row / 2, 32);
    return row % 2 ? first >> 16 | (second & 0xffff0000u) : (first & 0xffffu) | second << 16;
#else
    return elements + lane;
#endif
}

// ---- products ---------------------------------------------------------------------------------------------------------

// An operand in LDS, from a row of a tile on. On the card these are the halves of its descriptor ("matrix descriptor" in the
// PTX manual): address and distance in units of 16 bytes, and the swizzle. Another operand of the same distance is one addition
// away, since addresses of LDS do not overflow their field.
struct WgmmaOperand {
#if defined(HIPCONV_HOST)
    const Words4* rows;
    int first_row, group_bytes;

    WgmmaOperand at(int chunks, int row) const { return {rows + chunks, first_row + row, group_bytes}; }
#else
    uint32_t low, high;

    // The operand that begins so many chunks, and rows, behind this one.
    HIPCONV_INLINE WgmmaOperand at(int chunks, int row) const {
        return {low + static_cast<uint32_t>(chunks + row * kTileChunks), high};
    }
    HIPCONV_INLINE uint64_t descriptor() const { return static_cast<uint64_t>(high) << 32 | low; }
#endif
};

HIPCONV_INLINE WgmmaOperand wgmma_operand(const Words4* rows, int first_row, int group_bytes) {
#if defined(HIPCONV_HOST)
    return {rows, first_row, group_bytes};
#else
    WgmmaOperand to{((lds_address(rows) & 0x3ffff) >> 4 | 1u << 16) + static_cast<uint32_t>(first_row * kTileChunks),
                    static_cast<uint32_t>(group_bytes) >> 4 | 1u << 30};
    return to;
#endif
}

// The same, kept in registers from here on, where a loop begins.
HIPCONV_INLINE WgmmaOperand kept(WgmmaOperand operand) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("" : "+r"(operand.low), "+r"(operand.high));
#endif
    return operand;
}

// 64 pixels by kWgmmaBytes of channels of TF32, as a warpgroup holds them in registers. They may not change before the product
// that reads them is done.
struct WgmmaPixels {
    uint32_t words[4];

    static HIPCONV_INLINE int pixel(int lane, int i) { return lane / 4 + i % 2 * 8; }    // of the wave's 16
    static HIPCONV_INLINE int channel(int lane, int i) { return lane % 4 + i / 2 * 4; }  // of the eight
};

// A lane's place in 64 pixels of planes of f32: two boxes of 32 channels, whose rows are 32 pixels each. Lanes that read the
// words of WgmmaPixels one by one would meet at banks of LDS, two at each: the chunks of four channels are swizzled among four.
// So half of the lanes read the later channels first, and both halves change places in registers.
struct LaneInPlanes {
#if defined(HIPCONV_HOST)
    const Words4* planes;
    uint32_t offset;  // bytes
#else
    uint32_t offset;  // in LDS
#endif

    static HIPCONV_INLINE bool reads_later_first(int thread) { return (thread & 16) != 0; }

    // The planes begin at a multiple of 1024 bytes.
    HIPCONV_INLINE LaneInPlanes(const Words4* first, int thread) {
        const uint32_t lane = thread & 31, wave = thread / 32 & 3, channel = (lane & 3) + (lane & 16) / 4;
        const uint32_t pixel = (wave & 1) * 16 + lane / 4;
        offset = ((wave / 2 * 32 + channel) * kTileChunks + (pixel / 4 ^ channel)) * 16 + pixel % 4 * 4;
#if defined(HIPCONV_HOST)
        planes = first;
#else
        offset += lds_address(first);
#endif
    }
    // The place in a stage that begins so many chunks behind this one.
    HIPCONV_INLINE LaneInPlanes at(int chunks) const {
        LaneInPlanes to = *this;
        to.offset += static_cast<uint32_t>(chunks) * 16;
        return to;
    }

    // Reads kWgmmaBytes of channels, of the block-th 64 pixels from here on; in_order() puts them in order.
    HIPCONV_INLINE WgmmaPixels read(int block, int channel_bytes) const {
        constexpr uint32_t kPixels = 32, kChannels = 4 * kTileRowBytes + 64;  // bits that 8 pixels, and 4 channels, change
        const uint32_t behind = static_cast<uint32_t>(block * 64 + channel_bytes / kWgmmaBytes * 8) * kTileRowBytes;
        return {{word_at(offset, behind), word_at(offset ^ kPixels, behind), word_at(offset ^ kChannels, behind),
                 word_at(offset ^ kChannels ^ kPixels, behind)}};
    }
    static HIPCONV_INLINE WgmmaPixels in_order(const WgmmaPixels& as_read, bool later_first) {
        WgmmaPixels ordered{};
#pragma unroll
        for (int i = 0; i < 4; ++i) ordered.words[i] = later_first ? as_read.words[i ^ 2] : as_read.words[i];
        return ordered;
    }

  private:
    HIPCONV_INLINE uint32_t word_at(uint32_t place, uint32_t behind) const {
        uint32_t word = 0;
#if defined(HIPCONV_HAS_WARPGROUPS)
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(place + behind) : "memory");
#elif defined(HIPCONV_HOST)
        std::memcpy(&word, reinterpret_cast<const char*>(planes) + place + behind, 4);
#else
        (void)place, (void)behind;
#endif
        return word;
    }
};

#if defined(HIPCONV_HAS_WARPGROUPS)

// The registers of 64 pixels by 32, 64, 96 or 128 filters.
#define HIPCONV_SUMS_8(at)                                                                                             \
    "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3]), "+f"(d[at + 4]), "+f"(d[at + 5]), "+f"(d[at + 6]), \
        "+f"(d[at + 7])
#define HIPCONV_SUMS_32(at) HIPCONV_SUMS_8(at), HIPCONV_SUMS_8(at + 8), HIPCONV_SUMS_8(at + 16), HIPCONV_SUMS_8(at + 24)
#define HIPCONV_SUMS_16(at) HIPCONV_SUMS_8(at), HIPCONV_SUMS_8(at + 8)
#define HIPCONV_OF_32 HIPCONV_SUMS_16(0)
#define HIPCONV_OF_64 HIPCONV_SUMS_32(0)
#define HIPCONV_OF_96 HIPCONV_SUMS_32(0), HIPCONV_SUMS_16(32)
#define HIPCONV_OF_128 HIPCONV_SUMS_32(0), HIPCONV_SUMS_32(32)
#define HIPCONV_NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define HIPCONV_NAMES_64                                                                                       \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22," \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HIPCONV_NAMES_96 HIPCONV_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define HIPCONV_NAMES_128                                                                                         \
    HIPCONV_NAMES_64                                                                                              \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
    "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HIPCONV_WGMMA(count, depth, type, order, pixels_at, filters_at, keeps_at)                         \
    asm volatile(                                                                                         \
        "{\n"                                                                                             \
        ".reg .pred keeps;\n"                                                                             \
        "setp.ne.b32 keeps, %" keeps_at                                                                   \
        ", 0;\n"                                                                                          \
        "wgmma.mma_async.sync.aligned.m64n" #count depth ".f32." type "." type " {" HIPCONV_NAMES_##count \
        "}, %" pixels_at ", %" filters_at ", keeps, 1, 1" order                                           \
        ";\n"                                                                                             \
        "}"                                                                                               \
        : HIPCONV_OF_##count                                                                              \
        : "l"(pixels), "l"(filters), "r"(static_cast<int>(keeps_sums)))
// The same whose pixels are in registers: `operands` are the names of these, and of the filters.
#define HIPCONV_WGMMA_OF_REGISTERS(count, operands, keeps_at)                                                    \
    asm volatile(                                                                                                \
        "{\n"                                                                                                    \
        ".reg .pred keeps;\n"                                                                                    \
        "setp.ne.b32 keeps, %" keeps_at                                                                          \
        ", 0;\n"                                                                                                 \
        "wgmma.mma_async.sync.aligned.m64n" #count "k8.f32.tf32.tf32 {" HIPCONV_NAMES_##count "}, " operands     \
                                                                                              ", keeps, 1, 1;\n" \
                                                                                              "}"                \
        : HIPCONV_OF_##count                                                                                     \
        : "r"(pixels.words[0]), "r"(pixels.words[1]), "r"(pixels.words[2]), "r"(pixels.words[3]), "l"(filters),  \
          "r"(static_cast<int>(keeps_sums)))
#endif

#if defined(HIPCONV_HOST)
namespace simt_wgmma {

template <typename T>
float element(const Words4* rows, int row, int at) {
    typename std::conditional<sizeof(T) == 4, float, T>::type value;
    std::memcpy(&value, reinterpret_cast<const char*>(&rows[swizzled_chunk(row, at / 16)]) + at % 16, sizeof(T));
    return to_float(value);
}

// Adds up a thread's products. `x` are its two pixels: of each sum e, and of e + 2, the filter is one.
template <typename T, int kFilters, int kDepth>
void add_products(WarpgroupSums<kFilters>& sums, const float (&x)[2][kDepth], const WgmmaOperand& filters, int channel_bytes,
                  bool keeps_sums) {
    constexpr auto kSum = sizeof(T) == 4 ? simt::sum_of_tf32_products : simt::sum_of_products;
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
    float y[kDepth];
    for (int e = 0; e < kFilters / 2; e += e % 2 ? 3 : 1) {
        for (int k = 0; k < kDepth; ++k)
            y[k] = element<T>(filters.rows, sums.filter(thread, e), channel_bytes + static_cast<int>(sizeof(T)) * k);
        for (int i = 0; i < 2; ++i) {
            float& sum = sums.values[e + 2 * i];
            sum = kSum(keeps_sums ? sum : 0.0f, x[i], y, kDepth);
        }
    }
}

// The lanes of a wave give each other the channels of their pixels.
struct Lane {
    const WgmmaPixels* mine;
    float (*pixels)[kWgmmaBytes / 4];

    static void share(void* const* lanes) {
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 4; ++i)
                for (int to = lane / 4 * 4; to < lane / 4 * 4 + 4; ++to)
                    static_cast<const Lane*>(lanes[to])->pixels[i % 2][WgmmaPixels::channel(lane, i)] =
                        bit_cast<float>(static_cast<const Lane*>(lanes[lane])->mine->words[i]);
    }
};

}  // namespace simt_wgmma
#endif

// sums = [sums +] 64 pixels by kFilters filters, over kWgmmaBytes of channels that begin at byte `channel_bytes` of the rows.
template <typename T, int kFilters, bool kPlanes = false>
HIPCONV_INLINE void wgmma(WarpgroupSums<kFilters>& sums, WgmmaOperand of_pixels, WgmmaOperand of_filters, int channel_bytes,
                          bool keeps_sums) {
    static_assert(kFilters == 32 || kFilters == 64 || kFilters == 96 || kFilters == 128, "others are other instructions");
    static_assert(sizeof(T) == 2 || kFilters == 64 || kFilters == 128, "tiles of f32");
    static_assert(!kPlanes || (sizeof(T) == 2 && (kFilters == 64 || kFilters == 128)), "other products have no such form");
#if defined(HIPCONV_HAS_WARPGROUPS)
    constexpr int kRowsOfChannels = kWgmmaBytes / static_cast<int>(sizeof(T));  // with kPlanes
    const int row = kPlanes ? channel_bytes / kWgmmaBytes * kRowsOfChannels : 0;
    const uint64_t pixels = of_pixels.at(kPlanes ? 0 : channel_bytes / 16, row).descriptor();
    const uint64_t filters = of_filters.at(channel_bytes / 16, 0).descriptor();
    float(&d)[kFilters / 2] = sums.values;
    if constexpr (kPlanes && kFilters == 128 && kIsBf16<T>)
        HIPCONV_WGMMA(128, "k16", "bf16", ", 1, 0", "64", "65", "66");
    else if constexpr (kPlanes && kFilters == 128)
        HIPCONV_WGMMA(128, "k16", "f16", ", 1, 0", "64", "65", "66");
    else if constexpr (kPlanes && kIsBf16<T>)
        HIPCONV_WGMMA(64, "k16", "bf16", ", 1, 0", "32", "33", "34");
    else if constexpr (kPlanes)
        HIPCONV_WGMMA(64, "k16", "f16", ", 1, 0", "32", "33", "34");
    else if constexpr (kFilters == 128 && sizeof(T) == 4)
        HIPCONV_WGMMA(128, "k8", "tf32", "", "64", "65", "66");
    else if constexpr (kFilters == 128 && kIsBf16<T>)
        HIPCONV_WGMMA(128, "k16", "bf16", ", 0, 0", "64", "65", "66");
    else if constexpr (kFilters == 128)
        HIPCONV_WGMMA(128, "k16", "f16", ", 0, 0", "64", "65", "66");
    else if constexpr (kFilters == 96 && kIsBf16<T>)
        HIPCONV_WGMMA(96, "k16", "bf16", ", 0, 0", "48", "49", "50");
    else if constexpr (kFilters == 96)
        HIPCONV_WGMMA(96, "k16", "f16", ", 0, 0", "48", "49", "50");
    else if constexpr (kFilters == 32 && kIsBf16<T>)
        HIPCONV_WGMMA(32, "k16", "bf16", ", 0, 0", "16", "17", "18");
    else if constexpr (kFilters == 32)
        HIPCONV_WGMMA(32, "k16", "f16", ", 0, 0", "16", "17", "18");
    else if constexpr (sizeof(T) == 4)
        HIPCONV_WGMMA(64, "k8", "tf32", "", "32", "33", "34");
    else if constexpr (kIsBf16<T>)
        HIPCONV_WGMMA(64, "k16", "bf16", ", 0, 0", "32", "33", "34");
    else
        HIPCONV_WGMMA(64, "k16", "f16", ", 0, 0", "32", "33", "34");
#elif defined(HIPCONV_HOST)
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads, first_row = of_pixels.first_row;
    constexpr int kBytes = sizeof(T), kDepth = kWgmmaBytes / kBytes;
    float x[2][kDepth];
    for (int e = 0; e < 4; e += 2) {
        const int pixel = sums.pixel(thread, e),
                  row = first_row + pixel / 8 * (of_pixels.group_bytes / kTileRowBytes) + pixel % 8;
        for (int k = 0; k < kDepth; ++k) {
            const int at = channel_bytes + kBytes * k;
            x[e / 2][k] = kPlanes ? simt_wgmma::element<T>(of_pixels.rows, first_row + at / kBytes, kBytes * pixel)
                                  : simt_wgmma::element<T>(of_pixels.rows, row, at);
        }
    }
    simt_wgmma::add_products<T>(sums, x, of_filters, channel_bytes, keeps_sums);
#else
    (void)sums, (void)of_pixels, (void)of_filters, (void)channel_bytes, (void)keeps_sums;
#endif
}

// The same of TF32, whose pixels are in registers.
template <int kFilters>
HIPCONV_INLINE void wgmma(WarpgroupSums<kFilters>& sums, const WgmmaPixels& pixels, WgmmaOperand of_filters, int channel_bytes,
                          bool keeps_sums) {
    static_assert(kFilters == 64 || kFilters == 128, "tiles of f32");
#if defined(HIPCONV_HAS_WARPGROUPS)
    const uint64_t filters = of_filters.at(channel_bytes / 16, 0).descriptor();
    float(&d)[kFilters / 2] = sums.values;
    if constexpr (kFilters == 128)
        HIPCONV_WGMMA_OF_REGISTERS(128, "{%64, %65, %66, %67}, %68", "69");
    else
        HIPCONV_WGMMA_OF_REGISTERS(64, "{%32, %33, %34, %35}, %36", "37");
#elif defined(HIPCONV_HOST)
    float x[2][kWgmmaBytes / 4];
    simt_wgmma::Lane lane{&pixels, x};
    simt::Block::current()->wave_collective(&simt_wgmma::Lane::share, &lane, {"wgmma", __builtin_FILE(), __builtin_LINE()});
    simt_wgmma::add_products<float>(sums, x, of_filters, channel_bytes, keeps_sums);
#else
    (void)sums, (void)pixels, (void)of_filters, (void)channel_bytes, (void)keeps_sums;
#endif
}

template <typename T, int kFilters, bool kPlanes = false>
HIPCONV_INLINE void wgmma(WarpgroupSums<kFilters>& sums, const Words4* pixel_rows, int first_row, int group_bytes,
                          const Words4* filter_rows, int channel_bytes, bool keeps_sums) {
    wgmma<T, kFilters, kPlanes>(sums, wgmma_operand(pixel_rows, first_row, group_bytes),
                                wgmma_operand(filter_rows, 0, 8 * kTileRowBytes), channel_bytes, keeps_sums);
}

}  // namespace hipconv
