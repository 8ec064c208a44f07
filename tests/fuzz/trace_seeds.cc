// Writes the seed corpus of trace_fuzzer into a folder: trace_seeds FOLDER
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

constexpr const char* kHeader =
    R"({"kind":"header","version":1,"source":"eval sets","policy":"tidal","budget":"2","model":{"architecture":"llama",)"
    R"("name":"m","layers":2,"heads":4,"kv_heads":2,"head_dim":8},"kv_type":"bf16","row_bytes":32,"prompt_tokens":2})";

std::string token(int position, const char* text) {
  return R"({"kind":"token","position":)" + std::to_string(position) + R"(,"id":7,"text":")" + text + "\"}\n";
}

std::string head(int step, int layer, int kv_head, const char* rest) {
  return R"({"step":)" + std::to_string(step) + R"(,"position":)" + std::to_string(step + 2) + R"(,"layer":)" +
         std::to_string(layer) + R"(,"kv_head":)" + std::to_string(kv_head) + "," + rest + "}\n";
}

std::string trace(int steps) {
  std::string text = std::string(kHeader) + "\n" + token(0, "a") + token(1, " \\u00e9\\\\");
  for (int step = 0; step < steps; ++step) {
    text += token(step + 2, "\\n\\\"");
    text += head(step, 0, 0, R"("role":"dense","budget":9,"tokens":null,"published":null,"coverage":null)");
    text += head(step, 0, 1, R"("role":"stream","budget":2,"tokens":[0,2],"published":null,"coverage":0.25)");
    text += head(step, 1, 0, R"("role":"select","budget":2,"tokens":[1,2],"published":[1,2],"coverage":1)");
    text += head(step, 1, 1, R"("role":"reuse","budget":2,"tokens":[0,1,2],"published":null,"coverage":0.5)");
    text += R"({"kind":"step","step":)" + std::to_string(step) +
            R"(,"bytes_read":320,"index_bytes":16,"dense_bytes":384})" + "\n";
  }
  return text + R"({"kind":"end","steps":)" + std::to_string(steps) + "}\n";
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: trace_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  std::filesystem::create_directories(folder);
  for (const int steps : {0, 1, 3}) {
    std::ofstream(folder / std::to_string(steps), std::ios::binary) << trace(steps);
  }
  return 0;
}
