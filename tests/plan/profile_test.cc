#include "glimpse/plan/profile.h"

#include <gmock/gmock.h>

#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <sstream>

#include "glimpse/base/error.h"
#include "tests/support/places.h"
#include "tests/support/refusal.h"

namespace glimpse::plan {
namespace {

using testing::HasSubstr;

// 4 layers, 4 query heads, 2 KV heads; every part.
Profile sample() {
  Profile profile;
  profile.model = {"llama", "Sample 1B", 4, 4, 2, 64, 0};
  profile.kascade = KascadeProfile{{0, 2}, {0, 1, 1, 0, 0, 1, 1, 1}, {0.5, 0.625, 1}, {}};
  profile.kascade->similarity = {1, 0.5, 0.25, 0, 0, 1, 0.375, 0.875, 0, 0, 1, 0.0625, 0, 0, 0, 1};
  profile.tidal = TidalProfile{3};
  profile.retrieval = RetrievalProfile{std::vector<double>(16, 0.1)};
  profile.retrieval->scores[9] = 1.0 / 3;
  profile.roles = RolesProfile{{1, 1, 0, 0.25, 0.75, 0, 0.5, 1e-7}};
  profile.fingerprint = 0x00ab'cdef'0123'4567u;
  profile.lessismore = LessIsMoreProfile{2};
  profile.omnikv = OmniKvProfile{{1, 3}};
  profile.budget = BudgetProfile{3904, 0.9375, 0.9, false, 0.0625, {16, 32, 4096, 1, 48, 64, 80, 96}};
  profile.kept = {{"tidal", "512", "needle", 0.95, 1, 0.015625, 0.98},
                  {"kascade", "10%,min=128", "chain", 0, 0.5, 0, 1, 0.75, "prefill=dense", 6, true}};
  profile.speed = SpeedProfile{"A processor", 2, "bf16", 4096, {5.5, 1.25}, {11, 2.5}, {}};
  profile.speed->methods = {{"tidal", "512", "", {6, 0.125}}, {"kascade", "10%,min=128", "prefill=dense", {7, 0.0625}}};
  return profile;
}

TEST(Profile, IsEqualAfterARoundTrip) {
  const Profile whole = sample();
  EXPECT_EQ(parse_profile(to_json(whole)), whole);
  for (int without = 0; without < 511; ++without) {  // every set of parts but the empty one
    Profile profile = sample();
    if ((without & 1) != 0) profile.kascade.reset();
    if (without % 11 == 0 && profile.kascade) profile.kascade->similarity.clear();
    if ((without & 2) != 0) profile.tidal.reset();
    if ((without & 4) != 0) profile.retrieval.reset();
    if ((without & 8) != 0) profile.roles.reset();
    if ((without & 16) != 0) profile.lessismore.reset();
    if ((without & 32) != 0) profile.omnikv.reset();
    if ((without & 64) != 0) profile.kept.clear();
    if ((without & 128) != 0) profile.speed.reset();
    if ((without & 256) != 0) profile.budget.reset();
    if (without % 5 == 0 && profile.budget) profile.budget->steps.reset();
    if (without % 7 == 0 && profile.budget) profile.budget->divergence.reset();
    if (profile.budget) profile.budget->together = !profile.budget->steps && without % 2 == 0;
    if (without % 3 == 0) profile.fingerprint.reset();
    EXPECT_EQ(parse_profile(to_json(profile)), profile);
    EXPECT_EQ(profile.has("kascade"), (without & 1) == 0);
    EXPECT_EQ(profile.has("tidal"), (without & 2) == 0);
    EXPECT_EQ(profile.has("retrieval"), (without & 4) == 0);
    EXPECT_EQ(profile.has("roles"), (without & 8) == 0);
    EXPECT_EQ(profile.has("lessismore"), (without & 16) == 0);
    EXPECT_EQ(profile.has("omnikv"), (without & 32) == 0);
    EXPECT_EQ(profile.has("kept"), (without & 64) == 0);
    EXPECT_EQ(profile.has("speed"), (without & 128) == 0);
    EXPECT_EQ(profile.has("budget"), (without & 256) == 0);
    EXPECT_FALSE(profile.has("other"));
  }
  EXPECT_TRUE(is_profile_text(to_json(whole)));
  EXPECT_FALSE(is_profile_text(to_json(dense_plan({"llama", "", 1, 1, 1, 64, 0}))));
}

TEST(Profile, RandomSharesSurviveTheText) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 200; ++i) {
    Profile profile = sample();
    for (double& p : profile.roles->probability) p = std::uniform_real_distribution<double>(0, 1)(random);
    for (double& s : profile.retrieval->scores) s = std::uniform_real_distribution<double>(0, 1e-3)(random);
    profile.speed->dense.ms_per_1000 = std::uniform_real_distribution<double>(0, 1)(random);
    profile.kept[0].agreement = std::uniform_real_distribution<double>(0, 1)(random);
    for (Kept& row : profile.kept) row.divergence = std::uniform_real_distribution<double>(0, 20)(random);
    profile.fingerprint = random();
    ASSERT_EQ(parse_profile(to_json(profile)), profile);
  }
}

