// The host side of the GEMM of warpgroups: what it serves, and what the copy engine is told of x and of the filters. And the
// instances whose x the copy engine brings.
#include <hip/hip_runtime.h>

#include <chrono>

#include "../common/launchers.h"
#include "../gemm/layout.h"
#include "kernel.h"

namespace hipconv {

namespace {

// Whether rectangles of so many columns serve as tiles, and few of their pixels lie beyond the image.
bool takes_patches(const Conv2dParams& p, const GemmLayout& l, int tile_m, int columns) {
    if (p.kernel_height != kPatchTaps || p.kernel_width != kPatchTaps) return false;
    if (p.stride_h != 1 || p.stride_w != 1 || p.dilation_h != 1 || p.dilation_w != 1) return false;
    const int64_t covered = round_up(p.out_height, tile_m / columns) * round_up(p.out_width, columns);
    return covered * 4 <= l.image_pixels * 5;
}

// What the copy engine's description of consecutive output pixels has bits for.
bool describes_pixels(const Conv2dParams& p) {
    const auto fits = [](int64_t first, int64_t last, int64_t taps, int64_t dilation, int64_t step) {
        return first >= -128 && last >= -128 && last <= 127 && (taps - 1) * dilation <= 255 && step <= 8;
    };
    const int64_t bottom = int64_t{p.out_height - 1} * p.stride_h - p.pad_top - (p.in_height - 1);
    const int64_t right = int64_t{p.out_width - 1} * p.stride_w - p.pad_left - (p.in_width - 1);
    return fits(-int64_t{p.pad_top}, bottom, p.kernel_height, p.dilation_h, p.stride_h) &&
           fits(-int64_t{p.pad_left}, right, p.kernel_width, p.dilation_w, p.stride_w);
}

// The stride of an axis in bytes; of an axis of one element, any that is aligned.
int64_t bytes_of_stride(int64_t stride, int64_t size) { return size == 1 ? 16 : stride * 2; }

bool takes_boxes(const Conv2dParams& p, const GemmLayout& l, int tile_m) {
    if (!l.vectors || (p.groups > 1 && l.group_channels % 64 != 0)) return false;
    for (const auto& [stride, size] : {std::pair{p.x.column_stride, p.in_width}, {p.x.row_stride, p.in_height},
                                       {p.x.batch_stride, p.batch}})
        if (bytes_of_stride(stride, size) <= 0 || bytes_of_stride(stride, size) >= int64_t{1} << 40) return false;
    return takes_patches(p, l, tile_m, kNarrow) || describes_pixels(p);
}

// Whether eight pixels after one another are aligned in memory, in all channels: of rows of x, and of whole images.
bool has_vectors_of_pixels(const Conv2dParams& p) {
    return (p.x.column_stride == 1 || p.in_width == 1) && p.in_width % 8 == 0 && is_aligned(p.x.data) &&
           multiple_of(p.x.channel_stride, p.in_channels, 8) && multiple_of(p.x.row_stride, p.in_height, 8) &&
           multiple_of(p.x.batch_stride, p.batch, 8);
}
bool has_whole_images(const Conv2dParams& p, const GemmLayout& l) {
    const bool is_1x1 = l.taps == 1 && p.stride_h == 1 && p.stride_w == 1 && p.pad_top == 0 && p.pad_left == 0 &&
                        p.out_height == p.in_height && p.out_width == p.in_width;
    return is_1x1 && (p.x.column_stride == 1 || p.in_width == 1) && (p.x.row_stride == p.in_width || p.in_height == 1) &&
           l.image_pixels % 8 == 0 && is_aligned(p.x.data) && multiple_of(p.x.channel_stride, p.in_channels, 8) &&
           multiple_of(p.x.batch_stride, p.batch, 8);
}

// How x comes to LDS, if it can, and the columns of a tile's patch or 0.
struct Bringing {
    bool serves, by_boxes;
    int columns;
};

Bringing bringing_of(const Conv2dParams& p, const GemmLayout& l, int tile_m) {
    if (takes_boxes(p, l, tile_m)) return {true, true, takes_patches(p, l, tile_m, kNarrow) ? kNarrow : 0};
    if (takes_patches(p, l, tile_m, kWide) && has_vectors_of_pixels(p)) return {true, false, kWide};
    return {has_whole_images(p, l), false, 0};
}

BoxedTensor x_of(const Conv2dParams& p, const WarpgroupGemmParams& g, int tile_m) {
    BoxedTensor t{};
    t.dtype = p.dtype;
    t.data = p.x.data;
    t.axes = 4;
    const int64_t sizes[] = {p.in_channels, p.in_width, p.in_height, p.batch};
    const int64_t strides[] = {1, p.x.column_stride, p.x.row_stride, p.x.batch_stride};
    const int box[] = {64, kNarrow + kPatchTaps - 1, tile_m / kNarrow + kPatchTaps - 1, 1};
    for (int axis = 0; axis < 4; ++axis) {
        t.sizes[axis] = sizes[axis];
        t.strides[axis] = axis ? bytes_of_stride(strides[axis], sizes[axis]) : 2;
        t.box[axis] = box[axis];
    }
    if (g.patches) return t;
    t.by_pixels = true;
    t.pixels = tile_m;
    t.first[0] = -p.pad_left, t.first[1] = -p.pad_top;
    t.last[0] = (p.out_width - 1) * p.stride_w - p.pad_left - (p.in_width - 1);
    t.last[1] = (p.out_height - 1) * p.stride_h - p.pad_top - (p.in_height - 1);
    t.step[0] = p.stride_w, t.step[1] = p.stride_h;
    return t;
}

BoxedTensor filters_of(const Conv2dParams& p, const GemmLayout& l, const void* data, int tile_n) {
    BoxedTensor t{};
    t.dtype = p.dtype;
    t.data = data;
    t.axes = 3;
    t.sizes[0] = l.packs ? l.chunks * 8 : l.group_channels, t.sizes[1] = l.taps, t.sizes[2] = p.out_channels;
    t.strides[0] = 2, t.strides[1] = l.taps == 1 ? 16 : l.filter_tap, t.strides[2] = p.out_channels == 1 ? 16 : l.filter_stride;
    t.box[0] = 64, t.box[1] = 1, t.box[2] = tile_n;
    return t;
}

// Fillings of x's ring that a tile's sums take.
int64_t fillings_of(const GemmLayout& l, const Bringing& bringing) {
    return ceil_of(l.group_channels, 64) * (bringing.columns ? 1 : l.taps);
}

// A split sum: its parts, of which none is empty (a block would have no sums), and what they take of the workspace.
struct Split {
    int64_t fillings, fillings_a_part, tiles;
    int parts;
    int64_t sums_bytes, marks_bytes;
};

Split split_of(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan) {
    const Bringing bringing = bringing_of(p, l, plan.tile_m);
    Split s{};
    s.fillings = fillings_of(l, bringing);
    s.fillings_a_part = ceil_of(s.fillings, plan.split_k);
    s.parts = static_cast<int>(ceil_of(s.fillings, s.fillings_a_part));
    const int64_t tiles_m = bringing.columns ? ceil_of(p.out_width, bringing.columns) *
                                                   ceil_of(p.out_height, plan.tile_m / bringing.columns) * p.batch
                                             : ceil_of(l.image_pixels * p.batch, plan.tile_m);
    s.tiles = tiles_m * p.groups * ceil_of(l.group_filters, plan.tile_n);
    s.sums_bytes = split_sums_bytes(s.tiles, s.parts, plan.tile_m, plan.tile_n);
    s.marks_bytes = split_marks_bytes(s.tiles, s.parts, warpgroup_shape(plan.tile_m, plan.tile_n, true).consumers() / 32);
    return s;
}

// Differs from process to process, and is neither of what memory is filled with.
uint64_t mark_of_process() {
    static const uint64_t mark = [] {
        const auto now = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
        const uint64_t mixed = (now ^ reinterpret_cast<uintptr_t>(&now)) * 0x9e3779b97f4a7c15u;
        return (mixed ^ mixed >> 32) | 1;
    }();
    return mark;
}

const char* refusal_of_tile(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan) {
    const Bringing bringing = bringing_of(p, l, plan.tile_m);
    if (!bringing.serves)
        return "channels_last x with C / groups a multiple of 8 and 16-byte alignment, or contiguous x of 3x3 taps of stride 1 "
               "or of 1x1 taps, with aligned rows or images of a multiple of 8 pixels";
    if (plan.tile_m != 128 && !bringing.by_boxes)  // with 256 registers would spill; 64 are not enough work to gather for
        return "by tiles of 64 or 256 pixels channels_last x only";
    const int64_t tiles = ceil_of(l.image_pixels * p.batch, plan.tile_m) * ceil_of(l.group_filters, plan.tile_n) * p.groups;
    if (tiles * 2 * plan.split_k >= kLimit31) return "up to 2^30 tiles";  // of patches there are up to 5/4
    return refusal_of_split(plan, l, fillings_of(l, bringing));
}

int compute_units() {
    int device = 0, units = 0;
    (void)hipGetDevice(&device);
    (void)hipDeviceGetAttribute(&units, hipDeviceAttributeMultiprocessorCount, device);
    return units > 0 ? units : 1;
}

}  // namespace

std::vector<Conv2dTile> conv2d_warpgroup_gemm_tiles(const std::string& arch, DType dtype) {
    const bool emulated = arch == "wave32" && kHasWarpgroups;
    if (dtype == DType::f32 || !kEncodesTensors || !(arch == "sm_90" || emulated)) return {};
    return {{256, 128}, {128, 128}, {128, 64}, {64, 64}};
}

const char* conv2d_warpgroup_gemm_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype == DType::f32) return "x of 16-bit types";
    const GemmLayout l(p, false);
    if (p.padding_mode != PaddingMode::zeros) return "padding with zeros";
    if (l.image_pixels * p.batch >= kLimit31 - 256 || l.taps * l.chunks >= kLimit31 / kTileChunks)
        return "outputs of less than 2^31 pixels";
    if (l.filter_stride >= int64_t{1} << 40) return "filters of less than 1 TB";
    Conv2dPlan small = plan;
    if (small.tile_m == 0) small.tile_m = 128, small.tile_n = 64;
    return refusal_of_tile(p, l, small);
}

