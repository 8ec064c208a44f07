#include "glimpse/attention/cuda/tile_rows.h"

namespace glimpse::attention::cuda {

std::int64_t start_of(const SequenceRows& rows, int tile) {
  return rows.position + static_cast<std::int64_t>(tile) * rows.program->tile_tokens();
}

int tiles_of(const SequenceRows& rows) {
  return (rows.rows + rows.program->tile_tokens() - 1) / rows.program->tile_tokens();
}

bool reads_tiles(const SequenceRows& rows) {
  if (rows.kind != PassKind::prompt || rows.program->tile_tokens() == 0) return false;
  for (int tile = 0; tile < tiles_of(rows); ++tile) {
    if (!rows.program->dense_at(start_of(rows, tile))) return true;
  }
  return false;
}

}  // namespace glimpse::attention::cuda
