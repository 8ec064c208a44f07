// The least budgets against a plain transcription over the cached keys, and against the engine: plans with them, run as
// audited decode steps, capture the mass, and with a grain less they do not.
#include "glimpse/calibrate/least_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "glimpse/base/error.h"
#include "tests/engine/support.h"
#include "tests/support/test_names.h"

namespace glimpse::calibrate {
namespace {

constexpr int kSteps = 5, kGrain = LeastTokens::kGrain;
constexpr std::int64_t kPrompt = 203;

class LeastTokensOf : public testing::TestWithParam<const char*> {
 protected:
  engine::Engine engine_{engine::options_for(reference::test_model(GetParam()))};
  plan::ModelShape shape_ = engine_.shape();
  std::vector<Token> tokens_ =
      engine::random_tokens(static_cast<std::size_t>(kPrompt) + kSteps + 1, engine_.tokenizer().size());
  engine::Sequence dense_ = engine_.open(plan::dense_plan(shape_));

  void SetUp() override { dense_.prefill(std::span(tokens_).first(static_cast<std::size_t>(kPrompt))); }

  /// Two recordings of different lengths.
  LeastTokens counted(std::vector<double> coverages) {
    LeastTokens least(shape_, std::move(coverages));
    for (const std::int64_t first : {kPrompt, kPrompt / 2}) {
      const std::span<const Token> tokens(tokens_.data(), static_cast<std::size_t>(first) + kSteps + 1);
      const Recording recording = record(dense_, shape_, tokens, first);
      for (int layer = 0; layer < shape_.layers; ++layer) {
        least.add_layer(layer, pooled(attention_of(recording, shape_, layer), shape_.kv_heads), first);
      }
    }
    return least;
  }

  /// [layer, KV head][step][tokens - 1] mass of the current token and the best others, in double from keys and queries.
  std::vector<std::vector<std::vector<double>>> masses() {
    std::vector<std::vector<std::vector<double>>> all(static_cast<std::size_t>(shape_.layers * shape_.kv_heads));
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    for (const std::int64_t first : {kPrompt, kPrompt / 2}) {
      engine::Sequence sequence = dense_.fork(plan::dense_plan(shape_), first);
      std::vector<std::pair<std::size_t, std::vector<float>>> queries;
      sequence.on_sets([&](const engine::SetTrace& trace) {
        queries.push_back({static_cast<std::size_t>(trace.layer * shape_.kv_heads + trace.kv_head),
                           {trace.query.begin(), trace.query.end()}});
      });
      for (std::int64_t at = first; at < first + kSteps; ++at) {
        queries.clear();
        sequence.decode(tokens_[static_cast<std::size_t>(at)]);
        for (const auto& [head, query] : queries) {
          const int layer = static_cast<int>(head) / shape_.kv_heads,
                    kv_head = static_cast<int>(head) % shape_.kv_heads;
          const std::size_t group = query.size() / dim;
          std::vector<double> mean(static_cast<std::size_t>(at) + 1);
          for (std::size_t j = 0; j < group; ++j) {
            std::vector<double> weights;
            double total = 0;
            for (std::int64_t token = 0; token <= at; ++token) {
              const std::vector<float> key = sequence.key(layer, kv_head, token);
              double dot = 0;
              for (std::size_t i = 0; i < dim; ++i) dot += static_cast<double>(key[i]) * query[j * dim + i];
              weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(dim))));
              total += weights.back();
            }
            for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += weights[i] / total / static_cast<double>(group);
          }
          std::sort(mean.begin(), mean.end() - 1, std::greater<>());
          std::vector<double> mass{mean.back()};
          for (std::size_t i = 0; i + 1 < mean.size(); ++i) mass.push_back(mass.back() + mean[i]);
          all[head].push_back(std::move(mass));
        }
      }
    }
    return all;
  }

  /// [step] mean mass of a head at a budget, from the kernels' own audit of a plan in which it alone selects.
  std::vector<double> audited(int layer, int head, int budget) {
    plan::Plan plan = plan::dense_plan(shape_);
    const plan::Budget tokens{plan::BudgetRule::tokens, static_cast<double>(budget)};
    plan.selectors.push_back({.terms = {plan::Term{}}, .budget = tokens});
    plan.role(layer, head) = {.kind = plan::RoleKind::select, .selector = 0, .attends_set = true};
    plan::validate(plan);
    std::vector<double> masses;
    for (const std::int64_t first : {kPrompt, kPrompt / 2}) {
      for (std::int64_t at = first; at < first + kSteps; ++at) {
        engine::Sequence before = dense_.fork(plan::dense_plan(shape_), first);  // dense up to the step
        for (std::int64_t i = first; i < at; ++i) before.decode(tokens_[static_cast<std::size_t>(i)]);
        engine::Sequence sequence = before.fork(plan);
        sequence.on_sets([&](const engine::SetTrace& trace) {
          if (trace.layer == layer && trace.kv_head == head) masses.push_back(trace.coverage.value_or(1));
        });
        sequence.decode(tokens_[static_cast<std::size_t>(at)], true);
      }
    }
    return masses;
  }
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

