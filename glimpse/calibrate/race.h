// Which row of the table is asked more questions: all are asked a few, and those that may still be taken the rest, the
// most promising first. Pure: a function of times and answers; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>

namespace glimpse::calibrate {

/// Lengths of context that a row is sought for: the calibrated one, and kFar times as many tokens.
inline constexpr std::size_t kRaces = 2;
inline constexpr int kFar = 4;

struct Racer {
  std::array<double, kRaces> ms{};  ///< of a token; infinite where the row may not be taken
  int asked = 0;                    ///< questions so far
  int lost = 0;                     ///< of them: answers fewer than dense attention's, summed over the kinds of task
  double divergence = 0;            ///< KL to dense attention where questions are answered, nats
  bool refused = false;             ///< whatever it answers, it is not taken
};

/// The row that is asked next; none: the race is over. At each length the rows count that are faster than dense
/// attention and have not lost more than policies::allowed_losses(questions), and of these the ones whose token takes
/// little more than the fastest one's (policies::kCloseTimes). The best of them lost the fewest, then has been asked
/// all, then has the least KL, then is the fastest, then comes first. It is asked, until it has been asked all.
std::optional<std::size_t> next_racer(std::span<const Racer> racers, const std::array<double, kRaces>& dense_ms,
                                      int questions);

}  // namespace glimpse::calibrate
