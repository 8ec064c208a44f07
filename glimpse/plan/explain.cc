#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "glimpse/base/printable.h"
#include "glimpse/plan/budget_text.h"
#include "glimpse/plan/checks.h"
#include "glimpse/plan/words.h"

namespace glimpse::plan {
namespace {

constexpr std::array<std::int64_t, 4> kContexts{1024, 8192, 32768, 131072};
constexpr int kWidestRow = 32;  // letters of a layer that are printed one by one

char letter(const Role& role) {
  switch (role.kind) {
    case RoleKind::dense:
      return 'D';
    case RoleKind::select:
      return role.attends_set ? 's' : 'S';
    case RoleKind::reuse:
      return 'R';
    case RoleKind::stream:
      return 'W';
  }
  return '?';
}

const Selector& selector_of(const Plan& plan, const Role& role) {
  return plan.selectors[static_cast<std::size_t>(role.selector)];
}

std::string letters(const Plan& plan, int layer) {
  std::string text;
  for (int head = 0; head < plan.shape.kv_heads; ++head) text += letter(plan.role(layer, head));
  const bool alike = text.find_first_not_of(text[0]) == std::string::npos;
  if (plan.shape.kv_heads > kWidestRow && alike) return fmt::format("{} x {}", text[0], text.size());
  return text;
}

std::string stream_words(const Selector& s) {
  if (s.budget.rule == BudgetRule::tokens) return fmt::format("first {} and last {} tokens", s.sink, s.local);
  return fmt::format("first {} tokens and a window, {} of the context together", s.sink, to_string(s.budget));
}

// What heads of one letter read; heads of a reuse layer share the text when all read their own index.
std::string reads_words(const Plan& plan, int layer, const std::vector<int>& heads) {
  const Role& first = plan.role(layer, heads[0]);
  if (first.kind == RoleKind::dense) return "everything";
  if (first.kind == RoleKind::stream) return stream_words(selector_of(plan, first));
  if (first.kind == RoleKind::select) {
    std::vector<int> selectors;
    for (const int head : heads) selectors.push_back(plan.role(layer, head).selector);
    const bool same = std::equal(selectors.begin() + 1, selectors.end(), selectors.begin());
    return fmt::format("{}; publishes by selector{} {}", first.attends_set ? "own set" : "everything", same ? "" : "s",
                       fmt::join(selectors.begin(), same ? selectors.begin() + 1 : selectors.end(), ","));
  }
  const int source = first.reads.layer;
  const bool one_layer =
      std::all_of(heads.begin(), heads.end(), [&](int head) { return plan.role(layer, head).reads.layer == source; });
  const bool own =
      std::all_of(heads.begin(), heads.end(), [&](int head) { return plan.role(layer, head).reads.head == head; });
  if (one_layer && selector_of(plan, plan.role(source, first.reads.head)).per == SetPer::layer) {
    return fmt::format("the set of layer {}", source);
  }
  if (one_layer && own) return fmt::format("the sets of layer {}, same head", source);
  std::vector<std::string> slots;
  for (const int head : heads) {
    const SlotId slot = plan.role(layer, head).reads;
    slots.push_back(one_layer ? fmt::format("{}", slot.head) : fmt::format("{}:{}", slot.layer, slot.head));
  }
  if (one_layer) return fmt::format("the sets of layer {}, heads {}", source, fmt::join(slots, ","));
  return fmt::format("the sets of layer:head {}", fmt::join(slots, ","));
}

std::string layer_words(const Plan& plan, int layer) {
  std::vector<std::pair<char, std::vector<int>>> groups;
  for (int head = 0; head < plan.shape.kv_heads; ++head) {
    const char kind = letter(plan.role(layer, head));
    const auto it = std::find_if(groups.begin(), groups.end(), [kind](const auto& g) { return g.first == kind; });
    if (it == groups.end()) {
      groups.push_back({kind, {head}});
    } else {
      it->second.push_back(head);
    }
  }
  std::vector<std::string> parts;
  for (const auto& [kind, heads] : groups) {
    const std::string reads = reads_words(plan, layer, heads);
    parts.push_back(groups.size() == 1 ? reads : fmt::format("{} {}", kind, reads));
  }
  std::string text = fmt::format("{}", fmt::join(parts, " | "));
  const Combine combine = plan.combine[static_cast<std::size_t>(layer)];
  if (combine != Combine::none) text += fmt::format(" (combined by {})", word(combine));
  return text;
}

// What the index options say beyond the defaults, each with the source it belongs to.
std::string index_words(const Term& term) {
  const IndexOptions& index = term.index;
  std::vector<std::string> words;
  if (term.source == Source::page_bounds || index.chunk_bounds) {
    words.push_back(fmt::format("digest {}", word(index.digest)));
    if (index.digest == Digest::mean_deviation) words.push_back(fmt::format("weight {}", index.deviation_weight));
  }
  if (index.fixed_chunks) words.push_back("chunks of 16 tokens");
  if (index.chunk_bounds) words.push_back("every chunk scored");
  if (index.max_pooling) words.push_back("chunks by the max of their keys");
  if (index.whole_clusters) words.push_back("last cluster whole");
  if (term.source == Source::chunk_tree && !index.chunk_bounds) {
    words.push_back(fmt::format("{} chunks a cluster", index.chunks_per_cluster));
  }
  if (term.source == Source::token_clusters) {
    words.push_back(fmt::format("{} tokens a cluster, {} new ones wait", index.tokens_per_cluster, index.new_tokens));
  }
  if (index.outlier_chunks > 0) words.push_back(fmt::format("{} outlier chunks", index.outlier_chunks));
  if (index.key_rank > 0) words.push_back(fmt::format("keys of rank {}", index.key_rank));
  if (!index.gates.empty()) words.push_back(fmt::format("weights of '{}'", index.gates));
  return words.empty() ? "" : fmt::format(" ({})", fmt::join(words, ", "));
}

// "64 of 256, 64 of 512, 128 of 1024"
std::string rows_words(const std::vector<BudgetRow>& rows) {
  std::vector<std::string> words;
  for (const BudgetRow& row : rows) words.push_back(fmt::format("{} of {}", row.tokens, row.budget));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string selector_words(const Selector& s) {
  if (s.terms.empty()) return stream_words(s);
  std::string text = fmt::format("budget {}, a set per {}, by {}", to_string(s.budget), word(s.per),
                                 s.block == 1 ? "token" : fmt::format("blocks of {}", s.block));
  if (s.sink > 0) text += fmt::format(", sink {}", s.sink);
  if (s.local > 0) text += fmt::format(", local {}", s.local);
  if (!s.local_rows.empty()) text += fmt::format(", local {}", rows_words(s.local_rows));
  if (s.local_share > 0) text += fmt::format(", local {:g} % of the budget", 100 * s.local_share);
  if (!s.counts_local) text += ", new tokens beside the budget";
  for (const Term& term : s.terms) {
    text += fmt::format("; {}{}", word(term.source), index_words(term));
    if (term.group != GroupPooling::none) text += fmt::format(", {} over the group", word(term.group));
    if (term.heads != HeadPooling::none) text += fmt::format(", {} over the heads", word(term.heads));
    if (!term.query_heads.empty()) text += fmt::format(", query heads {}", fmt::join(term.query_heads, ","));
    if (!term.budget_rows.empty()) {
      text += fmt::format(", at most {}", rows_words(term.budget_rows));
    } else if (term.budget) {
      text += fmt::format(", at most {}", to_string(*term.budget));
    }
  }
  return text;
}

// Rows of a set at a context; `exact` turns false where scores decide and this is the upper bound.
double set_rows(const Plan& plan, const Selector& s, std::int64_t tokens, bool& exact) {
  std::int64_t rows = budget_tokens(s.budget, tokens);
  if (needs_probabilities(s.budget.rule)) exact = false;
  if (s.per == SetPer::query_head && plan.shape.group() > 1 && rows < tokens) {
    rows = std::min(tokens, rows * plan.shape.group());  // the KV head reads the union of its query heads' sets
    exact = false;
  }
  if (!s.counts_local && rows < tokens) {
    const Term& term = s.terms[0];
    rows +=
        (s.local_rows.empty() ? s.local : window_tokens(s, tokens)) + std::int64_t{term.index.outlier_chunks} * s.block;
    if (term.source == Source::token_clusters) rows += term.index.new_tokens;
    rows = std::min(tokens, rows);
    exact = false;
  }
  return static_cast<double>(rows);
}

// Rows that scoring reads beside attending: keys, or the rows of an index (of chunks of at least 8 tokens, the most).
double score_rows(const Selector& s, std::int64_t tokens, bool& exact) {
  double rows = 0;
  const double n = static_cast<double>(tokens);
  for (const Term& term : s.terms) {
    double part = 0;
    if (term.source == Source::dot || term.source == Source::probability) part = n;
    if (term.source == Source::page_bounds) part = 2 * n / s.block;
    if (term.source == Source::landmarks || term.source == Source::gate) part = n / s.block;
    if (term.source == Source::token_clusters) part = n / term.index.tokens_per_cluster;
    if (term.source == Source::chunk_tree) {
      part = term.index.chunk_bounds ? 2 * n / 8 : 64 + n / 8 / term.index.chunks_per_cluster;
      exact = false;
    }
    rows = std::max(rows, part);
  }
  return rows;
}

double role_rows(const Plan& plan, const Role& role, std::int64_t tokens, bool& exact) {
  const double all = 2.0 * static_cast<double>(tokens);
  switch (role.kind) {
    case RoleKind::dense: {
      if (role.retention < 0) return all;
      const Retention& kept = plan.retentions[static_cast<std::size_t>(role.retention)];
      return forgets(kept.rule) ? 2.0 * static_cast<double>(budget_tokens(kept.budget, tokens)) : all;
    }
    case RoleKind::select: {
      const Selector& s = selector_of(plan, role);
      if (!role.attends_set) return all;
      const double chosen = set_rows(plan, s, tokens, exact);
      return chosen >= static_cast<double>(tokens) ? all : score_rows(s, tokens, exact) + 2.0 * chosen;
    }
    case RoleKind::stream:
      return 2.0 * set_rows(plan, selector_of(plan, role), tokens, exact);
    case RoleKind::reuse:
      return 2.0 * set_rows(plan, selector_of(plan, plan.role(role.reads.layer, role.reads.head)), tokens, exact);
  }
  return all;
}

std::string share_words(const Plan& plan, std::int64_t tokens) {
  bool exact = true;
  double rows = 0;
  const double all = 2.0 * static_cast<double>(tokens) * static_cast<double>(plan.roles.size());
  if (is_dense_at(plan, tokens)) {
    rows = all;
  } else {
    for (const Role& role : plan.roles) rows += role_rows(plan, role, tokens, exact);
  }
  return fmt::format("{}K {}{:.1f} %", tokens / 1024, exact ? "" : "<= ", 100.0 * rows / all);
}

// F computes what it attends to, S shares what an earlier layer published (the letters of IndexCache).
std::string layer_string(const Plan& plan) {
  std::string text;
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    bool selects = false;
    bool reuses = false;
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      const RoleKind kind = plan.role(layer, head).kind;
      selects = selects || kind == RoleKind::select;
      reuses = reuses || kind == RoleKind::reuse;
    }
    text += reuses && !selects ? 'S' : 'F';
  }
  return text;
}

std::string counted_words(const Budget& budget) {
  return to_string(budget) + (budget.rule == BudgetRule::tokens ? " tokens" : "");
}

std::string budget_words(const Plan& plan) {
  std::vector<Budget> budgets;
  for (const Selector& s : plan.selectors) budgets.push_back(s.budget);
  for (const Retention& r : plan.retentions) {
    if (forgets(r.rule)) budgets.push_back(r.budget);
  }
  return budgets.empty() ? "none, reads everything" : budgets_text(std::move(budgets), " and ", counted_words);
}

std::string retention_words(const Retention& r) {
  const std::string kept = counted_words(r.budget);
  switch (r.rule) {
    case RetentionRule::all:
      return "keeps everything";
    case RetentionRule::host_tier:
      return fmt::format("host-tier: {} resident, the rest fetched from host memory when chosen", kept);
    case RetentionRule::stamps:
      return fmt::format("stamps: keeps the prompt and {} of the generated ones; the rest is forgotten", kept);
    default:
      break;
  }
  std::string text = fmt::format("{}: keeps {}", word(r.rule), kept);
  if (r.sink > 0) text += fmt::format(", the first {} among them", r.sink);
  if (r.rule == RetentionRule::accumulated) text += fmt::format(", the last {:g} % of them", 100 * r.recent_share);
  if (r.per == SetPer::layer) text += ", the same for all heads of the layer";
  return text + (r.compensates ? "; one mean token stands for the rest" : "; the rest is forgotten");
}

}  // namespace

