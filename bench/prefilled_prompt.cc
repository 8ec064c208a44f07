#include "bench/prefilled_prompt.h"

#include <fmt/format.h>

#include <chrono>

#include "glimpse/base/error.h"

namespace glimpse::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Rows of the prompt that a plan with indices runs itself, densely: the last of a prompt builds them.
constexpr std::int64_t kIndexingRows = 32;

}  // namespace

PrefilledPrompt::PrefilledPrompt(engine::Engine& engine, std::vector<Token> tokens, std::span<const Arm> arms,
                                 OnPrefill on_prefill)
    : engine_(engine), tokens_(std::move(tokens)), on_prefill_(std::move(on_prefill)) {
  if (tokens_.empty()) throw UserError("an empty prompt; give at least one token");
  const auto length = static_cast<std::int64_t>(tokens_.size());
  for (const Arm& arm : arms) {
    const std::int64_t dense = arm.refused.empty() ? dense_tokens(arm) : 0;
    if (dense > 0 && dense < length) before_.emplace(dense, std::nullopt);
  }
}

std::int64_t PrefilledPrompt::dense_tokens(const Arm& arm) const {
  const auto length = static_cast<std::int64_t>(tokens_.size());
  const std::int64_t dense = arm.plan.prefill.dense_tokens(length);
  const bool all = dense == length && length > kIndexingRows;
  return all && plan::searches_index(arm.plan) ? length - kIndexingRows : dense;
}

void PrefilledPrompt::run_dense() {
  if (dense_) return;
  const auto start = Clock::now();
  const plan::Plan plan = plan::dense_plan(engine_.shape());
  dense_.emplace(engine_.open(plan));
  const std::span<const Token> all(tokens_);
  std::size_t done = 0;
  for (auto& [length, fork] : before_) {
    const auto end = static_cast<std::size_t>(length);
    dense_->prefill(all.subspan(done, end - done));
    fork.emplace(dense_->fork(plan));
    done = end;
  }
  const auto logits = dense_->prefill(all.subspan(done));
  dense_logits_.assign(logits.begin(), logits.end());
  on_prefill_("dense", static_cast<std::int64_t>(tokens_.size()), seconds_since(start));
}

const engine::Sequence& PrefilledPrompt::dense() {
  run_dense();
  return *dense_;
}

PrefilledPrompt::Start PrefilledPrompt::observe_last(const Arm& arm, std::int64_t dense) {
  run_dense();
  engine::Sequence sequence = before_.at(dense)->fork(arm.plan);
  const std::span<const Token> rows = std::span(tokens_).subspan(static_cast<std::size_t>(dense));
  const auto logits = sequence.prefill(rows);
  return {std::move(sequence), {logits.begin(), logits.end()}, fmt::format("last {} rows", rows.size())};
}

PrefilledPrompt::Start PrefilledPrompt::fork_indexed(const Arm& arm, std::int64_t dense) {
  if (!indexed_ || indexed_->method != arm.method) {
    indexed_.reset();  // its cache first
    Start start = observe_last(arm, dense);
    indexed_.emplace(Indexed{arm.method, std::move(start.sequence), std::move(start.logits)});
  }
  return {indexed_->sequence.fork(arm.plan), indexed_->logits, "dense"};
}

PrefilledPrompt::Start PrefilledPrompt::run_own(const Arm& arm) {
  if (!own_ || !(own_->plan == arm.prefill_plan)) {
    own_.reset();  // its cache first, or a third prompt would need room
    const auto start = Clock::now();
    engine::Sequence sequence = engine_.open(arm.prefill_plan);
    const auto logits = sequence.prefill(tokens_);
    own_.emplace(Own{arm.prefill_plan, std::move(sequence), {logits.begin(), logits.end()}});
    on_prefill_("own, " + arm.label(), static_cast<std::int64_t>(tokens_.size()), seconds_since(start));
  }
  return {own_->sequence.fork(arm.plan), own_->logits, "own"};
}

PrefilledPrompt::Start PrefilledPrompt::start(const Arm& arm) {
  const auto length = static_cast<std::int64_t>(tokens_.size());
  const std::int64_t dense = dense_tokens(arm);
  if (dense == 0) return run_own(arm);
  if (dense < arm.plan.prefill.dense_tokens(length)) return fork_indexed(arm, dense);
  if (dense < length) return observe_last(arm, dense);
  run_dense();
  return {dense_->fork(arm.plan), dense_logits_, "dense"};
}

}  // namespace glimpse::bench
