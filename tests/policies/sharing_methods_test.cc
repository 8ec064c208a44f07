// Methods whose layers or heads read the sets of others: LycheeDecode, Kascade, OmniKV, LessIsMore.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "method_plans.h"

namespace glimpse::policies {
namespace {

using plan::Budget;
using plan::BudgetRule;
using plan::GroupPooling;
using plan::HeadPooling;
using plan::RoleKind;
using plan::Source;
using testing::ElementsAre;
using testing::HasSubstr;

// Heads that read everything; one whose set the next layer replaces selects nothing.
int retrieval_heads(const plan::Plan& plan) {
  int count = 0;
  for (const plan::Role& role : plan.roles) count += role.kind != RoleKind::reuse ? 1 : 0;
  return count;
}

// Every sparse head reads the nearest earlier retrieval head of its index.
void expect_inheritance(const plan::Plan& plan) {
  for (int head = 0; head < plan.shape.kv_heads; ++head) {
    int nearest = -1;
    for (int layer = 0; layer < plan.shape.layers; ++layer) {
      const plan::Role& role = plan.role(layer, head);
      if (role.kind == RoleKind::reuse) {
        EXPECT_EQ(role.reads, (plan::SlotId{nearest, head}));
      } else {
        EXPECT_FALSE(role.attends_set);
        if (role.kind == RoleKind::select) nearest = layer;
      }
    }
  }
}

TEST(LycheeDecode, AnEighthOfTheHeadsRetrieveTheFirstLayerAmongThem) {
  const plan::Plan plan = make_plan("lychee-decode", kLlama8B, {});
  EXPECT_EQ(retrieval_heads(plan), 32);
  expect_inheritance(plan);
  for (int head = 0; head < 8; ++head) EXPECT_EQ(plan.role(0, head).kind, RoleKind::select);
  // The other 24: each index three times, at all depths.
  for (int head = 0; head < 8; ++head) {
    int own = 0;
    for (int layer = 1; layer < 32; ++layer) own += plan.role(layer, head).kind == RoleKind::select ? 1 : 0;
    EXPECT_EQ(own, 3) << head;
  }
  plan::Selector expected;
  expected.budget = {BudgetRule::tokens, 4096};
  expected.terms.push_back({Source::dot, GroupPooling::mean_query});
  EXPECT_THAT(plan.selectors, ElementsAre(expected));
}

TEST(LycheeDecode, CountsHeadsAsAsked) {
  EXPECT_EQ(retrieval_heads(make_plan("lychee-decode", kLlama8B, opts({{"first-layer", "extra"}}))), 40);
  EXPECT_EQ(retrieval_heads(make_plan("lychee-decode", kLlama8B, opts({{"retrieval", "25%"}}))), 64);
  EXPECT_EQ(retrieval_heads(make_plan("lychee-decode", kLlama8B, opts({{"retrieval", "9"}}))), 9);
  EXPECT_EQ(retrieval_heads(make_plan("lychee-decode", kLlama8B, opts({{"retrieval", "8"}}))), 8);
  for (const char* fewer : {"7", "2%"}) {
    EXPECT_THAT(refused("lychee-decode", kLlama8B, opts({{"retrieval", fewer}})),
                testing::AllOf(HasSubstr("8 KV heads of layer 0"), HasSubstr("first-layer=extra")));
  }
  EXPECT_EQ(retrieval_heads(make_plan("lychee-decode", kLlama8B, opts({{"retrieval", "1"}, {"first-layer", "extra"}}))),
            9);
  EXPECT_THAT(refused("lychee-decode", kLlama8B, opts({{"retrieval", "257"}})), HasSubstr("has 256 KV heads"));
  for (const plan::ModelShape& shape : {kSmol, kQwen, kMha}) expect_inheritance(make_plan("lychee-decode", shape, {}));
}

TEST(LycheeDecode, BudgetsByMassPoolProbabilities) {
  for (const char* budget : {"p=0.99", "tau=1e-4", "coverage=0.9"}) {
    EXPECT_EQ(make_plan("lychee-decode", kSmol, opts({}, budget)).selectors[0].terms[0],
              (plan::Term{Source::probability, GroupPooling::mean_probability}));
  }
  const plan::Selector half = make_plan("lychee-decode", kSmol, opts({}, "50%")).selectors[0];
  EXPECT_EQ(half.budget, (Budget{BudgetRule::ratio, 0.5, 1})) << "half of the context, growing with it";
  EXPECT_EQ(half.terms[0].source, Source::dot);
  PolicyOptions blocks;
  blocks.block = 64;
  EXPECT_EQ(make_plan("lychee-decode", kSmol, blocks).selectors[0].block, 64);
}

plan::Profile profile_for(const plan::ModelShape& shape) {
  plan::Profile profile;
  profile.model = shape;
  profile.model.context = 0;
  return profile;
}

TEST(LycheeDecode, TakesRolesOrScoresOfAProfile) {
  plan::Profile profile = profile_for(kMha);  // 4 layers of 4 heads
  profile.roles = plan::RolesProfile{{0, 0, 0, 0, 0.6, 0.5, 0, 0, 0, 0, 0.9, 0, 0, 0, 0, 0}};
  PolicyOptions options;
  options.profile = &profile;
  std::vector<std::string> warnings;
  options.warnings = &warnings;
  const plan::Plan plan = make_plan("lychee-decode", kMha, options);
  EXPECT_EQ(retrieval_heads(plan), 4 + 2);
  EXPECT_EQ(plan.role(1, 0).kind, RoleKind::select);
  EXPECT_EQ(plan.role(1, 1).kind, RoleKind::reuse) << "0.5 is not over 0.5";
  EXPECT_EQ(plan.role(2, 2).kind, RoleKind::select);
  expect_inheritance(plan);
  EXPECT_TRUE(warnings.empty());
  options.extra["retrieval"] = "7";  // of which 4 in layer 0: the three strongest, ties to the lower
  EXPECT_EQ(make_plan("lychee-decode", kMha, options).role(1, 1).kind, RoleKind::select);

  plan::Profile scores = profile_for(kSmol);  // 30 layers, 9 query heads on 3 KV heads
  scores.retrieval = plan::RetrievalProfile{std::vector<double>(270, 0)};
  scores.retrieval->scores[7 * 9 + 8] = 0.9;   // KV head 2 of layer 7
  scores.retrieval->scores[20 * 9 + 0] = 0.5;  // KV head 0 of layer 20
  PolicyOptions strongest = opts({{"retrieval", "5"}});
  strongest.profile = &scores;
  const plan::Plan by_score = make_plan("lychee-decode", kSmol, strongest);
  EXPECT_EQ(retrieval_heads(by_score), 5);
  EXPECT_EQ(by_score.role(7, 2).kind, RoleKind::select);
  EXPECT_EQ(by_score.role(20, 0).kind, RoleKind::select);
  EXPECT_EQ(by_score.role(29, 2).reads, (plan::SlotId{7, 2}));
}

TEST(LycheeDecode, WarnsWithoutAProfile) {
  std::vector<std::string> warnings;
  PolicyOptions options;
  options.warnings = &warnings;
  make_plan("lychee-decode", kLlama8B, options);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0],
              testing::AllOf(HasSubstr("no profile"), HasSubstr("12.5 %"), HasSubstr("glimpse calibrate -m MODEL")));
}

