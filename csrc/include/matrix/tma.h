// TMA, the tensor memory accelerator of sm_90: one thread asks for a box of a tensor, and the box comes to LDS asynchronously,
// without passing registers and without addresses for each element. Barriers in LDS (mbarrier) tell when a box has arrived, and
// when its stage may be filled again.
//
// A box is rows of 128 bytes of the tensor's first axis (channels), whose 16-byte chunks are swizzled as mma.h's swizzled_chunk
// says. Elements outside the tensor arrive as zeros. simt copies a box at once, in the thread that asks for it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device/dtype.h"
#include "device/error.h"
#include "matrix/mma.h"

namespace hipconv {

// ---- tensor maps, made on the host ------------------------------------------------------------------------------------

constexpr int kMaxTensorRank = 5;

// The tensor that a tensor map describes: its axes begin with the densest. Strides are in bytes, and that of the first axis is
// an element's. TMA rounds f32 to TF32 on the way, unless it is to be stored.
struct TensorMapSpec {
    DType dtype;
    bool is_stored;
    const void* data;
    int rank;
    int64_t sizes[kMaxTensorRank], strides[kMaxTensorRank];
    int box[kMaxTensorRank];  // elements along each axis; ignored if im2col

    // The im2col mode: a box holds the same tap of consecutive output pixels of a convolution of a (channels, width, height,
    // batch) tensor, across the ends of rows and images.
    bool im2col;
    int pixels_per_column;
    // Along width and height: the first tap of the first output pixel, and the first tap of the last one minus (size - 1).
    int lower_corner[2], upper_corner[2];
    int traversal_stride[2];
};

}  // namespace hipconv

#if defined(HIPCONV_NVIDIA)
#include "tensor_map.h"  // compat/cuda
#endif

namespace hipconv {

#if defined(HIPCONV_NVIDIA)
struct alignas(64) TensorMap {
    uint64_t words[16];
};
#else
struct TensorMap {
    TensorMapSpec tensor;
};
#endif

#if defined(HIPCONV_NVIDIA)
constexpr bool kHasTensorMaps = compat::kHasTensorMaps;  // CUDA 12 and later
#else
constexpr bool kHasTensorMaps = true;  // any build is asked for the plans of other cards
#endif

inline TensorMap make_tensor_map(const TensorMapSpec& tensor) {
    TensorMap map{};
#if defined(HIPCONV_NVIDIA)
    if (!compat::encode_tensor_map(map.words, tensor))
        throw Error(
            {"hipconv: the driver could not encode a tensor map for TMA. algorithm='implicit_gemm' goes without it; please "
             "report the shapes and strides."});
#else
    map.tensor = tensor;
#endif
    return map;
}

// ---- barriers ---------------------------------------------------------------------------------------------------------

// A phase of a barrier ends when `arrivals` threads have arrived and all bytes expected in it have come. The parities of the
// phases are 0, 1, 0, …
#if defined(HIPCONV_HOST)
struct Barrier {
    int16_t arrivals, awaited;
    int32_t bytes : 31;
    uint32_t parity : 1;

    void settle() {
        if (awaited != 0 || bytes != 0) return;
        awaited = arrivals;
        parity ^= 1;
    }
};
#else
using Barrier = uint64_t;
#endif
static_assert(sizeof(Barrier) == 8, "an mbarrier has 8 bytes");

HIPCONV_INLINE uint32_t lds_address(const void* place) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    return static_cast<uint32_t>(__cvta_generic_to_shared(place));
#else
    (void)place;
    return 0;
#endif
}

HIPCONV_INLINE void init_barrier(Barrier* barrier, int arrivals) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(lds_address(barrier)), "r"(arrivals) : "memory");
#elif defined(HIPCONV_HOST)
    *barrier = {static_cast<int16_t>(arrivals), static_cast<int16_t>(arrivals), 0, 0};
#else
    (void)barrier, (void)arrivals;
#endif
}

// Shows the barriers to TMA; called after the last init_barrier and before __syncthreads.
HIPCONV_INLINE void fence_barrier_init() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Once this thread has arrived at a barrier behind this fence, TMA and the matrix cores see what it has written to LDS.
HIPCONV_INLINE void fence_async_proxy() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

HIPCONV_INLINE void arrive(Barrier* barrier) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(lds_address(barrier)) : "memory");
#elif defined(HIPCONV_HOST)
    --barrier->awaited;
    barrier->settle();
#else
    (void)barrier;
#endif
}

HIPCONV_INLINE void arrive_expect_bytes(Barrier* barrier, int bytes) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(lds_address(barrier)), "r"(bytes) : "memory");
#elif defined(HIPCONV_HOST)
    barrier->bytes += bytes;
    arrive(barrier);
