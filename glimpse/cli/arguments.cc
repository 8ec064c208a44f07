#include "glimpse/cli/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/base/suggest.h"
#include "glimpse/cli/habits.h"
#include "glimpse/cli/machine.h"
#include "glimpse/cli/options.h"
#include "glimpse/cli/terminal.h"

namespace glimpse::cli {
namespace {

template <class... Cases>
struct Overload : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overload(Cases...) -> Overload<Cases...>;

[[noreturn]] void refuse(std::string_view shown, std::string_view text, std::string_view why) {
  throw UserError(fmt::format("{} '{}': {}", shown, excerpt(text), why));
}

std::string range_words(const Option& option, std::string_view kind) {
  return fmt::format("give {} from {:.10g} to {:.10g}", kind, option.range.low, option.range.high);
}

std::int64_t parse_integer(const Option& option, std::string_view shown, std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole) refuse(shown, text, range_words(option, "a whole number"));
  const auto real = static_cast<double>(value);
  if (real < option.range.low || real > option.range.high) refuse(shown, text, range_words(option, "a whole number"));
  return value;
}

double parse_real(const Option& option, std::string_view shown, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool number = error == std::errc() && end == text.data() + text.size();
  // NaN fails both comparisons.
  const bool inside = value >= option.range.low && value <= option.range.high;
  if (!number || !inside) refuse(shown, text, range_words(option, "a number"));
  return value;
}

bool parse_switch(std::string_view shown, std::string_view text) {
  constexpr std::array<std::string_view, 4> kYes{"true", "1", "on", "yes"}, kNo{"false", "0", "off", "no"};
  if (std::find(kYes.begin(), kYes.end(), text) != kYes.end()) return true;
  if (std::find(kNo.begin(), kNo.end(), text) != kNo.end()) return false;
  refuse(shown, text, "give 1 or 0");
}

void assign(Arguments& arguments, const Option& option, std::string_view shown, const std::string& text) {
  std::visit(Overload{[&](bool Arguments::*field) { arguments.*field = parse_switch(shown, text); },
                      [&](std::int64_t Arguments::*field) { arguments.*field = parse_integer(option, shown, text); },
                      [&](double Arguments::*field) { arguments.*field = parse_real(option, shown, text); },
                      [&](std::string Arguments::*field) { arguments.*field = text; },
                      [&](std::optional<std::int64_t> Arguments::*field) {
                        arguments.*field = parse_integer(option, shown, text);
                      },
                      [&](std::optional<std::string> Arguments::*field) { arguments.*field = text; },
                      [&](std::vector<std::string> Arguments::*field) { (arguments.*field).push_back(text); }},
             option.field);
}

/// What the option is without the environment.
void assign_default(Arguments& arguments, const Option& option) {
  const auto clear = [&](auto field) { arguments.*field = {}; };
  std::visit(clear, option.field);
  if (!option.default_value.empty()) assign(arguments, option, option.flags, std::string(option.default_value));
}

/// CLI11's help with descriptions folded to the width of a terminal and the environment named once, at the end.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() : width_(std::clamp<std::size_t>(terminal_columns(1).value_or(kWidest), kNarrowest, kWidest)) {
    column_width(std::min(kColumn, width_ / 3));
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_name().empty() || option->get_expected_max() == 0 ? "" : " " + option->get_type_name();
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return folded(option->get_description(), width_ - std::min(kColumn, width_ / 3));
  }
  std::string make_footer(const CLI::App* app) const override {
    return app->get_footer().empty() ? "" : "\n" + folded(app->get_footer(), width_) + "\n";
  }

 private:
  static constexpr std::size_t kColumn = 34, kWidest = 110, kNarrowest = 20;

  static std::string folded(const std::string& description, std::size_t width) {
    std::string text;
    std::size_t line = 0;
    for (const std::string& word : CLI::detail::split(description, ' ')) {
      if (line > 0 && line + 1 + word.size() > width) {
        text += '\n';
        line = 0;
      } else if (line > 0) {
        text += ' ';
        ++line;
      }
      text += word;
      line += word.size();
    }
    return text;
  }

  std::size_t width_;
};

constexpr std::string_view kFooter =
    "A flag that is given twice counts as it is given last; -f and -p of 'run' and --attn-opt add up. A flag that has "
    "no effect "
    "beside the others is refused. Every flag has an environment form, --top-k as GLIMPSE_ARG_TOP_K: the flag wins, "
    "and "
    "a form without effect is left out.";

/// The parser made from the tables, and which of its options came from which row.
class Parser {
 public:
  Parser() : app_("glimpse: long-context inference that reads a part of the KV cache", "glimpse") {
    app_.formatter(std::make_shared<HelpFormatter>());
    app_.set_version_flag("--version", std::string(version_text()));
    prepare(app_);
    for (const Command& command : commands()) {
      CLI::App& leaf = node(command.path);
      leaf.description(std::string(command.help));
      leaf.footer(std::string(kFooter));
      leaves_[&leaf] = &command;
      add_options(leaf, command.bit);
    }
    for (const std::string_view path : later_commands()) {
      CLI::App& leaf = node(path);
      leaf.group("");
      leaf.set_help_flag();
      later_.emplace(&leaf, path);
    }
    for (CLI::App* group : app_.get_subcommands({})) {
      if (group->get_name() == "eval") group->description("measure quality");
      if (group->get_name() == "bench") group->description("measure speed");
    }
  }

