// One request from submit() to release(), and what has come of it. One thread at a time; `stop` from any. Inside engine
// only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "glimpse/engine/active_sequence.h"
#include "glimpse/engine/request.h"
#include "glimpse/engine/requests/answer_text.h"
#include "glimpse/engine/requests/drafting.h"
#include "glimpse/text/sampler.h"

namespace glimpse::engine {

enum class Phase : std::uint8_t { prefill, decode, done };

struct ActiveRequest {
  RequestId id = 0;
  RequestId leader = 0;  ///< the request whose prompt it waits for (shared_prompt.h); 0: none
  Request request;
  std::optional<ActiveSequence> sequence;  ///< empty before its first chunk and after the end
  text::Sampler sampler;
  Phase phase = Phase::prefill;
  bool begun = false;        ///< has been running
  bool running = false;      ///< takes part in passes; else it waits for pages
  bool open = false;         ///< its chunk runs in slices (slices.h)
  bool away = false;         ///< the sequence's pages are in the tier
  bool handed_over = false;  ///< the sequence was the caller's, so that its rows cannot be had again
  bool from_prefix = false;  ///< the sequence is a fork of what others left behind
  bool load_later = false;   ///< its session is read when it begins
  std::int64_t served = 0;   ///< the step of its last chunk, or the one in which it began
  std::int64_t prefilled = 0;
  Token next = -1;               ///< sampled, not yet fed
  std::int64_t uncorrected = 0;  ///< decoded since the last correction
  std::optional<Drafting> drafting;
  bool cancelled = false;                                                                ///< asked for while a pass ran
  std::shared_ptr<std::atomic<bool>> stop = std::make_shared<std::atomic<bool>>(false);  ///< cancel_soon
  AnswerText text;
  bool handing_out = false;  ///< a callback has tokens or text of the answer
  std::chrono::steady_clock::time_point submitted = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point waits_since = submitted;  ///< unless running
  Result result;

  explicit ActiveRequest(Request wanted)
      : request(std::move(wanted)), sampler(request.sampling), text(request.stop, request.min_tokens) {}
};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Its pages are in the cache again, where it has some elsewhere. Throws CacheFull.
inline void bring_back(kv::Cache& cache, ActiveRequest& request) {
  if (!request.away) return;
  cache.bring_back(request.sequence->id);
  request.away = false;
}

}  // namespace glimpse::engine
