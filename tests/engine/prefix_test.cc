// Kept prefixes: `exact` gives the bits of a request alone, whoever left the prefix behind; other levels take what they
// say; equal prompts in flight are prefilled once.
#include <gtest/gtest.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/engine/service.h"
#include "tests/engine/prefix_support.h"

namespace glimpse::engine {
namespace {

std::vector<Token> words(const Engine& engine, std::size_t count, std::uint32_t seed) {
  return random_tokens(count, engine.tokenizer().size(), seed);
}

/// Rows that a request alone would have computed in the very same passes.
std::int64_t exact_rows(const plan::Plan& plan, std::int64_t common, std::int64_t length) {
  std::int64_t chunk = kPrefixChunk;
  if (plan.prefill.sparse) {
    const std::int64_t tile = plan.prefill.tile_tokens(plan.shape.group());
    chunk = std::max<std::int64_t>(chunk / tile, 1) * tile;
  }
  if (plan.prefill.observe == plan::Observe::all) return 0;
  return std::min(common, length - std::max(1, plan.prefill.observe_rows)) / chunk * chunk;
}

class Prefix : public testing::TestWithParam<std::string> {};

TEST_P(Prefix, ThatIsTheWholePromptIsAllThereIs) {
  Engine plain(prefix_options(0)), engine(prefix_options(-1));
  const Request request = prefix_request(engine, GetParam(), words(engine, 430, 7));
  const Result expected = answered(plain, request), miss = answered(engine, request), hit = answered(engine, request);
  EXPECT_TRUE(same_answer(miss, expected));
  EXPECT_EQ(miss.stats.reused_tokens, 0);
  EXPECT_TRUE(same_answer(hit, expected));
  EXPECT_EQ(hit.stats.reused_tokens, 430);
  EXPECT_EQ(hit.stats.prefix_found, 430);
  EXPECT_EQ(hit.stats.prefilled_tokens, 0);
  EXPECT_EQ(hit.stats.attention.k_rows, expected.stats.attention.k_rows);
  EXPECT_EQ(hit.stats.attention.index_bytes, expected.stats.attention.index_bytes);
  expect_only_kept(engine);
}

TEST_P(Prefix, OfAnotherQuestionGivesTheBitsOfAMiss) {
  Engine plain(prefix_options(0)), engine(prefix_options(-1));
  const std::vector<Token> document = words(engine, 400, 7);
  answered(engine, prefix_request(engine, GetParam(), joined(document, words(engine, 30, 8))));
  for (const std::size_t more : {50, 130, 3}) {
    const std::uint32_t seed = 9 + static_cast<std::uint32_t>(more);
    const Request second = prefix_request(engine, GetParam(), joined(document, words(engine, more, seed)));
    const Result hit = answered(engine, second);
    EXPECT_TRUE(same_answer(hit, answered(plain, second))) << more;
    EXPECT_EQ(hit.stats.reused_tokens, exact_rows(second.plan, 400, 400 + static_cast<std::int64_t>(more))) << more;
    EXPECT_EQ(hit.stats.reused_tokens + hit.stats.prefilled_tokens, hit.stats.prompt_tokens);
  }
  expect_only_kept(engine);
}

TEST_P(Prefix, OfAnotherMethodGivesTheBitsOfAMiss) {
  Engine plain(prefix_options(0)), engine(prefix_options(-1));
  const std::vector<Token> document = words(engine, 400, 7);
  const Request first = prefix_request(engine, GetParam(), joined(document, words(engine, 30, 8)));
  answered(engine, first);
  for (const char* policy : {"full", "quest", "evosparse", "lychee-cluster", "kascade", "streaming", "shadowkv"}) {
    if (policy == GetParam()) continue;
    Engine other(prefix_options(-1));
    answered(other, first);
    const Request second = prefix_request(engine, policy, joined(document, words(engine, 50, 9)));
    const Result expected = answered(plain, second), hit = answered(other, second);
    EXPECT_TRUE(same_answer(hit, expected)) << policy;
    const bool shares = !first.plan.prefill.sparse && !second.plan.prefill.sparse;
    const bool observed = first.plan.prefill.observe == plan::Observe::all;
    EXPECT_EQ(hit.stats.reused_tokens, shares && !observed ? exact_rows(second.plan, 400, 450) : 0) << policy;
    // And back: what that one left, and what it went on from.
    const Result back = answered(other, prefix_request(engine, GetParam(), second.prompt));
    EXPECT_TRUE(same_answer(back, answered(plain, prefix_request(engine, GetParam(), second.prompt)))) << policy;
    expect_only_kept(other);
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, Prefix, testing::ValuesIn(policy_names()), [](const auto& row) {
  std::string name = row.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(PrefixLevels, AdmitWhatTheySay) {
  Engine engine(prefix_options(-1));
  const std::vector<Token> document = words(engine, 300, 7);
  const auto turn = [&](const char* policy, const Request& before, const Result& result, Reuse reuse) {
    std::vector<Token> prompt = joined(joined(before.prompt, result.tokens), words(engine, 90, 9));
    return prefix_request(engine, policy, std::move(prompt), reuse);
  };
  struct Case {
    const char* policy;
    bool lossless;
    std::int64_t correct;
    std::int64_t dense;  ///< rows: the last sampled token was never fed
  };
  for (const Case& each : {Case{"full", false, 0, 307}, Case{"quest", false, 0, 300}, Case{"quest", true, 0, 307},
                           Case{"quest", false, 3, 306}}) {
    Engine fresh(prefix_options(-1));
    Request first = prefix_request(fresh, each.policy, document, Reuse::dense);
    first.plan =
        make(fresh, each.policy, each.dense == 307 && !each.lossless ? policies::PolicyOptions{} : budget("48"));
    first.lossless = each.lossless;
    first.draft_tokens = each.lossless ? 3 : 0;
    first.correct_every = each.correct;
    const Result result = answered(fresh, first);
    ASSERT_EQ(result.tokens.size(), 8U);
    if (!each.lossless && each.correct == 0 && each.dense == 300) {
      EXPECT_GT(result.stats.attention.sparse_steps, 0);
    }
    EXPECT_EQ(answered(fresh, turn("full", first, result, Reuse::none)).stats.reused_tokens, 0);
    EXPECT_EQ(answered(fresh, turn("full", first, result, Reuse::none)).stats.prefix_queried, 0);
    EXPECT_EQ(answered(fresh, turn("full", first, result, Reuse::exact)).stats.reused_tokens, 256);
    Engine second(prefix_options(-1));
    const Result again = answered(second, first);
    EXPECT_EQ(answered(second, turn("full", first, again, Reuse::dense)).stats.reused_tokens, each.dense);
    Engine third(prefix_options(-1));
    answered(third, first);
    EXPECT_EQ(answered(third, turn("full", first, again, Reuse::any)).stats.reused_tokens, 307);
    expect_only_kept(third);
  }
}

TEST(PrefixLevels, WhatNobodyMayReuseIsNotKept) {
  Engine engine(prefix_options(-1));
  const Request request = prefix_request(engine, "full", words(engine, 200, 3), Reuse::none);
  answered(engine, request);
  EXPECT_EQ(engine.stats().prefixes, 0);
  Request logprobs = request;
  logprobs.reuse = Reuse::exact;
  answered(engine, logprobs);
  EXPECT_GT(engine.stats().prefixes, 0);
  logprobs.prompt_logprobs = 1;
  EXPECT_EQ(answered(engine, logprobs).stats.reused_tokens, 0) << "they come out of a prefill";
  EXPECT_THROW(Engine{prefix_options(-2)}, UserError);
}

TEST(PrefixSalt, KeepsRequestsApart) {
  Engine engine(prefix_options(-1));
  Request request = prefix_request(engine, "quest", words(engine, 200, 3), Reuse::dense);
  for (const std::int64_t expected : {0, 200}) {
    for (const char* salt : {"", "a", "b"}) {
      request.cache_salt = salt;
      EXPECT_EQ(answered(engine, request).stats.reused_tokens, expected) << salt;
    }
  }
}

/// Prompts of so many tokens behind one document, each with its question.
std::vector<Request> questions(const Engine& engine, const char* policy, Reuse reuse, std::size_t count) {
  std::vector<Request> all;
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<Token> question = words(engine, 20 + i, static_cast<std::uint32_t>(40 + i));
    all.push_back(prefix_request(engine, policy, joined(words(engine, 320, 7), question), reuse));
  }
  return all;
}

TEST(PrefixInFlight, IsPrefilledOnce) {
  Engine engine(prefix_options(-1));
  const std::vector<Request> requests = questions(engine, "quest", Reuse::dense, 4);
  std::vector<RequestId> ids;
  for (const Request& request : requests) ids.push_back(engine.submit(request));
  run_all(engine);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Result& result = engine.result(ids[i]);
    EXPECT_EQ(result.reason, FinishReason::length) << result.error;
    EXPECT_EQ(result.stats.reused_tokens, i == 0 ? 0 : 320);
    engine.release(ids[i]);
  }
  expect_only_kept(engine);
}

TEST(PrefixInFlight, OfOnePromptAndAMethodThatObservesIt) {
  Engine plain(prefix_options(0)), engine(prefix_options(-1));
  const Request request = prefix_request(engine, "h2o", words(engine, 330, 7));
  const Result expected = answered(plain, request);
  const RequestId first = engine.submit(request), second = engine.submit(request);
  run_all(engine);
  EXPECT_EQ(engine.result(second).stats.reused_tokens, 330);
  EXPECT_EQ(engine.result(first).tokens, expected.tokens);
  EXPECT_EQ(engine.result(second).tokens, expected.tokens);
}

TEST(PrefixInFlight, GoesOnAloneWhenTheOtherIsCancelled) {
  for (const char* policy : {"full", "streaming", "kascade"}) {
    for (const int steps : {0, 1, 3}) {
      Engine plain(prefix_options(0)), engine(prefix_options(-1));
      const std::vector<Request> requests = questions(engine, policy, Reuse::exact, 3);
      std::vector<RequestId> ids;
      for (const Request& request : requests) ids.push_back(engine.submit(request));
      for (int i = 0; i < steps; ++i) engine.step();
      engine.cancel(ids[0]);
      run_all(engine);
      EXPECT_EQ(engine.result(ids[0]).reason, FinishReason::cancelled);
      for (const std::size_t i : {1, 2}) {
        EXPECT_EQ(engine.result(ids[i]).reason, FinishReason::length) << engine.result(ids[i]).error;
        EXPECT_EQ(engine.result(ids[i]).tokens, answered(plain, requests[i]).tokens) << policy << " " << steps;
      }
      for (const RequestId id : ids) engine.release(id);
      expect_only_kept(engine);
    }
  }
}

TEST(PrefixInFlight, ThatFailsLeavesTheOthersAlone) {
  Engine engine(prefix_options(-1));
  std::vector<Request> requests = questions(engine, "full", Reuse::dense, 2);
  requests[0].on_prefill = [](std::int64_t done, std::int64_t) {
    if (done >= 128) throw UserError("a callback's own");
  };
  const RequestId first = engine.submit(requests[0]), second = engine.submit(requests[1]);
  run_all(engine);
  EXPECT_EQ(engine.result(first).reason, FinishReason::failed);
  EXPECT_EQ(engine.result(second).reason, FinishReason::length) << engine.result(second).error;
  EXPECT_EQ(engine.result(second).stats.prefilled_tokens + engine.result(second).stats.reused_tokens, 341);
}

// A chunk that ran beside a row of another request may have other bits; one in slices runs alone.
TEST(PrefixBesideOthers, IsExactWhereItsChunksRanAlone) {
  for (const double seconds : {0.0, 1e-9}) {
    EngineOptions options = prefix_options(-1);
    options.slice_seconds = seconds;
    Engine plain(prefix_options(0)), engine(options);
    Request stream = prefix_request(engine, "full", words(engine, 40, 2));
    stream.max_tokens = 200;
    const RequestId id = engine.submit(stream);
    while (engine.result(id).tokens.empty()) engine.step();
    const std::vector<Request> requests = questions(engine, "quest", Reuse::exact, 2);
    const RequestId first = engine.submit(requests[0]);
    while (!engine.finished(first)) engine.step();
    ASSERT_FALSE(engine.finished(id));
    engine.cancel(id);
    const Result second = answered(engine, requests[1]);
    EXPECT_EQ(second.stats.reused_tokens, seconds > 0 ? 320 : 0);
    EXPECT_TRUE(same_answer(second, answered(plain, requests[1])));
  }
}

TEST(PrefixTogether, ServesAllAnswersToAPrompt) {
  Engine engine(prefix_options(-1)), plain(prefix_options(0));
  std::vector<Request> requests = questions(engine, "quest", Reuse::exact, 2);
  answered(engine, requests[0]);
  const std::vector<RequestId> ids = engine.submit_together({requests[1], requests[1], requests[1]});
  run_all(engine);
  EXPECT_EQ(engine.result(ids[0]).stats.prefix_found, 320);
  const Result expected = answered(plain, requests[1]);
  for (const RequestId id : ids) EXPECT_EQ(engine.result(id).tokens, expected.tokens);
}

// A prefix that a request reads is in use: it would not give way.
TEST(PrefixPages, ThatARequestReadsAreInUse) {
  Engine engine(prefix_options(-1));
  Request request = prefix_request(engine, "full", words(engine, 256, 5));
  request.max_tokens = 40;
  const auto used = [&] {
    const EngineStats stats = engine.stats();
    return stats.pages_total - stats.pages_free - stats.pages_kept;
  };
  const std::int64_t prompt = 256 / 16 * engine.shape().layers * engine.shape().kv_heads;
  for (int round = 0; round < 2; ++round) {
    const RequestId id = engine.submit(request);
    while (engine.result(id).tokens.size() < 3) engine.step();
    EXPECT_GT(engine.stats().prefixes, 0);
    EXPECT_GE(used(), prompt);
    EXPECT_LE(used(), 2 * prompt);
    run_all(engine);
    engine.release(id);
    EXPECT_EQ(used(), 0);
  }
}

/// Whoever reads the rows, and whatever its plan: digests of their blocks are there.
TEST(PrefixPages, BringTheDigestsOfTheirBlocks) {
  Engine plain(prefix_options(0)), engine(prefix_options(-1));
  const std::vector<Token> document = words(engine, 400, 7);
  std::int64_t before = 0;
  const auto made_by = [&](const std::string& policy, const char* tokens, std::uint32_t question) {
    Request request = prefix_request(engine, policy, joined(document, words(engine, 50, question)));
    if (policy != "full") request.plan = make(engine, policy, budget(tokens));
    EXPECT_TRUE(same_answer(answered(engine, request), answered(plain, request))) << policy << " " << question;
    const std::int64_t made = engine.stats().digests_made - before;
    before += made;
    return made;
  };
  // 457 tokens are read before the last one is chosen. 384 are those of the kept prefix.
  const std::int64_t heads = made_by("quest", "160", 8) / (457 / 16);
  EXPECT_GT(heads, 0);
  EXPECT_EQ(before, heads * (457 / 16));
  EXPECT_EQ(made_by("quest", "100", 9), heads * (457 / 16 - 384 / 16)) << "another plan";
  EXPECT_EQ(made_by("full", "", 10), 0);
  EXPECT_EQ(made_by("quest", "160", 10), heads * (457 / 16 - 384 / 16)) << "rows that no index took in";
  EXPECT_EQ(made_by("arkvale", "160", 11), heads * (457 / 32)) << "other digests";
  EXPECT_EQ(made_by("arkvale", "128", 12), heads * (457 / 32 - 384 / 32));
  expect_only_kept(engine);
}

TEST(PrefixService, CountsWhatItFinds) {
  Engine engine(prefix_options(-1));
  Service service(engine);
  Request request = prefix_request(engine, "full", words(engine, 200, 5), Reuse::dense);
  request.max_tokens = 1;
  for (int i = 0; i < 2; ++i) {
    Stream stream = service.submit(request);
    while (stream.next()) {
    }
  }
  const ServiceMetrics metrics = service.metrics();
  EXPECT_EQ(metrics.prefix_queried, 400);
  EXPECT_EQ(metrics.prefix_found, 200);
  EXPECT_EQ(metrics.failed_passes, 0);
  EXPECT_EQ(metrics.pages_used, 0) << "kept prefixes use none";
}

}  // namespace
}  // namespace glimpse::engine
