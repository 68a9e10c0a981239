// Depthwise conv3d: a group for each channel of x, any filter, stride, dilation, padding and layout.
//
// A thread makes neighbouring outputs of a row, of one filter or of eight whose channels are vectors in memory. The filters of
// a block lie in LDS, as floats, before it begins to make tiles. Where outputs are as far apart as taps, each column of x is
// read once for all outputs of the thread. The frames of the cache are read where they lie.
#include <hip/hip_runtime.h>

#include "../../conv2d/gemm/epilogue.h"
#include "../common/frame_gemm.h"
#include "../common/launchers.h"
#include "launch/check.h"
#include "rows.h"

namespace hipconv {

// Adds bias and residual to eight sums, of neighbouring filters (`of_each`) or columns, activates and stores them.
HIPCONV_INLINE void store_eight_sums(const Conv3dParams& p, float (&v)[8], int64_t k, int64_t out, int64_t residual,
                                     bool of_each) {
    float more[8];
    if (p.bias) {
        load_each(more, p.bias, k * p.bias_stride, of_each ? p.bias_stride : 0, p.bias_dtype);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] += more[i];
    }
    if (p.residual.data) {
        load_eight(more, p.residual.data, residual, p.residual_dtype);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] += more[i];
    }
    activate_eight(v, p.activation);
    store_eight(v, p.out.data, out, p.out_dtype);
}

// A sum of column q, which all lanes share.
template <int kColumns, int kFilters>
HIPCONV_INLINE float sum_of(const float (&sums)[kColumns][kFilters], int q, int filter) {
    float sum = sums[0][filter];
#pragma unroll
    for (int n = 1; n < kColumns; ++n) sum = q == n ? sums[n][filter] : sum;
    return sum;
}

template <typename T, DepthwiseForm kForm>
__global__ void HIPCONV_LAUNCH_BOUNDS(kDepthwiseThreads, 2) conv3d_depthwise_kernel(DepthwiseVolumeParams params) {
    constexpr int kFilters = depthwise_filters(kForm), kColumns = depthwise_columns(kForm);
    HIPCONV_SHARED(Words4, lds, kDepthwiseFloats / 4);
    float* const filters = reinterpret_cast<float*>(lds);
    const int thread = threadIdx.x, block_units = params.block_units, pitch = block_units * kFilters;
    const int part = static_cast<int>(blockIdx.x % params.parts), first_unit = part * block_units;
    {
        const Conv3dParams& p = first_parameter_again(params).conv;
        const int across = p.kernel_width, of_frame = p.kernel_height * across, taps = p.kernel_frames * of_frame;
#pragma unroll 1
        for (int i = thread; i < taps * pitch; i += kDepthwiseThreads) {
            const int filter = i / taps, tap = i - filter * taps;
            const int frame = tap / of_frame, row = (tap - frame * of_frame) / across, column = tap % across;
            const int k = first_unit * kFilters + filter;
            float weight = 0.0f;
            if (k < p.out_channels)
                weight = to_float(
                    global_pointer<const T>(p.weight.data)[k * p.weight.batch_stride + frame * p.weight.frame_stride +
                                                           row * p.weight.row_stride + column * p.weight.column_stride]);
            filters[tap * pitch + filter] = weight;
        }
    }
    __syncthreads();
    const int place_of_block = thread / block_units, unit = first_unit + thread % block_units;
    const int block_places = kDepthwiseThreads / block_units;
    if (unit >= params.units || place_of_block >= block_places) return;
    const int64_t step = static_cast<int64_t>(gridDim.x / params.parts) * block_places;  // the last may end beyond 2^31
    const int k = unit * kFilters;
#pragma unroll 1
    for (int64_t place = static_cast<int64_t>(blockIdx.x / params.parts) * block_places + place_of_block; place < params.places;
         place += step) {
        const DepthwiseVolumeParams& all = first_parameter_again(params);
        const Conv3dParams& p = all.conv;
        const uint32_t number = static_cast<uint32_t>(place), of_all = divide(number, all.divide_by_tiles);
        const int column = static_cast<int>(number - of_all * all.tiles) * kColumns;
        const uint32_t frame_of_all = divide(of_all, all.divide_by_height);
        const int row = static_cast<int>(of_all - frame_of_all * p.out_height);
        const int64_t sample = divide(frame_of_all, all.divide_by_frames);
        const int t = static_cast<int>(frame_of_all - static_cast<uint32_t>(sample) * p.out_frames);

        float sums[kColumns][kFilters] = {};
        DepthwiseRow<T> x{};
        x.first = column * p.stride_w - p.pad_left;
        x.last = (p.out_width - 1) * p.stride_w - p.pad_left + (p.kernel_width - 1) * p.dilation_w;
        x.width = p.in_width;
        x.mode = p.padding_mode;
        const float* frame_filters = filters + thread % block_units * kFilters;
#pragma unroll 1
        for (int f = 0; f < p.kernel_frames; ++f, frame_filters += p.kernel_height * p.kernel_width * pitch) {
            const int64_t at = static_cast<int64_t>(t) * p.stride_t - p.front + static_cast<int64_t>(f) * p.dilation_t;
            const Frame<T> frame = frame_at<T>(p, sample, frame_number(p, at, p.time_mode));
            if (!frame.address) continue;
            x.column_stride = frame.column_stride * static_cast<int64_t>(sizeof(T));
#pragma unroll 1
            for (int r = 0; r < p.kernel_height; ++r) {
                const int64_t y =
                    padded_index(row * p.stride_h - p.pad_top + static_cast<int64_t>(r) * p.dilation_h, p.in_height, x.mode);
                if (y < 0) continue;
                const int64_t first = k / all.multiplier * frame.channel_stride + y * frame.row_stride;
                x.address = frame.address + first * sizeof(T);
                const float* row_filters = frame_filters + r * p.kernel_width * pitch;
                if constexpr (kForm == DepthwiseForm::columns)
                    add_row_of_vectors<T>(sums, x, row_filters, pitch, p.kernel_width, p.pad_left);
                else
                    add_row<T>(sums, x, row_filters, pitch, p.kernel_width, p.stride_w, p.dilation_w);
            }
        }

        const Conv3dParams& c = first_parameter_again(params).conv;
        const auto offset_of = [&](const Volume& v, int q) {
            return sample * v.batch_stride + k * v.channel_stride + t * v.frame_stride + row * v.row_stride +
                   (column + q) * v.column_stride;
        };
        // One column after another, because a copy of this code for each would take long to compile.
        constexpr bool kOfEach = kForm == DepthwiseForm::channels;
#pragma unroll 1
        for (int n = 0; n < (kForm == DepthwiseForm::columns ? 1 : kColumns); ++n) {
            if (column + n >= c.out_width) break;
            if constexpr (kForm == DepthwiseForm::elements) {
                conv2d_store_at(
                    c, k, [&] { return offset_of(c.out, n); }, [&] { return offset_of(c.residual, n); }, sum_of(sums, n, 0));
            } else {
                float v[8];
#pragma unroll
                for (int i = 0; i < 8; ++i) v[i] = kOfEach ? sum_of(sums, n, i % kFilters) : sums[i % kColumns][0];
                store_eight_sums(c, v, k, offset_of(c.out, n), c.residual.data ? offset_of(c.residual, n) : 0, kOfEach);
            }
        }
    }
}

