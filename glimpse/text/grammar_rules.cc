#include "glimpse/text/grammar_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/text/utf8.h"

namespace glimpse::text {
namespace {

using Kind = GrammarElement::Kind;
using Ranges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
using Sequence = std::vector<GrammarElement>;

constexpr std::uint32_t kLastCodePoint = 0x10ffff;
constexpr std::uint32_t kMostTimes = 2000;  ///< that a repetition counts; libllama's bound
constexpr int kMostNesting = 256;           ///< parentheses inside each other

void tidy(Ranges& ranges) {
  std::sort(ranges.begin(), ranges.end());
  Ranges out;
  for (const auto& [low, high] : ranges) {
    if (!out.empty() && low <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, high);
    } else {
      out.emplace_back(low, high);
    }
  }
  ranges = std::move(out);
}

Ranges all_but(const Ranges& ranges) {
  Ranges out;
  std::uint32_t next = 0;
  for (const auto& [low, high] : ranges) {
    if (low > next) out.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kLastCodePoint) out.emplace_back(next, kLastCodePoint);
  return out;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  GrammarRules read() {
    if (const auto bad = find_invalid_utf8(text_)) {
      throw UserError(fmt::format("the grammar is not valid UTF-8 at byte {}; give UTF-8", *bad));
    }
    skip_space(true);
    while (at_ < text_.size()) read_rule();
    const auto root = names_.find("root");
    if (root == names_.end()) throw UserError("the grammar has no rule 'root', where it begins; add one");
    for (const auto& [name, rule] : names_) {
      if (rules_[rule].empty()) {
        throw UserError(fmt::format("the grammar has no rule '{}', which another one names; add it", excerpt(name)));
      }
    }
    return flat(root->second);
  }

 private:
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool ended() const { return at_ >= text_.size(); }
  [[noreturn]] void fail(std::string_view what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    const std::string where = ended() ? "where it ends" : fmt::format("at '{}'", excerpt(text_.substr(at_, 40)));
    throw UserError(fmt::format("the grammar cannot be read: {} in line {}, {}; correct it", what, line, where));
  }

  void skip_space(bool over_lines) {
    while (!ended()) {
      const char c = peek();
      if (c == '#') {
        while (!ended() && peek() != '\n' && peek() != '\r') ++at_;
      } else if (c == ' ' || c == '\t' || (over_lines && (c == '\r' || c == '\n'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  static bool in_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  }
  std::string_view read_name() {
    const std::size_t begin = at_;
    while (in_name(peek())) ++at_;
    if (at_ == begin) fail("a rule's name is missing");
    return text_.substr(begin, at_ - begin);
  }
  std::uint32_t rule_named(std::string_view name) {
    const auto [found, added] = names_.try_emplace(std::string(name), static_cast<std::uint32_t>(rules_.size()));
    if (added) rules_.emplace_back();
    return found->second;
  }
  std::uint32_t new_rule(std::vector<Sequence> alternatives) {
    rules_.push_back(std::move(alternatives));
    return static_cast<std::uint32_t>(rules_.size() - 1);
  }
  void count(std::size_t elements) {
    elements_ += elements;
    if (elements_ <= kMostGrammarElements) return;
    throw UserError(
        fmt::format("the grammar comes to more than {} elements when its repetitions are written out; "
                    "repeat less",
                    kMostGrammarElements));
  }

  void read_rule() {
    const std::uint32_t rule = rule_named(read_name());
    skip_space(false);
    if (text_.substr(at_, 3) != "::=") fail("'::=' is missing");
    at_ += 3;
    skip_space(true);
    rules_[rule] = {};
    std::vector<Sequence> alternatives = read_alternatives(0);
    rules_[rule] = std::move(alternatives);
    if (!ended() && peek() != '\n' && peek() != '\r') fail("a rule's line does not end");
    skip_space(true);
  }

  std::vector<Sequence> read_alternatives(int depth) {
    if (depth > kMostNesting) fail("parentheses are nested too deeply");
    std::vector<Sequence> out{read_sequence(depth)};
    while (peek() == '|') {
      ++at_;
      skip_space(true);
      out.push_back(read_sequence(depth));
    }
    return out;
  }

  Sequence read_sequence(int depth) {
    Sequence out, item;
    const auto flush = [&] {
      out.insert(out.end(), item.begin(), item.end());
      item.clear();
    };
    for (; !ended(); skip_space(depth > 0)) {
      const char c = peek();
      if (c == '*' || c == '+' || c == '?' || c == '{') {
        item = repeated(std::move(item), c);
        continue;
      }
      if (c != '"' && c != '[' && c != '(' && c != '.' && !in_name(c)) {
        if (c == '<' || c == '!') fail("elements that are tokens are not there");
        break;
      }
      flush();
      count(1);
      if (c == '"') {
        item = read_literal();
      } else if (c == '[') {
        item = {read_set()};
      } else if (c == '.') {
        ++at_;
        item = {set_of({{0, kLastCodePoint}})};
      } else if (c == '(') {
        ++at_;
        skip_space(true);
        item = {{Kind::rule, new_rule(read_alternatives(depth + 1))}};
        if (peek() != ')') fail("')' is missing");
        ++at_;
      } else {
        item = {{Kind::rule, rule_named(read_name())}};
      }
    }
    flush();
    return out;
  }

  std::uint32_t read_hex(int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("an escape has too few hexadecimal digits");
      value = value << 4 | static_cast<std::uint32_t>(digit);
    }
    if (value > kLastCodePoint) fail("an escape is over U+10FFFF");
    return value;
  }

  std::uint32_t read_char() {
    if (ended()) fail("a text or set does not end");
    if (peek() != '\\') {
      const std::size_t length = utf8_head(text_.substr(at_)).length;
      const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(peek(i))); };
      constexpr std::uint32_t kHead[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
      std::uint32_t value = byte(0) & kHead[length];
      for (std::size_t i = 1; i < length; ++i) value = value << 6 | (byte(i) & 0x3f);
      at_ += length;
      return value;
    }
    const char c = peek(1);
    at_ += 2;
    switch (c) {
      case 'x':
        return read_hex(2);
      case 'u':
        return read_hex(4);
      case 'U':
        return read_hex(8);
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'n':
        return '\n';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
        return static_cast<std::uint32_t>(c);
      default:
        at_ -= 2;
        fail("an escape is not known");
    }
  }

  GrammarElement set_of(Ranges ranges) {
    const auto [found, added] = sets_.try_emplace(std::move(ranges), static_cast<std::uint32_t>(sets_.size()));
    return {Kind::chars, found->second};
  }

  Sequence read_literal() {
    Sequence out;
    ++at_;
    while (peek() != '"' || ended()) {
      const std::uint32_t c = read_char();
      out.push_back(set_of({{c, c}}));
      count(1);
    }
    ++at_;
    return out;
  }

  GrammarElement read_set() {
    ++at_;
    const bool inverse = peek() == '^';
    if (inverse) ++at_;
    Ranges ranges;
    while (peek() != ']' || ended()) {
      const std::uint32_t low = read_char();
      std::uint32_t high = low;
      if (peek() == '-' && peek(1) != ']') {
        ++at_;
        high = read_char();
        if (high < low) fail("a range ends before it begins");
      }
      ranges.emplace_back(low, high);
    }
    ++at_;
    if (ranges.empty() && !inverse) fail("a set has nothing in it");
    tidy(ranges);
    if (inverse) ranges = all_but(ranges);
    return set_of(std::move(ranges));
  }

  std::uint32_t read_number() {
    std::uint32_t value = 0;
    if (peek() < '0' || peek() > '9') fail("a number is missing");
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      value = std::min<std::uint32_t>(value * 10 + static_cast<std::uint32_t>(peek() - '0'), 1u << 24);
    }
    return value;
  }

  /// The least and the most times (empty: without end) of what stands at the cursor.
  std::pair<std::uint32_t, std::optional<std::uint32_t>> read_times(char c) {
    ++at_;
    if (c == '*') return {0, std::nullopt};
    if (c == '+') return {1, std::nullopt};
    if (c == '?') return {0, 1};
    skip_space(true);
    const std::uint32_t least = read_number();
    std::optional<std::uint32_t> most = least;
    skip_space(true);
    if (peek() == ',') {
      ++at_;
      skip_space(true);
      most.reset();
      if (peek() != '}') most = read_number();
      skip_space(true);
    }
    if (peek() != '}') fail("'}' is missing");
    ++at_;
    if (least > kMostTimes) fail(fmt::format("a repetition of more than {} times", kMostTimes));
    if (most && *most > kMostTimes) most.reset();
    if (most && *most < least) fail("a repetition whose most is below its least");
    return {least, most};
  }

  Sequence repeated(Sequence item, char c) {
    if (item.empty()) fail("a repetition of nothing");
    const auto [least, most] = read_times(c);
    if (item.size() > 1) item = {{Kind::rule, new_rule({std::move(item)})}};
    const GrammarElement one = item.front();
    Sequence out(least, one);
    count(least);
    if (!most) {
      const auto more = static_cast<std::uint32_t>(rules_.size());
      new_rule({{one, {Kind::rule, more}}, {}});
      out.push_back({Kind::rule, more});
      count(4);
      return out;
    }
    std::optional<std::uint32_t> rest;
    for (std::uint32_t i = least; i < *most; ++i) {
      Sequence next{one};
      if (rest) next.push_back({Kind::rule, *rest});
      rest = new_rule({std::move(next), {}});
      count(4);
    }
    if (rest) out.push_back({Kind::rule, *rest});
    return out;
  }

  GrammarRules flat(std::uint32_t root) {
    GrammarRules out;
    out.root = root;
    out.alternatives.resize(rules_.size());
    for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
      for (const Sequence& alternative : rules_[rule]) {
        out.alternatives[rule].push_back(static_cast<std::uint32_t>(out.elements.size()));
        out.elements.insert(out.elements.end(), alternative.begin(), alternative.end());
        out.elements.push_back({});
      }
    }
    out.sets.resize(sets_.size());
    for (const auto& [ranges, index] : sets_) out.sets[index].ranges = ranges;
    return out;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t elements_ = 0;
  std::map<std::string, std::uint32_t, std::less<>> names_;
  std::vector<std::vector<Sequence>> rules_;  ///< without alternatives: named and not yet defined
  std::map<Ranges, std::uint32_t> sets_;
};

std::vector<bool> empty_rules(const GrammarRules& rules) {
  std::vector<bool> empty(rules.alternatives.size());
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t rule = 0; rule < empty.size(); ++rule) {
      if (empty[rule]) continue;
      for (std::uint32_t at : rules.alternatives[rule]) {
        while (rules.elements[at].kind == Kind::rule && empty[rules.elements[at].value]) ++at;
        if (rules.elements[at].kind != Kind::end) continue;
        empty[rule] = changed = true;
        break;
      }
    }
  }
  return empty;
}

