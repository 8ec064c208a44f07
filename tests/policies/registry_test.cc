// Properties that hold for every policy in the registry.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "glimpse/base/error.h"
#include "glimpse/policies/policy.h"
#include "shapes.h"

namespace glimpse::policies {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(std::string_view policy, const plan::ModelShape& shape, const PolicyOptions& options) {
  try {
    make_plan(policy, shape, options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// What a policy is refused without: a file that it does not read itself, so that any name will do.
PolicyOptions needed(const Policy& policy) {
  PolicyOptions options;
  for (const OptionHelp& row : policy.options) {
    if (row.needed) options.extra.emplace(std::string(row.key), "some.gguf");
  }
  return options;
}

const plan::ModelShape kShape{"llama", "", 32, 32, 8, 128, 131072};

// The plan, or nothing where the policy refuses the budget as a kind that it has no use for.
std::optional<plan::Plan> plan_with(const Policy& policy, const plan::ModelShape& shape, const std::string& budget) {
  PolicyOptions options = needed(policy);
  if (!budget.empty()) options.budget = plan::parse_budget(budget);
  try {
    return make_plan(policy.name, shape, options);
  } catch (const UserError& error) {
    EXPECT_FALSE(budget.empty()) << policy.name << " refuses its own defaults: " << error.what();
    EXPECT_THAT(error.what(), HasSubstr(std::string(policy.name)));
    return std::nullopt;
  }
}

TEST(Registry, NamesAreUniqueAndDescribed) {
  std::set<std::string_view> names;
  for (const Policy& policy : registry()) {
    EXPECT_TRUE(names.insert(policy.name).second) << policy.name;
    EXPECT_FALSE(policy.help.empty());
    EXPECT_EQ(policy.help.find('\n'), std::string_view::npos);
    EXPECT_EQ(policy.paper.empty(), policy.name == "full");
    std::set<std::string_view> keys;
    for (const OptionHelp& row : policy.options) {
      EXPECT_TRUE(keys.insert(row.key).second) << row.key;
      EXPECT_FALSE(row.values.empty() || row.default_value.empty() || row.help.empty()) << row.key;
    }
  }
  for (const char* name :
       {"full",       "streaming", "tidal", "lychee-decode", "evosparse", "lychee-cluster", "kascade",
        "quest",      "omnikv",    "h2o",   "tova",          "duo",       "razor",          "clusterkv",
        "lessismore", "arkvale",   "raas",  "shadowkv",      "seer",      "oracle"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST(Registry, SuggestsTheNearestName) {
  EXPECT_EQ(find_policy("tidal").name, "tidal");
  try {
    find_policy("tidl");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'tidl'"), HasSubstr("did you mean 'tidal'"), HasSubstr("streaming")));
  }
  EXPECT_THROW(find_policy(""), UserError);
  EXPECT_THROW(find_policy("Tidal"), UserError);
  EXPECT_THROW(find_policy(std::string(100000, 'x')), UserError);
}

TEST(EveryPolicy, MakesAValidPlanOfEachShapeThatSurvivesJson) {
  for (const Policy& policy : registry()) {
    for (const plan::ModelShape& shape : shapes()) {
      if (shape.context != 8192 && shape.layers != 32) continue;
      int made = 0;
      for (const char* budget :
           {"", "1", "5", "64", "512", "1048576", "10%", "100%", "p=0.99", "tau=1e-4", "coverage=0.98"}) {
        const std::optional<plan::Plan> plan = plan_with(policy, shape, budget);
        if (!plan) continue;
        ++made;
        const std::string where = fmt::format("{} of {} layers, budget {}", policy.name, shape.layers, budget);
        EXPECT_NO_THROW(validate(*plan)) << where;
        EXPECT_EQ(plan->policy, policy.name);
        EXPECT_EQ(plan->shape, shape) << where;
        EXPECT_EQ(plan::from_json(plan::to_json(*plan)), *plan) << where;
        EXPECT_THAT(plan::explain(*plan), HasSubstr(std::string(policy.name)));
      }
      EXPECT_GE(made, 1);
    }
  }
}

TEST(EveryPolicy, IsDenseWhereTheBudgetCoversTheContext) {
  for (const Policy& policy : registry()) {
    for (const plan::ModelShape& shape : shapes()) {
      for (const int budget : {64, 512, 4096}) {
        const std::optional<plan::Plan> plan = plan_with(policy, shape, std::to_string(budget));
        if (!plan) continue;
        EXPECT_TRUE(is_dense_at(*plan, budget)) << policy.name;
        const bool sparse = std::any_of(plan->roles.begin(), plan->roles.end(), [&](const plan::Role& r) {
          return r.kind != plan::RoleKind::dense || r.retention >= 0;
        });
        EXPECT_EQ(is_dense_at(*plan, budget + 1), !sparse) << policy.name << " " << shape.layers;
      }
      if (const std::optional<plan::Plan> plan = plan_with(policy, shape, "100%")) {
        EXPECT_TRUE(is_dense_at(*plan, 100000)) << policy.name;
      }
    }
  }
}

// Every word that an option's table offers, on every shape: a valid plan, or a refusal that names the policy.
TEST(EveryPolicy, MakesAValidPlanOfEachWordOfItsOptions) {
  for (const Policy& policy : registry()) {
    for (const OptionHelp& row : policy.options) {
      int made = 0;
      for (std::size_t begin = 0; begin <= row.values.size();) {
        const std::size_t end = std::min(row.values.find('|', begin), row.values.size());
        const std::string word(row.values.substr(begin, end - begin));
        begin = end + 1;
        if (word.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ.") != std::string::npos) continue;
        for (const plan::ModelShape& shape : shapes()) {
          if (shape.context != 8192) continue;
          PolicyOptions options = needed(policy);
          options.extra.emplace(std::string(row.key), word);
          try {
            const plan::Plan plan = make_plan(policy.name, shape, options);
            ++made;
            ASSERT_EQ(plan::from_json(plan::to_json(plan)), plan) << policy.name << " " << row.key << "=" << word;
            EXPECT_TRUE(is_dense_at(plan, 100)) << policy.name << " " << row.key << "=" << word;
          } catch (const UserError& error) {
            EXPECT_THAT(error.what(), HasSubstr(std::string(policy.name))) << row.key << "=" << word;
          }
        }
      }
      EXPECT_TRUE(made > 0 || row.values == "FILE" ||
                  row.default_value.find_first_of("0123456789") != std::string_view::npos)
          << row.key;
    }
  }
}

// A set is read after it is made.
TEST(EveryPolicy, ReadsNoSetBeforeItIsMade) {
  for (const Policy& policy : registry()) {
    for (const plan::ModelShape& shape : shapes()) {
      if (shape.context != 8192) continue;
      const plan::Plan plan = make_plan(policy.name, shape, needed(policy));
      for (int layer = 0; layer < shape.layers; ++layer) {
        for (int head = 0; head < shape.kv_heads; ++head) {
          const plan::Role& role = plan.role(layer, head);
          if (role.reads.layer < 0) continue;
          ASSERT_LT(role.reads.layer, layer) << policy.name;
          ASSERT_EQ(plan.role(role.reads.layer, role.reads.head).kind, plan::RoleKind::select) << policy.name;
        }
      }
    }
  }
}

TEST(EveryPolicy, TakesOrRefusesAProfile) {
  plan::Profile whole;
  whole.model = kShape;
  whole.model.context = 0;
  whole.kascade = plan::KascadeProfile{{0, 9}, std::vector<int>()};
  for (int i = 0; i < 32 * 8; ++i) whole.kascade->head_map.push_back(i % 8);
  whole.tidal = plan::TidalProfile{20};
  whole.retrieval = plan::RetrievalProfile{std::vector<double>(32 * 32, 0.5)};
  whole.roles = plan::RolesProfile{std::vector<double>(32 * 8, 0.25)};
  whole.roles->probability[100] = 0.75;
  whole.lessismore = plan::LessIsMoreProfile{20};
  whole.omnikv = plan::OmniKvProfile{{5, 20}};
  for (const Policy& policy : registry()) {
    PolicyOptions options = needed(policy);
    options.profile = &whole;
    const std::string text = refusal(policy.name, kShape, options);
    if (policy.profile_parts.empty()) {
      EXPECT_FALSE(uses_profile(policy, whole)) << policy.name;
      EXPECT_THAT(text, AllOf(HasSubstr(std::string(policy.name)), HasSubstr("--attn-profile")));
      continue;
    }
    EXPECT_EQ(text, "") << policy.name;
    EXPECT_TRUE(uses_profile(policy, whole));
    EXPECT_NE(make_plan(policy.name, kShape, options), make_plan(policy.name, kShape, needed(policy))) << policy.name;
    plan::ModelShape other = kShape;
    other.model_name = "another";
    EXPECT_THAT(refusal(policy.name, other, options), HasSubstr("calibrate this model"));
    plan::Profile rest;
    rest.model = whole.model;
    const auto reads = [&](std::string_view part) {
      return std::find(policy.profile_parts.begin(), policy.profile_parts.end(), part) != policy.profile_parts.end();
    };
    if (!reads("kascade")) rest.kascade = whole.kascade;
    if (!reads("tidal")) rest.tidal = whole.tidal;
    options.profile = &rest;
    EXPECT_THAT(refusal(policy.name, kShape, options), HasSubstr("no part that policy"));
  }
}

TEST(EveryPolicy, TakesMinContext) {
  for (const Policy& policy : registry()) {
    PolicyOptions options = needed(policy);
    options.min_context = 6000;
    const plan::Plan plan = make_plan(policy.name, kShape, options);
    EXPECT_EQ(plan.min_context, 6000);
    EXPECT_TRUE(is_dense_at(plan, 5999));
    options.min_context = -1;
    EXPECT_THAT(refusal(policy.name, kShape, options), HasSubstr("--attn-min-ctx -1"));
  }
}

TEST(EveryPolicy, AcceptsEachKeyOfItsTableAndRefusesWrongValues) {
  for (const Policy& policy : registry()) {
    for (const OptionHelp& row : policy.options) {
      if (row.values == "FILE") continue;  // any text may name one
      PolicyOptions options = needed(policy);
      options.extra[std::string(row.key)] = std::string(row.default_value);
      EXPECT_EQ(refusal(policy.name, kShape, options), "") << row.key;
      EXPECT_EQ(make_plan(policy.name, kShape, options), make_plan(policy.name, kShape, needed(policy)))
          << "the table's default is not the default: " << row.key;
      std::vector<const char*> wrongs{"", "wrong", "-1", "1e9", "99999999999999999999", "2x", " 2", "nan", "AUTO"};
      if (row.values.find("LAYER") != std::string_view::npos) wrongs.push_back("32");
      if (row.values.find("NUMBER") == std::string_view::npos) wrongs.push_back("1.5");
      for (const char* wrong : wrongs) {
        options.extra[std::string(row.key)] = wrong;
        EXPECT_THAT(
            refusal(policy.name, kShape, options),
            AllOf(HasSubstr(fmt::format("--attn-opt {}={}", row.key, wrong)), HasSubstr(std::string(policy.name))));
      }
    }
  }
}

TEST(EveryPolicy, RefusesUnknownKeysWithTheNearest) {
  for (const Policy& policy : registry()) {
    PolicyOptions options = needed(policy);
    options.extra["no-such-key"] = "1";
    EXPECT_THAT(refusal(policy.name, kShape, options),
                AllOf(HasSubstr("no-such-key"), HasSubstr(std::string(policy.name))));
    for (const OptionHelp& row : policy.options) {
      options = needed(policy);
      options.extra.emplace(std::string(row.key) + "x", "1");
      EXPECT_THAT(refusal(policy.name, kShape, options), HasSubstr(fmt::format("did you mean '{}'", row.key)));
    }
  }
}

// A flag is used or refused; the plan never silently stays what it was.
TEST(EveryPolicy, UsesOrRefusesEachFlag) {
  const std::vector<std::pair<std::string, std::function<void(PolicyOptions&)>>> flags{
      {"--attn-budget", [](PolicyOptions& o) { o.budget = plan::parse_budget("333"); }},
      {"--attn-block", [](PolicyOptions& o) { o.block = 64; }},
      {"--attn-sink", [](PolicyOptions& o) { o.sink = 7; }},
      {"--attn-local", [](PolicyOptions& o) { o.local = 9; }},
  };
  for (const Policy& policy : registry()) {
    for (const auto& [flag, set] : flags) {
      PolicyOptions options = needed(policy);
      set(options);
      if (flag == "--attn-block" && policy.name == "seer") options.block = 32;  // 64 is its own
      const std::string text = refusal(policy.name, kShape, options);
      if (text.empty()) {
        EXPECT_NE(make_plan(policy.name, kShape, options), make_plan(policy.name, kShape, needed(policy)))
            << policy.name << flag;
      } else {
        EXPECT_THAT(text, AllOf(HasSubstr(flag), HasSubstr(std::string(policy.name))));
      }
    }
  }
}

TEST(EveryPolicy, RefusesBadNumbers) {
  for (const Policy& policy : registry()) {
    for (const auto& set : std::vector<std::function<void(PolicyOptions&)>>{
             [](PolicyOptions& o) { o.sink = -1; },
             [](PolicyOptions& o) { o.sink = 2147483647; },
             [](PolicyOptions& o) { o.local = -1; },
             [](PolicyOptions& o) { o.local = 2147483647; },
             [](PolicyOptions& o) { o.block = 0; },
             [](PolicyOptions& o) { o.block = -16; },
             [](PolicyOptions& o) { o.block = 7; },
             [](PolicyOptions& o) { o.block = 2147483647; },
             [](PolicyOptions& o) {
               o.budget = plan::Budget{plan::BudgetRule::tokens, 0};
             },
             [](PolicyOptions& o) {
               o.budget = plan::Budget{plan::BudgetRule::tokens, 1e300};
             },
             [](PolicyOptions& o) {
               o.budget = plan::Budget{plan::BudgetRule::ratio, -0.5};
             },
             [](PolicyOptions& o) {
               o.budget = plan::Budget{plan::BudgetRule::tokens, std::nan("")};
             },
             [](PolicyOptions& o) {
               o.budget = plan::Budget{plan::BudgetRule::ratio, std::nan("")};
             },
         }) {
      for (const int layers : {1, 2, 3, 32}) {
        for (const char* budget : {"", "10%"}) {
          plan::ModelShape shape = kShape;
          shape.layers = layers;
          PolicyOptions options = needed(policy);
          if (*budget != 0 && policy.name != "full") options.budget = plan::parse_budget(budget);
          set(options);
          EXPECT_THROW(make_plan(policy.name, shape, options), UserError) << policy.name << " " << layers;
        }
      }
    }
    EXPECT_THROW(make_plan(policy.name, {}, needed(policy)), UserError) << "an empty shape";
  }
}

TEST(EveryPolicy, IsRefusedWithoutWhatItNeeds) {
  int needing = 0;
  for (const Policy& policy : registry()) {
    const PolicyOptions options = needed(policy);
    const std::string text = refusal(policy.name, kShape, {});
    EXPECT_EQ(text.empty(), options.extra.empty()) << policy.name << ": " << text;
    for (const auto& [key, value] : options.extra) {
      EXPECT_THAT(text, AllOf(HasSubstr(std::string(policy.name)), HasSubstr("--attn-opt " + key + "=")));
      ++needing;
    }
  }
  EXPECT_EQ(needing, 1) << "the gates of seer";
}

TEST(Full, IsDenseEverywhere) {
  for (const plan::ModelShape& shape : shapes()) EXPECT_EQ(make_plan("full", shape, {}), plan::dense_plan(shape));
}

}  // namespace
}  // namespace glimpse::policies
