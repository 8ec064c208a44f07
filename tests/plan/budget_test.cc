#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "glimpse/base/error.h"
#include "glimpse/plan/plan.h"

namespace glimpse::plan {
namespace {

using testing::HasSubstr;

TEST(Budget, ReadsEveryForm) {
  const struct {
    const char* text;
    Budget budget;
  } cases[] = {
      {"1", {BudgetRule::tokens, 1}},
      {"1024", {BudgetRule::tokens, 1024}},
      {"1073741824", {BudgetRule::tokens, 1073741824}},
      {"10%", {BudgetRule::ratio, 0.1}},
      {"0.5%", {BudgetRule::ratio, 0.005}},
      {"29%", {BudgetRule::ratio, 0.29}},
      {"100%", {BudgetRule::ratio, 1}},
      {"12.5%", {BudgetRule::ratio, 0.125}},
      {"10%,min=128", {BudgetRule::ratio, 0.1, 128}},
      {"p=0.99", {BudgetRule::mass, 0.99}},
      {"p=1", {BudgetRule::mass, 1}},
      {"tau=1e-4", {BudgetRule::threshold, 1e-4}},
      {"tau=0.0001", {BudgetRule::threshold, 1e-4}},
      {"coverage=0.98", {BudgetRule::mass, 0.98}},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(parse_budget(c.text), c.budget) << c.text;
    EXPECT_EQ(parse_budget(to_string(c.budget)), c.budget) << c.text;
  }
}

TEST(Budget, WritesTheFormThatPeopleType) {
  EXPECT_EQ(to_string({BudgetRule::tokens, 1024}), "1024");
  EXPECT_EQ(to_string({BudgetRule::ratio, 0.1}), "10%");
  EXPECT_EQ(to_string({BudgetRule::ratio, 0.125}), "12.5%");
  EXPECT_EQ(to_string({BudgetRule::ratio, 0.001}), "0.1%");
  EXPECT_EQ(to_string({BudgetRule::ratio, 1}), "100%");
  EXPECT_EQ(to_string({BudgetRule::ratio, 0.1, 128}), "10%,min=128");
  EXPECT_EQ(to_string({BudgetRule::mass, 0.99}), "p=0.99");
  EXPECT_EQ(to_string(parse_budget("coverage=0.98")), "p=0.98");
  EXPECT_EQ(parse_budget(to_string({BudgetRule::threshold, 1e-4})).value, 1e-4);
}

TEST(Budget, RefusesWithACure) {
  const struct {
    std::string text;
    const char* says;
  } cases[] = {
      {"", "empty"},
      {"0", "at least 1"},
      {"00", "at least 1"},
      {"-1", "holds no token"},
      {"-0.5", "holds no token"},
      {"nan", "not a finite number"},
      {"inf", "not a finite number"},
      {"-inf", "not a finite number"},
      {"1073741825", "over the limit"},
      {"99999999999999999999999", "over the limit"},
      {"1e999", "is not a budget"},
      {"1e3", "plain digits"},
      {"1024.5", "plain digits"},
      {"1024.0", "plain digits"},
      {"0.1", "write 10%"},
      {"+5", "is not a budget"},
      {" 5", "is not a budget"},
      {"5 ", "is not a budget"},
      {"0x10", "is not a budget"},
      {"many", "is not a budget"},
      {"10%x", "is not a budget"},
      {"10%%", "is not a number"},
      {"%", "is not a number"},
      {"10 %", "is not a number"},
      {"x%", "is not a number"},
      {"0%", "more than 0%"},
      {"-10%", "more than 0%"},
      {"101%", "at most 100%"},
      {"1000%", "at most 100%"},
      {"nan%", "not a finite number"},
      {"inf%", "not a finite number"},
      {"1e1%", "without exponent"},
      {"10%,min=", "not a whole number"},
      {"10%,min=-4", "not a whole number"},
      {"10%,min=0", "outside 1"},
      {"10%,min=99999999999", "not a whole number"},
      {"10%,min=5x", "not a whole number"},
      {"512,min=5", "goes with a share"},
      {",min=5", "empty"},
      {"p=", "is not a number"},
      {"p=0", "outside (0, 1]"},
      {"p=1.5", "outside (0, 1]"},
      {"p=-0.5", "outside (0, 1]"},
      {"p=nan", "not a finite number"},
      {"p=0.9 ", "is not a number"},
      {"p=0.9junk", "is not a number"},
      {"p = 0.9", "unknown kind"},
      {"tau=0", "outside (0, 1)"},
      {"tau=1", "outside (0, 1)"},
      {"tau=1e-999", "is not a number"},
      {"coverage=2", "outside (0, 1]"},
      {"k=512", "unknown kind 'k'"},
      {"=5", "unknown kind"},
      {std::string(100000, '9'), "is not a budget"},
  };
  for (const auto& c : cases) {
    try {
      const Budget read = parse_budget(c.text);
      ADD_FAILURE() << c.text.substr(0, 40) << " was read as " << to_string(read);
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(c.says)) << c.text.substr(0, 40);
      EXPECT_LT(std::strlen(error.what()), 300u);
    }
  }
}

TEST(Budget, EveryDoubleSurvivesTheText) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const double scale = std::pow(10.0, -static_cast<double>(random() % 12));
    const double value = std::max(1e-300, std::uniform_real_distribution<double>(0, 1)(random) * scale);
    for (const BudgetRule rule : {BudgetRule::ratio, BudgetRule::mass, BudgetRule::threshold}) {
      const Budget budget{rule, value};
      ASSERT_EQ(parse_budget(to_string(budget)), budget) << to_string(budget);
    }
    const Budget tokens{BudgetRule::tokens, static_cast<double>(1 + random() % (1u << 30))};
    ASSERT_EQ(parse_budget(to_string(tokens)), tokens);
  }
}

