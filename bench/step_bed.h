// Attention of decode steps and nothing else: a cache of made-up keys and values in the engine's layout, forked for
// each plan that is measured, and a Runner that is driven layer by layer as the executor drives it. Owns cache, states
// and threads; one caller.
//
// Keys before RoPE are one of a few topics of their head plus noise, a topic for each stretch of tokens, and queries
// ask for two topics: scores are peaked and unlike from block to block, as those of a model are.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "glimpse/attention/cpu/runner.h"
#include "glimpse/evaluate/stream.h"
#include "glimpse/evaluate/thread_team.h"
#include "glimpse/exec/rope.h"

namespace glimpse::bench {

struct BedOptions {
  plan::ModelShape shape;
  KvType kv_type = KvType::bf16;
  std::int64_t tokens = 8192;  ///< of the prompt
  int steps = 1;               ///< at most so many calls of next_token
  int plans = 1;               ///< at most so many of add
  int threads = 2;
};

/// What one head read in a step.
struct HeadRead {
  int kv_head = 0;
  bool all = false;                                   ///< every token of the context
  std::vector<std::int32_t> tokens;                   ///< positions, unless `all`
  std::vector<std::vector<std::int32_t>> query_sets;  ///< one for each query head, where they differ
  /// K and V rows: an entry of two query heads' sets counts twice.
  std::int64_t rows(std::int64_t context) const;
};

struct LayerTime {
  double select_s = 0, attend_s = 0;
};

class StepBed {
 public:
  explicit StepBed(const BedOptions& options);

  /// The plan must outlive the bed. Returns its number.
  int add(const plan::Plan& plan);
  /// Rows of q, k and v for the next step of every plan. Each plan takes every token once.
  void next_token();
  /// One step under a plan; `reads` [layer][kv_head] makes it slower.
  std::vector<LayerTime> step(int plan, std::vector<std::vector<HeadRead>>* reads = nullptr);
  /// Bytes per second that all threads stream now. Leaves the caches cold.
  double bandwidth();

  // Of the last step.
  const attention::ReadCounters& counters() const { return counters_; }
  std::int64_t tokens() const { return tokens_; }
  const float* query(int layer, int kv_head) const;   ///< [g, d]
  const float* output(int layer, int kv_head) const;  ///< [g, d]
  const attention::SequenceState& state(int plan) const { return *subjects_[static_cast<std::size_t>(plan)].state; }
  kernels::HeadView view(int plan, int layer, int kv_head) const;

  const plan::ModelShape& shape() const { return options_.shape; }
  kernels::KvFormat format() const { return cache_->shape().format; }
  float scale() const;

 private:
  struct Subject {
    const plan::Plan* plan = nullptr;
    std::unique_ptr<attention::Program> program;
    kv::SequenceId sequence = -1;
    std::unique_ptr<attention::SequenceState> state;
  };
  void fill();
  void add_noise(float* row, float weight);
  const float* topic(int layer, int kv_head, std::size_t number) const;
  void seed(Subject& subject);

  BedOptions options_;
  std::mt19937 random_{11};
  std::vector<float> noise_;   ///< normal numbers to draw rows from
  std::vector<float> topics_;  ///< [layer, kv_head, kTopics, d]
  exec::RopeTable rope_;
  std::unique_ptr<kv::Cache> cache_;
  std::unique_ptr<attention::Runner> runner_;
  kv::SequenceId base_ = -1;
  std::vector<Subject> subjects_;
  std::int64_t tokens_ = 0;
  std::vector<Boundary> boundaries_;       ///< [tokens]
  std::vector<float> q_, k_, v_, output_;  ///< [layer, heads, d], heads of queries or of K and V
  attention::ReadCounters counters_;
  evaluate::Stream stream_;
  evaluate::ThreadTeam team_;
};

}  // namespace glimpse::bench
