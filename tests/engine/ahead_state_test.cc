// What a sequence keeps that is cancelled while a pass is launched ahead of it.
#include <gtest/gtest.h>

#include <map>

#include "tests/engine/ahead_support.h"

namespace glimpse::engine {
namespace {

/// Cancels a request of a budget of 64 behind so many steps, with a pass ahead of it. compare(there, expected, plain,
/// plan): what it keeps, what the same tokens leave pass by pass, and the engine of those.
class Cancelled : public Ahead {
 protected:
  template <class Compare>
  static void compare(const std::string& policy, const std::map<std::string, std::string>& extra, int steps,
                      const Compare& compare) {
    SCOPED_TRACE(policy + " " + std::to_string(steps));
    flying() = {};
    Engine engine(flying_options()), plain(options_for(reference::test_model("llama")));
    Request kept = greedy(engine, 300, policy, 3, 100);
    kept.plan = make(engine, policy, budget("64", extra));
    kept.keep = true;
    const RequestId id = engine.submit(kept);
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(engine.step());
    engine.cancel(id);
    EXPECT_GT(flying().behind, steps > 30 ? 30 : 0);
    auto [there, expected] = kept_by_both(engine, id, plain, kept);
    compare(there, expected, plain, kept.plan);
  }
};

/// The heat of what it has said.
TEST_F(Cancelled, LeavesItsHeat) {
  for (int steps = 6; steps < 12; ++steps) {
    compare("evosparse", {}, steps, [](Sequence& there, Sequence& expected, Engine&, const plan::Plan&) {
      EXPECT_EQ(session_bytes(there), session_bytes(expected));
    });
  }
}

/// Its trees may hold a chunk more than it has said, which every step behind it would take in: all that follows is the
/// same, for a file of it too.
TEST_F(Cancelled, LeavesTreesThatGoOn) {
  // Chunks leave their buffer behind 32 tokens, once in some ten steps; clusters are made of eight tokens each.
  for (const auto& [policy, extra] : std::map<std::string, std::map<std::string, std::string>>{
           {"lychee-cluster", {}}, {"clusterkv", {{"tokens-per-cluster", "8"}, {"new-tokens", "8"}}}}) {
    for (int steps = 36; steps < 52; ++steps) {
      compare(policy, extra, steps, [](Sequence& there, Sequence& expected, Engine& plain, const plan::Plan& plan) {
        const auto file = session_path("trees");
        there.save(file);
        Sequence again = plain.load(file, plan);
        const std::vector<Token> more = random_tokens(40, plain.tokenizer().size(), 11);
        const std::vector<float> logits = decoded(expected, more);
        EXPECT_TRUE(same_bits(decoded(there, more), logits));
        EXPECT_TRUE(same_bits(decoded(again, more), logits));
        EXPECT_EQ(session_bytes(there), session_bytes(expected));
      });
    }
  }
}

/// A share of the context that grows: at first a chunk that leaves the buffer may hold the last two tokens.
TEST_F(Ahead, PassesGoAheadWhereTheBufferIsLongEnough) {
  Engine engine(flying_options());
  Request request = greedy(engine, 330, "lychee-cluster", 2, 70);
  request.plan = make(engine, "lychee-cluster", budget("10%"));
  const Result got = answered(engine, request);
  expect_same(got, want(request));
  EXPECT_GT(flying().behind, 30);
  EXPECT_LT(flying().behind, 60);
}

}  // namespace
}  // namespace glimpse::engine
