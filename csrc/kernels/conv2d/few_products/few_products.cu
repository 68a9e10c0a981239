// The host side of `few_products`: what it serves, its tile and its launch.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "../gemm/run_layout.h"
#include "params.h"

namespace hipconv {

namespace {

// Rows and columns of x from a filter's first tap to the last one, and of padding: halves of a word hold them, and mark what is
// no tap by a row and a column that lie outside every image of less than 2^31 elements.
constexpr int64_t kMostDown = 1 << 15, kMostPadding = 1 << 14;

// The order of a sum's products, as FewProductsParams has it.
struct FewOrder {
    bool channels_inside, by_pairs;
    int64_t runs, run_products, run_begin, run_length;

    int64_t products() const { return runs * run_products; }
    int pieces() const {
        const int64_t pieces = ceil_of(products(), kRunPiece);
        return static_cast<int>(pieces > 3 ? kMostFewPieces : pieces);
    }
};

// Runs of x's neighbours as they are or, if lanes then load less often, in pairs.
FewOrder order_of(const Conv2dParams& p) {
    FewOrder order{};
    order.channels_inside = p.in_channels > 1 && p.x.channel_stride < p.x.column_stride;
    order.runs = order.channels_inside ? p.kernel_height : int64_t{p.kernel_height} * p.in_channels;
    order.run_length = order.channels_inside ? int64_t{p.kernel_width} * p.in_channels : p.kernel_width;
    order.run_products = order.run_length;
    const int64_t of_column = order.channels_inside ? p.in_channels : 1;
    const bool dense = p.x.column_stride == of_column && (!order.channels_inside || p.x.channel_stride == 1);
    const bool even = p.stride_w * of_column % 2 == 0 && p.in_width * of_column % 2 == 0 &&
                      multiple_of(p.x.row_stride, p.in_height, 2) && multiple_of(p.x.batch_stride, p.batch, 2) &&
                      (order.channels_inside || multiple_of(p.x.channel_stride, p.in_channels, 2)) &&
                      reinterpret_cast<uintptr_t>(p.x.data) % 4 == 0;
    if (!dense || !even || (p.dilation_w != 1 && p.kernel_width > 1)) return order;
    FewOrder pairs = order;
    pairs.by_pairs = true;
    pairs.run_begin = p.pad_left * of_column % 2;
    pairs.run_products = round_up(pairs.run_begin + order.run_length, 2);
    return pairs.products() <= kMostFewPieces * kRunPiece && pairs.pieces() < 2 * order.pieces() ? pairs : order;
}

int64_t filter_groups_of(const Conv2dParams& p) { return ceil_of(p.out_channels, kRunFilters); }

// Tells whether lanes store along pixels: where out has no neighbouring channels that are aligned.
bool stores_along_pixels(const Conv2dParams& p) { return !stores_filters_by(p, 2); }

// Tells whether so many pixels from a multiple of them on, counted through all images, lie beside each other, aligned.
bool has_runs(const Conv2dParams& p, const Image& image, DType dtype, int64_t pixels) {
    const int64_t alignment = pixels * element_bytes(dtype) < 16 ? pixels * element_bytes(dtype) : 16;
    const bool dense = p.out_height == 1 || image.row_stride == p.out_width;
    return image.column_stride == 1 && reinterpret_cast<uintptr_t>(image.data) % alignment == 0 &&
           (p.out_width % pixels == 0 || (dense && int64_t{p.out_height} * p.out_width % pixels == 0)) &&
           (dense || multiple_of(image.row_stride, p.out_height, pixels)) && multiple_of(image.batch_stride, p.batch, pixels) &&
           multiple_of(image.channel_stride, p.out_channels, pixels);
}

// Stores: along pixels or along filters, and by vectors or not.
struct FewStores {
    bool along_pixels, by_vectors;

