// Which keys a tile's rows see before it, in the order in which a block takes them.
#pragma once

#include "glimpse/kernels/cuda/arguments.h"

namespace glimpse::kernels::cuda {

/// Entries [0, head) are a list's slots, or those slots themselves; an entry behind is the slot so many behind it.
struct KeyOrder {
  const std::int32_t* list = nullptr;
  int head = 0, shift = 0;

  __device__ int slot(int entry) const { return entry >= head ? entry + shift : list != nullptr ? list[entry] : entry; }
};

/// A block of a tile and KV head: rows [first, first + count) of (token, query head), and their keys.
struct TileBlock {
  PromptRows prompt;
  int head = 0, first = 0, count = 0;
  HeadView view{};
  KeyOrder order;

  __device__ TileBlock(const TileArguments& of, int rows) {
    // Heads outermost: blocks that run together read the same rows of the cache. Those that see most first.
    const int blocks = of.count * of.each;
    head = static_cast<int>(blockIdx.x) / blocks;
    const int number = blocks - 1 - static_cast<int>(blockIdx.x) % blocks;
    const int tile = number / of.each;
    prompt = of.tiles[tile];
    first = number % of.each * rows;
    count = min(rows, prompt.rows * of.prefill.group - first);
    view = of.prefill.cache.views[static_cast<std::size_t>(prompt.sequence) * of.prefill.cache.kv_heads + head];
    const TileRead read = of.reads[static_cast<std::size_t>(tile) * of.prefill.cache.kv_heads + head];
    if (read.set < 0) {
      order.head = read.sink;
      order.shift = read.local - read.sink;
      return;
    }
    const std::int32_t held = of.set_count[read.set];
    if (held == kEverything) return;
    order.list = of.set_slots + static_cast<std::size_t>(read.set) * of.set_capacity;
    order.head = held;
    order.shift = view.slots - prompt.behind - held;
  }
};

}  // namespace glimpse::kernels::cuda
