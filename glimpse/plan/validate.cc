#include <algorithm>

#include "glimpse/plan/checks.h"
#include "glimpse/plan/words.h"

namespace glimpse::plan {
namespace {

class Validator {
 public:
  explicit Validator(const Plan& plan) : plan_(plan) {}

  void run() const {
    validate_shape(plan_.shape);
    if (plan_.policy.empty() || plan_.policy.size() > 64) refuse("policy", "give a name of 1 to 64 characters");
    in_range("plan", "min_context", plan_.min_context, 0, kMaxTokens);
    check_counts();
    for (std::size_t i = 0; i < plan_.selectors.size(); ++i) validate_selector(plan_, i);
    for (std::size_t i = 0; i < plan_.retentions.size(); ++i) validate_retention(plan_, i);
    for (int layer = 0; layer < plan_.shape.layers; ++layer) {
      for (int head = 0; head < plan_.shape.kv_heads; ++head) check_role(layer, head);
      check_layer_sets(layer);
      check_shared_retention(layer);
      check_combine(layer);
    }
    check_prefill();
    check_feedback();
    check_heat();
    check_all_used();
  }

 private:
  static std::string at(int layer, int head) { return fmt::format("layer {}, KV head {}", layer, head); }
  const Selector& selector(int index) const { return plan_.selectors[static_cast<std::size_t>(index)]; }
  Combine combine(int layer) const { return plan_.combine[static_cast<std::size_t>(layer)]; }

  void check_counts() const {
    const auto expected = static_cast<std::size_t>(plan_.shape.layers) * static_cast<std::size_t>(plan_.shape.kv_heads);
    if (plan_.roles.size() != expected) {
      refuse("roles", "{} given, {} needed: one for each of {} layers and {} KV heads", plan_.roles.size(), expected,
             plan_.shape.layers, plan_.shape.kv_heads);
    }
    if (plan_.combine.size() != static_cast<std::size_t>(plan_.shape.layers)) {
      refuse("combine", "{} given, {} needed: one for each layer", plan_.combine.size(), plan_.shape.layers);
    }
    if (plan_.selectors.size() > kMaxSelectors || plan_.retentions.size() > kMaxSelectors) {
      refuse("selectors and retentions", "{} and {} are over the limit of {} each", plan_.selectors.size(),
             plan_.retentions.size(), kMaxSelectors);
    }
  }

  void check_role(int layer, int head) const {
    const Role& role = plan_.role(layer, head);
    const std::string where = at(layer, head);
    const bool selects = role.kind == RoleKind::select;
    const bool has_selector = selects || role.kind == RoleKind::stream;
    if (has_selector) {
      if (role.selector < 0 || static_cast<std::size_t>(role.selector) >= plan_.selectors.size()) {
        refuse(where, "{} with selector {}, but the plan has {}; give an index below that", word(role.kind),
               role.selector, plan_.selectors.size());
      }
      const bool terms = !selector(role.selector).terms.empty();
      if (selects && !terms) refuse(where, "selects with selector {}, which has no terms; give it one", role.selector);
      if (!selects && terms) {
        refuse(where, "streams with selector {}, which has terms; a stream reads sink and local only", role.selector);
      }
    } else if (role.selector != -1) {
      refuse(where, "a {} role has no selector; give -1, not {}", word(role.kind), role.selector);
    }
    if (role.attends_set && !selects) refuse(where, "attends_set goes with select only, not {}", word(role.kind));
    if (role.kind == RoleKind::reuse) {
      check_reads(layer, head, role);
    } else if (!(role.reads == SlotId{})) {
      if (!selects || combine(layer) != Combine::union_sets) {
        refuse(where, "a {} role reads no slot (a select does only where the layer's combine is union-sets)",
               word(role.kind));
      }
      check_reads(layer, head, role);
    }
    check_role_retention(where, role);
  }

