// The log-sum-exps of a prompt's rows by warpgroup products: a block of prefill_hopper.cuh that reads keys alone. Each
// thread has the largest score and the sum of weights of its own columns, two rows of them.
#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/hopper_keys.cuh"
#include "glimpse/kernels/cuda/tiles.h"

namespace glimpse::kernels::cuda {
namespace {

constexpr double kLog2OfE = 1.4426950408889634;

/// One warpgroup's 64 rows.
template <class T, int kDim>
class LogSums {
 public:
  using Shape = HopperShape<kDim>;
  using Products = KeyProducts<T, kDim>;

  __device__ LogSums(const Products& products, float scale)
      : products_(products), scale_(scale), lane_(static_cast<int>(threadIdx.x) % 32) {}

  /// Goes over tiles [0, end) of keys; those before `whole` are seen by all rows. This thread's rows see sees[0] and
  /// sees[1] slots.
  __device__ void run(int end, int whole, const int (&sees)[2]) {
    int tile = 0;
    for (; tile + 1 < whole; tile += 2) {
      float a[Products::kScores], b[Products::kScores];
      products_.wait_for(tile);
      products_.wait_for(tile + 1);
      begin_products();
      products_.multiply(tile, a);
      products_.multiply(tile + 1, b);
      wait_products<1>();
      hold(a);
      products_.give_back(tile);
      add(a);
      wait_products<0>();
      hold(b);
      products_.give_back(tile + 1);
      add(b);
    }
    for (; tile < end; ++tile) {
      float a[Products::kScores];
      products_.wait_for(tile);
      begin_products();
      products_.multiply(tile, a);
      wait_products<0>();
      hold(a);
      products_.give_back(tile);
#pragma unroll
      for (int i = 0; i < Products::kScores; ++i) {
        const int slot = tile * Shape::kKeys + i / 4 * 8 + lane_ % 4 * 2 + i % 2;
        if (slot >= sees[i / 2 % 2]) a[i] = -INFINITY;
      }
      add(a);
    }
  }

  /// Of row r; all four lanes of a row have it.
  __device__ float value(int r) const {
    LogSum sum{largest_[r] * scale_, total_[r]};
    sum.add_from(~0U, 1);
    sum.add_from(~0U, 2);
    return sum.sum > 0 ? sum.value() : -INFINITY;
  }

 private:
  __device__ void add(const float (&scores)[Products::kScores]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = largest_[r];
#pragma unroll
      for (int i = 0; i < Products::kScores / 4; ++i) {
        top = fmaxf(top, fmaxf(scores[i * 4 + r * 2], scores[i * 4 + r * 2 + 1]));
      }
      const float base = or_zero(top) * scale_;
      float sum = total_[r] * exp2_of(largest_[r] * scale_ - base);
#pragma unroll
      for (int i = 0; i < Products::kScores / 4; ++i) {
        sum += exp2_of(fmaf(scores[i * 4 + r * 2], scale_, -base));
        sum += exp2_of(fmaf(scores[i * 4 + r * 2 + 1], scale_, -base));
      }
      largest_[r] = top;
      total_[r] = sum;
    }
  }

  const Products& products_;
  float scale_;
  int lane_;
  float largest_[2] = {-INFINITY, -INFINITY}, total_[2] = {};
};

template <class T, int kDim>
__global__ void __launch_bounds__(HopperShape<kDim>::kThreads, 1)
    row_sums_kernel(const __grid_constant__ PrefillArguments of) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = HopperShape<kDim>;
  __shared__ HopperHandover<kDim> handover;
  extern __shared__ uint4 memory[];
  const std::uint32_t base = (shared_address(memory) + 1023U) & ~1023U;
  const std::uint32_t keys = base + Shape::kQueryBytes;
  if (threadIdx.x == 0) make_keys_handover<kDim>(handover);
  __syncthreads();
  const int tiles = (of.prompt.rows * of.group + Shape::kRows - 1) / Shape::kRows;
  const int head = static_cast<int>(blockIdx.x) % of.cache.kv_heads;
  const int first = (tiles - 1 - static_cast<int>(blockIdx.x) / of.cache.kv_heads) * Shape::kRows;
  const int count = min(Shape::kRows, of.prompt.rows * of.group - first);
  const HeadView view = of.cache.views[static_cast<std::size_t>(of.prompt.sequence) * of.cache.kv_heads + head];
  const int before = view.slots - of.prompt.behind + 1;  // that the first row sees
  const int seen = before + (first + count - 1) / of.group;
  const int end = (seen + Shape::kKeys - 1) / Shape::kKeys;
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == Shape::kWorkers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    KeysFeed<kDim>(view, seen, keys, handover).run(end);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const std::size_t heads = static_cast<std::size_t>(of.cache.kv_heads) * of.group;
    const auto row_at = [&](int row) {  // of [R, H]
      const int token = of.prompt.row + (first + row) / of.group;
      return token * heads + static_cast<std::size_t>(head) * of.group + (first + row) % of.group;
    };
    const std::uint32_t queries = base + group * Shape::kBlocks * Shape::kQueryBlock;
    bring_queries<T, kDim>(of, group, count, queries, row_at);
    meet(3 + group, 128);
    const int own = group * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    const int sees[2] = {min(seen, before + (first + own) / of.group),
                         min(seen, before + (first + own + 8) / of.group)};
    const KeyProducts<T, kDim> products(queries, keys, handover);
    LogSums<T, kDim> sums(products, fabsf(of.scale));
    sums.run(end, (before + first / of.group) / Shape::kKeys, sees);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float value = sums.value(r);
      if (own + r * 8 < count && threadIdx.x % 4 == 0) of.lse[row_at(own + r * 8)] = value;
    }
  }
#endif
}

template <class T, int kDim>
void launch_as(const PrefillArguments& of, cudaStream_t stream) {
  using Shape = HopperShape<kDim>;
  Limits limits;
  auto* const kernel = row_sums_kernel<T, kDim>;
  allow_shared(kernel, Shape::kBytes);
  const int tiles = (of.prompt.rows * of.group + Shape::kRows - 1) / Shape::kRows;
  launch(kernel, of, dim3(tiles * of.cache.kv_heads, Shape::kThreads), Shape::kBytes, {limits, stream, false});
}

template <class T>
void launch_of(const PrefillArguments& of, cudaStream_t stream) {
  if (of.cache.dim == 64) return launch_as<T, 64>(of, stream);
  launch_as<T, 128>(of, stream);
}

}  // namespace

void sum_rows(Stream& stream, const RowSumsOp& op) {
  require_halves(op.cache.format);
  check(has_tile_sums(stream, op.cache.format.dim), "a device that has sums of rows");
  if (op.prompt.rows == 0) return;
  PrefillArguments of;
  of.cache = {.type = op.cache.format.type,
              .dim = op.cache.format.dim,
              .kv_heads = op.cache.kv_heads,
              .sequences = op.cache.sequences,
              .views = op.cache.views.raw()};
  of.prompt = op.prompt;
  of.group = op.group;
  of.scale = static_cast<float>(static_cast<double>(op.scale) * kLog2OfE);
  of.q = op.q.raw();
  of.lse = op.lse.raw();
  auto* const raw = static_cast<cudaStream_t>(stream.raw());
  if (op.cache.format.type == KvType::f16) return launch_of<__half>(of, raw);
  launch_of<__nv_bfloat16>(of, raw);
}

}  // namespace glimpse::kernels::cuda
