// Probes of blocks: LDS, barriers, indices and launches. probes.cu includes this file and names them.
#pragma once

namespace {

// ---- shared memory and barriers -----------------------------------------------------------------------------------------

__global__ void reduce_block(const float* in, float* out) {
    HIPCONV_SHARED(float, partial, 1024);
    const int t = threadIdx.x;
    partial[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (int count = blockDim.x; count > 1;) {
        const int half = (count + 1) / 2;
        if (t < count / 2) partial[t] += partial[t + half];
        __syncthreads();
        count = half;
    }
    if (t == 0) out[blockIdx.x] = partial[0];
}

void block_reduction() {
    const int blocks = 3;
    for (const int threads : {1, 2, 31, 64, 96, 100, 256, 1000, 1024}) {
        std::vector<float> in(blocks * threads), expected(blocks);
        for (int i = 0; i < blocks * threads; ++i) expected[i / threads] += in[i] = static_cast<float>(i * 37 % 101);
        DeviceArray<float> device_in(in), out(blocks);
        hipLaunchKernelGGL(reduce_block, dim3(blocks), dim3(threads), 0, nullptr, device_in.data(), out.data());
        expect_equal("sum over " + std::to_string(threads) + " threads", out.values(), expected);
    }
}

constexpr int kHaloThreads = 128;

// out[i] = sum over r in [first, last] of (r + 9) * in[i + r] within the block, through shared memory. `barrier` can be left
// out, which no GPU forgives and no order of threads must hide in all cases.
template <bool barrier, int first, int last>
__global__ void halo(const float* in, float* out) {
    HIPCONV_SHARED(float, tile, kHaloThreads);
    const int t = threadIdx.x, i = blockIdx.x * kHaloThreads + t;
    tile[t] = in[i];
    if (barrier) __syncthreads();
    float sum = 0.0f;
    for (int r = first; r <= last; ++r)
        if (t + r >= 0 && t + r < kHaloThreads) sum += static_cast<float>(r + 9) * tile[t + r];
    out[i] = sum;
}

template <bool barrier, int first, int last>
void run_halo() {
    const int blocks = 5, size = blocks * kHaloThreads;
    std::vector<float> in(size), expected(size);
    for (int i = 0; i < size; ++i) in[i] = static_cast<float>(i % 97 + 1);
    for (int i = 0; i < size; ++i)
        for (int r = first; r <= last; ++r)
            if (i + r >= 0 && (i + r) / kHaloThreads == i / kHaloThreads) expected[i] += static_cast<float>(r + 9) * in[i + r];
    DeviceArray<float> device_in(in), out(size);
    hipLaunchKernelGGL((halo<barrier, first, last>), dim3(blocks), dim3(kHaloThreads), 0, nullptr, device_in.data(),
                       out.data());
    expect_equal("halo", out.values(), expected);
}

__global__ void swap_through_two_arrays(const int* in, int* out) {
    HIPCONV_SHARED(int, low, 50);
    HIPCONV_SHARED(int16_t, high, 50);
    const int t = threadIdx.x, last = blockDim.x - 1;
    low[t] = in[t] & 0xffff;
    high[t] = static_cast<int16_t>(in[t] >> 16);
    __syncthreads();
    out[t] = high[last - t] * 65536 + low[last - t];
}

void two_shared_arrays() {
    const int threads = 50;
    std::vector<int> in(threads), expected(threads);
    for (int t = 0; t < threads; ++t) in[t] = expected[threads - 1 - t] = t * 1234567 % 1000000007;
    DeviceArray<int> device_in(in), out(threads);
    hipLaunchKernelGGL(swap_through_two_arrays, dim3(1), dim3(threads), 0, nullptr, device_in.data(), out.data());
    expect_equal("reversed", out.values(), expected);
}

// Every round a thread takes over twice its right neighbour's value plus its own. The second barrier keeps a round from writing
// what a slower neighbour has not read yet. Waves may meet instead, which is not enough for the neighbours of two waves.
template <bool second_barrier, bool waves_meet>
__global__ void neighbour_rounds(unsigned* values, int rounds) {
    HIPCONV_SHARED(unsigned, tile, 200);
    const int t = threadIdx.x, count = blockDim.x;
    unsigned value = values[t];
    for (int round = 0; round < rounds; ++round) {
        tile[t] = value;
        __syncthreads();
        value += 2u * tile[(t + 1) % count];
        if (second_barrier) __syncthreads();
        if (waves_meet && __ballot(value != 0) == 0) value += 1;
    }
    values[t] = value;
}

template <bool second_barrier, bool waves_meet = false>
void run_neighbour_rounds() {
    const int threads = 200, rounds = 10;
    std::vector<unsigned> values(threads);
    for (int t = 0; t < threads; ++t) values[t] = t * t;
    DeviceArray<unsigned> device(values);
    for (int round = 0; round < rounds; ++round) {
        const std::vector<unsigned> before = values;
        for (int t = 0; t < threads; ++t) values[t] += 2u * before[(t + 1) % threads];
    }
    hipLaunchKernelGGL((neighbour_rounds<second_barrier, waves_meet>), dim3(1), dim3(threads), 0, nullptr, device.data(),
                       rounds);
    expect_equal("after the rounds", device.values(), values);
}

__global__ void diverge_then_meet(unsigned* out) {
    HIPCONV_SHARED(unsigned, steps, 256);
    const unsigned t = threadIdx.x;
    unsigned count = 0;
    for (unsigned n = t + 1; n != 1; n = n % 2 ? 3 * n + 1 : n / 2) ++count;  // lanes loop differently long
    if (t % 3 == 0)
        steps[t] = count;
    else
        steps[t] = count + 1000;
    __syncthreads();
    out[t] = steps[255 - t];
}

void divergence_before_barrier() {
    std::vector<unsigned> expected(256);
    for (unsigned t = 0; t < 256; ++t) {
        unsigned count = 0;
        for (unsigned n = t + 1; n != 1; n = n % 2 ? 3 * n + 1 : n / 2) ++count;
        expected[255 - t] = t % 3 == 0 ? count : count + 1000;
    }
    DeviceArray<unsigned> out(256);
    hipLaunchKernelGGL(diverge_then_meet, dim3(1), dim3(256), 0, nullptr, out.data());
    expect_equal("steps", out.values(), expected);
}

__global__ void exit_some_threads(int* out) {
    if (threadIdx.x % 3 == 1) return;
    for (unsigned i = 0; i < threadIdx.x; ++i)
        if (i * i > 500) return;
    out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

void early_exit() {
    const int blocks = 7, threads = 90;
    std::vector<int> expected(blocks * threads);
    for (int i = 0; i < blocks * threads; ++i) expected[i] = i % threads % 3 != 1 && i % threads <= 23;
    DeviceArray<int> out(blocks * threads);
    hipLaunchKernelGGL(exit_some_threads, dim3(blocks), dim3(threads), 0, nullptr, out.data());
    expect_equal("written", out.values(), expected);
}

__global__ void mark_block(int* out, int count) {
    HIPCONV_SHARED(int, sum, 64);
    sum[threadIdx.x] = static_cast<int>(blockIdx.x) + 1;
    __syncthreads();
    if (threadIdx.x == 0 && static_cast<int>(blockIdx.x) < count) out[blockIdx.x] = sum[63] + sum[0];
}

void many_blocks() {
    const int blocks = 20000;
    std::vector<int> expected(blocks);
    for (int i = 0; i < blocks; ++i) expected[i] = 2 * (i + 1);
    DeviceArray<int> out(blocks);
    hipLaunchKernelGGL(mark_block, dim3(blocks), dim3(64), 0, nullptr, out.data(), blocks);
    expect_equal("blocks", out.values(), expected);
}

// 64 KB in two arrays is legal on AMD; NVIDIA's static limit is 48 KB.
constexpr int kLargeShared = 5 * 1024;

__global__ void fill_large_shared(int* out) {
    HIPCONV_SHARED(int, a, kLargeShared);
    HIPCONV_SHARED(int, b, kLargeShared);
    for (int i = threadIdx.x; i < kLargeShared; i += blockDim.x) a[i] = i, b[kLargeShared - 1 - i] = i;
    __syncthreads();
    for (int i = threadIdx.x; i < kLargeShared; i += blockDim.x) out[i] = a[i] + b[i];
}

void large_shared() {
    DeviceArray<int> out(kLargeShared);
    hipLaunchKernelGGL(fill_large_shared, dim3(1), dim3(192), 0, nullptr, out.data());
    expect_equal("sums", out.values(), std::vector<int>(kLargeShared, kLargeShared - 1));
}

// ---- indices and launches -----------------------------------------------------------------------------------------------

__global__ void record_indices(unsigned* out) {
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned* const mine = out + 8 * (block * blockDim.x * blockDim.y * blockDim.z + thread);
    mine[0] = threadIdx.x, mine[1] = threadIdx.y, mine[2] = threadIdx.z;
    mine[3] = blockIdx.x, mine[4] = blockIdx.y, mine[5] = blockIdx.z;
    mine[6] = (blockDim.x * 100 + blockDim.y) * 100 + blockDim.z;
    mine[7] = (gridDim.x * 100 + gridDim.y) * 100 + gridDim.z;
}

void indices() {
    const dim3 shapes[][2] = {
        {dim3(5), dim3(70)}, {dim3(3, 4), dim3(8, 9)}, {dim3(2, 3, 4), dim3(7, 5, 3)}, {dim3(1, 1, 6), dim3(1, 1, 64)}};
    for (const auto& [grid, block] : shapes) {
        std::vector<unsigned> expected;
        for (unsigned bz = 0; bz < grid.z; ++bz)
            for (unsigned by = 0; by < grid.y; ++by)
                for (unsigned bx = 0; bx < grid.x; ++bx)
                    for (unsigned tz = 0; tz < block.z; ++tz)
                        for (unsigned ty = 0; ty < block.y; ++ty)
                            for (unsigned tx = 0; tx < block.x; ++tx)
                                for (const unsigned value : {tx, ty, tz, bx, by, bz, (block.x * 100 + block.y) * 100 + block.z,
                                                             (grid.x * 100 + grid.y) * 100 + grid.z})
                                    expected.push_back(value);
        DeviceArray<unsigned> out(expected.size());
        hipLaunchKernelGGL(record_indices, grid, block, 0, nullptr, out.data());
        expect_equal("indices", out.values(), expected);
    }
}

__global__ void square_all(const int* in, int64_t* out, int64_t size) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size; i += step)
        out[i] = static_cast<int64_t>(in[i]) * in[i] + 1;
}

void grid_stride() {
    const int64_t size = 10007;
    std::vector<int> in(size);
    std::vector<int64_t> expected(size);
    for (int64_t i = 0; i < size; ++i) {
        in[i] = static_cast<int>(i * 7919 - 40000);
        expected[i] = static_cast<int64_t>(in[i]) * in[i] + 1;
    }
    DeviceArray<int> device_in(in);
    for (const int blocks : {1, 3, 200}) {
        DeviceArray<int64_t> out(size);
        hipLaunchKernelGGL(square_all, dim3(blocks), dim3(96), 0, nullptr, device_in.data(), out.data(), size);
        expect_equal("squares", out.values(), expected);
    }
}

__global__ void add_argument(unsigned long long* sum, int64_t value) { atomicAdd(sum, static_cast<unsigned long long>(value)); }

// A launch evaluates its arguments once, converts them to the parameters' types, and copies them.
void launch_arguments() {
    DeviceArray<unsigned long long> out(1);
    int calls = 0;
    const auto argument = [&] { return ++calls * 10; };
    hipLaunchKernelGGL(add_argument, dim3(2), dim3(32), 0, nullptr, out.data(), argument());
    expect_equal("sum over threads", out.values(), {640});
    expect(calls == 1, "the argument was evaluated " + std::to_string(calls) + " times");
}

__global__ void count_threads(int* count) { atomicAdd(count, 1); }

void invalid_launches() {
    struct Launch {
        dim3 grid, block;
    };
    std::vector<Launch> launches = {
        {dim3(1), dim3(2048)}, {dim3(1), dim3(64, 32)}, {dim3(0), dim3(64)}, {dim3(1, 0), dim3(64)}, {dim3(1), dim3(0)}};
#if !defined(HIPCONV_AMD)  // where these are legal
    launches.push_back({dim3(1, 70000), dim3(1)});
    launches.push_back({dim3(1, 1, 70000), dim3(1)});
    launches.push_back({dim3(1), dim3(1, 1, 128)});
#endif
    DeviceArray<int> count(1);
    for (const Launch& launch : launches) {
        hipLaunchKernelGGL(count_threads, launch.grid, launch.block, 0, nullptr, count.data());
        expect(hipGetLastError() != hipSuccess, "an invalid launch was not reported");
        expect(hipGetLastError() == hipSuccess, "an invalid launch was reported twice");
    }
    expect_equal("threads that ran", count.values(), {0});
    hipLaunchKernelGGL(count_threads, dim3(2), dim3(3), 0, nullptr, count.data());
    expect_equal("threads of a valid launch", count.values(), {6});
}

}  // namespace
