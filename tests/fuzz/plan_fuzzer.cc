// Plan and profile JSON on any bytes: each is read or ends in UserError, and what was read survives a round trip;
// anything else is a finding. The corpus starts from the good files that plan_seeds writes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "glimpse/base/error.h"
#include "glimpse/plan/plan.h"
#include "glimpse/plan/profile.h"

namespace {

// What `read` makes of the text, or nothing where it is refused.
template <class Read>
auto accepted(std::string_view text, Read&& read) -> std::optional<decltype(read(text))> {
  try {
    return read(text);
  } catch (const glimpse::UserError&) {
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace glimpse::plan;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // Any context: 0, one token, and far more than a model has.
  if (const auto plan = accepted(text, [](std::string_view t) { return from_json(t); })) {
    if (!(from_json(to_json(*plan)) == *plan)) std::abort();
    if (explain(*plan).empty()) std::abort();
    for (const std::int64_t tokens : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 40}) {
      is_dense_at(*plan, tokens);
      for (const Selector& selector : plan->selectors) {
        if (always_tokens(selector) < 1 || window_tokens(selector, tokens) > tokens) std::abort();
      }
    }
  }
  if (const auto profile = accepted(text, [](std::string_view t) { return parse_profile(t); })) {
    if (!(parse_profile(to_json(*profile)) == *profile)) std::abort();
    explain(*profile);
  }
  return 0;
}
