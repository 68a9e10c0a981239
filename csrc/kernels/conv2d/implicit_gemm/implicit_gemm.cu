// The implicit GEMM's host side, and the two small kernels around it: one packs filters that it cannot read where they are, the
// other adds up the parts of sums that were split.
#include <hip/hip_runtime.h>

#include "../common/epilogue.h"
#include "../common/launchers.h"
#include "../gemm/layout.h"
#include "../gemm/pack_filters.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kSideThreads = 256, kAddThreads = 64;  // few units are to be on many compute units

// ---- packing ----------------------------------------------------------------------------------------------------------

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kSideThreads, 4) conv2d_pack_filters(PackParams p) {
    let_next_kernel_begin();
    wait_for_kernel_before();
    const int64_t count = pack_chunks(p);
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x)
        pack_chunk<T>(p, i);
}

// ---- adding up --------------------------------------------------------------------------------------------------------

struct AddPartsParams {
    Conv2dParams conv;
    const float* parts;  // (parts, batch, out_height, out_width, out_channels)
    int32_t count, units, across;  // threads' work, in all and across channels
    int64_t part_stride;
    bool lanes_along_channels;
    Divisor divide_by_across, divide_by_image, divide_by_row;
};

// A thread adds the parts of kEach channels of an output pixel in their order, the same on every run.
template <int kEach>
__global__ void HIPCONV_LAUNCH_BOUNDS(kAddThreads, 8) conv2d_add_parts(AddPartsParams p) {
    const int32_t image = p.conv.out_height * p.conv.out_width;
    for (uint32_t i = blockIdx.x * kAddThreads + threadIdx.x; i < static_cast<uint32_t>(p.units); i += gridDim.x * kAddThreads) {
        int32_t n, k, pixel;  // of the image
        if (p.lanes_along_channels) {
            const int32_t of_all = static_cast<int32_t>(divide(i, p.divide_by_across));
            k = (static_cast<int32_t>(i) - of_all * p.across) * kEach;
            n = static_cast<int32_t>(divide(of_all, p.divide_by_image));
            pixel = of_all - n * image;
        } else {
            const int32_t of_all = static_cast<int32_t>(divide(i, p.divide_by_image));
            pixel = static_cast<int32_t>(i) - of_all * image;
            n = static_cast<int32_t>(divide(of_all, p.divide_by_across));
            k = (of_all - n * p.across) * kEach;
        }
        const Conv2dParams& c = first_parameter_again(p).conv;
        const int32_t row = static_cast<int32_t>(divide(pixel, p.divide_by_row)), column = pixel - row * c.out_width;
        float sums[kEach] = {}, bias[kEach] = {}, residual[kEach] = {};
        if (c.bias) load_each(bias, c.bias, k * c.bias_stride, c.bias_stride, c.bias_dtype);
        if (c.residual.data)
            load_each(residual, c.residual.data, offset_in(c.residual, n, k, row, column), c.residual.channel_stride,
                      c.residual_dtype);
        const int64_t first = (static_cast<int64_t>(n) * image + pixel) * c.out_channels + k;
        const float* part = global_pointer<const float>(p.parts) + first;
        using Floats = Words<float, kEach>;
#pragma unroll 8
        for (int32_t m = 0; m < p.count; ++m) {
            const Floats more = *reinterpret_cast<const Floats*>(part + m * p.part_stride);
#pragma unroll
            for (int e = 0; e < kEach; ++e) sums[e] += bit_cast<float>(word(more, e));
        }
        void* const out = global_pointer<void>(c.out.data);
        const int64_t first_out = offset_in(c.out, n, k, row, column);
#pragma unroll
        for (int e = 0; e < kEach; ++e)
            store_rounded(out, first_out + e * c.out.channel_stride, c.out_dtype,
                          activate(sums[e] + bias[e] + residual[e], c.activation));
    }
}

