#include "glimpse/exec/backend.h"

#include <fmt/format.h>

#include <optional>

#include "glimpse/attention/cuda/supported.h"
#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/exec/cuda/activations.h"
#include "glimpse/exec/cuda/executor.h"
#include "glimpse/exec/cuda/page_memory.h"
#include "glimpse/exec/cuda/weights.h"

namespace glimpse::exec {
namespace {

/// What is left free for passes beside their activations: cuBLAS and its workspace, scores, sets, page tables, graphs.
constexpr std::int64_t kReserve = std::int64_t{1} << 30;

class CudaBackend final : public Backend {
 public:
  CudaBackend(const model::Model& model, const CudaOptions& options)
      : model_(model), options_(options), stream_(options.device) {
    kernels::cuda::require_supported({options.kv_type, model.config().head_dim});
  }

  std::string name() const override { return stream_.device().name; }

  std::optional<std::int64_t> cache_memory(std::int64_t) const override {
    const auto free = static_cast<std::int64_t>(kernels::cuda::free_memory(options_.device));
    const cuda::WeightMemory memory = cuda::weight_memory(model_);
    const auto weights = static_cast<std::int64_t>(memory.bytes);
    const auto passes = static_cast<std::int64_t>(
        cuda::Activations::bytes(model_.config(), static_cast<std::size_t>(options_.most_rows)) +
        (memory.quantised ? cuda::Products::scratch_bytes() : 0));
    const std::int64_t left = free - weights - passes - std::min(kReserve, free / 8);
    if (left <= 0) {
      throw UserError(
          fmt::format("the model's weights take {} on the GPU and a pass of {} rows {}; {} are free there; "
                      "take a smaller model or --prefill-chunk, or leave out --device",
                      bytes_text(static_cast<double>(weights)), options_.most_rows,
                      bytes_text(static_cast<double>(passes)), bytes_text(static_cast<double>(free))));
    }
    return left - widened_share(left);
  }

  void open(const kv::CacheShape& shape) override {
    check(!cache_, "a back end is opened once");
    cache_.emplace(shape, cuda::page_memory_on(stream_));
    executor_ = cuda::make_executor(model_, *cache_, stream_, options_.threads);
  }

  kv::Cache& cache() override { return *cache_; }
  Executor& executor() override { return *executor_; }

  void require(const plan::Plan& plan) const override { attention::cuda::require_supported(plan); }
  void require_records(std::string_view what) const override {
    throw UserError(
        fmt::format("{} is for a model on the CPU alone for now, and this one is on a GPU; load it on the CPU", what));
  }

 private:
  /// Of a cache of bytes: what a layer's keys and values of 16 bits take (attention::cuda::Widened), should one
  /// sequence have the whole cache.
  std::int64_t widened_share(std::int64_t left) const {
    if (options_.kv_type != KvType::q8_0) return 0;
    const model::Config& config = model_.config();
    const double cached =
        static_cast<double>(kernels::KvFormat{KvType::q8_0, config.head_dim}.read_bytes()) * config.layers;
    const double widened = 1.25 * static_cast<double>(kernels::KvFormat{KvType::f16, config.head_dim}.read_bytes());
    return static_cast<std::int64_t>(static_cast<double>(left) * widened / (cached + widened));
  }

  const model::Model& model_;
  CudaOptions options_;
  kernels::cuda::Stream stream_;
  std::optional<kv::Cache> cache_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const model::Model& model, const CudaOptions& options) {
  return std::make_unique<CudaBackend>(model, options);
}

}  // namespace glimpse::exec
