// LycheeDecode's student and teacher (Lin et al., section 3.2) over one model's frozen weights, by LibTorch: the
// teacher attends to everything; in the student each KV head mixes its full attention with attention to the set that it
// inherits, by a gate. Weights are float32 in the device's memory. One thread calls it; LibTorch has threads of its
// own. Errors of LibTorch come as its own exceptions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "glimpse/base/device_name.h"
#include "glimpse/model/model.h"
#include "glimpse/plan/plan.h"
#include "glimpse/train/gradients.h"

namespace glimpse::train {

class Student {
 public:
  /// Widens the weights; the model may go then. Throws UserError where LibTorch does not know the device.
  Student(const model::Model& model, int threads, const DeviceName& device = {});
  ~Student();
  Student(const Student&) = delete;
  Student& operator=(const Student&) = delete;

  /// The mean over target tokens and vocabulary of the squared difference between the student's and the teacher's
  /// logits (equation 6, in other units), and its derivatives by the gates behind layer 0. The prompt is read by the
  /// teacher alone, and what it shares with the prompt before is not read again.
  Loss distilled(const GradientRequest& request);
  /// [tokens - first, vocabulary] logits of the student behind each target token.
  std::vector<float> logits(const GradientRequest& request);
  int vocabulary() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glimpse::train
