#include "glimpse/cli/run_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/cli/idle.h"
#include "glimpse/cli/setup.h"

namespace glimpse::cli {

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
  request.stop = arguments.stops;
  if (reads_everything(plan)) return request;  // nothing to correct, audit or draft
  request.correct_every = arguments.correct;
  request.audit_every = arguments.audit;
  request.lossless = arguments.lossless.has_value();
  request.draft_tokens = static_cast<int>(arguments.lossless.value_or(0));
  return request;
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
