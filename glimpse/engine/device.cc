#include "glimpse/engine/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "glimpse/base/disk_folder.h"
#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/base/printable.h"

namespace glimpse::engine {
namespace {

/// K and V of one token in all layers and heads.
std::int64_t token_bytes(const kv::CacheShape& shape) {
  return static_cast<std::int64_t>(2 * shape.format.read_bytes()) * shape.layers * shape.kv_heads;
}

/// The first cure where the cache is too small; empty where the machine's memory says how small.
std::string_view more_memory(const Device& device) {
  return device.bound_by_option ? "give the cache more memory (--cache-mib), " : "";
}

}  // namespace

Device open_backend(const LoadedModel& loaded, const EngineOptions& options) {
  const model::Config& config = loaded.model.config();
  Device device;
  device.tier_folder = options.tier_folder;
  if (options.device.kind == DeviceName::Kind::cuda) {
    device.tier_in_memory = true;
    const int most_rows = std::max(options.prefill_chunk, options.step_tokens);
    device.backend =
        exec::make_cuda_backend(loaded.model, {options.device.number, options.threads, options.kv_type, most_rows});
  } else {
    device.backend = exec::make_cpu_backend(loaded.model, {options.threads});
  }
  kv::CacheShape shape;
  shape.layers = config.layers;
  shape.kv_heads = config.kv_heads;
  shape.format = {options.kv_type, config.head_dim};
  // Every sequence reserves whole runs of pages.
  constexpr std::int64_t run = kv::kRunPages * kernels::kPageTokens;
  shape.capacity_tokens = (options.context + run - 1) / run * run * std::max(1, options.sequences);
  std::optional<std::int64_t> bytes = device.backend->cache_memory(static_cast<std::int64_t>(loaded.weight_bytes));
  device.bound_by_option = options.cache_bytes > 0;
  if (device.bound_by_option) bytes = options.cache_bytes;
  if (bytes) {
    const std::int64_t fit = std::max<std::int64_t>(*bytes / token_bytes(shape) / run, 1) * run;
    device.bound_by_memory = fit < shape.capacity_tokens;
    shape.capacity_tokens = std::min(shape.capacity_tokens, fit);
  }
  if (device.bound_by_memory) {
    shape.cure = fmt::format("memory holds no more; {}shorten the text, run fewer at once or take a smaller --kv-type",
                             more_memory(device));
  }
  device.backend->open(shape);
  device.cache = &device.backend->cache();
  device.executor = &device.backend->executor();
  return device;
}

void open_tier(Device& device) {
  if (device.tier_open) return;
  if (device.tier_in_memory) {
    device.cache->open_tier({});
    device.tier_open = true;
    return;
  }
  static const std::array<std::filesystem::path, 2> kDefaults{"/var/tmp", "/tmp"};
  std::filesystem::path folder = device.tier_folder;
  if (folder.empty()) {
    folder = disk_folder(kDefaults);
    if (folder.empty()) {
      throw UserError(
          fmt::format("cold pages of the KV cache need a folder on a disk; '{}' and '{}' are missing, closed or in "
                      "memory; give one with --kv-tier-dir",
                      kDefaults[0].string(), kDefaults[1].string()));
    }
  }
  device.cache->open_tier(folder);
  device.tier_open = true;
  const std::string_view kind = memory_file_system(folder);
  if (!kind.empty()) {
    log_message(LogLevel::warning,
                fmt::format("--kv-tier-dir '{}' is in memory ({}): cold pages take memory there too; "
                            "give a folder on a disk",
                            folder.string(), kind));
  }
}

void require_memory(const Device& device, std::int64_t length) {
  const kv::CacheShape& shape = device.cache->shape();
  if (!device.bound_by_memory || length <= shape.capacity_tokens) return;
  const auto per_token = static_cast<double>(token_bytes(shape));
  throw UserError(fmt::format(
      "{} tokens need {} of KV cache in {}, and memory has room for {} ({} tokens); {}shorten the text "
      "or take a smaller --kv-type",
      length, bytes_text(static_cast<double>(length) * per_token), name(shape.format.type),
      bytes_text(static_cast<double>(shape.capacity_tokens) * per_token), shape.capacity_tokens, more_memory(device)));
}

}  // namespace glimpse::engine
