// Methods that forget: what is left at every step and the statistics that decide it, against the transcription. What
// was read in one step, with the next token, is what the next step may keep: it does not matter when the engine evicts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/engine/recording.h"

namespace glimpse::engine {
namespace {

methods::Set read_by(const HeadStep& record, std::int64_t tokens) {
  return record.reads_all ? methods::sink_and_window(tokens, 0, tokens) : record.tokens;
}

/// [query head] of the probabilities over what one KV head read.
std::vector<methods::Scores> read_rows(const Recording& run, const StepRecord& step, int layer, int head) {
  const HeadStep& record = run.at(step, layer, head);
  const methods::Rows keys = run.keys_at(step, layer, head);
  std::vector<methods::Scores> rows;
  for (const methods::Row& query : record.queries) {
    rows.push_back(methods::read_probabilities(query, keys, read_by(record, step.position + 1)));
  }
  return rows;
}

bool holds(const methods::Set& set, std::int32_t token) {
  return std::binary_search(set.begin(), set.end(), token);
}

/// The engine's statistic where a token is live; `own` where the engine has let it go with the step.
methods::Scores merged(methods::Scores own, const methods::Scores& engine, const methods::Set& live,
                       std::int64_t size) {
  own.resize(static_cast<std::size_t>(size));
  for (const std::int32_t i : live) {
    if (static_cast<std::size_t>(i) < engine.size())
      own.at(static_cast<std::size_t>(i)) = engine[static_cast<std::size_t>(i)];
  }
  return own;
}

/// `own` is what a step left by transcription for `read`; the engine's must agree where the token still lives.
void expect_statistic(const methods::Scores& engine, const methods::Set& live, const methods::Scores& own,
                      const methods::Set& read) {
  for (const std::int32_t i : read) {
    if (!holds(live, i)) continue;
    const double expected = own.at(static_cast<std::size_t>(i));
    ASSERT_NEAR(engine.at(static_cast<std::size_t>(i)), expected, 1e-5 * std::abs(expected) + 1e-7) << "token " << i;
  }
}

methods::Set with_token(methods::Set set, std::int64_t token) {
  set.push_back(static_cast<std::int32_t>(token));
  return set;
}

bool is_dense(const Recording& run, const StepRecord& step) {
  return step.position + 1 < run.plan.min_context;
}

/// A run whose first `dense` steps are below the least context: they forget nothing, and feed what the rest forgets by.
Recording record_crossing(const std::string& policy, std::string_view text, int dense) {
  policies::PolicyOptions options = budget(text);
  options.min_context = static_cast<int>(passage(shared_engine("llama")).size()) + dense + 1;
  return record_run(policy, options, {.steps = 24, .model = "llama"});
}

int dense_steps(const Recording& run) {
  return static_cast<int>(
      std::count_if(run.steps.begin(), run.steps.end(), [&](const auto& step) { return is_dense(run, step); }));
}

TEST(StreamingSets, AreSinkAndWindow) {
  const Recording run = record_run("streaming", budget("64"), {.steps = 40, .model = "llama"});
  for (const StepRecord& step : run.steps) {
    for (const HeadStep& record : step.heads) {
      ASSERT_EQ(record.tokens, methods::sink_and_window(step.position + 1, 4, 60));
    }
  }
}

TEST(StreamingSets, FreeTheCacheTheyLeave) {
  Engine& engine = shared_engine("llama");
  Sequence sequence = engine.open(make(engine, "streaming", budget("64")));
  sequence.prefill(passage(engine));
  sequence.decode(4);
  EXPECT_NO_THROW(sequence.key(1, 0, 3));
  EXPECT_NO_THROW(sequence.key(1, 0, 290));
  EXPECT_ANY_THROW(sequence.key(1, 0, 150));
}

class HeadKinds : public testing::TestWithParam<std::string> {};

TEST_P(HeadKinds, ReadAllOrSinkAndWindow) {
  const Recording run = record_run(GetParam(), budget("64"));
  int dense = 0, windows = 0;
  for (const StepRecord& step : run.steps) {
    for (const HeadStep& record : step.heads) {
      if (record.role == plan::RoleKind::dense) {
        ASSERT_TRUE(record.reads_all);
        ++dense;
      } else {
        ASSERT_EQ(record.role, plan::RoleKind::stream);
        // Razor's compensation token is no cached token and stands outside the budget.
        ASSERT_EQ(record.tokens, methods::sink_and_window(step.position + 1, 4, 60));
        ++windows;
      }
    }
  }
  EXPECT_GT(dense, 0);
  EXPECT_GT(windows, 0);
}

INSTANTIATE_TEST_SUITE_P(Sets, HeadKinds, testing::Values("duo", "razor"), [](const auto& row) { return row.param; });

/// Of a budget of 64.
void expect_heavy_hitters(const Recording& run) {
  constexpr std::int64_t kBudget = 64;
  for (int layer = 0; layer < run.plan.shape.layers; ++layer) {
    for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
      const std::size_t at = run.index(layer, head);
      methods::Set left = run.steps.at(0).before.live.at(at);
      methods::Scores sums;
      for (const StepRecord& step : run.steps) {
        SCOPED_TRACE(place(step, layer, head));
        sums = merged(sums, step.before.statistic.at(at), step.before.live.at(at), step.position + 1);
        const methods::Set read = read_by(run.at(step, layer, head), step.position + 1);
        const methods::Set all = with_token(left, step.position);
        ASSERT_EQ(read, is_dense(run, step) ? all : methods::keep_accumulated(all, sums, {kBudget, kBudget / 2}, read));
        for (const methods::Scores& row : read_rows(run, step, layer, head)) {  // summed over the group
          for (std::size_t n = 0; n < read.size(); ++n) sums[static_cast<std::size_t>(read[n])] += row[n];
        }
        expect_statistic(step.after.statistic.at(at), step.after.live.at(at), sums, read);
        if (testing::Test::HasFatalFailure()) return;
        left = read;
      }
    }
  }
}

TEST(H2oSets, KeepRecentTokensAndHeavyHitters) {
  expect_heavy_hitters(record_run("h2o", budget("64")));
}

TEST(H2oSets, CountWhatDenseStepsRead) {
  const Recording run = record_crossing("h2o", "64", 8);
  EXPECT_EQ(dense_steps(run), 8);
  expect_heavy_hitters(run);
}

/// The mean over a layer's heads of what the engine keeps of the last step, head by head.
methods::Scores layer_statistic(const Recording& run, const StateCopy& state, int layer) {
  std::vector<methods::Scores> heads;
  for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
    heads.push_back(state.statistic.at(run.index(layer, head)));
  }
  return methods::mean(heads);
}

