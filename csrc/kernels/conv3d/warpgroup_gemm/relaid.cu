// The warpgroup GEMM on x and a cache in any memory: bands of rows of all frames are repacked to dense channels-last memory,
// channels padded with zeros to a multiple of eight, and convolved one after another, so that the workspace stays small.
#include <hip/hip_runtime.h>

#include "../../conv2d/gemm/transpose.h"
#include "../common/filters.h"
#include "../common/launchers.h"
#include "launch/check.h"
#include "params.h"

namespace hipconv {

namespace {

constexpr int kThreads = 256;
// The workspace of a band; simt has small ones, so that small tests have several.
int64_t band_bytes(const Conv3dCard& card) { return card.arch == "wave32" ? 1 << 16 : int64_t{128} << 20; }

// A band: rows first_row to first_row + rows - 1 of all frames of all samples.
struct BandParams {
    Conv3dParams conv;
    int32_t first_row, rows;
    int32_t pixel_blocks, channel_blocks;  // of 64 pixels of a row, of 32 channels
    int32_t chunks;                        // of a pixel's channels, in the band
    bool by_vectors;                       // eight pixels of a channel are aligned
    Words4* band;
};

// A thread reads eight pixels of eight channels, and writes eight channels of each pixel. The lanes of a wave lie along pixels
// and along channels, so that both are whole lines.
template <bool kByVectors>
__global__ void HIPCONV_LAUNCH_BOUNDS(kThreads, 2) conv3d_relay(BandParams p) {
    const Conv3dParams& c = p.conv;
    const int lane = threadIdx.x % 32, frames = c.cached + c.in_frames;
    const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads / 32;
    const int64_t count = static_cast<int64_t>(c.batch) * frames * p.rows * p.pixel_blocks * p.channel_blocks;
    for (int64_t unit = first; unit < count; unit += step) {
        int64_t rest = unit;
        const auto next_axis = [&](int32_t size) {
            const int64_t index = rest % size;
            rest /= size;
            return static_cast<int32_t>(index);
        };
        const int chunk = next_axis(p.channel_blocks) * 4 + lane % 4, column = next_axis(p.pixel_blocks) * 64 + lane / 4 * 8;
        const int row = next_axis(p.rows), frame = next_axis(frames);
        if (chunk >= p.chunks || column >= c.in_width) continue;
        const Frame<f16> from = frame_at<f16>(c, rest, frame);  // 16 bits of any type
        const int64_t source = static_cast<int64_t>(p.first_row + row) * from.row_stride + column * from.column_stride +
                               static_cast<int64_t>(chunk) * 8 * from.channel_stride;
        Words4 channels[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            channels[i] = Words4{};
            if (chunk * 8 + i >= c.in_channels) continue;
            const int64_t pixels = source + i * from.channel_stride;
            if constexpr (kByVectors) {
                channels[i] = *reinterpret_cast<const Words4*>(from.at(pixels));
            } else {
#pragma unroll
                for (int n = 0; n < 8; ++n) {
                    if (column + n >= c.in_width) continue;
                    const uint32_t bits = bit_cast<uint16_t>(*from.at(pixels + n * from.column_stride));
                    set_word(channels[i], n / 2, word(channels[i], n / 2) | bits << (n % 2 * 16));
                }
            }
        }
        Words4* const to = global_pointer<Words4>(p.band) +
                           (((rest * frames + frame) * p.rows + row) * c.in_width + column) * p.chunks + chunk;
#pragma unroll
        for (int n = 0; n < 8; ++n)
            if (column + n < c.in_width) to[static_cast<int64_t>(n) * p.chunks] = channels_of_pixel(channels, n);
    }
}

// The bands of a call: rows of the result that fit the workspace with the rows of x that they see.
struct Bands {
    int64_t chunks, row_bytes, out_rows, in_rows;  // of a pixel; of a row of all frames; of the largest band

    Bands(const Conv3dParams& p, const Conv3dCard& card) {
        chunks = ceil_of(p.in_channels, 8);
        row_bytes = int64_t{p.batch} * (p.cached + p.in_frames) * p.in_width * chunks * 16;
        const int64_t fit = band_bytes(card) / (row_bytes ? row_bytes : 1) - (p.kernel_height - 1);
        out_rows = fit >= p.out_height ? p.out_height : fit < 16 ? 16 : fit / 16 * 16;
        if (out_rows > p.out_height) out_rows = p.out_height;
        in_rows = out_rows + p.kernel_height - 1 < p.in_height ? out_rows + p.kernel_height - 1 : p.in_height;
    }

