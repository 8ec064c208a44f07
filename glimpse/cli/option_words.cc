// The commands, and options in words.
#include <fmt/format.h>

#include <array>

#include "glimpse/cli/options.h"

namespace glimpse::cli {
namespace {

constexpr std::array kCommands{
    Command{"run", kRun, "answer a prompt"},
    Command{"plan", kPlan, "show what a policy makes of a model, as a table or as JSON"},
    Command{"inspect", kInspect,
            "show what a model, plan, profile, trace or session file is; without a file: this machine and its devices"},
    Command{"eval logits", kLogits, "write the logits of every position of a text"},
    Command{"eval perplexity", kPerplexity, "perplexity of a text, as llama.cpp computes it"},
    Command{
        "eval sets", kSets,
        "what a method reads of a text, the softmax mass that it captures, and how stable the units of its index are"},
    Command{"eval fidelity", kFidelity,
            "how near a method's next tokens are to dense attention's, by position, and the mass its sets capture, by "
            "layer"},
    Command{"eval needle", kNeedle, "whether methods find a number in a long prompt, by depth and length"},
    Command{"eval passkey", kPasskey, "whether methods copy one of ten passkeys of 32 words"},
    Command{"eval ruler", kRuler,
            "RULER's tasks: needles of several keys and values, variables, common and frequent words, questions"},
    Command{"eval copy", kCopy, "whether methods copy a sentence of a long prompt"},
    Command{"eval longbench", kLongbench,
            "whether methods answer questions of your own, in the form of LongBench or RULER"},
    Command{
        "eval scoreboard", kScoreboard,
        "methods by tasks and lengths: answers, fidelity, bytes and time, as JSON, Markdown and a page; goes on where "
        "it was interrupted"},
    Command{"calibrate", kCalibrate, "find out which layers and heads methods should use in a model; writes a profile"},
    Command{"serve", kServe, "answer requests over HTTP, as OpenAI's API has them, each with its own method"},
    Command{"bench decode", kBenchDecode, "time of one decoded token, by policy and depth"},
    Command{"bench prefill", kBenchPrefill, "prompt tokens per second, by length"},
    Command{"bench attention", kBenchAttention, "the attention kernels alone, against the memory's read bandwidth"},
    Command{"bench serve", kBenchServe, "requests that arrive over time, with several methods: latency and tokens/s"},
};

constexpr std::array<std::string_view, 2> kLaterCommands{"pull", "bench select"};

std::string number(double value) {
  return fmt::format("{:.10g}", value);
}

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}
std::span<const std::string_view> later_commands() {
  return kLaterCommands;
}

std::string_view long_name(std::string_view flags) {
  const std::size_t start = flags.find("--");
  if (start == std::string_view::npos) return flags;
  return flags.substr(start, flags.find(',', start) - start);
}

std::string environment_name(std::string_view flags) {
  std::string name = "GLIMPSE_ARG_";
  for (const char c : long_name(flags).substr(2)) {
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return name;
}

std::string describe(const Option& option) {
  std::string facts;
  if (option.range.low != option.range.high) {
    facts = fmt::format("{} to {}", number(option.range.low), number(option.range.high));
  }
  if (!option.default_value.empty()) {
    facts += fmt::format("{}default {}", facts.empty() ? "" : ", ", option.default_value);
  }
  return facts.empty() ? std::string(option.help) : fmt::format("{} ({})", option.help, facts);
}

}  // namespace glimpse::cli
