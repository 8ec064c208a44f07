// What is exact: budgets of probability that cover the context, forks; what agrees within tolerance: chunk sizes. What
// every policy must keep is in properties_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "glimpse/engine/model_shape.h"
#include "glimpse/exec/executor.h"
#include "glimpse/kv/cache.h"
#include "glimpse/model/model.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

std::vector<float> decoded(Engine& engine, const plan::Plan& plan, std::span<const Token> tokens, std::size_t chunked) {
  Sequence sequence = engine.open(plan);
  std::vector<float> all;
  sequence.prefill(tokens.first(chunked));
  for (std::size_t i = chunked; i < tokens.size(); ++i) {
    const auto logits = sequence.decode(tokens[i]);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

TEST(Exact, TidalSetVariantsCoverTheContextBitForBit) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(400, engine.tokenizer().size());
  const auto dense = decoded(engine, make(engine, "full"), tokens, 380);
  for (const char* set : {"kv-head", "layer"}) {
    EXPECT_TRUE(same_bits(dense, decoded(engine, make(engine, "tidal", budget("p=1", {{"set", set}})), tokens, 380)))
        << set;
  }
}

TEST(Exact, SparseReadsLessAndDiffers) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(900, engine.tokenizer().size());
  for (const char* policy : {"streaming", "tidal"}) {
    Sequence sequence = engine.open(make(engine, policy, budget("64")));
    sequence.prefill(std::span(tokens).first(800));
    for (std::size_t i = 800; i < 900; ++i) sequence.decode(tokens[i]);
    const AttentionStats& stats = sequence.stats();
    EXPECT_EQ(stats.sparse_steps, 100) << policy;
    EXPECT_EQ(stats.dense_steps, 0) << policy;
    EXPECT_LT(stats.kept_ratio(), 1.0) << policy;
    // streaming: exactly 64 of N rows in every layer and head.
    if (std::string(policy) == "streaming") {
      EXPECT_EQ(stats.k_rows, 100 * 64 * 4 * 2);
    }
    EXPECT_EQ(stats.bytes_read, (stats.k_rows + stats.v_rows) * 64);
  }
}

TEST(Exact, ForkedSequencesAreIndependent) {
  Engine engine(options_for(reference::test_model("llama"), KvType::q8_0));
  const std::vector<Token> tokens = random_tokens(330, engine.tokenizer().size());
  const auto alone = decoded(engine, make(engine, "full"), tokens, 321);
  Sequence first = engine.open(make(engine, "full"));
  first.prefill(std::span(tokens).first(321));
  Sequence second = first.fork(make(engine, "full"));
  std::vector<float> mine;
  for (std::size_t i = 321; i < 330; ++i) {
    second.decode(3);  // other tokens at the same positions
    const auto logits = first.decode(tokens[i]);
    mine.insert(mine.end(), logits.begin(), logits.end());
  }
  EXPECT_TRUE(same_bits(alone, mine));
}

// The last layer of a chunk whose logits nobody wants is observed like the others.
TEST(Tolerance, WhatAPromptShowsIsTheSameInChunks) {
  std::vector<std::vector<float>> last;
  for (const int chunk : {64, 512}) {
    EngineOptions options = options_for(reference::test_model("llama"));
    options.prefill_chunk = chunk;
    Engine engine(options);
    Sequence sequence = engine.open(make(engine, "h2o", budget("512")));
    sequence.prefill(random_tokens(300, engine.tokenizer().size()));
    last.push_back(sequence.statistic(engine.shape().layers - 1, 0));
  }
  ASSERT_EQ(last[0].size(), 300u);
  ASSERT_EQ(last[1].size(), 300u);
  for (std::size_t i = 0; i < 300; ++i) ASSERT_NEAR(last[0][i], last[1][i], 1e-3 * (1 + last[1][i])) << i;
}

