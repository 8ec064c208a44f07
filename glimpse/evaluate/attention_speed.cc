#include "glimpse/evaluate/attention_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "glimpse/base/buffer.h"
#include "glimpse/base/error.h"
#include "glimpse/evaluate/speed.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/ref/attention_ref.h"

namespace glimpse::evaluate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kStreamBytes = std::size_t{1} << 28;  // far over any cache
constexpr int kRunsInside = 3;                              // of one kernel between two measurements of the bandwidth
constexpr double kMostError = 2e-2;

/// Threads that run the same function together, again and again.
class Team {
 public:
  explicit Team(int threads) : gate_(threads) {
    for (int i = 1; i < threads; ++i) {
      workers_.emplace_back([this, i] {
        for (;;) {
          gate_.arrive_and_wait();
          if (!work_) return;
          work_(i);
          gate_.arrive_and_wait();
        }
      });
    }
  }
  ~Team() {
    work_ = {};
    gate_.arrive_and_wait();
    for (std::thread& worker : workers_) worker.join();
  }
  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Seconds until all are done.
  double run(std::function<void(int)> work) {
    work_ = std::move(work);
    const auto start = Clock::now();
    gate_.arrive_and_wait();
    work_(0);
    gate_.arrive_and_wait();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  std::barrier<> gate_;
  std::function<void(int)> work_;
  std::vector<std::thread> workers_;
};

/// K and V of all heads at one depth, and what reads them.
class Bench {
 public:
  Bench(const AttentionOptions& options, std::int64_t depth)
      : format_{options.kv_type, options.head_dim},
        heads_(options.kv_heads),
        group_(options.group),
        depth_(static_cast<std::int32_t>(depth)),
        scale_(1 / std::sqrt(static_cast<float>(options.head_dim))) {
    const std::size_t pages = (static_cast<std::size_t>(depth) + kernels::kPageTokens - 1) / kernels::kPageTokens;
    const std::size_t plane = pages * static_cast<std::size_t>(heads_) * format_.page_bytes();
    k_ = HostBuffer(plane);
    v_ = HostBuffer(plane);
    views_.resize(static_cast<std::size_t>(heads_));
    lists_.resize(views_.size());
    const std::int64_t rows = std::min(options.rows, depth);
    for (std::size_t head = 0; head < views_.size(); ++head) {
      std::vector<kernels::PageId> table;
      for (std::size_t page = 0; page < pages; ++page) {
        table.push_back(static_cast<kernels::PageId>(head * pages + page));
      }
      tables_.push_back(std::move(table));
      views_[head] = {k_.data(), v_.data(), tables_.back().data(), nullptr, depth_};
      fill(head);
      sample(lists_[head], rows, head);
    }
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    queries_.resize(static_cast<std::size_t>(heads_ * group_ * format_.dim));
    for (float& value : queries_) value = normal(random);
    out_.resize(queries_.size());
    const std::size_t splits = static_cast<std::size_t>((depth_ + kernels::kSplitTokens - 1) / kernels::kSplitTokens);
    partials_.resize(views_.size() * splits * kernels::partial_floats(group_, format_.dim));
  }

  std::int64_t entries(bool gathered) const {
    return gathered ? static_cast<std::int64_t>(lists_.front().size()) : depth_;
  }
  double bytes(bool gathered) const {
    return 2.0 * static_cast<double>(entries(gathered)) * heads_ * static_cast<double>(format_.read_bytes());
  }

  double attend(Team& team, bool gathered) {
    const auto count = static_cast<std::int32_t>(entries(gathered));
    const int splits = (count + kernels::kSplitTokens - 1) / kernels::kSplitTokens;
    const int items = heads_ * splits;
    const double seconds = team.run([&](int thread) {
      const int begin = items * thread / team.size(), end = items * (thread + 1) / team.size();
      for (int i = begin; i < end; ++i) {
        kernels::AttendItem item = item_of(i / splits, gathered);
        item.begin = i % splits * kernels::kSplitTokens;
        item.end = std::min(item.begin + kernels::kSplitTokens, count);
        item.partial = partials_.data() + static_cast<std::size_t>(i) * kernels::partial_floats(group_, format_.dim);
        kernels::attend(format_, item);
      }
    });
    const auto start = Clock::now();
    for (int head = 0; head < heads_; ++head) {
      const std::size_t first = static_cast<std::size_t>(head * splits) * kernels::partial_floats(group_, format_.dim);
      kernels::combine(partials_.data() + first, splits, group_, format_.dim, out_.data() + offset(head));
    }
    return seconds + std::chrono::duration<double>(Clock::now() - start).count();
  }

  /// Of the last attend().
  double error(bool gathered) {
    double most = 0, difference = 0;
    std::vector<float> expected(kernels::partial_floats(group_, format_.dim));
    for (int head = 0; head < heads_; ++head) {
      kernels::AttendItem item = item_of(head, gathered);
      item.end = static_cast<std::int32_t>(entries(gathered));
      item.partial = expected.data();
      kernels::ref::attend(format_, item);
      for (std::size_t i = 0; i < static_cast<std::size_t>(group_ * format_.dim); ++i) {
        most = std::max(most, std::abs(static_cast<double>(expected[i])));
        difference = std::max(difference, std::abs(static_cast<double>(expected[i]) - out_[offset(head) + i]));
      }
    }
    return difference / std::max(most, 1e-30);
  }

