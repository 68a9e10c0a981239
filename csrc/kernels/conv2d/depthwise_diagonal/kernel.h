// Depthwise layers of 16-bit types and channels_last images on matrix cores (`depthwise_diagonal`).
//
// The matrix instruction multiplies 16 pixels of 8 channels, at the columns of two taps, by two diagonal matrices: the taps of
// 8 filters. Where a channel has several filters its taps stand beside each other, off the diagonal. So whatever the stride,
// the dilation and the filters' size, a lane finds each pixel's channels at an address of its own (ldmatrix), and no tap meets
// a column that is not its own.
//
// A wave has 8 filters of some groups of 16 pixels, and its taps in registers. A block goes down the rows of x that it sees,
// and multiplies each by all rows of taps; the sums of the rows of outputs that are under way stay in registers and move up by
// one with each step, since an instruction writes its sums elsewhere than it reads them. Pixels are counted through all images,
// so that small images fill blocks. Rows of x that lie outside are left out.
//
// x lies in LDS by columns, each with the channels of the block; stages are on their way to LDS while one is multiplied, and
// outputs go through LDS, so that memory sees whole vectors.
#pragma once

#include <type_traits>

#include "../common/depthwise_formula.h"
#include "../common/epilogue.h"
#include "../common/padding.h"
#include "instances.h"
#include "launch/check.h"
#include "matrix/mma.h"
#include "params.h"

namespace hipconv {

// A block's place: its first pixel among those of all images, its first filter, its class and its rows of outputs.
struct DiagonalPlace {
    int pixel, filter, class_row, first, behind;

    HIPCONV_INLINE DiagonalPlace(const DiagonalParams& p, int block) {
        const int along = static_cast<int>(divide(block, p.divide_by_channel_blocks));
        filter = (block - along * p.channel_blocks) * kDiagonalChannels << p.chunks_log;
        const int tile = static_cast<int>(divide(along, p.divide_by_units)), unit = along - tile * p.classes * p.segments;
        pixel = tile * p.block_pixels;
        class_row = static_cast<int>(divide(unit, p.divide_by_segments));
        first = (unit - class_row * p.segments) * p.segment_rows;
        const int rows = (p.conv.out_height - class_row + p.classes - 1) / p.classes;
        behind = first + p.segment_rows < rows ? first + p.segment_rows : rows;
    }
};

// The runs of a block: pixels of one image each, and the columns of x that they see, which lie behind each other in LDS.
struct DiagonalRuns {
    int image, column;  // of the first pixel
    int ahead;          // pixels of the first run, were it to reach the end of its image

