// How a warp brings rows of K and V into shared memory: a ring of stages of its own, filled by cp.async, several stages
// ahead of what is computed and across the ends of segments. A tile is kKeys slots, each on its own row: the slots of
// a page and those of a list take the same way. What a row's address depends on is asked for one step before it is
// used: first the slot (a list's entry), then its page and position, then the row.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/copies.cuh"
#include "glimpse/kernels/cuda/mma.cuh"
#include "glimpse/kernels/cuda/order.cuh"
#include "glimpse/kernels/cuda/stored.cuh"

namespace glimpse::kernels::cuda {

/// Tiles [begin, end) of one (row, KV head, slice of its queries), for one block.
struct Segment {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  const PageId* pages = nullptr;
  const std::int32_t* positions = nullptr;
  const std::int32_t* list = nullptr;  ///< or null: a window (everything is one)
  std::int32_t entries = 0;            ///< of the list, or slots that the row sees
  std::int32_t sink = 0;               ///< a window: slots [0, sink) and [local, entries)
  std::int32_t local = 0;
  std::int32_t sink_tiles = 0;
  std::int32_t begin = 0, end = 0;
  std::int32_t first_query = 0;  ///< in [R, H]
  std::int32_t queries = 0;
  std::int32_t scored = 0;               ///< 1: attend leaves its scores
  std::int32_t old = 0;                  ///< slots that no launch still writes
  unsigned first_range = 0, ranges = 1;  ///< that share this work
};

/// Rows of d 2-byte values, or twice as many bytes, in shared memory, laid so that eight rows' pieces of 16 bytes lie
/// in different banks.
template <int kDim>
struct TileLayout {
  static constexpr int kPieces = kDim / 8;
  static constexpr bool kSwizzled = kPieces % 8 == 0;
  static constexpr int kStride = kSwizzled ? kPieces : kPieces | 1;
  static constexpr int bytes(int rows) { return rows * kStride * 16; }
  static __device__ std::uint32_t offset(int row, int piece) {
    return static_cast<std::uint32_t>(row * kStride + (kSwizzled ? piece ^ (row & 7) : piece)) * 16;
  }
  /// The address of a place so many rows and pieces further on: multiples of powers of two above its own. A tile lies
  /// at a multiple of its rows' bytes.
  static __device__ std::uint32_t moved(std::uint32_t address, int rows, int pieces) {
    if constexpr (!kSwizzled) return address + static_cast<std::uint32_t>(rows * kStride + pieces) * 16;
    return (address + static_cast<std::uint32_t>(rows * kStride * 16)) ^
           static_cast<std::uint32_t>((pieces ^ (rows & 7)) * 16);
  }
};

/// T: of the cache. Scales of bytes lie behind a stage's planes: those of K, then those of V.
template <class T, int kDim, int kKeys, int kPlanes>
class Feed {
 public:
  using Layout = TileLayout<kDim* static_cast<int>(sizeof(T)) / 2>;
  static constexpr int kPlaneBytes = Layout::bytes(kKeys);
  static constexpr int kRowsBytes = kPlanes * kPlaneBytes;
  static constexpr int kScales = kScaled<T> ? kPlanes * kKeys : 0;
  static constexpr int kApart = kDim > 128 ? 256 : 128;  ///< stages begin where Layout::moved works
  static constexpr int kStageBytes = kRowsBytes + (kScales * 4 + kApart - 1) / kApart * kApart;
  static constexpr int kMostStages = kStageBytes >= 8192 ? 3 : 6;  ///< that there is room for

  /// `ring`: this warp's stages; `masks`: [stages] of this warp. `once`: see copy_16_bytes().
  __device__ Feed(std::uint32_t ring, std::uint32_t* masks, int stages, int warps, bool once = true)
      : ring_(ring), masks_(masks), stages_(stages), warps_(warps), once_(once) {}

