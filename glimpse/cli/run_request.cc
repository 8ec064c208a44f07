#include "glimpse/cli/run_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>

#include "glimpse/base/error.h"
#include "glimpse/cli/idle.h"
#include "glimpse/cli/setup.h"
#include "glimpse/text/json_grammar.h"

namespace glimpse::cli {
namespace {

/// "198-2.5": the id of a token, a sign, a number.
text::TokenBias read_bias(const std::string& word) {
  const std::size_t sign = word.find_first_of("+-");
  text::TokenBias bias;
  const char* const end = word.data() + word.size();
  if (sign != std::string::npos && sign > 0) {
    const char* const middle = word.data() + sign;
    const auto id = std::from_chars(word.data(), middle, bias.token);
    const auto value = std::from_chars(middle + 1, end, bias.bias);
    if (*middle == '-') bias.bias = -bias.bias;
    const bool signed_twice = middle + 1 < end && middle[1] == '-';
    if (id.ec == std::errc() && id.ptr == middle && value.ec == std::errc() && value.ptr == end && !signed_twice) {
      return bias;
    }
  }
  throw UserError(fmt::format(
      "--logit-bias {}: give the id of a token, + or -, and a number, as in 198-2.5; 198-inf forbids token 198", word));
}

}  // namespace

text::SamplingOptions sampling_options(const Arguments& arguments) {
  text::SamplingOptions sampling;
  sampling.temperature = static_cast<float>(arguments.temperature);
  sampling.top_k = static_cast<int>(arguments.top_k);
  sampling.top_p = static_cast<float>(arguments.top_p);
  sampling.min_p = static_cast<float>(arguments.min_p);
  sampling.repeat_penalty = static_cast<float>(arguments.repeat_penalty);
  sampling.repeat_last_n = static_cast<int>(arguments.repeat_last_n);
  sampling.frequency_penalty = static_cast<float>(arguments.frequency_penalty);
  sampling.presence_penalty = static_cast<float>(arguments.presence_penalty);
  for (const std::string& bias : arguments.logit_biases) sampling.logit_bias.push_back(read_bias(bias));
  sampling.seed = static_cast<std::uint32_t>(arguments.seed);
  text::validate(sampling);
  return sampling;
}

void check_stops(const Arguments& arguments) {
  for (const std::string& stop : arguments.stops) {
    if (stop.empty()) throw UserError("the text of --stop is empty: give it some, or leave it out");
    require_utf8(stop, "the text of --stop");
  }
  if (!arguments.stops.empty() && arguments.trace) {
    throw UserError("--stop and --trace: tokens that are held back would stand behind later steps; leave one out");
  }
}

engine::Request make_request(const Arguments& arguments, const plan::Plan& plan) {
  engine::Request request;
  request.plan = plan;
  request.sampling = sampling_options(arguments);
  request.max_tokens = arguments.predict;
  request.min_tokens = arguments.min_tokens;
  request.ignore_end = arguments.ignore_eos;
  request.stop = arguments.stops;
  if (reads_everything(plan)) return request;  // nothing to correct, audit or draft
  request.correct_every = arguments.correct;
  request.audit_every = arguments.audit;
  request.lossless = arguments.lossless.has_value();
  request.draft_tokens = static_cast<int>(arguments.lossless.value_or(0));
  return request;
}

text::GrammarWish grammar_wish(const Arguments& arguments, const text::Tokenizer& tokenizer) {
  const int given = !arguments.grammar.empty() + !arguments.grammar_file.empty() + !arguments.json_schema.empty();
  if (given == 0) return {};
  if (given > 1) throw UserError("--grammar, --grammar-file and --json-schema all say what the answer is; give one");
  require_utf8(arguments.json_schema, "the text of --json-schema");
  constexpr std::chrono::seconds kTime(10);
  const std::string gbnf = !arguments.json_schema.empty()
                               ? text::json_schema_grammar(arguments.json_schema, text::schema_limits(kTime))
                           : !arguments.grammar_file.empty() ? read_text(arguments.grammar_file)
                                                             : arguments.grammar;
  return {std::make_shared<const text::Grammar>(gbnf, tokenizer.token_texts()), {}, {}};
}

std::optional<std::string> document_text(const Arguments& arguments) {
  if (arguments.files.empty()) return std::nullopt;
  if (std::count(arguments.files.begin(), arguments.files.end(), "-") > 1) {
    throw UserError("-f - is given twice, and standard input can be read once; leave one out");
  }
  std::vector<std::string> texts;
  for (const std::string& file : arguments.files) {
    texts.push_back(read_text(file));
    if (texts.back().ends_with('\n')) texts.back().pop_back();  // as llama.cpp does
  }
  return fmt::format("{}", fmt::join(texts, "\n\n"));
}

std::optional<std::string> question_text(const Arguments& arguments) {
  if (arguments.prompts.empty()) return std::nullopt;
  for (const std::string& prompt : arguments.prompts) {
    require_utf8(prompt, "the text of -p");
    if (prompt.empty() && arguments.prompts.size() > 1) {
      throw UserError("one -p of several: the prompt is empty; give it some text, or leave it out");
    }
  }
  return fmt::format("{}", fmt::join(arguments.prompts, "\n\n"));
}

RunReport report_for(const engine::Request& request) {
  RunReport report;
  report.policy = request.plan.policy;
  report.budget = budget_text(request.plan);
  report.sets = sets_text(request.plan);
  report.lossless = request.lossless;
  return report;
}

}  // namespace glimpse::cli
