// Sets that come from scoring every key: each step's against the transcription, from the engine's queries and keys.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/recording.h"

namespace glimpse::engine {
namespace {

constexpr int kSteps = 16;

using Extra = std::map<std::string, std::string>;

struct Case {
  std::string name;
  std::string budget;
  Extra extra = {};
  int block = 1;
  int sink = 0;
  int local = 0;
};

void PrintTo(const Case& row, std::ostream* out) {
  *out << row.name;
}

policies::PolicyOptions options_of(const Case& row) {
  policies::PolicyOptions options = row.budget.empty() ? policies::PolicyOptions{} : budget(row.budget, row.extra);
  options.extra = row.extra;
  if (row.block > 1) options.block = row.block;
  if (row.sink > 0) options.sink = row.sink;
  if (row.local > 0) options.local = row.local;
  return options;
}

std::string name_of(const testing::TestParamInfo<Case>& row) {
  return row.param.name;
}

methods::Scores mean_probability(const methods::Rows& queries, const methods::Rows& keys) {
  return methods::mean(methods::head_probabilities(queries, keys));
}

/// Selecting layers of TidalDecode and LessIsMore: 2, and 13 of 32.
std::vector<int> two_selects(const plan::ModelShape& shape) {
  const int middle = scaled_layer(13, shape);
  return middle > 2 ? std::vector<int>{2, middle} : std::vector<int>{2};
}

class TidalSets : public testing::TestWithParam<Case> {};

TEST_P(TidalSets, EqualTheTranscription) {
  const Recording run = record_run("tidal", options_of(GetParam()));
  const plan::ModelShape& shape = run.plan.shape;
  const std::vector<int> select = two_selects(shape);
  expect_roles(run, {0, 1}, select);
  const int per_step = GetParam().extra == Extra{{"set", "layer"}} ? 1 : shape.kv_heads;
  EXPECT_EQ(expect_selected(run, mean_probability), kSteps * static_cast<int>(select.size()) * per_step);
  EXPECT_EQ(expect_inherited(run), kSteps * (shape.layers - 2 - static_cast<int>(select.size())) * shape.kv_heads);
}

INSTANTIATE_TEST_SUITE_P(Sets, TidalSets,
                         testing::Values(Case{"kv_head", "48"}, Case{"query_head", "48", {{"set", "query-head"}}},
                                         Case{"layer", "48", {{"set", "layer"}}}, Case{"blocks_of_16", "112", {}, 16},
                                         Case{"blocks_of_32", "160", {}, 32}, Case{"blocks_of_64", "256", {}, 64},
                                         Case{"sink_and_local", "64", {}, 1, 5, 9},
                                         Case{"sink_and_local_in_blocks", "144", {}, 16, 5, 20}, Case{"mass", "p=0.9"},
                                         Case{"mass_in_blocks", "p=0.8", {}, 16},
                                         Case{"mass_with_sink_and_window", "p=0.8", {}, 1, 5, 20},
                                         Case{"threshold_in_blocks", "tau=4e-3", {}, 16},
                                         Case{"coverage_by_layer", "coverage=0.7", {{"set", "layer"}}},
                                         Case{"threshold", "tau=2e-3"}, Case{"share", "10%"}),
                         name_of);

class LycheeDecodeSets : public testing::TestWithParam<Case> {};

TEST_P(LycheeDecodeSets, EqualTheTranscription) {
  const Recording run = record_run("lychee-decode", options_of(GetParam()));
  const plan::ModelShape& shape = run.plan.shape;
  int selects = 0, dense = 0;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const HeadStep& record = run.at(run.steps.at(0), layer, head);
      const bool read =
          layer + 1 < shape.layers && run.at(run.steps.at(0), layer + 1, head).role == plan::RoleKind::reuse;
      if (layer == 0 || record.role != plan::RoleKind::reuse) {
        // A retrieval head whose set no head would read need not make one.
        ASSERT_EQ(record.role, read ? plan::RoleKind::select : plan::RoleKind::dense);
        ASSERT_TRUE(record.reads_all);
      }
      selects += record.role == plan::RoleKind::select;
      dense += record.role == plan::RoleKind::dense;
    }
  }
  EXPECT_GT(selects, 0);
  // Averaged queries before softmax; rules of probability take the mean of the group's probabilities.
  const bool counted = GetParam().budget.find('=') == std::string::npos;
  EXPECT_EQ(expect_selected(run, counted ? Pooling(methods::mean_query_dots) : Pooling(mean_probability)),
            kSteps * selects);
  EXPECT_EQ(expect_inherited(run), kSteps * (shape.layers * shape.kv_heads - selects - dense));
}

