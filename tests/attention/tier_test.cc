// A plan with a host tier against the same plan without: the same sets and outputs, bit for bit, from less memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "glimpse/attention/cpu/runner.h"
#include "tests/support/test_names.h"

namespace glimpse::attention {
namespace {

constexpr int kLayers = 2, kDim = 16, kHeads = 4, kKvHeads = 2;
constexpr std::int64_t kPrompt = 700;
constexpr double kBudget = 128;

plan::Plan page_plan(double resident, plan::SetPer per = plan::SetPer::kv_head, int block = 32) {
  plan::Plan plan = plan::dense_plan({"llama", "", kLayers, kHeads, kKvHeads, kDim, 4096});
  plan::Selector selector;
  selector.terms.push_back({plan::Source::page_bounds, plan::GroupPooling::max_score});
  selector.budget = {plan::BudgetRule::tokens, kBudget};
  selector.block = block;
  selector.per = per;
  if (per == plan::SetPer::query_head) selector.terms[0].group = plan::GroupPooling::none;
  plan.selectors.push_back(selector);
  if (resident > 0) {
    plan::Retention kept;
    kept.rule = plan::RetentionRule::host_tier;
    kept.budget = {plan::BudgetRule::tokens, resident};
    plan.retentions.push_back(kept);
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kKvHeads; ++head) {
      plan.role(layer, head) = {.kind = plan::RoleKind::select, .selector = 0, .attends_set = true};
      plan.role(layer, head).retention = resident > 0 ? 0 : -1;
    }
  }
  return plan;
}

/// What a pass gave: outputs of all layers and the sets that were read.
struct Pass {
  std::vector<float> out;
  std::vector<std::vector<std::int32_t>> sets;
  ReadCounters counters;
  friend bool operator==(const Pass& a, const Pass& b) {
    return a.sets == b.sets && a.out.size() == b.out.size() &&
           std::memcmp(a.out.data(), b.out.data(), a.out.size() * sizeof(float)) == 0;
  }
};

class Model {
 public:
  explicit Model(KvType type) : cache_({kLayers, kKvHeads, {type, kDim}, 4096}) {
    cache_.open_tier(testing::TempDir());
    runner_ = std::make_unique<Runner>(RunnerShape{kLayers, kHeads, kKvHeads, kDim, 1}, cache_);
    runner_->on_head = [this](const HeadRecord& record) {
      pass_.sets.emplace_back(record.tokens.begin(), record.tokens.end());
    };
  }

  struct Sequence {
    plan::Plan plan;
    std::shared_ptr<const Program> program;
    kv::SequenceId id = -1;
    SequenceState state;
  };
  Sequence open(const plan::Plan& plan) {
    plan::validate(plan);
    return {plan, std::make_shared<const Program>(plan), cache_.create(), SequenceState(plan)};
  }
  Sequence fork(const Sequence& source) { return {source.plan, source.program, cache_.fork(source.id), source.state}; }
  void close(Sequence& sequence) { cache_.destroy(sequence.id); }

  /// Rows of K, V and q that follow from (position, `salt`), so that two sequences can take the same.
  Pass run(Sequence& sequence, int rows, bool decode, int salt = 0) {
    const std::int64_t position = cache_.length(sequence.id);
    SequenceRows entry = rows_of(sequence, rows);
    entry.kind = decode ? PassKind::decode : PassKind::prompt;
    entry.position = position;
    entry.prompt_end = position + rows;
    return run_at(sequence, entry, salt);
  }
  Pass correct(Sequence& sequence, std::int64_t position, int rows, int salt) {
    SequenceRows entry = rows_of(sequence, rows);
    entry.kind = PassKind::correct;
    entry.position = position;
    return run_at(sequence, entry, salt);
  }
  kv::Cache& cache() { return cache_; }

