// Requests through submit and step: batches, limits, cancelling, determinism.
#include <gtest/gtest.h>

#include "glimpse/base/error.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

std::vector<Token> run_alone(const std::string& model, const Request& request) {
  Engine engine(options_for(reference::test_model(model)));
  const RequestId id = engine.submit(request);
  while (engine.step()) {
  }
  EXPECT_EQ(engine.result(id).reason, FinishReason::length);
  return engine.result(id).tokens;
}

TEST(Requests, AMixedBatchFinishesEachWithItsOwnPlan) {
  Engine engine(options_for(reference::test_model("llama")));
  std::vector<Request> requests;
  requests.push_back(request_for(engine, 700, "tidal", 1));
  requests.push_back(request_for(engine, 90, "full", 2));
  requests.push_back(request_for(engine, 300, "streaming", 3));
  std::vector<RequestId> ids;
  for (const Request& request : requests) ids.push_back(engine.submit(request));
  while (engine.step()) {
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Result& result = engine.result(ids[i]);
    EXPECT_EQ(result.reason, FinishReason::length);
    EXPECT_EQ(result.tokens.size(), 12u);
    EXPECT_EQ(result.stats.attention.sparse_steps > 0, i != 1);
    // A batch of another size takes other matrix kernels: equal tokens unless two logits are within 2e-2.
    EXPECT_EQ(result.tokens, run_alone("llama", requests[i])) << i;
  }
}

TEST(Requests, SamplingWithASeedRepeatsForAnyThreads) {
  std::vector<std::vector<Token>> runs;
  for (const int threads : {1, 2, 4}) {
    Engine engine(options_for(reference::test_model("llama"), KvType::bf16, threads));
    Request request = request_for(engine, 200, "tidal", 5);
    request.sampling.temperature = 0.9f;
    request.sampling.seed = 1234;
    request.max_tokens = 40;
    const RequestId id = engine.submit(request);
    while (engine.step()) {
    }
    runs.push_back(engine.result(id).tokens);
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
}

TEST(Requests, RefusesWhatCannotBeServed) {
  EngineOptions options = options_for(reference::test_model("llama"));
  options.context = 128;
  Engine engine(options);
  Request request = request_for(engine, 10, "full", 1);
  request.prompt.clear();
  EXPECT_THROW(engine.submit(request), UserError);
  request.prompt = random_tokens(128, engine.tokenizer().size());
  EXPECT_THROW(engine.submit(request), UserError);
  request.prompt = {engine.tokenizer().size()};
  EXPECT_THROW(engine.submit(request), UserError);
  request = request_for(engine, 10, "full", 1);
  request.plan.shape.layers = 3;
  EXPECT_THROW(engine.submit(request), UserError);
  EXPECT_FALSE(engine.step());
}

TEST(Requests, EndsWhenTheContextIsFull) {
  EngineOptions options = options_for(reference::test_model("llama"));
  options.context = 64;
  Engine engine(options);
  Request request = request_for(engine, 50, "full", 1);
  request.max_tokens = -1;
  const RequestId id = engine.submit(request);
  while (engine.step()) {
  }
  EXPECT_EQ(engine.result(id).reason, FinishReason::context_full);
  EXPECT_EQ(engine.result(id).tokens.size(), 15u);
}

TEST(Requests, CancelFromTheCallbackAndReuseOfTheCache) {
  EngineOptions options = options_for(reference::test_model("llama"));
  options.sequences = 1;
  Engine engine(options);
  for (int round = 0; round < 3; ++round) {  // the second has no room beside the first
    Request request = request_for(engine, 3000, "streaming", 1);
    RequestId id = 0;
    request.on_token = [&](Token, std::string_view) { engine.cancel(id); };
    id = engine.submit(request);
    while (engine.step()) {
    }
    EXPECT_EQ(engine.result(id).reason, FinishReason::cancelled);
    EXPECT_EQ(engine.result(id).tokens.size(), 1u);
    engine.release(id);
  }
}

}  // namespace
}  // namespace glimpse::engine
