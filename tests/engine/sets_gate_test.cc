// SeerAttention-R by random gates: the sets that they choose against a transcription, whatever the model's rotation and
// the gate's shape; what a gate needs of its file; and that its keys follow the cache through forks and corrections.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "tests/engine/gates.h"
#include "tests/engine/recording.h"
#include "tests/support/refusal.h"

namespace glimpse::engine {
namespace {

using testing::HasSubstr;

struct Case {
  std::string name;
  std::string model;  ///< as RunOptions::model
  std::string budget;
  GateRecipe recipe = {};
  std::map<std::string, std::string> extra = {};
  int replayed = 0, steps = 16;
  int sink = 0;
};

void PrintTo(const Case& row, std::ostream* out) {
  *out << row.name;
}

class GateSets : public testing::TestWithParam<Case> {};

TEST_P(GateSets, AreTheBestBlocks) {
  const Case& row = GetParam();
  if (row.extra.count("first-layer") != 0 && recorded_model("") == reference::test_model("llama")) {
    GTEST_SKIP() << "needs the layers of a real model, which is not here or too slow";
  }
  const MadeGates gates = make_gates(recorded_model(row.model), row.recipe);
  policies::PolicyOptions options = budget(row.budget, row.extra);
  options.extra.emplace("gates", write_gates(gates.file));
  if (row.recipe.block != 64) options.block = row.recipe.block;
  if (row.sink > 0) options.sink = row.sink;
  const Recording run = record_run("seer", options, {row.steps, row.replayed, row.model});
  const int first = row.extra.count("first-layer") != 0 ? std::stoi(row.extra.at("first-layer")) : 0;
  int compared = 0, sparse = 0;
  for (const StepRecord& step : run.steps) {
    const std::int64_t tokens = step.position + 1;
    for (int layer = first; layer < run.plan.shape.layers; ++layer) {
      for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
        const HeadStep& record = run.at(step, layer, head);
        const methods::Frame frame = frame_of(selector_of(run, layer, head), tokens);
        ASSERT_EQ(frame.block, row.recipe.block);
        methods::Scores scores = methods::gate_scores(gates.heads.at(run.index(layer, head)), record.queries,
                                                      run.keys_at(step, layer, head));
        if (frame.rule == methods::Rule::threshold) scores = methods::softmax(scores);
        const methods::Set read = record.reads_all ? methods::sink_and_window(tokens, 0, tokens) : record.tokens;
        ASSERT_EQ(read, methods::choose_units(scores, tokens, frame, read)) << place(step, layer, head);
        ++compared;
        sparse += !record.reads_all;
      }
    }
  }
  EXPECT_EQ(compared, row.steps * (run.plan.shape.layers - first) * run.plan.shape.kv_heads);
  EXPECT_GT(sparse, compared / 2);
}

INSTANTIATE_TEST_SUITE_P(
    Sets, GateSets,
    testing::Values(
        Case{"real_model", "", "192"}, Case{"real_model_threshold", "", "tau=0.2"},
        Case{"real_model_after_dense_layers", "", "128", {.dim = 64, .rope_dims = 64}, {{"first-layer", "20"}}},
        Case{"blocks_that_end_while_decoding", "llama", "128", {}, {}, 100, 100},
        Case{"threshold_while_decoding", "llama", "tau=0.15", {}, {}, 100, 100},
        Case{"normed_heads", "qwen3", "25%", {.dim = 64, .rope_dims = 64}, {}, 70, 80},
        Case{"biases_and_half_floats", "qwen2", "192", {.type = 1}, {}, 70, 80},
        Case{"bf16_without_norms",
             "qwen3",
             "192",
             {.dim = 128, .rope_dims = 64, .normed = false, .type = 30},
             {},
             40,
             50},
        Case{"no_rope", "llama", "128", {.rope_dims = 0}, {}, 40, 50},
        Case{"small_blocks_and_a_sink", "llama", "96", {.dim = 16, .rope_dims = 16, .block = 16}, {}, 40, 50, 20},
        Case{"frequency_factors", "llama3", "128", {}, {}, 40, 50}, Case{"yarn", "qwen2-yarn", "128", {}, {}, 40, 50}),
    [](const auto& row) { return row.param.name; });

plan::Plan seer(Engine& engine, const std::string& model, std::string_view size = "128") {
  policies::PolicyOptions options = budget(size);
  add_needed("seer", recorded_model(model), options);
  return make(engine, "seer", options);
}

TEST(GateState, AForkGoesOnAsIfAlone) {
  Engine& engine = shared_engine("llama");
  const std::vector<Token> tokens = random_tokens(420, engine.tokenizer().size(), 3);
  const std::span<const Token> all(tokens);
  Sequence alone = engine.open(seer(engine, "llama"));
  alone.prefill(all.first(300));
  const auto expected = decoded(alone, all.subspan(300));
  Sequence source = engine.open(seer(engine, "llama"));
  source.prefill(all.first(300));
  Sequence same = source.fork(seer(engine, "llama"));
  Sequence other = source.fork(make(engine, "full"));
  Sequence late = other.fork(seer(engine, "llama"));  // its keys are made from the cache when they are first searched
  decoded(source, all.first(60));                     // other tokens at the same positions
  EXPECT_EQ(decoded(same, all.subspan(300)), expected);
  EXPECT_EQ(decoded(late, all.subspan(300)), expected);
}

TEST(GateState, ACorrectionMakesTheKeysAnew) {
  Engine& engine = shared_engine("llama");
  const std::vector<Token> tokens = random_tokens(420, engine.tokenizer().size(), 5);
  const std::span<const Token> all(tokens);
  Sequence corrected = engine.open(seer(engine, "llama"));
  corrected.prefill(all.first(300));
  decoded(corrected, all.subspan(300, 90));
  Sequence stale = corrected.fork(seer(engine, "llama"));
  corrected.correct(90);
  // The same tokens in a cache that was never sparse: as far as the correction's rows go, the same keys.
  Sequence dense = engine.open(make(engine, "full"));
  dense.prefill(all.first(300));
  dense.prefill(all.subspan(300, 90));
  Sequence fresh = dense.fork(seer(engine, "llama"));
  const auto expected = decoded(fresh, all.subspan(390));
  EXPECT_EQ(decoded(corrected, all.subspan(390)), expected);
  EXPECT_NE(decoded(stale, all.subspan(390)), expected);
}

TEST(GateState, APromptInPiecesHasTheSameKeys) {
  EngineOptions options = options_for(recorded_model("llama"), KvType::q8_0, 1);
  std::vector<std::vector<float>> runs;
  for (const bool pieces : {false, true}) {
    Engine engine(options);
    const std::vector<Token> tokens = random_tokens(340, engine.tokenizer().size(), 6);
    Sequence sequence = engine.open(seer(engine, "llama"));
    const std::span<const Token> all(tokens);
    sequence.prefill(all.first(pieces ? 256 : 320));
    if (pieces) sequence.prefill(all.subspan(256, 64));
    runs.push_back(decoded(sequence, all.subspan(320)));
  }
  ASSERT_EQ(runs[0].size(), runs[1].size());
  for (std::size_t i = 0; i < runs[0].size(); ++i) ASSERT_NEAR(runs[0][i], runs[1][i], 2e-2);
}

TEST(GateState, CountsWhatItReads) {
  Engine& engine = shared_engine("llama");
  const std::vector<Token> tokens = random_tokens(330, engine.tokenizer().size(), 7);
  Sequence sequence = engine.open(seer(engine, "llama"));
  sequence.prefill(std::span(tokens).first(320));
  sequence.decode(tokens[320]);
  // Of each head: 64 tokens and the current one; W_q of 2 or more query heads, 32 x d in f32; 5 block keys of 32.
  const plan::ModelShape shape = engine.shape();
  const std::int64_t heads = std::int64_t{shape.layers} * shape.kv_heads;
  EXPECT_EQ(sequence.stats().k_rows, heads * 65);
  EXPECT_EQ(sequence.stats().index_bytes, heads * 4 * (std::int64_t{shape.group()} * 32 * shape.head_dim + 5 * 32));
  EXPECT_EQ(sequence.stats().sparse_steps, 1);
}

TEST(GateFile, IsReadWhereAPlanIsTaken) {
  Engine& engine = shared_engine("llama");
  const auto with = [&](const std::string& file, std::optional<int> block = {}) {
    policies::PolicyOptions options = budget("128", {{"gates", file}});
    options.block = block;
    return make(engine, "seer", options);
  };
  const std::string other = gates_of(recorded_model("qwen3"));
  EXPECT_THAT(refusal([&] { engine.open(with("/no/such/gates.gguf")); }), HasSubstr("/no/such/gates.gguf"));
  EXPECT_THAT(refusal([&] { engine.open(with(other)); }), HasSubstr("of a qwen3 model"));
  EXPECT_THAT(refusal([&] { engine.open(with(gates_of(recorded_model("llama")), 32)); }),
              testing::AllOf(HasSubstr("blocks of 64 tokens, the plan's are of 32"), HasSubstr("--attn-block 64")));
  EXPECT_THAT(refusal([&] {
                Request request;
                request.prompt = {1, 2, 3};
                request.plan = with(other);
                engine.submit(request);
              }),
              HasSubstr("of a qwen3 model"));
  Sequence sequence = engine.open(make(engine, "full"));
  EXPECT_THAT(refusal([&] { sequence.fork(with(other)); }), HasSubstr("of a qwen3 model"));
  EXPECT_EQ(refusal([&] { engine.open(with(gates_of(recorded_model("llama")))); }), "");
}

}  // namespace
}  // namespace glimpse::engine
