// The kernel of trees.h: a block for each search. It reads the branches, the clusters of those that it opens, and a
// word or two for each chunk. Eight lanes of a warp have a node.
#include <cuda_fp16.h>

#include <string>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/order.cuh"
#include "glimpse/kernels/cuda/ranks.cuh"
#include "glimpse/kernels/cuda/share.cuh"
#include "glimpse/kernels/cuda/trees.h"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kLanes = 8;  ///< of a node
constexpr int kNodesAtOnce = kThreads / kLanes;
constexpr int kDigits = 256;
constexpr std::uint32_t kTaken = ~0U;

struct Arguments {
  Cache cache;
  TreeSearchOp op;
};

struct Shared {
  float branches[kMostTreeBranches];
  int opened[kMostTreeBranches];                                          ///< whether
  int branch_tokens[kMostTreeBranches], last_cluster[kMostTreeBranches];  ///< of the tree
  int digits[kDigits];                                                    ///< tokens
  int clusters;                                                           ///< opened
  int digit, before;  ///< the digit at which the budget is full, and the tokens before it
  int next;           ///< the lowest cluster that is looked for
  int warp_tokens[kWarps][2];
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

class TreeWalk {
 public:
  __device__ TreeWalk(const Arguments& of, const TreeSearch& search, float* queries, std::uint32_t* keys)
      : of_(of), search_(search), tree_(search.tree), queries_(queries), keys_(keys) {}

  /// Waits for the launch before; the tree is there before that.
  __device__ void run(Shared& room) {
    ask_for(tree_.ends, tree_.chunks);
    if (search_.scored != 0) {
      wait_for_launch_before();
      take_scores(room);
    } else {
      ask_for(tree_.centroids, tree_.branches * of_.cache.dim);
      ask_for(tree_.radii, tree_.branches + tree_.clusters);
      ask_for(tree_.costs, tree_.clusters);
      ask_for(tree_.cluster_of, tree_.chunks);
      if (threadIdx.x < tree_.branches) {
        room.branch_tokens[threadIdx.x] = tree_.branch_tokens[threadIdx.x];
        room.last_cluster[threadIdx.x] = tree_.last_cluster[threadIdx.x];
      }
      wait_for_launch_before();
      load();
      score_branches(room);
      open_branches(room);
      score_clusters(room);
    }
    find_cut(room);
    if (tree_.ends == nullptr) {
      write_tokens(room);
    } else {
      write();
    }
    if (threadIdx.x == 0 && of_.op.opened) of_.op.opened.raw()[search_.set] = room.clusters;
  }

