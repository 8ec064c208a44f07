// What a sequence keeps that is cancelled while a pass is launched ahead of it.
#include <gtest/gtest.h>

#include "tests/engine/ahead_support.h"

namespace glimpse::engine {
namespace {

/// A request that is cancelled while a pass is ahead leaves the heat of what it has said.
TEST_F(Ahead, HeatOfARequestThatIsCancelled) {
  for (int steps = 6; steps < 12; ++steps) {
    SCOPED_TRACE(steps);
    SetUp();
    Engine engine(flying_options()), plain(options_for(reference::test_model("llama")));
    Request kept = greedy(engine, 300, "evosparse", 3, 50);
    kept.plan = make(engine, "evosparse", budget("64"));
    kept.keep = true;
    const RequestId id = engine.submit(kept);
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(engine.step());
    engine.cancel(id);
    EXPECT_GT(flying().behind, 0);
    auto [there, expected] = kept_by_both(engine, id, plain, kept);
    EXPECT_EQ(session_bytes(there), session_bytes(expected));
  }
}

/// Its trees may hold a chunk more than it has said, which every step behind it would take in: all that follows is the
/// same, for a file of it too.
TEST_F(Ahead, TreesOfARequestThatIsCancelled) {
  for (const std::string policy : {"lychee-cluster", "clusterkv"}) {
    for (int steps = 36; steps < 52; steps += policy == "clusterkv" ? 5 : 1) {
      SCOPED_TRACE(policy + " " + std::to_string(steps));
      SetUp();
      Engine engine(flying_options()), plain(options_for(reference::test_model("llama")));
      Request kept = greedy(engine, 300, policy, 3, 100);
      kept.plan = make(engine, policy, budget("64"));
      kept.keep = true;
      const RequestId id = engine.submit(kept);
      for (int i = 0; i < steps; ++i) ASSERT_TRUE(engine.step());
      engine.cancel(id);
      EXPECT_GT(flying().behind, 30);
      auto [there, expected] = kept_by_both(engine, id, plain, kept);
      const auto file = session_path("trees");
      there.save(file);
      Sequence again = plain.load(file, kept.plan);
      const std::vector<Token> more = random_tokens(40, engine.tokenizer().size(), 11);
      const std::vector<float> logits = decoded(expected, more);
      EXPECT_TRUE(same_bits(decoded(there, more), logits));
      EXPECT_TRUE(same_bits(decoded(again, more), logits));
      EXPECT_EQ(session_bytes(there), session_bytes(expected));
    }
  }
}

}  // namespace
}  // namespace glimpse::engine
