#include "glimpse/cli/auto_method.h"

#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/arm.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/policies/measured_minimum.h"

namespace glimpse::cli {
namespace {

using policies::MethodCandidate;

void note(const Arguments& arguments, const std::string& text) {
  if (!arguments.quiet) print_note(printable(text));
}

/// By whose times a method is chosen; the cache's type is the profile's where it is not known yet.
plan::SpeedMachine machine_for(const plan::Profile& profile, const PlanModel& model) {
  plan::SpeedMachine machine = model.machine;
  if (!machine.kv_type.empty()) return machine;
  machine.kv_type = profile.speed->kv_type;
  for (const plan::SpeedProfile& speed : profile.elsewhere) {
    if (plan::speed_on(profile, machine) != nullptr) break;
    machine.kv_type = speed.kv_type;
  }
  if (plan::speed_on(profile, machine) == nullptr) machine.kv_type = profile.speed->kv_type;
  return machine;
}

/// Where no times were measured on this machine as it is used now; empty: they were.
std::string elsewhere(const plan::Profile& profile, const plan::SpeedMachine& machine) {
  const auto words = [](const plan::SpeedMachine& of) {
    return fmt::format("'{}' with {} thread{} and a cache of {}", of.processor, of.threads, of.threads == 1 ? "" : "s",
                       of.kv_type);
  };
  if (plan::speed_on(profile, machine) != nullptr) return "";
  return fmt::format(
      "the profile's times were measured on {}, and this is {}; --attn auto uses them all the same, "
      "'glimpse calibrate -m MODEL' measures again, for a GPU with --device",
      words(profile.speed->machine()), words(machine));
}

policies::MethodWish wish_of(const Arguments& arguments, std::int64_t tokens) {
  return {tokens, policies::parse_quality(arguments.quality), arguments.lossless.has_value()};
}

/// The plan of a candidate, written as an arm.
plan::Plan plan_of(const Arguments& arguments, const MethodCandidate& candidate, const plan::Profile& profile,
                   const PlanModel& model) {
  Arm arm = parse_arm(policies::arm_text(candidate));
  arm.options.min_context = static_cast<int>(arguments.min_context);
  const policies::Policy& policy = policies::find_policy(arm.policy);
  set_profile(arm.options, policies::uses_profile(policy, profile) ? &profile : nullptr, model);
  return policies::make_plan(arm.policy, model.shape, arm.options);
}

std::string reason(const std::vector<MethodCandidate>& candidates, const policies::MethodWish& wish) {
  const std::int64_t tokens = wish.tokens;
  const MethodCandidate& taken = candidates.front();
  const auto dense = std::find_if(candidates.begin(), candidates.end(),
                                  [](const MethodCandidate& each) { return each.budget.empty(); });
  if (taken.budget.empty()) {
    const std::string_view others = wish.drafts               ? "no draft makes it faster"
                                    : wish.quality.divergence ? "nothing that keeps that KL is faster"
                                                              : "nothing that keeps the answers is a tenth faster";
    return fmt::format("{:.1f} ms a token at {} tokens, and {}", taken.ms, tokens, others);
  }
  const std::string speed =
      fmt::format("{:.1f} ms a token at {} tokens, dense attention {:.1f} ms", taken.ms, tokens, dense->ms);
  if (taken.drafts > 0) {
    return fmt::format("{:.0f} % of its tokens are dense attention's; {} with {} drafts", 100 * *taken.agreement, speed,
                       taken.drafts);
  }
  if (wish.quality.divergence) return fmt::format("KL to dense {:.4f}; {}", taken.divergence, speed);
  return "keeps the answers of every kind of task; " + speed;
}

/// What is known of a method that is named and whose answers may be lost; null: nothing.
const plan::Profile* profile_of_named(const Arguments& arguments, std::string_view policy, const PlanModel& model) {
  if (arguments.lossless || policy == kAuto || !takes_profiles(policy)) return nullptr;
  return any_profile(arguments, model);
}

}  // namespace

std::int64_t wanted_context(std::int64_t prompt, std::int64_t answer, std::int64_t most) {
  return std::clamp<std::int64_t>(prompt + (answer < 0 ? kUsualAnswer : answer), 1, std::max<std::int64_t>(most, 1));
}

const plan::Profile& profile_with_times(const Arguments& arguments, const PlanModel& model) {
  const plan::Profile* profile = any_profile(arguments, model);
  if (profile != nullptr && profile->speed) return *profile;
  throw UserError(
      fmt::format("--attn auto chooses by the times in the model's profile, and {}; 'glimpse calibrate -m "
                  "MODEL' makes one with them",
                  profile == nullptr ? "there is no profile" : "the profile has none"));
}

std::vector<MethodCandidate> auto_candidates(const Arguments& arguments, const PlanModel& model, std::int64_t tokens) {
  const plan::Profile& profile = profile_with_times(arguments, model);
  AutoSaid& said = auto_said(arguments);
  policies::MethodWish wish = wish_of(arguments, tokens);
  wish.machine = machine_for(profile, model);
  if (const std::string text = elsewhere(profile, *wish.machine); !text.empty() && !said.elsewhere) {
    said.elsewhere = true;
    note(arguments, "warning: " + text);
  }
  wish.refusal = [&](const MethodCandidate& candidate) {
    std::string why;
    try {
      why = model.refusal(plan_of(arguments, candidate, profile, model));
    } catch (const UserError& error) {
      why = error.what();
    }
    return why.substr(0, why.find(';'));  // the cure is for who names the method
  };
  return policies::choose_method(profile, wish);
}

plan::Plan make_auto_plan(const Arguments& arguments, const PlanModel& model, std::int64_t tokens) {
  const std::vector<MethodCandidate> candidates = auto_candidates(arguments, model, tokens);
  const std::string written = policies::arm_text(candidates.front());
  plan::Plan plan = plan_of(arguments, candidates.front(), profile_with_times(arguments, model), model);
  AutoSaid& said = auto_said(arguments);
  if (said.taken != written) {
    said.taken = written;
    note(arguments, fmt::format("--attn auto takes {}{}: {}", candidates.front().drafts > 0 ? "drafts of " : "",
                                written, reason(candidates, wish_of(arguments, tokens))));
  }
  return plan;
}

void take_measured_minimum(const Arguments& arguments, const PlanModel& model, plan::Plan& plan) {
  if (arguments.plan_file || arguments.given.contains("--attn-min-ctx")) return;
  const plan::Profile* const profile = profile_of_named(arguments, arguments.policy, model);
  if (profile == nullptr || !profile->speed) return;
  const plan::SpeedProfile* const speed = plan::speed_on(*profile, machine_for(*profile, model));
  if (speed == nullptr) return;
  const int from = policies::measured_minimum(*speed, policy_options(arguments), plan).value_or(0);
  if (from == 0) return;
  plan.min_context = from;
  note(arguments, from == policies::kNeverFaster
                      ? fmt::format("by the profile's times {} is never faster than dense attention, which is taken; "
                                    "--attn-min-ctx 0 takes the method all the same",
                                    plan.policy)
                      : fmt::format("dense below {} tokens, from which {} is faster by the profile's times; "
                                    "--attn-min-ctx 0 takes the method at once",
                                    from, plan.policy));
}

void say_what_is_lost(const Arguments& arguments, const PlanModel& model, const plan::Plan& plan) {
  if (arguments.plan_file || arguments.policy == kAuto || plan.min_context == policies::kNeverFaster) return;
  say_what_is_lost(arguments, model, policy_options(arguments), plan);
}

void say_what_is_lost(const Arguments& arguments, const PlanModel& model, const policies::PolicyOptions& options,
                      const plan::Plan& plan) {
  const plan::Profile* const profile = profile_of_named(arguments, plan.policy, model);
  if (profile == nullptr) return;
  const std::string lost = policies::measured_losses(*profile, options, plan);
  if (lost.empty()) return;
  note(arguments,
       fmt::format("by the profile {} at this budget is not for {}; --attn auto takes what keeps all answers",
                   plan.policy, lost));
}

std::string candidates_table(const std::vector<MethodCandidate>& candidates, std::int64_t tokens) {
  std::string text = fmt::format(
      "| method | answers kept | agreement | KL to dense | ms a token at {} | chosen |\n"
      "| --- | ---: | ---: | ---: | ---: | --- |\n",
      tokens);
  const auto percent = [](const std::optional<double>& share) {
    return share ? fmt::format("{:.0f} %", 100 * *share) : std::string("-");
  };
  for (const MethodCandidate& each : candidates) {
    const std::string drafts = each.drafts > 0 ? fmt::format(", {} drafts", each.drafts) : "";
    text += fmt::format("| {} | {} | {} | {:.4f} | {:.2f}{} | {} |\n", policies::arm_text(each), percent(each.answers),
                        percent(each.agreement), each.divergence, each.ms, drafts,
                        each.why_not.empty() ? "yes" : each.why_not);
  }
  return text;
}

}  // namespace glimpse::cli
