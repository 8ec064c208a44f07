// Chat templates for the tests and the fuzzer: those of models in use, and those that loop, grow or recurse without
// end.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace glimpse::text::testing {

struct NamedTemplate {
  std::string name, source;

  friend std::ostream& operator<<(std::ostream& out, const NamedTemplate& value) { return out << value.name; }
};

/// Each exceeds a limit or breaks the engine, whatever the messages.
std::vector<NamedTemplate> hostile_templates();

/// The forms that templates of models in use take.
std::vector<NamedTemplate> honest_templates();

}  // namespace glimpse::text::testing