 private:
  static SequenceRows rows_of(Sequence& sequence, int rows) {
    return {.sequence = sequence.id, .program = sequence.program.get(), .state = &sequence.state, .rows = rows};
  }
  Pass run_at(Sequence&, const SequenceRows& entry, int salt) {
    pass_ = {};
    runner_->begin({&entry, 1});
    for (int layer = 0; layer < kLayers; ++layer) {
      std::mt19937 random(static_cast<std::uint32_t>(entry.position * 10 + layer + salt * 100003));
      std::normal_distribution<float> normal;
      const auto made = [&](int heads) {
        std::vector<float> values(static_cast<std::size_t>(entry.rows * heads * kDim));
        for (float& x : values) x = normal(random);
        return values;
      };
      for (int head = 0; head < kKvHeads; ++head) {
        const std::vector<float> k = made(1), v = made(1);
        runner_->append({layer, head, 0, 0, entry.rows, k.data(), v.data(), kDim});
      }
      const std::vector<float> q = made(kHeads);
      std::vector<float> out(q.size(), NAN);
      runner_->appended(layer, 1);
      if (runner_->needs_select(layer)) runner_->select(layer, q.data(), 0, 1);
      runner_->attend(layer, q.data(), out.data(), 0, 1);
      pass_.out.insert(pass_.out.end(), out.begin(), out.end());
    }
    pass_.counters = runner_->end()[0];
    return pass_;
  }

  kv::Cache cache_;
  std::unique_ptr<Runner> runner_;
  Pass pass_;
};

struct Case {
  KvType type;
  double resident;
  plan::SetPer per;
  int block;
};

void PrintTo(const Case& row, std::ostream* out) {
  *out << name(row.type) << " " << row.resident << " resident, a set for each "
       << (row.per == plan::SetPer::kv_head ? "kv head" : "query head") << ", blocks of " << row.block;
}

class HostTier : public testing::TestWithParam<Case> {};

TEST_P(HostTier, ChangesMemoryAndNothingElse) {
  const Case& row = GetParam();
  Model with(row.type), without(row.type);
  auto a = with.open(page_plan(row.resident, row.per, row.block));
  auto b = without.open(page_plan(0, row.per, row.block));
  with.run(a, kPrompt, false);
  without.run(b, kPrompt, false);
  const std::size_t whole = with.cache().usage().pages_free;
  ASSERT_EQ(whole, without.cache().usage().pages_free);
  ReadCounters sum;
  for (int step = 0; step < 64; ++step) {
    const Pass got = with.run(a, 1, true);
    ASSERT_EQ(got, without.run(b, 1, true)) << step;
    sum += got.counters;
    const auto lists = row.per == plan::SetPer::query_head ? kHeads / kKvHeads : 1;
    const double most = std::max(row.resident, lists * kBudget);
    ASSERT_TRUE(got.counters.resident_tokens.has_value());
    ASSERT_LE(static_cast<double>(*got.counters.resident_tokens), most);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kKvHeads; ++head) {
        const std::int64_t pages = (kPrompt + step + 1 + 15) / 16 - with.cache().waiting_pages(a.id, layer, head);
        ASSERT_LE(static_cast<double>(pages), most / 16);
      }
    }
  }
  EXPECT_GT(sum.recalled_pages, 0);
  EXPECT_GT(sum.resident_hits, 0);
  EXPECT_EQ(sum.recalled_bytes,
            sum.recalled_pages * 2 * static_cast<std::int64_t>(with.cache().shape().format.page_bytes()));
  // Every head gave back what lies beyond the bound.
  const auto kept = static_cast<std::size_t>(*sum.resident_tokens) / 16;
  EXPECT_GE(with.cache().usage().pages_free + kLayers * kKvHeads * kept,
            without.cache().usage().pages_free + kLayers * kKvHeads * ((kPrompt + 64) / 16));
  EXPECT_FALSE(without.run(b, 1, true).counters.resident_tokens.has_value());
}

INSTANTIATE_TEST_SUITE_P(Cases, HostTier,
                         testing::Values(Case{KvType::bf16, 128, plan::SetPer::kv_head, 32},
                                         Case{KvType::bf16, 256, plan::SetPer::kv_head, 32},
                                         Case{KvType::q8_0, 160, plan::SetPer::query_head, 32},
                                         Case{KvType::f32, 128, plan::SetPer::kv_head, 16}),
                         PrintedName());

