// Retrieval scores against a transcription of their definition.
#include "glimpse/calibrate/retrieval_scores.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/support.h"

namespace glimpse::calibrate {
namespace {

constexpr std::int64_t kPrompt = 160;
constexpr int kSteps = 12;

/// Wu et al. 2024, section 2: tokens of the needle that are generated while this head's arg-max is the same token
/// inside the needle, over all of the needle's that are generated.
std::vector<double> transcribed(engine::Engine& engine, const engine::Sequence& dense, std::span<const Token> tokens,
                                int begin, int end) {
  const plan::ModelShape shape = engine.shape();
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  std::vector<double> hits(static_cast<std::size_t>(shape.layers * shape.heads));
  int copied = 0;
  engine::Sequence sequence = dense.fork(plan::dense_plan(shape));
  std::vector<std::pair<int, std::vector<float>>> queries;  // [head of all layers' KV heads]
  sequence.on_sets([&](const engine::SetTrace& trace) {
    queries.emplace_back(trace.layer * shape.kv_heads + trace.kv_head,
                         std::vector<float>(trace.query.begin(), trace.query.end()));
  });
  for (auto at = static_cast<std::size_t>(kPrompt); at + 1 < tokens.size(); ++at) {
    queries.clear();
    sequence.decode(tokens[at]);
    bool in_needle = false;
    for (int i = begin; i < end; ++i) in_needle = in_needle || tokens[static_cast<std::size_t>(i)] == tokens[at + 1];
    if (!in_needle) continue;
    ++copied;
    for (const auto& [place, query] : queries) {
      const int layer = place / shape.kv_heads, kv_head = place % shape.kv_heads;
      for (int j = 0; j < shape.group(); ++j) {
        std::int64_t most = 0;
        double top = -1e300;
        for (std::int64_t token = 0; token <= static_cast<std::int64_t>(at); ++token) {
          const std::vector<float> key = sequence.key(layer, kv_head, token);
          double dot = 0;
          for (std::size_t i = 0; i < dim; ++i) {
            dot += static_cast<double>(key[i]) * query[static_cast<std::size_t>(j) * dim + i];
          }
          if (dot > top) {
            top = dot;
            most = token;
          }
        }
        if (most < begin || most >= end || tokens[static_cast<std::size_t>(most)] != tokens[at + 1]) continue;
        hits[static_cast<std::size_t>(layer * shape.heads + kv_head * shape.group() + j)] += 1;
      }
    }
  }
  for (double& hit : hits) hit /= copied;
  return hits;
}

TEST(RetrievalScores, FollowTheirDefinition) {
  engine::Engine engine(engine::options_for(reference::test_model("llama")));
  const plan::ModelShape shape = engine.shape();
  // Few different tokens, so that an arg-max on the token that comes next is not rare.
  std::vector<Token> tokens = engine::random_tokens(static_cast<std::size_t>(kPrompt) + kSteps + 1, 6);
  for (Token& token : tokens) token += 300;
  tokens[static_cast<std::size_t>(kPrompt) + 2] = 77;  // no token of the needle
  engine::Sequence dense = engine.open(plan::dense_plan(shape));
  dense.prefill(std::span(tokens).first(static_cast<std::size_t>(kPrompt)));
  constexpr int kBegin = 10, kEnd = 140;

  Recording recording = record(dense, shape, tokens, kPrompt);
  for (int i = kBegin; i < kEnd; ++i) recording.needle.push_back(i);
  RetrievalScores scores(shape);
  for (int round = 0; round < 2; ++round) {
    scores.begin(recording);
    for (int layer = 0; layer < shape.layers; ++layer) scores.add_layer(layer, attention_of(recording, shape, layer));
  }
  const std::vector<double> ours = scores.scores();
  const std::vector<double> wanted = transcribed(engine, dense, tokens, kBegin, kEnd);
  ASSERT_EQ(ours.size(), wanted.size());
  double sum = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_NEAR(ours[i], wanted[i], 1e-9) << i;
    sum += wanted[i];
  }
  EXPECT_GT(sum, 0);
}

TEST(RetrievalScores, AreZeroWithoutANeedle) {
  engine::Engine engine(engine::options_for(reference::test_model("llama")));
  const plan::ModelShape shape = engine.shape();
  const std::vector<Token> tokens = engine::random_tokens(60, engine.tokenizer().size());
  engine::Sequence dense = engine.open(plan::dense_plan(shape));
  dense.prefill(std::span(tokens).first(50));
  const Recording recording = record(dense, shape, tokens, 50);
  RetrievalScores scores(shape);
  scores.begin(recording);
  for (int layer = 0; layer < shape.layers; ++layer) scores.add_layer(layer, attention_of(recording, shape, layer));
  EXPECT_EQ(scores.scores(), std::vector<double>(static_cast<std::size_t>(shape.layers * shape.heads)));
}

}  // namespace
}  // namespace glimpse::calibrate