 private:
  std::size_t offset(int head) const { return static_cast<std::size_t>(head * group_ * format_.dim); }

  kernels::AttendItem item_of(int head, bool gathered) const {
    kernels::AttendItem item;
    item.head = &views_[static_cast<std::size_t>(head)];
    item.query = queries_.data() + offset(head);
    item.group = group_;
    item.scale = scale_;
    item.list = gathered ? lists_[static_cast<std::size_t>(head)].data() : nullptr;
    return item;
  }

  void fill(std::size_t head) {
    std::minstd_rand random(static_cast<unsigned>(head + 1));
    std::vector<float> rows(static_cast<std::size_t>(2 * kernels::kPageTokens * format_.dim));
    for (std::int32_t slot = 0; slot < depth_; slot += kernels::kPageTokens) {
      for (float& value : rows) value = static_cast<float>(random()) / 1073741824.0f - 1.0f;
      kernels::AppendItem item;
      item.head = &views_[head];
      item.k = rows.data();
      item.v = rows.data() + rows.size() / 2;
      item.row_stride = static_cast<std::size_t>(format_.dim);
      item.slot = slot;
      item.rows = std::min(kernels::kPageTokens, depth_ - slot);
      kernels::append(format_, item);
    }
  }

  void sample(std::vector<std::int32_t>& list, std::int64_t rows, std::size_t head) const {
    std::vector<std::int32_t> all(static_cast<std::size_t>(depth_));
    for (std::int32_t i = 0; i < depth_; ++i) all[static_cast<std::size_t>(i)] = i;
    std::mt19937 random(static_cast<unsigned>(head + 17));
    std::sample(all.begin(), all.end(), std::back_inserter(list), rows, random);  // keeps the order
  }

  kernels::KvFormat format_;
  int heads_, group_;
  std::int32_t depth_;
  float scale_;
  HostBuffer k_, v_;
  std::vector<std::vector<kernels::PageId>> tables_;
  std::vector<kernels::HeadView> views_;
  std::vector<std::vector<std::int32_t>> lists_;
  std::vector<float> queries_, out_;  ///< [kv_head, g, d]
  std::vector<float> partials_;
};

/// Bytes per second of all threads summing 64-bit words.
double stream(Team& team, HostBuffer& buffer, std::vector<std::uint64_t>& sums) {
  const auto words = buffer.as<std::uint64_t>();
  const double seconds = team.run([&](int thread) {
    const auto nth = static_cast<std::size_t>(team.size()), ith = static_cast<std::size_t>(thread);
    std::uint64_t sum = 0;
    for (const std::uint64_t word : words.subspan(words.size() * ith / nth, words.size() / nth)) sum += word;
    sums[ith] = sum;
  });
  return static_cast<double>(words.size_bytes()) / seconds;
}

}  // namespace

AttentionSpeed measure_attention(const AttentionOptions& options) {
  if (options.head_dim % 8 != 0) {
    throw UserError(fmt::format("a head dimension of {}: kernels take multiples of 8", options.head_dim));
  }
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Team team(options.threads > 0 ? options.threads : cores);
  HostBuffer memory(kStreamBytes);
  std::memset(memory.data(), 1, memory.size());
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(team.size()));
  std::vector<double> bandwidths;
  AttentionSpeed speed;
  const std::int64_t total = static_cast<std::int64_t>(options.depths.size()) * options.repetitions;
  std::int64_t done = 0;
  for (const std::int64_t depth : options.depths) {
    Bench bench(options, depth);
    std::vector<double> seconds[2];
    AttentionRow rows[2];
    for (const bool gathered : {false, true}) {
      AttentionRow& row = rows[gathered];
      row = {gathered ? "gathered" : "dense", depth};
      bench.attend(team, gathered);
      row.bytes = bench.bytes(gathered);
      row.error = bench.error(gathered);
      check(row.error < kMostError, "the kernel's answer is that of the reference");
    }
    for (int repetition = 0; repetition < options.repetitions; ++repetition, ++done) {
      if (options.on_measurement && !options.on_measurement(done, total)) return speed;
      bandwidths.push_back(stream(team, memory, sums));
      for (const bool gathered : {false, true}) {
        for (int i = 0; i < kRunsInside; ++i) seconds[gathered].push_back(bench.attend(team, gathered));
      }
    }
    for (const bool gathered : {false, true}) {
      AttentionRow& row = rows[gathered];
      row.median_s = median(seconds[gathered]);
      const auto [least, most] = std::minmax_element(seconds[gathered].begin(), seconds[gathered].end());
      row.least_s = *least;
      row.most_s = *most;
      row.bytes_per_s = row.bytes / row.median_s;
      speed.rows.push_back(row);
    }
    speed.read_bandwidth = median(bandwidths);
  }
  return speed;
}

}  // namespace glimpse::evaluate
