// Which requests take part in the next pass, which one begins, and whose pages are taken back when they do not fit. A
// pure function of numbers: no tensors, no clock. Any thread.
//
// Requests begin in the order in which they came, so those that run are always the first ones. Whoever begins finds
// room for its whole prompt beside what the others' prompts still take. When a pass does not fit, the newest one that
// holds pages gives them back; the oldest never does, so something always gets on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace glimpse::engine {

/// A request that has not ended. Pages are those of all layers and KV heads together.
struct Job {
  enum class Phase : std::uint8_t { waiting, prefill, decode } phase = Phase::waiting;
  int rows = 1;             ///< that it has in the next pass
  std::int64_t pages = 0;   ///< running: that those rows take
  std::int64_t ahead = 0;   ///< not decoding: that it takes until its prompt is in
  bool holds = false;       ///< has pages, which it can give back
  bool open = false;        ///< prefill: its chunk runs already
  std::int64_t served = 0;  ///< prefill: the step of its last chunk, or the one in which it began
};

struct Room {
  std::int64_t free_pages = 0;
  std::int64_t answer_pages = 0;  ///< one a head: left to each that runs when another begins
  int step_rows = 1;              ///< of a pass: chunks of prompts fill what decoding leaves of it
  bool admits = true;             ///< false: nobody begins beside others; somebody had to give pages back in this step
};

/// One thing to do. Whoever was told to preempt or begin does that and asks again.
struct Schedule {
  std::optional<std::size_t> preempt, begin;
  std::vector<std::size_t> decode;  ///< by arrival
  std::vector<std::size_t>
      prefill;        ///< the one served longest ago first; it goes even where its chunk is over step_rows
  bool full = false;  ///< the pass does not fit, and nobody but the oldest holds pages
};

/// `jobs` by arrival.
Schedule schedule(std::span<const Job> jobs, const Room& room);

}  // namespace glimpse::engine
