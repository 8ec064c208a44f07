#include "glimpse/cli/report.h"

#include <fmt/format.h>

#include "glimpse/base/printable.h"

namespace glimpse::cli {

double RunReport::token_seconds() const {
  return decode_steps() > 0 ? result.stats.decode_s / static_cast<double>(decode_steps()) : 0;
}

double RunReport::bytes_per_token() const {
  if (decode_steps() == 0) return 0;
  return static_cast<double>(result.stats.attention.bytes_read) / static_cast<double>(decode_steps());
}

std::string RunReport::finish_reason() const {
  return interrupted ? "interrupted" : std::string(engine::name(result.reason));
}

std::string shape_text(const plan::ModelShape& shape) {
  return fmt::format("{} '{}', {} layers, {} query and {} KV heads of {}", printable(shape.architecture),
                     printable(shape.model_name), shape.layers, shape.heads, shape.kv_heads, shape.head_dim);
}

namespace {

std::string session_text(const engine::SessionUse& use) {
  std::string text;
  if (use.file_tokens > 0) {
    text = fmt::format("\nsession    {} of its {} tokens loaded in {:.2f} s ({:.2f} s of processor time)",
                       use.loaded_tokens, use.file_tokens, use.load_s, use.load_cpu_s);
    if (use.loaded_tokens < use.common_tokens)
      text += fmt::format(" of {} that the prompt begins with", use.common_tokens);
    if (!use.why_less.empty()) text += fmt::format(": {}", use.why_less);
  }
  if (use.saved_tokens > 0) {
    text += fmt::format("\nsession    {} tokens saved, {} in {:.2f} s", use.saved_tokens,
                        bytes_text(static_cast<double>(use.saved_bytes)), use.save_s);
  } else if (!use.save_error.empty()) {
    text += "\nsession    not saved";
  } else if (!use.read_only.empty()) {
    text += fmt::format("; the file is left as it is: {}", use.read_only);
  } else if (use.file_tokens > 0) {
    text += "; the file is left as it is";
  }
  return text;
}

std::string prompt_text(const engine::RequestStats& stats) {
  const std::int64_t there = stats.reused_tokens + stats.prefilled_tokens;
  std::string text = there < stats.prompt_tokens
                         ? fmt::format("prompt     not complete: {} of {} tokens", there, stats.prompt_tokens)
                         : fmt::format("prompt     {} tokens", stats.prompt_tokens);
  if (stats.reused_tokens > 0) {
    text += fmt::format(", {} of them from the {}", stats.reused_tokens, stats.session ? "session" : "cache");
    if (stats.prefilled_tokens > 0) text += fmt::format("; {} computed", stats.prefilled_tokens);
  }
  if (stats.prefilled_tokens > 0 && stats.prefill_s > 0) {
    text += fmt::format(" in {:.2f} s, {:.1f} tokens/s", stats.prefill_s,
                        static_cast<double>(stats.prefilled_tokens) / stats.prefill_s);
  }
  return text;
}

/// "12.34 % of the bytes of dense attention", and where that is more than all, why.
std::string share_text(const RunReport& report) {
  const double share = report.result.stats.attention.kept_ratio();
  std::string text = fmt::format("read {}", share_of_dense(share));
  if (share > 1) {
    text += report.sets == "query-head" ? " (more than dense: each query head reads a set of its own)"
                                        : " (more than dense: choosing the sets reads more than they save)";
  }
  return text;
}

}  // namespace

std::string share_of_dense(double share) {
  return fmt::format("{:.2f} % of the bytes of dense attention", 100 * share);
}

std::string statistics(const RunReport& report) {
  const engine::RequestStats& stats = report.result.stats;
  std::string text = prompt_text(stats);
  if (stats.session) text += session_text(*stats.session);
  text += fmt::format("\ngenerated  {} tokens", stats.generated_tokens);
  if (report.token_seconds() > 0) {
    text += fmt::format(" in {:.2f} s, {:.1f} tokens/s ({:.2f} ms a token)", stats.decode_s, 1 / report.token_seconds(),
                        1e3 * report.token_seconds());
  }
  text += fmt::format("; ended by {}", report.finish_reason());
  if (stats.corrections > 0) {
    text += fmt::format("\ncorrected  {} times by dense passes, {:.2f} s", stats.corrections, stats.correction_s);
  }
  if (report.lossless) {
    const engine::LosslessStats& lossless = stats.lossless;
    text += fmt::format("\nlossless   {} of {} drafted tokens accepted in {} verifications", lossless.accepted,
                        lossless.drafted, lossless.verify_passes);
    if (lossless.dense_steps > 0) text += fmt::format(", {} tokens decoded densely", lossless.dense_steps);
    if (lossless.verify_passes > 0) {
      text += fmt::format("; drafts {:.2f} s, verifications {:.2f} s", lossless.draft_s, lossless.verify_s);
    }
  }
  text += fmt::format("\nattention  {}", report.policy);
  if (!report.budget.empty()) text += fmt::format(", budget {}", report.budget);
  if (!report.sets.empty()) text += fmt::format(", a set per {}", report.sets);
  if (report.decode_steps() > 0) {
    text +=
        fmt::format(": {}, {} a token ({} dense steps, {} sparse)", share_text(report),
                    bytes_text(report.bytes_per_token()), stats.attention.dense_steps, stats.attention.sparse_steps);
  }
  const auto captured = [&](const char* name, const engine::AttentionStats::Mass& mass) {
    if (mass.sets > 0) text += fmt::format("\n{} mean {:.4f}, least {:.4f}", name, mass.mean, mass.least);
  };
  captured("coverage   of sets chosen by all scores:", stats.attention.coverage);
  captured("audit      of every head:", stats.attention.audited);
  if (stats.attention.audits > 0) {
    text += fmt::format(", in {} steps, {:.3f} s of all threads", stats.attention.audits, stats.attention.audit_s);
  }
  if (stats.attention.index_memory > 0) {
    text += fmt::format("\nindex      {}, built in {:.3f} s of all threads together",
                        bytes_text(static_cast<double>(stats.attention.index_memory)), stats.attention.index_build_s);
  }
  return text;
}

}  // namespace glimpse::cli
