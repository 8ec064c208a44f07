// measure_attention_on_gpu(): dense and gathered attention of one sequence's layer.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "glimpse/base/dtype.h"
#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/evaluate/attention_speed.h"
#include "glimpse/evaluate/speed.h"
#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/kernels/cuda/readings.h"
#include "glimpse/kernels/ref/operations.h"

namespace glimpse::evaluate {
namespace {

using namespace kernels;  // NOLINT(google-build-using-namespace): all of it is about them
using cuda::Array;
using cuda::Memory;

constexpr std::size_t kColdBytes = std::size_t{256} << 20;  ///< more than a GPU's cache, so that no layer lies in it
constexpr std::size_t kMostLayers = 32;
constexpr std::size_t kPlainBytes = std::size_t{1} << 30;
constexpr double kWrong = 1e-2;

/// Normal numbers in pages, the same ones again and again.
std::vector<std::byte> random_plane(const KvFormat& format, std::size_t pages, std::mt19937& random) {
  constexpr std::size_t kValues = std::size_t{1} << 20;
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values(kValues);
  for (std::uint16_t& value : values) {
    value = format.type == KvType::f16 ? f16_from_float(normal(random)) : bf16_from_float(normal(random));
  }
  std::vector<std::byte> plane(pages * format.page_bytes());
  const std::size_t block = kValues * sizeof(std::uint16_t);
  for (std::size_t at = 0; at < plane.size(); at += block) {
    std::memcpy(plane.data() + at, values.data(), std::min(block, plane.size() - at));
  }
  return plane;
}

/// Layers of one sequence, each in memory of its own with the same content.
class Bed {
 public:
  Bed(cuda::Stream& stream, const AttentionOptions& options, std::int64_t depth)
      : heads_(options.kv_heads),
        group_(options.group),
        slots_(static_cast<std::int32_t>(depth)),
        format_{options.kv_type, options.head_dim},
        scale_(1.0F / std::sqrt(static_cast<float>(options.head_dim))),
        operations_(cuda::make_operations(stream)) {
    std::mt19937 random(5);
    const std::size_t each = size((depth + kPageTokens - 1) / kPageTokens), pages = each * size(heads_);
    const std::size_t bytes = pages * format_.page_bytes();
    layers_ = std::clamp(kColdBytes / (2 * bytes), std::size_t{1}, kMostLayers);
    host_k_ = random_plane(format_, pages, random);
    host_v_ = random_plane(format_, pages, random);
    k_ = Memory(stream, layers_ * bytes);
    v_ = Memory(stream, layers_ * bytes);
    pages_.resize(layers_ * pages);
    std::iota(pages_.begin(), pages_.end(), PageId{0});
    page_table_ = Array<PageId>(stream, pages_);
    std::vector<HeadView> views;
    for (std::size_t i = 0; i < layers_ * size(heads_); ++i) {
      views.push_back({k_.raw(), v_.raw(), page_table_.constant().raw() + i * each, nullptr, slots_});
      if (i < size(heads_))
        host_views_.push_back({host_k_.data(), host_v_.data(), pages_.data() + i * each, nullptr, slots_});
    }
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      k_.copy_in(layer * bytes, host_k_);
      v_.copy_in(layer * bytes, host_v_);
    }
    views_ = Array<HeadView>(stream, views);
    std::normal_distribution<float> normal;
    queries_.resize(size(heads_ * group_ * format_.dim));
    for (float& x : queries_) x = normal(random);
    q_ = Array<float>(stream, queries_);
    out_ = Array<float>(stream, queries_.size());
    lse_ = Array<float>(stream, size(heads_ * group_));
    sequence_ = Array<std::int32_t>(stream, std::vector<std::int32_t>{0});
    behind_ = Array<std::int32_t>(stream, std::vector<std::int32_t>{1});
    chosen_ = static_cast<std::int32_t>(std::min(options.rows, depth));
    std::vector<std::int32_t> all(size(slots_));
    std::iota(all.begin(), all.end(), 0);
    for (int head = 0; head < heads_; ++head) {
      std::shuffle(all.begin(), all.end(), random);
      lists_.insert(lists_.end(), all.begin(), all.begin() + chosen_);
      std::sort(lists_.end() - chosen_, lists_.end());
    }
    counts_.assign(size(heads_), chosen_);
    list_table_ = Array<std::int32_t>(stream, lists_);
    count_table_ = Array<std::int32_t>(stream, counts_);
    for (const bool gathered : {false, true}) {
      for (int head = 0; head < heads_; ++head) {
        kinds_[gathered].push_back({gathered ? Read::Kind::sets : Read::Kind::everything, head, 0, 0, 0});
      }
      reads_[gathered] = Array<Read>(stream, kinds_[gathered]);
    }
  }

