#include "glimpse/calibrate/race.h"

#include <tuple>

#include "glimpse/policies/choose_method.h"

namespace glimpse::calibrate {
namespace {

std::optional<std::size_t> best_of(std::span<const Racer> racers, std::size_t race, double dense_ms, int questions) {
  const auto runs = [&](const Racer& racer) {
    return !racer.refused && racer.ms[race] < dense_ms && racer.lost <= policies::allowed_losses(questions);
  };
  double fastest = dense_ms;
  for (const Racer& racer : racers) {
    if (runs(racer) && racer.ms[race] < fastest) fastest = racer.ms[race];
  }
  const auto rank = [&](const Racer& racer) {
    return std::tuple(racer.lost, racer.asked < questions, racer.divergence, racer.ms[race]);
  };
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < racers.size(); ++i) {
    if (!runs(racers[i]) || racers[i].ms[race] > fastest * policies::kCloseTimes) continue;
    if (!best || rank(racers[i]) < rank(racers[*best])) best = i;
  }
  return best;
}

}  // namespace

std::optional<std::size_t> next_racer(std::span<const Racer> racers, const std::array<double, kRaces>& dense_ms,
                                      int questions) {
  for (std::size_t race = 0; race < kRaces; ++race) {
    const std::optional<std::size_t> best = best_of(racers, race, dense_ms[race], questions);
    if (best && racers[*best].asked < questions) return best;
  }
  return std::nullopt;
}

}  // namespace glimpse::calibrate
