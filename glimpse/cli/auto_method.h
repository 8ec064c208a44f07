// --attn auto: the method, budget and options that the model's profile speaks for, at a context length
// (policies::choose_method). One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/cli/profiles.h"
#include "glimpse/plan/plan.h"
#include "glimpse/policies/choose_method.h"

namespace glimpse::cli {

inline constexpr std::string_view kAuto = "auto";
/// Tokens of an answer that may be of any length, where a context length is needed.
inline constexpr std::int64_t kUsualAnswer = 256;

/// The context of a prompt and so many answer tokens (-1: any number), within what the model or -c allows.
std::int64_t wanted_context(std::int64_t prompt, std::int64_t answer, std::int64_t most);

/// The profile that --attn auto chooses by. Throws UserError where there is none, or none with measured times, with the
/// cure.
const plan::Profile& profile_with_times(const Arguments& arguments, const PlanModel& model);

/// The candidates for a context of so many tokens, the one that is taken first. With --lossless the best draft. Throws
/// UserError as above. Says once, as a warning, where the times are of another machine.
std::vector<policies::MethodCandidate> auto_candidates(const Arguments& arguments, const PlanModel& model,
                                                       std::int64_t tokens);

/// The plan of what is taken. A line on standard error says what that is and why, again only where it changes.
plan::Plan make_auto_plan(const Arguments& arguments, const PlanModel& model, std::int64_t tokens);

/// Makes a plan of --attn dense below the context from which it is faster by the profile's times of this machine, and
/// says so in a line. Nothing where --attn-min-ctx was given, where there are no such times, and with --lossless.
void take_measured_minimum(const Arguments& arguments, const PlanModel& model, plan::Plan& plan);

/// Says in a line what a method that is named is not for, where the model's profile has that for its budget. Nothing
/// with --lossless, whose answers are dense attention's.
void say_what_is_lost(const Arguments& arguments, const PlanModel& model, const plan::Plan& plan);
/// The same of a method that `options` and not the flags say.
void say_what_is_lost(const Arguments& arguments, const PlanModel& model, const policies::PolicyOptions& options,
                      const plan::Plan& plan);

/// The candidates as a table, for `glimpse plan`.
std::string candidates_table(const std::vector<policies::MethodCandidate>& candidates, std::int64_t tokens);

}  // namespace glimpse::cli
