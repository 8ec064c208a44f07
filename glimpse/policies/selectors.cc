#include "glimpse/policies/selectors.h"

#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/error.h"

namespace glimpse::policies {
namespace {

using plan::GroupPooling;
using plan::Source;

// What each paper sets; flags win.
struct IndexKind {
  std::string_view name;
  Source source;
  int block;
  int sink;
  int local;
  bool counts_local;
};
constexpr std::array kKinds{
    IndexKind{"quest", Source::page_bounds, 16, 0, 0, true},
    IndexKind{"lychee-cluster", Source::chunk_tree, 1, 16, 128, true},
    IndexKind{"clusterkv", Source::token_clusters, 1, 16, 0, false},
    IndexKind{"arkvale", Source::page_bounds, 32, 0, 0, true},
    IndexKind{"shadowkv", Source::landmarks, 8, 0, 32, false},
    IndexKind{"seer", Source::gate, 64, 0, 0, true},
};

constexpr double kMostWeight = 1000;
constexpr int kOutliers = 48;  // of ShadowKV
constexpr std::array<std::string_view, 2> kPageScores{"minmax", "meanstd"};
constexpr std::array<std::string_view, 3> kChunkScores{"tree", "minmax", "meanstd"};
constexpr std::array<std::string_view, 2> kChunks{"boundaries", "fixed"};
constexpr std::array<std::string_view, 2> kPooling{"mean", "max"};
constexpr std::array<std::string_view, 2> kDigests{"cuboid", "sphere"};

constexpr OptionHelp kWeight{"deviation-weight", "NUMBER", "1", "weight of the standard deviation, with score=meanstd"};
constexpr std::array<OptionHelp, 2> kQuest{{
    {"score", "minmax|meanstd", "minmax",
     "a page's score: the bound by the min and max of its keys, or their mean plus weighted standard deviation"},
    kWeight,
}};
constexpr std::array<OptionHelp, 6> kLycheeCluster{{
    {"chunks", "boundaries|fixed", "boundaries",
     "chunks of 8 to 16 tokens cut where the text does, or of 16 tokens each"},
    {"pooling", "mean|max", "mean", "a chunk's representative: the mean of its keys, or their elementwise max"},
    {"whole-clusters", "on|off", "off", "take the last cluster whole, past the budget, as the paper does"},
    {"chunks-per-cluster", "1..8", "2", "chunks of a fine cluster, on average"},
    {"score", "tree|minmax|meanstd", "tree",
     "tree: clusters by their bounds; else no tree, and every chunk by the min and max, or the mean and standard "
     "deviation, of its keys"},
    kWeight,
}};
constexpr std::array<OptionHelp, 2> kClusterKv{{
    {"tokens-per-cluster", "1..4096", "80", "prompt tokens of a cluster, on average"},
    {"new-tokens", "1..65536", "320",
     "new tokens that are kept beside the clusters until they make clusters of their own; tokens-per-cluster or more"},
}};
constexpr std::array<OptionHelp, 1> kArkVale{{
    {"digest", "cuboid|sphere", "cuboid", "what bounds the keys of a page"},
}};
constexpr std::array<OptionHelp, 1> kShadowKv{{
    {"outliers", "0..65536", "48", "chunks farthest from their landmark, always read"},
}};

constexpr std::array<OptionHelp, 1> kSeer{{
    {"gates", "FILE", "none", "the gates' weights, a GGUF that scripts/convert-seer-gates.py makes (docs/gates.md)",
     /*selector=*/false, /*needed=*/true},
}};

plan::IndexOptions index_options(const OptionReader& read, std::string_view name) {
  plan::IndexOptions index;
  if (name == "quest") {
    if (read.choice("score", kPageScores) == "meanstd") index.digest = plan::Digest::mean_deviation;
    index.deviation_weight = read.number("deviation-weight", 0, kMostWeight, index.deviation_weight);
  } else if (name == "lychee-cluster") {
    index.fixed_chunks = read.choice("chunks", kChunks) == "fixed";
    index.max_pooling = read.choice("pooling", kPooling) == "max";
    index.whole_clusters = read.on("whole-clusters", false);
    index.chunks_per_cluster = read.integer("chunks-per-cluster", 1, 8, {}).value_or(index.chunks_per_cluster);
    const std::string_view score = read.choice("score", kChunkScores);
    index.chunk_bounds = score != "tree";
    if (score == "meanstd") index.digest = plan::Digest::mean_deviation;
    index.deviation_weight = read.number("deviation-weight", 0, kMostWeight, index.deviation_weight);
  } else if (name == "clusterkv") {
    index.tokens_per_cluster = read.integer("tokens-per-cluster", 1, 4096, {}).value_or(index.tokens_per_cluster);
    const auto new_tokens = read.integer("new-tokens", 1, 65536, {});
    index.new_tokens = new_tokens.value_or(index.new_tokens);
    if (index.new_tokens < index.tokens_per_cluster && new_tokens) {
      read.refuse("new-tokens", *read.text("new-tokens"),
                  fmt::format("they make no cluster of {} tokens; give as many or more", index.tokens_per_cluster));
    } else if (index.new_tokens < index.tokens_per_cluster) {
      read.refuse("tokens-per-cluster", *read.text("tokens-per-cluster"),
                  fmt::format("new-tokens={} make no such cluster; give new-tokens={} or more, too", index.new_tokens,
                              index.tokens_per_cluster));
    }
  } else if (name == "arkvale") {
    if (read.choice("digest", kDigests) == "sphere") index.digest = plan::Digest::sphere;
  } else if (name == "shadowkv") {
    index.outlier_chunks = read.integer("outliers", 0, 65536, {}).value_or(kOutliers);
  } else if (name == "seer") {
    index.gates = read.text("gates").value_or("");
    if (index.gates.empty()) {
      throw UserError(
          fmt::format("policy '{}' needs the gate weights that were trained for the model: give --attn-opt {}=FILE, or "
                      "choose what needs none, such as quest",
                      read.policy(), read.full_key("gates")));
    }
  }
  return index;
}

}  // namespace

std::span<const OptionHelp> selector_options(std::string_view name) {
  if (name == "quest") return kQuest;
  if (name == "lychee-cluster") return kLycheeCluster;
  if (name == "clusterkv") return kClusterKv;
  if (name == "arkvale") return kArkVale;
  if (name == "shadowkv") return kShadowKv;
  if (name == "seer") return kSeer;
  return {};
}

std::vector<OptionHelp> with_selector_options(std::vector<OptionHelp> own, std::string_view name) {
  const std::span<const OptionHelp> inner = selector_options(name);
  own.insert(own.end(), inner.begin(), inner.end());
  return own;
}

plan::Selector exact_selector(const OptionReader& read, std::string_view set, const plan::Budget& budget) {
  plan::Selector selector;
  selector.block = read.block();
  selector.sink = read.sink(0);
  selector.local = read.local(0);
  selector.budget = read.budget(budget);
  plan::Term term{Source::probability, GroupPooling::mean_probability};
  if (set == "layer") {
    selector.per = plan::SetPer::layer;
    term.heads = plan::HeadPooling::mean;
  } else if (set == "query-head") {
    const bool counted =
        selector.budget.rule == plan::BudgetRule::tokens || selector.budget.rule == plan::BudgetRule::ratio;
    selector.per = plan::SetPer::query_head;
    term.source = counted ? Source::dot : Source::probability;
    term.group = GroupPooling::none;
  }
  selector.terms.push_back(std::move(term));
  selector.budget = with_room(selector.budget, selector);
  return selector;
}

plan::Selector index_selector(const OptionReader& read, std::string_view name, const plan::Budget& budget) {
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(), [name](const IndexKind& k) { return k.name == name; });
  check(kind != kKinds.end(), "a method with an index");
  plan::Selector selector;
  selector.block = read.block(kind->block);
  selector.sink = read.sink(kind->sink);
  selector.local = read.local(kind->local);
  selector.counts_local = kind->counts_local;
  const bool gate = kind->source == Source::gate;            // it takes the group's queries together
  const bool landmarks = kind->source == Source::landmarks;  // ShadowKV's authors: softmax first, then the maximum
  plan::Term term{kind->source, gate        ? GroupPooling::none
                                : landmarks ? GroupPooling::max_probability
                                            : GroupPooling::max_score};
  term.index = index_options(read, name);
  selector.terms.push_back(std::move(term));
  selector.budget =
      gate ? read.budget(budget)  // validation knows the rules that a gate has
           : read.counted_budget(budget, fmt::format("selects by {}'s index, which knows no probabilities", name));
  if (name == "quest" && selector.block > 0) {  // Quest never reads fewer than three pages
    const int least = 3 * std::min(selector.block, 1 << 16);
    if (selector.budget.rule == plan::BudgetRule::tokens && selector.budget.value < least) {
      throw UserError(
          fmt::format("policy '{}': Quest reads at least 3 pages of {} tokens; give --attn-budget {} or more, "
                      "or a smaller --attn-block",
                      read.policy(), selector.block, least));
    }
    if (selector.budget.rule == plan::BudgetRule::ratio) {
      selector.budget.at_least = std::max(selector.budget.at_least, least);
    }
  }
  selector.budget = with_room(selector.budget, selector);
  return selector;
}