TEST(Profile, RefusesWhatCannotBeTrue) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const struct {
    const char* name;
    std::function<void(Profile&)> spoil;
    const char* says;
  } cases[] = {
      {"no parts", [](Profile& p) { p = {.model = p.model}; }, "parts: none"},
      {"no layers", [](Profile& p) { p.model.layers = 0; }, "layers = 0"},
      {"context", [](Profile& p) { p.model.context = 512; }, "context = 512"},
      {"no anchors", [](Profile& p) { p.kascade->anchors.clear(); }, "the first anchor must be layer 0"},
      {"anchor 1 first",
       [](Profile& p) {
         p.kascade->anchors = {1, 2};
       },
       "the first anchor must be layer 0"},
      {"anchor range",
       [](Profile& p) {
         p.kascade->anchors = {0, 4};
       },
       "layer 4 is outside 0 to 3"},
      {"anchor twice",
       [](Profile& p) {
         p.kascade->anchors = {0, 2, 2};
       },
       "rising order"},
      {"map size", [](Profile& p) { p.kascade->head_map.pop_back(); }, "7 values, 8 needed"},
      {"objective below 0", [](Profile& p) { p.kascade->objective[1] = -0.1; }, "of 2 anchors -0.1 is outside 0 to 1"},
      {"objective size", [](Profile& p) { p.kascade->objective.resize(5, 1); }, "5 values; give one for each number"},
      {"similarity size", [](Profile& p) { p.kascade->similarity.pop_back(); }, "15 values, 16 needed"},
      {"similarity over 1", [](Profile& p) { p.kascade->similarity[3] = 1.5; },
       "layer 3 with the set of layer 0: 1.5 is outside 0 to 1"},
      {"similarity nan", [=](Profile& p) { p.kascade->similarity[6] = nan; }, "layer 2 with the set of layer 1: nan"},
      {"similarity of a later layer", [](Profile& p) { p.kascade->similarity[4] = 0.5; },
       "layer 0 with the set of layer 1: 0.5 is outside 0 to 0"},
      {"map range", [](Profile& p) { p.kascade->head_map[2] = 2; }, "layer 1: KV head 2 is outside 0 to 1"},
      {"map below 0", [](Profile& p) { p.kascade->head_map[2] = -1; }, "KV head -1"},
      {"anchor mapped", [](Profile& p) { p.kascade->head_map[4] = 1; }, "layer 2: an anchor reads its own sets"},
      {"reselect range", [](Profile& p) { p.tidal->reselect = 4; }, "tidal.reselect: layer 4 is outside 1 to 3"},
      {"reselect unset", [](Profile& p) { p.tidal->reselect = -1; }, "layer -1"},
      {"scores size", [](Profile& p) { p.retrieval->scores.resize(8); }, "8 values, 16 needed"},
      {"scores nan", [=](Profile& p) { p.retrieval->scores[5] = nan; }, "layer 1, head 1: nan"},
      {"scores over 1", [](Profile& p) { p.retrieval->scores[5] = 1.5; }, "1.5 is outside 0 to 1"},
      {"roles nan", [=](Profile& p) { p.roles->probability[3] = nan; }, "layer 1, head 1: nan"},
      {"roles below 0", [](Profile& p) { p.roles->probability[3] = -0.5; }, "-0.5"},
      {"roles size", [](Profile& p) { p.roles->probability.clear(); }, "0 values, 8 needed"},
      {"lessismore range", [](Profile& p) { p.lessismore->reselect = 0; }, "lessismore.reselect: layer 0 is outside 1"},
      {"no filters", [](Profile& p) { p.omnikv->filters.clear(); }, "omnikv.filters: none"},
      {"filter range", [](Profile& p) { p.omnikv->filters[1] = 4; }, "omnikv.filters: layer 4 is outside 0 to 3"},
      {"filter order", [](Profile& p) { p.omnikv->filters[0] = 3; }, "omnikv.filters: layer 3 follows layer 3"},
      {"no method", [](Profile& p) { p.kept[0].method = ""; }, "kept[0]: method ''"},
      {"a method that a terminal obeys", [](Profile& p) { p.kept[1].method = "\x1b[2J"; }, "kept[1]: method '?[2J'"},
      {"a long task", [](Profile& p) { p.kept[0].task = std::string(65, 'x'); }, "give 1 to 64 printable ASCII"},
      {"kept budget", [](Profile& p) { p.kept[0].budget = "half"; }, "kept[0]: budget 'half'"},
      {"answers over 1", [](Profile& p) { p.kept[0].answers = 1.25; }, "kept[0]: answers 1.25 is outside 0 to 1"},
      {"dense below 0", [](Profile& p) { p.kept[0].dense = -1; }, "kept[0]: dense -1"},
      {"coverage nan", [=](Profile& p) { p.kept[0].coverage = nan; }, "kept[0]: coverage nan"},
      {"divergence below 0", [](Profile& p) { p.kept[0].divergence = -0.25; }, "kept[0]: divergence -0.25"},
      {"divergence nan", [=](Profile& p) { p.kept[0].divergence = nan; }, "kept[0]: divergence nan"},
      {"divergence infinite", [](Profile& p) { p.kept[0].divergence = std::numeric_limits<double>::infinity(); },
       "kept[0]: divergence inf"},
      {"kept twice",
       [](Profile& p) {
         p.kept.push_back(p.kept[0]);
         p.kept.back().answers = 0;
       },
       "kept[2]: tidal at 512 on needle is given twice"},
      {"agreement over 1", [](Profile& p) { p.kept[1].agreement = 1.5; }, "kept[1]: agreement 1.5"},
      {"asked nothing", [](Profile& p) { p.kept[1].asked = 0; }, "kept[1]: asked 0; give 1 to"},
      {"left out of nothing", [](Profile& p) { p.kept[1].asked.reset(); }, "kept[1]: left_out without asked"},
      {"options that a terminal obeys", [](Profile& p) { p.kept[1].options = "a=\n"; }, "kept[1]: options 'a=?'"},
      {"budgets of no length", [](Profile& p) { p.budget->context = 0; }, "budget: context 0 is outside 1 to"},
      {"budgets for no mass", [](Profile& p) { p.budget->coverage = 0; }, "budget: coverage 0 is outside 0 to 1"},
      {"budgets for all mass", [](Profile& p) { p.budget->coverage = 1; }, "budget: coverage 1 is outside 0 to 1"},
      {"budgets for nan", [=](Profile& p) { p.budget->coverage = nan; }, "budget: coverage nan"},
      {"budgets in no step", [](Profile& p) { p.budget->steps = 0; }, "budget: steps 0 is outside 0 to 1"},
      {"budgets of a mean in steps", [](Profile& p) { p.budget->together = true; }, "budget: steps beside together"},
      {"budgets for no KL", [](Profile& p) { p.budget->divergence = 0; }, "budget: divergence 0; give"},
      {"a budget of nothing", [](Profile& p) { p.budget->tokens[5] = 0; },
       "budget.tokens, layer 2, head 1: budget 0 is outside 1 to"},
      {"too few budgets", [](Profile& p) { p.budget->tokens.pop_back(); }, "budget.tokens: 7 values, 8 needed"},
      {"no processor", [](Profile& p) { p.speed->processor = ""; }, "speed: processor ''"},
      {"no threads", [](Profile& p) { p.speed->threads = 0; }, "speed: threads 0 is outside 1 to"},
      {"a cache of no type", [](Profile& p) { p.speed->kv_type = "int3"; }, "speed.kv_type:"},
      {"no length", [](Profile& p) { p.speed->tokens = 0; }, "speed: tokens 0 is outside 1 to"},
      {"time below 0", [](Profile& p) { p.speed->dense.fixed_ms = -1; }, "speed.dense: fixed_ms -1 is outside 0"},
      {"time nan", [=](Profile& p) { p.speed->verify.ms_per_1000 = nan; }, "speed.verify: ms_per_1000 nan"},
      {"time infinite", [](Profile& p) { p.speed->methods[1].time.fixed_ms = std::numeric_limits<double>::infinity(); },
       "speed.methods[1]: fixed_ms inf"},
      {"timed budget", [](Profile& p) { p.speed->methods[0].budget = "half"; }, "speed.methods[0]: budget 'half'"},
      {"timed twice", [](Profile& p) { p.speed->methods.push_back(p.speed->methods[0]); },
       "speed.methods[2]: tidal at 512 is given twice"},
      {"too many timed", [](Profile& p) { p.speed->methods.resize(5000); }, "speed.methods: 5000 rows"},
      {"too many rows", [](Profile& p) { p.kept.resize(5000); }, "kept: 5000 rows"},
  };
  for (const auto& c : cases) {
    Profile profile = sample();
    c.spoil(profile);
    EXPECT_THAT(refusal([&] { validate(profile); }), HasSubstr(c.says)) << c.name;
    EXPECT_THROW(to_json(profile), UserError) << c.name;
  }
}