#else
    (void)barrier, (void)bytes;
#endif
}

// Waits until the phase of this parity is over. Before the first phase, the one of parity 1 counts as over.
#if defined(HIPCONV_HOST)
inline void wait_for_phase(const Barrier* barrier, int parity, const char* file = __builtin_FILE(),
                           int line = __builtin_LINE()) {
    const auto is_over = [](const void* memory, int number) {
        return static_cast<const Barrier*>(memory)->parity != static_cast<uint32_t>(number);
    };
    if (!is_over(barrier, parity)) simt::Block::current()->wait_until(is_over, barrier, parity, {"wait_for_phase", file, line});
}
#else
HIPCONV_INLINE void wait_for_phase_at(uint32_t address, int parity) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "look: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
        "@!over bra look;\n"
        "}" ::"r"(address),
        "r"(parity)
        : "memory");
#else
    (void)address, (void)parity;
#endif
}
HIPCONV_INLINE void wait_for_phase(const Barrier* barrier, int parity) { wait_for_phase_at(lds_address(barrier), parity); }
#endif

// Barriers that follow each other in LDS, by an address that stays in a register: in a short loop, working it out anew costs as
// much as the products.
struct Barriers {
#if defined(HIPCONV_HOST)
    Barrier* first;

    Barriers at(int number) const { return {first + number}; }
#else
    uint32_t first;

    HIPCONV_INLINE Barriers at(int number) const { return {first + static_cast<uint32_t>(number) * 8}; }
#endif
};

#if defined(HIPCONV_HOST)
inline Barriers barriers_from(Barrier* first) { return {first}; }
inline void arrive(Barriers barrier) { arrive(barrier.first); }
inline void wait_for_phase(Barriers barrier, int parity, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    wait_for_phase(barrier.first, parity, file, line);
}
#else
HIPCONV_INLINE Barriers barriers_from(Barrier* first) {
    uint32_t address = lds_address(first);
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("" : "+r"(address));
#endif
    return {address};
}
HIPCONV_INLINE void arrive(Barriers barrier) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier.first) : "memory");
#else
    (void)barrier;
#endif
}
HIPCONV_INLINE void wait_for_phase(Barriers barrier, int parity) { wait_for_phase_at(barrier.first, parity); }
#endif

// TMA will read this map soon.
HIPCONV_INLINE void prefetch_tensor_map(const TensorMap& map) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#else
    (void)map;
#endif
}

// ---- copies -----------------------------------------------------------------------------------------------------------

#if defined(HIPCONV_HOST)
namespace simt_tma {

// Copies row `row` of a box: 128 bytes from element `channel` of the tensor's first axis on, or zeros for elements outside it.
inline void copy_row(Words4* to, int row, const TensorMapSpec& t, int channel, const char* from, bool is_inside) {
    const int bytes = element_bytes(t.dtype);
    for (int e = 0; e < kTileRowBytes / bytes; ++e) {
        const bool there = is_inside && channel + e >= 0 && channel + e < t.sizes[0];
        uint32_t bits = 0;
        if (there) std::memcpy(&bits, from + (channel + e) * t.strides[0], bytes);
        if (t.dtype == DType::f32) bits = rounded_to_tf32(bits);
        const int at = e * bytes;
        std::memcpy(reinterpret_cast<char*>(&to[swizzled_chunk(row, at / 16)]) + at % 16, &bits, bytes);
    }
}

// Calls apply(row, offset, is_inside) for each row of a box, and returns their number: the offset in bytes is that of the
// tensor's element 0 along the first axis.
template <int kRank, typename Apply>
inline int for_each_row(const TensorMapSpec& t, const int (&at)[kRank], const Apply& apply) {
    int rows = 1;
    for (int axis = 1; axis < kRank; ++axis) rows *= t.box[axis];
    for (int row = 0; row < rows; ++row) {
        int64_t offset = 0;
        bool is_inside = true;
        for (int axis = 1, rest = row; axis < kRank; ++axis) {
            const int index = at[axis] + rest % t.box[axis];
            rest /= t.box[axis];
            is_inside = is_inside && index >= 0 && index < t.sizes[axis];
            offset += index * t.strides[axis];
        }
        apply(row, offset, is_inside);
    }
    return rows;
}

// Ends the process, as a card does.
[[noreturn]] inline void stop_at(int coordinate) {
    std::fprintf(stderr, "hipconv: simt: a box is stored from coordinate %d on, which TMA does not take\n", coordinate);
    std::abort();
}

}  // namespace simt_tma
#endif

