// What a server counts itself, beside engine::ServiceMetrics. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "glimpse/engine/request.h"
#include "glimpse/engine/service_metrics.h"

namespace glimpse::server {

struct Totals {
  std::map<int, std::int64_t> answers;      ///< by HTTP status
  std::int64_t connections = 0;             ///< now
  std::int64_t evicted = 0, timed_out = 0;  ///< connections that made room, that were too slow
  engine::Histogram whole_request;          ///< from the submission to the last event of a choice
  std::int64_t kv_bytes = 0, dense_bytes = 0;
  double coverage_sum = 0;
  std::int64_t coverage_sets = 0;
  std::map<std::string, std::int64_t> sparse_steps, dense_steps;  ///< by policy
  engine::DenseSteps dense_by{};                                  ///< by engine::DenseReason

  void add(const engine::Result& result, const std::string& policy, double seconds);
};

}  // namespace glimpse::server
