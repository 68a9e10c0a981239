// The order says when the threads of a block, and the blocks of a grid, take their turns. If a barrier between a lane and a
// lower one is missing, ascending order hides it, so tests run a kernel in several orders. If one is missing between waves that
// have barriers of their own before it, it stays hidden as long as waves keep pace: so in shuffled order one wave runs ahead.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace simt {

class Order {
  public:
    // HIPCONV_SIMT_ORDER is ascending (also when unset), descending, shuffled or shuffled:SEED.
    static Order from_environment() {
        const char* value = std::getenv("HIPCONV_SIMT_ORDER");
        const std::string text = value ? value : "ascending";
        if (text == "ascending" || text.empty()) return Order(Kind::ascending, 0);
        if (text == "descending") return Order(Kind::descending, 0);
        if (text == "shuffled") return Order(Kind::shuffled, 1);
        if (text == "none") return Order(Kind::none, 0);
        const std::string seed = text.rfind("shuffled:", 0) == 0 ? text.substr(9) : "";
        if (!seed.empty() && seed.size() < 20 && seed.find_first_not_of("0123456789") == std::string::npos)
            return Order(Kind::shuffled, std::strtoull(seed.c_str(), nullptr, 10));
        throw std::invalid_argument("HIPCONV_SIMT_ORDER: got '" + text +
                                    "', expected ascending, descending, shuffled, shuffled:SEED or none");
    }

    // Tells whether threads run at all: if not, launches are only checked, whatever their size.
    bool runs() const { return kind_ != Kind::none; }

    // The turns of `count` threads from one barrier to the next; a shuffled order differs each time.
    const int* turns(int count) {
        if (static_cast<int>(turns_.size()) != count) {
            turns_.resize(count);
            std::iota(turns_.begin(), turns_.end(), 0);
            if (kind_ == Kind::descending) std::reverse(turns_.begin(), turns_.end());
        }
        int* const turns = turns_.data();
        for (int i = count - 1; kind_ == Kind::shuffled && i > 0; --i) {
            const uint64_t other = random() % (i + 1);
            const int turn = turns[i];
            turns[i] = turns[other];
            turns[other] = turn;
        }
        return turns;
    }

    // The wave that runs as far as it gets alone, before the others take a turn; -1 stands for none.
    int wave_ahead(int waves) { return kind_ == Kind::shuffled && waves > 1 ? static_cast<int>(random() % waves) : -1; }

    // The block that runs as number `turn` of `count`. A shuffled order walks with a stride coprime to the count, which
    // needs no list.
    uint64_t block(uint64_t turn, uint64_t count) const {
        if (kind_ == Kind::ascending) return turn;
        if (kind_ == Kind::descending) return count - 1 - turn;
        uint64_t stride = (seed_ * 2654435761u + 12345u) % count | 1u;
        while (std::gcd(stride, count) != 1) stride += 2;
        return static_cast<uint64_t>((static_cast<unsigned __int128>(turn) * stride + seed_) % count);
    }

  private:
    enum class Kind { ascending, descending, shuffled, none };
    Order(Kind kind, uint64_t seed) : kind_(kind), seed_(seed), state_(seed) {}

    uint64_t random() {  // this is splitmix64
        uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }

    Kind kind_;
    uint64_t seed_, state_;
    std::vector<int> turns_;
};

}  // namespace simt
