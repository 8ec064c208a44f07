// A layer whose heads read the prompt's keys at low rank, against a plain double computation with the same factors:
// which keys are made, how they are turned, and what attention over them gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "glimpse/attention/cpu/runner.h"
#include "glimpse/kv/index/landmarks.h"
#include "glimpse/kv/inspect.h"
#include "tests/support/test_names.h"

namespace glimpse::attention {
namespace {

constexpr int kDim = 16, kHeads = 4, kKvHeads = 2, kGroup = kHeads / kKvHeads;
constexpr int kChunk = 8, kLocal = 16, kOutliers = 2;
constexpr std::int64_t kPrompt = 203;

/// Pairs (2i, 2i + 1) with a magnitude, as YaRN has it.
class TestRotation final : public kernels::Rotation {
 public:
  void prepare(std::int64_t positions) override { prepared_ = std::max(prepared_, positions); }
  void turn(std::int64_t position, float* row) const override { by(position, row, 1.25, 1); }
  void turn_back(std::int64_t position, float* row) const override { by(position, row, 1 / 1.25, -1); }
  std::int64_t prepared() const { return prepared_; }

  template <class T>
  void by(std::int64_t position, T* row, double magnitude, int sign) const {
    EXPECT_LT(position, prepared_);
    for (int i = 0; i < kDim; i += 2) {
      const double angle = sign * static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(i) / kDim);
      const double a = row[i], b = row[i + 1];
      row[i] = static_cast<T>(magnitude * (a * std::cos(angle) - b * std::sin(angle)));
      row[i + 1] = static_cast<T>(magnitude * (a * std::sin(angle) + b * std::cos(angle)));
    }
  }

 private:
  std::int64_t prepared_ = 0;
};

plan::Plan low_rank_plan(int rank, bool per_query) {
  plan::Plan plan = plan::dense_plan({"llama", "", 1, kHeads, kKvHeads, kDim, 4096});
  plan::Selector selector;
  selector.terms.push_back({plan::Source::landmarks, plan::GroupPooling::max_score});
  selector.terms[0].index.key_rank = rank;
  selector.terms[0].index.outlier_chunks = kOutliers;
  selector.budget = {plan::BudgetRule::tokens, 96};
  selector.block = kChunk;
  selector.local = kLocal;
  selector.counts_local = false;
  if (per_query) {
    selector.per = plan::SetPer::query_head;
    selector.terms[0].group = plan::GroupPooling::none;
  }
  plan.selectors.push_back(selector);
  for (int head = 0; head < kKvHeads; ++head) {
    plan.role(0, head) = {.kind = plan::RoleKind::select, .selector = 0, .attends_set = true};
  }
  return plan;
}

/// One layer under one plan: a prompt of random rows, then steps.
class Layer {
 public:
  Layer(KvType type, const plan::Plan& plan)
      : plan_(plan),
        program_(plan_),
        cache_({1, kKvHeads, {type, kDim}, 1024}),
        runner_({1, kHeads, kKvHeads, kDim, 1, &rotation_}, cache_),
        state_(plan_),
        sequence_(cache_.create()) {
    plan::validate(plan_);
    runner_.on_head = [this](const HeadRecord& record) {
      sets_[record.kv_head].assign(record.tokens.begin(), record.tokens.end());
      query_sets_[record.kv_head].assign(record.query_sets.begin(), record.query_sets.end());
    };
  }

  ReadCounters run(int rows, bool decode) {
    const std::int64_t position = cache_.length(sequence_);
    SequenceRows entry{.sequence = sequence_, .program = &program_, .state = &state_, .rows = rows};
    if (!decode) entry.kind = PassKind::prompt;
    entry.position = position;
    entry.prompt_end = position + rows;
    runner_.begin({&entry, 1});
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& values, std::size_t count) {
      values.resize(count);
      for (float& x : values) x = normal(random_);
    };
    std::vector<float> k, v;
    for (int head = 0; head < kKvHeads; ++head) {
      fill(k, static_cast<std::size_t>(rows) * kDim);
      fill(v, k.size());
      runner_.append({0, head, 0, 0, rows, k.data(), v.data(), kDim});
    }
    runner_.appended(0, 1);
    fill(q_, static_cast<std::size_t>(rows * kHeads) * kDim);
    out_.assign(q_.size(), NAN);
    if (runner_.needs_select(0)) runner_.select(0, q_.data(), 0, 1);
    runner_.attend(0, q_.data(), out_.data(), 0, 1);
    return runner_.end()[0];
  }

  const kv::LowRankKeys* factors() const { return state_.low_rank[0].get(); }
  const kv::Landmarks& landmarks(int head) const {
    return dynamic_cast<const kv::Landmarks&>(*state_.indices[static_cast<std::size_t>(head)]);
  }
  const std::vector<std::int32_t>& set(int head, int query) const {
    return query_sets_[head].empty() ? sets_[head] : query_sets_[head][static_cast<std::size_t>(query)];
  }

  /// True where section 7 reads the cache.
  bool exact(int head, std::int32_t position) const {
    const std::int64_t window = (cache_.length(sequence_) - kLocal) / kChunk * kChunk;
    if (position >= kPrompt / kChunk * kChunk || position >= window) return true;
    const auto& outliers = landmarks(head).outliers();
    return std::find(outliers.begin(), outliers.end(), position / kChunk) != outliers.end();
  }

