// This file moves a tile's outputs from LDS to memory for the kernel `staged`: by lanes that are neighbours, a word each where
// two outputs of 16 bits share one.
#pragma once

#include "staged_load.h"

namespace hipconv {

template <typename T>
__device__ __forceinline__ void store_tile(const StagedCall& call, const TileTokens& tile, int32_t begin, int32_t first_channel,
                                           const char* lines) {
    using Shape = StagedShape<T>;
    constexpr int kSize = Shape::kSize, kInWord = 4 / kSize;
    const CausalConv1dVarlenParams& p = call.params;
    const StagedPlan& plan = first_parameter_again(call).plan;
    const bool tokens_inner = plan.out_tokens_inner;
    const TileLayout<T> layout{tokens_inner};
    int thread = static_cast<int>(threadIdx.x);
    from_here_on(thread);
    const int32_t channels = first_parameter_again(p).dim - first_channel;
    const uint64_t stored = (first_parameter_again(p).dead_tokens == DeadTokens::leave ? tile.live : ~uint64_t{0}) &
                            lowest_bits_of_64(tile.end - begin);
    const bool vectors = plan.out_form == LineForm::vectors;
    const LanePart part = part_of_lane(thread, layout, plan.out_form);
    const int line = part.line, lines_step = part.step, inner = part.inner;
    const auto has_line = [&](int o) { return tokens_inner ? o < channels : (stored >> o & 1) != 0; };
    const auto has_inner = [&](int e) { return tokens_inner ? (stored >> e & 1) != 0 : e < channels; };
    const char* from = lines + (tokens_inner ? kHalo * kSize : kHalo * kChannelLineBytes) + line * layout.line_bytes();

    // Element `e` of this thread's first line in memory, and the way to its next line.
    struct Place {
        char* to;
        int64_t step;
    };
    const auto place_of = [&](int e) {
        const int32_t channel = tokens_inner ? line : e, token = tokens_inner ? e : line;
        const OutputColumn column = output_column<T>(p, int64_t{first_channel} + channel);
        const int64_t step = tokens_inner ? first_parameter_again(p).out_dim_stride * kSize : int64_t{column.step};
        return Place{column.first + int64_t{begin + token} * column.step, step * lines_step};
    };
    const auto next_line = [&](Place& place, const char*& element) {
        place.to += place.step;
        element += lines_step * layout.line_bytes();
    };
    // Stores one element of each of this thread's lines.
    const auto put_elements = [&](int e, int lines, Place place) {
        using Bits = typename WordsOf<kSize>::type;
        const char* element = from + e * kSize;
        if (!has_inner(e)) return;
#pragma unroll 1
        for (int k = 0; k < lines; ++k) {
            if (has_line(line + k * lines_step)) *reinterpret_cast<Bits*>(place.to) = *reinterpret_cast<const Bits*>(element);
            next_line(place, element);
        }
    };
    const auto along = [](const Place& place, int bytes) { return Place{place.to + bytes, place.step}; };

    if (vectors) {
        constexpr int kEach = 4 * kInWord;
        Place place = place_of(inner);
        if (has_inner(inner) && has_inner(inner + kEach - 1) && (!tokens_inner || ~(stored >> inner) << (64 - kEach) == 0)) {
            const char* element = from + inner * kSize;
#pragma unroll
            for (int k = 0; k < kWords / 4; ++k) {
                const Words4 vector = *reinterpret_cast<const Words4*>(element);
                if (has_line(line + k * lines_step)) *reinterpret_cast<Words4*>(place.to) = vector;
                next_line(place, element);
            }
        } else {
#pragma unroll 1
            for (int e = 0; e < kEach; ++e) put_elements(inner + e, kWords / 4, along(place, e * kSize));
        }
    } else if (kInWord == 2 && plan.out_form == LineForm::elements) {
        put_elements(inner, kWords, place_of(inner));
        put_elements(inner + 1, kWords, place_of(inner + 1));
    } else {
        // In a line that begins in the middle of a word, a lane stores the element before its own two and the first of them.
        // The first lane stores the line's first and last element. (All of a thread's lines begin so, if one does.)
        Place place = place_of(inner);
        constexpr int kLast = kTileTokens - 1;  // as many channels are a line, too
        const bool shifted =
            kInWord == 2 && plan.out_form == LineForm::shifted && reinterpret_cast<uint64_t>(place.to) % 4 != 0;
        const int left = inner - (shifted ? 1 : 0);
        place.to -= shifted ? kSize : 0;
        const bool has_left = left >= 0 && has_inner(left), has_right = kInWord == 2 && has_inner(left + 1);
        if (shifted && inner == 0) put_elements(kLast, kWords, along(place, (kLast + 1) * kSize));
        if (has_left && (has_right || kInWord == 1)) {
            const char* element = from + left * kSize;
#pragma unroll
            for (int k = 0; k < kWords; ++k) {
                uint32_t word;
                if (shifted)
                    word = *reinterpret_cast<const uint16_t*>(element) |
                           static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(element + kSize)) << 16;
                else
                    word = *reinterpret_cast<const uint32_t*>(element);
                if (has_line(line + k * lines_step)) *reinterpret_cast<uint32_t*>(place.to) = word;
                next_line(place, element);
            }
        } else if (kInWord == 2) {
            if (has_left) put_elements(left, kWords, place);
            if (has_right) put_elements(left + 1, kWords, along(place, kSize));
        }
    }

    if (tile.first >= begin) return;
    // The tokens before the tile that it owns: those of one sequence, whose first outputs lie in two tiles.
    for (int i = thread; i < Shape::kChannels * kHalo; i += kStagedThreads) {
        const int channel = i % Shape::kChannels, at = i / Shape::kChannels;
        const int32_t token = begin - kHalo + at;
        if (channel >= channels || token < tile.first) continue;
        const OutputColumn column = output_column<T>(p, first_channel + channel);
        *reinterpret_cast<T*>(column.first + int64_t{token} * column.step) =
            *reinterpret_cast<const T*>(lines + channel * layout.channel_step() + at * layout.token_step());
    }
}

}  // namespace hipconv
