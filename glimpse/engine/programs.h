// Plans as an engine runs them: refused or compiled once. One thread at a time. Inside engine only.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "glimpse/attention/program.h"
#include "glimpse/attention/sequence_state.h"
#include "glimpse/engine/device.h"
#include "glimpse/engine/loaded_model.h"
#include "glimpse/plan/plan.h"

namespace glimpse::engine {

struct Programs {
  attention::GateFiles gates;                                 ///< of the plans so far; read once
  std::vector<std::weak_ptr<const attention::Program>> made;  ///< of plans that sequences run
};

/// Throws UserError for a plan that cannot run here; makes what it needs beside the cache.
void require_plan(const plan::Plan& plan, const LoadedModel& loaded, Device& device, Programs& programs);

/// Throws UserError for a plan whose heads forget tokens: `what` needs them all, `cure` says what to leave out.
void require_whole_cache(const plan::Plan& plan, std::string_view what, std::string_view cure);

/// The plan's program, made when no sequence runs it yet. Throws UserError for one that asks for what is not there.
std::shared_ptr<const attention::Program> program_of(const plan::Plan& plan, Programs& programs);

}  // namespace glimpse::engine
