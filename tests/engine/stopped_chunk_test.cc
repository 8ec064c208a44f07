// A chunk of a prompt that is stopped in the middle of a pass, beside sequences that go on: their bits are those of the
// pass that runs to its end, and the layers behind compute fewer rows.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/engine/model_shape.h"
#include "glimpse/exec/executor.h"
#include "glimpse/model/model.h"
#include "tests/engine/support.h"
#include "tests/support/test_names.h"

namespace glimpse::engine {
namespace {

constexpr std::int64_t kContext = 40;
constexpr int kChunk = 300;

/// A sequence of the plan and the tokens of its next pass.
struct Party {
  kv::SequenceId id = -1;
  attention::SequenceState state;
  std::vector<Token> next;
  attention::PassKind kind = attention::PassKind::prompt;
};

struct Seen {
  std::vector<float> logits;   ///< [parties that go on, vocabulary] of their last rows
  std::vector<double> change;  ///< [layers]
  std::vector<bool> failed;    ///< [parties]
};

class StoppedChunk : public testing::TestWithParam<const char*> {
 protected:
  StoppedChunk()
      : model_(reference::test_model(GetParam())),
        cache_(cache_shape(model_)),
        plan_(policies::make_plan("full", shape_of(model_.config()), {})),
        program_(plan_),
        executor_(exec::make_cpu_executor(model_, cache_, {reference::kTestThreads})) {}

  static kv::CacheShape cache_shape(const model::Model& model) {
    kv::CacheShape shape;
    shape.layers = model.config().layers;
    shape.kv_heads = model.config().kv_heads;
    shape.format = {KvType::f32, model.config().head_dim};
    shape.capacity_tokens = 4096;
    return shape;
  }

  Party party(int rows, std::uint32_t seed, attention::PassKind kind) {
    Party made{cache_.create(), attention::SequenceState(plan_, {}), {}, attention::PassKind::prompt};
    made.next = random_tokens(kContext, model_.config().vocabulary, seed);
    run({&made, 1}, -1, {});
    made.next = random_tokens(static_cast<std::size_t>(rows), model_.config().vocabulary, seed + 1);
    made.kind = kind;
    return made;
  }
  Party decoding() { return party(1, 2, attention::PassKind::decode); }
  Party chunk(int rows, std::uint32_t seed) { return party(rows, seed, attention::PassKind::prompt); }

  /// One pass behind the context of each, with logits of the last rows of `outputs`. The party `stopped` is stopped
  /// behind the first layer's attention; -1: nobody.
  Seen run(std::span<Party> parties, int stopped, const std::vector<std::size_t>& outputs) {
    std::vector<Token> tokens;
    std::vector<attention::SequenceRows> rows;
    std::vector<std::int32_t> output_rows;
    std::atomic<bool> stop = false;
    for (std::size_t i = 0; i < parties.size(); ++i) {
      Party& each = parties[i];
      const std::int64_t length = cache_.length(each.id);
      if (length > kContext) cache_.truncate(each.id, length - kContext);
      attention::SequenceRows entry;
      entry.sequence = each.id;
      entry.program = &program_;
      entry.state = &each.state;
      entry.first_row = static_cast<int>(tokens.size());
      entry.rows = static_cast<int>(each.next.size());
      entry.kind = each.kind;
      entry.position = cache_.length(each.id);
      entry.prompt_end = 4096;
      if (static_cast<int>(i) == stopped) entry.stop = &stop;
      rows.push_back(entry);
      tokens.insert(tokens.end(), each.next.begin(), each.next.end());
      if (std::find(outputs.begin(), outputs.end(), i) != outputs.end()) {
        output_rows.push_back(static_cast<std::int32_t>(tokens.size()) - 1);
      }
    }
    executor_->measure_change(true);
    executor_->begin_slices({tokens, rows, output_rows});
    executor_->run_slice(1);
    stop = true;  // between the first layer and the second
    executor_->run_slice(model_.config().layers);
    const exec::StepResult result = executor_->end_slices();
    Seen seen;
    seen.logits.assign(result.logits.begin(), result.logits.end());
    seen.change = executor_->attention_change();
    for (std::size_t i = 0; i < parties.size(); ++i) {
      seen.failed.push_back(!result.failures.empty() && result.failures[i] != nullptr);
    }
    return seen;
  }

  model::Model model_;
  kv::Cache cache_;
  plan::Plan plan_;
  attention::Program program_;
  std::unique_ptr<exec::Executor> executor_;
};

TEST_P(StoppedChunk, LeavesTheBitsOfWhatGoesOnAndComputesFewerRows) {
  std::vector<Party> parties;
  parties.push_back(decoding());
  const Seen own = run(parties, -1, {0});
  parties.push_back(chunk(kChunk, 5));
  const Seen stopped = run(parties, 1, {0});
  const Seen whole = run(parties, -1, {0});
  EXPECT_EQ(stopped.failed, (std::vector<bool>{false, true}));
  EXPECT_EQ(whole.failed, (std::vector<bool>{false, false}));
  EXPECT_TRUE(same_bits(stopped.logits, whole.logits));
  // What is stopped attends to nothing, so that nothing turns its stream: the mean is the decoding row's share.
  ASSERT_GE(own.change.size(), 3u);
  for (std::size_t layer = 1; layer + 1 < own.change.size(); ++layer) {
    const double share = own.change[layer] / stopped.change[layer];
    EXPECT_LT(share, 130) << "rows of layer " << layer;
    EXPECT_GT(share, 60) << "rows of layer " << layer;
  }
}

TEST_P(StoppedChunk, LeavesAnotherPromptsBits) {
  std::vector<Party> parties;
  parties.push_back(decoding());
  parties.push_back(chunk(200, 5));
  parties.push_back(chunk(kChunk, 9));
  for (const int last : {2, 1}) {  // behind the other, and before it
    const std::vector<std::size_t> outputs{0, static_cast<std::size_t>(3 - last)};
    const Seen stopped = run(parties, last, outputs);
    const Seen whole = run(parties, -1, outputs);
    EXPECT_TRUE(stopped.failed[static_cast<std::size_t>(last)]);
    EXPECT_TRUE(same_bits(stopped.logits, whole.logits)) << "party " << last;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StoppedChunk,
                         testing::Values("llama", "qwen3", "llama256-bf16", "llama256-f16", "llama256-q8_0",
                                         "llama256-q4_0", "llama256-q4_K", "llama256-iq4_nl"),
                         PrintedName());

}  // namespace
}  // namespace glimpse::engine
