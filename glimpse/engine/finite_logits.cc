#include "glimpse/engine/finite_logits.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "glimpse/base/error.h"
#include "glimpse/model/not_finite.h"

namespace glimpse::engine {
namespace {

/// No branch, so that the compiler takes many at once.
bool all_finite(std::span<const float> values) {
  std::uint32_t bad = 0;
  for (const float value : values) {
    bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(value) & 0x7f800000U) == 0x7f800000U);
  }
  return bad == 0;
}

/// What made logits so, and the cure.
std::string why_not_finite(LoadedModel& loaded, KvType kv_type) {
  if (!loaded.damage) loaded.damage = model::first_not_finite(loaded.model.file()).value_or("");
  const std::string file = loaded.path.string();
  if (!loaded.damage->empty()) {
    return fmt::format("'{}' is damaged ({}); fetch or convert it again", file, *loaded.damage);
  }
  if (kv_type == KvType::f16) {
    return fmt::format(
        "the likely cause is a key or value over 65504, the largest number of an f16 cache; take --kv-type bf16. If "
        "that changes nothing, '{}' is damaged: fetch or convert it again",
        file);
  }
  return fmt::format("numbers grow past the largest float, so '{}' is likely damaged; fetch or convert it again", file);
}

}  // namespace

std::optional<NotFinite> first_not_finite(std::span<const float> logits, std::size_t vocabulary) {
  if (all_finite(logits)) return {};
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  const auto width = static_cast<std::ptrdiff_t>(vocabulary);
  return NotFinite{(bad - logits.begin()) / width, (bad - logits.begin()) % width, *bad};
}

std::exception_ptr not_finite_error(LoadedModel& loaded, KvType kv_type, std::int64_t position,
                                    const NotFinite* found) noexcept {
  const auto text = [&](std::string_view why) {
    const std::string one = found == nullptr ? "" : fmt::format(" (token id {} has {})", found->token, found->value);
    return fmt::format("the logits behind token {} are not finite{}: {}", position, one, why);
  };
  try {
    return std::make_exception_ptr(UserError(text(why_not_finite(loaded, kv_type))));
  } catch (...) {  // no memory to look at the weights
  }
  try {
    return std::make_exception_ptr(UserError(
        text("the model is likely damaged, and memory is too short to say where; fetch or convert it again")));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace glimpse::engine
