// Packs filters for `direct`: strip by strip, pass by pass and step by step, in the order in which lanes read them. Filters are
// zero where channel and filter are of different groups, and where there is none.
#include <hip/hip_runtime.h>

#include "../common/epilogue.h"
#include "launch/check.h"
#include "params.h"

namespace hipconv {

constexpr int kPackThreads = 128;

__global__ void HIPCONV_LAUNCH_BOUNDS(kPackThreads, 4) conv2d_direct_pack_filters(DirectParams p) {
    let_next_kernel_begin();
    constexpr MatrixUnit kUnit = kMatrixUnit;
    constexpr int kStepChunks = kUnit == MatrixUnit::mfma ? 4 : 2, kStepVectors = kStepChunks * kAtomFilters;
    const Conv2dParams& c = p.conv;
    const int atoms = p.strip_filters / kAtomFilters;
    const uint32_t count = static_cast<uint32_t>(p.bundles * p.strips) * static_cast<uint32_t>(p.strip_vectors);
    for (uint32_t i = blockIdx.x * kPackThreads + threadIdx.x; i < count; i += gridDim.x * kPackThreads) {
        const int lane = static_cast<int>(i % kStepVectors), atom = static_cast<int>(i / kStepVectors % atoms);
        const uint32_t strip_number = divide(i, p.divide_by_strip_vectors);
        const int of_strip = static_cast<int>(i - strip_number * p.strip_vectors);
        const int pass = static_cast<int>(divide(of_strip, p.divide_by_pass_vectors));
        const int step = (of_strip - pass * p.entries * p.strip_filters) / kStepVectors / atoms;
        const int bundle = static_cast<int>(divide(strip_number, p.divide_by_strips));
        const int strip = static_cast<int>(strip_number) - bundle * p.strips;
        uint32_t bits[8];  // all loads are under way before the first is waited for
        bool counts[8];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const PackedPlace place = packed_place(kUnit, lane, w);
            const int entry = step * kStepChunks + place.element / kChunkElements;
            const int of_bundle = strip * p.strip_filters + atom * kAtomFilters + place.filter;
            const int k = bundle * p.bundle_filters + of_bundle;
            const int tap = static_cast<int>(divide(entry, p.divide_by_chunks)), chunk = entry - tap * p.chunks;
            const int group_of_filter = static_cast<int>(divide(of_bundle, p.divide_by_group_filters));
            const bool exists = tap < p.taps && of_bundle < p.bundle_filters && k < c.out_channels;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int element = (pass * p.chunks + chunk) * kChunkElements + place.element % kChunkElements + half;
                int channel, r, s;
                bool fits = exists;
                if (p.windows) {
                    r = tap;
                    s = static_cast<int>(divide(element, p.divide_by_group_channels));
                    channel = element - s * c.in_channels;
                    fits = fits && s < c.kernel_width;
                } else {
                    r = static_cast<int>(divide(tap, p.divide_by_taps_across));
                    s = tap - r * p.taps_across;
                    const int group = static_cast<int>(divide(element, p.divide_by_group_channels));
                    channel = element - group * p.group_channels;
                    fits = fits && element < p.bundle_channels && group == group_of_filter;
                }
                const int64_t offset = fits ? offset_in(c.weight, k, channel, r, s) : 0;
                bits[2 * w + half] = *global_pointer<const uint16_t>(reinterpret_cast<uint64_t>(c.weight.data) + 2 * offset);
                counts[2 * w + half] = fits;
            }
        }
        Words4 words{};
#pragma unroll
        for (int w = 0; w < 4; ++w)
            set_word(words, w, (counts[2 * w] ? bits[2 * w] : 0) | (counts[2 * w + 1] ? bits[2 * w + 1] << 16 : 0));
        global_pointer<Words4>(p.filters)[i] = words;
    }
}

void pack_direct_filters(const DirectParams& p, void* stream) {
    const int64_t count = static_cast<int64_t>(p.bundles) * p.strips * p.strip_vectors;
    const int64_t blocks = (count + kPackThreads - 1) / kPackThreads;
    const dim3 grid(static_cast<unsigned>(blocks < (1 << 22) ? blocks : 1 << 22), 1, 1);
    hipLaunchKernelGGL(conv2d_direct_pack_filters, grid, dim3(kPackThreads, 1, 1), 0, static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

}  // namespace hipconv