/// Of a budget of 64.
void expect_most_probable(const Recording& run) {
  constexpr std::int64_t kBudget = 64;
  for (int layer = 0; layer < run.plan.shape.layers; ++layer) {
    const std::size_t first = run.index(layer, 0);
    methods::Set left = run.steps.at(0).before.live.at(first);
    methods::Scores last;
    for (const StepRecord& step : run.steps) {
      SCOPED_TRACE(place(step, layer, 0));
      last = merged(last, layer_statistic(run, step.before, layer), step.before.live.at(first), step.position + 1);
      const methods::Set read = read_by(run.at(step, layer, 0), step.position + 1);
      const methods::Set all = with_token(left, step.position);
      ASSERT_EQ(read, is_dense(run, step) ? all : methods::keep_probable(all, last, kBudget, read));
      std::vector<methods::Scores> rows;  // of all query heads: one set a layer
      for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
        ASSERT_EQ(read_by(run.at(step, layer, head), step.position + 1), read);
        for (methods::Scores& row : read_rows(run, step, layer, head)) rows.push_back(std::move(row));
      }
      const methods::Scores mean = methods::mean(rows);
      last.assign(static_cast<std::size_t>(step.position) + 1, 0.0);
      for (std::size_t n = 0; n < read.size(); ++n) last[static_cast<std::size_t>(read[n])] = mean[n];
      expect_statistic(layer_statistic(run, step.after, layer), step.after.live.at(first), last, read);
      if (testing::Test::HasFatalFailure()) return;
      left = read;
    }
  }
}

TEST(TovaSets, DropTheLeastProbableOfTheLastStep) {
  expect_most_probable(record_run("tova", budget("64")));
}

TEST(TovaSets, GoByTheLastDenseStep) {
  const Recording run = record_crossing("tova", "64", 8);
  EXPECT_EQ(dense_steps(run), 8);
  expect_most_probable(run);
}