namespace {

dim3 side_grid(int64_t threads) {
    const int64_t blocks = (threads + kSideThreads - 1) / kSideThreads;
    return dim3(static_cast<unsigned>(blocks < (1 << 22) ? blocks : 1 << 22), 1, 1);
}

// ---- what an architecture has -----------------------------------------------------------------------------------------

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

// By name, because the host's pass of the compiler does not know the device.
MatrixUnit unit_of(const std::string& arch) {
    if (starts_with(arch, "wave")) return kMatrixUnit;  // simt: the unit that it was built for
    if (starts_with(arch, "sm_")) return MatrixUnit::mma_sync;
    for (const char* start : {"gfx90a", "gfx94", "gfx950"})
        if (starts_with(arch, start)) return MatrixUnit::mfma;
    if (starts_with(arch, "gfx11")) return MatrixUnit::wmma11;
    if (starts_with(arch, "gfx12") && !starts_with(arch, "gfx125")) return MatrixUnit::wmma12;
    return MatrixUnit::fma;
}

// Copies to LDS past the registers begin with sm_80; some cards of one generation have 100 KB of LDS, others at least 164.
int nvidia_number(const std::string& arch) { return starts_with(arch, "sm_") ? std::atoi(arch.c_str() + 3) : 0; }
bool has_small_lds(int number) { return number == 86 || number == 89 || number >= 120; }

// The farthest that an element of x can lie behind the first one of a tile, in bytes, if `by_image` and if not.
int64_t reach(const Conv2dParams& p, const GemmLayout& l, int tile_m, bool by_image) {
    int64_t rows = p.in_height - 1, images = 0;
    if (by_image) {
        const int64_t tile_rows = (tile_m - 1) / p.out_width + 1;
        const int64_t needed = tile_rows * p.stride_h + static_cast<int64_t>(p.kernel_height - 1) * p.dilation_h;
        if (needed < rows) rows = needed;
    } else {
        images = (tile_m - 1) / l.image_pixels + 1;
        if (images > p.batch - 1) images = p.batch - 1;
    }
    return (images * p.x.batch_stride + rows * p.x.row_stride + (p.in_width - 1) * p.x.column_stride +
            (l.group_channels - 1) * p.x.channel_stride + l.elements) *
           l.element;
}

// How a tile reads x, and whether the pixels of each image are numbered for themselves. Tiles across images waste nothing where
// images are small; tiles of one image reach less far.
struct Reading {
    XForm form;
    bool by_image;
};

// Whether a tile reads x by patches.
bool takes_patches(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan) {
    if (!kCopiesPastRegisters || p.dtype == DType::f32) return false;
    if (plan.tile_m < 128 || plan.tile_n != 128 || plan.split_k != 1) return false;
    if (!l.bits || !l.taps_inside || !patches_serve(p, l, plan.tile_m, kPatchColumns)) return false;
    const int64_t last = offset_in(p.x, 0, l.group_channels, p.in_height - 1, p.in_width - 1);
    return last * l.element < kLimit32;
}

Reading reading_of(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan) {
    if (takes_patches(p, l, plan)) return {XForm::patches, true};
    const int tile_m = plan.tile_m;
    if (!l.bits) return {XForm::anything, true};
    const XForm form = l.vectors ? XForm::vectors : XForm::elements;
    const bool small_images = l.image_pixels < 8192 && l.image_pixels * p.batch < kLimit31;
    if (small_images && reach(p, l, tile_m, false) < kLimit32) return {form, false};
    return {reach(p, l, tile_m, true) < kLimit32 ? form : XForm::anything, true};
}

const char* refusal_of_tile(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan) {
    const Reading reading = reading_of(p, l, plan);
    const int64_t tiles_m = reading.by_image ? ceil_of(l.image_pixels, plan.tile_m) * p.batch
                                             : ceil_of(l.image_pixels * p.batch, plan.tile_m);
    if (tiles_m * ceil_of(l.group_filters, plan.tile_n) * 256 >= kLimit32) return "up to 2^32 threads";
    if (reading.form == XForm::anything && (plan.tile_m != 64 || plan.tile_n != 64))
        return "other padding than zeros, filters of more than 15 rows or columns, and x over 4 GB apart by tiles of 64 x 64 "
               "only";
    if (plan.tile_m == 256 && reading.form != XForm::vectors && reading.form != XForm::patches)
        return "by tiles of 256 pixels channels_last x with C / groups a multiple of 8 and 16-byte alignment only, or 3x3 "
               "taps of large images";
    return refusal_of_split(plan, l, l.steps);
}

ConvGemmParams gemm_params(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan, void* workspace) {
    const Reading reading = reading_of(p, l, plan);
    const bool patches = reading.form == XForm::patches;
    ConvGemmParams g = common_params(p, l, plan, {reading.by_image, patches ? kPatchColumns : 0}, workspace);
    g.form = reading.form;
    g.by_vectors = patches && l.vectors;

    const auto bytes = [&](int64_t stride) { return static_cast<uint32_t>(stride * l.element); };
    g.x_image = bytes(p.x.batch_stride);
    g.x_row = bytes(p.x.row_stride);
    g.x_column = bytes(p.x.column_stride);
    g.x_channel = bytes(p.x.channel_stride);
    g.x_chunk = bytes(p.x.channel_stride * l.elements);
    g.tap_row = bytes(p.dilation_h * p.x.row_stride);
    g.tap_column = bytes(p.dilation_w * p.x.column_stride);
    g.lanes_along_pixels = !l.vectors && p.x.channel_stride != 1;

    g.chunks = static_cast<int32_t>(l.chunks);
    g.taps_inside = l.taps_inside;
    g.steps = static_cast<int32_t>(l.steps);
    g.steps_a_part = static_cast<int32_t>(ceil_of(l.steps, plan.split_k));
    const int32_t next_taps = static_cast<int32_t>(kTileChunks / l.chunks);
    g.next_chunk = static_cast<int32_t>(kTileChunks % l.chunks);
    g.next_column = next_taps % p.kernel_width;
    g.next_row = next_taps / p.kernel_width;
    g.next_tap = static_cast<uint32_t>(g.next_row) * g.tap_row + static_cast<uint32_t>(g.next_column) * g.tap_column;

    g.filters = l.packs ? workspace : p.weight.data;
    g.filter_stride = l.filter_stride;
    g.filter_step = static_cast<uint32_t>(l.filter_step);
    g.filter_turn = static_cast<uint32_t>(l.filter_turn);
    return g;
}

void add_parts(const Conv2dParams& p, const ConvGemmParams& g, int split_k, void* stream) {
    const bool by_fours = p.out_channels % 4 == 0;
    const int32_t across = by_fours ? p.out_channels / 4 : p.out_channels;
    const int32_t image = p.out_height * p.out_width, units = image * p.batch * across;
    const AddPartsParams add{p,
                             static_cast<const float*>(g.conv.out.data),
                             split_k,
                             units,
                             across,
                             g.part_stride,
                             p.out.channel_stride < p.out.column_stride,
                             divisor_of(static_cast<uint32_t>(across)),
                             divisor_of(static_cast<uint32_t>(image)),
                             divisor_of(static_cast<uint32_t>(p.out_width))};
    const int32_t blocks = (units - 1) / kAddThreads + 1;
    const dim3 grid(static_cast<unsigned>(blocks < (1 << 22) ? blocks : 1 << 22), 1, 1), block(kAddThreads, 1, 1);
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    if (by_fours)
        hipLaunchKernelGGL(conv2d_add_parts<4>, grid, block, 0, hip_stream, add);
    else
        hipLaunchKernelGGL(conv2d_add_parts<1>, grid, block, 0, hip_stream, add);
    check_launch("conv2d");
}

}  // namespace

