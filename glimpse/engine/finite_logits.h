// Logits that are not finite: where, and what made them so. One thread at a time. Inside engine only.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>

#include "glimpse/base/dtype.h"
#include "glimpse/engine/loaded_model.h"

namespace glimpse::engine {

/// A logit that is NaN or infinite.
struct NotFinite {
  std::int64_t row = 0;      ///< of the logits
  std::ptrdiff_t token = 0;  ///< the id that the logit is of
  float value = 0;
};

/// The first one of logits [rows, vocabulary].
std::optional<NotFinite> first_not_finite(std::span<const float> logits, std::size_t vocabulary);

/// The error of the sequence whose token at `position` has them, a UserError; `found` is null where the logits are
/// gone. The first time it reads every weight.
std::exception_ptr not_finite_error(LoadedModel& loaded, KvType kv_type, std::int64_t position,
                                    const NotFinite* found) noexcept;

}  // namespace glimpse::engine
