// The kernel of trees.h: a block for each search. It reads the branches, the clusters of those that it opens, and a
// word or two for each chunk. Where all clusters of a launch are few they come into the second-level cache meanwhile.
#include <string>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/order.cuh"
#include "glimpse/kernels/cuda/ranks.cuh"
#include "glimpse/kernels/cuda/share.cuh"
#include "glimpse/kernels/cuda/tree_scores.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBranchLanes = kThreads / kMostTreeBranches;
constexpr int kDigits = 256;
constexpr std::uint32_t kTaken = ~0U;
constexpr int kMostListed = 256;  ///< open clusters that are compared with each other
constexpr int kMostKept = 2048;   ///< chunks that are read once, before the launch before has ended
constexpr int kMostFound = 256;   ///< tokens of a warp's share that it need not look for twice
constexpr std::uint32_t kOfPart = 1U << 31;
constexpr int kMostAsked = 24 << 20;  ///< bytes of centroids that all searches ask for before they know which to read

using Arguments = TreeArguments;

struct Shared {
  std::uint64_t branches[kMostTreeBranches];  ///< better ones have larger keys; no two have the same
  int opened[kMostTreeBranches];              ///< its clusters; 0: it is not open
  int opened_before[kMostTreeBranches + 1];   ///< clusters of open branches before each
  int branch_tokens[kMostTreeBranches], last_cluster[kMostTreeBranches];  ///< of the tree
  int digits[kDigits];                                                    ///< tokens
  int clusters;                                                           ///< opened
  int digit, before;  ///< the digit at which the budget is full, and the tokens before it
  int next;           ///< the lowest cluster that is looked for
  int warp_tokens[kWarps][2];
  std::uint64_t listed[kMostListed];  ///< keys of open clusters as those of branches
  int costs[kMostListed];
  int part, left;  ///< the cluster of which some chunks are taken, and for how many tokens; -1: none
  union {
    struct {
      std::int32_t cluster_of[kMostKept], ends[kMostKept];  ///< of the tree's first chunks
    };
    /// Where chunks are tokens, what each warp found; kOfPart beside those of the cluster that is cut.
    std::uint32_t found[kWarps][kMostFound];
  };
};

/// Asks for what is read later, so that it waits in the cache.
template <class T>
__device__ void ask_for(const T* from, int count) {
  if (from == nullptr) return;
  constexpr int kLine = 128 / static_cast<int>(sizeof(T));
  for (int i = static_cast<int>(threadIdx.x) * kLine; i < count; i += kThreads * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
  }
}

/// block_sum_before(), whose code is long, once for all that call it.
struct Sums {
  int before, all;
};
__device__ __noinline__ Sums sums_of(int own) {
  Sums sums{0, 0};
  sums.before = block_sum_before<kThreads>(own, &sums.all);
  return sums;
}

class TreeWalk {
 public:
  __device__ TreeWalk(const Arguments& of, const TreeSearch& search, std::uint32_t* queries, std::uint32_t* keys)
      : of_(of), search_(search), tree_(search.tree), scores_(of, search, queries), keys_(keys) {}