TEST(Profile, HoldsForItsModelOnly) {
  const ModelShape shape{"llama", "Sample 1B", 4, 4, 2, 64, 131072};
  EXPECT_NO_THROW(validate_for(sample(), shape));
  for (const auto& change : std::vector<std::function<void(ModelShape&)>>{
           [](ModelShape& s) { s.architecture = "qwen2"; }, [](ModelShape& s) { s.model_name = "Other"; },
           [](ModelShape& s) { s.layers = 5; }, [](ModelShape& s) { s.heads = 8; },
           [](ModelShape& s) { s.kv_heads = 4; }, [](ModelShape& s) { s.head_dim = 128; }}) {
    ModelShape other = shape;
    change(other);
    EXPECT_THAT(refusal([&] { validate_for(sample(), other); }), HasSubstr("calibrate this model"));
  }
}

TEST(Profile, HoldsForItsFileOnlyWhereBothFingerprintsAreKnown) {
  const ModelShape shape{"llama", "Sample 1B", 4, 4, 2, 64, 131072};
  EXPECT_NO_THROW(validate_for(sample(), shape, 0x00ab'cdef'0123'4567u));
  const std::string text = refusal([&] { validate_for(sample(), shape, 0x00ab'cdef'0123'4568u); });
  EXPECT_THAT(text, HasSubstr("made for the model file 00abcdef01234567, but this one is 00abcdef01234568"));
  EXPECT_THAT(text, HasSubstr("calibrate this model"));
  Profile any = sample();
  any.fingerprint.reset();
  EXPECT_NO_THROW(validate_for(any, shape, 7));
}

std::string replaced(std::string_view from, std::string_view to) {
  std::string text = to_json(sample());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Profile, RefusesEachBadTextNamingThePath) {
  const struct {
    std::string text;
    std::string says;
  } cases[] = {
      {"", "profile JSON: not valid JSON"},
      {"{}", "'glimpse_profile' is missing"},
      {replaced("\"glimpse_profile\": 1", "\"glimpse_profile\": 2"), "version 2; this program reads version 1"},
      {replaced("\"glimpse_profile\"", "\"glimpse_plan\""), "'glimpse_profile' is missing"},
      {replaced("\"layers\":4", "\"layers\":5"), "4 rows; give one for each of 5 layers"},
      {replaced("\"layers\":4", "\"layers\":2000"), "layers = 2000"},
      {replaced("\"head_dim\":64", "\"head_dim\":64,\"context\":8192"), "$.model: unknown key 'context'"},
      {replaced("\"anchors\":[0,2]", "\"anchors\":[0,4]"), "layer 4 is outside 0 to 3"},
      {replaced("\"anchors\":[0,2]", "\"anchors\":[0,2.0]"), "$.kascade.anchors[1]: expected a whole number"},
      {replaced("\"anchors\":[0,2],", ""), "$.kascade: 'anchors' is missing"},
      {replaced("[1,0]", "[1,0,1]"), "$.kascade.head_map[1]: 3 values; give one for each of 2 heads"},
      {replaced("[1,0]", "[1,9]"), "KV head 9"},
      {replaced("[1,0]", "7"), "$.kascade.head_map[1]: expected an array, found number"},
      {replaced("\"reselect\":3", "\"reselect\":9"), "layer 9"},
      {replaced("\"reselect\":3", "\"reselct\":3"), "$.tidal: 'reselect' is missing"},
      {replaced("0.75", "NaN"), "not valid JSON"},
      {replaced("0.75", "1e999"), "not valid JSON"},
      {replaced("0.75", "\"0.75\""), "$.roles.probability[2][0]: expected a number, found string"},
      {replaced("0.75", "7.5"), "roles.probability: layer 2, head 0: 7.5"},
      {replaced("\"roles\"", "\"rolls\""), "unknown key 'rolls'; did you mean 'roles'"},
      {replaced("\"tidal\"", "\"kascade\""), "'kascade' is given twice"},
      {replaced("00abcdef01234567", "abcdef01234567"), "$.fingerprint: 'abcdef01234567' is none; give 16 digits"},
      {replaced("00abcdef01234567", "00ABCDEF01234567"), "in small letters"},
      {replaced("00abcdef01234567", "-0abcdef01234567"), "$.fingerprint"},
      {replaced("00abcdef01234567", "100abcdef01234567"), "$.fingerprint"},
      {replaced("\"00abcdef01234567\"", "12"), "$.fingerprint: expected"},
      {replaced("\"filters\":[1,3]", "\"filters\":[]"), "omnikv.filters: none"},
      {replaced("\"filters\":[1,3]", "\"layers\":[1,3]"), "$.omnikv: 'filters' is missing"},
      {replaced("\"lessismore\": {\"reselect\":2}", "\"lessismore\": {\"reselect\":2,\"select\":1}"),
       "$.lessismore: unknown key 'select'"},
      {replaced("\"coverage\":0.98", "\"cover\":0.98"), "$.kept[0]: 'coverage' is missing"},
      {replaced("\"dense\":0.5", "\"dense\":true"), "$.kept[1].dense: expected a number"},
      {replaced("\"budget\":\"512\"", "\"budget\":512"), "$.kept[0].budget: expected"},
      {replaced("0.625", "6.25"), "kascade.objective: of 2 anchors 6.25 is outside 0 to 1"},
      {replaced("[1.0,0.5,0.25,0.0]", "[1.0,0.5,0.25]"),
       "$.kascade.similarity[0]: 3 values; give one for each of 4 layers"},
      {replaced("0.375", "{}"), "$.kascade.similarity[1][2]: expected a number"},
      {replaced("0.625", "[]"), "$.kascade.objective[1]: expected a number"},
      {replaced("\"agreement\":0.75", "\"agreement\":\"0.75\""), "$.kept[1].agreement: expected a number"},
      {replaced("\"options\":", "\"option\":"), "$.kept[1]: unknown key 'option'"},
      {replaced("\"asked\":6", "\"asked\":6.5"), "$.kept[1].asked: expected a whole number"},
      {replaced("\"left_out\":true", "\"left_out\":1"), "$.kept[1].left_out: expected"},
      {replaced("\"threads\":2", "\"threads\":2.5"), "$.speed.threads: expected a whole number"},
      {replaced("\"kv_type\":\"bf16\",", ""), "$.speed: 'kv_type' is missing"},
      {replaced("\"dense\":{\"fixed_ms\":5.5,", "\"dense\":{"), "$.speed.dense: 'fixed_ms' is missing"},
      {replaced("\"verify\":{", "\"verify\":{\"ms\":1,"), "$.speed.verify: unknown key 'ms'"},
      {replaced("\"methods\":[{", "\"methods\":[7,{"), "$.speed.methods[0]: expected an object"},
      {replaced("\"ms_per_1000\":0.0625", "\"ms_per_1000\":-0.0625"), "speed.methods[1]: ms_per_1000 -0.0625"},
      {replaced("[16,32]", "[16,32.5]"), "$.budget.tokens[0][1]: expected a whole number"},
      {replaced("[16,32]", "[16]"), "$.budget.tokens[0]: 1 values; give one for each of 2 heads"},
      {replaced("\"coverage\":0.9375,", ""), "$.budget: 'coverage' is missing"},
      {replaced("\"steps\":0.9", "\"steps\":1.5"), "budget: steps 1.5"},
      {replaced("\"kept\": [", "\"kept\": [3,"), "$.kept[0]: expected an object"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(refusal([&] { parse_profile(c.text); }), HasSubstr(c.says)) << c.text;
  }
}

TEST(Profile, RefusesEveryTruncation) {
  const std::string text = to_json(sample());
  for (std::size_t length = 0; length + 2 < text.size(); ++length) {
    EXPECT_THROW(parse_profile(text.substr(0, length)), UserError) << length;
  }
}

// A changed byte gives a profile that validates or a UserError, nothing else.
TEST(Profile, SurvivesChangedBytes) {
  std::mt19937_64 random(13);
  const std::string good = to_json(sample());
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    std::optional<Profile> profile;
    try {
      profile = parse_profile(text);
    } catch (const UserError&) {
    }
    if (profile) {
      EXPECT_EQ(parse_profile(to_json(*profile)), *profile) << text;
    }
  }
}

TEST(Profile, IsPutInWords) {
  const std::string text = explain(sample());
  EXPECT_THAT(text, HasSubstr("anchors 0, 2; 3 of 8 heads read another head's set"));
  EXPECT_THAT(text, HasSubstr("objective  of 1, 2, ... anchors: 0.500, 0.625, 1.000\n"));
  EXPECT_THAT(text, HasSubstr("layer 3 selects again"));
  EXPECT_THAT(text, HasSubstr("layer:head score: 2:1 0.33"));
  EXPECT_THAT(text, HasSubstr("3 of 8 KV heads above 0.5; strongest: 0:0 1.00, 0:1 1.00, 2:0 0.75"));
  EXPECT_THAT(text, HasSubstr("lessismore layer 2 selects again\n"));
  EXPECT_THAT(text, HasSubstr("omnikv     filter layers 1, 3\n"));
  EXPECT_THAT(text,
              HasSubstr("kept       method                 budget       task     answers     dense  divergence  "
                        "coverage  agreement  asked\n"
                        "           tidal                  512          needle    95.0 %   100.0 %      0.0156    "
                        "0.9800          -  -\n"
                        "           kascade,prefill=dense  10%,min=128  chain      0.0 %    50.0 %      0.0000    "
                        "1.0000     75.0 %  6, left out\n"
                        "not for    chain: kascade,prefill=dense 10%,min=128\n"));
  EXPECT_THAT(text, HasSubstr("ms a token on 'A processor', 2 threads, bf16 cache; contexts of 4096 tokens\n"));
  EXPECT_THAT(text, testing::ContainsRegex("tidal +512 +6.00 and 0.125 for each 1,000 tokens\n"));
}

TEST(Profile, SaysWhatMethodsAreNotFor) {
  const Kept most{"tidal", "512", "vt", 0.68, 0.8};  // 85 % of dense attention's answers
  Kept fewer = most, copies = most, none = most, prose = most;
  fewer.answers = 0.67;
  copies.task = "passkey";
  copies.answers = 0;
  none.answers = none.dense = 0;
  prose.task = kProseTask;
  prose.answers = 0;
  Kept facts = prose, several = prose;
  facts.task = kFactsTask;
  several.task = kSeveralTask;
  const auto said = [](std::vector<const Kept*> rows) { return not_for(rows); };
  EXPECT_EQ(said({}), "");
  EXPECT_EQ(said({&most, &none, &prose, &facts, &several}), "");
  EXPECT_EQ(said({&fewer}), "following variables");
  EXPECT_EQ(said({&most, &copies, &prose}), "copying passkeys");
  EXPECT_EQ(said({&fewer, &copies}), "following variables, copying passkeys");
  Profile profile = sample();
  profile.kept = {fewer, copies};
  copies.budget = "10%";
  profile.kept.push_back(copies);
  EXPECT_THAT(explain(profile), HasSubstr("\nnot for    following variables: tidal 512\n"
                                          "           copying passkeys: tidal 512, tidal 10%\n"));
}

// The only ```json block of docs/methods.md.
TEST(Profile, TheDocumentsExampleIsOne) {
  std::ifstream file(test::source_root() / "docs/methods.md");
  std::stringstream document;
  document << file.rdbuf();
  const std::string text = document.str();
  const std::string open = "```json\n";
  const std::size_t begin = text.find(open);
  ASSERT_NE(begin, std::string::npos);
  EXPECT_EQ(text.find(open, begin + 1), std::string::npos);
  const std::size_t first = begin + open.size();
  const std::string json = text.substr(first, text.find("```", first) - first);
  EXPECT_TRUE(is_profile_text(json));
  const Profile profile = parse_profile(json);
  EXPECT_EQ(profile.model, (ModelShape{"llama", "Example 1B", 4, 4, 2, 64, 0}));
  for (const char* part : {"kascade", "tidal", "retrieval", "roles", "lessismore", "omnikv", "kept", "speed"}) {
    EXPECT_TRUE(profile.has(part)) << part;
  }
  EXPECT_EQ(profile.fingerprint, 0x0123'4567'89ab'cdefu);
  EXPECT_EQ(profile.mapped_head(1, 0), 1);
  EXPECT_EQ(profile.retrieval->scores[6], 0.75);
}

TEST(Profile, MergeTakesPartsAndRowsOfTheirMethods) {
  Profile into;
  into.tidal = TidalProfile{3};
  into.lessismore = LessIsMoreProfile{2};
  into.kept = {{"tidal", "512", "needle", 0.5, 1, 0.1, 0.9}, {"omnikv", "512", "needle", 1, 1, 0, 1}};
  Profile found;
  found.tidal = TidalProfile{5};
  found.kept = {{"tidal", "10%", "chain", 1, 1, 0.01, 0.95}};
  merge(into, found);
  EXPECT_EQ(into.tidal, TidalProfile{5});
  EXPECT_EQ(into.lessismore, LessIsMoreProfile{2});
  EXPECT_EQ(into.kept,
            (std::vector<Kept>{{"omnikv", "512", "needle", 1, 1, 0, 1}, {"tidal", "10%", "chain", 1, 1, 0.01, 0.95}}));
}

TEST(Profile, MergeTakesTimesThatWereMeasuredAlike) {
  Profile into = sample();
  Profile found;
  found.speed = into.speed;
  found.speed->dense = {4, 2};
  found.speed->methods = {{"kascade", "512", "", {1, 1}}};
  merge(into, found);
  EXPECT_EQ(into.speed->dense, (TokenTime{4, 2}));
  EXPECT_EQ(into.speed->methods,
            (std::vector<MethodTime>{{"kascade", "512", "", {1, 1}}, {"tidal", "512", "", {6, 0.125}}}));
  into = sample();
  found.speed->threads = 8;
  merge(into, found);
  EXPECT_EQ(into.speed, found.speed) << "times of another machine say nothing beside these";
  found.speed.reset();
  merge(into, found);
  EXPECT_EQ(into.speed->threads, 8);
}

TEST(Profile, TimesOfOtherMachinesStay) {
  Profile into = sample();
  const SpeedProfile first = *into.speed;
  Profile found;
  found.speed = first;
  found.speed->processor = "A GPU";
  found.speed->threads = 1;
  merge(into, found);
  EXPECT_EQ(into.speed, found.speed);
  ASSERT_EQ(into.elsewhere, std::vector<SpeedProfile>{first});
  EXPECT_EQ(speed_on(into, first.machine()), &into.elsewhere[0]);
  EXPECT_EQ(speed_on(into, found.speed->machine()), &*into.speed);
  EXPECT_EQ(speed_on(into, {"none", 1, "bf16"}), nullptr);
  EXPECT_EQ(parse_profile(to_json(into)), into);
  EXPECT_NE(explain(into).find("'A GPU'"), std::string::npos);
  EXPECT_NE(explain(into).find("'A processor'"), std::string::npos);
  // Measured again on the first: its rows go on, and the GPU's times stay.
  Profile again;
  again.speed = first;
  again.speed->methods = {{"kascade", "512", "", {1, 1}}};
  merge(into, again);
  EXPECT_EQ(into.speed->methods,
            (std::vector<MethodTime>{{"kascade", "512", "", {1, 1}}, {"tidal", "512", "", {6, 0.125}}}));
  EXPECT_EQ(into.elsewhere, std::vector<SpeedProfile>{*found.speed});
  // In prompts of another length the rows of `kept` are others.
  Profile longer = sample();
  longer.speed->processor = "A third";
  longer.speed->tokens = 2 * first.tokens;
  keep_elsewhere(longer, into);
  EXPECT_TRUE(longer.elsewhere.empty());
  into.elsewhere.push_back(into.elsewhere[0]);
  EXPECT_THROW(validate(into), UserError) << "twice the same";
  into.elsewhere.pop_back();
  into.elsewhere[0].tokens += 1;
  EXPECT_THROW(validate(into), UserError);
  into.elsewhere[0].tokens -= 1;
  into.speed.reset();
  EXPECT_THROW(validate(into), UserError) << "times elsewhere alone";
}

TEST(Profile, TimesAreALine) {
  EXPECT_DOUBLE_EQ((TokenTime{5.5, 1.25}.at(0)), 5.5);
  EXPECT_DOUBLE_EQ((TokenTime{5.5, 1.25}.at(8000)), 15.5);
}

}  // namespace
}  // namespace glimpse::plan
