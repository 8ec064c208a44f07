// What holds for every policy of the registry when it runs: what its sets hold, identity with dense attention and what
// dense steps leave to the sparse ones after them, any number of threads, any company in a batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/engine/gates.h"
#include "tests/engine/recording.h"
#include "tests/support/test_names.h"

namespace glimpse::engine {
namespace {

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const policies::Policy& policy : policies::registry()) names.emplace_back(policy.name);
  return names;
}

/// With what the policy needs beside a budget, for the model of that name (RunOptions::model).
policies::PolicyOptions with_budget(const std::string& policy, std::string_view text,
                                    const std::string& model = "llama") {
  policies::PolicyOptions options = policy == "full" ? policies::PolicyOptions{} : budget(text);
  add_needed(policy, recorded_model(model), options);
  if (policy == "shadowkv") options.extra.emplace("outliers", "4");  // the usual ones are most of a short prompt
  // The usual ones leave no layer of four to read a set.
  if (policy == "omnikv" && model == "llama") options.extra.emplace("filters", "1");
  return options;
}

std::vector<float> decoded(Engine& engine, const plan::Plan& plan, std::span<const Token> tokens, std::size_t prompt) {
  Sequence sequence = engine.open(plan);
  std::vector<float> all;
  sequence.prefill(tokens.first(prompt));
  for (std::size_t i = prompt; i < tokens.size(); ++i) {
    const auto logits = sequence.decode(tokens[i]);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

class AnyPolicy : public testing::TestWithParam<std::string> {};

/// The selector whose set a head reads, or null.
const plan::Selector* selector_read(const plan::Plan& plan, int layer, int head) {
  const plan::Role* role = &plan.role(layer, head);
  if (role->kind == plan::RoleKind::reuse) role = &plan.role(role->reads.layer, role->reads.head);
  return role->kind == plan::RoleKind::dense ? nullptr : &plan.selectors.at(static_cast<std::size_t>(role->selector));
}

void expect_list(const methods::Set& set, std::int64_t tokens, std::int64_t sink) {
  ASSERT_FALSE(set.empty());
  ASSERT_EQ(set.back(), tokens - 1) << "the current token";
  ASSERT_GE(set.front(), 0);
  for (std::size_t i = 1; i < set.size(); ++i) ASSERT_LT(set[i - 1], set[i]) << "ascending, none twice";
  for (std::int64_t i = 0; i < std::min(sink, tokens); ++i) {
    ASSERT_TRUE(std::binary_search(set.begin(), set.end(), static_cast<std::int32_t>(i))) << "sink " << i;
  }
}

/// Tokens that a head may read beside its budget.
std::int64_t beside(const plan::Selector& selector, std::int64_t generated) {
  if (selector.counts_local) return 0;
  const std::int64_t window = (std::max(selector.local, 1) / selector.block + 2) * selector.block;
  const auto outliers = static_cast<std::int64_t>(selector.terms.empty() ? 0 : selector.terms[0].index.outlier_chunks);
  return window + generated + outliers * selector.block;
}

TEST_P(AnyPolicy, ReadsTheCurrentTokenAndTheSinkWithinTheBudget) {
  const Recording run = record_run(GetParam(), with_budget(GetParam(), "160", ""), {.steps = 24});
  int sparse = 0;
  for (const StepRecord& step : run.steps) {
    const std::int64_t tokens = step.position + 1;
    for (int layer = 0; layer < run.plan.shape.layers; ++layer) {
      for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
        SCOPED_TRACE(place(step, layer, head));
        const HeadStep& record = run.at(step, layer, head);
        const plan::Role& role = run.plan.role(layer, head);
        if (record.reads_all) continue;
        ++sparse;
        const plan::Selector* selector = selector_read(run.plan, layer, head);
        if (selector != nullptr) {
          const auto most = static_cast<std::int64_t>(frame_of(*selector, tokens).value);
          expect_list(record.tokens, tokens, selector->sink);
          for (const methods::Set& set : record.query_sets) expect_list(set, tokens, selector->sink);
          std::vector<methods::Set> lists = record.query_sets;
          if (lists.empty()) lists.push_back(record.tokens);
          for (const methods::Set& set : lists) {
            ASSERT_LE(static_cast<std::int64_t>(set.size()), most + beside(*selector, tokens - run.prompt));
          }
        }
        if (role.retention >= 0) {
          const plan::Retention& kept = run.plan.retentions.at(static_cast<std::size_t>(role.retention));
          if (selector == nullptr) expect_list(record.tokens, tokens, kept.sink);
          const bool prompt_stays = kept.rule == plan::RetentionRule::stamps;
          const std::int64_t most = plan::budget_tokens(kept.budget, tokens) + (prompt_stays ? run.prompt : 0);
          if (kept.rule != plan::RetentionRule::host_tier) {
            ASSERT_LE(static_cast<std::int64_t>(record.tokens.size()), most);
          }
        }
        ASSERT_TRUE(selector != nullptr || role.retention >= 0)
            << "a dense head that keeps everything reads everything";
        if (HasFatalFailure()) return;
      }
    }
  }
  // A small model may have too few layers for a method; RaaS forgets generated tokens only, and 24 are in its budget.
  const bool reads_less = std::any_of(run.plan.roles.begin(), run.plan.roles.end(), [](const plan::Role& role) {
    return role.kind == plan::RoleKind::reuse || role.kind == plan::RoleKind::stream || role.attends_set ||
           role.retention >= 0;
  });
  EXPECT_EQ(sparse > 0, reads_less && GetParam() != "raas");
}

TEST_P(AnyPolicy, BudgetOverTheContextIsDenseBitForBit) {
  Engine& engine = shared_engine("llama");
  const std::vector<Token> tokens = random_tokens(420, engine.tokenizer().size(), 3);
  const auto dense = decoded(engine, make(engine, "full"), tokens, 400);
  for (const char* text : {"420", "100%"}) {
    EXPECT_TRUE(same_bits(dense, decoded(engine, make(engine, GetParam(), with_budget(GetParam(), text)), tokens, 400)))
        << text;
  }
}

/// What one KV head read and handed on in a step.
struct HeadSet {
  int layer = 0, head = 0;
  bool reads_all = false, publishes_all = false;
  methods::Set tokens, published;
  std::vector<methods::Set> query_sets;
  friend bool operator==(const HeadSet&, const HeadSet&) = default;
};

/// What decoding some tokens showed and left.
struct Shown {
  std::vector<float> logits;
  std::vector<HeadSet> sets;
  int read_less = 0;  ///< of the sets
};

Shown decode_and_watch(Sequence& sequence, std::span<const Token> tokens) {
  Shown shown;
  sequence.on_sets([&](const SetTrace& trace) {
    shown.sets.push_back({trace.layer,
                          trace.kv_head,
                          trace.reads_all,
                          trace.publishes_all,
                          {trace.tokens.begin(), trace.tokens.end()},
                          {trace.published.begin(), trace.published.end()},
                          {trace.query_sets.begin(), trace.query_sets.end()}});
    shown.read_less += !trace.reads_all;
  });
  for (const Token token : tokens) {
    const auto logits = sequence.decode(token);
    shown.logits.insert(shown.logits.end(), logits.begin(), logits.end());
  }
  sequence.on_sets({});
  return shown;
}

/// All that feedback keeps, and what every head still holds.
std::vector<std::vector<float>> kept_by(const Sequence& sequence, const plan::ModelShape& shape) {
  std::vector<std::vector<float>> kept;
  for (int layer = 0; layer < shape.layers; ++layer) {
    kept.push_back(sequence.heat(layer));
    for (int head = 0; head < shape.kv_heads; ++head) {
      kept.push_back(sequence.statistic(layer, head));
      const std::vector<std::int32_t> live = sequence.live(layer, head);
      kept.emplace_back(live.begin(), live.end());
    }
  }
  return kept;
}

/// Decoding that is dense at first, below the least context or while the budget covers it, and then is not.
class Crossing : public AnyPolicy {
 protected:
  static constexpr std::size_t kPrompt = 280, kDense = 299, kTokens = 330;
  Engine& engine_ = shared_engine("llama");
  std::vector<Token> tokens_ = random_tokens(kTokens, engine_.tokenizer().size(), 4);

  std::span<const Token> part(std::size_t first, std::size_t last) const {
    return std::span(tokens_).subspan(first, last - first);
  }
  /// RaaS counts generated tokens alone.
  std::string small() const { return GetParam() == "raas" ? "8" : "160"; }
  plan::Plan plan(const std::string& size, std::size_t least = 0) const {
    policies::PolicyOptions options = with_budget(GetParam(), size);
    options.min_context = static_cast<int>(least);
    return make(engine_, GetParam(), options);
  }
  /// The two ways to be dense up to kDense tokens.
  std::vector<plan::Plan> crossing_plans() const {
    return {plan(small(), kDense + 1), plan(std::to_string(GetParam() == "raas" ? kDense - kPrompt : kDense))};
  }
};

TEST_P(Crossing, GoesOnAsIfForkedFromADenseSequence) {
  Sequence dense = engine_.open(make(engine_, "full"));
  dense.prefill(part(0, kPrompt));
  const Shown before = decode_and_watch(dense, part(kPrompt, kDense));
  for (const plan::Plan& crossing : crossing_plans()) {
    SCOPED_TRACE(crossing.min_context > 0 ? "least context" : "budget");
    Sequence sequence = engine_.open(crossing);
    sequence.prefill(part(0, kPrompt));
    const Shown below = decode_and_watch(sequence, part(kPrompt, kDense));
    EXPECT_TRUE(same_bits(below.logits, before.logits));
    EXPECT_EQ(below.read_less, 0);
    const Shown above = decode_and_watch(sequence, part(kDense, kTokens));
    // Where new tokens are beside the budget it covers what it covered.
    const bool beside = crossing.min_context == 0 && std::any_of(crossing.selectors.begin(), crossing.selectors.end(),
                                                                 [](const auto& s) { return !s.counts_local; });
    EXPECT_EQ(above.read_less > 0, GetParam() != "full" && !beside);
    // What feedback keeps no fork under another plan hands on.
    if (crossing.feedback != plan::Feedback::none) continue;
    plan::Plan sparse = crossing;
    sparse.min_context = 0;
    Sequence fork = dense.fork(sparse);
    const Shown expected = decode_and_watch(fork, part(kDense, kTokens));
    ASSERT_EQ(above.sets.size(), expected.sets.size());
    for (std::size_t i = 0; i < expected.sets.size(); ++i) {
      ASSERT_EQ(above.sets[i], expected.sets[i]) << "set " << i << ", layer " << expected.sets[i].layer;
    }
    EXPECT_TRUE(same_bits(above.logits, expected.logits));
    EXPECT_EQ(kept_by(sequence, engine_.shape()), kept_by(fork, engine_.shape()));
  }
}

double sum_of(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// Every row of a text of which all was read gives probabilities that add up to 1 for each query head.
void expect_fed(const Sequence& sequence, const plan::Plan& plan, std::int64_t prompt) {
  if (plan::reads_heat(plan)) {
    const double decay = plan.heat.decay;
    const auto steps = static_cast<double>(plan.prefill.observe_rows + sequence.length() - prompt);
    EXPECT_NEAR(sum_of(sequence.heat(plan.shape.layers - 1)), (1 - std::pow(decay, steps)) / (1 - decay), 1e-3);
  }
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      const std::vector<float> statistic = sequence.statistic(layer, head);
      if (plan.policy == "h2o") {
        EXPECT_NEAR(sum_of(statistic), static_cast<double>(sequence.length() * plan.shape.group()), 0.05);
      } else if (plan.policy == "tova") {
        EXPECT_NEAR(sum_of(statistic), 1, 1e-4);
        EXPECT_GT(statistic.back(), 0);
      } else if (plan.policy == "raas") {  // among the generated ones of the upper half
        const auto last = static_cast<float>(sequence.length() - prompt - 1);
        EXPECT_EQ(statistic.back(), last);
        EXPECT_GT(std::count(statistic.begin() + prompt, statistic.end(), last), 1);
      }
    }
  }
}