    int64_t bytes() const { return round_up(in_rows * row_bytes, 256); }
};

// The call on a band: rows first to end - 1 of the result.
Conv3dParams of_band(const Conv3dParams& p, const Bands& bands, int64_t first, int64_t end, void* data, int32_t* first_in) {
    Conv3dParams b = p;
    const int64_t from = first - p.pad_top > 0 ? first - p.pad_top : 0;
    const int64_t last = end - p.pad_top + p.kernel_height - 1, to = last < p.in_height ? last : p.in_height;
    *first_in = static_cast<int32_t>(from);
    b.in_channels = static_cast<int32_t>(bands.chunks * 8);
    b.in_frames = p.cached + p.in_frames, b.cached = 0;
    b.in_height = static_cast<int32_t>(to - from);
    b.out_height = static_cast<int32_t>(end - first);
    b.pad_top = static_cast<int32_t>(p.pad_top - first + from);
    b.cache.data = b.saved.data = nullptr;
    const int64_t column = bands.chunks * 8, row = column * p.in_width, frame = row * b.in_height;
    b.x = {data, frame * b.in_frames, 1, frame, row, column};
    b.out.data = static_cast<char*>(p.out.data) + first * p.out.row_stride * element_bytes(p.out_dtype);
    if (p.residual.data)
        b.residual.data = static_cast<char*>(p.residual.data) + first * p.residual.row_stride * element_bytes(p.residual_dtype);
    return b;
}

bool reads_vectors(const Conv3dParams& p) {
    const auto aligned = [&](const Volume& v, int64_t frames) {
        return frames == 0 || ((v.column_stride == 1 || p.in_width == 1) && is_aligned(v.data) &&
                               multiple_of(v.channel_stride, p.in_channels, 8) && multiple_of(v.row_stride, p.in_height, 8) &&
                               multiple_of(v.frame_stride, frames, 8) && multiple_of(v.batch_stride, p.batch, 8));
    };
    return p.in_width % 8 == 0 && aligned(p.x, p.in_frames) && aligned(p.cache, p.cached);
}

// A band as the GEMM is asked about it: its memory is aligned.
Conv3dParams first_band(const Conv3dParams& p, const Bands& bands) {
    int32_t first_in;
    return of_band(p, bands, 0, bands.out_rows, reinterpret_cast<void*>(4096), &first_in);
}

// Tells whether a band goes to the kernel of few filters.
bool has_few_filters(const Conv3dParams& band, const Conv3dCard& card) {
    return conv3d_few_warpgroups_refusal(band, card) == nullptr;
}

}  // namespace

const char* conv3d_relaid_warpgroup_gemm_refusal(const Conv3dParams& p, const Conv3dCard& card) {
    if (p.dtype == DType::f32) return "x of 16-bit types";
    if (p.groups > 1 && p.in_channels % 8 != 0) return "C a multiple of 8, or one group";
    if (p.pad_top >= p.kernel_height || p.out_height - p.in_height >= p.kernel_height)
        return "padding of less than a filter's rows";
    if (const char* served = FrameEdges(p).refusal(p)) return served;
    return conv3d_warpgroup_gemm_refusal(first_band(p, Bands(p, card)), card);
}

const char* conv3d_relaid_warpgroup_gemm_form(const Conv3dParams& p, const Conv3dCard& card) {
    const Conv3dParams band = first_band(p, Bands(p, card));
    if (has_few_filters(band, card)) return "relaid_few_filters_by_warpgroups";
    const std::string form = conv3d_warpgroup_gemm_form(band, card);
    for (const char* relaid : {"relaid_warpgroup_gemm_128x128", "relaid_warpgroup_gemm_256x128", "relaid_warpgroup_gemm_384x96",
                               "relaid_warpgroup_gemm_256x96"})
        if (relaid + (sizeof("relaid_") - 1) == form) return relaid;
    return "relaid_warpgroup_gemm_256x32";
}

int64_t conv3d_relaid_warpgroup_gemm_workspace(const Conv3dParams& p, const Conv3dCard& card) {
    return FilterLayout(p, false).packed_bytes + Bands(p, card).bytes();
}

void conv3d_relaid_warpgroup_gemm(const Conv3dParams& p, const Conv3dCard& card, void* workspace, void* stream) {
    const FilterLayout l(p, false);
    if (l.packs) conv3d_pack_filters(p, workspace, stream);
    const Bands bands(p, card);
    char* const band = static_cast<char*>(workspace) + l.packed_bytes;
    for (int64_t first = 0; first < p.out_height; first += bands.out_rows) {
        const int64_t end = first + bands.out_rows < p.out_height ? first + bands.out_rows : p.out_height;
        BandParams b{};
        const Conv3dParams of = of_band(p, bands, first, end, band, &b.first_row);
        b.conv = p;
        b.rows = of.in_height;
        b.pixel_blocks = static_cast<int32_t>(ceil_of(p.in_width, 64));
        b.channel_blocks = static_cast<int32_t>(ceil_of(bands.chunks, 4));
        b.chunks = static_cast<int32_t>(bands.chunks);
        b.by_vectors = reads_vectors(p);
        b.band = reinterpret_cast<Words4*>(band);
        const int64_t units = int64_t{p.batch} * of.in_frames * b.rows * b.pixel_blocks * b.channel_blocks;
        const int64_t blocks = ceil_of(units * 32, kThreads);
        const dim3 grid(static_cast<unsigned>(blocks < (1 << 22) ? blocks : 1 << 22), 1, 1), block(kThreads, 1, 1);
        if (b.by_vectors)
            hipLaunchKernelGGL(conv3d_relay<true>, grid, block, 0, static_cast<hipStream_t>(stream), b);
        else
            hipLaunchKernelGGL(conv3d_relay<false>, grid, block, 0, static_cast<hipStream_t>(stream), b);
        check_launch("conv3d");
        const auto launch = has_few_filters(of, card) ? conv3d_launch_few_warpgroups : conv3d_launch_warpgroups;
        launch(of, l, l.packs ? workspace : p.weight.data, card, stream);
    }
    conv3d_save(p, stream);
}

}  // namespace hipconv
