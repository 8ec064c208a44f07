// Prose to hide things in, made from lists of words, so that calibration and evaluation need no file. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "glimpse/evaluate/tasks/random.h"

namespace glimpse::evaluate {

/// So many English sentences in paragraphs, a function of the seed; none holds a digit or a name in capitals.
std::string generated_prose(int sentences, std::uint64_t seed);

/// One of them.
std::string generated_sentence(Random& random);

}  // namespace glimpse::evaluate
