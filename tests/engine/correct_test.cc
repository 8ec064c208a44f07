// Cache correction: K and V of corrected tokens are those of a dense pass over the same rows, whatever the method read
// before; forks keep theirs; methods that forget tokens are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glimpse/base/error.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

constexpr std::size_t kPrompt = 400;
constexpr std::size_t kDecoded = 10;

class Correction : public testing::TestWithParam<const char*> {
 protected:
  Engine engine_{[] {
    EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16);
    options.sequences = 3;
    options.context = 1024;
    options.prefill_chunk = 128;
    return options;
  }()};
  std::vector<Token> tokens_ = random_tokens(kPrompt + kDecoded, engine_.tokenizer().size(), 21);

  Sequence decoded() {
    Sequence sequence = engine_.open(make(engine_, GetParam(), budget("160")));
    sequence.prefill(std::span(tokens_).first(kPrompt));
    for (std::size_t i = kPrompt; i < tokens_.size(); ++i) sequence.decode(tokens_[i]);
    return sequence;
  }

  void expect_rows(const Sequence& a, const Sequence& b, bool equal) {
    bool same = true;
    for (int layer = 0; layer < engine_.shape().layers; ++layer) {
      for (int head = 0; head < engine_.shape().kv_heads; ++head) {
        for (std::size_t at = kPrompt; at < tokens_.size(); ++at) {
          const auto position = static_cast<std::int64_t>(at);
          same = same && a.key(layer, head, position) == b.key(layer, head, position) &&
                 a.value(layer, head, position) == b.value(layer, head, position);
        }
      }
    }
    EXPECT_EQ(same, equal);
  }
};

TEST_P(Correction, LeavesTheRowsOfADensePass) {
  Sequence dense = engine_.open(make(engine_, "full"));
  dense.prefill(std::span(tokens_).first(kPrompt));
  dense.prefill(std::span(tokens_).subspan(kPrompt));
  Sequence sparse = decoded();
  expect_rows(sparse, dense, false);
  Sequence fork = sparse.fork(make(engine_, "full"));
  sparse.correct(static_cast<std::int64_t>(kDecoded));
  expect_rows(sparse, dense, true);
  expect_rows(fork, dense, false);
  // It goes on, and reads what it now holds.
  EXPECT_EQ(sparse.length(), static_cast<std::int64_t>(tokens_.size()));
  EXPECT_EQ(sparse.decode(tokens_[0]).size(), static_cast<std::size_t>(engine_.tokenizer().size()));
}

TEST_P(Correction, OfMoreTokensThanAPassTakesIsTheSame) {
  Sequence sparse = decoded();
  EXPECT_THAT([&] { sparse.correct(0); }, testing::Throws<UserError>());
  EXPECT_THAT([&] { sparse.correct(sparse.length() + 1); }, testing::Throws<UserError>());
  sparse.correct(sparse.length());  // the whole text anew: the prompt's rows do not change
  Sequence whole = engine_.open(make(engine_, "full"));
  whole.prefill(tokens_);
  expect_rows(sparse, whole, true);
}

// Indices over the corrected keys are those of a sequence that never had others, in the last layer too, whose logits
// nobody wants of a correction. The new pages end inside the corrected part.
TEST(CorrectionOfIndices, ReachesEveryLayer) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(420, engine.tokenizer().size(), 5);
  const std::span<const Token> all(tokens);
  const auto decoded = [&](Sequence& sequence, std::size_t from, std::size_t to) {
    std::vector<float> logits;
    for (std::size_t i = from; i < to; ++i) {
      const auto some = sequence.decode(tokens[i]);
      logits.insert(logits.end(), some.begin(), some.end());
    }
    return logits;
  };
  Sequence corrected = engine.open(make(engine, "quest", budget("64")));
  corrected.prefill(all.first(300));
  decoded(corrected, 300, 390);
  corrected.correct(90);
  Sequence dense = engine.open(make(engine, "full"));
  dense.prefill(all.first(300));
  dense.prefill(all.subspan(300, 90));
  Sequence fresh = dense.fork(make(engine, "quest", budget("64")));
  EXPECT_EQ(decoded(corrected, 390, 420), decoded(fresh, 390, 420));
}

INSTANTIATE_TEST_SUITE_P(Methods, Correction,
                         testing::Values("tidal", "quest", "lychee-decode", "evosparse", "lychee-cluster"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(CorrectionRequests, IsRefusedForMethodsThatForget) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  for (const char* policy : {"h2o", "tova", "raas", "streaming", "razor"}) {
    Request request;
    request.prompt = random_tokens(20, engine.tokenizer().size());
    request.plan = make(engine, policy, budget("64"));
    request.correct_every = 4;
    EXPECT_THAT([&] { engine.submit(request); }, testing::ThrowsMessage<UserError>(testing::HasSubstr("forgets")))
        << policy;
  }
}

TEST(CorrectionRequests, RunsEveryTTokensOfARequest) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  Request request;
  request.prompt = random_tokens(300, engine.tokenizer().size());
  request.plan = make(engine, "tidal", budget("64"));
  request.correct_every = 4;
  request.max_tokens = 22;
  request.ignore_end = true;
  const RequestId id = engine.submit(request);
  while (engine.step()) {
  }
  // 21 tokens were decoded (the first came from the prompt): five times four.
  EXPECT_EQ(engine.result(id).stats.corrections, 5);
  EXPECT_EQ(engine.result(id).tokens.size(), 22u);
}

}  // namespace
}  // namespace glimpse::engine