  Parsed parse(int count, const char* const* words) {
    Parsed parsed;
    refuse_habits({words, static_cast<std::size_t>(count)});
    try {
      app_.parse(count, words);
    } catch (const CLI::CallForHelp&) {
      parsed.text = app_.help();
      return parsed;
    } catch (const CLI::CallForVersion&) {
      parsed.text = std::string(version_text()) + "\n";
      return parsed;
    } catch (const CLI::ParseError& error) {
      std::string what = error.what();
      std::replace(what.begin(), what.end(), '\n', ' ');
      constexpr std::string_view kMissing = ": 1 required ";
      if (const std::size_t at = what.find(kMissing); at != std::string::npos && what.ends_with(" missing")) {
        what = what.substr(0, at) + " needs a value, " + what.substr(at + kMissing.size());
        what.resize(what.size() - std::string_view(" missing").size());
      }
      throw UserError(fmt::format("{}; see '{} --help'", what, selected().second));
    }
    const auto [leaf, path] = selected();
    if (const auto later = later_.find(leaf); later != later_.end()) {
      throw UserError(fmt::format("'glimpse {}' is not in this version yet", later->second));
    }
    refuse_unknown(*leaf, path);
    const auto found = leaves_.find(leaf);
    if (found == leaves_.end()) {
      throw UserError(fmt::format("'{}' needs a command: {}", path, fmt::join(names(*leaf), ", ")));
    }
    parsed.command = found->second->bit;
    read(*leaf, parsed.arguments);
    for (int i = 0; i < count; ++i) parsed.arguments.words.emplace_back(words[i]);
    return parsed;
  }

 private:
  static void prepare(CLI::App& app) {
    app.allow_extras();  // unknown words are refused here, with the nearest name
    app.require_subcommand(0, 1);
    app.set_help_flag("-h,--help", "this help");
  }

  CLI::App& node(std::string_view path) {
    CLI::App* app = &app_;
    while (!path.empty()) {
      const std::size_t space = std::min(path.find(' '), path.size());
      const std::string name(path.substr(0, space));
      path.remove_prefix(std::min(space + 1, path.size()));
      const auto children = app->get_subcommands([&](const CLI::App* child) { return child->get_name() == name; });
      if (children.empty()) {
        app = app->add_subcommand(name);
        prepare(*app);
      } else {
        app = children.front();
      }
    }
    return *app;
  }

