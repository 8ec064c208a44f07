// Passes that fail: what the caller is told, whose sequences break, and who goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <new>
#include <stdexcept>

#include "glimpse/base/error.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<float> copy(std::span<const float> values) {
  return {values.begin(), values.end()};
}

TEST(Failures, AWatcherThatThrowsEndsItsRequestAlone) {
  Engine engine(options_for(reference::test_model("llama")));
  Request watched = request_for(engine, 200, "tidal", 1);
  int seen = 0;
  watched.on_sets = [&](const SetTrace&) {
    if (++seen == 30) throw std::runtime_error("the watcher fell asleep");
  };
  const Request other = request_for(engine, 230, "quest", 2);
  const RequestId fails = engine.submit(watched);
  const RequestId goes_on = engine.submit(other);
  while (engine.step()) {
  }
  EXPECT_EQ(engine.result(fails).reason, FinishReason::failed);
  EXPECT_EQ(engine.result(fails).error, "the watcher fell asleep");
  EXPECT_EQ(engine.result(goes_on).reason, FinishReason::length);
  EXPECT_EQ(engine.result(goes_on).tokens, alone(other));
}

TEST(Failures, MemoryThatIsShortEndsARequestInWords) {
  Engine engine(options_for(reference::test_model("llama")));
  Request watched = request_for(engine, 200, "tidal", 1);
  watched.on_sets = [](const SetTrace&) { throw std::bad_alloc(); };
  const RequestId id = engine.submit(watched);
  while (engine.step()) {
  }
  EXPECT_EQ(engine.result(id).reason, FinishReason::failed);
  EXPECT_THAT(engine.result(id).error, HasSubstr("out of memory; a shorter context"));
}

TEST(Failures, ASequenceThatKeepsNothingGoesOnAndOthersAreBroken) {
  Engine engine(options_for(reference::test_model("llama")));
  const std::vector<Token> tokens = random_tokens(210, engine.tokenizer().size(), 3);
  for (const char* policy : {"tidal", "quest", "h2o", "evosparse", "streaming"}) {
    const plan::Plan plan = make(engine, policy, budget("64"));
    Sequence sequence = engine.open(plan);
    Sequence calm = engine.open(plan);
    for (Sequence* each : {&sequence, &calm}) each->prefill(std::span(tokens).first(200));
    sequence.on_sets([](const SetTrace& sets) {
      if (sets.layer == 2) throw std::runtime_error("no more");
    });
    EXPECT_THAT([&] { sequence.decode(tokens[200]); }, ThrowsMessage<std::runtime_error>(HasSubstr("no more")));
    sequence.on_sets({});
    EXPECT_EQ(sequence.length(), 200);
    if (std::string(policy) == "tidal") {
      for (std::size_t i = 201; i < 206; ++i) {
        EXPECT_EQ(copy(sequence.decode(tokens[i])), copy(calm.decode(tokens[i]))) << i;
      }
      continue;
    }
    const auto says = ThrowsMessage<UserError>(HasSubstr("no more"));
    EXPECT_THAT([&] { sequence.decode(tokens[201]); }, says) << policy;
    EXPECT_THAT([&] { sequence.prefill(tokens); }, says);
    EXPECT_THAT([&] { sequence.fork(plan); }, says);
    calm.decode(tokens[201]);
  }
}

TEST(Failures, AFullCacheChangesNothingAndStepsAgain) {
  EngineOptions options = options_for(reference::test_model("llama"));
  options.context = 1024;
  options.sequences = 1;
  options.prefill_chunk = 128;
  Engine engine(options);
  std::optional<Sequence> hog(engine.open(make(engine, "full")));
  hog->prefill(random_tokens(500, engine.tokenizer().size(), 4));
  const Request request = request_for(engine, 900, "tidal", 5);
  const RequestId id = engine.submit(request);
  int failed = 0;
  while (!engine.finished(id)) {
    try {
      engine.step();
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the KV cache is full"));
      if (++failed == 3) hog.reset();
      ASSERT_LT(failed, 5);
    }
  }
  EXPECT_EQ(failed, 3);
  EXPECT_EQ(engine.result(id).reason, FinishReason::length);
  EngineOptions roomy = options;
  roomy.sequences = 3;
  Engine fresh(roomy);
  const RequestId same = fresh.submit(request);
  while (fresh.step()) {
  }
  EXPECT_EQ(engine.result(id).tokens, fresh.result(same).tokens);
}

TEST(Failures, AFullTierEndsItsRequestAlone) {
  EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16);
  Engine engine(options);
  Request tiered = request_for(engine, 400, "full", 6);
  tiered.plan = make(engine, "arkvale", budget("64", {{"resident", "64"}}));
  rlimit was{};
  getrlimit(RLIMIT_FSIZE, &was);
  const Request other = request_for(engine, 300, "full", 7);
  const RequestId fails = engine.submit(tiered);
  const RequestId goes_on = engine.submit(other);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit none{0, was.rlim_max};
  setrlimit(RLIMIT_FSIZE, &none);  // the disk is full
  try {
    while (engine.step()) {
    }
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  setrlimit(RLIMIT_FSIZE, &was);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(engine.result(fails).reason, FinishReason::failed);
  EXPECT_THAT(engine.result(fails).error, HasSubstr("cannot keep"));
  EXPECT_EQ(engine.result(goes_on).reason, FinishReason::length);
  EXPECT_EQ(engine.result(goes_on).tokens.size(), 12u);
}

