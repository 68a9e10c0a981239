// Small kernels whose results follow from the semantics of HIP, to hold the simt backend against. Plain HIP: the same file runs
// on a GPU and has to agree there. `simt_probes --list` names the probes, `simt_probes NAME` runs one: exit status 0 as
// expected, 1 with a message if a result differs, 2 if the probe could not run.
//
// `--list-host` names what only simt can promise (poison, canaries, orders), `--list-broken` wrong kernels that must not get
// by.
#include <hip/hip_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/activation.h"
#include "device/arch.h"
#include "device/dtype.h"
#include "launch/taper.h"
#include "probes.h"

#if defined(HIPCONV_HOST)
#include <thread>
#endif

namespace {

using hipconv::bf16;
using hipconv::f16;
using hipconv::kWaveSize;

__global__ void write_wave_size(int* out) { *out = kWaveSize; }

int wave_size() {  // the device pass's; the host pass may see another
    DeviceArray<int> out(1);
    hipLaunchKernelGGL(write_wave_size, dim3(1), dim3(1), 0, nullptr, out.data());
    return out.values()[0];
}

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

// ---- wave operations ----------------------------------------------------------------------------------------------------

constexpr int kShuffleThreads = 128;

// Distinct values in every byte, so that a half that goes missing shows.
template <typename T>
HIPCONV_INLINE T lane_value(int t) {
    return static_cast<T>((t + 1) * 0x01010101u % 1000003u);
}
template <>
HIPCONV_INLINE double lane_value<double>(int t) {
    return (t + 1) / 3.0;
}
template <>
HIPCONV_INLINE unsigned long long lane_value<unsigned long long>(int t) {
    return (t + 1) * 0x0102030405060708ull;
}

template <typename T>
__global__ void shuffle_all(T* out, int width, int amount) {
    const int t = threadIdx.x;
    const T value = lane_value<T>(t);
    out[0 * kShuffleThreads + t] = __shfl(value, t * 7 + amount, width);
    out[1 * kShuffleThreads + t] = __shfl_up(value, static_cast<unsigned>(amount), width);
    out[2 * kShuffleThreads + t] = __shfl_down(value, static_cast<unsigned>(amount), width);
    out[3 * kShuffleThreads + t] = __shfl_xor(value, amount, width);
    out[4 * kShuffleThreads + t] = __shfl(value, t + 1) + __shfl_xor(value, 1);
}

template <typename T>
void run_shuffles() {
    const int wave = wave_size();
    for (const int width : {64, 32, 16, 4, 1}) {
        if (width > wave) continue;
        for (const int amount : {0, 1, 2, 3, 5, 8, 15, 16, 21, 31, 32, 40, 63}) {
            if (amount >= wave) continue;
            std::vector<T> expected(5 * kShuffleThreads);
            for (int t = 0; t < kShuffleThreads; ++t) {
                const int begin = t / width * width, end = begin + width;
                const int first = t / wave * wave, other = first + ((t - first) ^ amount);
                const auto value = [](int source) { return lane_value<T>(source); };
                expected[0 * kShuffleThreads + t] = value(begin + (t * 7 + amount) % width);
                expected[1 * kShuffleThreads + t] = value(t - amount >= begin ? t - amount : t);
                expected[2 * kShuffleThreads + t] = value(t + amount < end ? t + amount : t);
                expected[3 * kShuffleThreads + t] = value(other < end ? other : t);  // an earlier segment can be read
                expected[4 * kShuffleThreads + t] = value(first + (t + 1) % wave) + value(t ^ 1);
            }
            DeviceArray<T> out(expected.size());
            hipLaunchKernelGGL(shuffle_all<T>, dim3(1), dim3(kShuffleThreads), 0, nullptr, out.data(), width, amount);
            expect_equal("width " + std::to_string(width) + ", amount " + std::to_string(amount), out.values(), expected);
        }
    }
}

void shuffles() {
    run_shuffles<int>();
    run_shuffles<unsigned>();
    run_shuffles<float>();
    run_shuffles<double>();
    run_shuffles<unsigned long long>();
}

__global__ void scan_wave(const int* in, int* out) {
    const int t = threadIdx.x, lane = t % kWaveSize;
    int sum = in[t];
    for (int distance = 1; distance < kWaveSize; distance *= 2) {
        const int before = __shfl_up(sum, static_cast<unsigned>(distance));
        if (lane >= distance) sum += before;
    }
    out[t] = sum;
}

void wave_scan() {
    const int wave = wave_size(), threads = 256;
    std::vector<int> in(threads), expected(threads);
    for (int t = 0; t < threads; ++t) {
        in[t] = t * t % 31 - 9;
        expected[t] = in[t] + (t % wave ? expected[t - 1] : 0);
    }
    DeviceArray<int> device_in(in), out(threads);
    hipLaunchKernelGGL(scan_wave, dim3(1), dim3(threads), 0, nullptr, device_in.data(), out.data());
    expect_equal("inclusive sum", out.values(), expected);
}

// Nothing but shuffles between a value and the next: a lane must not see the one its source brings to the following shuffle.
__global__ void rotate_often(int* out, int rounds) {
    const int t = threadIdx.x;
    int value = t * 1000;
    for (int round = 0; round < rounds; ++round) value = __shfl(value, t + 1) + 1;
    out[t] = value;
}

void back_to_back_shuffles() {
    const int wave = wave_size(), threads = 192, rounds = 37;
    std::vector<int> expected(threads);
    for (int t = 0; t < threads; ++t) expected[t] = (t / wave * wave + (t + rounds) % wave) * 1000 + rounds;
    DeviceArray<int> out(threads);
    hipLaunchKernelGGL(rotate_often, dim3(1), dim3(threads), 0, nullptr, out.data(), rounds);
    expect_equal("rotated", out.values(), expected);
}

__global__ void ballot_all(unsigned long long* out) {
    const unsigned t = threadIdx.x;
    out[4 * t + 0] = __ballot(t % 3 == 0);
    out[4 * t + 1] = __ballot(static_cast<int>(t * t & 4));  // any value but zero is true
    out[4 * t + 2] = __ballot(1);
    out[4 * t + 3] = __ballot(0);
}

void ballots() {
    const unsigned wave = static_cast<unsigned>(wave_size()),
                   threads = 144;  // of the last wave, lanes are missing: they vote 0
    std::vector<unsigned long long> expected(4 * threads);
    for (unsigned t = 0; t < threads; ++t)
        for (unsigned other = t / wave * wave; other < (t / wave + 1) * wave && other < threads; ++other) {
            expected[4 * t + 0] |= static_cast<unsigned long long>(other % 3 == 0) << other % wave;
            expected[4 * t + 1] |= static_cast<unsigned long long>((other * other & 4) != 0) << other % wave;
            expected[4 * t + 2] |= 1ull << other % wave;
        }
    DeviceArray<unsigned long long> out(expected.size());
    hipLaunchKernelGGL(ballot_all, dim3(1), dim3(threads), 0, nullptr, out.data());
    expect_equal("ballot", out.values(), expected);
}

// Waves take different numbers of shuffles to the same barrier, and lanes of one wave exit after their last one.
__global__ void shuffle_then_barrier(int* out) {
    HIPCONV_SHARED(int, sums, 256);
    const int t = threadIdx.x, wave = t / kWaveSize;
    int sum = t;
    for (int i = 0; i <= wave; ++i) sum += __shfl_xor(sum, 1 << i % 5);
    sums[t] = sum;
    __syncthreads();
    if (t % 5 == 0) return;
    out[t] = sums[255 - t];
}

void shuffles_and_barriers() {
    const int wave = wave_size();
    std::vector<int> sums(256), expected(256);
    for (int t = 0; t < 256; ++t) sums[t] = t;
    for (int first = 0; first < 256; first += wave)
        for (int i = 0; i <= first / wave; ++i) {
            const std::vector<int> before = sums;
            for (int t = first; t < first + wave; ++t) sums[t] += before[first + ((t - first) ^ (1 << i % 5))];
        }
    for (int t = 0; t < 256; ++t) expected[t] = t % 5 == 0 ? 0 : sums[255 - t];
    DeviceArray<int> out(256);
    hipLaunchKernelGGL(shuffle_then_barrier, dim3(1), dim3(256), 0, nullptr, out.data());
    expect_equal("sums", out.values(), expected);
}

// ---- atomics ------------------------------------------------------------------------------------------------------------

struct Counters {
    int* integer;
    unsigned* natural;
    float* real;
    unsigned long long* wide;
    int* tickets;
};

__global__ void add_up(Counters counters) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(counters.integer, i % 2 ? static_cast<int>(i) : -1);
    counters.tickets[atomicAdd(counters.natural, 1)] += 1;  // an int: the address decides the type
    atomicAdd(counters.real, 0.5f);
    atomicAdd(counters.wide, 1ull << 33);
}

