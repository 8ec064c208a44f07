// The benchmark of attention alone: what it says a layer needs to read, counted by hand, and that a wrong answer is
// found. Times are not looked at.
#include <gtest/gtest.h>

#include <algorithm>

#include "bench/head_order_cases.h"
#include "bench/layer_cases.h"
#include "bench/step_check.h"
#include "glimpse/base/error.h"
#include "glimpse/policies/policy.h"

namespace glimpse::bench {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr double kRow = 2 * 32;  // bf16, d = 32

plan::ModelShape small_shape() {
  return {"llama", "", 6, 4, 2, 32, 4096};
}

std::vector<LayerRow> rows_of(const std::vector<std::string>& methods) {
  std::vector<std::string> warnings;
  const auto arms = make_arms(small_shape(), {methods, {"64"}}, warnings);
  return run_layer_cases({{small_shape(), KvType::bf16, kTokens, 1, 1, 2}, 2}, arms, [](const std::string&) {});
}

const LayerRow& row_of(const std::vector<LayerRow>& rows, const std::string& method, const std::string& kind) {
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [&](const LayerRow& row) { return row.method == method && row.kind == kind; });
  if (found == rows.end()) throw InternalError(method + " has no layer of kind " + kind);
  return *found;
}

TEST(LayerBench, CountsTheBytesOfEveryKindOfLayer) {
  // Checked in the third step: the prompt and three tokens.
  constexpr double n = kTokens + 3;
  const auto rows = rows_of({"quest", "oracle", "tidal"});
  EXPECT_EQ(row_of(rows, "full", "dense").bytes.attend, 2 * n * 2 * kRow);
  EXPECT_EQ(row_of(rows, "full", "dense").layers, 6);

  // The current token is in the unfinished page, and that is in every set.
  const LayerRow& quest = row_of(rows, "quest", "search");
  EXPECT_TRUE(quest.index);
  EXPECT_EQ(quest.bytes.select, 2 * 32 * 2 * kRow);                  // a minimum and a maximum a page
  EXPECT_EQ(quest.bytes.attend, 2 * (3 * 16 + 3) * (2 * kRow + 4));  // three pages and the unfinished one
  EXPECT_GT(quest.best_mass, quest.mass);

  const LayerRow& oracle = row_of(rows, "oracle", "select");
  EXPECT_EQ(oracle.bytes.select, 2 * n * (kRow + 4 * 2));   // K, and a score for each query head
  EXPECT_EQ(oracle.bytes.attend, 4 * 64 * (2 * kRow + 4));  // a set for each query head
  EXPECT_GT(oracle.mass, 0.98 * oracle.best_mass);          // the current token takes a place

  EXPECT_EQ(row_of(rows, "tidal", "reuse").bytes.attend, 2 * 64 * (2 * kRow + 4));
  EXPECT_EQ(row_of(rows, "tidal", "select and read all").bytes.attend, 2 * n * (2 * kRow + 4 * 2));
}

TEST(LayerBench, RunsEveryMethod) {
  const auto rows = rows_of({"all", "shadowkv/rank=0"});
  for (const policies::Policy& policy : policies::registry()) {
    // What needs a file of its own is left out.
    if (std::any_of(policy.options.begin(), policy.options.end(), [](const auto& option) { return option.needed; })) {
      continue;
    }
    EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [&](const LayerRow& row) { return row.method == policy.name; }))
        << policy.name;
  }
}

TEST(LayerBench, FindsAWrongAnswer) {
  const plan::Plan full = plan::dense_plan(small_shape());
  policies::PolicyOptions options;
  options.budget = plan::Budget{plan::BudgetRule::tokens, 64};
  const plan::Plan tidal = policies::make_plan("tidal", small_shape(), options);
  StepBed bed({small_shape(), KvType::bf16, kTokens, 1, 2, 1});
  bed.add(full);
  const int number = bed.add(tidal);
  bed.next_token();
  bed.step(0);
  std::vector<std::vector<HeadRead>> reads;
  bed.step(number, &reads);
  check_outputs(bed, number, tidal, 5, reads[5]);
  reads[5][1].tokens.pop_back();
  EXPECT_THROW(check_outputs(bed, number, tidal, 5, reads[5]), InternalError);
}

TEST(LayerBench, CutsMixedHeadsFourWays) {
  const auto rows = run_head_order_cases({{KvType::bf16, 64}, 4, 2}, 4096, {1, 2}, 2, 1);
  ASSERT_EQ(rows.size(), 8U);
  const double row = 2 * 2 * 64;
  for (const HeadOrderRow& r : rows) {
    EXPECT_EQ(r.bytes, r.retrieval * 4096 * row + (4 - r.retrieval) * evaluate::kGatheredRows * (row + 4));
  }
  EXPECT_EQ(rows[0].over_unsorted.median, 1);
}

}  // namespace
}  // namespace glimpse::bench
