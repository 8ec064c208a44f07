#include "glimpse/policies/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/base/suggest.h"

namespace glimpse::policies {

OptionReader::OptionReader(std::string_view policy, std::span<const OptionHelp> table, const PolicyOptions& options)
    : policy_(policy), table_(table), options_(options) {
  std::vector<std::string_view> keys;
  for (const OptionHelp& row : table) keys.push_back(row.key);
  for (const auto& [key, value] : options.extra) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    const std::string_view host = std::string_view(key).substr(0, key.find('.'));
    const bool inner = host.size() < key.size() && std::any_of(table.begin(), table.end(), [&](const OptionHelp& row) {
                         return row.selector && row.key == host;
                       });
    if (inner) continue;  // `nested` knows which selector it must belong to
    if (keys.empty())
      throw UserError(fmt::format("policy '{}' takes no --attn-opt; remove '{}'", policy, excerpt(key)));
    throw UserError(unknown_name(fmt::format("--attn-opt key of policy '{}':", policy), key, keys));
  }
}

OptionReader::OptionReader(const OptionReader& outer, std::string prefix, std::span<const OptionHelp> table)
    : policy_(outer.policy_), table_(table), options_(outer.options_), prefix_(std::move(prefix)) {}

OptionReader OptionReader::nested(std::string_view key, std::string_view name,
                                  std::span<const OptionHelp> table) const {
  OptionReader reader(*this, fmt::format("{}.", key), table);
  std::vector<std::string_view> keys;
  for (const OptionHelp& row : table) keys.push_back(row.key);
  for (const auto& [given, value] : options_.extra) {
    if (!given.starts_with(reader.prefix_)) continue;
    const std::string_view inner = std::string_view(given).substr(reader.prefix_.size());
    if (std::find(keys.begin(), keys.end(), inner) != keys.end()) continue;
    refuse(given, value,
           keys.empty() ? fmt::format("{}={} has no options; leave it out", key, name)
                        : unknown_name(fmt::format("option of {}={}:", key, name), inner, keys));
  }
  return reader;
}

int OptionReader::not_negative(std::string_view flag, const std::optional<int>& value, int otherwise) const {
  if (value && *value < 0) {
    throw UserError(fmt::format("{} {} is negative; give 0 or more tokens", flag, *value));
  }
  return value.value_or(otherwise);
}

plan::Budget OptionReader::counted_budget(const plan::Budget& otherwise, std::string_view why) const {
  const plan::Budget budget = options_.budget.value_or(otherwise);
  if (budget.rule != plan::BudgetRule::tokens && budget.rule != plan::BudgetRule::ratio) {
    throw UserError(
        fmt::format("policy '{}' {}, so --attn-budget {} has no meaning for it; give tokens (1024) or a "
                    "share (10%)",
                    policy_, why, to_string(budget)));
  }
  return budget;
}

int OptionReader::sink(int otherwise) const {
  return not_negative("--attn-sink", options_.sink, otherwise);
}
int OptionReader::local(int otherwise) const {
  return not_negative("--attn-local", options_.local, otherwise);
}

void OptionReader::refuse_flag(std::string_view flag, bool given, std::string_view why) const {
  if (!given || options_.if_of_use.contains(flag)) return;
  throw UserError(fmt::format("policy '{}' has no use for {}: {}", policy_, flag, why));
}

void OptionReader::refuse_budget(std::string_view why) const {
  refuse_flag("--attn-budget", options_.budget.has_value(), why);
}
void OptionReader::refuse_block(std::string_view why) const {
  refuse_flag("--attn-block", options_.block.has_value(), why);
}
void OptionReader::refuse_sink(std::string_view why) const {
  refuse_flag("--attn-sink", options_.sink.has_value(), why);
}
void OptionReader::refuse_local(std::string_view why) const {
  refuse_flag("--attn-local", options_.local.has_value(), why);
}

std::optional<std::string_view> OptionReader::text(std::string_view key) const {
  const bool known = std::any_of(table_.begin(), table_.end(), [key](const OptionHelp& row) { return row.key == key; });
  check(known, "an option that is read stands in its policy's table");
  const auto it = options_.extra.find(prefix_ + std::string(key));
  if (it == options_.extra.end()) return std::nullopt;
  return std::string_view(it->second);
}

std::string_view OptionReader::choice(std::string_view key, std::span<const std::string_view> words) const {
  const std::optional<std::string_view> value = text(key);
  if (!value) return words[0];
  const auto it = std::find(words.begin(), words.end(), *value);
  if (it == words.end()) refuse(key, *value, unknown_name("word", *value, words));
  return *it;
}

std::optional<std::string_view> OptionReader::beside(std::string_view key,
                                                     std::span<const std::string_view> words) const {
  const std::optional<std::string_view> value = text(key);
  if (!value || std::find(words.begin(), words.end(), *value) != words.end()) return std::nullopt;
  return value;
}