// What the sets then make of it is compared with the transcription: sets_heat_test.cc, sets_evicting_test.cc.
TEST_P(Crossing, FindsWhatDenseStepsFed) {
  std::vector<std::vector<std::vector<float>>> left;
  for (const plan::Plan& crossing : crossing_plans()) {
    Sequence sequence = engine_.open(crossing);
    sequence.prefill(part(0, kPrompt));
    decode_and_watch(sequence, part(kPrompt, kDense));
    expect_fed(sequence, crossing, kPrompt);
    left.push_back(kept_by(sequence, engine_.shape()));
    for (int layer = 0; layer < engine_.shape().layers; ++layer) {
      for (int head = 0; head < engine_.shape().kv_heads; ++head) {
        EXPECT_EQ(sequence.live(layer, head).size(), kDense) << "nothing is forgotten yet";
      }
    }
  }
  EXPECT_EQ(left[0], left[1]);
}

std::vector<float> decoded_with(int threads, const std::string& policy, std::size_t steps) {
  Engine engine(options_for(reference::test_model("qwen3"), KvType::bf16, threads));
  const std::vector<Token> tokens = random_tokens(400 + steps, engine.tokenizer().size());
  return decoded(engine, make(engine, policy, with_budget(policy, "160", "qwen3")), tokens, 400);
}

