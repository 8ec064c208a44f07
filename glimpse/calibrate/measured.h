// What a calibration has measured so far, by what it was measured of, so that one that was interrupted goes on where it
// was. The text of a file holds it (docs/calibration.md). A value; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/plan/plan.h"

namespace glimpse::calibrate {

class Measured {
 public:
  /// Nothing yet. `of` tells the model and the options: numbers are of no use to another.
  explicit Measured(std::uint64_t of) : of_(of) {}
  /// Called behind each add.
  void on_add(std::function<void(const Measured&)> callback) { on_add_ = std::move(callback); }

  std::uint64_t of() const { return of_; }
  std::size_t size() const { return values_.size(); }
  std::optional<std::vector<double>> find(std::uint64_t key) const;
  /// Nothing where it is not there or has another number of values.
  std::optional<std::vector<double>> find(std::uint64_t key, std::size_t count) const;
  void add(std::uint64_t key, std::vector<double> values);
  /// What belongs together: it is kept whole or not at all.
  void add(std::map<std::uint64_t, std::vector<double>> values);

  std::string text() const;
  /// True for a text of this kind, of any version.
  static bool is_text(std::string_view text);
  /// Nothing for a text that is none, is cut short, or is of something else.
  static std::optional<Measured> parse(std::string_view text, std::uint64_t of);

 private:
  std::uint64_t of_;
  std::map<std::uint64_t, std::vector<double>> values_;
  std::function<void(const Measured&)> on_add_;
};

/// The key of what was measured of a plan; `how` tells the rest.
std::uint64_t measured_key(const plan::Plan& plan, std::string_view how);

}  // namespace glimpse::calibrate
