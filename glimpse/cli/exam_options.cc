// The rows of the option table of `eval needle`, `passkey`, `ruler`, `copy` and `scoreboard`.
#include <array>

#include "glimpse/cli/options.h"

namespace glimpse::cli {
namespace {

using A = Arguments;

constexpr std::string_view kModel = "Model and machine", kMeasure = "Measurement", kOutput = "Output";

const std::array kOptions{
    Option{"--arms",
           "LIST",
           &A::arms,
           {},
           "full,tidal:1024",
           kMeasure,
           "methods to compare, NAME[:BUDGET][,KEY=VALUE...] each, as in full,tidal:512,kascade:10%,prefill=dense,auto",
           kAsk},
    Option{"--tasks",
           "LIST",
           &A::tasks,
           {},
           "single,multikey,multivalue,multiquery,vt,cwe,fwe,qa",
           kMeasure,
           "which tasks",
           kRuler},
    Option{"--tasks",
           "LIST",
           &A::tasks,
           {},
           "needle,multikey,vt,qa,copy",
           kMeasure,
           "which tasks: needle, passkey, copy and those of 'eval ruler'",
           kScoreboard},
    Option{"--lengths",
           "LIST",
           &A::lengths,
           {},
           "4096",
           kMeasure,
           "tokens of the prompts with their answers; an answer has at most 192",
           kExam},
    Option{"-c,--ctx-size,--ctx",
           "N",
           &A::window,
           {512, 1 << 24},
           "8192",
           kModel,
           "tokens of a prompt with its answer, which has at most 192; longer prompts lose their middle",
           kLongbench},
    Option{"-f,--file",
           "FILE",
           &A::files,
           {},
           "",
           kMeasure,
           "the questions, a JSON object a line: {\"prompt\": \"...\", \"answers\": [\"...\"]}; -: standard input",
           kLongbench},
    Option{"-n,--examples",
           "N",
           &A::examples,
           {0, 100000},
           "0",
           kMeasure,
           "only the first N questions; 0: all",
           kLongbench},
    Option{"--metric",
           "METRIC",
           &A::metric,
           {},
           "",
           kMeasure,
           "words, all, any, exact, f1 or rouge_l; without it that of the line or its data set",
           kLongbench},
    Option{"--depths",
           "LIST",
           &A::depths,
           {},
           "0,25,50,75,100",
           kMeasure,
           "where the needle lies, percent of the text before it",
           kNeedle | kScoreboard,
           idle_depths},
    Option{"-n,--examples",
           "N",
           &A::examples,
           {1, 100000},
           "10",
           kMeasure,
           "prompts of each task, length and depth",
           kExam},
    Option{"-o,--output",
           "DIR",
           &A::output,
           {},
           "",
           kOutput,
           "the folder for answers.jsonl, scoreboard.json, scoreboard.md and scoreboard.html",
           kScoreboard},
};

}  // namespace

std::span<const Option> exam_options() {
  return kOptions;
}

}  // namespace glimpse::cli
