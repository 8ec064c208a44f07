#include "glimpse/cli/inspect_trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/printable.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/picture.h"
#include "glimpse/cli/report.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/cli/trace.h"

namespace glimpse::cli {
namespace {

/// Sums over steps and KV heads of a layer, or of all.
struct Reading {
  std::int64_t tokens = 0, context = 0;
  double coverage = 0, least = 1;
  std::int64_t known = 0;
  std::string roles;  ///< each letter once

  void add(const TraceHead& head, std::int64_t position) {
    constexpr std::string_view kLetters = "DSRW";
    const char role = kLetters[static_cast<std::size_t>(head.role)];
    if (roles.find(role) == std::string::npos) roles += role;
    tokens += head.tokens;
    context += position + 1;
    if (!head.coverage) return;
    ++known;
    coverage += *head.coverage;
    least = std::min(least, *head.coverage);
  }
  std::string share() const {
    return context == 0 ? "-"
                        : fmt::format("{:.2f} %", 100 * static_cast<double>(tokens) / static_cast<double>(context));
  }
  std::string mean() const { return known == 0 ? "-" : fmt::format("{:.4f}", coverage / static_cast<double>(known)); }
  std::string min() const { return known == 0 ? "-" : fmt::format("{:.4f}", least); }
};

std::string bytes_line(const Trace& trace) {
  double read = 0, index = 0, dense = 0;
  for (const TraceStep& step : trace.steps) {
    read += static_cast<double>(step.bytes_read);
    index += static_cast<double>(step.index_bytes);
    dense += static_cast<double>(step.dense_bytes);
  }
  if (trace.steps.empty()) return "none decoded";
  std::string text = fmt::format("{} decoded: read {}, {} of {}", trace.steps.size(),
                                 share_of_dense(dense > 0 ? read / dense : 1), bytes_text(read), bytes_text(dense));
  if (index > 0) text += fmt::format(", {} of it of key indices", bytes_text(index));
  return text;
}

std::string summary(const std::string& path, const Trace& trace) {
  const plan::ModelShape& shape = trace.shape;
  std::vector<Reading> layers(static_cast<std::size_t>(shape.layers));
  Reading all;
  for (const TraceStep& step : trace.steps) {
    for (std::size_t i = 0; i < step.heads.size(); ++i) {
      layers[i / static_cast<std::size_t>(shape.kv_heads)].add(step.heads[i], step.position);
      all.add(step.heads[i], step.position);
    }
  }
  const auto line = [](std::string_view what, const std::string& value) {
    return fmt::format("{:<16}{}\n", what, printable(value));
  };
  std::string text = line("file", path);
  text += line("trace", fmt::format("of 'glimpse {}', policy {}{}{}", trace.source, trace.policy,
                                    trace.budget.empty() ? "" : ", budget ", trace.budget));
  text += line("model",
               fmt::format("{} '{}', {} layers, {} query and {} KV heads of {}, cache {}", shape.architecture,
                           shape.model_name, shape.layers, shape.heads, shape.kv_heads, shape.head_dim, trace.kv_type));
  text += line("tokens", fmt::format("{} of the prompt, {} after it", trace.prompt_tokens,
                                     static_cast<std::int64_t>(trace.tokens.size()) - trace.prompt_tokens));
  text += line("steps", bytes_line(trace));
  text += line("coverage", all.known > 0
                               ? fmt::format("mean {}, least {} of a KV head in a step", all.mean(), all.min())
                               : "not in this trace; 'glimpse eval sets' computes it, and 'glimpse run --attn-audit'");
  if (trace.steps.empty()) return text;
  text += fmt::format("\n{:>5}  {:<5}{:>10}{:>12}{:>10}\n", "layer", "roles", "tokens", "coverage", "least");
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const Reading& row = layers[layer];
    text += fmt::format("{:>5}  {:<5}{:>10}{:>12}{:>10}\n", layer, row.roles, row.share(), row.mean(), row.min());
  }
  return text + "D dense, S select, R reuse, W stream\n";
}

}  // namespace

int inspect_trace(const Arguments& arguments) {
  const Trace trace = read_trace(arguments.subject);
  if (arguments.html) {
    Output file{std::filesystem::path(*arguments.html)};
    file.write(picture_page(trace));
    file.require_ok();
  }
  print(summary(arguments.subject, trace));
  return kExitOk;
}

}  // namespace glimpse::cli