TEST_P(LeastTokensOf, AreThoseOfATranscription) {
  const std::vector<double> coverages{0.3, 0.8, 0.95, 0.999};
  const LeastTokens least = counted(coverages);
  const auto all = masses();
  constexpr double kNear = 1e-5;  // floats beside doubles
  for (std::size_t target = 0; target < coverages.size(); ++target) {
    for (const std::optional<double> share : {std::optional<double>{}, {0.1}, {0.5}, {0.7}, {1.0}}) {
      const std::vector<int> tokens = least.tokens(target, share);
      ASSERT_EQ(tokens.size(), all.size());
      for (std::size_t head = 0; head < all.size(); ++head) {
        ASSERT_EQ(all[head].size(), 2u * kSteps);
        // Whether so many tokens are enough, with the coverage a little lower or higher.
        const auto enough = [&](int budget, double coverage) {
          double sum = 0, reached = 0;
          for (const std::vector<double>& mass : all[head]) {
            const std::size_t k = std::min(mass.size(), static_cast<std::size_t>(budget));
            const double held = k == mass.size() ? 1 : mass[k - 1];
            sum += held;
            reached += held >= coverage ? 1 : 0;
          }
          const auto steps = static_cast<double>(all[head].size());
          return share ? reached >= *share * steps - 1e-9 : sum / steps >= coverage;
        };
        const int found = tokens[head];
        EXPECT_EQ(found % kGrain, 0);
        EXPECT_TRUE(enough(found, coverages[target] - kNear)) << head << " " << found;
        EXPECT_FALSE(found > kGrain && enough(found - kGrain, coverages[target] + kNear)) << head << " " << found;
      }
    }
  }
}

