#include "glimpse/server/watch_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "glimpse/server/api_error.h"
#include "glimpse/server/hub.h"

namespace glimpse::server {
namespace {

bool ended(const std::shared_ptr<Watched>& watched) {
  return watched->record->progress().reason.has_value();
}

}  // namespace

void WatchList::require_room(const Limits& limits) const {
  if (std::count_if(kept_.begin(), kept_.end(), [](const auto& each) { return !ended(each); }) < limits.watched) return;
  throw ApiError(429, fmt::format("{} watched requests run, as many as --max-watched allows; try again when one has "
                                  "ended, or leave out 'attention.watch'",
                                  limits.watched));
}

void WatchList::add(std::string id, std::shared_ptr<WatchRecord> record, const Limits& limits) {
  std::erase_if(left_, [](const auto& each) { return each.expired(); });
  while (std::ssize(kept_) >= limits.watched) {
    auto out =
        std::find_if(kept_.begin(), kept_.end(), [](const auto& each) { return ended(each) && each->viewers.empty(); });
    if (out == kept_.end()) out = std::find_if(kept_.begin(), kept_.end(), ended);
    if (out == kept_.end()) break;
    if (!(*out)->viewers.empty()) left_.push_back(*out);
    kept_.erase(out);
  }
  kept_.push_back(std::make_shared<Watched>(Watched{std::move(id), std::move(record), {}, 0}));
}

std::shared_ptr<Watched> WatchList::find(std::string_view id) const {
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& each) { return each->id == id; });
  return found == kept_.end() ? nullptr : *found;
}

void WatchList::wake_viewers(const WatchRecord& of) const {
  for (const auto& each : kept_) {
    if (each->record.get() != &of) continue;
    const WatchRecord::Progress progress = of.progress();
    if (std::exchange(each->steps, progress.steps) == progress.steps && !progress.reason) continue;
    for (Peer* viewer : each->viewers) viewer->wake();
  }
}

std::int64_t WatchList::viewers() const {
  std::int64_t count = 0;
  for (const auto& each : kept_) count += std::ssize(each->viewers);
  for (const auto& each : left_) {
    if (const auto watched = each.lock()) count += std::ssize(watched->viewers);
  }
  return count;
}

}  // namespace glimpse::server
