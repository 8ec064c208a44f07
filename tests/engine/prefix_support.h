// What tests of kept prefixes share.
#pragma once

#include <string>
#include <vector>

#include "tests/engine/gates.h"
#include "tests/engine/support.h"

namespace glimpse::engine {

inline constexpr int kPrefixChunk = 64;

inline EngineOptions prefix_options(std::int64_t bytes, int threads = 1) {
  EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16, threads);
  options.prefill_chunk = kPrefixChunk;
  options.prefix_bytes = bytes;
  options.sequences = 8;
  return options;
}

inline std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const policies::Policy& policy : policies::registry()) names.emplace_back(policy.name);
  return names;
}

inline Request prefix_request(const Engine& engine, const std::string& policy, std::vector<Token> prompt,
                              Reuse reuse = Reuse::exact) {
  policies::PolicyOptions options = policy == "full" ? policies::PolicyOptions{} : budget("160");
  add_needed(policy, reference::test_model("llama"), options);
  Request request;
  request.prompt = std::move(prompt);
  request.plan = make(engine, policy, options);
  request.max_tokens = 8;
  request.ignore_end = true;
  request.logprobs = 20;
  request.reuse = reuse;
  return request;
}

inline std::vector<Token> joined(std::vector<Token> first, const std::vector<Token>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Greedy tokens, and of each the twenty likeliest with the very bits of their log-probabilities.
inline bool same_answer(const Result& a, const Result& b) {
  if (a.tokens != b.tokens || a.logprobs.size() != b.logprobs.size()) return false;
  for (std::size_t i = 0; i < a.logprobs.size(); ++i) {
    if (a.logprobs[i].logprob != b.logprobs[i].logprob || a.logprobs[i].top.size() != b.logprobs[i].top.size()) {
      return false;
    }
    for (std::size_t k = 0; k < a.logprobs[i].top.size(); ++k) {
      if (a.logprobs[i].top[k].token != b.logprobs[i].top[k].token) return false;
      if (a.logprobs[i].top[k].logprob != b.logprobs[i].top[k].logprob) return false;
    }
  }
  return true;
}

/// No page is lost: what is not free is kept.
inline void expect_only_kept(const Engine& engine) {
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.pages_free + stats.pages_kept, stats.pages_total);
}

}  // namespace glimpse::engine
