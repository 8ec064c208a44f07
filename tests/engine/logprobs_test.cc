// Log-probabilities of answers and prompts: against libllama's logits, and against a Sequence's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "glimpse/base/error.h"
#include "glimpse/engine/service.h"
#include "tests/engine/support.h"
#include "tests/support/llama_reference.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using text::TokenLogprobs;

double logprob(std::span<const float> logits, Token token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return static_cast<double>(logits[static_cast<std::size_t>(token)]) - largest - std::log(sum);
}

/// `logits` [tokens, vocabulary], each row that of a token: they tell of the next one.
void expect_prompt(const std::vector<TokenLogprobs>& got, std::span<const Token> prompt, std::span<const float> logits,
                   double near) {
  const std::size_t width = logits.size() / prompt.size();
  ASSERT_EQ(got.size(), prompt.size() - 1);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto row = logits.subspan(i * width, width);
    ASSERT_EQ(got[i].token, prompt[i + 1]);
    ASSERT_NEAR(got[i].logprob, logprob(row, got[i].token), near) << i;
    ASSERT_EQ(got[i].top.size(), 3u);
    for (std::size_t j = 0; j < 3; ++j) {
      ASSERT_NEAR(got[i].top[j].logprob, logprob(row, got[i].top[j].token), near) << i;
      if (j > 0) {
        ASSERT_LE(got[i].top[j].logprob, got[i].top[j - 1].logprob);
      }
    }
    ASSERT_NEAR(got[i].top[0].logprob, logprob(row, got[i].top[0].token), near);
    const auto best = static_cast<Token>(std::max_element(row.begin(), row.end()) - row.begin());
    ASSERT_NEAR(got[i].top[0].logprob, logprob(row, best), near) << i;
  }
}

void expect_near(const std::vector<TokenLogprobs>& a, const std::vector<TokenLogprobs>& b, float near) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].token, b[i].token) << i;
    ASSERT_NEAR(a[i].logprob, b[i].logprob, near) << i;
  }
}

Request asking(const Engine& engine, std::size_t length, const std::string& policy, std::uint32_t seed) {
  Request request = request_for(engine, length, policy, seed);
  request.logprobs = 2;
  request.prompt_logprobs = 3;
  return request;
}

/// What `glimpse eval logits` writes.
std::vector<float> prefilled(Engine& engine, const plan::Plan& plan, std::span<const Token> prompt) {
  Sequence sequence = engine.open(plan);
  std::vector<float> all;
  sequence.prefill(prompt,
                   [&](std::int64_t, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); });
  return all;
}

TEST(PromptLogprobs, AreLibllamas) {
  for (const char* model : {"llama", "qwen2", "qwen3"}) {
    Engine engine(options_for(reference::test_model(model)));
    const Request request = asking(engine, 150, "full", 3);
    reference::LlamaReference llama(reference::test_model(model), {.context = 256, .threads = 1, .exact = true});
    std::vector<float> logits(request.prompt.size() * static_cast<std::size_t>(llama.vocabulary()));
    llama.append(request.prompt, &logits);
    expect_prompt(answered(engine, request).prompt_logprobs, request.prompt, logits, 2e-2);
  }
}

TEST(PromptLogprobs, AreThoseOfEvalLogitsForAnyChunkMethodAndThreads) {
  for (const char* policy : {"full", "tidal", "streaming", "h2o", "quest"}) {
    for (const int chunk : {1, 7, 64, 130, 512}) {
      if (kSanitized && chunk != 7 && chunk != 130) continue;
      SCOPED_TRACE(policy + std::to_string(chunk));
      EngineOptions options = options_for(reference::test_model("llama"), KvType::f32, 1 + chunk % 2);
      options.prefill_chunk = chunk;
      Engine engine(options);
      const int length = chunk == 1 ? 70 : 260;  // a pass for each token takes long
      const Request request = asking(engine, static_cast<std::size_t>(length), policy, 5);
      const Result result = answered(engine, request);
      EXPECT_EQ(result.stats.prefilled_tokens, length);
      expect_prompt(result.prompt_logprobs, request.prompt, prefilled(engine, request.plan, request.prompt), 1e-4);
    }
  }
}