    HIPCONV_INLINE DiagonalRuns(const DiagonalParams& p, int pixel) {
        image = static_cast<int>(divide(pixel, p.divide_by_width));
        column = pixel - image * p.conv.out_width;
        ahead = p.conv.out_width - column;
    }
    // The run of pixel number i of the block, and its column.
    HIPCONV_INLINE int run_of(const DiagonalParams& p, int i) const {
        return i < ahead ? 0 : 1 + divide(i - ahead, p.divide_by_run_pixels);
    }
    HIPCONV_INLINE int column_in_image(const DiagonalParams& p, int i) const {
        return column + i - run_of(p, i) * p.conv.out_width;
    }
    // Where in LDS the columns of a run begin.
    HIPCONV_INLINE int first_column(const DiagonalParams& p, int run) const {
        const auto seen = [&](int pixels) { return pixels * p.conv.stride_w + p.run_tail; };
        return run == 0 ? 0 : seen(ahead) + (run - 1) * seen(p.conv.out_width);
    }
    // Where those of pixel number i do.
    HIPCONV_INLINE int column_of(const DiagonalParams& p, int i) const {
        const int run = run_of(p, i);
        return first_column(p, run) + (run == 0 ? i : column_in_image(p, i)) * p.conv.stride_w;
    }
};

// Where a column of x lies in a row of LDS: those that are a stride apart lie beside each other.
HIPCONV_INLINE int place_in_row(const DiagonalParams& p, int column) {
    const int along = divide(column, p.divide_by_stride);
    return (column - along * p.conv.stride_w) * p.phase_bytes + along * p.pitch;
}

// A thread's share of each row of x: vectors of channels, of columns of the image, or of its padding if that is not zeros.
template <int kLoads>
class DiagonalSource {
  public:
    HIPCONV_INLINE DiagonalSource(const DiagonalParams& p, const DiagonalPlace& at, int thread) {
        const Conv2dParams& c = p.conv;
        const DiagonalRuns runs(p, at.pixel);
        const int channel = p.first_channel_of(at.filter);
        // Columns of a run count from `lead` in front of the image on; the first run has fewer, and so may the last one.
        const auto in_image = [&](int column) { return column < 0 ? 0 : column < p.run_columns ? column : p.run_columns; };
        const int first = in_image(runs.column * c.stride_w - c.pad_left + p.lead);
        const int last_pixel = (p.pixels - at.pixel < p.block_pixels ? p.pixels - at.pixel : p.block_pixels) - 1;
        const int last_run = runs.run_of(p, last_pixel);
        const int behind = in_image(runs.column_in_image(p, last_pixel) * c.stride_w - c.pad_left + p.lead + p.reach);
        const int of_first = p.run_columns - first;
        const int columns = last_run == 0 ? behind - first : of_first + (last_run - 1) * p.run_columns + behind;
        const int vectors = columns << p.x_chunks_log;
        const int channels_left = c.in_channels - channel;
        loads_ = thread < vectors ? (vectors - thread + kDiagonalThreads - 1) / kDiagonalThreads : 0;
        first_row_ = at.class_row * c.stride_h - c.pad_top;
        from_ = static_cast<const char*>(c.x.data) + 2 * (runs.image * c.x.batch_stride + channel);
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            to_[i] = 0, offset_[i] = 0;
            if (i * kDiagonalThreads >= vectors) continue;
            const int number = thread + i * kDiagonalThreads;
            const int column = number >> p.x_chunks_log, chunk = number - (column << p.x_chunks_log);
            const int run = column < of_first ? 0 : 1 + divide(column - of_first, p.divide_by_run_columns);
            const int in_run = run == 0 ? column + first : column - of_first - (run - 1) * p.run_columns;
            const int place =
                runs.first_column(p, run) + in_run - p.lead + c.pad_left - (run == 0 ? runs.column * c.stride_w : 0);
            const int z = padded_index_of(in_run - p.lead, c.in_width, c.padding_mode);
            const int in_chunk = chunk * kDiagonalChannels < channels_left ? chunk * kDiagonalChannels : 0;
            to_[i] = place_in_row(p, place) + chunk * 16;
            in_a_register(to_[i]);
            offset_[i] =
                2 * (run * static_cast<uint32_t>(c.x.batch_stride) + z * static_cast<uint32_t>(c.x.column_stride) + in_chunk);
        }
    }

    // The first row of the class, and the number of the rows to be loaded next.
    HIPCONV_INLINE int first_row() const { return first_row_; }
    HIPCONV_INLINE void begin_at(const DiagonalParams& p, int number) {
        row_ = first_row_ + number * p.conv.dilation_h;
        from_ += row_ * p.row_pitch;
    }

    // Begins to copy the next rows; those outside the image become zeros.
    template <int kRows>
    HIPCONV_INLINE void load(char* to, const DiagonalParams& p) {
        const Conv2dParams& c = p.conv;
        const char* from[kRows];
        bool inside[kRows];
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
            int row = row_;
            from[j] = from_;
            if (c.padding_mode != PaddingMode::zeros) {
                row = padded_index_of(row, c.in_height, c.padding_mode);
                from[j] += (row - row_) * p.row_pitch;
            }
            inside[j] = static_cast<uint32_t>(row) < static_cast<uint32_t>(c.in_height);
            row_ += c.dilation_h;
            from_ += p.next_row;
        }
        const auto copy = [&](int i) {
#pragma unroll
            for (int j = 0; j < kRows; ++j)
                copy_later(reinterpret_cast<Words4*>(to + to_[i] + j * p.row_bytes), from[j] + offset_[i], !inside[j]);
        };
        static_assert(kLoads == 2 || kLoads == 3);
        if (loads_ > 0) copy(0);
        if (loads_ > 1) {
            copy(1);
            if (kLoads > 2 && loads_ > 2) copy(kLoads - 1);
        }
    }

  private:
    const char* from_;
    uint32_t offset_[kLoads];
    int to_[kLoads];
    int first_row_, row_, loads_;
};

