#include <algorithm>
#include <set>

#include "glimpse/plan/checks.h"
#include "glimpse/plan/words.h"

namespace glimpse::plan {
namespace {

void check_budget(const std::string& where, const Budget& budget) {
  if (const std::string problem = budget_problem(budget); !problem.empty()) refuse(where, "budget: {}", problem);
}

// Each field of IndexOptions belongs to the sources that read it; elsewhere it keeps its default.
void check_index_fields(const std::string& where, const Term& term) {
  const IndexOptions& given = term.index;
  const IndexOptions usual;
  const bool pages = term.source == Source::page_bounds;
  const bool chunks = term.source == Source::chunk_tree;
  const bool tree = chunks && !given.chunk_bounds;
  const bool digests = pages || (chunks && given.chunk_bounds);
  const auto belongs = [&](std::string_view name, bool changed, bool here, std::string_view to) {
    if (changed && !here) refuse(where, "{} goes with {}, not {}; leave it out", name, to, word(term.source));
  };
  belongs("digest", given.digest != usual.digest, digests, "page-bounds and chunk_bounds");
  // NaN compares unequal to the default and ends here or in the range below.
  belongs("deviation_weight", given.deviation_weight != usual.deviation_weight,
          digests && given.digest == Digest::mean_deviation, "digest mean-deviation");
  belongs("fixed_chunks", given.fixed_chunks, chunks, "chunk-tree");
  belongs("chunk_bounds", given.chunk_bounds, chunks, "chunk-tree");
  belongs("max_pooling", given.max_pooling, tree, "chunk-tree without chunk_bounds");
  belongs("whole_clusters", given.whole_clusters, tree, "chunk-tree without chunk_bounds");
  belongs("chunks_per_cluster", given.chunks_per_cluster != usual.chunks_per_cluster, tree,
          "chunk-tree without chunk_bounds");
  const bool tokens = term.source == Source::token_clusters;
  belongs("tokens_per_cluster", given.tokens_per_cluster != usual.tokens_per_cluster, tokens, "token-clusters");
  belongs("new_tokens", given.new_tokens != usual.new_tokens, tokens, "token-clusters");
  const bool landmarks = term.source == Source::landmarks;
  belongs("outlier_chunks", given.outlier_chunks != usual.outlier_chunks, landmarks, "landmarks");
  belongs("key_rank", given.key_rank != usual.key_rank, landmarks, "landmarks");
  belongs("gates", !given.gates.empty(), term.source == Source::gate, "gate");
}

void check_index_ranges(const std::string& where, const Term& term, const ModelShape& shape) {
  const IndexOptions& index = term.index;
  if (!(index.deviation_weight >= 0 && index.deviation_weight <= kMaxDeviationWeight)) {
    refuse(where, "deviation_weight = {} is outside 0 to {}", index.deviation_weight, kMaxDeviationWeight);
  }
  in_range(where, "chunks_per_cluster", index.chunks_per_cluster, 1, 64);
  in_range(where, "tokens_per_cluster", index.tokens_per_cluster, 1, kMaxTile);
  in_range(where, "new_tokens", index.new_tokens, index.tokens_per_cluster, kMaxTokens);
  in_range(where, "outlier_chunks", index.outlier_chunks, 0, kMaxTokens);
  in_range(where, "key_rank", index.key_rank, 0, std::int64_t{shape.kv_heads} * shape.head_dim);
}

// A gate has one score for a block and group; which file its weights are in is for the user to say.
void check_gate(const std::string& where, const Selector& s, const Term& term) {
  const std::string& file = term.index.gates;
  if (file.empty()) refuse(where, "a gate needs its weights; give gates, the path of their GGUF file");
  if (file.size() > kMaxPathLength || file.find('\0') != std::string::npos) {
    refuse(where, "gates is no path: {} bytes; give at most {}, none of them 0", file.size(), kMaxPathLength);
  }
  if (s.per != SetPer::kv_head) refuse(where, "a gate scores for a KV head; give per kv-head, not {}", word(s.per));
  if (term.group != GroupPooling::none) {
    refuse(where, "a gate takes the group as one; give group pooling none, not {}", word(term.group));
  }
}

// One index a KV head, searched by its own queries: nothing else may choose beside it.
void check_index(const std::string& where, const Selector& s, const Term& term) {
  const std::string_view source = word(term.source);
  if (s.terms.size() != 1)
    refuse(where, "{} chooses alone; give the selector one term, not {}", source, s.terms.size());
  if (term.budget) refuse(where, "{} chooses alone; leave its own budget out", source);
  if (s.per == SetPer::layer) refuse(where, "{} belongs to a KV head; give per kv-head or query-head", source);
  const bool gate = term.source == Source::gate;
  if (needs_probabilities(s.budget.rule) && !(gate && s.budget.rule == BudgetRule::threshold)) {
    refuse(where, "{} knows no probabilities{}, so the budget is tokens or a share{}, not {}", source,
           gate ? " of tokens" : "", gate ? ", or tau= of a block's probability" : "", to_string(s.budget));
  }
  if (gate) check_gate(where, s, term);
  if (s.local_share > 0) {
    refuse(where, "local_share = {} with {}: give the local window in tokens (local)", s.local_share, source);
  }
  if (term.source == Source::chunk_tree && s.local <= kLeastChunk) {
    refuse(where,
           "local = {}: chunk-tree keeps so many new tokens in its buffer until the oldest {} or more leave as "
           "a chunk; give {} or more",
           s.local, kLeastChunk, kLeastChunk + 1);
  }
}

bool pooling_fits(Source source, GroupPooling group) {
  if (group == GroupPooling::none) return true;
  const bool of_probability = group == GroupPooling::mean_probability || group == GroupPooling::max_probability;
  switch (source) {
    case Source::heat:
      return false;  // heat belongs to no query
    case Source::probability:
      return of_probability || group == GroupPooling::mean_query;
    case Source::landmarks:
      return group != GroupPooling::mean_probability;
    default:
      return !of_probability;
  }
}

void check_block(const std::string& where, const Selector& s) {
  const bool power = s.block >= 1 && s.block <= 128 && (s.block & (s.block - 1)) == 0;
  const bool landmarks =
      std::any_of(s.terms.begin(), s.terms.end(), [](const Term& term) { return term.source == Source::landmarks; });
  if (!power || (s.block > 1 && s.block < 16 && !(landmarks && s.block == 8))) {
    refuse(where, "block = {}; give 1 (tokens), 16, 32, 64 or 128 (landmarks also take 8)", s.block);
  }
}

// Sink, local window and the current token must find room in the budget, in whole blocks.
void check_room(const std::string& where, const Selector& s) {
  if (needs_probabilities(s.budget.rule)) return;
  const std::int64_t needed = always_tokens(s);
  const bool tokens = s.budget.rule == BudgetRule::tokens;
  const std::int64_t least = tokens ? static_cast<std::int64_t>(s.budget.value) : s.budget.at_least;
  if (least >= needed) return;
  refuse(where,
         "a budget of {} does not always hold sink {}, local {} and the current token: {} tokens in blocks of {}; {}",
         to_string(s.budget), s.sink,
         s.local_share > 0      ? fmt::format("{} %", 100 * s.local_share)
         : s.local_rows.empty() ? fmt::to_string(s.local)
                                : "by the budget",
         needed, s.block,
         tokens ? "raise the budget or lower sink, local and block"
                : fmt::format("give a minimum with the share: ,min={}", needed));
}

// A table of tokens by budget: budgets ascend, and tokens leave something of each.
void check_rows(const std::string& where, const Selector& s, std::string_view name,
                const std::vector<BudgetRow>& rows) {
  if (rows.empty()) return;
  if (s.budget.rule != BudgetRule::ratio) {
    refuse(where, "{} go with a share of the context, not a budget of {}; leave them out", name, to_string(s.budget));
  }
  if (rows.size() > kMaxRows) refuse(where, "{} {} are over the limit of {}", rows.size(), name, kMaxRows);
  int last = 0;
  for (const BudgetRow& row : rows) {
    in_range(where, fmt::format("a budget in {}", name), row.budget, last + 1, kMaxTokens);
    in_range(where, fmt::format("tokens of {} in {}", row.budget, name), row.tokens, 1, row.budget - 1);
    last = row.budget;
  }
}

// What `local` and its companions mean together; before anything computes with them.
void check_window(const std::string& where, const Selector& s) {
  in_range(where, "sink", s.sink, 0, kMaxTokens);
  in_range(where, "local", s.local, 0, kMaxTokens);
  if (!(s.local_share >= 0 && s.local_share < 1)) {
    refuse(where, "local_share = {} is outside [0, 1); give a share of the budget such as 0.25", s.local_share);
  }
  if (s.local_share > 0 && s.local > 0) {
    refuse(where, "local = {} and local_share = {}; give one of the two", s.local, s.local_share);
  }
  if (s.terms.empty() && s.local_share > 0) {
    refuse(where, "local_share = {}: a stream's window is what its budget leaves; give 0", s.local_share);
  }
  check_rows(where, s, "local_rows", s.local_rows);
  if (!s.local_rows.empty()) {
    if (s.local > 0 || s.local_share > 0) refuse(where, "local_rows beside local or local_share; give one of them");
    if (s.terms.empty() || is_index(s.terms[0].source)) {
      refuse(where, "local_rows go with scores of all keys or heat; give the local window in tokens (local)");
    }
  }
  if (s.counts_local) return;
  const bool tail = s.terms.size() == 1 && is_index(s.terms[0].source) && s.terms[0].source != Source::page_bounds &&
                    s.terms[0].source != Source::gate;
  if (s.terms.empty() || s.local_share > 0 || (s.local == 0 && s.local_rows.empty() && !tail)) {
    refuse(where, "counts_local = false goes with a local window or an index that new tokens wait for");
  }
}

void check_stream_selector(const std::string& where, const Selector& s) {
  if (needs_probabilities(s.budget.rule)) {
    refuse(where, "without terms there are no scores, so the budget cannot be {}; give tokens or a share",
           to_string(s.budget));
  }
  if (s.block != 1) refuse(where, "block = {}: a stream reads tokens; give 1", s.block);
  if (s.per != SetPer::kv_head) refuse(where, "per = {}: a stream belongs to its KV head; give kv-head", word(s.per));
  if (s.budget.rule == BudgetRule::ratio && s.local != 0) {
    refuse(where, "local = {} beside a share of the context: the window is what the share leaves; give local 0",
           s.local);
  }
  if (s.budget.rule == BudgetRule::tokens &&
      s.sink + std::int64_t{s.local} != static_cast<std::int64_t>(s.budget.value)) {
    refuse(where, "a stream reads sink {} + local {}, but its budget is {}; make them equal", s.sink, s.local,
           to_string(s.budget));
  }
}

void check_source(const std::string& where, const Selector& s, const Term& term) {
  switch (term.source) {
    case Source::heat:
    case Source::page_bounds:
    case Source::gate:
      if (s.block < 16) refuse(where, "{} scores blocks; give block 16, 32, 64 or 128", word(term.source));
      break;
    case Source::landmarks:
      if (s.block < 8) refuse(where, "landmarks score chunks; give block 8 or more");
      break;
    case Source::chunk_tree:
    case Source::token_clusters:
      if (s.block != 1) refuse(where, "{} has units of its own; give block 1, not {}", word(term.source), s.block);
      break;
    default:
      break;
  }
  if (pooling_fits(term.source, term.group)) return;
  refuse(where, "group pooling {} does not go with source {}; give {}", word(term.group), word(term.source),
         term.source == Source::heat          ? "none"
         : term.source == Source::probability ? "mean-probability, max-probability or mean-query"
         : term.source == Source::landmarks   ? "max-probability, mean-query, mean-score or max-score"
                                              : "mean-query, mean-score or max-score");
}

void check_query_heads(const std::string& where, const Selector& s, const Term& term, int heads) {
  if (term.query_heads.empty()) return;
  if (s.per != SetPer::layer) refuse(where, "query_heads go with a set per layer only, not per {}", word(s.per));
  if (term.source == Source::heat) refuse(where, "heat belongs to no query head; leave query_heads empty");
  std::set<int> seen;
  for (const int head : term.query_heads) {
    in_range(where, "query head", head, 0, heads - 1);
    if (!seen.insert(head).second) refuse(where, "query head {} is named twice", head);
  }
}

void check_pooling(const std::string& where, const Selector& s, const Term& term) {
  const bool heat = term.source == Source::heat;
  const bool named = !term.query_heads.empty();
  const bool alone = term.group == GroupPooling::none;
  if (s.per != SetPer::layer && term.heads != HeadPooling::none) {
    refuse(where, "head pooling {} goes with a set per layer only, not per {}", word(term.heads), word(s.per));
  }
  if (s.per == SetPer::query_head && !alone) {
    refuse(where, "group pooling {} with a set per query head; give none", word(term.group));
  }
  if (heat && term.heads != HeadPooling::none) {
    refuse(where, "heat is already one score for all heads; give head pooling none");
  }
  if (s.per == SetPer::layer && !heat && term.heads == HeadPooling::none && !(named && alone)) {
    refuse(where, "a set per layer needs head pooling: mean, max or rank-merge");
  }
  const bool gate = term.source == Source::gate;
  if (alone && s.per != SetPer::query_head && !heat && !gate && !named && term.heads != HeadPooling::rank_merge) {
    refuse(where, "group pooling none goes with sets per query head; give one, such as mean-probability");
  }
}

void check_term(const std::string& where, const Selector& s, const Term& term, const ModelShape& shape) {
  if (term.budget) {
    check_budget(where, *term.budget);
    if (needs_probabilities(term.budget->rule)) {
      refuse(where, "a term's part is tokens or a share of the context, not {}", to_string(*term.budget));
    }
    if (term.budget->rule == s.budget.rule && term.budget->value > s.budget.value) {
      refuse(where, "its budget {} is over the selector's {}", to_string(*term.budget), to_string(s.budget));
    }
  }
  check_rows(where, s, "budget_rows", term.budget_rows);
  if (!term.budget_rows.empty() && !term.budget) {
    refuse(where, "budget_rows refine a term's own budget; give one, their most");
  }
  check_source(where, s, term);
  check_query_heads(where, s, term, shape.heads);
  if (is_index(term.source)) check_index(where, s, term);
  check_index_fields(where, term);
  check_index_ranges(where, term, shape);
  check_pooling(where, s, term);
}

void check_mass_rule(const std::string& where, const Selector& s) {
  const std::string rule = to_string(s.budget);
  if (s.terms.size() == 1 && s.terms[0].source == Source::gate) return;  // check_index knows which
  if (s.terms.size() != 1 || s.terms[0].budget) {
    refuse(where, "budget {} needs exactly one term, without a budget of its own", rule);
  }
  const Term& term = s.terms[0];
  if (term.source != Source::probability) {
    refuse(where, "budget {} needs softmax probabilities, but its term has source {}; give probability", rule,
           word(term.source));
  }
  const bool group_sums = term.group == GroupPooling::mean_probability || term.group == GroupPooling::none;
  const bool heads_sum = term.heads == HeadPooling::none || term.heads == HeadPooling::mean;
  if (!group_sums || !heads_sum || !term.query_heads.empty()) {
    refuse(where, "budget {} needs scores that sum to 1: mean-probability over the group, mean over heads", rule);
  }
}

}  // namespace

void validate_shape(const ModelShape& shape) {
  in_range("shape", "layers", shape.layers, 1, kMaxLayers);
  in_range("shape", "heads", shape.heads, 1, kMaxHeads);
  in_range("shape", "kv_heads", shape.kv_heads, 1, shape.heads);
  if (shape.heads % shape.kv_heads != 0) {
    refuse("shape", "heads = {} is no multiple of kv_heads = {}", shape.heads, shape.kv_heads);
  }
  in_range("shape", "head_dim", shape.head_dim, 1, kMaxHeadDim);
  in_range("shape", "context", shape.context, 0, kMaxTokens);
  if (shape.architecture.size() > kMaxNameLength || shape.model_name.size() > kMaxNameLength) {
    refuse("shape", "architecture and model_name have at most {} bytes", kMaxNameLength);
  }
}

void validate_selector(const Plan& plan, std::size_t index) {
  const std::string where = fmt::format("selector {}", index);
  const Selector& s = plan.selectors[index];
  check_budget(where, s.budget);
  check_window(where, s);
  check_block(where, s);
  check_room(where, s);
  if (s.terms.empty()) {
    check_stream_selector(where, s);
    return;
  }
  if (s.terms.size() > kMaxTerms) refuse(where, "{} terms are over the limit of {}", s.terms.size(), kMaxTerms);
  for (std::size_t t = 0; t < s.terms.size(); ++t) {
    check_term(fmt::format("selector {}, term {}", index, t), s, s.terms[t], plan.shape);
  }
  const auto open = std::count_if(s.terms.begin(), s.terms.end(), [](const Term& term) { return !term.budget; });
  if (open > 1) refuse(where, "{} terms without a budget of their own; only one can take all that is left", open);
  if (needs_probabilities(s.budget.rule)) check_mass_rule(where, s);
}

}  // namespace glimpse::plan
