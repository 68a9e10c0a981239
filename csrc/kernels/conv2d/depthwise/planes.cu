// Depthwise conv2d of small contiguous images, whose rows begin anywhere, by filters of 3 x 3 taps ("planes").
//
// The planes of a block, images of a channel, follow each other in memory: they come to LDS, and results leave it, by vectors
// of 16 bytes, whatever the width of an image. In LDS planes lie as in memory. A thread has a pair of planes and a few columns
// of outputs, and walks down a segment of rows, with filters and sums in registers as the walking kernel has them.
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

constexpr int kPlanesColumns = 4;                                    // of outputs, of a thread
constexpr int kPlanesLds = (kCopiesPastRegisters ? 48 : 16) * 1024;  // bytes of a block, at most: on AMD's cards of each
constexpr int kPlanesZeros = 64;                                     // bytes of LDS, which rows outside an image are read from
constexpr int kPlanesBlocks = kCopiesPastRegisters ? 5 : 4;          // of a compute unit

struct PlanesParams {
    Conv2dParams conv;
    int64_t planes;        // of all images
    int32_t block_planes;  // of a block, an even number, which is a whole number of vectors of x and of out
    int32_t strips, segments, segment_rows;
    int32_t in_bytes, out_bytes;  // of a plane
    Divisor divide_by_strips, divide_by_segments, divide_by_channels;
};

