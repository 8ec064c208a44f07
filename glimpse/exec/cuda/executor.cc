#include "glimpse/exec/cuda/executor.h"

#include <algorithm>
#include <list>

#include "glimpse/attention/cuda/runner.h"
#include "glimpse/base/error.h"
#include "glimpse/exec/cuda/activations.h"
#include "glimpse/exec/cuda/weights.h"
#include "glimpse/exec/rope.h"

namespace glimpse::exec::cuda {
namespace {

using namespace kernels::cuda;  // NOLINT(google-build-using-namespace): what a pass queues, word by word

constexpr std::size_t kGraphsKept = 16;

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(const model::Model& model, kv::Cache& cache, Stream& stream, int threads)
      : config_(model.config()),
        stream_(stream),
        products_(stream),
        weights_(model, stream, threads),
        rope_(config_.rope),
        runner_({config_.layers, config_.heads, config_.kv_heads, config_.head_dim, threads}, cache, stream),
        staging_(stream) {}

  StepResult forward(const StepBatch& batch) override {
    stream_.make_current();
    for (const std::int32_t token : batch.tokens) {
      check(token >= 0 && token < config_.vocabulary, "a token id of the vocabulary");
    }
    staging_.clear();
    add_rows(batch);
    runner_.begin(batch.sequences, staging_);
    const std::size_t outputs = batch.output_rows.size();
    rows_ = static_cast<int>(batch.tokens.size());
    outputs_ = static_cast<int>(outputs);
    activations_.reserve(stream_, config_, batch.tokens.size(), outputs);
    const std::size_t logit_bytes = outputs * static_cast<std::size_t>(config_.vocabulary) * sizeof(float);
    if (logit_bytes > logits_.size()) {
      stream_.synchronize();
      logits_ = Pinned(stream_, logit_bytes);
    }
    staging_.send();
    runner_.prepare();
    run();
    if (outputs > 0) activations_.logits.memory().copy_out_later(0, logits_, logit_bytes);
    stream_.synchronize();
    StepResult result;
    result.counters = runner_.end();
    result.failures = runner_.failures();
    if (outputs > 0) result.logits = {reinterpret_cast<const float*>(logits_.raw()), logit_bytes / sizeof(float)};
    return result;
  }

  std::span<const float> logits_of(std::span<const std::int32_t>) override {
    throw UserError("log-probabilities of a prompt come from the CPU alone for now; leave out --device");
  }
  bool began() const override { return runner_.began(); }
  std::optional<double> attention_seconds() const override { return {}; }
  /// Products read the weights once for all rows, with other bits than for one; attention reads the cache for each.
  RowCosts row_costs() const override {
    RowCosts costs;
    costs.weights_row = 0.02;
    costs.attention_once = 0;
    costs.attention_query = static_cast<double>(config_.kv_heads) / config_.heads;
    costs.dense_query = 0;
    costs.vector = 1;
    return costs;
  }
  void set_observer(std::function<void(const attention::HeadRecord&)> observer) override {
    runner_.observer = std::move(observer);
  }
  void measure_change(bool on) override {
    if (on) throw UserError("what attention changes is measured on the CPU alone for now; leave out --device");
  }
  std::vector<double> attention_change() const override { return {}; }

 private:
  void add_rows(const StepBatch& batch) {
    positions_.clear();
    for (const attention::SequenceRows& sequence : batch.sequences) {
      check(sequence.first_row == static_cast<int>(positions_.size()), "rows follow the order of sequences");
      for (int row = 0; row < sequence.rows; ++row) positions_.push_back(sequence.position + row);
    }
    check(positions_.size() == batch.tokens.size(), "a token for each row");
    rope_.fill(positions_);
    tokens_place_ = staging_.add(batch.tokens);
    cos_sin_place_ = staging_.add(rope_.cos_sin(positions_.size()));
    outputs_place_ = staging_.add(batch.output_rows);
  }

  /// The pass as a graph where one of its shape is kept, else queued piece by piece: the first time what must grow
  /// grows, the second time it becomes a graph.
  void run() {
    if (runner_.key().empty()) return queue();
    key_ = runner_.key();
    key_.insert(key_.end(), {outputs_, staging_.moves(), activations_.moves});
    const auto found = std::find_if(passes_.begin(), passes_.end(), [&](const Pass& pass) { return pass.key == key_; });
    if (found == passes_.end()) {
      if (passes_.size() == kGraphsKept) passes_.pop_back();
      passes_.push_front({key_, nullptr});
      return queue();
    }
    passes_.splice(passes_.begin(), passes_, found);
    Pass& pass = passes_.front();
    if (!pass.graph) pass.graph = std::make_unique<Graph>(stream_, [&] { queue(); });
    pass.graph->run();
  }