void atomic_add() {
    const unsigned blocks = 37, threads = 96, count = blocks * threads;
    DeviceArray<int> integer(1);
    DeviceArray<unsigned> natural(1);
    DeviceArray<float> real(1);
    DeviceArray<unsigned long long> wide(1);
    DeviceArray<int> tickets(count);
    const Counters counters = {integer.data(), natural.data(), real.data(), wide.data(), tickets.data()};
    hipLaunchKernelGGL(add_up, dim3(blocks), dim3(threads), 0, nullptr, counters);
    expect_equal("int", integer.values(), {static_cast<int>((count / 2) * (count / 2) - count / 2)});
    expect_equal("unsigned", natural.values(), {count});
    expect_equal("what the additions gave back, each once", tickets.values(), std::vector<int>(count, 1));
    expect_equal("float", real.values(), {0.5f * static_cast<float>(count)});
    expect_equal("unsigned long long", wide.values(), {static_cast<unsigned long long>(count) << 33});
}

// slots[0]: maximum; [1]: exchanged; [2]: what the exchanges gave back, summed; [3]: winners of one compare-and-swap;
// [4]: its slot, never written twice; [5]: a sum by compare-and-swap.
__global__ void compete(int* slots) {
    const int id = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) + 1;
    atomicMax(&slots[0], id * 17 % 1009);
    atomicAdd(&slots[2], atomicExch(&slots[1], id));
    if (atomicCAS(&slots[4], 0, id) == 0) atomicAdd(&slots[3], 1);
    for (int seen = 0;;) {
        const int before = atomicCAS(&slots[5], seen, seen + id);
        if (before == seen) break;
        seen = before;
    }
}