  /// Starts with the first of `count` segments: `stages` tiles are under way after it. Unless the block has `waited`
  /// for the launch before, it does so when it comes to a row that may still be written, or in the end.
  __device__ void start(const Segment* segments, int count, bool waited) {
    segments_ = segments;
    count_ = count;
    segment_ = 0;
    tile_ = segments[0].begin + static_cast<int>(threadIdx.x) / 32;
    skip();
    // All slots of the first tiles, then all their pages, then the tiles: each waits for memory once. Loops are kept
    // short, for code takes long to come, too.
    Asked first[kMostStages];
#pragma unroll 1
    for (int i = 0; i < stages_; ++i) {
      ask_slot();
      put_into(first, i, named_);
    }
#pragma unroll 1
    for (int i = 0; i < stages_; ++i) {
      named_ = taken_from(first, i);
      ask_page();
      put_into(first, i, paged_);
    }
    ask_slot();
#pragma unroll 1
    for (int i = 0; i < stages_; ++i) {
      paged_ = taken_from(first, i);
      if (!waited && (paged_.segment >= count_ || __any_sync(~0U, paged_.slot >= segments_[paged_.segment].old))) {
        wait_for_launch_before();
        waited = true;
      }
      if (paged_.segment < count_) copy();
      close_copies();
      put_ = put_ + 1 == stages_ ? 0 : put_ + 1;
    }
    if (!waited) wait_for_launch_before();
    ask_page();
    ask_slot();
  }

  /// Copies one more tile, or none where there is none.
  __device__ void advance() {
    if (paged_.segment < count_) copy();
    close_copies();
    put_ = put_ + 1 == stages_ ? 0 : put_ + 1;
    ask_page();
    ask_slot();
  }

  /// Waits for the oldest tile; its address, and which of its keys count.
  __device__ std::uint32_t take(std::uint32_t& mask) {
    if (stages_ == kMostStages) {
      wait_copies<kMostStages - 1>();
    } else {
      wait_few();
    }
    __syncwarp();
    mask = masks_[get_];
    return ring_ + static_cast<std::uint32_t>(get_) * kStageBytes;
  }
  /// The tile is read; its stage takes another.
  __device__ void release() {
    __syncwarp();
    get_ = get_ + 1 == stages_ ? 0 : get_ + 1;
    advance();
  }

 private:
  __device__ void wait_few() const {
    switch (stages_) {
      case 1:
        wait_copies<0>();
        break;
      case 2:
        wait_copies<1>();
        break;
      case 3:
        wait_copies<2>();
        break;
      case 4:
        wait_copies<3>();
        break;
      default:
        wait_copies<4>();
        break;
    }
  }

  struct Asked {
    int segment = 0;
    std::int32_t slot = -1;
    PageId page = 0;
    std::int32_t position = 0;
  };

