#include "glimpse/calibrate/trials.h"

#include <algorithm>

#include "glimpse/evaluate/logit_statistics.h"

namespace glimpse::calibrate {
namespace {

using evaluate::arg_max;
using evaluate::divergence;

/// Tokens that a plan's own answer may have beside those that are tried.
constexpr std::size_t kSpare = 8;

std::vector<float> copy_of(std::span<const float> logits) {
  return {logits.begin(), logits.end()};
}

struct Start {
  engine::Sequence sequence;
  std::vector<float> logits;  ///< after the prompt
};

std::vector<float> prefill_rest(engine::Sequence& sequence, const Trial& trial) {
  return copy_of(sequence.prefill(std::span(trial.prompt).subspan(static_cast<std::size_t>(sequence.length()))));
}

/// The whole prompt by the plan's own prefill, but for what it shares with the prompt before.
Start own_start(engine::Engine& engine, const Trial& trial, const plan::Plan& plan, std::optional<OwnPrefill>& kept) {
  if (kept && kept->plan == plan) {
    const std::int64_t shared = std::min(shared_tokens(kept->sequence.tokens(), trial.prompt),
                                         static_cast<std::int64_t>(trial.prompt.size()) - 1);
    if (2 * shared > static_cast<std::int64_t>(trial.prompt.size())) {
      engine::Sequence sequence = kept->sequence.fork(plan, shared);
      std::vector<float> logits = prefill_rest(sequence, trial);
      return {std::move(sequence), std::move(logits)};
    }
  }
  kept.reset();  // its cache first
  engine::Sequence sequence = engine.open(plan);
  std::vector<float> logits = prefill_rest(sequence, trial);
  kept.emplace(OwnPrefill{plan, sequence.fork(plan)});
  return {std::move(sequence), std::move(logits)};
}

Start start_of(engine::Engine& engine, const Trial& trial, const plan::Plan& plan, const TrialOptions& options) {
  const auto length = static_cast<std::int64_t>(trial.prompt.size());
  const std::int64_t dense = plan.prefill.dense_tokens(length);
  if (dense == length) return {trial.dense.fork(plan), trial.logits.front()};
  std::optional<OwnPrefill> none;
  if (dense == 0) return own_start(engine, trial, plan, options.own != nullptr ? *options.own : none);
  engine::Sequence sequence = trial.dense.fork(plan, dense);
  std::vector<float> logits = prefill_rest(sequence, trial);
  return {std::move(sequence), std::move(logits)};
}

std::string text_of(const text::Tokenizer& tokenizer, std::span<const Token> tokens) {
  std::string text;
  for (const Token token : tokens) text += tokenizer.piece(token);
  return text;
}

}  // namespace

std::int64_t shared_tokens(std::span<const Token> a, std::span<const Token> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

Trial make_trial(engine::Engine& engine, const engine::Sequence& start, std::int64_t shared,
                 const RetrievalPrompt& prompt, const TrialOptions& options) {
  const plan::Plan plan = plan::dense_plan(engine.shape());
  shared = std::min(shared, static_cast<std::int64_t>(prompt.tokens.size()) - 1);
  Trial trial{"", prompt.tokens, prompt.wanted, start.fork(plan, shared)};
  std::vector<float> logits =
      copy_of(trial.dense.prefill(std::span(prompt.tokens).subspan(static_cast<std::size_t>(shared))));
  engine::Sequence answering = trial.dense.fork(plan);
  while (true) {
    const Token next = arg_max(logits);
    if (trial.logits.size() < kTried) trial.logits.push_back(std::move(logits));
    trial.answer.push_back(next);
    trial.ended = engine.tokenizer().ends_generation(next);
    if (trial.ended || static_cast<int>(trial.answer.size()) == options.limit) break;
    logits = copy_of(answering.decode(next));
    if (options.progress != nullptr) options.progress->add(Progress::kStep);
  }
  trial.right = share_found(text_of(engine.tokenizer(), trial.answer), trial.wanted) == 1;
  return trial;
}

Trial prose_trial(engine::Engine& engine, const engine::Sequence& start, std::int64_t at, int tokens) {
  const plan::Plan plan = plan::dense_plan(engine.shape());
  const std::span<const Token> text = start.tokens();
  const auto place = static_cast<std::size_t>(at);
  Trial trial{"prose", {text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at)}, {}, start.fork(plan, at)};
  trial.right = true;
  engine::Sequence going_on = start.fork(plan, at - 1);
  for (int i = 0; i < tokens && place + static_cast<std::size_t>(i) < text.size(); ++i) {
    trial.logits.push_back(copy_of(going_on.decode(text[place + static_cast<std::size_t>(i) - 1])));
    trial.answer.push_back(text[place + static_cast<std::size_t>(i)]);
  }
  return trial;
}

Outcome run_trial(engine::Engine& engine, const Trial& trial, const plan::Plan& plan, const TrialOptions& options) {
  const text::Tokenizer& tokenizer = engine.tokenizer();
  const std::size_t count = std::min(trial.logits.size(), static_cast<std::size_t>(options.limit));
  Outcome outcome;
  outcome.same = true;
  Start start = start_of(engine, trial, plan, options);
  start.sequence.reset_stats();
  std::vector<float> logits = std::move(start.logits);
  std::string own;  // the plan's own answer, once it is another one
  std::size_t agreed = 0;
  std::optional<engine::Sequence> going_on;
  for (std::size_t i = 0;; ++i) {
    if (i > 0) outcome.divergence += divergence(trial.logits[i], logits) / static_cast<double>(count - 1);
    const Token first_choice = arg_max(logits), dense_choice = arg_max(trial.logits[i]);
    if (i > 0 && first_choice == dense_choice) ++agreed;
    if (outcome.same && first_choice != dense_choice) {
      outcome.same = false;
      if (options.alone && !trial.wanted.empty()) {
        own = text_of(tokenizer, std::span(trial.answer).first(i));
        going_on.emplace(start.sequence.fork(plan));
        Token next = first_choice;
        for (std::size_t made = i; made < count + kSpare && !tokenizer.ends_generation(next); ++made) {
          own += tokenizer.piece(next);
          next = arg_max(going_on->decode(next));
          if (options.progress != nullptr) options.progress->add(0);
        }
        going_on.reset();
      }
    }
    if (i + 1 == count || (options.to_difference && !outcome.same)) break;
    logits = copy_of(start.sequence.decode(trial.answer[i], options.audit && i == 1));
    if (options.progress != nullptr) options.progress->add(Progress::kStep);
  }
  if (count > 1) outcome.agreement = static_cast<double>(agreed) / static_cast<double>(count - 1);
  outcome.right = outcome.same ? trial.right : share_found(own, trial.wanted) == 1;
  const engine::AttentionStats& stats = start.sequence.stats();
  if (stats.audits > 0 && stats.audited.sets > 0) outcome.coverage = stats.audited.mean;
  return outcome;
}

Recording record_trial(const engine::Engine& engine, const Trial& trial, int tail, int limit) {
  std::vector<Token> answer = trial.answer;
  if (!trial.right && !trial.wanted.empty()) {
    std::string wanted;
    for (const std::string& part : trial.wanted) wanted += (wanted.empty() ? "" : " ") + part;
    answer = engine.tokenizer().encode(wanted, text::Special::as_text, false);
  }
  answer.resize(std::min(answer.size(), static_cast<std::size_t>(limit)));
  std::vector<Token> tokens = trial.prompt;
  const auto length = static_cast<std::int64_t>(tokens.size());
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  const std::int64_t first = std::max<std::int64_t>(1, length - tail);
  Recording recording = record(trial.dense, engine.shape(), tokens, first);
  recording.answer = static_cast<int>(length - 1 - first);
  recording.needle = positions_of(engine.tokenizer(), trial.prompt, trial.wanted);
  return recording;
}

std::vector<std::int32_t> positions_of(const text::Tokenizer& tokenizer, std::span<const Token> tokens,
                                       const std::vector<std::string>& wanted) {
  std::string text;
  std::vector<std::size_t> ends;
  for (const Token token : tokens) {
    text += tokenizer.piece(token);
    ends.push_back(text.size());
  }
  std::vector<std::int32_t> positions;
  for (const std::string& part : wanted) {
    for (std::size_t at = text.find(part); !part.empty() && at != std::string::npos; at = text.find(part, at + 1)) {
      auto token = std::upper_bound(ends.begin(), ends.end(), at) - ends.begin();
      for (; token < static_cast<std::ptrdiff_t>(ends.size()); ++token) {
        positions.push_back(static_cast<std::int32_t>(token));
        if (ends[static_cast<std::size_t>(token)] >= at + part.size()) break;
      }
    }
  }
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

}  // namespace glimpse::calibrate