TEST(Failures, ARequestThatCannotBeMadeFailsInSubmit) {
  Engine engine(options_for(reference::test_model("llama")));
  Request request = request_for(engine, 100, "full", 8);
  request.plan = make(engine, "lychee-cluster", budget("64"));
  for (plan::Selector& selector : request.plan.selectors) selector.local = 8;
  EXPECT_THAT([&] { engine.submit(request); }, ThrowsMessage<UserError>(HasSubstr("local = 8")));
  EXPECT_FALSE(engine.step());
}

TEST(Failures, CancellingOnTheLastChunkOrFromOnSetsEndsTheRequest) {
  Engine engine(options_for(reference::test_model("llama")));
  RequestId id = 0;
  Request request = request_for(engine, 100, "tidal", 9);
  request.on_prefill = [&](std::int64_t done, std::int64_t total) {
    if (done == total) engine.cancel(id);
  };
  id = engine.submit(request);
  while (engine.step()) {
  }
  EXPECT_EQ(engine.result(id).reason, FinishReason::cancelled);
  EXPECT_TRUE(engine.result(id).tokens.empty());

  request = request_for(engine, 100, "tidal", 9);
  request.on_sets = [&](const SetTrace&) { engine.cancel(id); };
  id = engine.submit(request);
  while (engine.step()) {
  }
  EXPECT_EQ(engine.result(id).reason, FinishReason::cancelled);
  EXPECT_EQ(engine.result(id).tokens.size(), 1u);
}

TEST(Failures, CallbacksThatWouldPullTheGroundAwayAreRefused) {
  Engine engine(options_for(reference::test_model("llama")));
  RequestId id = 0;
  Request request = request_for(engine, 50, "full", 10);
  int refused = 0;
  request.on_token = [&](Token, std::string_view) {
    try {
      engine.step();
    } catch (const UserError&) {
      ++refused;
    }
    try {
      engine.release(id);
    } catch (const UserError&) {
      ++refused;
    }
  };
  id = engine.submit(request);
  while (engine.step()) {
  }
  EXPECT_EQ(refused, 24);
  EXPECT_EQ(engine.result(id).reason, FinishReason::length);
}

TEST(Failures, ABadTokenLeavesTheSequenceAlone) {
  Engine engine(options_for(reference::test_model("llama")));
  const std::vector<Token> tokens = random_tokens(60, engine.tokenizer().size(), 11);
  Sequence sequence = engine.open(make(engine, "lychee-cluster", budget("64")));
  Sequence calm = engine.open(make(engine, "lychee-cluster", budget("64")));
  for (Sequence* each : {&sequence, &calm}) each->prefill(std::span(tokens).first(50));
  const Token size = engine.tokenizer().size();
  EXPECT_THROW(sequence.decode(-1), UserError);
  EXPECT_THROW(sequence.decode(size), UserError);
  EXPECT_THROW(sequence.prefill(std::vector<Token>{1, size}), UserError);
  for (std::size_t i = 50; i < 60; ++i) EXPECT_EQ(copy(sequence.decode(tokens[i])), copy(calm.decode(tokens[i])));
}

TEST(Failures, AForkThatNeedsForgottenTokensIsRefused) {
  Engine engine(options_for(reference::test_model("llama")));
  const std::vector<Token> tokens = random_tokens(320, engine.tokenizer().size(), 12);
  Sequence source = engine.open(make(engine, "streaming", budget("48")));
  source.prefill(std::span(tokens).first(300));
  for (std::size_t i = 300; i < 310; ++i) source.decode(tokens[i]);
  ASSERT_LT(source.live(2, 0).size(), 310u);
  for (const char* policy : {"tidal", "quest", "razor", "evosparse", "kascade"}) {
    EXPECT_THAT([&] { source.fork(make(engine, policy, budget("64"))); },
                ThrowsMessage<UserError>(HasSubstr("has forgotten")))
        << policy;
  }
  EXPECT_THROW(source.fork(make(engine, "streaming", budget("96"))), UserError);
  Sequence same = source.fork(make(engine, "streaming", budget("48")));
  EXPECT_EQ(copy(same.decode(tokens[310])), copy(source.decode(tokens[310])));
  Sequence dense = source.fork(make(engine, "full"));
  dense.decode(tokens[311]);
  EXPECT_THAT([&] { dense.correct(4); }, ThrowsMessage<UserError>(HasSubstr("has forgotten")));
}