INSTANTIATE_TEST_SUITE_P(Sets, LycheeDecodeSets,
                         testing::Values(Case{"tokens", "64"}, Case{"half", "50%"}, Case{"mass", "p=0.95"},
                                         Case{"threshold", "tau=1e-3"}, Case{"blocks_of_64", "192", {}, 64}),
                         name_of);

/// A run of a small model by what calibration found out about it.
Recording profiled_run(const std::string& policy, plan::Profile profile, const std::string& model) {
  profile.model = shared_engine(model).shape();
  profile.model.context = 0;
  policies::PolicyOptions options = budget("64");
  options.profile = &profile;
  return record_run(policy, options, {.steps = kSteps, .model = model});
}

/// How many of the heads' letters are `kind`.
int count_of(char kind, const std::vector<std::string>& heads) {
  std::ptrdiff_t count = 0;
  for (const std::string& letters : heads) count += std::count(letters.begin(), letters.end(), kind);
  return static_cast<int>(count);
}

struct RoleCase {
  std::string name, model;
  std::vector<double> probability;  ///< [layer, kv_head]; over 0.5 retrieves
  std::vector<std::string> heads;   ///< as expect_roles takes them
};

void PrintTo(const RoleCase& row, std::ostream* out) {
  *out << row.name;
}

class LycheeDecodeRoles : public testing::TestWithParam<RoleCase> {};

// Retrieval heads wherever training left them: a set goes on past the layers of other heads, until one of its index
// replaces it. One that is replaced at once, or at the end of the model, has no reader and makes none.
TEST_P(LycheeDecodeRoles, CarryEachHeadsSetToTheNextOfItsIndex) {
  const RoleCase& row = GetParam();
  const Recording run = profiled_run("lychee-decode", {.roles = plan::RolesProfile{row.probability}}, row.model);
  expect_roles(run, row.heads);
  EXPECT_EQ(expect_selected(run, methods::mean_query_dots), kSteps * count_of('S', row.heads));
  EXPECT_EQ(expect_inherited(run), kSteps * count_of('R', row.heads));
}

INSTANTIATE_TEST_SUITE_P(
    Sets, LycheeDecodeRoles,
    testing::Values(RoleCase{"two_heads_of_three_queries", "llama", {0, 0, 0.2, 0.9, 0.5, 0, 0.6, 0}, {"SRRD", "DSRR"}},
                    RoleCase{"six_heads",
                             "llama2",
                             {0,   0, 0,   0,   0,   0,     //
                              0.9, 1, 0.6, 0.5, 0,   0.51,  //
                              0,   0, 0.1, 0,   0.3, 0.8,   //
                              1,   0, 0,   0,   0,   0.2},
                             {"DSRD", "DSRR", "DSRR", "SRRR", "SRRR", "DDSR"}}),
    [](const auto& row) { return row.param.name; });

class KascadeSets : public testing::TestWithParam<Case> {};

