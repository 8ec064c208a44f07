// What validation knows of indices, heat, evicting rules and tiles of a prompt.
#include <gmock/gmock.h>

#include "bad_plans.h"

namespace glimpse::plan {
namespace {

// Selector 0 by an index instead of exact scores, valid as it is.
void as_index(Plan& plan, Source source) {
  plan.selectors[0].terms[0] = {source, GroupPooling::max_score};
  if (source == Source::chunk_tree) plan.selectors[0].local = 16;
  plan.selectors[0].block = source == Source::page_bounds ? 16 : source == Source::landmarks ? 8 : 1;
}

void as_gate(Plan& plan) {
  as_index(plan, Source::gate);
  plan.selectors[0].block = 16;
  plan.selectors[0].terms[0].group = GroupPooling::none;
  plan.selectors[0].terms[0].index.gates = "gates.gguf";
}

// NOLINTNEXTLINE(readability-function-size): a table
std::vector<Bad> bad_plans() {
  const auto index = [](std::function<void(IndexOptions&)> spoil) {
    return [=](Plan& p) { spoil(p.selectors[0].terms[0].index); };
  };
  // Heat in selector 2, valid but for what is spoiled.
  const auto heat = [](std::function<void(Heat&)> spoil) {
    return [=](Plan& p) {
      p.feedback = Feedback::probabilities;
      p.selectors[2].block = 16;
      p.selectors[2].terms[0] = {Source::heat, GroupPooling::none};
      spoil(p.heat);
    };
  };
  // Selector 0 of a share, with a window by the budget, valid but for what is spoiled.
  const auto with_rows = [](std::function<void(Selector&)> spoil) {
    return [=](Plan& p) {
      Selector& s = p.selectors[0];
      s.budget = {BudgetRule::ratio, 0.1, 100};
      s.local_rows = {{256, 64}, {1024, 128}};
      spoil(s);
    };
  };
  // Layer 0 forgets by a rule, valid but for what is spoiled.
  const auto forgets = [](RetentionRule rule, std::function<void(Retention&)> spoil) {
    return [=](Plan& p) {
      p.feedback = Feedback::probabilities;
      p.retentions.push_back({.rule = rule});
      p.role(0, 0).retention = p.role(0, 1).retention = 1;
      spoil(p.retentions[1]);
    };
  };
  return {
      {"index beside another term",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.selectors[0].terms.push_back({});
         p.selectors[0].terms[1].budget = Budget{BudgetRule::tokens, 16};
       },
       {"selector 0, term 0", "chooses alone", "not 2"}},
      {"index with a part",
       [](Plan& p) {
         as_index(p, Source::token_clusters);
         p.selectors[0].terms[0].budget = Budget{BudgetRule::tokens, 16};
       },
       {"token-clusters chooses alone", "own budget"}},
      {"index with a window as a share",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.selectors[0].budget.value = 256;
         p.selectors[0].local_share = 0.25;
       },
       {"selector 0, term 0", "local_share = 0.25", "in tokens"}},
      {"rows beside a window", with_rows([](Selector& s) { s.local = 8; }), {"selector 0", "local_rows beside local"}},
      {"rows of tokens",
       with_rows([](Selector& s) {
         s.budget = {BudgetRule::tokens, 512};
       }),
       {"selector 0", "local_rows go with a share", "512"}},
      {"rows that fall",
       with_rows([](Selector& s) { s.local_rows[1].budget = 256; }),
       {"a budget in local_rows = 256"}},
      {"rows that take all", with_rows([](Selector& s) { s.local_rows[0].tokens = 256; }), {"tokens of 256", "255"}},
      {"too many rows",
       with_rows([](Selector& s) { s.local_rows.resize(1000); }),
       {"1000 local_rows are over the limit"}},
      {"rows without room",
       with_rows([](Selector& s) {
         s.sink = 16;
         s.budget.at_least = 16;
       }),
       {"selector 0", "local by the budget", ",min="}},
      {"rows of a term without a budget",
       with_rows([](Selector& s) { s.terms[0].budget_rows = s.local_rows; }),
       {"selector 0, term 0", "budget_rows refine"}},
      {"chunk tree with a small buffer",
       [](Plan& p) {
         as_index(p, Source::chunk_tree);
         p.selectors[0].local = 8;
       },
       {"selector 0, term 0", "local = 8", "give 9 or more"}},
      {"layer set read by some",
       [](Plan& p) { p.role(4, 1).attends_set = false; },
       {"layer 4, KV head 1", "attends_set must be that of head 0"}},
      {"union of other blocks",
       [](Plan& p) {
         p.selectors.push_back(p.selectors[2]);
         p.selectors[3].block = 16;
         p.combine[5] = Combine::union_sets;
         for (int head = 0; head < 2; ++head) {
           p.role(5, head) = {.kind = RoleKind::select, .selector = 3, .attends_set = true, .reads = {4, 0}};
         }
       },
       {"layer 5, KV head 0", "blocks of 1 from (layer 4, head 0) to blocks of 16"}},
      {"heat in two blocks",
       [](Plan& p) {
         p.feedback = Feedback::probabilities;
         p.selectors[2].block = 16;
         p.selectors[2].terms[0] = {Source::heat, GroupPooling::none};
         p.selectors.push_back(p.selectors[2]);
         p.selectors[3].block = 32;
         for (int head = 0; head < 2; ++head) {
           p.role(5, head) = {.kind = RoleKind::select, .selector = 3, .attends_set = true};
         }
       },
       {"selector 3", "blocks of 32", "blocks of 16"}},
      {"tiles by max",
       [](Plan& p) {
         p.prefill = {.sparse = true, .tile_rows = 32};
         p.selectors[0].terms[0].group = GroupPooling::max_probability;
       },
       {"selector 0", "by mean", "not max-probability"}},
      {"tiles by the max of heads",
       [](Plan& p) {
         p.prefill = {.sparse = true, .tile_rows = 32};
         p.selectors[2].terms[0].heads = HeadPooling::max;
       },
       {"selector 2", "heads of a layer by mean, not max"}},
      {"index per layer",
       [](Plan& p) {
         p.selectors[2].terms[0] = {Source::chunk_tree, GroupPooling::max_score, HeadPooling::max};
       },
       {"selector 2", "chunk-tree belongs to a KV head"}},
      {"index by mass",
       [](Plan& p) {
         as_index(p, Source::landmarks);
         p.selectors[0].budget = {BudgetRule::mass, 0.9};
       },
       {"landmarks knows no probabilities", "p=0.9"}},
      {"index of one query head unpooled",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.selectors[0].terms[0].group = GroupPooling::none;
       },
       {"group pooling none goes with sets per query head"}},
      {"index pools probabilities",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.selectors[0].terms[0].group = GroupPooling::max_probability;
       },
       {"does not go with source page-bounds"}},
      {"digest of exact scores", index([](IndexOptions& i) { i.digest = Digest::sphere; }), {"digest goes with"}},
      {"digest of a tree",
       [](Plan& p) {
         as_index(p, Source::chunk_tree);
         p.selectors[0].terms[0].index.digest = Digest::mean_deviation;
       },
       {"digest goes with page-bounds and chunk_bounds"}},
      {"weight without deviation",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.selectors[0].terms[0].index.deviation_weight = 2;
       },
       {"deviation_weight goes with digest mean-deviation"}},
      {"weight nan",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.selectors[0].terms[0].index = {.digest = Digest::mean_deviation, .deviation_weight = kNan};
       },
       {"deviation_weight = nan"}},
      {"weight below 0",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.selectors[0].terms[0].index = {.digest = Digest::mean_deviation, .deviation_weight = -1};
       },
       {"deviation_weight = -1"}},
      {"fixed chunks of pages",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.selectors[0].terms[0].index.fixed_chunks = true;
       },
       {"fixed_chunks goes with chunk-tree"}},
      {"max pooling without a tree",
       [](Plan& p) {
         as_index(p, Source::chunk_tree);
         p.selectors[0].terms[0].index = {.max_pooling = true, .chunk_bounds = true};
       },
       {"max_pooling goes with chunk-tree without chunk_bounds"}},
      {"whole clusters of exact scores", index([](IndexOptions& i) { i.whole_clusters = true; }), {"whole_clusters"}},
      {"no chunks in a cluster",
       [](Plan& p) {
         as_index(p, Source::chunk_tree);
         p.selectors[0].terms[0].index.chunks_per_cluster = 0;
       },
       {"chunks_per_cluster = 0"}},
      {"chunks of tokens", index([](IndexOptions& i) { i.chunks_per_cluster = 3; }), {"chunks_per_cluster goes with"}},
      {"no tokens in a cluster",
       [](Plan& p) {
         as_index(p, Source::token_clusters);
         p.selectors[0].terms[0].index.tokens_per_cluster = 0;
       },
       {"tokens_per_cluster = 0"}},
      {"new tokens fill no cluster",
       [](Plan& p) {
         as_index(p, Source::token_clusters);
         p.selectors[0].terms[0].index.new_tokens = 79;
       },
       {"new_tokens = 79", "80 to"}},
      {"new tokens of landmarks", index([](IndexOptions& i) { i.new_tokens = 5000; }), {"new_tokens goes with"}},
      {"outliers of nothing", index([](IndexOptions& i) { i.outlier_chunks = 4; }), {"outlier_chunks goes with"}},
      {"rank over the keys",
       [](Plan& p) {
         as_index(p, Source::landmarks);
         p.selectors[0].terms[0].index.key_rank = 2 * 64 + 1;
       },
       {"key_rank = 129", "0 to 128"}},
      {"rank of exact scores", index([](IndexOptions& i) { i.key_rank = 16; }), {"key_rank goes with landmarks"}},

      {"share of 1", [](Plan& p) { p.selectors[0].local_share = 1; }, {"local_share = 1", "[0, 1)"}},
      {"share below 0", [](Plan& p) { p.selectors[0].local_share = -0.1; }, {"local_share = -0.1"}},
      {"share nan", [](Plan& p) { p.selectors[0].local_share = kNan; }, {"local_share = nan"}},
      {"share and local",
       [](Plan& p) {
         p.selectors[0].local_share = 0.5;
         p.selectors[0].local = 4;
       },
       {"local = 4 and local_share = 0.5"}},
      {"share of a stream",
       [](Plan& p) {
         p.selectors[1].local = 0;
         p.selectors[1].local_share = 0.5;
       },
       {"a stream's window"}},
      {"share without room",
       [](Plan& p) {
         p.selectors[0].block = 16;
         p.selectors[0].local_share = 0.9;
         p.selectors[0].budget.value = 64;
       },
       {"local 90 %", "80 tokens in blocks of 16"}},
      {"nothing beside the budget", [](Plan& p) { p.selectors[0].counts_local = false; }, {"counts_local = false"}},
      {"pages beside the budget",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.selectors[0].counts_local = false;
       },
       {"counts_local = false"}},

      {"decay 0", heat([](Heat& h) { h.decay = 0; }), {"heat", "decay = 0"}},
      {"decay over 1", heat([](Heat& h) { h.decay = 1.5; }), {"decay = 1.5"}},
      {"decay nan", heat([](Heat& h) { h.decay = kNan; }), {"decay = nan"}},
      {"heat from no layer", heat([](Heat& h) { h.first_layer = 6; }), {"first_layer = 6", "0 to 5"}},
      {"heat that nobody reads", [](Plan& p) { p.heat.per_layer = true; }, {"heat", "no term has source heat"}},

      {"share of a window kept",
       [](Plan& p) { p.retentions[0].recent_share = 0.25; },
       {"accumulated only, not window"}},
      {"recent nan", forgets(RetentionRule::accumulated, [](Retention& r) { r.recent_share = kNan; }), {"nan"}},
      {"recent over 1", forgets(RetentionRule::accumulated, [](Retention& r) { r.recent_share = 2; }), {"0 to 1"}},
      {"kept per query head",
       forgets(RetentionRule::last_probability, [](Retention& r) { r.per = SetPer::query_head; }),
       {"query-head"}},
      {"stamps per layer", forgets(RetentionRule::stamps, [](Retention& r) { r.per = SetPer::layer; }), {"not stamps"}},
      {"stamps compensate",
       forgets(RetentionRule::stamps, [](Retention& r) { r.compensates = true; }),
       {"compensates goes with rule window only"}},
      {"half a layer forgets",
       [](Plan& p) {
         p.feedback = Feedback::probabilities;
         p.retentions.push_back({.rule = RetentionRule::last_probability, .per = SetPer::layer});
         p.role(0, 1).retention = 1;
       },
       {"layer 0, KV head 1", "kept by all of its heads"}},
      {"select that forgets",
       [](Plan& p) {
         p.feedback = Feedback::probabilities;
         p.retentions.push_back({.rule = RetentionRule::accumulated});
         p.role(1, 0).retention = 1;
       },
       {"a token that is gone"}},
      {"host tier of a dense head",
       [](Plan& p) {
         p.retentions.push_back({.rule = RetentionRule::host_tier});
         p.role(0, 0).retention = 1;
       },
       {"host-tier goes with a select of page-bounds", "dense"}},
      {"host tier of exact scores",
       [](Plan& p) {
         p.retentions.push_back({.rule = RetentionRule::host_tier});
         p.role(1, 0).retention = 1;
         p.role(1, 0).attends_set = true;
       },
       {"host-tier goes with a select of page-bounds"}},
      {"host tier that reads everything",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.retentions.push_back({.rule = RetentionRule::host_tier});
         p.role(1, 0).retention = 1;
       },
       {"attends its own set"}},
      {"resident less than read",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.retentions.push_back({.rule = RetentionRule::host_tier, .budget = {BudgetRule::tokens, 63}});
         for (int head = 0; head < 2; ++head) p.role(1, head) = {RoleKind::select, 0, true, {}, 1};
       },
       {"63 resident", "reads 64"}},

      {"gate without a file",
       [](Plan& p) { as_gate(p), p.selectors[0].terms[0].index.gates.clear(); },
       {"needs its weights"}},
      {"gate of a path too long",
       [](Plan& p) { as_gate(p), p.selectors[0].terms[0].index.gates.assign(4097, 'g'); },
       {"no path", "4097"}},
      {"gate of a path with a zero",
       [](Plan& p) { as_gate(p), p.selectors[0].terms[0].index.gates[1] = '\0'; },
       {"no path"}},
      {"gate of tokens", [](Plan& p) { as_gate(p), p.selectors[0].block = 1; }, {"gate scores blocks"}},
      {"gate of pooled queries",
       [](Plan& p) { as_gate(p), p.selectors[0].terms[0].group = GroupPooling::max_score; },
       {"takes the group as one", "max-score"}},
      {"gate of query heads",
       [](Plan& p) { as_gate(p), p.selectors[0].per = SetPer::query_head; },
       {"scores for a KV head", "query-head"}},
      {"gate by mass",
       [](Plan& p) {
         as_gate(p);
         p.selectors[0].budget = {BudgetRule::mass, 0.9};
       },
       {"no probabilities of tokens", "p=0.9"}},
      {"gates of pages",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.selectors[0].terms[0].index.gates = "gates.gguf";
       },
       {"gates goes with gate, not page-bounds"}},

      {"tiles of an index",
       [](Plan& p) {
         as_index(p, Source::page_bounds);
         p.prefill = {.sparse = true, .tile_rows = 128};
       },
       {"selector 0", "needs exact scores"}},
      {"tiles of query heads",
       [](Plan& p) {
         p.selectors[0].per = SetPer::query_head;
         p.selectors[0].terms[0].group = GroupPooling::none;
         p.prefill = {.sparse = true, .tile_rows = 128};
       },
       {"not query-head"}},
      {"tiles by mass",
       [](Plan& p) {
         p.selectors[0].budget = {BudgetRule::mass, 0.9};
         p.prefill = {.sparse = true, .tile_rows = 128};
       },
       {"in tokens or as a share, not p=0.9"}},
  };
}

