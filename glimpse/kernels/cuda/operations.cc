#include "glimpse/kernels/cuda/operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/arguments.h"
#include "glimpse/kernels/cuda/check.h"
#include "glimpse/kernels/cuda/prefill_hopper.h"

namespace glimpse::kernels::cuda {
namespace {

constexpr std::array kDims{64, 96, 128, 256};
/// Query heads of one launch, so that the sum of what they read fits into 32 bits up to a million slots.
constexpr int kMostUnits = 4096;
/// What a block of a launch takes of a long range of pages.
constexpr int kPagesOfBlock = 64;
constexpr double kLog2OfE = 1.4426950408889634;

Limits limits_of(const Device& device) {
  Limits limits;
  limits.processors = device.processors;
  limits.clusters = device.capability >= 90;
  check_cuda(cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.number),
             "asking for shared memory");
  return limits;
}

/// Blocks for something of up to `most` pieces, of which one takes about `each`.
int parts_of(int most, int each) {
  constexpr int kMostParts = 4096;
  return std::clamp((most + each - 1) / each, 1, kMostParts);
}

class DeviceOperations final : public Operations<Place::device> {
 public:
  explicit DeviceOperations(Stream& stream)
      : stream_(stream),
        limits_(limits_of(stream.device())),
        partials_(stream, 2 * kRangesOfBlock * blocks() * partial_values(kMostSharedDim)),
        pieces_(stream, blocks() * piece_values(kMostSharedDim)),
        arrived_(stream, kRangesOfBlock * blocks() + 1) {
    pieces_.memory().fill(std::byte{0xff});
    arrived_.memory().fill(std::byte{0});
  }

  void append(const AppendOp<Place::device>& op) override {
    require_supported(op.cache.format);
    if (op.rows.rows == 0) return;
    launch_append({cache_of(op.cache, op.rows), op.k.raw(), op.v.raw()}, limits_, raw_stream());
  }

  void score(const ScoreOp<Place::device>& op) override {
    require_supported(op.cache.format);
    check(op.group > 0, "a group of no query heads");
    if (op.count == 0) return;
    for (int from = 0; from < op.count; from += kMostUnits) {
      launch_score({.cache = cache_of(op.cache, op.rows),
                    .group = op.group,
                    .scale = op.scale,
                    .q = op.q.raw(),
                    .heads = op.heads.raw() + from,
                    .count = std::min(kMostUnits, op.count - from),
                    .scores = op.out.scores.raw(),
                    .lse = op.out.lse.raw(),
                    .stride = op.out.stride,
                    .partials = partials()},
                   limits_, raw_stream());
    }
  }

  void summarise(const SummariseOp<Place::device>& op) override {
    require_supported(op.cache.format);
    check(op.out.type == summary_type(op.cache.format.type), "bounds are kept in summary_type()");
    if (op.count == 0 || op.most == 0) return;
    launch_summarise({.cache = cache_of(op.cache, {}),
                      .ranges = op.ranges.raw(),
                      .count = op.count,
                      .parts = parts_of(op.most, kPagesOfBlock),
                      .bounds = op.out.bounds.raw()},
                     limits_, raw_stream());
  }

  void search(const SearchOp<Place::device>& op) override {
    require_supported(op.cache.format);
    check(op.group > 0, "a group of no query heads");
    check(op.summaries.type == summary_type(op.cache.format.type), "bounds are kept in summary_type()");
    check(op.most >= 0 && static_cast<std::size_t>(op.most) <= op.out.stride,
          "a row of scores has room for all blocks");
    if (op.count == 0 || op.most == 0) return;
    launch_search({.cache = cache_of(op.cache, op.rows),
                   .group = op.group,
                   .scale = op.scale,
                   .q = op.q.raw(),
                   .bounds = op.summaries.bounds.raw(),
                   .searches = op.searches.raw(),
                   .count = op.count,
                   .parts = search_parts(op.most, op.count),
                   .scores = op.out.scores.raw(),
                   .stride = op.out.stride},
                  limits_, raw_stream());
  }

  void select(const SelectOp<Place::device>& op) override {
    check(op.group > 0, "a group of no query heads");
    if (op.count == 0) return;
    SelectArguments of{.cache = cache_of(op.cache, op.rows),
                       .group = op.group,
                       .scores = op.scores.scores.raw(),
                       .lse = op.scores.lse.raw(),
                       .stride = op.scores.stride,
                       .choices = op.choices.raw(),
                       .count = op.count,
                       .set_slots = op.sets.slots.raw(),
                       .set_count = op.sets.count.raw(),
                       .set_capacity = op.sets.capacity};
    of.blocks = select_blocks(limits_, op.count, op.scores.stride);
    const auto blocks = static_cast<std::size_t>(of.blocks);
    of.share = ((op.scores.stride + blocks - 1) / blocks + 31) / 32 * 32;
    if (of.share > select_units(limits_)) {
      const std::size_t wanted = static_cast<std::size_t>(op.count) * blocks * of.share;
      if (spills_.empty() || wanted > spills_.back().size()) {
        spills_.emplace_back(stream_, spills_.empty() ? wanted : std::max(wanted, 2 * spills_.back().size()));
      }
      of.spill = spills_.back().pointer().raw();
    }
    if (op.weighs_means) {
      const std::size_t wanted = static_cast<std::size_t>(op.count) * static_cast<std::size_t>(op.cache.kv_heads);
      if (mean_sums_.empty() || wanted > mean_sums_.back().size()) mean_sums_.emplace_back(stream_, 2 * wanted);
      of.mean_lse = mean_sums_.back().pointer().raw();
      launch_weigh_means(of, limits_, raw_stream());
    }
    launch_select(of, limits_, raw_stream());
  }

