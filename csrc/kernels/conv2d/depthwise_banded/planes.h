// Planes of x and of outputs in LDS as they lie in memory: a wave copies them as a run of vectors, each of which has the same
// place within 16 bytes here and there. What is no whole vector at a run's ends is copied by elements.
#pragma once

#include "../common/band_atom.h"
#include "../common/epilogue.h"
#include "params.h"

namespace hipconv {

// A wave's filter, its strip of outputs, and its images.
struct BandedPlace {
    int filter, channel, row, rows, image, behind_image;
    int patch_row;          // the row of x that is the first one of a plane in LDS
    int from_row, x_count;  // the first row of x that there is, and the elements from it on
    int x_at;               // their place in LDS, but for the shift
    uint64_t x, out;        // addresses of the first elements, in image 0

    HIPCONV_INLINE BandedPlace(const BandedParams& p, int wave) {
        const Conv2dParams& c = p.conv;
        const auto number = [](uint32_t value) { return static_cast<int>(value); };
        const int rest = number(divide(wave, p.divide_by_filters)), part = number(divide(rest, p.divide_by_strips));
        filter = wave - rest * c.out_channels;
        channel = p.multiplier == 1 ? filter : filter / p.multiplier;
        row = (rest - part * p.strips) * p.strip_rows;
        rows = c.out_height - row < p.strip_rows ? c.out_height - row : p.strip_rows;
        image = part * p.wave_images;
        behind_image = c.batch - image < p.wave_images ? c.batch : image + p.wave_images;
        patch_row = row * c.stride_h - c.pad_top;
        from_row = patch_row < 0 ? 0 : patch_row;
        const int behind_row = c.in_height - patch_row < p.patch_rows ? c.in_height : patch_row + p.patch_rows;
        x_count = behind_row > from_row ? (behind_row - from_row) * c.in_width : 0;
        x_at = p.origin + (from_row - patch_row) * c.in_width;
        x = reinterpret_cast<uint64_t>(c.x.data) + 2 * offset_in(c.x, 0, channel, from_row, 0);
        out = reinterpret_cast<uint64_t>(c.out.data) + 2 * offset_in(c.out, 0, filter, row, 0);
    }
};

// A run of elements in memory and in LDS.
struct BandedRun {
    uint64_t memory;  // address
    int at, count;    // element of LDS

    // The elements in front of the first whole vector, whole vectors, and the elements behind them.
    HIPCONV_INLINE int head() const {
        const int head = -at & 7;
        return head < count ? head : count;
    }
    HIPCONV_INLINE int vectors() const { return (count - head()) >> 3; }

