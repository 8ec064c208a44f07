// The sets that the engine reads against a brute-force transcription of the methods, in double precision, from the
// queries and keys dumped at each step. Shares no code with the engine's selection.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

struct Copy {
  SetTrace trace;
  std::vector<std::int32_t> tokens, published;
  std::vector<std::vector<std::int32_t>> query_sets;
  std::vector<float> query;
  std::vector<std::vector<float>> keys;  ///< [position, d], of selecting heads
};

struct Recording {
  plan::ModelShape shape;
  std::vector<Copy> records;
};

/// Prefills and decodes `steps` tokens; keeps every record, with keys where a set is published.
Recording record_run(const std::filesystem::path& model, const std::string& policy,
                     const policies::PolicyOptions& options, int steps) {
  Engine engine(options_for(model, KvType::bf16));
  Recording run{engine.shape(), {}};
  const std::vector<Token> tokens = random_tokens(300, engine.tokenizer().size(), 11);
  Sequence sequence = engine.open(make(engine, policy, options));
  sequence.prefill(tokens);
  sequence.on_sets([&](const SetTrace& trace) {
    Copy copy{trace,
              {trace.tokens.begin(), trace.tokens.end()},
              {trace.published.begin(), trace.published.end()},
              {trace.query_sets.begin(), trace.query_sets.end()},
              {trace.query.begin(), trace.query.end()},
              {}};
    if (trace.publishes) {
      for (std::int64_t i = 0; i <= trace.position; ++i)
        copy.keys.push_back(sequence.key(trace.layer, trace.kv_head, i));
    }
    run.records.push_back(std::move(copy));
  });
  std::span<const float> logits;
  Token token = 5;
  for (int step = 0; step < steps; ++step) {
    logits = sequence.decode(token);
    token = static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  return run;
}

std::vector<double> probabilities(const Copy& record, int query_head, int dim) {
  std::vector<double> p(record.keys.size());
  for (std::size_t i = 0; i < p.size(); ++i) {
    double dot = 0;
    for (int x = 0; x < dim; ++x) {
      dot += static_cast<double>(record.query[static_cast<std::size_t>(query_head * dim + x)]) *
             static_cast<double>(record.keys[i][static_cast<std::size_t>(x)]);
    }
    p[i] = dot / std::sqrt(static_cast<double>(dim));
  }
  const double top = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - top);
  for (double& value : p) value /= sum;
  return p;
}

/// The k best tokens, the current one forced in; compared with tolerance at the cut.
void expect_top_k(const std::vector<double>& scores, std::size_t k, const std::vector<std::int32_t>& set) {
  ASSERT_EQ(set.size(), k);
  ASSERT_TRUE(std::is_sorted(set.begin(), set.end()));
  ASSERT_EQ(std::set<std::int32_t>(set.begin(), set.end()).size(), k);
  const auto current = static_cast<std::int32_t>(scores.size()) - 1;
  ASSERT_TRUE(std::binary_search(set.begin(), set.end(), current));
  std::vector<std::int32_t> order(scores.size() - 1);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  const double cut = scores[static_cast<std::size_t>(order[k - 2])];
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double score = scores[static_cast<std::size_t>(order[i])];
    if (std::abs(score - cut) <= 1e-5 * std::abs(cut)) continue;  // may swap
    ASSERT_EQ(std::binary_search(set.begin(), set.end(), order[i]), i < k - 1) << "token " << order[i];
  }
}

class TidalSets : public testing::TestWithParam<std::string> {};

