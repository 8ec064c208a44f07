#include "glimpse/evaluate/attention_speed.h"

#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/base/machine_cores.h"
#include "glimpse/evaluate/kernel_cases.h"
#include "glimpse/evaluate/speed.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::evaluate {

AttentionSpeed measure_attention(const AttentionOptions& options) {
  if (options.head_dim < 8 || options.head_dim > kernels::kMaxHeadDim || options.head_dim % 8 != 0) {
    throw UserError(fmt::format("a head dimension of {}: kernels take multiples of 8 from 8 to {}", options.head_dim,
                                kernels::kMaxHeadDim));
  }
  const int threads = thread_count(options.threads);
  const std::int64_t total = static_cast<std::int64_t>(options.depths.size()) * options.repetitions;
  std::int64_t done = 0;
  AttentionSpeed speed;
  std::vector<double> bandwidths;
  for (const std::int64_t depth : options.depths) {
    const KernelShape shape{{options.kv_type, options.head_dim}, options.kv_heads, options.group};
    const auto cache =
        std::make_shared<KernelCache>(shape, static_cast<int>(depth), static_cast<int>(std::min(options.rows, depth)));
    const KernelTimes times = measure_cases(
        {attend_case(cache, false, threads), attend_case(cache, true, threads)}, threads, options.repetitions,
        [&] { return !options.on_measurement || options.on_measurement(done++, total); });
    if (times.rows.empty()) break;
    bandwidths.push_back(times.read_bandwidth);
    speed.read_bandwidth = median(bandwidths);
    for (const bool gathered : {false, true}) {
      const KernelRow& row = times.rows[gathered];
      speed.rows.push_back({gathered ? "gathered" : "dense", depth, row.median_s, row.least_s, row.most_s, row.bytes,
                            row.bytes / row.median_s, row.fraction, row.error});
    }
  }
  return speed;
}

}  // namespace glimpse::evaluate
