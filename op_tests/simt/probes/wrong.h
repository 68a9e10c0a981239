// Wrong kernels that simt must not let pass. probes.cu includes this file and names them.
#pragma once

namespace {

__global__ void miss_barrier(float*) {
    if (threadIdx.x == 5) return;
    __syncthreads();  // line of the barrier that thread 5 misses
}

__global__ void miss_last_barrier(float*) {
    __syncthreads();
    if (threadIdx.y == 1 && threadIdx.x == 3) return;
    __syncthreads();  // line of the barrier that thread (3, 1, 0) misses
}

__global__ void split_barrier(float* out) {
    if (threadIdx.x < 64) {
        out[threadIdx.x] = 1.0f;
        __syncthreads();
    } else {
        __syncthreads();
    }
}

__global__ void miss_shuffle(float* out) {
    if (threadIdx.x % 32 == 7) return;
    out[threadIdx.x] = __shfl(1.0f, 0);
}

__global__ void shuffle_against_barrier(float* out) {
    if (threadIdx.x == 9) __syncthreads();
    out[threadIdx.x] = __shfl(1.0f, 0);
    if (threadIdx.x != 9) __syncthreads();
}

__global__ void split_shuffle(float* out) {
    if (threadIdx.x % 2) {
        out[threadIdx.x] = __shfl_xor(1.0f, 2);
    } else {
        out[threadIdx.x] = __shfl_xor(2.0f, 2);
    }
}

__global__ void shuffle_too_wide(float* out) { out[threadIdx.x] = __shfl_xor(1.0f, 1, 2 * kWaveSize); }

__global__ void write_past_end(float* out) {
    HIPCONV_SHARED(float, first, 10);
    HIPCONV_SHARED(float, second, 10);
    for (int i = 0; i <= 10; ++i) first[i] = 1.0f;  // one too many
    second[0] = 2.0f;
    out[0] = first[0];
}

__global__ void write_before_begin(float* out) {
    HIPCONV_SHARED(float, only, 16);
    only[static_cast<int>(threadIdx.x) - 1] = 1.0f;
    out[0] = only[0];
}

__global__ void read_past_end(float* out) {
    HIPCONV_SHARED(float, values, 16);
    values[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x + 1];
}

void shared_read_past_end() {
    DeviceArray<float> out(16);
    hipLaunchKernelGGL(read_past_end, dim3(1), dim3(16), 0, nullptr, out.data());
    float sum = 0;
    for (const float v : out.values()) sum += v;
    expect(!std::isnan(sum), "read NaN past the end of a shared array");
}

__global__ void declare_too_much(float* out) {
    HIPCONV_SHARED(float, a, 12 * 1024);
    HIPCONV_SHARED(float, b, 4 * 1024 + 1);
    out[0] = a[0] + b[0];
}

__global__ void declare_unevenly(float* out) {
    if (threadIdx.x % 2) {
        HIPCONV_SHARED(float, odd, 16);
        out[threadIdx.x] = odd[0];
    } else {
        HIPCONV_SHARED(float, even, 16);
        out[threadIdx.x] = even[0];
    }
}

int descend(int depth, volatile int* out) {
    volatile char frame[256];
    frame[0] = static_cast<char>(depth);
    *out = frame[0];
    return depth == 0 ? 0 : descend(depth - 1, out) + frame[0];
}

__global__ void recurse(float* out) {
    volatile int sink = 0;
    out[0] = static_cast<float>(descend(1 << 12, &sink));
}

__global__ void outgrow_stack(float* out) {  // by one array, whose far end is all that gets written
    volatile char local[600 * 1024];
    local[0] = 1;
    out[0] = local[0];
}

// Other stacks lie below the one that overflows: it must not end in one of them.
template <typename Run>
void among_other_stacks(Run run) {
    block_reduction();
    run();
}

__global__ void write_out_of_bounds(float* out) { out[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f; }

// A macro, because messages give a kernel the name that it is launched by.
#define BROKEN(kernel, grid, block)                                      \
    [] {                                                                 \
        DeviceArray<float> out(1024);                                    \
        hipLaunchKernelGGL(kernel, grid, block, 0, nullptr, out.data()); \
        finish();                                                        \
    }

}  // namespace
