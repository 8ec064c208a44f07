// The requests of an engine, from submit() to release(). One thread at a time, but for stop_soon(). Inside engine only.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>

#include "glimpse/engine/requests/active_request.h"
#include "glimpse/engine/runtime.h"

namespace glimpse::engine {

/// A chunk of a prompt that runs in slices of layers.
struct OpenChunk {
  ActiveRequest* request = nullptr;
  PassEntry entry;
  double seconds = 0;  ///< that it has run
};

struct Requests {
  explicit Requests(Runtime& served) : runtime(served) {}

  Runtime& runtime;
  std::map<RequestId, ActiveRequest> all;
  RequestId next_id = 1;
  std::mutex stops_mutex;                                         ///< of `stops` alone
  std::map<RequestId, std::shared_ptr<std::atomic<bool>>> stops;  ///< of the requests, for other threads
  std::int64_t steps = 0, preemptions = 0;                        ///< so far
  std::int64_t answered = 0;                                      ///< prompts that were there whole, so far
  OpenChunk open;                                                 ///< slices.h
  std::exception_ptr bug;                                         ///< that one request of the step showed
};

/// Throws UserError for an id that no request has.
ActiveRequest& find_request(Requests& requests, RequestId id);
/// Where a request's prompt comes from.
struct PromptSource {
  std::int64_t forgotten = 0;  ///< tokens that heads of the sequence it goes on from have forgotten, the mean
  RequestId leader = 0;        ///< the request whose prompt it waits for; 0: it prefills its own
};

/// submit().
RequestId add_request(Requests& requests, Request request, const PromptSource& from);
void forget_request(Requests& requests, RequestId id);
/// From any thread: the request's flag is up. Nothing for an id that is not there.
void stop_soon(Requests& requests, RequestId id);

}  // namespace glimpse::engine
