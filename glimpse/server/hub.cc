#include "glimpse/server/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/server/json.h"
#include "glimpse/server/metrics_page.h"
#include "glimpse/server/microscope.h"
#include "glimpse/server/pages.h"
#include "glimpse/server/watch_events.h"

namespace glimpse::server {
namespace {

std::string health(const Hub& hub) {
  hub.loaded();
  return text_of({{"status", "ok"}});
}

std::string live_json(const Hub& hub) {
  Json list = Json::array();
  for (const auto& [id, held] : hub.live) {
    const std::shared_ptr<Answer> answer = held.lock();
    if (answer == nullptr) continue;
    list.push_back({{"id", id},
                    {"object", "request"},
                    {"created", answer->head().created},
                    {"model", answer->head().model},
                    {"policy", answer->head().policy},
                    {"state", answer->begun() ? "running" : "waiting"},
                    {"generated_tokens", answer->generated()},
                    {"watched", answer->head().watch != nullptr}});
  }
  return text_of({{"object", "list"}, {"data", std::move(list)}});
}

std::string cancelled_json(const Hub& hub, std::string_view path) {
  const std::string id(request_of(path));
  const auto found = hub.live.find(id);
  const std::shared_ptr<Answer> answer = found == hub.live.end() ? nullptr : found->second.lock();
  if (answer == nullptr) {
    throw ApiError(404, fmt::format("no request '{}' is running or waiting; GET /v1/requests lists them", excerpt(id)));
  }
  answer->cancel();
  return text_of({{"id", id}, {"object", "request"}, {"cancelled", true}});
}

std::string metrics(Hub& hub) {
  const Backend& backend = hub.loaded();
  hub.totals.connections = std::ssize(hub.peers);
  return metrics_page(backend.service.metrics(), hub.totals, backend.name);
}

}  // namespace

const Backend& Hub::loaded() const {
  if (stopping) throw ApiError(503, "the server is stopping");
  if (backend == nullptr) throw ApiError(503, "the model is being loaded; try again").coded("loading");
  return *backend;
}

bool Hub::make_room() {
  const auto open = std::count_if(peers.begin(), peers.end(), [](const auto& peer) { return !peer->cutting; });
  return open < options.limits.connections || cut_longest();
}

bool Hub::cut_longest() {
  std::shared_ptr<Peer> longest;
  for (const auto& peer : peers) {
    if (peer->busy || peer->cutting) continue;
    if (longest == nullptr || peer->last_whole < longest->last_whole) longest = peer;
  }
  if (longest == nullptr) return false;
  ++totals.evicted;
  longest->cut();
  return true;
}

std::string Hub::fresh_id(std::string_view kind) const {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  const std::uint64_t high = random(), low = random();
  return fmt::format("{}-{:016x}{:016x}", kind, high, low);
}

std::shared_ptr<Watched> watched_of(const Hub& hub, std::string_view path) {
  hub.loaded();
  const std::string id(request_of(path));
  if (auto found = hub.watched.find(id)) return found;
  if (hub.live.contains(id)) {
    throw ApiError(404, fmt::format("the request '{}' is not watched; send \"attention\": {{\"watch\": true}} with one "
                                    "that is to be",
                                    excerpt(id)));
  }
  throw ApiError(404, fmt::format("no watched request '{}' is kept; the last {} are, of those that were sent with "
                                  "\"attention\": {{\"watch\": true}} (--max-watched)",
                                  excerpt(id), hub.options.limits.watched));
}

std::function<std::string()> step_work(const Hub& hub, std::string_view path) {
  const std::shared_ptr<Watched> watched = watched_of(hub, path);
  const std::string_view text = step_of(path);
  std::int64_t number = -1;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ptr != text.data() + text.size() || number < 0) {
    throw ApiError(404, fmt::format("'{}' is no step; steps have numbers, from 0", excerpt(text)));
  }
  std::shared_ptr<const WatchedStep> step = watched->record->step_at(number);
  if (step == nullptr) {
    const WatchRecord::Progress progress = watched->record->progress();
    if (number >= progress.steps) {
      throw ApiError(404, fmt::format("step {} is not there: the request has made {}", number, progress.steps));
    }
    throw ApiError(404, fmt::format("step {} is not kept any more, the first that is: {}; --watch-memory is what a "
                                    "request's steps may take",
                                    number, progress.first_step))
        .coded("step_dropped");
  }
  return [step = std::move(step), record = watched->record] { return step_json(*step, record->request().shape); };
}