  void check_reads(int layer, int head, const Role& role) const {
    const std::string where = at(layer, head);
    const SlotId slot = role.reads;
    if (slot.layer < 0 || slot.layer >= plan_.shape.layers || slot.head < 0 || slot.head >= plan_.shape.kv_heads) {
      refuse(where, "reads slot (layer {}, head {}), but the model has {} layers and {} KV heads", slot.layer,
             slot.head, plan_.shape.layers, plan_.shape.kv_heads);
    }
    if (slot.layer > layer) refuse(where, "reads layer {}, which comes later; only an earlier set exists", slot.layer);
    if (slot.layer == layer) refuse(where, "reads its own layer; only an earlier set exists");
    const Role& source = plan_.role(slot.layer, slot.head);
    if (source.kind == RoleKind::reuse) {
      refuse(where, "reads (layer {}, head {}), which itself reuses (layer {}, head {}); read that slot", slot.layer,
             slot.head, source.reads.layer, source.reads.head);
    }
    if (source.kind != RoleKind::select) {
      refuse(where, "reads (layer {}, head {}), which is {} and publishes no set; name a select", slot.layer, slot.head,
             word(source.kind));
    }
    const bool valid = source.selector >= 0 && static_cast<std::size_t>(source.selector) < plan_.selectors.size();
    if (valid && selector(source.selector).per == SetPer::layer && slot.head != 0) {
      refuse(where, "reads (layer {}, head {}), but that layer publishes one set for all heads; read head 0",
             slot.layer, slot.head);
    }
    if (valid && role.kind == RoleKind::select && selector(source.selector).block != selector(role.selector).block) {
      refuse(where, "joins blocks of {} from (layer {}, head {}) to blocks of {}; give both selectors the same block",
             selector(source.selector).block, slot.layer, slot.head, selector(role.selector).block);
    }
  }

  void check_role_retention(const std::string& where, const Role& role) const {
    if (role.retention == -1) return;
    if (role.retention < 0 || static_cast<std::size_t>(role.retention) >= plan_.retentions.size()) {
      refuse(where, "retention {}, but the plan has {}; give an index below that, or -1", role.retention,
             plan_.retentions.size());
    }
    const Retention& kept = plan_.retentions[static_cast<std::size_t>(role.retention)];
    if (kept.rule == RetentionRule::all) return;
    if (role.kind == RoleKind::stream) {
      if (kept.rule != RetentionRule::window) {
        refuse(where, "streams with retention rule {}; a stream needs window or all", word(kept.rule));
      }
      const Selector& reads = selector(role.selector);
      const bool fits = kept.budget.rule == reads.budget.rule && kept.budget.value >= reads.budget.value &&
                        kept.budget.at_least >= reads.budget.at_least && kept.sink >= reads.sink;
      if (!fits) {
        refuse(where, "streams sink {} and budget {}, but retention {} keeps sink {} and budget {}; keep what is read",
               reads.sink, to_string(reads.budget), role.retention, kept.sink, to_string(kept.budget));
      }
      return;
    }
    if (kept.rule == RetentionRule::host_tier) {
      check_host_tier(where, role, kept);
    } else if (role.kind != RoleKind::dense) {
      refuse(where, "a {} role with retention rule {} could need a token that is gone; give all", word(role.kind),
             word(kept.rule));
    }
  }

  // Pages are fetched by their digests, so only a head that chooses pages, or chunks by their landmarks, and reads no
  // others can leave them out.
  void check_host_tier(const std::string& where, const Role& role, const Retention& kept) const {
    const auto by_digest = [](Source source) { return source == Source::page_bounds || source == Source::landmarks; };
    if (role.kind != RoleKind::select || !role.attends_set || !by_digest(selector(role.selector).terms[0].source)) {
      refuse(where,
             "host-tier goes with a select of page-bounds or landmarks that attends its own set, not with this {} role",
             word(role.kind));
    }
    const Budget& reads = selector(role.selector).budget;
    if (kept.budget.rule != reads.rule || kept.budget.value < reads.value || kept.budget.at_least < reads.at_least) {
      refuse(where, "host-tier keeps {} resident, but a step reads {}; give at least that, as the same kind of budget",
             to_string(kept.budget), to_string(reads));
    }
  }

