// Similarity of layers against the engine itself: a plan in which one layer selects and one later layer reads its set,
// run as audited decode steps, captures the mass that the tables say.
#include "glimpse/calibrate/similarity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/engine/support.h"
#include "tests/support/test_names.h"

namespace glimpse::calibrate {
namespace {

constexpr int kBudget = 24, kSteps = 3;
constexpr std::int64_t kPrompt = 200;

class SimilarityOf : public testing::TestWithParam<const char*> {
 protected:
  engine::Engine engine_{engine::options_for(reference::test_model(GetParam()))};
  plan::ModelShape shape_ = engine_.shape();
  std::vector<Token> tokens_ =
      engine::random_tokens(static_cast<std::size_t>(kPrompt) + kSteps + 1, engine_.tokenizer().size());
  engine::Sequence dense_ = engine_.open(plan::dense_plan(shape_));

  void SetUp() override { dense_.prefill(std::span(tokens_).first(static_cast<std::size_t>(kPrompt))); }

  /// [step] mass of head `to` of layer b on the set of head `from` of layer a, from the kernels' own audit.
  std::vector<double> audited(int a, int b, int to, int from) {
    plan::Plan plan = plan::dense_plan(shape_);
    plan.selectors.push_back({.terms = {plan::Term{}}, .budget = {plan::BudgetRule::tokens, kBudget}});
    plan.role(a, from) = {.kind = plan::RoleKind::select, .selector = 0, .attends_set = a == b};
    if (a != b) plan.role(b, to) = {.kind = plan::RoleKind::reuse, .reads = {a, from}};
    plan::validate(plan);
    std::vector<double> masses;
    for (int step = 0; step < kSteps; ++step) {
      engine::Sequence before = dense_.fork(plan::dense_plan(shape_));
      for (int i = 0; i < step; ++i) before.decode(tokens_[static_cast<std::size_t>(kPrompt + i)]);
      engine::Sequence sequence = before.fork(plan);
      sequence.on_sets([&](const engine::SetTrace& trace) {
        if (trace.layer == b && trace.kv_head == to) masses.push_back(trace.coverage.value());
      });
      sequence.decode(tokens_[static_cast<std::size_t>(kPrompt + step)], true);
    }
    return masses;
  }
};

TEST_P(SimilarityOf, IsWhatAPlanOfOneSelectAndOneReuseCaptures) {
  Recording recording = record(dense_, shape_, tokens_, kPrompt);
  recording.needle = {20, 21, 22, 150};
  recording.answer = 1;
  Similarity similarity(shape_, kBudget);
  evaluate::ThreadTeam three(3);
  for (evaluate::ThreadTeam* team : {&three, static_cast<evaluate::ThreadTeam*>(nullptr)}) {  // the mean of two
    similarity.begin(recording);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      similarity.add_layer(layer, pooled(attention_of(recording, shape_, layer, team), shape_.kv_heads, team), team);
    }
    similarity.end();
  }
  std::vector<double> by_layer(static_cast<std::size_t>(shape_.layers * shape_.layers));
  const auto place = [&](int a, int b) { return static_cast<std::size_t>(a * shape_.layers + b); };
  for (int b = 0; b < shape_.layers; ++b) {
    by_layer[place(b, b)] = 1;
    for (int to = 0; to < shape_.kv_heads; ++to) {
      const std::vector<double> own = audited(b, b, to, to);
      ASSERT_EQ(own.size(), static_cast<std::size_t>(kSteps));
      EXPECT_DOUBLE_EQ(similarity.similarity(b, b, to, to), 1);
      for (int a = 0; a < b; ++a) {
        double most = 0;
        for (int from = 0; from < shape_.kv_heads; ++from) {
          const std::vector<double> mass = audited(a, b, to, from);
          double least = 1;
          for (std::size_t step = 0; step < mass.size(); ++step) least = std::min(least, mass[step] / own[step]);
          EXPECT_NEAR(similarity.similarity(a, b, to, from), least, 2e-3)
              << "layer " << a << " head " << from << " for layer " << b << " head " << to;
          most = std::max(most, least);
        }
        by_layer[place(a, b)] += most / shape_.kv_heads;
      }
    }
  }
  EXPECT_THAT(similarity.by_layer(), testing::Pointwise(testing::DoubleNear(2e-3), by_layer));
}

TEST_P(SimilarityOf, NeedleMassIsThatOfTheCachedKeys) {
  Recording recording = record(dense_, shape_, tokens_, kPrompt);
  recording.needle = {20, 21, 22, 150};
  recording.answer = 1;
  Similarity similarity(shape_, kBudget);
  similarity.begin(recording);
  evaluate::ThreadTeam team(2);
  for (int layer = 0; layer < shape_.layers; ++layer) {
    similarity.add_layer(layer, pooled(attention_of(recording, shape_, layer, &team), shape_.kv_heads, &team), &team);
  }
  similarity.end();
  // The mass on needles, by a softmax of its own over keys and queries.
  std::map<std::pair<int, int>, double> mass;
  double all = 0;
  engine::Sequence sequence = dense_.fork(plan::dense_plan(shape_));
  std::int64_t seen = kPrompt;
  const auto dim = static_cast<std::size_t>(shape_.head_dim);
  std::vector<std::pair<std::pair<int, int>, std::vector<float>>> queries;
  sequence.on_sets([&](const engine::SetTrace& trace) {
    queries.push_back({{trace.layer, trace.kv_head}, {trace.query.begin(), trace.query.end()}});
  });
  for (int step = 0; step < kSteps; ++step) {
    queries.clear();
    sequence.decode(tokens_[static_cast<std::size_t>(kPrompt + step)]);
    ++seen;
    if (step < recording.answer) continue;
    for (const auto& [head, query] : queries) {
      for (std::size_t j = 0; j < query.size() / dim; ++j) {
        double total = 0, found = 0;
        for (std::int64_t at = 0; at < seen; ++at) {
          const std::vector<float> key = sequence.key(head.first, head.second, at);
          double dot = 0;
          for (std::size_t i = 0; i < dim; ++i) dot += static_cast<double>(key[i]) * query[j * dim + i];
          const double weight = std::exp(dot / std::sqrt(static_cast<double>(dim)));
          total += weight;
          if (std::count(recording.needle.begin(), recording.needle.end(), at) > 0) found += weight;
        }
        const double share = found / total / static_cast<double>(shape_.group());
        mass[head] += share;
        all += share;
      }
    }
  }
  for (const auto& [head, sum] : mass) {
    EXPECT_NEAR(similarity.needle_share(head.first, head.second), sum / all, 1e-4);
    // A set that holds everything captures it all; of a smaller one the share is a part.
    EXPECT_LE(similarity.captured(head.first, head.first, head.second, head.second), sum / all + 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SimilarityOf, testing::Values("llama", "qwen3"), PrintedName());

}  // namespace
}  // namespace glimpse::calibrate
