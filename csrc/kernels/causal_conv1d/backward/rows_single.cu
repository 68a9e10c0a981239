// The backward of rows of one token, in any layouts, with states and ids: the kernel "rows" has this for them.
//
// Such a row is no convolution: its token sees itself and the initial state, so that all but the sums of dweight and dbias is
// made element by element. A thread has two elements at a time, as a pair: neighbouring channels of a row where all tensors
// have them as vectors, or else a channel of two rows. It walks down the rows of a piece.
//
// Bytes: all tensors are read or written once.
#include <hip/hip_runtime.h>

#include "../common/vector_math.h"
#include "causal_conv1d/states_formula.h"
#include "derivative.h"
#include "launch/check.h"
#include "launch/division.h"
#include "rows_single.h"
#include "sums.h"
#include "weights.h"

namespace hipconv {

namespace {

constexpr int kSingleThreads = 256;  // of a block
constexpr int kSingleLanes = 128;    // along channels, at most
constexpr int kMaxSingleWidth = 8;

// Blocks of a compute unit, by the registers that a width needs.
constexpr int bwd_single_blocks(int width, int element_bytes, bool pairs) {
    if (!kHasPredicates) return width == 1 ? 4 : width <= 4 ? 3 : 2;
    return width <= 4 ? 4 : element_bytes == 2 && pairs ? 3 : 2;
}

struct BwdSingleCall {  // the kernel's parameter, which it reads again (device/arch.h) rather than keep it in registers
    CausalConv1dBwdParams p;
    uint32_t pieces, rows_of_piece;
    uint32_t groups, lanes, rows;  // blocks along the channels; of a block
    bool has_pairs;
};

}  // namespace

// Two elements as memory has them: `at` is the first one's offset, and the second one lies `step` further.
template <typename T, bool kPairs>
struct BwdTwo {
    Words<T, 2> words;
    HIPCONV_INLINE void load(const void* from, int64_t at, int64_t, bool, bool) {
        words = *reinterpret_cast<const Words<T, 2>*>(global_pointer<const T>(from) + at);
    }
    HIPCONV_INLINE Pair pair() const { return pair_of<T>(words, 0); }
    static HIPCONV_INLINE void store(void* to, int64_t at, int64_t, bool, bool, Pair v) {
        Words<T, 2> both{};
        set_pair<T>(both, 0, v);
        *reinterpret_cast<Words<T, 2>*>(global_pointer<T>(to) + at) = both;
    }
};
template <typename T>
struct BwdTwo<T, false> {
    T first, second;
    HIPCONV_INLINE void load(const void* from, int64_t at, int64_t step, bool has_first, bool has_second) {
        if (has_first) first = global_pointer<const T>(from)[at];
        if (has_second) second = global_pointer<const T>(from)[at + step];
    }
    HIPCONV_INLINE Pair pair() const { return make_pair(to_float(first), to_float(second)); }
    static HIPCONV_INLINE void store(void* to, int64_t at, int64_t step, bool has_first, bool has_second, Pair v) {
        if (has_first) global_pointer<T>(to)[at] = from_float<T>(low(v));
        if (has_second) global_pointer<T>(to)[at + step] = from_float<T>(high(v));
    }
};

// kWidth is 1 where no token sees a state; else the filter may be narrower, and its taps are the last ones then.
template <typename T, int kWidth, bool kPairs>
__global__ void HIPCONV_LAUNCH_BOUNDS(kSingleThreads, bwd_single_blocks(kWidth, static_cast<int>(sizeof(T)), kPairs))
    causal_conv1d_bwd_single(BwdSingleCall call) {
    constexpr int kPast = kWidth - 1, kRowsOfTwo = kPairs ? 1 : 2;
    constexpr int kAtOnce = kPast > 0 ? 1 : 4;
    using Two = BwdTwo<T, kPairs>;
    HIPCONV_SHARED(float, of_threads, 2 * (kWidth + 1) * kSingleThreads);
    const auto again = [&]() -> const CausalConv1dBwdParams& { return first_parameter_again(call).p; };

    let_next_kernel_begin();
    const uint32_t piece = blockIdx.z * gridDim.y + blockIdx.y;
    if (piece >= call.pieces) return;
    const int columns = static_cast<int>(blockDim.x) * (kPairs ? 2 : 1);  // of the block
    const int64_t first_channel = int64_t{blockIdx.x} * columns, own = first_channel + threadIdx.x * (kPairs ? 2 : 1);
    const bool has_channel = own < call.p.in.dim;
    const int64_t d = has_channel ? own : 0;
    const int left_out = kPast > 0 ? kWidth - call.p.in.width : 0;
    const auto has_ids = [&]() -> bool { return again().in.seq_idx.data; };
    const auto has_initial = [&]() -> bool { return kPast > 0 && again().in.initial_states.data; };
    const auto has_final = [&]() -> bool { return kPast > 0 && again().dfinal_states.data; };
    const auto gives_initial = [&]() -> bool { return kPast > 0 && again().dinitial_states.data; };
    const auto has_tap = [&](int i) { return i >= left_out; };
    wait_for_kernel_before();

    Pair weight[kWidth], dweight[kWidth], bias = twice(0.0f), dbias = twice(0.0f);
    {
        const CausalConv1dInputs& in = call.p.in;
        const auto both = [&](const void* from, int64_t at, int64_t step, DType dtype) {
            const float first = load_parameter(global_pointer<const void>(from), at, dtype);
            return make_pair(first, kPairs ? load_parameter(global_pointer<const void>(from), at + step, dtype) : first);
        };
        if (in.bias) bias = both(in.bias, d * in.bias_stride, in.bias_stride, in.bias_dtype);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            weight[i] = dweight[i] = twice(0.0f);
            const int tap = i + in.width - kWidth;
            if (tap >= 0)
                weight[i] = both(in.weight, d * in.weight_dim_stride + tap * in.weight_width_stride, in.weight_dim_stride,
                                 in.weight_dtype);
        }
    }

