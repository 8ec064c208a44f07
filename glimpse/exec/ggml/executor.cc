// The CPU executor: keeps a graph per shape of pass, ggml's state of a pool and one work buffer for its life. The
// threads are OpenMP's: a team for each thread that calls, kept between passes.
#include "glimpse/exec/executor.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <list>

#include "glimpse/base/error.h"
#include "glimpse/exec/ggml/graph.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::exec {
namespace {

/// Decoding, full chunks, a last chunk, and the same with a plan that selects: more shapes than these are rebuilt. That
/// takes 2 us a layer, under 1 % of any pass, so rows are not padded to fewer shapes; each graph kept holds
/// activations.
constexpr std::size_t kGraphsKept = 6;

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(const model::Model& model, kv::Cache& cache, const CpuOptions& options)
      : model_(model),
        weights_(model),
        rope_(model.config().rope),
        runner_({model.config().layers, model.config().heads, model.config().kv_heads, model.config().head_dim,
                 options.threads, &rope_},
                cache),
        threads_(options.threads),
        pool_(make_pool(options.threads)) {
    pass_.model = &model;
    pass_.runner = &runner_;
    pass_.rope = &rope_;
    pass_.products.resize(static_cast<std::size_t>(options.threads));
    pass_.scratch.assign(static_cast<std::size_t>(options.threads),
                         std::vector<float>(static_cast<std::size_t>(2 * kAppendBlock * model.config().head_dim)));
  }
  CpuExecutor(const CpuExecutor&) = delete;
  CpuExecutor& operator=(const CpuExecutor&) = delete;