    // The element, or -1, that number 0 to 15 of sixteen lanes copies.
    HIPCONV_INLINE int edge(int number) const {
        const int ahead = head(), tail = (count - ahead) & 7;
        if (number < 8) return number < ahead ? number : -1;
        return number - 8 < tail ? count - tail + number - 8 : -1;
    }
};

// By how many elements a plane is shifted in LDS, so that vectors begin where they do in memory.
HIPCONV_INLINE int shift_of(uint64_t memory, int at) { return (static_cast<int>(memory >> 1) - at) & 7; }

HIPCONV_INLINE BandedRun run_of_x(const BandedParams& p, const BandedPlace& at, int image) {
    const uint64_t memory = at.x + static_cast<int64_t>(image) * (2 * p.conv.x.batch_stride);
    return {memory, at.x_at + shift_of(memory, at.x_at), at.x_count};
}

HIPCONV_INLINE BandedRun run_of_out(const BandedParams& p, const BandedPlace& at, int image) {
    const uint64_t memory = at.out + static_cast<int64_t>(image) * (2 * p.conv.out.batch_stride);
    return {memory, shift_of(memory, 0), at.rows * p.conv.out_width};
}

// Calls do_it(image of the step, its run, element) for a lane's vectors of a step's runs, from number `first` on.
template <typename RunOf, typename DoIt>
HIPCONV_INLINE void for_each_vector(int images, SmallDivisor by_vectors, int first, RunOf run_of, DoIt do_it) {
    if (images == 1) {
        const BandedRun run = run_of(0);
#pragma unroll 2
        for (int number = first; number < run.vectors(); number += kWaveSize) do_it(0, run, run.head() + 8 * number);
        return;
    }
#pragma unroll 1
    for (int number = first; number < images * static_cast<int>(by_vectors.value); number += kWaveSize) {
        const int slot = divide(number, by_vectors), vector = number - slot * static_cast<int>(by_vectors.value);
        const BandedRun run = run_of(slot);
        if (vector < run.vectors()) do_it(slot, run, run.head() + 8 * vector);
    }
}

// The images of the step that begins with number `image`.
HIPCONV_INLINE int images_of_step(const BandedParams& p, const BandedPlace& at, int image) {
    return at.behind_image - image < p.step_images ? at.behind_image - image : p.step_images;
}

// A lane's share of a step's planes, which it loads before the step before is multiplied: it writes to LDS what has no way past
// the registers.
class BandedSource {
  public:
    // Begins to load the planes of the images from number `image` on.
    HIPCONV_INLINE void load(uint16_t* planes, const BandedParams& p, const BandedPlace& at, int image, int lane) {
        if constexpr (kCopiesPastRegisters) {
            const auto run_of = [&](int slot) { return run_of_x(p, at, image + slot); };
            for_each_vector(images_of_step(p, at, image), p.divide_by_vectors, lane, run_of,
                            [&](int slot, const BandedRun& run, int element) {
                                copy_later(reinterpret_cast<Words4*>(planes + slot * p.plane + run.at + element),
                                           reinterpret_cast<const Words4*>(run.memory + 2 * element), false);
                            });
            close_copies();
        } else {
#pragma unroll
            for (int i = 0; i < kAhead; ++i)
                with_vector(p, at, image, lane + i * kWaveSize, [&](int, const BandedRun& run, int element) {
                    vectors_[i] = *global_pointer<const Words4>(run.memory + 2 * element);
                });
        }
#pragma unroll
        for (int i = 0; i < kEdges; ++i)
            with_edge(p, at, image, lane + i * kWaveSize, [&](int, const BandedRun& run, int element) {
                edges_[i] = *global_pointer<const uint16_t>(run.memory + 2 * element);
            });
    }

    // Has them in LDS.
    HIPCONV_INLINE void store(uint16_t* planes, const BandedParams& p, const BandedPlace& at, int image, int lane) {
        if constexpr (kCopiesPastRegisters) {
            wait_for_copies<0>();
        } else {
            const auto run_of = [&](int slot) { return run_of_x(p, at, image + slot); };
#pragma unroll
            for (int i = 0; i < kAhead; ++i)
                with_vector(p, at, image, lane + i * kWaveSize, [&](int slot, const BandedRun& run, int element) {
                    *reinterpret_cast<Words4*>(planes + slot * p.plane + run.at + element) = vectors_[i];
                });
            for_each_vector(images_of_step(p, at, image), p.divide_by_vectors, lane + kAhead * kWaveSize, run_of,
                            [&](int slot, const BandedRun& run, int element) {
                                *reinterpret_cast<Words4*>(planes + slot * p.plane + run.at + element) =
                                    *global_pointer<const Words4>(run.memory + 2 * element);
                            });
        }
#pragma unroll
        for (int i = 0; i < kEdges; ++i)
            with_edge(p, at, image, lane + i * kWaveSize, [&](int slot, const BandedRun& run, int element) {
                planes[slot * p.plane + run.at + element] = edges_[i];
            });
        if (p.keeps_rows) return;
        // The run lies elsewhere than the one before: what that one has left beside it becomes zeros again.
#pragma unroll
        for (int i = 0; i < kEdges; ++i) {
            const int number = lane + i * kWaveSize, slot = number / 16;
            if (slot >= images_of_step(p, at, image)) continue;
            const BandedRun run = run_of_x(p, at, image + slot);
            planes[slot * p.plane + run.at + (number % 16 < 8 ? number % 16 - 8 : run.count + number % 16 - 8)] = 0;
        }
    }

