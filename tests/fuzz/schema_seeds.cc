// Writes the schema fuzzer's first inputs into a folder: grammars and schemas of every form. Usage: schema_seeds FOLDER
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::vector<std::string> schemas{
      "{}",
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]})",
      R"({"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3})",
      R"({"enum": ["x", 1, null, true]})",
      R"({"anyOf": [{"type": "null"}, {"const": "y"}]})",
      R"({"allOf": [{"properties": {"a": {"type": "boolean"}}}, {"properties": {"b": {}}}]})",
      R"({"type": "string", "pattern": "^[a-z]+(-[0-9]{2,3})?$"})",
      R"({"type": "string", "minLength": 2, "maxLength": 5})",
      R"({"type": "string", "format": "date-time"})",
      R"({"type": "integer", "minimum": -12, "maximum": 345})",
      R"({"$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"})",
      R"({"type": ["string", "null"]})",
      R"({"type": "object", "additionalProperties": {"type": "integer"}})",
      R"({"prefixItems": [{"type": "string"}, {"type": "integer"}]})"};
  const std::vector<std::string> grammars{
      "root ::= \"a\" root \"b\" | \"c\"", "root ::= [a-z]{2,5} (\",\" [^x-z\\n]+)* \"\\x41\\u00e9\"?\n",
      "root ::= x{0,3} y # a comment\nx ::= \"q\" | .\ny ::=\n  (\"1\" | \"22\")+\n",
      "root ::= ((\"a\"? \"b\"?)* \"c\"){2}"};
  const std::filesystem::path folder(argv[1]);
  std::filesystem::create_directories(folder);
  int count = 0;
  const auto write = [&](char first, const std::string& text) {
    std::ofstream(folder / std::to_string(count++), std::ios::binary) << first << text;
  };
  for (const std::string& schema : schemas) write('\0', schema);
  for (const std::string& grammar : grammars) write('\1', grammar);
  return 0;
}
