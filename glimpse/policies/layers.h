// What policies do with whole layers of a plan: who selects, who reads whose set, and the tidying that every policy
// ends with. Functions on values; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/plan/plan.h"
#include "glimpse/policies/options.h"

namespace glimpse::policies {

/// A layer that a paper names for a model of 32 layers: round(layer * layers / 32).
int scaled_layer(int layer, int layers);
/// The same for several: ascending, each once, those that the model has.
std::vector<int> scaled_layers(std::span<const int> named, int layers);

/// The model's name in lower case, letters and digits only: "Llama-3.1-8B" has "llama318b".
std::string plain_name(const plan::ModelShape& shape);

/// A profile's layer that selects again, or none, with a warning, where it does not lie behind layer `select`.
std::optional<int> profiled_reselect(const OptionReader& read, int layer, int select);
/// Warns that `layer`, which selects again where it lies behind `select`, is a guess by depth; not in a model that is
/// too small for one.
void warn_of_reselect(const OptionReader& read, const plan::ModelShape& shape, int layer, int select);

/// Gives every head of the layer this role.
void set_layer(plan::Plan& plan, int layer, const plan::Role& role);

/// Layers `selecting` select with Plan::selectors[selector] and attend densely; every layer after the first of them
/// that does not select reads the nearest earlier one, each head its own index, or head 0 of a set per layer.
void select_and_reuse(plan::Plan& plan, std::span<const int> selecting, int selector);

/// A plan in which every head of layers [first_layer, L) selects for itself alone and attends to its own set.
plan::Plan own_set_plan(const plan::ModelShape& shape, const plan::Selector& selector, int first_layer);

/// Layers before this one are dense in the methods that name two dense layers.
inline constexpr int kFirstSparse = 2;

/// Drops what has no effect: a set that nobody reads and its own head does not attend to is not made (the head is
/// dense), and selectors and retentions that no role names go. They are checked first, so that a bad flag is refused
/// for a model with too few layers to use it.
void tidy(plan::Plan& plan);

/// The option of methods whose pages wait in host memory while no set names them.
inline constexpr OptionHelp kResident{
    "resident", "N|X%|auto|all", "auto",
    "tokens of each head that stay resident, the rest wait in host memory; auto: twice the budget; all: nothing waits"};
/// Gives the selecting heads of a plan, whose sets hold `budget`, the tier that option `resident` asks for.
void keep_in_tier(plan::Plan& plan, const OptionReader& read, const plan::Budget& budget);

}  // namespace glimpse::policies
