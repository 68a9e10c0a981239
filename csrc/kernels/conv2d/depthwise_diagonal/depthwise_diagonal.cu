// The host side of `depthwise_diagonal`: what it serves, its tiling and its launch.
#include <hip/hip_runtime.h>

#include "../common/axes.h"
#include "../common/launchers.h"
#include "../common/residual.h"
#include "../common/units.h"
#include "../gemm/layout.h"
#include "instances.h"
#include "launch/compute_units.h"

namespace hipconv {

namespace {

// Bytes of LDS: of a compute unit; of a block, at most; and what each takes beside.
constexpr int64_t kLdsOfUnit = 224 * 1024, kLdsOfBlock = 96 * 1024, kBeside = 1024;
// Segments that an image is cut into at most, and rounds of blocks up to which it is.
constexpr int64_t kMostSegments = 64, kMostRounds = 3;

// Pixels of a block whose waves have all that they have room for.
int64_t whole_pixels(const DiagonalParams& g, const DiagonalKernel& kernel) {
    return kernel.groups * kDiagonalPixels * (kDiagonalWaves >> g.chunks_log);
}

// Sets how a block of so many pixels uses LDS; returns its bytes, or 0 if its threads have too few loads or its offsets too few
// bits.
int64_t use_lds(DiagonalParams& g, const DiagonalKernel& kernel, int64_t pixels) {
    const Conv2dParams& c = g.conv;
    const int64_t runs = c.out_width >= pixels ? 2 : ceil_of(pixels - 1, c.out_width) + 1;
    const int64_t most_runs = runs < pixels ? runs : pixels, stride = c.stride_w;
    const int64_t columns = pixels * stride + most_runs * g.run_tail, read = most_runs * g.run_columns;
    if (((columns < read ? columns : read) << g.x_chunks_log) > kernel.loads * kDiagonalThreads) return 0;
    const auto offset = [&](const Image& image, int64_t width) {
        return 2 * (most_runs * image.batch_stride + width * image.column_stride);
    };
    if (offset(c.x, c.in_width) >= kLimit31 || offset(c.out, c.out_width) >= kLimit31) return 0;
    const int64_t in_phase = ceil_of(columns, stride);
    g.block_pixels = static_cast<int32_t>(pixels);
    g.pitch = ((1 << g.x_chunks_log) | 1) * 16;
    g.phase_bytes = static_cast<int32_t>(in_phase * g.pitch);
    g.row_bytes = static_cast<int32_t>(stride * g.phase_bytes);
    g.out_bytes = static_cast<int32_t>(whole_pixels(g, kernel) * kDiagonalOutPitch);
    g.stage_bytes = kernel.at_once * kernel.step * g.row_bytes;
    g.out_at = kernel.stages * g.stage_bytes;
    g.mark_at = g.out_at + (c.residual.data ? kernel.stages : 2) * kernel.at_once * g.out_bytes;
    return g.mark_at + 16;
}

// Cuts a call into blocks; returns a block's bytes of LDS, or 0 if no block fits. depthwise_diagonal_tiling.py has the same
// rule.
int64_t cut(DiagonalParams& g, const Conv2dParams& p, const DiagonalKernel& kernel) {
    g.conv = p;
    Conv2dParams& c = g.conv;
    c.dilation_h = dilation_of_rows(c);
    g.classes = GridAxis(c.stride_h, c.dilation_h).apart;
    g.pixels = c.batch * c.out_width;
    g.reach = static_cast<int32_t>(reach_of(c.kernel_width, c.dilation_w));
    g.run_tail = g.reach > c.stride_w ? static_cast<int32_t>(round_up(g.reach - c.stride_w, c.stride_w)) : 0;
    const int64_t seen = (int64_t{c.out_width} - 1) * c.stride_w + g.reach - c.pad_left;  // columns from the image's first on
    const bool is_zeros = c.padding_mode == PaddingMode::zeros;
    g.lead = is_zeros ? 0 : c.pad_left;
    g.run_columns = static_cast<int32_t>(g.lead + (is_zeros && seen > c.in_width ? c.in_width : seen));
    if (g.run_columns <= 0) return 0;
    const int64_t multiplier = c.out_channels / c.in_channels, tiles = c.out_channels / kDiagonalChannels;
    const int64_t units = compute_units_here();
    // Microseconds on an H200: a step of a round of blocks takes so long for itself, and for each block of a compute unit.
    const double alone = 0.27 + 0.19 * (kernel.step - 1);
    const double each = kernel.groups * (0.0027 * kernel.rows * kernel.pairs + 0.0085 + 0.022 * (kernel.step - 1));
    const int64_t rows = ceil_of(c.out_height, g.classes), most_segments = rows < kMostSegments ? rows : kMostSegments;
    const int64_t halo = ceil_of(kernel.rows, kernel.step) - 1;
    double least = 0;
    DiagonalParams best{};
    int64_t best_bytes = 0;
    for (int chunks_log = 2; chunks_log >= 0; --chunks_log) {
        const int64_t chunks = int64_t{1} << chunks_log;
        g.chunks_log = chunks_log;
        g.x_chunks_log = multiplier == 1            ? chunks_log
                         : chunks % multiplier == 0 ? chunks_log - (multiplier == 2 ? 1 : 2)
                         : multiplier % chunks == 0 ? 0
                                                    : 1;
        g.channel_blocks = static_cast<int32_t>(ceil_of(tiles, chunks));
        // As many pixels as fit with all blocks that registers leave room for, or with fewer ones.
        for (int64_t resident = kernel.blocks; resident > 0; --resident) {
            const int64_t lds = kLdsOfUnit / resident - kBeside, most = lds < kLdsOfBlock ? lds : kLdsOfBlock;
            int64_t pixels = whole_pixels(g, kernel), bytes = 0;
            const auto fits = [&](int64_t count) { return (bytes = use_lds(g, kernel, count)) > 0 && bytes <= most; };
            if (!fits(1)) continue;
            while (!fits(pixels)) pixels -= pixels > 16 ? 2 : 1;
            const int64_t blocks = ceil_of(g.pixels, pixels) * g.channel_blocks * g.classes, slots = units * resident;
            for (int64_t segments = 1; segments <= most_segments && blocks * (segments - 1) < kMostRounds * slots; ++segments) {
                const double steps = double(ceil_of(rows, segments)) + double(segments == 1 ? halo / 2 : halo);
                const double of_rounds = double(ceil_of(blocks * segments, slots)) * (1.8 + alone * steps);
                const double time =
                    (chunks_log == 0 ? 1.2 : 1.0) * (of_rounds + double(blocks * segments) / units * each * steps);
                if (best_bytes != 0 && time >= least) continue;
                least = time, best = g, best_bytes = bytes;
                best.segment_rows = static_cast<int32_t>(ceil_of(rows, segments));
            }
            if (pixels == whole_pixels(g, kernel)) break;
        }
    }
    if (best_bytes == 0) return 0;
    g = best;
    g.segments = static_cast<int32_t>(ceil_of(rows, g.segment_rows));
    g.row_pitch = 2 * c.x.row_stride, g.next_row = g.row_pitch * c.dilation_h;
    g.class_row_pitch = 2 * g.classes * c.out.row_stride;
    g.to_residual = bytes_to_residual(c);
    const auto by = [](int64_t count) { return divisor_of(static_cast<uint32_t>(count)); };
    g.divide_by_channel_blocks = by(g.channel_blocks), g.divide_by_units = by(int64_t{g.classes} * g.segments);
    g.divide_by_segments = by(g.segments), g.divide_by_width = by(c.out_width), g.divide_by_multiplier = by(multiplier);
    g.divide_by_run_pixels = small_divisor_of(c.out_width), g.divide_by_run_columns = small_divisor_of(g.run_columns);
    g.divide_by_stride = small_divisor_of(c.stride_w);
    return best_bytes;
}

int64_t blocks_of(const DiagonalParams& g) {
    return ceil_of(g.pixels, g.block_pixels) * g.channel_blocks * g.classes * g.segments;
}

// The kernel that has room for a call's taps and makes the fewest products, or none.
const DiagonalKernel* kernel_of(const Conv2dParams& c) {
    const int step = GridAxis(c.stride_h, dilation_of_rows(c)).step;
    const DiagonalKernel* best = nullptr;
    for (const DiagonalKernel& kernel : step == 1 ? unstrided_diagonal_kernels() : strided_diagonal_kernels())
        if (kernel.rows >= c.kernel_height && 2 * kernel.pairs >= c.kernel_width && kernel.step == step &&
            (!best || kernel.rows * kernel.pairs < best->rows * best->pairs))
            best = &kernel;
    return best;
}

bool has_channel_vectors(const Image& image, const Conv2dParams& p, int64_t height, int64_t width) {
    return begins_at_multiples(image, p.batch, height, width, kDiagonalChannels, p.dtype) &&
           (image.batch_stride >= 0 || p.batch == 1) && (image.column_stride >= 0 || width == 1);
}

}  // namespace

std::vector<Conv2dTile> conv2d_depthwise_diagonal_tiles(const std::string& arch, DType dtype) {
    if (dtype == DType::f32 || unit_of(arch) != MatrixUnit::mma_sync) return {};
    if (starts_with(arch, "sm_") && nvidia_number(arch) < 80) return {};
    return {{kDiagonalPixels, kDiagonalChannels}};
}

const char* conv2d_depthwise_diagonal_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype == DType::f32 || p.out_dtype != p.dtype) return "x and out of one type of 16 bits";
    if (p.groups != p.in_channels) return "a group for each channel of x (groups == in_channels)";
    if (p.in_channels % kDiagonalChannels != 0 || !has_channel_vectors(p.x, p, p.in_height, p.in_width) ||
        !has_channel_vectors(p.out, p, p.out_height, p.out_width))
        return "channels_last x and out, channels and addresses being multiples of 8 elements";
    if (p.residual.data && !residual_lies_as_out(p))
        return "no residual, or one of out's type and strides a multiple of 16 bytes from it";
    const DiagonalKernel* kernel = kernel_of(p);
    if (!kernel)
        return "filters of up to 11 rows and 12 columns, whose stride_h is up to 4 times what it has in common with dilation_h";
    constexpr int64_t kMost = 1 << 24;
    if (p.in_height > kMost || p.in_width > kMost || p.out_height > kMost || p.out_width > kMost || p.pad_top > kMost ||
        p.pad_left > kMost || reach_of(p.kernel_width, p.dilation_w) > kMost ||
        reach_of(p.kernel_height, p.dilation_h) > kMost || p.stride_h > kMost)
        return "images, and strides, of up to 2^24 rows and columns";
    if (int64_t{p.batch} * p.out_width >= kLimit31 / 2) return "fewer outputs";
    if (plan.split_k != 1) return "split_k of 1";
    DiagonalParams g{};
    if (cut(g, p, *kernel) == 0 || blocks_of(g) >= kLimit31 / 2) return "columns of x that leave room in LDS";
    return nullptr;
}

void conv2d_depthwise_diagonal(const Conv2dParams& p, const Conv2dPlan&, void* /*workspace*/, void* stream) {
    const DiagonalKernel& kernel = *kernel_of(p);
    DiagonalParams g{};
    const int64_t bytes = cut(g, p, kernel);
    kernel.launch(g, static_cast<unsigned>(blocks_of(g)), static_cast<int>(bytes), stream);
}

}  // namespace hipconv
