// Chat templates for the tests and the fuzzer: those of models in use, and those that loop, grow or recurse without
// end.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace glimpse::text::testing {

struct NamedTemplate {
  NamedTemplate(std::string of, std::string text)
      : name(std::move(of)), source([text = std::move(text)] { return text; }) {}
  NamedTemplate(std::string of, std::string (*made)()) : name(std::move(of)), source(made) {}

  std::string name;
  std::function<std::string()>
      source;  ///< made when it is asked for: some have a megabyte, and every test has them all

  friend std::ostream& operator<<(std::ostream& out, const NamedTemplate& value) { return out << value.name; }
};

/// Each exceeds a limit or breaks the engine, whatever the messages.
std::vector<NamedTemplate> hostile_templates();

/// The forms that templates of models in use take.
std::vector<NamedTemplate> honest_templates();

}  // namespace glimpse::text::testing
