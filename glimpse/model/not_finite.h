// Looks for NaN and infinity in the weights of a model: what a damaged file may hold. Any thread.
#pragma once

#include <optional>
#include <string>

#include "glimpse/model/gguf.h"

namespace glimpse::model {

/// Says which value of which tensor is not finite, the first in the order of names; none: all are. Reads every weight.
std::optional<std::string> first_not_finite(const GgufFile& file);

}  // namespace glimpse::model