plan::Selector chosen_selector(const OptionReader& read, std::string_view key, std::string_view set,
                               const plan::Budget& budget) {
  const std::string_view name = read.choice(key, kSelectorWords);
  const OptionReader inner = read.nested(key, name, selector_options(name));
  if (name == "exact") return exact_selector(read, set, budget);
  plan::Selector selector = index_selector(inner, name, budget);
  if (set == "layer") read.refuse(key, name, "an index belongs to a KV head; give set=kv-head");
  if (set == "query-head" && name == "seer") {
    read.refuse(key, name, "a gate scores for the group together; give set=kv-head");
  }
  if (set == "query-head") per_query_head(selector);
  return selector;
}

void per_query_head(plan::Selector& selector) {
  selector.per = plan::SetPer::query_head;
  for (plan::Term& term : selector.terms) term.group = GroupPooling::none;
}

plan::Selector stream_selector(const OptionReader& read, int sink, const plan::Budget& budget) {
  plan::Selector selector;
  selector.sink = read.sink(sink);
  selector.budget = read.budget(budget);
  if (selector.budget.rule == plan::BudgetRule::tokens) {
    if (!(selector.budget.value > selector.sink)) {
      throw UserError(
          fmt::format("policy '{}': a budget of {} has no room for {} sink tokens and the current one; "
                      "give --attn-budget {} or more, or a smaller --attn-sink",
                      read.policy(), to_string(selector.budget), selector.sink, std::int64_t{selector.sink} + 1));
    }
    selector.local = static_cast<int>(std::min(selector.budget.value, 1e9)) - selector.sink;
  } else if (selector.budget.rule == plan::BudgetRule::ratio) {
    selector.budget = with_room(selector.budget, selector);
  } else {
    throw UserError(
        fmt::format("policy '{}' computes no scores, so --attn-budget {} has no meaning for it; "
                    "give tokens (1024) or a share (10%)",
                    read.policy(), to_string(selector.budget)));
  }
  return selector;
}

}  // namespace glimpse::policies
