// Choices of retrieval heads for LycheeDecode as a profile's roles: what training found, and what it is held against.
// Functions on values; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/plan/profile.h"

namespace glimpse::train {

/// E[z] of the gates behind layer 0 as roles: all heads of layer 0 are retrieval heads.
plan::RolesProfile roles_of(const plan::ModelShape& shape, std::span<const double> expected);
/// The `count` gates of highest E[z] as 1, the others as 0.
plan::RolesProfile strongest_roles(const plan::ModelShape& shape, std::span<const double> expected, int count);
/// Roles above one half behind layer 0.
int retrieval_heads(const plan::ModelShape& shape, const plan::RolesProfile& roles);

/// So many heads behind layer 0: drawn, evenly spread over layers and indices, and of the highest retrieval score of a
/// query head of their group ([layer, query head]).
plan::RolesProfile random_roles(const plan::ModelShape& shape, int count, std::uint64_t seed);
plan::RolesProfile even_roles(const plan::ModelShape& shape, int count);
plan::RolesProfile scored_roles(const plan::ModelShape& shape, int count, std::span<const double> scores);

}  // namespace glimpse::train
