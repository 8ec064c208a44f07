#include "glimpse/engine/requests/ahead.h"

#include <algorithm>

#include "glimpse/engine/requests/jobs.h"

namespace glimpse::engine {
namespace {

/// Where the answer is not ended by its length, and its largest logits alone decide this token and the next.
bool goes_on(const Runtime& runtime, const PassEntry& entry, const ActiveRequest& request) {
  const Request& wanted = request.request;
  if (entry.kind != attention::PassKind::decode || entry.leaders != 1 || request.drafting) return false;
  if (wanted.grammar.grammar) return false;  // it may bind from the next token on
  if (wanted.audit_every > 0 || wanted.correct_every > 0 || entry.sequence->on_sets) return false;
  if (!runtime.device.executor->leaves_nothing(*entry.sequence->program)) return false;
  if (request.cancelled || request.stop->load(std::memory_order_relaxed)) return false;
  if (wanted.max_tokens > 0 && request.result.stats.generated_tokens + 1 >= wanted.max_tokens) return false;
  return entry.sequence->length + 1 < std::min(runtime.options.context, runtime.cache().shape().capacity_tokens);
}

}  // namespace

bool knows_next(const Requests& requests, const Batch& batch) {
  const Runtime& runtime = requests.runtime;
  if (!runtime.device.executor->flies()) return false;
  const auto ongoing = std::count_if(requests.all.begin(), requests.all.end(),
                                     [](const auto& each) { return each.second.phase != Phase::done; });
  if (static_cast<std::size_t>(ongoing) != batch.entries.size()) return false;
  const kv::Cache& cache = runtime.cache();
  std::int64_t pages = 0;
  for (std::size_t i = 0; i < batch.entries.size(); ++i) {
    if (!goes_on(runtime, batch.entries[i], *batch.owners[i])) return false;
    pages += cache.pages_to_extend(batch.entries[i].sequence->id, 1);
  }
  // Whole runs for some leave others their pages.
  pages += static_cast<std::int64_t>(batch.entries.size()) * all_heads(runtime) * (kv::kRunPages - 1);
  return pages <= static_cast<std::int64_t>(cache.usage().pages_free);
}

void keep_ahead(const PassRunner& passes, Batch& batch) {
  const std::span<const PassEntry> launched = passes.ahead();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < launched.size(); ++i) {
    if (launched[i].sequence == nullptr) continue;
    batch.entries[kept] = batch.entries[i];
    batch.owners[kept++] = batch.owners[i];
  }
  batch.entries.resize(kept);
  batch.owners.resize(kept);
}

}  // namespace glimpse::engine
