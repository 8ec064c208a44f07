// Cache correction: K and V of corrected tokens are those of a dense pass over the same rows, whatever the method read
// before; what the method goes on by follows them; forks keep theirs; methods that forget tokens are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "glimpse/base/error.h"
#include "tests/engine/gates.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

// Pages of 16 and 32 and a gate's block of 64 end among the decoded tokens.
constexpr std::size_t kPrompt = 340;
constexpr std::size_t kDecoded = 50;
constexpr std::size_t kAfter = 12;

policies::PolicyOptions options_of(const std::string& policy) {
  policies::PolicyOptions options = policy == "full" ? policies::PolicyOptions{} : budget("160");
  add_needed(policy, reference::test_model("llama"), options);
  if (policy == "shadowkv") options.extra.emplace("outliers", "4");  // the usual ones are most of a short prompt
  if (policy == "omnikv") options.extra.emplace("filters", "1");     // the usual ones leave no layer of four to reuse
  return options;
}

/// The policies of the registry whose plans forget tokens, or those whose plans keep them.
std::vector<std::string> policies_that(bool forget) {
  std::vector<std::string> names;
  const plan::ModelShape shape{"llama", "", 4, 4, 2, 32, 4096};
  for (const policies::Policy& policy : policies::registry()) {
    policies::PolicyOptions options;
    if (policy.name == "seer") options.extra.emplace("gates", "unread");  // no more than a path in a plan
    if (plan::forgets(policy.make(shape, options)) == forget) names.emplace_back(policy.name);
  }
  return names;
}

