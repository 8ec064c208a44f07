// EvoSparse: Han, Zhang, Qiao, Nie, "Evolving Sparsity: Leveraging Token Importance Dynamics for Efficient LLM Decoding
// with Sparse Attention", sections 4.1 to 4.3 and appendix (heat over steps, sets of retrieval heads over layers).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "glimpse/base/error.h"
#include "glimpse/policies/heads.h"
#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

using plan::RoleKind;

constexpr int kBlock = 16;
constexpr int kSink = 16;
constexpr int kSeedRows = 32;
constexpr std::array<std::string_view, 2> kHeats{"sequence", "layer"};
constexpr std::array<std::string_view, 2> kSeeds{"prompt", "none"};

const std::array<OptionHelp, 8> kOptions{{
    {"retrieval-heads", "N|auto", "auto", "query heads that score all keys; auto: by the budget, as the paper's table"},
    {"retrieval-blocks", "N|auto", "auto", "blocks that each of them propagates; auto: by the budget, as the table"},
    {"prop", "on|off", "on", "propagation of what retrieval heads choose; off: heat alone chooses"},
    {"accum", "on|off", "on", "accumulation of heat over steps; off: retrieval heads alone choose"},
    {"heat", "sequence|layer", "sequence", "one heat vector for the model, or one for each layer"},
    {"lambda", "NUMBER", "0.99609375", "decay of heat in a step, over 0 to 1; 1: none"},
    {"seed", "prompt|none", "prompt", "where heat starts: at the attention of the last 32 prompt tokens, or at zero"},
    {"count-local", "on|off", "on", "whether the local window is inside the budget; the paper's formula leaves it out"},
}};

// The paper's settings by budget: the local window, what each retrieval head chooses (5, 5, 7, 10 and 15 blocks of 16),
// and how many retrieval heads there are.
const std::vector<plan::BudgetRow> kLocal{{256, 64}, {512, 64}, {1024, 128}, {2048, 128}, {4096, 128}};
const std::vector<plan::BudgetRow> kChosen{{256, 80}, {512, 80}, {1024, 112}, {2048, 160}, {4096, 240}};
constexpr std::array<std::pair<double, double>, 5> kHeads{{{256, 5}, {512, 10}, {1024, 10}, {2048, 15}, {4096, 20}}};

// Between two rows in proportion; below the first row and above the last those rows.
int heads_at(double budget) {
  if (budget <= kHeads.front().first) return static_cast<int>(kHeads.front().second);
  for (std::size_t i = 1; i < kHeads.size(); ++i) {
    const auto& [low, fewer] = kHeads[i - 1];
    const auto& [high, more] = kHeads[i];
    if (budget < high) return static_cast<int>(std::round(fewer + (budget - low) / (high - low) * (more - fewer)));
  }
  return static_cast<int>(kHeads.back().second);
}

class Builder {
 public:
  Builder(const OptionReader& read, const plan::ModelShape& shape)
      : read_(read), shape_(shape), plan_(plan::dense_plan(shape)) {
    prop_ = read.on("prop", true);
    accum_ = read.on("accum", true);
    if (!prop_ && !accum_)
      read.refuse("accum", "off", "with prop=off nothing is left to choose by; use --attn streaming");
    per_layer_ = read.choice("heat", kHeats) == "layer";
    base_.per = plan::SetPer::layer;
    base_.block = read.block(kBlock);
    base_.sink = read.sink(kSink);
    base_.budget = read.counted_budget({plan::BudgetRule::tokens, 1024}, "splits its budget between its parts");
    const bool sane = base_.budget.value > 0 && base_.budget.value < 1e9;  // the rest is refused with the plan
    // A share follows the table as the context grows. Which heads retrieve is fixed, for the longest context.
    share_ = base_.budget.rule == plan::BudgetRule::ratio;
    most_ = !sane ? 1024 : share_ ? base_.budget.value * std::max(shape.context, 1) : base_.budget.value;
    constexpr int kByTable = -1;
    base_.local = read.local(kByTable);
    if (base_.local == kByTable) {
      base_.local = share_ ? 0 : static_cast<int>(plan::local_at(kLocal, most_));
      if (share_) base_.local_rows = kLocal;
    }
    base_.counts_local = read.on("count-local", true);
    base_.budget = with_room(base_.budget, base_);
  }

  plan::Plan make() {
    choose_heads();
    for (int layer = kFirstSparse; layer < shape_.layers; ++layer) fill(layer);
    if (shape_.layers <= kFirstSparse) {  // nothing is sparse, and a bad flag is refused all the same
      heat_selector();
    }
    tidy(plan_);
    const double decay = read_.number("lambda", 1e-6, 1, plan::Heat{}.decay);
    const bool seeded = read_.choice("seed", kSeeds) == "prompt";
    if (reads_heat(plan_)) {
      plan_.feedback = plan::Feedback::probabilities;
      plan_.heat = {decay, per_layer_, kFirstSparse};
      if (seeded) plan_.prefill = {.observe = plan::Observe::last_rows, .observe_rows = kSeedRows};
    } else if (!accum_) {
      for (const char* key : {"heat", "lambda", "seed"}) {
        if (const auto text = read_.text(key)) read_.refuse(key, *text, "with accum=off there is no heat");
      }
    }
    return std::move(plan_);
  }