HttpAnswer answer_now(Hub& hub, Route route, const HttpHead& head) {
  switch (route) {
    case Route::health:
      return {200, "application/json", health(hub), {}};
    case Route::models:
      return {200, "application/json", models_json(hub.loaded()), {}};
    case Route::one_model:
      return {200, "application/json", model_json(hub.loaded(), model_of(head.path())), {}};
    case Route::props:
      return {200, "application/json", props_json(hub.loaded(), hub.options), {}};
    case Route::tokenizer_info:
      return {200, "application/json", tokenizer_info_json(hub.loaded()), {}};
    case Route::metrics:
      return {200, std::string(kMetricsType), metrics(hub), {}};
    case Route::request_events:  // of HEAD
      watched_of(hub, head.path());
      viewer_wish(head.target);
      return {200, "text/event-stream", {}, {}};
    case Route::page:
      return microscope_file(head.path());
    case Route::list_requests:
      return {200, "application/json", live_json(hub), {}};
    default:
      return {200, "application/json", cancelled_json(hub, head.path()), {}};
  }
}

std::function<std::string()> text_work(const Hub& hub, Route route, std::string body) {
  const auto make = route == Route::tokenize     ? tokenize_json
                    : route == Route::detokenize ? detokenize_json
                                                 : template_json;
  return [make, &backend = hub.loaded(), &limits = hub.options.limits, body = std::move(body)] {
    return make(body, backend, limits);
  };
}

std::shared_ptr<Answer> submit(Hub& hub, Prepared& prepared, const engine::Wake& wake) {
  const Backend& backend = hub.loaded();
  const std::int64_t most = hub.options.limits.waiting;
  const std::int64_t answers = std::ssize(prepared.requests) * prepared.choices;
  if (answers > most) {
    throw ApiError(400, fmt::format("the prompts and 'n' make {} answers, and "
                                    "{} may wait; ask for fewer",
                                    answers, most));
  }
  if (prepared.watch) hub.watched.require_room(hub.options.limits);
  AnswerHead head;
  head.id = hub.fresh_id(prepared.chat ? "chatcmpl" : "cmpl");
  head.model = backend.name;
  head.policy = prepared.policy;
  head.created = std::time(nullptr);
  head.chat = prepared.chat;
  head.include_usage = prepared.include_usage;
  head.return_progress = prepared.return_progress;
  head.choices = prepared.choices;
  head.ignored = std::move(prepared.ignored);
  head.logprobs = prepared.logprobs;
  head.tokenizer = &backend.tokenizer();
  head.echoed = std::move(prepared.echoed);
  head.watch = prepared.watch;
  head.parser = std::move(prepared.parser);
  std::vector<engine::Stream> streams;
  try {
    for (engine::Request& request : prepared.requests) {
      // Those that can begin together share one prefill of their prompt.
      const std::int64_t together = std::min<std::int64_t>(hub.options.running, most);
      for (std::int64_t left = prepared.choices; left > 0; left -= together) {
        const auto count = static_cast<int>(std::min(left, together));
        auto some = backend.service.submit(request, count, wake, prepared.watch);
        std::move(some.begin(), some.end(), std::back_inserter(streams));
        request.sampling.seed += static_cast<std::uint32_t>(count);
      }
    }
  } catch (const engine::QueueFull&) {
    throw ApiError(429, fmt::format("{} requests may wait, and as many do; try again later", most));
  } catch (const UserError& error) {
    throw ApiError(500, error.what());
  }
  auto answer = std::make_shared<Answer>(std::move(head), std::move(streams));
  hub.live[answer->head().id] = answer;
  if (prepared.watch) hub.watched.add(answer->head().id, prepared.watch, hub.options.limits);
  return answer;
}

bool collect(Hub& hub, Answer& answer) {
  const bool any = answer.collect();
  if (answer.head().watch) hub.watched.wake_viewers(*answer.head().watch);
  const double seconds = engine::seconds_between(answer.submitted(), std::chrono::steady_clock::now());
  for (const engine::Result& result : answer.take_finished()) hub.totals.add(result, answer.head().policy, seconds);
  return any;
}

std::optional<ApiError> failure_of(const Hub& hub, const Answer& answer) {
  if (answer.failure()) return answer.failure();
  if (hub.stopping && !answer.ended()) return ApiError(503, "the server is stopping");
  return std::nullopt;
}

HttpAnswer answer_of(const ApiError& error, const HttpHead& head) {
  HttpAnswer answer{error.status, "application/json", error_json(error), {}};
  if (const int seconds = retry_after(error.status); seconds > 0) {
    answer.fields.emplace_back("Retry-After", fmt::format("{}", seconds));
  }
  if (error.status == 405) answer.fields.emplace_back("Allow", allowed_methods(head.path()));
  if (error.status == 401) answer.fields.emplace_back("WWW-Authenticate", "Bearer");
  return answer;
}

}  // namespace glimpse::server