    const uint32_t first = piece * call.rows_of_piece + threadIdx.y, batch = static_cast<uint32_t>(call.p.in.batch);
    uint32_t end = piece * call.rows_of_piece + call.rows_of_piece;
    if (end > batch) end = batch;
    const auto place = [&](const Sequences& s) { return first * s.batch_stride + d * s.dim_stride; };
    const auto step_of = [&](const Sequences& s) { return static_cast<int64_t>(blockDim.y) * s.batch_stride; };
    int64_t x_at = place(again().in.x), dout_at = place(again().dout), dx_at = place(again().dx);
    int64_t initial_at = 0, final_at = 0, dinitial_at = 0;
    if (has_initial()) initial_at = place(again().in.initial_states);
    if (has_final()) final_at = place(again().dfinal_states);
    if (gives_initial()) dinitial_at = place(again().dinitial_states);

#pragma unroll 1
    for (uint32_t row = first; has_channel && row < end; row += kAtOnce * kRowsOfTwo * blockDim.y) {
        const int64_t x_step = step_of(again().in.x), dout_step = step_of(again().dout), dx_step = step_of(again().dx);
        Two x_in[kAtOnce], dout_in[kAtOnce], initial_in[kPast + 1], final_in[kPast + 1];
        bool has_low[kAtOnce], has_high[kAtOnce], counts_low[kAtOnce], counts_high[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
            const uint32_t low_row = row + k * kRowsOfTwo * blockDim.y, high_row = kPairs ? low_row : low_row + blockDim.y;
            has_low[k] = low_row < end;
            has_high[k] = high_row < end;
            counts_low[k] = has_low[k];
            counts_high[k] = has_high[k];
            if (!has_low[k]) continue;
            x_in[k].load(again().in.x.data, x_at + k * kRowsOfTwo * x_step, x_step, has_low[k], has_high[k]);
            dout_in[k].load(again().dout.data, dout_at + k * kRowsOfTwo * dout_step, dout_step, has_low[k], has_high[k]);
            if (has_ids()) {
                const SequenceIds& ids = again().in.seq_idx;
                const int32_t* const from = global_pointer<const int32_t>(ids.data);
                counts_low[k] = from[low_row * ids.batch_stride] >= 0;
                counts_high[k] = kPairs ? counts_low[k] : has_high[k] && from[high_row * ids.batch_stride] >= 0;
            }
        }
        if constexpr (kPast > 0) {
            const auto load_columns = [&](int64_t at, const Sequences& s, Two(&to)[kPast + 1]) {
                const int64_t step = step_of(s), step_of_column = s.seqlen_stride;
#pragma unroll
                for (int i = 0; i < kPast; ++i) {
                    if (!has_tap(i)) continue;
                    to[i].load(s.data, at, step, has_low[0], has_high[0]);
                    at += step_of_column;
                }
            };
            if (has_initial()) load_columns(initial_at, again().in.initial_states, initial_in);
            if (has_final()) load_columns(final_at, again().dfinal_states, final_in);
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
            if (!has_low[k]) continue;
            const bool low_counts = counts_low[k], high_counts = counts_high[k];
            const Pair input = x_in[k].pair();
            Pair g = dout_in[k].pair();
            if (again().in.use_silu) {
                Pair sum = bias;
#pragma unroll
                for (int i = 0; i < kPast; ++i)
                    if (has_initial() && has_tap(i)) sum = multiply_add(weight[i], initial_in[i].pair(), sum);
                sum = multiply_add(weight[kPast], input, sum);
                g = multiply(g, silu_derivative(sum));
            }
            g = choose(low_counts, high_counts, g, twice(0.0f));
            dbias = add(dbias, g);
            dweight[kPast] = multiply_add_where(low_counts, high_counts, g, input, dweight[kPast]);
            const auto part = [&](int i) {
                return choose(low_counts, high_counts, multiply_add(weight[i], g, twice(0.0f)), twice(0.0f));
            };
            Pair own_part = part(kPast);
            if constexpr (kPast > 0) {
                if (has_initial()) {
#pragma unroll
                    for (int i = 0; i < kPast; ++i)
                        if (has_tap(i))
                            dweight[i] = multiply_add_where(low_counts, high_counts, g, initial_in[i].pair(), dweight[i]);
                }
                const auto with_final = [&](Pair v, int i) {
                    return has_final() ? choose(low_counts, high_counts, add(v, final_in[i].pair()), v) : v;
                };
                if (again().in.width > 1) own_part = with_final(own_part, kPast - 1);
                if (gives_initial()) {
                    const Sequences& s = again().dinitial_states;
                    const int64_t step = step_of(s), step_of_column = s.seqlen_stride;
                    int64_t at = dinitial_at;
#pragma unroll
                    for (int i = 0; i < kPast; ++i) {
                        if (!has_tap(i)) continue;
                        Pair value = part(i);
                        if (i > 0 && has_tap(i - 1)) value = with_final(value, i - 1);
                        Two::store(s.data, at, step, has_low[0], has_high[0], value);
                        at += step_of_column;
                    }
                    dinitial_at += kRowsOfTwo * step;
                }
                if (has_initial()) initial_at += kRowsOfTwo * step_of(again().in.initial_states);
                if (has_final()) final_at += kRowsOfTwo * step_of(again().dfinal_states);
            }
            Two::store(again().dx.data, dx_at + k * kRowsOfTwo * dx_step, dx_step, has_low[k], has_high[k], own_part);
        }
        x_at += kAtOnce * kRowsOfTwo * x_step;
        dout_at += kAtOnce * kRowsOfTwo * dout_step;
        dx_at += kAtOnce * kRowsOfTwo * dx_step;
    }

