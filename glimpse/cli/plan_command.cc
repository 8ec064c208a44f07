// glimpse plan: what a policy makes of a model, and what policies there are.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/engine/gates.h"
#include "glimpse/model/model.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::cli {
namespace {

// What each selector that an option can name takes in its turn; the values are explained where its method is.
std::string selector_lines(std::string_view key) {
  std::string text;
  for (const std::string_view name : policies::kSelectorWords) {
    std::vector<std::string> keys;
    for (const policies::OptionHelp& inner : policies::selector_options(name)) {
      keys.push_back(fmt::format("{}.{}", key, inner.key));
    }
    if (!keys.empty()) text += fmt::format("      with {}={}: {}\n", key, name, fmt::join(keys, ", "));
  }
  return text;
}

std::string policy_list() {
  std::string text;
  for (const policies::Policy& policy : policies::registry()) {
    text += fmt::format("{}\n  {}\n", policy.name, policy.help);
    if (!policy.paper.empty()) text += fmt::format("  {}\n", policy.paper);
    for (const policies::OptionHelp& option : policy.options) {
      const std::string usual = option.needed ? "must be given" : fmt::format("default {}", option.default_value);
      text += fmt::format("  --attn-opt {}={}  ({})\n      {}\n", option.key, option.values, usual, option.help);
      if (option.selector) text += selector_lines(option.key);
    }
    if (!policy.profile_parts.empty()) {
      text += fmt::format("  --attn-profile: its part {}\n", fmt::join(policy.profile_parts, " or "));
    }
    text += '\n';
  }
  return text +
         "auto\n  the fastest of those that keep --attn-quality, by the model's profile; see 'plan --attn auto'\n";
}

}  // namespace

int plan_command(const Arguments& arguments) {
  if (arguments.list) {
    // What the environment says of other commands may stay, but the form of what is printed is asked for.
    const auto other = std::find_if(arguments.typed.begin(), arguments.typed.end(),
                                    [](const std::string& flag) { return flag != "--list"; });
    if (arguments.json || other != arguments.typed.end()) {
      throw UserError(fmt::format("--list prints all policies as text; leave {} out",
                                  arguments.json ? std::string_view("--json") : std::string_view(*other)));
    }
    print(policy_list());
    return kExitOk;
  }
  check_attention(arguments);
  if (arguments.model.empty()) {
    throw UserError("no model: a plan is made for a model's shape; give -m FILE, or --list for the policies");
  }
  const model::Model model{std::filesystem::path(arguments.model)};
  const PlanModel of = plan_model(model, arguments);
  const std::int64_t tokens = arguments.plan_tokens > 0 ? arguments.plan_tokens : of.shape.context;
  const plan::Plan plan = make_plan(arguments, of, tokens);
  if (const std::string why = of.refusal(plan); !why.empty()) throw UserError(why);
  attention::GateFiles gates;
  engine::load_gates(plan, model, gates);  // a plan that is printed is one that runs
  std::string text;
  if (arguments.json) {
    text = plan::to_json(plan);
  } else {
    if (arguments.policy == kAuto && !arguments.plan_file) {
      text = candidates_table(auto_candidates(arguments, of, tokens), tokens) + "\n";
    }
    text += plan::explain(plan);
  }
  if (!text.ends_with('\n')) text += '\n';
  print(text);
  return kExitOk;
}

}  // namespace glimpse::cli
