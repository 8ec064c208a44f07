// Low-rank keys in whole models: the full rank is the cache up to rounding, whatever rotates the keys, and the rest of
// what holds for a sequence holds with them.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

constexpr std::size_t kPrompt = 390, kAll = 402;

plan::Plan shadowkv(const Engine& engine, int rank) {
  return make(engine, "shadowkv", budget("128", {{"rank", std::to_string(rank)}, {"outliers", "2"}}));
}

std::vector<float> run(Engine& engine, const plan::Plan& plan, std::span<const Token> tokens) {
  Sequence sequence = engine.open(plan);
  sequence.prefill(tokens.first(kPrompt));
  return decoded(sequence, tokens.subspan(kPrompt));
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i] - b[i])));
  return most;
}

class LowRankKeys : public testing::TestWithParam<std::string> {};

TEST_P(LowRankKeys, TheFullRankIsTheCache) {
  Engine engine(options_for(reference::test_model(GetParam()), KvType::f32));
  const std::vector<Token> tokens = random_tokens(kAll, engine.tokenizer().size());
  const plan::ModelShape shape = engine.shape();
  const auto exact = run(engine, shadowkv(engine, 0), tokens);
  const auto whole = run(engine, shadowkv(engine, shape.kv_heads * shape.head_dim), tokens);
  const auto coarse = run(engine, shadowkv(engine, 2), tokens);
  EXPECT_LT(distance(exact, whole), 1e-3);
  EXPECT_GT(distance(exact, coarse), distance(exact, whole));
}

INSTANTIATE_TEST_SUITE_P(Models, LowRankKeys, testing::Values("llama", "llama-yarn", "qwen2-yarn", "qwen3"),
                         [](const auto& row) {
                           std::string name = row.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(LowRank, ForksAndLateFactorsAgree) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(kAll, engine.tokenizer().size());
  const plan::Plan plan = shadowkv(engine, 12);
  const auto expected = run(engine, plan, tokens);
  const auto same = [&](const std::vector<float>& other) { return same_bits(expected, other); };
  Sequence dense = engine.open(make(engine, "full"));
  dense.prefill(std::span(tokens).first(kPrompt));
  Sequence late = dense.fork(plan);  // its factors are made in its first step
  EXPECT_TRUE(same(decoded(late, std::span(tokens).subspan(kPrompt))));
  Sequence first = engine.open(plan);
  first.prefill(std::span(tokens).first(kPrompt));
  Sequence fork = first.fork(plan);
  EXPECT_TRUE(same(decoded(first, std::span(tokens).subspan(kPrompt))));
  EXPECT_TRUE(same(decoded(fork, std::span(tokens).subspan(kPrompt))));
}

/// A correction of the whole cache by the same tokens leaves what a prompt of them leaves, up to rounding.
TEST(LowRank, ACorrectedPromptIsFactoredAgain) {
  Engine engine(options_for(reference::test_model("llama"), KvType::f32));
  const std::vector<Token> tokens = random_tokens(kAll, engine.tokenizer().size());
  const plan::Plan plan = shadowkv(engine, 12);
  Sequence sequence = engine.open(plan);
  sequence.prefill(std::span(tokens).first(kPrompt));
  sequence.correct(static_cast<std::int64_t>(kPrompt));
  const auto corrected = decoded(sequence, std::span(tokens).subspan(kPrompt));
  EXPECT_LT(distance(run(engine, plan, tokens), corrected), 1e-3);
}

}  // namespace
}  // namespace glimpse::engine
