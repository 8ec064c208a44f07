// The model that the sessions of session_seeds and session_fuzzer belong to. Constants; any thread.
#pragma once

#include "glimpse/engine/session/content.h"

namespace glimpse::engine {

inline SessionModel fuzzed_model() {
  return {0x5eed, {"llama", "seed", 4, 4, 2, 8, 4096}, 64, {KvType::bf16, 8}};
}
inline constexpr std::int64_t kFuzzedTokens = 1024;  ///< that its cache holds

}  // namespace glimpse::engine