std::string explain(const Plan& plan) {
  validate(plan);
  const ModelShape& shape = plan.shape;
  const std::string name = shape.model_name.empty() ? "" : fmt::format(" ({})", printable(shape.model_name));
  std::string text = fmt::format("policy   {}\nbudget   {}\n", printable(plan.policy), budget_words(plan));
  text += fmt::format("model    {}{}: {} layers, {} query heads, {} KV heads (group {}), head dim {}, context {}\n",
                      printable(shape.architecture), name, shape.layers, shape.heads, shape.kv_heads, shape.group(),
                      shape.head_dim, shape.context);
  if (plan.min_context > 0) text += fmt::format("dense    below {} tokens\n", plan.min_context);
  text += "prefill  ";
  text += plan.prefill.sparse ? fmt::format("sparse, tiles of {} query rows", plan.prefill.tile_rows) : "dense";
  if (plan.prefill.observe == Observe::last_rows)
    text += fmt::format(", last {} rows observed", plan.prefill.observe_rows);
  if (plan.prefill.observe == Observe::all) text += ", observed";
  text += "\n\n";

  const auto width = static_cast<int>(std::max<std::size_t>(5, letters(plan, 0).size()));
  text += fmt::format("{:>5}  {:<{}}  reads\n", "layer", "heads", width);
  for (int layer = 0; layer < shape.layers; ++layer) {
    text += fmt::format("{:>5}  {:<{}}  {}\n", layer, letters(plan, layer), width, layer_words(plan, layer));
  }
  text +=
      "\nD dense, S selects and reads everything, s selects and reads its own set, R reuses a set, W sink and window\n";
  for (std::size_t i = 0; i < plan.selectors.size(); ++i) {
    text += fmt::format("selector {}: {}\n", i, selector_words(plan.selectors[i]));
  }
  for (std::size_t i = 0; i < plan.retentions.size(); ++i) {
    text += fmt::format("retention {}: {}\n", i, retention_words(plan.retentions[i]));
  }
  if (plan.feedback == Feedback::probabilities) text += "feedback: probabilities of what was read\n";
  if (reads_heat(plan)) {
    text += fmt::format("heat: decays by {} a step, one vector for {}, fed from layer {} on\n", plan.heat.decay,
                        plan.heat.per_layer ? "each layer" : "the model", plan.heat.first_layer);
  }
  std::vector<std::string> shares;
  for (const std::int64_t tokens : kContexts) shares.push_back(share_words(plan, tokens));
  // What the prompt is beside the generated tokens nobody knows here, and all of it is read.
  const bool stamps = std::any_of(plan.retentions.begin(), plan.retentions.end(),
                                  [](const Retention& r) { return r.rule == RetentionRule::stamps; });
  text += fmt::format("cache rows read per decode step, of dense{}: {}\n",
                      stamps ? ", of the generated tokens (the prompt is read whole)" : "", fmt::join(shares, ", "));
  text += fmt::format("layers:  {}  (F computes, S shares)\n", layer_string(plan));
  return text;
}

}  // namespace glimpse::plan