// Loads the box whose first element has these coordinates, which may be outside the tensor. `to` is a multiple of 1024.
template <int kRank>
HIPCONV_INLINE void tma_load_box(Words4* to, const TensorMap& map, Barrier* barrier, const int (&at)[kRank]) {
    static_assert(kRank >= 3 && kRank <= 5, "filters, images and volumes");
#if defined(HIPCONV_HAS_WARPGROUPS)
    if constexpr (kRank == 3)
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
            "[%2];" ::"r"(lds_address(to)),
            "l"(&map), "r"(lds_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2])
            : "memory");
    else if constexpr (kRank == 5)
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, "
            "%7}], [%2];" ::"r"(lds_address(to)),
            "l"(&map), "r"(lds_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
            : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
            "[%2];" ::"r"(lds_address(to)),
            "l"(&map), "r"(lds_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
            : "memory");
#elif defined(HIPCONV_HOST)
    const TensorMapSpec& t = map.tensor;
    const int rows = simt_tma::for_each_row<kRank>(t, at, [&](int row, int64_t offset, bool is_inside) {
        simt_tma::copy_row(to, row, t, at[0], static_cast<const char*>(t.data) + offset, is_inside);
    });
    barrier->bytes -= rows * kTileRowBytes;
    barrier->settle();
#else
    (void)to, (void)map, (void)barrier, (void)at;
#endif
}

// Loads the tap at (row, column), in elements of x, of consecutive output pixels. `at` is the channel, then column, row and
// image of the first pixel's first tap.
HIPCONV_INLINE void tma_load_im2col(Words4* to, const TensorMap& map, Barrier* barrier, const int (&at)[4], int row,
                                    int column) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2], "
        "{%7, %8};" ::"r"(lds_address(to)),
        "l"(&map), "r"(lds_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "h"(static_cast<short>(column)),
        "h"(static_cast<short>(row))
        : "memory");
#elif defined(HIPCONV_HOST)
    const TensorMapSpec& t = map.tensor;
    int64_t w = at[1], h = at[2], n = at[3];
    for (int pixel = 0; pixel < t.pixels_per_column; ++pixel) {
        const int64_t across = w + column, down = h + row;
        const bool is_inside = across >= 0 && across < t.sizes[1] && down >= 0 && down < t.sizes[2] && n < t.sizes[3];
        const char* from = static_cast<const char*>(t.data) + across * t.strides[1] + down * t.strides[2] + n * t.strides[3];
        simt_tma::copy_row(to, pixel, t, at[0], from, is_inside);
        w += t.traversal_stride[0];
        if (w > t.sizes[1] - 1 + t.upper_corner[0]) {
            w = t.lower_corner[0];
            h += t.traversal_stride[1];
        }
        if (h > t.sizes[2] - 1 + t.upper_corner[1]) {
            h = t.lower_corner[1];
            ++n;
        }
    }
    barrier->bytes -= t.pixels_per_column * kTileRowBytes;
    barrier->settle();
#else
    (void)to, (void)map, (void)barrier, (void)at, (void)row, (void)column;
#endif
}

// Stores the box at these coordinates, behind fence_async_proxy() of the threads that wrote it; what of it lies behind the end
// of the tensor is left out. The first coordinate is not below zero, and a multiple of 16 bytes: else the hardware takes it for
// an illegal instruction. This thread's stores up to commit_stores() are a group.
template <int kRank>
HIPCONV_INLINE void tma_store_box(const TensorMap& map, const Words4* from, const int (&at)[kRank]) {
    static_assert(kRank == 3 || kRank == 5, "filters of runs; patches, and pixels");
#if defined(HIPCONV_HAS_WARPGROUPS)
    if constexpr (kRank == 3)
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
                     "r"(lds_address(from)), "r"(at[0]), "r"(at[1]), "r"(at[2])
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
                     "r"(lds_address(from)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
                     : "memory");
#elif defined(HIPCONV_HOST)
    const TensorMapSpec& t = map.tensor;
    const int bytes = element_bytes(t.dtype);
    if (at[0] < 0 || at[0] * bytes % 16 != 0) simt_tma::stop_at(at[0]);
    simt_tma::for_each_row<kRank>(t, at, [&](int row, int64_t offset, bool is_inside) {
        for (int e = 0; e < t.box[0] && is_inside && at[0] + e < t.sizes[0]; ++e) {
            const char* const of_row = reinterpret_cast<const char*>(&from[swizzled_chunk(row, e * bytes / 16)]);
            char* const to = static_cast<char*>(const_cast<void*>(t.data)) + offset + (at[0] + e) * t.strides[0];
            std::memcpy(to, of_row + e * bytes % 16, bytes);
        }
    });
#else
    (void)map, (void)from, (void)at;
#endif
}

HIPCONV_INLINE void commit_stores() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Waits until all groups of this thread's stores have read LDS, which may then be written again.
HIPCONV_INLINE void wait_for_stores() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

}  // namespace hipconv