 private:
  /// The queries that choose together, and behind them their lengths, scaled.
  __device__ void load() {
    const int dim = of_.cache.dim;
    const bool alone = search_.query >= 0;
    const std::size_t head =
        (static_cast<std::size_t>(search_.row) * of_.cache.kv_heads + search_.head) * of_.op.group +
        (alone ? search_.query : 0);
    const float* const from = of_.op.q.raw() + head * dim;
    const int group = alone ? 1 : of_.op.group;
    group_ = search_.mean_query != 0 ? 1 : group;
    for (int i = static_cast<int>(threadIdx.x); i < group_ * dim; i += kThreads) {
      float value = from[i];
      if (group_ < group) {
        for (int j = 1; j < group; ++j) value += from[j * dim + i];
        value /= static_cast<float>(group);
      }
      queries_[i] = value;
    }
    __syncthreads();
    lengths_ = queries_ + group_ * dim;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int j = static_cast<int>(threadIdx.x) / 32; j < group_; j += kWarps) {
      float squares = 0;
      for (int i = lane; i < dim; i += 32) squares += queries_[j * dim + i] * queries_[j * dim + i];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0U, squares, step);
      if (lane == 0) lengths_[j] = sqrtf(squares) * of_.op.scale;
    }
    __syncthreads();
  }

  /// The score of a node of the tree (clusters behind branches); its eight lanes have it. All lanes of a warp call.
  __device__ float score(int node) const {
    const int dim = of_.cache.dim, lane = static_cast<int>(threadIdx.x) % kLanes;
    const auto* const row = reinterpret_cast<const uint4*>(tree_.centroids + static_cast<std::size_t>(node) * dim);
    constexpr int kPieces = kMaxHeadDim / 8 / kLanes;
    uint4 pieces[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int piece = i * kLanes + lane;
      pieces[i] = piece < dim / 8 ? row[piece] : make_uint4(0, 0, 0, 0);
    }
    const float radius = tree_.radii[node];
    const bool mean = search_.pooling == Pooling::mean_score;
    float pooled = mean ? 0.0F : -INFINITY;
    for (int j = 0; j < group_; ++j) {
      const float* const query = queries_ + j * dim;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int piece = i * kLanes + lane;
        if (piece >= dim / 8) continue;
        const std::uint32_t words[4] = {pieces[i].x, pieces[i].y, pieces[i].z, pieces[i].w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float2 two = two_of(words[w], __half());
          sum += query[piece * 8 + 2 * w] * two.x + query[piece * 8 + 2 * w + 1] * two.y;
        }
      }
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
      const float value = sum * of_.op.scale + radius * lengths_[j];
      pooled = mean ? pooled + value : fmaxf(pooled, value);
    }
    return mean ? pooled / static_cast<float>(group_) : pooled;
  }

  __device__ void score_branches(Shared& room) const {
    for (int first = 0; first < tree_.branches; first += kNodesAtOnce) {
      const int branch = first + static_cast<int>(threadIdx.x) / kLanes;
      const float value = score(min(branch, tree_.branches - 1));
      if (branch < tree_.branches && threadIdx.x % kLanes == 0) room.branches[branch] = value;
    }
    __syncthreads();
  }

  /// One warp: the best branch, then the next, until they hold enough.
  __device__ void open_branches(Shared& room) const {
    if (threadIdx.x < 32) {
      const int lane = static_cast<int>(threadIdx.x);
      std::uint64_t own[2];
      int opened[2] = {0, 0};
      for (int i = 0; i < 2; ++i) {
        const int branch = lane + 32 * i;
        own[i] = branch < tree_.branches ? std::uint64_t{order_of(room.branches[branch])} << 32 | (~0U - branch) : 0;
      }
      std::int64_t tokens = 0;
      for (int number = 0; number < tree_.branches; ++number) {
        if (number >= search_.least_branches && tokens >= search_.candidates) break;
        std::uint64_t best = max(own[0], own[1]);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(~0U, best, step));
        tokens += room.branch_tokens[~0U - static_cast<unsigned>(best)];
        for (int i = 0; i < 2; ++i) {
          if (own[i] == best) own[i] = 0, opened[i] = 1;
        }
      }
      for (int i = 0; i < 2; ++i) {
        if (lane + 32 * i < tree_.branches) room.opened[lane + 32 * i] = opened[i];
      }
    }
    __syncthreads();
    int clusters = 0;
    for (int branch = 0; branch < tree_.branches; ++branch) {
      if (room.opened[branch] != 0) clusters += clusters_of(room, branch);
    }
    if (threadIdx.x == 0) room.clusters = clusters;
    __syncthreads();
  }

  /// keys_[cluster]: its score as a whole number; 0 where its branch is not open.
  __device__ void score_clusters(const Shared& room) const {
    for (int cluster = static_cast<int>(threadIdx.x); cluster < tree_.clusters; cluster += kThreads) keys_[cluster] = 0;
    __syncthreads();
    int branch = -1, first = 0, last = 0;
    for (int base = 0; base < room.clusters; base += kNodesAtOnce) {
      const int wanted = base + static_cast<int>(threadIdx.x) / kLanes;
      // The wanted one among the clusters of open branches; numbers only grow.
      while (wanted >= last && branch + 1 < tree_.branches) {
        ++branch;
        if (room.opened[branch] == 0) continue;
        first = last;
        last += clusters_of(room, branch);
      }
      const bool there = wanted < last;
      const int cluster = there ? begin_of(room, branch) + wanted - first : 0;
      const float value = score(tree_.branches + cluster);
      if (there && threadIdx.x % kLanes == 0) keys_[cluster] = max(order_of(value), 1U);
    }
    __syncthreads();
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
      const int cost = cost_of_cluster(cluster);
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
      atomicAdd(&room.digits[own >> shift & (kDigits - 1)], all_cost_of(cluster));
    }
    for (int token = first_windowed() + static_cast<int>(threadIdx.x); token < tree_.chunks; token += kThreads) {
      const std::uint32_t own = keys_[tree_.cluster_of[token]];
      if (own == 0 || (own & above) != key) continue;
      atomicSub(&room.digits[own >> shift & (kDigits - 1)], 1);
    }
    __syncthreads();
    const int digit = kDigits - 1 - static_cast<int>(threadIdx.x);
    const int own = digit >= 0 ? room.digits[digit] : 0;
    const int before = block_sum_before<kThreads>(own);
    if (digit >= 0 && before < target && before + own >= target) {
      room.digit = digit;
      room.before = before;
    }
    __syncthreads();
    return room.digit >= 0;
  }

  __device__ int cluster_of(int chunk) const {
    return search_.scored != 0 ? chunk : tree_.cluster_of[chunk];
  }
  /// Tokens that a cluster adds, those in the window counted.
  __device__ int all_cost_of(int cluster) const {
    return search_.scored != 0 ? cost_of(cluster) : tree_.costs[cluster];
  }
  /// Where chunks are tokens, the first of those behind `tail`: they have clusters, and cost nothing.
  __device__ int first_windowed() const {
    return tree_.ends == nullptr ? search_.tail : tree_.chunks;
  }
  /// Tokens that a cluster adds. The block synchronises where there is a window.
  __device__ int cost_of_cluster(int cluster) const {
    const int first = first_windowed();
    int own = 0, windowed = 0;
    for (int token = first + static_cast<int>(threadIdx.x); token < tree_.chunks; token += kThreads) {
      own += tree_.cluster_of[token] == cluster ? 1 : 0;
    }
    if (first < tree_.chunks) block_sum_before<kThreads>(own, &windowed);
    return all_cost_of(cluster) - windowed;
  }
  __device__ int cost_of(int chunk) const {
    const int begin = chunk == 0 ? 0 : tree_.ends[chunk - 1];
    return max(0, min(tree_.ends[chunk], search_.tail) - max(begin, search_.sink));
  }
  /// Each thread has chunks that lie together: how many tokens they add, and where these go.
  __device__ void write() {
    const int each = (tree_.chunks + kThreads - 1) / kThreads;
    const int begin = min(tree_.chunks, static_cast<int>(threadIdx.x) * each), end = min(tree_.chunks, begin + each);
    int own = 0;
    for (int chunk = begin; chunk < end && part_ >= 0; ++chunk) {
      if (cluster_of(chunk) == part_) own += cost_of(chunk);
    }
    const int part_before = block_sum_before<kThreads>(own);
    const auto each_taken = [&](const auto& take) {
      int part = part_before;
      for (int chunk = begin; chunk < end; ++chunk) {
        const int cluster = cluster_of(chunk);
        if (cluster == part_) {
          part += cost_of(chunk);
          if (part <= left_) take(chunk);
        } else if (keys_[cluster] > cut_) {
          take(chunk);
        }
      }
    };
    own = 0;
    if (cut_ != kTaken || part_ >= 0) each_taken([&](int chunk) { own += cost_of(chunk); });
    int all = 0;
    int place = search_.sink + block_sum_before<kThreads>(own, &all);
    const int slots = seen_slots(of_.cache, search_.row, view_of(of_.cache, search_.row, search_.head));
    const int count = search_.sink + all + slots - search_.tail;
    if (count >= slots) {
      if (threadIdx.x == 0) of_.op.sets.count.raw()[search_.set] = kEverything;
      return;
    }
    const int capacity = of_.op.sets.capacity;
    std::int32_t* const to = of_.op.sets.slots.raw() + static_cast<std::size_t>(search_.set) * capacity;
    if (threadIdx.x == 0) of_.op.sets.count.raw()[search_.set] = min(count, capacity);
    for (int i = static_cast<int>(threadIdx.x); i < min(search_.sink, capacity); i += kThreads) to[i] = i;
    if (own > 0) {
      each_taken([&](int chunk) {
        const int first = max(chunk == 0 ? 0 : tree_.ends[chunk - 1], search_.sink);
        const int last = min(tree_.ends[chunk], search_.tail);
        for (int slot = first; slot < last; ++slot, ++place) {
          if (place < capacity) to[place] = slot;
        }
      });
    }
    const int tail = search_.sink + all;
    for (int i = static_cast<int>(threadIdx.x); i < slots - search_.tail && tail + i < capacity; i += kThreads) {
      to[tail + i] = search_.tail + i;
    }
  }

  /// The same where chunks are tokens: a warp has tokens that lie together, so that its lanes read neighbours.
  __device__ void write_tokens(Shared& room) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int first = search_.sink, last = min(tree_.chunks, search_.tail);
    const int each = (max(0, last - first) + kThreads - 1) / kThreads * 32;
    const int begin = min(last, first + warp * each), end = min(last, begin + each);
    const unsigned before = (1U << lane) - 1;
    // What a warp's tokens add, those of the cluster that is cut apart.
    int sure = 0, cut = 0;
    for (int token = begin + lane; token < end; token += 32) {
      const int cluster = tree_.cluster_of[token];
      sure += cluster != part_ && keys_[cluster] > cut_ ? 1 : 0;
      cut += cluster == part_ ? 1 : 0;
    }
    sure = __reduce_add_sync(~0U, sure);
    cut = __reduce_add_sync(~0U, cut);
    if (lane == 0) room.warp_tokens[warp][0] = sure, room.warp_tokens[warp][1] = cut;
    __syncthreads();
    int place = search_.sink, part = 0, all = 0, parts = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) place += all + min(parts, left_), part = parts;
      all += room.warp_tokens[w][0];
      parts += room.warp_tokens[w][1];
    }
    all += min(parts, left_);
    const int slots = seen_slots(of_.cache, search_.row, view_of(of_.cache, search_.row, search_.head));
    const int count = search_.sink + all + slots - search_.tail;
    if (count >= slots) {
      if (threadIdx.x == 0) of_.op.sets.count.raw()[search_.set] = kEverything;
      return;
    }
    const int capacity = of_.op.sets.capacity;
    std::int32_t* const to = of_.op.sets.slots.raw() + static_cast<std::size_t>(search_.set) * capacity;
    if (threadIdx.x == 0) of_.op.sets.count.raw()[search_.set] = min(count, capacity);
    for (int i = static_cast<int>(threadIdx.x); i < min(search_.sink, capacity); i += kThreads) to[i] = i;
    for (int base = begin; base < end; base += 32) {
      const int token = base + lane;
      const int cluster = token < end ? tree_.cluster_of[token] : -1;
      const unsigned cuts = __ballot_sync(~0U, cluster >= 0 && cluster == part_);
      const bool taken =
          cluster >= 0 && (cluster == part_ ? part + __popc(cuts & before) < left_ : keys_[cluster] > cut_);
      const unsigned takes = __ballot_sync(~0U, taken);
      const int at = place + __popc(takes & before);
      if (taken && at < capacity) to[at] = token;
      place += __popc(takes);
      part += __popc(cuts);
    }
    const int tail = search_.sink + all;
    for (int i = static_cast<int>(threadIdx.x); i < slots - search_.tail && tail + i < capacity; i += kThreads) {
      to[tail + i] = search_.tail + i;
    }
  }

  const Arguments& of_;
  const TreeSearch& search_;
  const Tree tree_;
  float* queries_;
  float* lengths_ = nullptr;
  std::uint32_t* keys_;
  int group_ = 1;
  std::uint32_t cut_ = 0;
  int part_ = -1, left_ = 0;
};

int query_bytes(int group, int dim) {
  return (group * (dim + 1) + 3) / 4 * 4 * static_cast<int>(sizeof(float));
}

__global__ void __launch_bounds__(kThreads, 2) search_trees_kernel(const __grid_constant__ Arguments of) {
  extern __shared__ uint4 memory[];
  __shared__ Shared room;
  let_next_begin();
  const TreeSearch search = of.op.searches.raw()[blockIdx.x];
  auto* const queries = reinterpret_cast<float*>(memory);
  const int floats = (of.op.group * (of.cache.dim + 1) + 3) / 4 * 4;
  TreeWalk walk(of, search, queries, reinterpret_cast<std::uint32_t*>(queries + floats));
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
  const int fixed = query_bytes(op.group, op.cache.format.dim) + static_cast<int>(sizeof(Shared)) + 1024;
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
  const int bytes = query_bytes(op.group, op.cache.format.dim) + op.most * static_cast<int>(sizeof(std::uint32_t));
  allow_shared(search_trees_kernel, bytes);
  launch(search_trees_kernel, of, dim3(static_cast<unsigned>(op.count), kThreads), bytes,
         {limits, static_cast<cudaStream_t>(stream.raw())});
}

}  // namespace glimpse::kernels::cuda
