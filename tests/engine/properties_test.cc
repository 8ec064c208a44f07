// What holds for every policy of the registry when it runs: what its sets hold, identity with dense attention, any
// number of threads, any company in a batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/engine/gates.h"
#include "tests/engine/recording.h"

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

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
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

TEST_P(AnyPolicy, BelowTheLeastContextIsDense) {
  Engine& engine = shared_engine("llama");
  const std::vector<Token> tokens = random_tokens(300, engine.tokenizer().size(), 4);
  policies::PolicyOptions options = with_budget(GetParam(), "160");
  options.min_context = 301;
  EXPECT_TRUE(same_bits(decoded(engine, make(engine, "full"), tokens, 290),
                        decoded(engine, make(engine, GetParam(), options), tokens, 290)));
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

// ggml's barriers spin: more threads than cores take a time slice at each, so few steps and few policies.
TEST(ManyThreads, MoreThanCoresGiveTheSameBits) {
  for (const char* policy : {"tidal", "kascade", "evosparse"}) {
    const auto alone = decoded_with(1, policy, 2);
    EXPECT_TRUE(same_bits(alone, decoded_with(3, policy, 2))) << policy;
    EXPECT_TRUE(same_bits(alone, decoded_with(5, policy, 2))) << policy;
  }
}

std::string name_of(const testing::TestParamInfo<std::string>& row) {
  std::string name = row.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Registry, AnyPolicy, testing::ValuesIn(policy_names()), name_of);
INSTANTIATE_TEST_SUITE_P(Registry, Threads, testing::ValuesIn(policy_names()), name_of);

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

INSTANTIATE_TEST_SUITE_P(Registry, MixedBatch, testing::Range(std::size_t{0}, (policy_names().size() + 7) / 8));

}  // namespace
}  // namespace glimpse::engine
