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
//
// runtime.cpp, which is compiled once a module, has the functions: compilers took a third of a second for them in each file of
// kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "device/arch.h"
#include "simt/fiber.h"

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

// A body is what each thread of a launch does.
struct Body {
    void (*run)(const void*);
    const void* what;
    void operator()() const { run(what); }
};
template <typename F>
Body body_of(const F& f) {
    return {[](const void* what) { (*static_cast<const F*>(what))(); }, &f};
}

class Order;

class __attribute__((visibility("hidden"))) Block {
  public:
    // The block that the calling OS thread is running; kernels reach it through the HIP spelling.
    static Block*& current();

    Block(const char* kernel, dim3 size, size_t launch_shared, Order& order, int cluster = 1);
    Block(const Block&) = delete;
    ~Block();
    void run(dim3 index, const Body& body);

    // ---- called from threads ----------------------------------------------------------------------------------------

    void barrier(Site site);

    // Threads that have exited are not waited for, as on a GPU.
    void cluster_barrier(Site site);

    // The place in another block's LDS that corresponds to this one in the calling thread's own.
    void* in_block(const void* place, int rank) const;
    int rank() const;  // of the calling thread's block, in its cluster

    uint64_t wave_op(WaveOp op, uint64_t value, int source, Site site);

    // The whole wave must come, because the value of a missing lane would be undefined.
    void wave_collective(Collective collective, void* mine, Site site);

    // A thread waits here where a GPU's thread would look at memory again and again.
    void wait_until(Condition condition, const void* memory, int number, Site site);

    // Copies past the registers are finished as late as the thread allows.
    void copy_later(void* to, const void* from, size_t bytes, size_t zeros);
    void close_copy_group();
    void wait_for_copies(int groups_left);

    // Shared arrays are found by order of declaration: the first thread to come allocates and poisons one, the others find it.
    void* shared(size_t bytes, Site site, size_t limit = kSharedBytes);

    // This shared array takes all the memory that the launch asked for, on targets where a launch asks.
    void* large_shared(size_t bytes, Site site);

    // This returns the first lane of the segment of `width` lanes that the calling lane is in.
    int segment_begin(int width) const;

    // Those of the calling thread.
    static dim3 thread_index();
    static dim3 block_index();
    static dim3 block_size();
    static int lane();

  private:
    void allocate_shared(int rank, size_t bytes, Site site, size_t limit);
    static void enter_thread();
    void wait(State state, Site site);
    bool everyone(State state) const;
    bool open_barrier(int first);
    bool open_cluster_barrier();
    bool take_turns();
    bool take_turns(int first, int last);
    void finish_wave_op(int begin, int end);
    void finish_collective(int begin, int end);
    void require_one_site(int begin, int end) const;
    void check_canaries(int rank) const;
    void check_canary(int rank, const SharedArray& array, size_t begin, size_t end) const;
    [[noreturn]] void die_of_divergence(int begin, int end) const;
    [[noreturn]] __attribute__((format(printf, 2, 3))) void die(const char* format, ...) const;

    const char* kernel_;
    dim3 size_, index_;
    int of_block_, count_;  // threads of a block, and of all that run together
    size_t launch_shared_;
    Order& order_;
    Thread* threads_;
    Context scheduler_;
    int running_ = 0;
    const Body* body_ = nullptr;
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
