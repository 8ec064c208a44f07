#include "glimpse/text/json_grammar.h"

#include <fmt/format.h>
#include <json-schema-to-grammar.h>
#include <json.h>

#include <exception>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"

namespace glimpse::text {
namespace {

constexpr std::size_t kMemory = std::size_t{256} << 20;
constexpr std::size_t kMostText = std::size_t{4} << 20;  ///< bytes of a grammar
constexpr char kMade = 'g', kRefused = 'r';

void replace_all(std::string& text, std::string_view old, std::string_view now) {
  for (std::size_t at = text.find(old); at != std::string::npos; at = text.find(old, at + now.size())) {
    text.replace(at, old.size(), now);
  }
}

std::string translated(std::string_view schema) {
  try {
    return kMade + json_schema_to_grammar(common_json::parse(std::string(schema)), true);
  } catch (const std::exception& error) {
    return kRefused + std::string(error.what());
  }
}

}  // namespace

ChildLimits schema_limits(std::chrono::milliseconds time) {
  return {time, kMemory};
}

std::string json_schema_grammar(std::string_view schema, const ChildLimits& limits) {
  const ChildAnswer answer = run_in_child([&] { return translated(schema); }, limits);
  switch (answer.end) {
    case ChildEnd::time:
      throw UserError(fmt::format("the schema takes more than {:g} s to translate into a grammar; simplify it",
                                  static_cast<double>(limits.time.count()) / 1000));
    case ChildEnd::memory:
      throw UserError(fmt::format("the schema takes more than {} MiB to translate into a grammar; simplify it",
                                  limits.memory >> 20));
    case ChildEnd::stack:
      throw UserError("the schema is nested too deeply; flatten it");
    case ChildEnd::crash:
      throw UserError("the schema crashes its translation into a grammar; simplify it");
    case ChildEnd::answer:
      break;
  }
  if (answer.bytes.empty() || answer.bytes[0] != kMade) {
    throw UserError(fmt::format("the schema cannot be translated into a grammar: {}; change it",
                                printable(answer.bytes.substr(answer.bytes.empty() ? 0 : 1, 300))));
  }
  if (answer.bytes.size() > kMostText) {
    throw UserError(fmt::format("the schema comes to a grammar of {} bytes; at most {} are taken; simplify it",
                                answer.bytes.size(), kMostText));
  }
  std::string grammar = answer.bytes.substr(1);
  make_strict(grammar);
  return grammar;
}

void make_strict(std::string& grammar) {
  replace_all(grammar, R"("u" [0-9a-fA-F]{4})",
              R"("u" ( [0-9a-cefA-CEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} )"
              R"(| [dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2} ))");
  replace_all(grammar, R"("\"" ( [^"\\] | "\\" ( ["\\/ bfnrt])", R"("\"" ( [^"\\\x00-\x1F] | "\\" ( ["\\/bfnrt])");
}

std::string_view json_object_grammar() {
  return R"(root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" space ( pair ( "," space pair )* )? space "}"
pair ::= string ":" space value
array ::= "[" space ( value ( "," space value )* )? space "]"
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" ( ["\\/bfnrt] | "u" unit ) )* "\""
unit ::= [0-9a-cefA-CEF] hex{3} | [dD] [0-7] hex{2} | [dD] [89abAB] hex{2} "\\u" [dD] [c-fC-F] hex{2}
hex ::= [0-9a-fA-F]
number ::= "-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]{1,16} )? ( [eE] [-+]? ( "0" | [1-9] [0-9]{0,2} ) )?
space ::= | " " | "\n"{1,2} [ \t]{0,20}
)";
}

}  // namespace glimpse::text
