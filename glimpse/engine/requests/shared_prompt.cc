#include "glimpse/engine/requests/shared_prompt.h"

#include <algorithm>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/engine/fork.h"
#include "glimpse/engine/requests/decode_plain.h"
#include "glimpse/engine/requests/finish.h"

namespace glimpse::engine {
namespace {

bool same_prompt(const Request& a, const Request& b) {
  return a.prompt == b.prompt && a.plan == b.plan && a.lossless == b.lossless && a.session == b.session &&
         a.prompt_logprobs == b.prompt_logprobs;
}

void take_prompt(Requests& requests, const ActiveRequest& leader, ActiveRequest& follower) {
  Runtime& runtime = requests.runtime;
  follower.sequence =
      forked(*leader.sequence, follower.request.plan, leader.sequence->length, runtime.programs, runtime.cache());
  follower.sequence->on_sets = follower.request.on_sets;
  follower.phase = Phase::decode;
  follower.begun = leader.begun;
  follower.running = leader.running;
  follower.served = requests.steps;
  follower.prefilled = leader.prefilled;
  RequestStats& stats = follower.result.stats;
  if (follower.running) stats.waited_s += seconds_since(follower.waits_since);
  stats.first_chunk_s = leader.result.stats.first_chunk_s;
  stats.reused_tokens = follower.prefilled;
  follower.result.prompt_logprobs = leader.result.prompt_logprobs;
}

}  // namespace

std::vector<RequestId> add_together(Requests& requests, std::vector<Request> wanted) {
  if (wanted.empty()) throw UserError("no request to submit: give at least one");
  if (!std::all_of(wanted.begin(), wanted.end(), [&](const Request& each) { return same_prompt(each, wanted[0]); })) {
    throw UserError(
        "requests that share a prompt differ in what is done with it: give all the same prompt, plan, lossless, "
        "session and prompt_logprobs");
  }
  std::vector<RequestId> ids;
  ids.reserve(wanted.size());
  try {
    for (Request& each : wanted)
      ids.push_back(add_request(requests, std::move(each), {.leader = ids.empty() ? 0 : ids[0]}));
  } catch (...) {
    for (const RequestId id : ids) {
      ActiveRequest& added = find_request(requests, id);
      if (added.sequence) close_sequence(requests.runtime.cache(), *added.sequence);
      forget_request(requests, id);
    }
    throw;
  }
  return ids;
}

void lead_on(Requests& requests) {
  for (auto& [id, request] : requests.all) {
    if (!follows(request)) continue;
    const auto leader = requests.all.find(request.leader);
    if (leader != requests.all.end() && leader->second.phase != Phase::done) continue;
    for (auto& [other_id, other] : requests.all) {
      if (other_id != id && follows(other) && other.leader == request.leader) other.leader = id;
    }
    request.leader = 0;
    request.load_later = request.request.session.has_value();
  }
}

void share_prompt(Requests& requests, ActiveRequest& leader) {
  for (auto& [id, request] : requests.all) {
    if (!follows(request) || request.leader != leader.id) continue;
    try {
      take_prompt(requests, leader, request);
    } catch (...) {
      fail_live(requests, request, std::current_exception());
    }
  }
}

void answer_followers(Requests& requests, RequestId leader, std::span<const float> logits) {
  for (auto& [id, request] : requests.all) {
    if (request.leader != leader || request.phase != Phase::decode) continue;
    request.leader = 0;
    try {
      if (request.request.on_prefill) request.request.on_prefill(request.prefilled, request.prefilled);
      if (request.phase == Phase::decode) take_logits(requests.runtime, request, logits);  // else cancelled
    } catch (...) {
      fail_live(requests, request, std::current_exception());
    }
  }
}

}  // namespace glimpse::engine