// ---- Kascade ----

TEST(Kascade, AnchorsOfThePaper) {
  EXPECT_EQ(letters(make_plan("kascade", kLlama8B, {})), "SRsRRRRRsRRRRss" + std::string(17, 'R'));
  const plan::ModelShape qwen{"qwen3", "Qwen3-8B", 36, 32, 8, 128, 40960};
  EXPECT_EQ(letters(make_plan("kascade", qwen, {})), "SRsRRRRsRRRRRRsRRRRRRRRs" + std::string(12, 'R'));
  // 0, 2, 8, 13, 14 of 32 in 30 layers: 1.875, 7.5, 12.19, 13.125.
  EXPECT_EQ(letters(make_plan("kascade", kSmol, {})), "SRsRRRRRsRRRss" + std::string(16, 'R'));
  EXPECT_EQ(letters(make_plan("kascade", kSmol, opts({{"anchors", "all"}}))), "D" + std::string(29, 's'));
  EXPECT_EQ(letters(make_plan("kascade", kMha, opts({{"anchors", "0+2"}}))), "SRsR");
  EXPECT_THAT(refused("kascade", kMha, opts({{"anchors", "1+2"}})), HasSubstr("first anchor is layer 0"));
  EXPECT_THAT(refused("kascade", kMha, opts({{"anchors", "0+2+1"}})), HasSubstr("rising order"));
  EXPECT_THAT(refused("kascade", kMha, opts({{"anchors", "0+4"}})), HasSubstr("0 to 3"));
}

