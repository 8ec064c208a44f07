#include "glimpse/calibrate/measured.h"

#include <fmt/format.h>

#include <charconv>
#include <span>

#include "glimpse/base/checksum.h"

namespace glimpse::calibrate {
namespace {

constexpr std::string_view kName = "glimpse_measured ";  // and a version
constexpr int kVersion = 1;
constexpr std::string_view kEnd = "end";

/// Parts of a line between blanks.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}
  std::string_view next() {
    const std::size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return word;
  }
  bool done() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

template <class Number, class... How>
std::optional<Number> number(std::string_view text, How... how) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, how...);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string head_of(std::uint64_t of) {
  return fmt::format("{}{} {:016x}\n", kName, kVersion, of);
}

}  // namespace

std::optional<std::vector<double>> Measured::find(std::uint64_t key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::vector<double>> Measured::find(std::uint64_t key, std::size_t count) const {
  auto found = find(key);
  return found && found->size() == count ? found : std::nullopt;
}

void Measured::add(std::uint64_t key, std::vector<double> values) {
  add({{key, std::move(values)}});
}

void Measured::add(std::map<std::uint64_t, std::vector<double>> values) {
  for (auto& [key, of_key] : values) values_.insert_or_assign(key, std::move(of_key));
  if (on_add_) on_add_(*this);
}

std::string Measured::text() const {
  std::string text = head_of(of_);
  for (const auto& [key, values] : values_) {
    text += fmt::format("{:016x}", key);
    for (const double value : values) text += fmt::format(" {}", value);  // the shortest that reads back the same
    text += '\n';
  }
  return text + std::string(kEnd) + "\n";
}

bool Measured::is_text(std::string_view text) {
  return text.starts_with(kName);
}

std::optional<Measured> Measured::parse(std::string_view text, std::uint64_t of) {
  Measured measured(of);
  const std::string head = head_of(of);
  if (!text.starts_with(head)) return std::nullopt;
  text.remove_prefix(head.size());
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line == kEnd) return text.empty() ? std::optional(measured) : std::nullopt;
    Words words(line);
    const auto key = number<std::uint64_t>(words.next(), 16);
    if (!key) return std::nullopt;
    std::vector<double> values;
    while (!words.done()) {
      const auto value = number<double>(words.next());
      if (!value) return std::nullopt;
      values.push_back(*value);
    }
    measured.values_.insert_or_assign(*key, std::move(values));
  }
  return std::nullopt;
}

std::uint64_t measured_key(const plan::Plan& plan, std::string_view how) {
  const std::string text = plan::to_json(plan) + "\n" + std::string(how);
  return checksum(std::as_bytes(std::span(text)));
}

}  // namespace glimpse::calibrate
