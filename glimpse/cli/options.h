// The one table of options: spelling, field, range, default, help, and which commands take it. Command line, help and
// environment are made from it. Constants; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "glimpse/cli/arguments.h"
#include "glimpse/cli/idle.h"

namespace glimpse::cli {

using Field = std::variant<bool Arguments::*, std::int64_t Arguments::*, double Arguments::*, std::string Arguments::*,
                           std::optional<std::int64_t> Arguments::*, std::optional<std::string> Arguments::*,
                           std::vector<std::string> Arguments::*>;

/// Ends included.
struct Range {
  double low = 0, high = 0;
};

struct Option {
  std::string_view flags;  ///< "-n,--predict"; without dashes: a positional
  std::string_view
      value;  ///< what help calls the value; in brackets: it may be left out, and is then 0; empty: a switch
  Field field;
  Range range;                     ///< of numbers
  std::string_view default_value;  ///< as it would be typed; empty: none
  std::string_view group, help;
  std::uint32_t commands = 0;
  IdleRule idle = nullptr;  ///< none: always of effect, or only a plan can tell (refuse_idle)
};

struct Command {
  std::string_view path;  ///< "eval logits"
  CommandBit bit;
  std::string_view help;
};

std::span<const Option> options();
/// Those of `glimpse bench` and of `glimpse serve` alone; options() has them too.
std::span<const Option> bench_options();
std::span<const Option> serve_options();
/// Those of the parts `roles` and `budget` of `glimpse calibrate` alone; options() has them too.
std::span<const Option> calibrate_options();
/// Those of the commands that ask generated prompts alone; options() has them too.
std::span<const Option> exam_options();
/// These commands.
inline constexpr std::uint32_t kExam = kNeedle | kPasskey | kRuler | kCopy | kScoreboard;
/// And that which asks the user's own.
inline constexpr std::uint32_t kAsk = kExam | kLongbench;
std::span<const Command> commands();
/// Commands of later versions, by path.
std::span<const std::string_view> later_commands();

/// The first long name of "-n,--predict": "--predict".
std::string_view long_name(std::string_view flags);
/// "--top-k" -> "GLIMPSE_ARG_TOP_K".
std::string environment_name(std::string_view flags);
/// Help, range and default in one text.
std::string describe(const Option& option);

}  // namespace glimpse::cli
