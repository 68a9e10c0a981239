// The copy engine of sm_90: a thread asks for a box of a tensor, and it comes to LDS on its own, past registers and addresses.
// Barriers in LDS tell when a box is there, and when its place may be filled again.
//
// A box is rows of 128 bytes of the tensor's first axis (channels), whose 16-byte chunks lie in the order of mma.h's chunk_at. What
// is outside the tensor comes as zeros. simt does all this at once, in the thread that asks.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "device/dtype.h"
#include "matrix/mma.h"

namespace hipconv {

// ---- tensors, described for the copy engine on the host ---------------------------------------------------------------

constexpr int kMostAxes = 4;

// A tensor of 16-bit elements, its axes from the densest on; strides in bytes, that of the first axis being 2.
struct BoxedTensor {
    DType dtype;
    const void* data;
    int axes;
    int64_t sizes[kMostAxes], strides[kMostAxes];
    int box[kMostAxes];  // elements along each axis; ignored if by_pixels

    // A box of consecutive output pixels of a convolution of a (channels, width, height, batch) tensor instead: of each the same
    // tap, across the ends of rows and images.
    bool by_pixels;
    int pixels;
    int first[2], last[2];  // of width and height: the first tap of the first output pixel, and of the last, minus (size - 1)
    int step[2];
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
    BoxedTensor tensor;
};
#endif

#if defined(HIPCONV_NVIDIA)
constexpr bool kEncodesTensors = compat::kEncodesTensors;  // CUDA 12 and later
#else
constexpr bool kEncodesTensors = true;  // plans for other cards are asked of any build
#endif

inline TensorMap map_of(const BoxedTensor& tensor) {
    TensorMap map{};
#if defined(HIPCONV_NVIDIA)
    if (!compat::encode(map.words, tensor))
        throw std::runtime_error("hipconv: conv2d: the driver does not describe a tensor to the copy engine. "
                                 "algorithm='implicit_gemm' goes without it; please report the shapes and strides.");
#else
    map.tensor = tensor;
#endif
    return map;
}

// ---- barriers ---------------------------------------------------------------------------------------------------------

// A phase ends when `arrivals` threads have arrived and all bytes expected in it have come. Phases have the parities 0, 1, 0, …
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
static_assert(sizeof(Barrier) == 8, "as on the card");

HIPCONV_INLINE uint32_t lds_address(const void* place) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    return static_cast<uint32_t>(__cvta_generic_to_shared(place));
#else
    (void)place;
    return 0;
#endif
}

HIPCONV_INLINE void begin_barrier(Barrier* barrier, int arrivals) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(lds_address(barrier)), "r"(arrivals) : "memory");
#elif defined(HIPCONV_HOST)
    *barrier = {static_cast<int16_t>(arrivals), static_cast<int16_t>(arrivals), 0, 0};
#else
    (void)barrier, (void)arrivals;
#endif
}

// After the last begin_barrier and before __syncthreads.
HIPCONV_INLINE void show_barriers_to_copy_engine() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// What this thread has written to LDS, the copy engine and the matrix cores see, once it has arrived at a barrier.
HIPCONV_INLINE void show_lds_to_matrix_cores() {
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

HIPCONV_INLINE void arrive_expecting(Barrier* barrier, int bytes) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(lds_address(barrier)), "r"(bytes) : "memory");
#elif defined(HIPCONV_HOST)
    barrier->bytes += bytes;
    arrive(barrier);
#else
    (void)barrier, (void)bytes;
#endif
}

// Until the phase of this parity is over. Before the first phase, that of parity 1 counts as over.
#if defined(HIPCONV_HOST)
inline void wait_for(const Barrier* barrier, int parity, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    const auto is_over = [](const void* memory, int number) {
        return static_cast<const Barrier*>(memory)->parity != static_cast<uint32_t>(number);
    };
    if (!is_over(barrier, parity)) simt::Block::current()->wait_until(is_over, barrier, parity, {"wait_for", file, line});
}
#else
HIPCONV_INLINE void wait_for(const Barrier* barrier, int parity) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "look: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
        "@!over bra look;\n"
        "}" ::"r"(lds_address(barrier)),
        "r"(parity)
        : "memory");