TEST_P(KascadeSets, EqualTheTranscription) {
  const Recording run = record_run("kascade", options_of(GetParam()));
  const plan::ModelShape& shape = run.plan.shape;
  const bool per_layer = GetParam().name == "all_heads";
  std::vector<int> anchors;
  for (int layer = 0; layer < shape.layers; ++layer) {
    if (run.at(run.steps.at(0), layer, 0).role == plan::RoleKind::select) anchors.push_back(layer);
  }
  ASSERT_FALSE(anchors.empty());
  // Layer 0 selects for the layers up to the next anchor; in a model of four layers that is layer 1, and nobody reads.
  const std::vector<int> dense = shape.layers == 4 ? std::vector<int>{0} : std::vector<int>();
  EXPECT_EQ(anchors.front(), static_cast<int>(dense.size()));
  expect_roles(run, dense, anchors);
  for (const int layer : anchors) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      EXPECT_EQ(run.plan.role(layer, head).attends_set, layer != 0) << layer;
      // k = min(max(0.1 N, 128), N) where nothing else is asked for.
      const double k = frame_of(selector_of(run, layer, head), run.prompt + 1).value;
      EXPECT_EQ(k, GetParam().budget == "64" ? 64 : 128);
    }
  }
  const int per_step = static_cast<int>(anchors.size()) * (per_layer ? 1 : shape.kv_heads);
  const bool before = GetParam().name == "pre_softmax";
  EXPECT_EQ(expect_selected(run, before ? Pooling(methods::mean_query_dots) : Pooling(mean_probability)),
            kSteps * per_step);
  EXPECT_EQ(expect_inherited(run),
            kSteps * (shape.layers - static_cast<int>(anchors.size() + dense.size())) * shape.kv_heads);
}

INSTANTIATE_TEST_SUITE_P(Sets, KascadeSets,
                         testing::Values(Case{"tokens", "64"}, Case{"its_own_share", ""},
                                         Case{"all_heads", "64", {{"set", "layer"}}},
                                         Case{"pre_softmax", "64", {{"pooling", "query"}}}),
                         name_of);

struct MapCase {
  std::string name, model;
  std::vector<int> anchors;
  std::vector<int> map;            ///< [layer, kv_head]
  std::vector<std::string> heads;  ///< as expect_roles takes them
};

void PrintTo(const MapCase& row, std::ostream* out) {
  *out << row.name;
}

class KascadeHeadMap : public testing::TestWithParam<MapCase> {};

TEST_P(KascadeHeadMap, NamesTheHeadWhoseSetIsRead) {
  const MapCase& row = GetParam();
  const Recording run = profiled_run("kascade", {.kascade = plan::KascadeProfile{row.anchors, row.map}}, row.model);
  const int heads = run.plan.shape.kv_heads;
  expect_roles(run, row.heads);
  EXPECT_EQ(expect_selected(run, mean_probability), kSteps * count_of('S', row.heads));
  const auto mapped = [&](int layer, int head) { return row.map.at(static_cast<std::size_t>(layer * heads + head)); };
  EXPECT_EQ(expect_inherited(run, mapped), kSteps * count_of('R', row.heads));
  // No two heads choose alike, so a set tells whose it is.
  for (const StepRecord& step : run.steps) {
    for (const int layer : row.anchors) {
      for (int head = 0; head < heads; ++head) {
        for (int other = 0; other < head; ++other) {
          EXPECT_NE(run.at(step, layer, other).published, run.at(step, layer, head).published)
              << place(step, layer, head);
        }
      }
    }
  }
}

// Layer 0 is dense but for the heads that somebody reads; later anchors attend to their own sets.
INSTANTIATE_TEST_SUITE_P(
    Sets, KascadeHeadMap,
    testing::Values(MapCase{"swapped_then_both_of_one", "llama", {0, 2}, {0, 1, 1, 0, 0, 1, 1, 1}, {"SRSR", "SRSR"}},
                    MapCase{"another_map_in_every_layer", "llama", {0}, {0, 1, 1, 0, 0, 0, 1, 1}, {"SRRR", "SRRR"}},
                    MapCase{
                        "nobody_reads_a_head_of_layer_0", "llama", {0, 2}, {0, 1, 1, 1, 0, 1, 0, 0}, {"DRSR", "SRSR"}},
                    MapCase{"six_heads_permuted_then_many_to_one",
                            "llama2",
                            {0, 2},
                            {0, 1, 2, 3, 4, 5,  //
                             5, 3, 4, 0, 2, 1,  //
                             0, 1, 2, 3, 4, 5,  //
                             4, 4, 1, 4, 0, 1},
                            {"SRSR", "SRSR", "SRSR", "SRSR", "SRSR", "SRSR"}}),
    [](const auto& row) { return row.param.name; });

