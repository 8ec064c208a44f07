// What the arrays inside the CPU kernels hold. Any thread.
#pragma once

#include "glimpse/base/error.h"
#include "glimpse/kernels/views.h"

namespace glimpse::kernels {

/// Query heads that decoding kernels take at once; larger groups go in slices of so many.
inline constexpr int kSliceQueries = 16;

/// How the scores of a slice are pooled with those of the slices before it: -inf or 0 where it begins the group, else
/// what stands there, and of a mean the last one multiplies the sum.
struct GroupSlice {
  bool begins = true;
  float share = 1;
};

/// The slice of a group that begins with query `first`.
inline GroupSlice slice_of(int group, int first) {
  return {first == 0, first + kSliceQueries >= group ? 1.0F / static_cast<float>(group) : 1.0F};
}

/// Fails on a format that kernels have no code or no room for.
inline void check_format(const KvFormat& format) {
  check(format.dim >= 8 && format.dim <= kMaxHeadDim && format.dim % 8 == 0,
        "kernels take head dimensions of 8 to 256, in eights");
  check(format.type >= KvType::f32 && format.type <= KvType::q8_0, "kernels take the element types of KvType");
}

/// The same, and on a group without a query.
inline void check_queries(const KvFormat& format, int group) {
  check_format(format);
  check(group >= 1, "kernels take groups of at least one query head");
}

}  // namespace glimpse::kernels
