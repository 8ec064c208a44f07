// Calibration on a GPU: what it measures against the CPU's, and what it leaves out. Skipped without one.
#include <gtest/gtest.h>

#include "glimpse/calibrate/calibrate.h"
#include "glimpse/kernels/cuda/operations.h"
#include "tests/engine/support.h"

namespace glimpse::calibrate {
namespace {

engine::EngineOptions on(std::string_view device) {
  engine::EngineOptions options = engine::options_for(reference::test_model("llama256"), KvType::bf16);
  options.device = parse_device(device);
  options.sequences = study_sequences(options.context);
  return options;
}

class CudaCalibration : public testing::Test {
 protected:
  void SetUp() override {
    if (kernels::cuda::devices().empty()) GTEST_SKIP() << "no CUDA device, or a build without CUDA";
  }
};

TEST_F(CudaCalibration, RecordsTheAttentionOfTheCpu) {
  engine::Engine gpu(on("cuda")), cpu(on("cpu"));
  const std::vector<Token> tokens = engine::random_tokens(220, gpu.tokenizer().size());
  const auto of = [&](engine::Engine& engine) {
    engine::Sequence dense = engine.open(plan::dense_plan(engine.shape()));
    dense.prefill(std::span(tokens).first(200));
    return record(dense, engine.shape(), tokens, 200);
  };
  const Recording ours = of(gpu), theirs = of(cpu);
  for (int layer = 0; layer < gpu.shape().layers; ++layer) {
    const LayerAttention a = attention_of(ours, gpu.shape(), layer), b = attention_of(theirs, gpu.shape(), layer);
    ASSERT_EQ(a.probability.size(), b.probability.size());
    double apart = 0, all = 0;
    for (std::size_t i = 0; i < a.probability.size(); ++i) {
      apart += std::abs(a.probability[i] - b.probability[i]);
      all += b.probability[i];
    }
    EXPECT_NEAR(all, a.steps * a.heads, 1e-2);
    EXPECT_LT(apart / all, 0.1) << "layer " << layer;  // keys and queries of 16 bits, layer by layer
  }
}

TEST_F(CudaCalibration, MakesAProfileWithTimesOfTheDevice) {
  engine::Engine gpu(on("cuda")), cpu(on("cpu"));
  CalibrationOptions options;
  options.study.length = 1500;
  options.processor = gpu.device_name();
  Measured on_gpu(1), on_cpu(2);
  options.measured = &on_gpu;
  const std::optional<Calibration> found = calibrate(gpu, options);
  options.measured = &on_cpu;
  const std::optional<Calibration> there = calibrate(cpu, options);
  ASSERT_TRUE(found);
  plan::validate_for(found->profile, gpu.shape());
  ASSERT_TRUE(found->profile.speed);
  EXPECT_EQ(found->profile.speed->processor, kernels::cuda::devices().front().name);
  EXPECT_EQ(found->profile.speed->threads, 1);
  EXPECT_GT(found->profile.speed->dense.at(1500), 0);
  // What the device does not run has neither rows nor times, and is named.
  for (const auto& [method, profile] :
       {std::pair("tidal", "tidal"), std::pair("lessismore", "lessismore"), std::pair("omnikv", "omnikv"),
        std::pair("kascade", "kascade"), std::pair("lychee-decode", "roles"), std::pair("evosparse", "retrieval")}) {
    SCOPED_TRACE(method);
    const auto is = [&](const auto& row) { return row.method == method; };
    const bool has = std::any_of(there->profile.kept.begin(), there->profile.kept.end(), is);
    const bool out = !has || std::any_of(found->left_out.begin(), found->left_out.end(), is);
    EXPECT_EQ(std::any_of(found->profile.kept.begin(), found->profile.kept.end(), is), !out);
    EXPECT_EQ(std::any_of(found->profile.speed->methods.begin(), found->profile.speed->methods.end(), is), !out);
    EXPECT_EQ(found->profile.has(profile), !out || profile == std::string_view("retrieval"));
  }
  EXPECT_TRUE(there->left_out.empty());
  ASSERT_EQ(found->profile.retrieval->scores.size(), there->profile.retrieval->scores.size());
  for (std::size_t i = 0; i < found->profile.retrieval->scores.size(); ++i) {
    EXPECT_NEAR(found->profile.retrieval->scores[i], there->profile.retrieval->scores[i], 0.35) << i;
  }
}

}  // namespace
}  // namespace glimpse::calibrate
