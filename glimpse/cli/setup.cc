#include "glimpse/cli/setup.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <initializer_list>

#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/document.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/model/gguf.h"
#include "glimpse/plan/budget_text.h"
#include "glimpse/plan/words.h"
#include "glimpse/policies/policy.h"
#include "glimpse/text/utf8.h"

namespace glimpse::cli {
namespace {

constexpr std::size_t kMostTextBytes = std::size_t{1} << 30;

bool from_environment(const Arguments& arguments, std::string_view flag) {
  return arguments.given.contains(flag) && !arguments.typed.contains(flag);
}

}  // namespace

policies::PolicyOptions policy_options(const Arguments& arguments) {
  policies::PolicyOptions options;
  const auto narrow = [](const std::optional<std::int64_t>& value) {
    return value ? std::optional<int>(static_cast<int>(*value)) : std::nullopt;
  };
  if (arguments.budget) policies::set_budget(options, *arguments.budget);
  options.block = narrow(arguments.block);
  options.sink = narrow(arguments.sink);
  options.local = narrow(arguments.local);
  options.min_context = static_cast<int>(arguments.min_context);
  for (const std::string& several : arguments.policy_options) {
    for (const std::string& one : split_commas(several)) {
      const std::size_t equals = one.find('=');
      if (equals == std::string::npos || equals == 0) {
        throw UserError(
            fmt::format("--attn-opt '{}': give KEY=VALUE; 'glimpse plan --list' shows the keys", excerpt(one)));
      }
      if (!options.extra.emplace(one.substr(0, equals), one.substr(equals + 1)).second) {
        throw UserError(fmt::format("--attn-opt '{}': the key is given twice", excerpt(one)));
      }
    }
  }
  for (const char* flag : {"--attn-budget", "--attn-block", "--attn-sink", "--attn-local"}) {
    if (from_environment(arguments, flag)) options.if_of_use.insert(flag);
  }
  return options;
}

void set_log(const Arguments& arguments) {
  if (!arguments.quiet) log_to_stderr(arguments.verbose ? LogLevel::debug : LogLevel::warning);
}

double slice_seconds(const Arguments& arguments) {
  if (arguments.slice_ms >= 0) return static_cast<double>(arguments.slice_ms) / 1000;
  return arguments.device == "cpu" ? engine::kServedSliceSeconds : 0;
}

engine::EngineOptions engine_options(const Arguments& arguments) {
  if (arguments.model.empty()) throw UserError("no model: give a GGUF file with -m FILE");
  engine::EngineOptions options;
  options.model = arguments.model;
  options.context = arguments.context;
  options.threads = static_cast<int>(arguments.threads);
  options.device = parse_device(arguments.device);
  options.kv_type = parse_kv_type(arguments.kv_type);
  options.prefill_chunk = static_cast<int>(arguments.prefill_chunk);
  options.tier_folder = arguments.tier_folder;
  if (options.device.kind == DeviceName::Kind::cuda && arguments.typed.contains("--kv-tier-dir"))
    throw UserError("--kv-tier-dir has no effect on a GPU, whose cold pages wait in the host's memory: leave it out");
  return options;
}

void check_outputs(const Arguments& arguments) {
  struct Place {
    std::string_view flag;
    std::string path;
  };
  const auto given = [](const std::optional<std::string>& path) { return path.value_or(""); };
  const std::array<Place, 6> written{{{"--trace", given(arguments.trace)},
                                      {"--curve", arguments.curve},
                                      {"--heat-map", arguments.heat_map},
                                      {"-o", arguments.output},
                                      {"--html", given(arguments.html)},
                                      {"--session", given(arguments.session)}}};
  std::vector<Place> read{{"--attn-plan", given(arguments.plan_file)},
                          {"--attn-profile", arguments.profile == "none" ? "" : given(arguments.profile)},
                          {"--arrivals", given(arguments.arrivals)}};
  for (const std::string& file : arguments.files) {
    if (file != "-") read.push_back({"-f", file});
  }
  for (const auto& part : model::model_parts(arguments.model)) read.push_back({"-m", part.string()});
  for (const auto& part : model::model_parts(arguments.subject)) read.push_back({"what it reads", part.string()});
  for (const std::string& several : arguments.policy_options) {
    for (const std::string& option : split_commas(several)) {
      const std::size_t equals = std::min(option.find('='), option.size());
      const std::string key = option.substr(0, equals);
      if (key != "gates" && !key.ends_with(".gates")) continue;
      read.push_back({"--attn-opt gates", option.substr(std::min(equals + 1, option.size()))});
    }
  }
  // The same file by another name too, and one that is not there yet; of devices several may be one.
  const auto same = [](const std::string& a, const std::string& b) {
    std::error_code failed;
    if (a.empty() || b.empty()) return false;
    if (std::filesystem::exists(a, failed) && !std::filesystem::is_regular_file(a, failed)) return false;
    if (std::filesystem::equivalent(a, b, failed)) return true;
    const auto one = std::filesystem::weakly_canonical(a, failed);
    return !failed && one == std::filesystem::weakly_canonical(b, failed) && !failed;
  };
  const auto refuse = [](const Place& output, const Place& other) {
    throw UserError(fmt::format("{} '{}' is also {}, and writing it would destroy that; give it another name",
                                output.flag, output.path, other.flag));
  };
  for (std::size_t i = 0; i < written.size(); ++i) {
    for (const Place& input : read) {
      if (same(written[i].path, input.path)) refuse(written[i], input);
    }
    for (std::size_t j = i + 1; j < written.size(); ++j) {
      if (same(written[i].path, written[j].path)) refuse(written[i], written[j]);
    }
  }
}

void check_attention(const Arguments& arguments) {
  if (arguments.plan_file) return;
  policies::parse_quality(arguments.quality);
  if (arguments.policy != kAuto) policies::find_policy(arguments.policy, kAuto);
  policy_options(arguments);
  check_profile(arguments);
}

plan::Plan make_plan(const Arguments& arguments, const PlanModel& model, std::int64_t tokens) {
  check_attention(arguments);
  if (arguments.plan_file) {
    const std::string label = fmt::format("plan file '{}'", *arguments.plan_file);
    const std::string text = read_all(*arguments.plan_file, label);
    return parse_of(label, text, [](std::string_view json) { return plan::from_json(json); });
  }
  if (arguments.policy == kAuto) return make_auto_plan(arguments, model, tokens);
  policies::PolicyOptions options = policy_options(arguments);
  const std::string_view policy = arguments.policy;
  const bool budgets = options.profile_budget;
  const plan::Profile* profile = profile_for(arguments, policies::find_policy(policy), model, budgets);
  if (!arguments.interactive) {
    if (!budgets) refuse_idle_profile(arguments, {&policy, 1});
  } else if (profile != nullptr && !policies::uses_profile(policies::find_policy(policy), *profile, budgets)) {
    profile = nullptr;  // the dialogue may go on with a method that uses it
  }
  set_profile(options, profile, model);
  // Keys beside the environment's own method are that method's; another method leaves out what it does not take.
  if (from_environment(arguments, "--attn-opt") && !from_environment(arguments, "--attn")) {
    try {
      return make_policy_plan(arguments, policy, model.shape, options);
    } catch (const UserError&) {
      options.extra.clear();
    }
  }
  return make_policy_plan(arguments, policy, model.shape, std::move(options));
}

plan::Plan make_policy_plan(const Arguments& arguments, std::string_view policy, const plan::ModelShape& shape,
                            policies::PolicyOptions options) {
  std::vector<std::string> warnings;
  options.warnings = &warnings;
  const bool found = is_found(arguments, options.profile);
  bool unused = false;
  if (found) options.profile_unused = &unused;
  plan::Plan plan = policies::make_plan(policy, shape, options);
  if (found && (!unused || options.profile_budget)) say_found(arguments);
  if (!arguments.quiet) {
    for (const std::string& warning : warnings) print_note("warning: " + warning);
  }
  return plan;
}

std::vector<std::string> split_commas(std::string_view list) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    parts.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::int64_t> parse_numbers(std::string_view flag, std::string_view list, std::int64_t least,
                                        std::int64_t most) {
  std::vector<std::int64_t> numbers;
  for (const std::string& part : split_commas(list)) {
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || value < least || value > most) {
      throw UserError(fmt::format("{} '{}': give whole numbers from {} to {} with commas between", flag, excerpt(list),
                                  least, most));
    }
    numbers.push_back(value);
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<std::string> join_budgets(std::span<const std::string> parts) {
  std::vector<std::string> joined;
  for (const std::string& part : parts) {
    if (part.starts_with("min=") && !joined.empty()) {
      joined.back().append(",").append(part);
    } else {
      joined.push_back(part);
    }
  }
  return joined;
}

// One end for every way to fail; std::ifstream would read a folder as an empty file.
std::string read_all(const std::string& path, std::string_view label) {
  const bool standard_input = path == "-";
  const int file = standard_input ? 0 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text;
  int error = file < 0 ? errno : 0;
  while (error == 0) {
    constexpr std::size_t kStep = 1 << 16;
    const std::size_t before = text.size();
    text.resize(before + kStep);
    const ssize_t got = ::read(file, text.data() + before, kStep);
    if (got < 0 && errno != EINTR) error = errno;
    text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) break;
    if (text.size() > kMostTextBytes) error = EFBIG;
  }
  if (!standard_input && file >= 0) ::close(file);
  if (error != 0) throw UserError(fmt::format("cannot read {}: {}", label, std::strerror(error)));
  return text;
}

std::string read_file(const std::string& path) {
  return read_all(path, fmt::format("'{}'", path));
}

std::string budget_text(const plan::Plan& plan) {
  return plan::budget_text(plan);
}

std::string sets_text(const plan::Plan& plan) {
  std::vector<std::string_view> words;
  for (const plan::Selector& selector : plan.selectors) {
    if (selector.terms.empty()) continue;  // a stream's window is no choice
    const std::string_view word = plan::word(selector.per);
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::optional<std::string> text_file(const Arguments& arguments) {
  if (arguments.files.size() > 1) {
    throw UserError(fmt::format("-f is given {} times, and this command reads one text; join the files first",
                                arguments.files.size()));
  }
  return arguments.files.empty() ? std::nullopt : std::optional(arguments.files.front());
}

std::string read_text(const std::string& path) {
  const std::string label = path == "-" ? "standard input" : fmt::format("'{}'", path);
  return document_of(read_all(path, label), label);
}

void require_utf8(std::string_view text, std::string_view what) {
  if (const auto offset = text::find_invalid_utf8(text)) {
    throw UserError(fmt::format("{} is not UTF-8: byte {} (0x{:02x}) begins no character", what, *offset,
                                static_cast<unsigned char>(text[*offset])));
  }
}

}  // namespace glimpse::cli