TEST(HostTier, ForksGoOnAsTheirSource) {
  Model with(KvType::bf16), without(KvType::bf16);
  auto a = with.open(page_plan(160));
  auto b = without.open(page_plan(0));
  with.run(a, kPrompt, false);
  without.run(b, kPrompt, false);
  for (int step = 0; step < 8; ++step) ASSERT_EQ(with.run(a, 1, true), without.run(b, 1, true));
  auto a2 = with.fork(a);
  auto b2 = without.fork(b);
  for (int step = 0; step < 20; ++step) {
    ASSERT_EQ(with.run(a, 1, true), without.run(b, 1, true)) << step;
    ASSERT_EQ(with.run(a2, 1, true, 7), without.run(b2, 1, true, 7)) << step;
  }
  with.close(a);
  for (int step = 0; step < 20; ++step) ASSERT_EQ(with.run(a2, 1, true, 7), without.run(b2, 1, true, 7)) << step;
  with.close(a2);
  EXPECT_EQ(with.cache().usage().pages_free, with.cache().usage().pages_total);
  EXPECT_EQ(with.cache().usage().tier_bytes, 0u);
}

/// More prompt, a correction and dense steps read everything: all of it comes back first.
TEST(HostTier, WhatReadsEverythingRecallsIt) {
  Model with(KvType::bf16), without(KvType::bf16);
  plan::Plan plan = page_plan(128), plain = page_plan(0);
  auto a = with.open(plan);
  auto b = without.open(plain);
  with.run(a, kPrompt, false);
  without.run(b, kPrompt, false);
  const auto below = [](Model::Sequence& sequence, int min_context) {
    sequence.plan.min_context = min_context;
    sequence.program = std::make_shared<const Program>(sequence.plan);
  };
  const auto steps = [&](int count) {
    for (int step = 0; step < count; ++step) ASSERT_EQ(with.run(a, 1, true), without.run(b, 1, true)) << step;
    ASSERT_GT(with.cache().waiting_pages(a.id, 1, 1), 0);
  };
  steps(5);
  ASSERT_EQ(with.run(a, 50, false), without.run(b, 50, false));
  EXPECT_EQ(with.cache().waiting_pages(a.id, 1, 1), 0);
  steps(5);
  ASSERT_EQ(with.correct(a, 300, 40, 3), without.correct(b, 300, 40, 3));
  EXPECT_EQ(with.cache().waiting_pages(a.id, 1, 1), 0);
  steps(5);
  below(a, 4096);
  below(b, 4096);
  ASSERT_EQ(with.run(a, 1, true), without.run(b, 1, true));
  EXPECT_EQ(with.cache().waiting_pages(a.id, 1, 1), 0);
  below(a, 0);
  below(b, 0);
  steps(5);
}

/// While a mark is held nothing is sent away; what a step lacks still comes.
TEST(HostTier, AMarkKeepsPagesWhereTheyAre) {
  Model with(KvType::bf16), without(KvType::bf16);
  auto a = with.open(page_plan(128));
  auto b = without.open(page_plan(0));
  with.run(a, kPrompt, false);
  without.run(b, kPrompt, false);
  for (int step = 0; step < 4; ++step) ASSERT_EQ(with.run(a, 1, true), without.run(b, 1, true));
  const std::int64_t waiting = with.cache().waiting_pages(a.id, 0, 0);
  const kv::Mark mark = with.cache().mark(a.id);
  for (int step = 0; step < 8; ++step) {
    ASSERT_EQ(with.run(a, 1, true), without.run(b, 1, true));
    ASSERT_LE(with.cache().waiting_pages(a.id, 0, 0), waiting);
  }
  with.cache().commit(mark);
  ASSERT_EQ(with.run(a, 1, true), without.run(b, 1, true));
  EXPECT_GE(with.cache().waiting_pages(a.id, 0, 0), waiting);
}

}  // namespace
}  // namespace glimpse::attention