// What the table spoils is valid before it is spoiled.
TEST(Validate, AcceptsIndicesHeatAndRetentions) {
  Plan gate = sample();
  as_gate(gate);
  EXPECT_NO_THROW(validate(gate));
  EXPECT_EQ(from_json(to_json(gate)), gate);
  gate.selectors[0].budget = {BudgetRule::threshold, 1e-3};
  EXPECT_NO_THROW(validate(gate));
  EXPECT_EQ(from_json(to_json(gate)), gate);
  for (const Source source : {Source::page_bounds, Source::chunk_tree, Source::token_clusters, Source::landmarks}) {
    Plan plan = sample();
    as_index(plan, source);
    EXPECT_NO_THROW(validate(plan));
    plan.selectors[0].terms[0].group = GroupPooling::none;
    plan.selectors[0].per = SetPer::query_head;
    EXPECT_NO_THROW(validate(plan));
    EXPECT_EQ(from_json(to_json(plan)), plan);
  }
  Plan pages = sample();
  as_index(pages, Source::page_bounds);
  pages.selectors[0].terms[0].index = {.digest = Digest::mean_deviation, .deviation_weight = 0.1};
  pages.retentions.push_back({.rule = RetentionRule::host_tier, .budget = {BudgetRule::tokens, 64}});
  for (int head = 0; head < 2; ++head) pages.role(1, head) = {RoleKind::select, 0, true, {}, 1};
  EXPECT_NO_THROW(validate(pages));
  Plan heat = sample();
  heat.feedback = Feedback::probabilities;
  heat.selectors[2].block = 16;
  heat.selectors[2].terms[0] = {Source::heat, GroupPooling::none};
  heat.heat = {1, true, 5};
  EXPECT_NO_THROW(validate(heat));
  EXPECT_EQ(from_json(to_json(heat)), heat);
  Plan forgets = sample();
  forgets.feedback = Feedback::probabilities;
  forgets.retentions.push_back({.rule = RetentionRule::accumulated, .recent_share = 0.1, .per = SetPer::layer});
  forgets.role(0, 0).retention = forgets.role(0, 1).retention = 1;
  forgets.retentions[0].compensates = true;
  EXPECT_NO_THROW(validate(forgets));
  EXPECT_EQ(from_json(to_json(forgets)), forgets);
}

TEST(Validate, RefusesEachMisuseOfTheVocabularyInWords) {
  expect_refused(bad_plans());
}

}  // namespace
}  // namespace glimpse::plan
