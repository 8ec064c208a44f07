// Reads the side file of SeerAttention-R's trained gates: a GGUF of its own (docs/gates.md has its keys and tensors),
// made for one model and checked against it. A pure function; any thread.
#pragma once

#include <filesystem>

#include "glimpse/base/gate_weights.h"
#include "glimpse/model/gguf.h"
#include "glimpse/model/model.h"

namespace glimpse::model {

/// Throws UserError naming the file and the first thing wrong: no GGUF, no gates, a version that is not known, gates of
/// a model of another shape or other angles, a tensor that is missing, has another shape or type, or holds what is no
/// number.
GateWeights read_gates(const std::filesystem::path& path, const Config& config);
GateWeights read_gates(const GgufFile& file, const Config& config);

}  // namespace glimpse::model
