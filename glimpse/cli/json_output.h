// Results as JSON, one line each. The keys are those of docs and design; field words are the same as in flags and C++.
// Any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/cli/report.h"
#include "glimpse/engine/engine.h"
#include "glimpse/evaluate/attention_speed.h"
#include "glimpse/evaluate/perplexity.h"
#include "glimpse/evaluate/speed.h"

namespace glimpse::cli {

std::string run_json(const RunReport& report);

/// {step, position, layer, kv_head, role, budget, tokens, published}: `tokens` null is every token up to `position`,
/// `published` null is nothing handed on and "all" every token; sets per query head stand beside their union.
std::string trace_json(const engine::SetTrace& trace);

std::string perplexity_json(const evaluate::PerplexityResult& result, const plan::Plan& plan,
                            const evaluate::PerplexityOptions& options);

/// What stands above the rows of a benchmark.
struct BenchHeader {
  std::string commit, cpu, command, model, kv_type, instruction_set;
  int cores = 0, threads = 0;
};
std::string bench_json(const BenchHeader& header, std::string_view benchmark, std::span<const evaluate::SpeedRow> rows);
std::string attention_json(const BenchHeader& header, double bandwidth, std::span<const evaluate::AttentionRow> rows);

}  // namespace glimpse::cli
