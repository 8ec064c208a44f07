#include <gmock/gmock.h>

#include "bad_plans.h"
#include "glimpse/base/error.h"
#include "random_plan.h"

namespace glimpse::plan {
namespace {

// NOLINTNEXTLINE(readability-function-size): a table
std::vector<Bad> bad_plans() {
  const auto budget = [](BudgetRule rule, double value) {
    return [=](Plan& p) { p.selectors[0].budget = {rule, value}; };
  };
  const auto term = [](std::function<void(Term&)> spoil) { return [=](Plan& p) { spoil(p.selectors[0].terms[0]); }; };
  return {
      {"no layers", [](Plan& p) { p.shape.layers = 0; }, {"shape", "layers = 0"}},
      {"many layers", [](Plan& p) { p.shape.layers = 1 << 30; }, {"shape", "1024"}},
      {"no heads", [](Plan& p) { p.shape.heads = 0; }, {"heads = 0"}},
      {"no KV heads", [](Plan& p) { p.shape.kv_heads = 0; }, {"kv_heads = 0"}},
      {"more KV heads", [](Plan& p) { p.shape.kv_heads = 7; }, {"kv_heads = 7"}},
      {"indivisible", [](Plan& p) { p.shape.heads = 7; }, {"no multiple of kv_heads = 2"}},
      {"head_dim", [](Plan& p) { p.shape.head_dim = -64; }, {"head_dim = -64"}},
      {"context", [](Plan& p) { p.shape.context = -1; }, {"context = -1"}},
      {"long name", [](Plan& p) { p.shape.model_name.assign(5000, 'x'); }, {"1024 bytes"}},
      {"no policy", [](Plan& p) { p.policy.clear(); }, {"policy", "1 to 64"}},
      {"role count", [](Plan& p) { p.roles.pop_back(); }, {"11 given, 12 needed"}},
      {"combine count", [](Plan& p) { p.combine.pop_back(); }, {"5 given, 6 needed"}},
      {"min_context", [](Plan& p) { p.min_context = -1; }, {"min_context = -1"}},

      {"zero tokens", budget(BudgetRule::tokens, 0), {"selector 0", "at least 1"}},
      {"negative tokens", budget(BudgetRule::tokens, -5), {"-5 tokens", "at least 1"}},
      {"fraction of a token", budget(BudgetRule::tokens, 1.5), {"whole number"}},
      {"nan tokens", budget(BudgetRule::tokens, kNan), {"not a finite number"}},
      {"inf tokens", budget(BudgetRule::tokens, kInf), {"not a finite number"}},
      {"too many tokens", budget(BudgetRule::tokens, 1e12), {"over the limit"}},
      {"ratio 0", budget(BudgetRule::ratio, 0), {"more than 0%"}},
      {"ratio over 1", budget(BudgetRule::ratio, 1.01), {"at most 100%"}},
      {"ratio nan", budget(BudgetRule::ratio, kNan), {"not a finite number"}},
      {"mass 0", budget(BudgetRule::mass, 0), {"outside (0, 1]", "p=0.99"}},
      {"mass over 1", budget(BudgetRule::mass, 1.1), {"outside (0, 1]"}},
      {"threshold 1", budget(BudgetRule::threshold, 1), {"outside (0, 1)"}},
      {"threshold 0", budget(BudgetRule::threshold, 0), {"outside (0, 1)"}},
      {"minimum of tokens", [](Plan& p) { p.selectors[0].budget.at_least = 9; }, {"goes with a share only"}},
      {"minimum 0",
       [](Plan& p) {
         p.selectors[0].budget = {BudgetRule::ratio, 0.1, 0};
       },
       {"outside 1 to"}},

      {"negative sink", [](Plan& p) { p.selectors[0].sink = -1; }, {"selector 0", "sink = -1"}},
      {"negative local", [](Plan& p) { p.selectors[0].local = -1; }, {"local = -1"}},
      {"sink fills", [](Plan& p) { p.selectors[0].sink = 64; }, {"sink 64", "raise the budget"}},
      {"local over", [](Plan& p) { p.selectors[0].local = 65; }, {"local 65"}},
      {"sink and local", [](Plan& p) { p.selectors[0].sink = p.selectors[0].local = 33; }, {"66 tokens"}},
      {"share without minimum",
       [](Plan& p) {
         p.selectors[0].budget = {BudgetRule::ratio, 0.5};
         p.selectors[0].sink = 4;
       },
       {"does not always hold", ",min=5"}},
      {"block 0", [](Plan& p) { p.selectors[0].block = 0; }, {"block = 0"}},
      {"block 3", [](Plan& p) { p.selectors[0].block = 3; }, {"block = 3", "16, 32, 64 or 128"}},
      {"block 8", [](Plan& p) { p.selectors[0].block = 8; }, {"block = 8", "landmarks"}},
      {"block 256", [](Plan& p) { p.selectors[0].block = 256; }, {"block = 256"}},
      {"budget below a block", [](Plan& p) { p.selectors[0].block = 128; }, {"128 tokens in blocks of 128"}},
      {"blocks of sink",
       [](Plan& p) {
         p.selectors[0].block = 16;
         p.selectors[0].sink = 17;
         p.selectors[0].local = 18;
       },
       {"80 tokens in blocks of 16"}},

      {"no terms", [](Plan& p) { p.selectors[0].terms.clear(); }, {"selector 0", "make them equal"}},
      {"many terms", [](Plan& p) { p.selectors[0].terms.resize(17); }, {"over the limit of 16"}},
      {"two open terms", [](Plan& p) { p.selectors[0].terms.resize(2); }, {"only one can take all that is left"}},
      {"none in a KV head's set", term([](Term& t) { t.group = GroupPooling::none; }), {"sets per query head"}},
      {"query-head pooled", [](Plan& p) { p.selectors[0].per = SetPer::query_head; }, {"give none"}},
      {"heads pooled per head", term([](Term& t) { t.heads = HeadPooling::max; }), {"set per layer only"}},
      {"layer unpooled",
       [](Plan& p) { p.selectors[2].terms[0].heads = HeadPooling::none; },
       {"selector 2, term 0", "needs head pooling"}},
      {"dot pooled as probability", term([](Term& t) { t.source = Source::dot; }), {"does not go with source dot"}},
      {"probability pooled as score",
       term([](Term& t) { t.group = GroupPooling::max_score; }),
       {"does not go with source probability"}},
      {"page bounds by token",
       term([](Term& t) {
         t.source = Source::page_bounds;
         t.group = GroupPooling::max_score;
       }),
       {"page-bounds scores blocks"}},
      {"landmarks by token",
       term([](Term& t) {
         t.source = Source::landmarks;
         t.group = GroupPooling::max_score;
       }),
       {"block 8 or more"}},
      {"chunks in blocks",
       [](Plan& p) {
         p.selectors[0].terms[0] = {Source::chunk_tree, GroupPooling::max_score};
         p.selectors[0].block = 16;
       },
       {"units of its own"}},
      {"pooled heat",
       [](Plan& p) {
         p.selectors[0].block = 16;
         p.selectors[0].terms[0].source = Source::heat;
       },
       {"source heat; give none"}},
      {"heat without feedback",
       [](Plan& p) {
         p.selectors[2].block = 16;
         p.selectors[2].terms[0] = {Source::heat, GroupPooling::none};
       },
       {"selector 2", "feedback probabilities"}},
      {"named heads per head", term([](Term& t) { t.query_heads = {0}; }), {"set per layer only"}},
      {"named head range", [](Plan& p) { p.selectors[2].terms[0].query_heads = {6}; }, {"query head = 6", "0 to 5"}},
      {"named head twice",
       [](Plan& p) {
         p.selectors[2].terms[0].query_heads = {1, 1};
       },
       {"named twice"}},
      {"term budget",
       term([](Term& t) {
         t.budget = Budget{BudgetRule::tokens, 0};
       }),
       {"term 0", "at least 1"}},
      {"term over selector",
       term([](Term& t) {
         t.budget = Budget{BudgetRule::tokens, 65};
       }),
       {"over the selector's"}},
      {"term by mass",
       term([](Term& t) {
         t.budget = Budget{BudgetRule::mass, 0.5};
       }),
       {"a term's part"}},
      {"mass of scores",
       [](Plan& p) {
         p.selectors[0].budget = {BudgetRule::mass, 0.9};
         p.selectors[0].terms[0] = {Source::dot, GroupPooling::max_score};
       },
       {"p=0.9 needs softmax probabilities"}},
      {"mass of maxima",
       [](Plan& p) {
         p.selectors[0].budget = {BudgetRule::mass, 0.9};
         p.selectors[0].terms[0].group = GroupPooling::max_probability;
       },
       {"sum to 1"}},
      {"mass over heads by max",
       [](Plan& p) {
         p.selectors[2].budget = {BudgetRule::mass, 0.9};
         p.selectors[2].terms[0].heads = HeadPooling::max;
       },
       {"sum to 1"}},
      {"mass of two terms",
       [](Plan& p) {
         p.selectors[0].budget = {BudgetRule::mass, 0.9};
         p.selectors[0].terms[0].budget = Budget{BudgetRule::tokens, 9};
         p.selectors[0].terms.push_back({});
       },
       {"exactly one term"}},

      {"stream by mass",
       [](Plan& p) {
         p.selectors[1].budget = {BudgetRule::mass, 0.9};
       },
       {"without terms"}},
      {"stream in blocks",
       [](Plan& p) {
         p.selectors[1].block = 16;
         p.selectors[1].budget = {BudgetRule::tokens, 64};
       },
       {"a stream reads tokens"}},
      {"stream window", [](Plan& p) { p.selectors[1].local = 20; }, {"sink 4 + local 20", "32"}},
      {"stream per layer", [](Plan& p) { p.selectors[1].per = SetPer::layer; }, {"give kv-head"}},
      {"stream share with local",
       [](Plan& p) {
         p.selectors[1].budget = {BudgetRule::ratio, 0.5, 64};
       },
       {"give local 0"}},
      {"stream with terms", [](Plan& p) { p.role(3, 1).selector = 0; }, {"layer 3, KV head 1", "which has terms"}},
      {"select without terms", [](Plan& p) { p.role(1, 1).selector = 1; }, {"layer 1, KV head 1", "no terms"}},

      {"selector range", [](Plan& p) { p.role(1, 0).selector = 3; }, {"layer 1, KV head 0", "selector 3", "has 3"}},
      {"selector missing", [](Plan& p) { p.role(1, 0).selector = -1; }, {"selector -1"}},
      {"selector of dense", [](Plan& p) { p.role(0, 0).selector = 0; }, {"layer 0, KV head 0", "has no selector"}},
      {"selector of reuse", [](Plan& p) { p.role(2, 0).selector = 0; }, {"a reuse role has no selector"}},
      {"attends_set of reuse", [](Plan& p) { p.role(2, 0).attends_set = true; }, {"goes with select only"}},
      {"reads nothing", [](Plan& p) { p.role(2, 0).reads = {}; }, {"layer 2, KV head 0", "slot (layer -1"}},
      {"reads out of range",
       [](Plan& p) {
         p.role(2, 0).reads = {1, 2};
       },
       {"2 KV heads"}},
      {"reads a later layer",
       [](Plan& p) {
         p.role(2, 0).reads = {4, 0};
       },
       {"comes later"}},
      {"reads its own layer",
       [](Plan& p) {
         p.role(2, 0).reads = {2, 1};
       },
       {"its own layer", "only an earlier set"}},
      {"reads a dense head",
       [](Plan& p) {
         p.role(2, 0).reads = {0, 0};
       },
       {"publishes no set"}},
      {"reads a stream",
       [](Plan& p) {
         p.role(5, 0).reads = {3, 0};
       },
       {"which is stream"}},
      {"reads a chain",
       [](Plan& p) {
         p.role(5, 0).reads = {2, 1};
       },
       {"itself reuses (layer 1, head 1)"}},
      {"reads past head 0",
       [](Plan& p) {
         p.role(5, 1).reads = {4, 1};
       },
       {"layer 5, KV head 1", "read head 0"}},
      {"dense reads", [](Plan& p) { p.role(5, 1).kind = RoleKind::dense; }, {"a dense role reads no slot"}},
      {"select reads",
       [](Plan& p) {
         p.role(4, 0).reads = {1, 0};
       },
       {"union-sets"}},
      {"half a layer set", [](Plan& p) { p.role(4, 0) = {}; }, {"layer 4, KV head 0", "every head must select"}},
      {"combine of nothing", [](Plan& p) { p.combine[0] = Combine::union_sets; }, {"layer 0", "without a select"}},

      {"retention range", [](Plan& p) { p.role(3, 0).retention = 1; }, {"layer 3, KV head 0", "retention 1"}},
      {"retention of reuse", [](Plan& p) { p.role(2, 0).retention = 0; }, {"a token that is gone"}},
      {"retention of select", [](Plan& p) { p.role(1, 0).retention = 0; }, {"a token that is gone"}},
      {"retention too small", [](Plan& p) { p.retentions[0].budget.value = 31; }, {"keep what is read"}},
      {"retention sink", [](Plan& p) { p.retentions[0].sink = 3; }, {"keep what is read"}},
      {"retention all sink",
       [](Plan& p) {
         p.retentions[0] = {RetentionRule::all, 4};
       },
       {"retention 0", "all"}},
      {"retention by mass",
       [](Plan& p) {
         p.retentions[0].budget = {BudgetRule::mass, 0.9};
       },
       {"counted in tokens"}},
      {"retention fills", [](Plan& p) { p.retentions[0].sink = 32; }, {"retention 0", "sink 32"}},
      {"retention other sink", [](Plan& p) { p.retentions[0].rule = RetentionRule::stamps; }, {"rule window only"}},
      {"stream forgets by score",
       [](Plan& p) {
         p.feedback = Feedback::probabilities;
         p.retentions[0] = {RetentionRule::accumulated, 0, {BudgetRule::tokens, 64}};
       },
       {"a stream needs window or all"}},
      {"accumulated without feedback",
       [](Plan& p) {
         p.retentions.push_back({RetentionRule::accumulated, 0, {BudgetRule::tokens, 64}});
         p.role(0, 0).retention = 1;
       },
       {"retention 1", "feedback probabilities"}},
      {"unused selector", [](Plan& p) { p.selectors.push_back(p.selectors[0]); }, {"selector 3", "no role uses it"}},
      {"unused retention", [](Plan& p) { p.retentions.push_back({}); }, {"retention 1", "no role uses it"}},

      {"tile of a dense prefill", [](Plan& p) { p.prefill.tile_rows = 128; }, {"tile_rows = 128"}},
      {"tile below the group",
       [](Plan& p) { p.prefill = {.sparse = true, .tile_rows = 2}; },
       {"tile_rows = 2", "3 to"}},
      {"no observed rows", [](Plan& p) { p.prefill.observe = Observe::last_rows; }, {"observe_rows = 0"}},
      {"observed rows of none", [](Plan& p) { p.prefill.observe_rows = 5; }, {"goes with observe last-rows only"}},
  };
}

TEST(Validate, AcceptsTheSample) {
  EXPECT_NO_THROW(validate(sample()));
}

TEST(Validate, RefusesEachBadPlanInWords) {
  const std::vector<Bad> table = bad_plans();
  ASSERT_GE(table.size(), 40u);
  expect_refused(table);
}

TEST(Validate, SparsePrefillNeedsSomethingSparse) {
  Plan plan = dense_plan({"llama", "", 2, 2, 1, 64, 100});
  plan.prefill = {.sparse = true, .tile_rows = 128};
  EXPECT_THROW(validate(plan), UserError);
}

TEST(Validate, CombinedLayersJoinAnEarlierSet) {
  Plan joined = sample();
  joined.combine[4] = Combine::union_sets;
  joined.role(4, 0).reads = joined.role(4, 1).reads = {1, 0};
  EXPECT_NO_THROW(validate(joined));
}

TEST(Validate, AcceptsPlansOverTheWholeVocabulary) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) EXPECT_NO_THROW(validate(random_plan(seed))) << "seed " << seed;
}

TEST(DensePlan, IsValidForAnyShapeAndRefusesNone) {
  EXPECT_NO_THROW(validate(dense_plan({"llama", "", 1, 1, 1, 1, 0})));
  EXPECT_THROW(dense_plan({}), UserError);
}

}  // namespace

void expect_refused(const std::vector<Bad>& table) {
  for (const Bad& bad : table) {
    Plan plan = sample();
    bad.spoil(plan);
    try {
      validate(plan);
      ADD_FAILURE() << bad.name << " was accepted";
    } catch (const UserError& error) {
      for (const char* part : bad.says) EXPECT_THAT(error.what(), testing::HasSubstr(part)) << bad.name;
    }
  }
}

}  // namespace glimpse::plan
