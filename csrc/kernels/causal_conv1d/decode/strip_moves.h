// The decode kernel "strip" moves parts of rows between memory and LDS by these: of a part, columns times channels, which are a
// slot's columns or a row's tokens. The file is for files that include <hip/hip_runtime.h>.
#pragma once

#include "device/elements.h"
#include "device/vec.h"
#include "launch/division.h"

namespace hipconv {

// Threads that move a part together, and the place of one among them. There are 8 or more, so that each moves at most one of
// the elements before a stretch's first vector, and one of those after its last.
struct Team {
    int member, members;
};

// Says how a part moves: in one stretch of memory, of channels side by side or (packed) of each channel's columns side by side;
// column by column, in a stretch each, the address of each of which is as far behind a multiple of 16 bytes; or element by
// element.
enum class Moves : int32_t { whole, packed, columns, elements };
struct PartPlan {
    Moves moves;
    int32_t bytes;                  // of a row, in LDS
    int32_t dim_step, column_step;  // in LDS, in elements

    // The elements from a multiple of 16 bytes to an address, which a stretch has in LDS, too.
    template <typename E>
    HIPCONV_INLINE int shift_of(uint32_t address) const {
        return moves == Moves::elements ? 0 : static_cast<int>(address % 16) / static_cast<int>(sizeof(E));
    }
    template <typename Address>
    HIPCONV_INLINE int shift_bytes(Address address) const {
        return moves == Moves::elements ? 0 : static_cast<int>(address.bits & 15);
    }
};

// A stretch of `size` elements of memory: its vectors of 16 bytes, and the elements before the first and after the last.
template <typename E>
struct Stretch {
    static constexpr int kInVector = 16 / static_cast<int>(sizeof(E)), kAtOnce = 4;
    int shift, head, vectors, rest;  // elements: from a multiple of 16 bytes on, before the vectors, (vectors,) before the tail
    int tail;

    HIPCONV_INLINE Stretch(const E* memory, int size)
        : shift(static_cast<int>(reinterpret_cast<uintptr_t>(memory) % 16) / static_cast<int>(sizeof(E))) {
        head = -shift & (kInVector - 1);
        if (head > size) head = size;
        vectors = (size - head) / kInVector;
        rest = head + vectors * kInVector;
        tail = size - rest;
    }

    HIPCONV_INLINE void to_lds(char* lds, const E* from, Team team) const {
        E* const to = reinterpret_cast<E*>(lds) + shift;
        E first{}, last{};
        if (team.member < head) first = from[team.member];
        if (team.member < tail) last = from[rest + team.member];
        const Words4* const vectors_from = reinterpret_cast<const Words4*>(from + head);
        Words4* const vectors_to = reinterpret_cast<Words4*>(to + head);
        if constexpr (kCopiesPastRegisters) {
#pragma unroll 2
            for (int k = team.member; k < vectors; k += team.members) copy_later(vectors_to + k, vectors_from + k, false);
        } else {
#pragma unroll 1
            for (int begin = team.member; begin < vectors; begin += kAtOnce * team.members) {
                Words4 some[kAtOnce];
#pragma unroll
                for (int k = 0; k < kAtOnce; ++k)
                    if (begin + k * team.members < vectors) some[k] = vectors_from[begin + k * team.members];
#pragma unroll
                for (int k = 0; k < kAtOnce; ++k)
                    if (begin + k * team.members < vectors) vectors_to[begin + k * team.members] = some[k];
            }
        }
        if (team.member < head) to[team.member] = first;
        if (team.member < tail) to[rest + team.member] = last;
    }

