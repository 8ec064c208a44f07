// What a run has to say for itself, in words for standard error. Values; any thread.
#pragma once

#include <string>
#include <string_view>

#include "glimpse/engine/engine.h"

namespace glimpse::cli {

struct RunReport {
  std::string text;  ///< the answer
  engine::Result result;
  std::string policy, budget;  ///< budget is empty where the plan has none
  std::string sets;            ///< for whom sets are made, "kv-head"; empty where none is
  bool interrupted = false;
  bool lossless = false;

  /// Tokens that decoding made. The first token of an answer comes out of the prefill; a drafted one may be taken back.
  std::int64_t decode_steps() const {
    if (lossless) return result.stats.generated_tokens > 0 ? result.stats.generated_tokens - 1 : 0;
    return result.stats.attention.dense_steps + result.stats.attention.sparse_steps;
  }
  /// Seconds of one decoded token; 0 when none was decoded. The first token of an answer comes out of the prefill.
  double token_seconds() const;
  double bytes_per_token() const;
  std::string finish_reason() const;
};

std::string statistics(const RunReport& report);

/// "12.60 % of the bytes of dense attention" for AttentionStats::kept_ratio(), or the same of a trace.
std::string share_of_dense(double share);

/// "llama 'Name', 4 layers, 6 query and 2 KV heads of 32"
std::string shape_text(const plan::ModelShape& shape);

}  // namespace glimpse::cli