/// Of a budget of 8 generated tokens.
void expect_last_stamped(const Recording& run) {
  constexpr std::int64_t kBudget = 8;
  for (int layer = 0; layer < run.plan.shape.layers; ++layer) {
    for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
      const std::size_t at = run.index(layer, head);
      methods::Set left = run.steps.at(0).before.live.at(at);
      methods::Stamps stamps{run.prompt, kBudget, {}};
      double before = -1;
      for (const StepRecord& step : run.steps) {
        SCOPED_TRACE(place(step, layer, head));
        stamps.steps = merged(stamps.steps, step.before.statistic.at(at), step.before.live.at(at), step.position + 1);
        const methods::Set read = read_by(run.at(step, layer, head), step.position + 1);
        const methods::Set all = with_token(left, step.position);
        ASSERT_EQ(read, is_dense(run, step) ? all : methods::keep_stamped(all, stamps, read));
        // The current token is stamped when it comes: that tells the step's number.
        const double now = step.after.statistic.at(at).at(static_cast<std::size_t>(step.position));
        if (before >= 0) {
          ASSERT_EQ(now, before + 1);
        }
        before = now;
        const methods::Scores mean = methods::mean(read_rows(run, step, layer, head));
        const methods::UpperHalf half = methods::upper_half({read, mean});
        for (const std::int32_t i : read) {
          if (i < run.prompt) continue;  // never evicted, so their stamps decide nothing
          double& stamp = stamps.steps[static_cast<std::size_t>(i)];
          const bool lives = holds(step.after.live.at(at), i);
          const double engine = step.after.statistic.at(at).at(static_cast<std::size_t>(i));
          if (i == step.position || holds(half.sure, i)) {
            stamp = now;
          } else if (holds(half.open, i) && lives) {
            ASSERT_TRUE(engine == now || engine == stamp) << "token " << i;
            stamp = engine;
          }
          if (lives) {
            ASSERT_EQ(engine, stamp) << "token " << i;
          }
        }
        left = read;
      }
      EXPECT_EQ(left.size(), static_cast<std::size_t>(run.prompt + kBudget));
    }
  }
}

TEST(RaasSets, KeepThePromptAndTheLastStamped) {
  expect_last_stamped(record_run("raas", budget("8"), {.steps = 24}));
}

TEST(RaasSets, GoByTheStampsOfDenseSteps) {
  const Recording run = record_crossing("raas", "8", 16);
  EXPECT_EQ(dense_steps(run), 16);
  expect_last_stamped(run);
}

/// The statistics that the prompt leaves, against the same rows decoded densely one by one. Other kernels than the
/// prompt's, so the sums agree only roughly.
void expect_prompt_statistic(const std::string& policy, bool last_only) {
  const Recording run = record_run(policy, budget("64"), {.steps = 1, .model = "llama"});
  Engine& engine = shared_engine("llama");
  const int rows = static_cast<int>(passage(engine).size()) - 1;
  const Recording dense = record_run("full", {}, {.steps = rows, .replayed = rows, .model = "llama"});
  const plan::ModelShape& shape = run.plan.shape;
  for (int layer = 0; layer < shape.layers; ++layer) {
    std::vector<methods::Scores> sums(static_cast<std::size_t>(shape.kv_heads),
                                      methods::Scores(static_cast<std::size_t>(run.prompt)));
    for (int head = 0; head < shape.kv_heads; ++head) {
      methods::Scores& sum = sums[static_cast<std::size_t>(head)];
      // Row 0 was prefilled: every query head of it gives all to token 0.
      if (!last_only) sum[0] = shape.group();
      for (const StepRecord& step : dense.steps) {
        if (last_only && step.position + 1 != run.prompt) continue;
        for (const methods::Scores& row : read_rows(dense, step, layer, head)) {
          for (std::size_t i = 0; i < row.size(); ++i) sum[i] += row[i];
        }
      }
    }
    const auto compare = [&](const methods::Scores& kept, const methods::Scores& expected, int head) {
      double apart = 0, sum = 0;
      for (const std::int32_t i : run.steps.at(0).before.live.at(run.index(layer, head))) {
        apart += std::abs(kept.at(static_cast<std::size_t>(i)) - expected.at(static_cast<std::size_t>(i)));
        sum += expected[static_cast<std::size_t>(i)];
      }
      EXPECT_GT(sum, 0);
      EXPECT_LT(apart, 0.03 * sum) << "layer " << layer << ", head " << head;
    };
    if (last_only) {  // the mean over all query heads of the layer
      methods::Scores mean = methods::mean(sums);
      for (double& p : mean) p /= shape.group();
      compare(layer_statistic(run, run.steps.at(0).before, layer), mean, 0);
      continue;
    }
    for (int head = 0; head < shape.kv_heads; ++head) {
      compare(run.steps.at(0).before.statistic.at(run.index(layer, head)), sums[static_cast<std::size_t>(head)], head);
    }
  }
}

TEST(H2oSets, CountThePromptsAttention) {
  expect_prompt_statistic("h2o", false);
}

TEST(TovaSets, StartFromThePromptsLastRow) {
  expect_prompt_statistic("tova", true);
}

}  // namespace
}  // namespace glimpse::engine
