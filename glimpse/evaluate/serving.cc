#include "glimpse/evaluate/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <thread>

#include "glimpse/base/error.h"
#include "glimpse/base/resources.h"
#include "glimpse/engine/service.h"
#include "glimpse/evaluate/speed.h"

namespace glimpse::evaluate {
namespace {

using engine::seconds_between;
using Clock = std::chrono::steady_clock;
/// How long a wait may last before go_on is asked.
constexpr std::chrono::milliseconds kPatience(50);

Clock::time_point after(Clock::time_point start, double seconds) {
  return start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

engine::Request request_of(const Arrival& arrival) {
  engine::Request request;
  request.prompt = arrival.prompt;
  request.plan = arrival.plan;
  request.max_tokens = arrival.tokens;
  request.ignore_end = true;
  return request;
}

/// False: stopped.
bool wait_until(Clock::time_point time, const std::function<bool()>& go_on) {
  while (Clock::now() < time) {
    if (!go_on()) return false;
    std::this_thread::sleep_until(std::min(time, Clock::now() + kPatience));
  }
  return true;
}

/// What `work` returns, or throws. A thread that has run passes keeps the team of threads that ran them, and while a
/// process has more of these than cores all teams sleep at each barrier (libgomp): the Service's passes would take 5 to
/// 8 % longer.
template <class Work>
auto on_a_thread_that_ends(const Work& work) {
  require_threads(1);
  return std::async(std::launch::async, work).get();
}

/// A stream and what was read of it.
struct Reader {
  engine::Stream stream;
  Clock::time_point submitted;

  void take(engine::StreamEvent event, Served& served) const {
    using Kind = engine::StreamEvent::Kind;
    if (event.kind == Kind::started) served.queue_s = seconds_between(submitted, event.at);
    for (const engine::StreamToken& token : event.tokens) {
      served.tokens.push_back(token.token);
      served.token_s.push_back(seconds_between(submitted, token.at));
      served.pass.push_back(token.pass);
    }
    if (event.kind == Kind::finished) served.error = std::move(event.result.error);
  }
};

/// Requests of a loop by hand; gives them back to the engine however it ends.
struct Held {
  engine::Engine& engine;
  std::vector<std::pair<engine::RequestId, std::size_t>> running;  ///< with the number of its arrival

  explicit Held(engine::Engine& serving) : engine(serving) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    for (const auto& [id, index] : running) engine.release(id);
  }
  /// Returns how many have ended.
  std::int64_t collect(std::vector<Served>& requests) {
    const auto ended = [&](const auto& each) {
      if (!engine.finished(each.first)) return false;
      const engine::Result& result = engine.result(each.first);
      requests[each.second].tokens = result.tokens;
      requests[each.second].error = result.error;
      engine.release(each.first);
      return true;
    };
    return static_cast<std::int64_t>(std::erase_if(running, ended));
  }
};

double rate(std::span<const Served> requests, double seconds) {
  double tokens = 0;
  for (const Served& served : requests) tokens += static_cast<double>(served.tokens.size());
  return seconds > 0 ? tokens / seconds : 0;
}

}  // namespace

std::optional<ServingRun> serve(engine::Engine& engine, std::span<const Arrival> arrivals,
                                const ServingOptions& options) {
  ServingRun run;
  run.requests.resize(arrivals.size());
  engine::Service service(engine, {.queue = static_cast<int>(arrivals.size()) + 1, .running = options.running});
  std::vector<Reader> readers;
  readers.reserve(arrivals.size());
  const auto go_on = [&] {
    const auto counts = service.metrics().finished;
    std::int64_t done = 0;
    for (const std::int64_t count : counts) done += count;
    return !options.go_on || options.go_on(done);
  };
  const Clock::time_point start = Clock::now();
  for (const Arrival& arrival : arrivals) {
    if (!wait_until(after(start, arrival.at_s), go_on)) return std::nullopt;
    const Clock::time_point now = Clock::now();
    readers.push_back({service.submit(request_of(arrival)), now});
  }
  // Events have their times, so that they are read when all have come.
  for (std::size_t i = 0; i < readers.size(); ++i) {
    while (!readers[i].stream.ended()) {
      if (!go_on()) return std::nullopt;
      if (auto event = readers[i].stream.next(kPatience)) readers[i].take(std::move(*event), run.requests[i]);
    }
  }
  Clock::time_point first = Clock::time_point::max(), last = start;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    first = std::min(first, readers[i].submitted);
    if (run.requests[i].token_s.empty()) continue;
    last = std::max(last, after(readers[i].submitted, run.requests[i].token_s.back()));
  }
  const engine::ServiceMetrics metrics = service.metrics();
  run.tokens_per_s = rate(run.requests, seconds_between(first, last));
  run.decode_pass_s = metrics.decode_pass.mean();
  run.chunk_pass_s = metrics.chunk_pass.mean();
  run.preemptions = metrics.preemptions;
  return run;
}

