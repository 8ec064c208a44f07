// DuoAttention: Xiao, Tang, Zuo, Guo, Yang, Tang, Fu, Han, "DuoAttention: Efficient Long-Context LLM Inference with
// Retrieval and Streaming Heads", ICLR 2025, arXiv 2410.10819 (half of the KV heads retrieve with grouped heads, a
// quarter without).
#include <array>

#include "glimpse/policies/streaming_heads.h"

namespace glimpse::policies {
namespace {

const std::array<OptionHelp, 1> kOptions{{
    retrieval_option(
        "how many KV heads are retrieval heads, a number or a share; auto: 50 %, or 25 % in a model without "
        "grouped heads, the strongest by the profile's retrieval scores; of a profile with roles alone the "
        "heads above 0.5"),
}};

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("duo", kOptions, options);
  plan::dense_plan(shape);  // refuses an empty shape before its group is asked for
  // Roles of calibration are LycheeDecode's, heads that choose for others: beside scores they are not this method's.
  const bool scores = read.profile() != nullptr && read.profile()->retrieval;
  return streaming_heads_plan(read, shape, {.share = shape.group() > 1 ? 0.5 : 0.25, .scores_first = scores},
                              /*compensates=*/false);
}

}  // namespace

Policy duo_policy() {
  return {
      "duo",
      "retrieval heads read everything, the others first tokens and a window (budget 1024, --attn-sink 4)",
      "Xiao et al., DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads, ICLR 2025, "
      "arXiv 2410.10819",
      {kOptions.begin(), kOptions.end()},
      make,
      {"retrieval", "roles"}};
}

}  // namespace glimpse::policies