    explicit FewStores(const Conv2dParams& p)
        : along_pixels(stores_along_pixels(p)),
          by_vectors(along_pixels ? has_runs(p, p.out, p.out_dtype, 4) : stores_filters_by(p, 8)) {}
    bool needs_scratch() const { return along_pixels && !by_vectors; }
};

// The elements from an image tensor's first one to its last one, by strides of either sign.
int64_t span_of(const Image& image, int64_t batch, int64_t channels, int64_t height, int64_t width) {
    const auto length = [](int64_t count, int64_t stride) { return (count - 1) * (stride < 0 ? -stride : stride); };
    return length(batch, image.batch_stride) + length(channels, image.channel_stride) + length(height, image.row_stride) +
           length(width, image.column_stride);
}

}  // namespace

std::vector<Conv2dTile> conv2d_few_products_tiles(const std::string& arch, DType dtype) {
    return conv2d_pointwise_tiles(arch, dtype);  // the same matrix instructions, fed in the same way
}

const char* conv2d_few_products_refusal(const Conv2dParams& p, const Conv2dPlan& plan) {
    if (p.dtype == DType::f32) return "x of 16-bit types";
    const FewOrder order = order_of(p);
    if (p.groups != 1 || order.products() > kMostFewPieces * kRunPiece)
        return "groups of 1, and up to 192 products of channels and taps in a sum";
    if (p.padding_mode != PaddingMode::zeros && pads(p)) return "padding by zeros";
    if (few_products_lds(filter_groups_of(p), order.pieces(), FewStores(p).needs_scratch()) > kFewProductsLds)
        return "filters that fit LDS";
    if (static_cast<int64_t>(p.batch) * p.out_height * p.out_width >= kLimit31 / 2) return "outputs of less than 2^30 pixels";
    const int64_t down = int64_t{p.kernel_height} * p.dilation_h, across = int64_t{p.kernel_width} * p.dilation_w;
    if (down >= kMostDown || across >= kMostDown || p.pad_top >= kMostPadding || p.pad_left >= kMostPadding)
        return "filters of less than 2^15 rows and columns of x, and padding of less than 2^14";
    if (span_of(p.x, p.batch, p.in_channels, p.in_height + p.pad_top + down, p.in_width + p.pad_left + across) >= kLimit31 ||
        span_of(p.weight, 1, p.in_channels, p.kernel_height, p.kernel_width) >= kLimit31)
        return "an x of less than 2^31 elements, and filters of less each";
    if (plan.split_k != 1) return "split_k of 1";
    return nullptr;
}

void conv2d_few_products(const Conv2dParams& p, const Conv2dPlan&, void* /*workspace*/, void* stream) {
    const FewOrder order = order_of(p);
    const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
    const auto by = [](int64_t value) { return divisor_of(static_cast<uint32_t>(value)); };
    FewProductsParams g{};
    g.conv = p;
    g.pixels = p.batch * p.out_height * p.out_width;
    g.tiles = number(ceil_of(g.pixels, kRunPixels));
    g.filter_groups = number(filter_groups_of(p));
    g.x_image = number(p.x.batch_stride);
    g.x_row = number(p.x.row_stride);
    g.x_column = number(p.x.column_stride);
    g.divide_by_image = by(int64_t{p.out_height} * p.out_width);
    g.divide_by_row = by(p.out_width);
    g.channels_inside = order.channels_inside;
    g.by_pairs = order.by_pairs;
    g.runs = number(order.runs);
    g.run_products = number(order.run_products);
    g.run_begin = number(order.run_begin);
    g.run_length = number(order.run_length);
    g.column_length = number(!order.by_pairs ? 1 : order.channels_inside ? p.in_channels : 1);
    g.row_length = g.column_length * p.in_width;
    g.divide_by_run = by(order.run_products);
    g.divide_inside = by(order.channels_inside ? p.in_channels : p.kernel_height);
    const FewStores stores(p);
    g.by_vectors = stores.by_vectors;
    g.simple = g.by_vectors && p.out_dtype == p.dtype && !p.residual.data &&
               span_of(p.out, p.batch, p.out_channels, p.out_height, p.out_width) < kLimit31 &&
               (p.activation == Conv2dActivation::none || p.activation == Conv2dActivation::relu);
    if (g.simple) {
        g.out_image = number(p.out.batch_stride);
        g.out_row = number(p.out.row_stride);
        g.out_column = number(p.out.column_stride);
    }
    const int pieces = order.pieces(),
              lds = static_cast<int>(few_products_lds(g.filter_groups, pieces, stores.needs_scratch()));
    const int64_t resident = resident_blocks(lds, kFewProductsLds, few_products_blocks(pieces, stores.along_pixels));
    launch_few_products(g, pieces, stores.along_pixels, static_cast<unsigned>(g.tiles < resident ? g.tiles : resident), lds,
                        stream);
}

}  // namespace hipconv
