// A plan as attention runs it: for every layer the sets that are made, what each KV head reads, and what flows back,
// with each selector, slot and budget looked up once. A device walks programs and never reads a plan::Plan.
//
// A program is made once for a plan and holds for every length of the context. What depends on the length is said by
// functions of it: dense_at(), capacity(), read_at(). Immutable; any thread. It owns a copy of what it needs of the
// plan.
//
// The order of a layer's operations in a decode step, in which programs of several sequences merge:
// * select: SelectOp::From::index searches, ::scores scores all keys (K alone); both choose sets before the layer
//   attends.
// * attend: HeadOp::read_at; SelectOp::From::attention chooses from the scores that dense attention leaves.
// * feed: heat and statistics take the probabilities of what was read.
// Forgetting (HeadOp::kept) goes before the first layer of a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "glimpse/kernels/ops.h"
#include "glimpse/plan/plan.h"

namespace glimpse::attention {

/// A set that a layer makes.
struct SelectOp {
  enum class From : std::uint8_t {
    index,      ///< a search of the head's key index
    scores,     ///< scores of all keys, before the layer attends; heat alone needs none
    attention,  ///< the scores of the heads' own dense attention
  };
  From from = From::scores;
  int first_head = 0, heads = 1;             ///< KV heads that make it together: one, or all of the layer
  const plan::Selector* selector = nullptr;  ///< owned by the program
  plan::SlotId writes;                       ///< where it is published
  int first_set = 0;                         ///< the number of its first list among those of the program
  plan::SlotId joins;        ///< a slot whose chosen tokens join it (Combine::union_sets); layer -1: none
  std::vector<int> queries;  ///< [heads] query heads of each that score
  int lists = 1;             ///< in the slot: one, or one for each query head of the group
  /// Lists that a device may put a united set together from, numbered behind its own: one for each scoring query head.
  int parts = 0;
  bool weighs = false;    ///< log-sum-exps are known, so what the set captures is free to say
  bool has_tier = false;  ///< as its heads have
  bool of_layer() const { return selector->per == plan::SetPer::layer; }
  /// It is put together from candidates, joins what an earlier layer took, or is merged by rank.
  bool is_united() const;
  /// The last of these.
  bool merges_ranks() const;
  /// KV heads that score.
  int scored_heads() const;
  /// Tokens that each of its lists may hold at a context of up to `tokens`.
  std::int64_t capacity(std::int64_t tokens) const;
  /// Says whose scores a choice of one of its lists reads, and which set it writes. `first`: where the row's sets are
  /// numbered from.
  void place(kernels::Choice& choice, int list, int first) const {
    choice.head = first_head;
    choice.heads = heads;
    choice.query = lists > 1 ? list : -1;
    choice.set = first + first_set + list;
  }
};

/// What one KV head of a layer does in a decode step.
struct HeadOp {
  enum class Reads : std::uint8_t { everything, set, window };
  Reads reads = Reads::everything;
  plan::RoleKind role = plan::RoleKind::dense;  ///< for records
  plan::SlotId set;                             ///< Reads::set
  const plan::Selector* window = nullptr;       ///< Reads::window: its sink and local tokens
  const plan::Budget* budget = nullptr;         ///< that the plan gives its set or window; null: none
  int select = -1;                              ///< the layer's SelectOp that it makes or has a part in; -1: none
  kernels::Read read;                           ///< read_at() of all but windows, with sets counted from 0
  int key_rank = 0;                             ///< keys of the prompt are made from so many singular vectors
  const plan::Retention* kept = nullptr;        ///< what it forgets; null: nothing

  /// What it reads in a row that sees `tokens` and is not dense (Program::dense_at). `first_set`: where the row's sets
  /// are numbered from.
  kernels::Read read_at(std::int64_t tokens, int first_set) const {
    if (reads == Reads::window) return window_at(tokens);
    kernels::Read of = read;
    if (reads == Reads::set) of.set += first_set;
    return of;
  }
  /// A mean token stands for what its window lost.
  bool compensates() const { return reads == Reads::window && kept != nullptr && kept->compensates; }
  /// Pages that its sets do not need may wait in the host's tier.
  bool has_tier() const { return kept != nullptr && kept->rule == plan::RetentionRule::host_tier; }

 private:
  kernels::Read window_at(std::int64_t tokens) const;
};

struct LayerProgram {
  std::vector<SelectOp> selects;
  std::vector<HeadOp> heads;   ///< [kv_heads]
  bool selects_first = false;  ///< some SelectOp comes before the layer attends
  bool heats = false;          ///< what is read here feeds the heat
  /// Of a sparse prefill: tiles choose behind their own attention, whose log-sum-exps they use.
  bool tiles_follow = false;
};

class Program {
 public:
  /// Throws UserError when the plan asks for what no device has yet, by name.
  explicit Program(plan::Plan plan);
  Program(const Program&) = delete;  // operations point into the plan that it owns
  Program& operator=(const Program&) = delete;

  /// No other program of this process has it, also when this one is gone.
  std::uint64_t number() const { return number_; }
  const plan::ModelShape& shape() const { return plan_.shape; }
  const LayerProgram& layer(int layer) const { return layers_[static_cast<std::size_t>(layer)]; }
  const HeadOp& head(int layer, int head) const { return this->layer(layer).heads[static_cast<std::size_t>(head)]; }
  /// The operation that makes what the head publishes; the head has one.
  const SelectOp& select(int layer, int head) const {
    const LayerProgram& of = this->layer(layer);
    return of.selects[static_cast<std::size_t>(of.heads[static_cast<std::size_t>(head)].select)];
  }

  /// What it was made from, for those who name, compare or save plans; a device reads the operations.
  const plan::Plan& plan() const { return plan_; }
  /// True when a step at this context reads everything, whatever its operations say.
  bool dense_at(std::int64_t tokens) const {
    return tokens < plan_.min_context ||
           std::all_of(dense_limits_.begin(), dense_limits_.end(),
                       [tokens](const plan::Budget& budget) { return plan::covers(budget, tokens); });
  }
  int min_context() const { return plan_.min_context; }
  bool feeds() const { return plan_.feedback == plan::Feedback::probabilities; }
  bool forgets() const { return !plan_.retentions.empty(); }  ///< some HeadOp::kept is not null
  const plan::Heat& heat() const { return plan_.heat; }
  /// Prompt tokens of a tile of a sparse prefill; 0: the prompt is read densely.
  int tile_tokens() const { return tile_tokens_; }
  /// Rows of a prompt that ends at `prompt_end` are observed from this position on.
  std::int64_t observe_from(std::int64_t prompt_end) const;
  /// Some index takes in nothing but prompt.
  bool reads_landmarks() const { return reads_landmarks_; }

 private:
  void add_layer(int layer);

  std::uint64_t number_;
  plan::Plan plan_;
  std::vector<LayerProgram> layers_;
  std::vector<plan::Budget> dense_limits_;  ///< see dense_at
  int tile_tokens_ = 0;
  bool reads_landmarks_ = false;
  bool reads_heat_ = false;
};

/// Lists of the sets that a step makes, their parts among them, and the tokens that each may hold at a context of up to
/// `tokens`.
int set_count(const Program& program);
std::int64_t set_capacity(const Program& program, std::int64_t tokens);

/// Throws what Program's constructor throws.
void require_supported(const plan::Plan& plan);

}  // namespace glimpse::attention
