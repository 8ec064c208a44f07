// Dense attention in every layer and head: what all methods are compared with.
#include "glimpse/policies/options.h"

namespace glimpse::policies {
namespace {

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("full", {}, options);
  constexpr std::string_view kCure = "it reads everything; leave the flag out or choose another --attn policy";
  read.refuse_budget(kCure);
  read.refuse_block(kCure);
  read.refuse_sink(kCure);
  read.refuse_local(kCure);
  return plan::dense_plan(shape);
}

}  // namespace

Policy full_policy() {
  return {"full", "dense attention: reads the whole cache", "", {}, make};
}

}  // namespace glimpse::policies
