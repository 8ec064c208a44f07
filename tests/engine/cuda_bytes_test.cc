// A cache of bytes on a GPU against the CPU's, and against itself. Skipped without a GPU.
#include "tests/engine/cuda_support.h"

namespace glimpse::engine {
namespace {

/// A value that lies between two levels is the upper one here and the lower one there.
constexpr double kNearBytes = 1e-2;

TEST_F(Cuda, BytesGiveTheLogitsOfTheCpus) {
  for (const char* model : {"llama256", "qwen3"}) {
    SCOPED_TRACE(model);
    Engine gpu(on_gpu(reference::test_model(model), KvType::q8_0)),
        cpu(on_cpu(reference::test_model(model), KvType::q8_0));
    const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
    for (const std::size_t prompt : {1, 8, 9, 700}) {
      SCOPED_TRACE(prompt);
      const Forced ours = forced(gpu, make(gpu, "full"), prompt, 12);
      const Forced theirs = forced(cpu, make(cpu, "full"), prompt, 12);
      EXPECT_LT(divergence(ours.logits, theirs.logits, width), kNearBytes);
    }
  }
}

TEST_F(Cuda, EveryMethodReadsBytes) {
  const auto model = reference::test_model("llama256");
  Engine gpu(on_gpu(model, KvType::q8_0)), halves(on_gpu(model)), again(on_gpu(model, KvType::q8_0));
  const auto width = static_cast<std::size_t>(gpu.tokenizer().size());
  const Forced dense = forced(gpu, make(gpu, "full"), 300, 10);
  for (const Method& method : methods()) {
    SCOPED_TRACE(method.name);
    EXPECT_TRUE(same_bits(forced(gpu, plan_of(gpu, method, "4096"), 300, 10).logits, dense.logits));
    const plan::Plan plan = plan_of(gpu, method, "96");
    const Forced bytes = forced(gpu, plan, 600, 20), wide = forced(halves, plan, 600, 20);
    EXPECT_TRUE(same_bits(forced(again, plan, 600, 20).logits, bytes.logits)) << "two runs differ";
    // Rounded keys choose others of near scores. What is read is as much.
    EXPECT_LT(divergence(bytes.logits, wide.logits, width), 0.6);
    EXPECT_EQ(bytes.stats.sparse_steps, wide.stats.sparse_steps);
    EXPECT_NEAR(static_cast<double>(bytes.stats.v_rows), static_cast<double>(wide.stats.v_rows),
                0.1 * static_cast<double>(wide.stats.v_rows));
  }
}

}  // namespace
}  // namespace glimpse::engine