Token best_of(std::span<const float> logits) {
  return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::string name_of(const testing::TestParamInfo<std::string>& row) {
  std::string name = row.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class Correction : public testing::TestWithParam<std::string> {
 protected:
  Engine engine_{[] {
    EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16);
    options.sequences = 4;
    options.context = 1024;
    options.prefill_chunk = 128;
    return options;
  }()};
  std::vector<Token> tokens_ = random_tokens(kPrompt + kDecoded + kAfter, engine_.tokenizer().size(), 21);
  plan::Plan plan_ = make(engine_, GetParam(), options_of(GetParam()));

  std::span<const Token> prompt() const { return std::span(tokens_).first(kPrompt); }
  std::span<const Token> generated() const { return std::span(tokens_).subspan(kPrompt, kDecoded); }
  std::span<const Token> following() const { return std::span(tokens_).last(kAfter); }

  bool same_rows(const Sequence& a, const Sequence& b, std::size_t first = kPrompt) {
    if (a.length() != b.length()) return false;
    for (int layer = 0; layer < engine_.shape().layers; ++layer) {
      for (int head = 0; head < engine_.shape().kv_heads; ++head) {
        for (auto position = static_cast<std::int64_t>(first); position < a.length(); ++position) {
          if (a.key(layer, head, position) != b.key(layer, head, position)) return false;
          if (a.value(layer, head, position) != b.value(layer, head, position)) return false;
        }
      }
    }
    return true;
  }
};

TEST_P(Correction, LeavesTheRowsOfADensePass) {
  Sequence dense = engine_.open(make(engine_, "full"));
  dense.prefill(prompt());
  Sequence sparse = dense.fork(plan_);
  dense.prefill(generated());
  decoded(sparse, generated());
  if (GetParam() != "full" && GetParam() != "oracle") {  // the oracle reads every key to choose by
    EXPECT_EQ(sparse.stats().sparse_steps, static_cast<std::int64_t>(kDecoded));
  }
  EXPECT_FALSE(same_rows(sparse, dense)) << "nothing to correct";
  const std::vector<float> heat = sparse.heat(engine_.shape().layers - 1);
  Sequence fork = sparse.fork(make(engine_, "full"));
  sparse.correct(static_cast<std::int64_t>(kDecoded));
  EXPECT_TRUE(same_rows(sparse, dense));
  EXPECT_FALSE(same_rows(fork, dense));
  // It goes on as one that makes its indices and the like of what is now in the cache. Heat cannot be made of that; a
  // correction is no step of it.
  EXPECT_EQ(sparse.heat(engine_.shape().layers - 1), heat);
  if (plan::reads_heat(plan_)) {
    EXPECT_FALSE(heat.empty());
    decoded(sparse, following());
    return;
  }
  const Sequence bare = sparse.fork(make(engine_, "full"));
  Sequence late = bare.fork(plan_);
  EXPECT_EQ(decoded(sparse, following()), decoded(late, following()));
}

TEST_P(Correction, OfMoreTokensThanAPassTakesIsTheSame) {
  Sequence sparse = engine_.open(plan_);
  sparse.prefill(prompt());
  decoded(sparse, generated());
  EXPECT_THAT([&] { sparse.correct(0); }, testing::Throws<UserError>());
  EXPECT_THAT([&] { sparse.correct(sparse.length() + 1); }, testing::Throws<UserError>());
  sparse.correct(sparse.length());  // the prompt's rows too, which a sparse prefill left
  Sequence whole = engine_.open(make(engine_, "full"));
  whole.prefill(std::span(tokens_).first(kPrompt + kDecoded));
  EXPECT_TRUE(same_rows(sparse, whole, 0));
}

TEST_P(Correction, OfARequestIsThatOfASequenceByHand) {
  constexpr int kEvery = 4, kTokens = 23;
  Request request;
  request.prompt.assign(prompt().begin(), prompt().end());
  request.plan = plan_;
  request.correct_every = kEvery;
  request.max_tokens = kTokens;
  request.ignore_end = true;
  request.keep = true;
  const RequestId id = engine_.submit(request);
  while (engine_.step()) {
  }
  Sequence sequence = engine_.open(plan_);
  std::vector<Token> said{best_of(sequence.prefill(prompt()))};
  for (int step = 1; step < kTokens; ++step) {
    said.push_back(best_of(sequence.decode(said.back())));
    if (step % kEvery == 0) sequence.correct(kEvery);
  }
  EXPECT_EQ(engine_.result(id).tokens, said);
  const std::optional<Sequence> kept = engine_.take(id);
  ASSERT_TRUE(kept.has_value());
  EXPECT_TRUE(same_rows(*kept, sequence));
  // The first token came from the prompt: 22 were decoded, five times four and two more.
  EXPECT_EQ(engine_.result(id).stats.corrections, 5);
}

INSTANTIATE_TEST_SUITE_P(Registry, Correction, testing::ValuesIn(policies_that(false)), name_of);

class NoCorrection : public testing::TestWithParam<std::string> {};

TEST_P(NoCorrection, OfAMethodThatForgets) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const plan::Plan plan = make(engine, GetParam(), options_of(GetParam()));
  const auto refused = testing::ThrowsMessage<UserError>(
      testing::AllOf(testing::HasSubstr("plan '" + GetParam() + "' forgets tokens"), testing::HasSubstr("--correct")));
  Request request;
  request.prompt = random_tokens(20, engine.tokenizer().size());
  request.plan = plan;
  request.correct_every = 4;
  EXPECT_THAT([&] { engine.submit(request); }, refused);
  EXPECT_FALSE(engine.step()) << "nothing was queued";
  // Whether something is forgotten yet or not.
  Sequence sequence = engine.open(plan);
  sequence.prefill(request.prompt);
  Sequence untouched = sequence.fork(plan);
  EXPECT_THAT([&] { sequence.correct(4); }, refused);
  EXPECT_EQ(decoded(sequence, request.prompt), decoded(untouched, request.prompt)) << "with nothing done";
}

INSTANTIATE_TEST_SUITE_P(Registry, NoCorrection, testing::ValuesIn(policies_that(true)), name_of);

// Indices over the corrected keys are those of a sequence that never had others, in the last layer too, whose logits
// nobody wants of a correction. The new pages end inside the corrected part.
TEST(CorrectionOfIndices, ReachesEveryLayer) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(420, engine.tokenizer().size(), 5);
  const std::span<const Token> all(tokens);
  const auto decoded = [&](Sequence& sequence, std::size_t from, std::size_t to) {
    std::vector<float> logits;
    for (std::size_t i = from; i < to; ++i) {
      const auto some = sequence.decode(tokens[i]);
      logits.insert(logits.end(), some.begin(), some.end());
    }
    return logits;
  };
  Sequence corrected = engine.open(make(engine, "quest", budget("64")));
  corrected.prefill(all.first(300));
  decoded(corrected, 300, 390);
  corrected.correct(90);
  Sequence dense = engine.open(make(engine, "full"));
  dense.prefill(all.first(300));
  dense.prefill(all.subspan(300, 90));
  Sequence fresh = dense.fork(make(engine, "quest", budget("64")));
  EXPECT_EQ(decoded(corrected, 390, 420), decoded(fresh, 390, 420));
}

}  // namespace
}  // namespace glimpse::engine