void atomic_exchange() {
    const int blocks = 9, threads = 80, count = blocks * threads, sum = count * (count + 1) / 2;
    int greatest = 0;
    for (int id = 1; id <= count; ++id) greatest = id * 17 % 1009 > greatest ? id * 17 % 1009 : greatest;
    DeviceArray<int> device(6);
    hipLaunchKernelGGL(compete, dim3(blocks), dim3(threads), 0, nullptr, device.data());
    const std::vector<int> slots = device.values();
    expect(slots[0] == greatest, "atomicMax");
    expect(slots[1] + slots[2] == sum, "atomicExch lost a value");
    expect(slots[3] == 1 && slots[4] >= 1 && slots[4] <= count, "one thread must win the slot");
    expect(slots[5] == sum, "the sum by atomicCAS");
}

// ---- element types and the activation -----------------------------------------------------------------------------------

// The value of a 16-bit pattern, and the pattern nearest to a value with ties to even: slow, by the definition of the format.
struct Format {
    int exponent_bits, mantissa_bits;

    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    int exponent(uint32_t bits) const { return static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1)); }
    uint32_t mantissa(uint32_t bits) const { return bits & ((1u << mantissa_bits) - 1); }
    bool is_nan(uint32_t bits) const { return exponent(bits) == (1 << exponent_bits) - 1 && mantissa(bits) != 0; }

    double finite_value(uint32_t bits) const {  // an all-ones exponent counts on, which makes infinity the next power of two
        const int e = exponent(bits);
        const double significand = mantissa(bits) + (e ? 1 << mantissa_bits : 0);
        return (bits & 0x8000u ? -1.0 : 1.0) * std::ldexp(significand, (e ? e : 1) - bias() - mantissa_bits);
    }
    double value(uint32_t bits) const {
        if (is_nan(bits)) return std::numeric_limits<double>::quiet_NaN();
        if (exponent(bits) < (1 << exponent_bits) - 1) return finite_value(bits);
        return (bits & 0x8000u ? -1.0 : 1.0) * std::numeric_limits<double>::infinity();
    }
    uint32_t nearest(double v) const {
        const uint32_t sign = std::signbit(v) ? 0x8000u : 0u, infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
        if (std::isinf(v)) return sign | infinity;
        // Patterns are ordered like their values, so bisect for the last one not above |v|; then compare with both neighbours.
        uint32_t low = 0, high = infinity;
        while (high - low > 1) {
            const uint32_t middle = (low + high) / 2;
            (finite_value(middle) <= std::fabs(v) ? low : high) = middle;
        }
        const double below = std::fabs(v) - finite_value(low), above = finite_value(high) - std::fabs(v);
        const bool up = above < below || (above == below && low % 2 == 1);
        return sign | (up ? high : low);
    }
};

