// The host side of `depthwise_banded`: what it serves, its tiling and its launch.
#include <hip/hip_runtime.h>

#include "../common/depthwise_frame.h"
#include "../common/launchers.h"
#include "../gemm/layout.h"
#include "kernel.h"
#include "launch/compute_units.h"

namespace hipconv {

namespace {

// The waves of a block, in a host pass too, which does not know those of the card.
int waves_of_block() { return kBandedThreads / wave_size_here(); }

// Tells whether the planes of an image tensor are each a run of elements.
bool has_dense_planes(const Image& image, int64_t height, int64_t width) {
    return (image.column_stride == 1 || width == 1) && (image.row_stride == width || height == 1);
}

// Tells whether all runs of so many elements, `row` apart in a plane, are whole vectors.
bool has_whole_vectors(const Image& image, const Conv2dParams& p, int64_t channels, int64_t run, int64_t row) {
    return reinterpret_cast<uintptr_t>(image.data) % 16 == 0 && multiple_of(image.batch_stride, p.batch, 8) &&
           multiple_of(image.channel_stride, channels, 8) && run % 8 == 0 && row % 8 == 0;
}

// The columns of x that a product's window spans, of atoms of so many columns.
int64_t window_of(const Conv2dParams& p, int64_t columns) {
    return 2 + (columns - 1) * p.stride_w + int64_t{p.kernel_width - 1} * p.dilation_w;
}

// Sets all that depends on the rows of a strip and on the images of a step, at most so many; returns a wave's bytes of LDS.
int64_t set_strips(BandedParams& g, const Conv2dParams& p, int64_t rows, int64_t most_images) {
    const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
    g.strip_rows = number(rows);
    g.strips = number(ceil_of(p.out_height, rows));
    g.interleaves = p.in_width % 2 != 0 && p.stride_h % 2 != 0;
    const int64_t of_atoms = g.interleaves ? ceil_of(rows, 2) : rows, room = g.interleaves ? 16 : 32;
    const bool even = p.batch == 1 || p.x.batch_stride % 2 == 0;
    int64_t images = g.strips == 1 && even ? room / of_atoms : 1;
    images = images < p.batch ? images : p.batch;
    g.step_images = number(images < most_images ? images : most_images);
    g.divide_by_rows = small_divisor_of(of_atoms);
    g.has_two = g.interleaves ? rows > 1 : g.step_images * rows > 16;
    g.patch_rows = number((rows - 1) * p.stride_h + reach_of(p.kernel_height, p.dilation_h));
    g.origin = number(round_up(p.pad_left + 1, 8));
    // Windows of the last row reach behind it.
    const int64_t reach = round_up(p.out_width, 16) * p.stride_w + round_up(window_of(p, 16), 32);
    const int64_t last_row = reach > p.in_width ? reach : p.in_width;
    const int64_t plane = round_up(g.origin + 8 + (g.patch_rows - 1) * int64_t{p.in_width} + last_row, 8);
    if (plane > kBandedLds) return plane;  // too large for what follows, too
    g.plane = number(plane);
    g.divide_by_vectors = small_divisor_of(int64_t{g.patch_rows} * p.in_width / 8 + 1);
    g.out_plane = number(round_up(rows * p.out_width + 8, 8));
    g.divide_by_out_vectors = small_divisor_of(rows * p.out_width / 8 + 1);
    g.band = number(int64_t{p.kernel_width - 1} * p.dilation_w + 3);
    const auto starts = [&](int64_t first) { return first * p.stride_h - p.pad_top; };
    const bool rows_even = g.strips == 1 || (rows * p.stride_h * p.in_width % 8 == 0 && starts(rows) * p.in_width % 8 == 0);
    const int64_t seen = g.patch_rows - p.pad_top;  // rows of x, of a strip that is all
    const int64_t x_run = g.strips > 1 ? 1 : seen < p.in_height ? seen : p.in_height;
    g.x_has_edges = !rows_even || !has_whole_vectors(p.x, p, p.in_channels, x_run * p.in_width, 8);
    const int64_t last = (p.out_height - (g.strips - 1) * rows) * p.out_width;
    g.out_has_edges = !has_whole_vectors(p.out, p, p.out_channels, rows * p.out_width, last);
    g.planes_at = number(round_up(int64_t{p.kernel_height} * g.band * 4, 16));
    g.outputs_at = number(g.planes_at + int64_t{kBandedBuffers} * g.step_images * g.plane * 2);
    return g.outputs_at + int64_t{g.step_images} * g.out_plane * 2;
}

// Sets a call's tiling; returns a block's bytes of LDS.
int64_t tile_planes(BandedParams& g, const Conv2dParams& p) {
    g.multiplier = p.out_channels / p.in_channels;
    const int64_t waves = waves_of_block(), units = compute_units_here();
    int64_t rows = ceil_of(p.out_height, ceil_of(p.out_height, 32)), images = kMostStepImages;
    int64_t bytes = set_strips(g, p, rows, images);
    // Fewer images or lower strips where a block would have little company on its unit, or too few waves have work.
    const auto is_low = [&] { return rows <= (g.interleaves ? 32 : 16); };
    const auto works = [&] { return int64_t{p.out_channels} * g.strips * ceil_of(p.batch, g.step_images); };
    for (;;) {
        const bool fits = bytes * waves <= kBandedLds;
        if (!fits && g.step_images > 1)
            images = g.step_images / 2;
        else if (rows > 1 && (!fits || (!is_low() && (bytes * waves > kBandedLds / 3 || works() < units * waves * 2))))
            rows = ceil_of(p.out_height, 2 * g.strips);
        else
            break;
        bytes = set_strips(g, p, rows, images);
    }
    if (bytes * waves > kBandedLds) return bytes * waves;
    g.bytes = static_cast<int32_t>(round_up(bytes, 16));
    // So many images a wave that the rounds of resident waves end soonest, where a wave begins as if it had one step more.
    const int64_t steps = ceil_of(p.batch, g.step_images), room = kCopiesPastRegisters ? 220 * 1024 : 64 * 1024;
    const int64_t blocks = room / (kCopiesPastRegisters ? g.bytes * waves + 1024 : kBandedLds);
    const int64_t resident = units * waves * (blocks < kBandedBlocks ? blocks : kBandedBlocks);
    int64_t best = 1, least = 0;
    for (int64_t each = 1; each <= steps; each = each < 16 ? each + 1 : 2 * each) {
        const int64_t count = int64_t{p.out_channels} * g.strips * ceil_of(steps, each);
        const int64_t time = ceil_of(count, resident) * (each + 1);
        if (each == 1 || time <= least) best = each, least = time;
    }
    g.wave_images = static_cast<int32_t>(g.step_images * best);
    return g.bytes * waves;
}

template <typename T, int kStride>
void launch_instance(const BandedParams& p, unsigned blocks, int shared, void* stream) {
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(conv2d_depthwise_banded<T, kStride>),
                              hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    HIPCONV_LAUNCH(true, (conv2d_depthwise_banded<T, kStride>), dim3(blocks, 1, 1), dim3(kBandedThreads, 1, 1), shared,
                   static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

template <typename T>
void launch_banded(const BandedParams& p, unsigned blocks, int shared, void* stream) {
    if (p.conv.stride_w == 1) return launch_instance<T, 1>(p, blocks, shared, stream);
    if (p.conv.stride_w == 2) return launch_instance<T, 2>(p, blocks, shared, stream);
    launch_instance<T, 0>(p, blocks, shared, stream);
}

}  // namespace

std::vector<Conv2dTile> conv2d_depthwise_banded_tiles(const std::string& arch, DType dtype) {
    if (conv2d_pointwise_tiles(arch, dtype).empty()) return {};  // the same matrix instructions
    return {{16 * kBandedDown, kBandedColumns}};
}

const char* conv2d_depthwise_banded_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype == DType::f32 || p.out_dtype == DType::f32) return "x and out of 16-bit types";
    if (p.groups != p.in_channels) return "a group for each channel of x (groups == in_channels)";
    if (depthwise_has_frame(p) && !depthwise_frame_pays(p)) return "zeros around the image, or few outputs that see beyond it";
    if (!has_dense_planes(p.x, p.in_height, p.in_width) || !has_dense_planes(p.out, p.out_height, p.out_width))
        return "contiguous planes of x and out";
    constexpr int64_t kMost = 1 << 12;
    const auto is_large = [](int64_t taps, int64_t dilation, int64_t stride, int64_t padding) {
        return taps * dilation > kMost || stride > kMost || padding > kMost;
    };
    if (is_large(p.kernel_height, p.dilation_h, p.stride_h, p.pad_top) ||
        is_large(p.kernel_width, p.dilation_w, p.stride_w, p.pad_left) || p.in_width > kMost || p.out_width > kMost)
        return "images of up to 4096 columns, and filters, strides and padding of up to that many rows and columns";
    if (p.in_height >= kLimit31 / 4 / kMost || p.out_height >= kLimit31 / 4 / kMost) return "images of less than 2^17 rows";
    BandedParams g{};
    if (tile_planes(g, p) > kBandedLds) return "filters and rows that fit LDS";
    if (int64_t{p.out_channels} * g.strips * ceil_of(p.batch, g.wave_images) >= kLimit31 / 2) return "fewer outputs";
    if (plan.split_k != 1) return "split_k of 1";
    return nullptr;
}

void conv2d_depthwise_banded(const Conv2dParams& p, const Conv2dPlan&, void* /*workspace*/, void* stream) {
    BandedParams g{};
    g.conv = p;
    const int64_t bytes = tile_planes(g, p), waves = int64_t{p.out_channels} * g.strips * ceil_of(p.batch, g.wave_images);
    g.waves = static_cast<int32_t>(waves);
    g.divide_by_filters = divisor_of(static_cast<uint32_t>(p.out_channels));
    g.divide_by_strips = divisor_of(static_cast<uint32_t>(g.strips));
    const unsigned blocks = static_cast<unsigned>(ceil_of(waves, waves_of_block()));
    const int shared = launch_shared_bytes(static_cast<int>(bytes));
    if (!kHalvesShareKernels && p.dtype == DType::bf16)
        launch_banded<std::conditional_t<kHalvesShareKernels, f16, bf16>>(g, blocks, shared, stream);
    else
        launch_banded<f16>(g, blocks, shared, stream);
    depthwise_frame(p, stream);
}

}  // namespace hipconv
