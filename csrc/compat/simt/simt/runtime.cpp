// The functions of block.h, which run the blocks of kernels, are compiled here, once a module.
#include <hip/hip_runtime.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O2")  // threads come by here at each wave operation; for what stands above, -Og of simt's builds holds
#endif

#include "simt/order.h"

namespace simt {

// All modules of a process share these: thousands of mappings and their pages.
inline std::vector<Stack>& stack_pool() {
    static thread_local std::vector<Stack> stacks;
    return stacks;
}
inline std::vector<std::vector<char>>& arenas() {
    static thread_local std::vector<std::vector<char>> memory;
    return memory;
}

namespace {

constexpr size_t kArenaBytes = kMostSharedBytes + (kSharedArrays + 1) * kCanaryBytes;

thread_local Block* running_block = nullptr;
thread_local dim3 grid;
thread_local hipError_t error = hipSuccess;

char* arena(int rank) { return arenas()[static_cast<size_t>(rank)].data(); }
size_t padded(size_t bytes) { return (bytes + 15) / 16 * 16; }

// AddressSanitizer stops at a forbidden byte, reads included; without it the canaries tell of writes when the block is
// done.
void forbid_access(int rank, size_t begin, size_t end) {
#if defined(__SANITIZE_ADDRESS__)
    ASAN_POISON_MEMORY_REGION(arena(rank) + begin, end - begin);
#else
    (void)rank, (void)begin, (void)end;
#endif
}
void allow_access(int rank, size_t begin, size_t end) {
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(arena(rank) + begin, end - begin);
#else
    (void)rank, (void)begin, (void)end;
#endif
}

std::string name(const Thread& thread) {
    const dim3 index = thread.index;
    return "thread (" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

std::string describe(const Thread& thread) {
    if (thread.state == State::exited) return name(thread) + " has exited";
    return name(thread) + " waits at " + thread.site.what + " (" + thread.site.file + ":" + std::to_string(thread.site.line) +
           ")";
}

}  // namespace

hipError_t& last_error() { return error; }
dim3& grid_size() { return grid; }

Block*& Block::current() { return running_block; }

Block::Block(const char* kernel, dim3 size, size_t launch_shared, Order& order, int cluster)
    : kernel_(kernel), size_(size), of_block_(static_cast<int>(size.x * size.y * size.z)), count_(of_block_ * cluster),
      launch_shared_(launch_shared), order_(order), threads_(new Thread[static_cast<size_t>(count_)]), shared_(cluster) {
    std::vector<Stack>& stacks = stack_pool();
    while (static_cast<int>(stacks.size()) < count_) stacks.emplace_back();
    while (static_cast<int>(arenas().size()) < cluster) arenas().emplace_back(kArenaBytes);
    if (cluster > kMostBlocksOfACluster || (cluster > 1 && of_block_ % hipconv::kWaveSize != 0))
        die("a cluster has up to %d blocks of whole waves", kMostBlocksOfACluster);
}

Block::~Block() { delete[] threads_; }

void Block::run(dim3 index, const Body& body) {
    index_ = index;
    body_ = &body;
    running_block = this;
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
    running_block = nullptr;
}

void Block::barrier(Site site) { wait(State::at_barrier, site); }

void Block::cluster_barrier(Site site) { wait(State::at_cluster_barrier, site); }

void* Block::in_block(const void* place, int rank) const {
    if (rank < 0 || rank >= count_ / of_block_) die("%s asks for the LDS of block %d", name(threads_[running_]).c_str(), rank);
    return arena(rank) + (static_cast<const char*>(place) - arena(this->rank()));
}
int Block::rank() const { return running_ / of_block_; }

uint64_t Block::wave_op(WaveOp op, uint64_t value, int source, Site site) {
    Thread& self = threads_[running_];
    self.op = op;
    self.value = value;
    self.source = source;
    wait(State::at_wave_op, site);
    return self.result;
}

void Block::wave_collective(Collective collective, void* mine, Site site) {
    threads_[running_].collective = collective;
    wave_op(WaveOp::collective, reinterpret_cast<uint64_t>(mine), 0, site);
}

void Block::wait_until(Condition condition, const void* memory, int number, Site site) {
    Thread& self = threads_[running_];
    self.condition = condition;
    self.watched = memory;
    self.watched_number = number;
    wait(State::watching, site);
}

void Block::copy_later(void* to, const void* from, size_t bytes, size_t zeros) {
    Thread& self = threads_[running_];
    self.copies.push_back({to, from, bytes, zeros, self.copy_groups});
}
void Block::close_copy_group() { ++threads_[running_].copy_groups; }
void Block::wait_for_copies(int groups_left) {
    Thread& self = threads_[running_];
    size_t done = 0;
    while (done < self.copies.size() && self.copies[done].group < self.copy_groups - groups_left) {
        const PendingCopy& copy = self.copies[done++];
        if (copy.bytes) std::memcpy(copy.to, copy.from, copy.bytes);
        std::memset(static_cast<char*>(copy.to) + copy.bytes, 0, copy.zeros);
    }
    self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(done));
}

void* Block::shared(size_t bytes, Site site, size_t limit) {
    const size_t number = threads_[running_].next_shared++;
    if (number == shared_[rank()].size()) allocate_shared(rank(), bytes, site, limit);
    const SharedArray& array = shared_[rank()][number];
    if (array.bytes != bytes || !(array.site == site))
        die("%s declares %zu bytes at %s:%d where another thread declares %zu at %s:%d", name(threads_[running_]).c_str(),
            bytes, site.file, site.line, array.bytes, array.site.file, array.site.line);
    return arena(rank()) + array.begin;
}

void* Block::large_shared(size_t bytes, Site site) {
    const size_t asked = hipconv::kCopiesPastRegisters ? launch_shared_ : bytes;
    if (asked < bytes) die("declares %zu bytes of large shared memory, and its launch asks for %zu", bytes, asked);
    return shared(asked, site, kLargeSharedBytes);
}

int Block::segment_begin(int width) const {
    if (width < 1 || width > hipconv::kWaveSize || (width & (width - 1)) != 0)
        die("%s shuffles with width %d, and a wave has %d lanes", name(threads_[running_]).c_str(), width, hipconv::kWaveSize);
    return lane() & ~(width - 1);
}

dim3 Block::thread_index() { return running_block->threads_[running_block->running_].index; }
dim3 Block::block_index() {
    const dim3 index = running_block->index_;
    return dim3(index.x + static_cast<unsigned>(running_block->rank()), index.y, index.z);
}
dim3 Block::block_size() { return running_block->size_; }
int Block::lane() { return running_block->running_ % running_block->of_block_ % hipconv::kWaveSize; }

// Canaries lie before the first array and after each.
void Block::allocate_shared(int rank, size_t bytes, Site site, size_t limit) {
    std::vector<SharedArray>& arrays = shared_[rank];
    const size_t last_end = arrays.empty() ? 0 : arrays.back().begin + padded(arrays.back().bytes);
    const size_t begin = last_end + kCanaryBytes, end = begin + bytes, next = begin + padded(bytes) + kCanaryBytes;
    const size_t used = next - (arrays.size() + 2) * kCanaryBytes;
    if (used > limit) die("needs %zu bytes of shared memory, and a block has %zu (%s:%d)", used, limit, site.file, site.line);
    if (arrays.size() == kSharedArrays) die("declares over %zu shared arrays (%s:%d)", kSharedArrays, site.file, site.line);
    allow_access(rank, last_end, next);
    char* const memory = arena(rank);
    for (size_t i = last_end; i < begin; ++i) memory[i] = static_cast<char>(canary(i));
    std::memset(memory + begin, kPoison, bytes);
    for (size_t i = end; i < next; ++i) memory[i] = static_cast<char>(canary(i));
    forbid_access(rank, last_end, begin);
    forbid_access(rank, end, next);
    arrays.push_back({begin, bytes, site});
}

void Block::enter_thread() {
    Block& block = *running_block;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &block.scheduler_.stack_bottom, &block.scheduler_.stack_bytes);
#endif
    (*block.body_)();
    Thread& self = block.threads_[block.running_];
    self.state = State::exited;
    switch_context(self.context, block.scheduler_, /*from_is_done=*/true);
}