namespace {

bool has_columns(const Conv3dParams& p, const Volume& v, int64_t frames) {
    const int64_t each = 16 / element_bytes(p.dtype);
    return v.column_stride == 1 && is_aligned(v.data) && multiple_of(v.batch_stride, p.batch, each) &&
           multiple_of(v.channel_stride, p.in_channels, each) && multiple_of(v.frame_stride, frames, each) &&
           multiple_of(v.row_stride, p.in_height, each);
}

// Tells whether eight elements of out, and of the residual, that a thread has are vectors.
bool stores_vectors(const Conv3dParams& p, DepthwiseForm form) {
    const auto fits = [&](const Volume& v, DType dtype) {
        if (!v.data) return true;
        const int64_t each = 16 / element_bytes(dtype);
        const auto even = [&](int64_t stride, int64_t size) { return multiple_of(stride, size, each); };
        if (!is_aligned(v.data) || !even(v.batch_stride, p.batch) || !even(v.frame_stride, p.out_frames) ||
            !even(v.row_stride, p.out_height))
            return false;
        return form == DepthwiseForm::channels ? v.channel_stride == 1 && even(v.column_stride, p.out_width)
                                               : v.column_stride == 1 && even(v.channel_stride, p.out_channels);
    };
    if (form == DepthwiseForm::columns && p.out_width % 8 != 0) return false;
    return fits(p.out, p.out_dtype) && fits(p.residual, p.residual_dtype);
}

DepthwiseForm form_of(const Conv3dParams& p) {
    Conv3dParams one_group = p;
    one_group.groups = 1;
    if (p.in_channels == p.out_channels && p.in_channels % 8 == 0 && has_vectors(one_group) &&
        stores_vectors(p, DepthwiseForm::channels))
        return DepthwiseForm::channels;
    const bool is_near = p.stride_w == 1 && p.dilation_w == 1 && p.padding_mode == PaddingMode::zeros &&
                         p.pad_left <= kDepthwiseHalo && p.kernel_width - 1 - p.pad_left <= kDepthwiseHalo;
    const bool has =
        (p.in_frames == 0 || has_columns(p, p.x, p.in_frames)) && (p.cached == 0 || has_columns(p, p.cache, p.cached));
    return is_near && has && stores_vectors(p, DepthwiseForm::columns) && p.in_width % (16 / element_bytes(p.dtype)) == 0
               ? DepthwiseForm::columns
               : DepthwiseForm::elements;
}

int taps_of(const Conv3dParams& p) { return p.kernel_frames * p.kernel_height * p.kernel_width; }

// The units of a block: as many as lie beside each other in memory, few of them idle, whose filters LDS holds.
int block_units_of(const Conv3dParams& p, DepthwiseForm form, int units) {
    if (form == DepthwiseForm::columns || (form == DepthwiseForm::elements && p.x.column_stride < p.x.channel_stride)) return 1;
    const int filters = depthwise_filters(form), most = kDepthwiseFloats / (taps_of(p) * filters);
    int best = 1;
    for (int n = 1; n <= 64 / filters && n <= most; n *= 2)
        if (round_up(units, n) * 8 <= round_up(units, best) * 9) best = n;
    return best;
}

template <typename T, DepthwiseForm kForm>
void launch_depthwise(const Conv3dParams& p, void* stream) {
    DepthwiseVolumeParams d{};
    d.conv = p;
    d.multiplier = p.out_channels / p.in_channels;
    d.units = p.out_channels / depthwise_filters(kForm);
    d.block_units = block_units_of(p, kForm, d.units);
    d.parts = static_cast<int32_t>(ceil_of(d.units, d.block_units));
    d.tiles = static_cast<int32_t>(ceil_of(p.out_width, depthwise_columns(kForm)));
    d.places = int64_t{d.tiles} * p.out_height * p.out_frames * p.batch;
    d.divide_by_tiles = divisor_of(static_cast<uint32_t>(d.tiles));
    d.divide_by_height = divisor_of(static_cast<uint32_t>(p.out_height));
    d.divide_by_frames = divisor_of(static_cast<uint32_t>(p.out_frames));
    // A block makes several tiles of each thread, as it loads filters first, where that leaves enough blocks.
    const int64_t all = ceil_of(d.places, kDepthwiseThreads / d.block_units), most = ceil_of(1 << 14, d.parts);
    const int64_t across = all < most ? all : ceil_of(all, ceil_of(all, most));
    hipLaunchKernelGGL((conv3d_depthwise_kernel<T, kForm>), dim3(static_cast<unsigned>(across * d.parts), 1, 1),
                       dim3(kDepthwiseThreads, 1, 1), 0, static_cast<hipStream_t>(stream), d);
    check_launch("conv3d");
}

}  // namespace

