#include "glimpse/evaluate/trials.h"

#include <algorithm>
#include <chrono>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/speed.h"

namespace glimpse::evaluate {
namespace {

using Clock = std::chrono::steady_clock;

/// Tokens that a plan's own answer may have beside those that are tried.
constexpr std::size_t kSpare = 8;

std::vector<float> copy_of(std::span<const float> logits) {
  return {logits.begin(), logits.end()};
}

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
  if (dense == length) return {trial.dense.fork(plan), trial.logits.front().row()};
  std::optional<OwnPrefill> none;
  if (dense == 0) return own_start(engine, trial, plan, options.own != nullptr ? *options.own : none);
  ObservedPrompts alone;
  return (options.observed != nullptr ? *options.observed : alone).start(trial.dense, plan, trial.prompt);
}

std::string text_of(const text::Tokenizer& tokenizer, std::span<const Token> tokens) {
  std::string text;
  for (const Token token : tokens) text += tokenizer.piece(token);
  return text;
}

/// A plan's own answer from where it is another one: what it has so far, and the token that comes next.
struct Going {
  engine::Sequence sequence;
  std::string text;
  std::size_t tokens = 0;
  Token next = 0;
};

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

/// One attempt on its way: fed dense attention's answer, then its own answer where that is another one.
class Running {
 public:
  Running(engine::Engine& engine, const Attempt& attempt, const TrialOptions& options)
      : engine_(engine),
        trial_(*attempt.trial),
        plan_(*attempt.plan),
        options_(options),
        count_(std::min(trial_.logits.size(), static_cast<std::size_t>(options.limit))),
        most_(options.whole ? static_cast<std::size_t>(*options.whole) : count_ + kSpare),
        alone_((options.alone || options.whole) && !trial_.wanted.empty()) {
    Start start = start_of(engine, trial_, plan_, options);
    if (!trial_.answered) {
      check(options.whole.has_value(), "nothing to feed, so an answer is to be given");
      own_.emplace(Going{std::move(start.sequence), "", 0, arg_max(start.logits)});
      done_ = true;
      return;
    }
    fed_.emplace(std::move(start.sequence));
    fed_->reset_stats();
    outcome_.same = true;
    take_fed(start.logits);
  }

  /// The next token of dense attention's answer, then of its own; none at the end.
  std::optional<engine::NextToken> next() {
    if (done_) return go_on();
    return engine::NextToken{&*fed_, trial_.answer[at_ - 1], options_.audit && at_ == 2};
  }
  /// What came of that token.
  void take(std::span<const float> logits, double seconds) {
    if (done_) return went_on(logits);
    if (at_ > 1) seconds_.push_back(seconds);
    take_fed(logits);
    if (options_.progress != nullptr) options_.progress->add(Progress::kStep);
  }

  Outcome outcome() {
    if (own_) {
      outcome_.score = score(trial_.metric, own_->text, trial_.wanted);
      outcome_.right = outcome_.score == 1;
    } else {
      outcome_.right = outcome_.same && trial_.right;
      outcome_.score = outcome_.same ? trial_.score : 0;
    }
    if (options_.whole) outcome_.answer = own_ ? std::move(own_->text) : text_of(engine_.tokenizer(), trial_.answer);
    return std::move(outcome_);
  }

 private:
  /// The next token of its own answer; none at `most`, at the answer's end, or where all that is wanted is there and no
  /// word goes on.
  std::optional<engine::NextToken> go_on() {
    if (!own_) return std::nullopt;
    if (own_->tokens == most_ || engine_.tokenizer().ends_generation(own_->next)) return std::nullopt;
    const bool was_right = options_.whole && only_grows(trial_.metric) && is_right();
    own_->text += engine_.tokenizer().piece(own_->next);
    if (was_right && is_right()) return std::nullopt;
    return engine::NextToken{&own_->sequence, own_->next};
  }
  void went_on(std::span<const float> logits) {
    own_->next = arg_max(logits);
    ++own_->tokens;
    if (options_.progress != nullptr) options_.progress->add(0);
  }

