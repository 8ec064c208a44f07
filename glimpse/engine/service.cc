#include "glimpse/engine/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "glimpse/engine/failure.h"
#include "glimpse/engine/stream_ticket.h"

namespace glimpse::engine {
namespace {

using Clock = std::chrono::steady_clock;

/// A text for people must not fail where memory is short: then it is empty.
std::string words_of(const std::exception_ptr& why) noexcept {
  try {
    return text_of(why);
  } catch (...) {
    return {};
  }
}

Result ended(FinishReason reason, std::string_view error = {}) noexcept {
  Result result;
  result.reason = reason;
  try {
    result.error = error;
  } catch (...) {
  }
  return result;
}

}  // namespace

struct Service::Impl {
  using Ticket = Stream::Ticket;
  using Tickets = std::vector<std::shared_ptr<Ticket>>;

  Impl(Engine& serving, const ServiceOptions& wanted) : engine(serving), options(wanted) {
    metrics.began = Clock::now();
    running.reserve(static_cast<std::size_t>(options.running));
  }

  Engine& engine;
  const ServiceOptions options;

  mutable std::mutex mutex;
  std::condition_variable work;
  // Under the mutex.
  bool stopping = false;
  std::optional<std::string> broken;  ///< why the Service ended by itself
  std::deque<std::shared_ptr<Ticket>> queue;
  ServiceMetrics metrics;
  std::int64_t groups = 0;  ///< of several requests for one prompt, so far

  // Its own thread alone.
  Tickets running;  ///< [<= options.running] in the order of their turns
  TimePoint pass_began;
  std::int64_t passes = 0;
  bool chunk = false;  ///< the pass had rows of a prompt

  std::thread thread;

  void run() noexcept;
  /// Waits for work. False: stop.
  bool wait();
  void end_cancelled();
  Tickets next_to_begin();
  void admit();
  /// Requests of one prompt, to the engine.
  void give(const Tickets& tickets);
  void pass();
  /// Hands out what the engine has finished. Returns how many.
  std::size_t collect();
  /// Under the mutex.
  void count_engine();
  void end(std::size_t index, FinishReason reason, std::string_view error = {});
  void close(FinishReason reason, std::string error) noexcept;

  void begin(Ticket& ticket);
  void on_prefill(Ticket& ticket, std::int64_t done, std::int64_t total);
  void on_token(Ticket& ticket, Token token, std::string_view bytes);
  void finish(Ticket& ticket, Result result);
};

void Service::Impl::run() noexcept {
  std::string why;
  FinishReason reason = FinishReason::cancelled;
  try {
    while (wait()) {
      end_cancelled();
      admit();
      if (!running.empty()) pass();
    }
  } catch (...) {
    reason = FinishReason::failed;
    why = words_of(std::current_exception());
  }
  close(reason, std::move(why));
}

bool Service::Impl::wait() {
  std::unique_lock lock(mutex);
  const auto ready = [&] { return stopping || !queue.empty() || !running.empty(); };
  for (bool writes = true; writes && !ready();) {
    lock.unlock();
    writes = engine.write_prefixes();
    lock.lock();
  }
  work.wait(lock, ready);
  return !stopping;
}

void Service::Impl::end_cancelled() {
  Tickets waiting;
  {
    const std::lock_guard lock(mutex);
    for (const auto& ticket : queue) {
      if (ticket->cancelled) waiting.push_back(ticket);
    }
    std::erase_if(queue,
                  [&](const auto& each) { return std::find(waiting.begin(), waiting.end(), each) != waiting.end(); });
  }
  for (const auto& ticket : waiting) finish(*ticket, ended(FinishReason::cancelled));
  for (std::size_t i = running.size(); i-- > 0;) {
    if (running[i]->cancelled) end(i, FinishReason::cancelled);
  }
}

/// Under the mutex. Each that waits has its turn where it came, but for a group that begins together: while it waits
/// for slots, as many requests as there are slots may begin before it.
Service::Impl::Tickets Service::Impl::next_to_begin() {
  const auto slots = static_cast<std::size_t>(options.running);
  const std::size_t free = slots - running.size();
  Tickets behind;
  for (auto first = queue.begin(); first != queue.end();) {
    const auto end = std::find_if(first, queue.end(), [&](const auto& each) {
      return each != *first && (each->group == 0 || each->group != (*first)->group);
    });
    const auto count = static_cast<std::size_t>(end - first);
    if (count <= free || engine.keeps_prompt((*first)->request)) {
      const auto last = first + static_cast<std::ptrdiff_t>(std::min(count, free));
      Tickets tickets(first, last);
      for (const auto& each : behind) each->overtaken += tickets.size();
      queue.erase(first, last);
      return tickets;
    }
    if ((*first)->overtaken >= slots) break;
    behind.push_back(*first);
    first = end;
  }
  return {};
}

void Service::Impl::admit() {
  while (running.size() < static_cast<std::size_t>(options.running)) {
    Tickets tickets;
    {
      const std::lock_guard lock(mutex);
      tickets = next_to_begin();
    }
    if (tickets.empty()) return;
    try {
      give(tickets);
    } catch (...) {
      const std::string why = words_of(std::current_exception());
      for (const auto& ticket : tickets) finish(*ticket, ended(FinishReason::failed, why));
    }
  }
}

void Service::Impl::give(const Tickets& tickets) {
  std::vector<Request> requests;
  requests.reserve(tickets.size());
  for (const auto& ticket : tickets) {
    Ticket* const own = ticket.get();
    own->request.on_prefill = [this, own](std::int64_t done, std::int64_t total) { on_prefill(*own, done, total); };
    own->request.on_token = [this, own](Token token, std::string_view bytes) { on_token(*own, token, bytes); };
    own->request.on_text = [own](std::string_view text) {
      const std::lock_guard lock(own->mutex);
      own->text += text;
    };
    if (own->watcher) own->request.on_sets = [own](const SetTrace& trace) { own->watcher->sets(trace); };
    requests.push_back(std::move(own->request));
  }
  const std::vector<RequestId> ids = engine.submit_together(std::move(requests));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    running.push_back(tickets[i]);
    const std::lock_guard lock(tickets[i]->mutex);
    tickets[i]->engine = &engine;
    tickets[i]->id = ids[i];
  }
  const std::lock_guard lock(mutex);
  metrics.running = static_cast<std::int64_t>(running.size());
}

