// Parses the bytes of one GGUF file, version 2 or 3, little-endian. Trusts nothing: each count, length, type, offset
// and alignment is checked against the bytes that are there. Results point into `bytes`. Any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "glimpse/base/metadata.h"
#include "glimpse/model/gguf.h"

namespace glimpse::model {

struct GgufPart {
  Metadata metadata;
  std::vector<TensorInfo> tensors;  ///< in the file's order
};

/// Throws UserError naming `label`.
GgufPart read_gguf(std::span<const std::byte> bytes, const std::string& label);

}  // namespace glimpse::model