  /// Waits for the launch before; the tree is there before that.
  __device__ void run(Shared& room) {
    slots_ = seen_slots(of_.cache, search_.row, view_of(of_.cache, search_.row, search_.head));
    if (search_.scored != 0) {
      ask_for(tree_.ends, tree_.chunks);
      wait_for_launch_before();
      take_scores(room);
    } else {
      const std::size_t all = std::size_t{gridDim.x} * tree_.clusters * of_.cache.dim * sizeof(std::uint16_t);
      const int nodes = tree_.branches + (all <= kMostAsked ? tree_.clusters : 0);
      ask_for(tree_.centroids, nodes * of_.cache.dim);
      ask_for(tree_.radii, tree_.branches + tree_.clusters);
      ask_for(tree_.costs, tree_.clusters);
      ask_for(tree_.cluster_of, tree_.chunks);
      ask_for(tree_.ends, tree_.chunks);
      if (threadIdx.x < tree_.branches) {
        room.branch_tokens[threadIdx.x] = tree_.branch_tokens[threadIdx.x];
        room.last_cluster[threadIdx.x] = tree_.last_cluster[threadIdx.x];
      }
      for (int i = static_cast<int>(threadIdx.x); i < tree_.clusters; i += kThreads) keys_[i] = 0;
      if (tree_.ends != nullptr) {
        for (int i = static_cast<int>(threadIdx.x); i < min(kMostKept, tree_.chunks); i += kThreads) {
          room.cluster_of[i] = tree_.cluster_of[i];
          room.ends[i] = tree_.ends[i];
        }
        kept_ = min(kMostKept, tree_.chunks);
      }
      wait_for_launch_before();
      scores_.load<kWarps>();
      score_nodes(room);
    }
    find_cut(room);
    if (tree_.ends == nullptr) {
      write_tokens(room);
    } else {
      write(room);
    }
    if (threadIdx.x == 0 && of_.op.opened) of_.op.opened.raw()[search_.set] = room.clusters;
  }

