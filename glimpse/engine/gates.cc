#include "glimpse/engine/gates.h"

#include <fmt/format.h>

#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/exec/rope.h"
#include "glimpse/model/gates.h"

namespace glimpse::engine {
namespace {

/// The model's angles in the gate's space, which is laid out in halves like the authors' models.
std::unique_ptr<kernels::Rotation> gate_rotation(const GateWeights& weights, model::Rope rope) {
  if (weights.rope_dims == 0) return nullptr;
  rope.dims = weights.rope_dims;
  rope.neox = true;
  return std::make_unique<exec::RopeTable>(rope);
}

}  // namespace

void load_gates(const plan::Plan& plan, const model::Model& model, attention::GateFiles& files) {
  attention::GateFiles loaded = files;
  for (const plan::Selector& selector : plan.selectors) {
    if (selector.terms.empty() || selector.terms.front().index.gates.empty()) continue;
    const std::string& path = selector.terms.front().index.gates;
    std::shared_ptr<kv::Gates>& gates = loaded[path];
    if (!gates) {
      GateWeights weights = model::read_gates(path, model.config());
      auto own = gate_rotation(weights, model.config().rope);
      gates = std::make_shared<kv::Gates>(std::move(weights), std::make_unique<exec::RopeTable>(model.config().rope),
                                          std::move(own));
    }
    if (selector.block != gates->weights().block) {
      throw UserError(
          fmt::format("'{}': the gates score blocks of {} tokens, the plan's are of {}; give --attn-block {}", path,
                      gates->weights().block, selector.block, gates->weights().block));
    }
  }
  files = std::move(loaded);
}

}  // namespace glimpse::engine