const char* conv3d_depthwise_refusal(const Conv3dParams& p, const Conv3dCard&) {
    if (p.groups != p.in_channels) return "a group for each channel of x";
    if (int64_t{p.kernel_frames} * p.kernel_height * p.kernel_width > kDepthwiseFloats / 8) return "filters of up to 512 taps";
    const int64_t across = int64_t{p.out_width + 8} * p.stride_w + int64_t{p.kernel_width + 3} * p.dilation_w + p.pad_left;
    const int64_t down = int64_t{p.out_height} * p.stride_h + int64_t{p.kernel_height} * p.dilation_h + p.pad_top;
    if (across >= kLimit31 || down >= kLimit31) return "taps that reach less than 2^31 far";
    if (ceil_of(p.out_width, 4) * p.out_height * p.out_frames * p.batch >= kLimit31)
        return "up to 2^31 times 4 columns of outputs";
    return nullptr;
}

const char* conv3d_depthwise_form(const Conv3dParams& p, const Conv3dCard&) {
    const DepthwiseForm form = form_of(p);
    return form == DepthwiseForm::channels  ? "depthwise_channels"
           : form == DepthwiseForm::columns ? "depthwise_columns"
                                            : "depthwise_elements";
}

void conv3d_depthwise(const Conv3dParams& p, const Conv3dCard&, void*, void* stream) {
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        const DepthwiseForm form = form_of(p);
        if (form == DepthwiseForm::channels) return launch_depthwise<T, DepthwiseForm::channels>(p, stream);
        if (form == DepthwiseForm::columns) return launch_depthwise<T, DepthwiseForm::columns>(p, stream);
        launch_depthwise<T, DepthwiseForm::elements>(p, stream);
    });
    conv3d_save(p, stream);
}

}  // namespace hipconv