TEST(Budget, CountsTokens) {
  EXPECT_EQ(budget_tokens({BudgetRule::tokens, 512}, 1000), 512);
  EXPECT_EQ(budget_tokens({BudgetRule::tokens, 512}, 100), 100);
  EXPECT_EQ(budget_tokens({BudgetRule::tokens, 512}, 0), 1);
  EXPECT_EQ(budget_tokens({BudgetRule::ratio, 0.1}, 10), 1);
  EXPECT_EQ(budget_tokens({BudgetRule::ratio, 0.1}, 9), 1);
  EXPECT_EQ(budget_tokens({BudgetRule::ratio, 0.1}, 1009), 100);
  EXPECT_EQ(budget_tokens({BudgetRule::ratio, 0.1, 128}, 1000), 128);
  EXPECT_EQ(budget_tokens({BudgetRule::ratio, 0.1, 128}, 50), 50);
  EXPECT_EQ(budget_tokens({BudgetRule::mass, 0.9}, 777), 777);
  EXPECT_EQ(budget_tokens({BudgetRule::threshold, 0.9}, 777), 777);
}

// floor(percent * N / 100) in whole numbers: the share that the user wrote, not the double beside it.
TEST(Budget, ShareIsTheDecimalOne) {
  for (int percent = 1; percent <= 100; ++percent) {
    const Budget budget = parse_budget(std::to_string(percent) + "%");
    for (std::int64_t tokens = 1; tokens < 140000; tokens += 1 + tokens / 37) {
      ASSERT_EQ(budget_tokens(budget, tokens), std::max<std::int64_t>(1, percent * tokens / 100))
          << percent << " % of " << tokens;
    }
  }
}

// The blocks that sink, local window and current token touch, counted token by token at every alignment.
TEST(Budget, AlwaysTokensHoldsEveryAlignment) {
  for (const int block : {1, 16, 64}) {
    for (const int sink : {0, 1, 4, 16, 17, 64}) {
      for (const int local : {0, 1, 2, 15, 16, 17, 64, 65, 130}) {
        Selector selector;
        selector.block = block;
        selector.sink = sink;
        selector.local = local;
        std::int64_t most = 0;
        for (std::int64_t tokens = 1000; tokens < 1000 + block; ++tokens) {
          std::vector<char> touched(static_cast<std::size_t>(tokens / block + 1));
          for (std::int64_t i = 0; i < tokens; ++i) {
            if (i < sink || i >= tokens - std::max(local, 1)) touched[static_cast<std::size_t>(i / block)] = 1;
          }
          most = std::max<std::int64_t>(most, std::count(touched.begin(), touched.end(), 1) * block);
        }
        EXPECT_EQ(always_tokens(selector), most) << block << " " << sink << " " << local;
      }
    }
  }
}

