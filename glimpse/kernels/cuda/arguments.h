// What the host hands to the kernels: raw pointers and sizes, checked by operations.cc. Everything a pointer leads to
// lies on the device. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/tiles.h"
#include "glimpse/kernels/ops.h"

struct CUstream_st;

namespace glimpse::kernels::cuda {

/// The part of a device that launches depend on.
struct Limits {
  int processors = 0;
  int shared_bytes = 0;   ///< that one block may have
  bool clusters = false;  ///< of blocks, and programmatic launches
};

struct Cache {
  KvType type = KvType::bf16;
  int dim = 0;
  int kv_heads = 0;
  int rows = 0;
  int sequences = 0;
  int fresh = -1;
  int longest = 0;
  const HeadView* views = nullptr;  ///< [sequences, kv_heads]
  const std::int32_t* sequence = nullptr;
  const std::int32_t* behind = nullptr;
};

inline Cache cache_of(const KvTable<Place::device>& cache, const RowTable<Place::device>& rows) {
  check(cache.kv_heads > 0 && cache.sequences > 0 && rows.rows >= 0, "an operation without heads or sequences");
  return {.type = cache.format.type,
          .dim = cache.format.dim,
          .kv_heads = cache.kv_heads,
          .rows = rows.rows,
          .sequences = cache.sequences,
          .fresh = cache.fresh,
          .longest = cache.longest,
          .views = cache.views.raw(),
          .sequence = rows.sequence.raw(),
          .behind = rows.behind.raw()};
}

/// Work is cut into ranges, at most so many for each block; those that share a piece of it leave partial results: two
/// for each range. A partial result has 16 query heads: [16, d] sums, [16] maxima, [16] sums of weights.
inline constexpr int kRangesOfBlock = 5;
inline constexpr int kTileQueries = 16;
struct Partials {
  float* values = nullptr;
  unsigned* arrived = nullptr;  ///< [ranges], zero between launches
  unsigned* taken = nullptr;    ///< ranges that were free, zero between launches
  float* pieces = nullptr;      ///< of blocks with a range each, kNothing between launches
};
constexpr std::size_t partial_values(int dim) {
  return static_cast<std::size_t>(kTileQueries) * (dim + 2);
}

/// Blocks of a launch for each processor, at most; of larger heads a processor has one.
inline constexpr int kBlocksOfProcessor = 2, kMostSharedDim = 128;
/// What a block leaves of a piece of work that it shares where each has one range: 32 dimensions of a query head behind
/// the maximum and the sum of weights.
inline constexpr int kPieceDims = 32, kPieceValues = kPieceDims + 4;
constexpr std::size_t piece_values(int dim) {
  return static_cast<std::size_t>(kTileQueries) * (dim / kPieceDims) * kPieceValues;
}

struct AttendArguments {
  Cache cache;
  int group = 1;
  int slice = kTileQueries;  ///< query heads of one piece of work, at most
  int slices = 1;            ///< of a group
  float scale = 1;           ///< times log2(e)
  const float* q = nullptr;
  const Read* reads = nullptr;
  const std::int32_t* set_slots = nullptr;
  const std::int32_t* set_count = nullptr;
  std::int32_t set_capacity = 0;
  float* out = nullptr;
  std::uint16_t* narrow = nullptr;
  float* lse = nullptr;
  float* scores = nullptr;  ///< of reads that leave them, and their log-sum-exps
  float* score_lse = nullptr;
  std::size_t stride = 0;  ///< of a row of scores
  Partials partials;
  int stages = 1;
};

struct ScoreArguments {
  Cache cache;
  int group = 1;
  int slice = kTileQueries;
  int slices = 1;
  float scale = 1;
  const float* q = nullptr;
  const RowHead* heads = nullptr;
  int count = 0;
  float* scores = nullptr;
  float* lse = nullptr;
  std::size_t stride = 0;
  Partials partials;
  int stages = 1;
};

struct SelectArguments {
  Cache cache;
  int group = 1;
  const float* scores = nullptr;
  const float* lse = nullptr;
  std::size_t stride = 0;
  const Choice* choices = nullptr;
  int count = 0;
  std::int32_t* set_slots = nullptr;
  std::int32_t* set_count = nullptr;
  std::int32_t set_capacity = 0;
  std::uint32_t* spill = nullptr;  ///< [count, blocks of a choice, share] where the keys do not fit in shared memory
  std::size_t share = 0;           ///< units of one block, at most
  int blocks = 1;                  ///< of a choice
  float* mean_lse = nullptr;       ///< [count, kv_heads] of the mean scores of choices that weigh them
};

struct SummariseArguments {
  Cache cache;
  const PageRange* ranges = nullptr;
  int count = 0;
  int parts = 1;  ///< blocks that share a range
  std::byte* bounds = nullptr;
};

struct SearchArguments {
  Cache cache;
  int group = 1;
  float scale = 1;
  const float* q = nullptr;
  const std::byte* bounds = nullptr;
  const Search* searches = nullptr;
  int count = 0;
  int parts = 1;  ///< blocks that share a search
  float* scores = nullptr;
  std::size_t stride = 0;
};

struct PrefillArguments {
  Cache cache;
  PromptRows prompt;
  const PromptRows* pieces = nullptr;  ///< [count] instead, of at most as many rows, where it is not null
  int count = 1;
  int group = 1;
  float scale = 1;  ///< times log2(e)
  const float* q = nullptr;
  float* out = nullptr;
  float* lse = nullptr;
};

/// Tiles of prompts instead of one prompt: `prefill.prompt` and `prefill.lse` are not used.
struct TileArguments {
  PrefillArguments prefill;
  const PromptRows* tiles = nullptr;
  int count = 0;
  int each = 1;  ///< blocks of a tile and KV head
  const TileRead* reads = nullptr;
  const std::int32_t* set_slots = nullptr;
  const std::int32_t* set_count = nullptr;
  std::int32_t set_capacity = 0;
};

struct ColumnSumsArguments {
  Cache cache;
  const PromptRows* pieces = nullptr;
  int count = 0;
  int tiles = 1;  ///< of slots
  int group = 1;
  float scale = 1;  ///< times log2(e)
  const float* q = nullptr;
  const float* lse = nullptr;
  float* sums = nullptr;
  std::size_t stride = 0;
};

struct AppendArguments {
  Cache cache;
  const float* k = nullptr;
  const float* v = nullptr;
};

/// Each queues its kernel. Head dimensions: see supports_dim.
void launch_attend(const AttendArguments& arguments, const Limits& limits, CUstream_st* stream);
void launch_score(const ScoreArguments& arguments, const Limits& limits, CUstream_st* stream);
/// Makes mean_lse.
void launch_weigh_means(const SelectArguments& arguments, const Limits& limits, CUstream_st* stream);
void launch_select(const SelectArguments& arguments, const Limits& limits, CUstream_st* stream);
void launch_summarise(const SummariseArguments& arguments, const Limits& limits, CUstream_st* stream);
void launch_search(const SearchArguments& arguments, const Limits& limits, CUstream_st* stream);
void launch_prefill(const PrefillArguments& arguments, const Limits& limits, CUstream_st* stream);
void launch_column_sums(const ColumnSumsArguments& arguments, const Limits& limits, CUstream_st* stream);
void launch_append(const AppendArguments& arguments, const Limits& limits, CUstream_st* stream);

/// Blocks of a search that a processor runs at a time, and blocks of pages that one of them scores at a time.
inline constexpr int kSearchBlocks = 3;
inline constexpr int kSearchStep = 64;

/// Slots of a block of launch_column_sums.
inline constexpr int kColumns = 64;

/// Blocks that work at each of `choices` among up to `units` units: a cluster, or one where that is quicker.
int select_blocks(const Limits& limits, int choices, std::size_t units);
/// Units of a choice that fit into the shared memory of one block.
std::size_t select_units(const Limits& limits);

}  // namespace glimpse::kernels::cuda
