#include "glimpse/server/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "glimpse/base/printable.h"
#include "glimpse/engine/lossless.h"
#include "glimpse/server/api_error.h"
#include "glimpse/server/prompt_fields.h"
#include "glimpse/server/schema_fields.h"

namespace glimpse::server {
namespace {

using R = const FieldReader&;

constexpr double kMostTokens = 1 << 24;
constexpr double kMostPosition = 1 << 30;
constexpr double kMostSeed = 4294967295.0;

constexpr Field kFields[] = {
    {.name = "model",
     .value = "text",
     .default_value = "the one that is loaded",
     .help = "another name is refused",
     .read = [](R r) { r.wanted.model = r.text(); }},
    {.name = "messages",
     .value = "list",
     .default_value = "required",
     .help = "each {role, content}; content is a text or a list of {type: \"text\", text}. An assistant's may have "
             "tool_calls, a tool's has tool_call_id",
     .place = kInChat,
     .read = read_messages},
    {.name = "prompt",
     .value = "text, ids, or a list of either",
     .most = &Limits::prompts,
     .flag = "--max-prompts",
     .default_value = "required",
     .help = "control tokens that a text spells out become these tokens",
     .place = kInCompletion,
     .read = read_prompts},
    {.name = "max_tokens",
     .value = "whole number",
     .low = 1,
     .high = kMostTokens,
     .default_value = "chat: no limit; completion: 16",
     .help = "tokens of an answer; it ends where the context is full, too",
     .read = [](R r) { r.wanted.max_tokens = r.whole(); }},
    {.name = "max_completion_tokens",
     .value = "whole number",
     .low = 1,
     .high = kMostTokens,
     .help = "the same",
     .read = [](R r) { r.wanted.max_tokens = r.whole(); }},
    {.name = "min_tokens",
     .value = "whole number",
     .low = 0,
     .high = kMostTokens,
     .default_value = "0",
     .help = "before so many no token ends the answer, and no text of `stop` may begin",
     .read = [](R r) { r.wanted.min_tokens = r.whole(); }},
    {.name = "ignore_eos",
     .value = "true or false",
     .default_value = "false",
     .help = "go on behind tokens that end the text",
     .read = [](R r) { r.wanted.ignore_end = r.flag(); }},
    {.name = "temperature",
     .value = "number",
     .low = 0,
     .high = 100,
     .default_value = "1",
     .help = "0: greedy",
     .read = [](R r) { r.wanted.sampling.temperature = static_cast<float>(r.number()); }},
    {.name = "top_p",
     .value = "number",
     .low = 0,
     .high = 1,
     .default_value = "1",
     .help = "sample from the likeliest of this mass; 1: off",
     .read = [](R r) { r.wanted.sampling.top_p = static_cast<float>(r.number()); }},
    {.name = "top_k",
     .value = "whole number",
     .low = -1,
     .high = kMostTokens,
     .default_value = "0",
     .help = "sample from so many of the likeliest; 0, -1: off",
     .read = [](R r) { r.wanted.sampling.top_k = std::max(0, static_cast<int>(r.whole())); }},
    {.name = "min_p",
     .value = "number",
     .low = 0,
     .high = 1,
     .default_value = "0",
     .help = "drop tokens below so much of the likeliest; 0: off",
     .read = [](R r) { r.wanted.sampling.min_p = static_cast<float>(r.number()); }},
    {.name = "seed",
     .value = "whole number",
     .low = -1,
     .high = kMostSeed,
     .default_value = "-1",
     .help = "the same seed, the same answer; choice i of a prompt has seed + i; -1: a random one",
     .read =
         [](R r) {
           if (r.whole() >= 0) r.wanted.seed = static_cast<std::uint32_t>(r.whole());
         }},
    {.name = "n",
     .value = "whole number",
     .low = 1,
     .most = &Limits::choices,
     .flag = "--max-n",
     .default_value = "1",
     .help = "answers to each prompt",
     .read = [](R r) { r.wanted.choices = r.whole(); }},
    {.name = "stop",
     .value = "text, or a list of texts",
     .most = &Limits::stops,
     .flag = "--max-stops",
     .help = "an answer ends before the first of these",
     .read = read_stops},
    {.name = "presence_penalty",
     .value = "number",
     .low = -100,
     .high = 100,
     .default_value = "0",
     .help = "subtracted for tokens that occurred in the answer",
     .read = [](R r) { r.wanted.sampling.presence_penalty = static_cast<float>(r.number()); }},
    {.name = "frequency_penalty",
     .value = "number",
     .low = -100,
     .high = 100,
     .default_value = "0",
     .help = "subtracted for each occurrence in the answer",
     .read = [](R r) { r.wanted.sampling.frequency_penalty = static_cast<float>(r.number()); }},
    {.name = "repetition_penalty",
     .value = "number",
     .low = 0.01,
     .high = 100,
     .default_value = "1",
     .help = "divides the logits of tokens that occurred in prompt or answer; 1: off",
     .read = [](R r) { r.wanted.sampling.repeat_penalty = static_cast<float>(r.number()); }},
    {.name = "logit_bias",
     .value = "object of numbers",
     .low = -100,
     .high = 100,
     .help = "added to the logits of tokens, by their ids, as {\"198\": -5}",
     .read = read_logit_bias},
    {.name = "logprobs",
     .value = "true or false",
     .default_value = "false",
     .help = "log-probabilities of the answer's tokens: the model's own, "
             "before any bias, penalty, temperature or filter",
     .place = kInChat,
     .read =
         [](R r) {
           if (r.flag()) r.wanted.logprobs = 0;
         }},
    {.name = "top_logprobs",
     .value = "whole number",
     .low = 0,
     .most = &Limits::logprobs,
     .flag = "--max-logprobs",
     .default_value = "0",
     .help = "so many of the likeliest tokens beside each; needs `logprobs`",
     .place = kInChat,
     .read = [](R r) { r.wanted.top_logprobs = static_cast<int>(r.whole()); }},
    {.name = "logprobs",
     .value = "whole number",
     .low = 0,
     .most = &Limits::logprobs,
     .flag = "--max-logprobs",
     .help = "the same, with so many of the likeliest tokens; with `echo` the "
             "prompt's too",
     .place = kInCompletion,
     .read = [](R r) { r.wanted.logprobs = static_cast<int>(r.whole()); }},
    {.name = "echo",
     .value = "true or false",
     .default_value = "false",
     .help = "the text begins with the prompt",
     .place = kInCompletion,
     .read = [](R r) { r.wanted.echo = r.flag(); }},
    {.name = "stream",
     .value = "true or false",
     .default_value = "false",
     .help = "send the answer as server-sent events while it is made",
     .read = [](R r) { r.wanted.stream = r.flag(); }},
    {.name = "stream_options.include_usage",
     .value = "true or false",
     .default_value = "false",
     .help = "a last event with `usage` and no choices",
     .read = [](R r) { r.wanted.include_usage = r.flag(); }},
    {.name = "return_progress",
     .value = "true or false",
     .default_value = "false",
     .help = "a stream tells how far its prompt is ([below](#answers))",
     .read = [](R r) { r.wanted.return_progress = r.flag(); }},
    {.name = "tools",
     .value = "list",
     .most = &Limits::tools,
     .flag = "--max-tools",
     .help = "functions that the answer may call ([below](#tools)), each {type: \"function\", function: {name, "
             "description, parameters}}",
     .place = kInChat,
     .read = read_tools},
    {.name = "tool_choice",
     .value = "`none`, `auto`, `required`, or {type: \"function\", function: {name}}",
     .default_value = "`auto`",
     .help = "whether it calls: it must not, it may, it must, it must call this one",
     .place = kInChat,
     .read = read_tool_choice},
    {.name = "parallel_tool_calls",
     .value = "true or false",
     .default_value = "what the template can",
     .help = "several calls in one answer",
     .place = kInChat,
     .read = [](R r) { r.wanted.tools.parallel = r.flag(); }},
    {.name = "response_format",
     .value = "object",
     .help = "`{type: \"json_object\"}` or `{type: \"json_schema\", json_schema: {schema}}`: the answer is such a JSON "
             "text ([below](#grammars-and-schemas)); `{type: \"text\"}`: any",
     .read = read_response_format},
    {.name = "json_schema", .value = "object", .help = "the same, with the schema alone", .read = read_json_schema},
    {.name = "grammar",
     .value = "text",
     .help = "a grammar in llama.cpp's GBNF that the answer obeys",
     .read = read_grammar_text},
    {.name = "chat_template_kwargs",
     .value = "object",
     .help = "values that the chat template has by these names, as `{enable_thinking: false}`",
     .place = kInChat,
     .read = read_template_values},
    {.name = "cache_salt",
     .value = "text",
     .help = "only requests of the same salt use what each other left behind",
     .read = [](R r) { r.wanted.cache_salt = r.text(); }},
    {.name = "attention.policy",
     .value = "text",
     .default_value = "that of `--attn`",
     .help = "a method of `glimpse plan --list`, or `auto`; without it `budget`, `opt`, `profile` and `min_ctx` change "
             "the server's own",
     .read =
         [](R r) {
           r.wanted.method.policy = r.text();
           r.wanted.names_method = true;
         }},
    {.name = "attention.budget",
     .value = "number, or text",
     .default_value = "the method's",
     .help =
         "what a step may read: `1024`, `\"10%\"`, `\"p=0.99\"`, `\"coverage=0.98\"`, `\"tau=1e-4\"`; `\"profile\"`: "
         "of each head what calibration found",
     .read = read_budget},
    {.name = "attention.opt",
     .value = "object of texts, numbers, true and false",
     .help =
         "options of the method's own, as `--attn-opt` has them, and `block`, `sink`, `local`; none that names a file",
     .read = read_method_options},
    {.name = "attention.profile",
     .value = "text",
     .default_value = "the model's own",
     .help = "a profile's name, NAME.json in `--profile-dir`; `none`: none",
     .read = [](R r) { r.wanted.method.profile = r.text(); }},
    {.name = "attention.min_ctx",
     .value = "whole number",
     .low = 0,
     .high = kMostPosition,
     .default_value = "by the profile's times",
     .help = "dense while the context is shorter; without it while the profile's times of this machine say that the "
             "method is slower, else 0",
     .read = [](R r) { r.wanted.method.min_context = r.whole(); }},
    {.name = "attention.lossless",
     .value = "true, false, or whole number",
     .low = 0,
     .high = engine::kMostDrafts,
     .default_value = "false",
     .help = "dense attention's answer: the method drafts so many tokens at a time, true: as many as should pay",
     .read = read_lossless},
    {.name = "attention.correct",
     .value = "whole number",
     .low = 0,
     .high = kMostTokens,
     .default_value = "0",
     .help = "every so many tokens a dense pass replaces their K and V; 0: never",
     .read = [](R r) { r.wanted.correct = r.whole(); }},
    {.name = "attention.audit",
     .value = "whole number",
     .low = 0,
     .high = kMostTokens,
     .default_value = "0",
     .help = "every so many tokens coverage is measured, at its cost; 0: never",
     .read = [](R r) { r.wanted.audit = r.whole(); }},
    {.name = "attention.reuse",
     .value = "`exact`, `dense`, `any` or `none`",
     .default_value = "`dense`",
     .help = "what of earlier requests may serve the prompt ([below](#prefixes))",
     .read = read_reuse},
    {.name = "attention.watch",
     .value = "true or false",
     .default_value = "false",
     .help = "keep what each step reads, for the microscope and `/v1/requests/ID/events`; one prompt, `n` 1, not "
             "`lossless`",
     .read = [](R r) { r.wanted.watch = r.flag(); }},
};

/// What other servers have and this one has not. With content they would change the answer, so they are refused.
constexpr std::string_view kNotThere[] = {
    "tools",         "tool_choice",          "functions", "function_call",     "guided_json",     "guided_regex",
    "guided_choice", "guided_grammar",       "suffix",    "best_of",           "prompt_logprobs", "audio",
    "modalities",    "chat_template_kwargs", "echo",      "structured_outputs"};

/// What says nothing: a client's way to leave a field out.
bool says_nothing(std::string_view name, const Body& value) {
  if (value.is_null() || value == Body(false)) return true;
  if (value.is_structured() || value.is_string()) return value.empty() || value == Body("");
  if (name == "prompt_logprobs") return value == Body(0);
  return name == "best_of" && value == Body(1);
}

bool says_default(std::string_view name, const Body& value) {
  if (name == "tool_choice") return value == Body("none") || value == Body("auto");
  return name == "modalities" && value == Body::array({"text"});
}

const Field* find_field(std::string_view name, FieldPlace place) {
  const auto found = std::find_if(std::begin(kFields), std::end(kFields),
                                  [&](const Field& each) { return each.name == name && (each.place & place) != 0; });
  return found == std::end(kFields) ? nullptr : found;
}

class BodyReader {
 public:
  BodyReader(std::string_view text, FieldPlace place, const Limits& limits)
      : text_(text), place_(place), limits_(limits) {}

