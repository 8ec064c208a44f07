// Writes the seed corpus of session_fuzzer into a folder: session_seeds FOLDER
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>

#include "glimpse/policies/policy.h"
#include "tests/fuzz/session_model.h"

namespace {

using namespace glimpse;
using namespace glimpse::engine;

constexpr std::int64_t kPrompt = 160, kTokens = 200;

/// Heads forget as the plan's would, roughly: streams whole pages behind the sink, others every third token.
void forget(kv::Cache& cache, kv::SequenceId sequence, const plan::Plan& plan) {
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      const int number = plan.role(layer, head).retention;
      if (number < 0) continue;
      const plan::RetentionRule rule = plan.retentions[static_cast<std::size_t>(number)].rule;
      if (!plan::forgets(rule)) continue;
      std::vector<std::int32_t> gone;
      for (std::int32_t position = 16; position < 96; ++position) {
        if (rule == plan::RetentionRule::window || position % 3 == 0) gone.push_back(position);
      }
      cache.free_tokens(sequence, layer, head, gone);
    }
  }
}

void write(const std::filesystem::path& path, const plan::Plan& plan) {
  SavedSession session;
  session.model = fuzzed_model();
  session.plan = plan;
  session.prompt_tokens = kPrompt;
  session.decode_steps = session.steps = kTokens - kPrompt;
  std::mt19937 random(1);
  for (std::int64_t i = 0; i < kTokens; ++i) session.tokens.push_back(static_cast<int>(random() % 64));
  session.logits.assign(64, 0.5F);

  const plan::ModelShape& shape = plan.shape;
  kv::Cache cache({shape.layers, shape.kv_heads, session.model.format, kFuzzedTokens});
  const kv::SequenceId sequence = cache.create();
  cache.extend(sequence, kTokens);
  attention::SequenceState state(plan);
  state.prompt_tokens = kPrompt;
  state.decode_steps = session.decode_steps;
  for (int layer = 0; layer < shape.layers; ++layer) {
    std::vector<kernels::HeadView> views;
    for (int head = 0; head < shape.kv_heads; ++head) {
      views.push_back(cache.view(sequence, layer, head));
      for (std::int32_t slot = 0; slot < kTokens; ++slot) {
        for (auto plane : {views.back().k_plane, views.back().v_plane}) {
          auto* row = reinterpret_cast<std::uint16_t*>(views.back().row_of(plane, slot, session.model.format));
          for (int i = 0; i < shape.head_dim; ++i) row[i] = static_cast<std::uint16_t>(0x3f00 + random() % 256);
        }
      }
      if (auto& index = state.indices[state.head(layer, head)]) {
        index->extend({&views.back(), session.model.format, {}, kPrompt}, kTokens);
      }
      if (auto& dropped = state.dropped[state.head(layer, head)]; !dropped.k_sum.empty()) dropped.end = 140;
    }
    const int rank = state.key_ranks[static_cast<std::size_t>(layer)];
    if (rank == 0) continue;
    kv::LayerKeys keys{views, session.model.format, kPrompt, [](std::int64_t, float*) {}};
    state.low_rank[static_cast<std::size_t>(layer)] = std::make_shared<const kv::LowRankKeys>(keys, rank);
  }
  if (state.heat.any()) state.heat.of(0).assign(static_cast<std::size_t>(kTokens / state.heat.block()), 0.25F);
  forget(cache, sequence, plan);
  SessionPieces(path, {&session, &state, &cache, sequence}).finish();
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: session_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  std::filesystem::create_directories(folder);
  for (const policies::Policy& policy : policies::registry()) {
    const auto& table = policy.options;
    // What needs a file of its own, as trained gates, cannot be made here.
    if (std::any_of(table.begin(), table.end(), [](const auto& option) { return option.needed; })) continue;
    policies::PolicyOptions options;
    if (policy.name != "full") options.budget = plan::parse_budget("64");
    write(folder / std::string(policy.name), policies::make_plan(policy.name, fuzzed_model().shape, options));
  }
  return 0;
}
