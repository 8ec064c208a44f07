// A number by which a model's file is known again: sessions and profiles belong to it. A pure function; any thread.
#pragma once

#include <cstdint>

#include "glimpse/model/gguf.h"

namespace glimpse::model {

/// Over all of the metadata, and of every tensor its name, type, shape and three samples of its bytes: two models that
/// differ in training or in quantisation have two. Reads some bytes of every tensor, from disk where they are not in
/// memory yet.
std::uint64_t fingerprint(const GgufFile& file);

}  // namespace glimpse::model
