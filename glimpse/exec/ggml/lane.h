// A forward pass on the CPU from its first layer to its last: one graph for each shape, kept, and all that its nodes
// share. Weights, cache, threads and scratch are borrowed. Two lanes may have a pass each: that of one waits between
// two layers while that of the other runs. One thread at a time.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "glimpse/attention/cpu/runner.h"
#include "glimpse/exec/executor.h"
#include "glimpse/exec/ggml/graph.h"
#include "glimpse/exec/ggml/owned.h"
#include "glimpse/exec/rope.h"

namespace glimpse::exec {

/// What the lanes of an executor share; it outlives them.
struct Machine {
  const model::Model& model;
  const Weights& weights;
  kv::Cache& cache;
  int threads = 1;
  PoolPointer pool;
  std::vector<std::uint8_t> work;  ///< of the graph that runs
};

class Lane {
 public:
  explicit Lane(Machine& machine);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// All that comes before the first layer. The batch's spans stay until end(). Throws as Executor::forward.
  void begin(const StepBatch& batch);
  /// Runs the next `layers` layers at most. True: that was the last one.
  bool run(int layers);
  /// What comes of it. Of a pass that has layers left every sequence fails.
  StepResult end();

  /// Of the last pass, which was asked to keep its rows and has ended (Executor::logits_of).
  std::span<const float> logits_of(std::span<const std::int32_t> rows);

  attention::Runner& runner() { return runner_; }
  const attention::Runner& runner() const { return runner_; }
  PassData& pass() { return pass_; }
  const PassData& pass() const { return pass_; }

 private:
  Graph& graph_for(const StepBatch& batch);
  /// A graph, or one layer of it. False: every sequence was stopped.
  bool compute(ggml_cgraph* graph, bool stops);

  Machine& machine_;
  RopeTable rope_;
  attention::Runner runner_;
  PassData pass_;
  std::vector<std::int64_t> positions_;
  GraphShape key_;
  std::list<std::unique_ptr<Graph>> graphs_;  ///< most recently used first
  Graph* graph_ = nullptr;                    ///< of the pass that runs, or of the last one
  int next_layer_ = 0;
  bool abandoned_ = false;
  std::size_t sequences_ = 0;
  std::unique_ptr<Graph> tail_;  ///< what makes logits of rows that were kept
  std::vector<std::int32_t> tail_rows_;
};

}  // namespace glimpse::exec
