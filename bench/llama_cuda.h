// llama.cpp's decoding beside ours, on the same model file and the same GPU: its llama-batched-bench with flash
// attention and CUDA graphs (scripts/build-llama-cuda), in a process of its own. One thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace glimpse::bench {

struct LlamaSpeed {
  int batch = 1;         ///< sequences
  double step_s = 0;     ///< a decoded token of each sequence, logits in the host's memory; the median of the runs
  double prefill_s = 0;  ///< of all prompts
};

/// Of prompts of `depth` tokens, as many at a time as `batches` says. Throws UserError when the program does not run or
/// prints no result for one of them, with the end of what it printed.
std::vector<LlamaSpeed> measure_llama(const std::filesystem::path& program, const std::filesystem::path& model,
                                      std::span<const int> batches, std::int64_t depth);

}  // namespace glimpse::bench