  StepResult forward(const StepBatch& batch) override {
    for (const std::int32_t token : batch.tokens) {
      check(token >= 0 && token < model_.config().vocabulary, "a token id of the vocabulary");
    }
    kept_ = nullptr;
    runner_.begin(batch.sequences);
    positions_.clear();
    for (const attention::SequenceRows& sequence : batch.sequences) {
      check(sequence.first_row == static_cast<int>(positions_.size()), "rows follow the order of sequences");
      for (int row = 0; row < sequence.rows; ++row) positions_.push_back(sequence.position + row);
    }
    check(positions_.size() == batch.tokens.size(), "a token for each row");
    rope_.fill(positions_);
    pass_.sequences = batch.sequences;
    pass_.output_rows = batch.output_rows;
    pass_.rows = static_cast<int>(batch.tokens.size());

    Graph& graph = graph_for(batch);
    std::memcpy(graph.tokens()->data, batch.tokens.data(), batch.tokens.size_bytes());
    run(graph);
    if (batch.keep_rows) kept_ = &graph;
    StepResult result;
    result.counters = runner_.end();
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
      std::exception_ptr failure = runner_.failure(i);
      if (!failure) continue;
      result.failures.resize(batch.sequences.size());
      result.failures[i] = std::move(failure);
    }
    if (graph.logits() != nullptr) {
      result.logits = {static_cast<const float*>(graph.logits()->data),
                       batch.output_rows.size() * static_cast<std::size_t>(model_.config().vocabulary)};
    }
    return result;
  }

  std::span<const float> logits_of(std::span<const std::int32_t> rows) override {
    check(kept_ != nullptr && !rows.empty() && rows.size() <= kLogitRows, "rows of the last pass, which kept them");
    if (tail_ == nullptr) {
      tail_ = std::make_unique<Graph>(*kept_, weights_, pass_);
    } else {
      tail_->read(*kept_);
    }
    // Always as many, so that a row's bits do not depend on how many there are.
    tail_rows_.assign(rows.begin(), rows.end());
    tail_rows_.resize(kLogitRows, rows.back());
    pass_.output_rows = tail_rows_;
    check(compute(*tail_, nullptr) == GGML_STATUS_SUCCESS, "ggml runs a graph to its end");
    return {static_cast<const float*>(tail_->logits()->data),
            rows.size() * static_cast<std::size_t>(model_.config().vocabulary)};
  }

  bool began() const override { return runner_.began(); }

  std::optional<double> attention_seconds() const override { return runner_.seconds(); }

  RowCosts row_costs() const override {
    RowCosts costs;
    costs.same_bits = weights_.any_repacked() ? 1 : kernels::kFewRows;
    if (kernels::vector_floats() >= 16) return costs;
    // Measured with AVX2, the weights' of a model in Q8_0; narrower vectors for want of measurements.
    costs.weights_row = 0.45;
    costs.attention_once = 0.75;
    costs.attention_query = 0.167;
    costs.dense_query = 0.089;
    costs.vector = kernels::vector_floats();
    return costs;
  }

  void set_observer(std::function<void(const attention::HeadRecord&)> observer) override {
    runner_.observer = std::move(observer);
  }

  void measure_change(bool on) override {
    pass_.changes.clear();
    if (!on) return;
    pass_.changes.assign(static_cast<std::size_t>(threads_),
                         std::vector<ChangeSum>(static_cast<std::size_t>(model_.config().layers)));
  }

  std::vector<double> attention_change() const override {
    std::vector<double> means(static_cast<std::size_t>(model_.config().layers));
    for (std::size_t layer = 0; layer < means.size(); ++layer) {
      ChangeSum all;
      for (const std::vector<ChangeSum>& thread : pass_.changes) {
        all.sum += thread[layer].sum;
        all.rows += thread[layer].rows;
      }
      if (all.rows > 0) means[layer] = all.sum / static_cast<double>(all.rows);
    }
    return means;
  }

 private:
  Graph& graph_for(const StepBatch& batch) {
    key_.rows = static_cast<int>(batch.tokens.size());
    key_.outputs = static_cast<int>(batch.output_rows.size());
    key_.selects.resize(static_cast<std::size_t>(model_.config().layers));
    for (int layer = 0; layer < model_.config().layers; ++layer) {
      key_.selects[static_cast<std::size_t>(layer)] = runner_.needs_select(layer);
    }
    key_.keeps_rows = batch.keep_rows;
    key_.ends_attending = batch.output_rows.empty() && runner_.needs_attend(model_.config().layers - 1);
    const auto found = std::find_if(graphs_.begin(), graphs_.end(),
                                    [&](const std::unique_ptr<Graph>& graph) { return graph->shape() == key_; });
    if (found != graphs_.end()) {
      graphs_.splice(graphs_.begin(), graphs_, found);
    } else {
      if (graphs_.size() == kGraphsKept) graphs_.pop_back();
      graphs_.push_front(std::make_unique<Graph>(key_, weights_, pass_));
    }
    return *graphs_.front();
  }

  /// The graph of the runner's pass.
  void run(Graph& graph) {
    pass_.narrow = [&graph](int rows) { graph.set_rows(rows); };
    const ggml_status status =
        compute(graph, [](void* runner) { return static_cast<const attention::Runner*>(runner)->stopped(); });
    if (pass_.rows != graph.shape().rows) graph.set_rows(graph.shape().rows);
    if (status == GGML_STATUS_ABORTED) return runner_.abandon();
    check(status == GGML_STATUS_SUCCESS, "ggml runs a graph to its end");
  }

  ggml_status compute(Graph& graph, ggml_abort_callback stopped) {
    ggml_cplan plan = ggml_graph_plan(graph.graph(), threads_, pool_.get());
    if (work_.size() < plan.work_size) work_.resize(plan.work_size);
    plan.work_data = work_.data();
    plan.abort_callback = stopped;
    plan.abort_callback_data = &runner_;
    return ggml_graph_compute(graph.graph(), &plan);
  }

  const model::Model& model_;
  Weights weights_;
  RopeTable rope_;
  attention::Runner runner_;
  int threads_;
  PoolPointer pool_;
  PassState pass_;
  std::vector<std::int64_t> positions_;
  GraphShape key_;
  std::list<std::unique_ptr<Graph>> graphs_;  ///< most recently used first
  const Graph* kept_ = nullptr;               ///< of the last pass, where it keeps its rows
  std::unique_ptr<Graph> tail_;               ///< what makes logits of such rows
  std::vector<std::int32_t> tail_rows_;
  std::vector<std::uint8_t> work_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(const model::Model& model, kv::Cache& cache, const CpuOptions& options) {
  return std::make_unique<CpuExecutor>(model, cache, options);
}

}  // namespace glimpse::exec
