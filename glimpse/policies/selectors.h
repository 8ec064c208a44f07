// The selectors of the methods, so that any of them can stand in the plan of another: `selector=quest` in TidalDecode,
// `anchor-selector=lychee-cluster` in Kascade. Each brings its options along (`anchor-selector.score=minmax`).
// Functions on values; any thread.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "glimpse/policies/options.h"

namespace glimpse::policies {

/// What `selector=` takes: exact scores over all keys, or a method's index over them.
inline constexpr std::array<std::string_view, 7> kSelectorWords{
    "exact", "quest", "lychee-cluster", "clusterkv", "arkvale", "shadowkv", "seer"};
inline constexpr std::string_view kSelectorValues = "exact|quest|lychee-cluster|clusterkv|arkvale|shadowkv|seer";

/// What the selector of a method can be told beyond the flags; empty for "exact".
std::span<const OptionHelp> selector_options(std::string_view name);
/// The option table of method `name`: `own`, and those of its selector.
std::vector<OptionHelp> with_selector_options(std::vector<OptionHelp> own, std::string_view name);

/// For whom a set is made; an index knows no `layer`.
inline constexpr std::array<std::string_view, 3> kSetWords{"kv-head", "query-head", "layer"};
inline constexpr std::string_view kSetValues = "kv-head|query-head|layer";

/// Exact scores: by the mean probability of the group (kv-head), of each query head alone (query-head; q.k where the
/// budget is counted, for softmax keeps the order inside one head), or of all heads (layer). Block, sink and local by
/// the flags, 1 and 0 without them.
plan::Selector exact_selector(const OptionReader& read, std::string_view set, const plan::Budget& budget);

/// The selector of method `name` (a word above but `exact`) with its paper's block, sink and window where the flags
/// say nothing, and its options as `read` has them; one index a KV head, a score the max over the group.
plan::Selector index_selector(const OptionReader& read, std::string_view name, const plan::Budget& budget);

/// The one that `key`=exact|quest|... names, its options by `key`.OPTION, its set by `set`, a word of kSetWords.
plan::Selector chosen_selector(const OptionReader& read, std::string_view key, std::string_view set,
                               const plan::Budget& budget);

/// Makes the set one per query head.
void per_query_head(plan::Selector& selector);

/// First tokens and a window that fills the budget, for heads that stream.
plan::Selector stream_selector(const OptionReader& read, int sink, const plan::Budget& budget);

}  // namespace glimpse::policies
