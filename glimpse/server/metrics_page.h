// GET /metrics: Prometheus' text format, with the names of vLLM behind "glimpse:". Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "glimpse/engine/service_metrics.h"
#include "glimpse/server/totals.h"

namespace glimpse::server {

inline constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

/// `model`: its name, the label of all.
std::string metrics_page(const engine::ServiceMetrics& service, const Totals& totals, std::string_view model);

}  // namespace glimpse::server
