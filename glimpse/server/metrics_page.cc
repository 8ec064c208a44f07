#include "glimpse/server/metrics_page.h"

#include <fmt/format.h>

#include <tuple>
#include <utility>

#include "glimpse/engine/request.h"

namespace glimpse::server {
namespace {

class Page {
 public:
  explicit Page(std::string_view model) : model_(escaped(model)) {}

  template <class T>
  void value(std::string_view name, std::string_view type, std::string_view help, T number) {
    head(name, type, help);
    line(name, "", number);
  }
  void head(std::string_view name, std::string_view type, std::string_view help) {
    text_ += fmt::format("# HELP glimpse:{} {}\n# TYPE glimpse:{} {}\n", name, help, name, type);
  }
  /// `label`: ',key="value"', or empty.
  template <class T>
  void line(std::string_view name, std::string_view label, T number) {
    text_ += fmt::format("glimpse:{}{{model_name=\"{}\"{}}} {}\n", name, model_, label, number);
  }
  void histogram(std::string_view name, std::string_view help, const engine::Histogram& of) {
    head(name, "histogram", help);
    const std::string bucket = fmt::format("{}_bucket", name);
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < of.kEnds.size(); ++i) {
      sum += of.counts[i];
      line(bucket, fmt::format(",le=\"{:g}\"", of.kEnds[i]), sum);
    }
    line(bucket, ",le=\"+Inf\"", of.count);
    line(fmt::format("{}_sum", name), "", of.sum_s);
    line(fmt::format("{}_count", name), "", of.count);
  }
  std::string take() { return std::move(text_); }

  static std::string escaped(std::string_view value) {
    std::string out;
    for (const char c : value) {
      if (c == '"' || c == '\\') out += '\\';
      out += c == '\n' ? ' ' : c;
    }
    return out;
  }

 private:
  std::string model_, text_;
};

void attention(Page& page, const Totals& totals) {
  page.value("attn_kv_bytes_read_total", "counter", "Bytes of K, V and indices that decoding read.", totals.kv_bytes);
  page.value("attn_kv_bytes_dense_total", "counter", "Bytes of K and V that dense attention would have read.",
             totals.dense_bytes);
  page.value(
      "attn_kept_ratio", "gauge", "The first over the second; 1 before any token.",
      totals.dense_bytes > 0 ? static_cast<double>(totals.kv_bytes) / static_cast<double>(totals.dense_bytes) : 1.0);
  if (totals.coverage_sets > 0) {
    page.value("attn_coverage", "gauge", "Softmax mass that the sets captured, the mean over those where it is known.",
               totals.coverage_sum / static_cast<double>(totals.coverage_sets));
  }
  for (const auto& [name, help, steps] :
       {std::tuple("attn_sparse_steps_total", "Decode steps in which a head read less than all.", &totals.sparse_steps),
        std::tuple("attn_dense_steps_total", "Decode steps in which every head read all.", &totals.dense_steps)}) {
    page.head(name, "counter", help);
    for (const auto& [policy, count] : *steps) {
      page.line(name, fmt::format(",policy=\"{}\"", Page::escaped(policy)), count);
    }
  }
  page.head("attn_dense_fallback_total", "counter", "Decode steps of sparse methods in which every head read all.");
  using Reason = engine::DenseReason;
  for (const auto& [word, reason] : {std::pair("min_ctx", Reason::context), std::pair("budget", Reason::budget),
                                     std::pair("verify", Reason::verify), std::pair("drafts", Reason::drafts)}) {
    page.line("attn_dense_fallback_total", fmt::format(",reason=\"{}\"", word),
              totals.dense_by[static_cast<std::size_t>(reason)]);
  }
}

}  // namespace

void Totals::add(const engine::Result& result, const std::string& policy, double seconds) {
  whole_request.add(seconds);
  const engine::AttentionStats& stats = result.stats.attention;
  kv_bytes += stats.bytes_read;
  dense_bytes += stats.dense_bytes;
  const auto& mass = stats.audits > 0 ? stats.audited : stats.coverage;
  coverage_sum += mass.mean * static_cast<double>(mass.sets);
  coverage_sets += mass.sets;
  sparse_steps[policy] += stats.sparse_steps;
  dense_steps[policy] += stats.dense_steps;
  for (std::size_t i = 0; i < dense_by.size(); ++i) dense_by[i] += stats.dense_by[i];
}

std::string metrics_page(const engine::ServiceMetrics& service, const Totals& totals, std::string_view model) {
  Page page(model);
  page.value("num_requests_running", "gauge", "Requests that the engine works on.", service.running);
  page.value("num_requests_waiting", "gauge", "Requests that wait for it.", service.queued);
  page.value(
      "kv_cache_usage_perc", "gauge",
      "Share of the cache's pages that requests use, 1 is all; pages of kept prefixes that no request reads give way "
      "and are not in use.",
      service.pages_total > 0 ? static_cast<double>(service.pages_used) / static_cast<double>(service.pages_total)
                              : 0.0);
  page.value("num_preemptions_total", "counter", "Times that a request gave its pages back.", service.preemptions);
  page.value("prompt_tokens_total", "counter", "Prompt tokens of requests that ended.", service.prompt_tokens);
  page.value("prefix_cache_queries_total", "counter", "Of these, those looked for among kept prefixes.",
             service.prefix_queried);
  page.value("prefix_cache_hits_total", "counter", "Of these, those found there.", service.prefix_found);
  page.value("generation_tokens_total", "counter", "Tokens generated.", service.generated_tokens);
  page.head("request_success_total", "counter", "Requests that ended, by why.");
  using Reason = engine::FinishReason;
  for (const auto& [word, count] :
       {std::pair("stop", service.ended_as(Reason::end_of_text) + service.ended_as(Reason::stop)),
        std::pair("length", service.ended_as(Reason::length) + service.ended_as(Reason::context_full)),
        std::pair("abort", service.ended_as(Reason::cancelled)),
        std::pair("error", service.ended_as(Reason::failed))}) {
    page.line("request_success_total", fmt::format(",finished_reason=\"{}\"", word), count);
  }
  page.value("requests_refused_total", "counter", "Requests that found the queue full.", service.refused);
  page.histogram("time_to_first_token_seconds", "From the submission to the first token.", service.first_token);
  page.histogram("inter_token_latency_seconds", "Between two tokens of one answer.", service.between_tokens);
  page.histogram("request_queue_time_seconds", "From the submission to the first pass.", service.queue);
  page.histogram("e2e_request_latency_seconds", "From the submission to the end.", totals.whole_request);
  attention(page, totals);
  page.head("http_answers_total", "counter", "HTTP answers, by status.");
  for (const auto& [status, count] : totals.answers) {
    page.line("http_answers_total", fmt::format(",status=\"{}\"", status), count);
  }
  page.value("http_connections", "gauge", "Connections that are open.", totals.connections);
  page.value("http_connections_evicted_total", "counter", "Connections that made room for others.", totals.evicted);
  page.value("http_connections_timed_out_total", "counter", "Connections that were too slow.", totals.timed_out);
  return page.take();
}

}  // namespace glimpse::server
