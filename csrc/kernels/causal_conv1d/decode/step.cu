// This kernel is the causal conv1d decode of one token a row, widths 1 to 8 ("step"), in vectors of channels: this is the most
// common case of decoding.
//
// Its time is two waits for memory, first for the row's slot and then for its state, and the bytes. So a lane asks at once for
// all that it can, the kernel is short, and its parameters are few: where rows are few, fetching more instructions and
// parameters takes longer than the rest. Where rows are many, a block takes several, one after the other: they share its weights
// in registers, whatever the type of these in memory, and fewer blocks have to be started.
//
// Where channels are neighbours in memory (conv_state as (slots, columns, dim)), a lane moves its own vectors. Where a slot is
// packed channel by channel ((slots, dim, columns)), a wave's channels are contiguous: they move through LDS in whole vectors,
// of which a lane picks its elements in registers. A wave waits for nobody else. The window and x are read before anything is
// written.
#include <hip/hip_runtime.h>

#include "launch/check.h"
#include "vectors.h"

namespace hipconv {

// Registers of a lane: its parameters as floats, its part of the state and its token, and those of addresses.
template <typename S, int kWidth, int kColumns>
constexpr int kStepRegisters =
    kChannels * (kWidth + 1) + kChannels * (kWidth + 2 * (kColumns == kWidth)) * static_cast<int>(sizeof(S)) / 4 +
    (kColumns ? 24 + 4 * static_cast<int>(sizeof(S)) : 20);
template <typename S, int kWidth, int kColumns>  // on a compute unit
constexpr int kStepBlocks = 65536 / ((kStepRegisters<S, kWidth, kColumns> + 7) / 8 * 8) / kTokenLanes;

// This says where a wave's part of a packed strip is in LDS: kVectors for each lane, which moves every kWaveSize-th of them and
// owns those that follow one another. Where many lanes' own vectors would begin in the same bank, there are gaps.
template <typename Vector, int kVectors>
struct WaveStage {
    static constexpr int kGap = 128 / static_cast<int>(sizeof(Vector));  // as many vectors, and a gap of one
    static constexpr bool kGaps = kVectors % 2 == 0 && kGap % kVectors == 0;
    static constexpr int kSize = kWaveSize * kVectors + (kGaps ? kWaveSize * kVectors / kGap : 0);

