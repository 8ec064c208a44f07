// SeerAttention-R: Gao, Guo, Cao, et al., "SeerAttention-R: Sparse Attention Adaptation for Long Reasoning", 2025,
// arXiv 2506.08889. Its gate is trained; without its weights there is nothing to select by.
#include <fmt/format.h>

#include "glimpse/base/error.h"
#include "glimpse/policies/options.h"

namespace glimpse::policies {
namespace {

constexpr std::string_view kMissing =
    "the trained gate weights of SeerAttention-R, which this version cannot load; choose a policy that needs none, "
    "such "
    "as quest";

plan::Plan make(const plan::ModelShape&, const PolicyOptions& options) {
  const OptionReader read("seer", {}, options);
  throw UserError(fmt::format("policy 'seer' needs {}", kMissing));
}

}  // namespace

Policy seer_policy() {
  return {
      .name = "seer",
      .help = "blocks chosen by a trained gate: not in this version, which cannot load the gate's weights",
      .paper = "Gao et al., SeerAttention-R: Sparse Attention Adaptation for Long Reasoning, 2025, arXiv 2506.08889",
      .options = {},
      .make = make,
      .missing = kMissing};
}

}  // namespace glimpse::policies
