// What a tile's rows gave to each slot before it, by warpgroup products. A block has a tile and KV head: 64 rows for
// each of two warpgroups, whose queries stay in shared memory, and goes over the keys before the tile, 160 at a time. A
// third warpgroup brings them. The next products run while a warpgroup makes weights of its last scores and adds up
// each column: over its two rows, over the lanes of a warp, half of the columns at a time, and over its four warps.
#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/hopper_keys.cuh"
#include "glimpse/kernels/cuda/tiles.h"
#include "glimpse/kernels/cuda/tiles_hopper.h"

namespace glimpse::kernels::cuda {
namespace {

constexpr double kLog2OfE = 1.4426950408889634;

struct TileSumsArguments {
  PrefillArguments prefill;  ///< `prompt` is not used
  const PromptRows* tiles = nullptr;
  int count = 0;
  float* sums = nullptr;
  std::size_t stride = 0;
};

/// One warpgroup's 64 rows.
template <class T, int kDim>
class SumsRows {
 public:
  using Shape = HopperShape<kDim>;
  using Products = KeyProducts<T, kDim>;
  static constexpr int kWarpSums = 2 * 4 * Shape::kKeys;  ///< floats of a warpgroup: of its warps, twice

  __device__ SumsRows(const Products& products, float* warp_sums, int worker)
      : products_(products), warp_sums_(warp_sums), worker_(worker), lane_(static_cast<int>(threadIdx.x) % 32) {}

  /// This thread's rows count by e^(score - lse): `base` is that times log2(e), infinity where there is no row.
  __device__ void run(int end, float scale, const float (&base)[2], float* to, int slots) {
    int tile = 0;
    for (; tile + 1 < end; tile += 2) {
      float a[Products::kScores], b[Products::kScores];
      products_.wait_for(tile);
      products_.wait_for(tile + 1);
      begin_products();
      products_.multiply(tile, a);
      products_.multiply(tile + 1, b);
      wait_products<1>();
      hold(a);
      add_up(tile, a, scale, base, to, slots);
      wait_products<0>();
      hold(b);
      add_up(tile + 1, b, scale, base, to, slots);
    }
    if (tile == end) return;
    float a[Products::kScores];
    products_.wait_for(tile);
    begin_products();
    products_.multiply(tile, a);
    wait_products<0>();
    hold(a);
    add_up(tile, a, scale, base, to, slots);
  }

 private:
  __device__ void add_up(int tile, float (&scores)[Products::kScores], float scale, const float (&base)[2], float* to,
                         int slots) const {
    products_.give_back(tile);
    constexpr int kColumns = KeysShape<kDim>::kColumns;
    float sums[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int i = c / 2 * 4 + c % 2;
      sums[c] = exp2_of(fmaf(scores[i], scale, -base[0])) + exp2_of(fmaf(scores[i + 2], scale, -base[1]));
    }
    // Lanes of the same columns are 4, 8 and 16 apart. Of each two, one goes on with the first half of the columns.
    fold<kColumns, 16>(sums);
    fold<kColumns / 2, 8>(sums);
    fold<kColumns / 4, 4>(sums);
    constexpr int kLeft = kColumns / 8;
    const int first = (lane_ & 16 ? kColumns / 2 : 0) + (lane_ & 8 ? kColumns / 4 : 0) + (lane_ & 4 ? kLeft : 0);
    float* const half = warp_sums_ + tile % 2 * 4 * Shape::kKeys;
    const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
#pragma unroll
    for (int c = 0; c < kLeft; ++c) {
      const int column = first + c;
      half[warp * Shape::kKeys + column / 2 * 8 + lane_ % 4 * 2 + column % 2] = sums[c];
    }
    meet(5 + worker_, 128);
#pragma unroll
    for (int n = 0; n < (Shape::kKeys + 127) / 128; ++n) {
      const int key = n * 128 + static_cast<int>(threadIdx.x) % 128;
      const int slot = tile * Shape::kKeys + key;
      const float* const of = half + key;
      if (key >= Shape::kKeys || slot >= slots) continue;
      to[slot] = (of[0] + of[Shape::kKeys]) + (of[2 * Shape::kKeys] + of[3 * Shape::kKeys]);
    }
  }

  template <int kCount, int kApart>
  __device__ void fold(float (&sums)[KeysShape<kDim>::kColumns]) const {
    const bool upper = (lane_ & kApart) != 0;
#pragma unroll
    for (int c = 0; c < kCount / 2; ++c) {
      const float given = upper ? sums[c] : sums[c + kCount / 2];
      const float kept = upper ? sums[c + kCount / 2] : sums[c];
      sums[c] = kept + __shfl_xor_sync(~0U, given, kApart);
    }
  }