constexpr Format kF16{5, 10}, kBf16{8, 7};

template <typename T>
__global__ void round_trip(float* values, uint16_t* patterns) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    values[i] = hipconv::to_float(T{static_cast<uint16_t>(i)});
    patterns[i] = hipconv::from_float<T>(values[i]).bits;
}

template <typename T>
__global__ void round_all(const float* in, uint16_t* out, int size) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < size) out[i] = hipconv::from_float<T>(hipconv::canonical_nan(in[i])).bits;
}

std::string hex(uint32_t bits) {
    char text[16];
    std::snprintf(text, sizeof(text), "0x%x", bits);
    return text;
}

template <typename T>
void conversions(const Format& format) {
    DeviceArray<float> device_values(65536);
    DeviceArray<uint16_t> device_patterns(65536);
    hipLaunchKernelGGL(round_trip<T>, dim3(256), dim3(256), 0, nullptr, device_values.data(), device_patterns.data());
    const std::vector<float> values = device_values.values();
    const std::vector<uint16_t> patterns = device_patterns.values();
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        if (format.is_nan(bits)) {
            expect(std::isnan(values[bits]) && format.is_nan(patterns[bits]), "a NaN is lost: " + hex(bits));
        } else {
            const bool same_sign = std::signbit(values[bits]) == (bits >= 0x8000);
            expect(values[bits] == format.value(bits) && same_sign, "wrong value of " + hex(bits));
            expect(patterns[bits] == bits, "no round trip: " + hex(bits) + " becomes " + hex(patterns[bits]));
        }
    }

    // Around every pattern: the value, the midpoint to the next (a tie), and the floats beside both. Then f32's own extremes.
    std::vector<float> in;
    const float infinity = std::numeric_limits<float>::infinity();
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        if (format.is_nan(bits)) continue;
        const bool last = std::isinf(format.value(bits));
        const double next = last ? infinity : format.finite_value(bits + 1), here = format.value(bits);
        for (const float v : {static_cast<float>(here), static_cast<float>((here + next) / 2)})
            for (const float w : {v, std::nextafterf(v, infinity), std::nextafterf(v, -infinity)}) in.push_back(w);
    }
    uint64_t state = 1;
    for (int i = 0; i < 100000; ++i) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        in.push_back(hipconv::bit_cast<float>(static_cast<uint32_t>(state >> 32)));
    }
    for (const uint32_t bits : {1u, 0x80000001u, 0x007fffffu, 0x7f7fffffu, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu})
        in.push_back(hipconv::bit_cast<float>(bits));
    const int size = static_cast<int>(in.size());
    DeviceArray<float> device_in(in);
    DeviceArray<uint16_t> device_out(in.size());
    hipLaunchKernelGGL(round_all<T>, dim3((size + 255) / 256), dim3(256), 0, nullptr, device_in.data(), device_out.data(),
                       size);
    const std::vector<uint16_t> out = device_out.values();
    for (int i = 0; i < size; ++i) {
        const std::string what = hex(hipconv::bit_cast<uint32_t>(in[i])) + " becomes " + hex(out[i]);
        if (std::isnan(in[i]))
            expect(format.is_nan(out[i]), what + ", expected a NaN");
        else
            expect(out[i] == format.nearest(in[i]), what + ", expected " + hex(format.nearest(in[i])));
    }
}

__global__ void silu_all(const float* in, float* out, int size) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < size) out[i] = hipconv::silu(in[i]);
}

