// Writes the seed corpus of template_fuzzer into a folder: template_seeds FOLDER
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/text/templates.h"

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: template_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  std::filesystem::create_directories(folder);
  const auto write = [&](const glimpse::text::testing::NamedTemplate& seed) {
    std::ofstream(folder / seed.name, std::ios::binary) << seed.source().substr(0, 8192);
  };
  for (const auto& seed : glimpse::text::testing::honest_templates()) write(seed);
  for (const auto& seed : glimpse::text::testing::hostile_templates()) write(seed);
  return 0;
}
