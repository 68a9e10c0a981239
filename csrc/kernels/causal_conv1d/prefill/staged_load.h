// This file moves a tile of x from memory to LDS for the kernel `staged`, by way of registers: by lanes that are neighbours, a
// vector or a word each.
//
// Where a line begins in the middle of a word, a lane has the element before its own two and the first of them, and another
// thread brings the line's last element. All lines of a thread begin so, if one does: they are an even number of lines apart.
#pragma once

#include "staged.h"

namespace hipconv {

// A thread has this of a tile's lines: `line` and every `step`th one after it, from element `inner` on.
struct LanePart {
    int line, step, inner;
};

template <typename T>
HIPCONV_INLINE LanePart part_of_lane(int thread, const TileLayout<T>& layout, LineForm form) {
    const bool vectors = form == LineForm::vectors;
    const int log2_lanes = layout.log2_lanes(vectors);
    constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
    return {thread >> log2_lanes, kStagedThreads >> log2_lanes,
            (thread & ((1 << log2_lanes) - 1)) * (vectors ? 4 * kInWord : kInWord)};
}

// The address of a tile's first element.
template <typename T>
HIPCONV_INLINE const char* tile_in_x(const CausalConv1dVarlenParams& p, int32_t first_channel, int32_t begin) {
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    return static_cast<const char*>(p.x) +
           (first_channel * again.x_dim_stride + begin * again.x_token_stride) * static_cast<int64_t>(sizeof(T));
}

// Tells whether a line begins in the middle of a word.
HIPCONV_INLINE bool is_shifted(const char* line, LineForm form) {
    return form == LineForm::shifted && reinterpret_cast<uint64_t>(line) % 4 != 0;
}

// A tile on its way: this thread's words, and where lines may be shifted the last element of line `thread`.
template <typename T>
__device__ __forceinline__ void bring_tile(const StagedCall& call, int32_t first_channel, int32_t begin,
                                           uint32_t (&words)[kWords], uint32_t& last) {
    constexpr int kSize = StagedShape<T>::kSize, kLast = kTileTokens - 1;
    const CausalConv1dVarlenParams& p = first_parameter_again(call).params;
    const StagedPlan& plan = first_parameter_again(call).plan;
    int thread = static_cast<int>(threadIdx.x);
    from_here_on(thread);
    const LineForm form = plan.x_form;
    const LanePart part = part_of_lane(thread, TileLayout<T>{plan.x_tokens_inner}, form);
    const int64_t outer_step = (plan.x_tokens_inner ? p.x_dim_stride : p.x_token_stride) * kSize;
    const int64_t inner_step = (plan.x_tokens_inner ? p.x_token_stride : p.x_dim_stride) * kSize;
    const int32_t channels = p.dim - first_channel, tokens = p.tokens - begin;
    const int32_t elements = plan.x_tokens_inner ? tokens : channels;
    const int32_t lines = (plan.x_tokens_inner ? channels : tokens) - part.line;
    const char* const x = tile_in_x<T>(call.params, first_channel, begin);
    const char* from = x + part.line * outer_step;
    const int64_t lines_step = part.step * outer_step;

    if (form == LineForm::vectors) {
        from += part.inner * kSize;
#pragma unroll
        for (int k = 0; k < kWords / 4; ++k) {
            Words4 vector{};
            if (k * part.step < lines && part.inner < elements) vector = *reinterpret_cast<const Words4*>(from);
#pragma unroll
            for (int i = 0; i < 4; ++i) words[4 * k + i] = word(vector, i);
            from += lines_step;
        }
    } else if (kSize == 4 || form != LineForm::elements) {
        const int first = part.inner - (is_shifted(from, form) ? 1 : 0);
        from += kSize == 4 ? first * inner_step : int64_t{first} * kSize;
        if (kSize == 4 || first + 1 != elements) {
#pragma unroll
            for (int k = 0; k < kWords; ++k) {
                words[k] = 0;
                if (k * part.step < lines && first < elements) words[k] = *reinterpret_cast<const uint32_t*>(from);
                from += lines_step;
            }
        } else {  // the word of the last element reaches past the line, and once past the tensor
#pragma unroll
            for (int k = 0; k < kWords; ++k) {
                words[k] = 0;
                if (k * part.step < lines) words[k] = *reinterpret_cast<const uint16_t*>(from);
                from += lines_step;
            }
        }
        if (form == LineForm::shifted && thread < kTileTokens && thread < lines + part.line && kLast < elements)
            last = *reinterpret_cast<const uint16_t*>(x + thread * outer_step + kLast * kSize);
    } else {
        from += part.inner * inner_step;
        uint16_t halves[kWords][2];
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
            halves[k][0] = halves[k][1] = 0;
            if (k * part.step < lines && part.inner < elements) halves[k][0] = *reinterpret_cast<const uint16_t*>(from);
            if (k * part.step < lines && part.inner + 1 < elements)
                halves[k][1] = *reinterpret_cast<const uint16_t*>(from + inner_step);
            from += lines_step;
        }
#pragma unroll
        for (int k = 0; k < kWords; ++k) words[k] = halves[k][0] | static_cast<uint32_t>(halves[k][1]) << 16;
    }
}

