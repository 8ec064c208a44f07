// The selection methods by brute force, in double, written from their papers: what tests compare the engine's sets
// with. Shares no code with the engine and knows none of its types. Pure functions over value types; any thread.
//
// Scores are q.k / sqrt(d) on keys after RoPE. A set is ascending positions. A function that chooses takes a `guide`,
// the set that is checked: where the order of two members hangs on less than rounding (`slack`), it takes the guide's
// side, so that its answer equals a correct set exactly.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace glimpse::methods {

using Set = std::vector<std::int32_t>;
using Scores = std::vector<double>;
using Row = std::vector<double>;
using Rows = std::vector<Row>;  ///< [row, d]

/// Scores this near, relative to the cut, may swap. The second part is what floats lose where the cut is near 0:
/// relative to the largest score.
inline constexpr double kSlack = 1e-5;
inline constexpr double kFloatSlack = 1e-7;

// Scores and pooling (scores.cc).

double dot(const Row& a, const Row& b);
/// [token] of one query over keys [N, d].
Scores dots(const Row& query, const Rows& keys);
Scores softmax(const Scores& scores);
/// One row of scores for each query head, [g][N].
std::vector<Scores> head_dots(const Rows& queries, const Rows& keys);
std::vector<Scores> head_probabilities(const Rows& queries, const Rows& keys);
/// Over rows of equal length.
Scores mean(const std::vector<Scores>& rows);
Scores maximum(const std::vector<Scores>& rows);
/// LycheeDecode: the group's queries are averaged before softmax.
Scores mean_query_dots(const Rows& queries, const Rows& keys);
/// Softmax over the keys of `set` alone: what attention to the set gives each member, in the set's order.
Scores read_probabilities(const Row& query, const Rows& keys, const Set& set);
/// Sum of `probabilities` [N] over the set.
double mass(const Scores& probabilities, const Set& set);

// Choosing by score (choose.cc).

enum class Rule : std::uint8_t { count, mass, threshold };

/// The frame of section 1: what is always in, and how many. The current token is the last of the scores.
struct Frame {
  Rule rule = Rule::count;
  double value = 0;          ///< tokens, or the probability of the rule
  std::int64_t block = 1;    ///< tokens of a unit, aligned at position 0
  std::int64_t sink = 0;     ///< first tokens always in, as whole blocks
  std::int64_t local = 1;    ///< last tokens always in, the current one among them, as whole blocks
  bool counts_local = true;  ///< false: the local blocks are beside the budget
};

std::int64_t floor_share(double share, std::int64_t tokens);
/// sink, local and the best of the rest, as many as the budget has left; `units` are scores of blocks [ceil(tokens /
/// block)].
Set choose_units(const Scores& units, std::int64_t tokens, const Frame& frame, const Set& guide);
/// The same from scores of tokens: a block scores its largest token, by mass its sum.
Set choose(const Scores& tokens, const Frame& frame, const Set& guide);
/// LessIsMore: of the tokens between sink and window the best of every query head, then the second best of every head,
/// and so on, head by head, until the budget is full; by count and by token.
Set rank_merge(const std::vector<Scores>& heads, const Frame& frame, const Set& guide);
/// LessIsMore's recent window: what the sinks leave of a quarter of the budget, rounded up.
std::int64_t quarter_window(std::int64_t budget, std::int64_t sink);
/// Largest score of each block's tokens.
Scores block_maximum(const Scores& tokens, std::int64_t block);
/// The `count` best among `candidates` (indices into `scores`), ascending; equal scores: the lower index. Within the
/// slack of the cut those of which `preferred` is true come first.
Set best(const Scores& scores, const Set& candidates, std::int64_t count, const std::vector<bool>& preferred);

// Digests of pages (pages.cc).

enum class PageScore : std::uint8_t { min_max, sphere, mean_deviation, landmark };
/// Score of each page of `page` keys for one query, the unfinished page included. `weight` is mean_deviation's.
Scores page_scores(const Row& query, const Rows& keys, std::int64_t page, std::pair<PageScore, double> how);
/// ShadowKV: of each chunk the largest over the group of the logarithm of each query head's softmax over the landmarks
/// of the `candidates`; of other chunks -inf.
Scores landmark_scores(const Rows& queries, const Rows& keys, std::int64_t chunk, const Set& candidates);
/// ShadowKV: for each whole chunk the least cosine between its landmark and a key of it; outliers have the smallest.
Scores chunk_cohesion(const Rows& keys, std::int64_t chunk);

// ClusterKV (clusters.cc).

/// The cluster of each row: spherical k-means of 10 rounds, started by k-means++ on the rows' directions. The seed
/// makes the clusters, so no two implementations agree on them, only on how good they are.
Set spherical_clusters(const Rows& rows, std::int64_t clusters, std::uint32_t seed);
/// Mean cosine of a row and its cluster's direction.
double cluster_cohesion(const Rows& rows, const Set& members);