TEST(Kascade, SelectorBudgetAndTiles) {
  const plan::Plan plan = make_plan("kascade", kLlama8B, {});
  plan::Selector expected;
  expected.budget = {BudgetRule::ratio, 0.1, 128};
  expected.terms.push_back({Source::probability, GroupPooling::mean_probability});
  EXPECT_THAT(plan.selectors, ElementsAre(expected));
  EXPECT_EQ(plan.prefill, (plan::Prefill{.sparse = true, .tile_rows = 128}));
  EXPECT_EQ(plan.prefill.tile_tokens(4), 32);
  EXPECT_EQ(make_plan("kascade", kSmol, {}).prefill.tile_tokens(3), 42);
  EXPECT_EQ(make_plan("kascade", kLlama8B, opts({}, "20%")).selectors[0].budget, (Budget{BudgetRule::ratio, 0.2, 128}));
  EXPECT_EQ(make_plan("kascade", kLlama8B, opts({}, "20%,min=64")).selectors[0].budget.at_least, 64);
  EXPECT_EQ(make_plan("kascade", kLlama8B, opts({}, "512")).selectors[0].budget, (Budget{BudgetRule::tokens, 512}));
  PolicyOptions sink = opts({}, "20%");
  sink.sink = 4;
  EXPECT_EQ(make_plan("kascade", kLlama8B, sink).selectors[0].budget.at_least, 128);
}

TEST(Kascade, HeadMapOfAProfile) {
  plan::Profile profile = profile_for(kMha);
  profile.kascade = plan::KascadeProfile{{0, 2}, {0, 1, 2, 3, 3, 3, 1, 0, 0, 1, 2, 3, 1, 0, 3, 2}};
  PolicyOptions options;
  options.profile = &profile;
  const plan::Plan plan = make_plan("kascade", kMha, options);
  EXPECT_EQ(letters(plan), "*RsR");
  EXPECT_EQ(plan.role(0, 2).kind, RoleKind::dense) << "nobody reads its set";
  EXPECT_EQ(plan.role(0, 3).kind, RoleKind::select);
  EXPECT_EQ(plan.role(1, 0).reads, (plan::SlotId{0, 3}));
  EXPECT_EQ(plan.role(1, 2).reads, (plan::SlotId{0, 1}));
  EXPECT_EQ(plan.role(3, 1).reads, (plan::SlotId{2, 0}));
  options.extra["head-map"] = "identity";
  EXPECT_EQ(make_plan("kascade", kMha, options).role(1, 0).reads, (plan::SlotId{0, 0}));
  options.extra = {{"set", "layer"}};
  const plan::Plan pooled = make_plan("kascade", kMha, options);
  EXPECT_EQ(pooled.role(3, 1).reads, (plan::SlotId{2, 0}));
  EXPECT_EQ(pooled.role(1, 3).reads, (plan::SlotId{0, 0}));
  EXPECT_EQ(pooled.selectors[0].terms[0].heads, HeadPooling::mean);
  std::vector<std::string> warnings;
  options.warnings = &warnings;
  options.extra = {{"anchors", "0+1"}};
  EXPECT_EQ(letters(make_plan("kascade", kMha, options)), "DsRR");
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("not used")));
}

TEST(Kascade, Variants) {
  const plan::Selector query = make_plan("kascade", kSmol, opts({{"pooling", "query"}})).selectors[0];
  EXPECT_EQ(query.terms[0], (plan::Term{Source::dot, GroupPooling::mean_query}));
  EXPECT_EQ(make_plan("kascade", kSmol, opts({{"prefill", "dense"}})).prefill, plan::Prefill{});
  EXPECT_EQ(make_plan("kascade", kSmol, opts({{"tile", "96"}})).prefill.tile_rows, 96);
  EXPECT_THAT(refused("kascade", kSmol, opts({{"tile", "96"}, {"prefill", "dense"}})), HasSubstr("has no tiles"));
  std::vector<std::string> warnings;
  PolicyOptions options = opts({{"anchor-selector", "quest"}});
  options.warnings = &warnings;
  EXPECT_FALSE(make_plan("kascade", kSmol, options).prefill.sparse);
  EXPECT_THAT(warnings, testing::Contains(HasSubstr("the prefill is dense: tiles need exact scores")));
  EXPECT_FALSE(make_plan("kascade", kSmol, opts({}, "p=0.9")).prefill.sparse);
  EXPECT_THAT(refused("kascade", kSmol, opts({{"prefill", "sparse"}}, "p=0.9")), HasSubstr("give prefill=dense"));
}