  private:
    static constexpr int kAhead = 4, kEdges = 16 * kMostStepImages / kWaveSize;

    // Calls do_it(image of the step, its run, element) for vector `number` of a step, if there is one.
    template <typename DoIt>
    static HIPCONV_INLINE void with_vector(const BandedParams& p, const BandedPlace& at, int image, int number, DoIt do_it) {
        const int slot = p.step_images == 1 ? 0 : divide(number, p.divide_by_vectors);
        if (slot >= images_of_step(p, at, image)) return;
        const int vector = number - slot * static_cast<int>(p.divide_by_vectors.value);
        const BandedRun run = run_of_x(p, at, image + slot);
        if (vector < run.vectors()) do_it(slot, run, run.head() + 8 * vector);
    }
    template <typename DoIt>
    static HIPCONV_INLINE void with_edge(const BandedParams& p, const BandedPlace& at, int image, int number, DoIt do_it) {
        const int slot = number / 16;
        if (!p.x_has_edges || slot >= images_of_step(p, at, image)) return;
        const BandedRun run = run_of_x(p, at, image + slot);
        const int element = run.edge(number % 16);
        if (element >= 0) do_it(slot, run, element);
    }

    Words4 vectors_[kCopiesPastRegisters ? 1 : kAhead];
    uint16_t edges_[kEdges];
};

// Writes a step's planes of outputs to memory.
HIPCONV_INLINE void write_planes(const uint16_t* planes, const BandedParams& p, const BandedPlace& at, int image, int lane) {
    const int images = images_of_step(p, at, image);
    const auto run_of = [&](int slot) { return run_of_out(p, at, image + slot); };
    for_each_vector(images, p.divide_by_out_vectors, lane, run_of, [&](int slot, const BandedRun& run, int element) {
        *global_pointer<Words4>(run.memory + 2 * element) =
            *reinterpret_cast<const Words4*>(planes + slot * p.out_plane + run.at + element);
    });
    if (!p.out_has_edges) return;
#pragma unroll 1
    for (int number = lane; number < 16 * images; number += kWaveSize) {
        const BandedRun run = run_of(number / 16);
        const int element = run.edge(number % 16);
        if (element >= 0)
            *global_pointer<uint16_t>(run.memory + 2 * element) = planes[number / 16 * p.out_plane + run.at + element];
    }
}

// Brings a filter to LDS: of each row, a word for each pair of neighbouring taps (q - 1, q), for q from 0 on, of which one is
// zero beside the row's ends and all are between dilated taps, and a word of zeros behind them.
HIPCONV_INLINE void stage_band(uint32_t* band, const BandedParams& p, const BandedPlace& at, int lane) {
    const Conv2dParams& c = p.conv;
    const int last = (c.kernel_width - 1) * c.dilation_w;
    const uint16_t* const weights = global_pointer<const uint16_t>(c.weight.data);
#pragma unroll 1
    for (int number = lane; number < c.kernel_height * p.band; number += kWaveSize) {
        const int r = number / p.band, q = number - r * p.band;
        const int64_t from = offset_in(c.weight, at.filter, 0, r, 0);
        const auto tap = [&](int place) -> uint32_t {
            if (place < 0 || place > last) return 0;
            const int s = c.dilation_w == 1 ? place : place / c.dilation_w;
            return s * c.dilation_w == place ? weights[from + s * c.weight.column_stride] : 0;
        };
        band[number] = tap(q - 1) | tap(q) << 16;
    }
}

}  // namespace hipconv