TEST(PromptLogprobs, OfAQuantisedModel) {
  EngineOptions options = options_for(reference::test_model("llama256-q4_K"), KvType::bf16);
  options.prefill_chunk = 100;
  Engine engine(options);
  const Request request = asking(engine, 260, "full", 5);
  expect_prompt(answered(engine, request).prompt_logprobs, request.prompt,
                prefilled(engine, request.plan, request.prompt), 1e-4);
}

TEST(PromptLogprobs, ChangeNoBitOfAnyAnswer) {
  for (const int chunk : {90, 512}) {
    EngineOptions options = options_for(reference::test_model("llama"));
    options.prefill_chunk = chunk;
    std::vector<std::vector<Result>> runs;
    for (const bool asks : {false, true}) {
      Engine engine(options);
      std::vector<Request> requests{asking(engine, 300, "tidal", 1), asking(engine, 200, "full", 2),
                                    asking(engine, 1, "full", 3)};
      requests[0].lossless = true;
      std::vector<RequestId> ids;
      for (Request& request : requests) {
        if (!asks) request.prompt_logprobs.reset();
        ids.push_back(engine.submit(request));
        engine.step();
      }
      run_all(engine);
      runs.emplace_back();
      for (const RequestId id : ids) runs.back().push_back(engine.result(id));
    }
    for (std::size_t i = 0; i < 3; ++i) {
      const Result &plain = runs[0][i], &asked = runs[1][i];
      EXPECT_TRUE(plain.prompt_logprobs.empty());
      EXPECT_EQ(asked.prompt_logprobs.size(), i == 0 ? 299u : i == 1 ? 199u : 0u);
      EXPECT_EQ(plain.tokens, asked.tokens);
      ASSERT_EQ(plain.logprobs.size(), 12u);
      for (std::size_t token = 0; token < 12; ++token) {
        EXPECT_EQ(plain.logprobs[token].logprob, asked.logprobs[token].logprob) << "bit for bit";
      }
    }
  }
}

TEST(PromptLogprobs, OfABatchAndOfNoAnswer) {
  EngineOptions options = options_for(reference::test_model("llama"));
  options.prefill_chunk = 100;
  options.step_tokens = 300;
  Engine engine(options);
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (std::uint32_t i = 0; i < 4; ++i) {
    requests.push_back(asking(engine, 120 + 60 * i, i % 2 == 0 ? "full" : "quest", i));
    if (i == 1) requests.back().prompt_logprobs.reset();
    requests.back().max_tokens = i == 2 ? 0 : 12;
    ids.push_back(engine.submit(requests.back()));
  }
  run_all(engine);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Engine other(options);
    expect_near(engine.result(ids[i]).prompt_logprobs, answered(other, requests[i]).prompt_logprobs, 1e-4F);
    EXPECT_EQ(engine.result(ids[i]).logprobs.size(), i == 2 ? 0u : 12u);
  }
}

TEST(PromptLogprobs, NothingIsReusedForThem) {
  const auto file = std::filesystem::temp_directory_path() / ("logprobs" + std::to_string(::getpid()));
  Engine engine(options_for(reference::test_model("llama")));
  Request request = asking(engine, 200, "full", 8);
  const std::vector<TokenLogprobs> wanted = answered(engine, request).prompt_logprobs;
  request.session = file;
  for (int round = 0; round < 2; ++round) {
    const Result result = answered(engine, request);
    EXPECT_EQ(result.stats.reused_tokens, 0);
    EXPECT_EQ(result.stats.session->saved_tokens, round == 0 ? 200 : 0);
    expect_near(result.prompt_logprobs, wanted, 0);
  }
  Request plain = request;
  plain.prompt_logprobs.reset();
  EXPECT_EQ(answered(engine, plain).stats.reused_tokens, 200) << "of the session that the first one saved";
  std::filesystem::remove(file);
  request.session.reset();
  Sequence held = engine.open(request.plan);
  held.prefill(std::span(request.prompt).first(150));
  const RequestId id = engine.submit(request, std::move(held));
  run_all(engine);
  EXPECT_EQ(engine.result(id).stats.reused_tokens, 0);
  EXPECT_EQ(held.length(), 150) << "it stays";
  expect_near(engine.result(id).prompt_logprobs, wanted, 0);
}

