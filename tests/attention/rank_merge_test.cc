// LessIsMore's merge by rank at budgets where heads that agree have to be ranked deep, against the transcription.
#include <gtest/gtest.h>

#include <random>

#include "glimpse/attention/choose.h"
#include "tests/reference/methods.h"

namespace glimpse::attention {
namespace {

constexpr int kHeads = 3, kGroup = 3;

class RankMerge : public testing::TestWithParam<float> {};  // how much of a score all heads share

TEST_P(RankMerge, EqualsTheTranscription) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (const std::size_t tokens : {40U, 700U, 3000U}) {
    std::vector<float> shared(tokens);
    for (float& score : shared) score = normal(random);
    std::vector<float> scores;
    std::vector<methods::Scores> rows;
    for (int query = 0; query < kHeads * kGroup; ++query) {
      methods::Scores row;
      for (const float common : shared) {
        scores.push_back(GetParam() * common + (1 - GetParam()) * normal(random));
        row.push_back(scores.back());
      }
      rows.push_back(std::move(row));
    }
    std::vector<HeadScores> heads;
    for (std::size_t head = 0; head < kHeads; ++head) {
      heads.push_back({scores.data() + head * kGroup * tokens, tokens, nullptr, kGroup});
    }
    for (const int budget : {30, 129, 600, 2500}) {
      if (static_cast<std::size_t>(budget) >= tokens) continue;
      plan::Selector selector;
      selector.per = plan::SetPer::layer;
      selector.budget = {plan::BudgetRule::tokens, static_cast<double>(budget)};
      selector.sink = 4;
      selector.local = budget / 4;
      selector.terms.push_back({plan::Source::dot, plan::GroupPooling::none, plan::HeadPooling::rank_merge});
      SelectionScratch scratch;
      scratch.reserve(tokens);
      std::vector<std::int32_t> set;
      choose_by_rank(selector, heads, tokens, scratch, set);
      const methods::Frame frame{methods::Rule::count, static_cast<double>(budget), 1, 4, budget / 4};
      EXPECT_EQ(methods::Set(set.begin(), set.end()), methods::rank_merge(rows, frame, {})) << tokens << " " << budget;
      EXPECT_EQ(set.size(), static_cast<std::size_t>(budget));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Agreement, RankMerge, testing::Values(0.0F, 0.7F, 1.0F), [](const auto& row) {
  return row.param == 0 ? "none" : row.param == 1 ? "whole" : "much";
});

}  // namespace
}  // namespace glimpse::attention
