// x and filters that the GEMMs cannot read by 16 bytes are brought to memory where they can, and the GEMM runs on that: what it
// would gather for each tap and each tile of filters is gathered once.
//
// Its pixels are dense there, of a multiple of 8 channels. With 8 channels or less, the taps of a row of a filter are one vector of
// that memory: they become the channels of a filter of one column, and the vectors of neighbouring outputs overlap. Then, and where
// it is not by zeros, padding is laid out too.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "../common/padding.h"
#include "../gemm/layout.h"
#include "../gemm/pack_filters.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kRelayThreads = 128, kChunkChannels = 8;

struct RelayParams {
    Image x;
    int32_t channels, height, width, pad_top, pad_left;
    int32_t step_h, step_w;  // of x, from a relaid pixel to the next
    PaddingMode padding_mode;
    void* relaid;
    int32_t image_pixels, row_pixels, pixels, chunks;  // relaid
    Divisor divide_by_image, divide_by_row, divide_by_across;
    int32_t log2_lanes;     // that lie along chunks; the others along pixels
    int32_t across, tiles;  // blocks along chunks, and in all
    PackParams filters;     // none, if they are read where they are
};

// The pixel of x that becomes this one, if it is not of the padding.
struct PixelOfX {
    int64_t offset;  // of its first channel
    bool is_inside;
};

HIPCONV_INLINE PixelOfX source_of(const RelayParams& p, uint32_t number) {
    const uint32_t n = divide(number, p.divide_by_image), of_image = number - n * static_cast<uint32_t>(p.image_pixels);
    const uint32_t row = divide(of_image, p.divide_by_row), column = of_image - row * static_cast<uint32_t>(p.row_pixels);
    const int64_t h = padded_index(static_cast<int64_t>(row) * p.step_h - p.pad_top, p.height, p.padding_mode);
    const int64_t w = padded_index(static_cast<int64_t>(column) * p.step_w - p.pad_left, p.width, p.padding_mode);
    const bool is_inside = h >= 0 && w >= 0;
    return {is_inside ? offset_in(p.x, n, 0, h, w) : 0, is_inside};
}

// A thread takes 8 channels of kPixels pixels: of one, wherever it is; or of those after one another in images that are relaid as
// they are, in vectors of each channel, which it turns.
template <int kPixels>
__global__ void HIPCONV_LAUNCH_BOUNDS(kRelayThreads, 6) conv2d_relay(RelayParams p) {
    let_next_kernel_begin();
    wait_for_kernel_before();
    using Vector = Words<f16, kPixels>;
    Words4* const relaid = global_pointer<Words4>(p.relaid);
    for (uint32_t block = blockIdx.x; block < static_cast<uint32_t>(p.tiles); block += gridDim.x) {
        const uint32_t down = divide(block, p.divide_by_across), lanes = 1u << p.log2_lanes;
        const uint32_t chunk = (block - down * static_cast<uint32_t>(p.across)) * lanes + threadIdx.x % lanes;
        const uint32_t pixel = (down * (kRelayThreads >> p.log2_lanes) + (threadIdx.x >> p.log2_lanes)) * kPixels;
        if (chunk >= static_cast<uint32_t>(p.chunks) || pixel >= static_cast<uint32_t>(p.pixels)) continue;
        PixelOfX source;
        if constexpr (kPixels == 1) {
            source = source_of(first_parameter_again(p), pixel);
        } else {
            const uint32_t n = divide(pixel, p.divide_by_image);
            source = {n * p.x.batch_stride + (pixel - n * static_cast<uint32_t>(p.image_pixels)), true};
        }
        const uint16_t* const from = global_pointer<const uint16_t>(p.x.data) + source.offset +
                                     chunk * (kChunkChannels * p.x.channel_stride);
        const int32_t channels = p.channels - static_cast<int32_t>(chunk) * kChunkChannels;  // that there are
        Vector loaded[kChunkChannels];
#pragma unroll
        for (int e = 0; e < kChunkChannels; ++e) {
            loaded[e] = Vector{};
            if (source.is_inside && e < channels) loaded[e] = *reinterpret_cast<const Vector*>(from + e * p.x.channel_stride);
        }
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
            Words4 words{};
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const uint32_t low = word(loaded[2 * n], i / 2), high = word(loaded[2 * n + 1], i / 2);
                set_word(words, n, i % 2 ? low >> 16 | (high & 0xffff0000u) : (low & 0xffffu) | high << 16);
            }
            relaid[static_cast<int64_t>(pixel + i) * p.chunks + chunk] = words;
        }
    }
    const PackParams& filters = first_parameter_again(p).filters;
    if (!filters.packed) return;
    // The blocks behind those of x, and all others when they are done.
    const uint32_t first = (blockIdx.x + gridDim.x - static_cast<uint32_t>(p.tiles) % gridDim.x) % gridDim.x;
    const int64_t count = pack_chunks(filters);
    for (int64_t i = static_cast<int64_t>(first) * kRelayThreads + threadIdx.x; i < count;
         i += static_cast<int64_t>(gridDim.x) * kRelayThreads)
        pack_chunk<f16>(filters, i);
}