TEST(Tolerance, ChunkSizesAndDecodingAgree) {
  const auto path = reference::test_model("qwen2");
  std::vector<std::vector<float>> results;
  for (const int chunk : {1, 7, 64, 512}) {
    EngineOptions options = options_for(path);
    options.prefill_chunk = chunk;
    Engine engine(options);
    const std::vector<Token> tokens = random_tokens(600, engine.tokenizer().size());
    Sequence sequence = engine.open(make(engine, "full"));
    const auto logits = sequence.prefill(tokens);
    results.emplace_back(logits.begin(), logits.end());
  }
  {
    Engine engine(options_for(path));
    const std::vector<Token> tokens = random_tokens(600, engine.tokenizer().size());
    Sequence sequence = engine.open(make(engine, "full"));
    sequence.prefill(std::span(tokens).first(1));
    std::span<const float> logits;
    for (std::size_t i = 1; i < tokens.size(); ++i) logits = sequence.decode(tokens[i]);
    results.emplace_back(logits.begin(), logits.end());
  }
  for (std::size_t i = 1; i < results.size(); ++i) {
    for (std::size_t v = 0; v < results[0].size(); ++v) ASSERT_NEAR(results[0][v], results[i][v], 2e-2) << i;
  }
}

// A short piece behind a long context: its attention is divided by keys, and what the plan observes is no part of it.
TEST(Exact, WhatAPlanObservesChangesNoBitOfAPrompt) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(2120, engine.tokenizer().size());
  const auto said = [&](const plan::Plan& plan, std::size_t piece) {
    Sequence sequence = engine.open(plan);
    sequence.prefill(std::span(tokens).first(tokens.size() - piece));
    const auto logits = sequence.prefill(std::span(tokens).last(piece));
    return std::vector<float>(logits.begin(), logits.end());
  };
  for (const std::size_t piece : {1u, 7u, 64u}) {
    if (kSanitized && piece != 7) continue;
    const std::vector<float> plain = said(make(engine, "full"), piece);
    for (const char* policy : {"evosparse", "h2o", "tova"}) {
      EXPECT_TRUE(same_bits(plain, said(make(engine, policy, budget("4096")), piece))) << policy << ", " << piece;
    }
  }
}

/// The rows of a verification: the logits of each are those of decoding densely up to it, also behind the ends of the
/// ranges and splits that share the work.
class VerifiedRows : public testing::TestWithParam<const char*> {};

