// This runs one block of a kernel: each thread is a fiber, all are on one OS thread, and they switch only where they must wait
// for each other.
//
// A thread runs until it exits, reaches a barrier or a wave operation, or watches memory that another thread is to change. The
// scheduler lets the threads take turns, finishes a wave operation once every lane of the wave has arrived, and opens a barrier
// once every thread of the block has. Where a GPU's behaviour is undefined, simt ends the process with a message: a barrier or
// wave operation that some threads miss, or that threads reach at different places of the source; a shuffle wider than the
// wave; shared memory written outside its arrays.
//
// The blocks of a cluster (sm_90) run together, as one Block: their threads follow each other, and each has LDS of its own.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "device/arch.h"
#include "simt/fiber.h"
#include "simt/order.h"

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace simt {

constexpr int kMaxThreads = 1024;
constexpr size_t kSharedBytes = 64 * 1024;
constexpr size_t kMostSharedBytes = 227 * 1024;  // the most on any GPU; the arena has this size, since all modules share it
constexpr size_t kLargeSharedBytes = hipconv::kCopiesPastRegisters ? kMostSharedBytes : kSharedBytes;  // a launch may ask for
constexpr int kMostBlocksOfACluster = 8;
constexpr size_t kSharedArrays = 64;
constexpr size_t kCanaryBytes = 64;
constexpr unsigned char kPoison = 0xff;  // NaN in f32, f16 and bf16

// The canary at an offset of the arena. Its halves are 0xffa5, a NaN too, so that a read past an end does not yield a
// small number.
constexpr unsigned char canary(size_t offset) { return offset % 2 == 0 ? 0xa5 : 0xff; }

// A site says where in the source a thread waits.
struct Site {
    const char* what;
    const char* file;
    int line;
    bool operator==(const Site& other) const { return line == other.line && same(what, other.what) && same(file, other.file); }

  private:
    static bool same(const char* a, const char* b) {  // equal literals mostly have one address
        return a == b || std::strcmp(a, b) == 0;
    }
};

enum class State { runnable, at_barrier, at_cluster_barrier, at_wave_op, watching, exited };
enum class WaveOp { shuffle, ballot, collective };

// A collective is an operation that all lanes of a wave do together, once each has come with an address.
using Collective = void (*)(void* const* lanes);

// A condition says whether the change that a thread watches for has happened.
using Condition = bool (*)(const void* memory, int number);

// A pending copy to shared memory has been asked for and not been waited for: the data is not there yet.
struct PendingCopy {
    void* to;
    const void* from;
    size_t bytes, zeros;
    int group;
};

struct Thread {
    Context context;
    dim3 index;
    State state = State::runnable;
    Site site{};
    WaveOp op = WaveOp::shuffle;
    uint64_t value = 0;   // this lane brings it to a wave operation
    int source = 0;       // in a shuffle, the lane whose value it takes
    uint64_t result = 0;  // this lane takes it away
    Collective collective = nullptr;
    Condition condition = nullptr;
    const void* watched = nullptr;
    int watched_number = 0;
    size_t next_shared = 0;
    std::vector<PendingCopy> copies;
    int copy_groups = 0;  // so many are closed
};

struct SharedArray {
    size_t begin, bytes;  // offset and size in the arena
    Site site;            // where it is declared
};

class Block {
  public:
    // The block that the calling OS thread is running; kernels reach it through the HIP spelling.
    static Block*& current() {
        static thread_local Block* block = nullptr;
        return block;
    }

    Block(const char* kernel, dim3 size, size_t launch_shared, Order& order, int cluster = 1)
        : kernel_(kernel), size_(size), of_block_(static_cast<int>(size.x * size.y * size.z)), count_(of_block_ * cluster),
          launch_shared_(launch_shared), order_(order), threads_(count_), shared_(cluster) {
        std::vector<Stack>& stacks = stack_pool();
        while (static_cast<int>(stacks.size()) < count_) stacks.emplace_back();
        while (static_cast<int>(arenas().size()) < cluster) arenas().emplace_back(kArenaBytes);
        if (cluster > kMostBlocksOfACluster || (cluster > 1 && of_block_ % hipconv::kWaveSize != 0))
            die("a cluster has up to %d blocks of whole waves", kMostBlocksOfACluster);
    }

    void run(dim3 index, const std::function<void()>& body) {
        index_ = index;
        body_ = &body;
        current() = this;
        for (int rank = 0; rank < count_ / of_block_; ++rank) {
            shared_[rank].clear();
            forbid_access(rank, 0, kArenaBytes);
        }
        for (int t = 0; t < count_; ++t) {
            const Stack& stack = stack_pool()[t];
            const int i = t % of_block_;
            threads_[t] = Thread();
            threads_[t].index = dim3(i % size_.x, i / size_.x % size_.y, i / (size_.x * size_.y));
            threads_[t].context = Context{stack.fresh(&Block::enter_thread), stack.bottom(), Stack::kBytes, nullptr};
        }
        while (!everyone(State::exited)) {
            bool progressed = take_turns();
            for (int first = 0; first < count_; first += of_block_) progressed = open_barrier(first) || progressed;
            progressed = open_cluster_barrier() || progressed;
            if (!progressed) die_of_divergence(0, count_);
        }
        for (int rank = 0; rank < count_ / of_block_; ++rank) check_canaries(rank);
        current() = nullptr;
    }

    // ---- called from threads ----------------------------------------------------------------------------------------

    void barrier(Site site) { wait(State::at_barrier, site); }

    // Threads that have exited are not waited for, as on a GPU.
    void cluster_barrier(Site site) { wait(State::at_cluster_barrier, site); }

    // The place in another block's LDS that corresponds to this one in the calling thread's own.
    void* in_block(const void* place, int rank) const {
        if (rank < 0 || rank >= count_ / of_block_) die("%s asks for the LDS of block %d", name(running_).c_str(), rank);
        return arena(rank) + (static_cast<const char*>(place) - arena(this->rank()));
    }
    int rank() const { return running_ / of_block_; }  // of the calling thread's block, in its cluster

    uint64_t wave_op(WaveOp op, uint64_t value, int source, Site site) {
        Thread& self = threads_[running_];
        self.op = op;
        self.value = value;
        self.source = source;
        wait(State::at_wave_op, site);
        return self.result;
    }

    // The whole wave must come, because the value of a missing lane would be undefined.
    void wave_collective(Collective collective, void* mine, Site site) {
        threads_[running_].collective = collective;
        wave_op(WaveOp::collective, reinterpret_cast<uint64_t>(mine), 0, site);
    }

    // A thread waits here where a GPU's thread would look at memory again and again.
    void wait_until(Condition condition, const void* memory, int number, Site site) {
        Thread& self = threads_[running_];
        self.condition = condition;
        self.watched = memory;
        self.watched_number = number;
        wait(State::watching, site);
    }

    // Copies past the registers are finished as late as the thread allows.
    void copy_later(void* to, const void* from, size_t bytes, size_t zeros) {
        Thread& self = threads_[running_];
        self.copies.push_back({to, from, bytes, zeros, self.copy_groups});
    }
    void close_copy_group() { ++threads_[running_].copy_groups; }
    void wait_for_copies(int groups_left) {
        Thread& self = threads_[running_];
        size_t done = 0;
        while (done < self.copies.size() && self.copies[done].group < self.copy_groups - groups_left) {
            const PendingCopy& copy = self.copies[done++];
            if (copy.bytes) std::memcpy(copy.to, copy.from, copy.bytes);
            std::memset(static_cast<char*>(copy.to) + copy.bytes, 0, copy.zeros);
        }
        self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(done));
    }

    // Shared arrays are found by order of declaration: the first thread to come allocates and poisons one, the others find it.
    void* shared(size_t bytes, Site site, size_t limit = kSharedBytes) {
        const size_t number = threads_[running_].next_shared++;
        if (number == shared_[rank()].size()) allocate_shared(rank(), bytes, site, limit);
        const SharedArray& array = shared_[rank()][number];
        if (array.bytes != bytes || !(array.site == site))
            die("%s declares %zu bytes at %s:%d where another thread declares %zu at %s:%d", name(running_).c_str(), bytes,
                site.file, site.line, array.bytes, array.site.file, array.site.line);
        return arena(rank()) + array.begin;
    }

    // This shared array takes all the memory that the launch asked for, on targets where a launch asks.
    void* large_shared(size_t bytes, Site site) {
        const size_t asked = hipconv::kCopiesPastRegisters ? launch_shared_ : bytes;
        if (asked < bytes) die("declares %zu bytes of large shared memory, and its launch asks for %zu", bytes, asked);
        return shared(asked, site, kLargeSharedBytes);
    }

    // This returns the first lane of the segment of `width` lanes that the calling lane is in.
    int segment_begin(int width) const {
        if (width < 1 || width > hipconv::kWaveSize || (width & (width - 1)) != 0)
            die("%s shuffles with width %d, and a wave has %d lanes", name(running_).c_str(), width, hipconv::kWaveSize);
        return lane() & ~(width - 1);
    }

    dim3 thread_index() const { return threads_[running_].index; }
    dim3 block_index() const { return dim3(index_.x + static_cast<unsigned>(rank()), index_.y, index_.z); }
    dim3 block_size() const { return size_; }
    int lane() const { return running_ % of_block_ % hipconv::kWaveSize; }

  private:
    static std::vector<Stack>& stack_pool() {
        static thread_local std::vector<Stack> stacks;
        return stacks;
    }
    static std::vector<std::vector<char>>& arenas() {
        static thread_local std::vector<std::vector<char>> memory;
        return memory;
    }
    static char* arena(int rank) { return arenas()[static_cast<size_t>(rank)].data(); }
    static constexpr size_t kArenaBytes = kMostSharedBytes + (kSharedArrays + 1) * kCanaryBytes;
    static size_t padded(size_t bytes) { return (bytes + 15) / 16 * 16; }

    // AddressSanitizer stops at a forbidden byte, reads included; without it the canaries tell of writes when the block is
    // done.
    static void forbid_access(int rank, size_t begin, size_t end) {
#if defined(__SANITIZE_ADDRESS__)
        ASAN_POISON_MEMORY_REGION(arena(rank) + begin, end - begin);
#else
        (void)rank, (void)begin, (void)end;
#endif
    }
    static void allow_access(int rank, size_t begin, size_t end) {
#if defined(__SANITIZE_ADDRESS__)
        ASAN_UNPOISON_MEMORY_REGION(arena(rank) + begin, end - begin);
#else
        (void)rank, (void)begin, (void)end;
#endif
    }

    // Canaries lie before the first array and after each.
    void allocate_shared(int rank, size_t bytes, Site site, size_t limit) {
        std::vector<SharedArray>& arrays = shared_[rank];
        const size_t last_end = arrays.empty() ? 0 : arrays.back().begin + padded(arrays.back().bytes);
        const size_t begin = last_end + kCanaryBytes, end = begin + bytes, next = begin + padded(bytes) + kCanaryBytes;
        const size_t used = next - (arrays.size() + 2) * kCanaryBytes;
        if (used > limit)
            die("needs %zu bytes of shared memory, and a block has %zu (%s:%d)", used, limit, site.file, site.line);
        if (arrays.size() == kSharedArrays) die("declares over %zu shared arrays (%s:%d)", kSharedArrays, site.file, site.line);
        allow_access(rank, last_end, next);
        for (size_t i = last_end; i < begin; ++i) arena(rank)[i] = static_cast<char>(canary(i));
        std::memset(arena(rank) + begin, kPoison, bytes);
        for (size_t i = end; i < next; ++i) arena(rank)[i] = static_cast<char>(canary(i));
        forbid_access(rank, last_end, begin);
        forbid_access(rank, end, next);
        arrays.push_back({begin, bytes, site});
    }

    static void enter_thread() {
        Block& block = *current();
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(nullptr, &block.scheduler_.stack_bottom, &block.scheduler_.stack_bytes);
#endif
        (*block.body_)();
        Thread& self = block.threads_[block.running_];
        self.state = State::exited;
        switch_context(self.context, block.scheduler_, /*from_is_done=*/true);
    }

    void wait(State state, Site site) {
        Thread& self = threads_[running_];
        self.state = state;
        self.site = site;
        switch_context(self.context, scheduler_);
    }

    bool everyone(State state) const {
        return std::all_of(threads_.begin(), threads_.end(), [&](const Thread& thread) { return thread.state == state; });
    }

    // Opens the barrier of the block whose first thread this is once all its threads are there.
    bool open_barrier(int first) {
        for (int t = first; t < first + of_block_; ++t)
            if (threads_[t].state != State::at_barrier) return false;
        require_one_site(first, first + of_block_);
        for (int t = first; t < first + of_block_; ++t) threads_[t].state = State::runnable;
        return true;
    }

    bool open_cluster_barrier() {
        int last = -1;
        for (int t = 0; t < count_; ++t) {
            if (threads_[t].state == State::exited) continue;
            if (threads_[t].state != State::at_cluster_barrier) return false;
            if (last >= 0 && !(threads_[t].site == threads_[last].site)) die_of_divergence(last, t + 1);
            last = t;
        }
        for (Thread& thread : threads_)
            if (thread.state == State::at_cluster_barrier) thread.state = State::runnable;
        return last >= 0;
    }

    // Every runnable thread runs to its next stop, or further in a wave that runs ahead. The result is false if none could run.
    bool take_turns() {
        bool progressed = false;
        const int ahead = order_.wave_ahead((count_ + hipconv::kWaveSize - 1) / hipconv::kWaveSize) * hipconv::kWaveSize;
        if (ahead >= 0)
            while (take_turns(ahead, std::min(ahead + hipconv::kWaveSize, count_))) progressed = true;
        return take_turns(0, count_) || progressed;
    }

    // This overload does the same for some waves.
    bool take_turns(int first, int last) {
        bool progressed = false;
        for (const int t : order_.turns(count_)) {
            Thread& thread = threads_[t];
            if (t < first || t >= last) continue;
            if (thread.state == State::watching && thread.condition(thread.watched, thread.watched_number))
                thread.state = State::runnable;
            if (thread.state != State::runnable) continue;
            running_ = t;
            switch_context(scheduler_, threads_[t].context);
            progressed = true;
        }
        for (int begin = first; begin < last; begin += hipconv::kWaveSize)
            finish_wave_op(begin, std::min(begin + hipconv::kWaveSize, count_));
        return progressed;
    }

    // Results are worked out for all lanes before any lane continues, so that no lane sees another's next operation.
    void finish_wave_op(int begin, int end) {
        for (int t = begin; t < end; ++t)
            if (threads_[t].state != State::at_wave_op) return;
        require_one_site(begin, end);
        if (threads_[begin].op == WaveOp::collective) return finish_collective(begin, end);
        uint64_t ballot = 0;
        for (int t = begin; t < end; ++t) ballot |= static_cast<uint64_t>(threads_[t].value != 0) << (t - begin);
        for (int t = begin; t < end; ++t) {
            Thread& thread = threads_[t];
            const int source = begin + thread.source;
            thread.result = thread.op == WaveOp::ballot ? ballot
                            : source < end              ? threads_[source].value
                                                        : ~0ull;  // there is no such lane
            thread.state = State::runnable;
        }
    }

    void finish_collective(int begin, int end) {
        if (end - begin != hipconv::kWaveSize)
            die("%s is in a wave of %d threads: %s takes all %d lanes", name(begin).c_str(), end - begin,
                threads_[begin].site.what, hipconv::kWaveSize);
        void* lanes[hipconv::kWaveSize];
        for (int t = begin; t < end; ++t) {
            lanes[t - begin] = reinterpret_cast<void*>(threads_[t].value);
            threads_[t].state = State::runnable;
        }
        threads_[begin].collective(lanes);
    }

    void require_one_site(int begin, int end) const {
        for (int t = begin; t < end; ++t)
            if (!(threads_[t].site == threads_[begin].site)) die_of_divergence(begin, end);
    }

    void check_canaries(int rank) const {
        allow_access(rank, 0, kArenaBytes);
        for (const SharedArray& array : shared_[rank]) {
            const size_t end = array.begin + array.bytes, next = array.begin + padded(array.bytes) + kCanaryBytes;
            if (&array == &shared_[rank].front()) check_canary(rank, array, 0, array.begin);
            check_canary(rank, array, end, next);
        }
    }

    void check_canary(int rank, const SharedArray& array, size_t begin, size_t end) const {
        for (size_t i = begin; i < end; ++i)
            if (static_cast<unsigned char>(arena(rank)[i]) != canary(i))
                die("writes shared memory outside its arrays: at byte %td of the %zu declared at %s:%d",
                    static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(array.begin), array.bytes, array.site.file,
                    array.site.line);
    }

    std::string name(int t) const {
        const dim3 index = threads_[t].index;
        return "thread (" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
    }

    std::string describe(int t) const {
        const Thread& thread = threads_[t];
        if (thread.state == State::exited) return name(t) + " has exited";
        return name(t) + " waits at " + thread.site.what + " (" + thread.site.file + ":" + std::to_string(thread.site.line) +
               ")";
    }

    [[noreturn]] void die_of_divergence(int begin, int end) const {
        int waiting = begin;  // some thread waits: otherwise there would be progress
        while (threads_[waiting].state == State::exited) ++waiting;
        int other = begin;
        const auto alike = [](const Thread& a, const Thread& b) { return a.state == b.state && a.site == b.site; };
        while (other < end - 1 && alike(threads_[other], threads_[waiting])) ++other;
        die("%s, but %s: a barrier or wave operation must be reached by all", describe(waiting).c_str(),
            describe(other).c_str());
    }

    [[noreturn]] __attribute__((format(printf, 2, 3))) void die(const char* format, ...) const {
        std::fprintf(stderr, "simt: kernel %s, block (%u, %u, %u): ", kernel_, index_.x, index_.y, index_.z);
        va_list arguments;
        va_start(arguments, format);
        std::vfprintf(stderr, format, arguments);
        va_end(arguments);
        std::fprintf(stderr, "\n");
        std::abort();
    }

    const char* kernel_;
    dim3 size_, index_;
    int of_block_, count_;  // threads of a block, and of all that run together
    size_t launch_shared_;
    Order& order_;
    std::vector<Thread> threads_;
    Context scheduler_;
    int running_ = 0;
    const std::function<void()>* body_ = nullptr;
    std::vector<std::vector<SharedArray>> shared_;  // of each block, in order of declaration
};

template <typename T>
T* shared(size_t count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return static_cast<T*>(Block::current()->shared(count * sizeof(T), {"a shared array", file, line}));
}

template <typename T>
T* large_shared(size_t count, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return static_cast<T*>(Block::current()->large_shared(count * sizeof(T), {"a large shared array", file, line}));
}

}  // namespace simt
