// Logits that are not finite: the request that has them ends with one line, and nobody else does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "glimpse/base/error.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Token kDamaged = 77;  ///< the token of damaged-embedding whose embedding holds a NaN

Request request_for(const Engine& engine, const char* policy, std::uint32_t seed) {
  Request request;
  request.prompt = random_tokens(100, engine.tokenizer().size(), seed);
  for (Token& token : request.prompt) token += token == kDamaged ? 1 : 0;
  request.plan = make(engine, policy, std::string(policy) == "full" ? policies::PolicyOptions{} : budget("48"));
  request.max_tokens = 6;
  request.ignore_end = true;
  return request;
}

std::vector<Result> results_of(Engine& engine, const std::vector<Request>& requests) {
  std::vector<RequestId> ids;
  for (const Request& request : requests) ids.push_back(engine.submit(request));
  while (engine.step()) {
  }
  std::vector<Result> results;
  for (const RequestId id : ids) results.push_back(engine.result(id));
  return results;
}

TEST(NotFinite, ADamagedWeightFailsTheRequestThatReadsItAlone) {
  for (const char* policy : {"full", "tidal", "quest", "clusterkv", "shadowkv", "h2o", "kascade"}) {
    SCOPED_TRACE(policy);
    Engine whole(options_for(reference::test_model("undamaged")));
    Engine engine(options_for(reference::test_model("damaged-embedding")));
    const Request calm = request_for(engine, policy, 1);
    Request hit = request_for(engine, policy, 2);
    hit.prompt[60] = kDamaged;
    const std::vector<Result> results = results_of(engine, {hit, calm, hit});
    for (const std::size_t i : {std::size_t{0}, std::size_t{2}}) {
      EXPECT_EQ(results[i].reason, FinishReason::failed);
      EXPECT_THAT(results[i].error, AllOf(HasSubstr("not finite"), HasSubstr("weight [77, 5] of 'token_embd.weight'"),
                                          HasSubstr("fetch or convert it again")));
    }
    EXPECT_EQ(results[1].reason, FinishReason::length) << results[1].error;
    EXPECT_EQ(results[1].tokens, results_of(whole, {calm})[0].tokens);
  }
}

TEST(NotFinite, KeysOverTheLargestF16FailWithTheCure) {
  Engine narrow(options_for(reference::test_model("damaged-keys"), KvType::f16));
  const Result failed = results_of(narrow, {request_for(narrow, "full", 3)})[0];
  EXPECT_EQ(failed.reason, FinishReason::failed);
  EXPECT_THAT(failed.error, AllOf(HasSubstr("not finite"), HasSubstr("65504"), HasSubstr("--kv-type bf16")));
  Engine wide(options_for(reference::test_model("damaged-keys"), KvType::bf16));
  EXPECT_EQ(results_of(wide, {request_for(wide, "full", 3)})[0].reason, FinishReason::length);
}

TEST(NotFinite, ASequenceSaysSoAndGoesOnWithoutTheToken) {
  Engine engine(options_for(reference::test_model("damaged-embedding")));
  Engine whole(options_for(reference::test_model("undamaged")));
  std::vector<Token> tokens = random_tokens(40, engine.tokenizer().size(), 4);
  for (Token& token : tokens) token += token == kDamaged ? 1 : 0;
  Sequence sequence = engine.open(make(engine, "full")), calm = whole.open(make(whole, "full"));
  sequence.prefill(tokens);
  calm.prefill(tokens);
  EXPECT_THAT([&] { sequence.decode(kDamaged); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("behind token 40"), HasSubstr("not finite"))));
  EXPECT_EQ(sequence.length(), 40);
  EXPECT_TRUE(same_bits(sequence.decode(5), calm.decode(5)));
}

TEST(NotFinite, WhatIsThereBeforeItCanBeSavedAndLoaded) {
  EngineOptions options = options_for(reference::test_model("damaged-embedding"));
  options.prefill_chunk = 64;
  Engine engine(options);
  const plan::Plan plan = make(engine, "full");
  std::vector<Token> tokens = random_tokens(100, engine.tokenizer().size(), 4);
  for (Token& token : tokens) token += token == kDamaged ? 1 : 0;
  tokens[80] = kDamaged;
  Sequence sequence = engine.open(plan);
  EXPECT_THROW(sequence.prefill(tokens), UserError);
  ASSERT_EQ(sequence.length(), 64);
  const auto file = std::filesystem::path(testing::TempDir()) / "before_not_finite.session";
  sequence.save(file);
  EXPECT_EQ(engine.load(file, plan).length(), 64);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace glimpse::engine