// ---- OmniKV, LessIsMore ----

TEST(OmniKv, FilterLayersAndTheLayerAfterEach) {
  const plan::Plan plan = make_plan("omnikv", kLlama8B, {});
  EXPECT_EQ(letters(plan), "DDSDRRRRSDRRRRRRRRSDRRRRRRRRRRRR");
  for (int head = 0; head < 8; ++head) {
    EXPECT_EQ(plan.role(7, head).reads, (plan::SlotId{2, 0}));
    EXPECT_EQ(plan.role(10, head).reads, (plan::SlotId{8, 0}));
    EXPECT_EQ(plan.role(31, head).reads, (plan::SlotId{18, 0}));
  }
  plan::Selector expected;
  expected.per = plan::SetPer::layer;
  expected.budget = {BudgetRule::tokens, 1024};
  expected.terms.push_back({Source::probability, GroupPooling::max_probability, HeadPooling::max});
  EXPECT_THAT(plan.selectors, ElementsAre(expected));
  EXPECT_EQ(letters(make_plan("omnikv", kSmol, {})), "DDSDRRRRSDRRRRRRRSDRRRRRRRRRRR");
  EXPECT_EQ(letters(make_plan("omnikv", kMha, opts({{"filters", "1"}}))), "DSDR");
  EXPECT_THAT(refused("omnikv", kLlama8B, opts({}, "p=0.9")), HasSubstr("sums to no mass"));
}

TEST(LessIsMore, OneSetByRanksAQuarterOfItRecent) {
  const plan::Plan plan = make_plan("lessismore", kLlama8B, {});
  EXPECT_EQ(letters(plan), "DDS" + std::string(10, 'R') + "S" + std::string(18, 'R'));
  plan::Selector expected;
  expected.per = plan::SetPer::layer;
  expected.sink = 4;
  expected.local_share = 0.25;
  expected.budget = {BudgetRule::tokens, 1024};
  expected.terms.push_back({Source::dot, GroupPooling::none, HeadPooling::rank_merge});
  EXPECT_THAT(plan.selectors, ElementsAre(expected));
  EXPECT_EQ(plan::window_tokens(plan.selectors[0], 100000), 252) << "4 sinks inside the quarter";
  for (const auto& [tokens, window] : {std::pair{1025, 253}, {1026, 253}, {1027, 253}, {1028, 253}, {1029, 254}}) {
    PolicyOptions odd;
    odd.budget = plan::Budget{BudgetRule::tokens, static_cast<double>(tokens)};
    EXPECT_EQ(plan::window_tokens(make_plan("lessismore", kLlama8B, odd).selectors[0], 100000), window)
        << "a quarter of " << tokens << ", rounded up";
  }
  EXPECT_EQ(letters(make_plan("lessismore", kSmol, {})), "DDS" + std::string(9, 'R') + "S" + std::string(17, 'R'));
  PolicyOptions local;
  local.local = 64;
  EXPECT_EQ(make_plan("lessismore", kSmol, local).selectors[0].local_share, 0);
  local.extra["local-share"] = "0.5";
  EXPECT_THAT(refused("lessismore", kSmol, local), HasSubstr("give one of the two"));
}

TEST(Tidal, TakesTheProfilesLayer) {
  plan::Profile profile = profile_for(kSmol);
  profile.tidal = plan::TidalProfile{17};
  PolicyOptions options;
  options.profile = &profile;
  EXPECT_EQ(letters(make_plan("tidal", kSmol, options)), "DDS" + std::string(14, 'R') + "S" + std::string(12, 'R'));
  std::vector<std::string> warnings;
  options.warnings = &warnings;
  options.extra["reselect"] = "9";
  EXPECT_EQ(letters(make_plan("tidal", kSmol, options)), "DDS" + std::string(6, 'R') + "S" + std::string(20, 'R'));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("not used")));
  warnings.clear();
  options.extra = {{"select", "17"}};
  EXPECT_EQ(letters(make_plan("tidal", kSmol, options)), "DD" + std::string(15, 'D') + "S" + std::string(12, 'R'));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("selects again in layer 17, not behind layer 17")));
}

