#include "tests/server/told.h"

#include <set>
#include <utility>

#include "glimpse/plan/words.h"

namespace glimpse::server {
namespace {

std::vector<int> together(const engine::SetTrace& trace, std::span<const std::int32_t> own) {
  if (!own.empty()) return {own.begin(), own.end()};
  std::set<int> all;
  for (const auto& set : trace.query_sets) all.insert(set.begin(), set.end());
  return {all.begin(), all.end()};
}

JsonValue line_of(const engine::SetTrace& trace) {
  JsonValue line{{"step", trace.step},       {"position", trace.position},     {"layer", trace.layer},
                 {"kv_head", trace.kv_head}, {"role", plan::word(trace.role)}, {"budget", trace.budget},
                 {"tokens", nullptr},        {"published", nullptr},           {"coverage", nullptr}};
  if (!trace.reads_all) line["tokens"] = together(trace, trace.tokens);
  if (trace.publishes) {
    line["published"] = trace.publishes_all ? JsonValue("all") : JsonValue(together(trace, trace.published));
  }
  if (trace.coverage) line["coverage"] = *trace.coverage;
  if (!trace.query_sets.empty()) line["query_sets"] = JsonValue(trace.query_sets);
  return line;
}

}  // namespace

Told told_by_engine(engine::Engine& engine, engine::Request request) {
  Told told;
  JsonValue heads = JsonValue::array();
  request.sampling.temperature = 0;
  request.on_sets = [&](const engine::SetTrace& trace) { heads.push_back(line_of(trace)); };
  const std::vector<text::Token> prompt = request.prompt;
  const engine::RequestId id = engine.submit(std::move(request));
  engine::AttentionStats before;
  while (engine.step()) {
    if (heads.empty()) continue;
    const engine::AttentionStats& now = engine.result(id).stats.attention;
    told.steps.push_back({{"heads", std::exchange(heads, JsonValue::array())},
                          {"bytes_read", now.bytes_read - before.bytes_read},
                          {"index_bytes", now.index_bytes - before.index_bytes},
                          {"dense_bytes", now.dense_bytes - before.dense_bytes}});
    before = now;
  }
  told.tokens = engine.result(id).tokens;
  text::Utf8Stream utf8;
  for (std::size_t i = 0; i < prompt.size() + told.tokens.size(); ++i) {
    const text::Token token = i < prompt.size() ? prompt[i] : told.tokens[i - prompt.size()];
    told.texts.push_back(utf8.push(engine.tokenizer().piece(token, true)));
    if (i + 1 == prompt.size()) told.texts.back() += utf8.finish();
  }
  return told;
}

}  // namespace glimpse::server