  const Products& products_;
  float* warp_sums_;
  int worker_, lane_;
};

template <class T, int kDim>
__global__ void __launch_bounds__(HopperShape<kDim>::kThreads, 1)
    tile_sums_kernel(const __grid_constant__ TileSumsArguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = HopperShape<kDim>;
  const PrefillArguments& of = arguments.prefill;
  __shared__ HopperHandover<kDim> handover;
  __shared__ float warp_sums[Shape::kWorkers][SumsRows<T, kDim>::kWarpSums];
  extern __shared__ uint4 memory[];
  const std::uint32_t base = (shared_address(memory) + 1023U) & ~1023U;
  const std::uint32_t keys = base + Shape::kQueryBytes;
  if (threadIdx.x == 0) make_keys_handover<kDim>(handover);
  __syncthreads();
  // Heads outermost: blocks that run together read the same keys.
  const int head = static_cast<int>(blockIdx.x) / arguments.count;
  const int tile = arguments.count - 1 - static_cast<int>(blockIdx.x) % arguments.count;
  const PromptRows rows = arguments.tiles[tile];
  const HeadView view = of.cache.views[static_cast<std::size_t>(rows.sequence) * of.cache.kv_heads + head];
  const int slots = view.slots - rows.behind;  // before the tile
  const int end = (slots + Shape::kKeys - 1) / Shape::kKeys;
  if (end <= 0) return;
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == Shape::kWorkers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    KeysFeed<kDim>(view, slots, keys, handover).run(end);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int count = rows.rows * of.group;
    const std::size_t heads = static_cast<std::size_t>(of.cache.kv_heads) * of.group;
    const auto row_at = [&](int row) {  // of [R, H]
      return static_cast<std::size_t>(rows.row + row / of.group) * heads + static_cast<std::size_t>(head) * of.group +
             row % of.group;
    };
    const std::uint32_t queries = base + group * Shape::kBlocks * Shape::kQueryBlock;
    bring_queries<T, kDim>(of, group, count, queries, row_at);
    meet(3 + group, 128);
    const int own = group * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    constexpr float kLog = static_cast<float>(kLog2OfE);
    const float sums_of[2] = {own < count ? of.lse[row_at(own)] * kLog : INFINITY,
                              own + 8 < count ? of.lse[row_at(own + 8)] * kLog : INFINITY};
    float* const to =
        arguments.sums +
        ((static_cast<std::size_t>(tile) * of.cache.kv_heads + head) * kTileSumParts + group) * arguments.stride;
    const KeyProducts<T, kDim> products(queries, keys, handover);
    SumsRows<T, kDim>(products, warp_sums[group], group).run(end, fabsf(of.scale), sums_of, to, slots);
  }
#endif
}

template <class T, int kDim>
void launch_as(const TileSumsArguments& of, cudaStream_t stream) {
  using Shape = HopperShape<kDim>;
  Limits limits;
  auto* const kernel = tile_sums_kernel<T, kDim>;
  allow_shared(kernel, Shape::kBytes);
  launch(kernel, of, dim3(of.count * of.prefill.cache.kv_heads, Shape::kThreads), Shape::kBytes,
         {limits, stream, false});
}

template <class T>
void launch_of(const TileSumsArguments& of, cudaStream_t stream) {
  if (of.prefill.cache.dim == 64) return launch_as<T, 64>(of, stream);
  launch_as<T, 128>(of, stream);
}

}  // namespace

bool has_tile_sums(const Stream& stream, int dim) {
  return has_tiles_hopper(stream.device().capability, dim);
}

void sum_tiles(Stream& stream, const TileSumsOp& op) {
  require_halves(op.cache.format);
  check(has_tile_sums(stream, op.cache.format.dim), "a device that has sums of tiles");
  if (op.count == 0) return;
  TileSumsArguments of;
  of.prefill.cache = {.type = op.cache.format.type,
                      .dim = op.cache.format.dim,
                      .kv_heads = op.cache.kv_heads,
                      .sequences = op.cache.sequences,
                      .views = op.cache.views.raw()};
  of.prefill.group = op.group;
  of.prefill.scale = static_cast<float>(static_cast<double>(op.scale) * kLog2OfE);
  of.prefill.q = op.q.raw();
  of.prefill.lse = const_cast<float*>(op.lse.raw());
  of.tiles = op.tiles.raw();
  of.count = op.count;
  of.sums = op.sums.raw();
  of.stride = op.stride;
  auto* const raw = static_cast<cudaStream_t>(stream.raw());
  if (op.cache.format.type == KvType::f16) return launch_of<__half>(of, raw);
  launch_of<__nv_bfloat16>(of, raw);
}

}  // namespace glimpse::kernels::cuda
