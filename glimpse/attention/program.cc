#include "glimpse/attention/program.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>

#include "glimpse/attention/choose.h"
#include "glimpse/attention/sequence_state.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::attention {
namespace {

using plan::RoleKind;
using plan::SetPer;

SelectOp::From where_from(const plan::Role& role, const plan::Selector& selector) {
  if (plan::is_index(selector.terms.front().source)) return SelectOp::From::index;
  return role.attends_set ? SelectOp::From::scores : SelectOp::From::attention;
}

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

std::int64_t SelectOp::capacity(std::int64_t tokens) const {
  if (!selector->counts_local) return tokens;  // what lies beside the budget has no bound of its own
  const std::int64_t budget = plan::budget_tokens(selector->budget, tokens);
  return std::min(tokens, std::max(budget, plan::always_tokens(*selector)));
}

bool SelectOp::merges_ranks() const {
  return selector->terms.front().heads == plan::HeadPooling::rank_merge;
}

bool SelectOp::is_united() const {
  return from != From::index && of_layer() && (is_union(*selector) || joins.layer >= 0 || merges_ranks());
}

int SelectOp::scored_heads() const {
  return static_cast<int>(std::count_if(queries.begin(), queries.end(), [](int count) { return count > 0; }));
}

kernels::Read HeadOp::window_at(std::int64_t tokens) const {
  kernels::Read of = read;
  const std::int64_t local = plan::window_tokens(*window, tokens);
  if (window->sink + local >= tokens) return of;
  of.kind = kernels::Read::Kind::window;
  of.sink = window->sink;
  of.local = static_cast<std::int32_t>(local);
  return of;
}

Program::Program(plan::Plan plan) : number_(next_number()), plan_(std::move(plan)) {
  require_supported(plan_);
  dense_limits_ = plan::limits_of_dense(plan_);
  const int group = plan_.shape.group();
  tile_tokens_ = plan_.prefill.sparse ? plan_.prefill.tile_tokens(group) : 0;
  reads_landmarks_ = attention::reads_landmarks(plan_);
  reads_heat_ = std::any_of(plan_.roles.begin(), plan_.roles.end(), [&](const plan::Role& role) {
    return role.kind == RoleKind::select && plan::reads_heat(plan_.selectors[static_cast<std::size_t>(role.selector)]);
  });
  layers_.resize(static_cast<std::size_t>(plan_.shape.layers));
  int sets = 0;
  for (int layer = 0; layer < plan_.shape.layers; ++layer) {
    add_layer(layer);
    for (SelectOp& select : layers_[static_cast<std::size_t>(layer)].selects) {
      select.first_set = sets;
      if (select.is_united() && select.selector->terms.front().source != plan::Source::heat)
        select.parts = std::accumulate(select.queries.begin(), select.queries.end(), 0);
      sets += select.lists + select.parts;
    }
    for (HeadOp& op : layers_[static_cast<std::size_t>(layer)].heads) {
      if (op.reads != HeadOp::Reads::set) continue;
      const SelectOp& makes = select(op.set.layer, op.set.head);
      op.read.kind = kernels::Read::Kind::sets;
      op.read.set = makes.first_set;
      op.read.per_query = makes.lists > 1 ? 1 : 0;
      op.read.settled = op.set.layer < layer ? 1 : 0;
    }
  }
}

int set_count(const Program& program) {
  for (int layer = program.shape().layers - 1; layer >= 0; --layer) {
    const std::vector<SelectOp>& selects = program.layer(layer).selects;
    if (!selects.empty()) return selects.back().first_set + selects.back().lists + selects.back().parts;
  }
  return 0;
}

std::int64_t set_capacity(const Program& program, std::int64_t tokens) {
  std::int64_t capacity = 0;
  const plan::Selector* last = nullptr;  // that many heads have
  for (int layer = 0; layer < program.shape().layers; ++layer) {
    for (const SelectOp& select : program.layer(layer).selects) {
      if (select.selector == last) continue;
      last = select.selector;
      // What an index lacks of the text is in its sets, whatever the budget.
      capacity = std::max(capacity, select.from == SelectOp::From::index ? tokens : select.capacity(tokens));
    }
  }
  return capacity;
}

void Program::add_layer(int layer) {
  LayerProgram& to = layers_[static_cast<std::size_t>(layer)];
  const int kv_heads = plan_.shape.kv_heads;
  const int group = plan_.shape.group();
  to.heads.resize(static_cast<std::size_t>(kv_heads));
  to.heats = reads_heat_ && layer >= plan_.heat.first_layer;
  to.tiles_follow = tile_tokens_ <= kernels::prefill_tile_rows(group);  // else a tile is several items
  for (int head = 0; head < kv_heads; ++head) {
    const plan::Role& role = plan_.role(layer, head);
    HeadOp& op = to.heads[static_cast<std::size_t>(head)];
    op.role = role.kind;
    if (role.retention >= 0) op.kept = &plan_.retentions[static_cast<std::size_t>(role.retention)];
    const plan::Selector* how = role.selector < 0 ? nullptr : &plan_.selectors[static_cast<std::size_t>(role.selector)];
    if (role.kind == RoleKind::stream) {
      op.reads = HeadOp::Reads::window;
      op.window = how;
      op.budget = &how->budget;
    } else if (role.kind == RoleKind::reuse) {
      op.reads = HeadOp::Reads::set;
      op.set = role.reads;
      const plan::Role& source = plan_.role(role.reads.layer, role.reads.head);
      op.budget = &plan_.selectors[static_cast<std::size_t>(source.selector)].budget;
    }
    if (role.kind != RoleKind::select) continue;
    const bool together = how->per == SetPer::layer;
    const plan::SlotId slot{layer, together ? 0 : head};
    const auto found = std::find_if(to.selects.begin(), to.selects.end(),
                                    [&](const SelectOp& select) { return select.writes == slot; });
    op.select = static_cast<int>(found - to.selects.begin());
    op.budget = &how->budget;
    const plan::Term& first = how->terms.front();
    if (role.attends_set) {
      op.reads = HeadOp::Reads::set;
      op.set = slot;
      op.key_rank = first.index.key_rank;
    }
    if (role.attends_set || pools_queries(first)) to.tiles_follow = false;
    if (found == to.selects.end()) {
      SelectOp select;
      select.from = where_from(role, *how);
      select.first_head = head;
      select.heads = 0;
      select.selector = how;
      select.writes = slot;
      select.joins = role.reads;
      select.has_tier = op.has_tier();
      select.lists = how->per == SetPer::query_head ? group : 1;
      // Scores before the softmax have no log-sum-exps unless attention left them.
      select.weighs = first.source == plan::Source::probability || select.from == SelectOp::From::attention;
      to.selects_first |= select.from != SelectOp::From::attention;
      to.selects.push_back(std::move(select));
    }
    SelectOp& select = to.selects[static_cast<std::size_t>(op.select)];
    ++select.heads;
    select.queries.push_back(scoring_queries(first, head, group));
  }
}

std::int64_t Program::observe_from(std::int64_t prompt_end) const {
  switch (plan_.prefill.observe) {
    case plan::Observe::all:
      return 0;
    case plan::Observe::last_rows:
      return prompt_end - plan_.prefill.observe_rows;
    default:
      return std::numeric_limits<std::int64_t>::max();
  }
}

}  // namespace glimpse::attention
