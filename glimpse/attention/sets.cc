#include "glimpse/attention/sets.h"

namespace glimpse::attention {

PublishedSets::PublishedSets(const plan::Plan& plan) : kv_heads_(plan.shape.kv_heads), sets_(plan.roles.size()) {
  for (std::size_t i = 0; i < plan.roles.size(); ++i) {
    const plan::Role& role = plan.roles[i];
    if (role.kind != plan::RoleKind::select) continue;
    const bool per_query = plan.selectors[static_cast<std::size_t>(role.selector)].per == plan::SetPer::query_head;
    sets_[i].lists.resize(per_query ? static_cast<std::size_t>(plan.shape.group()) : 1);
  }
}

}  // namespace glimpse::attention
