// Probes of element types, of the activation, and of the division of work. probes.cu includes this file and names them.
#pragma once

namespace {

// ---- element types and the activation -----------------------------------------------------------------------------------

// The value of a 16-bit pattern, and the pattern nearest to a value with ties to even: slow, by the definition of the format.
struct Format {
    int exponent_bits, mantissa_bits;

    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    int exponent(uint32_t bits) const { return static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1)); }
    uint32_t mantissa(uint32_t bits) const { return bits & ((1u << mantissa_bits) - 1); }
    bool is_nan(uint32_t bits) const { return exponent(bits) == (1 << exponent_bits) - 1 && mantissa(bits) != 0; }

    double finite_value(uint32_t bits) const {  // an all-ones exponent counts on, which makes infinity the next power of two
        const int e = exponent(bits);
        const double significand = mantissa(bits) + (e ? 1 << mantissa_bits : 0);
        return (bits & 0x8000u ? -1.0 : 1.0) * std::ldexp(significand, (e ? e : 1) - bias() - mantissa_bits);
    }
    double value(uint32_t bits) const {
        if (is_nan(bits)) return std::numeric_limits<double>::quiet_NaN();
        if (exponent(bits) < (1 << exponent_bits) - 1) return finite_value(bits);
        return (bits & 0x8000u ? -1.0 : 1.0) * std::numeric_limits<double>::infinity();
    }
    uint32_t nearest(double v) const {
        const uint32_t sign = std::signbit(v) ? 0x8000u : 0u, infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
        if (std::isinf(v)) return sign | infinity;
        // Patterns are ordered like their values, so bisect for the last one not above |v|; then compare with both neighbours.
        uint32_t low = 0, high = infinity;
        while (high - low > 1) {
            const uint32_t middle = (low + high) / 2;
            (finite_value(middle) <= std::fabs(v) ? low : high) = middle;
        }
        const double below = std::fabs(v) - finite_value(low), above = finite_value(high) - std::fabs(v);
        const bool up = above < below || (above == below && low % 2 == 1);
        return sign | (up ? high : low);
    }
};

constexpr Format kF16{5, 10}, kBf16{8, 7};

template <typename T>
__global__ void round_trip(float* values, uint16_t* patterns) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    values[i] = hipconv::to_float(T{static_cast<uint16_t>(i)});
    patterns[i] = hipconv::from_float<T>(values[i]).bits;
}

template <typename T>
__global__ void round_all(const float* in, uint16_t* out, int size) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < size) out[i] = hipconv::from_float<T>(hipconv::canonical_nan(in[i])).bits;
}

std::string hex(uint32_t bits) {
    char text[16];
    std::snprintf(text, sizeof(text), "0x%x", bits);
    return text;
}

template <typename T>
void conversions(const Format& format) {
    DeviceArray<float> device_values(65536);
    DeviceArray<uint16_t> device_patterns(65536);
    hipLaunchKernelGGL(round_trip<T>, dim3(256), dim3(256), 0, nullptr, device_values.data(), device_patterns.data());
    const std::vector<float> values = device_values.values();
    const std::vector<uint16_t> patterns = device_patterns.values();
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        if (format.is_nan(bits)) {
            expect(std::isnan(values[bits]) && format.is_nan(patterns[bits]), "a NaN is lost: " + hex(bits));
        } else {
            const bool same_sign = std::signbit(values[bits]) == (bits >= 0x8000);
            expect(values[bits] == format.value(bits) && same_sign, "wrong value of " + hex(bits));
            expect(patterns[bits] == bits, "no round trip: " + hex(bits) + " becomes " + hex(patterns[bits]));
        }
    }

    // Around every pattern: the value, the midpoint to the next (a tie), and the floats beside both. Then f32's own extremes.
    std::vector<float> in;
    const float infinity = std::numeric_limits<float>::infinity();
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        if (format.is_nan(bits)) continue;
        const bool last = std::isinf(format.value(bits));
        const double next = last ? infinity : format.finite_value(bits + 1), here = format.value(bits);
        for (const float v : {static_cast<float>(here), static_cast<float>((here + next) / 2)})
            for (const float w : {v, std::nextafterf(v, infinity), std::nextafterf(v, -infinity)}) in.push_back(w);
    }
    uint64_t state = 1;
    for (int i = 0; i < 100000; ++i) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        in.push_back(hipconv::bit_cast<float>(static_cast<uint32_t>(state >> 32)));
    }
    for (const uint32_t bits : {1u, 0x80000001u, 0x007fffffu, 0x7f7fffffu, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu})
        in.push_back(hipconv::bit_cast<float>(bits));
    const int size = static_cast<int>(in.size());
    DeviceArray<float> device_in(in);
    DeviceArray<uint16_t> device_out(in.size());
    hipLaunchKernelGGL(round_all<T>, dim3((size + 255) / 256), dim3(256), 0, nullptr, device_in.data(), device_out.data(),
                       size);
    const std::vector<uint16_t> out = device_out.values();
    for (int i = 0; i < size; ++i) {
        const std::string what = hex(hipconv::bit_cast<uint32_t>(in[i])) + " becomes " + hex(out[i]);
        if (std::isnan(in[i]))
            expect(format.is_nan(out[i]), what + ", expected a NaN");
        else
            expect(out[i] == format.nearest(in[i]), what + ", expected " + hex(format.nearest(in[i])));
    }
}

