// The measuring programs' own arithmetic, against plain loops and published figures, and their prefill kinds on a
// small model.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "bench/bench_report.h"
#include "bench/method_arms.h"
#include "bench/prefilled_prompt.h"
#include "bench/statistics.h"
#include "glimpse/base/error.h"
#include "glimpse/evaluate/set_quality.h"
#include "tests/support/models.h"
#include "tests/support/places.h"
#include "tests/support/refusal.h"

namespace glimpse::bench {
namespace {

using evaluate::KeyHistory;
using evaluate::SetQuality;
using evaluate::SetSample;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<float> random_floats(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(Statistics, DivergenceFollowsItsFormula) {
  const std::vector<float> p = random_floats(300, 1), q = random_floats(300, 2);
  double sum_p = 0, sum_q = 0, expected = 0;
  for (const float x : p) sum_p += std::exp(static_cast<double>(x));
  for (const float x : q) sum_q += std::exp(static_cast<double>(x));
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double a = std::exp(static_cast<double>(p[i])) / sum_p, b = std::exp(static_cast<double>(q[i])) / sum_q;
    expected += a * std::log(a / b);
  }
  EXPECT_NEAR(divergence(p, q), expected, 1e-12);
  EXPECT_EQ(divergence(p, p), 0);
}

TEST(Statistics, ArgMaxTakesTheLowerOfEquals) {
  EXPECT_EQ(arg_max(std::vector<float>{1, 3, 3, 2}), 1);
}

TEST(BenchReport, CommandsNameFilesWithoutTheirFolders) {
  std::vector<std::string> words{"/a/b/some_bench",           "/a/m.gguf",          "--methods",
                                 "quest/score=meanstd,tidal", "--json=/x=y/o.json", "--resume",
                                 "/a/1.json,../2=3/2.json"};
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  EXPECT_EQ(command_line(pointers),
            "some_bench m.gguf --methods quest/score=meanstd,tidal --json=o.json --resume 1.json,2.json");
}

TEST(BenchReport, CommandsQuoteWhatAShellWouldRead) {
  std::vector<std::string> words{"bench", "dense f32", "it's", "", "p=0.9", "--budgets=10%,$HOME"};
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  EXPECT_EQ(command_line(pointers), R"(bench 'dense f32' 'it'\''s' '' p=0.9 '--budgets=10%,$HOME')");
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The file that is published is the one that the check of published files takes.
TEST(BenchReport, WritesTheSchemaOfPublishedResults) {
  const std::string path = testing::TempDir() + "/glimpse-report.json";
  Report report(path, "some_bench m.gguf --methods quest/score=meanstd", 2);
  report.set("kv_type", "bf16");
  report.add({{"method", "quest"}, {"bytes", 3162112.0}, {"share", 1.0 / 3}, {"right", 39}, {"refused", nullptr}});
  report.add({{"method", "a \"quoted\" \xff"}, {"huge", 1e300}, {"none", std::nan("")}, {"small", -1.5e-9}});
  report.write();
  const Json json = Json::parse(file_text(path));
  EXPECT_EQ(json["settings"], Json({{"threads", 2}, {"kv_type", "bf16"}}));
  EXPECT_GT(json["machine"]["read_bandwidth"].get<double>(), 1e6);
  EXPECT_EQ(json["rows"][0].dump(), R"({"method":"quest","bytes":3162112,"share":0.333333,"right":39,"refused":null})");
  EXPECT_TRUE(json["rows"][1]["none"].is_null());
  EXPECT_EQ(json["rows"][1]["small"], -1.5e-9);
  const std::string check = fmt::format("python3 '{0}/tests/docs/check_results.py' '{0}' --file '{1}'",
                                        glimpse::test::source_root().string(), path);
  EXPECT_EQ(std::system(check.c_str()), 0);
  EXPECT_THROW(report.add({{"answers", Json::array()}}), InternalError);
  EXPECT_THROW(report.set("sources", Json::object()), InternalError);
  std::filesystem::remove(path);
}

TEST(BenchReport, WithoutAFileNothingIsWritten) {
  Report report("", "some_bench", 1);
  report.add({{"x", 1}});
  report.write();
  EXPECT_EQ(Json::parse(report.text())["machine"]["read_bandwidth"], nullptr);
}

plan::ModelShape small_shape() {
  return {"llama", "small", 6, 9, 3, 64, 4096};
}

TEST(MethodArms, ReadNamesOptionsAndBudgets) {
  std::vector<std::string> warnings;
  const std::vector<Arm> arms =
      make_arms(small_shape(), {{"quest/score=meanstd", "kascade/pooling=query"}, {"64"}}, warnings);
  std::vector<std::string> labels;
  for (const Arm& arm : arms) labels.push_back(arm.label());
  EXPECT_THAT(labels,
              ElementsAre("full", "quest/score=meanstd 64", "kascade/pooling=query 64", "kascade/pooling=query 10%"));
  EXPECT_EQ(arms[1].plan.selectors.at(0).terms.at(0).index.digest, plan::Digest::mean_deviation);
  EXPECT_EQ(arms[1].plan.selectors.at(0).budget, (plan::Budget{plan::BudgetRule::tokens, 64}));
  EXPECT_EQ(arms[3].plan.selectors.at(0).budget, (plan::Budget{plan::BudgetRule::ratio, 0.1, 128}));
  EXPECT_THAT(warnings, testing::Contains(HasSubstr("kascade")));
}

TEST(MethodArms, AllIsTheRegistryAndSaysWhatItCannotMake) {
  std::vector<std::string> warnings;
  ArmRequest request{{"all"}, {"512"}};
  const std::size_t methods = make_arms(small_shape(), request, warnings).size();
  request.variants = true;
  std::size_t refused = 0;
  const std::vector<Arm> arms = make_arms(small_shape(), request, warnings);
  for (const Arm& arm : arms) {
    if (arm.refused.empty()) continue;
    ++refused;
    EXPECT_THAT(arm.refused, HasSubstr(arm.method.substr(0, arm.method.find('/'))));
  }
  EXPECT_GE(arms.size(), methods + variant_methods().size());
  EXPECT_GE(refused, 1U);  // seer has no gates
  for (const std::string& variant : variant_methods()) {
    EXPECT_TRUE(std::any_of(arms.begin(), arms.end(), [&](const Arm& arm) {
      return arm.method == variant && arm.refused.empty();
    })) << variant;
  }
}

TEST(MethodArms, OneBudgetServesAllSparsePrefills) {
  std::vector<std::string> warnings;
  ArmRequest request{{"kascade"}, {"64", "256"}};
  request.sparse_prefill = "10%";
  const std::vector<Arm> arms = make_arms(small_shape(), request, warnings);
  ASSERT_THAT(arms, SizeIs(4));
  EXPECT_EQ(arms[1].prefill_plan, arms[2].prefill_plan);
  EXPECT_FALSE(arms[1].plan == arms[2].plan);
  EXPECT_EQ(arms[3].prefill_plan, arms[3].plan);
}

TEST(MethodArms, ABudgetMayHaveAComma) {
  std::vector<std::string> warnings;
  const std::vector<Arm> arms = make_arms(small_shape(), {{"quest"}, {"10%", "min=128", "64"}}, warnings);
  ASSERT_THAT(arms, SizeIs(3));
  EXPECT_EQ(arms[1].label(), "quest 10%,min=128");
  const auto chosen = std::find_if(arms[1].plan.selectors.begin(), arms[1].plan.selectors.end(),
                                   [](const plan::Selector& selector) { return !selector.terms.empty(); });
  ASSERT_NE(chosen, arms[1].plan.selectors.end());
  EXPECT_EQ(plan::budget_tokens(chosen->budget, 300), 128);
  EXPECT_EQ(plan::budget_tokens(chosen->budget, 3000), 300);
}

TEST(MethodArms, RefuseWhatIsWrong) {
  const auto refused = [](std::vector<std::string> methods, std::vector<std::string> budgets) {
    return refusal([&] {
      std::vector<std::string> warnings;
      make_arms(small_shape(), {std::move(methods), std::move(budgets)}, warnings);
    });
  };
  EXPECT_THAT(refused({"qest"}, {"64"}), HasSubstr("did you mean 'quest'"));
  EXPECT_THAT(refused({"quest/score"}, {"64"}), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(refused({"quest/scor=minmax"}, {"64"}), HasSubstr("scor"));
  EXPECT_THAT(refused({"quest/sink=x"}, {"64"}), HasSubstr("whole number"));
  EXPECT_THAT(refused({"quest/sink=1/sink=2"}, {"64"}), HasSubstr("twice"));
  EXPECT_THAT(refused({"quest", "quest"}, {"64"}), HasSubstr("twice"));
  EXPECT_THAT(refused({"seer"}, {"64"}), HasSubstr("gate"));
  EXPECT_THAT(refused({"quest"}, {"many"}), HasSubstr("many"));
  EXPECT_THAT(refused({"quest"}, {"64", "64"}), HasSubstr("twice"));
  EXPECT_THAT(refusal([] {
                std::vector<std::string> warnings;
                ArmRequest request{{"kascade"}, {"64"}};
                request.sparse_prefill = "p=0.9";
                make_arms(small_shape(), request, warnings);
              }),
              HasSubstr("--sparse-prefill"));
}

engine::Engine small_engine() {
  engine::EngineOptions options;
  options.model = reference::test_model("llama");
  options.context = 512;
  options.sequences = PrefilledPrompt::kSequences;
  options.threads = 1;
  return engine::Engine(options);
}

std::vector<Token> some_tokens(const engine::Engine& engine, int count) {
  std::vector<Token> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 37 + i * i) % engine.tokenizer().size());
  return tokens;
}

// Whatever the kind of prefill, a start is what the plan's own sequence is: to rounding where rows ran in other passes.
TEST(PrefilledPrompt, StartsAreThoseOfTheirOwnSequences) {
  engine::Engine engine = small_engine();
  const std::vector<Token> tokens = some_tokens(engine, 300);
  std::vector<std::string> warnings;
  const std::vector<Arm> arms = make_arms(
      engine.shape(),
      {{"tidal", "evosparse", "tova", "h2o", "kascade", "streaming", "quest", "lychee-cluster", "clusterkv", "raas"},
       {"200", "120"}},
      warnings);
  std::vector<std::string> kinds;
  PrefilledPrompt prompt(engine, tokens, arms,
                         [&](const std::string& kind, std::int64_t, double) { kinds.push_back(kind); });
  for (const Arm& arm : arms) {
    SCOPED_TRACE(arm.label());
    std::vector<std::vector<float>> ours;
    {
      PrefilledPrompt::Start start = prompt.start(arm);
      EXPECT_EQ(start.sequence.length(), 300);
      ours.push_back(start.logits);
      for (Token token = 5; token < 9; ++token) {
        const auto logits = start.sequence.decode(token);
        ours.emplace_back(logits.begin(), logits.end());
      }
    }
    engine::Sequence alone = engine.open(arm.plan);
    const auto first = alone.prefill(tokens);
    EXPECT_LT(divergence(first, ours[0]), 1e-6);
    for (Token token = 5; token < 9; ++token) {
      EXPECT_LT(divergence(alone.decode(token), ours[static_cast<std::size_t>(token - 4)]), 1e-5) << token;
    }
  }
  EXPECT_THAT(kinds, ElementsAre("dense", "own, h2o 200", "own, h2o 120", "own, kascade 200", "own, kascade 120",
                                 "own, kascade 10%"));
}

TEST(KeyHistory, RemembersWhatTheSequenceForgot) {
  engine::Engine engine = small_engine();
  const std::vector<Token> tokens = some_tokens(engine, 300);
  std::vector<std::string> warnings;
  const std::vector<Arm> arms = make_arms(engine.shape(), {{"streaming"}, {"100"}}, warnings);
  PrefilledPrompt prompt(engine, tokens, arms, [](const std::string&, std::int64_t, double) {});
  KeyHistory keys(engine.shape());
  keys.follow(prompt.dense());
  PrefilledPrompt::Start start = prompt.start(arms[1]);
  SetSample sample;
  sample.watch(start.sequence);
  start.sequence.decode(5);
  keys.follow(start.sequence);
  EXPECT_EQ(keys.tokens(), 301);
  const plan::ModelShape shape = engine.shape();
  const auto row = static_cast<std::size_t>(shape.head_dim);
  const std::vector<float> old = prompt.dense().key(1, 0, 150), fresh = start.sequence.key(1, 0, 300);
  EXPECT_THROW(start.sequence.key(1, 0, 150), UserError);
  const auto at = [&](std::size_t position) {
    const auto part = keys.keys(1, 0).subspan(position * row, row);
    return std::vector<float>(part.begin(), part.end());
  };
  EXPECT_EQ(at(150), old);
  EXPECT_EQ(at(300), fresh);
  const SetQuality all = sample.take(keys, shape.head_dim);
  EXPECT_EQ(all.count, shape.layers * shape.heads);
  EXPECT_NEAR(all.tokens / static_cast<double>(all.count), 100, 1e-9);
  EXPECT_LE(all.mass, all.best_mass + 1e-9);
  EXPECT_GT(all.mass, 0);
  EXPECT_EQ(sample.take(keys, shape.head_dim).count, 0);
}

}  // namespace
}  // namespace glimpse::bench
