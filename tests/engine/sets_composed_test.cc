// Selectors in other methods' plans: every selector in every host, as the engine runs it. What digests and gates choose
// is compared with brute force; of clusters, whose search is checked beside the index itself, what does not hang on how
// they were built, and that they choose in a host what they choose alone.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "glimpse/attention/cpu/runner.h"
#include "glimpse/base/error.h"
#include "glimpse/policies/selectors.h"
#include "tests/engine/gates.h"
#include "tests/engine/recording.h"

namespace glimpse::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kSteps = 16, kBudget = 128;
/// Whole chunks of 8 and of 16: what comes after it is all that their indices do not cover.
constexpr std::int64_t kPrompt = 320 - kSteps;
constexpr const char* kModel = "llama";  // four layers, two KV heads of three queries

using Extra = std::map<std::string, std::string>;

/// A method whose layers share sets.
struct Host {
  std::string name, key;
  Extra extra;
  std::vector<std::string> heads;  ///< as expect_roles takes them
};

void PrintTo(const Host& host, std::ostream* out) {
  *out << host.name;
}

const std::vector<Host>& hosts() {
  static const std::vector<Host> all{
      {"tidal", "selector", {{"select", "0"}, {"reselect", "2"}}, {"SRSR", "SRSR"}},
      {"lychee-decode", "selector", {{"retrieval", "3"}}, {"SRRR", "DSRR"}},
      {"kascade", "anchor-selector", {{"anchors", "0+2"}}, {"SRSR", "SRSR"}},
      {"omnikv", "selector", {{"filters", "0"}}, {"SDRR", "SDRR"}},
      {"lessismore", "selector", {{"select", "1"}, {"reselect", "none"}}, {"DSRR", "DSRR"}},
  };
  return all;
}

/// What a set came from.
struct Choice {
  const methods::Set& set;
  const methods::Rows& queries;
  const methods::Rows& keys;
  std::size_t gate;  ///< [layer * kv_heads + head]
  std::int64_t tokens() const { return static_cast<std::int64_t>(keys.size()); }
};

struct Chooser {
  std::string name, word;
  Extra extra;
  std::function<void(const Choice&)> check;  ///< by gtest; none: exact scores, which every host pools its own way
};

void PrintTo(const Chooser& chooser, std::ostream* out) {
  *out << chooser.name;
}

methods::Scores best_of_group(const Choice& choice, std::int64_t page, std::pair<methods::PageScore, double> how) {
  std::vector<methods::Scores> rows;
  for (const methods::Row& query : choice.queries) rows.push_back(methods::page_scores(query, choice.keys, page, how));
  return methods::maximum(rows);
}

std::function<void(const Choice&)> best_pages(std::int64_t page, methods::PageScore score, double weight = 0) {
  return [=](const Choice& choice) {
    const methods::Frame frame{methods::Rule::count, kBudget, page};
    const methods::Scores scores = best_of_group(choice, page, {score, weight});
    EXPECT_EQ(choice.set, methods::choose_units(scores, choice.tokens(), frame, choice.set));
  };
}

/// Chunks of 16 without their tree are pages whose window is the buffer: all that came after the prompt.
void expect_best_chunks(const Choice& choice) {
  const methods::Frame frame{methods::Rule::count, kBudget, 16, 16, choice.tokens() - kPrompt};
  const methods::Scores scores = best_of_group(choice, 16, {methods::PageScore::min_max, 0});
  EXPECT_EQ(choice.set, methods::choose_units(scores, choice.tokens(), frame, choice.set));
}

constexpr int kOutliers = 4;

