// A decode run with everything that its sets came from: queries, keys and state as the engine had them, so that a
// transcription of the method can start from the same numbers at every step. Value types; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/support.h"
#include "tests/reference/methods.h"

namespace glimpse::engine {

/// One KV head in one step.
struct HeadStep {
  plan::RoleKind role = plan::RoleKind::dense;
  std::int64_t budget = 0;
  bool reads_all = false, publishes = false, publishes_all = false;
  methods::Set tokens, published;
  std::vector<methods::Set> query_sets;
  methods::Rows queries;  ///< [g, d]
};

/// What the engine carries from step to step, where the plan has it.
struct StateCopy {
  std::vector<methods::Scores> heat;       ///< [layer][block], or one vector for the model
  std::vector<methods::Scores> statistic;  ///< [layer * kv_heads + head][position]
  std::vector<methods::Set> live;          ///< [layer * kv_heads + head]
};

struct StepRecord {
  std::int64_t step = 0, position = 0;
  std::vector<HeadStep> heads;  ///< [layer * kv_heads + head]
  StateCopy before, after;
};

struct Recording {
  plan::Plan plan;
  std::int64_t prompt = 0;
  std::vector<StepRecord> steps;
  std::vector<methods::Rows> keys;  ///< [layer * kv_heads + head][position]; empty rows where evicted in the prompt

  std::size_t index(int layer, int head) const { return static_cast<std::size_t>(layer * plan.shape.kv_heads + head); }
  const HeadStep& at(const StepRecord& step, int layer, int head) const { return step.heads.at(index(layer, head)); }
  /// Of the tokens up to `step`'s.
  methods::Rows keys_at(const StepRecord& step, int layer, int head) const;
};

struct RunOptions {
  int steps = 16;
  int replayed = 0;   ///< so many tokens at the passage's end are decoded instead of prefilled
  std::string model;  ///< a small test model; empty: the embedded one, where it is and no sanitizer slows it
};

/// Prefills a passage of about 320 tokens and decodes greedily by the policy's plan.
Recording record_run(const std::string& policy, const policies::PolicyOptions& options, const RunOptions& how = {});
/// The same by any plan for the model.
Recording record_run(const plan::Plan& plan, const RunOptions& how);
/// The file of RunOptions::model.
std::filesystem::path recorded_model(const std::string& model);
/// The engine that record_run uses; lives as long as the program, and so does what its recordings share.
Engine& shared_engine(const std::string& model);
std::vector<Token> passage(const Engine& engine);
/// The state of a sequence under `plan`, empty where the plan has none.
StateCopy state_of(const Sequence& sequence, const plan::Plan& plan);

/// The frame that a selector describes at a context of `tokens`.
methods::Frame frame_of(const plan::Selector& selector, std::int64_t tokens);
const plan::Selector& selector_of(const Recording& run, int layer, int head);
/// A layer that papers name for 32 layers.
int scaled_layer(int layer_of_32, const plan::ModelShape& shape);

using Pooling = std::function<methods::Scores(const methods::Rows& queries, const methods::Rows& keys)>;

/// Every set that a selecting head makes is the transcription's, of scores pooled by `pooling` over the queries that
/// the set is for; with sets per layer the heads' scores are pooled by mean, or by maximum where the plan says so.
/// Heads that attend their set read it and the others all. Returns how many sets were compared.
int expect_selected(const Recording& run, const Pooling& pooling);
/// Whose set a KV head of a reusing layer reads, as a head of the layer that selected.
using HeadMap = std::function<int(int layer, int kv_head)>;
/// Every reuse head reads what the nearest earlier selecting layer published: the head that `map` names, without one
/// the head of the same index, or head 0 when sets are per layer.
int expect_inherited(const Recording& run, const HeadMap& map = {});
/// The layers where all heads are dense, and those where all select; the rest reuses.
void expect_roles(const Recording& run, const std::vector<int>& dense, const std::vector<int>& select);
/// For each KV head a letter a layer: D dense, S select, R reuse.
void expect_roles(const Recording& run, const std::vector<std::string>& heads);
/// A step and head in words, for failures.
std::string place(const StepRecord& step, int layer, int head);

}  // namespace glimpse::engine