  int layers() const { return static_cast<int>(layers_); }
  void attend(int layer, bool gathered) {
    operations_->attend({{format_, views_.constant().raw() + size(layer) * size(heads_), 1, heads_},
                         {sequence_.constant(), behind_.constant(), 1},
                         q_.constant(),
                         group_,
                         scale_,
                         reads_[gathered].constant(),
                         {list_table_.pointer(), count_table_.pointer(), chosen_, heads_},
                         out_.pointer(),
                         lse_.pointer()});
  }
  /// Of the last attend() from the reference, in units of the largest output.
  double error(bool gathered) {
    const std::int32_t zero = 0, one = 1;
    std::vector<float> want(queries_.size()), lse(size(heads_ * group_));
    ref::Operations().attend({{format_, host_views_.data(), 1, heads_},
                              {&zero, &one, 1},
                              queries_.data(),
                              group_,
                              scale_,
                              kinds_[gathered].data(),
                              {lists_.data(), counts_.data(), chosen_, heads_},
                              want.data(),
                              lse.data()});
    const std::vector<float> got = out_.values();
    double largest = 0, apart = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(want[i])));
      const double difference = std::abs(static_cast<double>(got[i]) - want[i]);
      apart = std::max(apart, std::isfinite(difference) ? difference : 1e9);
    }
    return apart / largest;
  }
  double bytes(bool gathered) const {
    const double row = static_cast<double>(2 * format_.row_bytes());
    return heads_ * (gathered ? chosen_ * (row + sizeof(std::int32_t)) : slots_ * row);
  }

 private:
  int heads_, group_;
  std::int32_t slots_, chosen_ = 0;
  KvFormat format_;
  float scale_;
  std::unique_ptr<Operations<Place::device>> operations_;
  std::size_t layers_ = 1;
  std::vector<std::byte> host_k_, host_v_;
  Memory k_, v_;
  std::vector<PageId> pages_;
  Array<PageId> page_table_;
  std::vector<HeadView> host_views_;
  Array<HeadView> views_;
  std::vector<float> queries_;
  Array<float> q_, out_, lse_;
  Array<std::int32_t> sequence_, behind_;
  std::vector<std::int32_t> lists_, counts_;
  Array<std::int32_t> list_table_, count_table_;
  std::vector<Read> kinds_[2];  ///< dense, gathered
  Array<Read> reads_[2];
};

/// Plain reads, bytes a second.
class PlainReads {
 public:
  explicit PlainReads(cuda::Stream& stream)
      : memory_(stream, kPlainBytes),
        sum_(stream, 1),
        graph_(stream, [&] { cuda::read_all(stream, memory_.raw(), kPlainBytes, sum_.pointer().raw()); }) {}
  double bandwidth() { return static_cast<double>(kPlainBytes) / graph_.timed_seconds(); }

 private:
  Memory memory_;
  Array<unsigned> sum_;
  cuda::Graph graph_;
};

}  // namespace

AttentionSpeed measure_attention_on_gpu(const AttentionOptions& options, int device) {
  cuda::Stream stream(device);
  stream.make_current();
  cuda::require_supported(KvFormat{options.kv_type, options.head_dim});
  PlainReads plain(stream);
  plain.bandwidth();  // the first one is slow
  const std::int64_t total = static_cast<std::int64_t>(options.depths.size()) * options.repetitions;
  std::int64_t done = 0;
  AttentionSpeed speed;
  std::vector<double> bandwidths;
  for (const std::int64_t depth : options.depths) {
    Bed bed(stream, options, depth);
    const int calls = std::max(bed.layers(), 8);
    double errors[2];
    std::vector<std::unique_ptr<cuda::Graph>> graphs;
    for (const bool gathered : {false, true}) {
      bed.attend(0, gathered);
      errors[gathered] = bed.error(gathered);
      if (!(errors[gathered] < kWrong)) throw InternalError("attention on the GPU is not that of the reference");
      graphs.push_back(std::make_unique<cuda::Graph>(stream, [&] {
        for (int call = 0; call < calls; ++call) bed.attend(call % bed.layers(), gathered);
      }));
      graphs.back()->timed_seconds();
    }
    std::vector<double> times[2], shares[2];
    for (int turn = 0; turn < options.repetitions; ++turn) {
      if (options.on_measurement && !options.on_measurement(done++, total)) return speed;
      bandwidths.push_back(plain.bandwidth());
      for (const bool gathered : {false, true}) {
        times[gathered].push_back(graphs[gathered]->timed_seconds() / calls);
        shares[gathered].push_back(bed.bytes(gathered) / times[gathered].back() / bandwidths.back());
      }
    }
    speed.read_bandwidth = median(bandwidths);
    for (const bool gathered : {false, true}) {
      const auto [least, most] = std::minmax_element(times[gathered].begin(), times[gathered].end());
      const double middle = median(times[gathered]), bytes = bed.bytes(gathered);
      speed.rows.push_back({gathered ? "gathered" : "dense", depth, middle, *least, *most, bytes, bytes / middle,
                            median(shares[gathered]), errors[gathered]});
    }
  }
  return speed;
}

}  // namespace glimpse::evaluate