/// Beside the window of 32 and every new token: the outliers, and of the other chunks of 8 the best.
void expect_best_landmarks(const Choice& choice) {
  constexpr std::int64_t kChunk = 8, kLocal = 32;
  const methods::Rows prompt(choice.keys.begin(), choice.keys.begin() + kPrompt);
  methods::Scores looseness = methods::chunk_cohesion(prompt, kChunk);
  for (double& value : looseness) value = -value;
  methods::Set chunks;
  for (std::int32_t c = 0; c < kPrompt / kChunk; ++c) chunks.push_back(c);
  std::vector<bool> held(chunks.size());
  for (const std::int32_t i : choice.set) {
    if (i < kPrompt) held[static_cast<std::size_t>(i / kChunk)] = true;
  }
  methods::Set read = methods::best(looseness, chunks, kOutliers, held);
  const std::int64_t window = std::min(kPrompt, (choice.tokens() - kLocal) / kChunk * kChunk);
  std::erase_if(
      chunks, [&](std::int32_t c) { return c * kChunk >= window || std::binary_search(read.begin(), read.end(), c); });
  const methods::Scores scores = methods::landmark_scores(choice.queries, prompt, kChunk, chunks);
  const methods::Set best = methods::best(scores, chunks, kBudget / kChunk, held);
  read.insert(read.end(), best.begin(), best.end());
  methods::Set expected;
  for (std::int32_t i = 0; i < choice.tokens(); ++i) {
    if (i >= window || std::find(read.begin(), read.end(), i / kChunk) != read.end()) expected.push_back(i);
  }
  EXPECT_EQ(choice.set, expected);
}

/// 16 sinks and every new token: they fit the buffer of one and wait for the clusters of the other. At most one chunk
/// of 16 short of the budget: there is always more to take.
std::function<void(const Choice&)> within_budget(bool counts_new) {
  return [=](const Choice& choice) {
    const methods::Set& set = choice.set;
    const std::int64_t made = choice.tokens() - kPrompt;
    EXPECT_EQ(std::adjacent_find(set.begin(), set.end(), std::greater_equal<>()), set.end()) << "ascending, none twice";
    const methods::Set must = methods::sink_and_window(choice.tokens(), 16, made);
    EXPECT_TRUE(std::includes(set.begin(), set.end(), must.begin(), must.end()));
    const auto most = static_cast<std::size_t>(kBudget + (counts_new ? 0 : made));
    EXPECT_LE(set.size(), most);
    EXPECT_GT(set.size(), most - 16);
  };
}

void expect_best_gates(const Choice& choice) {
  static const std::vector<methods::Gate> gates = make_gates(recorded_model(kModel), {}).heads;
  const methods::Scores scores = methods::gate_scores(gates.at(choice.gate), choice.queries, choice.keys);
  const methods::Frame frame{methods::Rule::count, kBudget, 64};
  EXPECT_EQ(choice.set, methods::choose_units(scores, choice.tokens(), frame, choice.set));
}

const std::vector<Chooser>& choosers() {
  using methods::PageScore;
  static const std::vector<Chooser> all{
      {"exact", "exact", {}, {}},
      {"quest", "quest", {}, best_pages(16, PageScore::min_max)},
      {"quest_mean_and_deviation",
       "quest",
       {{"score", "meanstd"}, {"deviation-weight", "0.5"}},
       best_pages(16, PageScore::mean_deviation, 0.5)},
      {"arkvale", "arkvale", {}, best_pages(32, PageScore::min_max)},
      {"arkvale_sphere", "arkvale", {{"digest", "sphere"}}, best_pages(32, PageScore::sphere)},
      {"shadowkv", "shadowkv", {{"outliers", fmt::to_string(kOutliers)}}, expect_best_landmarks},
      {"lychee_cluster", "lychee-cluster", {}, within_budget(true)},
      {"lychee_cluster_chunks", "lychee-cluster", {{"chunks", "fixed"}, {"score", "minmax"}}, expect_best_chunks},
      {"clusterkv", "clusterkv", {{"tokens-per-cluster", "16"}}, within_budget(false)},
      {"seer", "seer", {}, expect_best_gates},
  };
  return all;
}

bool known(std::string_view word) {
  return std::find(policies::kSelectorWords.begin(), policies::kSelectorWords.end(), word) !=
         policies::kSelectorWords.end();
}