TEST(Logprobs, OfAnAnswerAreTheModelsOwn) {
  Engine engine(options_for(reference::test_model("llama")));
  for (const char* policy : {"full", "tidal", "lossless"}) {
    const bool lossless = policy == std::string("lossless");
    for (const float temperature : {0.0F, 1.3F}) {
      SCOPED_TRACE(policy);
      Request request = asking(engine, 200, lossless ? "tidal" : policy, 4);
      request.prompt_logprobs.reset();
      request.lossless = lossless;
      request.draft_tokens = lossless ? 3 : 0;
      request.sampling.temperature = temperature;
      request.sampling.logit_bias = {{5, 3}};
      request.sampling.repeat_penalty = 1.5F;
      const Result result = answered(engine, request);
      ASSERT_EQ(result.logprobs.size(), result.tokens.size());
      Sequence sequence = engine.open(lossless ? make(engine, "full") : request.plan);
      std::span<const float> logits = sequence.prefill(request.prompt);
      for (std::size_t i = 0; i < result.tokens.size(); ++i) {
        const TokenLogprobs& got = result.logprobs[i];
        EXPECT_EQ(got.token, result.tokens[i]);
        EXPECT_NEAR(got.logprob, logprob(logits, got.token), 1e-5);
        const auto best = static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
        ASSERT_EQ(got.top.size(), 2u);
        EXPECT_EQ(got.top[0].token, best);
        logits = sequence.decode(result.tokens[i]);
      }
    }
  }
}

TEST(Logprobs, TheTokenThatEndsTheTextHasOne) {
  Engine engine(options_for(reference::test_model("llama")));
  Request request = asking(engine, 50, "full", 4);
  Token end = 0;
  while (!engine.tokenizer().ends_generation(end)) ++end;
  request.ignore_end = false;
  request.sampling.logit_bias = {{end, 1000}};
  request.min_tokens = 3;
  const Result result = answered(engine, request);
  EXPECT_EQ(result.reason, FinishReason::end_of_text);
  EXPECT_EQ(result.tokens.size(), 3u);
  ASSERT_EQ(result.logprobs.size(), 4u);
  EXPECT_EQ(result.logprobs.back().token, end);
}

TEST(Logprobs, StreamsGiveThemWithTheirTokens) {
  Engine engine(options_for(reference::test_model("llama")));
  Request request = asking(engine, 90, "tidal", 4);
  const std::vector<Token> whole = alone(request);
  // Held back from the first of these tokens on, then handed out together.
  request.stop = {engine.tokenizer().piece(whole[3]) + engine.tokenizer().piece(whole[4]) + "not this"};
  const Result wanted = answered(engine, request);
  Service service(engine);
  Stream stream = service.submit(request);
  std::size_t at = 0;
  while (const std::optional<StreamEvent> event = stream.next()) {
    for (const StreamToken& token : event->tokens) {
      ASSERT_TRUE(token.logprobs);
      EXPECT_EQ(token.logprobs->token, token.token);
      EXPECT_EQ(token.logprobs->logprob, wanted.logprobs.at(at).logprob);
      EXPECT_EQ(token.logprobs->top.size(), 2u);
      ++at;
    }
    if (event->kind == StreamEvent::Kind::finished) {
      EXPECT_EQ(event->result.prompt_logprobs.size(), 89u);
    }
  }
  EXPECT_EQ(at, 12u);
  request.logprobs.reset();
  Stream plain = service.submit(request);
  while (const std::optional<StreamEvent> event = plain.next()) {
    for (const StreamToken& token : event->tokens) EXPECT_FALSE(token.logprobs);
  }
}

TEST(Logprobs, RefusesMoreThanThereMayBe) {
  Engine engine(options_for(reference::test_model("llama")));
  for (const int top : {-1, text::kMostLogprobs + 1}) {
    Request request = asking(engine, 20, "full", 1);
    request.logprobs = top;
    EXPECT_THAT([&] { engine.submit(request); }, ::testing::ThrowsMessage<UserError>(HasSubstr("give 0 to 20")));
    request.logprobs.reset();
    request.prompt_logprobs = top;
    EXPECT_THAT([&] { engine.submit(request); }, ::testing::ThrowsMessage<UserError>(HasSubstr("give 0 to 20")));
  }
}

}  // namespace
}  // namespace glimpse::engine
