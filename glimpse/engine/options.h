// What an Engine is made with. A value; any thread.
#pragma once

#include <cstdint>
#include <filesystem>

#include "glimpse/base/device_name.h"
#include "glimpse/base/dtype.h"

namespace glimpse::engine {

/// What measured best at no visible loss: bf16 widens to float with one shift, and its 8 bits of mantissa move the
/// logits less than 8-bit weights do (docs/benchmarks.md).
inline constexpr KvType kDefaultKvType = KvType::bf16;

/// Of a prompt's chunk between two tokens of the answers that stream, in a server on the CPU.
inline constexpr double kServedSliceSeconds = 0.1;

struct EngineOptions {
  std::filesystem::path model;
  std::int64_t context = 0;  ///< tokens of one sequence; 0: as many as the model was made for
  int sequences = 1;         ///< sequences that the cache has room for at full context, as far as memory goes
  int threads = 0;           ///< 0: one for each physical core that the process may use
  DeviceName device;         ///< where sequences lie and passes run
  KvType kv_type = kDefaultKvType;
  std::int64_t cache_bytes = 0;  ///< that K and V may grow to at most; 0: what the weights leave of available memory
                                 ///< (indices and low-rank keys come beside it)
  int prefill_chunk = 512;       ///< prompt rows of one request in a forward pass
  int step_tokens = 0;  ///< rows of a step: of all that decode, then chunks of prompts, in turn, as many as fit
                        ///< and at least one; 0: prefill_chunk
  /// While others decode, a chunk of a prompt runs alone in its pass, and as many layers at a time as end within so
  /// many seconds, at least one, with a step of theirs between; its bits are those of a pass of its own. 0: a chunk is
  /// one pass, with the rows of those that decode. On the CPU.
  double slice_seconds = 0;
  /// Bytes of K, V and state that may be kept of requests that have ended, for later ones whose prompts begin alike; a
  /// kept prefix gives way before a request waits for pages, the one used longest ago first. 0: none are kept; -1: as
  /// many as the cache has room for.
  std::int64_t prefix_bytes = 0;
  /// Where kept prefixes that give way are written, and all of them at the engine's end: one of the same model that is
  /// made with this folder finds them. At most so many bytes lie there, the oldest file goes first. Empty: nowhere.
  std::filesystem::path prefix_folder;
  std::int64_t prefix_folder_bytes = std::int64_t{16} << 30;
  /// Of what gives way next, before it does: a pass waits while so much is written.
  std::int64_t prefix_piece_bytes = std::int64_t{8} << 20;
  /// Of the file where plans with a host tier keep cold pages, and preempted requests theirs. Empty: /var/tmp, or /tmp
  /// where only that is on a disk. A GPU's wait in the host's memory, and no folder is looked at.
  std::filesystem::path tier_folder;
};

}  // namespace glimpse::engine