  /// Element i of what lies in registers.
  __device__ static void put_into(Asked (&to)[kMostStages], int i, const Asked& asked) {
#pragma unroll
    for (int j = 0; j < kMostStages; ++j) {
      if (i == j) to[j] = asked;
    }
  }
  __device__ static Asked taken_from(const Asked (&from)[kMostStages], int i) {
    Asked asked = from[0];
#pragma unroll
    for (int j = 1; j < kMostStages; ++j) {
      if (i == j) asked = from[j];
    }
    return asked;
  }
  __device__ void skip() {
    while (segment_ < count_ && tile_ >= segments_[segment_].end) {
      if (++segment_ < count_) tile_ = segments_[segment_].begin + static_cast<int>(threadIdx.x) / 32;
    }
  }
  __device__ void ask_slot() {
    named_.segment = segment_;
    if (segment_ == count_) return;
    const Segment& s = segments_[segment_];
    const int key = static_cast<int>(threadIdx.x) % kKeys;
    if (s.list != nullptr) {
      const int i = tile_ * kKeys + key;
      named_.slot = i < s.entries ? s.list[i] : -1;
    } else if (tile_ < s.sink_tiles) {
      const int slot = tile_ * kKeys + key;
      named_.slot = slot < s.sink ? slot : -1;
    } else {
      const int slot = (s.local / kKeys + tile_ - s.sink_tiles) * kKeys + key;
      named_.slot = slot >= s.local && slot < s.entries ? slot : -1;
    }
    tile_ += warps_;
    skip();
  }
  __device__ void ask_page() {
    paged_.segment = named_.segment;
    paged_.slot = named_.slot;
    if (paged_.segment >= count_ || paged_.slot < 0) return;
    const Segment& s = segments_[paged_.segment];
    paged_.page = s.pages[paged_.slot >> kPageShift];
    paged_.position = s.positions != nullptr ? s.positions[paged_.slot] : 0;
  }
  __device__ void copy() {
    const Segment& s = segments_[paged_.segment];
    const bool present = paged_.slot >= 0 && paged_.position >= 0;
    // Where this lane's row lies, in units of 32 bytes (kMostPlaneBytes).
    constexpr std::uint32_t kUnit = 32;
    static_assert(page_bytes_of<T>(kDim) % kUnit == 0 && kDim * sizeof(T) % kUnit == 0);
    const auto in_page = static_cast<std::uint32_t>(paged_.slot & (kPageTokens - 1));
    const std::uint32_t page = paged_.page * static_cast<std::uint32_t>(page_bytes_of<T>(kDim) / kUnit);
    const std::uint32_t own = present ? page + in_page * static_cast<std::uint32_t>(kDim * sizeof(T) / kUnit) : ~0U;
    std::uint32_t mask = __ballot_sync(~0U, present);
    if (kKeys < 32) mask &= (1U << (kKeys % 32)) - 1;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane == 0) masks_[put_] = mask;
    const std::uint32_t stage = ring_ + static_cast<std::uint32_t>(put_) * kStageBytes;
    constexpr int kPieces = Layout::kPieces;
    static_assert(kKeys * kPieces % 32 == 0);
    std::uint32_t rows[kKeys * kPieces / 32];
#pragma unroll
    for (int i = 0; i < kKeys * kPieces / 32; ++i) {
      rows[i] = __shfl_sync(~0U, own, (i * 32 + lane) / kPieces);
    }
    if (kPlanes == 2 || once_) {
      copy_plane<true>(stage, s.k, rows);
    } else {
      copy_plane<false>(stage, s.k, rows);
    }
    if constexpr (kPlanes == 2) copy_plane<true>(stage + kPlaneBytes, s.v, rows);
    if constexpr (kScaled<T>) {
      static_assert(kScales % 32 == 0);
      const std::size_t from = present ? std::size_t{page} * kUnit + kPageTokens * kDim + in_page * 4 : 0;
#pragma unroll
      for (int i = 0; i < kScales / 32; ++i) {
        const std::byte* const plane = (i * 32 + lane) / kKeys == 0 ? s.k : s.v;
        copy_4_bytes(stage + kRowsBytes + static_cast<std::uint32_t>(i * 32 + lane) * 4, plane + from, present);
      }
    }
  }
  /// A plane as a whole: what lies together is asked for together.
  template <bool kOnce, int kCount>
  __device__ static void copy_plane(std::uint32_t to, const std::byte* plane, const std::uint32_t (&rows)[kCount]) {
    constexpr int kPieces = Layout::kPieces;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t first = to + Layout::offset(lane / kPieces, lane % kPieces);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = i * 32 + lane;
      const int piece = at % kPieces;
      const bool there = rows[i] != ~0U;
      const std::byte* const from = plane + std::size_t{there ? rows[i] : 0} * 32 + piece * 16;
      const std::uint32_t place =
          Layout::kSwizzled ? Layout::moved(first, i * (32 / kPieces), 0) : to + Layout::offset(at / kPieces, piece);
      copy_16_bytes<kOnce>(place, from, there);
    }
  }

  std::uint32_t ring_;
  std::uint32_t* masks_;
  int stages_, warps_;
  bool once_;
  const Segment* segments_ = nullptr;
  int count_ = 0, segment_ = 0, tile_ = 0;  ///< the next tile of this warp
  Asked named_, paged_;
  int put_ = 0, get_ = 0;
};

}  // namespace glimpse::kernels::cuda
