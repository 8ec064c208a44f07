// Logits that are not finite end the request that they belong to.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "glimpse/base/error.h"
#include "glimpse/engine/state.h"
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

}  // namespace

std::string Engine::State::why_not_finite() {
  if (!damage) damage = model::first_not_finite(model.file()).value_or("");  // once: it reads every weight
  const std::string file = options.model.string();
  if (!damage->empty()) return fmt::format("'{}' is damaged ({}); fetch or convert it again", file, *damage);
  if (options.kv_type == KvType::f16) {
    return fmt::format(
        "the likely cause is a key or value over 65504, the largest number of an f16 cache; take --kv-type bf16. If "
        "that changes nothing, '{}' is damaged: fetch or convert it again",
        file);
  }
  return fmt::format("numbers grow past the largest float, so '{}' is likely damaged; fetch or convert it again", file);
}

std::exception_ptr Engine::State::not_finite(const NotFinite& found) noexcept {
  const auto text = [&](std::string_view why) {
    return fmt::format("the logits behind token {} are not finite (token id {} has {}): {}", found.position,
                       found.token, found.value, why);
  };
  try {
    return std::make_exception_ptr(UserError(text(why_not_finite())));
  } catch (...) {  // no memory to look at the weights
  }
  try {
    return std::make_exception_ptr(UserError(
        text("the model is likely damaged, and memory is too short to say where; fetch or convert it again")));
  } catch (...) {
    return std::current_exception();
  }
}

void Engine::State::refuse_not_finite(std::span<const float> logits) noexcept {
  const auto vocabulary = static_cast<std::size_t>(model.config().vocabulary);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const PassPart& part = parts[i];
    const std::size_t own_rows = part.logits == PassPart::Logits::none  ? 0
                                 : part.logits == PassPart::Logits::all ? part.tokens.size()
                                                                        : 1;
    const auto own = logits.first(own_rows * vocabulary);
    logits = logits.subspan(own.size());
    if (failures[i] || all_finite(own)) continue;
    const auto bad = std::find_if(own.begin(), own.end(), [](float x) { return !std::isfinite(x); });
    const std::int64_t row = (bad - own.begin()) / static_cast<std::ptrdiff_t>(vocabulary);
    const std::int64_t position =
        part.sequence->length + static_cast<std::int64_t>(part.tokens.size() - own_rows) + row;
    failures[i] = not_finite({position, (bad - own.begin()) % static_cast<std::ptrdiff_t>(vocabulary), *bad});
    // The runner counted the pass whose tokens are taken back.
    attention::SequenceState& counted = part.sequence->attention;
    counted.prompt_tokens = std::min(counted.prompt_tokens, part.sequence->length);
    if (part.kind == attention::PassKind::decode || part.kind == attention::PassKind::dense_decode)
      --counted.decode_steps;
    recover(part, failures[i]);
  }
}

}  // namespace glimpse::engine
