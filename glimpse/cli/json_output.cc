#include "glimpse/cli/json_output.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "glimpse/cli/setup.h"
#include "glimpse/plan/words.h"

namespace glimpse::cli {
namespace {

using Json = nlohmann::ordered_json;

// Model files may hold any bytes; what is not UTF-8 is replaced, not thrown at the user.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}
Json or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json attention_of(const engine::AttentionStats& stats) {
  return {{"kept_ratio", stats.kept_ratio()},
          {"coverage_mean", stats.coverage.sets > 0 ? Json(stats.coverage.mean) : Json()},
          {"coverage_min", stats.coverage.sets > 0 ? Json(stats.coverage.least) : Json()},
          {"audit", stats.audits > 0 ? Json{{"steps", stats.audits},
                                            {"coverage_mean", stats.audited.mean},
                                            {"coverage_min", stats.audited.least},
                                            {"thread_s", stats.audit_s}}
                                     : Json()},
          {"kv_bytes_read", stats.bytes_read},
          {"dense_bytes", stats.dense_bytes},
          {"index_bytes_read", stats.index_bytes},
          {"index_memory", stats.index_memory},
          {"index_build_s", stats.index_build_s},
          {"dense_steps", stats.dense_steps},
          {"sparse_steps", stats.sparse_steps},
          {"resident_tokens", or_null(stats.resident_tokens)},
          {"resident_hits", stats.resident_hits},
          {"recalled_pages", stats.recalled_pages},
          {"recalled_bytes", stats.recalled_bytes}};
}

Json session_of(const engine::SessionUse& use) {
  return {{"file_tokens", use.file_tokens},
          {"common_tokens", use.common_tokens},
          {"loaded_tokens", use.loaded_tokens},
          {"why_less", or_null(use.why_less)},
          {"load_s", use.load_s},
          {"load_cpu_s", use.load_cpu_s},
          {"saved_tokens", use.saved_tokens},
          {"saved_bytes", use.saved_bytes},
          {"save_s", use.save_s},
          {"save_error", or_null(use.save_error)},
          {"read_only", or_null(use.read_only)}};
}

std::vector<std::int32_t> union_of(std::span<const std::vector<std::int32_t>> sets) {
  std::vector<std::int32_t> all;
  for (const std::vector<std::int32_t>& set : sets) {
    std::vector<std::int32_t> merged;
    std::set_union(all.begin(), all.end(), set.begin(), set.end(), std::back_inserter(merged));
    all = std::move(merged);
  }
  return all;
}

Json header_of(const BenchHeader& header) {
  return {{"commit", header.commit},
          {"machine", {{"cpu", header.cpu}, {"cores", header.cores}, {"instruction_set", header.instruction_set}}},
          {"command", header.command},
          {"model", or_null(header.model)},
          {"kv_type", header.kv_type},
          {"threads", header.threads}};
}

Json head_json(const evaluate::HeadReads& reads) {
  const evaluate::SetQuality& sets = reads.sets;
  return {{"steps", reads.steps},
          {"sparse_steps", reads.sparse_steps},
          {"tokens", or_null(sets.mean_tokens())},
          {"coverage_mean", reads.coverage / static_cast<double>(reads.steps)},
          {"coverage_min", reads.coverage_least},
          {"mass_recall", or_null(sets.mass_recall())},
          {"token_recall", or_null(sets.token_recall())},
          {"set_jaccard", or_null(reads.tokens.jaccard())},
          {"set_window_hit", or_null(reads.tokens.window_hit())},
          {"unit_jaccard", or_null(reads.units.jaccard())},
          {"unit_window_hit", or_null(reads.units.window_hit())}};
}

}  // namespace

std::string run_json(const RunReport& report) {
  const engine::RequestStats& stats = report.result.stats;
  Json attention{{"policy", report.policy}, {"budget", or_null(report.budget)}, {"set_per", or_null(report.sets)}};
  attention.update(attention_of(stats.attention));
  const bool decoded = report.decode_steps() > 0;
  Json lossless;
  if (report.lossless) {
    lossless = {{"drafted", stats.lossless.drafted},
                {"accepted", stats.lossless.accepted},
                {"verify_passes", stats.lossless.verify_passes},
                {"dense_steps", stats.lossless.dense_steps},
                {"draft_s", stats.lossless.draft_s},
                {"verify_s", stats.lossless.verify_s}};
  }
  Json json{{"text", report.text},
            {"tokens", report.result.tokens},
            {"prompt_tokens", stats.prompt_tokens},
            {"reused_tokens", stats.reused_tokens},
            {"prefilled_tokens", stats.prefilled_tokens},
            {"generated_tokens", stats.generated_tokens},
            {"finish_reason", report.finish_reason()},
            {"prefill_s", stats.prefill_s},
            {"decode_s", stats.decode_s},
            {"corrections", stats.corrections},
            {"correction_s", stats.correction_s},
            {"tpot_ms", decoded ? Json(1e3 * report.token_seconds()) : Json(nullptr)},
            {"lossless", lossless},
            {"attention", attention}};
  if (stats.session) json["session"] = session_of(*stats.session);
  return text_of(json);
}

std::string trace_header_json(const TraceSource& source, const engine::Engine& engine, const plan::Plan& plan) {
  const plan::ModelShape shape = engine.shape();
  return text_of({{"kind", "header"},
                  {"version", 1},
                  {"source", source.command},
                  {"policy", plan.policy},
                  {"budget", or_null(budget_text(plan))},
                  {"model",
                   {{"architecture", shape.architecture},
                    {"name", shape.model_name},
                    {"layers", shape.layers},
                    {"heads", shape.heads},
                    {"kv_heads", shape.kv_heads},
                    {"head_dim", shape.head_dim}}},
                  {"kv_type", name(engine.kv_type())},
                  {"row_bytes", engine.row_pair_bytes()},  // K and V of one token in one layer and KV head
                  {"prompt_tokens", source.prompt_tokens}});
}

std::string trace_token_json(std::int64_t position, text::Token token, std::string_view text) {
  return text_of({{"kind", "token"}, {"position", position}, {"id", token}, {"text", text}});
}

std::string trace_step_json(const TraceStepBytes& bytes) {
  return text_of({{"kind", "step"},
                  {"step", bytes.step},
                  {"bytes_read", bytes.read},
                  {"index_bytes", bytes.index},
                  {"dense_bytes", bytes.dense}});
}

std::string trace_end_json(std::int64_t steps) {
  return text_of({{"kind", "end"}, {"steps", steps}});
}

std::string trace_json(const engine::SetTrace& trace, std::optional<double> coverage) {
  if (!coverage) coverage = trace.coverage;
  Json tokens, published;
  if (!trace.reads_all) {
    tokens = trace.tokens.empty() ? Json(union_of(trace.query_sets)) : Json(trace.tokens);
  }
  if (trace.publishes_all) {
    published = "all";
  } else if (trace.publishes) {
    published = trace.published.empty() ? Json(union_of(trace.query_sets)) : Json(trace.published);
  }
  Json line{{"step", trace.step},       {"position", trace.position},     {"layer", trace.layer},
            {"kv_head", trace.kv_head}, {"role", plan::word(trace.role)}, {"budget", trace.budget},
            {"tokens", tokens},         {"published", published},         {"coverage", or_null(coverage)}};
  if (!trace.query_sets.empty()) line["query_sets"] = trace.query_sets;
  return text_of(line);
}

std::string perplexity_json(const evaluate::PerplexityResult& result, const plan::Plan& plan,
                            const evaluate::PerplexityOptions& options) {
  Json attention{
      {"policy", plan.policy}, {"budget", or_null(budget_text(plan))}, {"set_per", or_null(sets_text(plan))}};
  attention.update(attention_of(result.attention));
  return text_of({{"perplexity", result.perplexity},
                  {"standard_error", result.standard_error},
                  {"tokens_scored", result.tokens_scored},
                  {"windows", result.windows},
                  {"window_tokens", options.window},
                  {"prefill_tokens", options.prefill.value_or(options.window)},
                  {"attention", attention}});
}

std::string fidelity_json(const evaluate::FidelityResult& result, const plan::Plan& plan, std::int64_t prompt_tokens) {
  const auto row_of = [](const evaluate::Fidelity& of) {
    const bool scored = of.scored > 0;
    return Json{{"first_position", of.first},
                {"tokens", of.tokens},
                {"kl", of.divergence},
                {"top_1", of.same_choice},
                {"dense_perplexity", scored ? Json(std::exp(of.dense_nll)) : Json(nullptr)},
                {"perplexity", scored ? Json(std::exp(of.nll)) : Json(nullptr)}};
  };
  Json attention{{"policy", plan.policy}, {"budget", or_null(budget_text(plan))}};
  attention.update(attention_of(result.attention));
  Json json{{"prompt_tokens", prompt_tokens}, {"all", row_of(result.all)}, {"ranges", Json::array()}};
  for (const evaluate::Fidelity& range : result.ranges) json["ranges"].push_back(row_of(range));
  json["layers"] = Json::array();
  for (std::size_t i = 0; i < result.layers.size(); ++i) {
    const std::optional<evaluate::LayerCoverage>& layer = result.layers[i];
    json["layers"].push_back({{"layer", i},
                              {"coverage_mean", layer ? Json(layer->mean) : Json(nullptr)},
                              {"coverage_min", layer ? Json(layer->least) : Json(nullptr)}});
  }
  json["attention"] = std::move(attention);
  return text_of(json);
}

std::string sets_json(const evaluate::SetsResult& result, const plan::Plan& plan, std::int64_t prompt_tokens) {
  Json attention{{"policy", plan.policy}, {"budget", or_null(budget_text(plan))}};
  attention.update(attention_of(result.attention));
  attention["coverage_mean"] = or_null(result.coverage_mean);
  attention["coverage_min"] = or_null(result.coverage_min);
  attention["unit_jaccard"] = or_null(result.units.jaccard());
  attention["unit_window_hit"] = or_null(result.units.window_hit());
  Json heads = Json::array();
  for (std::size_t i = 0; i < result.heads.size(); ++i) {
    const auto kv_heads = static_cast<std::size_t>(plan.shape.kv_heads);
    Json head{{"layer", i / kv_heads}, {"kv_head", i % kv_heads}};
    head.update(head_json(result.heads[i]));
    heads.push_back(std::move(head));
  }
  return text_of(
      {{"prompt_tokens", prompt_tokens}, {"steps", result.steps}, {"attention", attention}, {"heads", heads}});
}

std::string bench_json(const BenchHeader& header, std::string_view benchmark,
                       std::span<const evaluate::SpeedRow> rows) {
  Json json = header_of(header);
  json["benchmark"] = benchmark;
  json["rows"] = Json::array();
  for (const evaluate::SpeedRow& row : rows) {
    json["rows"].push_back({{"arm", row.arm},
                            {"tokens_before", row.depth},
                            {"median_ms", 1e3 * row.median_s},
                            {"least_ms", 1e3 * row.least_s},
                            {"most_ms", 1e3 * row.most_s},
                            {"tokens_per_s", row.tokens_per_s},
                            {"attention_ms", row.attention_s ? Json(1e3 * *row.attention_s) : Json(nullptr)},
                            {"kept_ratio", or_null(row.kept_ratio)},
                            {"kv_bytes_per_token", or_null(row.bytes_per_token)}});
  }
  return text_of(json);
}

std::string serving_json(const BenchHeader& header, const ServingReport& report) {
  Json json = header_of(header);
  json["benchmark"] = "serve";
  json["tokens_per_s"] = report.tokens_per_s;
  json["by_hand_tokens_per_s"] = report.by_hand_tokens_per_s;
  json["of_by_hand"] = report.of_by_hand();
  json["decode_pass_ms"] = 1e3 * report.decode_pass_s;
  json["chunk_pass_ms"] = 1e3 * report.chunk_pass_s;
  json["slice_seconds"] = report.slice_seconds;
  json["cache_mib"] = report.cache_mib;
  json["preemptions"] = report.preemptions();
  json["rows"] = Json::array();
  for (const evaluate::ServingRow& row : report.rows) {
    json["rows"].push_back({{"arm", row.arm},
                            {"requests", row.requests},
                            {"failed", row.failed},
                            {"first_token_p50_ms", 1e3 * row.first_p50_s},
                            {"first_token_p99_ms", 1e3 * row.first_p99_s},
                            {"between_tokens_p50_ms", 1e3 * row.between_p50_s},
                            {"between_tokens_p99_ms", 1e3 * row.between_p99_s},
                            {"longest_wait_ms", 1e3 * row.longest_wait_s},
                            {"longest_wait_passes", row.longest_wait_passes},
                            {"tokens_per_s", row.tokens_per_s},
                            {"as_alone", row.as_alone}});
  }
  json["requests"] = Json::array();
  for (std::size_t run = 0; run < report.runs.size(); ++run) {
    for (std::size_t i = 0; i < report.arrivals.size(); ++i) {
      const evaluate::Arrival& arrival = report.arrivals[i];
      const evaluate::Served& served = report.runs[run].requests[i];
      const std::vector<double>& times = served.token_s;
      json["requests"].push_back({{"run", run},
                                  {"arm", arrival.arm},
                                  {"at", arrival.at_s},
                                  {"prompt_tokens", arrival.prompt.size()},
                                  {"tokens", served.tokens.size()},
                                  {"queue_ms", 1e3 * served.queue_s},
                                  {"first_token_ms", times.empty() ? Json() : Json(1e3 * times.front())},
                                  {"last_token_ms", times.empty() ? Json() : Json(1e3 * times.back())},
                                  {"error", or_null(served.error)}});
    }
  }
  return text_of(json);
}

std::string attention_json(const BenchHeader& header, double bandwidth, std::span<const evaluate::AttentionRow> rows) {
  Json json = header_of(header);
  json["benchmark"] = "attention";
  json["read_bandwidth"] = bandwidth;
  json["rows"] = Json::array();
  for (const evaluate::AttentionRow& row : rows) {
    json["rows"].push_back({{"kernel", row.kernel},
                            {"depth", row.depth},
                            {"median_ms", 1e3 * row.median_s},
                            {"least_ms", 1e3 * row.least_s},
                            {"most_ms", 1e3 * row.most_s},
                            {"bytes", row.bytes},
                            {"bytes_per_s", row.bytes_per_s},
                            {"share_of_bandwidth", row.fraction},
                            {"error", row.error}});
  }
  return text_of(json);
}

}  // namespace glimpse::cli
