// Probes of wave operations and of atomics. probes.cu includes this file and names them.
#pragma once

namespace {

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

}  // namespace
