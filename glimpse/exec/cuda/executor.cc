#include "glimpse/exec/cuda/executor.h"

#include <algorithm>
#include <deque>
#include <list>
#include <utility>

#include "glimpse/attention/cuda/runner.h"
#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/exec/cuda/activations.h"
#include "glimpse/exec/cuda/weights.h"
#include "glimpse/exec/rope.h"
#include "glimpse/kernels/cuda/readings.h"

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
        runner_({config_.layers, config_.heads, config_.kv_heads, config_.head_dim, threads, &rope_}, cache, stream),
        staging_(stream),
        arrived_(stream),
        once_(prefills_few_rows(stream, cache.shape().format)) {}

  ~CudaExecutor() override {
    try {
      stream_.synchronize();           // a pass that nobody collected reads what is freed here
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): then nothing runs
    }
  }
  CudaExecutor(const CudaExecutor&) = delete;
  CudaExecutor& operator=(const CudaExecutor&) = delete;

  StepResult forward(const StepBatch& batch) override {
    check(flights_.empty(), "a pass by itself");
    launch(batch);
    return collect();
  }

  bool flies() const override { return true; }
  bool leaves_nothing(const attention::Program& program, attention::PassKind kind, std::int64_t tokens) override {
    return !measures_ && runner_.leaves_nothing(program, kind, tokens);
  }

  void launch(const StepBatch& batch) override {
    stream_.make_current();
    const bool behind = !flights_.empty();
    for (const std::int32_t token : batch.tokens) {
      const std::int32_t least = behind ? -flights_.back().outputs : 0;
      check(token >= least && token < config_.vocabulary, "a token id of the vocabulary");
    }
    const std::size_t outputs = batch.output_rows.size();
    const int leaders = outputs == 0 ? 0 : std::min(batch.leaders, config_.vocabulary);
    check(!behind || (flights_.size() == 1 && flights_.back().draws && leaders > 0 && !batch.keep_rows &&
                      !keeps_rows_ && !measures_ && outputs <= size(flights_.back().outputs) * kMostRowsBehind),
          "one pass behind another, which draws its tokens");
    check(batch.draws.empty() || batch.draws.size() == outputs, "a draw for each row with leaders");
    staging_.clear();
    add_rows(batch);
    runner_.begin(batch.sequences, staging_);
    try {
      rows_ = static_cast<int>(batch.tokens.size());
      outputs_ = static_cast<int>(outputs);
      keeps_rows_ = batch.keep_rows;
      leaders_ = leaders;
      draws_ = leaders > 0 && !batch.draws.empty();
      make_room();
      staging_.send(behind);
      runner_.prepare();
      run();
      flights_.push_back({outputs_, leaders_, draws_ || leaders_ == 1, measures_});
      if (!behind) copy_back();
    } catch (...) {
      if (flights_.size() > (behind ? 1U : 0U)) flights_.pop_back();
      runner_.drop_last();
      throw;
    }
  }

  StepResult collect() override {
    check(!flights_.empty(), "a pass that was launched");
    stream_.make_current();
    const Flight flight = flights_.front();
    StepResult result;
    try {
      arrived_.wait();
      result.counters = runner_.end();
      result.failures = runner_.failures();
      if (flight.measures) add_changes();
      flights_.pop_front();
      const std::size_t outputs = size(flight.outputs);
      if (flight.leaders > 0) result.leaders = take_leaders(flight, !flights_.empty());
      if (!flights_.empty()) {
        result.drawn = take_drawn(flight);
        copy_back();
      } else if (outputs > 0 && result.leaders.empty()) {
        if (flight.leaders > 0) {
          copy_logits(outputs, logits_);
          stream_.synchronize();
        }
        result.logits = {reinterpret_cast<const float*>(logits_.raw()), outputs * size(config_.vocabulary)};
      }
    } catch (...) {
      abandon();
      throw;
    }
    return result;
  }

  void abandon() override {
    for (; !flights_.empty(); flights_.pop_front()) runner_.drop_last();
    try {
      stream_.synchronize();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it has been said
    }
  }

  std::span<const float> logits_of(std::span<const std::int32_t> rows) override {
    check(keeps_rows_ && !rows.empty() && rows.size() <= kLogitRows, "rows of the last pass, which kept them");
    stream_.make_current();
    // Always as many, so that a row's bits do not depend on how many there are.
    asked_.assign(rows.begin(), rows.end());
    asked_.resize(kLogitRows, rows.back());
    staging_.clear();
    outputs_place_ = staging_.add(asked_);
    staging_.send();
    outputs_ = static_cast<int>(kLogitRows);
    const bool measures = std::exchange(measures_, false);
    feed_forward(config_.layers - 1, true);
    make_logits(true);
    measures_ = measures;
    copy_logits(rows.size(), asked_logits_);
    stream_.synchronize();
    return {reinterpret_cast<const float*>(asked_logits_.raw()), rows.size() * size(config_.vocabulary)};
  }
  bool began() const override { return runner_.began(); }
  std::optional<double> attention_seconds() const override { return {}; }
  /// Products read the weights once for all rows, with other bits than for one. Attention reads the cache once for all,
  /// too, or for each.
  RowCosts row_costs() const override {
    RowCosts costs;
    costs.weights_row = 0.02;
    costs.attention_once = once_ ? 1 : 0;
    costs.attention_query = once_ ? 0.004 : static_cast<double>(config_.kv_heads) / config_.heads;
    costs.dense_query = 0;
    costs.vector = 1;
    return costs;
  }
  void set_on_head(std::function<void(const attention::HeadRecord&)> on_head) override {
    runner_.on_head = std::move(on_head);
  }
  void measure_change(bool on) override {
    measures_ = on;
    changed_.assign(on ? size(config_.layers) : 0, {});
  }
  std::vector<double> attention_change() const override {
    std::vector<double> means(size(config_.layers));
    for (std::size_t layer = 0; layer < changed_.size(); ++layer) {
      if (changed_[layer].rows > 0) means[layer] = changed_[layer].sum / static_cast<double>(changed_[layer].rows);
    }
    return means;
  }

 private:
  /// For what a pass leaves behind beside its activations.
  void make_room() {
    const std::size_t least = keeps_rows_ ? kLogitRows : 0;
    const std::size_t rows = size(rows_), outputs = size(outputs_);
    activations_.reserve(stream_, config_, std::max(rows, least), std::max(outputs, least));
    const auto reserve = [&](Pinned& pinned, std::size_t bytes) {
      if (bytes <= pinned.size()) return;
      stream_.synchronize();
      pinned = Pinned(stream_, bytes);
    };
    const std::size_t row_bytes = size(config_.vocabulary) * sizeof(float);
    reserve(logits_, outputs * row_bytes);
    if (keeps_rows_) reserve(asked_logits_, kLogitRows * row_bytes);
    const std::size_t leaders = outputs * size(leaders_), drawn = leaders_ > 0 ? outputs : 0;
    if (flights_.empty()) {
      reserve(host_leaders_, leaders * kMostRowsBehind * sizeof(Standing));
      reserve(host_drawn_, drawn * kMostRowsBehind * sizeof(Standing));
      if (grow(leaders_on_device_, stream_, leaders * kMostRowsBehind)) ++moves_;
      if (grow(drawn_on_device_, stream_, drawn * kMostRowsBehind)) ++moves_;
    } else {  // those of the pass before this one may not have been read yet, so they stay where they are
      check(leaders <= leaders_on_device_.size() && drawn <= drawn_on_device_.size() &&
                leaders * sizeof(Standing) <= host_leaders_.size(),
            "no more leaders than there is room for");
    }
    if (!measures_) return;
    reserve(host_changes_, size(config_.layers) * rows * sizeof(float));
    if (rows <= change_rows_) return;
    stream_.synchronize();
    changes_ = {};
    changes_ = {stream_, size(config_.layers) * rows};
    change_rows_ = rows;
    ++moves_;
  }

  void copy_logits(std::size_t rows, Pinned& to) {
    if (rows == 0) return;
    activations_.logits.memory().copy_out_later(0, to, rows * size(config_.vocabulary) * sizeof(float));
  }

  /// Queues the copies of what the host reads of the last pass that was launched. It is when those of the pass before
  /// have been read: they have the same places.
  void copy_back() {
    if (leaders_ > 0) {
      const std::size_t drawn = size(outputs_) * sizeof(Standing);
      auto& leaders = leaders_ == 1 ? drawn_on_device_ : leaders_on_device_;
      leaders.memory().copy_out_later(0, host_leaders_, drawn * size(leaders_));
      if (draws_) drawn_on_device_.memory().copy_out_later(0, host_drawn_, drawn);
    } else {
      copy_logits(size(outputs_), logits_);
    }
    if (measures_) {
      changes_.memory().copy_out_later(0, host_changes_, size(config_.layers) * change_rows_ * sizeof(float));
    }
    runner_.finish();
    arrived_.record();
  }

  struct Flight {
    int outputs = 0, leaders = 0;
    bool draws = false;  ///< a pass behind it has its tokens
    bool measures = false;
  };
  std::span<const std::int32_t> take_drawn(const Flight& flight) {
    const Pinned& of = flight.leaders == 1 ? host_leaders_ : host_drawn_;
    const std::span tokens(reinterpret_cast<const Standing*>(of.raw()), size(flight.outputs));
    tokens_drawn_.clear();
    for (const Standing& each : tokens) tokens_drawn_.push_back(std::max(each.at, 0));
    return tokens_drawn_;
  }
  /// Of each row by ascending token. Where a row has logits that are not finite, none or, where `all` are wanted, one
  /// of token -1.
  std::span<const Leader> take_leaders(const Flight& flight, bool all) {
    const auto* const from = reinterpret_cast<const Standing*>(host_leaders_.raw());
    best_.clear();
    for (std::size_t i = 0; i < size(flight.outputs) * size(flight.leaders); ++i) {
      if (from[i].at < 0 && !all) return {};
      best_.push_back({from[i].at, from[i].value});
    }
    for (auto row = best_.begin(); row != best_.end(); row += flight.leaders) {
      std::sort(row, row + flight.leaders, [](const Leader& a, const Leader& b) { return a.token < b.token; });
    }
    return best_;
  }

  void add_changes() {
    const auto* const from = reinterpret_cast<const float*>(host_changes_.raw());
    for (std::size_t layer = 0; layer < changed_.size(); ++layer) {
      const std::size_t rows = layer + 1 == changed_.size() ? size(outputs_) : size(rows_);
      for (std::size_t row = 0; row < rows; ++row) changed_[layer].sum += from[layer * change_rows_ + row];
      changed_[layer].rows += rows;
    }
  }

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
    draws_place_ = staging_.add(batch.draws);
  }

  /// The pass as a graph where one of its shape is kept, else queued piece by piece: the first time what must grow
  /// grows, the second time it becomes a graph.
  void run() {
    if (runner_.key().empty()) return queue();
    key_ = runner_.key();
    key_.insert(key_.end(),
                {outputs_, staging_.moves(), activations_.moves, moves_, keeps_rows_, leaders_, draws_, measures_});
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
    embed_tokens();
    input_ = Input::complete;
    for (int layer = 0; layer < config_.layers; ++layer) {
      const LayerMatrices& weights = weights_.layers()[static_cast<std::size_t>(layer)];
      attend(layer, weights);
      const bool last = layer + 1 == config_.layers;
      if (last && outputs_ == 0) break;  // nobody wants more of the chunk than what attention leaves
      feed_forward(layer, last && some());
    }
    if (outputs_ > 0) make_logits(some());
    if (leaders_ > 0) {
      const auto& out = leaders_ == 1 ? drawn_on_device_ : leaders_on_device_;
      largest(stream_, {activations_.logits.constant(), out.pointer(), outputs_, config_.vocabulary, leaders_});
    }
    if (leaders_ > 1 && draws_) {
      draw(stream_, {leaders_on_device_.constant(), staging_.at<Draw>(draws_place_), drawn_on_device_.pointer(),
                     outputs_, leaders_});
    }
  }

  /// True where the rows behind the last layer's attention are taken out first: of all rows as they are, more may be
  /// asked for.
  bool some() const { return outputs_ < rows_ || keeps_rows_; }

  void make_logits(bool some) {
    Activations& a = activations_;
    multiply_normed(some ? a.rest : a.residual, weights_.output_norm(), weights_.output(), outputs_, a.logits);
  }

  void embed_tokens() {
    const MatrixPart& table = weights_.token_embedding().parts.front();
    const RowTokens tokens{staging_.at<std::int32_t>(tokens_place_), drawn_on_device_.constant()};
    const auto out = activations_.residual.pointer();
    if (table.in_rows()) {
      embed(stream_, {table.bf16(), tokens, out, rows_, config_.hidden});
    } else {
      unpack_rows(stream_, {table.packed, tokens, out, rows_});
    }
  }

  /// The attention of a layer, up to its output before the projection.
  void attend(int layer, const LayerMatrices& weights) {
    Activations& a = activations_;
    multiply_normed(a.residual, weights.attention_norm, weights.qkv, rows_, a.qkv);
    const attention::cuda::Runner::OwnRows own = runner_.own_rows(layer);
    split_qkv(stream_, {.qkv = a.qkv.constant(),
                        .q_bias = weights.q_bias,
                        .k_bias = weights.k_bias,
                        .v_bias = weights.v_bias,
                        .q_norm = weights.q_norm,
                        .k_norm = weights.k_norm,
                        .cos_sin = staging_.at<float>(cos_sin_place_),
                        .q = a.q.pointer(),
                        .cache = own.cache,
                        .rows = own.rows,
                        .heads = config_.heads,
                        .rotated = config_.rope.dims,
                        .neox = config_.rope.neox,
                        .epsilon = config_.rms_epsilon});
    narrowed_ = runner_.layer(layer, {a.q.constant(), a.attended.pointer(), a.narrowed.pointer()});
  }

  /// The rest of a layer; `some`: of the rows with logits alone.
  void feed_forward(int layer, bool some) {
    const LayerMatrices& weights = weights_.layers()[size(layer)];
    Activations& a = activations_;
    const int rows = some ? outputs_ : rows_;
    const int q_width = config_.heads * config_.head_dim;
    if (some) {
      const auto which = staging_.at<std::int32_t>(outputs_place_);
      take_rows(stream_, {a.residual.constant(), which, a.rest.pointer(), rows, config_.hidden});
      take_rows(stream_, {a.attended.constant(), which, a.taken.pointer(), rows, q_width});
    }
    if (some || !narrowed_) {
      narrow(stream_, {(some ? a.taken : a.attended).constant(), a.narrowed.pointer(), size(rows) * size(q_width)});
    }
    Array<float>& residual = some ? a.rest : a.residual;
    const bool gates = weights.gates_paired && products_.gates(weights.gate_up, rows);
    const bool divides = gates && products_.divides(weights.gate_up, rows);
    add_product(weights.output, a.narrowed, residual, {weights.ffn_norm, divides}, rows);
    if (measures_) {
      change(stream_, {residual.constant(), a.delta.constant(), changes_.pointer().raw() + size(layer) * change_rows_,
                       rows, config_.hidden});
    }
    if (gates) {
      if (input_ != Input::squares) normalise_rows(residual, weights.ffn_norm, rows);
      FewRowsOp op{.in = a.normalised.constant(), .end = FewRowsOp::End::gate, .narrow = a.activated.pointer()};
      products_.multiply_as(weights.gate_up, rows, scaled(op));
    } else {
      normalise_rows(residual, weights.ffn_norm, rows);
      products_.multiply(weights.gate_up, a.normalised.constant(), rows, a.gate_up.pointer());
      gate(stream_, {a.gate_up.constant(), a.activated.pointer(), rows, config_.feed_forward, weights.gates_paired});
    }
    input_ = Input::complete;
    const bool last = layer + 1 == config_.layers;
    const Matrix& next = last ? weights_.output() : weights_.layers()[size(layer + 1)].qkv;
    const Floats next_norm = last ? weights_.output_norm() : weights_.layers()[size(layer + 1)].attention_norm;
    add_product(weights.down, a.activated, residual, {next_norm, products_.divides(next, rows)}, rows);
  }

  /// What reads the residual next: its norm, and whether it divides by the root mean square itself.
  struct Next {
    Floats norm;
    bool divides = false;
  };
  /// Adds a product to the residual, or leaves it in Activations::delta; says so in input_.
  void add_product(const Matrix& weight, const Array<Bf16>& in, Array<float>& residual, const Next& next, int rows) {
    Activations& a = activations_;
    if (!products_.adds(weight, rows) || !next.divides || measures_) {
      products_.multiply(weight, in.constant(), rows, a.delta.pointer());
      input_ = Input::delta;
      return;
    }
    products_.multiply_as(weight, rows,
                          {.in = in.constant(),
                           .end = FewRowsOp::End::add,
                           .out = residual.pointer(),
                           .norm = next.norm,
                           .narrow = a.normalised.pointer(),
                           .squares_left = a.squares.pointer()});
    input_ = Input::squares;
  }
  /// The product with the norm of the residual.
  void multiply_normed(Array<float>& residual, Floats norm, const Matrix& weight, int rows, Array<float>& out) {
    const auto in = activations_.normalised.constant();
    if (input_ == Input::squares) {
      return products_.multiply_as(weight, rows, scaled({.in = in, .out = out.pointer()}));
    }
    normalise_rows(residual, norm, rows);
    products_.multiply(weight, in, rows, out.pointer());
  }
  FewRowsOp scaled(FewRowsOp op) {
    if (input_ != Input::squares) return op;
    op.squares = activations_.squares.constant();
    op.width = config_.hidden;
    op.epsilon = config_.rms_epsilon;
    return op;
  }

  void normalise_rows(Array<float>& residual, Floats weight, int rows) {
    normalise(stream_, {.residual = residual.pointer(),
                        .delta = input_ == Input::delta ? activations_.delta.constant() : Floats{},
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
  Event arrived_;               ///< what the host reads of the oldest pass in flight is there
  std::deque<Flight> flights_;  ///< launched and not collected, two at most
  Activations activations_;
  Pinned logits_, asked_logits_, host_leaders_, host_drawn_, host_changes_;
  Array<Standing> leaders_on_device_;  ///< [outputs, leaders], where there are several
  Array<Standing> drawn_on_device_;    ///< [outputs] the one leader, or what is drawn from several
  std::vector<std::int32_t> tokens_drawn_;
  std::vector<Leader> best_;
  Array<float> changes_;  ///< [layers, rows] of a pass
  std::size_t change_rows_ = 0;
  struct Changed {
    double sum = 0;
    std::size_t rows = 0;
  };
  std::vector<Changed> changed_;  ///< [layers] while it is measured
  std::vector<std::int64_t> positions_, key_;
  std::vector<std::int32_t> asked_;
  std::size_t tokens_place_ = 0, cos_sin_place_ = 0, outputs_place_ = 0, draws_place_ = 0;
  int rows_ = 0, outputs_ = 0;
  int leaders_ = 0;     ///< of each output row that the host reads; 0: all logits
  int moves_ = 0;       ///< of the arrays above
  bool draws_ = false;  ///< and their tokens are drawn here
  bool keeps_rows_ = false, measures_ = false;
  bool once_;  ///< rows of a verification read K and V once
  /// While a pass is queued: what the next norm finds.
  enum class Input : std::uint8_t {
    complete,  ///< the residual
    delta,     ///< the residual, and what is to be added to it
    squares,   ///< the residual, it times the norm's weights, and the sums of its squares
  };
  Input input_ = Input::complete;
  bool narrowed_ = false;   ///< and: Activations::narrowed has what attention gave
  std::list<Pass> passes_;  ///< most recently used first
};

}  // namespace

std::unique_ptr<Executor> make_executor(const model::Model& model, kv::Cache& cache, Stream& stream, int threads) {
  return std::make_unique<CudaExecutor>(model, cache, stream, threads);
}

}  // namespace glimpse::exec::cuda
