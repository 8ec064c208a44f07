// Which heads are retrieval heads: by a profile, or evenly spread. Functions on values; any thread.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "glimpse/policies/options.h"

namespace glimpse::policies {

/// How a policy asks for its retrieval KV heads.
struct RetrievalChoice {
  double share = 0.125;       ///< of all KV heads of the model, when neither option nor profile says more
  int first_layer = 0;        ///< heads of earlier layers are not chosen
  int counted_before = 0;     ///< so many of the number are heads of earlier layers
  bool scores_first = false;  ///< a profile's retrieval scores before its roles
};

/// 1 for a retrieval head, [layer, kv_head]; layers before `first_layer` are 0. The number is --attn-opt retrieval=; by
/// a profile's roles alone, the heads above 0.5, or with `scores_first` the strongest. Warns where there is no profile.
std::vector<char> retrieval_kv_heads(const OptionReader& read, const plan::ModelShape& shape,
                                     const RetrievalChoice& choice);

/// The `count` query heads of highest retrieval score in layers [first_layer, L), by layer: [layer][...] ascending.
/// Without a profile evenly spread over the layers, with a warning.
std::vector<std::vector<int>> retrieval_query_heads(const OptionReader& read, const plan::ModelShape& shape,
                                                    int first_layer, int count);

/// The row of the option that retrieval_kv_heads reads.
OptionHelp retrieval_option(std::string_view default_help);

}  // namespace glimpse::policies
