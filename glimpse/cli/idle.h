// Flags that have no effect beside the others of a command line. The option table (options.cc) names the rule of each
// flag; what only a plan can tell is asked when there is one. Functions of their arguments; any thread.
#pragma once

#include <span>
#include <string>

#include "glimpse/cli/arguments.h"
#include "glimpse/plan/plan.h"

namespace glimpse::cli {

/// Why the flag has no effect, and the cure, to follow the flag's name; empty: it has one. What the environment says
/// and has no effect is dropped, what was typed is refused.
using IdleRule = std::string (*)(const Arguments&);

std::string idle_sampling(const Arguments& arguments);       ///< --top-k
std::string idle_for_one_token(const Arguments& arguments);  ///< --top-p, --min-p, --seed
std::string idle_look_back(const Arguments& arguments);      ///< --repeat-last-n
std::string idle_penalty(const Arguments& arguments);
std::string idle_least(const Arguments& arguments);  ///< --min-tokens
std::string idle_system(const Arguments& arguments);
std::string idle_beside_plan_file(const Arguments& arguments);  ///< the other --attn-* flags
std::string idle_beside_auto(const Arguments& arguments);       ///< the flags of one method
std::string idle_quality(const Arguments& arguments);
std::string idle_plan_tokens(const Arguments& arguments);
std::string idle_weights(const Arguments& arguments);
std::string idle_text(const Arguments& arguments);
std::string idle_calibrate(const Arguments& arguments);
std::string idle_beside_roles(const Arguments& arguments);    ///< what only `calibrate roles` takes
std::string idle_beside_methods(const Arguments& arguments);  ///< what only `calibrate methods` takes
std::string idle_beside_budget(const Arguments& arguments);   ///< what only `calibrate budget` takes
std::string idle_beside_kascade(const Arguments& arguments);  ///< what only `calibrate` and `calibrate kascade` take
std::string idle_coverage(const Arguments& arguments);
std::string idle_of_steps(const Arguments& arguments);
std::string idle_minimum(const Arguments& arguments);  ///< --attn-min-ctx
std::string idle_plan_file(const Arguments& arguments);
std::string idle_profile(const Arguments& arguments);
std::string idle_profile_folder(const Arguments& arguments);
std::string idle_depths(const Arguments& arguments);
std::string idle_trace(const Arguments& arguments);
std::string idle_arrivals(const Arguments& arguments);
std::string idle_beside_arrivals(const Arguments& arguments);  ///< what draws the requests of `bench serve`
std::string idle_quiet(const Arguments& arguments);
std::string idle_verbose(const Arguments& arguments);

/// True when every head reads the whole cache, whatever the context.
bool reads_everything(const plan::Plan& plan);

/// Refuses typed flags that none of the plans makes use of: --kv-tier-dir, --lossless, --attn-audit, --correct.
void refuse_idle(const Arguments& arguments, std::span<const plan::Plan> plans);

}  // namespace glimpse::cli
