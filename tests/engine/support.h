// Shared by the engine's tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "glimpse/engine/engine.h"
#include "glimpse/policies/policy.h"
#include "tests/support/models.h"

namespace glimpse::engine {

inline std::vector<Token> random_tokens(std::size_t count, int vocabulary, std::uint32_t seed = 7) {
  std::mt19937 random(seed);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random() % static_cast<std::uint32_t>(vocabulary));
  return tokens;
}

inline EngineOptions options_for(const std::filesystem::path& model, KvType type = KvType::f32,
                                 int threads = reference::kTestThreads) {
  EngineOptions options;
  options.model = model;
  options.kv_type = type;
  options.threads = threads;
  options.sequences = 3;
  return options;
}

inline plan::Plan make(const Engine& engine, const std::string& policy, policies::PolicyOptions options = {}) {
  return policies::make_plan(policy, engine.shape(), options);
}

inline policies::PolicyOptions budget(std::string_view text, std::map<std::string, std::string> extra = {}) {
  policies::PolicyOptions options;
  options.budget = plan::parse_budget(text);
  options.extra = std::move(extra);
  return options;
}

/// A request for 12 greedy tokens behind random ones, at a budget of 48.
inline Request request_for(const Engine& engine, std::size_t length, const std::string& policy, std::uint32_t seed) {
  Request request;
  request.prompt = random_tokens(length, engine.tokenizer().size(), seed);
  request.plan = make(engine, policy, policy == "full" ? policies::PolicyOptions{} : budget("48"));
  request.max_tokens = 12;
  request.ignore_end = true;
  return request;
}

inline void run_all(Engine& engine) {
  while (engine.step()) {
  }
}

/// What the request gets in an engine of its own.
inline std::vector<Token> alone(const Request& request,
                                const EngineOptions& options = options_for(reference::test_model("llama"))) {
  Engine engine(options);
  const RequestId id = engine.submit(request);
  run_all(engine);
  return engine.result(id).tokens;
}

inline Result answered(Engine& engine, const Request& request) {
  const RequestId id = engine.submit(request);
  run_all(engine);
  Result result = engine.result(id);
  engine.release(id);
  return result;
}

inline plan::Plan without_tier(plan::Plan plan) {
  plan.retentions.clear();
  for (plan::Role& role : plan.roles) role.retention = -1;
  return plan;
}

/// The logits of every token, one after the other.
inline std::vector<float> decoded(Sequence& sequence, std::span<const Token> tokens) {
  std::vector<float> all;
  for (const Token token : tokens) {
    const auto logits = sequence.decode(token);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace glimpse::engine
