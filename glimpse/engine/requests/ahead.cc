#include "glimpse/engine/requests/ahead.h"

#include <algorithm>
#include <optional>

#include "glimpse/engine/requests/decode_lossless.h"
#include "glimpse/engine/requests/jobs.h"

namespace glimpse::engine {
namespace {

/// Its rows of the pass behind the one that runs, where the answer is not ended by its length, and largest logits alone
/// decide this token and the next.
std::optional<PassEntry> next_entry(const Runtime& runtime, const PassEntry& entry, ActiveRequest& request) {
  const Request& wanted = request.request;
  if (!attention::decodes(entry.kind) || entry.leaders == 0) return {};
  if (wanted.grammar.grammar) return {};  // it may bind from the next token on
  if (wanted.audit_every > 0 || wanted.correct_every > 0 || entry.sequence->on_sets) return {};
  const attention::PassKind kind = request.drafting ? attention::PassKind::draft : entry.kind;  // a draft may be next
  if (!runtime.device.executor->leaves_nothing(*entry.sequence->program, kind, entry.sequence->length + 1)) {
    return {};
  }
  if (request.cancelled || request.stop->load(std::memory_order_relaxed)) return {};
  if (entry.kind == attention::PassKind::draft) return entry_behind(runtime, request, entry.kind);  // it has its room
  if (wanted.max_tokens > 0 && request.result.stats.generated_tokens + 1 >= wanted.max_tokens) return {};
  const std::int64_t most = std::min(runtime.options.context, runtime.cache().shape().capacity_tokens);
  if (entry.sequence->length + 1 >= most) return {};
  if (request.drafting) return entry_behind(runtime, request, entry.kind);
  PassEntry next = entry;
  if (next.leaders > 1) next.draw = request.sampler.next_draw(1);
  return next;
}

}  // namespace

bool make_next(const Requests& requests, Batch& batch) {
  const Runtime& runtime = requests.runtime;
  batch.next.clear();
  if (!runtime.device.executor->flies()) return false;
  const auto ongoing = std::count_if(requests.all.begin(), requests.all.end(),
                                     [](const auto& each) { return each.second.phase != Phase::done; });
  if (static_cast<std::size_t>(ongoing) != batch.entries.size()) return false;
  const kv::Cache& cache = runtime.cache();
  // Whole runs for some leave others their pages. A verification has one row more than the drafts that run.
  std::int64_t pages = static_cast<std::int64_t>(batch.entries.size()) * all_heads(runtime) * (kv::kRunPages - 1);
  for (const PassEntry& entry : batch.entries) pages += cache.pages_to_extend(entry.sequence->id, 1);
  if (pages > static_cast<std::int64_t>(cache.usage().pages_free)) return false;
  for (std::size_t i = 0; i < batch.entries.size(); ++i) {
    const std::optional<PassEntry> next = next_entry(runtime, batch.entries[i], *batch.owners[i]);
    if (!next) return false;
    batch.next.push_back(*next);
  }
  return true;
}

void keep_ahead(const PassRunner& passes, Batch& batch) {
  const std::span<const PassEntry> launched = passes.ahead();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < launched.size(); ++i) {
    if (launched[i].sequence == nullptr) continue;
    batch.entries[kept] = launched[i];
    batch.owners[kept++] = batch.owners[i];
  }
  batch.entries.resize(kept);
  batch.owners.resize(kept);
}

}  // namespace glimpse::engine
