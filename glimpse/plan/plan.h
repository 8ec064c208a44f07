// The vocabulary of sparse attention: what each (layer, KV head) does in a decode step, as plain data. A policy
// makes a Plan, `attention` runs it, nothing else passes between them. Value types; any thread may read.
// The words are those of the five papers and their baselines (docs/methods.md has one entry for each).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace glimpse::plan {

/// What a policy may know of a model.
struct ModelShape {
  std::string architecture;  ///< "llama", "qwen2", "qwen3"
  std::string model_name;    ///< general.name of the file; picks a paper's layers where it names the model
  int layers = 0;
  int heads = 0;                                  ///< query heads, H
  int kv_heads = 0;                               ///< G
  int head_dim = 0;                               ///< d
  int context = 0;                                ///< the longest sequence the model was made for
  int group() const { return heads / kv_heads; }  ///< g, query heads per KV head
  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

/// How many tokens a set may hold.
enum class BudgetRule : std::uint8_t {
  tokens,     ///< value = k
  ratio,      ///< value = share of N kept; floor(value * N), at least 1
  mass,       ///< top-p: smallest set whose probability sums to value
  threshold,  ///< every token of probability >= value
};
struct Budget {
  BudgetRule rule = BudgetRule::tokens;
  double value = 1024;
  int at_least = 1;  ///< ratio only: never fewer tokens than this (Kascade: 128)
  friend bool operator==(const Budget&, const Budget&) = default;
};

/// Where a selector's scores come from.
enum class Source : std::uint8_t {
  dot,             ///< q.k before softmax, over all keys
  probability,     ///< softmax probability, over all keys
  heat,            ///< EvoSparse: decayed accumulation of probabilities
  page_bounds,     ///< Quest, ArkVale: elementwise min and max of a page's keys
  chunk_tree,      ///< LycheeCluster: three levels of chunk representatives
  token_clusters,  ///< ClusterKV: k-means over keys
  landmarks,       ///< ShadowKV: mean key of a chunk
  gate,            ///< SeerAttention: a trained gate scores blocks, once for the group
};

/// How the g query heads of a group become one score. The mean_/max_probability pair goes with Source::probability,
/// the score pair with every other; max_probability also with landmarks: each query head's softmax over the landmarks
/// that it may choose from. none: each query head for itself (a gate takes the group as one).
enum class GroupPooling : std::uint8_t { none, mean_query, mean_score, max_score, mean_probability, max_probability };

/// How the KV heads of a layer become one set.
enum class HeadPooling : std::uint8_t { none, mean, max, rank_merge };

/// For whom a set is made. A set per layer is made by all heads of the layer together and published once, in the slot
/// of head 0; a slot of sets per query head holds one for each query head of the group.
enum class SetPer : std::uint8_t { query_head, kv_head, layer };

/// How a page's keys are digested (Source::page_bounds).
enum class Digest : std::uint8_t {
  min_max,         ///< Quest, ArkVale's cuboid: sum over dimensions of max(q min, q max)
  sphere,          ///< ArkVale: q.centre + |q| radius
  mean_deviation,  ///< q.mean + weight * sqrt(sum of q^2 variance)
};

/// How an index over keys is made and searched; each field belongs to the sources named.
struct IndexOptions {
  Digest digest = Digest::min_max;  ///< page_bounds; chunk_tree with `chunk_bounds`
  double deviation_weight = 1;      ///< page_bounds with mean_deviation
  bool fixed_chunks = false;        ///< chunk_tree: 16 tokens each instead of text boundaries
  bool max_pooling = false;         ///< chunk_tree: a chunk's representative is the max of its keys, not their mean
  bool whole_clusters = false;      ///< chunk_tree: the last cluster is taken whole
  bool chunk_bounds = false;        ///< chunk_tree: no tree, every chunk by its own digest
  int chunks_per_cluster = 2;       ///< chunk_tree
  int tokens_per_cluster = 80;      ///< token_clusters
  int new_tokens = 320;             ///< token_clusters: so many make `new_tokens / tokens_per_cluster` clusters more
  int outlier_chunks = 0;           ///< landmarks: chunks farthest from their landmark, always read
  int key_rank = 0;   ///< landmarks: prompt keys are read from so many singular vectors; 0: from the cache
  std::string gates;  ///< gate: the GGUF file of its weights, as a path of whoever runs the plan
  friend bool operator==(const IndexOptions&, const IndexOptions&) = default;
};

/// A row of a table of tokens by budget: between rows in proportion, below the first in proportion to the budget, above
/// the last as the last.
struct BudgetRow {
  int budget = 0;
  int tokens = 0;
  friend bool operator==(const BudgetRow&, const BudgetRow&) = default;
};

struct Term {
  Source source = Source::probability;
  GroupPooling group = GroupPooling::mean_probability;
  HeadPooling heads = HeadPooling::none;  ///< other than none only with SetPer::layer
  std::optional<Budget> budget;           ///< this term's share; none: all that is left
  std::vector<BudgetRow> budget_rows;     ///< of a share of the context: at most so many tokens (EvoSparse); see
                                          ///< term_tokens
  std::vector<int> query_heads;           ///< only these score (EvoSparse's retrieval heads); empty: all
  IndexOptions index;                     ///< the sources that keep an index over keys
  friend bool operator==(const Term&, const Term&) = default;
};

/// A set = sink, local window, current token, and what the terms choose from the rest; all inside the budget. Terms
/// choose in their order, each from what is not in the set yet; a unit that sink or local holds costs a term nothing.
struct Selector {
  std::vector<Term> terms;
  Budget budget;
  SetPer per = SetPer::kv_head;
  int block = 1;  ///< granularity: 1 = tokens, else blocks of that many tokens aligned at position 0
  int sink = 0;   ///< first tokens always in the set
  int local = 0;  ///< last tokens always in the set, the current one among them; see window_tokens for a stream.
                  ///< chunk_tree: its buffer of new tokens, at most half the budget
  std::vector<BudgetRow> local_rows;  ///< instead of `local`, of a share of the context: the window by the tokens that
                                      ///< the share comes to (EvoSparse)
  double local_share = 0;             ///< instead of `local`: this share of the budget, rounded up, the sink inside it
                                      ///< (LessIsMore)
  bool counts_local = true;  ///< false: the local window, tokens that no index holds yet, and outlier chunks are beside
                             ///< the budget
  friend bool operator==(const Selector&, const Selector&) = default;
};

enum class RoleKind : std::uint8_t { dense, select, reuse, stream };

/// The slot that a set is published in: the (layer, KV head) that selected it.
struct SlotId {
  int layer = -1;
  int head = -1;
  friend bool operator==(const SlotId&, const SlotId&) = default;
  friend bool operator<(const SlotId& a, const SlotId& b) {
    return a.layer != b.layer ? a.layer < b.layer : a.head < b.head;
  }
};

struct Role {
  RoleKind kind = RoleKind::dense;
  int selector = -1;         ///< select and stream: index into Plan::selectors (stream: sink and local, no terms)
  bool attends_set = false;  ///< select: attend to the own set (true) or to everything (false)
  SlotId reads;              ///< reuse: the slot whose set is read; the head map is written out here.
                             ///< select under Combine::union_sets: what the slot's dot and probability terms chose
                             ///< joins the own set, inside the budget and before the own terms
  int retention = -1;        ///< index into Plan::retentions; -1 keeps everything
  friend bool operator==(const Role&, const Role&) = default;
};

/// How the sets of a layer are combined before any of its heads attends.
enum class Combine : std::uint8_t { none, union_sets };

/// What a head forgets for good. Its pages are freed.
enum class RetentionRule : std::uint8_t {
  all,
  window,            ///< StreamingLLM: sink and the last tokens
  accumulated,       ///< H2O: the last tokens and those of the largest accumulated probability
  last_probability,  ///< TOVA: the token of least probability in the last step goes
  stamps,            ///< RaaS: of the generated tokens those stamped last; the prompt stays
  host_tier,         ///< ArkVale, ShadowKV: nothing; cold pages wait in host memory
};
struct Retention {
  RetentionRule rule = RetentionRule::all;
  int sink = 0;   ///< window: first tokens kept
  Budget budget;  ///< tokens kept, the sink among them (stamps: generated tokens; host_tier: resident tokens)
  double recent_share = 0.5;     ///< accumulated: share of the budget that the last tokens take
  SetPer per = SetPer::kv_head;  ///< accumulated, last_probability: whose probabilities decide together (no query_head)
  bool compensates = false;      ///< window: one mean token stands for the dropped ones (RazorAttention)
  friend bool operator==(const Retention&, const Retention&) = default;
};

/// What the policy must see of the prompt's attention.
enum class Observe : std::uint8_t { none, last_rows, all };
struct Prefill {
  bool sparse = false;
  int tile_rows = 0;  ///< sparse: query rows of a tile, the group counted in (Kascade: 128)
  Observe observe = Observe::none;
  int observe_rows = 0;  ///< Observe::last_rows: w
  int tile_tokens(int group) const { return tile_rows / group > 0 ? tile_rows / group : 1; }
  /// How many of a prompt's `tokens` a dense prefill may run: all before those that are observed; 0 where it is sparse.
  std::int64_t dense_tokens(std::int64_t tokens) const {
    const std::int64_t observed = observe == Observe::all ? tokens : observe == Observe::last_rows ? observe_rows : 0;
    return sparse || observed > tokens ? 0 : tokens - observed;
  }
  friend bool operator==(const Prefill&, const Prefill&) = default;
};

/// What flows back into the state after attending.
enum class Feedback : std::uint8_t { none, probabilities };

/// EvoSparse's heat: h <- decay * h + s once a step, s the mean probability over the layers and heads that read.
struct Heat {
  double decay = 0.99609375;  ///< lambda
  bool per_layer = false;     ///< one vector a layer instead of one for the model
  int first_layer = 0;        ///< layers before it feed nothing
  friend bool operator==(const Heat&, const Heat&) = default;
};

struct Plan {
  std::string policy = "full";
  ModelShape shape;
  std::vector<Selector> selectors;
  std::vector<Retention> retentions;
  std::vector<Role> roles;       ///< [layer, kv_head]
  std::vector<Combine> combine;  ///< [layer]
  Prefill prefill;
  Feedback feedback = Feedback::none;
  Heat heat;            ///< read by terms of Source::heat only
  int min_context = 0;  ///< below this many tokens every step is dense