  bool is_right() const { return score(trial_.metric, own_->text, trial_.wanted) == 1; }

  std::string answer_text(std::size_t tokens) const {
    return text_of(engine_.tokenizer(), std::span(trial_.answer).first(tokens));
  }

  /// Logits of the answer's token at_.
  void take_fed(std::span<const float> logits) {
    const ComparedLogits& dense = trial_.logits[at_];
    if (at_ > 0) outcome_.divergence += dense.divergence(logits) / static_cast<double>(count_ - 1);
    const Token first_choice = arg_max(logits), dense_choice = dense.first_choice();
    if (at_ > 0 && first_choice == dense_choice) ++agreed_;
    if (outcome_.same && first_choice != dense_choice) {
      outcome_.same = false;
      if (alone_) own_.emplace(Going{fed_->fork(plan_), answer_text(at_), at_, first_choice});
    }
    ++at_;
    if (at_ == count_) end_fed();
  }

  void end_fed() {
    done_ = true;
    if (count_ > 1) outcome_.agreement = static_cast<double>(agreed_) / static_cast<double>(count_ - 1);
    outcome_.reads = fed_->stats();
    if (!seconds_.empty()) outcome_.step_s = median(std::move(seconds_));
    if (outcome_.reads.audits > 0 && outcome_.reads.audited.sets > 0) outcome_.coverage = outcome_.reads.audited.mean;
    if (options_.whole) outcome_.cache_bytes = cache_bytes(engine_, *fed_, plan_);
    if (outcome_.same && options_.whole && alone_ && trial_.answer.size() > count_) {
      own_.emplace(Going{std::move(*fed_), answer_text(count_ - 1), count_ - 1, trial_.answer[count_ - 1]});
    }
    fed_.reset();  // its cache first
  }

  engine::Engine& engine_;
  const Trial& trial_;
  const plan::Plan& plan_;
  const TrialOptions& options_;
  std::size_t count_;  ///< tokens of dense attention's answer that it is tried with
  std::size_t most_;   ///< tokens of its own answer
  bool alone_;

