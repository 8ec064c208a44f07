// `glimpse calibrate roles`: LycheeDecode's heads by training, with the program that has the gradients. One thread.
#pragma once

#include <string_view>

#include "glimpse/cli/arguments.h"
#include "glimpse/engine/options.h"

namespace glimpse::cli {

/// The part's name on the command line.
inline constexpr std::string_view kRolesPart = "roles";

/// Trains, compares, writes the profile; the program's exit status. What a training goes on from is kept beside the
/// profile, and the same command goes on from it. Throws UserError, among others where glimpse-gradients is not
/// installed beside this program.
int train_roles(const Arguments& arguments, engine::EngineOptions how);

}  // namespace glimpse::cli
