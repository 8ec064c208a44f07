#include "glimpse/engine/requests/drafting.h"

namespace glimpse::engine {

void leave_drafts(kv::Cache& cache, ActiveSequence& sequence, Drafting& drafting) {
  if (!drafting.sampler) return;
  truncate(cache, sequence, drafting.base);
  sequence.attention.drafted_heat.clear();
  drafting.sampler.reset();
}

}  // namespace glimpse::engine
