#include "glimpse/evaluate/examiner.h"

#include <algorithm>
#include <array>
#include <random>

#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"
#include "glimpse/evaluate/trials.h"

namespace glimpse::evaluate {
namespace {

/// Tokens of dense attention's answer that arms are fed.
constexpr int kFed = 64;
/// An answer may be twice as long as what is wanted, and this much longer.
constexpr std::int64_t kSpare = 24;

/// The same prompt for every arm, whatever else a run asks.
std::uint64_t prompt_seed(std::uint64_t seed, Task task, std::int64_t length, std::int64_t number) {
  std::seed_seq mix{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(task),
                    static_cast<std::uint32_t>(length), static_cast<std::uint32_t>(number)};
  std::array<std::uint32_t, 2> words{};
  mix.generate(words.begin(), words.end());
  return words[0] | static_cast<std::uint64_t>(words[1]) << 32;
}

int answer_limit(const text::Tokenizer& tokenizer, const RetrievalPrompt& prompt) {
  std::int64_t limit = kSpare;
  for (const std::string& part : prompt.wanted) {
    limit += 2 * std::ssize(tokenizer.encode(" " + part, text::Special::as_text, false));
  }
  return static_cast<int>(only_grows(prompt.metric) ? std::min(limit, kAnswerTokens) : kAnswerTokens);
}

bool reads_alone(const plan::Plan& plan, std::int64_t length) {
  return plan.prefill.dense_tokens(length) == 0;
}

}  // namespace

Task task_of(std::string_view word) {
  if (word == kNeedle) return Task::single;
  std::vector<std::string_view> names(task_names().begin(), task_names().end());
  names.push_back(kNeedle);
  if (std::find(names.begin(), names.end(), word) == names.end()) throw UserError(unknown_name("task", word, names));
  return parse_task(word);
}

RetrievalPrompt Examiner::prompt_of(const AnswerKey& key) const {
  PromptRequest request{task_of(key.task), key.length - kAnswerTokens};
  request.seed = prompt_seed(seed_, request.task, key.length, key.number);
  if (key.depth) request.depth = *key.depth / 100.0;
  return prompts_.make(request);
}

std::int64_t work_of(const Asked& asked) {
  const auto alone = std::count_if(asked.arms.begin(), asked.arms.end(),
                                   [&](const PlannedArm& arm) { return reads_alone(arm.plan, asked.key.length); });
  return asked.key.length * (1 + alone) + (1 + std::ssize(asked.arms)) * kFed * Progress::kStep;
}

void ask_prompt(engine::Engine& engine, const Asked& asked, const RetrievalPrompt& prompt, const Listeners& listeners) {
  Progress& progress = listeners.progress;
  const std::int64_t end = progress.done() + work_of(asked);
  const int limit = answer_limit(engine.tokenizer(), prompt);
  const engine::Sequence dense = dense_prefill(engine, prompt.tokens, progress);
  const Trial trial = make_trial(engine, dense, prompt, {.limit = limit, .tried = kFed, .progress = &progress});
  std::optional<OwnPrefill> own;
  for (const PlannedArm& arm : asked.arms) {
    const Outcome outcome =
        run_trial(engine, trial, arm.plan, {.limit = kFed, .own = &own, .progress = &progress, .whole = limit});
    if (reads_alone(arm.plan, std::ssize(prompt.tokens))) progress.add(asked.key.length);
    AnswerKey key = asked.key;
    key.arm = arm.name;
    const engine::AttentionStats& reads = outcome.reads;
    listeners.on_answer(
        key, {outcome.score, trial.score, outcome.agreement, outcome.divergence, reads.bytes_read, reads.dense_bytes,
              reads.dense_steps + reads.sparse_steps, outcome.step_s, outcome.cache_bytes, outcome.answer});
  }
  progress.reach(end);
}

}  // namespace glimpse::evaluate