namespace {

// The call that the GEMM gets, and what comes before.
struct Relaying {
    Conv2dParams inner;
    RelayParams relay;
    int vector;  // pixels that a thread takes
    int64_t pixels, x_bytes, filter_bytes;
};

// One axis of x as it is relaid: its size, the step in x from a pixel to the next, and the padding that is laid out with it; and
// the stride and padding that the GEMM gets.
struct RelaidAxis {
    int64_t size;
    int32_t step, pad, inner_stride, inner_pad;
};

RelaidAxis relaid_axis(int32_t in, int32_t out, int32_t taps, int32_t stride, int32_t pad, int32_t dilation, bool pads) {
    if (taps == 1) return {out, stride, pad, 1, 0};  // what no output sees stays away
    if (!pads) return {in, 1, 0, stride, pad};
    return {int64_t{out - 1} * stride + int64_t{taps - 1} * dilation + 1, 1, pad, stride, 0};
}

bool has_windows(const Conv2dParams& p) {
    return p.in_channels <= kChunkChannels && p.groups == 1 && p.kernel_width > 1 && p.dilation_w == 1;
}

// Pixels of a channel that can be read as a vector, of images that are relaid as they are.
int pixels_of_vector(const Conv2dParams& p, const RelaidAxis& down, const RelaidAxis& across) {
    const bool as_they_are = down.step == 1 && across.step == 1 && down.pad == 0 && across.pad == 0 && down.size == p.in_height &&
                             across.size == p.in_width;
    const bool dense = (p.x.column_stride == 1 || p.in_width == 1) && (p.x.row_stride == p.in_width || p.in_height == 1);
    for (const int pixels : {8, 4})
        if (as_they_are && dense && down.size * across.size % pixels == 0 &&
            reinterpret_cast<uintptr_t>(p.x.data) % (pixels * 2) == 0 && multiple_of(p.x.channel_stride, p.in_channels, pixels) &&
            multiple_of(p.x.batch_stride, p.batch, pixels))
            return pixels;
    return 1;
}

Relaying relaying_of(const Conv2dParams& p, bool steps_across_taps, void* workspace) {
    const bool windows = has_windows(p), pads = windows || p.padding_mode != PaddingMode::zeros;
    const RelaidAxis down = relaid_axis(p.in_height, p.out_height, p.kernel_height, p.stride_h, p.pad_top, p.dilation_h, pads);
    const RelaidAxis across = relaid_axis(p.in_width, p.out_width, p.kernel_width, p.stride_w, p.pad_left, p.dilation_w, pads);
    const int64_t chunks = ceil_of(p.in_channels, kChunkChannels), channels = chunks * kChunkChannels;
    char* const memory = static_cast<char*>(workspace);
    Relaying r{};
    r.pixels = down.size * across.size * p.batch;
    r.x_bytes = round_up(r.pixels * channels * 2, 256);

    Conv2dParams& inner = r.inner;
    inner = p;
    inner.in_channels = static_cast<int32_t>(windows ? p.kernel_width * channels : channels);
    inner.in_height = static_cast<int32_t>(down.size);
    inner.in_width = static_cast<int32_t>(windows ? p.out_width : across.size);
    inner.stride_h = down.inner_stride;
    inner.stride_w = windows ? 1 : across.inner_stride;
    inner.pad_top = down.inner_pad, inner.pad_left = across.inner_pad;
    inner.padding_mode = PaddingMode::zeros;
    inner.x = {memory, down.size * across.size * channels, 1, across.size * channels, windows ? p.stride_w * channels : channels};
    if (windows) inner.kernel_width = 1;

    const bool same_channels = channels == p.in_channels && !windows;
    if (!same_channels || GemmLayout(inner, steps_across_taps).packs) {
        const int64_t group_channels = inner.in_channels / p.groups, row = p.kernel_width * channels / p.groups;
        inner.weight = {memory + r.x_bytes, p.kernel_height * row, 1, row, group_channels};
        r.filter_bytes = round_up(p.out_channels * p.kernel_height * row * 2, 256);
        r.relay.filters = {p.weight, inner.weight.data, p.kernel_height * row, p.out_channels, p.in_channels / p.groups,
                           static_cast<int32_t>(chunks / p.groups), p.kernel_height, p.kernel_width, 0, false};
    }

    // Lanes take 32 bytes of a channel together, and the others channels; where those are dense, channels.
    r.vector = pixels_of_vector(p, down, across);
    RelayParams& relay = r.relay;
    relay.log2_lanes = r.vector > 1 || p.x.channel_stride == 1 ? 3 : 1;
    while ((1 << relay.log2_lanes) > chunks) --relay.log2_lanes;
    relay.x = p.x;
    relay.channels = p.in_channels, relay.height = p.in_height, relay.width = p.in_width;
    relay.pad_top = down.pad, relay.pad_left = across.pad;
    relay.step_h = down.step, relay.step_w = across.step;
    relay.padding_mode = p.padding_mode;
    relay.relaid = memory;
    relay.image_pixels = static_cast<int32_t>(down.size * across.size);
    relay.row_pixels = static_cast<int32_t>(across.size);
    relay.pixels = static_cast<int32_t>(r.pixels);
    relay.chunks = static_cast<int32_t>(chunks);
    relay.across = static_cast<int32_t>(ceil_of(chunks, int64_t{1} << relay.log2_lanes));
    relay.tiles = static_cast<int32_t>(ceil_of(r.pixels, r.vector * (kRelayThreads >> relay.log2_lanes)) * relay.across);
    if (r.pixels < kLimit31) {
        relay.divide_by_image = divisor_of(static_cast<uint32_t>(relay.image_pixels));
        relay.divide_by_row = divisor_of(static_cast<uint32_t>(relay.row_pixels));
        relay.divide_by_across = divisor_of(static_cast<uint32_t>(relay.across));
    }
    return r;
}

// What both algorithms do not serve, whatever their GEMM does.
const char* refusal_of_relaying(const Conv2dParams& p, const Relaying& r) {
    if (p.dtype == DType::f32) return "x of 16-bit types";
    if (GemmLayout(p, true).vectors && !has_windows(p))
        return "x that is not channels_last with C a multiple of 8 and 16-byte alignment already, or has 8 channels or less";
    if (p.groups > 1 && p.in_channels / p.groups % kChunkChannels != 0) return "groups of a multiple of 8 channels";
    if ((r.pixels + 8 * kRelayThreads) * r.relay.chunks >= kLimit31) return "padded x of less than 2^34 elements";
    return nullptr;
}

// The GEMM that runs on what was relaid.
struct Gemm {
    bool steps_across_taps, early;  // GemmLayout; HIPCONV_LAUNCH
    const char* (*refusal)(const Conv2dParams&, const Conv2dPlan&);
    int64_t (*workspace)(const Conv2dParams&, const Conv2dPlan&);
    void (*launch)(const Conv2dParams&, const Conv2dPlan&, void* workspace, void* stream);
};

constexpr Gemm kWarpgroups{false, true, conv2d_warpgroup_gemm_refusal, conv2d_warpgroup_gemm_workspace, conv2d_warpgroup_gemm};
constexpr Gemm kImplicit{true, false, conv2d_implicit_gemm_refusal, conv2d_implicit_gemm_workspace, conv2d_implicit_gemm};

const char* refusal(const Gemm& gemm, const Conv2dParams& p, const Conv2dPlan& plan) {
    const Relaying r = relaying_of(p, gemm.steps_across_taps, nullptr);
    const char* const refused = refusal_of_relaying(p, r);
    return refused ? refused : gemm.refusal(r.inner, plan);
}

int64_t workspace_of(const Gemm& gemm, const Conv2dParams& p, const Conv2dPlan& plan) {
    const Relaying r = relaying_of(p, gemm.steps_across_taps, nullptr);
    return r.x_bytes + r.filter_bytes + gemm.workspace(r.inner, plan);
}

void launch(const Gemm& gemm, const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    const Relaying r = relaying_of(p, gemm.steps_across_taps, workspace);
    const int64_t packing = r.relay.filters.packed ? ceil_of(pack_chunks(r.relay.filters), kRelayThreads) : 0;
    const int64_t blocks = r.relay.tiles + packing;
    const dim3 grid(static_cast<unsigned>(blocks < (1 << 22) ? blocks : 1 << 22), 1, 1);
    const auto relay = r.vector == 8 ? conv2d_relay<8> : r.vector == 4 ? conv2d_relay<4> : conv2d_relay<1>;
    HIPCONV_LAUNCH(gemm.early, relay, grid, dim3(kRelayThreads, 1, 1), 0, static_cast<hipStream_t>(stream), r.relay);
    check_launch("conv2d");
    gemm.launch(r.inner, plan, static_cast<char*>(workspace) + r.x_bytes + r.filter_bytes, stream);
}

}  // namespace

const char* conv2d_relaid_warpgroup_gemm_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    return refusal(kWarpgroups, p, plan);
}
int64_t conv2d_relaid_warpgroup_gemm_workspace(const Conv2dParams& p, const Conv2dPlan& plan) {
    return workspace_of(kWarpgroups, p, plan);
}
void conv2d_relaid_warpgroup_gemm(const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    launch(kWarpgroups, p, plan, workspace, stream);
}

const char* conv2d_relaid_implicit_gemm_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    return refusal(kImplicit, p, plan);
}
int64_t conv2d_relaid_implicit_gemm_workspace(const Conv2dParams& p, const Conv2dPlan& plan) {
    return workspace_of(kImplicit, p, plan);
}
void conv2d_relaid_implicit_gemm(const Conv2dParams& p, const Conv2dPlan& plan, void* workspace, void* stream) {
    launch(kImplicit, p, plan, workspace, stream);
}

}  // namespace hipconv
