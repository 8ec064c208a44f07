// Where sequences live and run: the back end that is chosen for an engine, its cache and executor, and the tier for
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
  bool tier_in_memory = false;
  bool tier_open = false;
  bool bound_by_memory = false;  ///< the cache holds less than all sequences at full context
  bool bound_by_option = false;  ///< EngineOptions::cache_bytes says how much memory that is
};

/// Of options whose threads and context are set. The model outlives it. Throws UserError when memory is short.
Device open_backend(const LoadedModel& loaded, const EngineOptions& options);

/// Opens the tier for pages that wait, unless it is open: the CPU's is a file, a GPU's is memory of the host. Throws
/// UserError where the CPU finds no folder on a disk.
void open_tier(Device& device);

/// Throws UserError where memory has no room for so many tokens of one sequence, whatever else is in the cache.
void require_memory(const Device& device, std::int64_t length);

}  // namespace glimpse::engine
