#include "glimpse/engine/requests/scheduler.h"

#include <algorithm>
#include <tuple>

namespace glimpse::engine {
namespace {

using Phase = Job::Phase;

/// The newest behind `first` that holds pages.
std::optional<std::size_t> newest_holder(std::span<const Job> jobs, std::size_t first) {
  for (std::size_t i = jobs.size(); i > first + 1; --i) {
    if (jobs[i - 1].holds) return i - 1;
  }
  return std::nullopt;
}

/// Says who begins, or who makes room for it.
void admit(std::span<const Job> jobs, const Room& room, Schedule& out) {
  const auto waiting =
      std::find_if(jobs.begin(), jobs.end(), [](const Job& job) { return job.phase == Phase::waiting; });
  if (waiting == jobs.end()) return;
  const auto first = static_cast<std::size_t>(waiting - jobs.begin());
  std::int64_t promised = 0;
  bool running = false;
  for (const Job& job : jobs) {
    if (job.phase == Phase::waiting) continue;
    running = true;
    promised += job.phase == Phase::prefill ? job.ahead + room.answer_pages : std::max(job.pages, room.answer_pages);
  }
  if (running) {
    if (room.admits && promised + waiting->ahead + room.answer_pages <= room.free_pages) out.begin = first;
    return;
  }
  // Alone it begins in any case: if it does not fit, its pass says so.
  if (waiting->ahead > room.free_pages) out.preempt = newest_holder(jobs, first);
  if (!out.preempt) out.begin = first;
}

void add_chunks(std::span<const Job> jobs, const Room& room, Schedule& out) {
  std::int64_t pages = room.free_pages;
  std::int64_t rows = room.step_rows;
  for (const std::size_t i : out.decode) {
    pages -= jobs[i].pages;
    rows -= jobs[i].rows;
  }
  std::vector<std::size_t> turns;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].phase == Phase::prefill && !jobs[i].open) turns.push_back(i);
  }
  std::sort(turns.begin(), turns.end(),
            [&](std::size_t a, std::size_t b) { return std::tie(jobs[a].served, a) < std::tie(jobs[b].served, b); });
  for (const std::size_t i : turns) {
    if (!out.prefill.empty() && jobs[i].rows > rows) continue;
    if (jobs[i].pages > pages) {
      out.preempt = newest_holder(jobs, i);
      if (out.preempt) return;
      if (i > 0) continue;  // older ones go first and give room when they end
      out.full = true;
    }
    out.prefill.push_back(i);
    pages -= jobs[i].pages;
    rows -= jobs[i].rows;
  }
}

}  // namespace

Schedule schedule(std::span<const Job> jobs, const Room& room) {
  Schedule out;
  std::int64_t pages = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].phase != Phase::decode) continue;
    out.decode.push_back(i);
    pages += jobs[i].pages;
  }
  if (pages > room.free_pages) {
    out.preempt = newest_holder(jobs, 0);
    out.full = !out.preempt;
    return out;
  }
  admit(jobs, room, out);
  if (!out.preempt && !out.begin) add_chunks(jobs, room, out);
  return out;
}

}  // namespace glimpse::engine
