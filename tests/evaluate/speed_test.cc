// The measuring itself, on arms whose times are made up.
#include "glimpse/evaluate/speed.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/attention_speed.h"
#include "glimpse/evaluate/kernel_cases.h"
#include "glimpse/policies/policy.h"
#include "tests/support/models.h"

namespace glimpse::evaluate {
namespace {

TEST(Median, OddAndEven) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_THROW(median({}), InternalError);
}

TEST(MeasureDecode, IsTheSlopeAndTheMedianAndAlternates) {
  std::string order;
  std::vector<std::size_t> contexts;
  const auto arm = [&](const std::string& name, std::vector<double> per_token) {
    Arm made;
    made.name = name;
    made.prepare = [&contexts](std::span<const Token> context) { contexts.push_back(context.size()); };
    made.decode = [&order, name, per_token, run = 0](std::span<const Token> tokens) mutable {
      order += name;
      // The first token is slow; the slope must not see it.
      std::vector<double> times;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        times.push_back(100 + per_token[static_cast<std::size_t>(run) % per_token.size()] * static_cast<double>(i));
      }
      ++run;
      return times;
    };
    return made;
  };
  const std::vector<Arm> arms{arm("a", {1, 5, 2}), arm("b", {0.5})};
  const std::vector<Token> text(100, 1);
  DecodeOptions options;
  options.depths = {0, 60};
  options.tokens = 40;
  options.repetitions = 3;
  const auto rows = measure_decode(arms, text, options);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(order, "abababababab");
  EXPECT_EQ(contexts, (std::vector<std::size_t>{0, 0, 60, 60}));
  EXPECT_DOUBLE_EQ(rows[0].median_s, 2);
  EXPECT_DOUBLE_EQ(rows[0].least_s, 1);
  EXPECT_DOUBLE_EQ(rows[0].most_s, 5);
  EXPECT_DOUBLE_EQ(rows[1].tokens_per_s, 2);
  EXPECT_EQ(rows[3].depth, 60);
  EXPECT_FALSE(rows[0].kept_ratio.has_value());
  options.on_measurement = [](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(total, 12);
    return done < 7;
  };
  EXPECT_EQ(measure_decode(arms, text, options).size(), 2u) << "only whole rows";
  EXPECT_THROW(measure_decode(arms, std::span(text).first(99), options), UserError);
}

TEST(EngineArms, DecodeTheSameContextAgainAndAgain) {
  engine::EngineOptions options;
  options.model = reference::test_model("llama");
  options.context = 256;
  options.sequences = 2;
  options.threads = 2;
  engine::Engine engine(options);
  policies::PolicyOptions sparse;
  sparse.budget = plan::parse_budget("16");
  const auto arms = engine_arms(engine, {{"full", plan::dense_plan(engine.shape())},
                                         {"tidal", policies::make_plan("tidal", engine.shape(), sparse)}});
  const std::vector<Token> text(200, 300);
  DecodeOptions how;
  how.depths = {0, 100};
  how.tokens = 12;
  how.repetitions = 2;
  const auto rows = measure_decode(arms, text, how);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[2].kept_ratio, 1.0);
  // Steps at 101 to 112 tokens; 3 of 4 layers read all, one reads 16. K and V of 2 heads of 32 bf16 values.
  double kept = 0, all = 0;
  for (int context = 101; context <= 112; ++context) {
    kept += 3 * context + 16;
    all += 4 * context;
  }
  EXPECT_DOUBLE_EQ(*rows[3].kept_ratio, kept / all);
  EXPECT_DOUBLE_EQ(*rows[3].bytes_per_token, kept / 12 * 2 * 2 * 32 * 2);
  const auto prefill = measure_prefill(arms, text, {.lengths = {10, 200}, .repetitions = 1});
  ASSERT_EQ(prefill.size(), 4u);
  EXPECT_GT(prefill[3].tokens_per_s, 0);
}

TEST(MeasureCases, RunsEachItemOnceARoundAndCountsOneLayer) {
  std::array<std::atomic<int>, 5> runs{};
  KernelCase made;
  made.name = "made up";
  made.layers = 4;
  made.items = 5;
  made.bytes = 1e6;
  made.flops = 2e6;
  made.run = [&](int i) { ++runs[static_cast<std::size_t>(i)]; };
  made.check = [] { return 0.25; };
  const KernelTimes times = measure_cases({made}, 2, 3);
  for (const auto& count : runs) EXPECT_EQ(count, 4) << "three repetitions and one to warm up";
  ASSERT_EQ(times.rows.size(), 1u);
  const KernelRow& row = times.rows[0];
  EXPECT_EQ(row.error, 0.25);
  EXPECT_LE(row.least_s, row.median_s);
  EXPECT_LE(row.median_s, row.most_s);
  EXPECT_NEAR(row.gflops, 2e6 / row.median_s / 1e9, 1e-9);
  EXPECT_GT(times.read_bandwidth, 0);
}

TEST(MeasureCases, TimesNothingWhereAnAnswerIsWrong) {
  int runs = 0;
  KernelCase wrong;
  wrong.items = wrong.layers = 1;
  wrong.run = [&](int) { ++runs; };
  wrong.check = [] { return expect_near(std::vector<float>{1, 2}, std::vector<float>{1, 2.5F}, 0.1, "wrong"); };
  EXPECT_THROW(measure_cases({wrong}, 1, 1), InternalError);
  EXPECT_EQ(runs, 0);
  EXPECT_DOUBLE_EQ(expect_near(std::vector<float>{1, 2}, std::vector<float>{1, 2.5F}, 0.6, "near"), 0.2);
}

TEST(MeasureCases, EndWhereTheCallerSaysSo) {
  int rounds = 0;
  KernelCase made;
  made.items = made.layers = 1;
  made.run = [](int) {};
  made.check = [] { return 0.0; };
  EXPECT_TRUE(measure_cases({made}, 1, 5, [&] { return ++rounds < 3; }).rows.empty());
  EXPECT_EQ(rounds, 3);
}

TEST(MeasureAttention, CountsBytesAndChecksAnswers) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    AttentionOptions options;
    options.depths = {1, 1100};
    options.kv_type = type;
    options.rows = 600;
    options.threads = 2;
    options.repetitions = 1;
    const AttentionSpeed speed = measure_attention(options);
    ASSERT_EQ(speed.rows.size(), 4u);
    EXPECT_GT(speed.read_bandwidth, 0);
    for (const AttentionRow& row : speed.rows) EXPECT_LT(row.error, 1e-4) << row.kernel << " at " << row.depth;
    const double one_row = static_cast<double>(row_bytes(type, 64) + (type == KvType::q8_0 ? 4 : 0));
    EXPECT_EQ(speed.rows[2].bytes, 2 * 1100 * 3 * one_row);
    EXPECT_EQ(speed.rows[3].bytes, 600 * 3 * (2 * one_row + 4)) << "entries of the list too";
  }
  EXPECT_THROW(measure_attention({.depths = {10}, .head_dim = 20}), UserError);
  EXPECT_THROW(measure_attention({.depths = {10}, .head_dim = 512}), UserError);
}

}  // namespace
}  // namespace glimpse::evaluate
