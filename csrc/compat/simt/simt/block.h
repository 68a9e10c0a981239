// Runs one block of a kernel: each thread a fiber, all on one OS thread, switching only where they must wait for each other.
//
// A thread runs until it exits, reaches a barrier or reaches a wave operation. The scheduler lets the threads take turns, finishes
// a wave operation once every lane of the wave has arrived, and opens a barrier once every thread of the block has. What a GPU
// leaves undefined ends the process with a message: a barrier or wave operation that some threads miss, or that threads reach at
// different places of the source; shared memory written past its end.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "arch.h"
#include "simt/fiber.h"
#include "simt/order.h"

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace simt {

constexpr int kMaxThreads = 1024;
constexpr size_t kSharedBytes = 64 * 1024;
constexpr size_t kCanaryBytes = 64;
constexpr unsigned char kPoison = 0xff;  // NaN in f32, f16 and bf16
constexpr unsigned char kCanary = 0xa5;

// Where in the source a thread waits.
struct Site {
    const char* what;
    const char* file;
    int line;
    bool operator==(const Site& other) const {
        return line == other.line && std::strcmp(what, other.what) == 0 && std::strcmp(file, other.file) == 0;
    }
};

enum class State { runnable, at_barrier, at_wave_op, exited };
enum class WaveOp { shuffle, ballot };

struct Thread {
    Context context;
    dim3 index;
    State state = State::runnable;
    Site site{};
    WaveOp op = WaveOp::shuffle;
    uint64_t value = 0;   // what this lane brings to a wave operation
    int source = 0;       // the lane whose value it takes, in a shuffle
    uint64_t result = 0;  // what it takes away
    size_t next_shared = 0;
};

class Block {
  public:
    // The block that the calling OS thread is running; kernels reach it through the HIP spelling.
    static Block*& current() {
        static thread_local Block* block = nullptr;
        return block;
    }

    Block(const char* kernel, dim3 size, Order& order)
        : kernel_(kernel), size_(size), count_(static_cast<int>(size.x * size.y * size.z)), order_(order), threads_(count_) {
        std::vector<Stack>& stacks = stack_pool();
        while (static_cast<int>(stacks.size()) < count_) stacks.emplace_back();
    }

    void run(dim3 index, const std::function<void()>& body) {
        index_ = index;
        body_ = &body;
        current() = this;
        shared_.clear();
        for (int t = 0; t < count_; ++t) {
            const Stack& stack = stack_pool()[t];
            threads_[t] = Thread();
            threads_[t].index = dim3(t % size_.x, t / size_.x % size_.y, t / (size_.x * size_.y));
            threads_[t].context = Context{stack.fresh(&Block::enter_thread), stack.bottom(), Stack::kBytes, nullptr};
        }
        while (!everyone(State::exited)) {
            const bool progressed = take_turns();
            if (everyone(State::at_barrier)) {
                require_one_site(0, count_);
                for (Thread& thread : threads_) thread.state = State::runnable;
            } else if (!progressed) {
                die_of_divergence(0, count_);
            }
        }
        check_canaries();
        current() = nullptr;
    }

    // ---- called from threads ----------------------------------------------------------------------------------------

    void barrier(Site site) { wait(State::at_barrier, site); }

    uint64_t wave_op(WaveOp op, uint64_t value, int source, Site site) {
        Thread& self = threads_[running_];
        self.op = op;
        self.value = value;
        self.source = source;
        wait(State::at_wave_op, site);
        return self.result;
    }

    // Shared memory, by order of declaration: the first thread to come allocates and poisons it, the others find it.
    void* shared(size_t bytes) {
        const size_t number = threads_[running_].next_shared++;
        if (number == shared_.size()) {
            const size_t begin = shared_.empty() ? 0 : shared_.back().first + padded(shared_.back().second) + kCanaryBytes;
            if (begin + padded(bytes) > kSharedBytes)
                die("needs %zu bytes of shared memory, and a block has %zu", begin + bytes, kSharedBytes);
            std::memset(arena() + begin, kPoison, bytes);
            std::memset(arena() + begin + bytes, kCanary, padded(bytes) - bytes + kCanaryBytes);
            shared_.emplace_back(begin, bytes);
        }
        if (shared_[number].second != bytes)
            die("thread %d declares shared memory number %zu with another size than the first thread did", running_, number);
        return arena() + shared_[number].first;
    }

    dim3 thread_index() const { return threads_[running_].index; }
    dim3 block_index() const { return index_; }
    dim3 block_size() const { return size_; }
    int lane() const { return running_ % hipconv::kWaveSize; }

  private:
    static std::vector<Stack>& stack_pool() {
        static thread_local std::vector<Stack> stacks;
        return stacks;
    }
    static char* arena() {
        alignas(16) static thread_local char memory[kSharedBytes + 2 * kCanaryBytes + 4096];
        return memory;
    }
    static size_t padded(size_t bytes) { return (bytes + 15) / 16 * 16; }

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

    // Every runnable thread runs to its next stop. False if none could.
    bool take_turns() {
        bool progressed = false;
        for (const int t : order_.turns(count_)) {
            if (threads_[t].state != State::runnable) continue;
            running_ = t;
            switch_context(scheduler_, threads_[t].context);
            progressed = true;
        }
        for (int begin = 0; begin < count_; begin += hipconv::kWaveSize)
            finish_wave_op(begin, std::min(begin + hipconv::kWaveSize, count_));
        return progressed;
    }

    // Results are worked out for all lanes before any continues, so that no lane sees another's next operation.
    void finish_wave_op(int begin, int end) {
        for (int t = begin; t < end; ++t)
            if (threads_[t].state != State::at_wave_op) return;
        require_one_site(begin, end);
        uint64_t ballot = 0;
        for (int t = begin; t < end; ++t) ballot |= static_cast<uint64_t>(threads_[t].value != 0) << (t - begin);
        for (int t = begin; t < end; ++t) {
            Thread& thread = threads_[t];
            const int source = begin + thread.source;
            thread.result = thread.op == WaveOp::ballot ? ballot : source < end ? threads_[source].value : ~0ull;  // no such lane
            thread.state = State::runnable;
        }
    }

    void require_one_site(int begin, int end) const {
        for (int t = begin; t < end; ++t)
            if (!(threads_[t].site == threads_[begin].site)) die_of_divergence(begin, end);
    }

    void check_canaries() const {
        for (const auto& [begin, bytes] : shared_)
            for (size_t i = begin + bytes; i < begin + padded(bytes) + kCanaryBytes; ++i)
                if (static_cast<unsigned char>(arena()[i]) != kCanary)
                    die("writes shared memory past its end: byte %zu of %zu", i - begin, bytes);
    }

    std::string describe(int t) const {
        const Thread& thread = threads_[t];
        std::string text = "thread " + std::to_string(t);
        if (thread.state == State::exited) return text + " has exited";
        return text + " waits at " + thread.site.what + " (" + thread.site.file + ":" + std::to_string(thread.site.line) + ")";
    }

    [[noreturn]] void die_of_divergence(int begin, int end) const {
        int waiting = begin;  // somebody does: otherwise there would be progress
        while (threads_[waiting].state == State::exited) ++waiting;
        int other = begin;
        while (other < end - 1 && threads_[other].state == threads_[waiting].state && threads_[other].site == threads_[waiting].site)
            ++other;
        die("%s, but %s: a barrier or wave operation must be reached by all", describe(waiting).c_str(), describe(other).c_str());
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
    int count_;
    Order& order_;
    std::vector<Thread> threads_;
    Context scheduler_;
    int running_ = 0;
    const std::function<void()>* body_ = nullptr;
    std::vector<std::pair<size_t, size_t>> shared_;  // offset and bytes of each declaration
};

template <typename T>
T* shared(size_t count) {
    return static_cast<T*>(Block::current()->shared(count * sizeof(T)));
}

}  // namespace simt