 private:
  /// Opens the best branch, then the next, until they hold enough: a branch is open where those that come before it are
  /// too few, or hold too little. Some lanes have a branch.
  __device__ void open_branches(Shared& room) const {
    const int branch = static_cast<int>(threadIdx.x) / kBranchLanes, lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint64_t own = branch < tree_.branches ? room.branches[branch] : ~0ULL;
    int before = 0, tokens = 0;
#pragma unroll
    for (int i = 0; i < kMostTreeBranches / kBranchLanes; ++i) {
      const int other = i * kBranchLanes + lane % kBranchLanes;
      const bool better = other < tree_.branches && room.branches[other] > own;
      before += better ? 1 : 0;
      tokens += better ? room.branch_tokens[other] : 0;
    }
#pragma unroll
    for (int step = 1; step < kBranchLanes; step *= 2) {
      before += __shfl_xor_sync(~0U, before, step);
      tokens += __shfl_xor_sync(~0U, tokens, step);
    }
    if (lane % kBranchLanes == 0) {
      const bool open = branch < tree_.branches && (before < search_.least_branches || tokens < search_.candidates);
      room.opened[branch] = open ? clusters_of(room, branch) : 0;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      const int first = room.opened[2 * lane], second = room.opened[2 * lane + 1];
      int sum = first + second;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0U, sum, step);
        if (lane >= step) sum += other;
      }
      room.opened_before[2 * lane] = sum - first - second;
      room.opened_before[2 * lane + 1] = sum - second;
      if (lane == 31) room.opened_before[kMostTreeBranches] = room.clusters = sum;
    }
    __syncthreads();
  }

  /// The i-th of the clusters of open branches.
  __device__ int open_cluster(const Shared& room, int i) const {
    int branch = 0;  // the last one that no more than i clusters are before
    for (int step = kMostTreeBranches / 2; step > 0; step /= 2) {
      if (room.opened_before[branch + step] <= i) branch += step;
    }
    return begin_of(room, branch) + i - room.opened_before[branch];
  }

  /// Of all branches, and then of the clusters of those that it opens, which are listed, too, where they are few.
  /// keys_[cluster] becomes its score as a whole number, 0 where its branch is not open.
  __device__ void score_nodes(Shared& room) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / kNodeLanes, column = lane % kNodeLanes;
    if (threadIdx.x == 0) room.part = -1;
    for (int level = 0; level < 2; ++level) {
      const int count = level == 0 ? tree_.branches : room.clusters;
      for (int first = static_cast<int>(threadIdx.x) / 32 * kNodesAtOnce; first < count;
           first += kWarps * kNodesAtOnce) {
        int nodes[2];
        for (int i = 0; i < 2; ++i) {
          nodes[i] = min(first + row + 8 * i, count - 1);
          if (level == 1) nodes[i] = tree_.branches + open_cluster(room, nodes[i]);
        }
        const int at = first + row + 8 * column, node = column == 0 ? nodes[0] : nodes[1];
        const int cost = level == 1 ? tree_.costs[node - tree_.branches] : 0;
        float scores[2];
        scores_.score(nodes[0], nodes[1], scores);
        if (column >= 2 || at >= count) continue;
        const std::uint32_t key = order_of(column == 0 ? scores[0] : scores[1]);
        if (level == 0) {
          room.branches[at] = key_of(key, at);
          continue;
        }
        const int cluster = node - tree_.branches;
        keys_[cluster] = max(key, 1U);
        if (room.clusters > kMostListed) continue;
        room.listed[at] = key_of(max(key, 1U), cluster);
        room.costs[at] = cost;
      }
      __syncthreads();
      if (level == 0) open_branches(room);
    }
  }
  /// Of equal scores that of the lower number is better.
  __device__ static std::uint64_t key_of(std::uint32_t score, int number) {
    return std::uint64_t{score} << 32 | (~0U - static_cast<unsigned>(number));
  }
  /// The same of single chunks that have scores, pooled over the queries that choose together.
  __device__ void take_scores(Shared& room) const {
    const bool alone = search_.query >= 0, mean = search_.pooling == Pooling::mean_score;
    const int group = alone || search_.mean_query != 0 ? 1 : of_.op.group;
    const std::size_t head =
        (static_cast<std::size_t>(search_.row) * of_.cache.kv_heads + search_.head) * of_.op.group +
        (alone ? search_.query : 0);
    const float* const scores = of_.op.scores.scores.raw() + head * of_.op.scores.stride;
    const int count = search_.room > 0 ? tree_.clusters : 0;
    for (int chunk = static_cast<int>(threadIdx.x); chunk < count; chunk += kThreads) {
      float pooled = scores[chunk];
      for (int j = 1; j < group; ++j) {
        const float value = scores[j * of_.op.scores.stride + chunk];
        pooled = mean ? pooled + value : fmaxf(pooled, value);
      }
      keys_[chunk] = max(order_of(mean ? pooled / static_cast<float>(group) : pooled), 1U);
    }
    if (threadIdx.x == 0) room.clusters = count;
    __syncthreads();
  }
  __device__ static int begin_of(const Shared& room, int branch) {
    return branch == 0 ? 0 : room.last_cluster[branch - 1];
  }
  __device__ static int clusters_of(const Shared& room, int branch) {
    return room.last_cluster[branch] - begin_of(room, branch);
  }

  /// In the order of their scores, equal ones by number, clusters are taken while they fit: those of a larger key than
  /// cut_, and among those that equal it the ones that become kTaken; of `part_` chunks for `left_` tokens.
  __device__ void find_cut(Shared& room) {
    const bool whole = search_.whole != 0;
    const int target = whole ? search_.room : search_.room + 1;
    if (search_.room <= 0) {
      cut_ = kTaken;
      return;
    }
    if (search_.scored == 0 && tree_.ends != nullptr && room.clusters <= kMostListed) return cut_listed(room);
    int before = 0;
    std::uint32_t key = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      if (!find_digit(room, key, shift, target - before)) {  // only in the first round: all of them fit
        cut_ = 0;
        return;
      }
      before += room.before;
      key |= static_cast<std::uint32_t>(room.digit) << shift;
    }
    cut_ = key;
    for (int from = 0;;) {
      if (threadIdx.x == 0) room.next = tree_.clusters;
      __syncthreads();
      for (int cluster = from + static_cast<int>(threadIdx.x); cluster < tree_.clusters; cluster += kThreads) {
        if (keys_[cluster] == key) {
          atomicMin(&room.next, cluster);
          break;
        }
      }
      __syncthreads();
      const int cluster = room.next;
      __syncthreads();
      if (cluster == tree_.clusters) return;
      const int cost = cost_of_cluster(room, cluster);
      const bool last = before + cost >= target;
      if (last && !whole) {
        part_ = cluster;
        left_ = search_.room - before;
        return;
      }
      if (threadIdx.x == 0) keys_[cluster] = kTaken;
      if (last) break;
      before += cost;
      from = cluster + 1;
    }
    __syncthreads();
  }

  /// The same where all open clusters are listed: some lanes add up what comes before a cluster.
  __device__ void cut_listed(Shared& room) {
    const int count = room.clusters;
    int lanes = kThreads / kMostListed;
    while (lanes < 32 && 2 * lanes * count <= kThreads) lanes *= 2;
    const int i = static_cast<int>(threadIdx.x) / lanes, first = static_cast<int>(threadIdx.x) % lanes;
    const std::uint64_t own = i < count ? room.listed[i] : ~0ULL;
    int before = 0;
#pragma unroll 8
    for (int other = first; other < count; other += lanes) before += room.listed[other] > own ? room.costs[other] : 0;
    for (int step = 1; step < lanes; step *= 2) before += __shfl_xor_sync(~0U, before, step);
    if (i < count && first == 0) {
      const bool whole = search_.whole != 0;
      const bool fits = whole ? before < search_.room : before + room.costs[i] <= search_.room;
      const int cluster = static_cast<int>(~0U - static_cast<unsigned>(own));
      keys_[cluster] = fits ? kTaken : 0;
      if (!whole && !fits && before <= search_.room) {
        room.part = cluster;
        room.left = search_.room - before;
      }
    }
    __syncthreads();
    cut_ = kTaken - 1;
    part_ = room.part;
    left_ = room.left;
  }

  /// Of the open clusters whose key begins as `key` above the digit at `shift`: the digit at which their tokens, the
  /// largest first, reach `target`. False where they do not.
  __device__ bool find_digit(Shared& room, std::uint32_t key, int shift, int target) const {
    __syncthreads();  // nobody reads what the round before found any more
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) room.digits[i] = 0;
    if (threadIdx.x == 0) room.digit = -1;
    __syncthreads();
    const std::uint32_t above = shift == 24 ? 0 : ~0U << (shift + 8);
    for (int cluster = static_cast<int>(threadIdx.x); cluster < tree_.clusters; cluster += kThreads) {
      const std::uint32_t own = keys_[cluster];
      if (own == 0 || (own & above) != key) continue;
      atomicAdd(&room.digits[own >> shift & (kDigits - 1)], all_cost_of(room, cluster));
    }
    for (int token = first_windowed() + static_cast<int>(threadIdx.x); token < tree_.chunks; token += kThreads) {
      const std::uint32_t own = keys_[tree_.cluster_of[token]];
      if (own == 0 || (own & above) != key) continue;
      atomicSub(&room.digits[own >> shift & (kDigits - 1)], 1);
    }
    __syncthreads();
    const int digit = kDigits - 1 - static_cast<int>(threadIdx.x);
    const int own = digit >= 0 ? room.digits[digit] : 0;
    const int before = sums_of(own).before;
    if (digit >= 0 && before < target && before + own >= target) {
      room.digit = digit;
      room.before = before;
    }
    __syncthreads();
    return room.digit >= 0;
  }

  __device__ int cluster_of(const Shared& room, int chunk) const {
    if (search_.scored != 0) return chunk;
    return chunk < kept_ ? room.cluster_of[chunk] : tree_.cluster_of[chunk];
  }
  __device__ int end_of(const Shared& room, int chunk) const {
    return chunk < kept_ ? room.ends[chunk] : tree_.ends[chunk];
  }
  /// Tokens that a cluster adds, those in the window counted.
  __device__ int all_cost_of(const Shared& room, int cluster) const {
    return search_.scored != 0 ? cost_of(room, cluster) : tree_.costs[cluster];
  }
  /// Where chunks are tokens, the first of those behind `tail`: they have clusters, and cost nothing.
  __device__ int first_windowed() const {
    return tree_.ends == nullptr ? search_.tail : tree_.chunks;
  }
  /// Tokens that a cluster adds. The block synchronises where there is a window.
  __device__ int cost_of_cluster(const Shared& room, int cluster) const {
    const int first = first_windowed();
    int own = 0, windowed = 0;
    for (int token = first + static_cast<int>(threadIdx.x); token < tree_.chunks; token += kThreads) {
      own += tree_.cluster_of[token] == cluster ? 1 : 0;
    }
    if (first < tree_.chunks) windowed = sums_of(own).all;
    return all_cost_of(room, cluster) - windowed;
  }
  __device__ int cost_of(const Shared& room, int chunk) const {
    const int begin = chunk == 0 ? 0 : end_of(room, chunk - 1);
    return max(0, min(end_of(room, chunk), search_.tail) - max(begin, search_.sink));
  }
  /// Each thread has chunks that lie together: how many tokens they add, and where these go.
  __device__ void write(const Shared& room) {
    const int each = (tree_.chunks + kThreads - 1) / kThreads;
    const int begin = min(tree_.chunks, static_cast<int>(threadIdx.x) * each), end = min(tree_.chunks, begin + each);
    int own = 0;
    for (int chunk = begin; chunk < end && part_ >= 0; ++chunk) {
      if (cluster_of(room, chunk) == part_) own += cost_of(room, chunk);
    }
    const int part_before = sums_of(own).before;
    const auto each_taken = [&](const auto& take) {
      int part = part_before;
      for (int chunk = begin; chunk < end; ++chunk) {
        const int cluster = cluster_of(room, chunk);
        if (cluster == part_) {
          part += cost_of(room, chunk);
          if (part <= left_) take(chunk);
        } else if (keys_[cluster] > cut_) {
          take(chunk);
        }
      }
    };
    own = 0;
    if (cut_ != kTaken || part_ >= 0) each_taken([&](int chunk) { own += cost_of(room, chunk); });
    const auto [before, all] = sums_of(own);
    int place = search_.sink + before;
    const int count = search_.sink + all + slots_ - search_.tail;
    if (count >= slots_) {
      if (threadIdx.x == 0) of_.op.sets.count.raw()[search_.set] = kEverything;
      return;
    }
    const int capacity = of_.op.sets.capacity;
    std::int32_t* const to = of_.op.sets.slots.raw() + static_cast<std::size_t>(search_.set) * capacity;
    if (threadIdx.x == 0) of_.op.sets.count.raw()[search_.set] = min(count, capacity);
    for (int i = static_cast<int>(threadIdx.x); i < min(search_.sink, capacity); i += kThreads) to[i] = i;
    if (own > 0) {
      each_taken([&](int chunk) {
        const int first = max(chunk == 0 ? 0 : end_of(room, chunk - 1), search_.sink);
        const int last = min(end_of(room, chunk), search_.tail);
        for (int slot = first; slot < last; ++slot, ++place) {
          if (place < capacity) to[place] = slot;
        }
      });
    }
    const int tail = search_.sink + all;
    for (int i = static_cast<int>(threadIdx.x); i < slots_ - search_.tail && tail + i < capacity; i += kThreads) {
      to[tail + i] = search_.tail + i;
    }
  }

  static constexpr int kRound = 128;  ///< tokens of a warp
  /// Where chunks are tokens, some at a time: look(token, clusters, in) for four tokens a lane, from a multiple of four
  /// on, of those from `begin`, a multiple of four, to `end`. in: which of the four are not before `first` and have
  /// clusters whose key is above the cut. All lanes look where one has such a token, else none.
  template <class Look>
  __device__ void look_at_tokens(int begin, int end, int first, const Look& look) const {
    constexpr int kAtOnce = 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int base = begin; base < end; base += kAtOnce * kRound) {
      const bool whole = base >= first && base + kAtOnce * kRound <= end;
      int4 fours[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int token = base + i * kRound + 4 * lane;
        const std::int32_t* const from = tree_.cluster_of + token;
        if (whole || token + 4 <= tree_.chunks) {
          fours[i] = *reinterpret_cast<const int4*>(from);
        } else {
          const int left = tree_.chunks - token;
          fours[i] = make_int4(left > 0 ? from[0] : 0, left > 1 ? from[1] : 0, left > 2 ? from[2] : 0, 0);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int token = base + i * kRound + 4 * lane;
        const int clusters[4] = {fours[i].x, fours[i].y, fours[i].z, fours[i].w};
        unsigned in = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) in |= keys_[clusters[j]] > cut_ ? 1U << j : 0U;
        if (!whole) {
#pragma unroll
          for (int j = 0; j < 4; ++j) in &= token + j >= first && token + j < end ? ~0U : ~(1U << j);
        }
        if (__any_sync(~0U, in != 0)) look(token, clusters, in);
      }
    }
  }

  /// The same where chunks are tokens: a warp has tokens that lie together, a lane four of 128. The cluster that is cut
  /// has a key above the cut, too.
  __device__ void write_tokens(Shared& room) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int first = search_.sink, last = max(first, min(tree_.chunks, search_.tail));
    const int from = first < last ? first & ~3 : last;  // no clusters, no keys: nothing is looked at then
    const int each = (max(0, last - from) + kWarps * kRound - 1) / (kWarps * kRound) * kRound;
    const int begin = min(last, from + warp * each), end = min(last, begin + each);
    const unsigned before = (1U << lane) - 1;
    if (threadIdx.x == 0 && part_ >= 0) keys_[part_] = kTaken;
    __syncthreads();
    // What a warp's tokens add, those of the cluster that is cut apart.
    std::uint32_t* const found = room.found[warp];
    int count_found = 0, cut = 0;
    const auto collect = [&](int token, const int(&clusters)[4], unsigned in) {
      int at = count_found;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const unsigned takes = __ballot_sync(~0U, (in >> j & 1) != 0);
        at += __popc(takes & before);
        count_found += __popc(takes);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if ((in >> j & 1) == 0) continue;
        const bool of_part = clusters[j] == part_;
        cut += of_part ? 1 : 0;
        if (at < kMostFound) found[at] = static_cast<std::uint32_t>(token + j) | (of_part ? kOfPart : 0);
        ++at;
      }
    };
    look_at_tokens(begin, end, first, collect);
    cut = __reduce_add_sync(~0U, cut);
    const int sure = count_found - cut;
    if (lane == 0) room.warp_tokens[warp][0] = sure, room.warp_tokens[warp][1] = cut;
    __syncthreads();
    int place = search_.sink, part = 0, all = 0, parts = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) place += all + min(parts, left_), part = parts;
      all += room.warp_tokens[w][0];
      parts += room.warp_tokens[w][1];
    }
    all += min(parts, left_);
    const int count = search_.sink + all + slots_ - search_.tail;
    if (count >= slots_) {
      if (threadIdx.x == 0) of_.op.sets.count.raw()[search_.set] = kEverything;
      return;
    }
    const int capacity = of_.op.sets.capacity;
    std::int32_t* const to = of_.op.sets.slots.raw() + static_cast<std::size_t>(search_.set) * capacity;
    if (threadIdx.x == 0) of_.op.sets.count.raw()[search_.set] = min(count, capacity);
    for (int i = static_cast<int>(threadIdx.x); i < min(search_.sink, capacity); i += kThreads) to[i] = i;
    const auto write_found = [&] {
      __syncwarp();
      for (int i = lane; i - lane < count_found; i += 32) {
        const std::uint32_t entry = i < count_found ? found[i] : 0;
        const unsigned cuts = __ballot_sync(~0U, entry >= kOfPart);
        const bool taken = i < count_found && (entry < kOfPart || part + __popc(cuts & before) < left_);
        const unsigned takes = __ballot_sync(~0U, taken);
        const int at = place + __popc(takes & before);
        if (taken && at < capacity) to[at] = static_cast<std::int32_t>(entry & ~kOfPart);
        place += __popc(takes);
        part += __popc(cuts);
      }
      count_found = 0;
      __syncwarp();
    };
    if (count_found > kMostFound) {
      count_found = 0;
      look_at_tokens(begin, end, first, [&](int token, const int(&clusters)[4], unsigned in) {
        collect(token, clusters, in);
        if (count_found > kMostFound - kRound) write_found();
      });
    }
    write_found();
    const int tail = search_.sink + all;
    for (int i = static_cast<int>(threadIdx.x); i < slots_ - search_.tail && tail + i < capacity; i += kThreads) {
      to[tail + i] = search_.tail + i;
    }
  }

  const Arguments& of_;
  const TreeSearch& search_;  ///< in shared memory
  const Tree& tree_;
  NodeScores scores_;
  std::uint32_t* keys_;
  int slots_ = 0;  ///< that the row sees
  int kept_ = 0;   ///< chunks that lie in shared memory
  std::uint32_t cut_ = 0;
  int part_ = -1, left_ = 0;
};