  /// The key of a position in double, from `rank` columns or from the cache.
  std::vector<double> key(int head, std::int32_t position, int rank) const {
    std::vector<double> row(kDim, 0.0);
    if (exact(head, position)) {
      const auto cached = kv::key_at(cache_, sequence_, 0, head, position);
      return {cached.begin(), cached.end()};
    }
    const std::vector<float> u = factors()->coefficients(position);
    for (int k = 0; k < rank; ++k) {
      for (int i = 0; i < kDim; ++i) {
        row[static_cast<std::size_t>(i)] +=
            static_cast<double>(u[static_cast<std::size_t>(k)]) *
            static_cast<double>(factors()->basis(head)[static_cast<std::size_t>(k * kDim + i)]);
      }
    }
    rotation_.by(position, row.data(), 1.25, 1);
    return row;
  }

  void expect_output(int rank, double tolerance) const {
    for (int head = 0; head < kKvHeads; ++head) {
      for (int query = 0; query < kGroup; ++query) {
        const std::size_t at = static_cast<std::size_t>(head * kGroup + query) * kDim;
        std::vector<double> scores;
        for (const std::int32_t position : set(head, query)) {
          const std::vector<double> row = key(head, position, rank);
          double dot = 0;
          for (std::size_t i = 0; i < kDim; ++i) dot += row[i] * static_cast<double>(q_[at + i]);
          scores.push_back(dot / std::sqrt(static_cast<double>(kDim)));
        }
        ASSERT_FALSE(scores.empty());
        const double most = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (double& score : scores) sum += score = std::exp(score - most);
        std::vector<double> expected(kDim, 0.0);
        for (std::size_t s = 0; s < scores.size(); ++s) {
          const auto value = kv::value_at(cache_, sequence_, 0, head, set(head, query)[s]);
          for (std::size_t i = 0; i < kDim; ++i) expected[i] += scores[s] / sum * static_cast<double>(value[i]);
        }
        for (std::size_t i = 0; i < kDim; ++i)
          ASSERT_NEAR(out_[at + i], expected[i], tolerance) << head << " " << query;
      }
    }
  }

  /// Of the rows that the last step read, those that were made.
  std::int64_t made_rows() const {
    std::int64_t rows = 0;
    for (int head = 0; head < kKvHeads; ++head) {
      for (std::size_t j = 0; j < std::max<std::size_t>(1, query_sets_[head].size()); ++j) {
        const auto& read = set(head, static_cast<int>(j));
        rows += std::count_if(read.begin(), read.end(), [&](std::int32_t at) { return !exact(head, at); });
      }
    }
    return rows;
  }

 private:
  plan::Plan plan_;
  Program program_;
  kv::Cache cache_;
  TestRotation rotation_;
  Runner runner_;
  SequenceState state_;
  kv::SequenceId sequence_;
  std::mt19937 random_{33};
  std::vector<float> q_, out_;
  std::vector<std::int32_t> sets_[kKvHeads];
  std::vector<std::vector<std::int32_t>> query_sets_[kKvHeads];
};

struct Case {
  KvType type;
  int rank;
  bool per_query;
  double tolerance;
};

void PrintTo(const Case& row, std::ostream* out) {
  *out << name(row.type) << " rank " << row.rank << (row.per_query ? " per query" : "");
}

class LowRank : public testing::TestWithParam<Case> {};

TEST_P(LowRank, StepsAgreeWithDouble) {
  const Case& row = GetParam();
  Layer layer(row.type, low_rank_plan(row.rank, row.per_query));
  layer.run(kPrompt, false);
  ASSERT_NE(layer.factors(), nullptr) << "made at the prompt's end";
  EXPECT_EQ(layer.factors()->tokens(), kPrompt);
  for (int step = 0; step < 24; ++step) {
    const ReadCounters counters = layer.run(1, true);
    layer.expect_output(row.rank, row.tolerance);
    if (HasFatalFailure()) FAIL() << "step " << step;
    const std::int64_t made = layer.made_rows();
    ASSERT_GT(made, 0);
    EXPECT_EQ(counters.low_rank_rows, made);
    const std::int64_t lists = row.per_query ? kHeads : kKvHeads;
    const std::int64_t value_bytes = row.type == KvType::f32 ? 4 : 2;
    EXPECT_EQ(counters.low_rank_bytes, (made * value_bytes + lists * kDim * 4) * row.rank);
  }
}

TEST_P(LowRank, ABudgetOverTheContextReadsTheCache) {
  plan::Plan plan = low_rank_plan(GetParam().rank, GetParam().per_query);
  plan.selectors[0].budget.value = kPrompt + 3;
  Layer layer(GetParam().type, plan);
  layer.run(kPrompt, false);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(layer.run(1, true).low_rank_rows, 0);
    EXPECT_EQ(layer.factors(), nullptr) << "nobody needs them yet";
  }
  layer.run(1, true);
  ASSERT_NE(layer.factors(), nullptr) << "the first sparse step makes them";
  EXPECT_EQ(layer.factors()->tokens(), kPrompt);
}

INSTANTIATE_TEST_SUITE_P(Cases, LowRank,
                         testing::Values(Case{KvType::f32, 32, false, 1e-5}, Case{KvType::f32, 9, false, 1e-5},
                                         Case{KvType::f32, 5, true, 1e-5}, Case{KvType::f16, 12, false, 5e-3},
                                         Case{KvType::bf16, 20, false, 2e-2}, Case{KvType::q8_0, 20, true, 3e-2}),
                         PrintedName());

}  // namespace
}  // namespace glimpse::attention
