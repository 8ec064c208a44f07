// What the threads of a phase take: splits of outputs (kernels/cpu/work_list.h), and items that are no output's split.
// Inside attention/cpu only.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cpu/row_outputs.h"
#include "glimpse/kernels/cpu/run_split.h"

namespace glimpse::attention {

/// The output of one KV head for a decode row, or for the few rows of a prompt or a verification together.
struct HeadOutput : kernels::Output {
  int batch = 0;
  int head = 0;
  int key_rank = 0;          ///< keys of the prompt are made from so many singular vectors
  bool selects = false;      ///< choose and publish when it is finished
  bool compensates = false;  ///< its last split, without entries, is the token that stands for dropped ones
  int rows = 0;              ///< few rows, which share each read: `queries` are theirs together; 0: a decode row
};

using kernels::Split;

struct Item {
  enum class Kind : std::uint8_t {
    prefill,  ///< rows of a prompt
    choose,   ///< a layer's set that needs no scores
    search,   ///< a head's index
    grow,     ///< a head's index takes in the prompt or what was corrected
    factor,   ///< a layer's prompt keys become factors of low rank
    tile,     ///< a prompt tile's set for one head
    audit,    ///< what a head's set captures
  };
  Kind kind = Kind::prefill;
  int batch = 0, head = 0;
  std::int32_t begin = 0, end = 0;  ///< rows of a prompt; tile: its number
};

}  // namespace glimpse::attention
