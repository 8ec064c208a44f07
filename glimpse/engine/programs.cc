#include "glimpse/engine/programs.h"

#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/engine/gates.h"

namespace glimpse::engine {

void require_plan(const plan::Plan& plan, const LoadedModel& loaded, Device& device, Programs& programs) {
  plan::validate(plan);
  attention::require_supported(plan);
  device.backend->require(plan);
  const plan::ModelShape mine = loaded.shape();
  if (plan.shape.layers != mine.layers || plan.shape.heads != mine.heads || plan.shape.kv_heads != mine.kv_heads ||
      plan.shape.head_dim != mine.head_dim) {
    throw UserError(
        fmt::format("the plan is for {} layers, {} heads, {} KV heads and heads of {} values; the model has {}, {}, {} "
                    "and {}; make the plan from this model",
                    plan.shape.layers, plan.shape.heads, plan.shape.kv_heads, plan.shape.head_dim, mine.layers,
                    mine.heads, mine.kv_heads, mine.head_dim));
  }
  const bool tier = std::any_of(plan.retentions.begin(), plan.retentions.end(), [](const plan::Retention& retention) {
    return retention.rule == plan::RetentionRule::host_tier;
  });
  if (tier) open_tier(device);
  load_gates(plan, loaded.model, programs.gates);
  // What cannot be made is refused here, not in the middle of a batch.
  const attention::SequenceState made(plan, programs.gates);
}

void require_whole_cache(const plan::Plan& plan, std::string_view what, std::string_view cure) {
  if (!plan::forgets(plan)) return;
  throw UserError(
      fmt::format("plan '{}' forgets tokens, so {}; leave {} out, or take a method that keeps the whole cache",
                  plan.policy, what, cure));
}

std::shared_ptr<const attention::Program> program_of(const plan::Plan& plan, Programs& programs) {
  std::erase_if(programs.made, [](const auto& program) { return program.expired(); });
  for (const auto& known : programs.made) {
    if (auto program = known.lock(); program && program->plan() == plan) return program;
  }
  auto program = std::make_shared<const attention::Program>(plan);
  programs.made.push_back(program);
  return program;
}

}  // namespace glimpse::engine