    static HIPCONV_INLINE int moved(int wave_lane, int k) { return with_gaps(wave_lane) + with_gaps(k * kWaveSize); }
    static HIPCONV_INLINE int own(int wave_lane, int k) { return with_gaps(wave_lane * kVectors) + k; }
    static HIPCONV_INLINE int with_gaps(int vectors) { return kGaps ? vectors + vectors / kGap : vectors; }
};

// kColumns: those of a packed slot, or kOwnVectors. A packed slot has the columns of the window, or one more.
template <typename T, typename S, int kWidth, int kColumns>
__global__ void HIPCONV_LAUNCH_BOUNDS(kTokenLanes, (kStepBlocks<S, kWidth, kColumns>))
    causal_conv1d_update_step(VectorParams params) {
    const VectorParams& p = first_parameter(params);
    constexpr int kPast = kWidth - 1, kVectors = kColumns ? kColumns : kPast ? kPast : 1;
    using Vector = Words<T, kChannels>;
    using History = Words<S, kChannels>;
    using Stage = WaveStage<History, kVectors>;
    HIPCONV_SHARED(History, stages, kColumns ? kTokenLanes / kWaveSize * Stage::kSize : 1);

    const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
    const int strip_d = static_cast<int>(blockIdx.y) * lanes * kChannels;
    const int left = p.dim - strip_d;
    const int strip = left < lanes * kChannels ? left / kChannels : lanes;  // lanes that have channels
    const bool active = lane < strip;
    if (!kColumns && !active) return;
    const int d = strip_d + (active ? lane : 0) * kChannels;  // the other lanes only move strips

    let_next_kernel_begin();
    wait_for_kernel_before();
    unsigned b = blockIdx.x;
    IndexWords::Value slot{b, 0};
    if (p.slot_of_row.data) slot = p.slot_of_row.load(b);
    ChannelParameters<T, kWidth> parameters;
    const auto load_token = [&] { return *reinterpret_cast<const Vector*>(p.x.as<const T>() + b * p.x_row_stride + d); };
    Vector token = load_token();
    parameters.load(p, d);

    // Of a packed strip, a lane moves every kWaveSize-th vector of those of its wave.
    const int wave = lane / kWaveSize, wave_lane = lane % kWaveSize;
    History* const stage = stages + wave * Stage::kSize;
    int first_place = wave * (kWaveSize * kVectors) + wave_lane;
    const auto place = [&](int k) { return first_place + k * kWaveSize; };
    const auto state_of = [&](uint32_t slot) { return p.state.as<S>() + slot * p.slot_stride; };
    const auto strip_of = [&](uint32_t slot) {
        return reinterpret_cast<History*>(state_of(slot) + int64_t{strip_d} * kColumns);
    };
    Slots slots{};
    History loaded[kVectors];  // columns, or vectors of a packed strip
    const auto load_state = [&] {
        if constexpr (kColumns == kOwnVectors) {
            const S* from = state_of(slots.read) + d;
#pragma unroll
            for (int i = 0; i < kPast; ++i) loaded[i] = *reinterpret_cast<const History*>(from + i * p.column_stride);
        } else {
            const History* from = strip_of(slots.read);
#pragma unroll
            for (int k = 0; k < kVectors; ++k)  // past the strip's last vector, that one again
                loaded[k] = from[place(k) < strip * kVectors ? place(k) : strip * kVectors - 1];
        }
    };
    // Addresses are computed only where they are used: they would occupy registers until then.
    const auto store_out = [&](Vector result) {
        T* out = p.out.as<T>() + b * p.out_row_stride + d;
        if (__builtin_expect(p.split, 0)) {
            // Lanes choose among the row's addresses: what these are made of would be fetched by each lane.
            T* const q = token_at<T>(p.outs[0], b, 0, 0) + d;
            T* const k = token_at<T>(p.outs[1], b, 0, 0) + (d - p.out_end[0]);
            T* const v = token_at<T>(p.outs[2], b, 0, 0) + (d - p.out_end[1]);
            out = d < p.out_end[0] ? q : d < p.out_end[1] ? k : v;
        }
        if (active) *reinterpret_cast<Vector*>(out) = result;
    };
    const auto store_result = [&](auto window) {  // window(i, j): column i of it, oldest first, of pair j of the channels
        store_out(parameters.template convolve<true>(window, token, p.use_silu));
    };
    const auto step = [&] {
        if constexpr (kColumns == kOwnVectors) {
            store_result([&](int i, int j) { return pair_of<S>(loaded[i], j); });
            S* to = state_of(slots.write) + d;
#pragma unroll
            for (int i = 0; i < kPast; ++i)
                *reinterpret_cast<History*>(to + i * p.column_stride) = i + 1 < kPast ? loaded[i + 1] : as_history<S, T>(token);
        } else {
            History own[kVectors];  // the lane's channels: (channel, column)
#pragma unroll
            for (int k = 0; k < kVectors; ++k) stage[Stage::moved(wave_lane, k)] = loaded[k];
            sync_wave();
#pragma unroll
            for (int k = 0; k < kVectors; ++k) own[k] = stage[Stage::own(wave_lane, k)];
            const auto bits = [&](int at) { return element<S, kChannels>(own, at < kVectors * kChannels ? at : 0); };
            const bool tail = kColumns > kPast && p.tail;  // the first column comes before the window and moves with it
            const auto bits_of_window = [&](int at) {      // both are read: a choice between places would be one of addresses
                const uint32_t here = bits(at), behind = bits(kColumns > kPast ? at + 1 : at);
                return tail ? behind : here;
            };
            const auto value = [&](int c, int i) { return to_float(from_bits<S>(bits_of_window(c * kColumns + i))); };
            store_result([&](int i, int j) { return make_pair(value(2 * j, i), value(2 * j + 1, i)); });

            const History latest = as_history<S, T>(token);
            const auto moved = [&](int at) {  // element `at` after the step
                const int i = at % kColumns;
                const uint32_t last = element<S, kChannels>(&latest, at / kColumns), here = bits(at), behind = bits(at + 1);
                if (i < kPast - 1) return behind;
                if (i == kPast - 1) return tail ? behind : last;
                return tail ? last : here;
            };
            constexpr int kInWord = 4 / static_cast<int>(sizeof(S));
#pragma unroll
            for (int k = 0; k < kVectors; ++k) {
                History vector{};
#pragma unroll
                for (int w = 0; w < kChannels / kInWord; ++w) {
                    const int at = k * kChannels + w * kInWord;
                    set_word(vector, w, kInWord == 2 ? moved(at) | moved(at + 1) << 16 : moved(at));
                }
                stage[Stage::own(wave_lane, k)] = vector;
            }
            sync_wave();
            History* to = strip_of(slots.write);
#pragma unroll
            for (int k = 0; k < kVectors; ++k)
                if (place(k) < strip * kVectors) to[place(k)] = stage[Stage::moved(wave_lane, k)];
        }
    };

    for (bool first = true;; first = false) {
        from_here_on(first_place);
        slots = slots_of_row(p, b, slot);
        if (slots.live) load_state();
        if (first) parameters.convert(p);
        const unsigned next = b + gridDim.x;
        const bool more = next < static_cast<unsigned>(p.batch);
        slot = {next, 0};
        if (more && p.slot_of_row.data) slot = p.slot_of_row.load(next);
        if (slots.live)
            step();
        else if (p.zero_padding)
            store_out(Vector{});
        if (!more) return;
        b = next;
        token = load_token();
    }
}

namespace {

constexpr unsigned kEnoughBlocks = 1024;  // fill a large card
constexpr unsigned kMostRowsOfBlock = 4;
constexpr unsigned kWholeWaves = 64;  // lanes: the waves of every card

template <typename T, typename S, int kWidth, int kColumns>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    const unsigned needed = power_of_two_up_to(p.dim / kChannels, kTokenLanes);
    const unsigned lanes = kColumns && needed < kWholeWaves ? kWholeWaves : needed;
    const unsigned strips = blocks_up_to(p.dim / kChannels, lanes, kMostStrips), batch = static_cast<unsigned>(p.batch);
    const int64_t times = int64_t{batch} * strips / (kEnoughBlocks * (kTokenLanes / lanes));
    const unsigned rows = times < 1 ? 1 : times < kMostRowsOfBlock ? static_cast<unsigned>(times) : kMostRowsOfBlock;
    HIPCONV_LAUNCH(true, (causal_conv1d_update_step<T, S, kWidth, kColumns>), dim3((batch + rows - 1) / rows, strips, 1),
                   dim3(lanes, 1, 1), 0, stream, vector_params(p));
    check_launch("causal_conv1d_update");
}

// Models have packed slots of one more column than the window at these widths only.
constexpr bool has_spare_column(int width) { return width == 3 || width == 4; }

template <typename T, int kWidth>
void with_columns(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    if constexpr (kWidth == kCommonWidth && sizeof(T) == 2)
        if (p.state_dtype != p.dtype) return launch<T, float, kWidth, kOwnVectors>(p, stream);
    if constexpr (kWidth > 2) {
        if (p.state_dim_stride != 1 && p.state_len == kWidth - 1) return launch<T, T, kWidth, kWidth - 1>(p, stream);
        if constexpr (has_spare_column(kWidth))
            if (p.state_dim_stride != 1) return launch<T, T, kWidth, kWidth>(p, stream);
    }
    launch<T, T, kWidth, kOwnVectors>(p, stream);
}

bool serves(const CausalConv1dUpdateParams& p) {
    if (p.seqlen != 1 || p.query_start_loc.data || p.num_accepted_tokens.data || p.width > kMostWidth) return false;
    if (!channels_in_vectors(p) || !in_vectors(p, p.x) || !outputs_in_vectors(p)) return false;
    if (p.width == 1) return true;
    if (p.state_dtype != p.dtype) return p.state_dim_stride == 1 && p.width == kCommonWidth;
    if (p.state_dim_stride == 1) return true;
    return columns_in_registers(p) && (p.state_len < p.width || has_spare_column(p.width));
}

}  // namespace

const char* causal_conv1d_update_step_refusal(const CausalConv1dUpdateParams& p) {
    if (serves(p)) return nullptr;
    return "one token a row of widths 1 to 8 with aligned channels in fours, conv_state of x's dtype, and none of: "
           "query_start_loc, num_accepted_tokens, cache_seqlens, intermediate_conv_window, retrieve_next_token; of (slots, "
           "dim, state_len) without gaps, state_len = width - 1, or width at widths 3 and 4";
}

void causal_conv1d_update_step(const CausalConv1dUpdateParams& p, void* /*workspace*/, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    if (p.width == 1) return with_dtype(p.dtype, [&](auto type) { with_columns<decltype(type), 1>(p, hip_stream); });
    with_instance<kMostWidth>(
        p.dtype, p.width, [&](auto type, auto width) { with_columns<decltype(type), decltype(width)::value>(p, hip_stream); });
}

}  // namespace hipconv
