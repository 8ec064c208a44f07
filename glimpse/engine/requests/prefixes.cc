#include "glimpse/engine/requests/prefixes.h"

#include <algorithm>
#include <new>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/engine/fork.h"
#include "glimpse/kv/cache.h"

namespace glimpse::engine {
namespace {

std::int64_t chunk_of(const Runtime& runtime, const plan::Plan& plan) {
  return static_cast<std::int64_t>(chunk_rows(plan, runtime.options.prefill_chunk));
}

Asked asked_by(const Runtime& runtime, const ActiveRequest& request) {
  const Request& wanted = request.request;
  return {wanted.prompt, &wanted.plan, chunk_of(runtime, wanted.plan), wanted.reuse};
}

bool takes_prefixes(const Runtime& runtime, const Request& wanted) {
  return runtime.prefixes.on() && wanted.reuse != Reuse::none && !wanted.session && !wanted.prompt_logprobs;
}

bool takes_prefixes(const Runtime& runtime, const ActiveRequest& request) {
  if (!takes_prefixes(runtime, request.request)) return false;
  if (request.phase != Phase::prefill || request.running || request.away) return false;
  return !request.sequence || request.from_prefix;
}

/// Another request that has tokens which this one may read.
bool lends(const ActiveRequest& other, const ActiveRequest& to) {
  return other.id != to.id && other.phase != Phase::done && other.running && !other.away && other.sequence &&
         !other.sequence->broken && other.request.reuse != Reuse::none &&
         other.request.cache_salt == to.request.cache_salt;
}

Offered lent(const kv::Cache& cache, const ActiveSequence& sequence) {
  return {sequence.tokens, &sequence.plan(), &sequence.made, !forgetful_head(cache, sequence).has_value(), false};
}

/// What a request that is prefilling will have of the prompt, if its chunks run alone.
Admitted future_share(const Runtime& runtime, const ActiveRequest& other, const Asked& asked) {
  if (other.phase != Phase::prefill) return {};
  const plan::Plan& plan = other.request.plan;
  const std::span<const Token> prompt(other.request.prompt);
  const auto end = static_cast<std::int64_t>(prompt.size());
  const std::int64_t chunk = chunk_of(runtime, plan);
  MadeRows made = other.sequence->made;
  for (std::int64_t at = other.sequence->length; at < end; at += chunk) {
    made.add(at, made_chunk(plan, std::min(at + chunk, end), end, true));
  }
  const bool forgets = plan::forgets(plan);
  Admitted share = admitted({prompt, &plan, &made, !forgets, true}, asked);
  if (!forgets || share.at_end) return share;
  // Whole for the last time in front of its last chunk.
  const std::int64_t whole = other.sequence->length + (end - 1 - other.sequence->length) / chunk * chunk;
  return admitted({prompt.first(static_cast<std::size_t>(whole)), &plan, &made, true, false}, asked);
}

/// `work` on pages and memory that the answer does not need.
template <class Work>
void if_there_is_room(const Work& work) {
  try {
    work();
  } catch (const UserError&) {
  } catch (const std::bad_alloc&) {
  }
}

void take(Requests& requests, ActiveRequest& request, const ActiveSequence& source, const Admitted& share) {
  Runtime& runtime = requests.runtime;
  ActiveSequence fork = fork_prefix(source, request.request.plan, share, runtime.programs, runtime.cache());
  if (request.sequence) close_sequence(runtime.cache(), *request.sequence);
  request.sequence = std::move(fork);
  request.sequence->on_sets = request.request.on_sets;
  request.from_prefix = true;
  request.prefilled = share.tokens;
  request.result.stats.reused_tokens = request.result.stats.prefix_found = share.tokens;
}

/// Reads a stored prefix back and keeps it. Throws UserError where it is damaged, gone, or does not fit.
void keep_stored(Runtime& runtime, const StoredPrefix& stored) {
  // Making room may save others and drop this one of the store's list: nothing of it is used behind this line.
  const OpenedPrefix opened = runtime.store.open(stored);
  const SavedSession& session = opened.session;
  runtime.require(session.plan);
  ActiveSequence sequence = with_room(runtime, [&] {
    return adopt(opened.reader, session, {&session.plan, session.length(), opened.at_end}, runtime.home());
  });
  sequence.made = opened.made;
  runtime.prefixes.keep(runtime.cache(), std::move(sequence), opened.salt);
}

/// True when a stored prefix that serves more than `have` tokens was read back, or could not be and is forgotten: what
/// is kept is another than before.
bool read_stored(Runtime& runtime, const Asked& asked, const std::string& salt, std::int64_t have) {
  const StoredPrefix* stored = runtime.store.find(asked, salt);
  if (stored == nullptr) return false;
  const Admitted share = admitted(stored->offered(), asked);
  if (share.tokens < have + (share.at_end ? 1 : kernels::kPageTokens)) return false;
  const std::filesystem::path file = stored->file;
  if_there_is_room([&] { keep_stored(runtime, *stored); });
  if (runtime.prefixes.find(asked, salt).share.tokens < share.tokens) runtime.store.forget(file);
  return true;
}

}  // namespace

bool keeps_prompt(const Runtime& runtime, const Request& request) {
  return takes_prefixes(runtime, request) && request.reuse != Reuse::exact;
}

bool take_prefix(Requests& requests, ActiveRequest& request) {
  Runtime& runtime = requests.runtime;
  if (!takes_prefixes(runtime, request)) return false;
  const Asked asked = asked_by(runtime, request);
  request.result.stats.prefix_queried = request.result.stats.prompt_tokens;
  const PrefixCache::Found found = runtime.prefixes.find(asked, request.request.cache_salt);
  Admitted best = found.share, later;
  const ActiveSequence* source = found.prefix != nullptr ? &found.prefix->sequence : nullptr;
  for (const auto& [id, other] : requests.all) {
    if (!lends(other, request)) continue;
    const Admitted share = other.open ? Admitted{} : admitted(lent(runtime.cache(), *other.sequence), asked);
    if (share.tokens > best.tokens) {
      best = share;
      source = &*other.sequence;
    }
    if (const Admitted future = future_share(runtime, other, asked); future.tokens > later.tokens) later = future;
  }
  const std::int64_t gain = later.tokens - std::max(best.tokens, request.prefilled);
  if (gain >= kernels::kPageTokens || (gain > 0 && later.at_end)) return true;
  if (read_stored(runtime, asked, request.request.cache_salt, std::max(best.tokens, request.prefilled))) {
    return take_prefix(requests, request);
  }
  if (source == nullptr || best.tokens <= request.prefilled) return false;
  if_there_is_room([&] {
    if (found.prefix != nullptr && source == &found.prefix->sequence) runtime.prefixes.touch(*found.prefix);
    take(requests, request, *source, best);
  });
  return false;
}

void keep_prompt(Requests& requests, const ActiveRequest& request, std::span<const float> logits) {
  Runtime& runtime = requests.runtime;
  if (!runtime.prefixes.on() || request.request.reuse == Reuse::none || request.sequence->broken) return;
  const ActiveSequence& sequence = *request.sequence;
  const std::int64_t left = request.result.stats.prompt_tokens - sequence.length;
  const bool last_whole =
      plan::forgets(request.request.plan) && left > 0 && left <= chunk_of(runtime, request.request.plan);
  if (left > 0 && !last_whole) return;
  if_there_is_room([&] {
    ActiveSequence fork = forked(sequence, sequence.plan(), sequence.length, runtime.programs, runtime.cache());
    try {
      if (left == 0) fork.logits.assign(logits.begin(), logits.end());
    } catch (...) {
      close_sequence(runtime.cache(), fork);
      throw;
    }
    runtime.prefixes.keep(runtime.cache(), std::move(fork), request.request.cache_salt);
  });
}

void keep_rest(Runtime& runtime, ActiveRequest& request) {
  const RequestStats& stats = request.result.stats;
  if (!runtime.prefixes.on() || request.request.reuse == Reuse::none) return;
  if (request.away || request.sequence->broken || stats.prefilled_tokens + stats.generated_tokens == 0) return;
  if_there_is_room([&] {
    if (request.drafting) leave_drafts(runtime.cache(), *request.sequence, *request.drafting);
    ActiveSequence own = std::move(*request.sequence);
    request.sequence.reset();
    own.logits.clear();
    runtime.prefixes.keep(runtime.cache(), std::move(own), request.request.cache_salt);
  });
}

}  // namespace glimpse::engine
