#include "glimpse/server/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/base/printable.h"
#include "glimpse/plan/profile_file.h"
#include "glimpse/policies/measured_minimum.h"
#include "glimpse/server/api_error.h"

namespace glimpse::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAuto = "auto", kNone = "none";

int whole_number(const std::string& key, const std::string& text, int low) {
  constexpr int kMost = 1 << 30;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > kMost) {
    throw UserError(
        fmt::format("option {} is '{}'; it must be a whole number from {} to {}", key, excerpt(text), low, kMost));
  }
  return value;
}

policies::PolicyOptions options_of(const MethodWish& wish) {
  policies::PolicyOptions options;
  if (wish.budget) policies::set_budget(options, *wish.budget);
  options.min_context = static_cast<int>(wish.min_context.value_or(0));
  for (const auto& [key, value] : wish.options) {
    if (key == "block") {
      options.block = whole_number(key, value, 1);
    } else if (key == "sink") {
      options.sink = whole_number(key, value, 0);
    } else if (key == "local") {
      options.local = whole_number(key, value, 0);
    } else {
      options.extra.emplace(key, value);
    }
  }
  return options;
}

/// "prefill=dense,reselect=13", as a candidate of --attn auto has its options.
void add_options(MethodWish& wish, std::string_view list) {
  while (!list.empty()) {
    const std::string_view one = list.substr(0, list.find(','));
    const std::size_t equals = std::min(one.find('='), one.size());
    wish.options[std::string(one.substr(0, equals))] = one.substr(std::min(equals + 1, one.size()));
    list.remove_prefix(std::min(one.size() + 1, list.size()));
  }
}

}  // namespace

Methods::Methods(MethodModel model, fs::path profiles, MethodWish standard)
    : model_(std::move(model)), folder_(std::move(profiles)), standard_(std::move(standard)) {
  if (!folder_.empty()) {
    try {
      own_ = plan::load_profile(plan::profile_path(folder_, model_.fingerprint));
      if (own_) plan::validate_for(*own_, model_.shape, model_.fingerprint);
    } catch (const UserError& error) {
      log_message(LogLevel::warning, fmt::format("the model's profile is left out: {}", error.what()));
      own_.reset();
    }
  }
  if (own_ && own_->speed && plan::speed_on(*own_, model_.machine) == nullptr) {
    log_message(LogLevel::warning,
                fmt::format("the times in the model's profile were measured on '{}', and this is '{}'; policy 'auto' "
                            "uses them all the same",
                            own_->speed->processor, model_.machine.processor));
  }
  constexpr std::int64_t kSomeTokens = 4096;
  plan_for(standard_, kSomeTokens, false);
}

MethodWish Methods::resolved(const MethodWish& wish, bool names_policy) const {
  if (names_policy) return wish;
  MethodWish out = standard_;
  if (wish.budget) out.budget = wish.budget;
  for (const auto& [key, value] : wish.options) out.options[key] = value;
  if (wish.profile) out.profile = wish.profile;
  if (wish.min_context) out.min_context = wish.min_context;
  return out;
}

plan::Plan Methods::plan_for(const MethodWish& wish, std::int64_t tokens, bool drafts) const {
  std::optional<plan::Profile> named;
  const plan::Profile* profile = own_ ? &*own_ : nullptr;
  if (wish.profile) {
    named = *wish.profile == kNone ? std::nullopt : named_profile(*wish.profile);
    profile = named ? &*named : nullptr;
  }
  if (wish.policy == kAuto) return automatic(profile, wish, {tokens, policies::parse_quality("answers"), drafts});
  const policies::Policy& policy = policies::find_policy(wish.policy, kAuto);
  // The model's own profile goes to the methods that use it; one that a request names must be of use.
  const policies::PolicyOptions options = options_of(wish);
  if (profile != nullptr && !wish.profile && !policies::uses_profile(policy, *profile, options.profile_budget)) {
    profile = nullptr;
  }
  plan::Plan plan = made(wish.policy, options, profile);
  const plan::Profile* const timed = named ? &*named : own_ && !wish.profile ? &*own_ : nullptr;
  const plan::SpeedProfile* const speed = timed == nullptr ? nullptr : plan::speed_on(*timed, model_.machine);
  if (speed != nullptr && !drafts && !wish.min_context) {
    plan.min_context = policies::measured_minimum(*speed, options, plan).value_or(0);
  }
  // The device's own cure is for who started the server.
  const std::string why = model_.refusal ? model_.refusal(plan) : std::string();
  if (!why.empty()) throw UserError(why.substr(0, why.find(';')) + "; name another method, or give it other options");
  return plan;
}

plan::Plan Methods::made(std::string_view policy, policies::PolicyOptions options, const plan::Profile* profile) const {
  options.profile = profile;
  if (profile != nullptr && profile->fingerprint) options.fingerprint = model_.fingerprint;
  return policies::make_plan(policy, model_.shape, options);
}

plan::Plan Methods::automatic(const plan::Profile* profile, const MethodWish& wish,
                              const policies::MethodWish& how) const {
  if (wish.budget || !wish.options.empty()) {
    throw UserError("policy 'auto' chooses budget and options itself; leave them out, or name a method");
  }
  if (profile == nullptr || !profile->speed) {
    throw UserError(
        "policy 'auto' chooses by the times in the model's profile, and there are none; 'glimpse calibrate -m MODEL' "
        "measures them");
  }
  const auto plan_of = [&](const policies::MethodCandidate& candidate) {
    MethodWish chosen;
    chosen.policy = candidate.method;
    chosen.min_context = wish.min_context;
    if (!candidate.budget.empty()) chosen.budget = candidate.budget;
    add_options(chosen, candidate.options);
    const bool uses = policies::uses_profile(policies::find_policy(chosen.policy), *profile);
    return made(chosen.policy, options_of(chosen), uses ? profile : nullptr);
  };
  policies::MethodWish here = how;
  here.machine = model_.machine;
  if (model_.refusal) {
    here.refusal = [&](const policies::MethodCandidate& candidate) -> std::string {
      try {
        return model_.refusal(plan_of(candidate));
      } catch (const UserError& error) {
        return error.what();
      }
    };
  }
  return plan_of(policies::choose_method(*profile, here).front());
}

/// A name, never a path: no part of it leads out of the folder.
std::optional<plan::Profile> Methods::named_profile(const std::string& name) const {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  constexpr std::size_t kLongest = 100;
  if (name.empty() || name.size() > kLongest || name.front() == '.' || !std::all_of(name.begin(), name.end(), plain)) {
    throw bad_field("attention.profile", "is no name of a profile: letters, digits, '-', '_' and '.'");
  }
  const ApiError missing = bad_field("attention.profile", fmt::format("names '{}', which --profile-dir has not", name));
  if (folder_.empty()) throw missing;
  std::optional<plan::Profile> profile;
  try {
    profile = plan::load_profile(folder_ / (name + ".json"));
  } catch (const UserError&) {  // its text would tell a path of this machine
    throw bad_field("attention.profile", fmt::format("names '{}', which cannot be read", name));
  }
  if (!profile) throw missing;
  plan::validate_for(*profile, model_.shape, model_.fingerprint);
  return profile;
}

bool reads_everything(const plan::Plan& plan) {
  return !plan::forgets(plan) && !plan.prefill.sparse &&
         plan::is_dense_at(plan, std::numeric_limits<std::int32_t>::max());
}

}  // namespace glimpse::server
