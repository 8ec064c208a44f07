#include "glimpse/cli/report.h"

#include <fmt/format.h>

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

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, kUnits[unit]);
}

std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text) result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return result;
}

std::string statistics(const RunReport& report) {
  const engine::RequestStats& stats = report.result.stats;
  std::string text = fmt::format("prompt     {} tokens", stats.prompt_tokens);
  if (stats.prefill_s > 0) {
    text += fmt::format(" in {:.2f} s", stats.prefill_s);
    // An interrupted prefill has done an unknown part.
    if (report.decode_steps() > 0 || stats.generated_tokens > 0) {
      text += fmt::format(", {:.1f} tokens/s", static_cast<double>(stats.prompt_tokens) / stats.prefill_s);
    }
  }
  text += fmt::format("\ngenerated  {} tokens", stats.generated_tokens);
  if (report.token_seconds() > 0) {
    text += fmt::format(" in {:.2f} s, {:.1f} tokens/s ({:.2f} ms a token)", stats.decode_s, 1 / report.token_seconds(),
                        1e3 * report.token_seconds());
  }
  text += fmt::format("; ended by {}", report.finish_reason());
  if (stats.corrections > 0) {
    text += fmt::format("\ncorrected  {} times by dense passes, {:.2f} s", stats.corrections, stats.correction_s);
  }
  text += fmt::format("\nattention  {}", report.policy);
  if (!report.budget.empty()) text += fmt::format(", budget {}", report.budget);
  if (report.decode_steps() > 0) {
    text += fmt::format(": read {:.2f} % of the cache, {} a token ({} dense steps, {} sparse)",
                        100 * stats.attention.kept_ratio(), bytes_text(report.bytes_per_token()),
                        stats.attention.dense_steps, stats.attention.sparse_steps);
  }
  return text;
}

}  // namespace glimpse::cli
