// Which profile a plan is made with: that of --attn-profile, or the model's own in the folder of profiles. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "glimpse/cli/arguments.h"
#include "glimpse/engine/engine.h"
#include "glimpse/model/model.h"
#include "glimpse/plan/profile.h"
#include "glimpse/policies/policy.h"

namespace glimpse::cli {

/// The model that plans are made for. It borrows what it was made of.
class PlanModel {
 public:
  PlanModel(plan::ModelShape of, std::function<std::uint64_t()> read) : shape(std::move(of)), read_(std::move(read)) {}
  /// Of its file, read at the first call: only where a profile is looked for.
  std::uint64_t fingerprint() const {
    if (!known_) known_ = read_();
    return *known_;
  }
  plan::ModelShape shape;
  plan::SpeedMachine machine;  ///< that it runs on; an empty type of cache: not known yet
  /// Why that does not run a plan; empty: it does.
  std::function<std::string(const plan::Plan&)> refusal = [](const plan::Plan&) { return std::string(); };

 private:
  std::function<std::uint64_t()> read_;
  mutable std::optional<std::uint64_t> known_;
};
PlanModel plan_model(const engine::Engine& engine);
/// On the device of --device, which need not be opened. Throws UserError where there is no such device.
PlanModel plan_model(const model::Model& model, const Arguments& arguments);
/// What times of an engine hold for.
plan::SpeedMachine machine_of(const engine::Engine& engine);

/// Where profiles are: --profile-dir, else glimpse/profiles in the user's data folder (XDG_DATA_HOME, else
/// ~/.local/share); an empty path where the environment names neither.
std::filesystem::path profile_folder(const Arguments& arguments);

/// Reads the file of --attn-profile, where one was given. Throws UserError for one that is none.
void check_profile(const Arguments& arguments);

/// True for a method that a profile can tell something, "auto" too.
bool takes_profiles(std::string_view policy);

/// The profile for plans of the policy: of the file that --attn-profile names, whatever it holds where the flag was
/// typed; or the model's own, if the folder of profiles has one that the policy uses. Null without one. What is wrong
/// with the file of a folder is a warning, and the file is left out. Each file is read once. `budgets`: the policy
/// takes the profile's (PolicyOptions::profile_budget).
const plan::Profile* profile_for(const Arguments& arguments, const policies::Policy& policy, const PlanModel& model,
                                 bool budgets = false);

/// The model's profile whatever it holds, for --attn auto: of --attn-profile, or the model's own. Null without one.
/// Throws UserError for a file of --attn-profile that is none or another model's.
const plan::Profile* any_profile(const Arguments& arguments, const PlanModel& model);
/// Looks into the folder again: a profile has been made.
void forget_profile(const Arguments& arguments);

/// What --attn auto has said on standard error.
struct AutoSaid {
  bool elsewhere = false;  ///< that the times are of another machine
  std::string taken;       ///< the arm that it took last
};
AutoSaid& auto_said(const Arguments& arguments);

/// Gives the options the profile, and what tells whether it is this model's.
void set_profile(policies::PolicyOptions& options, const plan::Profile* profile, const PlanModel& model);

/// True for a profile that nobody named: the model's own of the folder.
bool is_found(const Arguments& arguments, const plan::Profile* profile);
/// Says, once, in a line on standard error, that such a profile is used.
void say_found(const Arguments& arguments);

/// Refuses --attn-profile, --profile-dir and --calibrate, where they were typed, unless one of these policies uses
/// profiles.
void refuse_idle_profile(const Arguments& arguments, std::span<const std::string_view> policies);

}  // namespace glimpse::cli
