#include "glimpse/engine/requests/requests.h"

#include <fmt/format.h>

#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/engine/requests/checks.h"
#include "glimpse/engine/requests/prompt_start.h"

namespace glimpse::engine {

ActiveRequest& find_request(Requests& requests, RequestId id) {
  const auto found = requests.all.find(id);
  if (found != requests.all.end()) return found->second;
  const bool gone = id > 0 && id < requests.next_id;
  throw UserError(
      fmt::format("there is no request {}: {}", id, gone ? "it has been released" : "submit() never gave that id"));
}

RequestId add_request(Requests& requests, Request request, const PromptSource& from) {
  if (requests.runtime.passes.is_running()) {
    throw UserError("Engine::submit was called from on_sets; call it when the step has returned");
  }
  check_request(requests.runtime, request, from.forgotten);
  if (request.grammar.grammar) text::GrammarFollower{request.grammar};  // throws before anything is there
  const RequestId id = requests.next_id++;
  ActiveRequest& active = requests.all.emplace(id, ActiveRequest(std::move(request))).first->second;
  active.id = id;
  active.leader = from.leader;
  {
    const std::scoped_lock lock(requests.stops_mutex);
    requests.stops.emplace(id, active.stop);
  }
  active.result.stats.prompt_tokens = static_cast<std::int64_t>(active.request.prompt.size());
  active.sampler.accept_prompt(active.request.prompt);
  const std::vector<Token>& ends = requests.runtime.loaded.end_tokens;
  if (!active.request.ignore_end) active.sampler.ban(ends, active.request.min_tokens);
  if (active.request.grammar.grammar) {
    active.sampler.constrain(active.request.grammar, active.request.ignore_end ? std::span<const Token>() : ends);
  }
  if (active.request.lossless) {
    active.drafting.emplace();
    active.drafting->length = DraftLength(active.request.draft_tokens);
    active.drafting->random.seed(active.request.sampling.seed);
  }
  if (active.request.session && from.leader == 0) {
    try {
      load_session(requests.runtime, active);
    } catch (const kv::CacheFull&) {
      active.load_later = true;
    } catch (...) {
      forget_request(requests, id);
      throw;
    }
  }
  return id;
}

void forget_request(Requests& requests, RequestId id) {
  requests.all.erase(id);
  const std::scoped_lock lock(requests.stops_mutex);
  requests.stops.erase(id);
}

void stop_soon(Requests& requests, RequestId id) {
  const std::scoped_lock lock(requests.stops_mutex);
  const auto found = requests.stops.find(id);
  if (found != requests.stops.end()) found->second->store(true, std::memory_order_relaxed);
}

}  // namespace glimpse::engine
