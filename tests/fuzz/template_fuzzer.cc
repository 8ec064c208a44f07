// Chat templates of any bytes: each renders or ends in UserError, its process ends in time and takes no more memory
// than it may; anything else is a finding. Mutations put words of Jinja together. The corpus starts from what
// template_seeds writes.
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/text/chat_template.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

using namespace glimpse::text;

constexpr ChatLimits kLimits{.milliseconds = 50, .memory = std::size_t{64} << 20};
constexpr double kMostSeconds = 2;
constexpr long kMostKilobytes = 512 * 1024;

constexpr std::array kExpressions = {"messages",
                                     "messages[0]",
                                     "messages[0].content",
                                     "messages[-1]['role']",
                                     "messages | length",
                                     "message",
                                     "loop.index0",
                                     "loop.last",
                                     "loop",
                                     "ns",
                                     "ns.v",
                                     "x",
                                     "y",
                                     "l",
                                     "m(x)",
                                     "m()",
                                     "m(m(x))",
                                     "m(x=y, y=1)",
                                     "caller()",
                                     "bos_token",
                                     "add_generation_prompt",
                                     "'a'",
                                     "'<|im_start|>'",
                                     "\"\\n\"",
                                     "1",
                                     "0",
                                     "-1",
                                     "2.5",
                                     "9223372036854775807",
                                     "-9223372036854775808",
                                     "4611686018427387904",
                                     "1e9",
                                     "100000",
                                     "true",
                                     "none",
                                     "[]",
                                     "[1, 'a']",
                                     "{'a': 1}",
                                     "{}",
                                     "(1, 2)",
                                     "range(3)",
                                     "range(100000)",
                                     "range(4611686018427387904)",
                                     "range(0, 9, -1)",
                                     "range(1, 0, 0)",
                                     "namespace(v=1)",
                                     "dict(a=x)",
                                     "strftime_now('%d %b')",
                                     "strftime_now('%c' * 50)",
                                     "raise_exception('no')",
                                     "l.append(l)",
                                     "l.append(x)",
                                     "messages.append(messages)",
                                     "messages.pop()",
                                     "messages.pop(0)",
                                     "x.split('a')",
                                     "x.split('')",
                                     "x.strip('a')",
                                     "x.replace('', x)",
                                     "'{}{}'.format(x, x)",
                                     "x.items()",
                                     "x.get('a', 1)",
                                     "x[::-1]",
                                     "x[1:-1]",
                                     "x[9223372036854775807:]",
                                     "x[0:3:9223372036854775807]",
                                     "x[x]",
                                     "x['a']",
                                     "x.a",
                                     "x.a.b"};
constexpr std::array kFilters = {"length",
                                 "trim",
                                 "upper",
                                 "lower",
                                 "title",
                                 "capitalize",
                                 "tojson",
                                 "tojson(indent=4)",
                                 "tojson(indent=2000000000)",
                                 "join",
                                 "join(',')",
                                 "join(x)",
                                 "list",
                                 "string",
                                 "int",
                                 "int(base=37)",
                                 "int(default=1, base=2)",
                                 "float",
                                 "abs",
                                 "sort",
                                 "sort(reverse=true)",
                                 "reverse",
                                 "first",
                                 "last",
                                 "default('a')",
                                 "d(x, true)",
                                 "map(attribute='role')",
                                 "map('upper')",
                                 "select('string')",
                                 "reject('none')",
                                 "selectattr('role')",
                                 "selectattr('role', 'equalto', 'user')",
                                 "rejectattr('a', 'in', x)",
                                 "items",
                                 "dictsort",
                                 "dictsort(by='value')",
                                 "unique",
                                 "indent",
                                 "indent(2000000000)",
                                 "replace('a', 'aa')",
                                 "replace('', x)",
                                 "safe",
                                 "escape",
                                 "e",
                                 "count",
                                 "sum",
                                 "min",
                                 "max",
                                 "slice(3)",
                                 "batch(2)",
                                 "wordcount",
                                 "truncate(3)",
                                 "center(9)",
                                 "round",
                                 "pprint"};
