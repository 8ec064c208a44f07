#include "glimpse/cli/idle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "glimpse/base/error.h"
#include "glimpse/cli/auto_method.h"

namespace glimpse::cli {
namespace {

constexpr std::array<std::string_view, 11> kPolicyFlags{
    "--attn",       "--attn-quality", "--calibrate",    "--attn-budget",  "--attn-block", "--attn-sink",
    "--attn-local", "--attn-opt",     "--attn-min-ctx", "--attn-profile", "--profile-dir"};

constexpr const char* kNoProfileOfShape = "has no effect beside --shape, whose weights have no profile: leave it out";

bool has_tier(const plan::Plan& plan) {
  return std::any_of(plan.retentions.begin(), plan.retentions.end(),
                     [](const plan::Retention& retention) { return retention.rule == plan::RetentionRule::host_tier; });
}

}  // namespace

std::string idle_sampling(const Arguments& arguments) {
  if (arguments.temperature > 0) return "";
  return "has no effect at temperature 0, where the likeliest token is taken: give --temp above 0, or leave it out";
}

std::string idle_for_one_token(const Arguments& arguments) {
  if (arguments.temperature > 0 && arguments.top_k == 1) {
    return "has no effect beside --top-k 1, which leaves one token: give a larger --top-k, or leave it out";
  }
  return idle_sampling(arguments);
}

std::string idle_look_back(const Arguments& arguments) {
  if (arguments.repeat_penalty != 1 || arguments.frequency_penalty != 0 || arguments.presence_penalty != 0) return "";
  return "has no effect without a penalty: give --repeat-penalty, --frequency-penalty or --presence-penalty, or leave "
         "it out";
}

std::string idle_penalty(const Arguments& arguments) {
  if (arguments.repeat_last_n != 0) return "";
  return "has no effect beside --repeat-last-n 0, which looks back on no token: leave one out";
}

std::string idle_least(const Arguments& arguments) {
  if (!arguments.ignore_eos || !arguments.stops.empty()) return "";
  return "has no effect beside --ignore-eos, where nothing ends the answer early: leave one out";
}

std::string idle_system(const Arguments& arguments) {
  return arguments.raw ? "and --raw: without a chat template there is no system message; leave one out" : "";
}

std::string idle_beside_plan_file(const Arguments& arguments) {
  return arguments.plan_file ? "and --attn-plan: the file is the whole plan; give one of the two" : "";
}

std::string idle_beside_auto(const Arguments& arguments) {
  if (arguments.plan_file) return idle_beside_plan_file(arguments);
  return arguments.policy == kAuto ? "and --attn auto, which chooses that: leave one out" : "";
}

std::string idle_quality(const Arguments& arguments) {
  if (arguments.plan_file) return idle_beside_plan_file(arguments);
  // A list of arms holds it as a word of its own, and a dialogue may come to it.
  const std::string arms = "," + arguments.arms + ",";
  const bool chooses = arguments.policy == kAuto || arguments.interactive || arguments.arrivals ||
                       arms.find(fmt::format(",{},", kAuto)) != std::string::npos;
  if (!chooses) return "has no effect without the method 'auto': give that, or leave it out";
  if (arguments.lossless)
    return "has no effect beside --lossless, where the answer is dense attention's: leave one out";
  return "";
}

std::string idle_plan_tokens(const Arguments& arguments) {
  return arguments.policy == kAuto && !arguments.plan_file ? "" : "has no effect without --attn auto: leave it out";
}

std::string idle_weights(const Arguments& arguments) {
  return arguments.shape.empty() ? "has no effect without --shape: give that, or leave it out" : "";
}

std::string idle_text(const Arguments& arguments) {
  return arguments.shape.empty() ? "" : "has no effect beside --shape, whose weights have no tokenizer: leave it out";
}

std::string idle_calibrate(const Arguments& arguments) {
  if (!arguments.shape.empty()) return kNoProfileOfShape;
  if (arguments.plan_file) return idle_beside_plan_file(arguments);
  return arguments.profile ? "has no effect beside --attn-profile, which says the profile: leave one out" : "";
}

std::string idle_beside_roles(const Arguments& arguments) {
  return arguments.part == "roles" ? "" : "has no effect without the part 'roles': give that, or leave it out";
}

std::string idle_beside_methods(const Arguments& arguments) {
  return arguments.part == "methods" ? "" : "has no effect without the part 'methods': give that, or leave it out";
}

std::string idle_beside_budget(const Arguments& arguments) {
  return arguments.part == "budget" ? "" : "has no effect without the part 'budget': give that, or leave it out";
}

std::string idle_beside_kascade(const Arguments& arguments) {
  const bool has = arguments.part == "all" || arguments.part == "kascade";
  return has ? "" : "has no effect without the part 'kascade' or 'all': give one, or leave it out";
}

std::string idle_coverage(const Arguments& arguments) {
  if (arguments.part != "budget") return idle_beside_budget(arguments);
  return arguments.given.contains("--kl") ? "has no effect beside --kl, which finds the coverage: leave one out" : "";
}

std::string idle_of_steps(const Arguments& arguments) {
  if (arguments.part != "budget") return idle_beside_budget(arguments);
  return arguments.together ? "has no effect beside --together, which is a mean: leave one out" : "";
}

std::string idle_minimum(const Arguments& arguments) {
  if (arguments.plan_file) return idle_beside_plan_file(arguments);
  if (arguments.policy != "full") return "";
  return "has no effect with --attn full, which is dense at every context: choose another --attn, or leave it out";
}

// A method that was typed wins over a plan of the environment; two that were typed are refused by the rule above.
std::string idle_plan_file(const Arguments& arguments) {
  const bool typed = std::any_of(kPolicyFlags.begin(), kPolicyFlags.end(),
                                 [&](std::string_view flag) { return arguments.typed.contains(flag); });
  return typed && !arguments.typed.contains("--attn-plan") ? "and a method on the command line: the method is run" : "";
}

// As for a plan's file: a folder that was typed wins over a profile of the environment.
std::string idle_profile(const Arguments& arguments) {
  const bool folder = arguments.typed.contains("--profile-dir") && !arguments.typed.contains("--attn-profile");
  return folder ? "and --profile-dir on the command line: the folder is looked into" : idle_beside_plan_file(arguments);
}

std::string idle_profile_folder(const Arguments& arguments) {
  if (!arguments.shape.empty()) return kNoProfileOfShape;
  if (!arguments.profile) return idle_beside_plan_file(arguments);
  return "has no effect beside --attn-profile, which says the profile: leave one out";
}

std::string idle_depths(const Arguments& arguments) {
  // 'eval needle' has no list of tasks.
  const bool needle = arguments.tasks.empty() || ("," + arguments.tasks + ",").find(",needle,") != std::string::npos;
  return needle ? "" : "has no effect without the task 'needle': give that, or leave it out";
}

std::string idle_trace(const Arguments& arguments) {
  return arguments.interactive ? "and -i: a trace follows one answer, and -i gives several; leave one out" : "";
}

// As for a plan's file: requests that were typed win over a file of the environment.
std::string idle_arrivals(const Arguments& arguments) {
  constexpr std::array<std::string_view, 6> kDrawn{"--requests", "--rate", "--prompt-tokens",
                                                   "--predict",  "--arms", "--seed"};
  const bool typed =
      std::any_of(kDrawn.begin(), kDrawn.end(), [&](std::string_view flag) { return arguments.typed.contains(flag); });
  return typed && !arguments.typed.contains("--arrivals") ? "and requests on the command line: those are run" : "";
}

std::string idle_beside_arrivals(const Arguments& arguments) {
  return arguments.arrivals ? "has no effect beside --arrivals, whose lines say it: leave one out" : "";
}

std::string idle_quiet(const Arguments& arguments) {
  return arguments.typed.contains("--verbose") && !arguments.typed.contains("--quiet") ? "and -v: -v was typed" : "";
}

std::string idle_verbose(const Arguments& arguments) {
  return arguments.quiet ? "has no effect beside --quiet, which silences standard error: leave one out" : "";
}

bool reads_everything(const plan::Plan& plan) {
  return !plan::forgets(plan) && !plan.prefill.sparse &&
         plan::is_dense_at(plan, std::numeric_limits<std::int32_t>::max());
}

void refuse_idle(const Arguments& arguments, std::span<const plan::Plan> plans) {
  const bool dense = std::all_of(plans.begin(), plans.end(), reads_everything);
  const bool tier = std::any_of(plans.begin(), plans.end(), has_tier);
  const auto refuse = [&](std::string_view flag, bool idle, std::string_view why) {
    if (idle && arguments.typed.contains(flag)) throw UserError(fmt::format("{} has no effect {}", flag, why));
  };
  refuse("--kv-tier-dir", !tier,
         "without a host tier: choose a method that has one (arkvale, shadowkv), or leave it out");
  constexpr std::string_view kDense = "with attention that reads everything: choose a sparse --attn, or leave it out";
  // --attn auto may take dense attention, and where it does nobody has asked for it.
  if (arguments.policy == kAuto && !arguments.plan_file) return;
  for (const char* flag : {"--lossless", "--attn-audit", "--correct"}) refuse(flag, dense, kDense);
}

}  // namespace glimpse::cli