__global__ void silu_all(const float* in, float* out, int size) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < size) out[i] = hipconv::silu(in[i]);
}

void silu_accuracy() {
    using Limits = std::numeric_limits<float>;
    std::vector<float> in = {0.0f, -0.0f, Limits::infinity(), Limits::quiet_NaN(), 1e30f, -1e30f};
    for (int i = -120000; i <= 120000; ++i) in.push_back(static_cast<float>(i) / 1000.0f);
    const int size = static_cast<int>(in.size());
    DeviceArray<float> device_in(in), device_out(in.size());
    hipLaunchKernelGGL(silu_all, dim3((size + 255) / 256), dim3(256), 0, nullptr, device_in.data(), device_out.data(), size);
    const std::vector<float> out = device_out.values();
    for (int i = 0; i < size; ++i) {
        const double x = in[i], expected = std::isinf(x) ? x : x / (1.0 + std::exp(-x));
        // log2(e) and its product with x are rounded, and exp2 turns that into a relative error that grows with |x|; below
        // 2^-126 the hardware's reciprocal may flush to zero.
        const double allowed = std::fabs(expected) * (2 * std::fabs(x) + 8) * std::ldexp(1.0, -24) + 2e-36;
        const bool fine = std::isnan(x) ? std::isnan(out[i]) : out[i] == expected || std::fabs(out[i] - expected) <= allowed;
        expect(fine, "silu(" + std::to_string(x) + ") is " + std::to_string(out[i]) + ", expected " + std::to_string(expected));
    }
}

// ---- division of work ---------------------------------------------------------------------------------------------------

__global__ void write_pieces(hipconv::Taper taper, hipconv::Piece* pieces, uint32_t count) {
    const uint32_t block = blockIdx.x * blockDim.x + threadIdx.x;
    if (block < count) pieces[block] = hipconv::piece_of_block(taper, block);
}

// Every item of every row belongs to one piece; pieces are as long as asked at first, and never longer later on. Those of a row
// are numbered, and as many as its zone says.
void taper() {
    struct Work {
        uint32_t items, rows, log2_longest;
    };
    for (const Work w : {Work{16, 4096, 4}, Work{64, 900, 4}, Work{5, 9000, 3}, Work{1, 70, 0}, Work{7, 3, 2},
                         Work{1000, 40, 4}, Work{9, 1, 4}, Work{33, 512, 1}, Work{4, 30000, 2}}) {
        const std::string what = std::to_string(w.items) + " items of " + std::to_string(w.rows) + " rows";
        const hipconv::Taper taper = hipconv::tapered(w.items, w.rows, w.log2_longest);
        const uint32_t count = taper.blocks + 3;
        DeviceArray<hipconv::Piece> device(count);
        hipLaunchKernelGGL(write_pieces, dim3((count + 255) / 256), dim3(256), 0, nullptr, taper, device.data(), count);
        const std::vector<hipconv::Piece> pieces = device.values();
        std::vector<int> times(static_cast<size_t>(w.items) * w.rows);
        uint32_t longest = 1u << w.log2_longest, number = 0;
        int zone = 0;
        for (uint32_t block = 0; block < taper.blocks; ++block) {
            const hipconv::Piece piece = pieces[block];
            expect(piece.row < w.rows && piece.count > 0 && piece.first + piece.count <= w.items, what + ": outside");
            expect(static_cast<uint32_t>(piece.count) <= longest, what + ": longer than those before");
            while (zone + 1 < hipconv::kTaperZones && block >= taper.first_block[zone + 1]) ++zone;
            expect(piece.number == number && number < pieces_of_row(taper, zone), what + ": wrongly numbered");
            number = number + 1 == pieces_of_row(taper, zone) ? 0 : number + 1;
            expect((number == 0) == (piece.first + piece.count == w.items), what + ": a row ends elsewhere");
            if (piece.first == 0 && static_cast<uint32_t>(piece.count) < w.items) longest = piece.count;
            for (int k = 0; k < piece.count; ++k) ++times[static_cast<size_t>(piece.row) * w.items + piece.first + k];
        }
        expect_equal(what, times, std::vector<int>(times.size(), 1));
        for (uint32_t block = taper.blocks; block < count; ++block) expect(pieces[block].count == 0, what + ": past the end");
        const bool large = static_cast<double>(w.items) * w.rows >= 65536 && w.log2_longest == 4 && w.items % 16 == 0;
        if (large) expect(pieces[0].count == 16 && pieces[taper.blocks - 1].count == 2, what + ": no taper");
    }
}

}  // namespace
