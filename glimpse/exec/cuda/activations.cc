#include "glimpse/exec/cuda/activations.h"

#include <algorithm>

namespace glimpse::exec::cuda {
namespace {

struct Widths {
  std::size_t hidden, q, kv, feed_forward;
};

Widths widths_of(const model::Config& config) {
  const auto dim = static_cast<std::size_t>(config.head_dim);
  return {static_cast<std::size_t>(config.hidden), static_cast<std::size_t>(config.heads) * dim,
          static_cast<std::size_t>(config.kv_heads) * dim, static_cast<std::size_t>(config.feed_forward)};
}

/// All go before any is taken anew.
template <class... Arrays>
void free(Arrays&... arrays) {
  ((arrays = Arrays()), ...);
}

}  // namespace

std::size_t Activations::bytes(const model::Config& config, std::size_t rows) {
  const Widths w = widths_of(config);
  const std::size_t floats =
      3 * w.hidden + w.hidden / kernels::cuda::kPackedRows + 1 + 4 * w.q + 2 * w.kv + 2 * w.feed_forward;
  const std::size_t halves = w.hidden + w.q + w.feed_forward;
  return rows * (floats * sizeof(float) + halves * sizeof(Bf16));
}

void Activations::reserve(kernels::cuda::Stream& stream, const model::Config& config, std::size_t rows,
                          std::size_t outputs) {
  const Widths w = widths_of(config);
  if (outputs > outputs_) {
    stream.synchronize();  // what is queued may use the old ones
    ++moves;
    outputs_ = 0;
    free(logits, rest, taken);
    logits = {stream, outputs * static_cast<std::size_t>(config.vocabulary)};
    rest = {stream, outputs * w.hidden};
    taken = {stream, outputs * w.q};
    outputs_ = outputs;
  }
  if (rows <= rows_) return;
  stream.synchronize();
  ++moves;
  rows_ = 0;
  free(residual, delta, qkv, q, attended, gate_up, normalised, squares, narrowed, activated);
  residual = {stream, rows * w.hidden};
  delta = {stream, rows * w.hidden};
  normalised = {stream, rows * w.hidden};
  squares = {stream, rows * (w.hidden / kernels::cuda::kPackedRows + 1)};
  qkv = {stream, rows * (w.q + 2 * w.kv)};
  q = {stream, rows * w.q};
  attended = {stream, rows * w.q};
  narrowed = {stream, rows * w.q};
  gate_up = {stream, rows * 2 * w.feed_forward};
  activated = {stream, rows * w.feed_forward};
  rows_ = rows;
}

}  // namespace glimpse::exec::cuda
