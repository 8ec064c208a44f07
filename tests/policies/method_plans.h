// What the tests of single methods share. Any thread.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/policies/policy.h"

namespace glimpse::policies {

inline const plan::ModelShape kLlama8B{"llama", "Meta Llama 3.1 8B Instruct", 32, 32, 8, 128, 131072};
inline const plan::ModelShape kSmol{"llama", "SmolLM2 135M Instruct", 30, 9, 3, 64, 8192};
inline const plan::ModelShape kQwen{"qwen2", "Qwen2.5-7B-Instruct", 28, 28, 4, 128, 32768};
inline const plan::ModelShape kMha{"llama", "", 4, 4, 4, 32, 4096};

inline PolicyOptions opts(std::map<std::string, std::string> extra, std::string_view budget = "") {
  PolicyOptions options;
  options.extra = std::move(extra);
  if (!budget.empty()) options.budget = plan::parse_budget(budget);
  return options;
}

/// The text of the refusal; empty when it was accepted.
inline std::string refused(std::string_view policy, const plan::ModelShape& shape, const PolicyOptions& options) {
  try {
    make_plan(policy, shape, options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// Layers 0 and 1 dense, every head of the others selects and attends to its own set by one selector.
inline void expect_own_sets(const plan::Plan& plan, int first_layer, int retention = -1) {
  ASSERT_EQ(plan.selectors.size(), 1u);
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      plan::Role expected;
      if (layer >= first_layer) {
        expected = {.kind = plan::RoleKind::select, .selector = 0, .attends_set = true, .retention = retention};
      }
      ASSERT_EQ(plan.role(layer, head), expected) << layer << " " << head;
    }
  }
}

/// Every head dense with retention 0.
inline void expect_all_forget(const plan::Plan& plan, const plan::Retention& retention) {
  ASSERT_EQ(plan.retentions, std::vector<plan::Retention>{retention});
  EXPECT_TRUE(plan.selectors.empty());
  for (const plan::Role& role : plan.roles) EXPECT_EQ(role, (plan::Role{.retention = 0}));
  EXPECT_EQ(plan.feedback, plan::Feedback::probabilities);
}

/// One letter a layer: D, S (select and dense), s (own set), R, W; '*' where its heads differ.
inline std::string letters(const plan::Plan& plan) {
  std::string text;
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    const auto letter = [&](int head) {
      const plan::Role& role = plan.role(layer, head);
      return role.kind == plan::RoleKind::select ? (role.attends_set ? 's' : 'S') : "D?RW"[static_cast<int>(role.kind)];
    };
    char common = letter(0);
    for (int head = 1; head < plan.shape.kv_heads; ++head) common = letter(head) == common ? common : '*';
    text += common;
  }
  return text;
}

}  // namespace glimpse::policies
