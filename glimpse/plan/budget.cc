#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/plan/checks.h"

namespace glimpse::plan {
namespace {

constexpr std::string_view kForms =
    "write tokens (1024), a share of the context (10%), p=0.99, tau=1e-4 or coverage=0.98";
constexpr std::string_view kMinimum = ",min=";

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  throw UserError(fmt::format("budget '{}': {}", excerpt(text), why));
}

// The whole text as a number; nothing for junk before or after, NaN and infinity are left to budget_problem.
std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Budget checked(std::string_view text, const Budget& budget) {
  if (const std::string problem = budget_problem(budget); !problem.empty()) refuse(text, problem);
  return budget;
}

Budget parse_share(std::string_view text, std::string_view body) {
  // The percent sign moves the decimal point in the text, so that 10% is the double nearest to 0.1.
  std::optional<double> value;
  if (body.find_first_of("eE") == std::string_view::npos) value = parse_number(std::string(body) + "e-2");
  if (!value) value = parse_number(body);  // "nan%", "inf%", "1e3%"
  if (!value) refuse(text, fmt::format("'{}' is not a number; {}", excerpt(body), kForms));
  if (std::isfinite(*value) && body.find_first_of("eE") != std::string_view::npos) {
    refuse(text, "a share is written without exponent, such as 0.5%");
  }
  return {BudgetRule::ratio, *value};
}

Budget parse_tokens(std::string_view text, std::string_view body) {
  const std::optional<double> value = parse_number(body);
  if (!value) refuse(text, fmt::format("is not a budget; {}", kForms));
  if (std::isfinite(*value) && !all_digits(body)) {
    if (*value <= 0) refuse(text, fmt::format("holds no token; {}", kForms));
    if (*value < 1) refuse(text, fmt::format("is neither tokens nor a share; for a share write {:g}%", *value * 100));
    refuse(text, fmt::format("tokens are a whole number in plain digits; {}", kForms));
  }
  return {BudgetRule::tokens, *value};
}

Budget parse_named(std::string_view text, std::string_view body, std::size_t equals) {
  const std::string_view key = body.substr(0, equals);
  Budget budget;
  if (key == "p" || key == "coverage") {
    budget.rule = BudgetRule::mass;
  } else if (key == "tau") {
    budget.rule = BudgetRule::threshold;
  } else {
    refuse(text, fmt::format("unknown kind '{}'; {}", excerpt(key), kForms));
  }
  const std::optional<double> value = parse_number(body.substr(equals + 1));
  if (!value) refuse(text, fmt::format("'{}' is not a number; {}", excerpt(body.substr(equals + 1)), kForms));
  budget.value = *value;
  return budget;
}

// Shortest decimal text of value * 100 that reads back as the same value: the point is moved in the digits.
std::string percent(double value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t e = text.find('e');
  if (e == std::string_view::npos) return std::string(text);  // nan, inf
  std::string digits;
  std::copy_if(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(e), std::back_inserter(digits),
               [](char c) { return c != '.' && c != '-'; });
  int exponent = 0;
  const std::string_view exponent_text = text.substr(text[e + 1] == '+' ? e + 2 : e + 1);
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  const int point = exponent + 3;  // digits before the decimal point, after moving it by two
  const std::string sign = value < 0 ? "-" : "";
  if (point <= 0) return sign + "0." + std::string(static_cast<std::size_t>(-point), '0') + digits;
  const auto whole = static_cast<std::size_t>(point);
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0');
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace

std::string budget_problem(const Budget& budget) {
  const double value = budget.value;
  if (!std::isfinite(value)) return fmt::format("{} is not a finite number; {}", value, kForms);
  if (budget.at_least != 1 && budget.rule != BudgetRule::ratio) {
    return fmt::format("a minimum of {} tokens goes with a share only, such as 10%,min=128", budget.at_least);
  }
  if (budget.at_least < 1 || budget.at_least > kMaxTokens) {
    return fmt::format("a minimum of {} tokens is outside 1 to {}", budget.at_least, kMaxTokens);
  }
  switch (budget.rule) {
    case BudgetRule::tokens:
      if (value < 1) return fmt::format("{:g} tokens hold nothing; give at least 1", value);
      if (value != std::floor(value)) return fmt::format("{:g} tokens: give a whole number", value);
      if (value > kMaxTokens) return fmt::format("{:g} tokens are over the limit of {}", value, kMaxTokens);
      return {};
    case BudgetRule::ratio:
      if (value <= 0) return fmt::format("a share of {:g} % keeps nothing; give more than 0%", value * 100);
      if (value > 1) {
        return fmt::format("a share of {:g} % is more than the context; give at most 100%", value * 100);
      }
      return {};
    case BudgetRule::mass:
      if (value <= 0 || value > 1) {
        return fmt::format("a softmax mass of {:g} is outside (0, 1]; give one such as p=0.99", value);
      }
      return {};
    case BudgetRule::threshold:
      if (value <= 0 || value >= 1) {
        return fmt::format("a probability threshold of {:g} is outside (0, 1); give one such as tau=1e-4", value);
      }
      return {};
  }
  return fmt::format("unknown rule {}", static_cast<int>(budget.rule));
}

std::int64_t budget_tokens(const Budget& budget, std::int64_t tokens) {
  double allowed = static_cast<double>(tokens);
  if (budget.rule == BudgetRule::tokens) {
    allowed = budget.value;
  } else if (budget.rule == BudgetRule::ratio) {
    // 0.29 * 100 is 28.999999999999996 in doubles; the share that the user wrote gives 29.
    const double product = budget.value * static_cast<double>(tokens);
    const double nearest = std::round(product);
    allowed = std::abs(product - nearest) <= 1e-12 * std::max(1.0, nearest) ? nearest : std::floor(product);
    allowed = std::max(allowed, static_cast<double>(budget.at_least));
  }
  allowed = std::min(allowed, static_cast<double>(tokens));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(allowed));
}

std::string to_string(const Budget& budget) {
  switch (budget.rule) {
    case BudgetRule::tokens:
      return fmt::format("{:.0f}", budget.value);
    case BudgetRule::ratio: {
      const std::string minimum = budget.at_least > 1 ? fmt::format("{}{}", kMinimum, budget.at_least) : "";
      return percent(budget.value) + "%" + minimum;
    }
    case BudgetRule::mass:
      return fmt::format("p={}", budget.value);
    case BudgetRule::threshold:
      return fmt::format("tau={}", budget.value);
  }
  check(false, "unknown budget rule");
  return {};
}

Budget parse_budget(std::string_view text) {
  std::string_view body = text;
  std::optional<std::string_view> minimum;
  if (const std::size_t at = body.find(kMinimum); at != std::string_view::npos) {
    minimum = body.substr(at + kMinimum.size());
    body = body.substr(0, at);
  }
  if (body.empty()) refuse(text, fmt::format("is empty; {}", kForms));
  Budget budget;
  if (body.back() == '%') {
    budget = parse_share(text, body.substr(0, body.size() - 1));
  } else if (const std::size_t equals = body.find('='); equals != std::string_view::npos) {
    budget = parse_named(text, body, equals);
  } else {
    budget = parse_tokens(text, body);
  }
  if (minimum) {
    if (budget.rule != BudgetRule::ratio) refuse(text, "a minimum goes with a share only, such as 10%,min=128");
    int least = 0;
    const auto [end, error] = std::from_chars(minimum->data(), minimum->data() + minimum->size(), least);
    if (!all_digits(*minimum) || error != std::errc()) {
      refuse(text, fmt::format("the minimum '{}' is not a whole number of tokens", *minimum));
    }
    budget.at_least = least;
  }
  return checked(text, budget);
}

}  // namespace glimpse::plan