template <typename T, int kStride, bool kResidual>
__global__ void HIPCONV_LAUNCH_BOUNDS(kDepthwiseThreads, kPlanesBlocks) conv2d_depthwise_planes(PlanesParams p) {
    constexpr int kTaps = 3;
    constexpr int kBytes = sizeof(T), kColumns = kPlanesColumns, kReach = (kColumns - 1) * kStride + kTaps;
    constexpr int kRows = (kTaps + kStride - 1) / kStride, kAllTaps = kTaps * kTaps;
    static_assert(kReach * kBytes <= kPlanesZeros);
    HIPCONV_LARGE_SHARED(Words4, lds, kCopiesPastRegisters ? 1 : kPlanesLds / 16);

    let_next_kernel_begin();
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * p.block_planes, left = p.planes - first;
    const int planes = left < p.block_planes ? static_cast<int>(left) : p.block_planes;
    char* const zeros = reinterpret_cast<char*>(lds);
    char* const in = zeros + kPlanesZeros;
    char* const out = in + p.block_planes * p.in_bytes;
    wait_for_kernel_before();
    const auto bring = [&](char* lds_of, const Image& image, int bytes) {
        const auto* const from = global_pointer<const Words4>(static_cast<const char*>(image.data) + first * bytes);
        Words4* const to = reinterpret_cast<Words4*>(lds_of);
        const int vectors = planes * bytes / 16;
        if constexpr (kCopiesPastRegisters) {
#pragma unroll 4
            for (int i = thread; i < vectors; i += kDepthwiseThreads) copy_later(to + i, from + i, false);
            close_copies();
        } else {
#pragma unroll 4
            for (int i = thread; i < vectors; i += kDepthwiseThreads) to[i] = from[i];
        }
    };
    bring(in, p.conv.x, p.in_bytes);
    if constexpr (kResidual) bring(out, p.conv.residual, p.out_bytes);  // each output takes its element's place
    if (thread < kPlanesZeros / 16) lds[thread] = Words4{};

    const int items = planes / 2 * p.strips * p.segments;
    Pair taps[kAllTaps], bias;
    int pair = 0, strip = 0, segment = 0;
    const auto go_to = [&](int item) {
        const int along = static_cast<int>(divide(static_cast<uint32_t>(item), p.divide_by_strips));
        strip = item - along * p.strips;
        pair = static_cast<int>(divide(static_cast<uint32_t>(along), p.divide_by_segments));
        segment = along - pair * p.segments;
        const Conv2dParams& c = first_parameter_again(p).conv;
        const uint32_t plane = static_cast<uint32_t>(first) + static_cast<uint32_t>(2 * pair);
        const int channel =
            static_cast<int>(plane - divide(plane, p.divide_by_channels) * static_cast<uint32_t>(c.in_channels));
        const PairOfBias bias_bits(c, channel);
        load_dense_filters<T>(taps, c.weight.data, channel);
        bias = bias_bits.get(c);
    };
    int item = thread;
    if (item < items) go_to(item);
    if constexpr (kCopiesPastRegisters) wait_for_copies<0>();
    __syncthreads();

#pragma unroll 1
    while (item < items) {
        const int row = segment * p.segment_rows, column = strip * kColumns, first_seen = column * kStride - p.conv.pad_left;
        const int rows = p.conv.out_height - row < p.segment_rows ? p.conv.out_height - row : p.segment_rows;
        const int columns = p.conv.out_width - column, width = p.conv.in_width;
        int y = row * kStride - p.conv.pad_top;
        const char* from = in + 2 * pair * p.in_bytes + (y * width + first_seen) * kBytes;
        char* to = out + 2 * pair * p.out_bytes + (row * p.conv.out_width + column) * kBytes;
        bool sees[kReach];
        Pair x[kReach];  // zeros beside the image
#pragma unroll
        for (int s = 0; s < kReach; ++s) {
            sees[s] = static_cast<uint32_t>(first_seen + s) < static_cast<uint32_t>(width);
            x[s] = Pair{};
        }
        Pair sums[kRows][kColumns];
#pragma unroll
        for (int i = 0; i < kRows * kColumns; ++i) sums[i / kColumns][i % kColumns] = Pair{};
        // The first steps begin sums whose rows of x follow; the last ones begin none.
#pragma unroll 1
        for (int t = 1 - kRows; t < rows; ++t) {
#pragma unroll
            for (int j = 0; j < kStride; ++j) {
                const bool inside = static_cast<uint32_t>(y) < static_cast<uint32_t>(p.conv.in_height);
                const char* const here = inside ? from : zeros;
                const int apart = inside ? p.in_bytes : 0;
#pragma unroll
                for (int s = 0; s < kReach; ++s)
                    if (sees[s])
                        x[s] = make_pair(to_float(*reinterpret_cast<const T*>(here + s * kBytes)),
                                         to_float(*reinterpret_cast<const T*>(here + apart + s * kBytes)));
                from += width * kBytes;
                ++y;
                const auto add_row = [&](auto counts) {
                    add_row_of_x<kTaps, kStride>(sums, j, x, bias, [&](int tap) { return taps[tap]; }, counts);
                };
                if (t >= 0 && t + kRows <= rows)
                    add_row([](int) { return true; });
                else
                    add_row([&](int i) { return i >= -t && i < rows - t; });
            }
            if (t < 0) continue;
            Pair results[kColumns];
#pragma unroll
            for (int q = 0; q < kColumns; ++q) results[q] = sums[0][q];
            if constexpr (kResidual) {
#pragma unroll
                for (int q = 0; q < kColumns; ++q) {
                    if (q >= columns) continue;
                    const Pair more = make_pair(to_float(*reinterpret_cast<const T*>(to + q * kBytes)),
                                                to_float(*reinterpret_cast<const T*>(to + p.out_bytes + q * kBytes)));
                    results[q] = add(results[q], more);
                }
            }
            if (p.conv.activation != Conv2dActivation::none) activate_pairs(results, p.conv.activation);
#pragma unroll
            for (int q = 0; q < kColumns; ++q) {
                if (q >= columns) continue;
                *reinterpret_cast<T*>(to + q * kBytes) = from_float<T>(low(results[q]));
                *reinterpret_cast<T*>(to + p.out_bytes + q * kBytes) = from_float<T>(high(results[q]));
            }
            to += p.conv.out_width * kBytes;
        }
        item += kDepthwiseThreads;
        if (item < items) go_to(item);
    }
    __syncthreads();
    Words4* const to = global_pointer<Words4>(static_cast<char*>(p.conv.out.data) + first * p.out_bytes);
    const int vectors = planes * p.out_bytes / 16;
#pragma unroll 4
    for (int i = thread; i < vectors; i += kDepthwiseThreads) to[i] = reinterpret_cast<const Words4*>(out)[i];
}

// ---- the launch -------------------------------------------------------------------------------------------------------------

// Tells whether planes of an image tensor follow each other.
bool is_dense(const Image& image, const Conv2dParams& c, int64_t height, int64_t width) {
    return image.column_stride == 1 && image.row_stride == width && image.channel_stride == height * width &&
           (c.batch == 1 || image.batch_stride == c.in_channels * height * width) &&
           reinterpret_cast<uint64_t>(image.data) % 16 == 0;
}