policies::PolicyOptions composed(const Host& host, const Chooser& chooser, const Extra& more = {}) {
  Extra extra = host.extra;
  extra.emplace(host.key, chooser.word);
  for (const auto& [key, value] : chooser.extra) extra.emplace(host.key + "." + key, value);
  if (chooser.word == "seer") extra.emplace(host.key + ".gates", gates_of(recorded_model(kModel)));
  for (const auto& [key, value] : more) extra.insert_or_assign(key, value);
  return budget(fmt::to_string(kBudget), std::move(extra));
}

/// The tokens are the same in every run, whatever it says.
const RunOptions kHow{.steps = kSteps, .replayed = kSteps, .model = kModel};

/// The selector in every layer of a model that attends to everything, but for the last.
const Recording& alone(const Chooser& chooser) {
  static std::map<std::string, Recording> made;
  const auto found = made.find(chooser.name);
  if (found != made.end()) return found->second;
  plan::Plan plan = plan::dense_plan(shared_engine(kModel).shape());
  policies::PolicyOptions options = budget(fmt::to_string(kBudget), chooser.extra);
  add_needed(chooser.word, recorded_model(kModel), options);
  plan.selectors = {make(shared_engine(kModel), chooser.word, options).selectors.at(0)};
  plan.selectors[0].terms.at(0).index.key_rank = 0;  // how keys are read is not the selector's
  for (plan::Role& role : plan.roles) role = {.kind = plan::RoleKind::select, .selector = 0};
  const int last = plan.shape.layers - 1;  // reads, or nobody would select
  for (int head = 0; head < plan.shape.kv_heads; ++head) {
    plan.role(last, head) = {.kind = plan::RoleKind::reuse, .reads = {last - 1, head}};
  }
  return made.emplace(chooser.name, record_run(plan, kHow)).first->second;
}

/// What the host's exact scores choose from the same numbers.
methods::Set exact_set(const Host& host, const Recording& run, const StepRecord& step, int layer, int head) {
  const HeadStep& record = run.at(step, layer, head);
  const methods::Set& guide = record.published;
  methods::Frame frame{methods::Rule::count, kBudget};
  std::vector<methods::Scores> rows;
  if (host.name == "tidal" || host.name == "kascade") {
    rows = methods::head_probabilities(record.queries, run.keys_at(step, layer, head));
    return methods::choose(methods::mean(rows), frame, guide);
  }
  if (host.name == "lychee-decode") {
    return methods::choose(methods::mean_query_dots(record.queries, run.keys_at(step, layer, head)), frame, guide);
  }
  const bool dots = host.name == "lessismore";
  for (int other = 0; other < run.plan.shape.kv_heads; ++other) {
    const methods::Rows& queries = run.at(step, layer, other).queries;
    const methods::Rows keys = run.keys_at(step, layer, other);
    const auto own = dots ? methods::head_dots(queries, keys) : methods::head_probabilities(queries, keys);
    rows.insert(rows.end(), own.begin(), own.end());
  }
  if (!dots) return methods::choose(methods::maximum(rows), frame, guide);
  frame.sink = 4;
  frame.local = methods::quarter_window(kBudget, frame.sink);
  return methods::rank_merge(rows, frame, guide);
}

int count_of(char kind, const Host& host) {
  std::ptrdiff_t count = 0;
  for (const std::string& letters : host.heads) count += std::count(letters.begin(), letters.end(), kind);
  return static_cast<int>(count);
}

using Pair = std::pair<Host, Chooser>;