// Puts them into LDS, where x_lines is.
template <typename T>
__device__ __forceinline__ void put_tile(const StagedCall& call, int32_t first_channel, int32_t begin, char* x_lines,
                                         const uint32_t (&words)[kWords], uint32_t last) {
    constexpr int kSize = StagedShape<T>::kSize, kLast = kTileTokens - 1;
    const StagedPlan& plan = first_parameter_again(call).plan;
    int thread = static_cast<int>(threadIdx.x);
    from_here_on(thread);
    const LineForm form = plan.x_form;
    const TileLayout<T> layout{plan.x_tokens_inner};
    const LanePart part = part_of_lane(thread, layout, form);
    char* const tile = x_lines + kHalo * layout.token_step();
    char* place = tile + part.line * layout.line_bytes() + part.inner * kSize;
    const uint32_t lines_step = part.step * layout.line_bytes();
    if (form == LineForm::vectors) {
#pragma unroll
        for (int k = 0; k < kWords / 4; ++k) {
            Words4 vector{};
#pragma unroll
            for (int i = 0; i < 4; ++i) set_word(vector, i, words[4 * k + i]);
            *reinterpret_cast<Words4*>(place + k * lines_step) = vector;
        }
        return;
    }
    bool shifted = false;
    if (kSize == 2 && form == LineForm::shifted) {
        const CausalConv1dVarlenParams& p = first_parameter_again(call).params;
        const int64_t outer_step = plan.x_tokens_inner ? p.x_dim_stride : p.x_token_stride;
        shifted = is_shifted(tile_in_x<T>(call.params, first_channel, begin) + part.line * outer_step * kSize, form);
        if (thread < kTileTokens)
            *reinterpret_cast<uint16_t*>(tile + thread * layout.line_bytes() + kLast * kSize) = static_cast<uint16_t>(last);
    }
    if (!shifted) {
#pragma unroll
        for (int k = 0; k < kWords; ++k) *reinterpret_cast<uint32_t*>(place + k * lines_step) = words[k];
    } else {
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
            uint16_t* const here = reinterpret_cast<uint16_t*>(place + k * lines_step);
            if (part.inner > 0) here[-1] = static_cast<uint16_t>(words[k]);
            here[0] = static_cast<uint16_t>(words[k] >> 16);
        }
    }
}

// Word `k` of those that a thread has of a tile's halo.
template <typename T>
struct HaloPart {
    int line, inner;

    HIPCONV_INLINE HaloPart(int k, const TileLayout<T>& layout) {
        int index = k * kStagedThreads + static_cast<int>(threadIdx.x);
        from_here_on(index);
        line = index >> layout.log2_halo_lanes();
        inner = (index & ((1 << layout.log2_halo_lanes()) - 1)) * (4 / static_cast<int>(sizeof(T)));
    }
    HIPCONV_INLINE uint32_t place(const TileLayout<T>& layout) const {
        return line * layout.line_bytes() + inner * static_cast<int>(sizeof(T));
    }
};

// A word of a stretch's halo: from x or, in place, from what was saved.
template <typename T>
__device__ __forceinline__ uint32_t bring_halo(const StagedCall& call, const HaloPart<T>& part, uint32_t stretch,
                                               int32_t first_channel, int32_t begin) {
    constexpr int64_t kSize = sizeof(T);
    const CausalConv1dVarlenParams& p = first_parameter_again(call).params;
    const StagedPlan& plan = first_parameter_again(call).plan;
    const bool tokens_inner = plan.x_tokens_inner;
    const int32_t channel = tokens_inner ? part.line : part.inner, channels = p.dim - first_channel;
    if (stretch == 0 || channel >= channels) return 0;
    if (plan.halos) {
        const int64_t saved = int64_t{stretch - 1} * kHalo * plan.saved_dim;
        const int64_t at = tokens_inner ? int64_t{first_channel + part.line} * kHalo + part.inner
                                        : int64_t{part.line} * plan.saved_dim + first_channel + part.inner;
        return *global_pointer<const uint32_t>(plan.halos + (saved + at) * kSize);
    }
    const char* from =
        tile_in_x<T>(call.params, first_channel + channel, begin - kHalo + (tokens_inner ? part.inner : part.line));
    if (kSize == 4 || plan.x_form <= LineForm::words) return *reinterpret_cast<const uint32_t*>(from);
    const uint32_t left = *reinterpret_cast<const uint16_t*>(from);
    if (!tokens_inner && channel + 1 >= channels) return left;
    const char* next = from + (tokens_inner ? p.x_token_stride : p.x_dim_stride) * kSize;
    return left | static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(next)) << 16;
}

}  // namespace hipconv