    HIPCONV_INLINE void to_memory(E* to, const char* lds, Team team) const {
        const E* const from = reinterpret_cast<const E*>(lds) + shift;
        const Words4* const vectors_from = reinterpret_cast<const Words4*>(from + head);
        Words4* const vectors_to = reinterpret_cast<Words4*>(to + head);
#pragma unroll 2
        for (int k = team.member; k < vectors; k += team.members) vectors_to[k] = vectors_from[k];
        if (team.member < head) to[team.member] = from[team.member];
        if (team.member < tail) to[rest + team.member] = from[rest + team.member];
    }
};

// The first `channels` channels of a strip, in a team's moves.
struct PartSize {
    SmallDivisor strip;
    int channels, columns;
    int64_t dim_stride, column_stride;  // in memory
};

template <typename E>
HIPCONV_INLINE void part_to_lds(const PartPlan& part, const PartSize& size, char* lds, const E* from, Team team) {
    if (part.moves == Moves::whole || part.moves == Moves::packed) {
        const int each = part.moves == Moves::packed ? part.dim_step : size.columns;
        Stretch<E>(from, size.channels * each).to_lds(lds, from, team);
    } else if (part.moves == Moves::columns) {
#pragma unroll 1
        for (int i = 0; i < size.columns; ++i) {
            Stretch<E>(from, size.channels).to_lds(lds, from, team);
            lds += part.column_step * static_cast<int>(sizeof(E));
            from += size.column_stride;
        }
    } else {
        constexpr int kAtOnce = 4;
        E* const to = reinterpret_cast<E*>(lds);
        const int strip = static_cast<int>(size.strip.value), all = strip * size.columns;
#pragma unroll 1
        for (int first = team.member; first < all; first += kAtOnce * team.members) {
            E some[kAtOnce];
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                const int at = first + k * team.members, column = divide(at, size.strip), c = at - column * strip;
                if (at < all && c < size.channels) some[k] = from[c * size.dim_stride + column * size.column_stride];
            }
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                const int at = first + k * team.members, column = divide(at, size.strip);
                if (at < all) to[at + column * (part.column_step - strip)] = some[k];
            }
        }
    }
}

// The other way; `shift` is that of the part in LDS. A packed part that is not the whole of what memory holds there, which then
// must keep its other columns, moves element by element.
template <typename E>
HIPCONV_INLINE void part_to_memory(const PartPlan& part, const PartSize& size, E* to, const char* lds, int shift, bool all,
                                   Team team) {
    const bool fits = shift == part.shift_of<E>(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(to)));
    if (fits && (part.moves == Moves::whole || (part.moves == Moves::packed && all))) {
        const int each = part.moves == Moves::packed ? part.dim_step : size.columns;
        Stretch<E>(to, size.channels * each).to_memory(to, lds, team);
    } else if (fits && part.moves == Moves::columns) {
#pragma unroll 1
        for (int i = 0; i < size.columns; ++i) {
            Stretch<E>(to, size.channels).to_memory(to, lds, team);
            lds += part.column_step * static_cast<int>(sizeof(E));
            to += size.column_stride;
        }
    } else {
        const E* const from = reinterpret_cast<const E*>(lds) + shift;
        const int strip = static_cast<int>(size.strip.value);
#pragma unroll 1
        for (int at = team.member; at < strip * size.columns; at += team.members) {
            const int column = divide(at, size.strip), c = at - column * strip;
            if (c < size.channels)
                to[c * size.dim_stride + column * size.column_stride] = from[c * part.dim_step + column * part.column_step];
        }
    }
}

// ---- plans ----------------------------------------------------------------------------------------------------------------

// This is known of a part in memory at the launch: `held` columns are there side by side, of which at most `columns` move at a
// time.
struct PartInMemory {
    uint64_t address;
    int bytes;  // of an element
    int64_t row_stride, dim_stride, column_stride;
    int held, columns;
};

// The strip has `channels` channels, perhaps all that there are, and in LDS there is `room` for some more.
inline PartPlan part_plan(const PartInMemory& m, int channels, int room, bool all_channels) {
    const auto in_vectors = [&](int64_t elements) { return elements * m.bytes % 16 == 0; };
    const bool rows_fit = m.address % 16 == 0 && in_vectors(m.row_stride);  // each begins at a multiple of 16 bytes
    PartPlan part{};
    part.dim_step = 1;
    if (m.dim_stride != 1 && m.column_stride == 1 && m.dim_stride == m.held) {
        part.moves = Moves::packed;
        part.dim_step = m.held, part.column_step = 1;
        part.bytes = static_cast<int32_t>(round_up(int64_t{room} * m.held * m.bytes, 16));
        if (!rows_fit || !in_vectors(int64_t{channels} * m.held)) part.bytes += 16;
        return part;
    }
    const int gap = rows_fit && in_vectors(m.column_stride) && in_vectors(channels) ? 0 : 16;
    if (m.dim_stride == 1 && all_channels && m.column_stride == channels) {
        part.moves = Moves::whole;
        part.column_step = channels;
    } else if (m.dim_stride == 1 && (in_vectors(m.column_stride) || m.columns == 1)) {
        part.moves = Moves::columns;
        part.column_step = static_cast<int32_t>((round_up(int64_t{room} * m.bytes, 16) + gap) / m.bytes);
    } else {
        part.moves = Moves::elements;
        part.column_step = room;
    }
    part.bytes = static_cast<int32_t>(round_up((int64_t{m.columns - 1} * part.column_step + room) * m.bytes, 16) + gap);
    return part;
}

}  // namespace hipconv
