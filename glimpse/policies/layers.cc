#include "glimpse/policies/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "glimpse/base/error.h"

namespace glimpse::policies {
namespace {

using plan::RoleKind;

// A plan of layer 0 alone that uses an entry, to have it checked.
void check_selector(const plan::Plan& plan, const plan::Selector& selector) {
  plan::Plan probe = plan::dense_plan(plan.shape);
  probe.selectors.push_back(selector);
  probe.feedback = plan::Feedback::probabilities;
  const RoleKind kind = selector.terms.empty() ? RoleKind::stream : RoleKind::select;
  set_layer(probe, 0, {.kind = kind, .selector = 0});
  validate(probe);
}

void check_retention(const plan::Plan& plan, const plan::Retention& retention) {
  plan::Plan probe = plan::dense_plan(plan.shape);
  probe.retentions.push_back(retention);
  probe.feedback = plan::Feedback::probabilities;
  plan::Role role{.retention = 0};
  if (retention.rule == plan::RetentionRule::host_tier) {
    check(!plan.selectors.empty(), "a host tier comes with the selector that reads it");
    probe.selectors.push_back(plan.selectors[0]);
    role = {.kind = RoleKind::select, .selector = 0, .attends_set = true, .retention = 0};
  }
  set_layer(probe, 0, role);
  validate(probe);
}

// Erases entries that no role names and renumbers the rest; `check` sees each that goes.
template <class Entry, class Check>
void drop_unused(plan::Plan& plan, std::vector<Entry>& entries, int plan::Role::*index, Check&& check) {
  std::vector<int> place(entries.size(), -1);
  for (const plan::Role& role : plan.roles) {
    if (role.*index >= 0) place[static_cast<std::size_t>(role.*index)] = 0;
  }
  std::vector<Entry> kept;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (place[i] < 0) {
      check(entries[i]);
      continue;
    }
    place[i] = static_cast<int>(kept.size());
    kept.push_back(entries[i]);
  }
  for (plan::Role& role : plan.roles) {
    if (role.*index >= 0) role.*index = place[static_cast<std::size_t>(role.*index)];
  }
  entries = std::move(kept);
}

}  // namespace

int scaled_layer(int layer, int layers) {
  return static_cast<int>(std::round(static_cast<double>(layer) * layers / 32.0));
}

std::vector<int> scaled_layers(std::span<const int> named, int layers) {
  std::set<int> scaled;
  for (const int layer : named) {
    if (const int own = scaled_layer(layer, layers); own < layers) scaled.insert(own);
  }
  return {scaled.begin(), scaled.end()};
}

std::string plain_name(const plan::ModelShape& shape) {
  std::string name;
  for (const char c : shape.model_name) {
    if (c >= 'A' && c <= 'Z') name += static_cast<char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) name += c;
  }
  return name;
}

std::optional<int> profiled_reselect(const OptionReader& read, int layer, int select) {
  if (layer > select) return layer;
  read.warn(fmt::format("the profile selects again in layer {}, not behind layer {}, so nothing does", layer, select));
  return std::nullopt;
}

void warn_of_reselect(const OptionReader& read, const plan::ModelShape& shape, int layer, int select) {
  if (select + 2 >= shape.layers) return;  // behind it there is no layer that another would read
  read.warn_guess(layer > select ? fmt::format("layer {} selects again, by relative depth", layer)
                                 : fmt::format("no layer selects again behind layer {}, by relative depth", select));
}

void set_layer(plan::Plan& plan, int layer, const plan::Role& role) {
  for (int head = 0; head < plan.shape.kv_heads; ++head) plan.role(layer, head) = role;
}

void select_and_reuse(plan::Plan& plan, std::span<const int> selecting, int selector) {
  const bool one_slot = plan.selectors[static_cast<std::size_t>(selector)].per == plan::SetPer::layer;
  int source = -1;
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    if (std::find(selecting.begin(), selecting.end(), layer) != selecting.end()) {
      set_layer(plan, layer, {.kind = RoleKind::select, .selector = selector});
      source = layer;
    } else if (source >= 0) {
      for (int head = 0; head < plan.shape.kv_heads; ++head) {
        plan.role(layer, head) = {.kind = RoleKind::reuse, .reads = {source, one_slot ? 0 : head}};
      }
    }
  }
}

plan::Plan own_set_plan(const plan::ModelShape& shape, const plan::Selector& selector, int first_layer) {
  plan::Plan plan = plan::dense_plan(shape);
  plan.selectors.push_back(selector);
  for (int layer = first_layer; layer < shape.layers; ++layer) {
    set_layer(plan, layer, {.kind = RoleKind::select, .selector = 0, .attends_set = true});
  }
  return plan;
}

void tidy(plan::Plan& plan) {
  std::set<plan::SlotId> read;
  for (const plan::Role& role : plan.roles) {
    if (role.reads.layer >= 0) read.insert(role.reads);
  }
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      plan::Role& role = plan.role(layer, head);
      if (role.kind != RoleKind::select || role.attends_set) continue;
      const bool one_slot = plan.selectors[static_cast<std::size_t>(role.selector)].per == plan::SetPer::layer;
      if (!read.contains({layer, one_slot ? 0 : head})) role = {};
    }
  }
  // Retentions first: a host tier is checked with the selector that reads it.
  drop_unused(plan, plan.retentions, &plan::Role::retention,
              [&](const plan::Retention& unused) { check_retention(plan, unused); });
  drop_unused(plan, plan.selectors, &plan::Role::selector,
              [&](const plan::Selector& unused) { check_selector(plan, unused); });
}

void keep_in_tier(plan::Plan& plan, const OptionReader& read, const plan::Budget& budget) {
  constexpr std::array<std::string_view, 2> kWords{"auto", "all"};
  const std::optional<plan::Budget> given = read.count("resident", kWords);
  if (read.text("resident") == "all") return;
  plan::Budget resident = given.value_or(budget);
  if (given && given->rule != budget.rule) {
    read.refuse("resident", *read.text("resident"),
                fmt::format("the budget is {}; give both in tokens or both as a share", to_string(budget)));
  }
  const bool share = budget.rule == plan::BudgetRule::ratio;
  if (!given) resident.value = share ? std::min(1.0, 2 * budget.value) : std::min(2 * budget.value, 1073741824.0);
  if (share) resident.at_least = budget.at_least;
  plan.retentions.push_back({.rule = plan::RetentionRule::host_tier, .budget = resident});
  for (plan::Role& role : plan.roles) {
    if (role.kind == RoleKind::select) role.retention = static_cast<int>(plan.retentions.size()) - 1;
  }
}

}  // namespace glimpse::policies
