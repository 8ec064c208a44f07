#include "glimpse/base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "glimpse/base/printable.h"

namespace glimpse {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view nearest_name(std::string_view typed, std::span<const std::string_view> known) {
  typed = typed.substr(0, 64);
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(1, typed.size() / 3) + 1;
  for (const std::string_view candidate : known) {
    const std::size_t distance = edit_distance(typed, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string unknown_name(std::string_view kind, std::string_view typed, std::span<const std::string_view> known) {
  const std::string_view near = nearest_name(typed, known);
  const std::string hint = near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
  return fmt::format("unknown {} '{}'{} (known: {})", kind, excerpt(typed), hint, fmt::join(known, ", "));
}

}  // namespace glimpse