// A thread's share of each row of outputs: vectors of channels.
template <int kCount>
class DiagonalOutputs {
  public:
    HIPCONV_INLINE DiagonalOutputs(const DiagonalParams& p, const DiagonalPlace& at, int thread) {
        const Conv2dParams& c = p.conv;
        const DiagonalRuns runs(p, at.pixel);
        next_ = static_cast<char*>(c.out.data) + 2 * offset_in(c.out, runs.image, at.filter, at.class_row, 0) +
                at.first * p.class_row_pitch;
        exists_ = 0;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const int number = thread + i * kDiagonalThreads, pixel = number >> p.chunks_log;
            const int in_block = (number - (pixel << p.chunks_log)) * kDiagonalChannels;
            const bool exists = pixel < p.block_pixels && at.pixel + pixel < p.pixels && at.filter + in_block < c.out_channels;
            const uint32_t offset = runs.run_of(p, pixel) * static_cast<uint32_t>(c.out.batch_stride) +
                                    runs.column_in_image(p, pixel) * static_cast<uint32_t>(c.out.column_stride) + in_block;
            exists_ |= int{exists} << i;
            from_[i] = pixel * kDiagonalOutPitch + in_block * 2;
            in_a_register(from_[i]);
            to_[i] = exists ? 2 * offset : 0;
        }
    }

    // Writes the next row.
    HIPCONV_INLINE void write(const char* outputs, const DiagonalParams& p) {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            if (exists_ >> i & 1)
                *global_pointer<Words4>(next_ + to_[i]) = *reinterpret_cast<const Words4*>(outputs + from_[i]);
        next_ += p.class_row_pitch;
    }

    // Begins to copy what is added to the row that is so many behind the next one to be written.
    HIPCONV_INLINE void load_residual(char* to, const DiagonalParams& p, int behind) const {
        const char* const from = next_ + behind * p.class_row_pitch + p.to_residual;
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            copy_later_if((exists_ >> i & 1) != 0, reinterpret_cast<Words4*>(to + from_[i]), from + to_[i]);
    }

    // Writes all rows again, by the formula.
    HIPCONV_INLINE void make_again(const DiagonalParams& p, const DiagonalPlace& at, int thread) const {
        const Conv2dParams& c = p.conv;
        const DiagonalRuns runs(p, at.pixel);
#pragma unroll 1
        for (int i = 0; i < kCount; ++i) {
            if (!(exists_ >> i & 1)) continue;
            const int number = thread + i * kDiagonalThreads, pixel = number >> p.chunks_log;
            const int first = at.filter + (number - (pixel << p.chunks_log)) * kDiagonalChannels;
            const int image = runs.image + runs.run_of(p, pixel), column = runs.column_in_image(p, pixel);
#pragma unroll 1
            for (int row = at.first; row < at.behind; ++row)
#pragma unroll 1
                for (int k = first; k < first + kDiagonalChannels; ++k) {
                    const int y = at.class_row + row * p.classes, channel = static_cast<int>(divide(k, p.divide_by_multiplier));
                    const float sum = depthwise_by_formula(c, image, channel, k, y, column, c.padding_mode);
                    conv2d_store(c, image, k, y, column, sum);
                }
        }
    }

  private:
    char* next_;
    uint32_t to_[kCount];
    int from_[kCount];
    int exists_;
};

