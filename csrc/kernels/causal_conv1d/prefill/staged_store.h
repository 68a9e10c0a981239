// This file moves a tile's outputs from LDS to memory for the kernel `staged`: by lanes that are neighbours, a word each where
// two outputs of 16 bits share one.
#pragma once

#include "staged.h"

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
    const int thread = static_cast<int>(threadIdx.x);
    const int32_t channels = first_parameter_again(p).dim - first_channel;
    const uint64_t stored = (first_parameter_again(p).dead_tokens == DeadTokens::leave ? tile.live : ~uint64_t{0}) &
                            lowest_bits_of_64(tile.end - begin);
    const int line = thread >> layout.log2_words(), lines_step = kStagedThreads >> layout.log2_words();
    const int inner = (thread & ((1 << layout.log2_words()) - 1)) * kInWord;
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
    const auto half = [](const char* at) { return *reinterpret_cast<const uint16_t*>(at); };
    const auto put_half = [](char* to, uint16_t value) { *reinterpret_cast<uint16_t*>(to) = value; };

    if (kInWord == 2 && plan.out_form == StoreForm::elements) {
#pragma unroll 1
        for (int e = inner; e < inner + kInWord; ++e) {
            const Place place = place_of(e);
            char* to = place.to;
            const char* element = from + e * kSize;
            for (int k = 0; k < kWords; ++k) {
                if (has_inner(e) && has_line(line + k * lines_step)) put_half(to, half(element));
                to += place.step;
                element += lines_step * layout.line_bytes();
            }
        }
    } else {
        const Place place = place_of(inner);
        char* to = place.to;
        const bool has_first = has_inner(inner), has_second = kInWord == 2 && has_inner(inner + 1);
        const char* element = from + inner * kSize;
        if (kInWord == 1 || plan.out_form == StoreForm::words) {
#pragma unroll
            for (int k = 0; k < kWords; ++k) {
                const uint32_t word = *reinterpret_cast<const uint32_t*>(element);
                if (has_line(line + k * lines_step)) {
                    if (has_first && (kInWord == 1 || has_second))
                        *reinterpret_cast<uint32_t*>(to) = word;
                    else if (has_first)
                        put_half(to, static_cast<uint16_t>(word));
                    else if (has_second)
                        put_half(to + kSize, static_cast<uint16_t>(word >> 16));
                }
                to += place.step;
                element += lines_step * layout.line_bytes();
            }
        } else {
            // In a line that begins in the middle of a word, a lane stores the element before its own two and the first of them.
            // The first lane stores the line's first and last element.
            constexpr int kLast = kTileTokens - 1;  // as many channels are a line, too
            const bool has_before = inner > 0 && has_inner(inner - 1), has_last = inner == 0 && has_inner(kLast);
#pragma unroll
            for (int k = 0; k < kWords; ++k) {
                const bool shifted = reinterpret_cast<uint64_t>(to) % 4 != 0;
                if (has_line(line + k * lines_step)) {
                    const bool left = shifted ? has_before : has_first, right = shifted ? has_first : has_second;
                    const char* pair = element - (shifted && inner > 0 ? kSize : 0);
                    const uint16_t left_half = half(pair), right_half = half(shifted ? element : element + kSize);
                    char* const pair_to = to - (shifted ? kSize : 0);
                    if (left && right) {
                        *reinterpret_cast<uint32_t*>(pair_to) = left_half | static_cast<uint32_t>(right_half) << 16;
                    } else {
                        if (left) put_half(pair_to, left_half);
                        if (right) put_half(pair_to + kSize, right_half);
                    }
                    if (shifted && has_last) put_half(to + kLast * kSize, half(element + kLast * kSize));
                }
                to += place.step;
                element += lines_step * layout.line_bytes();
            }
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
