#include "glimpse/cli/profiles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "glimpse/attention/cuda/supported.h"
#include "glimpse/base/device_name.h"
#include "glimpse/base/error.h"
#include "glimpse/base/machine_cores.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/machine.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/engine/model_shape.h"
#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/model/fingerprint.h"
#include "glimpse/plan/profile_file.h"

namespace glimpse::cli {

namespace fs = std::filesystem;

/// What was read so far.
struct ProfileRead {
  std::optional<plan::Profile> given;  ///< of --attn-profile
  bool looked = false;                 ///< into the folder
  std::optional<plan::Profile> found;  ///< there
  fs::path file;                       ///< of `found`
  bool said = false;
  AutoSaid auto_said;
};

namespace {

constexpr std::string_view kNone = "none";

void note(const Arguments& arguments, const std::string& text) {
  if (!arguments.quiet) print_note(printable(text));
}

ProfileRead& read_of(const Arguments& arguments) {
  if (arguments.profile_read == nullptr) arguments.profile_read = std::make_shared<ProfileRead>();
  return *arguments.profile_read;
}

const plan::Profile& given_profile(const Arguments& arguments) {
  std::optional<plan::Profile>& given = read_of(arguments).given;
  if (!given) {
    const std::string label = fmt::format("--attn-profile '{}'", *arguments.profile);
    const std::string text = read_all(*arguments.profile, label);
    given = parse_of(label, text, [](std::string_view json) { return plan::parse_profile(json); });
  }
  return *given;
}

/// An absolute path in the environment; an empty one for anything else, as the rules of user folders have it.
fs::path folder_of(const char* variable) {
  const char* value = std::getenv(variable);
  const fs::path folder = value == nullptr ? "" : value;
  return folder.is_absolute() ? folder : fs::path();
}

/// The model's own profile, read at the first call; null without one.
const plan::Profile* found_profile(const Arguments& arguments, const PlanModel& model) {
  ProfileRead& read = read_of(arguments);
  if (read.looked) return read.found ? &*read.found : nullptr;
  read.looked = true;
  const fs::path folder = profile_folder(arguments);
  if (folder.empty()) return nullptr;
  std::error_code failed;
  if (arguments.typed.contains("--profile-dir") && !fs::is_directory(folder, failed)) {
    throw UserError(fmt::format("--profile-dir '{}': no such folder; give one that is there", folder.string()));
  }
  if (!fs::exists(folder, failed)) return nullptr;
  const std::uint64_t fingerprint = model.fingerprint();
  read.file = plan::profile_path(folder, fingerprint);
  try {
    read.found = plan::load_profile(read.file);
    if (!read.found) return nullptr;
    parse_of(fmt::format("'{}'", read.file.string()), "",
             [&](std::string_view) { validate_for(*read.found, model.shape, fingerprint); });
  } catch (const UserError& error) {
    note(arguments, fmt::format("warning: the model's profile is left out: {}; 'glimpse calibrate -m MODEL' makes "
                                "another",
                                error.what()));
    read.found.reset();
  }
  return read.found ? &*read.found : nullptr;
}

}  // namespace

PlanModel plan_model(const engine::Engine& engine) {
  PlanModel made{engine.shape(), [&engine] { return engine.fingerprint(); }};
  made.machine = machine_of(engine);
  made.refusal = [&engine](const plan::Plan& plan) { return engine.refusal(plan); };
  return made;
}

PlanModel plan_model(const model::Model& model, const Arguments& arguments) {
  PlanModel made{engine::shape_of(model.config()), [&model] { return model::fingerprint(model.file()); }};
  const DeviceName device = parse_device(arguments.device);
  if (device.kind == DeviceName::Kind::cpu) {
    made.machine = {profile_cpu_name(), usable_cores(), ""};
    return made;
  }
  const std::vector<kernels::cuda::Device> devices = kernels::cuda::devices();
  const auto found = std::find_if(devices.begin(), devices.end(),
                                  [&](const kernels::cuda::Device& each) { return each.number == device.number; });
  if (found == devices.end()) {
    throw UserError(fmt::format("--device {}: there is no such device; 'glimpse inspect' lists those of this machine",
                                excerpt(arguments.device)));
  }
  made.machine = {profile_name(found->name), 1, ""};
  made.refusal = [](const plan::Plan& plan) -> std::string {
    try {
      attention::cuda::require_supported(plan);
    } catch (const UserError& error) {
      return error.what();
    }
    return {};
  };
  return made;
}

plan::SpeedMachine machine_of(const engine::Engine& engine) {
  const std::string device = engine.device_name();
  if (device.empty()) return {profile_cpu_name(), engine.threads(), std::string(name(engine.kv_type()))};
  return {profile_name(device), 1, std::string(name(engine.kv_type()))};
}

fs::path profile_folder(const Arguments& arguments) {
  if (!arguments.profile_folder.empty()) return arguments.profile_folder;
  constexpr std::string_view kInside = "glimpse/profiles";
  if (const fs::path data = folder_of("XDG_DATA_HOME"); !data.empty()) return data / kInside;
  const fs::path home = folder_of("HOME");
  return home.empty() ? fs::path() : home / ".local/share" / kInside;
}

bool takes_profiles(std::string_view policy) {
  return policy == kAuto || !policies::find_policy(policy).profile_parts.empty();
}

void check_profile(const Arguments& arguments) {
  if (arguments.profile && *arguments.profile != kNone) given_profile(arguments);
}

const plan::Profile* profile_for(const Arguments& arguments, const policies::Policy& policy, const PlanModel& model,
                                 bool budgets) {
  if (arguments.profile == kNone) return nullptr;
  if (arguments.profile) {
    const plan::Profile& given = given_profile(arguments);
    return arguments.typed.contains("--attn-profile") || policies::uses_profile(policy, given, budgets) ? &given
                                                                                                        : nullptr;
  }
  if (policy.profile_parts.empty() && !budgets) return nullptr;
  const plan::Profile* found = found_profile(arguments, model);
  return found != nullptr && policies::uses_profile(policy, *found, budgets) ? found : nullptr;
}

const plan::Profile* any_profile(const Arguments& arguments, const PlanModel& model) {
  if (arguments.profile == kNone) return nullptr;
  if (!arguments.profile) return found_profile(arguments, model);
  const plan::Profile& given = given_profile(arguments);
  const auto fingerprint = given.fingerprint ? std::optional(model.fingerprint()) : std::nullopt;
  validate_for(given, model.shape, fingerprint);
  return &given;
}

void forget_profile(const Arguments& arguments) {
  read_of(arguments).looked = false;
  read_of(arguments).found.reset();
}

AutoSaid& auto_said(const Arguments& arguments) {
  return read_of(arguments).auto_said;
}

bool is_found(const Arguments& arguments, const plan::Profile* profile) {
  const std::optional<plan::Profile>& found = read_of(arguments).found;
  return found && profile == &*found;
}

void say_found(const Arguments& arguments) {
  ProfileRead& read = read_of(arguments);
  if (read.said) return;
  read.said = true;
  note(arguments,
       fmt::format("the model's profile is used: '{}'; --attn-profile none leaves it out", read.file.string()));
}

void set_profile(policies::PolicyOptions& options, const plan::Profile* profile, const PlanModel& model) {
  options.profile = profile;
  if (profile != nullptr && profile->fingerprint) options.fingerprint = model.fingerprint();
}

void refuse_idle_profile(const Arguments& arguments, std::span<const std::string_view> policies) {
  if (std::any_of(policies.begin(), policies.end(), takes_profiles)) return;
  for (const char* flag : {"--attn-profile", "--profile-dir", "--calibrate"}) {
    if (!arguments.typed.contains(flag)) continue;
    throw UserError(fmt::format("{} '{}' {} no use for {}; leave the flag out",
                                policies.size() == 1 ? "policy" : "policies", fmt::join(policies, "', '"),
                                policies.size() == 1 ? "has" : "have", flag));
  }
}

}  // namespace glimpse::cli
