// Writes the answer fuzzer's first inputs into a folder: calls in the forms of the templates that it reads. Usage:
// answer_seeds FOLDER
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string tide =
      "<tool_call>\n{\"name\": \"tide\", \"arguments\": {\"harbour\": \"Brest\", \"hours\": [1, {}]}}\n</tool_call>";
  const std::vector<std::vector<std::string>> texts{
      {"At noon.", tide, "I look.\n" + tide + "\n" + tide,
       "<tool_call>\n{\"name\": \"wind\", \"arguments\": {}}\n</tool_call>", "<tool_call>\n{\"name\": \"tide\", \"arg"},
      {"At noon.",
       R"({"name": "tide", "parameters": {"harbour": "Brest \u00e9\n", "hours": [[1e5, -2.5], null, true]}})",
       R"({"name": "wind", "parameters": {}})", R"(words {"name": "wind", "parameters": {}})"}};
  const std::filesystem::path folder(argv[1]);
  std::filesystem::create_directories(folder);
  int count = 0;
  for (std::size_t form = 0; form < texts.size(); ++form) {
    for (const std::string& text : texts[form]) {
      for (const int step : {0, 64}) {
        std::ofstream(folder / std::to_string(count++), std::ios::binary) << static_cast<char>(form + step) << text;
      }
    }
  }
  return 0;
}
