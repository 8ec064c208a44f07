// Answers that obey a grammar: their text is one of its own, however they are decoded; lossless decoding gives dense
// decoding's under the same grammar.
#include "glimpse/text/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <regex>

#include "tests/engine/support.h"
#include "tests/support/refusal.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;

// Words of three to five letters between commas, three of them, then a full stop.
constexpr const char* kWords = "root ::= word (\",\" word){2} \".\"\nword ::= [a-z]{3,5}\n";
const std::regex kWordsPattern("[a-z]{3,5},[a-z]{3,5},[a-z]{3,5}\\.");

class Grammars : public ::testing::Test {
 protected:
  Engine engine{options_for(reference::test_model("llama"))};

  text::GrammarWish wish(const char* gbnf) const {
    return {std::make_shared<const text::Grammar>(gbnf, engine.tokenizer().token_texts()), {}, {}};
  }
  Request words(const std::string& policy, std::uint32_t seed) const {
    Request request = request_for(engine, 300, policy, seed);
    request.max_tokens = 200;
    request.ignore_end = false;
    request.grammar = wish(kWords);
    return request;
  }
  Result run(const Request& request) {
    const RequestId id = engine.submit(request);
    run_all(engine);
    return engine.result(id);
  }
  std::string text_of(const Result& result) const {
    std::string text;
    for (const Token token : result.tokens) text += engine.tokenizer().piece(token);
    return text;
  }
};

TEST_F(Grammars, AnAnswerEndsWhereItsGrammarDoes) {
  for (const bool ignore_end : {false, true}) {
    for (std::uint32_t seed = 0; seed < 6; ++seed) {
      Request request = words("full", seed);
      request.ignore_end = ignore_end;
      request.min_tokens = seed == 5 ? 150 : 0;
      if (seed > 1) request.sampling = {.temperature = 50, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed};
      const Result result = run(request);
      EXPECT_TRUE(std::regex_match(text_of(result), kWordsPattern)) << text_of(result);
      EXPECT_EQ(result.reason, FinishReason::stop) << "nothing may follow, whatever min_tokens says";
    }
  }
}

TEST_F(Grammars, ATextThatMayEndEndsByTheModelsOwnToken) {
  Request request = words("full", 3);
  request.grammar = wish("root ::= [a-z]+");
  request.sampling.logit_bias = {{engine.tokenizer().eos(), 1000}};
  const Result result = run(request);
  EXPECT_EQ(result.tokens.size(), 1u) << "one letter at least, and the end is the likeliest";
  EXPECT_EQ(result.reason, FinishReason::end_of_text);
}

TEST_F(Grammars, LosslessIsDenseUnderTheSameGrammar) {
  for (const char* policy : {"tidal", "quest"}) {
    for (const int drafts : {0, 1, 3, 4}) {
      Request request = words(policy, 11);
      request.lossless = true;
      request.draft_tokens = drafts;
      const Result got = run(request);
      const Result dense = run(words("full", 11));
      EXPECT_EQ(got.tokens, dense.tokens) << policy << " " << drafts;
      EXPECT_EQ(got.reason, FinishReason::stop);
      EXPECT_TRUE(drafts == 0 || got.stats.lossless.verify_passes > 0);
    }
  }
}

TEST_F(Grammars, VerifiedTokensObeyWhenDrawnToo) {
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    Request request = words("quest", seed);
    request.lossless = true;
    request.draft_tokens = 1 + static_cast<int>(seed) % 5;
    request.ignore_end = seed % 2 == 0;
    request.sampling = {.temperature = 50, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed};
    const Result result = run(request);
    EXPECT_TRUE(std::regex_match(text_of(result), kWordsPattern)) << text_of(result);
    EXPECT_EQ(result.reason, FinishReason::stop);
  }
}

TEST_F(Grammars, EachOfSeveralRequestsHasItsOwnPlace) {
  const text::GrammarWish shared = wish(kWords);
  std::vector<RequestId> ids;
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    Request request = words("full", 5);
    request.grammar = shared;
    request.sampling = {.temperature = 50, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed};
    ids.push_back(engine.submit(request));
  }
  run_all(engine);
  for (const RequestId id : ids) EXPECT_TRUE(std::regex_match(text_of(engine.result(id)), kWordsPattern));
  EXPECT_NE(engine.result(ids[0]).tokens, engine.result(ids[1]).tokens);
}

TEST_F(Grammars, WhatNoTokenCanWriteEndsTheRequestAlone) {
  Request request = words("full", 1);
  request.grammar = wish("root ::= \"q\"");
  for (Token token = 0; token < engine.tokenizer().size(); ++token) {
    if (engine.tokenizer().piece(token) != "q") continue;
    request.sampling.logit_bias.push_back({token, -std::numeric_limits<float>::infinity()});
  }
  const Result result = run(request);
  EXPECT_EQ(result.reason, FinishReason::failed);
  EXPECT_THAT(result.error, HasSubstr("grammar"));
  EXPECT_EQ(run(words("full", 1)).reason, FinishReason::stop) << "the engine goes on";
}

TEST_F(Grammars, AGrammarThatThePromptBreaksIsRefused) {
  Request request = words("full", 1);
  request.grammar.said = "1";
  EXPECT_THAT(refusal([&] { engine.submit(request); }), HasSubstr("prompt ends with"));
}

TEST_F(Grammars, WaitingForATriggerBindsBehindIt) {
  Request request = words("full", 2);
  request.sampling = {.temperature = 50, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 9};
  request.grammar = wish("root ::= \"e\" [0-9]{4}");
  request.grammar.triggers = {"e"};
  const std::string text = text_of(run(request));
  // A token that holds more than the trigger, and breaks the grammar with it, frees the answer.
  const std::size_t at = text.find('e');
  ASSERT_NE(at, std::string::npos);
  std::string token;
  for (std::size_t seen = 0; const Token each : run(request).tokens) {
    const std::string piece = engine.tokenizer().piece(each);
    if (seen + piece.size() > at) {
      token = piece.substr(at - seen);
      break;
    }
    seen += piece.size();
  }
  EXPECT_TRUE(token != "e" || std::regex_match(text.substr(at), std::regex("e[0-9]{4}"))) << text;
}

}  // namespace
}  // namespace glimpse::engine