std::vector<Pair> pairs() {
  std::vector<Pair> all;
  for (const Host& host : hosts()) {
    for (const Chooser& chooser : choosers()) {
      if (known(chooser.word)) all.emplace_back(host, chooser);
    }
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Pair>& row) {
  std::string name = row.param.first.name + "_" + row.param.second.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class ComposedSets : public testing::TestWithParam<Pair> {};

TEST_P(ComposedSets, AreTheSelectorsAndReadAsTheHostSays) {
  const auto& [host, chooser] = GetParam();
  const bool exact = chooser.word == "exact";
  const Recording run = record_run(host.name, composed(host, chooser), kHow);
  ASSERT_EQ(run.prompt, kPrompt);
  expect_roles(run, host.heads);
  int selected = 0, others = 0, alike = 0;
  for (const StepRecord& step : run.steps) {
    bool dense = true;  // all that came before this layer
    for (int layer = 0; layer < run.plan.shape.layers; ++layer) {
      bool all = true;
      for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
        const HeadStep& record = run.at(step, layer, head);
        all = all && record.reads_all;
        if (record.role != plan::RoleKind::select) continue;
        SCOPED_TRACE(place(step, layer, head));
        ++selected;
        ASSERT_TRUE(record.publishes && !record.publishes_all);
        if (host.name == "kascade" && layer > 0) {
          EXPECT_EQ(record.tokens, record.published);
        } else {
          EXPECT_TRUE(record.reads_all);
        }
        const methods::Set own = exact_set(host, run, step, layer, head);
        if (exact) {
          EXPECT_EQ(record.published, own);
        } else {
          chooser.check({record.published, record.queries, run.keys_at(step, layer, head), run.index(layer, head)});
          others += record.published != own;
        }
        // Up to here the model knows nothing of the host.
        if (dense && !exact) {
          const Recording& other = alone(chooser);
          const StepRecord& same = other.steps.at(static_cast<std::size_t>(&step - run.steps.data()));
          EXPECT_EQ(record.queries, other.at(same, layer, head).queries);
          EXPECT_EQ(record.published, other.at(same, layer, head).published);
          ++alike;
        }
        if (HasFailure()) return;  // one is enough to read
      }
      dense = dense && all;
    }
  }
  EXPECT_EQ(selected, kSteps * count_of('S', host));
  EXPECT_EQ(expect_inherited(run), kSteps * count_of('R', host));
  if (!exact) {
    EXPECT_GT(others, selected / 2) << "the host's own selector chose";
    EXPECT_GE(alike, kSteps);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, ComposedSets, testing::ValuesIn(pairs()), name_of);

/// TidalDecode with a set per query head.
class ComposedQuerySets : public testing::TestWithParam<Chooser> {};

TEST_P(ComposedQuerySets, AreTheSelectorsForEachQuery) {
  const Host& host = hosts().front();
  const Chooser& chooser = GetParam();
  const Recording run = record_run(host.name, composed(host, chooser, {{"set", "query-head"}}), kHow);
  expect_roles(run, host.heads);
  int selected = 0, apart = 0;
  for (const StepRecord& step : run.steps) {
    for (const int layer : {0, 2}) {
      for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
        SCOPED_TRACE(place(step, layer, head));
        const HeadStep& record = run.at(step, layer, head);
        ASSERT_EQ(record.query_sets.size(), record.queries.size());
        for (std::size_t j = 0; j < record.queries.size(); ++j) {
          chooser.check(
              {record.query_sets[j], {record.queries[j]}, run.keys_at(step, layer, head), run.index(layer, head)});
        }
        ++selected;
        apart += record.query_sets[0] != record.query_sets[1];
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_EQ(selected, kSteps * count_of('S', host));
  EXPECT_GT(apart, selected / 2);
  EXPECT_EQ(expect_inherited(run), kSteps * count_of('R', host));
}

std::vector<Chooser> query_choosers() {
  std::vector<Chooser> all;
  for (const Chooser& chooser : choosers()) {
    if (chooser.check && chooser.word != "seer") all.push_back(chooser);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Sets, ComposedQuerySets, testing::ValuesIn(query_choosers()),
                         [](const auto& row) { return row.param.name; });

/// The text of the refusal; empty when it was accepted.
std::string refusal(const Host& host, const policies::PolicyOptions& options) {
  try {
    make(shared_engine(kModel), host.name, options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

auto names(const Host& host, const std::string& selector) {
  return AllOf(HasSubstr("policy '" + host.name + "'"), HasSubstr(selector));
}

// A host takes every selector; some of what else it can be told has no meaning for an index.
TEST(Composed, WhatASelectorCannotDoIsRefusedByBothNames) {
  for (const Host& host : hosts()) {
    const bool sets = host.name == "tidal" || host.name == "kascade";
    for (const Chooser& chooser : choosers()) {
      if (!chooser.check || !known(chooser.word)) continue;
      SCOPED_TRACE(chooser.name);
      policies::PolicyOptions options = composed(host, chooser);
      EXPECT_EQ(refusal(host, options), "");
      options.budget = plan::parse_budget("p=0.9");
      EXPECT_THAT(refusal(host, options), names(host, chooser.word == "seer" ? "gate" : chooser.word + "'s index"));
      const std::string chosen = host.key + "=" + chooser.word;
      if (sets) {
        EXPECT_THAT(refusal(host, composed(host, chooser, {{"set", "layer"}})), names(host, chosen));
      }
      if (host.name == "tidal" && chooser.word == "seer") {  // a gate takes the group's queries together
        EXPECT_THAT(refusal(host, composed(host, chooser, {{"set", "query-head"}})), names(host, chosen));
      }
      if (host.name == "lessismore") {
        EXPECT_THAT(refusal(host, composed(host, chooser, {{"local-share", "0.5"}})), names(host, chosen));
      }
    }
    EXPECT_THAT(refusal(host, budget("32", {{host.key, "quest"}})), names(host, "Quest reads at least 3 pages"));
    for (const policies::Policy& policy : policies::registry()) {
      if (known(policy.name)) continue;
      const std::string chosen = host.key + "=" + std::string(policy.name);
      EXPECT_THAT(refusal(host, budget("128", {{host.key, std::string(policy.name)}})), names(host, chosen));
    }
  }
}

TEST(Composed, EveryHostAndSelectorIsHere) {
  for (const policies::Policy& policy : policies::registry()) {
    for (const policies::OptionHelp& option : policy.options) {
      if (!option.selector) continue;
      EXPECT_TRUE(std::any_of(hosts().begin(), hosts().end(), [&](const Host& host) {
        return host.name == policy.name && host.key == option.key;
      })) << policy.name;
    }
  }
  for (const std::string_view word : policies::kSelectorWords) {
    EXPECT_TRUE(std::any_of(choosers().begin(), choosers().end(), [&](const Chooser& chooser) {
      return chooser.word == word;
    })) << word;
  }
}

/// What attention makes of a composed plan, layer by layer, from made-up rows: traces tell what should be read.
class ComposedOutputs : public testing::TestWithParam<Pair> {
 protected:
  static constexpr int kLayers = 4, kHeads = 6, kKvHeads = 2, kGroup = kHeads / kKvHeads, kDim = 16;

  static plan::Plan plan() {
    const auto& [host, chooser] = GetParam();
    const plan::ModelShape shape{"llama", "", kLayers, kHeads, kKvHeads, kDim, 4096};
    plan::Profile profile;
    profile.model = {"llama", "", kLayers, kHeads, kKvHeads, kDim, 0};
    policies::PolicyOptions options = composed(host, chooser);
    if (host.name == "kascade") {  // each head of a reusing layer reads the other's set
      profile.kascade = plan::KascadeProfile{{0, 2}, {0, 1, 1, 0, 0, 1, 1, 0}};
      options.profile = &profile;
      options.extra.erase("anchors");
    }
    return policies::make_plan(host.name, shape, options);
  }

  std::vector<float> made(int rows) {
    std::vector<float> values(static_cast<std::size_t>(rows) * kDim);
    for (float& x : values) x = normal_(random_);
    return values;
  }
  static void take(methods::Rows& to, const std::vector<float>& rows) {
    for (auto at = rows.begin(); at != rows.end(); at += kDim) to.emplace_back(at, at + kDim);
  }

  methods::Row attended(const methods::Row& query, int layer, int head, const methods::Set& set) const {
    const methods::Scores weights = methods::read_probabilities(query, keys_[layer][head], set);
    methods::Row out(kDim);
    for (std::size_t i = 0; i < set.size(); ++i) {
      for (std::size_t d = 0; d < kDim; ++d) {
        out[d] += weights[i] * values_[layer][head][static_cast<std::size_t>(set[i])][d];
      }
    }
    return out;
  }

  methods::Rows keys_[kLayers][kKvHeads], values_[kLayers][kKvHeads];
  std::mt19937 random_{3};
  std::normal_distribution<float> normal_;
};

TEST_P(ComposedOutputs, AreAttentionToTheTracedSets) {
  const plan::Plan plan = ComposedOutputs::plan();
  kv::Cache cache({kLayers, kKvHeads, {KvType::f32, kDim}, 1024});
  attention::Runner runner({kLayers, kHeads, kKvHeads, kDim, 1, nullptr}, cache);
  const attention::Program program(plan);
  attention::SequenceState state(plan);
  const kv::SequenceId sequence = cache.create();
  struct Read {
    bool all = false, sparse = false;
    std::vector<methods::Set> sets;  ///< one, or one for each query head
  };
  Read read[kLayers][kKvHeads];
  runner.on_head = [&](const attention::HeadRecord& record) {
    Read& to = read[record.layer][record.kv_head];
    to.all = record.reads_all;
    to.sets.assign(record.query_sets.begin(), record.query_sets.end());
    if (to.sets.empty()) to.sets.emplace_back(record.tokens.begin(), record.tokens.end());
  };
  int sparse = 0;
  const auto pass = [&](int rows, bool decode) {
    attention::SequenceRows entry{.sequence = sequence, .program = &program, .state = &state, .rows = rows};
    if (!decode) entry.kind = attention::PassKind::prompt;
    entry.position = cache.length(sequence);
    entry.prompt_end = entry.position + rows;
    runner.begin({&entry, 1});
    methods::Rows queries[kLayers], outputs[kLayers];
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kKvHeads; ++head) {
        const std::vector<float> k = made(rows), v = made(rows);
        take(keys_[layer][head], k);
        take(values_[layer][head], v);
        runner.append({layer, head, 0, 0, rows, k.data(), v.data(), kDim});
      }
      const std::vector<float> q = made(rows * kHeads);
      std::vector<float> out(q.size());
      runner.appended(layer, 1);
      if (runner.needs_select(layer)) runner.select(layer, q.data(), 0, 1);
      runner.attend(layer, q.data(), out.data(), 0, 1);
      take(queries[layer], q);
      take(outputs[layer], out);
    }
    runner.end();
    for (int layer = 0; decode && layer < kLayers; ++layer) {
      for (int head = 0; head < kHeads; ++head) {
        const auto query = static_cast<std::size_t>(head);
        Read& from = read[layer][head / kGroup];
        const std::int64_t tokens = entry.position + 1;
        if (from.all) from.sets = {methods::sink_and_window(tokens, 0, tokens)};
        sparse += !from.all;
        const methods::Set& set = from.sets.at(from.sets.size() > 1 ? static_cast<std::size_t>(head % kGroup) : 0);
        const methods::Row expected = attended(queries[layer][query], layer, head / kGroup, set);
        for (std::size_t d = 0; d < kDim; ++d) {
          ASSERT_NEAR(outputs[layer][query][d], expected[d], 2e-5)
              << "position " << entry.position << ", layer " << layer << ", head " << head;
        }
      }
    }
  };
  pass(kPrompt, false);
  for (int step = 0; step < kSteps && !HasFatalFailure(); ++step) pass(1, true);
  // Kascade's second anchor reads its own set.
  const Host& host = GetParam().first;
  const int heads = count_of('R', host) + (host.name == "kascade" ? kKvHeads : 0);
  EXPECT_EQ(sparse, kSteps * heads * kGroup);
}

std::vector<Pair> output_pairs() {
  std::vector<Pair> all = pairs();
  std::erase_if(all, [](const Pair& pair) { return pair.second.word == "seer"; });  // its weights fit a model
  Host queries = hosts().front();
  queries.extra.emplace("set", "query-head");
  for (const Chooser& chooser : query_choosers()) all.emplace_back(queries, chooser);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Sets, ComposedOutputs, testing::ValuesIn(output_pairs()), [](const auto& row) {
  return name_of(row) + (row.param.first.extra.contains("set") ? "_for_each_query" : "");
});

}  // namespace
}  // namespace glimpse::engine
