// The CPU executor: weights, threads and one or two lanes of passes. The threads are OpenMP's: a team for each thread
// that calls, kept between passes.
#include "glimpse/exec/executor.h"

#include <limits>
#include <memory>

#include "glimpse/base/error.h"
#include "glimpse/exec/ggml/lane.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::exec {
namespace {

constexpr int kAllLayers = std::numeric_limits<int>::max();

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(const model::Model& model, kv::Cache& cache, const CpuOptions& options)
      : model_(model),
        weights_(model),
        machine_{model, weights_, cache, options.threads, make_pool(options.threads), {}},
        whole_(machine_) {}
  CpuExecutor(const CpuExecutor&) = delete;
  CpuExecutor& operator=(const CpuExecutor&) = delete;

  StepResult forward(const StepBatch& batch) override {
    last_ = &whole_;
    whole_.begin(batch);
    whole_.run(kAllLayers);
    return whole_.end();
  }

  bool slices() const override { return true; }

  void begin_slices(const StepBatch& batch) override {
    if (sliced_ == nullptr) {
      sliced_ = std::make_unique<Lane>(machine_);
      sliced_->pass().changes = whole_.pass().changes;
    }
    last_ = sliced_.get();
    sliced_->begin(batch);
  }

  bool run_slice(int layers) override {
    last_ = sliced_.get();  // began() is asked of it when this throws
    return sliced_->run(layers);
  }

  StepResult end_slices() override {
    last_ = sliced_.get();
    return sliced_->end();
  }

  std::span<const float> logits_of(std::span<const std::int32_t> rows) override { return last_->logits_of(rows); }

  bool began() const override { return last_->runner().began(); }

  std::optional<double> attention_seconds() const override {
    return whole_.runner().seconds() + (sliced_ == nullptr ? 0 : sliced_->runner().seconds());
  }

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

  void set_on_head(std::function<void(const attention::HeadRecord&)> on_head) override {
    whole_.runner().on_head = std::move(on_head);  // rows that decode run there alone
  }

  void measure_change(bool on) override {
    std::vector<std::vector<ChangeSum>> none;
    if (on) {
      none.assign(static_cast<std::size_t>(machine_.threads),
                  std::vector<ChangeSum>(static_cast<std::size_t>(model_.config().layers)));
    }
    if (sliced_ != nullptr) sliced_->pass().changes = none;
    whole_.pass().changes = std::move(none);
  }

  std::vector<double> attention_change() const override {
    std::vector<double> means(static_cast<std::size_t>(model_.config().layers));
    for (std::size_t layer = 0; layer < means.size(); ++layer) {
      ChangeSum all;
      for (const Lane* lane : {&whole_, static_cast<const Lane*>(sliced_.get())}) {
        if (lane == nullptr) continue;
        for (const std::vector<ChangeSum>& thread : lane->pass().changes) {
          all.sum += thread[layer].sum;
          all.rows += thread[layer].rows;
        }
      }
      if (all.rows > 0) means[layer] = all.sum / static_cast<double>(all.rows);
    }
    return means;
  }

 private:
  const model::Model& model_;
  Weights weights_;
  Machine machine_;
  Lane whole_;                    ///< of forward()
  std::unique_ptr<Lane> sliced_;  ///< made when it is first asked for
  Lane* last_ = &whole_;          ///< that had the last pass
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(const model::Model& model, kv::Cache& cache, const CpuOptions& options) {
  return std::make_unique<CpuExecutor>(model, cache, options);
}

}  // namespace glimpse::exec
