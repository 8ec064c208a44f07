#include "glimpse/attention/cuda/widened.h"

#include <algorithm>

#include "glimpse/attention/cuda/index_builder.h"

namespace glimpse::attention::cuda {

void Widened::make_space(const PassTables& tables) {
  most_ = 0;
  if (cache_.shape().format.type != KvType::q8_0) return;
  const PassEntry* longest = nullptr;
  for (const kernels::PromptRows& prompt : tables.prompts()) {
    const PassEntry& entry = tables.entries()[static_cast<std::size_t>(prompt.sequence)];
    if (longest == nullptr || entry.tokens > longest->tokens) longest = &entry;
  }
  if (longest == nullptr) return;
  constexpr std::int64_t kPage = kernels::kPageTokens;
  most_ = static_cast<std::int32_t>((longest->tokens + kPage - 1) / kPage * kPage);
  const std::int64_t rows = std::int64_t{most_} * cache_.shape().kv_heads;
  require_memory(stream_, pages_.wanted(rows), longest->rows, "a layer's keys and values of 16 bits", [] {});
  pages_.reserve(rows);
}

kernels::HeadView Widened::view(const kernels::HeadView& cached, int head) const {
  kernels::HeadView view = pages_.view(std::int64_t{head} * most_, cached.slots);
  view.positions = cached.positions;
  return view;
}

void Widened::run(const kernels::PromptRows& prompt, const kernels::KvTable<kernels::Place::device>& cached,
                  const kernels::KvTable<kernels::Place::device>& to) const {
  kernels::cuda::widen(stream_, {cached, to, prompt.sequence, most_});
}

}  // namespace glimpse::attention::cuda
