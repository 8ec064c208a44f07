// LycheeDecode's training of head roles (Lin et al., section 3.2), but for the model: gates, the constraint on how many
// are open with its multiplier, Adam, and what a training goes on from. What a draw of gates costs is asked
// for. Values; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/train/gate.h"

namespace glimpse::train {

struct TrainingOptions {
  GateKind gate = GateKind::hard_kuma;
  int heads = 0;       ///< gates: the KV heads behind layer 0
  double target = 0;   ///< of them to be open in the end
  int steps = 0;       ///< in all
  double rate = 0.01;  ///< Adam's
  std::uint64_t seed = 1;
};

/// The distillation loss of one example under these gates, and its derivatives by each of them.
struct Loss {
  double value = 0;
  std::vector<double> by_gate;  ///< [heads]
};
using LossOf = std::function<Loss(int step, std::span<const double> gates)>;

/// One step of the curve.
struct CurvePoint {
  double loss = 0;        ///< of the draw
  double open = 0;        ///< sum of P(z != 0)
  double multiplier = 0;  ///< of the constraint
  friend bool operator==(const CurvePoint&, const CurvePoint&) = default;
};

class RoleTraining {
 public:
  explicit RoleTraining(const TrainingOptions& options);

  int step() const { return static_cast<int>(curve_.size()); }
  bool done() const { return step() >= options_.steps; }
  /// Draws the gates, asks for their loss, moves them. A draw is a function of seed and step alone. What `loss` throws
  /// leaves everything as it was.
  void advance(const LossOf& loss);

  const std::vector<Gate>& gates() const { return gates_; }
  const std::vector<CurvePoint>& curve() const { return curve_; }
  /// E[z] of each.
  std::vector<double> expected_gates() const;

  /// All that a training goes on from, for a file; `of` tells what is trained and on what.
  std::string text(std::uint64_t of) const;
  static bool is_text(std::string_view text);
  /// Nothing for a text that is none, is cut short, or is of something else.
  static std::optional<RoleTraining> parse(std::string_view text, const TrainingOptions& options, std::uint64_t of);

 private:
  double wanted_open() const;

  TrainingOptions options_;
  std::vector<Gate> gates_;
  std::vector<Gate> mean_, square_;  ///< Adam's moments
  double multiplier_;
  double scale_ = 0;  ///< mean loss of the first steps: losses are counted in it
  std::vector<CurvePoint> curve_;
};

}  // namespace glimpse::train
