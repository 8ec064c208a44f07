#include "glimpse/attention/cuda/summaries.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"

namespace glimpse::attention::cuda {

void Summaries::begin(std::span<const SequenceRows> batch, std::span<const ProgramFacts* const> facts) {
  ranges_.clear();
  most_ = 0;
  if (bounds_.size() > 0) return;
  if (std::none_of(facts.begin(), facts.end(), [](const ProgramFacts* one) { return one->bounds; })) return;
  const std::size_t bytes = cache_.usage().pages_total * kernels::summary_bytes(cache_.shape().format);
  const std::size_t free = kernels::cuda::free_memory(stream_.device().number);
  if (bytes > free) {
    throw UserError(
        fmt::format("method '{}' keeps bounds of all pages of the cache on the GPU: {}, and {} are free there; use a "
                    "smaller context (-c) or another method",
                    batch.front().program->plan().policy, bytes_text(static_cast<double>(bytes)),
                    bytes_text(static_cast<double>(free))));
  }
  bounds_ = kernels::cuda::Memory(stream_, bytes);
}

void Summaries::follow(const SequenceRows& rows, const ProgramFacts& facts) {
  const std::uint64_t serial = cache_.serial(rows.sequence);
  Known& known = known_[rows.sequence];
  if (known.serial != serial) known = {serial, 0};
  known.tokens = std::min(known.tokens, rows.position);  // rows from there on are written anew
  Range range{&facts, 0, 0};
  if (facts.bounds) {
    const std::int64_t length = cache_.length(rows.sequence);
    range.first = static_cast<std::int32_t>(known.tokens / kernels::kPageTokens);
    range.last = static_cast<std::int32_t>(length / kernels::kPageTokens);
    known.tokens = length;
    // Most steps complete no page: a graph of their own leaves these launches out.
    const int pages = range.last - range.first;
    if (pages > 0) most_ = std::max(most_, static_cast<int>(std::bit_ceil(static_cast<unsigned>(pages))));
  }
  ranges_.push_back(range);
}

void Summaries::stage(int layers, kernels::cuda::Staging& staging, std::vector<std::int64_t>& key) {
  staged_.clear();
  for (int layer = 0; layer < layers && most_ > 0; ++layer) {
    of_layer_.clear();
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const Range& range = ranges_[i];
      for (const int head : range.program->layers[static_cast<std::size_t>(layer)].bounded) {
        of_layer_.push_back({static_cast<std::int32_t>(i), head, range.first, range.last});
      }
    }
    staged_.push_back({staging.add(of_layer_), static_cast<int>(of_layer_.size())});
    key.push_back(staged_.back().count);
  }
}

void Summaries::make(int layer, const kernels::KvTable<kernels::Place::device>& cache,
                     const kernels::cuda::Staging& staging,
                     kernels::Operations<kernels::Place::device>& operations) const {
  if (staged_.empty()) return;
  const Staged& staged = staged_[static_cast<std::size_t>(layer)];
  if (staged.count == 0) return;
  operations.summarise({cache, staging.at<kernels::PageRange>(staged.at), staged.count, most_, table()});
}

kernels::SummaryTable<kernels::Place::device> Summaries::table() const {
  return {bounds_.raw(), kernels::summary_type(cache_.shape().format.type)};
}

}  // namespace glimpse::attention::cuda