__global__ void __launch_bounds__(kThreads, 2) search_trees_kernel(const __grid_constant__ Arguments of) {
  extern __shared__ uint4 memory[];
  __shared__ Shared room;
  let_next_begin();
  constexpr int kWords = sizeof(TreeSearch) / sizeof(std::uint64_t);
  static_assert(sizeof(TreeSearch) % sizeof(std::uint64_t) == 0 && kWords <= kThreads);
  __shared__ std::uint64_t words[kWords];
  if (threadIdx.x < kWords) {
    words[threadIdx.x] = reinterpret_cast<const std::uint64_t*>(of.op.searches.raw() + blockIdx.x)[threadIdx.x];
  }
  __syncthreads();
  const TreeSearch& search = *reinterpret_cast<const TreeSearch*>(words);
  auto* const queries = reinterpret_cast<std::uint32_t*>(memory);
  TreeWalk walk(of, search, queries, queries + of.op.group * (query_words(of.cache.dim) + 2));
  walk.run(room);
}

}  // namespace

void search_trees(Stream& stream, const TreeSearchOp& op) {
  require_supported(op.cache.format);
  if (op.count == 0) return;
  Limits limits = launch_limits(stream);
  check_cuda(
      cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, stream.device().number),
      "asking for shared memory");
  const int query_bytes = op.group * (query_words(op.cache.format.dim) + 2) * static_cast<int>(sizeof(std::uint32_t));
  const int fixed = query_bytes + static_cast<int>(sizeof(Shared)) + 1024;
  const int most = (limits.shared_bytes - fixed) / static_cast<int>(sizeof(std::uint32_t));
  if (op.most > most) {
    throw UserError(
        "a search of " + std::to_string(op.most) + " clusters or chunks is over the " + std::to_string(most) +
        " that the GPU searches; use a shorter context, more chunks for each cluster of a tree, or the CPU, which "
        "searches any");
  }
  Arguments of{{.type = op.cache.format.type,
                .dim = op.cache.format.dim,
                .kv_heads = op.cache.kv_heads,
                .rows = op.rows.rows,
                .sequences = op.cache.sequences,
                .views = op.cache.views.raw(),
                .sequence = op.rows.sequence.raw(),
                .behind = op.rows.behind.raw()},
               op};
  const int bytes = query_bytes + op.most * static_cast<int>(sizeof(std::uint32_t));
  allow_shared(search_trees_kernel, bytes);
  launch(search_trees_kernel, of, dim3(static_cast<unsigned>(op.count), kThreads), bytes,
         {limits, static_cast<cudaStream_t>(stream.raw())});
}

}  // namespace glimpse::kernels::cuda
