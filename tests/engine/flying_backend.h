// A device that queues passes, for tests without one: the CPU's back end behind exec::make_cuda_backend. A pass is
// computed when it is launched, and what it gave is handed out when it is collected; what a batch may ask for is held
// against the contract of exec::Executor::launch().
#pragma once

#include <cstdint>

namespace glimpse::engine {

struct Flying {
  std::int64_t launched = 0;       ///< passes
  std::int64_t behind = 0;         ///< of them behind one that ran
  std::int64_t abandoned = 0;      ///< passes that nobody will collect
  std::int64_t fail_collect = -1;  ///< so many more are collected before one throws; -1: none does
  std::int64_t spoil = -1;         ///< so many more are collected before the first row of one is not finite
  std::int64_t misdraw = -1;       ///< so many more tokens are drawn for a pass behind before one that nobody draws
};
/// Of all such devices; tests begin by setting it to {}.
Flying& flying();

}  // namespace glimpse::engine