void Service::Impl::pass() {
  pass_began = Clock::now();
  chunk = false;
  ++passes;
  std::exception_ptr failure;
  try {
    check(engine.step(), "an engine with requests has something to do");
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex);
    (chunk ? metrics.chunk_pass : metrics.decode_pass).add(seconds_between(pass_began, Clock::now()));
    if (failure) ++metrics.failed_passes;
  }
  for (const auto& ticket : running) {
    if (!ticket->watcher) continue;
    ticket->watcher->step(engine.result(ticket->id).stats.attention);
    if (ticket->wake) ticket->wake();
  }
  // A bug that one request met is thrown too, and that one has ended.
  if (collect() == 0 && failure) end(running.size() - 1, FinishReason::failed, words_of(failure));
  const std::lock_guard lock(mutex);
  count_engine();
}

void Service::Impl::count_engine() {
  const EngineStats stats = engine.stats();
  metrics.pages_used = std::max<std::int64_t>(0, stats.pages_total - stats.pages_free - stats.pages_kept);
  metrics.pages_total = stats.pages_total;
  metrics.preemptions = stats.preemptions;
}

std::size_t Service::Impl::collect() {
  std::size_t count = 0;
  for (std::size_t i = 0; i < running.size();) {
    if (!engine.finished(running[i]->id)) {
      ++i;
      continue;
    }
    end(i, FinishReason::none);
    ++count;
  }
  return count;
}

/// Takes a request from the engine; `reason` is why it ends, none: it has.
void Service::Impl::end(std::size_t index, FinishReason reason, std::string_view error) {
  const std::shared_ptr<Ticket> ticket = running[index];
  {
    const std::lock_guard lock(ticket->mutex);
    ticket->engine = nullptr;
  }
  engine.cancel(ticket->id);  // does nothing to one that has ended
  Result result = engine.result(ticket->id);
  if (reason == FinishReason::failed) {
    result.reason = reason;
    result.error = error;
  }
  engine.release(ticket->id);
  running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
  finish(*ticket, std::move(result));
}

void Service::Impl::close(FinishReason reason, std::string error) noexcept {
  while (!running.empty()) {
    const std::shared_ptr<Ticket> ticket = running.back();
    try {
      end(running.size() - 1, reason, error);
    } catch (...) {
      running.pop_back();
      finish(*ticket, ended(reason, error));
    }
  }
  std::deque<std::shared_ptr<Ticket>> waiting;
  {
    const std::lock_guard lock(mutex);
    waiting.swap(queue);
    if (reason == FinishReason::failed) broken.emplace();
  }
  for (const auto& ticket : waiting) finish(*ticket, ended(reason, error));
  const std::lock_guard lock(mutex);
  if (broken) *broken = std::move(error);
}

void Service::Impl::begin(Ticket& ticket) {
  if (std::exchange(ticket.begun, true)) return;
  {
    const std::lock_guard lock(mutex);
    metrics.queue.add(seconds_between(ticket.submitted, pass_began));
  }
  StreamEvent event;
  event.at = pass_began;
  ticket.change([&] { ticket.started = std::move(event); });
}

void Service::Impl::on_prefill(Ticket& ticket, std::int64_t done, std::int64_t total) {
  chunk = true;
  begin(ticket);
  StreamEvent event;
  event.kind = StreamEvent::Kind::prefill;
  event.at = Clock::now();
  event.done = done;
  event.total = total;
  event.reused = engine.result(ticket.id).stats.reused_tokens;
  ticket.change([&] { ticket.prefill = std::move(event); });
}

