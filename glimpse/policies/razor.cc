// RazorAttention: Tang, Lin, Lin, Han, Ke, Yao, Wang, "RazorAttention: Efficient KV Cache Compression Through Retrieval
// Heads", ICLR 2025, arXiv 2407.15891 (15 % of the heads stay whole; a compensation token stands for what others drop).
#include <array>

#include "glimpse/policies/streaming_heads.h"

namespace glimpse::policies {
namespace {

const std::array<OptionHelp, 1> kOptions{{
    retrieval_option("how many KV heads are retrieval heads, a number or a share; auto: 15 %, the strongest by the "
                     "profile's retrieval scores"),
}};

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("razor", kOptions, options);
  return streaming_heads_plan(read, shape, {.share = 0.15, .scores_first = true}, /*compensates=*/true);
}

}  // namespace

Policy razor_policy() {
  return {"razor",
          "retrieval heads read everything, the others first tokens, a window and one mean token for the dropped "
          "(budget 1024)",
          "Tang et al., RazorAttention: Efficient KV Cache Compression Through Retrieval Heads, ICLR 2025, arXiv "
          "2407.15891",
          {kOptions.begin(), kOptions.end()},
          make,
          {"retrieval", "roles"}};
}

}  // namespace glimpse::policies