constexpr std::array kOperators = {"+",  "-",      "*",  "/",      "%",  "~",    "==", "!=", "<", ">=", "and", "or",
                                   "in", "not in", "is", "is not", "if", "else", "|",  ",",  "=", ":",  "//",  "**"};
constexpr std::array kTests = {
    "string",         "defined",         "none",  "iterable",  "mapping",   "sequence", "number",
    "divisibleby(0)", "divisibleby(-1)", "odd",   "in x",      "sameas(x)", "eq(1)",    "test",
    "filter",         "callable",        "lower", "undefined", "true",      "boolean",  "escaped"};
/// What opens, and what closes it again.
constexpr std::pair<const char*, const char*> kBlocks[] = {
    {"{% if E %}", "{% endif %}"},
    {"{%- if E -%}", "{%- else -%}E{%- endif -%}"},
    {"{% if E %}{% elif E %}", "{% else %}{% endif %}"},
    {"{% for x in E %}", "{% endfor %}"},
    {"{% for x, y in E %}", "{% endfor %}"},
    {"{% for x in E if E %}", "{% else %}{{ E }}{% endfor %}"},
    {"{% for x in range(100000) %}", "{% endfor %}"},
    {"{% for message in messages %}", "{% endfor %}"},
    {"{% macro m(x, y=E) %}", "{% endmacro %}{{ m(E) }}"},
    {"{% macro m(x) %}{{ m(x) }}", "{% endmacro %}{{ m(1) }}"},
    {"{% call m(E) %}", "{% endcall %}"},
    {"{% call(x) m(E) %}", "{% endcall %}"},
    {"{% set x %}", "{% endset %}{{ x }}"},
    {"{% filter F %}", "{% endfilter %}"},
    {"{% generation %}", "{% endgeneration %}"},
    {"(", ")"},
    {"[", "]"},
    {"{'a': ", "}"},
    {"m(", ")"},
    {"{{ ", " }}"},
    {"{{- not ", " -}}"},
};
constexpr std::array kStatements = {"{{ E }}",
                                    "{{- E -}}",
                                    "{{ E | F }}",
                                    "{% set x = E %}",
                                    "{% set x, y = E %}",
                                    "{% set ns = namespace(v=E) %}",
                                    "{% set ns.v = E %}",
                                    "{% set ns.v = ns.v ~ ns.v %}",
                                    "{% set ns.v = [ns.v] %}",
                                    "{% set l = [] %}{% set _ = l.append(l) %}",
                                    "{% set messages[0].content = E %}",
                                    "{% set ns.v = ns %}",
                                    "{% break %}",
                                    "{% continue %}",
                                    "{# E #}",
                                    "{{ E is T }}",
                                    "{{ E if E else E }}",
                                    "{% set x = x + x %}",
                                    "{% set x = [x, x] | join %}",
                                    "{% set x = x | replace('a', 'aa') %}",
                                    "text\n",
                                    "\r\n",
                                    "{%",
                                    "%}",
                                    "{{",
                                    "}}",
                                    "{#",
                                    "#}",
                                    "{% elif E %}",
                                    "{% else %}",
                                    "{% endfor %}",
                                    "{% endif %}",
                                    "-%}\n  {%-"};
constexpr std::array kRepeated = {
    "not ",        "-",   "+1",    "~x",    "|d",           ".a",         "[0]",          "(",
    "[",           "{1:", "x(",    " is T", " if 0 else 1", "{% if 1 %}", "{% elif 0 %}", "{% for x in [1] %}",
    "{% set x %}", "()",  "[x:x]", "a",     "\\n"};

using Random = std::minstd_rand;

template <class List>
auto any(const List& list, Random& random) {
  return list[random() % std::size(list)];
}