class Threads : public AnyPolicy {};

TEST_P(Threads, AnyNumberGivesTheSameBits) {
  EXPECT_TRUE(same_bits(decoded_with(1, GetParam(), 8), decoded_with(2, GetParam(), 8)));
}

// More threads than cores wait for a core at every barrier, so few steps and few policies.
TEST(ManyThreads, MoreThanCoresGiveTheSameBits) {
  for (const char* policy : {"tidal", "kascade", "evosparse"}) {
    const auto alone = decoded_with(1, policy, 2);
    EXPECT_TRUE(same_bits(alone, decoded_with(3, policy, 2))) << policy;
    EXPECT_TRUE(same_bits(alone, decoded_with(5, policy, 2))) << policy;
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, Crossing, testing::ValuesIn(policy_names()), PrintedName());
INSTANTIATE_TEST_SUITE_P(Registry, AnyPolicy, testing::ValuesIn(policy_names()), PrintedName());
INSTANTIATE_TEST_SUITE_P(Registry, Threads, testing::ValuesIn(policy_names()), PrintedName());

/// The tokens of eight requests, each under its own plan; the prompts are the same in every call.
std::vector<std::vector<Token>> batch_of(const std::vector<std::string>& methods) {
  EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16);
  options.sequences = static_cast<int>(methods.size());
  options.context = 1024;
  Engine engine(options);
  std::vector<RequestId> ids;
  for (std::size_t i = 0; i < methods.size(); ++i) {
    Request request;
    request.prompt = random_tokens(300 + 16 * i, engine.tokenizer().size(), static_cast<std::uint32_t>(i) + 1);
    request.plan = make(engine, methods[i], with_budget(methods[i], i % 2 == 0 ? "160" : "192"));
    request.max_tokens = 20;
    request.ignore_end = true;
    ids.push_back(engine.submit(request));
  }
  while (engine.step()) {
  }
  std::vector<std::vector<Token>> tokens;
  for (const RequestId id : ids) {
    EXPECT_EQ(engine.result(id).reason, FinishReason::length);
    tokens.push_back(engine.result(id).tokens);
  }
  return tokens;
}

/// Batches of eight that together hold every policy.
class MixedBatch : public testing::TestWithParam<std::size_t> {
 protected:
  static constexpr std::size_t kRequests = 8;
};

TEST_P(MixedBatch, GivesEachTheTokensOfABatchOfItsOwnKind) {
  const std::vector<std::string> names = policy_names();
  std::vector<std::string> methods;
  for (std::size_t i = 0; i < kRequests; ++i) methods.push_back(names[(GetParam() * kRequests + i) % names.size()]);
  const auto mixed = batch_of(methods);
  for (std::size_t i = 0; i < kRequests; ++i) {
    const auto alike = batch_of(std::vector<std::string>(kRequests, methods[i]));
    EXPECT_EQ(mixed[i], alike[i]) << methods[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, MixedBatch, testing::Range(std::size_t{0}, (policy_names().size() + 7) / 8),
                         [](const auto& row) { return test_name("from " + policy_names()[8 * row.param]); });

}  // namespace
}  // namespace glimpse::engine
