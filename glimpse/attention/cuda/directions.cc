#include "glimpse/attention/cuda/directions.h"

#include <algorithm>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/cuda/subspace.h"
#include "glimpse/kv/index/low_rank_keys.h"
#include "glimpse/kv/index/symmetric_eigen.h"

namespace glimpse::attention::cuda {
namespace {

constexpr int kNarrow = 256;  ///< all vectors of such a matrix take a thread some 20 ms
constexpr std::size_t kBytesAtOnce = std::size_t{128} << 20;

/// False also where most directions are wanted, so that finding all costs no more.
bool iterates(const Directions::Shape& shape) {
  const int columns = kernels::cuda::subspace_columns(shape.rank);
  return shape.width > kNarrow && columns <= kernels::cuda::kMostSubspaceColumns && columns <= shape.width / 2;
}

/// Doubles of one layer.
std::size_t doubles(const Directions::Shape& shape) {
  const std::size_t width = size(shape.width), columns = size(kernels::cuda::subspace_columns(shape.rank));
  return width * width + (iterates(shape) ? 2 * (width + columns) * columns : 0);
}

int layers_at_once(const Directions::Shape& shape) {
  const auto fit = static_cast<int>(kBytesAtOnce / (doubles(shape) * sizeof(double)));
  return std::clamp(fit, 1, std::max(1, shape.layers));
}

/// Numbers of the device's memory from the beginning.
std::vector<double> first_of(kernels::cuda::Array<double>& array, std::size_t count) {
  std::vector<double> values(count);
  array.memory().copy_out(0, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace

std::size_t Directions::bytes(const Shape& shape) {
  return size(layers_at_once(shape)) * doubles(shape) * sizeof(double);
}

Directions::Directions(kernels::cuda::Stream& stream, Share share, const Shape& shape)
    : stream_(stream), share_(std::move(share)), shape_(shape), at_once_(layers_at_once(shape)) {
  const std::size_t count = size(at_once_), width = size(shape.width);
  matrices_ = kernels::cuda::Array<double>(stream, count * width * width);
  if (!iterates(shape)) return;
  const std::size_t columns = size(kernels::cuda::subspace_columns(shape.rank));
  basis_ = kernels::cuda::Array<double>(stream, count * width * columns);
  images_ = kernels::cuda::Array<double>(stream, count * width * columns);
  products_ = kernels::cuda::Array<double>(stream, count * columns * columns);
  solved_ = kernels::cuda::Array<double>(stream, count * columns * columns);
}

kernels::Pointer<double, kernels::Place::device> Directions::matrix(int i) const {
  return matrices_.pointer().raw() + size(i) * size(shape_.width) * size(shape_.width);
}

std::vector<std::vector<float>> Directions::find(std::span<const int> ranks) {
  check(ranks.size() <= size(at_once_), "no more layers than there is room for");
  check(std::ranges::all_of(ranks, [&](int rank) { return rank <= shape_.rank; }), "no rank over the largest");
  if (iterates(shape_)) return iterate(ranks);
  const std::size_t width = size(shape_.width), each = width * width;
  const std::vector<double> all = first_of(matrices_, ranks.size() * each);
  std::vector<std::vector<float>> found(ranks.size());
  share_(ranks.size(), [&](std::size_t i) {
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(i * each);
    found[i] = kv::LowRankKeys::directions({from, from + static_cast<std::ptrdiff_t>(each)}, width, ranks[i]);
  });
  return found;
}

std::vector<std::vector<float>> Directions::iterate(std::span<const int> ranks) {
  const int columns = kernels::cuda::subspace_columns(shape_.rank), kept = shape_.rank;
  const auto count = static_cast<int>(ranks.size());
  kernels::cuda::find_subspace(stream_, {.matrices = matrices_.constant(),
                                         .count = count,
                                         .width = shape_.width,
                                         .columns = columns,
                                         .basis = basis_.pointer(),
                                         .images = images_.pointer(),
                                         .products = products_.pointer(),
                                         .solved = solved_.pointer()});
  const std::size_t square = size(columns) * size(columns), turned = size(columns) * size(kept);
  const std::vector<double> products = first_of(products_, ranks.size() * square);
  std::vector<double> rotations(ranks.size() * turned);
  share_(ranks.size(), [&](std::size_t i) {
    const auto from = products.begin() + static_cast<std::ptrdiff_t>(i * square);
    const kv::EigenPairs eigen = kv::symmetric_eigen({from, from + static_cast<std::ptrdiff_t>(square)}, size(columns));
    for (std::size_t k = 0; k < size(kept); ++k) {
      for (std::size_t c = 0; c < size(columns); ++c) {
        rotations[i * turned + c * size(kept) + k] = eigen.vectors[k * size(columns) + c];
      }
    }
  });
  solved_.set(rotations);
  kernels::cuda::turn_subspace(stream_, {.basis = basis_.constant(),
                                         .count = count,
                                         .width = shape_.width,
                                         .columns = columns,
                                         .kept = kept,
                                         .rotations = solved_.constant(),
                                         .out = images_.pointer()});
  const std::size_t each = size(shape_.width) * size(kept);
  const std::vector<double> all = first_of(images_, ranks.size() * each);
  std::vector<std::vector<float>> found(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    found[i].reserve(size(shape_.width) * size(ranks[i]));
    for (std::size_t row = 0; row < size(shape_.width); ++row) {
      const double* const from = all.data() + i * each + row * size(kept);
      for (int k = 0; k < ranks[i]; ++k) found[i].push_back(static_cast<float>(from[k]));
    }
  }
  return found;
}

}  // namespace glimpse::attention::cuda
