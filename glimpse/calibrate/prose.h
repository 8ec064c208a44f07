// Prose to hide things in, made from lists of words, so that calibration needs no file. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace glimpse::calibrate {

/// So many English sentences in paragraphs, a function of the seed; none holds a digit or a name in capitals.
std::string generated_prose(int sentences, std::uint64_t seed);

}  // namespace glimpse::calibrate
