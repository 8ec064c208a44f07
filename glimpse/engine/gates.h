// The trained gates that plans name: from their file to what attention selects by. Inside engine and cli; one thread.
#pragma once

#include "glimpse/attention/sequence_state.h"
#include "glimpse/model/model.h"
#include "glimpse/plan/plan.h"

namespace glimpse::engine {

/// Reads what the plan names and `files` lacks. Throws UserError, and leaves `files` as it was, for a file that is no
/// gates' (model::read_gates), of another model, or with blocks other than the plan's.
void load_gates(const plan::Plan& plan, const model::Model& model, attention::GateFiles& files);

}  // namespace glimpse::engine
