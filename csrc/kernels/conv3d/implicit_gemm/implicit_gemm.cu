// The host side of the implicit GEMM: what it serves, its tile, its workspace and its launch.
#include <hip/hip_runtime.h>

#include "../../conv2d/common/units.h"
#include "../common/launchers.h"
#include "params.h"

namespace hipconv {

namespace {

// The filters of a tile: those that leave the fewest columns empty, the more the better. A narrow tile reads x as often as a
// wide one, which costs float32 less, because its products take longer.
int tile_n_of(const Conv3dParams& p) {
    const int64_t filters = p.out_channels / p.groups;
    int best = 96;
    if (p.dtype == DType::f32) {
        const auto cost = [&](int n) { return round_up(filters, n) * (n == 96 ? 100 : n == 64 ? 105 : 125); };
        for (const int tile : {64, 32})
            if (cost(tile) < cost(best)) best = tile;
        return best;
    }
    for (const int tile : {96, 128, 32}) {
        if (tile == 128 && !has_vectors(p)) continue;
        const double weights[] = {1.0, 1.0, 1.6};
        const auto cost = [&](int n) { return static_cast<double>(round_up(filters, n)) * weights[n == 32 ? 2 : 0]; };
        if (cost(tile) < cost(best) || (cost(tile) == cost(best) && tile > best)) best = tile;
    }
    return best;
}

bool is_rounded(const Conv3dParams& p) { return p.float32_precision == Float32Precision::tf32; }

}  // namespace

const char* conv3d_implicit_gemm_refusal(const Conv3dParams& p, const Conv3dCard& card) {
    if (p.dtype != DType::f32 && unit_of(card.arch) == MatrixUnit::fma) return "16-bit types on cards with matrix cores";
    const FilterLayout l(p, true);
    if (int64_t{p.out_height} * p.out_width >= kLimit31 - kGemmPixels || l.taps * l.chunks >= kLimit31 / 2 - kTileChunks)
        return "frames of less than 2^31 pixels, and filters of less than 2^30 chunks of channels";
    const int64_t reach = int64_t{p.out_height} * p.stride_h + int64_t{p.kernel_height} * p.dilation_h + p.pad_top;
    const int64_t across = int64_t{p.out_width} * p.stride_w + int64_t{p.kernel_width} * p.dilation_w + p.pad_left;
    const int64_t along = int64_t{p.out_frames} * p.stride_t + int64_t{p.kernel_frames} * p.dilation_t + p.front;
    if (reach >= kLimit31 || across >= kLimit31 || along >= kLimit31) return "taps that reach less than 2^31 far";
    const int tile_n = tile_n_of(p);
    const int64_t tiles =
        ceil_of(int64_t{p.out_height} * p.out_width, kGemmPixels) * ceil_of(p.out_channels / p.groups, tile_n);
    if (tiles * p.out_frames * p.batch >= kLimit31 / 256 || p.groups > 65535) return "up to 2^23 tiles, and 65535 groups";
    return nullptr;
}

const char* conv3d_implicit_gemm_form(const Conv3dParams& p, const Conv3dCard&) {
    const int tile_n = tile_n_of(p);
    return tile_n == 128  ? "implicit_gemm_128x128"
           : tile_n == 96 ? "implicit_gemm_128x96"
           : tile_n == 64 ? "implicit_gemm_128x64"
                          : "implicit_gemm_128x32";
}

int64_t conv3d_implicit_gemm_workspace(const Conv3dParams& p, const Conv3dCard&) { return FilterLayout(p, true).packed_bytes; }

void conv3d_implicit_gemm(const Conv3dParams& all, const Conv3dCard&, void* workspace, void* stream) {
    const FilterLayout l(all, true);
    if (l.packs) conv3d_pack_filters(all, workspace, stream);
    launch_samples(all, [&](const Conv3dParams& p) {
        const int tile_n = tile_n_of(p);
        FrameGemmParams g{};
        g.conv = p;
        g.frames_of_sample = frames_of_sample(p);
        g.save = save_plan(p);
        g.frame = frame_gemm_params(p, kGemmPixels, tile_n);
        g.by_vectors = has_vectors(p);
        g.lanes_along_pixels = p.x.column_stride < p.x.channel_stride;
        g.chunks = static_cast<int32_t>(l.chunks);
        g.chunks_of_frame = static_cast<int32_t>(l.chunks * p.kernel_height * p.kernel_width);
        g.all_chunks = g.chunks_of_frame * p.kernel_frames;
        g.divide_by_chunks = divisor_of(static_cast<uint32_t>(g.chunks));
        g.divide_by_frame = divisor_of(static_cast<uint32_t>(g.chunks_of_frame));
        g.divide_by_width = divisor_of(static_cast<uint32_t>(p.kernel_width));
        g.divide_by_frames = divisor_of(static_cast<uint32_t>(p.out_frames));
        g.filters = l.packs ? workspace : p.weight.data;
        g.filter_stride = l.filter_stride;
        const auto launch = p.dtype == DType::f32 ? is_rounded(p) ? launch_frame_gemm_tf32 : launch_frame_gemm_f32
                            : g.by_vectors        ? launch_frame_gemm_vectors
                                                  : launch_frame_gemm_elements;
        launch(g, tile_n, stream);
    });
}

}  // namespace hipconv
