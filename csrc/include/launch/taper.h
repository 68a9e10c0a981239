// A grid divides rows of items among its blocks so that the card runs dry everywhere at once: long pieces come first, because
// every block costs a start and an end with little memory traffic, and shorter and shorter ones come last. (On an H200, pieces
// of 8 everywhere left 2 points more of the copy's bandwidth unused in 270 MB than pieces of 16 that end in 8, 4 and 2.)
#pragma once

#include <cstdint>

#include "device/arch.h"

namespace hipconv {

constexpr int kTaperZones = 4;  // the pieces of each zone are half as long as those of the one before

struct Taper {
    uint32_t items;                     // in a row
    uint32_t log2_longest;              // a piece in the first zone has 2^log2_longest items
    uint32_t first_block[kTaperZones];  // each zone's first block
    uint32_t first_row[kTaperZones];
    uint32_t blocks;  // in the whole grid
};

// A piece is a block's part of a row.
struct Piece {
    uint32_t row, first;  // first item
    int count;            // items; blocks that only complete the grid have none
    uint32_t number;      // counts the pieces of the row
};

HIPCONV_INLINE Piece piece_of_block(const Taper& taper, uint32_t block) {
    if (block >= taper.blocks) return {};
    uint32_t log2_each = taper.log2_longest, first_block = 0, first_row = 0;
#pragma unroll
    for (int zone = 1; zone < kTaperZones; ++zone) {
        if (block >= taper.first_block[zone]) {
            log2_each = taper.log2_longest - zone;
            first_block = taper.first_block[zone];
            first_row = taper.first_row[zone];
        }
    }
    const uint32_t each = 1u << log2_each;
    const uint32_t pieces = (taper.items + each - 1) >> log2_each;
    const uint32_t row = (block - first_block) / pieces;
    const uint32_t number = block - first_block - row * pieces, first = number << log2_each;
    const uint32_t left = taper.items - first;
    return {first_row + row, first, static_cast<int>(left < each ? left : each), number};
}

// The number of pieces that each row of a zone is cut into; it is 0 if the zone has no rows.
inline uint32_t pieces_of_row(const Taper& taper, int zone) {
    const uint32_t end = zone + 1 < kTaperZones ? taper.first_block[zone + 1] : taper.blocks;
    if (taper.first_block[zone] == end) return 0;
    const uint32_t each = 1u << (taper.log2_longest - static_cast<uint32_t>(zone));
    return (taper.items + each - 1) / each;
}

// Makes a taper for rows of equally many items in pieces of at most 2^log2_longest. Pieces of less than two items are no
// use, nor is a taper where a large card holds most blocks at once.
inline Taper tapered(uint32_t items, int64_t rows, uint32_t log2_longest) {
    // The numbers of last items, in all rows, that lie in pieces of half the longest, of a quarter and of an eighth:
    // a few rounds of the blocks that a large card holds at once, but no great part of a small problem. A row lies in one zone.
    constexpr int64_t kItemsOfZone[kTaperZones] = {0, 16384, 3072, 1024};
    constexpr int64_t kFewPieces = 2048;
    Taper taper{items, log2_longest, {}, {}, 0};
    int64_t rows_of_zone[kTaperZones] = {rows};
    for (uint32_t zone = kTaperZones - 1; zone > 0; --zone) {
        if (log2_longest <= zone || items * rows >> log2_longest < kFewPieces) continue;
        const int64_t most = items * rows >> (2 * zone);
        rows_of_zone[zone] = (most < kItemsOfZone[zone] ? most : kItemsOfZone[zone]) / items;
        rows_of_zone[0] -= rows_of_zone[zone];
    }
    uint32_t row = 0;
    for (uint32_t zone = 0; zone < kTaperZones; ++zone) {
        taper.first_block[zone] = taper.blocks;
        taper.first_row[zone] = row;
        if (rows_of_zone[zone] == 0) continue;
        const uint32_t log2_each = log2_longest - zone;
        row += static_cast<uint32_t>(rows_of_zone[zone]);
        taper.blocks += static_cast<uint32_t>(rows_of_zone[zone]) * ((items + (1u << log2_each) - 1) >> log2_each);
    }
    return taper;
}

}  // namespace hipconv
