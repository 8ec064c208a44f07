// StreamingLLM: Xiao, Tian, Chen, Han, Lewis, "Efficient Streaming Language Models with Attention Sinks", ICLR 2024,
// arXiv 2309.17453, section 3.2 (rolling KV cache with attention sinks; 4 sinks by its section 4.4).
// Positions stay those of the text: the paper renumbers them inside the cache, the comparisons that use it as a
// baseline do not.
#include <algorithm>
#include <array>

#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

constexpr int kSink = 4;
constexpr double kBudget = 1024;
constexpr int kTileRows = 128;
constexpr std::array<std::string_view, 2> kPrefill{"dense", "sparse"};

const std::array<OptionHelp, 2> kOptions{{
    {"prefill", "dense|sparse", "dense", "whether prompts, too, read the sink and the window only"},
    {"tile", "ROWS|auto", "auto", "query rows of a tile of a sparse prefill, the group counted in; auto: 128"},
}};

plan::Prefill make_prefill(const OptionReader& read, const plan::ModelShape& shape) {
  const std::optional<int> tile = read.integer("tile", shape.group(), 65536, kAuto);
  if (read.choice("prefill", kPrefill) == "sparse") {
    return {.sparse = true, .tile_rows = tile.value_or(std::max(kTileRows, shape.group()))};
  }
  if (tile) read.refuse("tile", *read.text("tile"), "a dense prefill has no tiles; give prefill=sparse");
  return {};
}

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("streaming", kOptions, options);
  read.refuse_block("it keeps single tokens; leave the flag out");
  read.refuse_local("the window is what the budget leaves after the sink; set --attn-budget and --attn-sink");

  plan::Selector selector = stream_selector(read, kSink, {plan::BudgetRule::tokens, kBudget});
  plan::Plan plan = plan::dense_plan(shape);
  plan.prefill = make_prefill(read, shape);
  plan.retentions.push_back({plan::RetentionRule::window, selector.sink, selector.budget});
  plan.selectors.push_back(std::move(selector));
  std::fill(plan.roles.begin(), plan.roles.end(),
            plan::Role{.kind = plan::RoleKind::stream, .selector = 0, .retention = 0});
  return plan;
}

}  // namespace

Policy streaming_policy() {
  return {"streaming",
          "first tokens and a sliding window inside the budget (default 1024, --attn-sink 4); forgets the rest",
          "Xiao et al., Efficient Streaming Language Models with Attention Sinks, ICLR 2024, arXiv 2309.17453",
          {kOptions.begin(), kOptions.end()},
          make};
}

}  // namespace glimpse::policies
