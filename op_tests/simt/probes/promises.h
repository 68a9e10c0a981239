// Probes of what only simt promises: poison, canaries, stacks, orders. probes.cu includes this file and names them.
#pragma once

namespace {

// Before a write, shared memory reads as NaN in every float type, also where the block before has left something.
__global__ void read_before_write(float* out) {
    HIPCONV_SHARED(float, single, 96);
    HIPCONV_SHARED(f16, half, 96);
    HIPCONV_SHARED(bf16, brain, 96);
    const int t = threadIdx.x;
    float* const mine = out + 4 * (blockIdx.x * blockDim.x + t);
    mine[0] = single[t];
    mine[1] = hipconv::to_float(half[t]);
    mine[2] = hipconv::to_float(brain[t]);
    mine[3] = single[t] = 7.0f;
    half[t].bits = brain[t].bits = 0;
}

void poison() {
    DeviceArray<float> out(4 * 3 * 96);
    hipLaunchKernelGGL(read_before_write, dim3(3), dim3(96), 0, nullptr, out.data());
    const std::vector<float> values = out.values();
    for (size_t i = 0; i < values.size(); ++i)
        expect(i % 4 == 3 ? values[i] == 7.0f : std::isnan(values[i]),
               "read " + std::to_string(values[i]) + " before the write");
}

__global__ void read_last_lane(float* out) { out[threadIdx.x] = __shfl(static_cast<float>(threadIdx.x), kWaveSize - 1); }

void missing_lane() {  // the second of two waves is half there: its last lane reads as NaN
    const int wave = wave_size(), threads = wave + wave / 2;
    DeviceArray<float> out(threads);
    hipLaunchKernelGGL(read_last_lane, dim3(1), dim3(threads), 0, nullptr, out.data());
    const std::vector<float> values = out.values();
    for (int t = 0; t < threads; ++t)
        expect(t < wave ? values[t] == static_cast<float>(wave - 1) : std::isnan(values[t]),
               "read " + std::to_string(values[t]));
}

__global__ void use_large_stack(int* out) {
    volatile char local[100 * 1024];
    const int t = threadIdx.x;
    for (size_t i = 0; i < sizeof(local); i += 512) local[i] = static_cast<char>(t + i / 512);
    __syncthreads();  // all threads hold theirs at once
    int wrong = 0;
    for (size_t i = 0; i < sizeof(local); i += 512) wrong += local[i] != static_cast<char>(t + i / 512);
    out[t] = wrong;
}

void large_stack() {
    DeviceArray<int> out(std::vector<int>(64, -1));
    hipLaunchKernelGGL(use_large_stack, dim3(1), dim3(64), 0, nullptr, out.data());
    expect_equal("changed bytes", out.values(), std::vector<int>(64));
}

__global__ void fill_all_shared(int* out) {
    HIPCONV_SHARED(int, a, 8 * 1024);
    HIPCONV_SHARED(int, b, 8 * 1024);
    for (int i = threadIdx.x; i < 8 * 1024; i += blockDim.x) a[i] = i, b[i] = -i;
    __syncthreads();
    out[threadIdx.x] = a[8 * 1024 - 1 - threadIdx.x] + b[8 * 1024 - 1 - threadIdx.x];
}

void all_of_shared() {  // the canaries do not count
    DeviceArray<int> out(std::vector<int>(64, -1));
    hipLaunchKernelGGL(fill_all_shared, dim3(2), dim3(64), 0, nullptr, out.data());
    expect_equal("sums", out.values(), std::vector<int>(64));
}

// Two OS threads launch at once, as callers that hold no lock may.
void os_threads() {
    std::string failures[2];
    const auto work = [](std::string* failure) {
        try {
            for (int i = 0; i < 20; ++i) block_reduction(), shuffles_and_barriers();
        } catch (const std::exception& error) {
            *failure = error.what();
        }
    };
    std::thread first(work, &failures[0]), second(work, &failures[1]);
    first.join();
    second.join();
    expect(failures[0].empty() && failures[1].empty(), failures[0] + failures[1]);
}

// Prints who comes when: threads before a barrier, the same threads after it, blocks.
__global__ void record_turns(int* counters, int* before, int* after, int* blocks) {
    const int t = threadIdx.x;
    if (blockIdx.x == 0) before[atomicAdd(&counters[0], 1)] = t;
    if (t == 0) blocks[atomicAdd(&counters[2], 1)] = static_cast<int>(blockIdx.x);
    __syncthreads();
    if (blockIdx.x == 0) after[atomicAdd(&counters[1], 1)] = t;
}

void turns() {
    const int threads = 40, blocks = 12;
    DeviceArray<int> counters(3), before(threads), after(threads), block_turns(blocks);
    hipLaunchKernelGGL(record_turns, dim3(blocks), dim3(threads), 0, nullptr, counters.data(), before.data(), after.data(),
                       block_turns.data());
    for (const DeviceArray<int>* list : {&before, &after, &block_turns}) {
        for (const int turn : list->values()) std::printf("%d ", turn);
        std::printf("\n");
    }
}

}  // namespace
