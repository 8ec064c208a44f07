// The plan that the tests of validation spoil, and the rows of their tables.
#pragma once

#include <functional>
#include <limits>
#include <vector>

#include "glimpse/plan/plan.h"

namespace glimpse::plan {

// Layer 0 dense, layer 1 selects per KV head (selector 0, 64 tokens), layer 2 reuses it, layer 3 streams (selector 1,
// 4 + 28 tokens, retention 0), layer 4 makes one set (selector 2), layer 5 reuses that.
inline Plan sample() {
  Plan plan = dense_plan({"llama", "sample", 6, 6, 2, 64, 8192});
  Selector per_head;
  per_head.budget = {BudgetRule::tokens, 64};
  per_head.terms.push_back({});
  Selector stream;
  stream.budget = {BudgetRule::tokens, 32};
  stream.sink = 4;
  stream.local = 28;
  Selector per_layer = per_head;
  per_layer.per = SetPer::layer;
  per_layer.terms[0].heads = HeadPooling::mean;
  plan.selectors = {per_head, stream, per_layer};
  plan.retentions.push_back({RetentionRule::window, 4, {BudgetRule::tokens, 32}});
  for (int head = 0; head < 2; ++head) {
    plan.role(1, head) = {.kind = RoleKind::select, .selector = 0};
    plan.role(2, head) = {.kind = RoleKind::reuse, .reads = {1, head}};
    plan.role(3, head) = {.kind = RoleKind::stream, .selector = 1, .retention = 0};
    plan.role(4, head) = {.kind = RoleKind::select, .selector = 2, .attends_set = true};
    plan.role(5, head) = {.kind = RoleKind::reuse, .reads = {4, 0}};
  }
  return plan;
}

struct Bad {
  const char* name;
  std::function<void(Plan&)> spoil;
  std::vector<const char*> says;
};

inline const double kNan = std::numeric_limits<double>::quiet_NaN();
inline const double kInf = std::numeric_limits<double>::infinity();

/// Each row is refused, with every part of what it says.
void expect_refused(const std::vector<Bad>& table);

}  // namespace glimpse::plan
