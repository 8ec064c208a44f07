// From a method's name and options to the plan of a request. Const after construction; any thread may call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "glimpse/plan/plan.h"
#include "glimpse/plan/profile.h"
#include "glimpse/policies/choose_method.h"
#include "glimpse/policies/policy.h"
#include "glimpse/server/options.h"

namespace glimpse::server {

/// The model that plans are made for.
struct MethodModel {
  plan::ModelShape shape;
  std::uint64_t fingerprint = 0;  ///< of its file; only where there is a folder of profiles
  plan::SpeedMachine machine;     ///< whose times `auto` chooses by
  /// Why it does not run a plan; empty: it does. Any thread calls it.
  std::function<std::string(const plan::Plan&)> refusal;
};

class Methods {
 public:
  /// Reads the model's own profile, where the folder has one. Throws UserError for a default method that cannot be
  /// made or run.
  Methods(MethodModel model, std::filesystem::path profiles, MethodWish standard);

  /// What a request's `attention` comes to: one that names no policy changes the default.
  MethodWish resolved(const MethodWish& wish, bool names_policy) const;
  /// `tokens` of context are what `auto` chooses for; `drafts`: for lossless decoding. Throws UserError, and ApiError
  /// for a profile that is not there.
  plan::Plan plan_for(const MethodWish& wish, std::int64_t tokens, bool drafts) const;

 private:
  std::optional<plan::Profile> named_profile(const std::string& name) const;
  plan::Plan automatic(const plan::Profile* profile, const MethodWish& wish, const policies::MethodWish& how) const;
  plan::Plan made(std::string_view policy, policies::PolicyOptions options, const plan::Profile* profile) const;

  MethodModel model_;
  std::filesystem::path folder_;
  std::optional<plan::Profile> own_;
  MethodWish standard_;
};

/// True for a plan that reads every token in every step: it has nothing to draft, to correct or to audit.
bool reads_everything(const plan::Plan& plan);

}  // namespace glimpse::server
