// llama.cpp's decoding beside ours, on the same model file and the same GPU: its llama-batched-bench with flash
// attention and CUDA graphs (scripts/build-llama-cuda), in a process of its own. One thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>

namespace glimpse::bench {

struct LlamaSpeed {
  double step_s = 0;     ///< a decoded token of each sequence, logits in the host's memory; the median of the runs
  double prefill_s = 0;  ///< of all prompts
};

struct LlamaCase {
  int batch = 1;           ///< sequences
  std::int64_t depth = 0;  ///< tokens of each prompt
};

/// Throws UserError when the program does not run or prints no result, with the end of what it printed.
LlamaSpeed measure_llama(const std::filesystem::path& program, const std::filesystem::path& model,
                         const LlamaCase& what);

}  // namespace glimpse::bench