#else
    (void)barrier, (void)parity;
#endif
}
#endif

// A map that the copy engine will read soon.
HIPCONV_INLINE void fetch_map(const TensorMap& map) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#else
    (void)map;
#endif
}

// ---- copies -----------------------------------------------------------------------------------------------------------

#if defined(HIPCONV_HOST)
namespace simt_copy {

// Row `row` of a box: 128 bytes from element `channel` on of the tensor's first axis, or zeros where those are outside it.
inline void copy_row(Words4* to, int row, const BoxedTensor& t, int channel, const char* from, bool is_inside) {
    for (int e = 0; e < 64; ++e) {
        const bool there = is_inside && channel + e >= 0 && channel + e < t.sizes[0];
        uint16_t bits = 0;
        if (there) std::memcpy(&bits, from + (channel + e) * t.strides[0], 2);
        std::memcpy(reinterpret_cast<char*>(&to[chunk_at(row, e / 8)]) + e % 8 * 2, &bits, 2);
    }
}

}  // namespace simt_copy
#endif

// The box whose first element is at these coordinates, which may be outside the tensor. `to`: a multiple of 1024.
template <int kAxes>
HIPCONV_INLINE void copy_box(Words4* to, const TensorMap& map, Barrier* barrier, const int (&at)[kAxes]) {
    static_assert(kAxes == 3 || kAxes == 4, "filters and images");
#if defined(HIPCONV_HAS_WARPGROUPS)
    if constexpr (kAxes == 3)
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
                lds_address(to)),
            "l"(&map), "r"(lds_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2])
            : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
            "[%2];" ::"r"(lds_address(to)),
            "l"(&map), "r"(lds_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
            : "memory");
#elif defined(HIPCONV_HOST)
    const BoxedTensor& t = map.tensor;
    int rows = 1;
    for (int axis = 1; axis < kAxes; ++axis) rows *= t.box[axis];
    for (int row = 0; row < rows; ++row) {
        const char* from = static_cast<const char*>(t.data);
        bool is_inside = true;
        for (int axis = 1, rest = row; axis < kAxes; ++axis) {
            const int index = at[axis] + rest % t.box[axis];
            rest /= t.box[axis];
            is_inside = is_inside && index >= 0 && index < t.sizes[axis];
            from += index * t.strides[axis];
        }
        simt_copy::copy_row(to, row, t, at[0], from, is_inside);
    }
    barrier->bytes -= rows * kTileRowBytes;
    barrier->settle();
#else
    (void)to, (void)map, (void)barrier, (void)at;
#endif
}

// Of consecutive output pixels the tap at (row, column), in elements of x: `at` is the channel, and of the first pixel's first tap
// the column, row and image.
HIPCONV_INLINE void copy_pixels(Words4* to, const TensorMap& map, Barrier* barrier, const int (&at)[4], int row, int column) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2], "
        "{%7, %8};" ::"r"(lds_address(to)),
        "l"(&map), "r"(lds_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "h"(static_cast<short>(column)),
        "h"(static_cast<short>(row))
        : "memory");
#elif defined(HIPCONV_HOST)
    const BoxedTensor& t = map.tensor;
    int64_t w = at[1], h = at[2], n = at[3];
    for (int pixel = 0; pixel < t.pixels; ++pixel) {
        const int64_t across = w + column, down = h + row;
        const bool is_inside = across >= 0 && across < t.sizes[1] && down >= 0 && down < t.sizes[2] && n < t.sizes[3];
        const char* from = static_cast<const char*>(t.data) + across * t.strides[1] + down * t.strides[2] + n * t.strides[3];
        simt_copy::copy_row(to, pixel, t, at[0], from, is_inside);
        w += t.step[0];
        if (w > t.sizes[1] - 1 + t.last[0]) {
            w = t.first[0];
            h += t.step[1];
        }
        if (h > t.sizes[2] - 1 + t.last[1]) {
            h = t.first[1];
            ++n;
        }
    }
    barrier->bytes -= t.pixels * kTileRowBytes;
    barrier->settle();
#else
    (void)to, (void)map, (void)barrier, (void)at, (void)row, (void)column;
#endif
}

}  // namespace hipconv
