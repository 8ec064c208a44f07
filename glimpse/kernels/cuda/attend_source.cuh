// The work of an attend operation: reads of every kind as tiles of slots.
#pragma once

#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {

/// What the heads of a layer read, in tiles of kKeys slots.
template <int kKeys>
struct AttendSource {
  const AttendArguments& of;
  std::byte* near = nullptr;  ///< the tables in shared memory: rows, reads, counts of sets

  struct Unit {
    int row, head, seen;
    std::int32_t count;  ///< of its set, where all query heads have one
    HeadView view;
    Read read;
  };
  __device__ int units() const { return of.cache.rows * of.cache.kv_heads; }
  __device__ Unit load(int unit) const {
    const RowTables tables = near != nullptr ? RowTables(of.cache, near) : RowTables(of.cache);
    Unit u;
    u.row = quotient_of(unit, of.cache.kv_heads);
    u.head = unit - u.row * of.cache.kv_heads;
    u.read = near != nullptr ? near_reads()[unit] : of.reads[unit];
    u.view = tables.views[tables.sequence[u.row] * of.cache.kv_heads + u.head];
    u.seen = u.view.slots - tables.behind[u.row] + 1;
    u.count = near != nullptr ? near_counts()[unit] : 0;
    return u;
  }
  __device__ int near_bytes() const {
    return RowTables::bytes(of.cache) + units() * static_cast<int>(sizeof(Read) + sizeof(std::int32_t));
  }
  __device__ void bring(std::byte* room) {
    bring_table(RowTables::bring(of.cache, room), of.reads, units());
    near = room;
  }
  __device__ void bring_rest(int unit) const {
    const Read& read = near_reads()[unit];
    if (read.kind == Read::Kind::sets && read.per_query == 0) {
      copy_4_bytes(shared_address(near_counts() + unit), of.set_count + read.set);
    }
  }
  __device__ void forget() { near = nullptr; }
  __device__ const Read* near_reads() const { return reinterpret_cast<const Read*>(near + RowTables::bytes(of.cache)); }
  __device__ std::int32_t* near_counts() const {
    return reinterpret_cast<std::int32_t*>(near + RowTables::bytes(of.cache) + units() * sizeof(Read));
  }
  __device__ static bool waits(const Unit& u) { return u.read.kind == Read::Kind::sets && u.read.settled == 0; }
  __device__ void settle(Unit& u) const {
    if (u.read.kind == Read::Kind::sets && !apart(u)) u.count = of.set_count[u.read.set];
  }
  __device__ static bool apart(const Unit& u) { return u.read.kind == Read::Kind::sets && u.read.per_query != 0; }
  __device__ int pieces(const Unit& u) const { return apart(u) ? of.group : of.slices; }
  __device__ int least_pieces() const { return of.slices; }

  /// All but the tiles, the blocks, the query heads and the memory of K and V.
  __device__ Segment span(const Unit& u, int piece) const {
    Segment s;
    s.entries = s.local = s.sink = u.seen;
    if (u.read.kind == Read::Kind::nothing) s.entries = s.local = s.sink = 0;
    if (u.read.kind == Read::Kind::window && u.read.sink < u.seen - u.read.local) {
      s.sink = u.read.sink;
      s.local = u.seen - u.read.local;
    }
    if (u.read.kind == Read::Kind::sets) {
      const int set = u.read.set + (apart(u) ? piece : 0);
      const std::int32_t count = apart(u) ? of.set_count[set] : u.count;
      if (count != kEverything) {
        s.list = of.set_slots + static_cast<std::size_t>(set) * of.set_capacity;
        s.entries = count;
      }
    }
    s.sink_tiles = (s.sink + kKeys - 1) / kKeys;
    return s;
  }
  __device__ Piece piece(const Unit& u, int piece) const {
    const Segment s = span(u, piece);
    Piece made;
    if (s.list != nullptr) {
      made.tiles = static_cast<unsigned>((s.entries + kKeys - 1) / kKeys);
      made.weight = kListWeight;
    } else {
      made.tiles = s.sink_tiles + (s.local < s.entries ? (s.entries - 1) / kKeys - s.local / kKeys + 1 : 0);
    }
    made.tiles = max(made.tiles, 1U);  // nothing to read: zeros are written by whom it falls to
    return made;
  }
  __device__ void fill(Segment& s, const Unit& u, int piece) const {
    s = span(u, piece);
    s.k = u.view.k_plane;
    s.v = u.view.v_plane;
    s.pages = u.view.pages;
    s.positions = u.view.positions;
    s.old = u.view.slots - of.cache.fresh;
    const int first = apart(u) ? piece : piece * of.slice;
    s.first_query = (u.row * of.cache.kv_heads + u.head) * of.group + first;
    s.queries = apart(u) ? 1 : min(of.slice, of.group - first);
    s.scored = u.read.scores;
  }
};

}  // namespace glimpse::kernels::cuda
