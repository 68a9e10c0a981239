// The implicit GEMM's host side, and the two small kernels around it: one packs filters that it cannot read where they are, the
// other adds up the parts of sums that were split.
#include <hip/hip_runtime.h>

#include "check.h"
#include "conv2d_epilogue.h"
#include "conv2d_gemm_layout.h"
#include "conv2d_launchers.h"
#include "registers.h"

namespace hipconv {

constexpr int kSideThreads = 256;

// ---- packing ----------------------------------------------------------------------------------------------------------

struct PackParams {
    Image weight;
    void* packed;
    int64_t filter_elements;  // of a packed filter
    int32_t filters, channels, chunks, kernel_height, kernel_width, steps;
    bool taps_inside;
};

// A thread packs 16 bytes of channels of a tap, lanes along taps: then what they read is together in KCRS. Zeros fill the last
// chunk; and, by threads of their own, the last step.
template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kSideThreads, 4) conv2d_pack_filters(PackParams p) {
    constexpr int kElements = 16 / static_cast<int>(sizeof(T));
    const int32_t taps = p.kernel_height * p.kernel_width, padding = p.steps * kTileChunks - taps * p.chunks;
    const int64_t of_filter = static_cast<int64_t>(taps) * p.chunks + padding, count = of_filter * p.filters;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        const int64_t filter = i / of_filter;
        const int32_t number = static_cast<int32_t>(i - filter * of_filter), chunk = number / taps, tap = number - chunk * taps;
        T* const packed = global_pointer<T>(reinterpret_cast<uint64_t>(p.packed));
        Words4* const row = reinterpret_cast<Words4*>(packed + filter * p.filter_elements);
        if (chunk >= p.chunks) {
            row[number] = Words4{};
            continue;
        }
        const int32_t r = tap / p.kernel_width;
        const T* const first = global_pointer<const T>(reinterpret_cast<uint64_t>(p.weight.data)) +
                               offset_in(p.weight, filter, static_cast<int64_t>(chunk) * kElements, r, tap - r * p.kernel_width);
        Words4 words{};
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            if (chunk * kElements + e >= p.channels) continue;
            const uint32_t bits = bit_cast<typename WordsOf<sizeof(T)>::type>(first[e * p.weight.channel_stride]);
            constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
            set_word(words, e / kInWord, word(words, e / kInWord) | bits << (e % kInWord * 16));
        }
        const int32_t step_chunk = chunk % kTileChunks, turn = chunk / kTileChunks;
        row[p.taps_inside ? (turn * taps + tap) * kTileChunks + step_chunk : tap * p.chunks + chunk] = words;
    }
}

// ---- adding up --------------------------------------------------------------------------------------------------------

struct AddPartsParams {
    Conv2dParams conv;
    const float* parts;  // (parts, batch, out_height, out_width, out_channels)
    int32_t count;
    int64_t part_stride;
    bool lanes_along_channels;
};

// A thread adds the parts of an output in their order, the same on every run.
__global__ void HIPCONV_LAUNCH_BOUNDS(kSideThreads, 4) conv2d_add_parts(AddPartsParams p) {
    const int32_t channels = p.conv.out_channels, width = p.conv.out_width, height = p.conv.out_height;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.part_stride;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        int64_t pixel, k;
        if (p.lanes_along_channels) {
            pixel = i / channels;
            k = i - pixel * channels;
        } else {
            const int64_t image = static_cast<int64_t>(height) * width;
            const int64_t n = i / (image * channels), rest = i - n * image * channels;
            k = rest / image;
            pixel = n * image + (rest - k * image);
        }
        const float* part = global_pointer<const float>(reinterpret_cast<uint64_t>(p.parts)) + pixel * channels + k;
        float sum = 0.0f;
        for (int32_t n = 0; n < p.count; ++n) sum += part[n * p.part_stride];
        const int64_t row = pixel / width, n = row / height;
        conv2d_store(first_argument_again(p).conv, n, k, row - n * height, pixel - row * width, sum);
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

// Whether patches serve a tile, and few of their pixels lie beyond the image.
bool takes_patches(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan) {
    if (!kCopiesPastRegisters || p.dtype == DType::f32) return false;
    if (plan.tile_m < 128 || plan.tile_n != 128 || plan.split_k != 1) return false;
    if (!l.bits || !l.taps_inside || p.kernel_height != kPatchTaps || p.kernel_width != kPatchTaps) return false;
    if (p.stride_h != 1 || p.stride_w != 1 || p.dilation_h != 1 || p.dilation_w != 1) return false;
    const int64_t covered = round_up(p.out_height, plan.tile_m / kPatchColumns) * round_up(p.out_width, kPatchColumns);
    if (covered * 4 > l.image_pixels * 5) return false;
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
    return refusal_of_split(plan, l.steps);
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

}  // namespace

void pack_filters(const Conv2dParams& p, const GemmLayout& l, void* workspace, void* stream) {
    const PackParams pack{p.weight,
                          workspace,
                          l.filter_stride / l.element,
                          p.out_channels,
                          static_cast<int32_t>(l.group_channels),
                          static_cast<int32_t>(l.chunks),
                          p.kernel_height,
                          p.kernel_width,
                          static_cast<int32_t>(l.steps),
                          l.taps_inside};
    const dim3 grid = side_grid(l.steps * kTileChunks * p.out_channels), block(kSideThreads, 1, 1);
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    if (p.dtype == DType::f32)
        hipLaunchKernelGGL(conv2d_pack_filters<float>, grid, block, 0, hip_stream, pack);
    else
        hipLaunchKernelGGL(conv2d_pack_filters<f16>, grid, block, 0, hip_stream, pack);
    check_launch("conv2d");
}

void add_parts(const Conv2dParams& p, const ConvGemmParams& g, int split_k, void* stream) {
    const AddPartsParams add{p, static_cast<const float*>(g.conv.out.data), split_k, g.part_stride,
                             p.out.channel_stride < p.out.column_stride};
    const dim3 grid = side_grid(g.part_stride), block(kSideThreads, 1, 1);
    hipLaunchKernelGGL(conv2d_add_parts, grid, block, 0, static_cast<hipStream_t>(stream), add);
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
    if (l.packs) pack_filters(p, l, workspace, stream);
    const ConvGemmParams g = gemm_params(p, l, plan, workspace);
    const auto launch = p.dtype == DType::f32            ? launch_gemm_f32
                        : g.form == XForm::vectors ? launch_gemm_vectors
                        : g.form == XForm::patches ? launch_gemm_patches
                                                   : launch_gemm_elements;
    launch(g, {plan.tile_m, plan.tile_n}, plan.split_k, stream);
    if (plan.split_k > 1) add_parts(p, g, plan.split_k, stream);
}

}  // namespace hipconv