void pack_filters(const Conv2dParams& p, const GemmLayout& l, bool early, void* workspace, void* stream) {
    const PackParams pack{p.weight,
                          workspace,
                          l.filter_stride / l.element,
                          p.out_channels,
                          static_cast<int32_t>(l.group_channels),
                          static_cast<int32_t>(l.chunks),
                          p.kernel_height,
                          p.kernel_width,
                          static_cast<int32_t>(l.steps * kTileChunks - l.taps * l.chunks),
                          l.taps_inside};
    const dim3 grid = side_grid(pack_chunks(pack)), block(kSideThreads, 1, 1);
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    if (p.dtype == DType::f32)
        HIPCONV_LAUNCH(early, conv2d_pack_filters<float>, grid, block, 0, hip_stream, pack);
    else
        HIPCONV_LAUNCH(early, conv2d_pack_filters<f16>, grid, block, 0, hip_stream, pack);
    check_launch("conv2d");
}

std::vector<Conv2dTile> conv2d_implicit_gemm_tiles(const std::string& arch, DType dtype) {
    const MatrixUnit unit = unit_of(arch);
    const int nvidia = nvidia_number(arch);
    std::vector<Conv2dTile> tiles;
    if (nvidia > 0 && nvidia < 80) return tiles;
    for (const Conv2dTile tile : {Conv2dTile{256, 128}, Conv2dTile{128, 128}, Conv2dTile{128, 64}, Conv2dTile{64, 64}}) {
        const bool f32 = dtype == DType::f32, legal = f32 ? gemm_tile_is_legal<float>(unit, tile.tile_m, tile.tile_n)
                                                         : gemm_tile_is_legal<f16>(unit, tile.tile_m, tile.tile_n);
        if (legal && !(f32 && tile.tile_n == 128) && !(tile.tile_m == 256 && has_small_lds(nvidia))) tiles.push_back(tile);
    }
    return tiles;
}

const char* conv2d_implicit_gemm_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    const GemmLayout l(p, true);
    for (const int64_t stride : {p.x.batch_stride, p.x.channel_stride, p.x.row_stride, p.x.column_stride})
        if (stride < 0) return "x without negative strides";
    if (p.groups >= 1 << 16) return "up to 65535 groups";
    if (l.image_pixels >= kLimit31 || l.taps * l.chunks >= kLimit31 / kTileChunks)
        return "images and filters of less than 2^31 elements";
    if (l.filter_stride * 256 >= kLimit31) return "filters of less than 8 MB";
    if (plan.tile_m != 0) return refusal_of_tile(p, l, plan);
    Conv2dPlan small = plan;
    small.tile_m = small.tile_n = 64;
    return refusal_of_tile(p, l, small);
}

int64_t conv2d_implicit_gemm_workspace(const Conv2dParams& p, const Conv2dPlan& plan) {
    const GemmLayout l(p, true);
    return l.workspace_bytes(plan.split_k);
}

void conv2d_implicit_gemm(const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    const GemmLayout l(p, true);
    if (l.packs) pack_filters(p, l, false, workspace, stream);
    const ConvGemmParams g = gemm_params(p, l, plan, workspace);
    const auto launch = p.dtype == DType::f32            ? launch_gemm_f32
                        : g.form == XForm::vectors ? launch_gemm_vectors
                        : g.form == XForm::patches ? launch_gemm_patches
                                                   : launch_gemm_elements;
    launch(g, {plan.tile_m, plan.tile_n}, plan.split_k, stream);
    if (plan.split_k > 1) add_parts(p, g, plan.split_k, stream);
}

}  // namespace hipconv