  // Heads whose probabilities decide together forget together.
  void check_shared_retention(int layer) const {
    const int first = plan_.role(layer, 0).retention;
    for (int head = 0; head < plan_.shape.kv_heads; ++head) {
      const int own = plan_.role(layer, head).retention;
      const auto shared = [&](int index) {
        return index >= 0 && plan_.retentions[static_cast<std::size_t>(index)].per == SetPer::layer;
      };
      if (own == first || (!shared(own) && !shared(first))) continue;
      refuse(at(layer, head), "retention {}, but head 0 has {}: what is kept per layer is kept by all of its heads",
             own, first);
    }
  }

  // One set per layer is made by all of its heads together and published by head 0.
  void check_layer_sets(int layer) const {
    int maker = -1;
    for (int head = 0; head < plan_.shape.kv_heads; ++head) {
      const Role& role = plan_.role(layer, head);
      if (role.kind == RoleKind::select && selector(role.selector).per == SetPer::layer) maker = head;
    }
    if (maker < 0) return;
    const int expected = plan_.role(layer, maker).selector;
    for (int head = 0; head < plan_.shape.kv_heads; ++head) {
      const Role& role = plan_.role(layer, head);
      if (role.kind != RoleKind::select || role.selector != expected) {
        refuse(at(layer, head), "the layer makes one set for all heads; every head must select with selector {}",
               expected);
      }
      const Role& made = plan_.role(layer, 0);
      if (role.attends_set != made.attends_set) {
        refuse(at(layer, head), "the layer makes one set for all heads; attends_set must be that of head 0, {}",
               made.attends_set);
      }
      if (!(role.reads == made.reads)) {
        refuse(at(layer, head), "the layer makes one set for all heads; what it joins must be what head 0 joins");
      }
    }
  }

  void check_combine(int layer) const {
    const Combine how = combine(layer);
    if (how == Combine::none) return;
    for (int head = 0; head < plan_.shape.kv_heads; ++head) {
      if (plan_.role(layer, head).kind == RoleKind::select) return;
    }
    refuse(fmt::format("layer {}", layer), "combine {} in a layer without a select; give none", word(how));
  }

  bool any_role(RoleKind kind) const {
    return std::any_of(plan_.roles.begin(), plan_.roles.end(), [kind](const Role& role) { return role.kind == kind; });
  }

  void check_prefill() const {
    const Prefill& p = plan_.prefill;
    if (p.sparse) {
      in_range("prefill", "tile_rows", p.tile_rows, plan_.shape.group(), kMaxTile);
      if (!any_role(RoleKind::select) && !any_role(RoleKind::stream)) {
        refuse("prefill", "sparse, but no head selects or streams; make it dense");
      }
      for (std::size_t i = 0; i < plan_.selectors.size(); ++i) check_tile_selector(i);
    } else if (p.tile_rows != 0) {
      refuse("prefill", "tile_rows = {} goes with a sparse prefill only", p.tile_rows);
    }
    if (p.observe == Observe::last_rows) {
      in_range("prefill", "observe_rows", p.observe_rows, 1, kMaxTile);
    } else if (p.observe_rows != 0) {
      refuse("prefill", "observe_rows = {} goes with observe last-rows only, not {}", p.observe_rows, word(p.observe));
    }
  }