TEST(Failures, LayersAndHeadsAreInRange) {
  Engine engine(options_for(reference::test_model("llama")));
  Sequence sequence = engine.open(make(engine, "evosparse", budget("64")));
  sequence.prefill(random_tokens(20, engine.tokenizer().size(), 13));
  for (const int layer : {-1, 4}) {
    EXPECT_THROW(sequence.heat(layer), UserError);
    EXPECT_THROW(sequence.statistic(layer, 0), UserError);
    EXPECT_THROW(sequence.key(layer, 0, 0), UserError);
    EXPECT_THROW(sequence.value(layer, 0, 0), UserError);
    EXPECT_THROW(sequence.live(layer, 0), UserError);
  }
  EXPECT_THROW(sequence.statistic(0, 2), UserError);
  EXPECT_THROW(sequence.key(0, -1, 0), UserError);
}

/// Room for 256 tokens of a context of 1,024.
EngineOptions in_little_memory() {
  EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16);
  options.context = 1024;
  options.prefill_chunk = 64;
  const plan::ModelShape shape = Engine(options).shape();
  options.cache_bytes = std::int64_t{256 * 2 * 2} * shape.layers * shape.kv_heads * shape.head_dim;
  return options;
}

TEST(LittleMemory, RefusesWhatCannotFitBeforeItRuns) {
  Engine engine(in_little_memory());
  EXPECT_THAT([&] { engine.submit(request_for(engine, 400, "full", 1)); },
              ThrowsMessage<UserError>(
                  testing::AllOf(HasSubstr("400 tokens need"), HasSubstr("(256 tokens)"), HasSubstr("--kv-type"))));
  EXPECT_FALSE(engine.step());
  Sequence sequence = engine.open(make(engine, "full"));
  const std::vector<Token> tokens = random_tokens(300, engine.tokenizer().size());
  sequence.prefill(std::span(tokens).first(100));
  EXPECT_THAT([&] { sequence.prefill(std::span(tokens).first(200)); },
              ThrowsMessage<UserError>(HasSubstr("300 tokens need")));
  EXPECT_EQ(sequence.length(), 100);
}

TEST(LittleMemory, EndsAnAnswerThatOutgrowsIt) {
  Engine engine(in_little_memory());
  Sequence sequence = engine.open(make(engine, "full"));
  const std::vector<Token> tokens = random_tokens(256, engine.tokenizer().size());
  sequence.prefill(tokens);
  EXPECT_THAT([&] { sequence.decode(3); },
              ThrowsMessage<UserError>(testing::AllOf(HasSubstr("full"), HasSubstr("memory holds no more"))));
  EXPECT_EQ(sequence.length(), 256);
}

TEST(LittleMemory, EndsARequestAsAFullContextDoes) {
  Engine engine(in_little_memory());
  Request request = request_for(engine, 250, "quest", 1);
  request.max_tokens = -1;
  const RequestId id = engine.submit(request);
  while (engine.step()) {
  }
  EXPECT_EQ(engine.result(id).reason, FinishReason::context_full);
  EXPECT_EQ(engine.result(id).tokens.size(), 7u);  // 250 of the prompt, 6 that were fed, and the last
  EXPECT_THAT([&] { engine.submit(request_for(engine, 400, "streaming", 1)); },
              ThrowsMessage<UserError>(HasSubstr("400 tokens need")));
}

TEST(LittleMemory, GoesOnFromWhatHasForgotten) {
  Engine engine(in_little_memory());
  Request request = request_for(engine, 200, "streaming", 1);
  request.keep = true;
  const RequestId first = engine.submit(request);
  while (engine.step()) {
  }
  std::optional<Sequence> kept = engine.take(first);
  ASSERT_TRUE(kept.has_value());
  Request longer = request;
  longer.prompt.assign(kept->tokens().begin(), kept->tokens().end());
  const std::vector<Token> more = random_tokens(100, engine.tokenizer().size(), 9);
  longer.prompt.insert(longer.prompt.end(), more.begin(), more.end());
  ASSERT_GT(longer.prompt.size(), 256u);
  const RequestId second = engine.submit(longer, std::move(*kept));
  while (engine.step()) {
  }
  EXPECT_EQ(engine.result(second).reason, FinishReason::length) << engine.result(second).error;
}

TEST(LittleMemory, HoldsAnyLengthOfWhatForgets) {
  Engine engine(in_little_memory());
  Sequence sequence = engine.open(make(engine, "streaming", budget("48")));
  for (int turn = 0; turn < 5; ++turn) {
    sequence.prefill(random_tokens(150, engine.tokenizer().size()));
    sequence.decode(3);
    sequence.decode(4);
  }
  EXPECT_EQ(sequence.length(), 760);
  EXPECT_THAT([&] { sequence.prefill(random_tokens(230, engine.tokenizer().size())); },
              ThrowsMessage<UserError>(HasSubstr("tokens need")));
  EXPECT_EQ(sequence.length(), 760);
}

}  // namespace
}  // namespace glimpse::engine
