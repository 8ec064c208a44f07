// Random gates of SeerAttention-R: as a side file for the engine, and as numbers for the transcription. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "glimpse/policies/policy.h"
#include "tests/model/gguf_builder.h"
#include "tests/reference/methods.h"

namespace glimpse::engine {

struct GateRecipe {
  int dim = 32;
  int rope_dims = 32;
  bool normed = true;
  std::uint32_t type = 0;  ///< of the matrices, in ggml's numbers: 0 F32, 1 F16, 30 BF16
  int block = 64;
  std::uint64_t seed = 1;
};

struct MadeGates {
  model::GgufBuilder file;
  std::vector<methods::Gate> heads;  ///< [layer * kv_heads + head]
};

/// For the model of this file.
MadeGates make_gates(const std::filesystem::path& model, const GateRecipe& recipe);
/// Writes it where tests may; removed when the program ends.
std::string write_gates(const model::GgufBuilder& file);
/// Gates of the model by the usual recipe, made once.
const std::string& gates_of(const std::filesystem::path& model);
/// What the policy is refused without, for this model.
void add_needed(const std::string& policy, const std::filesystem::path& model, policies::PolicyOptions& options);

}  // namespace glimpse::engine