  void add_options(CLI::App& leaf, CommandBit bit) {
    for (const Option& row : options()) {
      if ((row.commands & bit) == 0) continue;
      const std::string flags(row.flags);
      CLI::Option* option = row.value.empty() ? leaf.add_flag(flags) : leaf.add_option(flags);
      option->description(describe(row))->group(std::string(row.group))->type_name(std::string(row.value));
      const bool several = std::holds_alternative<std::vector<std::string> Arguments::*>(row.field);
      if (row.value.starts_with('[')) option->expected(0, 1);
      option->multi_option_policy(several ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
      if (flags.front() == '-') option->envname(environment_name(flags));
      rows_[option] = &row;
    }
  }

  /// The deepest command that was named, and its full name.
  std::pair<CLI::App*, std::string> selected() {
    CLI::App* app = &app_;
    std::string path = "glimpse";
    while (!app->get_subcommands().empty()) {
      app = app->get_subcommands().front();
      path += " " + app->get_name();
    }
    return {app, path};
  }

  static std::vector<std::string> names(CLI::App& app) {
    std::vector<std::string> list;
    for (const CLI::App* child : app.get_subcommands({})) {
      if (!child->get_group().empty()) list.push_back(child->get_name());
    }
    return list;
  }

  /// Options of llama.cpp that the command has not, before the parser takes "-ngl" for "-n gl".
  void refuse_habits(std::span<const char* const> words) {
    CLI::App* leaf = &app_;
    std::size_t at = 1;
    for (; at < words.size(); ++at) {
      const auto children =
          leaf->get_subcommands([&](const CLI::App* child) { return child->get_name() == words[at]; });
      if (children.empty()) break;
      leaf = children.front();
    }
    if (!leaves_.contains(leaf)) return;
    for (; at < words.size(); ++at) {
      const std::string_view word = words[at];
      if (word == "--") return;
      const std::string name(word.substr(0, word.find('=')));
      const CLI::Option* option = leaf->get_option_no_throw(name);
      const auto row = rows_.find(option);
      if (option != nullptr) {
        // The word behind it is its value, whatever it looks like.
        const bool takes = row != rows_.end() && !row->second->value.empty() && row->second->value.front() != '[';
        if (takes && name == word) ++at;
        continue;
      }
      if (const Habit* habit = word.starts_with('-') ? find_habit(name) : nullptr) {
        throw UserError(fmt::format("'{}' is an option of llama.cpp: {}", name, habit->answer));
      }
    }
  }

  /// Words that nothing took: an unknown command, an unknown flag, or a stray word.
  void refuse_unknown(CLI::App& leaf, const std::string& path) {
    // Behind a bare "--" a word that the command has no place for is left with the commands above it.
    std::vector<std::string> rest = app_.remaining(true);
    std::erase(rest, "--");
    const auto flag =
        std::find_if(rest.begin(), rest.end(), [](const std::string& w) { return w.size() > 1 && w[0] == '-'; });
    if (rest.empty()) return;
    if (!leaves_.contains(&leaf) && flag != rest.begin()) {
      const std::vector<std::string> known = names(leaf);
      const std::vector<std::string_view> views(known.begin(), known.end());
      throw UserError(unknown_name("command", rest.front(), views));
    }
    if (!leaves_.contains(&leaf)) {
      throw UserError(
          fmt::format("'{}' stands before a command; give one of {} first, as in 'glimpse run -m FILE -p TEXT'",
                      excerpt(rest.front()), fmt::join(names(leaf), ", ")));
    }
    if (flag == rest.end()) {
      std::string hint;
      if (leaf.get_option_no_throw("--model") != nullptr) hint += "give a model with -m";
      if (leaf.get_option_no_throw("--file") != nullptr) hint += ", a text file with -f";
      if (leaf.get_option_no_throw("--system") != nullptr) hint += ", a prompt with -p";
      throw UserError(fmt::format("'{}' is not an option of '{}'; {}see '{} --help'", excerpt(rest.front()), path,
                                  hint.empty() ? "" : hint + "; ", path));
    }
    const std::string typed = excerpt(std::string_view(*flag).substr(0, flag->find('=')));
    std::vector<std::string_view> known;
    for (const CLI::Option* option : leaf.get_options()) {
      if (const auto row = rows_.find(option); row != rows_.end()) known.push_back(long_name(row->second->flags));
    }
    if (std::find(known.begin(), known.end(), typed) != known.end()) {
      throw UserError(fmt::format("'{}' stands behind '--', where nothing is an option; give it before", typed));
    }
    const std::string_view near = nearest_name(typed, known);
    const std::string hint = near.empty() ? "" : fmt::format("did you mean '{}'? ", near);
    throw UserError(fmt::format("unknown option '{}'; {}see '{} --help'", typed, hint, path));
  }

  void read(CLI::App& leaf, Arguments& arguments) const {
    const std::vector<CLI::Option*>& typed = leaf.parse_order();
    for (const CLI::Option* option : leaf.get_options()) {
      const bool by_flag = std::find(typed.begin(), typed.end(), option) != typed.end();
      const auto found = rows_.find(option);
      if (found == rows_.end()) continue;
      const Option& row = *found->second;
      if (!row.default_value.empty()) assign(arguments, row, row.flags, std::string(row.default_value));
      const std::vector<std::string>& results = option->results();
      if (results.empty()) continue;
      const std::string shown(by_flag ? std::string(long_name(row.flags)) : option->get_envname());
      const bool several = std::holds_alternative<std::vector<std::string> Arguments::*>(row.field);
      for (std::size_t i = several ? 0 : results.size() - 1; i < results.size(); ++i) {
        assign(arguments, row, shown, row.value.starts_with('[') && results[i].empty() ? "0" : results[i]);
      }
      arguments.given.emplace(long_name(row.flags));
      if (by_flag) arguments.typed.emplace(long_name(row.flags));
    }
    settle_idle(leaf, arguments);
  }

  /// Drops what the environment says and has no effect, then refuses what was typed and has none.
  void settle_idle(CLI::App& leaf, Arguments& arguments) const {
    for (const bool typed : {false, true}) {
      for (const CLI::Option* option : leaf.get_options()) {
        const auto found = rows_.find(option);
        if (found == rows_.end() || found->second->idle == nullptr) continue;
        const Option& row = *found->second;
        const std::string name(long_name(row.flags));
        if (!arguments.given.contains(name) || arguments.typed.contains(name) != typed) continue;
        const std::string why = row.idle(arguments);
        if (why.empty()) continue;
        if (typed) throw UserError(fmt::format("{} {}", name, why));
        arguments.given.erase(name);
        assign_default(arguments, row);
      }
    }
  }

  CLI::App app_;
  std::map<const CLI::App*, const Command*> leaves_;
  std::map<const CLI::App*, std::string_view> later_;
  std::map<const CLI::Option*, const Option*> rows_;
};

}  // namespace

Parsed parse_arguments(int count, const char* const* words) {
  return Parser().parse(count, words);
}

}  // namespace glimpse::cli
