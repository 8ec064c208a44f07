#include "glimpse/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/engine/failure.h"
#include "glimpse/engine/requests/finish.h"
#include "glimpse/engine/requests/prefixes.h"
#include "glimpse/engine/requests/prompt_start.h"
#include "glimpse/engine/requests/shared_prompt.h"
#include "glimpse/engine/requests/slices.h"
#include "glimpse/engine/requests/step.h"
#include "glimpse/engine/sequence_impl.h"
#include "glimpse/engine/session/saved.h"
#include "glimpse/model/fingerprint.h"

namespace glimpse::engine {
namespace {

/// `call` would make a sequence.
void require_no_pass(const Runtime& runtime, std::string_view call) {
  if (!runtime.passes.is_running()) return;
  throw UserError(fmt::format("{} was called from on_sets; call it when the pass has returned", call));
}

}  // namespace

struct Engine::Impl {
  explicit Impl(const EngineOptions& options) : runtime(options), requests(runtime) {}

  Runtime runtime;
  Requests requests;
  Batch batch;

  /// Pages of kept prefixes that requests read, too: counted anew when one of both comes or goes, since a count walks
  /// through the pages of all.
  std::int64_t kept_and_read();

 private:
  std::vector<std::pair<RequestId, kv::SequenceId>> readers_;
  std::int64_t changes_ = -1, pages_ = 0;
};

std::int64_t Engine::Impl::kept_and_read() {
  std::vector<std::pair<RequestId, kv::SequenceId>> readers;
  for (const auto& [id, request] : requests.all) {
    if (request.sequence && !request.away && request.sequence->id >= 0) readers.emplace_back(id, request.sequence->id);
  }
  const PrefixCache& prefixes = runtime.prefixes;
  if (changes_ == prefixes.changes() && readers == readers_) return pages_;
  std::vector<kv::SequenceId> sequences;
  for (const auto& [id, sequence] : readers) sequences.push_back(sequence);
  pages_ = prefixes.pages_read_by(runtime.cache(), sequences);
  changes_ = prefixes.changes();
  readers_ = std::move(readers);
  return pages_;
}

std::string_view name(FinishReason reason) {
  constexpr std::string_view names[] = {"none", "end_of_text", "length", "context_full", "cancelled", "failed", "stop"};
  return names[static_cast<int>(reason)];
}

std::string_view name(Reuse reuse) {
  constexpr std::string_view names[] = {"exact", "dense", "any", "none"};
  return names[static_cast<int>(reuse)];
}

Engine::Engine(const EngineOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Engine::~Engine() = default;

RequestId Engine::submit(Request request) {
  return add_request(impl_->requests, std::move(request), {});
}

std::vector<RequestId> Engine::submit_together(std::vector<Request> requests) {
  return add_together(impl_->requests, std::move(requests));
}

bool Engine::keeps_prompt(const Request& request) const {
  return engine::keeps_prompt(impl_->runtime, request);
}

RequestId Engine::submit(Request request, Sequence&& start) {
  Sequence::Impl& given = start.impl();
  Runtime& runtime = impl_->runtime;
  if (given.runtime != &runtime) {
    throw UserError("a request goes on from a sequence of its own engine, and this one is another's");
  }
  require_whole(given.sequence);
  if (request.session)
    throw UserError("a request that goes on from a sequence has no use for a session; leave one out");
  const std::int64_t forgotten = given.sequence.length - live_tokens(runtime.cache(), given.sequence);
  const RequestId id = add_request(impl_->requests, std::move(request), {.forgotten = forgotten});
  try {
    go_on_from(runtime, given.sequence, find_request(impl_->requests, id));
  } catch (...) {
    forget_request(impl_->requests, id);
    throw;
  }
  if (given.sequence.id < 0) start.impl_.reset();
  return id;
}

std::optional<Sequence> Engine::take(RequestId id) {
  ActiveRequest& request = find_request(impl_->requests, id);
  if (request.phase != Phase::done || !request.sequence) return std::nullopt;
  auto impl = std::make_unique<Sequence::Impl>(impl_->runtime, impl_);
  impl->sequence = std::move(*request.sequence);
  impl->sequence.on_sets = {};
  request.sequence.reset();
  return Sequence(std::move(impl));
}

bool Engine::step() {
  const Busy busy(impl_->runtime, "Engine::step");
  return run_step(impl_->requests, impl_->batch);
}

bool Engine::write_prefixes() {
  const Busy busy(impl_->runtime, "Engine::write_prefixes");
  return impl_->runtime.write_ahead();
}

void Engine::cancel(RequestId id) {
  ActiveRequest& request = find_request(impl_->requests, id);
  if (request.phase == Phase::done) return;
  Runtime& runtime = impl_->runtime;
  if (runtime.passes.is_running()) {  // from on_sets: the pass still reads its cache
    request.cancelled = true;
    return;
  }
  std::optional<Busy> busy;  // unless a callback of another call runs: those of this one may release nothing, either
  if (!runtime.busy) busy.emplace(runtime, "Engine::cancel");
  try {
    leave_slices(impl_->requests, request);
    if (request.phase != Phase::done) end_answer(runtime, request, FinishReason::cancelled);
  } catch (...) {
    const std::exception_ptr why = std::current_exception();
    if (request.phase != Phase::done) fail(runtime, request, why);
    if (is_bug(why)) throw;
  }
}

void Engine::cancel_soon(RequestId id) {
  stop_soon(impl_->requests, id);
}

bool Engine::finished(RequestId id) const {
  return find_request(impl_->requests, id).phase == Phase::done;
}

const Result& Engine::result(RequestId id) const {
  return find_request(impl_->requests, id).result;
}

void Engine::release(RequestId id) {
  if (impl_->runtime.busy)
    throw UserError("Engine::release was called from a callback of the engine; cancel the request there");
  cancel(id);
  ActiveRequest& request = find_request(impl_->requests, id);
  if (request.sequence) close_sequence(impl_->runtime.cache(), *request.sequence);
  forget_request(impl_->requests, id);
}

EngineStats Engine::stats() const {
  EngineStats stats;
  for (const auto& [id, request] : impl_->requests.all) {
    if (request.phase == Phase::done) continue;
    ++(request.running ? stats.running : request.begun ? stats.preempted : stats.waiting);
  }
  stats.preemptions = impl_->requests.preemptions;
  stats.steps = impl_->requests.steps;
  const kv::CacheUsage usage = impl_->runtime.cache().usage();
  stats.pages_total = static_cast<std::int64_t>(usage.pages_total);
  stats.pages_free = static_cast<std::int64_t>(usage.pages_free);
  stats.pages_kept = impl_->runtime.prefixes.pages() - impl_->kept_and_read();
  stats.prefixes = static_cast<std::int64_t>(impl_->runtime.prefixes.size());
  stats.digests_made = usage.digests_made;
  return stats;
}

Sequence Engine::open(const plan::Plan& plan) {
  Runtime& runtime = impl_->runtime;
  require_no_pass(runtime, "Engine::open");
  runtime.require(plan);
  auto impl = std::make_unique<Sequence::Impl>(runtime, impl_);
  impl->sequence = open_sequence(plan, runtime.programs, runtime.cache());
  return Sequence(std::move(impl));
}

std::span<const float> Engine::decode(std::span<const NextToken> tokens) {
  Runtime& runtime = impl_->runtime;
  const Busy busy(runtime, "Engine::decode");
  if (tokens.empty()) throw UserError("Engine::decode: no tokens; give one or more");
  std::vector<PassEntry> entries;
  for (const NextToken& next : tokens) {
    Sequence::Impl& given = next.sequence->impl();
    if (given.runtime != &runtime) throw UserError("Engine::decode: a sequence is another engine's; give its own");
    require_whole(given.sequence);
    require_tokens(runtime.loaded, {&next.token, 1});
    require_closable(given.sequence);
    const auto is_same = [&](const PassEntry& entry) { return entry.sequence == &given.sequence; };
    if (std::any_of(entries.begin(), entries.end(), is_same)) {
      throw UserError("Engine::decode: a sequence is named twice; give each one token");
    }
    entries.push_back({&given.sequence, {&next.token, 1}});
    entries.back().audit = next.audit;
  }
  for (const PassEntry& entry : entries) close_prompt(*entry.sequence);
  const std::span<const float> logits = with_room(runtime, [&] { return runtime.passes.run(entries); });
  for (const std::exception_ptr& failure : runtime.passes.failures()) {
    if (failure) std::rethrow_exception(failure);
  }
  return logits;
}

Sequence Engine::load(const std::filesystem::path& file, const plan::Plan& plan) {
  Runtime& runtime = impl_->runtime;
  require_no_pass(runtime, "Engine::load");
  runtime.require(plan);
  const SessionReader reader(file);
  const SavedSession session = read_session(reader, session_model(runtime.loaded, runtime.cache()));
  const bool same_plan = session.plan == plan;
  const std::int64_t context = runtime.options.context;
  if (session.length() > context) {
    reader.refuse(fmt::format("has {} tokens, and the context holds {} (raise -c)", session.length(), context));
  }
  if (!same_plan && !session.whole()) {
    reader.refuse(
        fmt::format("was made by the plan '{}', whose heads forgot tokens; only the same plan goes on from it",
                    session.plan.policy));
  }
  auto impl = std::make_unique<Sequence::Impl>(runtime, impl_);
  impl->sequence = with_room(runtime, [&] {
    return adopt(reader, session, {&plan, session.length(), same_plan}, runtime.home());
  });
  if (!same_plan) impl->sequence.attention.prompt_tokens = session.prompt_tokens;
  return Sequence(std::move(impl));
}

const text::Tokenizer& Engine::tokenizer() const {
  return impl_->runtime.loaded.tokenizer;
}
plan::ModelShape Engine::shape() const {
  return impl_->runtime.loaded.shape();
}
std::uint64_t Engine::fingerprint() const {
  return model::fingerprint(impl_->runtime.loaded.model.file());
}
std::int64_t Engine::context() const {
  return impl_->runtime.options.context;
}
int Engine::threads() const {
  return impl_->runtime.options.threads;
}
KvType Engine::kv_type() const {
  return impl_->runtime.options.kv_type;
}
std::string Engine::device_name() const {
  return impl_->runtime.device.backend->name();
}
std::string Engine::refusal(const plan::Plan& plan) const {
  try {
    impl_->runtime.device.backend->require(plan);
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}
std::size_t Engine::row_pair_bytes() const {
  return 2 * impl_->runtime.cache().shape().format.read_bytes();
}

std::optional<double> Engine::attention_seconds() const {
  return impl_->runtime.device.executor->attention_seconds();
}
void Engine::measure_change(bool on) {
  impl_->runtime.device.executor->measure_change(on);
}
std::vector<double> Engine::attention_change() const {
  return impl_->runtime.device.executor->attention_change();
}

}  // namespace glimpse::engine