void Block::wait(State state, Site site) {
    Thread& self = threads_[running_];
    self.state = state;
    self.site = site;
    switch_context(self.context, scheduler_);
}

bool Block::everyone(State state) const {
    for (int t = 0; t < count_; ++t)
        if (threads_[t].state != state) return false;
    return true;
}

// Opens the barrier of the block whose first thread this is once all its threads are there.
bool Block::open_barrier(int first) {
    for (int t = first; t < first + of_block_; ++t)
        if (threads_[t].state != State::at_barrier) return false;
    require_one_site(first, first + of_block_);
    for (int t = first; t < first + of_block_; ++t) threads_[t].state = State::runnable;
    return true;
}

bool Block::open_cluster_barrier() {
    int last = -1;
    for (int t = 0; t < count_; ++t) {
        if (threads_[t].state == State::exited) continue;
        if (threads_[t].state != State::at_cluster_barrier) return false;
        if (last >= 0 && !(threads_[t].site == threads_[last].site)) die_of_divergence(last, t + 1);
        last = t;
    }
    for (int t = 0; t < count_; ++t)
        if (threads_[t].state == State::at_cluster_barrier) threads_[t].state = State::runnable;
    return last >= 0;
}

// Every runnable thread runs to its next stop, or further in a wave that runs ahead. The result is false if none could run.
bool Block::take_turns() {
    bool progressed = false;
    const int ahead = order_.wave_ahead((count_ + hipconv::kWaveSize - 1) / hipconv::kWaveSize) * hipconv::kWaveSize;
    if (ahead >= 0)
        while (take_turns(ahead, std::min(ahead + hipconv::kWaveSize, count_))) progressed = true;
    return take_turns(0, count_) || progressed;
}

