// What a forward pass does with each of its sequences: the one description that engine, executor and attention share.
// Plain values; whoever makes a pass owns what they point to until Runner::end().
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>

#include "glimpse/attention/program.h"
#include "glimpse/attention/sequence_state.h"
#include "glimpse/kv/cache.h"

namespace glimpse::attention {

/// What the rows of one sequence are in a pass.
enum class PassKind : std::uint8_t {
  prompt,        ///< a chunk of a prompt
  decode,        ///< one token, read as the plan says
  dense_decode,  ///< one token that reads everything, whatever the plan says; the state learns from it as from decode
  draft,         ///< one token, read as the plan says, that a verification takes back: nothing stays in the state
  verify,        ///< a dense pass over what was drafted; the state learns nothing from it
  correct,       ///< a dense pass over tokens that are in the cache: their K and V are replaced (cache correction)
};

/// One row whose query is the newest token's.
constexpr bool decodes(PassKind kind) {
  return kind == PassKind::decode || kind == PassKind::dense_decode || kind == PassKind::draft;
}

/// One sequence's rows in a forward pass. Rows of a sequence are consecutive.
struct SequenceRows {
  kv::SequenceId sequence = -1;
  const Program* program = nullptr;
  SequenceState* state = nullptr;
  int first_row = 0;
  int rows = 1;  ///< 1 where the kind decodes
  PassKind kind = PassKind::decode;
  bool audit = false;                       ///< where the kind decodes: measure what every head's set captures
  std::int64_t committed = 0;               ///< draft: tokens that are part of the state; later ones are drafted too
  std::int64_t position = 0;                ///< logical position of the first row
  std::int64_t prompt_end = 0;              ///< prompt: where the prompt ends that this chunk belongs to
  const std::atomic<bool>* stop = nullptr;  ///< any thread may set it: what is left of the rows is not wanted any more

  bool decodes() const { return attention::decodes(kind); }
};

/// The failure of rows whose `stop` was set while they ran.
class Stopped : public std::runtime_error {
 public:
  Stopped() : std::runtime_error("stopped while it ran") {}
};

}  // namespace glimpse::attention
