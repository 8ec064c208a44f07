#include "tests/engine/flying_backend.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>

#include "glimpse/attention/cuda/program_facts.h"
#include "glimpse/exec/backend.h"
#include "glimpse/plan/plan.h"
#include "tests/support/reference_draw.h"

namespace glimpse::engine {

Flying& flying() {
  static Flying all;
  return all;
}

namespace {

/// True where the counter says that it is this one's turn.
bool comes(std::int64_t& counter) {
  return counter >= 0 && counter-- == 0;
}

class FlyingExecutor final : public exec::Executor {
 public:
  FlyingExecutor(exec::Executor& cpu, std::size_t vocabulary) : cpu_(cpu), vocabulary_(vocabulary) {}

  exec::StepResult forward(const exec::StepBatch& batch) override {
    check(passes_.empty(), "a pass by itself");
    launch(batch);
    return collect();
  }
  bool flies() const override { return true; }
  bool leaves_nothing(const attention::Program& program, attention::PassKind kind, std::int64_t tokens) override {
    const attention::cuda::ProgramFacts facts(program);
    return !facts.bounds && facts.leaves_nothing(program, kind, tokens);  // the CPU's bounds of pages are the host's
  }
  void launch(const exec::StepBatch& batch) override {
    std::vector<std::int32_t> tokens(batch.tokens.begin(), batch.tokens.end());
    if (!passes_.empty()) {
      check(passes_.size() == 1 && passes_.back().decides() && batch.leaders > 0 && !batch.keep_rows,
            "one pass behind another, which draws its tokens");
      check(batch.output_rows.size() == batch.tokens.size(), "each row has logits");
      check(batch.sequences.size() <= passes_.back().rows.size(), "the same sequences or fewer");
      for (const attention::SequenceRows& rows : batch.sequences) {
        const bool verifies = rows.kind == attention::PassKind::verify && rows.rows <= exec::kMostRowsBehind;
        check((verifies || is_decoded(rows)) && leaves_nothing(*rows.program, rows.kind, rows.position + rows.rows),
              "rows that leave nothing");
      }
      for (const attention::SequenceRows& rows : passes_.back().rows) {
        check(is_decoded(rows) && leaves_nothing(*rows.program, rows.kind, rows.position + rows.rows),
              "rows with a pass behind them");
      }
      draw(passes_.back());
      for (std::int32_t& token : tokens) {
        if (token < 0) token = passes_.back().drawn[static_cast<std::size_t>(-1 - token)];
      }
      ++flying().behind;
    }
    ++flying().launched;
    exec::StepBatch known = batch;
    known.tokens = tokens;
    began_ = !passes_.empty();
    const exec::StepResult result = cpu_.forward(known);
    Pass& pass = passes_.emplace_back();
    pass.rows.assign(batch.sequences.begin(), batch.sequences.end());
    pass.leaders = batch.leaders;
    pass.draws.assign(batch.draws.begin(), batch.draws.end());
    pass.logits.assign(result.logits.begin(), result.logits.end());
    pass.counters.assign(result.counters.begin(), result.counters.end());
    pass.failures = result.failures;
  }
  exec::StepResult collect() override {
    check(!passes_.empty(), "a pass that was launched");
    if (comes(flying().fail_collect)) {
      abandon();
      throw InternalError("the device is gone");
    }
    collected_ = std::move(passes_.front());
    passes_.pop_front();
    const bool spoilt = comes(flying().spoil);
    exec::StepResult result;
    result.counters = collected_->counters;
    result.failures = collected_->failures;
    leaders_.clear();
    const std::size_t rows = collected_->logits.size() / vocabulary_;
    for (std::size_t row = 0; collected_->leaders > 0 && row < rows; ++row) {
      const std::vector<exec::Leader> own = largest(*collected_, row);
      leaders_.insert(leaders_.end(), own.begin(), own.end());
    }
    for (int i = 0; spoilt && i < collected_->leaders; ++i) leaders_[static_cast<std::size_t>(i)].token = -1;
    result.leaders = leaders_;
    result.drawn = collected_->drawn;
    if (leaders_.empty() || (passes_.empty() && leaders_.front().token < 0)) {
      if (spoilt) collected_->logits.front() = 1.0F / 0.0F;
      result.leaders = {};
      result.logits = collected_->logits;
    }
    began_ = false;
    return result;
  }
  void abandon() override {
    flying().abandoned += static_cast<std::int64_t>(passes_.size());
    began_ = began_ || !passes_.empty();
    passes_.clear();
  }
  std::span<const float> logits_of(std::span<const std::int32_t> rows) override { return cpu_.logits_of(rows); }
  bool began() const override { return began_ || !passes_.empty() || cpu_.began(); }
  std::optional<double> attention_seconds() const override { return {}; }
  exec::RowCosts row_costs() const override { return cpu_.row_costs(); }
  void set_on_head(std::function<void(const attention::HeadRecord&)> on_head) override {
    cpu_.set_on_head(std::move(on_head));
  }
  void measure_change(bool on) override { cpu_.measure_change(on); }
  std::vector<double> attention_change() const override { return cpu_.attention_change(); }