void silu_accuracy() {
    using Limits = std::numeric_limits<float>;
    std::vector<float> in = {0.0f, -0.0f, Limits::infinity(), Limits::quiet_NaN(), 1e30f, -1e30f};
    for (int i = -120000; i <= 120000; ++i) in.push_back(static_cast<float>(i) / 1000.0f);
    const int size = static_cast<int>(in.size());
    DeviceArray<float> device_in(in), device_out(in.size());
    hipLaunchKernelGGL(silu_all, dim3((size + 255) / 256), dim3(256), 0, nullptr, device_in.data(), device_out.data(), size);
    const std::vector<float> out = device_out.values();
    for (int i = 0; i < size; ++i) {
        const double x = in[i], expected = std::isinf(x) ? x : x / (1.0 + std::exp(-x));
        // log2(e) and its product with x are rounded, and exp2 turns that into a relative error that grows with |x|; below
        // 2^-126 the hardware's reciprocal may flush to zero.
        const double allowed = std::fabs(expected) * (2 * std::fabs(x) + 8) * std::ldexp(1.0, -24) + 2e-36;
        const bool fine = std::isnan(x) ? std::isnan(out[i]) : out[i] == expected || std::fabs(out[i] - expected) <= allowed;
        expect(fine, "silu(" + std::to_string(x) + ") is " + std::to_string(out[i]) + ", expected " + std::to_string(expected));
    }
}

// ---- what only simt promises --------------------------------------------------------------------------------------------
#if defined(HIPCONV_HOST)

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

// ---- wrong kernels that simt must not let pass --------------------------------------------------------------------------

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

#endif

// ---- division of work ---------------------------------------------------------------------------------------------------

__global__ void write_pieces(hipconv::Taper taper, hipconv::Piece* pieces, uint32_t count) {
    const uint32_t block = blockIdx.x * blockDim.x + threadIdx.x;
    if (block < count) pieces[block] = hipconv::piece_of_block(taper, block);
}

// Every item of every row belongs to one piece; pieces are as long as asked at first, and never longer later on. Those of a row
// are numbered, and as many as its zone says.
void taper() {
    struct Work {
        uint32_t items, rows, log2_longest;
    };
    for (const Work w : {Work{16, 4096, 4}, Work{64, 900, 4}, Work{5, 9000, 3}, Work{1, 70, 0}, Work{7, 3, 2},
                         Work{1000, 40, 4}, Work{9, 1, 4}, Work{33, 512, 1}, Work{4, 30000, 2}}) {
        const std::string what = std::to_string(w.items) + " items of " + std::to_string(w.rows) + " rows";
        const hipconv::Taper taper = hipconv::tapered(w.items, w.rows, w.log2_longest);
        const uint32_t count = taper.blocks + 3;
        DeviceArray<hipconv::Piece> device(count);
        hipLaunchKernelGGL(write_pieces, dim3((count + 255) / 256), dim3(256), 0, nullptr, taper, device.data(), count);
        const std::vector<hipconv::Piece> pieces = device.values();
        std::vector<int> times(static_cast<size_t>(w.items) * w.rows);
        uint32_t longest = 1u << w.log2_longest, number = 0;
        int zone = 0;
        for (uint32_t block = 0; block < taper.blocks; ++block) {
            const hipconv::Piece piece = pieces[block];
            expect(piece.row < w.rows && piece.count > 0 && piece.first + piece.count <= w.items, what + ": outside");
            expect(static_cast<uint32_t>(piece.count) <= longest, what + ": longer than those before");
            while (zone + 1 < hipconv::kTaperZones && block >= taper.first_block[zone + 1]) ++zone;
            expect(piece.number == number && number < pieces_of_row(taper, zone), what + ": wrongly numbered");
            number = number + 1 == pieces_of_row(taper, zone) ? 0 : number + 1;
            expect((number == 0) == (piece.first + piece.count == w.items), what + ": a row ends elsewhere");
            if (piece.first == 0 && static_cast<uint32_t>(piece.count) < w.items) longest = piece.count;
            for (int k = 0; k < piece.count; ++k) ++times[static_cast<size_t>(piece.row) * w.items + piece.first + k];
        }
        expect_equal(what, times, std::vector<int>(times.size(), 1));
        for (uint32_t block = taper.blocks; block < count; ++block) expect(pieces[block].count == 0, what + ": past the end");
        const bool large = static_cast<double>(w.items) * w.rows >= 65536 && w.log2_longest == 4 && w.items % 16 == 0;
        if (large) expect(pieces[0].count == 16 && pieces[taper.blocks - 1].count == 2, what + ": no taper");
    }
}

