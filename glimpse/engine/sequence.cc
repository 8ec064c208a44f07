#include "glimpse/engine/sequence.h"

#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/engine/correction.h"
#include "glimpse/engine/fork.h"
#include "glimpse/engine/sequence_impl.h"
#include "glimpse/engine/session/saved.h"

namespace glimpse::engine {

Sequence::Sequence(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;
Sequence::~Sequence() = default;

Sequence::Impl& Sequence::impl() const {
  if (!impl_) {
    throw UserError("this sequence holds nothing: it was moved from, or a request took it; open a new one");
  }
  if (impl_->alive.expired()) {
    throw UserError("the engine of this sequence is gone, and its cache with it; open a new one in another engine");
  }
  return *impl_;
}

std::int64_t Sequence::length() const {
  return impl().sequence.length;
}
const AttentionStats& Sequence::stats() const {
  return impl().sequence.stats;
}
void Sequence::reset_stats() {
  impl().sequence.stats = {};
}
void Sequence::on_sets(std::function<void(const SetTrace&)> callback) {
  impl().sequence.on_sets = std::move(callback);
}

std::span<const Token> Sequence::tokens() const {
  return impl().sequence.tokens;
}
std::span<const float> Sequence::logits() const {
  return impl().sequence.logits;
}

std::span<const float> Sequence::prefill(std::span<const Token> tokens,
                                         const std::function<void(std::int64_t, std::span<const float>)>& on_logits,
                                         std::int64_t first_wanted, const std::function<bool()>& go_on) {
  Runtime& runtime = *impl().runtime;
  const Busy busy(runtime, "Sequence::prefill");
  require_whole(impl().sequence);
  if (tokens.empty()) throw UserError("nothing to prefill: give at least one token");
  require_tokens(runtime.loaded, tokens);
  const std::int64_t end = impl().sequence.length + static_cast<std::int64_t>(tokens.size());
  require_memory(runtime.device,
                 live_tokens(runtime.cache(), impl().sequence) + static_cast<std::int64_t>(tokens.size()));
  std::span<const float> logits;
  const std::size_t chunk = chunk_rows(impl().sequence.plan(), runtime.options.prefill_chunk);
  const std::size_t vocabulary = runtime.loaded.vocabulary();
  for (std::size_t first = 0; first < tokens.size(); first += chunk) {
    if (go_on && !go_on()) return {};
    const std::size_t count = std::min(chunk, tokens.size() - first);
    const bool last = first + count == tokens.size();
    const std::int64_t position = impl().sequence.length;
    const bool all = on_logits && position + static_cast<std::int64_t>(count) > first_wanted;
    PassEntry entry{&impl().sequence, tokens.subspan(first, count)};
    entry.kind = attention::PassKind::prompt;
    entry.prompt_end = end;
    entry.logits = all ? PassEntry::Logits::all : last ? PassEntry::Logits::last : PassEntry::Logits::none;
    logits = with_room(runtime, [&] { return runtime.passes.run_alone(entry); });
    if (!all) continue;
    for (std::size_t row = 0; row < count; ++row) {
      if (position + static_cast<std::int64_t>(row) < first_wanted) continue;
      on_logits(position + static_cast<std::int64_t>(row), logits.subspan(row * vocabulary, vocabulary));
    }
  }
  return logits.last(vocabulary);
}

std::span<const float> Sequence::decode(Token token, bool audit) {
  Runtime& runtime = *impl().runtime;
  const Busy busy(runtime, "Sequence::decode");
  require_whole(impl().sequence);
  require_tokens(runtime.loaded, {&token, 1});
  close_prompt(impl().sequence);
  PassEntry entry{&impl().sequence, {&token, 1}};
  entry.audit = audit;
  return with_room(runtime, [&] { return runtime.passes.run_alone(entry); });
}

void Sequence::correct(std::int64_t tokens) {
  Runtime& runtime = *impl().runtime;
  const Busy busy(runtime, "Sequence::correct");
  require_whole(impl().sequence);
  require_correction(impl().sequence.plan());
  // Of the plan that this one was forked from.
  if (const auto gone = forgetful_head(runtime.cache(), impl().sequence)) {
    throw UserError(
        fmt::format("layer {}, KV head {} has forgotten tokens, so nothing can be corrected; prefill a new "
                    "sequence with this plan",
                    gone->layer, gone->head));
  }
  if (tokens < 1 || tokens > length()) {
    throw UserError(
        fmt::format("cannot correct {} tokens of a sequence of {}; give 1 to {}", tokens, length(), length()));
  }
  engine::correct(runtime.passes, impl().sequence, tokens, runtime.options.prefill_chunk);
}

Sequence Sequence::fork(const plan::Plan& plan) const {
  return fork(plan, length());
}

Sequence Sequence::fork(const plan::Plan& plan, std::int64_t tokens) const {
  const Impl& mine = impl();
  Runtime& runtime = *mine.runtime;
  const Busy busy(runtime, "Sequence::fork");
  require_whole(mine.sequence);
  runtime.require(plan);
  auto other = std::make_unique<Impl>(runtime, mine.alive);
  other->sequence =
      with_room(runtime, [&] { return forked(mine.sequence, plan, tokens, runtime.programs, runtime.cache()); });
  return Sequence(std::move(other));
}

void Sequence::save(const std::filesystem::path& file, std::span<const float> logits) const {
  const Impl& mine = impl();
  Runtime& runtime = *mine.runtime;
  const Busy busy(runtime, "Sequence::save");
  require_whole(mine.sequence);
  const std::size_t vocabulary = runtime.loaded.vocabulary();
  if (!logits.empty() && logits.size() != vocabulary) {
    throw UserError(fmt::format("{} logits to save with a session; give those of the last token, {}, or none",
                                logits.size(), vocabulary));
  }
  save_sequence(mine.sequence, logits, file, runtime.loaded, runtime.cache());
}

}  // namespace glimpse::engine
