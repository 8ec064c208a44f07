// Where tests find models: the small random ones that the fixture `models` writes, and the real ones when they are
// there.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "glimpse/base/sanitizers.h"
#include "tests/support/places.h"

namespace glimpse::reference {

/// Threads of an engine whose number does not matter: results are the same for any, and ctest runs a test for each core
/// already. Under ThreadSanitizer two, or it would have nothing to see.
inline constexpr int kTestThreads = kThreadSanitizer ? 2 : 1;

inline std::filesystem::path test_model(const std::string& name) {
  return test::models_folder() / (name + ".gguf");
}

/// The embedded model, as scripts/fetch-model keeps it; empty when it is not there, and under ThreadSanitizer, which
/// would run it for hours: races are the same in a small model.
inline std::filesystem::path embedded_model() {
  if (kThreadSanitizer) return {};
  const auto value = [](const char* name) {
    return std::string(std::getenv(name) == nullptr ? "" : std::getenv(name));
  };
  std::filesystem::path cache = value("GLIMPSE_CACHE");
  if (cache.empty() && !value("XDG_CACHE_HOME").empty())
    cache = std::filesystem::path(value("XDG_CACHE_HOME")) / "glimpse";
  if (cache.empty()) cache = std::filesystem::path(value("HOME")) / ".cache" / "glimpse";
  const auto path = cache / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(path) ? path : std::filesystem::path();
}

/// The 32K model beside the checkout; empty when it is not there.
inline std::filesystem::path long_model() {
  if (kThreadSanitizer) return {};
  const auto path = test::shared_folder() / "models" / "smollm2-135m-32k.Q8_0.gguf";
  return std::filesystem::exists(path) ? path : std::filesystem::path();
}

/// Some public-domain prose, long enough for any test; empty when it is not there.
inline std::string long_prose() {
  std::ifstream file(test::shared_folder() / "data" / "books" / "walden.txt");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace glimpse::reference
