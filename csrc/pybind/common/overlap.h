// Tells whether two strided views share a byte, exactly: interleaved views of one buffer, like the halves of `xz.chunk(2,
// dim=1)`, do not, although the ranges they span do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

namespace hipconv {

constexpr int kMaxRank = 8;

// This describes a view as bytes: element addresses are begin + sum_k i_k * stride_k with 0 <= i_k < size_k. Nothing here
// allocates, because every call of an op checks for overlap.
struct StridedBytes {
    int64_t begin;
    int64_t element_bytes;
    int rank;
    int64_t sizes[kMaxRank], strides[kMaxRank];
};

namespace overlap_detail {

// A term is one integer variable v in [0, last], which contributes stride * v, where stride > 0.
struct Term {
    int64_t stride, last;
};

// This has terms and a target interval [low, high], and asks whether a choice of variables has a sum in it.
class Equation {
  public:
    Equation(int64_t low, int64_t high) : low_(low), high_(high) {}

    // Adds a variable in [first, last] with any stride, and turns it into a Term by moving the target.
    void add(int64_t stride, int64_t first, int64_t last) {
        if (stride == 0) return;
        if (stride < 0) {
            stride = -stride;
            std::swap(first, last);
            first = -first;
            last = -last;
        }
        low_ -= stride * first;
        high_ -= stride * first;
        for (int k = 0; k < count_; ++k) {
            if (terms_[k].stride == stride) {  // two views of one buffer have equal strides: one variable serves both
                terms_[k].last += last - first;
                return;
            }
        }
        if (last > first) terms_[count_++] = {stride, last - first};
    }

    bool solvable() {
        std::sort(terms_, terms_ + count_, [](const Term& a, const Term& b) { return a.stride > b.stride; });
        steps_ = 0;
        return search(0, low_, high_);
    }

  private:
    // The widest stride goes first, because the rest then leave few values for it. A problem that is not settled in this many
    // steps counts as solved, so that the caller refuses; no layout a tensor library makes comes near.
    static constexpr int kMaxSteps = 1 << 20;

    bool search(int next, int64_t low, int64_t high) {
        if (++steps_ > kMaxSteps) return true;
        int64_t rest = 0;
        int64_t divisor = 0;
        for (int k = next; k < count_; ++k) {
            rest += terms_[k].stride * terms_[k].last;
            divisor = std::gcd(divisor, terms_[k].stride);
        }
        if (high < 0 || low > rest) return false;
        if (low <= 0) return true;                                // all remaining variables are zero
        if (high / divisor == (low - 1) / divisor) return false;  // no multiple of the divisor is in [low, high]
        const Term term = terms_[next];
        rest -= term.stride * term.last;
        const int64_t first = std::max<int64_t>(0, (low - rest + term.stride - 1) / term.stride);
        const int64_t last = std::min(term.last, high / term.stride);
        for (int64_t v = first; v <= last; ++v)
            if (search(next + 1, low - v * term.stride, high - v * term.stride)) return true;
        return false;
    }

    int64_t low_, high_;
    Term terms_[2 * kMaxRank];
    int count_ = 0, steps_ = 0;
};

inline bool empty(const StridedBytes& view) {
    return std::any_of(view.sizes, view.sizes + view.rank, [](int64_t size) { return size == 0; });
}

// The first byte that a view touches and one past the last.
inline std::pair<int64_t, int64_t> span(const StridedBytes& view) {
    int64_t low = view.begin, high = view.begin + view.element_bytes;
    for (int k = 0; k < view.rank; ++k) {
        const int64_t reach = (view.sizes[k] - 1) * view.strides[k];
        (reach < 0 ? low : high) += reach;
    }
    return {low, high};
}

// Tells whether the axes nest, each stride reaching past all that the smaller ones cover, as in nearly every tensor.
inline bool nests(const StridedBytes& view) {
    int64_t covered = view.element_bytes, last = 0;
    for (int n = 0; n < view.rank; ++n) {
        int next = -1;  // the axis with the smallest stride above the last
        for (int k = 0; k < view.rank; ++k)
            if (view.strides[k] > last && (next < 0 || view.strides[k] < view.strides[next])) next = k;
        if (next < 0 || view.strides[next] < covered) return false;
        last = view.strides[next];
        covered += (view.sizes[next] - 1) * last;
    }
    return true;
}

}  // namespace overlap_detail

inline bool overlaps(const StridedBytes& a, const StridedBytes& b) {
    using namespace overlap_detail;
    if (empty(a) || empty(b)) return false;
    const auto [a_low, a_high] = span(a);
    const auto [b_low, b_high] = span(b);
    if (a_high <= b_low || b_high <= a_low) return false;
    // Elements overlap when address(a) - address(b) lies in (-a.element_bytes, b.element_bytes).
    const int64_t distance = b.begin - a.begin;
    Equation equation(distance - a.element_bytes + 1, distance + b.element_bytes - 1);
    for (int k = 0; k < a.rank; ++k) equation.add(a.strides[k], 0, a.sizes[k] - 1);
    for (int k = 0; k < b.rank; ++k) equation.add(-b.strides[k], 0, b.sizes[k] - 1);
    return equation.solvable();
}

// Tells whether two different elements of one view share a byte, as those of an expanded tensor do.
inline bool overlaps_itself(const StridedBytes& view) {
    using namespace overlap_detail;
    if (empty(view) || nests(view)) return false;
    // Two index vectors first differ in dimension k: the difference is positive there, and anything in the later ones.
    for (int k = 0; k < view.rank; ++k) {
        if (view.sizes[k] == 1) continue;
        if (view.strides[k] == 0) return true;
        Equation equation(1 - view.element_bytes, view.element_bytes - 1);
        equation.add(view.strides[k], 1, view.sizes[k] - 1);
        for (int later = k + 1; later < view.rank; ++later)
            equation.add(view.strides[later], 1 - view.sizes[later], view.sizes[later] - 1);
        if (equation.solvable()) return true;
    }
    return false;
}

}  // namespace hipconv
