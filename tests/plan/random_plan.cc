#include "random_plan.h"

#include <algorithm>
#include <random>

namespace glimpse::plan {
namespace {

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  Plan make() {
    ModelShape shape;
    shape.architecture = one_of<const char*>({"llama", "qwen2", "qwen3"});
    shape.model_name = one_of<const char*>({"", "a \"quoted\" name\n", "Löwe 8B", "Llama 3"});
    shape.kv_heads = one_of<int>({1, 2, 3, 8});
    shape.heads = shape.kv_heads * one_of<int>({1, 3, 4});
    shape.layers = below(9) + 1;
    shape.head_dim = 64;
    shape.context = below(200000);
    plan_ = dense_plan(shape);
    plan_.policy = "random";
    plan_.min_context = below(3) * 1000;
    plan_.feedback = Feedback::probabilities;
    for (int layer = 0; layer < shape.layers; ++layer) fill(layer);
    if (below(3) == 0) plan_.prefill = {.observe = Observe::last_rows, .observe_rows = below(64) + 1};
    if (any_select_ && takes_tiles() && below(2) == 0) {
      plan_.prefill.sparse = true;
      plan_.prefill.tile_rows = 128;
    }
    if (reads_heat(plan_)) plan_.heat = {unit(), below(2) == 0, below(shape.layers)};
    return plan_;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  double unit() { return std::max(1e-9, std::uniform_real_distribution<double>(0, 1)(random_)); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }

  bool takes_tiles() const {
    return std::all_of(plan_.selectors.begin(), plan_.selectors.end(), [](const Selector& s) {
      const bool counted = s.budget.rule == BudgetRule::tokens || s.budget.rule == BudgetRule::ratio;
      if (s.terms.empty()) return true;
      const Term& term = s.terms[0];
      const bool exact = term.source == Source::dot || term.source == Source::probability;
      const bool mean = (term.group == GroupPooling::mean_probability || term.group == GroupPooling::mean_query) &&
                        (term.heads == HeadPooling::none || term.heads == HeadPooling::mean);
      return s.terms.size() == 1 && s.per != SetPer::query_head && counted && exact && mean && !term.budget &&
             term.query_heads.empty();
    });
  }

  IndexOptions index(Source source) {
    IndexOptions options;
    if (source == Source::page_bounds) {
      options.digest = one_of({Digest::min_max, Digest::sphere, Digest::mean_deviation});
      if (options.digest == Digest::mean_deviation) options.deviation_weight = 10 * unit();
    } else if (source == Source::chunk_tree) {
      options.fixed_chunks = below(2) == 0;
      options.chunk_bounds = below(2) == 0;
      if (options.chunk_bounds) {
        options.digest = one_of({Digest::min_max, Digest::mean_deviation});
      } else {
        options.max_pooling = below(2) == 0;
        options.whole_clusters = below(2) == 0;
        options.chunks_per_cluster = below(8) + 1;
      }
    } else if (source == Source::token_clusters) {
      options.tokens_per_cluster = below(100) + 1;
      options.new_tokens = options.tokens_per_cluster * (below(5) + 1);
    } else if (source == Source::landmarks) {
      options.outlier_chunks = below(50);
      options.key_rank = below(65);
    } else if (source == Source::gate) {
      options.gates = one_of<const char*>({"gates.gguf", "a \"quoted\"/Löwe, 8B.gguf"});
    }
    return options;
  }

  Budget counted(int least) {
    if (below(2) == 0) return {BudgetRule::tokens, static_cast<double>(least + below(5000))};
    return {BudgetRule::ratio, unit(), std::max(least, 1)};
  }

  int add(Selector selector) {
    plan_.selectors.push_back(std::move(selector));
    return static_cast<int>(plan_.selectors.size()) - 1;
  }

  int selector(SetPer per) {
    Selector s;
    s.per = per;
    s.block = one_of<int>({1, 16, 64});
    s.sink = below(40);
    s.local = below(200);
    Term term;
    term.group = per == SetPer::query_head ? GroupPooling::none : GroupPooling::mean_probability;
    if (per == SetPer::layer) term.heads = HeadPooling::mean;
    if (below(3) == 0) {
      s.budget = {one_of({BudgetRule::mass, BudgetRule::threshold}), unit()};
      s.terms.push_back(term);
      return add(s);
    }
    const int least = s.sink + s.local + 3 * s.block;
    s.budget = counted(least);
    if (per == SetPer::layer) {
      term.source = Source::dot;
      term.group = GroupPooling::none;
      term.heads = below(2) == 0 ? HeadPooling::none : HeadPooling::rank_merge;
      if (term.heads == HeadPooling::none) term.query_heads = {0};
      if (below(2) == 0) term.budget = {BudgetRule::tokens, 1};
      if (s.budget.rule == BudgetRule::ratio) {
        if (term.budget && below(2) == 0) term.budget_rows = {{10 + below(9), 1 + below(9)}, {99, 9}};
        if (below(2) == 0) {
          s.local = 0;
          s.local_rows = {{256, 1 + below(64)}, {4096, 128}};
        }
      }
      s.terms.push_back(term);
      s.budget.at_least = std::max(s.budget.at_least, static_cast<int>(always_tokens(s)));
      if (s.budget.rule == BudgetRule::tokens) s.budget.at_least = 1;
      if (s.block > 1 && term.budget && (heat_block_ == 0 || heat_block_ == s.block)) {
        heat_block_ = s.block;
        s.terms.push_back({Source::heat, GroupPooling::none});
      }
    } else {
      term.source = s.block == 1 ? one_of({Source::dot, Source::chunk_tree, Source::token_clusters})
                                 : one_of({Source::page_bounds, Source::landmarks,
                                           per == SetPer::kv_head ? Source::gate : Source::dot, Source::dot});
      if (per == SetPer::kv_head) term.group = one_of({GroupPooling::mean_query, GroupPooling::max_score});
      if (term.source == Source::gate) term.group = GroupPooling::none;
      term.index = index(term.source);
      if (term.source == Source::chunk_tree && s.local < 9) {
        s.local += 9;
        s.budget.value += s.budget.rule == BudgetRule::tokens ? 9 : 0;
        s.budget.at_least += s.budget.rule == BudgetRule::ratio ? 9 : 0;
      }
      const bool waits = term.source != Source::page_bounds && term.source != Source::gate;
      if (waits && is_index(term.source)) s.counts_local = below(2) == 0;
      if (s.budget.rule == BudgetRule::tokens && s.counts_local && !is_index(term.source) && below(3) == 0) {
        s.local = 0;
        s.local_share = unit() / 2;
        s.terms.push_back(term);
        s.budget.value = std::max(s.budget.value, static_cast<double>(2 * s.sink + 6 * s.block));
        return add(s);
      }
      s.terms.push_back(term);
    }
    return add(s);
  }

  Role stream() {
    Selector s;
    s.sink = below(8);
    s.budget = counted(s.sink + 1);
    if (s.budget.rule == BudgetRule::tokens) s.local = static_cast<int>(s.budget.value) - s.sink;
    Role role{.kind = RoleKind::stream};
    if (below(2) == 0) {
      plan_.retentions.push_back({RetentionRule::window, s.sink, s.budget});
      plan_.retentions.back().compensates = below(2) == 0;
      role.retention = static_cast<int>(plan_.retentions.size()) - 1;
    }
    role.selector = add(s);
    return role;
  }

  Role dense() {
    Role role;
    if (below(3) > 0) return role;
    plan_.retentions.push_back({one_of(
        {RetentionRule::all, RetentionRule::accumulated, RetentionRule::stamps, RetentionRule::last_probability})});
    Retention& added = plan_.retentions.back();
    if (added.rule != RetentionRule::all) added.budget = counted(1);
    if (added.rule == RetentionRule::accumulated) added.recent_share = unit();
    role.retention = static_cast<int>(plan_.retentions.size()) - 1;
    return role;
  }

  Role select(int with) {
    any_select_ = true;
    Role role{.kind = RoleKind::select, .selector = with, .attends_set = below(2) == 0};
    const Selector& s = plan_.selectors[static_cast<std::size_t>(with)];
    const Source source = s.terms[0].source;
    if (role.attends_set && (source == Source::page_bounds || source == Source::landmarks) && below(2) == 0) {
      plan_.retentions.push_back({RetentionRule::host_tier, 0, s.budget});
      role.retention = static_cast<int>(plan_.retentions.size()) - 1;
    }
    return role;
  }

  void fill(int layer) {
    if (below(8) == 0) {  // all heads of the layer forget the same tokens
      const RetentionRule rule = one_of({RetentionRule::accumulated, RetentionRule::last_probability});
      plan_.retentions.push_back({.rule = rule, .budget = counted(1), .per = SetPer::layer});
      for (int head = 0; head < plan_.shape.kv_heads; ++head) {
        plan_.role(layer, head).retention = static_cast<int>(plan_.retentions.size()) - 1;
      }
      return;
    }
    if (below(4) == 0) {  // one set for the layer, alike in every head
      const Role role = select(selector(SetPer::layer));
      for (int head = 0; head < plan_.shape.kv_heads; ++head) plan_.role(layer, head) = role;
      slots_.push_back({layer, 0});
      return;
    }
    std::vector<SlotId> made;
    for (int head = 0; head < plan_.shape.kv_heads; ++head) {
      Role& role = plan_.role(layer, head);
      const int kind = below(4);
      if (kind == 0) {
        role = dense();
      } else if (kind == 1) {
        role = stream();
      } else if (kind == 2 && !slots_.empty()) {
        role.kind = RoleKind::reuse;
        role.reads = slots_[static_cast<std::size_t>(below(static_cast<int>(slots_.size())))];
      } else {
        const int with = selector(below(2) == 0 ? SetPer::kv_head : SetPer::query_head);
        role = select(with);
        made.push_back({layer, head});
      }
    }
    if (!made.empty() && below(2) == 0) {
      plan_.combine[static_cast<std::size_t>(layer)] = Combine::union_sets;
    }
    slots_.insert(slots_.end(), made.begin(), made.end());
  }

  std::mt19937_64 random_;
  Plan plan_;
  std::vector<SlotId> slots_;
  bool any_select_ = false;
  int heat_block_ = 0;  ///< of all heat selectors
};

}  // namespace

Plan random_plan(std::uint64_t seed) {
  return Generator(seed).make();
}

}  // namespace glimpse::plan
