// The requests that are watched, and those that were: a few records are kept behind their requests' ends. The I/O
// thread alone.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/server/options.h"
#include "glimpse/server/watch_record.h"

namespace glimpse::server {

class Peer;

struct Watched {
  std::string id;
  std::shared_ptr<WatchRecord> record;
  std::set<Peer*> viewers;  ///< connections, each of which leaves before it ends
  std::int64_t steps = 0;   ///< of which viewers were woken
};

class WatchList {
 public:
  /// Throws ApiError 429 where as many as may be kept are running.
  void require_room(const Limits& limits) const;
  /// What ended first makes room, one without a viewer before the others.
  void add(std::string id, std::shared_ptr<WatchRecord> record, const Limits& limits);
  /// Null: it was not watched, or is not kept any more.
  std::shared_ptr<Watched> find(std::string_view id) const;
  /// Where there is a new step, or the end: a token is told with the step that follows it, in one write.
  void wake_viewers(const WatchRecord& of) const;
  std::int64_t viewers() const;

 private:
  std::vector<std::shared_ptr<Watched>> kept_;  ///< in the order of their begin
  std::vector<std::weak_ptr<Watched>> left_;    ///< not kept any more, and still viewed
};

}  // namespace glimpse::server
