#include "glimpse/calibrate/recording.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "glimpse/base/error.h"

namespace glimpse::calibrate {
namespace {

/// Dots that are summed up at once, so that they stay in registers.
constexpr std::size_t kDots = 16;
constexpr std::size_t kChunk = 256;  ///< keys that a thread takes at once

/// dots[step, j] of one key with the queries of a group, which lie as [d, step, j] so that the inner loop runs over
/// many of them. Both are filled up to a multiple of kDots.
void take_dots(std::span<const float> key, const std::vector<float>& queries, std::vector<float>& dots) {
  const std::size_t width = dots.size();
  for (std::size_t first = 0; first < width; first += kDots) {
    std::array<float, kDots> sums{};
    for (std::size_t i = 0; i < key.size(); ++i) {
      const float k = key[i];
      const float* q = queries.data() + i * width + first;
      for (std::size_t j = 0; j < kDots; ++j) sums[j] += k * q[j];
    }
    std::copy(sums.begin(), sums.end(), dots.begin() + static_cast<std::ptrdiff_t>(first));
  }
}

void softmax(std::span<float> scores) {
  const float top = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (float& score : scores) {
    score = std::exp(score - top);
    sum += static_cast<double>(score);
  }
  const auto scale = static_cast<float>(1 / sum);
  for (float& score : scores) score *= scale;
}

}  // namespace

Recording record(const engine::Sequence& dense, const plan::ModelShape& shape, std::span<const Token> tokens,
                 std::int64_t first) {
  check(first > 0 && first + 1 < static_cast<std::int64_t>(tokens.size()), "a step to record, and a token after it");
  Recording recording{dense.fork(plan::dense_plan(shape), first)};
  recording.first = first;
  recording.steps = static_cast<int>(static_cast<std::int64_t>(tokens.size()) - 1 - first);
  const auto row = static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.head_dim);
  recording.queries.assign(static_cast<std::size_t>(shape.layers),
                           std::vector<float>(static_cast<std::size_t>(recording.steps) * row));
  recording.sequence.on_sets([&](const engine::SetTrace& trace) {
    const auto step = static_cast<std::size_t>(trace.position - first);
    std::vector<float>& to = recording.queries[static_cast<std::size_t>(trace.layer)];
    std::copy(trace.query.begin(), trace.query.end(),
              to.begin() + static_cast<std::ptrdiff_t>(step * row +
                                                       static_cast<std::size_t>(trace.kv_head) * trace.query.size()));
  });
  for (std::size_t at = static_cast<std::size_t>(first); at + 1 < tokens.size(); ++at) {
    recording.sequence.decode(tokens[at]);
    recording.next.push_back(tokens[at + 1]);
  }
  recording.sequence.on_sets({});
  return recording;
}

LayerAttention attention_of(const Recording& recording, const plan::ModelShape& shape, int layer,
                            evaluate::ThreadTeam* team) {
  LayerAttention attention{recording.steps, shape.heads, recording.sequence.length(), {}};
  const auto steps = static_cast<std::size_t>(recording.steps), group = static_cast<std::size_t>(shape.group()),
             dim = static_cast<std::size_t>(shape.head_dim), heads = static_cast<std::size_t>(shape.heads),
             tokens = static_cast<std::size_t>(attention.tokens);
  attention.probability.assign(steps * heads * tokens, 0.0F);
  const std::vector<float>& queries = recording.queries[static_cast<std::size_t>(layer)];
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
  const std::size_t width = (steps * group + kDots - 1) / kDots * kDots;
  const auto chunks = static_cast<int>((tokens + kChunk - 1) / kChunk);
  std::vector<float> turned(dim * width, 0.0F);
  std::vector<std::vector<float>> dots(static_cast<std::size_t>(chunks), std::vector<float>(width));
  for (int kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    const std::size_t head = static_cast<std::size_t>(kv_head) * group;
    for (std::size_t s = 0; s < steps; ++s) {
      for (std::size_t j = 0; j < group; ++j) {
        for (std::size_t i = 0; i < dim; ++i) {
          turned[i * width + s * group + j] = queries[(s * heads + head + j) * dim + i] * scale;
        }
      }
    }
    const std::vector<float> keys = recording.sequence.keys(layer, kv_head);
    evaluate::share(team, chunks, [&](int chunk) {
      const std::size_t begin = static_cast<std::size_t>(chunk) * kChunk;
      std::vector<float>& of_key = dots[static_cast<std::size_t>(chunk)];
      for (std::size_t token = begin; token < std::min(tokens, begin + kChunk); ++token) {
        take_dots(std::span(keys).subspan(token * dim, dim), turned, of_key);
        for (std::size_t s = 0; s < steps; ++s) {
          for (std::size_t j = 0; j < group; ++j) {
            attention.probability[(s * heads + head + j) * tokens + token] = of_key[s * group + j];
          }
        }
      }
    });
    evaluate::share(team, recording.steps, [&](int step) {
      const auto s = static_cast<std::size_t>(step);
      const std::size_t seen = static_cast<std::size_t>(recording.first) + s + 1;
      for (std::size_t j = 0; j < group; ++j) {
        const std::span<float> row = std::span(attention.probability).subspan((s * heads + head + j) * tokens, tokens);
        softmax(row.first(seen));
        std::fill(row.begin() + static_cast<std::ptrdiff_t>(seen), row.end(), 0.0F);
      }
    });
  }
  return attention;
}

LayerAttention pooled(const LayerAttention& attention, int kv_heads, evaluate::ThreadTeam* team) {
  LayerAttention mean{attention.steps, kv_heads, attention.tokens, {}};
  const int group = attention.heads / kv_heads;
  const auto tokens = static_cast<std::size_t>(attention.tokens);
  mean.probability.assign(static_cast<std::size_t>(attention.steps * kv_heads) * tokens, 0.0F);
  evaluate::share(team, attention.steps, [&](int step) {
    for (int head = 0; head < attention.heads; ++head) {
      const std::span<const float> from = attention.row(step, head);
      float* to = mean.probability.data() + static_cast<std::size_t>(step * kv_heads + head / group) * tokens;
      for (std::size_t token = 0; token < tokens; ++token) to[token] += from[token] / static_cast<float>(group);
    }
  });
  return mean;
}

}  // namespace glimpse::calibrate
