// Writes the seed corpus of model_fuzzer into a folder: model_seeds FOLDER
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: model_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  std::filesystem::create_directories(folder);
  std::mt19937 random(1);
  // Recipes are any bytes; small ones choose what is plain.
  for (int i = 0; i < 48; ++i) {
    std::string recipe(i == 0 ? 1 : 100 + 10 * i, '\0');
    for (char& byte : recipe) byte = static_cast<char>(random() % (i % 3 == 0 ? 4 : i % 3 == 1 ? 16 : 256));
    std::ofstream(folder / std::to_string(i), std::ios::binary) << recipe;
  }
  return 0;
}
