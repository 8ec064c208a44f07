// From arguments to what the engine takes: model, plan, texts. Each throws UserError.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/cli/arguments.h"
#include "glimpse/cli/profiles.h"
#include "glimpse/engine/engine.h"
#include "glimpse/policies/policy.h"

namespace glimpse::cli {

/// Log lines go to standard error: warnings, all with -v, none with -q.
void set_log(const Arguments& arguments);

/// Needs -m; refuses devices that are not built.
engine::EngineOptions engine_options(const Arguments& arguments);
/// Of a service: what --slice-ms says.
double slice_seconds(const Arguments& arguments);

/// Refuses a wrong policy, budget or mix of flags before a model is loaded.
void check_attention(const Arguments& arguments);
/// What the --attn-* flags say. Throws UserError.
policies::PolicyOptions policy_options(const Arguments& arguments);
/// Throws UserError where writing one file of the command line would destroy another of it.
void check_outputs(const Arguments& arguments);
/// What the policy warns of goes to standard error, but with -q. `tokens` of context are what --attn auto chooses for.
plan::Plan make_plan(const Arguments& arguments, const PlanModel& model, std::int64_t tokens);
/// The plan of a policy by name, with its warnings on standard error, as above, and the line that says which profile
/// was found and used.
plan::Plan make_policy_plan(const Arguments& arguments, std::string_view policy, const plan::ModelShape& shape,
                            policies::PolicyOptions options);
/// The parts of a list between its commas, empty ones too.
std::vector<std::string> split_commas(std::string_view list);
/// A list of whole numbers, ascending, each once. Throws UserError that names the flag.
std::vector<std::int64_t> parse_numbers(std::string_view flag, std::string_view list, std::int64_t least,
                                        std::int64_t most);
/// Parts of a list in which a budget was parted at its own comma: "10%" and the "min=128" behind it are one again.
std::vector<std::string> join_budgets(std::span<const std::string> parts);
/// A whole file's bytes, or standard input's for "-"; `label` says in errors what it is.
std::string read_all(const std::string& path, std::string_view label);
/// A whole file's bytes.
std::string read_file(const std::string& path);
/// `parse(text)`; what it throws of a user's mistake names `label`, the file that the text is of.
template <class Parse>
auto parse_of(std::string_view label, std::string_view text, Parse parse) {
  try {
    return parse(text);
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", label, error.what()));
  }
}
/// The budgets of a plan's selectors and of what its heads keep, "512"; several by commas, empty for none.
std::string budget_text(const plan::Plan& plan);
/// For whom the plan's sets are made, "kv-head"; several by commas, empty where none is made.
std::string sets_text(const plan::Plan& plan);

/// The one file of -f, of commands that read one text. Throws UserError for several.
std::optional<std::string> text_file(const Arguments& arguments);
/// A file's text (`document_of`), or standard input's for "-".
std::string read_text(const std::string& path);
/// Refuses invalid UTF-8 with the offset.
void require_utf8(std::string_view text, std::string_view what);

}  // namespace glimpse::cli