template <typename T, int kStride>
void launch_planes(const PlanesParams& p, hipStream_t stream) {
    auto planes = conv2d_depthwise_planes<T, kStride, false>;
    if constexpr (kStride == 1)
        if (p.conv.residual.data) planes = conv2d_depthwise_planes<T, kStride, true>;
    const int bytes = launch_shared_bytes(kPlanesZeros + p.block_planes * (p.in_bytes + p.out_bytes));
    const int64_t blocks = ceil_of(p.planes, int64_t{p.block_planes});
    HIPCONV_LAUNCH(true, planes, dim3(static_cast<unsigned>(blocks), 1, 1), dim3(kDepthwiseThreads, 1, 1), bytes, stream, p);
    check_launch("conv2d");
}

// Cuts planes into blocks: small ones, so that a compute unit has room for several, of few segments. Returns false where other
// kernels were as fast on an H100: in rows that begin at vectors, and with too few planes to give most threads something to do.
bool cut_planes(PlanesParams& p, int64_t compute_units) {
    const Conv2dParams& c = p.conv;
    const int64_t bytes = element_bytes(c.dtype), in_bytes = int64_t{c.in_height} * c.in_width * bytes;
    const int64_t out_bytes = int64_t{c.out_height} * c.out_width * bytes, both = in_bytes + out_bytes;
    const int64_t room = kPlanesLds - kPlanesZeros;
    p.planes = int64_t{c.batch} * c.in_channels;
    int64_t planes = 2;
    while (planes * both <= room && (planes * in_bytes % 16 != 0 || planes * out_bytes % 16 != 0)) planes *= 2;
    if (planes * both > room || p.planes % planes != 0 || p.planes >= int64_t{1} << 31) return false;
    p.in_bytes = static_cast<int32_t>(in_bytes);
    p.out_bytes = static_cast<int32_t>(out_bytes);
    p.strips = static_cast<int32_t>(ceil_of(c.out_width, kPlanesColumns));
    const double least_blocks = c.stride_h == 2 ? 10 : 3.5;  // of a compute unit
    const auto blocks_a_unit = [&](int64_t of_block) { return double(p.planes) / double(of_block * compute_units); };
    while (2 * planes * both <= (room < 26 * 1024 ? room : 26 * 1024) && planes * p.strips <= kDepthwiseThreads &&
           blocks_a_unit(2 * planes) >= least_blocks)
        planes *= 2;
    const int64_t items = planes / 2 * p.strips;
    int32_t segments = 1;
    while (items * segments * 2 <= kDepthwiseThreads && segments * 6 <= c.out_height) segments *= 2;
    p.block_planes = static_cast<int32_t>(planes);
    p.segment_rows = static_cast<int32_t>(ceil_of(c.out_height, int64_t{segments}));
    p.segments = static_cast<int32_t>(ceil_of(c.out_height, p.segment_rows));
    if (blocks_a_unit(planes) < least_blocks) return false;
    if (c.stride_h == 2) return c.in_width % 4 != 0;
    return c.in_width % (bytes == 4 ? 4 : 2) != 0 && items * p.segments >= (bytes == 4 ? 80 : 32);
}

}  // namespace

bool depthwise_planes(const Conv2dParams& c, void* on) {
    if (c.kernel_height != 3 || c.out_channels != c.in_channels || c.out_dtype != c.dtype || !residual_lies_as_out(c) ||
        c.in_channels % 2 != 0 || !has_dense_filters(c) || !is_dense(c.x, c, c.in_height, c.in_width) ||
        !is_dense(c.out, c, c.out_height, c.out_width) || (c.residual.data && c.stride_h != 1))
        return false;
    PlanesParams p{};
    p.conv = c;
    if (!cut_planes(p, compute_units_here())) return false;
    p.divide_by_strips = divisor_of(static_cast<uint32_t>(p.strips));
    p.divide_by_segments = divisor_of(static_cast<uint32_t>(p.segments));
    p.divide_by_channels = divisor_of(static_cast<uint32_t>(c.in_channels));
    const hipStream_t stream = static_cast<hipStream_t>(on);
    with_dtype(c.dtype, [&](auto type) {
        using T = decltype(type);
        c.stride_h == 1 ? launch_planes<T, 1>(p, stream) : launch_planes<T, 2>(p, stream);
    });
    return true;
}

}  // namespace hipconv
