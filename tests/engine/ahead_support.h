// The fixture of tests of passes that are launched ahead: engines on a device that queues passes (flying_backend.h),
// and the same requests on the CPU pass by pass.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "glimpse/engine/service.h"
#include "tests/engine/flying_backend.h"
#include "tests/engine/session_support.h"

namespace glimpse::engine {

inline EngineOptions flying_options(KvType type = KvType::f32) {
  EngineOptions options = options_for(reference::test_model("llama"), type);
  options.device = parse_device("cuda");
  options.sequences = 4;
  return options;
}

class Ahead : public testing::Test {
 protected:
  void SetUp() override { flying() = {}; }

  /// What a request gets pass by pass, alone.
  static Result want(const Request& request) {
    Engine engine(options_for(reference::test_model("llama")));
    Request plain = request;
    plain.on_token = nullptr;
    plain.on_text = nullptr;
    return answered(engine, plain);
  }
  static Request greedy(const Engine& engine, std::size_t length, const std::string& policy, std::uint32_t seed,
                        std::int64_t tokens) {
    Request request = request_for(engine, length, policy, seed);
    request.max_tokens = tokens;
    return request;
  }
  struct TwoRequests {
    Request first, second;
    RequestId one, two;
  };
  /// The first has ten tokens.
  static TwoRequests two_under_way(Engine& engine) {
    TwoRequests made{greedy(engine, 60, "full", 1, 30), greedy(engine, 70, "tidal", 2, 30), 0, 0};
    made.one = engine.submit(made.first);
    made.two = engine.submit(made.second);
    step_until(engine, made.one, 10);
    return made;
  }
  static void step_until(Engine& engine, RequestId id, std::size_t tokens) {
    while (engine.result(id).tokens.size() < tokens) ASSERT_TRUE(engine.step());
  }
  static Request sampled(Request request, float temperature, int top_k) {
    request.sampling.temperature = temperature;
    request.sampling.top_k = top_k;
    request.sampling.seed = static_cast<std::uint32_t>(request.max_tokens);
    return request;
  }
  static Request lossless(Request request, int drafts) {
    request.lossless = true;
    request.draft_tokens = drafts;
    return request;
  }
  /// A cache of so many tokens.
  static EngineOptions small_cache(std::int64_t tokens) {
    EngineOptions options = flying_options();
    const Engine engine(options);
    const plan::ModelShape shape = engine.shape();
    options.cache_bytes = static_cast<std::int64_t>(engine.row_pair_bytes()) * tokens * shape.layers * shape.kv_heads;
    return options;
  }
  static void expect_same(const Result& got, const Result& expected) {
    EXPECT_EQ(got.tokens, expected.tokens);
    EXPECT_EQ(got.reason, expected.reason);
    EXPECT_EQ(got.stats.generated_tokens, expected.stats.generated_tokens);
    EXPECT_EQ(got.stats.attention.bytes_read, expected.stats.attention.bytes_read);
    EXPECT_EQ(got.stats.attention.sparse_steps, expected.stats.attention.sparse_steps);
    EXPECT_EQ(got.stats.attention.dense_steps, expected.stats.attention.dense_steps);
  }
  /// Requests that run together get what each gets alone.
  static void expect_wanted(Engine& engine, const std::vector<Request>& requests) {
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(engine.submit(request));
    run_all(engine);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(engine.result(ids[i]), want(requests[i]));
    }
  }
  /// What a cancelled request keeps, and what one of as many tokens does that goes pass by pass.
  static std::pair<Sequence, Sequence> kept_by_both(Engine& engine, RequestId id, Engine& plain, Request request) {
    request.max_tokens = static_cast<std::int64_t>(engine.result(id).tokens.size());
    const RequestId same = plain.submit(request);
    run_all(plain);
    EXPECT_EQ(engine.result(id).tokens, plain.result(same).tokens);
    std::pair<Sequence, Sequence> kept{engine.take(id).value(), plain.take(same).value()};
    EXPECT_EQ(kept.first.length(), kept.second.length());
    return kept;
  }
  static void expect_same_drafts(const Result& got, const Result& expected) {
    expect_same(got, expected);
    EXPECT_EQ(got.stats.lossless.drafted, expected.stats.lossless.drafted);
    EXPECT_EQ(got.stats.lossless.accepted, expected.stats.lossless.accepted);
    EXPECT_EQ(got.stats.lossless.verify_passes, expected.stats.lossless.verify_passes);
    EXPECT_EQ(got.stats.lossless.dense_steps, expected.stats.lossless.dense_steps);
  }
};

}  // namespace glimpse::engine