TEST_P(TidalSets, EqualTheTranscription) {
  const std::size_t k = 48;
  auto path = reference::embedded_model();
  if (path.empty() || reference::kSanitized) path = reference::test_model("llama");
  const Recording run = record_run(path, "tidal", budget("48", {{"set", GetParam()}}), 16);
  const int layers = run.shape.layers, group = run.shape.group(), dim = run.shape.head_dim;
  // The paper: layers 0 and 1 dense, 2 selects, one in the middle re-selects, the others reuse.
  const int middle = static_cast<int>(std::lround(13.0 * layers / 32));
  std::map<int, std::vector<Copy>> steps;
  for (const Copy& record : run.records) steps[static_cast<int>(record.trace.step)].push_back(record);
  ASSERT_EQ(steps.size(), 16u);
  int checked = 0;
  for (auto& [step, records] : steps) {
    ASSERT_EQ(records.size(), static_cast<std::size_t>(layers * run.shape.kv_heads));
    std::map<std::pair<int, int>, const Copy*> at;
    for (const Copy& record : records) at[{record.trace.layer, record.trace.kv_head}] = &record;
    for (const int layer : {2, middle}) {
      std::vector<double> pooled_layer(static_cast<std::size_t>(records.front().trace.position) + 1);
      for (int head = 0; head < run.shape.kv_heads; ++head) {
        const Copy& record = *at.at({layer, head});
        ASSERT_EQ(record.trace.role, plan::RoleKind::select);
        ASSERT_TRUE(record.trace.reads_all);
        std::vector<double> mean(record.keys.size());
        for (int j = 0; j < group; ++j) {
          const std::vector<double> p = probabilities(record, j, dim);
          for (std::size_t i = 0; i < p.size(); ++i) {
            mean[i] += p[i] / group;
            pooled_layer[i] += p[i] / (group * run.shape.kv_heads);
          }
          if (GetParam() == "query-head") expect_top_k(p, k, record.query_sets.at(static_cast<std::size_t>(j)));
        }
        if (GetParam() == "kv-head") expect_top_k(mean, k, record.published);
        ++checked;
      }
      if (GetParam() == "layer") expect_top_k(pooled_layer, k, at.at({layer, 0})->published);
    }
    for (int layer = 0; layer < layers; ++layer) {
      for (int head = 0; head < run.shape.kv_heads; ++head) {
        const Copy& record = *at.at({layer, head});
        if (layer < 2) {
          EXPECT_EQ(record.trace.role, plan::RoleKind::dense);
        }
        if (layer <= 2 || layer == middle) continue;
        ASSERT_EQ(record.trace.role, plan::RoleKind::reuse) << layer;
        const Copy& source = *at.at({layer > middle ? middle : 2, GetParam() == "layer" ? 0 : head});
        if (GetParam() == "query-head") {
          EXPECT_EQ(record.query_sets, source.query_sets);
        } else {
          EXPECT_EQ(record.tokens, source.published);
        }
      }
    }
  }
  EXPECT_EQ(checked, 16 * 2 * run.shape.kv_heads);
}

INSTANTIATE_TEST_SUITE_P(Sets, TidalSets, testing::Values("kv-head", "query-head", "layer"), [](const auto& row) {
  std::string name = row.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(StreamingSets, AreSinkAndWindow) {
  const Recording run = record_run(reference::test_model("llama"), "streaming", budget("64"), 40);
  ASSERT_FALSE(run.records.empty());
  for (const Copy& record : run.records) {
    std::vector<std::int32_t> expected{0, 1, 2, 3};
    for (std::int64_t i = record.trace.position - 59; i <= record.trace.position; ++i) {
      expected.push_back(static_cast<std::int32_t>(i));
    }
    ASSERT_EQ(record.tokens, expected);
  }
}

TEST(StreamingSets, FreeTheCacheTheyLeave) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  Sequence sequence = engine.open(make(engine, "streaming", budget("64")));
  sequence.prefill(random_tokens(300, engine.tokenizer().size()));
  sequence.decode(4);
  EXPECT_NO_THROW(sequence.key(1, 0, 3));
  EXPECT_NO_THROW(sequence.key(1, 0, 290));
  EXPECT_ANY_THROW(sequence.key(1, 0, 150));
}

}  // namespace
}  // namespace glimpse::engine