// ---- by name ------------------------------------------------------------------------------------------------------------

const std::vector<Probe>& probes() {
    static const std::vector<Probe> all = {
        {"--list", "block_reduction", block_reduction},
        {"--list", "halo", run_halo<true, -3, 3>},
        {"--list", "two_shared_arrays", two_shared_arrays},
        {"--list", "neighbour_rounds", run_neighbour_rounds<true>},
        {"--list", "divergence_before_barrier", divergence_before_barrier},
        {"--list", "early_exit", early_exit},
        {"--list", "many_blocks", many_blocks},
        {"--list", "large_shared", large_shared},
        {"--list", "indices", indices},
        {"--list", "grid_stride", grid_stride},
        {"--list", "launch_arguments", launch_arguments},
        {"--list", "invalid_launches", invalid_launches},
        {"--list", "shuffles", shuffles},
        {"--list", "wave_scan", wave_scan},
        {"--list", "back_to_back_shuffles", back_to_back_shuffles},
        {"--list", "ballots", ballots},
        {"--list", "shuffles_and_barriers", shuffles_and_barriers},
        {"--list", "atomic_add", atomic_add},
        {"--list", "atomic_exchange", atomic_exchange},
        {"--list", "f16_conversions", [] { conversions<f16>(kF16); }},
        {"--list", "bf16_conversions", [] { conversions<bf16>(kBf16); }},
        {"--list", "silu_accuracy", silu_accuracy},
        {"--list", "taper", taper},
#if defined(HIPCONV_HOST)
        {"--list-host", "poison", poison},
        {"--list-host", "missing_lane", missing_lane},
        {"--list-host", "large_stack", large_stack},
        {"--list-host", "all_of_shared", all_of_shared},
        {"--list-host", "os_threads", os_threads},
        {"--list-host", "turns", turns},
        {"--list-broken", "halo_no_barrier", run_halo<false, -3, 3>},
        {"--list-broken", "halo_below_no_barrier", run_halo<false, -3, 0>},
        {"--list-broken", "halo_above_no_barrier", run_halo<false, 0, 3>},
        {"--list-broken", "rounds_one_barrier", run_neighbour_rounds<false>},
        {"--list-broken", "rounds_one_barrier_waves_meet", run_neighbour_rounds<false, true>},
        {"--list-broken", "barrier_missed", BROKEN(miss_barrier, dim3(2), dim3(64))},
        {"--list-broken", "last_barrier_missed", BROKEN(miss_last_barrier, dim3(1), dim3(8, 4))},
        {"--list-broken", "barrier_split", BROKEN(split_barrier, dim3(1), dim3(128))},
        {"--list-broken", "shuffle_missed", BROKEN(miss_shuffle, dim3(1), dim3(128))},
        {"--list-broken", "shuffle_against_barrier", BROKEN(shuffle_against_barrier, dim3(1), dim3(64))},
        {"--list-broken", "shuffle_split", BROKEN(split_shuffle, dim3(1), dim3(64))},
        {"--list-broken", "shuffle_too_wide", BROKEN(shuffle_too_wide, dim3(1), dim3(128))},
        {"--list-broken", "shared_write_past_end", BROKEN(write_past_end, dim3(1), dim3(1))},
        {"--list-broken", "shared_write_before_begin", BROKEN(write_before_begin, dim3(1), dim3(16))},
        {"--list-broken", "shared_read_past_end", shared_read_past_end},
        {"--list-broken", "shared_too_large", BROKEN(declare_too_much, dim3(1), dim3(1))},
        {"--list-broken", "shared_uneven", BROKEN(declare_unevenly, dim3(1), dim3(2))},
        {"--list-broken", "stack_recursion", [] { among_other_stacks(BROKEN(recurse, dim3(1), dim3(1))); }},
        {"--list-broken", "stack_large_array", [] { among_other_stacks(BROKEN(outgrow_stack, dim3(1), dim3(1))); }},
        {"--list-broken", "global_out_of_bounds", BROKEN(write_out_of_bounds, dim3(5), dim3(205))},  // 1025 of 1024
#endif
    };
    return all;
}

}  // namespace

int main(int count, char** arguments) { return run_probe(probes(), count == 2 ? arguments[1] : ""); }