TEST_P(LeastTokensOf, CaptureTheMassWhenDecodingIsAudited) {
  const double coverage = 0.7;
  const LeastTokens least = counted({coverage});
  const std::vector<int> average = least.tokens(0, std::nullopt), always = least.tokens(0, 1.0);
  for (int layer = 0; layer < shape_.layers; ++layer) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const auto at = static_cast<std::size_t>(layer * shape_.kv_heads + head);
      EXPECT_GE(mean(audited(layer, head, average[at])), coverage - 1e-4);
      if (average[at] > kGrain) {
        EXPECT_LT(mean(audited(layer, head, average[at] - kGrain)), coverage + 1e-4);
      }
      for (const double mass : audited(layer, head, always[at])) EXPECT_GE(mass, coverage - 1e-4);
      EXPECT_GE(always[at], average[at]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LeastTokensOf, testing::Values("llama", "qwen3"), PrintedName());

TEST(LeastTokens, CountsByHand) {
  plan::ModelShape shape{"llama", "", 1, 1, 1, 32, 64};
  LeastTokens least(shape, {0.5, 0.9});
  // 40 tokens: a half on the current one, a quarter on each of two others, none elsewhere.
  LayerAttention attention{1, 1, 40, std::vector<float>(40, 0.0F)};
  attention.probability[39] = 0.5F;
  attention.probability[3] = attention.probability[20] = 0.25F;
  least.add_layer(0, attention, 39);
  EXPECT_EQ(least.tokens(0, std::nullopt), std::vector<int>{kGrain});
  EXPECT_EQ(least.tokens(1, 1.0), std::vector<int>{kGrain});
  // All alike: 36 of 40 for nine tenths, which is three grains.
  attention.probability.assign(40, 0.025F);
  LeastTokens even(shape, {0.5, 0.9});
  even.add_layer(0, attention, 39);
  EXPECT_EQ(even.tokens(0, std::nullopt), std::vector<int>{2 * kGrain});
  EXPECT_EQ(even.tokens(1, std::nullopt), std::vector<int>{3 * kGrain});
  // Both: on average 0.9 is (1 + 0.8) / 2 at two grains; every step needs three.
  LeastTokens both(shape, {0.9});
  both.add_layer(0, attention, 39);
  attention.probability.assign(40, 0.0F);
  attention.probability[39] = 1;
  both.add_layer(0, attention, 39);
  EXPECT_EQ(both.tokens(0, std::nullopt), std::vector<int>{2 * kGrain});
  EXPECT_EQ(both.tokens(0, 0.5), std::vector<int>{kGrain});
  EXPECT_EQ(both.tokens(0, 1.0), std::vector<int>{3 * kGrain});
}

/// Of all budgets for three heads that hold the mass together, none has fewer tokens.
TEST(LeastTokens, TogetherAreTheFewestOfAllCombinations) {
  const plan::ModelShape shape{"llama", "", 2, 3, 3, 32, 128};
  constexpr int kTokens = 100, kGrains = 7;
  std::mt19937 random(11);
  for (int round = 0; round < 30; ++round) {
    LeastTokens least(shape, {0.4, 0.8, 0.97});
    std::vector<std::vector<double>> mass(6, std::vector<double>(kGrains, 0.0));
    for (int layer = 0; layer < 2; ++layer) {
      LayerAttention attention{2, 3, kTokens, std::vector<float>(6 * kTokens)};
      for (int step = 0; step < 2; ++step) {
        for (int head = 0; head < 3; ++head) {
          float* row = attention.probability.data() + (step * 3 + head) * kTokens;
          const auto seen = static_cast<std::size_t>(kTokens - 1 + step);
          double sum = 0;
          const double sharp = std::uniform_real_distribution<double>(0.5, 8)(random);
          for (std::size_t i = 0; i < seen; ++i) {
            row[i] = static_cast<float>(std::exp(sharp * std::normal_distribution<double>()(random)));
            sum += static_cast<double>(row[i]);
          }
          for (std::size_t i = 0; i < seen; ++i) row[i] = static_cast<float>(static_cast<double>(row[i]) / sum);
          std::vector<float> sorted(row, row + seen - 1);
          std::sort(sorted.begin(), sorted.end(), std::greater<>());
          for (int grain = 0; grain < kGrains; ++grain) {
            const std::size_t others = std::min(sorted.size(), static_cast<std::size_t>((grain + 1) * kGrain - 1));
            double held = static_cast<double>(row[seen - 1]);
            for (std::size_t i = 0; i < others; ++i) held += static_cast<double>(sorted[i]);
            mass[static_cast<std::size_t>(layer * 3 + head)][static_cast<std::size_t>(grain)] += held / 2;
          }
        }
      }
      least.add_layer(layer, attention, kTokens - 2);
    }
    for (std::size_t target = 0; target < 3; ++target) {
      const std::vector<int> found = least.tokens_together(target);
      const auto held = [&](int a, int b, int c) {
        return (mass[3][static_cast<std::size_t>(a)] + mass[4][static_cast<std::size_t>(b)] +
                mass[5][static_cast<std::size_t>(c)]) /
               3;
      };
      int fewest = 3 * kGrains;
      for (int i = 0; i < kGrains * kGrains * kGrains; ++i) {
        const int a = i % kGrains, b = i / kGrains % kGrains, c = i / kGrains / kGrains;
        if (held(a, b, c) >= least.coverages()[target]) fewest = std::min(fewest, a + b + c + 3);
      }
      EXPECT_EQ((found[3] + found[4] + found[5]) / kGrain, fewest) << round << " " << target;
      EXPECT_GE(held(found[3] / kGrain - 1, found[4] / kGrain - 1, found[5] / kGrain - 1),
                least.coverages()[target] - 1e-6);
    }
  }
}

}  // namespace
}  // namespace glimpse::calibrate
