// Results as JSON, one line each. The keys are those of docs and design; field words are the same as in flags and C++.
// Any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/cli/report.h"
#include "glimpse/engine/engine.h"
#include "glimpse/evaluate/attention_speed.h"
#include "glimpse/evaluate/fidelity.h"
#include "glimpse/evaluate/perplexity.h"
#include "glimpse/evaluate/serving.h"
#include "glimpse/evaluate/sets.h"
#include "glimpse/evaluate/speed.h"

namespace glimpse::cli {

std::string run_json(const RunReport& report);

/// The lines of a trace (trace_writer.h has their order).
struct TraceSource {
  std::string_view command;
  std::int64_t prompt_tokens = 0;
};
std::string trace_header_json(const TraceSource& source, const engine::Engine& engine, const plan::Plan& plan);
std::string trace_token_json(std::int64_t position, text::Token token, std::string_view text);
/// {step, position, layer, kv_head, role, budget, tokens, published, coverage}: `tokens` null is every token up to
/// `position`, `published` null is nothing handed on and "all" every token; sets per query head stand beside their
/// union; `coverage`, the softmax mass captured, is the step's audit where it is not given, and null without either.
std::string trace_json(const engine::SetTrace& trace, std::optional<double> coverage);
struct TraceStepBytes {
  std::int64_t step = 0, read = 0, index = 0, dense = 0;
};
std::string trace_step_json(const TraceStepBytes& bytes);
std::string trace_end_json(std::int64_t steps);

std::string perplexity_json(const evaluate::PerplexityResult& result, const plan::Plan& plan,
                            const evaluate::PerplexityOptions& options);

std::string fidelity_json(const evaluate::FidelityResult& result, const plan::Plan& plan, std::int64_t prompt_tokens);

std::string sets_json(const evaluate::SetsResult& result, const plan::Plan& plan, std::int64_t prompt_tokens);

/// What stands above the rows of a benchmark.
struct BenchHeader {
  std::string commit, cpu, command, model, kv_type, instruction_set;
  int cores = 0, threads = 0;
};
std::string bench_json(const BenchHeader& header, std::string_view benchmark, std::span<const evaluate::SpeedRow> rows);
/// What `bench serve` measured. Rates are medians over the runs.
struct ServingReport {
  std::vector<evaluate::ServingRow> rows;
  double tokens_per_s = 0, by_hand_tokens_per_s = 0;
  double decode_pass_s = 0, chunk_pass_s = 0;
  double slice_seconds = 0;    ///< as engine::EngineOptions has it
  std::int64_t cache_mib = 0;  ///< as --cache-mib has it
  std::vector<evaluate::Arrival> arrivals;
  std::vector<evaluate::ServingRun> runs;

  /// Of all runs through the Service.
  std::int64_t preemptions() const {
    std::int64_t all = 0;
    for (const evaluate::ServingRun& run : runs) all += run.preemptions;
    return all;
  }
  double of_by_hand() const { return by_hand_tokens_per_s > 0 ? tokens_per_s / by_hand_tokens_per_s : 0; }
};
std::string serving_json(const BenchHeader& header, const ServingReport& report);
std::string attention_json(const BenchHeader& header, double bandwidth, std::span<const evaluate::AttentionRow> rows);

}  // namespace glimpse::cli
