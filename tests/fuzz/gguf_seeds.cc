// Writes the seed corpus of gguf_fuzzer into a folder: gguf_seeds FOLDER
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "../model/gguf_builder.h"

namespace {

void write(const std::filesystem::path& path, const glimpse::model::GgufBuilder& builder) {
  const std::vector<std::byte> bytes = builder.bytes();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: gguf_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  std::filesystem::create_directories(folder);
  for (const std::string architecture : {"llama", "qwen2", "qwen3"}) {
    write(folder / (architecture + ".gguf"), glimpse::model::tiny_model(architecture));
  }
  write(folder / "sentencepiece.gguf", glimpse::model::tiny_sentencepiece_model());
  glimpse::model::GgufBuilder yarn = glimpse::model::tiny_model();
  yarn.set_string("llama.rope.scaling.type", "yarn");
  yarn.set_f32("llama.rope.scaling.factor", 4);
  yarn.add_tensor("rope_freqs.weight", {8});
  write(folder / "yarn.gguf", yarn);
  return 0;
}