TEST(Budget, WindowOfAStream) {
  Selector fixed;
  fixed.budget = {BudgetRule::tokens, 100};
  fixed.sink = 4;
  fixed.local = 96;
  EXPECT_EQ(window_tokens(fixed, 1000), 96);
  EXPECT_EQ(window_tokens(fixed, 50), 50);
  Selector shared;
  shared.budget = {BudgetRule::ratio, 0.1, 5};
  shared.sink = 4;
  EXPECT_EQ(window_tokens(shared, 1000), 96);
  EXPECT_EQ(window_tokens(shared, 20), 1);
  EXPECT_EQ(window_tokens(shared, 3), 0);
}

// For a window that grows with the budget: room at the least budget and at every one above it, counted in blocks.
TEST(Budget, AlwaysTokensHoldsAWindowOfAShare) {
  for (const int block : {1, 16, 64}) {
    for (const int sink : {0, 4, 17, 100}) {
      for (const double share : {0.1, 0.25, 0.5, 0.9}) {
        Selector selector;
        selector.block = block;
        selector.sink = sink;
        selector.local_share = share;
        selector.terms.push_back({});
        selector.budget = {BudgetRule::ratio, 0.1};
        const std::int64_t least = always_tokens(selector);
        for (std::int64_t budget = least; budget < least + 300; ++budget) {
          const auto part = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(budget) - 1e-9));
          const std::int64_t window = std::max<std::int64_t>(part - sink, 1);
          // The worst alignment: the window ends on a block's first token.
          const std::int64_t blocks = (sink + block - 1) / block + (window - 1 + block - 1) / block + 1;
          ASSERT_LE(blocks * block, budget) << block << " " << sink << " " << share << " " << budget;
          Selector fixed = selector;
          fixed.budget = {BudgetRule::tokens, static_cast<double>(budget)};
          ASSERT_EQ(window_tokens(fixed, 1 << 20), window);
          ASSERT_EQ(always_tokens(fixed), blocks * block);
        }
      }
    }
  }
}

// The same for a window that a table says by the budget.
TEST(Budget, AlwaysTokensHoldsAWindowByRows) {
  for (const int block : {16, 32, 64}) {
    for (const int sink : {0, 16, 100}) {
      Selector selector;
      selector.block = block;
      selector.sink = sink;
      selector.local_rows = {{256, 64}, {512, 64}, {1024, 700}, {2048, 128}};
      selector.terms.push_back({});
      selector.budget = {BudgetRule::ratio, 1};
      const std::int64_t least = always_tokens(selector);
      for (std::int64_t budget = least; budget < 4000; ++budget) {
        const std::int64_t window = std::max<std::int64_t>(window_tokens(selector, budget), 1);
        const std::int64_t blocks = (sink + block - 1) / block + (window - 1 + block - 1) / block + 1;
        ASSERT_LE(blocks * block, budget) << block << " " << sink << " " << budget;
      }
    }
  }
}