  Outcome outcome_;
  std::optional<engine::Sequence> fed_;
  std::optional<Going> own_;
  std::size_t at_ = 0, agreed_ = 0;
  bool done_ = false;  ///< dense attention's answer is fed
  std::vector<double> seconds_;
};

/// Passes until none of `all` has a next token. `take` is given the logits of one and the pass's seconds.
template <class Each, class Next, class Take>
void step_all(engine::Engine& engine, std::vector<Each>& all, const Next& next, const Take& take) {
  std::vector<engine::NextToken> tokens;
  std::vector<Each*> whose;
  for (;;) {
    tokens.clear();
    whose.clear();
    for (Each& each : all) {
      if (const std::optional<engine::NextToken> token = next(each)) {
        tokens.push_back(*token);
        whose.push_back(&each);
      }
    }
    if (tokens.empty()) return;
    const Clock::time_point before = Clock::now();
    const std::span<const float> logits = engine.decode(tokens);
    const double seconds = std::chrono::duration<double>(Clock::now() - before).count();
    const std::size_t vocabulary = logits.size() / tokens.size();
    for (std::size_t i = 0; i < whose.size(); ++i) {
      take(*whose[i], logits.subspan(i * vocabulary, vocabulary), seconds);
    }
  }
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

std::vector<Trial> make_trials(engine::Engine& engine, const engine::Sequence& start,
                               std::span<const RetrievalPrompt> prompts, const TrialOptions& options) {
  const plan::Plan plan = plan::dense_plan(engine.shape());
  std::vector<Trial> trials;
  const auto take = [&](Trial& trial, std::span<const float> logits) {
    if (static_cast<int>(trial.logits.size()) < options.tried) trial.logits.emplace_back(logits);
    trial.answer.push_back(arg_max(logits));
    trial.ended = engine.tokenizer().ends_generation(trial.answer.back());
  };
  struct Answering {
    Trial& trial;
    engine::Sequence sequence;
  };
  std::vector<Answering> answering;
  trials.reserve(prompts.size());
  for (const RetrievalPrompt& prompt : prompts) {
    const std::int64_t shared = std::min(shared_tokens(start.tokens(), prompt.tokens), std::ssize(prompt.tokens) - 1);
    Trial& trial = trials.emplace_back(Trial{"", prompt.tokens, prompt.wanted, start.fork(plan, shared)});
    trial.metric = prompt.metric;
    take(trial, trial.dense.prefill(std::span(prompt.tokens).subspan(static_cast<std::size_t>(shared))));
    answering.push_back({trial, trial.dense.fork(plan)});
  }
  if (options.limit == 0) {
    for (Trial& trial : trials) trial.answered = false;
    return trials;
  }
  step_all(
      engine, answering,
      [&](Answering& each) -> std::optional<engine::NextToken> {
        if (each.trial.ended || static_cast<int>(each.trial.answer.size()) >= options.limit) return std::nullopt;
        return engine::NextToken{&each.sequence, each.trial.answer.back()};
      },
      [&](Answering& each, std::span<const float> logits, double) {
        take(each.trial, logits);
        if (options.progress != nullptr) options.progress->add(Progress::kStep);
      });
  for (Trial& trial : trials) {
    trial.score = score(trial.metric, text_of(engine.tokenizer(), trial.answer), trial.wanted);
    trial.right = trial.score == 1;
  }
  return trials;
}

Trial make_trial(engine::Engine& engine, const engine::Sequence& start, const RetrievalPrompt& prompt,
                 const TrialOptions& options) {
  return std::move(make_trials(engine, start, {&prompt, 1}, options).front());
}

Trial prose_trial(engine::Engine& engine, const engine::Sequence& start, std::int64_t at, int tokens) {
  const plan::Plan plan = plan::dense_plan(engine.shape());
  const std::span<const Token> text = start.tokens();
  const auto place = static_cast<std::size_t>(at);
  Trial trial{"prose", {text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at)}, {}, start.fork(plan, at)};
  trial.right = true;
  engine::Sequence going_on = start.fork(plan, at - 1);
  for (int i = 0; i < tokens && place + static_cast<std::size_t>(i) < text.size(); ++i) {
    trial.logits.emplace_back(going_on.decode(text[place + static_cast<std::size_t>(i) - 1]));
    trial.answer.push_back(text[place + static_cast<std::size_t>(i)]);
  }
  return trial;
}

std::vector<Outcome> run_trials(engine::Engine& engine, std::span<const Attempt> attempts,
                                const TrialOptions& options) {
  struct Place {
    std::size_t number = 0;  // of the attempt
    std::optional<Running> running;
  };
  std::vector<Outcome> outcomes(attempts.size());
  std::vector<Place> places(std::min(attempts.size(), kTogether));
  std::size_t begun = 0;
  // A place whose attempt has ended takes the next, so that passes stay full.
  const auto next = [&](Place& place) -> std::optional<engine::NextToken> {
    for (;;) {
      if (!place.running) {
        if (begun == attempts.size()) return std::nullopt;
        place.number = begun++;
        place.running.emplace(engine, attempts[place.number], options);
      }
      if (const auto token = place.running->next()) return token;
      outcomes[place.number] = place.running->outcome();
      place.running.reset();
    }
  };
  step_all(engine, places, next,
           [](Place& place, std::span<const float> logits, double seconds) { place.running->take(logits, seconds); });
  return outcomes;
}

std::vector<Outcome> run_trials(engine::Engine& engine, std::span<const Trial> trials, const plan::Plan& plan,
                                const TrialOptions& options) {
  std::vector<Attempt> attempts;
  for (const Trial& trial : trials) attempts.push_back({&trial, &plan});
  return run_trials(engine, attempts, options);
}

Outcome run_trial(engine::Engine& engine, const Trial& trial, const plan::Plan& plan, const TrialOptions& options) {
  return std::move(run_trials(engine, {&trial, 1}, plan, options).front());
}

}  // namespace glimpse::evaluate
