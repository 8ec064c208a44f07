// The selectors of the methods, so that any of them can stand in the plan of another: `selector=quest` in TidalDecode,
// `anchor-selector=lychee-cluster` in Kascade. Functions on values; any thread.
#pragma once

#include <array>
#include <string_view>

#include "glimpse/policies/options.h"

namespace glimpse::policies {

/// What `selector=` takes: exact scores over all keys, or a method's index over them.
inline constexpr std::array<std::string_view, 5> kSelectorWords{"exact", "quest", "lychee-cluster", "clusterkv",
                                                                "arkvale"};
inline constexpr std::string_view kSelectorValues = "exact|quest|lychee-cluster|clusterkv|arkvale";
/// For whom a set is made; an index knows no `layer`.
inline constexpr std::array<std::string_view, 3> kSetWords{"kv-head", "query-head", "layer"};
inline constexpr std::string_view kSetValues = "kv-head|query-head|layer";

/// Exact scores: by the mean probability of the group (kv-head), of each query head alone (query-head; q.k where the
/// budget is counted, for softmax keeps the order inside one head), or of all heads (layer). Block, sink and local by
/// the flags, 1 and 0 without them.
plan::Selector exact_selector(const OptionReader& read, std::string_view set, const plan::Budget& budget);

/// The selector of method `name` (a word above but `exact`, or "shadowkv") with its paper's block, sink and window
/// where the flags say nothing; one index a KV head, a score the max over the group.
plan::Selector index_selector(const OptionReader& read, std::string_view name, const plan::Budget& budget);

/// The one that `key`=exact|quest|... names, its set by `set`: the first of `words` of kSetWords is the default.
plan::Selector chosen_selector(const OptionReader& read, std::string_view key, std::string_view set,
                               const plan::Budget& budget);

/// Makes the set one per query head.
void per_query_head(plan::Selector& selector);

/// First tokens and a window that fills the budget, for heads that stream.
plan::Selector stream_selector(const OptionReader& read, int sink, const plan::Budget& budget);

}  // namespace glimpse::policies