TEST(Budget, RowsSayWindowAndChoiceOfAShare) {
  Selector selector;
  selector.block = 32;
  selector.budget = {BudgetRule::ratio, 0.5};
  selector.local_rows = {{256, 64}, {1024, 160}};
  Term term;
  term.budget = Budget{BudgetRule::tokens, 112};
  term.budget_rows = {{256, 80}, {1024, 112}};
  selector.terms.push_back(term);
  const auto at = [&](std::int64_t tokens) {
    return std::pair(window_tokens(selector, tokens), term_tokens(selector, selector.terms[0], tokens));
  };
  using P = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(at(512), P(64, 96)) << "the first row, and 80 in whole blocks of 32";
  EXPECT_EQ(at(2048), P(160, 128));
  EXPECT_EQ(at(100000), P(160, 128)) << "above the last row its own";
  EXPECT_EQ(at(1280), P(112, 96)) << "half-way: 112 and 96";
  EXPECT_EQ(at(1000), P(80, 96)) << "94.5 down to sixteens; 90.2 to the nearest, 96";
  EXPECT_EQ(at(300), P(32, 32)) << "37.5 and 46.9, both down";
  EXPECT_EQ(at(20), P(0, 32)) << "one block at least";
  selector.terms[0].budget_rows.clear();
  EXPECT_EQ(term_tokens(selector, selector.terms[0], 100), 100);
  EXPECT_EQ(term_tokens(selector, selector.terms[0], 1000), 112);
}

TEST(Budget, WindowBesideTheBudgetNeedsNoRoom) {
  Selector selector;
  selector.terms.push_back({});
  selector.sink = 16;
  selector.local = 128;
  selector.counts_local = false;
  selector.block = 16;
  EXPECT_EQ(always_tokens(selector), 16) << "the current token is in the window";
  selector.local = 0;
  EXPECT_EQ(always_tokens(selector), 32) << "the current token's block counts";
}

TEST(Budget, BufferOfAChunkTreeIsAtMostHalfTheBudget) {
  Selector selector;
  selector.terms.push_back({Source::chunk_tree, GroupPooling::max_score});
  selector.sink = 16;
  selector.local = 128;
  selector.budget = {BudgetRule::tokens, 1024};
  EXPECT_EQ(window_tokens(selector, 100000), 128);
  EXPECT_EQ(always_tokens(selector), 144);
  selector.budget.value = 64;
  EXPECT_EQ(window_tokens(selector, 100000), 32);
  EXPECT_EQ(always_tokens(selector), 48);
  selector.budget = {BudgetRule::ratio, 0.1};
  EXPECT_EQ(window_tokens(selector, 1000), 50);
  const std::int64_t least = always_tokens(selector);
  for (std::int64_t budget = least; budget < 1000; ++budget)
    ASSERT_LE(16 + std::min<std::int64_t>(128, budget / 2), budget);
}

TEST(Plan, IsDenseWhereTheBudgetCovers) {
  Plan plan = dense_plan({"llama", "", 3, 4, 2, 64, 4096});
  EXPECT_TRUE(is_dense_at(plan, 1 << 20));
  Selector selector;
  selector.budget = {BudgetRule::tokens, 100};
  selector.terms.push_back({});
  plan.selectors.push_back(selector);
  for (int head = 0; head < 2; ++head) {
    plan.role(1, head) = {.kind = RoleKind::select, .selector = 0};
  }
  EXPECT_TRUE(is_dense_at(plan, 1000)) << "a select that attends to everything is dense";
  for (int head = 0; head < 2; ++head) plan.role(2, head) = {.kind = RoleKind::reuse, .reads = {1, head}};
  EXPECT_TRUE(is_dense_at(plan, 100));
  EXPECT_FALSE(is_dense_at(plan, 101));
  plan.min_context = 500;
  EXPECT_TRUE(is_dense_at(plan, 499));
  EXPECT_FALSE(is_dense_at(plan, 500));
  plan.selectors[0].budget = {BudgetRule::mass, 0.99};
  EXPECT_FALSE(is_dense_at(plan, 500));
  plan.selectors[0].budget = {BudgetRule::mass, 1};
  EXPECT_TRUE(is_dense_at(plan, 500));
  plan.role(0, 0).retention = 0;
  plan.retentions.push_back({RetentionRule::window, 4, {BudgetRule::tokens, 600}});
  EXPECT_TRUE(is_dense_at(plan, 600));
  EXPECT_FALSE(is_dense_at(plan, 601)) << "a dense head that has forgotten tokens is not dense attention";
}

}  // namespace
}  // namespace glimpse::plan
