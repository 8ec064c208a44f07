// Where sequences live and run: the back end that is chosen for an engine, its cache and executor, and the file for
// pages that wait. One thread at a time. Inside engine only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "glimpse/engine/loaded_model.h"
#include "glimpse/engine/options.h"
#include "glimpse/exec/backend.h"
#include "glimpse/kv/cache.h"

namespace glimpse::engine {

struct Device {
  std::unique_ptr<exec::Backend> backend;
  kv::Cache* cache = nullptr;          ///< the back end's
  exec::Executor* executor = nullptr;  ///< the back end's
  std::filesystem::path tier_folder;   ///< as EngineOptions names it
  bool tier_open = false;
  bool bound_by_memory = false;  ///< the cache holds less than all sequences at full context
};

/// Of options whose threads and context are set. The model outlives it. Throws UserError when memory is short.
Device open_backend(const LoadedModel& loaded, const EngineOptions& options);

/// Opens the file for pages that wait, unless it is open. Throws UserError where no folder on a disk is found.
void open_tier(Device& device);

/// Throws UserError where memory has no room for so many tokens of one sequence, whatever else is in the cache.
void require_memory(const Device& device, std::int64_t length);

}  // namespace glimpse::engine
