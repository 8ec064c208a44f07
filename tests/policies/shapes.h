// The model shapes that every policy is tried on.
#pragma once

#include <utility>
#include <vector>

#include "glimpse/plan/plan.h"
#include "tests/support/models.h"

namespace glimpse::policies {

inline std::vector<plan::ModelShape> shapes() {
  std::vector<plan::ModelShape> all;
  for (const int layers : {1, 2, 3, 4, 5, 8, 28, 30, 32, 80}) {
    // A plan has a role for each layer and head, so that checks of deep models take longest. Under sanitizers, which
    // slow them down, 32 layers stand for all that have more than 5.
    if (kSanitized && layers > 5 && layers != 32) continue;
    for (const auto& [heads, kv_heads] : {std::pair(9, 3), {32, 8}, {8, 8}, {64, 8}, {1, 1}}) {
      for (const int context : {512, 8192, 131072}) {
        all.push_back({"llama", "no such model", layers, heads, kv_heads, 64, context});
      }
    }
  }
  return all;
}

}  // namespace glimpse::policies