std::optional<ServingRun> serve_by_hand(engine::Engine& engine, std::span<const Arrival> arrivals,
                                        const ServingOptions& options) {
  return on_a_thread_that_ends([&]() -> std::optional<ServingRun> {
    ServingRun run;
    run.requests.resize(arrivals.size());
    Held held(engine);
    std::size_t next = 0;
    std::int64_t done = 0;
    const auto go_on = [&] { return !options.go_on || options.go_on(done); };
    const Clock::time_point start = Clock::now();
    Clock::time_point first = start;
    while (next < arrivals.size() || !held.running.empty()) {
      if (held.running.empty() && !wait_until(after(start, arrivals[next].at_s), go_on)) return std::nullopt;
      while (next < arrivals.size() && held.running.size() < static_cast<std::size_t>(options.running) &&
             after(start, arrivals[next].at_s) <= Clock::now()) {
        if (next == 0) first = Clock::now();
        held.running.emplace_back(engine.submit(request_of(arrivals[next])), next);
        ++next;
      }
      engine.step();
      done += held.collect(run.requests);
      if (!go_on()) return std::nullopt;
    }
    run.tokens_per_s = rate(run.requests, seconds_between(first, Clock::now()));
    return run;
  });
}

std::optional<std::vector<std::vector<Token>>> serve_alone(engine::Engine& engine, std::span<const Arrival> arrivals,
                                                           const ServingOptions& options) {
  return on_a_thread_that_ends([&]() -> std::optional<std::vector<std::vector<Token>>> {
    std::vector<Served> requests(arrivals.size());
    for (std::size_t i = 0; i < arrivals.size(); ++i) {
      Held held(engine);
      held.running.emplace_back(engine.submit(request_of(arrivals[i])), i);
      while (held.collect(requests) == 0) {
        if (options.go_on && !options.go_on(static_cast<std::int64_t>(i))) return std::nullopt;
        engine.step();
      }
      if (!requests[i].error.empty()) {
        throw UserError(fmt::format("request {} ({}, {} tokens) fails alone: {}", i + 1, arrivals[i].arm,
                                    arrivals[i].prompt.size(), requests[i].error));
      }
    }
    std::vector<std::vector<Token>> tokens;
    for (Served& served : requests) tokens.push_back(std::move(served.tokens));
    return tokens;
  });
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

std::vector<ServingRow> serving_rows(std::span<const Arrival> arrivals, std::span<const ServingRun> runs,
                                     std::span<const std::vector<Token>> alone) {
  std::vector<std::string> arms;
  for (const Arrival& arrival : arrivals) {
    if (std::find(arms.begin(), arms.end(), arrival.arm) == arms.end()) arms.push_back(arrival.arm);
  }
  arms.emplace_back("all");
  std::vector<ServingRow> rows;
  for (std::size_t arm = 0; arm < arms.size(); ++arm) {
    ServingRow row;
    row.arm = arms[arm];
    std::vector<double> first, between, rates;
    for (const ServingRun& run : runs) {
      double own = 0, all = 0;
      for (std::size_t i = 0; i < arrivals.size(); ++i) {
        const Served& served = run.requests[i];
        all += static_cast<double>(served.tokens.size());
        if (arm + 1 < arms.size() && arrivals[i].arm != row.arm) continue;
        own += static_cast<double>(served.tokens.size());
        ++row.requests;
        row.failed += served.error.empty() ? 0 : 1;
        row.as_alone += served.tokens == alone[i] ? 1 : 0;
        if (!served.token_s.empty()) first.push_back(served.token_s.front());
        for (std::size_t token = 1; token < served.token_s.size(); ++token) {
          between.push_back(served.token_s[token] - served.token_s[token - 1]);
          row.longest_wait_passes = std::max(row.longest_wait_passes, served.pass[token] - served.pass[token - 1]);
        }
      }
      rates.push_back(all > 0 ? run.tokens_per_s * own / all : 0);
    }
    row.first_p50_s = percentile(first, 0.5);
    row.first_p99_s = percentile(first, 0.99);
    row.between_p50_s = percentile(between, 0.5);
    row.between_p99_s = percentile(between, 0.99);
    row.longest_wait_s = percentile(between, 1);
    row.tokens_per_s = median(rates);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace glimpse::evaluate
