// The reference of the batched operations: plain loops, double accumulators. Slow, allocates, any thread. Only tests
// and benchmarks call it.
#pragma once

#include "glimpse/kernels/ops.h"

namespace glimpse::kernels::ref {

class Operations final : public kernels::Operations<Place::host> {
 public:
  void append(const AppendOp<Place::host>& op) override;
  void score(const ScoreOp<Place::host>& op) override;
  void summarise(const SummariseOp<Place::host>& op) override;
  void search(const SearchOp<Place::host>& op) override;
  void select(const SelectOp<Place::host>& op) override;
  void attend(const AttendOp<Place::host>& op) override;
  void prefill(const PrefillOp<Place::host>& op) override;
  void column_sums(const ColumnSumsOp<Place::host>& op) override;
};

}  // namespace glimpse::kernels::ref