 private:
  struct Pass {
    std::vector<attention::SequenceRows> rows;
    int leaders = 0;
    std::vector<Draw> draws;
    std::vector<std::int32_t> drawn;  ///< for the pass behind
    std::vector<float> logits;
    std::vector<attention::ReadCounters> counters;
    std::vector<std::exception_ptr> failures;

    bool decides() const { return leaders == 1 || !draws.empty(); }
  };
  static bool is_decoded(const attention::SequenceRows& rows) {
    return rows.rows == 1 && attention::decodes(rows.kind) && !rows.audit;
  }
  /// As many as were asked for, by ascending token.
  std::vector<exec::Leader> largest(const Pass& pass, std::size_t row) const {
    const float* const logits = pass.logits.data() + row * vocabulary_;
    std::vector<std::int32_t> order(vocabulary_);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    order.resize(static_cast<std::size_t>(pass.leaders));
    std::sort(order.begin(), order.end());
    std::vector<exec::Leader> leaders;
    for (const std::int32_t token : order) leaders.push_back({token, logits[token]});
    return leaders;
  }
  void draw(Pass& pass) const {
    for (std::size_t row = 0; row < pass.rows.size(); ++row) {
      std::vector<std::pair<std::int32_t, float>> logits;
      for (const exec::Leader& each : largest(pass, row)) logits.emplace_back(each.token, each.logit);
      const std::int32_t token = reference::drawn(logits, pass.draws.empty() ? Draw{} : pass.draws[row]).token;
      const auto vocabulary = static_cast<std::int32_t>(vocabulary_);
      pass.drawn.push_back(comes(flying().misdraw) ? (token + 1) % vocabulary : token);
    }
  }

  exec::Executor& cpu_;
  std::size_t vocabulary_;
  std::deque<Pass> passes_;
  std::optional<Pass> collected_;
  std::vector<exec::Leader> leaders_;
  bool began_ = false;
};

class FlyingBackend final : public exec::Backend {
 public:
  FlyingBackend(const model::Model& model, int threads)
      : cpu_(exec::make_cpu_backend(model, {threads})),
        vocabulary_(static_cast<std::size_t>(model.config().vocabulary)) {}

  std::string name() const override { return "passes that are queued"; }
  std::optional<std::int64_t> cache_memory(std::int64_t weight_bytes) const override {
    return cpu_->cache_memory(weight_bytes);
  }
  void open(const kv::CacheShape& shape) override {
    cpu_->open(shape);
    executor_.emplace(cpu_->executor(), vocabulary_);
  }
  kv::Cache& cache() override { return cpu_->cache(); }
  exec::Executor& executor() override { return *executor_; }
  void require(const plan::Plan& plan) const override { cpu_->require(plan); }
  void require_records(std::string_view what) const override { cpu_->require_records(what); }

 private:
  std::unique_ptr<exec::Backend> cpu_;
  std::size_t vocabulary_;
  std::optional<FlyingExecutor> executor_;
};

}  // namespace
}  // namespace glimpse::engine

namespace glimpse::exec {

/// In place of the one that needs a GPU: a program that links this one asks no archive for it.
std::unique_ptr<Backend> make_cuda_backend(const model::Model& model, const CudaOptions& options) {
  return std::make_unique<engine::FlyingBackend>(model, options.threads);
}

}  // namespace glimpse::exec
