// The work of an operation on the CPU: outputs, each made of splits that any thread computes. One thread fills a list
// and seals it; then any number of threads drain it. The thread that finishes an output is told so and goes on with it,
// so that nobody waits for another. Every split has a partial result at a fixed place, and they are merged in order:
// the bits do not depend on the threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "glimpse/kernels/attention.h"

namespace glimpse::kernels {

/// What threads take one after the other.
template <class T>
class TakeList {
 public:
  void clear() { items_.clear(); }
  void add(const T& item) { items_.push_back(item); }
  /// Call when all is added.
  void seal() { next_.store(0, std::memory_order_release); }
  std::size_t size() const { return items_.size(); }

  /// The next item for the calling thread, or null.
  const T* take() {
    const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    return index < items_.size() ? &items_[index] : nullptr;
  }
  /// The same while so many are left that a thread may hold one ahead without leaving another idle; else null.
  const T* take_ahead(int threads) {
    const bool plenty = next_.load(std::memory_order_relaxed) + 2 * static_cast<std::size_t>(threads) < items_.size();
    return plenty ? take() : nullptr;
  }

 private:
  std::vector<T> items_;
  std::atomic<std::size_t> next_{0};
};

/// Query heads of one KV head that read the same in one row.
struct Output {
  const HeadView* view = nullptr;
  std::size_t query = 0;               ///< number of the first query head in [R, H]
  int queries = 1;                     ///< from there
  const std::int32_t* list = nullptr;  ///< what it reads: ascending slots, or null: entry i is slot i
  std::int32_t entries = 0;            ///< of the list, or slots of the head
  bool keeps_scores = false;           ///< of what it attends to
  bool sums = true;                    ///< what scores without attending: log-sum-exps are wanted too
  std::size_t first_score = 0;         ///< floats into the scores: [queries, score_stride]
  int partials = 0;                    ///< the list counts them
  std::size_t first_partial = 0;       ///< floats into the partial results, where the list puts them
};

/// Entries [begin, end) of an output.
struct Split {
  int output = 0;
  std::int32_t begin = 0, end = 0;
  int partial = 0;   ///< number of its partial result, or of the first
  int partials = 1;  ///< that it writes
};

/// `Of`: Output, or what adds to it what its caller knows of one.
template <class Of = Output>
class WorkList {
 public:
  void clear() {
    outputs_.clear();
    splits_.clear();
  }
  int add(const Of& output) {
    outputs_.push_back(output);
    return outputs() - 1;
  }
  /// Parts of at most kSplitTokens.
  void add_range(int output, std::int32_t begin, std::int32_t end) {
    for (; begin < end; begin += kSplitTokens) add_split(output, begin, std::min(end, begin + kSplitTokens));
  }
  /// All entries of the outputs from `first` on that have no split yet, range by range: the order in which the cache
  /// lies in memory.
  void add_whole(int first) {
    whole_.clear();
    std::int32_t most = 0;
    for (int i = first; i < outputs(); ++i) {
      if (output(i).partials > 0) continue;
      whole_.push_back(i);
      most = std::max(most, output(i).entries);
    }
    for (std::int32_t begin = 0; begin < most; begin += kSplitTokens) {
      for (const int i : whole_) add_range(i, begin, std::min(output(i).entries, begin + kSplitTokens));
    }
  }
  /// A split as the caller cuts it, which writes the output's next `partials` partial results.
  void add_split(int output, std::int32_t begin, std::int32_t end, int partials = 1) {
    int& so_far = outputs_[static_cast<std::size_t>(output)].partials;
    splits_.add({output, begin, end, so_far, partials});
    so_far += partials;
  }

  /// Call when all is added. Partial results have `dim` values a query, and a log-sum-exp. An output that has no split
  /// gets one without entries, so that it is written.
  void seal(int dim) {
    dim_ = dim;
    if (outputs_.size() > capacity_) {
      capacity_ = outputs_.size() * 2;
      remaining_ = std::make_unique<std::atomic<int>[]>(capacity_);
    }
    std::size_t floats = 0;
    for (int i = 0; i < outputs(); ++i) {
      Of& output = outputs_[static_cast<std::size_t>(i)];
      if (output.partials == 0) add_split(i, 0, 0);
      output.first_partial = floats;
      floats += static_cast<std::size_t>(output.partials) * partial_floats(output.queries, dim);
      remaining_[static_cast<std::size_t>(i)].store(output.partials, std::memory_order_relaxed);
    }
    if (partials_.size() < floats) partials_.resize(floats + floats / 4);
    splits_.seal();
  }

  int outputs() const { return static_cast<int>(outputs_.size()); }
  std::size_t splits() const { return splits_.size(); }
  const Of& output(int number) const { return outputs_[static_cast<std::size_t>(number)]; }
  const Of& output(const Split& split) const { return output(split.output); }
  /// Partial result `number` of an output: [queries, dim], then [queries] log-sum-exps.
  float* partial(const Output& output, int number) {
    return partials_.data() + output.first_partial +
           static_cast<std::size_t>(number) * partial_floats(output.queries, dim_);
  }
  /// The partial results as one: [queries, dim].
  void merge(const Output& output, float* out) {
    combine(partial(output, 0), output.partials, output.queries, dim_, out);
  }
  /// The log-sum-exps of all that an output read, [queries].
  void sum(const Output& output, std::vector<float>& space, float* lse) {
    const std::size_t stride = partial_floats(output.queries, dim_);
    const float* from = partial(output, 0) + stride - static_cast<std::size_t>(output.queries);
    space.resize(std::max(space.size(), static_cast<std::size_t>(output.partials)));
    for (int j = 0; j < output.queries; ++j, ++from) {
      for (std::size_t p = 0; p < static_cast<std::size_t>(output.partials); ++p) space[p] = from[p * stride];
      lse[j] = log_sum_exp({space.data(), static_cast<std::size_t>(output.partials)});
    }
  }

  /// The calling thread, one of `threads`, takes splits until none is left: run(split, next). `next` is the split that
  /// the thread runs after this one, whose first rows kernels may fetch meanwhile, or null.
  template <class Run>
  void drain(int threads, const Run& run) {
    const Split* split = splits_.take();
    while (split != nullptr) {
      const Split* next = splits_.take_ahead(threads);
      run(*split, next);
      split = next != nullptr ? next : splits_.take();
    }
  }
  /// True for the thread that finished the output's last split.
  bool finish(const Split& split) {
    return remaining_[static_cast<std::size_t>(split.output)].fetch_sub(split.partials, std::memory_order_acq_rel) ==
           split.partials;
  }

 private:
  int dim_ = 0;
  std::vector<Of> outputs_;
  std::vector<int> whole_;
  TakeList<Split> splits_;
  std::vector<float> partials_;
  std::unique_ptr<std::atomic<int>[]> remaining_;  ///< [capacity_] partial results to come
  std::size_t capacity_ = 0;
};

}  // namespace glimpse::kernels