int64_t conv2d_warpgroup_gemm_workspace(const Conv2dParams& p, const Conv2dPlan& plan) {
    const GemmLayout l(p, false);
    if (plan.split_k == 1) return l.packed_bytes;
    const Split split = split_of(p, l, plan);
    return l.packed_bytes + split.sums_bytes + split.marks_bytes;
}

void conv2d_warpgroup_gemm(const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    const GemmLayout l(p, false);
    if (l.packs) pack_filters(p, l, true, workspace, stream);
    WarpgroupGemmParams g{};
    const Bringing bringing = bringing_of(p, l, plan.tile_m);
    g.patches = bringing.columns != 0;
    g.patch_columns = bringing.columns;
    g.patch_pitch = bringing.columns + kPatchTaps - 1;
    g.taps_a_filling = g.patches ? static_cast<int32_t>(l.taps) : 1;
    g.rows_of_64 = g.patches ? 64 / bringing.columns * g.patch_pitch : 64;
    g.group_bytes = (bringing.columns == kNarrow ? g.patch_pitch : 8) * kTileRowBytes;
    g.gemm = common_params(p, l, {plan.algorithm, plan.tile_m, plan.tile_n, 1}, {g.patches, bringing.columns}, workspace);
    const Split split = split_of(p, l, plan);
    g.fillings = static_cast<int32_t>(split.fillings);
    g.fillings_a_part = static_cast<int32_t>(split.fillings_a_part);
    g.tiles_a_part = static_cast<int32_t>(split.tiles);
    g.tiles = g.tiles_a_part * split.parts;
    char* const memory = static_cast<char*>(workspace) + l.packed_bytes;
    g.split = {split.parts, reinterpret_cast<float*>(memory), reinterpret_cast<uint64_t*>(memory + split.sums_bytes),
               mark_of_process()};
    g.tile_n = plan.tile_n;
    if (bringing.by_boxes) g.x = map_of(x_of(p, g, plan.tile_m));
    g.filters = map_of(filters_of(p, l, l.packs ? workspace : p.weight.data, plan.tile_n));
    const auto launch = bringing.by_boxes ? launch_warpgroup_gemm<true> : launch_warpgroup_gemm_gathered;
    launch(g, {plan.tile_m, plan.tile_n}, compute_units(), stream);
}

}  // namespace hipconv