TEST(LessIsMore, TakesTheProfilesLayer) {
  plan::Profile profile = profile_for(kSmol);
  profile.lessismore = plan::LessIsMoreProfile{17};
  PolicyOptions options;
  options.profile = &profile;
  std::vector<std::string> warnings;
  options.warnings = &warnings;
  EXPECT_EQ(letters(make_plan("lessismore", kSmol, options)),
            "DDS" + std::string(14, 'R') + "S" + std::string(12, 'R'));
  EXPECT_THAT(warnings, testing::IsEmpty());
  options.extra["reselect"] = "9";
  EXPECT_EQ(letters(make_plan("lessismore", kSmol, options)), "DDS" + std::string(6, 'R') + "S" + std::string(20, 'R'));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("not used")));
  warnings.clear();
  options.extra = {{"select", "17"}};
  EXPECT_EQ(letters(make_plan("lessismore", kSmol, options)), "DD" + std::string(15, 'D') + "S" + std::string(12, 'R'));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("selects again in layer 17, not behind layer 17")));
}

TEST(OmniKv, TakesTheProfilesFilters) {
  plan::Profile profile = profile_for(kSmol);
  profile.omnikv = plan::OmniKvProfile{{4, 20}};
  PolicyOptions options;
  options.profile = &profile;
  std::vector<std::string> warnings;
  options.warnings = &warnings;
  EXPECT_EQ(letters(make_plan("omnikv", kSmol, options)), "DDDDSD" + std::string(14, 'R') + "SD" + std::string(8, 'R'));
  EXPECT_THAT(warnings, testing::IsEmpty());
  options.extra["filters"] = "2";
  EXPECT_EQ(letters(make_plan("omnikv", kSmol, options)), "DDSD" + std::string(26, 'R'));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("not used")));
}

TEST(Tidal, TakesTheProfilesLayerOnlyOfItsModelFile) {
  plan::Profile profile = profile_for(kSmol);
  profile.tidal = plan::TidalProfile{17};
  profile.fingerprint = 5;
  PolicyOptions options;
  options.profile = &profile;
  EXPECT_EQ(refused("tidal", kSmol, options), "") << "the caller knows no fingerprint";
  options.fingerprint = 5;
  EXPECT_EQ(refused("tidal", kSmol, options), "");
  options.fingerprint = 6;
  EXPECT_THAT(refused("tidal", kSmol, options), HasSubstr("made for the model file 0000000000000005"));
}

TEST(EveryMethodWithAProfile, SaysWhereOptionsLeaveItNothingToSay) {
  plan::Profile profile = profile_for(kSmol);
  profile.kascade = plan::KascadeProfile{{0}, {}};
  for (int i = 0; i < 30 * 3; ++i) profile.kascade->head_map.push_back(i % 3);
  profile.tidal = plan::TidalProfile{17};
  profile.lessismore = plan::LessIsMoreProfile{17};
  profile.omnikv = plan::OmniKvProfile{{4}};
  profile.retrieval = plan::RetrievalProfile{std::vector<double>(270, 0.5)};
  for (const auto& [policy, key, value] : std::vector<std::array<const char*, 3>>{{"tidal", "reselect", "none"},
                                                                                  {"lessismore", "reselect", "9"},
                                                                                  {"omnikv", "filters", "3"},
                                                                                  {"kascade", "anchors", "0+3"},
                                                                                  {"kascade", "anchors", "all"},
                                                                                  {"evosparse", "prop", "off"}}) {
    std::vector<std::string> warnings;
    bool unused = false;
    PolicyOptions options;
    options.profile = &profile;
    options.warnings = &warnings;
    options.profile_unused = &unused;
    make_plan(policy, kSmol, options);
    EXPECT_FALSE(unused) << policy;
    EXPECT_THAT(warnings, testing::IsEmpty()) << policy;
    options.extra[key] = value;
    make_plan(policy, kSmol, options);
    EXPECT_TRUE(unused) << policy;
    EXPECT_THAT(warnings, testing::IsEmpty()) << policy;
    options.profile_unused = nullptr;
    make_plan(policy, kSmol, options);
    EXPECT_THAT(warnings, ElementsAre(HasSubstr("not used"))) << policy;
  }
}

