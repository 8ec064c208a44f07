// From arguments to what the engine takes: model, plan, texts. Each throws UserError.
#pragma once

#include <string>
#include <string_view>

#include "glimpse/cli/arguments.h"
#include "glimpse/engine/engine.h"

namespace glimpse::cli {

/// Log lines go to standard error: warnings, all with -v, none with -q.
void set_log(const Arguments& arguments);

/// Needs -m; refuses devices that are not built.
engine::EngineOptions engine_options(const Arguments& arguments);

/// Refuses a wrong policy, budget or mix of flags before a model is loaded.
void check_attention(const Arguments& arguments);
plan::Plan make_plan(const Arguments& arguments, const plan::ModelShape& shape);
/// An arm is "POLICY[:BUDGET]"; the check needs no model.
void check_arm(std::string_view arm);
plan::Plan make_arm_plan(std::string_view arm, const plan::ModelShape& shape);
/// The budgets of a plan's selectors, "512"; several by commas, empty for none.
std::string budget_text(const plan::Plan& plan);

/// A file's text, or standard input's for "-". Refuses invalid UTF-8 with the offset.
std::string read_text(const std::string& path);
void require_utf8(std::string_view text, std::string_view what);

}  // namespace glimpse::cli
