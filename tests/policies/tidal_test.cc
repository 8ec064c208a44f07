#include <fmt/format.h>
#include <gmock/gmock.h>

#include <optional>

#include "glimpse/base/error.h"
#include "glimpse/policies/policy.h"
#include "shapes.h"

namespace glimpse::policies {
namespace {

using plan::RoleKind;
using testing::HasSubstr;

PolicyOptions opt(std::map<std::string, std::string> extra) {
  PolicyOptions options;
  options.extra = std::move(extra);
  return options;
}

std::vector<int> selecting_layers(const plan::Plan& plan) {
  std::vector<int> layers;
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    if (plan.role(layer, 0).kind == RoleKind::select) layers.push_back(layer);
  }
  return layers;
}

// The paper's algorithm 1 walked layer by layer with a token buffer: what each layer does, and whose set it reads.
// A selecting layer whose set is overwritten or ends unread is full attention and no more.
struct Walked {
  char kind;  // 'f' full, 's' selects, 'p' sparse
  int buffer = -1;
};
std::vector<Walked> algorithm1(int layers, int first, int second) {
  std::vector<Walked> walk;
  int buffer = -1;
  for (int i = 0; i < layers; ++i) {
    if (i == first || i == second) {
      buffer = i;
      walk.push_back({'s', -1});
    } else if (i < first) {
      walk.push_back({'f', -1});
    } else {
      walk.push_back({'p', buffer});
    }
  }
  for (int i = 0; i < layers; ++i) {
    bool used = false;
    for (const Walked& later : walk) used = used || later.buffer == i;
    if (walk[static_cast<std::size_t>(i)].kind == 's' && !used) walk[static_cast<std::size_t>(i)].kind = 'f';
  }
  return walk;
}

void expect_walk(const plan::Plan& plan, int first, int second, bool one_set) {
  const std::vector<Walked> walk = algorithm1(plan.shape.layers, first, second);
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      const plan::Role& role = plan.role(layer, head);
      const Walked& expected = walk[static_cast<std::size_t>(layer)];
      const std::string where =
          fmt::format("layer {} of {}, select {} and {}", layer, plan.shape.layers, first, second);
      const RoleKind kind = expected.kind == 'f'   ? RoleKind::dense
                            : expected.kind == 's' ? RoleKind::select
                                                   : RoleKind::reuse;
      ASSERT_EQ(role.kind, kind) << where;
      ASSERT_FALSE(role.attends_set) << "selecting layers attend densely: " << where;
      ASSERT_EQ(role.retention, -1) << where;
      if (kind == RoleKind::reuse) {
        ASSERT_EQ(role.reads, (plan::SlotId{expected.buffer, one_set ? 0 : head})) << where;
      }
    }
  }
}

TEST(Tidal, FollowsAlgorithm1ForEveryChoiceOfLayers) {
  for (const plan::ModelShape& shape : shapes()) {
    if (shape.context != 8192) continue;
    for (const char* set : {"kv-head", "query-head", "layer"}) {
      const bool one_set = std::string_view(set) == "layer";
      // 13 of 32 layers, rounded half up in whole numbers; only where it lies after layer 2.
      const int relative = (26 * shape.layers + 32) / 64;
      expect_walk(make_plan("tidal", shape, opt({{"set", set}})), 2, relative > 2 ? relative : -1, one_set);
      expect_walk(make_plan("tidal", shape, opt({{"set", set}, {"reselect", "none"}})), 2, -1, one_set);
      for (int first = 0; first + 1 < shape.layers; first += 1 + first / 4) {
        const std::string select = std::to_string(first);
        for (int second = first + 1; second < shape.layers; second += 1 + second / 4) {
          const PolicyOptions options = opt({{"set", set}, {"select", select}, {"reselect", std::to_string(second)}});
          expect_walk(make_plan("tidal", shape, options), first, second, one_set);
        }
        const plan::Plan automatic = make_plan("tidal", shape, opt({{"set", set}, {"select", select}}));
        expect_walk(automatic, first, relative > first ? relative : -1, one_set);
      }
    }
  }
}

