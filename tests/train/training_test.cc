// The training of roles with a loss that is known: how many heads stay open and which, and that an interrupted training
// is the whole one.
#include "glimpse/train/training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>

namespace glimpse::train {
namespace {

constexpr int kHeads = 64, kTarget = 16;

/// What each head's output is worth, over three orders of magnitude, in an order of no meaning; those of even number
/// matter more.
std::vector<double> worths() {
  std::vector<double> worth;
  std::mt19937 random(5);
  for (int i = 0; i < kHeads; ++i) worth.push_back(std::pow(10.0, -static_cast<double>(random() % 1000) / 500));
  std::vector<double> sorted = worth;
  std::sort(sorted.rbegin(), sorted.rend());
  for (double& value : worth) value *= value >= sorted[kTarget - 1] ? 10 : 1;
  return worth;
}

/// sum of worth (1 - z)^2, with noise as of examples.
Loss toy_loss(int step, std::span<const double> gates) {
  static const std::vector<double> worth = worths();
  std::mt19937 random(static_cast<unsigned>(step) + 100);
  Loss loss;
  for (std::size_t i = 0; i < gates.size(); ++i) {
    const double weight = worth[i] * (0.5 + static_cast<double>(random() % 1000) / 1000);
    loss.value += weight * (1 - gates[i]) * (1 - gates[i]);
    loss.by_gate.push_back(-2 * weight * (1 - gates[i]));
  }
  return loss;
}

TrainingOptions options_for(GateKind kind) {
  return {.gate = kind, .heads = kHeads, .target = kTarget, .steps = 800, .rate = 0.03, .seed = 3};
}

RoleTraining trained(const TrainingOptions& options) {
  RoleTraining training(options);
  while (!training.done()) training.advance(toy_loss);
  return training;
}

TEST(RoleTraining, ReachesTheTargetWithTheHeadsThatMatter) {
  const std::vector<double> worth = worths();
  std::vector<double> sorted = worth;
  std::sort(sorted.rbegin(), sorted.rend());
  for (const GateKind kind : {GateKind::hard_kuma, GateKind::hard_concrete, GateKind::clipped}) {
    SCOPED_TRACE(std::string(name(kind)));
    const std::vector<double> open = trained(options_for(kind)).expected_gates();
    int count = 0, right = 0;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i] <= 0.5) continue;
      ++count;
      right += worth[i] >= sorted[kTarget - 1] ? 1 : 0;
    }
    EXPECT_NEAR(count, kTarget, 0.1 * kTarget + 1);
    EXPECT_GE(right, kTarget * 3 / 4);
  }
}

TEST(RoleTraining, GoesOnWhereItWas) {
  const TrainingOptions options = options_for(GateKind::hard_kuma);
  const RoleTraining whole = trained(options);
  RoleTraining first(options);
  while (first.step() < 317) first.advance(toy_loss);
  std::optional<RoleTraining> second = RoleTraining::parse(first.text(42), options, 42);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->step(), 317);
  while (!second->done()) second->advance(toy_loss);
  EXPECT_EQ(second->gates(), whole.gates());
  EXPECT_EQ(second->curve(), whole.curve());
  EXPECT_EQ(second->text(42), whole.text(42));
}

TEST(RoleTraining, AStateOfSomethingElseOrCutShortIsNone) {
  const TrainingOptions options = options_for(GateKind::hard_kuma);
  RoleTraining training(options);
  for (int i = 0; i < 5; ++i) training.advance(toy_loss);
  const std::string text = training.text(42);
  EXPECT_TRUE(RoleTraining::is_text(text));
  EXPECT_TRUE(RoleTraining::parse(text, options, 42));
  EXPECT_FALSE(RoleTraining::parse(text, options, 43));
  for (std::size_t size = 0; size < text.size(); size += 7) {
    EXPECT_FALSE(RoleTraining::parse(std::string_view(text).substr(0, size), options, 42)) << size;
  }
  std::string changed = text;
  changed[text.size() / 2] = changed[text.size() / 2] == '1' ? '2' : '1';
  EXPECT_FALSE(RoleTraining::parse(changed, options, 42));
  TrainingOptions fewer = options;
  fewer.heads = 32;
  EXPECT_FALSE(RoleTraining::parse(text, fewer, 42));
}

TEST(RoleTraining, ALossThatFailsChangesNothing) {
  RoleTraining training(options_for(GateKind::hard_kuma));
  training.advance(toy_loss);
  const std::string before = training.text(1);
  EXPECT_THROW(training.advance([](int, std::span<const double>) -> Loss { throw std::runtime_error("gone"); }),
               std::runtime_error);
  EXPECT_EQ(training.text(1), before);
}

TEST(RoleTraining, TheCurveSaysWhatWasPaid) {
  const RoleTraining training = trained(options_for(GateKind::hard_kuma));
  ASSERT_EQ(training.curve().size(), 800U);
  EXPECT_NEAR(training.curve().front().open, kHeads * 11.0 / 12, 1e-9);
  EXPECT_NEAR(training.curve().back().open, kTarget, 0.15 * kTarget);
  EXPECT_GT(training.curve().back().multiplier, 0);
}

}  // namespace
}  // namespace glimpse::train
