// Where tests find what lies outside their sources. The paths are in one source that CMake writes, so that nothing else
// is compiled anew in another checkout.
#pragma once

#include <filesystem>

namespace glimpse::test {

std::filesystem::path source_root();
/// The small random models that the fixture `models` writes; beside it is room for files of tests.
std::filesystem::path models_folder();
/// Real models and texts, where there are some; fuzzers have none.
std::filesystem::path shared_folder();
/// build/PRESET/glimpse
std::filesystem::path glimpse_program();

}  // namespace glimpse::test