TEST(Tidal, ReselectsWhereThePaperSays) {
  const struct {
    const char* architecture;
    const char* name;
    int layers, heads, kv_heads, reselect;
  } models[] = {
      {"llama", "Llama-2-7b-chat", 32, 32, 32, 7},
      {"llama", "LLaMA v2", 32, 32, 32, 7},
      {"llama", "longchat-7b-v1.5-32k", 32, 32, 32, 7},
      {"llama", "Yarn Llama 2 7b 128k", 32, 32, 32, 7},
      {"llama", "Llama-2-7B-32K-Instruct", 32, 32, 32, 7},
      {"llama", "Meta-Llama-3-8B-Instruct", 32, 32, 8, 13},
      {"llama", "Llama 3 8B Instruct Gradient 1048k", 32, 32, 8, 13},
      {"llama", "Meta Llama 3.1 8B Instruct", 32, 32, 8, 13},
      {"llama", "Llama 3.2 3B Instruct", 28, 24, 8, 12},
      {"llama", "Llama-3-70B-Instruct-Gradient-1048k", 80, 64, 8, 14},
      {"qwen2", "Qwen2.5-Math-7B-Instruct", 28, 28, 4, 13},
      {"qwen2", "Qwen2.5 Math 72B Instruct", 80, 64, 8, 33},
      // Not named: round(13 L / 32).
      {"llama", "SmolLM2 135M Instruct", 30, 9, 3, 12},
      {"llama", "Llama 3.2 1B Instruct", 16, 32, 8, 7},
      {"llama", "Llama-2-13b-chat", 40, 40, 40, 16},
      {"llama", "Llama-2-70b-chat", 80, 64, 8, 33},
      {"qwen2", "Qwen2.5-7B-Instruct", 28, 28, 4, 11},
      {"qwen3", "Qwen3-8B", 36, 32, 8, 15},
      {"llama", "pruned Llama-2-7b", 24, 32, 32, 10},
  };
  for (const auto& m : models) {
    const plan::ModelShape shape{m.architecture, m.name, m.layers, m.heads, m.kv_heads, 128, 8192};
    EXPECT_THAT(selecting_layers(make_plan("tidal", shape, {})), testing::ElementsAre(2, m.reselect)) << m.name;
  }
}

TEST(Tidal, DefaultSelectorIsOneSetPerKvHead) {
  const plan::ModelShape shape{"llama", "", 32, 32, 8, 128, 8192};
  plan::Selector expected;
  expected.budget = {plan::BudgetRule::tokens, 512};
  expected.terms.push_back({plan::Source::probability, plan::GroupPooling::mean_probability});
  EXPECT_THAT(make_plan("tidal", shape, {}).selectors, testing::ElementsAre(expected));
}

TEST(Tidal, SetsPerQueryHeadAndPerLayer) {
  const plan::ModelShape shape{"llama", "", 32, 32, 8, 128, 8192};
  PolicyOptions options = opt({{"set", "query-head"}});
  plan::Selector query = make_plan("tidal", shape, options).selectors.at(0);
  EXPECT_EQ(query.per, plan::SetPer::query_head);
  EXPECT_EQ(query.terms.at(0), (plan::Term{plan::Source::dot, plan::GroupPooling::none}));
  options.budget = plan::parse_budget("p=0.9");
  query = make_plan("tidal", shape, options).selectors.at(0);
  EXPECT_EQ(query.terms.at(0), (plan::Term{plan::Source::probability, plan::GroupPooling::none}));

  const plan::Selector layer = make_plan("tidal", shape, opt({{"set", "layer"}})).selectors.at(0);
  EXPECT_EQ(layer.per, plan::SetPer::layer);
  EXPECT_EQ(layer.terms.at(0),
            (plan::Term{plan::Source::probability, plan::GroupPooling::mean_probability, plan::HeadPooling::mean}));
}

TEST(Tidal, TakesTheFlags) {
  const plan::ModelShape shape{"llama", "", 32, 32, 8, 128, 8192};
  PolicyOptions options;
  options.block = 64;
  options.sink = 4;
  options.local = 65;
  options.budget = plan::parse_budget("10%");
  const plan::Selector s = make_plan("tidal", shape, options).selectors.at(0);
  EXPECT_EQ(s.block, 64);
  EXPECT_EQ(s.sink, 4);
  EXPECT_EQ(s.local, 65);
  EXPECT_EQ(s.budget, (plan::Budget{plan::BudgetRule::ratio, 0.1, 192})) << "one block of sink, two of the window";
  options.budget = plan::parse_budget("128");
  EXPECT_THROW(make_plan("tidal", shape, options), UserError);
}

TEST(Tidal, RefusesLayersThatLeaveNothingToReuse) {
  plan::ModelShape shape{"llama", "", 4, 8, 2, 64, 8192};
  const auto says = [&](std::map<std::string, std::string> extra) {
    try {
      make_plan("tidal", shape, opt(std::move(extra)));
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(says({{"select", "3"}}), HasSubstr("a layer from 0 to 2"));
  EXPECT_THAT(says({{"reselect", "4"}}), HasSubstr("a layer from 3 to 3 or auto, none"));
  EXPECT_THAT(says({{"reselect", "2"}}), HasSubstr("out of range"));
  EXPECT_THAT(says({{"select", "1"}, {"reselect", "1"}}), HasSubstr("a layer from 2 to 3"));
  EXPECT_THAT(says({{"reselect", "1"}}), HasSubstr("out of range"));
  EXPECT_THAT(says({{"set", "head"}}), HasSubstr("known: kv-head, query-head, layer"));
  shape.layers = 1;
  EXPECT_THAT(says({{"select", "0"}}), HasSubstr("no such layer"));
}

}  // namespace
}  // namespace glimpse::policies
