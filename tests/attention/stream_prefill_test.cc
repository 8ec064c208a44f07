// A sparse prefill of heads that stream, against plain loops in double: a row sees the sink, the window before its
// tile, and its own tile up to itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "glimpse/attention/cpu/runner.h"

namespace glimpse::attention {
namespace {

constexpr int kDim = 16, kHeads = 4, kKvHeads = 2, kGroup = kHeads / kKvHeads;
constexpr int kSink = 5, kTileTokens = 24;
using Rows = std::vector<std::vector<double>>;  // [token][d]

plan::Plan stream_plan(const plan::Budget& budget) {
  plan::Plan plan = plan::dense_plan({"llama", "", 1, kHeads, kKvHeads, kDim, 4096});
  plan::Selector selector;
  selector.sink = kSink;
  selector.budget = budget;
  if (budget.rule == plan::BudgetRule::tokens) selector.local = static_cast<int>(budget.value) - kSink;
  plan.selectors.push_back(selector);
  plan.retentions.push_back({plan::RetentionRule::window, kSink, budget});
  for (plan::Role& role : plan.roles) role = {.kind = plan::RoleKind::stream, .selector = 0, .retention = 0};
  plan.prefill = {.sparse = true, .tile_rows = kTileTokens * kGroup};
  plan::validate(plan);
  return plan;
}

class Layer {
 public:
  explicit Layer(const plan::Budget& budget)
      : budget_(budget),
        plan_(stream_plan(budget)),
        program_(plan_),
        cache_({1, kKvHeads, {KvType::f32, kDim}, 4096}),
        runner_({1, kHeads, kKvHeads, kDim, 1, nullptr}, cache_),
        state_(plan_),
        sequence_(cache_.create()) {}

  /// Random rows: checks the output of each row of a prompt; a step only moves on.
  void run(int rows, bool decode) {
    const std::int64_t position = cache_.length(sequence_);
    SequenceRows entry{.sequence = sequence_, .program = &program_, .state = &state_, .rows = rows};
    if (!decode) entry.kind = PassKind::prompt;
    entry.position = position;
    entry.prompt_end = position + rows;
    runner_.begin({&entry, 1});
    for (int head = 0; head < kKvHeads; ++head) {
      const std::vector<float> k = random_rows(rows), v = random_rows(rows);
      take(keys_[head], k);
      take(values_[head], v);
      runner_.append({0, head, 0, 0, rows, k.data(), v.data(), kDim});
    }
    runner_.appended(0, 1);
    const std::vector<float> q = random_rows(rows * kHeads);
    std::vector<float> out(q.size(), NAN);
    if (runner_.needs_select(0)) runner_.select(0, q.data(), 0, 1);
    runner_.attend(0, q.data(), out.data(), 0, 1);
    runner_.end();
    for (int row = 0; row < rows && !decode; ++row) {
      const std::int64_t start = position + row / kTileTokens * kTileTokens;
      for (int head = 0; head < kHeads; ++head) {
        const std::size_t at = static_cast<std::size_t>(row * kHeads + head) * kDim;
        const std::vector<double> expected = attended({q.data() + at, kDim}, head / kGroup, start, position + row);
        for (std::size_t d = 0; d < kDim; ++d) {
          ASSERT_NEAR(out[at + d], expected[d], 2e-5) << "row " << position + row << ", head " << head;
        }
      }
    }
  }

  std::int64_t live() const { return cache_.live_tokens(sequence_, 0, 0); }

 private:
  std::vector<float> random_rows(int rows) {
    std::vector<float> values(static_cast<std::size_t>(rows) * kDim);
    for (float& x : values) x = normal_(random_);
    return values;
  }
  static void take(Rows& to, const std::vector<float>& rows) {
    for (std::size_t at = 0; at < rows.size(); at += kDim) to.emplace_back(rows.begin() + at, rows.begin() + at + kDim);
  }

  std::vector<double> attended(std::span<const float> q, int head, std::int64_t start, std::int64_t row) const {
    const std::int64_t budget = budget_.rule == plan::BudgetRule::tokens
                                    ? static_cast<std::int64_t>(budget_.value)
                                    : std::max<std::int64_t>(budget_.at_least, std::floor(budget_.value * start));
    double sum = 0;
    std::vector<double> out(kDim);
    for (std::int64_t i = 0; i <= row; ++i) {
      if (i >= kSink && i < start - (budget - kSink)) continue;
      const auto& k = keys_[head][static_cast<std::size_t>(i)];
      double score = 0;
      for (std::size_t d = 0; d < kDim; ++d) score += q[d] * k[d];
      const double weight = std::exp(score / std::sqrt(static_cast<double>(kDim)));
      sum += weight;
      for (std::size_t d = 0; d < kDim; ++d) out[d] += weight * values_[head][static_cast<std::size_t>(i)][d];
    }
    for (double& x : out) x /= sum;
    return out;
  }

  plan::Budget budget_;
  plan::Plan plan_;
  Program program_;
  kv::Cache cache_;
  Runner runner_;
  SequenceState state_;
  kv::SequenceId sequence_;
  Rows keys_[kKvHeads], values_[kKvHeads];
  std::mt19937 random_{7};
  std::normal_distribution<float> normal_;
};

TEST(StreamPrefill, ReadsSinkWindowAndItsOwnTile) {
  for (const plan::Budget& budget :
       {plan::Budget{plan::BudgetRule::tokens, 40}, plan::Budget{plan::BudgetRule::ratio, 0.3, 8}}) {
    Layer layer(budget);
    layer.run(10 * kTileTokens, false);
    layer.run(3 * kTileTokens + 7, false);  // a chunk that ends inside a tile
    EXPECT_EQ(layer.live(), 13 * kTileTokens + 7) << "a prompt is kept whole";
  }
}

TEST(StreamPrefill, GoesOnBehindWhatWasForgotten) {
  for (const plan::Budget& budget :
       {plan::Budget{plan::BudgetRule::tokens, 40}, plan::Budget{plan::BudgetRule::ratio, 0.3, 8}}) {
    Layer layer(budget);
    layer.run(300, false);
    for (int step = 0; step < 3; ++step) layer.run(1, true);
    ASSERT_LT(layer.live(), 200);
    layer.run(5 * kTileTokens, false);
  }
}

}  // namespace
}  // namespace glimpse::attention