  const Role& role(int layer, int head) const {
    return roles[static_cast<std::size_t>(layer) * static_cast<std::size_t>(shape.kv_heads) +
                 static_cast<std::size_t>(head)];
  }
  Role& role(int layer, int head) { return const_cast<Role&>(std::as_const(*this).role(layer, head)); }
  friend bool operator==(const Plan&, const Plan&) = default;
};

/// Every (layer, KV head) dense: the plan that every policy starts from.
Plan dense_plan(const ModelShape& shape);

/// Throws UserError with the first thing that cannot run, in words: a reuse without an earlier select, an index
/// out of range, a budget of 0, NaN, a stream with terms, and so on.
void validate(const Plan& plan);

/// Tokens that `budget` allows at a context of `tokens`, for the rules that do not need scores
/// (tokens, ratio); at least 1. For the rest: `tokens`.
std::int64_t budget_tokens(const Budget& budget, std::int64_t tokens);

/// The least budget that holds sink, local window and the current token, in whole blocks: the sink's blocks plus as
/// many as the window can touch when it does not end on a block's edge. A window beside the budget (counts_local)
/// needs none of it. Where the window grows with the budget (local_share, local_rows, chunk_tree): enough for the
/// selector's own budget in tokens, or for whatever a share comes to from there on.
std::int64_t always_tokens(const Selector& selector);

/// Length of the local window at a context of `tokens`: `local`; or what `local_rows` say; or `local_share` of the
/// budget, rounded up, less the sink, at least 1; or, for a stream whose budget is a share of the context, what the
/// budget leaves after the sink; or, for chunk_tree, at most half the budget.
std::int64_t window_tokens(const Selector& selector, std::int64_t tokens);

/// The window and the tokens that a scoring head chooses at a budget of so many tokens, by the rows of a table. Both
/// count in sixteens: the window is rounded down, the choice to the nearest number (below the first row down), at least
/// one.
std::int64_t local_at(const std::vector<BudgetRow>& rows, double budget);
std::int64_t choice_at(const std::vector<BudgetRow>& rows, double budget);

/// How many tokens a term with a budget of its own chooses at a context of `tokens`, in whole blocks where it has rows.
std::int64_t term_tokens(const Selector& selector, const Term& term, std::int64_t tokens);

/// True when the plan is dense everywhere at this context: below min_context, or every budget covers it.
bool is_dense_at(const Plan& plan, std::int64_t tokens);
/// The budgets of the rule above, each once, for those who ask often: all of them cover the context.
std::vector<Budget> limits_of_dense(const Plan& plan);
/// True when a budget takes all of so many tokens.
bool covers(const Budget& budget, std::int64_t tokens);

/// True for the sources that keep an index over keys: page_bounds, chunk_tree, token_clusters, landmarks, gate.
bool is_index(Source source);
/// True when a selector's first term has such a source.
bool searches_index(const Plan& plan);
/// True for plans under which a pass leaves nothing behind but rows of the cache and sets that each step makes anew.
bool keeps_nothing(const Plan& plan);

/// True when a term has Source::heat.
bool reads_heat(const Selector& selector);
bool reads_heat(const Plan& plan);

/// True for the rules under which tokens leave the cache for good, and for plans that have one.
bool forgets(RetentionRule rule);
bool forgets(const Plan& plan);

/// True for the rules that decide by what attention gave each token: accumulated, last_probability, stamps.
bool forgets_by_statistic(RetentionRule rule);

/// Text forms of a budget: "1024", "10%" ("10%,min=128" with at_least), "p=0.99", "tau=1e-4"; the double survives the
/// round trip exactly. parse also reads "coverage=0.98", which is p=0.98. It throws UserError.
std::string to_string(const Budget& budget);
Budget parse_budget(std::string_view text);

/// The plan as JSON and back; equal after a round trip. from_json throws UserError and validates.
std::string to_json(const Plan& plan);
Plan from_json(std::string_view text);

/// One line a layer: roles by letter (D dense, S select and dense, s select own set, R reuse, W stream), what it
/// reads, with a legend and the selectors in words. For `glimpse plan`.
std::string explain(const Plan& plan);

}  // namespace glimpse::plan