 private:
  void choose_heads() {
    const auto heads = read_.integer("retrieval-heads", 1, 4096, kAuto);
    const auto blocks = read_.integer("retrieval-blocks", 1, 65536, kAuto);
    heads_.resize(static_cast<std::size_t>(shape_.layers));
    if (!prop_) {
      if (heads) read_.refuse("retrieval-heads", *read_.text("retrieval-heads"), "with prop=off there are none");
      if (blocks) read_.refuse("retrieval-blocks", *read_.text("retrieval-blocks"), "with prop=off there are none");
      read_.leave_profile("with prop=off the profile is not used");
      return;
    }
    const int most = std::max(shape_.layers - kFirstSparse, 0) * shape_.heads;
    if (heads.value_or(0) > most) {
      read_.refuse("retrieval-heads", *read_.text("retrieval-heads"),
                   fmt::format("the model has {} query heads in its sparse layers", most));
    }
    heads_ = retrieval_query_heads(read_, shape_, kFirstSparse, heads.value_or(heads_at(most_)));
    // The table counts blocks of 16; larger blocks hold as many tokens, rounded up.
    const auto block = static_cast<std::int64_t>(std::max(base_.block, 1));
    blocks_ = blocks.value_or(static_cast<int>((plan::choice_at(kChosen, most_) + block - 1) / block));
    chosen_by_table_ = share_ && !blocks;
  }

  int add(plan::Selector selector) {
    plan_.selectors.push_back(std::move(selector));
    return static_cast<int>(plan_.selectors.size()) - 1;
  }

  int heat_selector() {
    if (heat_selector_ >= 0) return heat_selector_;
    plan::Selector selector = base_;
    selector.terms.push_back({plan::Source::heat, plan::GroupPooling::none});
    return heat_selector_ = add(std::move(selector));
  }

  int retrieval_selector(const std::vector<int>& heads) {
    plan::Selector selector = base_;
    plan::Term term{plan::Source::dot, plan::GroupPooling::none, plan::HeadPooling::max};
    term.query_heads = heads;
    term.budget = plan::Budget{plan::BudgetRule::tokens, static_cast<double>(blocks_) * base_.block};
    if (chosen_by_table_) term.budget_rows = kChosen;
    selector.terms.push_back(std::move(term));
    if (accum_) selector.terms.push_back({plan::Source::heat, plan::GroupPooling::none});
    return add(std::move(selector));
  }

  // Sink and a window that fills the budget, with nothing forgotten: before the first retrieval head and without heat
  // there is nothing to choose by.
  int window_selector() {
    if (window_selector_ >= 0) return window_selector_;
    return window_selector_ = add(stream_selector(read_, kSink, base_.budget));
  }

  void fill(int layer) {
    const std::vector<int>& heads = heads_[static_cast<std::size_t>(layer)];
    const plan::SlotId propagated{propagated_, propagated_ < 0 ? -1 : 0};
    plan::Role role{.kind = RoleKind::select, .attends_set = true};
    if (!heads.empty()) {
      role.selector = retrieval_selector(heads);
      propagated_ = last_ = layer;
    } else if (accum_ && (per_layer_ || last_ < 0)) {
      role.selector = heat_selector();
      role.reads = propagated;
      if (propagated.layer >= 0) plan_.combine[static_cast<std::size_t>(layer)] = plan::Combine::union_sets;
      last_ = layer;
    } else if (last_ >= 0) {
      // The same heat and the same propagated blocks give the same set.
      role = {.kind = RoleKind::reuse, .reads = {last_, 0}};
    } else {
      role = {.kind = RoleKind::stream, .selector = window_selector()};
    }
    set_layer(plan_, layer, role);
  }

  const OptionReader& read_;
  const plan::ModelShape& shape_;
  plan::Plan plan_;
  plan::Selector base_;  ///< without terms
  bool share_ = false;   ///< of the context
  double most_ = 1024;   ///< tokens that the budget comes to at most
  bool chosen_by_table_ = false;
  bool prop_ = true, accum_ = true, per_layer_ = false;
  std::vector<std::vector<int>> heads_;  ///< [layer][...] query heads
  int blocks_ = 1;
  int heat_selector_ = -1, window_selector_ = -1;
  int last_ = -1;        ///< the last layer that selected
  int propagated_ = -1;  ///< the last layer with retrieval heads
};

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("evosparse", kOptions, options);
  return Builder(read, shape).make();
}

}  // namespace

Policy evosparse_policy() {
  return {"evosparse",
          "one set a layer: blocks of lasting heat, and what few retrieval heads find and propagate (budget 1024)",
          "Han et al., Evolving Sparsity: Leveraging Token Importance Dynamics for Efficient LLM Decoding with Sparse "
          "Attention",
          {kOptions.begin(), kOptions.end()},
          make,
          {"retrieval"}};
}

}  // namespace glimpse::policies
