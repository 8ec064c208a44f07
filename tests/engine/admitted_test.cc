// Which rows serve whom, against a transcription of the rule in rows: what each was made by, in which pass, beside
// whom.
#include "glimpse/engine/prefix/admitted.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "glimpse/kernels/views.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

constexpr int kTile = 16, kRows = 64;  // a page's rows are the least that is taken

/// One row, and the pass that made it.
struct Row {
  Made how = Made::sparse;
  std::int64_t first = 0, last = 0;  ///< rows of its pass
  bool alone = false, observed = false;
};

struct Made1 {
  MadeRows rows;
  std::vector<Row> each;
};

/// Passes as sequences see them: chunks, then single tokens, some of which are corrected, some taken back.
Made1 random_rows(std::mt19937& random, Made chunks) {
  Made1 made;
  const auto pick = [&](int most) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(most)); };
  const bool regular = pick(2) == 0;
  const auto add = [&](std::int64_t rows, Made how, bool alone, bool observed) {
    const auto begin = std::ssize(made.each);
    made.rows.add(begin, {begin + rows, how, alone, observed});
    for (std::int64_t i = 0; i < rows; ++i) made.each.push_back({how, begin, begin + rows, alone, observed});
  };
  const auto cut = [&](std::int64_t length) {
    made.rows.cut(length);
    made.each.resize(static_cast<std::size_t>(length));
  };
  for (std::int64_t i = pick(5); i >= 0; --i) add(regular ? kRows : 1 + pick(90), chunks, pick(8) > 0, pick(12) == 0);
  if (pick(4) == 0) cut(pick(static_cast<int>(made.each.size())) + 1);
  for (std::int64_t i = pick(20); i > 0; --i) add(1, pick(3) > 0 ? Made::dense : Made::sparse, false, false);
  if (pick(3) == 0) {
    const std::int64_t end = std::ssize(made.each), begin = end - 1 - pick(static_cast<int>(end));
    made.rows.correct(begin, end);
    for (std::int64_t i = begin; i < end; ++i) made.each[static_cast<std::size_t>(i)] = {Made::dense, i, i + 1};
  }
  if (pick(3) == 0) add(1 + pick(70), chunks, true, false);
  return made;
}

/// The row is what a request's own chunk [first, first + chunk) would have made of it.
bool is_own(const Made1& made, std::int64_t row, std::int64_t chunk, Made how) {
  const std::int64_t first = row / chunk * chunk;
  for (std::int64_t i = first; i < first + chunk; ++i) {
    if (i >= std::ssize(made.each)) return false;
    const Row& of = made.each[static_cast<std::size_t>(i)];
    if (of.how != how || of.first != first || of.last != first + chunk || !of.alone || of.observed) return false;
  }
  return true;
}

bool passes(const Made1& made, std::int64_t row, const Asked& asked, bool own_plan) {
  const Made how = made.each[static_cast<std::size_t>(row)].how;
  const bool sparse = asked.plan->prefill.sparse;
  switch (asked.reuse) {
    case Reuse::exact:
      return (own_plan || !sparse) && is_own(made, row, asked.chunk, sparse ? Made::sparse_chunk : Made::dense_chunk);
    case Reuse::dense:
      return how == Made::dense || how == Made::dense_chunk || (how == Made::sparse_chunk && own_plan);
    case Reuse::any:
      return true;
    default:
      return false;
  }
}

/// The whole prompt, as the request alone would have prefilled it.
bool is_prefill(const Made1& made, std::int64_t length, std::int64_t chunk) {
  for (std::int64_t i = 0; i < length; ++i) {
    const Row& row = made.each[static_cast<std::size_t>(i)];
    const std::int64_t first = i / chunk * chunk;
    const bool is_chunk = row.how == Made::dense_chunk || row.how == Made::sparse_chunk;
    if (!is_chunk || !row.alone || row.first != first || row.last != std::min(first + chunk, length)) return false;
  }
  return true;
}