// SeerAttention-R's gate of one KV head (gate.cc), with weights as the authors keep them: [in][out].

/// Rotary embedding: pair i of the first dimensions turns by position * frequencies[i], and is scaled by `magnitude`.
struct Angles {
  Row frequencies;
  double magnitude = 1;
  bool halves = true;  ///< pairs (i, i + size of frequencies); false: neighbours
};
/// base^(-2 i / dims)
Row rope_frequencies(double base, std::int64_t dims);
/// YaRN (arXiv 2309.00071, eq. 17 to 23): frequencies that turn often over the original context stay, those that turn
/// seldom are divided by `factor`, with a ramp between 32 and 1 turns.
Row yarn_frequencies(double base, std::int64_t dims, std::pair<double, double> factor_context);
struct Gate {
  std::vector<Rows> query;   ///< [query head of the group][d][dim]
  std::vector<Rows> key;     ///< of the block's max, min and mean: [3][d][dim]
  Row query_norm, key_norm;  ///< [dim] RMS norm in the gate's space; empty: none
  double epsilon = 0;
  Angles model, own;
  std::int64_t block = 64;
};
/// Score of each block for the token at the last position, from its group's queries [g, d] and all keys [N, d], both
/// after the model's RoPE. A block's position is its first token's; an unfinished block has no key and scores 0.
Scores gate_scores(const Gate& gate, const Rows& queries, const Rows& keys);

// EvoSparse (evosparse.cc).

/// The paper's settings at a budget of so many tokens (methods.md, section 4), between two rows in proportion, below
/// the first in proportion to the budget: the local window and the blocks of 16 that a retrieval head takes.
struct EvoSettings {
  std::int64_t local = 0, blocks = 0;
};
EvoSettings evosparse_settings(std::int64_t budget);

struct EvoStep {
  std::int64_t tokens = 0;        ///< N, the current one counted
  Frame frame;                    ///< rule count
  Scores heat;                    ///< [block] before the step; blocks beyond it are cold
  std::vector<Scores> retrieval;  ///< [retrieval head][token]: q.k in the layer that propagates; empty: none
  std::int64_t blocks_per_head = 0;
  bool accumulates = true;  ///< false: no heat (ablation)
};
Set evosparse_set(const EvoStep& step, const Set& guide);
/// The propagated blocks outside sink and local, after the cut.
Set evosparse_propagated(const EvoStep& step, const Set& guide);

/// One query head's attention to what it read.
struct Reading {
  Set tokens;
  Scores probabilities;  ///< in the order of tokens
};
/// h <- decay * h + s over blocks; s of a block is the mean over the readings that hold a token of it.
Scores heat_after(const Scores& heat, const std::vector<Reading>& readings, std::int64_t block, double decay);

// What evicting methods keep (evict.cc). `live` is what may be kept, the current token last; statistics are by
// position.

Set sink_and_window(std::int64_t tokens, std::int64_t sink, std::int64_t window);
/// H2O: the last `recent` of `live`, and of the rest those of largest accumulated probability, `budget` in all.
Set keep_accumulated(const Set& live, const Scores& sums, std::pair<std::int64_t, std::int64_t> budget_recent,
                     const Set& guide);
/// TOVA: the current token and the budget - 1 of largest probability in the last step.
Set keep_probable(const Set& live, const Scores& probabilities, std::int64_t budget, const Set& guide);
/// RaaS: the prompt, the current token, and of the other generated ones those stamped last, `budget` generated in all.
struct Stamps {
  std::int64_t prompt = 0;
  std::int64_t budget = 0;
  Scores steps;  ///< [position] of the last stamp
};
Set keep_stamped(const Set& live, const Stamps& stamps, const Set& guide);
/// RaaS: members of a step's upper half of probabilities. `sure` is in it; `open` may be: the middle one of an odd
/// number, and what is within the slack of the middle.
struct UpperHalf {
  Set sure, open;
};
UpperHalf upper_half(const Reading& reading);
/// RazorAttention: the output of attention to `set` and to one more token, the mean key and mean value of `dropped`,
/// weighted by their number.
Row compensated_attention(const Row& query, std::pair<const Rows*, const Rows*> keys_values, const Set& set,
                          const Set& dropped);

// Kascade's sparse prefill (kascade.cc).

struct Tile {
  std::int64_t start = 0;     ///< first token of the tile
  std::vector<Rows> queries;  ///< [token of the tile][query head of the group]
  double share = 0.1;         ///< the rolling budget: max(least, floor(share * start)), or
  std::int64_t least = 128;
  std::int64_t fixed = 0;  ///< a fixed number of tokens when not 0
};
std::int64_t tile_budget(const Tile& tile);
/// What all rows of the tile read besides the tile itself: the best of the tokens before it by probability after the
/// causal softmax of each row and query head, summed over the tile. All of them where they are within the budget.
Set tile_set(const Tile& tile, const Rows& keys, const Set& guide);

}  // namespace glimpse::methods
