#include "glimpse/train/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

#include "glimpse/base/checksum.h"
#include "glimpse/base/error.h"

namespace glimpse::train {
namespace {

constexpr std::string_view kName = "glimpse_roles_training 1";
constexpr double kMeanDecay = 0.9, kSquareDecay = 0.99, kTiny = 1e-12;
constexpr int kScaleSteps = 10;
/// The count that is asked for falls to the target over this share of the steps: the multiplier can follow it.
constexpr double kFallingShare = 0.5;
/// The multiplier ascends in its logarithm, as losses of heads differ by orders of magnitude: by the share of the gates
/// that are open too many it grows for good in a step, and for the step alone.
constexpr double kFirstMultiplier = 1e-3, kMultiplierRate = 0.3, kMultiplierNow = 60, kMostExponent = 20;

double uniform(std::mt19937_64& random) {
  return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
}

void write_numbers(std::string& text, std::span<const double> values) {
  for (const double value : values) text += fmt::format(" {}", value);  // the shortest that reads back the same
}

/// Numbers between blanks and line ends; none where one is something else.
std::optional<std::vector<double>> read_numbers(std::string_view text) {
  std::vector<double> values;
  for (std::size_t at = text.find_first_not_of(" \n"); at != std::string_view::npos;
       at = text.find_first_not_of(" \n", at)) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
    if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
    values.push_back(value);
    at = static_cast<std::size_t>(end - text.data());
  }
  return values;
}

}  // namespace

RoleTraining::RoleTraining(const TrainingOptions& options)
    : options_(options),
      gates_(static_cast<std::size_t>(options.heads), first_gate(options.gate)),
      mean_(gates_.size()),
      square_(gates_.size()),
      multiplier_(kFirstMultiplier) {
  check(options.heads > 0 && options.target >= 0 && options.target <= options.heads, "a target among the heads");
}

double RoleTraining::wanted_open() const {
  const double first = open_chance(options_.gate, first_gate(options_.gate)).value * options_.heads;
  const double share = std::min(1.0, (step() + 1) / std::max(1.0, kFallingShare * options_.steps));
  return first + (options_.target - first) * share;
}

void RoleTraining::advance(const LossOf& loss) {
  std::mt19937_64 random(options_.seed * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(step()));
  std::vector<Slope> draws;
  std::vector<double> values;
  double open = 0;
  for (const Gate& gate : gates_) {
    draws.push_back(sampled(options_.gate, gate, uniform(random)));
    values.push_back(draws.back().value);
    open += open_chance(options_.gate, gate).value;
  }
  const Loss found = loss(step(), values);
  check(found.by_gate.size() == gates_.size(), "a derivative for each gate");

  if (step() < kScaleSteps) scale_ += (found.value - scale_) / (step() + 1);
  const double unit = std::max(scale_, kTiny);
  const double excess = (open - wanted_open()) / options_.heads;
  const double pressure = multiplier_ * std::exp(std::clamp(kMultiplierNow * excess, -kMostExponent, kMostExponent));
  multiplier_ *= std::exp(kMultiplierRate * excess);
  const int steps = step() + 1;
  const double mean_whole = 1 - std::pow(kMeanDecay, steps), square_whole = 1 - std::pow(kSquareDecay, steps);
  const auto move = [&](double& parameter, double& mean, double& square, double slope) {
    mean = kMeanDecay * mean + (1 - kMeanDecay) * slope;
    square = kSquareDecay * square + (1 - kSquareDecay) * slope * slope;
    parameter -= options_.rate * (mean / mean_whole) / (std::sqrt(square / square_whole) + kTiny);
  };
  for (std::size_t i = 0; i < gates_.size(); ++i) {
    const Slope chance = open_chance(options_.gate, gates_[i]);
    const double by_gate = found.by_gate[i] / unit;
    Gate gate = gates_[i];
    move(gate.a, mean_[i].a, square_[i].a, by_gate * draws[i].by_a + pressure * chance.by_a);
    move(gate.b, mean_[i].b, square_[i].b, by_gate * draws[i].by_b + pressure * chance.by_b);
    gates_[i] = limited(options_.gate, gate);
  }
  curve_.push_back({found.value, open, multiplier_});
}

std::vector<double> RoleTraining::expected_gates() const {
  std::vector<double> values;
  for (const Gate& gate : gates_) values.push_back(expected(options_.gate, gate));
  return values;
}

std::string RoleTraining::text(std::uint64_t of) const {
  std::string text = fmt::format("{} {:016x}\n", kName, of);
  write_numbers(text, std::vector<double>{static_cast<double>(step()), multiplier_, scale_});
  text += '\n';
  for (std::size_t i = 0; i < gates_.size(); ++i) {
    write_numbers(text,
                  std::vector<double>{gates_[i].a, gates_[i].b, mean_[i].a, mean_[i].b, square_[i].a, square_[i].b});
    text += '\n';
  }
  for (const CurvePoint& point : curve_) {
    write_numbers(text, std::vector<double>{point.loss, point.open, point.multiplier});
    text += '\n';
  }
  return text + fmt::format("end {:016x}\n", checksum(std::as_bytes(std::span(text))));
}

bool RoleTraining::is_text(std::string_view text) {
  return text.starts_with(kName);
}

std::optional<RoleTraining> RoleTraining::parse(std::string_view text, const TrainingOptions& options,
                                                std::uint64_t of) {
  const std::string head = fmt::format("{} {:016x}\n", kName, of);
  constexpr std::size_t kEnd = 21;  // "end ", 16 digits, a line's end
  if (!text.starts_with(head) || text.size() < head.size() + kEnd) return std::nullopt;
  const std::string_view body = text.substr(0, text.size() - kEnd);
  if (text.substr(body.size()) != fmt::format("end {:016x}\n", checksum(std::as_bytes(std::span(body))))) {
    return std::nullopt;
  }
  const std::optional<std::vector<double>> values = read_numbers(body.substr(head.size()));
  RoleTraining training(options);
  const std::size_t gates = training.gates_.size();
  if (!values || values->size() < 3 + gates * 6) return std::nullopt;
  const double* next = values->data();
  const double steps = next[0];
  if (!(steps >= 0) || steps != std::floor(steps) || steps > options.steps ||
      values->size() != 3 + gates * 6 + static_cast<std::size_t>(steps) * 3) {
    return std::nullopt;
  }
  training.multiplier_ = next[1];
  training.scale_ = next[2];
  next += 3;
  for (std::size_t i = 0; i < gates; ++i, next += 6) {
    training.gates_[i] = {next[0], next[1]};
    training.mean_[i] = {next[2], next[3]};
    training.square_[i] = {next[4], next[5]};
  }
  for (; next != values->data() + values->size(); next += 3) training.curve_.push_back({next[0], next[1], next[2]});
  return training;
}

}  // namespace glimpse::train
