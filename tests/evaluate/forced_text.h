// A small model, tokens of no meaning, and plans by name: what tests of forced texts have in common.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/engine/engine.h"
#include "glimpse/policies/policy.h"
#include "tests/support/models.h"

namespace glimpse::evaluate {

inline engine::Engine small_engine(int sequences = 1) {
  engine::EngineOptions options;
  options.model = reference::test_model("llama");
  options.context = 256;
  options.sequences = sequences;
  options.threads = 2;
  options.prefill_chunk = 48;
  return engine::Engine(options);
}

inline std::vector<engine::Token> some_tokens(std::int64_t count) {
  std::vector<engine::Token> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(260 + (i * 37 + i * i) % 250);
  return tokens;
}

inline plan::Plan plan_of(const engine::Engine& engine, std::string_view policy, int budget,
                          const std::map<std::string, std::string, std::less<>>& extra = {}) {
  policies::PolicyOptions options;
  options.budget = plan::Budget{plan::BudgetRule::tokens, static_cast<double>(budget)};
  for (const auto& [key, value] : extra) options.extra.emplace(key, value);
  return policies::make_plan(policy, engine.shape(), options);
}

}  // namespace glimpse::evaluate