TEST_P(VerifiedRows, HaveTheBitsOfDenseDecoding) {
  const model::Model model(reference::test_model(GetParam()));
  const model::Config& config = model.config();
  const plan::ModelShape shape = shape_of(config);
  const plan::Plan plan = plan::dense_plan(shape);
  const attention::Program program(plan);
  const auto vocabulary = static_cast<std::size_t>(config.vocabulary);
  constexpr std::size_t kMost = 5;
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    kv::Cache cache({config.layers, config.kv_heads, {type, config.head_dim}, 8192});
    const auto executor = exec::make_cpu_executor(model, cache, {2});
    const bool exact = executor->row_costs().same_bits == static_cast<int>(kMost);
    // ggml repacks quantised weights alone, some of them, by machine; with AMX f16 too.
    const std::string of(GetParam());
    ASSERT_TRUE(exact || of.starts_with("llama256-q") || of.starts_with("llama256-iq") || of == "llama256-f16");
    for (const std::int64_t length : {20, 509, 2046}) {
      if (kSanitized && length > 600) continue;
      SCOPED_TRACE(std::string(name(type)) + ", " + std::to_string(length));
      const std::vector<Token> text = random_tokens(static_cast<std::size_t>(length) + kMost, config.vocabulary,
                                                    static_cast<std::uint32_t>(length));
      const kv::SequenceId prompt = cache.create();
      attention::SequenceState state(plan);
      attention::SequenceRows first{prompt, &program, &state, 0, static_cast<int>(length)};
      first.kind = attention::PassKind::prompt;
      first.prompt_end = length;
      executor->forward({std::span(text).first(static_cast<std::size_t>(length)), {&first, 1}, {}});
      const std::span<const Token> fed = std::span(text).last(kMost);
      std::vector<float> decoded;
      {
        attention::SequenceState own = state;
        const kv::SequenceId fork = cache.fork(prompt);
        for (const Token& token : fed) {
          attention::SequenceRows row{fork, &program, &own};
          row.position = cache.length(fork);
          const std::int32_t wanted = 0;
          const auto logits = executor->forward({{&token, 1}, {&row, 1}, {&wanted, 1}}).logits;
          decoded.insert(decoded.end(), logits.begin(), logits.end());
        }
        cache.destroy(fork);
      }
      for (std::size_t rows = 2; rows <= kMost; ++rows) {
        attention::SequenceState own = state;
        const kv::SequenceId fork = cache.fork(prompt);
        attention::SequenceRows verified{fork, &program, &own, 0, static_cast<int>(rows)};
        verified.position = length;
        verified.kind = attention::PassKind::verify;
        std::vector<std::int32_t> wanted(rows);
        for (std::size_t r = 0; r < rows; ++r) wanted[r] = static_cast<std::int32_t>(r);
        const auto logits = executor->forward({fed.first(rows), {&verified, 1}, wanted}).logits;
        ASSERT_EQ(logits.size(), rows * vocabulary);
        if (exact) {
          EXPECT_EQ(std::memcmp(logits.data(), decoded.data(), logits.size() * sizeof(float)), 0) << rows << " rows";
        }
        for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], decoded[i], 0.2) << i;
        cache.destroy(fork);
      }
      cache.destroy(prompt);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, VerifiedRows,
                         testing::Values("llama", "qwen2", "qwen3", "llama256-f16", "llama256-bf16", "llama256-q8_0",
                                         "llama256-q4_0", "llama256-q4_1", "llama256-q5_1", "llama256-q4_K",
                                         "llama256-q6_K", "llama256-iq4_nl", "llama256-iq3_s"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// Sequences that decode in one pass of a few rows: the logits of each are those of its own pass. F32 weights are in
/// ggml's plain layout everywhere.
TEST(Exact, AFewSequencesInAPassSayWhatEachSaysAlone) {
  const model::Model model(reference::test_model("llama"));
  const model::Config& config = model.config();
  kv::Cache cache({config.layers, config.kv_heads, {KvType::bf16, config.head_dim}, 8192});
  const auto executor = exec::make_cpu_executor(model, cache, {2});
  const plan::ModelShape shape = shape_of(config);
  const plan::Plan plan = policies::make_plan("tidal", shape, budget("64"));
  const attention::Program program(plan);
  struct Decoding {
    kv::SequenceId id = -1;
    attention::SequenceState state;
  };
  std::vector<Decoding> together, alone;
  std::vector<Token> next;
  for (std::int64_t i = 0; i < 5; ++i) {
    const std::int64_t length = 200 + 30 * i;
    Decoding one{cache.create(), attention::SequenceState(plan)};
    const std::vector<Token> prompt =
        random_tokens(static_cast<std::size_t>(length), config.vocabulary, static_cast<std::uint32_t>(i));
    attention::SequenceRows rows{one.id, &program, &one.state, 0, static_cast<int>(length)};
    rows.kind = attention::PassKind::prompt;
    rows.prompt_end = length;
    executor->forward({prompt, {&rows, 1}, {}});
    alone.push_back({cache.fork(one.id), one.state});
    together.push_back(std::move(one));
    next.push_back(prompt.front());
  }
  for (const std::size_t count : {2u, 5u}) {
    std::vector<attention::SequenceRows> rows;
    std::vector<std::int32_t> wanted;
    for (std::size_t i = 0; i < count; ++i) {
      rows.push_back({together[i].id, &program, &together[i].state, static_cast<int>(i)});
      rows.back().position = cache.length(together[i].id);
      wanted.push_back(static_cast<std::int32_t>(i));
    }
    const auto logits = executor->forward({std::span(next).first(count), rows, wanted}).logits;
    const std::vector<float> all(logits.begin(), logits.end());
    const auto vocabulary = static_cast<std::size_t>(config.vocabulary);
    for (std::size_t i = 0; i < count; ++i) {
      attention::SequenceRows row{alone[i].id, &program, &alone[i].state};
      row.position = cache.length(alone[i].id);
      const std::int32_t last = 0;
      const auto own = executor->forward({{&next[i], 1}, {&row, 1}, {&last, 1}}).logits;
      EXPECT_EQ(std::memcmp(own.data(), all.data() + i * vocabulary, vocabulary * sizeof(float)), 0)
          << "sequence " << i << " of " << count;
    }
  }
}

}  // namespace
}  // namespace glimpse::engine
