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

std::int64_t Examiner::work(const Asked& asked) {
  const auto alone = std::count_if(asked.arms.begin(), asked.arms.end(),
                                   [&](const PlannedArm& arm) { return reads_alone(arm.plan, asked.key.length); });
  return asked.key.length * (1 + alone) + (1 + std::ssize(asked.arms)) * kFed * Progress::kStep;
}

void Examiner::ask(const Asked& asked, Progress& progress, const OnAnswer& on_answer) {
  const std::int64_t end = progress.done() + work(asked);
  const RetrievalPrompt prompt = prompt_of(asked.key);
  std::int64_t limit = kSpare;
  for (const std::string& part : prompt.wanted) {
    limit += 2 * std::ssize(engine_.tokenizer().encode(" " + part, text::Special::as_text, false));
  }
  limit = std::min(limit, kAnswerTokens);
  const engine::Sequence dense = dense_prefill(engine_, prompt.tokens, progress);
  const Trial trial = make_trial(engine_, dense, std::ssize(prompt.tokens), prompt,
                                 {.limit = static_cast<int>(limit), .tried = kFed, .progress = &progress});
  std::optional<OwnPrefill> own;
  for (const PlannedArm& arm : asked.arms) {
    const Outcome outcome =
        run_trial(engine_, trial, arm.plan,
                  {.limit = kFed, .own = &own, .progress = &progress, .whole = static_cast<int>(limit)});
    if (reads_alone(arm.plan, std::ssize(prompt.tokens))) progress.add(asked.key.length);
    AnswerKey key = asked.key;
    key.arm = arm.name;
    const engine::AttentionStats& reads = outcome.reads;
    on_answer(key,
              {outcome.score, trial.score, outcome.agreement, outcome.divergence, reads.bytes_read, reads.dense_bytes,
               reads.dense_steps + reads.sparse_steps, outcome.step_s, outcome.cache_bytes, outcome.answer});
  }
  progress.reach(end);
}

}  // namespace glimpse::evaluate