template <int kTapRows, int kTapPairs, int kStep>
__global__ void HIPCONV_LAUNCH_BOUNDS(kDiagonalThreads, (DiagonalShape<kTapRows, kTapPairs, kStep>::kBlocks))
    conv2d_depthwise_diagonal(HIPCONV_IN_PLACE const DiagonalParams parameter) {
    using Shape = DiagonalShape<kTapRows, kTapPairs, kStep>;
    HIPCONV_LARGE_SHARED(Words4, lds, 1);
    let_next_kernel_begin();
    if constexpr (kMatrixUnit == MatrixUnit::mma_sync) {
        constexpr int kRows = Shape::kRows, kGroups = Shape::kGroups, kAtOnce = Shape::kAtOnce, kStages = Shape::kStages;
        const DiagonalParams& p = first_parameter_again(parameter);
        const Conv2dParams& c = p.conv;
        const int thread = static_cast<int>(threadIdx.x), wave = thread / 32, lane = thread % 32;
        char* const base = reinterpret_cast<char*>(lds);
        int* const mark = reinterpret_cast<int*>(base + p.mark_at);
        for (int i = thread; i < p.out_at / 16; i += kDiagonalThreads) lds[i] = Words4{};
        if (thread == 0) *mark = 0;
        __syncthreads();
        wait_for_kernel_before();
        const DiagonalPlace at(p, static_cast<int>(blockIdx.x));
        // The wave's filters and pixels.
        const int chunk = wave & ((1 << p.chunks_log) - 1), first_filter = at.filter + chunk * kDiagonalChannels;
        const int first_pixel = (wave >> p.chunks_log) * kGroups * kDiagonalPixels;
        const bool works = first_filter < c.out_channels;
        const int x_chunk = (p.first_channel_of(first_filter) - p.first_channel_of(at.filter)) / kDiagonalChannels;
        // A word has the taps of two neighbouring channels, one of which may be the lane's filter's. They are asked for first,
        // and move to their places at last.
        const int filter = first_filter + lane / 4;
        const int in_chunk = static_cast<int>(divide(filter, p.divide_by_multiplier)) % kDiagonalChannels;
        const bool is_mine = works && in_chunk / 2 == lane % 4;
        const int shift = in_chunk % 2 * 16;
        uint32_t taps[kTapRows][kTapPairs][2];
        {
            const uint16_t* row =
                global_pointer<const uint16_t>(c.weight.data) + (is_mine ? filter * c.weight.batch_stride : 0);
#pragma unroll
            for (int r = 0; r < kTapRows; ++r) {
                const uint16_t* tap = row;
#pragma unroll
                for (int s = 0; s < 2 * kTapPairs; ++s) {
                    taps[r][s / 2][s % 2] = 0;
                    if (is_mine && r < c.kernel_height && s < c.kernel_width) taps[r][s / 2][s % 2] = *tap;
                    tap += c.weight.column_stride;
                }
                row += c.weight.row_stride;
            }
        }
        uint32_t bias_bits[2] = {};
        if (works && c.bias)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                bias_bits[e] = load_parameter_bits(c.bias, (first_filter + lane % 4 * 2 + e) * c.bias_stride, c.bias_dtype);

        DiagonalSource<Shape::kLoads> source(p, at, thread);
        constexpr int kCount = kGroups >= 2 ? kGroups / 2 : 1;
        DiagonalOutputs<kCount> outputs(p, at, thread);

        // Step t has the rows of x of number t * kStep and behind it, and ends the outputs of row t - (kRows - 1). In front of
        // the image there is nothing to be done before the first of these, and behind `multiplied` nothing to be multiplied.
        const int first_done = at.first + kRows - 1, behind = at.behind + kRows - 1;
        const bool is_zeros = c.padding_mode == PaddingMode::zeros, has_residual = c.residual.data;
        const auto has_rows = [&](int t) {
            const int first = source.first_row() + t * kStep * c.dilation_h, last = first + (kStep - 1) * c.dilation_h;
            return !is_zeros || (last >= 0 && first < c.in_height);
        };
        int step = at.first, multiplied = behind;  // the first of the steps between two barriers
        while (step < first_done && !has_rows(step)) ++step;
        while (multiplied > step && !has_rows(multiplied - 1)) --multiplied;
        source.begin_at(p, step * kStep);
        int stage = 0;  // whose turn it is to be filled, by where it begins
        const auto load = [&](int first, int out) {
            char* const to = base + stage;
            if (first < multiplied) source.template load<kAtOnce * kStep>(to, p);
            if (has_residual) {
#pragma unroll
                for (int sub = 0; sub < kAtOnce; ++sub)
                    if (first + sub >= first_done && first + sub < behind)
                        outputs.load_residual(base + out + sub * p.out_bytes, p,
                                              first + sub - (step > first_done ? step : first_done));
            }
            close_copies();
            stage += p.stage_bytes;
            if (stage == p.out_at) stage = 0;
        };
#pragma unroll 1
        for (int i = 0; i < kStages - 1; ++i) load(step + i * kAtOnce, p.out_at + i * kAtOnce * p.out_bytes);

        // Where the lane finds the wave's pixels, and the taps' distances from there.
        int x_at[kGroups], tap_at[kTapPairs];
        {
            const DiagonalRuns runs(p, at.pixel);
#pragma unroll
            for (int u = 0; u < kGroups; ++u) {
                const int pixel = first_pixel + u * kDiagonalPixels + lane % 16;
                const bool exists = pixel < p.block_pixels;
                x_at[u] = (exists ? place_in_row(p, runs.column_of(p, pixel)) : 0) + x_chunk * 16;
                in_a_register(x_at[u]);
            }
        }
#pragma unroll
        for (int t = 0; t < kTapPairs; ++t) {
            const int tap = 2 * t + lane / 16, there = tap < c.kernel_width ? tap : c.kernel_width - 1;
            tap_at[t] = place_in_row(p, there * c.dilation_w);
            in_a_register(tap_at[t]);
        }
#pragma unroll
        for (int r = 0; r < kTapRows; ++r)
#pragma unroll
            for (int t = 0; t < kTapPairs; ++t) taps[r][t][0] <<= shift, taps[r][t][1] <<= shift;
        Floats<4> bias;
#pragma unroll
        for (int e = 0; e < 4; ++e) bias[e] = parameter_of(bias_bits[e % 2], c.bias_dtype);
        // Those of the rows of outputs that are under way: number i of the row that begins i - 1 steps behind this one. The
        // first is not used.
        Floats<4> sums[kRows][kGroups];
#pragma unroll
        for (int i = 0; i < kRows; ++i)
#pragma unroll
            for (int u = 0; u < kGroups; ++u) sums[i][u] = bias;
        int out_place = (first_pixel + lane / 4) * kDiagonalOutPitch + chunk * 16 + lane % 4 * 4;
        in_a_register(out_place);

        int turn = 0;  // where the stage begins that is to be multiplied
        // Where steps put their outputs. If there is a residual, it is there before: as many steps ahead as x is.
        int out_now = p.out_at, out_before = p.mark_at - kAtOnce * p.out_bytes;
        // Waits for a stage, writes what the steps before have made, and begins to fill the stage that they had.
        const auto begin_steps = [&] {
            wait_for_copies<kStages - 2>();
            __syncthreads();
#pragma unroll
            for (int sub = 0; sub < kAtOnce; ++sub) {
                const int made = step - kAtOnce + sub;
                if (made >= first_done && made < behind) outputs.write(base + out_before + sub * p.out_bytes, p);
            }
            if (step < behind) load(step + (kStages - 1) * kAtOnce, out_before);
        };
        const auto end_steps = [&] {
            step += kAtOnce;
            turn += p.stage_bytes;
            if (turn == p.out_at) turn = 0;
            out_before = out_now;
            out_now += kAtOnce * p.out_bytes;
            if (out_now == p.mark_at) out_now = p.out_at;
        };
        const auto finish = [&](Floats<4>(&done)[kGroups], int sub) {
            char* const to = base + out_now + sub * p.out_bytes + out_place;
            // An x that is not finite makes NaN of the seven other channels' sums, half of which are enough to see it.
            float zeros = 0.0f;
#pragma unroll
            for (int u = 0; u < kGroups; ++u)
#pragma unroll
                for (int e = 0; e < 4; e += 2) zeros = fmaf(done[u][e], 0.0f, zeros);
            if (zeros != 0.0f) *mark = 1;
            if (has_residual) {
#pragma unroll
                for (int u = 0; u < kGroups; ++u)
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const uint32_t both = *reinterpret_cast<const uint32_t*>(to + (u * 16 + half * 8) * kDiagonalOutPitch);
                        const Pair pair = c.dtype == DType::bf16 ? unpack<bf16>(both) : unpack<f16>(both);
                        done[u][2 * half] += low(pair);
                        done[u][2 * half + 1] += high(pair);
                    }
            }
            if (c.activation == Conv2dActivation::none) {
            } else if (c.activation == Conv2dActivation::relu) {
#pragma unroll
                for (int u = 0; u < kGroups; ++u)
#pragma unroll
                    for (int e = 0; e < 4; ++e) done[u][e] = at_least(done[u][e], 0.0f);
            } else {
                // A group at a time, so that the text of all activations stays short.
#pragma unroll 1
                for (int turns = 0; turns < kGroups; ++turns) {
                    Floats<4> first = done[0];
                    with_activation(c.activation, [&](Conv2dActivation kind) {
#pragma unroll
                        for (int e = 0; e < 4; ++e) first[e] = activate(first[e], kind);
                    });
#pragma unroll
                    for (int u = 0; u + 1 < kGroups; ++u) done[u] = done[u + 1];
                    done[kGroups - 1] = first;
                }
            }
#pragma unroll
            for (int u = 0; u < kGroups; ++u)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    *reinterpret_cast<uint32_t*>(to + (u * 16 + half * 8) * kDiagonalOutPitch) =
                        rounded_pair(c.out_dtype, make_pair(done[u][2 * half], done[u][2 * half + 1]));
        };
#pragma unroll 1
        while (step < multiplied) {
            begin_steps();
#pragma unroll 1
            for (int sub = 0; works && sub < kAtOnce; ++sub) {
                const char* const from = base + turn + sub * kStep * p.row_bytes;
                Floats<4> done[kGroups];
                with_halves<f16>(c.dtype, [&](auto like) {
                    using A = Atom<MatrixUnit::mma_sync, decltype(like)>;
#pragma unroll
                    for (int j = 0; j < kStep; ++j)
#pragma unroll
                        for (int t = 0; t < kTapPairs; ++t)
#pragma unroll
                            for (int u = 0; u < kGroups; ++u) {
                                const Words4 x = A::load_matrices(
                                    reinterpret_cast<const Words4*>(from + j * p.row_bytes + x_at[u] + tap_at[t]));
#pragma unroll
                                for (int i = kRows - 1; i >= 0; --i) {
                                    const int r = i * kStep + j;
                                    Floats<4>& to = i == kRows - 1 ? done[u] : sums[i + 1][u];
                                    Floats<4> next = j > 0 || t > 0 ? to : i > 0 ? sums[i][u] : bias;
                                    if (r < kTapRows) A::multiply_eight(next, 0, x, taps[r][t][0], taps[r][t][1]);
                                    to = next;
                                }
                            }
                });
                if (step + sub >= first_done) finish(done, sub);
            }
            end_steps();
        }
        // The outputs that see nothing more end.
#pragma unroll 1
        for (;;) {
            begin_steps();
            if (step >= behind) break;
#pragma unroll 1
            for (int sub = 0; works && sub < kAtOnce; ++sub) {
                Floats<4> done[kGroups];
#pragma unroll
                for (int u = 0; u < kGroups; ++u)
#pragma unroll
                    for (int i = kRows - 1; i >= 0; --i) {
                        Floats<4>& to = i == kRows - 1 ? done[u] : sums[i + 1][u];
                        to = i > 0 ? sums[i][u] : bias;
                    }
                if (step + sub >= first_done) finish(done, sub);
            }
            end_steps();
        }
        if (*mark != 0) outputs.make_again(p, at, thread);
    }
}

template <int kTapRows, int kTapPairs, int kStep>
void launch_diagonal(const DiagonalParams& p, unsigned blocks, int lds_bytes, void* stream) {
    const auto diagonal = conv2d_depthwise_diagonal<kTapRows, kTapPairs, kStep>;
    const int shared = launch_shared_bytes(lds_bytes);
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(diagonal), hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    HIPCONV_LAUNCH(true, diagonal, dim3(blocks, 1, 1), dim3(kDiagonalThreads, 1, 1), shared, static_cast<hipStream_t>(stream),
                   p);
    check_launch("conv2d");
}

template <int kTapRows, int kTapPairs, int kStep>
constexpr DiagonalKernel diagonal_kernel() {
    using Shape = DiagonalShape<kTapRows, kTapPairs, kStep>;
    return {kTapRows,       kTapPairs,      kStep,
            Shape::kGroups, Shape::kBlocks, Shape::kAtOnce,
            Shape::kLoads,  Shape::kStages, launch_diagonal<kTapRows, kTapPairs, kStep>};
}

}  // namespace hipconv