  // A tile of prompt rows makes one set from exact scores; an index is searched by one query.
  void check_tile_selector(std::size_t index) const {
    const Selector& s = plan_.selectors[index];
    const std::string where = fmt::format("selector {}", index);
    if (s.terms.empty()) return;
    const Source source = s.terms[0].source;
    if (s.terms.size() != 1 || (source != Source::dot && source != Source::probability)) {
      refuse(where, "a sparse prefill needs exact scores: one term of source dot or probability");
    }
    if (s.per == SetPer::query_head) refuse(where, "a sparse prefill needs sets per kv-head or layer, not query-head");
    const Term& term = s.terms[0];
    if (term.group != GroupPooling::mean_probability && term.group != GroupPooling::mean_query &&
        term.group != GroupPooling::mean_score) {
      refuse(where,
             "a sparse prefill pools a tile's rows by mean; give mean-probability, mean-query or mean-score, "
             "not {}",
             word(term.group));
    }
    if (term.heads != HeadPooling::none && term.heads != HeadPooling::mean) {
      refuse(where, "a sparse prefill pools the heads of a layer by mean, not {}", word(term.heads));
    }
    if (term.budget || !term.query_heads.empty()) {
      refuse(where,
             "a sparse prefill pools all query heads within the set's budget; leave query_heads and the term's "
             "own budget out");
    }
    if (needs_probabilities(s.budget.rule)) {
      refuse(where, "a sparse prefill counts a tile's budget in tokens or as a share, not {}", to_string(s.budget));
    }
  }

  void check_heat() const {
    const Heat& heat = plan_.heat;
    if (!(heat.decay > 0 && heat.decay <= 1)) refuse("heat", "decay = {} is outside (0, 1]", heat.decay);
    in_range("heat", "first_layer", heat.first_layer, 0, plan_.shape.layers - 1);
    if (!(heat == Heat{}) && !reads_heat(plan_)) refuse("heat", "no term has source heat; leave it out");
    const Selector* first = nullptr;
    for (std::size_t i = 0; i < plan_.selectors.size(); ++i) {
      const Selector& s = plan_.selectors[i];
      const bool heats =
          std::any_of(s.terms.begin(), s.terms.end(), [](const Term& term) { return term.source == Source::heat; });
      if (!heats) continue;
      if (first == nullptr) first = &s;
      if (s.block != first->block) {
        refuse(fmt::format("selector {}", i), "heat in blocks of {} beside heat in blocks of {}; heat is kept in one",
               s.block, first->block);
      }
    }
  }

  void check_feedback() const {
    if (plan_.feedback == Feedback::probabilities) return;
    for (std::size_t i = 0; i < plan_.selectors.size(); ++i) {
      for (const Term& term : plan_.selectors[i].terms) {
        if (term.source == Source::heat) {
          refuse(fmt::format("selector {}", i), "heat grows from probabilities; give feedback probabilities");
        }
      }
    }
    for (std::size_t i = 0; i < plan_.retentions.size(); ++i) {
      const RetentionRule rule = plan_.retentions[i].rule;
      if (forgets_by_statistic(rule)) {
        refuse(fmt::format("retention {}", i), "rule {} needs feedback probabilities", word(rule));
      }
    }
  }

  // An entry that no role names is a slip of whoever edited the plan.
  void check_all_used() const {
    std::vector<char> selectors(plan_.selectors.size());
    std::vector<char> retentions(plan_.retentions.size());
    for (const Role& role : plan_.roles) {
      if (role.selector >= 0) selectors[static_cast<std::size_t>(role.selector)] = 1;
      if (role.retention >= 0) retentions[static_cast<std::size_t>(role.retention)] = 1;
    }
    for (std::size_t i = 0; i < selectors.size(); ++i) {
      if (!selectors[i]) refuse(fmt::format("selector {}", i), "no role uses it; remove it or name it in a role");
    }
    for (std::size_t i = 0; i < retentions.size(); ++i) {
      if (!retentions[i]) refuse(fmt::format("retention {}", i), "no role uses it; remove it or name it in a role");
    }
  }

  const Plan& plan_;
};

}  // namespace

void validate(const Plan& plan) {
  Validator(plan).run();
}

}  // namespace glimpse::plan