    // ---- dweight and dbias of the block -------------------------------------------------------------------------------------
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
#pragma unroll
    for (int i = 0; i <= kWidth; ++i) {
        const Pair sum = i < kWidth ? dweight[i < kWidth ? i : 0] : dbias;
        float* const to = of_threads + 2 * i * kSingleThreads;
        if constexpr (kPairs) {
            to[2 * thread] = low(sum);
            to[2 * thread + 1] = high(sum);
        } else {
            to[thread] = low(sum) + high(sum);
        }
    }
    __syncthreads();
    const CausalConv1dBwdParams& last = again();
    float* const partials = global_pointer<float>(last.partials);
    for (int e = thread; e < (last.in.width + 1) * columns; e += static_cast<int>(blockDim.x * blockDim.y)) {
        const int tap = e / columns, c = e - tap * columns, i = tap + kWidth - last.in.width;
        if (first_channel + c >= last.in.dim || (i < 0 && partials)) continue;
        float sum = 0.0f;
        for (unsigned row = 0; i >= 0 && row < blockDim.y; ++row) sum += of_threads[2 * i * kSingleThreads + row * columns + c];
        if (partials)
            partials[(int64_t{piece} * (last.in.width + 1) + tap) * last.in.dim + first_channel + c] = sum;
        else
            bwd_store_sum<float>(last, first_channel + c, tap, sum);
    }
}

