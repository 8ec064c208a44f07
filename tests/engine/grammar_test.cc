// Answers that obey a grammar: their text is one of its own, however they are decoded; lossless decoding gives dense
// decoding's under the same grammar.
#include "glimpse/text/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

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
  EXPECT_TRUE(result.at_fault);
  EXPECT_THAT(result.error, HasSubstr("grammar"));
  EXPECT_EQ(run(words("full", 1)).reason, FinishReason::stop) << "the engine goes on";
}

TEST_F(Grammars, AGrammarOfTheEmptyTextGivesAnEmptyAnswer) {
  for (const bool ignore_end : {false, true}) {
    for (const bool lossless : {false, true}) {
      Request request = words(lossless ? "quest" : "full", 1);
      request.grammar = wish("root ::= \"\" | x{0}\nx ::= \"a\"");
      request.ignore_end = ignore_end;
      request.lossless = lossless;
      request.min_tokens = ignore_end ? 0 : 3;
      const Result result = run(request);
      EXPECT_EQ(result.reason, FinishReason::stop) << result.error;
      EXPECT_TRUE(result.tokens.empty());
    }
  }
}

/// Each character may be of any of 12 repetitions that follow each other.
std::string costly() {
  std::string gbnf = "root ::= ";
  for (int i = 0; i < 12; ++i) gbnf += "(.{0,1500} | [^\\x00]{0,1500}) ";
  return gbnf + "\"~\"";
}

TEST_F(Grammars, OneThatCostsTooMuchEndsItsRequestAndNoOther) {
  Request hostile = words("full", 4);
  hostile.grammar = wish(costly().c_str());
  hostile.sampling = {.temperature = 50, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 1};
  const RequestId first = engine.submit(words("full", 5)), id = engine.submit(hostile),
                  last = engine.submit(words("full", 6));
  run_all(engine);
  EXPECT_EQ(engine.result(id).reason, FinishReason::failed);
  EXPECT_TRUE(engine.result(id).at_fault);
  EXPECT_THAT(engine.result(id).error, HasSubstr("simplify it"));
  for (const RequestId other : {first, last}) {
    EXPECT_TRUE(std::regex_match(text_of(engine.result(other)), kWordsPattern));
    EXPECT_FALSE(engine.result(other).at_fault);
  }
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

/// What tokens at random come to under the grammar: the same by the same seed, whoever else uses the grammar.
std::vector<Token> random_walk(const text::GrammarWish& wish, int vocabulary, std::uint32_t seed) {
  text::GrammarFollower at(wish);
  std::mt19937 random(seed);
  std::vector<Token> out;
  while (!at.must_end() && out.size() < 60) {
    const auto allowed = at.allowed();
    std::vector<Token> possible;
    for (Token token = 0; token < vocabulary; ++token) {
      if (allowed->has(token)) possible.push_back(token);
    }
    if (possible.empty()) break;
    out.push_back(possible[random() % possible.size()]);
    at.accept(out.back());
  }
  return out;
}

TEST(ManyThreads, ShareOneGrammar) {
  const Engine engine(options_for(reference::test_model("llama")));
  const auto texts = engine.tokenizer().token_texts();
  constexpr std::uint32_t kWalks = 4, kThreads = 4;
  const auto fresh = [&] { return text::GrammarWish{std::make_shared<const text::Grammar>(kWords, texts), {}, {}}; };
  std::vector<std::vector<Token>> alone;
  for (std::uint32_t seed = 0; seed < kWalks * kThreads; ++seed) {
    alone.push_back(random_walk(fresh(), engine.tokenizer().size(), seed));
  }
  const text::GrammarWish shared = fresh();
  std::vector<std::vector<Token>> together(alone.size());
  std::vector<std::thread> threads;
  for (std::uint32_t first = 0; first < kThreads; ++first) {
    threads.emplace_back([&, first] {
      for (std::uint32_t i = 0; i < kWalks; ++i) {
        const std::uint32_t seed = first + i * kThreads;
        together[seed] = random_walk(shared, engine.tokenizer().size(), seed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
}

}  // namespace
}  // namespace glimpse::engine