  Wanted read(const Body& body) {
    if (!body.is_object()) throw ApiError(400, "the body is no JSON object");
    for (const auto& [name, value] : body.items()) {
      if (!value.is_null()) field(name, value);
    }
    return std::move(wanted_);
  }

 private:
  void field(const std::string& name, const Body& value) {
    if (name == "attention" || name == "stream_options") return inside(name, value);
    const Field* found = find_field(name, place_);
    // Clients that have logprobs off send false to either endpoint.
    if (found != nullptr && name == "logprobs" && value == Body(false)) return;
    // Clients that want none send them empty.
    const bool shape = name == "response_format" || name == "json_schema";
    if (found != nullptr && shape && value.is_object() && value.empty()) return;
    if (found != nullptr) return found->read({*found, value, limits_, wanted_, text_});
    if (std::find(std::begin(kNotThere), std::end(kNotThere), name) != std::end(kNotThere)) {
      if (says_nothing(name, value) || says_default(name, value)) return;
      throw bad_field(name, "is not there in this version; leave it out");
    }
    wanted_.ignored.push_back(name);
  }

  void inside(const std::string& object, const Body& values) {
    if (!values.is_object()) throw bad_field(object, "must be an object");
    for (const auto& [name, value] : values.items()) {
      if (value.is_null()) continue;
      const std::string path = object + "." + name;
      if (const Field* found = find_field(path, place_)) {
        found->read({*found, value, limits_, wanted_});
      } else if (object == "attention") {
        throw bad_field(excerpt(path), "is no field; docs/server.md lists those of 'attention'");
      } else {
        wanted_.ignored.push_back(path);
      }
    }
  }