TEST(OmniKvSets, EqualTheTranscription) {
  const Recording run = record_run("omnikv", budget("64"));
  const plan::ModelShape& shape = run.plan.shape;
  std::vector<int> dense{0, 1}, select;
  for (const int filter : {2, 8, 18}) {
    const int layer = std::max(2, scaled_layer(filter, shape));
    if (layer >= shape.layers) continue;
    if (std::find(dense.begin(), dense.end(), layer) != dense.end()) continue;
    select.push_back(layer);
    if (layer + 1 < shape.layers) dense.push_back(layer + 1);
  }
  if (shape.layers < 16) GTEST_SKIP() << "too few layers for a filter, the layer after it and a reader";
  expect_roles(run, dense, select);
  const auto largest = [](const methods::Rows& queries, const methods::Rows& keys) {
    return methods::maximum(methods::head_probabilities(queries, keys));
  };
  for (const int layer : select) EXPECT_EQ(selector_of(run, layer, 0).terms.at(0).heads, plan::HeadPooling::max);
  EXPECT_EQ(expect_selected(run, largest), kSteps * static_cast<int>(select.size()));
  EXPECT_GT(expect_inherited(run), 0);
}

class LessIsMoreSets : public testing::TestWithParam<int> {};  // budgets

TEST_P(LessIsMoreSets, MergeTheHeadsRankByRank) {
  const Recording run = record_run("lessismore", budget(std::to_string(GetParam())));
  const plan::ModelShape& shape = run.plan.shape;
  const std::vector<int> select = two_selects(shape);
  expect_roles(run, {0, 1}, select);
  const methods::Frame frame{methods::Rule::count, static_cast<double>(GetParam()), 1, 4,
                             methods::quarter_window(GetParam(), 4)};
  for (const StepRecord& step : run.steps) {
    for (const int layer : select) {
      std::vector<methods::Scores> heads;
      for (int head = 0; head < shape.kv_heads; ++head) {
        const HeadStep& record = run.at(step, layer, head);
        EXPECT_TRUE(record.reads_all);
        for (const auto& scores : methods::head_dots(record.queries, run.keys_at(step, layer, head))) {
          heads.push_back(scores);
        }
      }
      const methods::Set& set = run.at(step, layer, 0).published;
      ASSERT_EQ(set, methods::rank_merge(heads, frame, set)) << place(step, layer, 0);
    }
  }
  EXPECT_EQ(expect_inherited(run), kSteps * (shape.layers - 2 - static_cast<int>(select.size())) * shape.kv_heads);
}

INSTANTIATE_TEST_SUITE_P(Budget, LessIsMoreSets, testing::Values(64, 99),
                         [](const auto& test) { return fmt::format("tokens{}", test.param); });

TEST(OracleSets, AreTheTrueTopKOfEachQueryHead) {
  const Recording run = record_run("oracle", budget("48"));
  const plan::ModelShape& shape = run.plan.shape;
  std::vector<int> select;
  for (int layer = 1; layer < shape.layers; ++layer) select.push_back(layer);
  expect_roles(run, {0}, select);
  EXPECT_EQ(selector_of(run, 1, 0).per, plan::SetPer::query_head);
  EXPECT_EQ(expect_selected(run, methods::mean_query_dots), kSteps * (shape.layers - 1) * shape.kv_heads);
}

}  // namespace
}  // namespace glimpse::engine
