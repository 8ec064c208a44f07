// Coverage, known and audited, against softmax masses in double from the cached keys and the queries of each step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "tests/engine/support.h"
#include "tests/support/test_names.h"

namespace glimpse::engine {
namespace {

constexpr std::size_t kPrompt = 300;
constexpr int kSteps = 3;

struct Sets {
  int layer, head;
  plan::RoleKind role;
  bool reads_all;
  std::vector<std::vector<std::int32_t>> read;       ///< one, or one for each query head
  std::vector<std::vector<std::int32_t>> published;  ///< the same; empty: nothing, or everything
  bool publishes_all;
  std::vector<float> query;
  std::optional<double> coverage;
};

struct Mass {
  double sum = 0, least = 1;
  std::int64_t count = 0;
  void add(double mass) {
    sum += mass;
    least = std::min(least, mass);
    ++count;
  }
};

class CoverageOf : public testing::TestWithParam<const char*> {
 protected:
  Engine engine_{options_for(reference::test_model("llama"))};

  /// [query head][token] probabilities of a head.
  std::vector<std::vector<double>> probabilities(const Sequence& sequence, const Sets& sets) const {
    const plan::ModelShape shape = engine_.shape();
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    std::vector<std::vector<double>> all;
    for (std::size_t j = 0; j < static_cast<std::size_t>(shape.group()); ++j) {
      std::vector<double>& scores = all.emplace_back();
      for (std::int64_t at = 0; at < sequence.length(); ++at) {
        const std::vector<float> key = sequence.key(sets.layer, sets.head, at);
        double dot = 0;
        for (std::size_t i = 0; i < dim; ++i) dot += static_cast<double>(key[i]) * sets.query[j * dim + i];
        scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
      }
      const double largest = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - largest);
      for (double& score : scores) score /= sum;
    }
    return all;
  }