/// A rule that another begins with; `returns`: more comes behind it.
struct Beginning {
  std::uint32_t rule = 0;
  bool returns = false;
};

/// Tarjan's strongly connected components, without recursion: rules that begin with each other have one number.
class Circles {
 public:
  explicit Circles(const std::vector<std::vector<Beginning>>& graph)
      : graph_(graph), order_(graph.size()), low_(graph.size()), circle_(graph.size(), 0) {
    for (std::uint32_t rule = 0; rule < graph.size(); ++rule) {
      if (order_[rule] == 0) visit(rule);
    }
  }
  bool together(std::uint32_t a, std::uint32_t b) const { return circle_[a] == circle_[b]; }

 private:
  void open(std::uint32_t rule) {
    order_[rule] = low_[rule] = ++count_;
    stack_.push_back(rule);
    path_.emplace_back(rule, 0);
  }
  void visit(std::uint32_t start) {
    open(start);
    while (!path_.empty()) {
      auto& [rule, next] = path_.back();
      if (next < graph_[rule].size()) {
        const std::uint32_t into = graph_[rule][next++].rule;
        if (order_[into] == 0) {
          open(into);
        } else if (circle_[into] == 0) {
          low_[rule] = std::min(low_[rule], order_[into]);
        }
        continue;
      }
      const std::uint32_t done = rule;
      path_.pop_back();
      if (!path_.empty()) low_[path_.back().first] = std::min(low_[path_.back().first], low_[done]);
      if (low_[done] != order_[done]) continue;
      ++circles_;
      for (std::uint32_t last = stack_.back();; last = stack_.back()) {
        circle_[last] = circles_;
        stack_.pop_back();
        if (last == done) break;
      }
    }
  }