// What is guessed and what names it, method by method; none of them is silent.
TEST(EveryMethodThatGuesses, SaysSoAndNamesTheCure) {
  const struct {
    const char* policy;
    const char* guess;
    std::map<std::string, std::string> by_hand;  ///< options with which nothing is guessed; none: there are none
  } rows[] = {
      {"tidal", "layer 12 selects again", {{"reselect", "12"}}},
      {"tidal", "layer 12 selects again", {{"reselect", "none"}}},
      {"lessismore", "layer 12 selects again", {{"reselect", "12"}}},
      {"omnikv", "filter layers are 2, 8, 17", {{"filters", "2+8+17"}}},
      {"kascade", "scaled", {{"anchors", "0+2+9"}}},
      {"kascade", "scaled", {{"anchors", "all"}}},
      {"lychee-decode", "12.2 %", {}},
      {"duo", "even spread of 50 %", {}},
      {"razor", "even spread of 15", {}},
      {"evosparse", "10 retrieval heads are evenly spread", {{"prop", "off"}}},
  };
  for (const auto& row : rows) {
    std::vector<std::string> warnings;
    PolicyOptions options;
    options.warnings = &warnings;
    make_plan(row.policy, kSmol, options);
    EXPECT_THAT(warnings, ElementsAre(testing::AllOf(HasSubstr(fmt::format("policy '{}': no profile: ", row.policy)),
                                                     HasSubstr(row.guess), HasSubstr("glimpse calibrate -m MODEL"))));
    if (row.by_hand.empty()) continue;
    warnings.clear();
    options.extra = row.by_hand;
    make_plan(row.policy, kSmol, options);
    EXPECT_THAT(warnings, testing::IsEmpty()) << row.policy;
  }
  // Methods whose every layer and head chooses for itself have nothing to guess.
  for (const char* policy : {"full", "quest", "streaming", "h2o", "tova", "raas", "lychee-cluster", "oracle"}) {
    std::vector<std::string> warnings;
    PolicyOptions options;
    options.warnings = &warnings;
    make_plan(policy, kSmol, options);
    EXPECT_THAT(warnings, testing::IsEmpty()) << policy;
  }
}

TEST(Tidal, WarnsOfNoLayerThatThePaperNamesNorOfOneThatNobodyWouldRead) {
  const auto warnings = [](plan::ModelShape shape) {
    std::vector<std::string> all;
    PolicyOptions options;
    options.warnings = &all;
    make_plan("tidal", shape, options);
    return all;
  };
  plan::ModelShape named = kLlama8B;
  named.model_name = "Llama 3.1 8B";
  EXPECT_THAT(warnings(named), testing::IsEmpty());
  EXPECT_THAT(warnings(kMha), testing::IsEmpty()) << "of 4 layers";
  plan::ModelShape five = kMha;
  five.layers = 5;  // round(13 * 5 / 32) is 2, where the first selects
  EXPECT_THAT(warnings(five), ElementsAre(HasSubstr("no layer selects again behind layer 2")));
}

TEST(Kascade, TakesAnchorsAsThePlanPrintsThem) {
  PolicyOptions listed, lettered;
  listed.extra["anchors"] = "0+2+9";
  const std::string letters = "FSFSSSSSSF" + std::string(static_cast<std::size_t>(kSmol.layers) - 10, 'S');
  lettered.extra["anchors"] = letters;
  EXPECT_EQ(make_plan("kascade", kSmol, lettered), make_plan("kascade", kSmol, listed));
  EXPECT_THAT(plan::explain(make_plan("kascade", kSmol, lettered)), HasSubstr("layers:  " + letters));
  lettered.extra["anchors"] = "FSF";
  EXPECT_THAT(refused("kascade", kSmol, lettered), HasSubstr("3 letters for 30 layers"));
  lettered.extra["anchors"] = "S" + letters.substr(1);
  EXPECT_THAT(refused("kascade", kSmol, lettered), HasSubstr("the first anchor is layer 0"));
  lettered.extra["anchors"] = std::string(letters.size(), 'S');
  EXPECT_THAT(refused("kascade", kSmol, lettered), HasSubstr("no layer selects"));
}

}  // namespace
}  // namespace glimpse::policies
