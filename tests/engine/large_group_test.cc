// Models with more query heads to a KV head than the kernels take at once: 32, and 200, which is also more than a tile
// of prefill takes. Their logits are held against libllama's in logits_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/engine/gates.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

constexpr std::size_t kPrompt = 230, kTokens = 240;

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const policies::Policy& policy : policies::registry()) names.emplace_back(policy.name);
  return names;
}

Engine& engine_of(const std::string& model) {
  static Engine engines[] = {Engine(options_for(reference::test_model("mqa32"))),
                             Engine(options_for(reference::test_model("mqa200"), KvType::bf16))};
  return engines[model == "mqa32" ? 0 : 1];
}

std::vector<float> logits_of(Engine& engine, const plan::Plan& plan) {
  const std::vector<Token> tokens = random_tokens(kTokens, engine.tokenizer().size(), 3);
  Sequence sequence = engine.open(plan);
  sequence.prefill(std::span(tokens).first(kPrompt));
  return decoded(sequence, std::span(tokens).subspan(kPrompt));
}

class LargeGroup : public testing::TestWithParam<std::string> {
 protected:
  plan::Plan plan(const std::string& model, std::string_view size) {
    policies::PolicyOptions options = GetParam() == "full" ? policies::PolicyOptions{} : budget(size);
    add_needed(GetParam(), reference::test_model(model), options);
    if (GetParam() == "shadowkv") options.extra.emplace("outliers", "2");
    if (GetParam() == "omnikv") options.extra.emplace("filters", "1");
    return make(engine_of(model), GetParam(), options);
  }
};

TEST_P(LargeGroup, EveryMethodRunsAndABudgetOverTheContextIsDense) {
  for (const char* model : {"mqa32", "mqa200"}) {
    SCOPED_TRACE(model);
    Engine& engine = engine_of(model);
    const std::vector<float> dense = logits_of(engine, make(engine, "full"));
    EXPECT_TRUE(same_bits(dense, logits_of(engine, plan(model, "400"))));
    const std::vector<float> sparse = logits_of(engine, plan(model, "64"));
    EXPECT_TRUE(std::all_of(sparse.begin(), sparse.end(), [](float x) { return std::isfinite(x); }));
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, LargeGroup, testing::ValuesIn(policy_names()), [](const auto& row) {
  std::string name = row.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(LargeGroups, LosslessAndAuditedAnswersAreThoseOfDenseAndOfUnauditedDecoding) {
  Engine& engine = engine_of("mqa32");
  const auto tokens_of = [&](const plan::Plan& plan, const auto& change) {
    Request request;
    request.prompt = random_tokens(kPrompt, engine.tokenizer().size(), 5);
    request.plan = plan;
    request.max_tokens = 16;
    request.ignore_end = true;
    change(request);
    const RequestId id = engine.submit(std::move(request));
    while (!engine.finished(id)) engine.step();
    Result result = engine.result(id);
    engine.release(id);
    EXPECT_EQ(result.reason, FinishReason::length) << result.error;
    return result;
  };
  const plan::Plan quest = make(engine, "quest", budget("64"));
  const Result dense = tokens_of(make(engine, "full"), [](Request&) {});
  const Result lossless = tokens_of(quest, [](Request& request) {
    request.lossless = true;
    request.draft_tokens = 3;
  });
  EXPECT_EQ(lossless.tokens, dense.tokens);
  const Result sparse = tokens_of(quest, [](Request&) {});
  const Result audited = tokens_of(quest, [](Request& request) { request.audit_every = 1; });
  EXPECT_EQ(audited.tokens, sparse.tokens);
  EXPECT_GT(audited.stats.attention.audited.mean, 0);
  EXPECT_LE(audited.stats.attention.audited.mean, 1);
}

}  // namespace
}  // namespace glimpse::engine
