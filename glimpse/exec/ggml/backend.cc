#include "glimpse/exec/backend.h"

#include "glimpse/base/error.h"
#include "glimpse/base/machine_memory.h"

namespace glimpse::exec {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(const model::Model& model, const CpuOptions& options) : model_(model), options_(options) {}

  std::string name() const override { return {}; }

  std::optional<std::int64_t> cache_memory(std::int64_t weight_bytes) const override {
    std::optional<std::int64_t> bytes = available_memory();
    if (bytes) *bytes -= weight_bytes;
    return bytes;
  }

  void open(const kv::CacheShape& shape) override {
    check(!cache_, "a back end is opened once");
    cache_.emplace(shape);
    executor_ = make_cpu_executor(model_, *cache_, options_);
  }

  kv::Cache& cache() override { return *cache_; }
  Executor& executor() override { return *executor_; }
  void require(const plan::Plan&) const override {}
  void require_records(std::string_view) const override {}

 private:
  const model::Model& model_;
  CpuOptions options_;
  std::optional<kv::Cache> cache_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const model::Model& model, const CpuOptions& options) {
  return std::make_unique<CpuBackend>(model, options);
}

}  // namespace glimpse::exec
