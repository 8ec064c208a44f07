#include "glimpse/attention/cpu/pass.h"

#include <cmath>

namespace glimpse::attention {

Pass::Pass(const RunnerShape& runner_shape, kv::Cache& kv_cache)
    : shape(runner_shape),
      cache(&kv_cache),
      group(runner_shape.heads / runner_shape.kv_heads),
      scale(1.0f / std::sqrt(static_cast<float>(runner_shape.head_dim))) {
  threads.resize(static_cast<std::size_t>(shape.threads));
  for (ThreadScratch& thread : threads) thread.heads.resize(static_cast<std::size_t>(shape.kv_heads));
}

HeadOutput Pass::output_of(int index, int head) {
  const kernels::RowHead at{entry(index).rows.first_row, head};
  return {kernels::output_of(tables.cache(cache->shape().format), tables.rows(), group, at), index, head};
}

kernels::PrefillItem Pass::prompt_item(const Item& item, const float* q) {
  const BatchEntry& of = entry(item.batch);
  const kernels::HeadView& view = of.views[static_cast<std::size_t>(item.head)];
  kernels::PrefillItem rows;
  rows.head = &view;
  rows.query = head_query(of, q, item.begin, item.head);
  rows.query_stride = static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.head_dim);
  rows.group = group;
  rows.scale = scale;
  rows.first_slot = first_slot(of, view) + item.begin;
  rows.rows = item.end - item.begin;
  return rows;
}

}  // namespace glimpse::attention
