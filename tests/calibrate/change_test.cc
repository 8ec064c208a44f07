// How far attention turns the residual stream, against the weights multiplied out.
#include <gtest/gtest.h>

#include <cmath>

#include "glimpse/model/model.h"
#include "tests/engine/support.h"

namespace glimpse::calibrate {
namespace {

std::span<const float> floats(const model::TensorInfo& tensor, std::size_t count) {
  return {reinterpret_cast<const float*>(tensor.data), count};
}

/// 1 - cosine(x, x + attention(x)) of a lone token in layer 0: attention gives the value itself, whatever the scores.
double change_of_lone_token(const model::Model& model, engine::Token token) {
  const model::Config& config = model.config();
  const auto hidden = static_cast<std::size_t>(config.hidden), dim = static_cast<std::size_t>(config.head_dim),
             heads = static_cast<std::size_t>(config.heads), kv_heads = static_cast<std::size_t>(config.kv_heads);
  const model::LayerWeights& layer = model.layers()[0];
  const auto row = floats(model.token_embedding(), hidden * static_cast<std::size_t>(config.vocabulary))
                       .subspan(static_cast<std::size_t>(token) * hidden, hidden);
  double squares = 0;
  for (const float x : row) squares += static_cast<double>(x) * x;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + config.rms_epsilon);
  std::vector<double> normal(hidden), value(kv_heads * dim), out(hidden);
  const auto norm = floats(*layer.attention_norm, hidden);
  for (std::size_t i = 0; i < hidden; ++i) normal[i] = row[i] * scale * norm[i];
  const auto v = floats(*layer.v, kv_heads * dim * hidden);
  for (std::size_t i = 0; i < value.size(); ++i) {
    for (std::size_t j = 0; j < hidden; ++j) value[i] += static_cast<double>(v[i * hidden + j]) * normal[j];
  }
  const auto output = floats(*layer.output, hidden * heads * dim);
  for (std::size_t i = 0; i < hidden; ++i) {
    for (std::size_t head = 0; head < heads; ++head) {
      for (std::size_t d = 0; d < dim; ++d) {
        out[i] +=
            static_cast<double>(output[i * heads * dim + head * dim + d]) * value[head / (heads / kv_heads) * dim + d];
      }
    }
  }
  double xy = 0, yy = 0;
  for (std::size_t i = 0; i < hidden; ++i) {
    const double y = row[i] + out[i];
    xy += row[i] * y;
    yy += y * y;
  }
  return 1 - xy / std::sqrt(squares * yy);
}

TEST(AttentionChange, IsThatOfTheWeights) {
  const std::filesystem::path path = reference::test_model("llama");
  const model::Model model(path);
  engine::Engine engine(engine::options_for(path));
  const auto run = [&](engine::Token token) {
    engine::Sequence sequence = engine.open(plan::dense_plan(engine.shape()));
    sequence.prefill({&token, 1});
  };
  run(5);
  for (const double change : engine.attention_change()) EXPECT_EQ(change, 0);  // nobody asked
  engine.measure_change(true);
  double sum = 0;
  for (const engine::Token token : {7, 100, 300}) {
    run(token);
    sum += change_of_lone_token(model, token);
  }
  const std::vector<double> changes = engine.attention_change();
  ASSERT_EQ(changes.size(), static_cast<std::size_t>(engine.shape().layers));
  EXPECT_GT(sum, 1e-3);
  EXPECT_NEAR(changes[0], sum / 3, 1e-5);
  for (const double change : changes) {
    EXPECT_GT(change, 0);
    EXPECT_LE(change, 2);
  }
  engine.measure_change(true);
  run(100);
  EXPECT_NEAR(engine.attention_change()[0], change_of_lone_token(model, 100), 1e-5);
  engine.measure_change(false);
  EXPECT_EQ(engine.attention_change()[0], 0);
}

}  // namespace
}  // namespace glimpse::calibrate