/// The words of the grammar that the letters of a form stand for.
std::string grown(std::string_view form, Random& random, int depth = 0) {
  std::string text;
  for (const char c : form) {
    if (c == 'F') {
      text += any(kFilters, random);
    } else if (c == 'T') {
      text += any(kTests, random);
    } else if (c != 'E') {
      text += c;
    } else if (depth > 3 || random() % 3 == 0) {
      text += any(kExpressions, random);
    } else if (random() % 3 == 0) {
      text += grown("E|F", random, depth + 1);
    } else if (random() % 2 == 0) {
      text += grown("(E ", random, depth + 1) + any(kOperators, random) + grown(" E)", random, depth + 1);
    } else {
      text += grown("E is T", random, depth + 1);
    }
  }
  return text;
}

std::size_t place(const std::string& text, Random& random) {
  const std::size_t at = random() % (text.size() + 1);
  const std::size_t mark = random() % 2 == 0 ? text.find("{", at) : text.find("}", at);  // mostly between statements
  return random() % 4 == 0 || mark == std::string::npos ? at
         : text[mark] == '}'                            ? std::min(mark + 2, text.size())
                                                        : mark;
}

void mutate(std::string& text, Random& random) {
  const std::size_t at = place(text, random);
  switch (random() % 7) {
    case 0: {
      const auto& [open, close] = kBlocks[random() % std::size(kBlocks)];
      const std::size_t end = std::max(at, place(text, random));
      text.insert(end, grown(close, random));
      text.insert(at, grown(open, random));
      break;
    }
    case 1:
      text.insert(at, grown("E", random));
      break;
    case 2: {
      const std::string word = grown(any(kRepeated, random), random);
      std::string many;
      for (std::size_t i = 0, count = std::size_t{1} << random() % 13; i < count; ++i) many += word;
      text.insert(at, many);
      break;
    }
    case 3:
      text.erase(at, random() % 32);
      break;
    case 4: {
      const std::size_t from = place(text, random);
      text.insert(at, text.substr(from, random() % 128));
      break;
    }
    default:
      text.insert(at, grown(any(kStatements, random), random));
  }
}

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

/// Processor time, so that a busy machine makes no finding; what only waits, libFuzzer's own timeout ends.
double seconds_of(int who) {
  rusage usage{};
  require(::getrusage(who, &usage) == 0, "getrusage");
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  Random random(seed);
  if (random() % 8 == 0) return LLVMFuzzerMutate(data, size, most);
  std::string text(reinterpret_cast<const char*>(data), size);
  for (unsigned i = 0, count = 1 + random() % 4; i < count; ++i) mutate(text, random);
  text.resize(std::min(text.size(), most));
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<ChatMessage> messages{{"system", "Be brief."}, {"user", "a<b>c"}, {"assistant", ""}, {"user", "d"}};
  const double begin = seconds_of(RUSAGE_SELF) + seconds_of(RUSAGE_CHILDREN);
  try {
    const ChatTemplate chat(std::string(reinterpret_cast<const char*>(data), size), "<s>", "</s>", kLimits);
    std::size_t bytes = 0;
    for (const ChatPart& part : chat.render(messages, {})) bytes += part.text.size();
    require(bytes <= kLimits.memory, "more text than memory");
  } catch (const glimpse::UserError& error) {
    const std::string_view text = error.what();
    require(text.find("--raw") != std::string_view::npos, "an error without a cure");
    require(text.find('\n') == std::string_view::npos, "an error of several lines");
  }
  require(seconds_of(RUSAGE_SELF) + seconds_of(RUSAGE_CHILDREN) - begin < kMostSeconds, "over two seconds");
  require(::waitpid(-1, nullptr, WNOHANG) <= 0, "a process is left");  // libFuzzer's own symbolizer runs on
  rusage children{};
  require(::getrusage(RUSAGE_CHILDREN, &children) == 0 && children.ru_maxrss <= kMostKilobytes, "over 512 MiB");
  return 0;
}