  void attend(const AttendOp<Place::device>& op) override {
    require_supported(op.cache.format);
    check(op.group > 0, "a group of no query heads");
    const int heads = op.cache.kv_heads * op.group;
    const int most = std::max(1, kMostUnits / heads);
    for (int row = 0; row < op.rows.rows; row += most) {
      Cache cache = cache_of(op.cache, op.rows);
      cache.rows = std::min(most, op.rows.rows - row);
      cache.sequence += row;
      cache.behind += row;
      const std::size_t head = static_cast<std::size_t>(row) * static_cast<std::size_t>(heads);
      const std::size_t value = head * static_cast<std::size_t>(op.cache.format.dim);
      launch_attend({.cache = cache,
                     .group = op.group,
                     .scale = static_cast<float>(static_cast<double>(op.scale) * kLog2OfE),
                     .q = op.q.raw() + value,
                     .reads = op.reads.raw() + static_cast<std::size_t>(row) * op.cache.kv_heads,
                     .set_slots = op.sets.slots.raw(),
                     .set_count = op.sets.count.raw(),
                     .set_capacity = op.sets.capacity,
                     .out = op.out.raw() + value,
                     .narrow = op.narrow ? op.narrow.raw() + value : nullptr,
                     .lse = op.lse ? op.lse.raw() + head : nullptr,
                     .scores = op.scores.scores ? op.scores.scores.raw() + head * op.scores.stride : nullptr,
                     .score_lse = op.scores.lse ? op.scores.lse.raw() + head : nullptr,
                     .stride = op.scores.stride,
                     .partials = partials()},
                    limits_, raw_stream());
    }
  }

  void prefill(const PrefillOp<Place::device>& op) override {
    require_halves(op.cache.format);
    check(op.group > 0, "a group of no query heads");
    check(op.count > 0 || op.prompt.rows <= op.prompt.behind, "rows of a prompt have slots");
    if (op.prompt.rows == 0) return;
    const PrefillArguments of{.cache = cache_of(op.cache, {}),
                              .prompt = op.prompt,
                              .pieces = op.count > 0 ? op.pieces.raw() : nullptr,
                              .count = std::max(op.count, 1),
                              .group = op.group,
                              .scale = static_cast<float>(static_cast<double>(op.scale) * kLog2OfE),
                              .q = op.q.raw(),
                              .out = op.out.raw(),
                              .lse = op.lse.raw()};
    if (has_prefill_hopper(stream_.device().capability, op.cache.format.dim)) {
      return launch_prefill_hopper({.prefill = of, .partials = partials()}, limits_, raw_stream());
    }
    launch_prefill(of, limits_, raw_stream());
  }

  void column_sums(const ColumnSumsOp<Place::device>& op) override {
    require_supported(op.cache.format);
    check(op.group > 0, "a group of no query heads");
    if (op.count == 0 || op.stride == 0) return;
    launch_column_sums({.cache = cache_of(op.cache, {}),
                        .pieces = op.pieces.raw(),
                        .count = op.count,
                        .tiles = static_cast<int>((op.stride + kColumns - 1) / kColumns),
                        .group = op.group,
                        .scale = static_cast<float>(static_cast<double>(op.scale) * kLog2OfE),
                        .q = op.q.raw(),
                        .lse = op.lse.raw(),
                        .sums = op.sums.raw(),
                        .stride = op.stride},
                       limits_, raw_stream());
  }

 private:
  /// Blocks for each of `count` searches among up to `most` blocks of pages: as many as run at a time, or have work.
  int search_parts(int most, int count) const {
    return std::clamp(kSearchBlocks * limits_.processors / count, 1, parts_of(most, kSearchStep));
  }
  static_assert(partial_values(kDims.back()) <= kBlocksOfProcessor * partial_values(kMostSharedDim));
  static_assert(piece_values(kDims.back()) <= kBlocksOfProcessor * piece_values(kMostSharedDim));
  std::size_t blocks() const { return static_cast<std::size_t>(kBlocksOfProcessor * limits_.processors); }
  cudaStream_t raw_stream() const { return static_cast<cudaStream_t>(stream_.raw()); }
  Partials partials() const {
    unsigned* const counters = arrived_.pointer().raw();
    return {partials_.pointer().raw(), counters + 1, counters, pieces_.pointer().raw()};
  }

  Stream& stream_;
  Limits limits_;
  Array<float> partials_, pieces_;
  Array<unsigned> arrived_;
  std::vector<Array<std::uint32_t>> spills_;  ///< the last is used; graphs may use those before
  std::vector<Array<float>> mean_sums_;       ///< likewise
};

}  // namespace

void require_supported(const KvFormat& format) {
  if (format.type == KvType::f32) {
    throw UserError(fmt::format("the CUDA kernels have no KV cache type {}; use bf16, f16 or q8_0", name(format.type)));
  }
  if (std::find(kDims.begin(), kDims.end(), format.dim) == kDims.end()) {
    throw UserError(fmt::format(
        "the CUDA kernels have no head dimension {}, only 64, 96, 128 and 256; run this model on the CPU", format.dim));
  }
}

void require_halves(const KvFormat& format) {
  require_supported(format);
  check(format.type != KvType::q8_0, "a prompt's rows read keys and values of 16 bits");
}

bool prefills_few_rows(const Stream& stream, const KvFormat& format) {
  return format.type != KvType::q8_0 && has_prefill_hopper(stream.device().capability, format.dim);
}

std::unique_ptr<Operations<Place::device>> make_operations(Stream& stream) {
  return std::make_unique<DeviceOperations>(stream);
}

}  // namespace glimpse::kernels::cuda
