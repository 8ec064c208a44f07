#include "glimpse/engine/runtime.h"

#include <fmt/format.h>

#include <string>

#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/base/machine_cores.h"

namespace glimpse::engine {
namespace {

constexpr std::int64_t kMostContext = std::int64_t{1} << 24;
constexpr int kMostThreads = 512;

int checked_threads(int wanted) {
  if (wanted < 0 || wanted > kMostThreads) {
    throw UserError(fmt::format("{} threads; give -t a number from 1 to {}", wanted, kMostThreads));
  }
  return thread_count(wanted);
}

std::int64_t checked_context(std::int64_t wanted, const model::Config& config) {
  if (wanted < 0 || wanted > kMostContext) {
    throw UserError(fmt::format("a context of {} tokens; give -c a number from 1 to {}", wanted, kMostContext));
  }
  if (wanted > config.context) {
    log_message(LogLevel::warning, fmt::format("a context of {} tokens: the model was made for {}, and answers get "
                                               "worse beyond",
                                               wanted, config.context));
  }
  return wanted > 0 ? wanted : config.context;
}

EngineOptions checked(const EngineOptions& wanted, const LoadedModel& loaded) {
  EngineOptions options = wanted;
  options.threads = checked_threads(wanted.threads);
  options.context = checked_context(wanted.context, loaded.model.config());
  if (options.prefill_chunk < 1) throw UserError("the prefill chunk needs at least one row");
  if (options.step_tokens < 0) {
    throw UserError(fmt::format("{} tokens of a step: give 1 or more, or 0 for as many as a prefill chunk has",
                                options.step_tokens));
  }
  if (!(options.slice_seconds >= 0)) {
    throw UserError(fmt::format("slices of {} s: give 0 or more, 0 for whole chunks", options.slice_seconds));
  }
  if (options.prefix_bytes < -1) {
    throw UserError(
        fmt::format("{} bytes of kept prefixes: give 0 or more, or -1 for as many as the cache has room for",
                    options.prefix_bytes));
  }
  if (!options.prefix_folder.empty() && options.prefix_bytes == 0) {
    throw UserError("a folder for kept prefixes, and none are kept; set prefix_bytes, or leave the folder out");
  }
  if (options.prefix_piece_bytes < 1) {
    throw UserError(fmt::format("pieces of {} bytes of a kept prefix: give 1 or more", options.prefix_piece_bytes));
  }
  require_one_vocabulary(loaded);
  return options;
}

}  // namespace

Runtime::Runtime(const EngineOptions& wanted)
    : loaded(wanted.model),
      options(checked(wanted, loaded)),
      device(open_backend(loaded, options)),
      passes(loaded, device),
      sliced(loaded, device),
      prefixes(options.prefix_bytes),
      store(options, loaded, cache()) {
  if (options.slice_seconds > 0 && !device.executor->slices()) {
    throw UserError(
        "slices of layers (--slice-ms) run on the CPU alone; on a GPU give --prefill-chunk, how many rows of a "
        "prompt a stream waits for");
  }
  if (!store.on()) return;
  prefixes.on_evict([this](const KeptPrefix& prefix) { store.save(prefix, cache(), programs.gates); });
  prefixes.on_drop([this](const KeptPrefix& prefix) { store.leave(prefix); });
}

Runtime::~Runtime() {
  for (const KeptPrefix& prefix : prefixes.all()) store.save(prefix, cache(), programs.gates);
}

Busy::Busy(Runtime& runtime, std::string_view call) : flag_(runtime.busy) {
  if (flag_)
    throw UserError(std::string(call) + " was called from a callback of the engine; call it when that returned");
  flag_ = true;
}

}  // namespace glimpse::engine