Admitted reference(const Made1& made, const Offered& offered, const Asked& asked) {
  const auto length = std::ssize(asked.prompt);
  const bool own_plan = *offered.plan == *asked.plan;
  std::int64_t common = 0;
  while (common < length && common < std::ssize(offered.tokens) &&
         offered.tokens[static_cast<std::size_t>(common)] == asked.prompt[static_cast<std::size_t>(common)]) {
    ++common;
  }
  std::int64_t rows = 0;
  while (rows < common && passes(made, rows, asked, own_plan)) ++rows;
  if (asked.reuse == Reuse::none) return {};
  if (offered.at_end && own_plan && common == length && std::ssize(offered.tokens) == length) {
    if (asked.reuse == Reuse::exact ? is_prefill(made, length, asked.chunk) : rows == length) return {length, true};
  }
  if (!offered.whole || asked.plan->prefill.observe == plan::Observe::all) return {};
  const std::int64_t observed = asked.plan->prefill.observe_rows;
  rows = std::min(rows, length - std::max<std::int64_t>(observed, 1));
  if (asked.reuse == Reuse::exact) rows -= rows % asked.chunk;
  if (asked.reuse != Reuse::exact && asked.plan->prefill.sparse) rows -= rows % kTile;
  return {rows >= kernels::kPageTokens ? rows : 0, false};
}

plan::Plan plan_of(plan::Observe observe, bool sparse) {
  plan::Plan plan;
  plan.shape = {.layers = 1, .heads = 2, .kv_heads = 1, .head_dim = 8};
  plan.prefill.observe = observe;
  plan.prefill.observe_rows = observe == plan::Observe::last_rows ? 20 : 0;
  plan.prefill.sparse = sparse;
  plan.prefill.tile_rows = sparse ? kTile * plan.shape.group() : 0;
  return plan;
}

TEST(Admitted, IsTheRuleRowByRow) {
  std::mt19937 random(3);
  const std::vector<plan::Plan> plans{plan_of(plan::Observe::none, false), plan_of(plan::Observe::last_rows, false),
                                      plan_of(plan::Observe::all, false), plan_of(plan::Observe::none, true)};
  int hits = 0, ends = 0, exact = 0;
  for (int round = 0; round < 20000; ++round) {
    const plan::Plan &from = plans[random() % 4], &to = plans[random() % 4];
    const Made1 made = random_rows(random, from.prefill.sparse ? Made::sparse_chunk : Made::dense_chunk);
    const std::vector<Token> tokens = random_tokens(made.each.size(), 100, 5);
    ASSERT_EQ(made.rows.length(), std::ssize(tokens));
    std::vector<Token> prompt(tokens);
    if (random() % 2 == 0) prompt.resize(1 + random() % prompt.size());
    if (random() % 3 == 0) prompt.resize(prompt.size() + random() % 100, 1);
    if (random() % 4 == 0) prompt[random() % prompt.size()] = 101;
    const Offered offered{tokens, &from, &made.rows, random() % 6 > 0, random() % 2 == 0};
    const Asked asked{prompt, &to, kRows, static_cast<Reuse>(random() % 4)};
    const Admitted got = admitted(offered, asked), wanted = reference(made, offered, asked);
    ASSERT_EQ(got.tokens, wanted.tokens) << round;
    ASSERT_EQ(got.at_end, wanted.at_end) << round;
    hits += got.tokens > 0 ? 1 : 0;
    exact += got.tokens > 0 && asked.reuse == Reuse::exact ? 1 : 0;
    ends += got.at_end ? 1 : 0;
  }
  EXPECT_GT(hits, 1000);
  EXPECT_GT(exact, 100);
  EXPECT_GT(ends, 100);
}

TEST(Admitted, ABeginningIsMadeInTheSameWay) {
  std::mt19937 random(4);
  for (int round = 0; round < 2000; ++round) {
    const Made1 made = random_rows(random, Made::dense_chunk);
    MadeRows begins = made.rows;
    const auto length = static_cast<std::int64_t>(1 + random() % made.each.size());
    begins.cut(length);
    const Row& last = made.each[static_cast<std::size_t>(length - 1)];
    const bool in_chunk = last.how == Made::dense_chunk && last.last != length;
    if (!in_chunk) {
      EXPECT_TRUE(begins.begins(made.rows)) << round;
    }
    MadeRows other = begins;
    other.correct(0, 1);
    if (made.each.front().how != Made::dense) {
      EXPECT_FALSE(other.begins(made.rows)) << round;
    }
  }
}

}  // namespace
}  // namespace glimpse::engine
