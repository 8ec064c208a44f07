// Writes the seed corpus of text_fuzzer: for every pre-tokenizer a long run of each unit, and a mixed text. Usage:
// text_seeds FOLDER
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "glimpse/text/pre_tokenizers.h"
#include "text_input.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& name, const std::vector<std::uint8_t>& bytes) {
    std::ofstream(folder / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  };
  const std::size_t kinds = glimpse::text::pre_tokenizer_names().size() + 1;
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    std::vector<std::uint8_t> mixed{static_cast<std::uint8_t>(kind)};
    for (std::size_t unit = 0; unit < std::size(glimpse::fuzz::kUnits); ++unit) {
      mixed.push_back(static_cast<std::uint8_t>(unit));
      mixed.push_back(static_cast<std::uint8_t>((unit * 7 + kind) % 6));
    }
    write("mixed-" + std::to_string(kind), mixed);
    const auto unit = static_cast<std::uint8_t>(kind % std::size(glimpse::fuzz::kUnits));
    write("run-" + std::to_string(kind), {static_cast<std::uint8_t>(kind), unit, 13, 3, 0, unit, 10});
  }
  write("raw", {0, glimpse::fuzz::kRaw + 3, 'h', 0xC3, 0xA9, 0xFF, glimpse::fuzz::kRaw, 'x'});
  return 0;
}