// This overload does the same for some waves.
bool Block::take_turns(int first, int last) {
    bool progressed = false;
    const int* const turns = order_.turns(last - first);
    for (int i = 0; i < last - first; ++i) {
        const int t = first + turns[i];
        Thread& thread = threads_[t];
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
void Block::finish_wave_op(int begin, int end) {
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

void Block::finish_collective(int begin, int end) {
    if (end - begin != hipconv::kWaveSize)
        die("%s is in a wave of %d threads: %s takes all %d lanes", name(threads_[begin]).c_str(), end - begin,
            threads_[begin].site.what, hipconv::kWaveSize);
    void* lanes[hipconv::kWaveSize];
    for (int t = begin; t < end; ++t) {
        lanes[t - begin] = reinterpret_cast<void*>(threads_[t].value);
        threads_[t].state = State::runnable;
    }
    threads_[begin].collective(lanes);
}

void Block::require_one_site(int begin, int end) const {
    for (int t = begin; t < end; ++t)
        if (!(threads_[t].site == threads_[begin].site)) die_of_divergence(begin, end);
}

void Block::check_canaries(int rank) const {
    allow_access(rank, 0, kArenaBytes);
    for (const SharedArray& array : shared_[rank]) {
        const size_t end = array.begin + array.bytes, next = array.begin + padded(array.bytes) + kCanaryBytes;
        if (&array == &shared_[rank].front()) check_canary(rank, array, 0, array.begin);
        check_canary(rank, array, end, next);
    }
}

void Block::check_canary(int rank, const SharedArray& array, size_t begin, size_t end) const {
    const char* const memory = arena(rank);
    for (size_t i = begin; i < end; ++i)
        if (static_cast<unsigned char>(memory[i]) != canary(i))
            die("writes shared memory outside its arrays: at byte %td of the %zu declared at %s:%d",
                static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(array.begin), array.bytes, array.site.file,
                array.site.line);
}

void Block::die_of_divergence(int begin, int end) const {
    int waiting = begin;  // some thread waits: otherwise there would be progress
    while (threads_[waiting].state == State::exited) ++waiting;
    int other = begin;
    const auto alike = [](const Thread& a, const Thread& b) { return a.state == b.state && a.site == b.site; };
    while (other < end - 1 && alike(threads_[other], threads_[waiting])) ++other;
    die("%s, but %s: a barrier or wave operation must be reached by all", describe(threads_[waiting]).c_str(),
        describe(threads_[other]).c_str());
}

void Block::die(const char* format, ...) const {
    std::fprintf(stderr, "simt: kernel %s, block (%u, %u, %u): ", kernel_, index_.x, index_.y, index_.z);
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "\n");
    std::abort();
}

namespace {

// The limits of the cards: a block has at most 1024 threads; AMD takes fewer than 2^32 work-items per dimension;
// NVIDIA takes at most 64 threads in z, and fewer than 2^31 blocks in x and 2^16 in y and z.
bool launchable(dim3 grid, dim3 block) {
    const auto fits = [](uint64_t blocks, uint64_t threads) {
        return blocks > 0 && threads > 0 && blocks * threads < (1ull << 32);
    };
    return fits(grid.x, block.x) && fits(grid.y, block.y) && fits(grid.z, block.z) && grid.x < (1u << 31) &&
           grid.y < (1u << 16) && grid.z < (1u << 16) && block.z <= 64 &&
           static_cast<uint64_t>(block.x) * block.y * block.z <= static_cast<uint64_t>(kMaxThreads);
}

// A file gets a line for each launch, if the environment names one.
void note_launch(const char* kernel) {
    const char* path = std::getenv("HIPCONV_SIMT_LAUNCHES");
    if (std::FILE* file = path ? std::fopen(path, "a") : nullptr) {
        std::fprintf(file, "%s\n", kernel);
        std::fclose(file);
    }
}

}  // namespace

void launch(const char* kernel, dim3 blocks, dim3 block, size_t shared_bytes, int cluster, const Body& body) {
    if (!launchable(blocks, block) || blocks.x % static_cast<unsigned>(cluster) != 0) {
        error = hipErrorInvalidConfiguration;
        return;
    }
    note_launch(kernel);
    Order order = Order::from_environment();
    if (!order.runs()) return;
    Block runner(kernel, block, shared_bytes, order, cluster);
    grid = blocks;
    const uint64_t across = blocks.x / cluster, count = across * blocks.y * blocks.z;
    for (uint64_t turn = 0; turn < count; ++turn) {
        const uint64_t index = order.block(turn, count);
        runner.run(dim3(index % across * cluster, index / across % blocks.y, index / (across * blocks.y)), body);
    }
}

}  // namespace simt
