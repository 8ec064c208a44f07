// What a viewer of a watched request is sent, and the full sets of one step, both as JSON. docs/microscope.md has the
// format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/server/watch_record.h"

namespace glimpse::server {

/// What a viewer asks for: the query of /v1/requests/ID/events.
struct ViewerWish {
  static constexpr std::int64_t kFewestBins = 16, kMostBins = 4096;
  std::int64_t bins = 512;  ///< columns of the map
  std::int64_t from = 0;    ///< the first step
};
/// Of "/v1/requests/ID/events?bins=256&from=3". Throws ApiError 400.
ViewerWish viewer_wish(std::string_view target);

/// One viewer's way through a record, which is what bounds it: a viewer holds a place and the digits that it was sent
/// last, and steps that are dropped before it comes to them are lost to it, counted. One thread.
class Viewer {
 public:
  Viewer(std::string id, std::shared_ptr<const WatchRecord> record, ViewerWish wish);

  /// Server-sent events of what is there and was not sent, some `kMost` bytes of them: to be called until it gives
  /// none. The last ones are the end and "[DONE]".
  std::string events();
  bool ended() const { return ended_; }
  static constexpr std::size_t kMost = 128 << 10;

 private:
  std::string header() const;
  std::string prompt();
  std::string step(const WatchedStep& step);

  const std::string id_;
  const std::shared_ptr<const WatchRecord> record_;
  const ViewerWish wish_;
  bool began_ = false, ended_ = false;
  std::int64_t prompt_sent_ = 0, tokens_sent_ = 0;
  std::int64_t next_, lost_ = 0;
  std::int64_t width_ = 0;          ///< of the bins of cells_
  std::vector<std::string> cells_;  ///< [layer, kv_head] digits that were sent
};

/// The step as a trace has it (docs/tracing.md): its bytes, and `heads` as the lines of a trace.
std::string step_json(const WatchedStep& step, const plan::ModelShape& shape);

}  // namespace glimpse::server
