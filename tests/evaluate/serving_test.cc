// Serving measured: the numbers of made-up runs, and the three ways to serve on a small model.
#include "glimpse/evaluate/serving.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "glimpse/policies/policy.h"
#include "tests/engine/support.h"
#include "tests/support/models.h"

namespace glimpse::evaluate {
namespace {

TEST(Percentile, IsTheNearestRank) {
  std::vector<double> values;
  for (int i = 200; i >= 1; --i) values.push_back(i);
  EXPECT_EQ(percentile(values, 0.5), 100);
  EXPECT_EQ(percentile(values, 0.99), 198);
  EXPECT_EQ(percentile(values, 1), 200);
  EXPECT_EQ(percentile({3, 1}, 0.5), 1);
  EXPECT_EQ(percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(percentile({7}, 0.01), 7);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

Served served(std::vector<double> times, std::vector<std::int64_t> passes, std::vector<Token> tokens) {
  Served made;
  made.token_s = std::move(times);
  made.pass = std::move(passes);
  made.tokens = std::move(tokens);
  return made;
}

TEST(ServingRows, OneForEachArmAndOneForAll) {
  std::vector<Arrival> arrivals(3);
  arrivals[0].arm = arrivals[2].arm = "tidal:64";
  arrivals[1].arm = "full";
  std::vector<ServingRun> runs(2);
  runs[0].tokens_per_s = 10;
  runs[0].requests = {served({1, 1.5, 4}, {1, 2, 6}, {5, 6, 7}), served({3}, {4}, {8}), served({2, 3}, {8, 9}, {9, 9})};
  runs[1] = runs[0];
  runs[1].tokens_per_s = 20;
  runs[1].requests[2].tokens = {9, 1};
  runs[1].requests[1].tokens.clear();
  runs[1].requests[1].token_s.clear();
  runs[1].requests[1].error = "no room";
  const auto rows = serving_rows(arrivals, runs, std::vector<std::vector<Token>>{{5, 6, 7}, {8}, {9, 9}});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].arm, "tidal:64");
  EXPECT_EQ(rows[0].requests, 4);
  EXPECT_EQ(rows[0].failed, 0);
  EXPECT_EQ(rows[0].as_alone, 3);
  EXPECT_EQ(rows[0].first_p50_s, 1) << "of 1, 2, 1, 2";
  EXPECT_EQ(rows[0].first_p99_s, 2);
  EXPECT_EQ(rows[0].between_p50_s, 1) << "of 0.5, 2.5, 1, twice";
  EXPECT_EQ(rows[0].between_p99_s, 2.5);
  EXPECT_EQ(rows[0].longest_wait_s, 2.5);
  EXPECT_EQ(rows[0].longest_wait_passes, 4);
  EXPECT_DOUBLE_EQ(rows[0].tokens_per_s, (10.0 * 5 / 6 + 20.0) / 2);
  EXPECT_EQ(rows[1].arm, "full");
  EXPECT_EQ(rows[1].requests, 2);
  EXPECT_EQ(rows[1].failed, 1);
  EXPECT_EQ(rows[1].as_alone, 1);
  EXPECT_EQ(rows[1].first_p50_s, 3);
  EXPECT_EQ(rows[1].longest_wait_passes, 0);
  EXPECT_EQ(rows[2].arm, "all");
  EXPECT_EQ(rows[2].requests, 6);
  EXPECT_EQ(rows[2].as_alone, 4);
  EXPECT_DOUBLE_EQ(rows[2].tokens_per_s, 15);
}

class Serving : public ::testing::Test {
 protected:
  Serving() : engine_(engine::options_for(reference::test_model("llama"))) {
    for (const auto& [policy, length] : {std::pair("tidal", 700), std::pair("full", 60), std::pair("quest", 130)}) {
      Arrival arrival;
      arrival.arm = policy;
      arrival.plan =
          engine::make(engine_, policy, arrival.arm == "full" ? policies::PolicyOptions{} : engine::budget("48"));
      arrival.prompt = engine::random_tokens(static_cast<std::size_t>(length), engine_.tokenizer().size(), 3);
      arrival.tokens = 9;
      arrivals_.push_back(std::move(arrival));
    }
  }

  engine::Engine engine_;
  std::vector<Arrival> arrivals_;
};

TEST_F(Serving, ThreeWaysGiveTheSameTokens) {
  const auto alone = serve_alone(engine_, arrivals_, {});
  ASSERT_TRUE(alone);
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {  // through a sequence of its own: neither requests nor a service
    engine::Sequence sequence = engine_.open(arrivals_[i].plan);
    auto logits = sequence.prefill(arrivals_[i].prompt);
    std::vector<Token> greedy;
    while (true) {
      greedy.push_back(static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      if (greedy.size() == 9) break;
      logits = sequence.decode(greedy.back());
    }
    EXPECT_EQ((*alone)[i], greedy) << arrivals_[i].arm;
  }
  for (const int running : {1, 3}) {
    ServingOptions options;
    options.running = running;
    for (const auto& run : {serve(engine_, arrivals_, options), serve_by_hand(engine_, arrivals_, options)}) {
      ASSERT_TRUE(run);
      EXPECT_GT(run->tokens_per_s, 0);
      for (std::size_t i = 0; i < arrivals_.size(); ++i) EXPECT_EQ(run->requests[i].tokens, (*alone)[i]);
    }
  }
  EXPECT_EQ(engine_.stats().pages_free, engine_.stats().pages_total);
}

TEST_F(Serving, EachPassGivesATokenAndTheQueueIsInOrder) {
  ServingOptions options;
  options.running = 1;
  const auto run = serve(engine_, arrivals_, options);
  ASSERT_TRUE(run);
  std::int64_t before = 0;
  double queued = -1;
  for (const Served& each : run->requests) {
    EXPECT_EQ(each.error, "");
    ASSERT_EQ(each.pass.size(), 9u);
    for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(each.pass[i], each.pass[0] + static_cast<std::int64_t>(i));
    EXPECT_GT(each.pass.front(), before);
    before = each.pass.back();
    EXPECT_GT(each.queue_s, queued);
    queued = each.queue_s;
    EXPECT_GT(each.token_s.front(), each.queue_s);
    EXPECT_TRUE(std::is_sorted(each.token_s.begin(), each.token_s.end()));
  }
  EXPECT_EQ(run->requests[0].pass[0], 2) << "700 tokens are two chunks of 512";
  EXPECT_EQ(before, 2 + 8 + 9 + 9) << "no pass without a use";
}

TEST_F(Serving, StopsWhenAsked) {
  ServingOptions options;
  options.go_on = [](std::int64_t) { return false; };
  EXPECT_FALSE(serve(engine_, arrivals_, options));
  EXPECT_FALSE(serve_by_hand(engine_, arrivals_, options));
  EXPECT_FALSE(serve_alone(engine_, arrivals_, options));
  EXPECT_EQ(engine_.stats().pages_free, engine_.stats().pages_total);
}

}  // namespace
}  // namespace glimpse::evaluate
