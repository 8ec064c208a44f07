#include "glimpse/evaluate/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/logits.h"

namespace glimpse::evaluate {
namespace {

constexpr std::int64_t kLeastWindow = 4;

void require(const PerplexityOptions& options, std::int64_t tokens, std::int64_t context) {
  if (options.window < kLeastWindow || options.window > context) {
    throw UserError(
        fmt::format("windows of {} tokens: the second half of each is scored and the context holds {}; "
                    "give {} to {}",
                    options.window, context, kLeastWindow, context));
  }
  if (tokens < options.window) {
    throw UserError(
        fmt::format("the text has {} tokens and one window needs {}; give a longer text or a smaller "
                    "window",
                    tokens, options.window));
  }
  const std::int64_t prefill = options.prefill.value_or(options.window);
  if (prefill < 0 || prefill > options.window) {
    throw UserError(fmt::format("a prefill of {} tokens is outside the window of {}", prefill, options.window));
  }
  if (options.windows && (*options.windows < 1 || *options.windows > tokens / options.window)) {
    throw UserError(fmt::format("{} windows of {} tokens: the text has {} of them", *options.windows, options.window,
                                tokens / options.window));
  }
}

}  // namespace

double token_nll(std::span<const float> logits, Token target) {
  check(target >= 0 && static_cast<std::size_t>(target) < logits.size(), "the target is in the vocabulary");
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  return std::log(sum) + most - static_cast<double>(logits[static_cast<std::size_t>(target)]);
}

void NllMean::add(double nll) {
  ++count_;
  const double before = nll - mean_;
  mean_ += before / static_cast<double>(count_);
  squares_ += before * (nll - mean_);
}

double NllMean::mean() const {
  return mean_;
}

double NllMean::standard_error() const {
  if (count_ < 2) return 0;
  // llama.cpp's: the population variance over count - 1.
  return std::sqrt(squares_ / static_cast<double>(count_) / static_cast<double>(count_ - 1));
}

PerplexityResult perplexity(engine::Engine& engine, const plan::Plan& plan, std::span<const Token> tokens,
                            const PerplexityOptions& options) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  require(options, length, engine.context());
  const std::int64_t windows = options.windows.value_or(length / options.window);
  const std::int64_t first = options.window / 2;
  const std::int64_t total = windows * (options.window - first - 1);
  const text::Tokenizer& tokenizer = engine.tokenizer();

  PerplexityResult result;
  NllMean nll;
  bool go_on = true;
  for (std::int64_t window = 0; go_on && window < windows; ++window) {
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(window * options.window);
    std::vector<Token> text(begin, begin + static_cast<std::ptrdiff_t>(options.window));
    if (tokenizer.adds_bos() && tokenizer.bos() >= 0) text[0] = tokenizer.bos();
    // The last token predicts nothing inside the window, so it is never run.
    const std::span<const Token> run(text.data(), text.size() - 1);
    const std::int64_t prefill = std::min(options.prefill.value_or(options.window), options.window - 1);
    const auto stats = forced_logits(engine, plan, {run, prefill, first, options.go_on},
                                     [&](std::int64_t position, std::span<const float> logits) {
                                       nll.add(token_nll(logits, text[static_cast<std::size_t>(position) + 1]));
                                       if (options.on_progress) go_on = options.on_progress(nll.count(), total);
                                       return go_on;
                                     });
    result.attention += stats;
    go_on = go_on && (!options.go_on || options.go_on());
    ++result.windows;
  }
  result.tokens_scored = nll.count();
  result.perplexity = std::exp(nll.mean());
  result.standard_error = result.perplexity * nll.standard_error();
  return result;
}

}  // namespace glimpse::evaluate
