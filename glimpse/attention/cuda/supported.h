// Which plans attention on a GPU runs.
#pragma once

#include "glimpse/plan/plan.h"

namespace glimpse::attention::cuda {

/// Throws UserError that names what runs on the CPU alone for now, and the cure. For plans that attention::
/// require_supported takes.
void require_supported(const plan::Plan& plan);

}  // namespace glimpse::attention::cuda