  static void add(Mass& mass, const std::vector<std::vector<double>>& probabilities,
                  const std::vector<std::vector<std::int32_t>>& lists) {
    for (std::size_t l = 0; l < lists.size(); ++l) {
      double sum = 0;
      for (std::size_t j = 0; j < probabilities.size(); ++j) {
        if (lists.size() > 1 && j != l) continue;
        for (const std::int32_t token : lists[l]) sum += probabilities[j][static_cast<std::size_t>(token)];
      }
      mass.add(lists.size() > 1 ? sum : sum / static_cast<double>(probabilities.size()));
    }
  }
};

std::vector<std::vector<std::int32_t>> lists_of(const SetTrace& trace, std::span<const std::int32_t> one) {
  if (!trace.query_sets.empty()) return {trace.query_sets.begin(), trace.query_sets.end()};
  return {{one.begin(), one.end()}};
}

TEST_P(CoverageOf, EqualsDoublePrecision) {
  const std::string words = GetParam();
  const std::size_t slash = words.find('/');
  std::map<std::string, std::string> extra;
  if (slash != std::string::npos) {
    const std::string option = words.substr(slash + 1);
    extra[option.substr(0, option.find('='))] = option.substr(option.find('=') + 1);
  }
  const plan::Plan plan = make(engine_, words.substr(0, slash), budget("64", extra));
  Sequence sequence = engine_.open(plan);
  const std::vector<Token> tokens = random_tokens(kPrompt + kSteps, engine_.tokenizer().size(), 3);
  sequence.prefill(std::span(tokens).first(kPrompt));
  Mass known, audited;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Sets> seen;
    sequence.on_sets([&](const SetTrace& trace) {
      Sets sets{trace.layer,
                trace.kv_head,
                trace.role,
                trace.reads_all,
                lists_of(trace, trace.tokens),
                {},
                trace.publishes_all,
                {trace.query.begin(), trace.query.end()},
                trace.coverage};
      if (trace.publishes && !trace.publishes_all) sets.published = lists_of(trace, trace.published);
      seen.push_back(std::move(sets));
    });
    sequence.decode(tokens[kPrompt + static_cast<std::size_t>(step)], true);
    for (const Sets& sets : seen) {
      const auto all = probabilities(sequence, sets);
      Mass own;
      sets.reads_all ? own.add(1) : add(own, all, sets.read);
      ASSERT_TRUE(sets.coverage.has_value());
      EXPECT_NEAR(*sets.coverage, own.sum / static_cast<double>(own.count), 1e-4);
      sets.reads_all ? audited.add(1) : add(audited, all, sets.read);
      const plan::Role& role = plan.role(sets.layer, sets.head);
      if (role.kind != plan::RoleKind::select) continue;
      const plan::Term& term = plan.selectors[static_cast<std::size_t>(role.selector)].terms.front();
      if (plan::is_index(term.source) || term.source == plan::Source::heat) continue;
      if (role.attends_set && term.source != plan::Source::probability) continue;  // chosen before any softmax
      if (sets.publishes_all) {
        known.add(1);
      } else if (!sets.published.empty()) {
        add(known, all, sets.published);
      }
    }
  }
  const AttentionStats& stats = sequence.stats();
  EXPECT_EQ(stats.audits, kSteps);
  EXPECT_EQ(stats.audited.sets, audited.count);
  EXPECT_NEAR(stats.audited.mean, audited.sum / static_cast<double>(audited.count), 1e-4);
  EXPECT_NEAR(stats.audited.least, audited.least, 1e-3);
  EXPECT_GT(stats.audit_s, 0);
  EXPECT_EQ(stats.coverage.sets, known.count);
  if (known.count > 0) {
    EXPECT_NEAR(stats.coverage.mean, known.sum / static_cast<double>(known.count), 1e-4);
    EXPECT_NEAR(stats.coverage.least, known.least, 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, CoverageOf,
                         testing::Values("tidal", "tidal/set=query-head", "tidal/set=layer", "lychee-decode", "kascade",
                                         "quest", "lychee-cluster", "clusterkv", "oracle"),
                         PrintedName());

TEST(Audit, CountsAndTimeAreThoseOfTheirOwnSequence) {
  Engine engine(options_for(reference::test_model("llama")));
  const std::int64_t heads = std::int64_t{engine.shape().layers} * engine.shape().kv_heads;
  std::map<std::int64_t, RequestId> ids;  // by how often they are audited, in the same passes
  for (const std::int64_t every : {1, 2, 0}) {
    Request request;
    request.prompt = random_tokens(200, engine.tokenizer().size());
    request.plan = make(engine, "quest", budget("64"));
    request.max_tokens = 5;
    request.ignore_end = true;
    request.audit_every = every;
    ids[every] = engine.submit(std::move(request));
  }
  while (engine.step()) {
  }
  // The first of 5 tokens comes of the prompt: 4 are decoded.
  for (const auto& [every, audits] : std::map<std::int64_t, std::int64_t>{{1, 4}, {2, 2}, {0, 0}}) {
    const AttentionStats& stats = engine.result(ids.at(every)).stats.attention;
    EXPECT_EQ(stats.audits, audits);
    EXPECT_EQ(stats.audited.sets, audits * heads);
    EXPECT_EQ(stats.audit_s == 0, audits == 0) << "an audit of another sequence counts";
  }
}

TEST(BytesRead, SetsOfQueryHeadsAreCountedAsTheyAreRead) {
  Engine engine(options_for(reference::test_model("llama")));
  const plan::ModelShape shape = engine.shape();
  const std::int64_t row_bytes = static_cast<std::int64_t>(engine.row_pair_bytes()) / 2;
  for (const char* set : {"query-head", "kv-head"}) {
    SCOPED_TRACE(set);
    const std::int64_t lists = std::string(set) == "query-head" ? shape.group() : 1;
    Sequence sequence = engine.open(make(engine, "tidal", budget("200", {{"set", set}})));
    const std::vector<Token> tokens = random_tokens(kPrompt + 8, engine.tokenizer().size(), 5);
    sequence.prefill(std::span(tokens).first(kPrompt));
    decoded(sequence, std::span(tokens).subspan(kPrompt));
    // Layers 0, 1 and 2 read all, layer 3 reads the lists of its head: from the plan.
    std::int64_t read = 0, dense = 0;
    for (std::int64_t length = kPrompt + 1; length <= static_cast<std::int64_t>(kPrompt) + 8; ++length) {
      read += 2 * shape.kv_heads * (3 * length + lists * 200) * row_bytes;
      dense += 2 * shape.kv_heads * 4 * length * row_bytes;
    }
    const AttentionStats& stats = sequence.stats();
    EXPECT_EQ(stats.bytes_read, read);
    EXPECT_EQ(stats.dense_bytes, dense);
    EXPECT_DOUBLE_EQ(stats.kept_ratio(), static_cast<double>(read) / static_cast<double>(dense));
    EXPECT_EQ(stats.kept_ratio() > 1, lists > 1);
    EXPECT_EQ(stats.sparse_steps, 8) << "no step was dense";
    EXPECT_EQ(stats.dense_steps, 0);
  }
}

TEST(DenseSteps, SayWhy) {
  Engine engine(options_for(reference::test_model("llama")));
  const auto reasons = [&](const plan::Plan& plan) {
    Sequence sequence = engine.open(plan);
    const std::vector<Token> tokens = random_tokens(kPrompt + 4, engine.tokenizer().size(), 5);
    sequence.prefill(std::span(tokens).first(kPrompt));
    decoded(sequence, std::span(tokens).subspan(kPrompt));
    EXPECT_EQ(sequence.stats().dense_steps + sequence.stats().sparse_steps, 4);
    return sequence.stats().dense_by;  // method, context, budget, verify, drafts
  };
  EXPECT_EQ(reasons(make(engine, "full", {})), (DenseSteps{4, 0, 0, 0, 0}));
  EXPECT_EQ(reasons(make(engine, "tidal", budget("200"))), DenseSteps{});
  EXPECT_EQ(reasons(make(engine, "tidal", budget("100000"))), (DenseSteps{0, 0, 4, 0, 0}));
  policies::PolicyOptions late = budget("200");
  late.min_context = static_cast<int>(kPrompt) + 3;  // two of the four steps are below
  EXPECT_EQ(reasons(make(engine, "tidal", late)), (DenseSteps{0, 2, 0, 0, 0}));
}

TEST(CoverageBudget, CapturesAtLeastWhatItSays) {
  Engine engine(options_for(reference::test_model("llama")));
  for (const char* wanted : {"coverage=0.5", "coverage=0.9", "coverage=0.99"}) {
    SCOPED_TRACE(wanted);
    Sequence sequence = engine.open(make(engine, "oracle", budget(wanted)));
    const std::vector<Token> tokens = random_tokens(kPrompt + kSteps, engine.tokenizer().size(), 8);
    sequence.prefill(std::span(tokens).first(kPrompt));
    for (int step = 0; step < kSteps; ++step) sequence.decode(tokens[kPrompt + static_cast<std::size_t>(step)], true);
    EXPECT_GT(sequence.stats().coverage.sets, 0);
    const double least = std::stod(std::string(wanted).substr(9));
    EXPECT_GE(sequence.stats().coverage.least, least - 1e-4);
  }
}

TEST(CoverageBudget, OfOneIsDenseBitForBit) {
  Engine engine(options_for(reference::test_model("llama")));
  const std::vector<Token> tokens = random_tokens(kPrompt + kSteps, engine.tokenizer().size(), 8);
  std::vector<std::vector<float>> logits;
  for (const char* policy : {"full", "oracle", "lychee-decode"}) {
    Sequence sequence = engine.open(
        make(engine, policy, std::string(policy) == "full" ? policies::PolicyOptions() : budget("coverage=1")));
    sequence.prefill(std::span(tokens).first(kPrompt));
    std::vector<float>& all = logits.emplace_back();
    for (int step = 0; step < kSteps; ++step) {
      const auto row = sequence.decode(tokens[kPrompt + static_cast<std::size_t>(step)]);
      all.insert(all.end(), row.begin(), row.end());
    }
  }
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_EQ(logits[0], logits[2]);
}

}  // namespace
}  // namespace glimpse::engine
