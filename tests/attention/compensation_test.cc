// Streaming heads with a compensation token, against the transcription: the mean of what the window lost, whatever
// came in a prompt or step by step, in whole pages or not, and wherever the cache now keeps its neighbours.
#include <gtest/gtest.h>

#include <random>

#include "glimpse/attention/cpu/runner.h"
#include "glimpse/kv/inspect.h"
#include "tests/reference/methods.h"
#include "tests/support/test_names.h"

namespace glimpse::attention {
namespace {

constexpr int kDim = 16, kHeads = 4, kKvHeads = 2, kGroup = kHeads / kKvHeads;

plan::Plan razor_plan(int sink, int budget) {
  plan::Plan plan = plan::dense_plan({"llama", "", 1, kHeads, kKvHeads, kDim, 4096});
  plan::Selector selector;
  selector.budget = {plan::BudgetRule::tokens, static_cast<double>(budget)};
  selector.sink = sink;
  selector.local = budget - sink;
  plan.selectors.push_back(selector);
  plan.retentions.push_back(
      {.rule = plan::RetentionRule::window, .sink = sink, .budget = selector.budget, .compensates = true});
  for (int head = 0; head < kKvHeads; ++head) {
    plan.role(0, head) = {.kind = plan::RoleKind::stream, .selector = 0, .retention = 0};
  }
  plan::validate(plan);
  return plan;
}

struct Case {
  KvType type;
  int sink, budget, prompt;
};

void PrintTo(const Case& row, std::ostream* out) {
  *out << name(row.type) << " sink " << row.sink << " budget " << row.budget << " prompt " << row.prompt;
}

class Compensation : public testing::TestWithParam<Case> {};

TEST_P(Compensation, IsTheMeanOfWhatTheWindowLost) {
  const Case& row = GetParam();
  const plan::Plan plan = razor_plan(row.sink, row.budget);
  kv::Cache cache({1, kKvHeads, {row.type, kDim}, 1024});
  Runner runner({1, kHeads, kKvHeads, kDim, 1, nullptr}, cache);
  const Program program(plan);
  SequenceState state(plan);
  const kv::SequenceId sequence = cache.create();
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const auto filled = [&](int count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& x : values) x = normal(random);
    return values;
  };
  methods::Rows keys[kKvHeads], values[kKvHeads];  // as the cache has them
  const auto run = [&](int rows, bool decode, std::vector<float>& q) {
    SequenceRows entry;
    entry.sequence = sequence;
    entry.program = &program;
    entry.state = &state;
    entry.rows = rows;
    entry.kind = decode ? PassKind::decode : PassKind::prompt;
    entry.position = cache.length(sequence);
    entry.prompt_end = entry.position + rows;
    runner.begin({&entry, 1});
    for (int head = 0; head < kKvHeads; ++head) {
      const std::vector<float> k = filled(rows * kDim), v = filled(rows * kDim);
      runner.append({0, head, 0, 0, rows, k.data(), v.data(), kDim});
      for (int r = 0; r < rows; ++r) {
        const std::vector<float> key = kv::key_at(cache, sequence, 0, head, entry.position + r);
        const std::vector<float> value = kv::value_at(cache, sequence, 0, head, entry.position + r);
        keys[head].emplace_back(key.begin(), key.end());
        values[head].emplace_back(value.begin(), value.end());
      }
    }
    runner.appended(0, 1);
    q = filled(rows * kHeads * kDim);
    std::vector<float> out(q.size());
    runner.attend(0, q.data(), out.data(), 0, 1);
    runner.end();
    return out;
  };
  std::vector<float> q;
  run(row.prompt, false, q);
  for (int step = 0; step < 60; ++step) {
    if (step == 40) run(37, false, q);  // a second prompt
    const std::vector<float> out = run(1, true, q);
    const std::int64_t tokens = cache.length(sequence);
    const methods::Set read = methods::sink_and_window(tokens, row.sink, row.budget - row.sink);
    methods::Set dropped;
    for (std::int64_t i = row.sink; i < tokens - (row.budget - row.sink); ++i) {
      dropped.push_back(static_cast<std::int32_t>(i));
    }
    ASSERT_FALSE(dropped.empty());
    for (int head = 0; head < kHeads; ++head) {
      const int kv = head / kGroup;
      const auto at = static_cast<std::size_t>(head) * kDim;
      const methods::Row query(q.begin() + static_cast<std::ptrdiff_t>(at),
                               q.begin() + static_cast<std::ptrdiff_t>(at) + kDim);
      const methods::Row expected = methods::compensated_attention(query, {&keys[kv], &values[kv]}, read, dropped);
      for (std::size_t i = 0; i < kDim; ++i) {
        ASSERT_NEAR(out[at + i], expected[i], 2e-5) << "step " << step << ", head " << head;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Compensation,
                         testing::Values(Case{KvType::f32, 4, 48, 330}, Case{KvType::bf16, 4, 40, 77},
                                         Case{KvType::q8_0, 20, 64, 203}, Case{KvType::f16, 0, 33, 300},
                                         Case{KvType::f32, 16, 48, 49}),
                         PrintedName());

}  // namespace
}  // namespace glimpse::attention