  void queue() {
    Activations& a = activations_;
    embed_tokens();
    for (int layer = 0; layer < config_.layers; ++layer) {
      const LayerMatrices& weights = weights_.layers()[static_cast<std::size_t>(layer)];
      attend(layer, weights);
      const bool last = layer + 1 == config_.layers;
      if (last && outputs_ == 0) break;  // nobody wants more of the chunk than what attention leaves
      feed_forward(weights, last && outputs_ < rows_);
    }
    if (outputs_ > 0) {
      normalise_rows(outputs_ < rows_ ? a.rest : a.residual, true, weights_.output_norm(), outputs_);
      products_.multiply(weights_.output(), a.normalised.constant(), outputs_, a.logits.pointer());
    }
    runner_.finish();
  }

  void embed_tokens() {
    const MatrixPart& table = weights_.token_embedding().parts.front();
    const auto tokens = staging_.at<std::int32_t>(tokens_place_);
    const auto out = activations_.residual.pointer();
    if (table.packed.words) {
      unpack_rows(stream_, {table.packed, tokens, out, rows_});
    } else {
      embed(stream_, {table.data, tokens, out, rows_, config_.hidden});
    }
  }

  /// The attention of a layer, up to its output before the projection.
  void attend(int layer, const LayerMatrices& weights) {
    Activations& a = activations_;
    normalise_rows(a.residual, layer > 0, weights.attention_norm, rows_);
    products_.multiply(weights.qkv, a.normalised.constant(), rows_, a.qkv.pointer());
    split_qkv(stream_, {.qkv = a.qkv.constant(),
                        .q_bias = weights.q_bias,
                        .k_bias = weights.k_bias,
                        .v_bias = weights.v_bias,
                        .q_norm = weights.q_norm,
                        .k_norm = weights.k_norm,
                        .cos_sin = staging_.at<float>(cos_sin_place_),
                        .q = a.q.pointer(),
                        .k = a.k.pointer(),
                        .v = a.v.pointer(),
                        .rows = rows_,
                        .heads = config_.heads,
                        .kv_heads = config_.kv_heads,
                        .dim = config_.head_dim,
                        .rotated = config_.rope.dims,
                        .neox = config_.rope.neox,
                        .epsilon = config_.rms_epsilon});
    runner_.layer(layer, {a.q.constant(), a.k.constant(), a.v.constant(), a.attended.pointer()});
  }

  /// The rest of a layer; `some`: of the rows with logits alone.
  void feed_forward(const LayerMatrices& weights, bool some) {
    Activations& a = activations_;
    const int rows = some ? outputs_ : rows_;
    const int q_width = config_.heads * config_.head_dim;
    if (some) {
      const auto which = staging_.at<std::int32_t>(outputs_place_);
      take_rows(stream_, {a.residual.constant(), which, a.rest.pointer(), rows, config_.hidden});
      take_rows(stream_, {a.attended.constant(), which, a.taken.pointer(), rows, q_width});
    }
    narrow(stream_, {(some ? a.taken : a.attended).constant(), a.narrowed.pointer(),
                     static_cast<std::size_t>(rows) * static_cast<std::size_t>(q_width)});
    products_.multiply(weights.output, a.narrowed.constant(), rows, a.delta.pointer());
    normalise_rows(some ? a.rest : a.residual, true, weights.ffn_norm, rows);
    if (weights.gates_paired && rows <= kMostPackedRows) {
      products_.multiply_gated(weights.gate_up.parts.front(), a.normalised.constant(), rows, a.activated.pointer());
    } else {
      products_.multiply(weights.gate_up, a.normalised.constant(), rows, a.gate_up.pointer());
      gate(stream_, {a.gate_up.constant(), a.activated.pointer(), rows, config_.feed_forward, weights.gates_paired});
    }
    products_.multiply(weights.down, a.activated.constant(), rows, a.delta.pointer());
  }

  void normalise_rows(Array<float>& residual, bool add, Floats weight, int rows) {
    normalise(stream_, {.residual = residual.pointer(),
                        .delta = add ? activations_.delta.constant() : Floats{},
                        .weight = weight,
                        .out = activations_.normalised.pointer(),
                        .rows = rows,
                        .width = config_.hidden,
                        .epsilon = config_.rms_epsilon});
  }

  struct Pass {
    std::vector<std::int64_t> key;
    std::unique_ptr<Graph> graph;  ///< null: it came once
  };

  const model::Config& config_;
  Stream& stream_;
  Products products_;
  Weights weights_;
  RopeTable rope_;
  attention::cuda::Runner runner_;
  Staging staging_;
  Activations activations_;
  Pinned logits_;
  std::vector<std::int64_t> positions_, key_;
  std::size_t tokens_place_ = 0, cos_sin_place_ = 0, outputs_place_ = 0;
  int rows_ = 0, outputs_ = 0;
  std::list<Pass> passes_;  ///< most recently used first
};

}  // namespace

std::unique_ptr<Executor> make_executor(const model::Model& model, kv::Cache& cache, Stream& stream, int threads) {
  return std::make_unique<CudaExecutor>(model, cache, stream, threads);
}

}  // namespace glimpse::exec::cuda