int OptionReader::whole(std::string_view key, std::string_view value, std::string_view part,
                        const WholeRange& range) const {
  std::string forms;
  if (range.low <= range.high) forms = fmt::format("{} from {} to {}", range.noun, range.low, range.high);
  if (!range.words.empty()) forms += fmt::format("{}{}", forms.empty() ? "" : " or ", fmt::join(range.words, ", "));
  if (forms.empty()) refuse(key, value, "this model has no such layer; leave the option out");
  int number = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
  if (error != std::errc() || end != part.data() + part.size()) refuse(key, value, "give " + forms);
  if (number < range.low || number > range.high) refuse(key, value, "out of range; give " + forms);
  return number;
}

std::optional<int> OptionReader::layer(std::string_view key, int first, int last,
                                       std::span<const std::string_view> words) const {
  const std::optional<std::string_view> value = beside(key, words);
  if (!value) return std::nullopt;
  return whole(key, *value, *value, {"a layer", first, last, words});
}

std::optional<std::vector<int>> OptionReader::layers(std::string_view key, int first, int last,
                                                     std::span<const std::string_view> words) const {
  const std::optional<std::string_view> value = beside(key, words);
  if (!value) return std::nullopt;
  std::vector<int> list;
  for (std::size_t begin = 0; begin <= value->size();) {
    const std::size_t end = std::min(value->find('+', begin), value->size());
    list.push_back(
        whole(key, *value, value->substr(begin, end - begin), {"layers in the form 2+8+18, each", first, last, words}));
    if (list.size() > 1 && list.back() <= list[list.size() - 2]) {
      refuse(key, *value, "give the layers in rising order, each once");
    }
    begin = end + 1;
  }
  return list;
}

std::optional<int> OptionReader::integer(std::string_view key, int low, int high,
                                         std::span<const std::string_view> words) const {
  const std::optional<std::string_view> value = beside(key, words);
  if (!value) return std::nullopt;
  return whole(key, *value, *value, {"a whole number", low, high, words});
}

double OptionReader::number(std::string_view key, double low, double high, double otherwise) const {
  const std::optional<std::string_view> value = text(key);
  if (!value) return otherwise;
  double number = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
  const bool read = error == std::errc() && end == value->data() + value->size();
  if (!read || !(number >= low && number <= high)) {
    refuse(key, *value, fmt::format("give a number from {} to {}", low, high));
  }
  return number;
}

bool OptionReader::on(std::string_view key, bool otherwise) const {
  constexpr std::array<std::string_view, 2> kOn{"on", "off"};
  constexpr std::array<std::string_view, 2> kOff{"off", "on"};
  return choice(key, otherwise ? kOn : kOff) == "on";
}

std::optional<plan::Budget> OptionReader::count(std::string_view key, std::span<const std::string_view> words) const {
  const std::optional<std::string_view> value = beside(key, words);
  if (!value) return std::nullopt;
  const std::string forms = fmt::format("give a number such as 32 or a share such as 12.5%{}{}",
                                        words.empty() ? "" : " or ", fmt::join(words, ", "));
  plan::Budget budget;
  try {
    budget = plan::parse_budget(*value);
  } catch (const UserError&) {
    refuse(key, *value, forms);
  }
  const bool counted = budget.rule == plan::BudgetRule::tokens || budget.rule == plan::BudgetRule::ratio;
  if (!counted || budget.at_least != 1) refuse(key, *value, forms);
  return budget;
}

void OptionReader::warn(std::string_view text) const {
  if (options_.warnings != nullptr) options_.warnings->push_back(fmt::format("policy '{}': {}", policy_, text));
}

void OptionReader::leave_profile(std::string_view why) const {
  if (options_.profile == nullptr) return;
  if (options_.profile_unused != nullptr) {
    *options_.profile_unused = true;
  } else {
    warn(why);
  }
}

void OptionReader::warn_guess(std::string_view guessed) const {
  if (options_.guessed != nullptr) *options_.guessed = true;
  warn(fmt::format("no profile: {}; 'glimpse calibrate -m MODEL' makes a profile that knows", guessed));
}

void OptionReader::refuse(std::string_view key, std::string_view value, std::string_view text) const {
  throw UserError(
      fmt::format("--attn-opt {}{}={} of policy '{}': {}", prefix_, excerpt(key), excerpt(value), policy_, text));
}

plan::Budget with_room(plan::Budget budget, const plan::Selector& selector) {
  if (budget.rule != plan::BudgetRule::ratio || selector.block < 1) return budget;  // validation refuses the block
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  budget.at_least = std::max(budget.at_least, static_cast<int>(std::min(plan::always_tokens(selector), kMost)));
  return budget;
}

}  // namespace glimpse::policies