  const std::string_view text_;
  const FieldPlace place_;
  const Limits& limits_;
  Wanted wanted_;
};

std::string range_text(const Field& field) {
  const auto number = [](double value) { return fmt::format("{:.10g}", value); };
  if (field.most == nullptr) {
    return field.low == field.high ? "" : fmt::format(", {} to {}", number(field.low), number(field.high));
  }
  const std::string most = fmt::format("{} (`{}`)", Limits{}.*field.most, field.flag);
  return field.low == 0 ? fmt::format(", at most {}", most) : fmt::format(", {} to {}", number(field.low), most);
}

}  // namespace

double FieldReader::number() const {
  const double high = field.most != nullptr ? static_cast<double>(limits.*field.most) : field.high;
  const double given = value.is_number() ? value.get<double>() : std::nan("");
  if (given >= field.low && given <= high) return given;
  throw bad_field(field.name, fmt::format("is {}; it must be a {} from {:.10g} to {:.10g}",
                                          excerpt(value.dump(-1, ' ', true)), field.value, field.low, high));
}

std::int64_t FieldReader::whole() const {
  const double given = number();
  if (given == std::floor(given)) return static_cast<std::int64_t>(given);
  throw bad_field(field.name, fmt::format("is {}; it must be a whole number", given));
}

bool FieldReader::flag() const {
  if (value.is_boolean()) return value.get<bool>();
  throw bad_field(field.name, "must be true or false");
}

std::string FieldReader::text() const {
  if (value.is_string()) return value.get<std::string>();
  throw bad_field(field.name, "must be a text");
}

Wanted read_fields(std::string_view body, FieldPlace place, const Limits& limits) {
  return BodyReader(body, place, limits).read(parse_json(body, limits.json_depth));
}

std::string fields_table() {
  std::string table = "| field | takes | default | what |\n| --- | --- | --- | --- |\n";
  for (const Field& field : kFields) {
    const std::string_view where = field.place == kInChat         ? " (chat)"
                                   : field.place == kInCompletion ? " (completion)"
                                                                  : "";
    table += fmt::format("| `{}`{} | {}{} | {} | {} |\n", field.name, where, field.value, range_text(field),
                         field.default_value.empty() ? "-" : field.default_value, field.help);
  }
  return table;
}

}  // namespace glimpse::server
