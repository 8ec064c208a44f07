#include "glimpse/evaluate/trials.h"

#include <algorithm>
#include <chrono>

#include "glimpse/evaluate/logit_statistics.h"
#include "glimpse/evaluate/speed.h"

namespace glimpse::evaluate {
namespace {

using Clock = std::chrono::steady_clock;

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

/// A plan's own answer: what it has so far, and the token that comes next.
struct Going {
  std::string text;
  std::size_t tokens = 0;
  Token next = 0;
};

/// Goes on to `most` tokens, the answer's end, or where all that is wanted is there and no word goes on.
void go_on(const text::Tokenizer& tokenizer, engine::Sequence& sequence, const Trial& trial, Going& going,
           const TrialOptions& options, std::size_t most) {
  const bool settles = options.whole && only_grows(trial.metric);
  const auto is_right = [&](const std::string& text) { return score(trial.metric, text, trial.wanted) == 1; };
  for (; going.tokens < most && !tokenizer.ends_generation(going.next); ++going.tokens) {
    const bool was_right = settles && is_right(going.text);
    going.text += tokenizer.piece(going.next);
    if (was_right && is_right(going.text)) break;
    going.next = arg_max(sequence.decode(going.next));
    if (options.progress != nullptr) options.progress->add(0);
  }
}

std::int64_t cache_bytes(const engine::Engine& engine, const engine::Sequence& sequence, const plan::Plan& plan) {
  const plan::ModelShape shape = engine.shape();
  const bool forgets = plan::forgets(plan);
  std::int64_t rows = 0;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      std::int64_t here = forgets ? std::ssize(sequence.live(layer, head)) : sequence.length();
      if (sequence.stats().resident_tokens) here = std::min(here, *sequence.stats().resident_tokens);
      rows += here;
    }
  }
  return rows * static_cast<std::int64_t>(engine.row_pair_bytes()) + sequence.stats().index_memory;
}

}  // namespace

std::int64_t shared_tokens(std::span<const Token> a, std::span<const Token> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

engine::Sequence dense_prefill(engine::Engine& engine, std::span<const Token> tokens, Progress& progress) {
  engine::Sequence sequence = engine.open(plan::dense_plan(engine.shape()));
  std::int64_t before = 0;
  const auto note = [&](std::int64_t now) {
    progress.add(now - before);
    before = now;
  };
  bool stopped = false;
  sequence.prefill(tokens, {}, static_cast<std::int64_t>(tokens.size()) - 1, [&] {
    try {
      note(sequence.length());
    } catch (const Stopped&) {
      stopped = true;
    }
    return !stopped;
  });
  if (stopped) throw Stopped{};
  note(static_cast<std::int64_t>(tokens.size()));
  return sequence;
}

Trial make_trial(engine::Engine& engine, const engine::Sequence& start, std::int64_t shared,
                 const RetrievalPrompt& prompt, const TrialOptions& options) {
  const plan::Plan plan = plan::dense_plan(engine.shape());
  shared = std::min(shared, static_cast<std::int64_t>(prompt.tokens.size()) - 1);
  Trial trial{"", prompt.tokens, prompt.wanted, start.fork(plan, shared)};
  trial.metric = prompt.metric;
  std::vector<float> logits =
      copy_of(trial.dense.prefill(std::span(prompt.tokens).subspan(static_cast<std::size_t>(shared))));
  engine::Sequence answering = trial.dense.fork(plan);
  while (true) {
    const Token next = arg_max(logits);
    if (static_cast<int>(trial.logits.size()) < options.tried) trial.logits.push_back(std::move(logits));
    trial.answer.push_back(next);
    trial.ended = engine.tokenizer().ends_generation(next);
    if (trial.ended || static_cast<int>(trial.answer.size()) == options.limit) break;
    logits = copy_of(answering.decode(next));
    if (options.progress != nullptr) options.progress->add(Progress::kStep);
  }
  trial.score = score(trial.metric, text_of(engine.tokenizer(), trial.answer), trial.wanted);
  trial.right = trial.score == 1;
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
  const std::size_t most = options.whole ? static_cast<std::size_t>(*options.whole) : count + kSpare;
  const bool alone = (options.alone || options.whole) && !trial.wanted.empty();
  Outcome outcome;
  outcome.same = true;
  Start start = start_of(engine, trial, plan, options);
  start.sequence.reset_stats();
  std::vector<float> logits = std::move(start.logits);
  std::optional<Going> own;  // the plan's own answer, once it is another one
  std::size_t agreed = 0;
  std::vector<double> seconds;
  for (std::size_t i = 0;; ++i) {
    if (i > 0) outcome.divergence += divergence(trial.logits[i], logits) / static_cast<double>(count - 1);
    const Token first_choice = arg_max(logits), dense_choice = arg_max(trial.logits[i]);
    if (i > 0 && first_choice == dense_choice) ++agreed;
    if (outcome.same && first_choice != dense_choice) {
      outcome.same = false;
      if (alone) {
        own = Going{text_of(tokenizer, std::span(trial.answer).first(i)), i, first_choice};
        engine::Sequence going_on = start.sequence.fork(plan);
        go_on(tokenizer, going_on, trial, *own, options, most);
      }
    }
    if (i + 1 == count || (options.to_difference && !outcome.same)) break;
    const Clock::time_point before = Clock::now();
    const std::span<const float> next = start.sequence.decode(trial.answer[i], options.audit && i == 1);
    if (i > 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - before).count());
    logits = copy_of(next);
    if (options.progress != nullptr) options.progress->add(Progress::kStep);
  }
  if (count > 1) outcome.agreement = static_cast<double>(agreed) / static_cast<double>(count - 1);
  outcome.reads = start.sequence.stats();
  if (!seconds.empty()) outcome.step_s = median(std::move(seconds));
  if (outcome.reads.audits > 0 && outcome.reads.audited.sets > 0) outcome.coverage = outcome.reads.audited.mean;
  if (options.whole) outcome.cache_bytes = cache_bytes(engine, start.sequence, plan);
  if (outcome.same && options.whole && alone && trial.answer.size() > count) {
    own = Going{text_of(tokenizer, std::span(trial.answer).first(count - 1)), count - 1, trial.answer[count - 1]};
    go_on(tokenizer, start.sequence, trial, *own, options, most);
  }
  if (own) {
    outcome.score = score(trial.metric, own->text, trial.wanted);
    outcome.right = outcome.score == 1;
  } else {
    outcome.right = outcome.same && trial.right;
    outcome.score = outcome.same ? trial.score : 0;
  }
  if (options.whole) outcome.answer = own ? std::move(own->text) : text_of(tokenizer, trial.answer);
  return outcome;
}

}  // namespace glimpse::evaluate