  const std::vector<std::vector<Beginning>>& graph_;
  std::vector<std::uint32_t> order_, low_, circle_;  ///< 0: not yet
  std::vector<std::uint32_t> stack_;
  std::vector<std::pair<std::uint32_t, std::size_t>> path_;
  std::uint32_t count_ = 0, circles_ = 0;
};

/// A rule that begins with itself, with something behind it, would expand without end.
void refuse_left_recursion(const GrammarRules& rules) {
  const std::vector<bool> empty = empty_rules(rules);
  std::vector<std::vector<Beginning>> first(rules.alternatives.size());
  for (std::size_t rule = 0; rule < first.size(); ++rule) {
    for (std::uint32_t at : rules.alternatives[rule]) {
      for (; rules.elements[at].kind == Kind::rule; ++at) {
        first[rule].push_back({rules.elements[at].value, rules.elements[at + 1].kind != Kind::end});
        if (!empty[rules.elements[at].value]) break;
      }
    }
  }
  const Circles circles(first);
  for (std::uint32_t rule = 0; rule < first.size(); ++rule) {
    for (const Beginning& each : first[rule]) {
      if (!each.returns || !circles.together(rule, each.rule)) continue;
      throw UserError("the grammar has a rule that begins with itself (left recursion); put the recursion last");
    }
  }
}

}  // namespace

bool CharSet::has(std::uint32_t code_point) const {
  return meets(code_point, code_point);
}

bool CharSet::meets(std::uint32_t low, std::uint32_t high) const {
  const auto found = std::lower_bound(ranges.begin(), ranges.end(), low,
                                      [](const auto& range, std::uint32_t value) { return range.second < value; });
  return found != ranges.end() && found->first <= high;
}

GrammarRules read_grammar(std::string_view gbnf) {
  GrammarRules rules = Reader(gbnf).read();
  refuse_left_recursion(rules);
  return rules;
}

}  // namespace glimpse::text