void Service::Impl::on_token(Ticket& ticket, Token token, std::string_view bytes) {
  begin(ticket);
  const TimePoint now = Clock::now();
  const bool first = ticket.last_token == TimePoint();
  const double since = seconds_between(first ? ticket.submitted : ticket.last_token, now);
  ticket.last_token = now;
  {
    const std::lock_guard lock(mutex);
    ++metrics.generated_tokens;
    (first ? metrics.first_token : metrics.between_tokens).add(since);
  }
  StreamToken given{token, std::string(bytes), now, passes, {}};
  // As many as tokens, or none: tokens that were held back come in their order.
  const Result& result = engine.result(ticket.id);
  if (!result.logprobs.empty()) given.logprobs = result.logprobs.at(ticket.given);
  std::vector<text::TokenLogprobs> of_prompt;
  if (ticket.given == 0) of_prompt = result.prompt_logprobs;
  ++ticket.given;
  if (ticket.watcher) ticket.watcher->token(token);
  ticket.change([&] {
    if (!of_prompt.empty()) ticket.prompt_logprobs = std::move(of_prompt);
    ticket.tokens.push_back(std::move(given));
  });
}

/// Counted before it is told: who has the event finds it in the metrics.
void Service::Impl::finish(Ticket& ticket, Result result) {
  {
    const std::lock_guard lock(mutex);
    ++metrics.finished.at(static_cast<std::size_t>(result.reason));
    metrics.prompt_tokens += result.stats.prompt_tokens;
    metrics.reused_tokens += result.stats.reused_tokens;
    metrics.prefix_queried += result.stats.prefix_queried;
    metrics.prefix_found += result.stats.prefix_found;
    metrics.running = static_cast<std::int64_t>(running.size());
    count_engine();
  }
  StreamEvent event;
  event.kind = StreamEvent::Kind::finished;
  event.at = Clock::now();
  event.result = std::move(result);
  ticket.change([&] { ticket.finished = std::move(event); });
}

Service::Service(Engine& engine, const ServiceOptions& options) {
  for (const auto& [value, what] : {std::pair(options.queue, "queue"), std::pair(options.running, "running")}) {
    if (value < 1) throw UserError(fmt::format("ServiceOptions::{} is {}; give 1 or more", what, value));
  }
  impl_ = std::make_unique<Impl>(engine, options);
  try {
    impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
  } catch (const std::system_error& error) {
    throw UserError(
        fmt::format("the system gives the service no thread: {}; let the process have more threads (ulimit "
                    "-u) or memory",
                    error.what()));
  }
}

Service::~Service() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->work.notify_one();
  impl_->thread.join();
}

Stream Service::submit(Request request, const Wake& wake) {
  return std::move(submit(std::move(request), 1, wake).front());
}

std::vector<Stream> Service::submit(Request request, int answers, const Wake& wake, std::shared_ptr<Watcher> watcher) {
  if (request.on_token || request.on_text || request.on_prefill || request.on_sets) {
    throw UserError("a request of a Service has callbacks, which would run on its thread; read the stream's events");
  }
  if (request.keep) throw UserError("a request of a Service is to keep its sequence; submit it to the Engine itself");
  if (const int most = std::min(impl_->options.running, impl_->options.queue); answers < 1 || answers > most) {
    throw UserError(
        fmt::format("{} answers to one prompt; ask for 1 to {}, as many as ServiceOptions::queue and running allow",
                    answers, most));
  }
  if (watcher && answers != 1) {
    throw UserError(fmt::format("a Watcher is for one answer, and {} are asked for; submit them one by one", answers));
  }
  const auto count = static_cast<std::size_t>(answers);
  Impl::Tickets tickets;
  std::vector<Stream> streams;
  streams.reserve(count);
  for (std::size_t i = 0; i + 1 < count; ++i) {
    tickets.push_back(std::make_shared<Stream::Ticket>(request, wake));
    ++request.sampling.seed;
  }
  tickets.push_back(std::make_shared<Stream::Ticket>(std::move(request), wake));
  tickets.back()->watcher = std::move(watcher);
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->broken) throw UserError(fmt::format("the service has ended: {}", *impl_->broken));
    if (impl_->queue.size() + count > static_cast<std::size_t>(impl_->options.queue)) {
      impl_->metrics.refused += answers;
      throw QueueFull(fmt::format(
          "no room for {} more: {} requests wait, and the queue holds {}; submit again when one of them has "
          "started, or raise ServiceOptions::queue",
          answers, impl_->queue.size(), impl_->options.queue));
    }
    const std::int64_t group = count > 1 ? ++impl_->groups : 0;
    for (const auto& ticket : tickets) ticket->group = group;
    impl_->queue.insert(impl_->queue.end(), tickets.begin(), tickets.end());
    impl_->metrics.submitted += answers;
  }
  impl_->work.notify_one();
  for (auto& ticket : tickets) streams.push_back(Stream(std::move(ticket)));
  return streams;
}

ServiceMetrics Service::metrics() const {
  const std::lock_guard lock(impl_->mutex);
  ServiceMetrics copy = impl_->metrics;
  copy.at = Clock::now();
  copy.queued = static_cast<std::int64_t>(impl_->queue.size());
  return copy;
}

}  // namespace glimpse::engine
