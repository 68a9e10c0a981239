// mma.h by itself: a wave multiplies two tiles in LDS, on whatever unit the file is compiled for, and the result is that of
// plain loops. Run as probes.cu is, on a GPU too; `--list-broken` are wrong kernels that simt must not let pass.
#include <hip/hip_runtime.h>

#include "matrix/cluster.h"
#include "matrix/mma.h"
#include "probes.h"

namespace {

using namespace hipconv;

HIPCONV_INLINE constexpr int kRowElements(int bytes) { return kTileRowBytes / bytes; }

// ---- products ---------------------------------------------------------------------------------------------------------

// Two steps, of which the second is the first times two, so that sums are seen to be added to.
template <typename T, int kPixels, int kFilters>
__global__ void multiply_tiles(const T* pixels, const T* filters, float* out) {
    constexpr int kElements = kRowElements(sizeof(T));
    HIPCONV_SHARED(Words4, tile, (kPixels + kFilters) * kTileChunks);
    const int lane = threadIdx.x;
    for (int i = lane; i < (kPixels + kFilters) * kTileChunks; i += kWaveSize) {
        const int row = i / kTileChunks, chunk = i % kTileChunks;
        const T* from = row < kPixels ? pixels + row * kElements : filters + (row - kPixels) * kElements;
        tile[swizzled_chunk(row, chunk)] = *reinterpret_cast<const Words4*>(from + chunk * 16 / static_cast<int>(sizeof(T)));
    }
    __syncthreads();
    using Wave = Mma<T, kPixels, kFilters>;
    typename Wave::Sums sums;
    Wave::clear(sums);
    for (int step = 0; step < 2; ++step)
        Wave::step(sums, tile, tile + kPixels * kTileChunks, lane, [](int row) { return row; });
    Wave::template for_each<0, kPixels>(sums, lane, [&](int pixel, int filter, auto run) {
        for (int n = 0; n < Wave::kRun; ++n) out[pixel * kFilters + filter + n] = bit_cast<float>(word(run, n));
    });
}

__global__ void write_wave_size(int* out) { *out = kWaveSize; }

template <typename T, int kPixels, int kFilters>
void products() {
    constexpr int kElements = kRowElements(sizeof(T));
    std::vector<T> pixels(kPixels * kElements), filters(kFilters * kElements);
    std::vector<float> expected(kPixels * kFilters), x(pixels.size()), w(filters.size());
    for (size_t i = 0; i < x.size(); ++i) pixels[i] = from_float<T>(x[i] = static_cast<float>(i * i % 23) - 11);
    for (size_t i = 0; i < w.size(); ++i) filters[i] = from_float<T>(w[i] = static_cast<float>(i * 7 % 31 + i / 64 % 5) - 16);
    for (int p = 0; p < kPixels; ++p)
        for (int f = 0; f < kFilters; ++f)
            for (int k = 0; k < kElements; ++k) expected[p * kFilters + f] += 2 * x[p * kElements + k] * w[f * kElements + k];
    DeviceArray<T> device_pixels(pixels), device_filters(filters);
    DeviceArray<float> out(expected.size());
    DeviceArray<int> wave(1);
    hipLaunchKernelGGL(write_wave_size, dim3(1), dim3(1), 0, nullptr, wave.data());
    hipLaunchKernelGGL((multiply_tiles<T, kPixels, kFilters>), dim3(1), dim3(wave.values()[0]), 0, nullptr,
                       device_pixels.data(), device_filters.data(), out.data());
    expect_equal("sum", out.values(), expected);
}

template <typename T>
void products() {
    products<T, 32, 32>();
    products<T, 64, 32>();
    products<T, 32, 64>();
}

// ---- copies past the registers ----------------------------------------------------------------------------------------

constexpr int kCopyThreads = 64;

// Thread t moves vector t by way of its neighbour's place in LDS; those of every third thread are zeros.
template <bool kWaits>
__global__ void copy_around(const Words4* in, Words4* out) {
    HIPCONV_SHARED(Words4, places, 2 * kCopyThreads);
    const int t = threadIdx.x;
    for (int group = 0; group < 2; ++group) {
        Words4* to = &places[group * kCopyThreads + t];
        if (kCopiesPastRegisters)
            copy_later(to, &in[t], t % 3 == group);
        else
            *to = t % 3 == group ? Words4{} : in[t];
        close_copies();
    }
    if (kWaits) wait_for_copies<1>();
    __syncthreads();
    out[t] = places[(t + 1) % kCopyThreads];
    if (kWaits) wait_for_copies<0>();
    __syncthreads();
    out[kCopyThreads + t] = places[kCopyThreads + (t + 1) % kCopyThreads];
}

template <bool kWaits>
void copies() {
    std::vector<uint32_t> in(4 * kCopyThreads), expected(2 * in.size());
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint32_t>(3 * i + 1);
    for (int group = 0; group < 2; ++group)
        for (int t = 0; t < kCopyThreads; ++t)
            for (int n = 0; n < 4; ++n) {
                const int from = (t + 1) % kCopyThreads;
                expected[4 * (group * kCopyThreads + t) + n] = from % 3 == group ? 0 : in[4 * from + n];
            }
    DeviceArray<uint32_t> device_in(in), out(expected.size());
    const auto* from = reinterpret_cast<const Words4*>(device_in.data());
    auto* to = reinterpret_cast<Words4*>(out.data());
    hipLaunchKernelGGL(copy_around<kWaits>, dim3(1), dim3(kCopyThreads), 0, nullptr, from, to);
    expect_equal("word", out.values(), expected);
}

// ---- wrong kernels ----------------------------------------------------------------------------------------------------

#if defined(HIPCONV_HOST)

__global__ void miss_product(float* out) {
    HIPCONV_SHARED(Words4, tile, 64 * kTileChunks);
    using Wave = Mma<f16, 32, 32>;
    Wave::Sums sums;
    Wave::clear(sums);
    if (threadIdx.x == 3) return;
    Wave::step(sums, tile, tile + 32 * kTileChunks, static_cast<int>(threadIdx.x), [](int row) { return row; });
    out[threadIdx.x] = sums[0][0][0];
}

template <int kThreads>
void run_miss_product() {
    DeviceArray<float> out(kThreads);
    hipLaunchKernelGGL(miss_product, dim3(1), dim3(kThreads), 0, nullptr, out.data());
    finish();
}

__global__ void ask_for_less(float* out) {
    HIPCONV_LARGE_SHARED(Words4, large, 4096);
    large[0] = Words4{};
    out[0] = 1.0f;
}

// Each block of a cluster sends its numbers to the next one. Half of the threads have ended before that.
template <bool kWaits>
__global__ void send_to_next_block(int blocks, int* out) {
    HIPCONV_SHARED(Words4, numbers, kWaveSize);
    HIPCONV_SHARED(Words4, received, kWaveSize);
    HIPCONV_SHARED(Barrier, barrier, 1);
    const int thread = threadIdx.x;
    if (thread >= kWaveSize) return;
    set_word(numbers[thread], 0, blockIdx.x * 1000 + thread);
    if (thread == 0) {
        init_barrier(barrier, 1);
        fence_barrier_init();
        arrive_expect_bytes(barrier, kWaveSize * 16);
    }
    fence_async_proxy();
    sync_cluster();
    if (thread == 0)
        copy_to_block(received, numbers, kWaveSize * 16, barrier, (static_cast<int>(blockIdx.x) % blocks + 1) % blocks);
    if (kWaits) wait_for_phase(barrier, 0);
    out[blockIdx.x * kWaveSize + thread] = static_cast<int>(word(received[thread], 0));
    sync_cluster();
}

template <bool kWaits>
void run_clusters() {
    constexpr int kBlocks = 3, kClusters = 2;
    std::vector<int> expected(kBlocks * kClusters * kWaveSize);
    for (int block = 0; block < kBlocks * kClusters; ++block)
        for (int thread = 0; thread < kWaveSize; ++thread)
            expected[block * kWaveSize + thread] =
                (block / kBlocks * kBlocks + (block + kBlocks - 1) % kBlocks) * 1000 + thread;
    DeviceArray<int> out(expected.size());
    HIPCONV_LAUNCH_CLUSTERS(kBlocks, send_to_next_block<kWaits>, dim3(kBlocks * kClusters), dim3(2 * kWaveSize), 0, nullptr,
                            kBlocks, out.data());
    expect_equal("number", out.values(), expected);
}

void run_ask_for_less() {
    DeviceArray<float> out(1);
    hipLaunchKernelGGL(ask_for_less, dim3(1), dim3(1), launch_shared_bytes(4095 * 16), nullptr, out.data());
    finish();
}

#endif

const std::vector<Probe>& probes() {
    static const std::vector<Probe> all = {
        {"--list", "products_f16", products<f16>},
        {"--list", "products_bf16", products<bf16>},
        {"--list", "products_f32", products<float>},
        {"--list", "copies", copies<true>},
#if defined(HIPCONV_HOST)
        {"--list-broken", "copies_not_awaited", copies<false>},
        {"--list-host", "clusters", run_clusters<true>},
        {"--list-broken", "clusters_not_awaited", run_clusters<false>},
        {"--list-broken", "product_missed", run_miss_product<kWaveSize>},
        {"--list-broken", "wave_not_full", run_miss_product<3>},
        {"--list-broken", "launch_asks_for_less", run_ask_for_less},
#endif
    };
    return all;
}

}  // namespace

int main(int count, char** arguments) { return run_probe(probes(), count == 2 ? arguments[1] : ""); }