namespace {

// Tells whether all tensors have neighbouring channels as vectors of two.
bool bwd_single_has_pairs(const CausalConv1dBwdParams& p) {
    const auto has = [&](const Sequences& s) {
        return !s.data || (s.dim_stride == 1 && s.batch_stride % 2 == 0 && s.seqlen_stride % 2 == 0 &&
                           reinterpret_cast<uintptr_t>(s.data) % static_cast<uintptr_t>(2 * element_bytes(p.in.dtype)) == 0);
    };
    Sequences x = p.in.x, dout = p.dout, dx = p.dx;
    x.seqlen_stride = dout.seqlen_stride = dx.seqlen_stride = 0;
    return p.in.dim % 2 == 0 && has(x) && has(dout) && has(dx) && has(p.in.initial_states) && has(p.dfinal_states) &&
           has(p.dinitial_states);
}

// Each block's threads stay for the whole of the call, on a large card.
BwdSingleCall bwd_single_call(const CausalConv1dBwdParams& p) {
    constexpr int64_t kSector = 32, kLeastRows = 4;
    BwdSingleCall call{p, 0, 0, 0, 0, 0, bwd_single_has_pairs(p)};
    const int64_t size = element_bytes(p.in.dtype) * (call.has_pairs ? 2 : 1), all = p.in.dim / (call.has_pairs ? 2 : 1);
    const int64_t least_groups = ceil_of(all, kSingleLanes);
    int64_t lanes = ceil_of(all, least_groups);
    if (least_groups > 1) lanes = round_up(lanes, kSector / size);
    call.lanes = static_cast<uint32_t>(lanes);
    call.groups = static_cast<uint32_t>(ceil_of(all, lanes));
    call.rows = static_cast<uint32_t>(kSingleThreads / lanes);
    const int blocks = bwd_single_blocks(bwd_has_states(p) ? p.in.width : 1, element_bytes(p.in.dtype), call.has_pairs);
    // One block more than the card holds at once would take as long again as all of them.
    const int64_t held = kUnitsOfLargeCard * blocks / call.groups, wanted = held > 0 ? held : 1;
    const int64_t turns = ceil_of(p.in.batch, call.rows);
    const int64_t pieces = turns < kLeastRows * wanted ? ceil_of(turns, kLeastRows) : wanted;
    call.rows_of_piece = static_cast<uint32_t>(ceil_of(turns, pieces) * call.rows);
    call.pieces = static_cast<uint32_t>(ceil_of(p.in.batch, call.rows_of_piece));
    return call;
}

BwdPartials bwd_single_partials(const CausalConv1dBwdParams& p, const BwdSingleCall& call) {
    BwdPartials partials = sums_or_partials(equal_partials(call.pieces));
    partials.empty_taps = p.in.initial_states.data ? 0 : p.in.width - 1;
    return partials;
}

template <typename T, int kWidth>
void launch_bwd_single_of(const BwdSingleCall& call, hipStream_t stream) {
    const dim3 grid = grid_of(call.groups, call.pieces), block(call.lanes, call.rows, 1);
    if (call.has_pairs)
        HIPCONV_LAUNCH(true, (causal_conv1d_bwd_single<T, kWidth, true>), grid, block, 0, stream, call);
    else
        HIPCONV_LAUNCH(true, (causal_conv1d_bwd_single<T, kWidth, false>), grid, block, 0, stream, call);
    check_launch("causal_conv1d_bwd");
}

}  // namespace

bool causal_conv1d_bwd_single_serves(const CausalConv1dBwdParams& p) {
    return p.in.seqlen == 1 && p.in.width <= kMaxSingleWidth && ceil_of(p.in.dim, 2) <= kGridLimit;
}

int64_t causal_conv1d_bwd_single_workspace(const CausalConv1dBwdParams& p) {
    return bwd_sums_workspace(p, bwd_single_partials(p, bwd_single_call(p)), /*looks_at_taps=*/false);
}

void causal_conv1d_bwd_single(const CausalConv1dBwdParams& params, void* workspace, hipStream_t stream) {
    BwdSingleCall call = bwd_single_call(params);
    const BwdPartials partials = bwd_single_partials(params, call);
    call.p = bwd_sums_begin(params, partials, /*looks_at_taps=*/false, workspace, stream);
    with_dtype(params.in.dtype, [&](auto type) {
        using T = decltype(type);
        if (!bwd_has_states(params))
            launch_bwd_single_of<T, 1>(call, stream);
        else if (params.in.width <= 4)
            launch_bwd_single_of<T, 4>(call, stream);
        else
            launch_bwd_single_of<T, kMaxSingleWidth>(call, stream);
    });
    bwd_sums_add_up(call.p, partials, stream);
}

}  // namespace hipconv
