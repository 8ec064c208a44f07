#include "glimpse/cli/user_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"

namespace glimpse::cli {
namespace {

using Json = nlohmann::ordered_json;
using evaluate::Metric;

// LongBench's data sets by their official metric. Those of the third list have one that is not there.
constexpr std::array<std::string_view, 6> kF1{"narrativeqa", "qasper",   "multifieldqa_en",
                                              "hotpotqa",    "2wikimqa", "musique"};
constexpr std::array<std::string_view, 3> kRouge{"gov_report", "qmsum", "multi_news"};
constexpr std::array<std::string_view, 12> kElsewhere{"trec",
                                                      "triviaqa",
                                                      "samsum",
                                                      "lsht",
                                                      "passage_count",
                                                      "passage_retrieval_en",
                                                      "passage_retrieval_zh",
                                                      "lcc",
                                                      "repobench-p",
                                                      "multifieldqa_zh",
                                                      "dureader",
                                                      "vcsum"};

template <class List>
bool holds(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::string text_of(const Json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end() || found->is_null()) return "";
  if (!found->is_string()) throw UserError(fmt::format("'{}' is no text", key));
  return *found;
}

std::string prompt_of(const Json& line) {
  for (const char* whole : {"prompt", "question", "problem"}) {
    std::string text = text_of(line, whole);
    if (!text.empty()) return text;
  }
  const std::string context = text_of(line, "context"), input = text_of(line, "input");
  return context + (context.empty() || input.empty() ? "" : "\n\n") + input;
}

/// Texts and numbers; one or a list of them.
std::vector<std::string> texts_of(const Json& value, std::string_view key) {
  std::vector<std::string> texts;
  const auto add = [&](const Json& one) {
    if (!one.is_string() && !one.is_number()) throw UserError(fmt::format("'{}' holds neither texts nor numbers", key));
    texts.push_back(one.is_string() ? one.get<std::string>() : one.dump());
  };
  if (!value.is_array()) {
    add(value);
  } else {
    for (const Json& one : value) add(one);
  }
  return texts;
}

Metric metric_of(const Json& line, const std::string& task, Metric usual) {
  if (const std::string said = text_of(line, "metric"); !said.empty()) return evaluate::parse_metric(said);
  if (holds(kF1, task)) return Metric::f1;
  if (holds(kRouge, task)) return Metric::rouge_l;
  if (holds(kElsewhere, task)) {
    throw UserError(fmt::format("the official metric of '{}' is not there; give --metric for another one", task));
  }
  return usual;
}

UserPrompt parse_line(std::string_view text, std::optional<Metric> metric) {
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) throw UserError("it is no JSON object");
  UserPrompt prompt;
  for (const char* key : {"task", "dataset"}) {
    if (const std::string said = text_of(line, key); !said.empty()) prompt.task = said;
  }
  if (prompt.task.empty()) prompt.task = "lines";
  prompt.text = prompt_of(line);
  if (prompt.text.empty()) throw UserError("it has no text; give 'prompt', or 'context' and 'input'");
  constexpr std::array<std::pair<const char*, Metric>, 3> kWanted{
      {{"outputs", Metric::all}, {"answers", Metric::f1}, {"answer", Metric::words}}};
  for (const auto& [key, usual] : kWanted) {
    if (!line.contains(key)) continue;
    prompt.wanted = texts_of(line[key], key);
    prompt.metric = metric ? *metric : metric_of(line, prompt.task, usual);
    break;
  }
  if (prompt.wanted.empty()) throw UserError("it says no answer; give 'answers', 'outputs' or 'answer'");
  return prompt;
}

}  // namespace

std::vector<UserPrompt> parse_user_prompts(std::string_view text, std::optional<Metric> metric, std::int64_t most) {
  std::vector<UserPrompt> prompts;
  std::int64_t number = 0;
  while (!text.empty() && std::ssize(prompts) < most) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      prompts.push_back(parse_line(line, metric));
    } catch (const UserError& error) {
      throw UserError(fmt::format("line {}: {}", number, printable(error.what())));
    }
  }
  if (prompts.empty()) throw UserError("it has no line with a question");
  return prompts;
}

evaluate::RetrievalPrompt render_user_prompt(const text::Tokenizer& tokenizer, const UserPrompt& prompt,
                                             std::int64_t length) {
  evaluate::RetrievalPrompt rendered{evaluate::render_prompt(tokenizer, prompt.text), prompt.text, prompt.wanted,
                                     prompt.metric};
  const std::vector<text::Token> all = tokenizer.encode(prompt.text, text::Special::as_text, false);
  // Where the halves meet tokens may be more than both have.
  for (std::int64_t kept = std::ssize(all); std::ssize(rendered.tokens) > length;) {
    kept -= std::max<std::int64_t>(std::ssize(rendered.tokens) - length, 1);
    if (kept < 2) {
      throw UserError(fmt::format("a prompt of {} tokens has no room for a question; give a larger -c", length));
    }
    const auto half = static_cast<std::size_t>(kept / 2);
    const std::span<const text::Token> tokens(all);
    rendered.content = tokenizer.decode(tokens.first(half)) + tokenizer.decode(tokens.last(half));
    rendered.tokens = evaluate::render_prompt(tokenizer, rendered.content);
  }
  return rendered;
}

}  // namespace glimpse::cli
