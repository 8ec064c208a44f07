// Gates as an index: what it holds follows from the tokens alone, searches keep the budget and allocate nothing when
// warm. What the gate computes is compared with a transcription in tests/engine.
#include "glimpse/kv/index/gate_index.h"

#include <gmock/gmock.h>

#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "allocations.h"
#include "glimpse/base/error.h"
#include "support.h"

namespace glimpse::kv::testing {
namespace {

constexpr int kDim = 16, kWidth = 32, kGroup = 3, kBlock = 16;

/// Turns each row by its position: a swap of two values at odd ones.
class Swap final : public kernels::Rotation {
 public:
  void prepare(std::int64_t positions) override { most_ = std::max(most_, positions); }
  void turn(std::int64_t position, float* row) const override {
    EXPECT_LT(position, most_);
    if (position % 2 != 0) std::swap(row[0], row[1]);
  }
  void turn_back(std::int64_t position, float* row) const override { turn(position, row); }

 private:
  std::int64_t most_ = 0;
};

std::shared_ptr<Gates> made_gates() {
  Made made(7);
  GateWeights weights;
  weights.layers = 2;
  weights.kv_heads = 2;
  weights.group = kGroup;
  weights.head_dim = kWidth;
  weights.dim = kDim;
  weights.block = kBlock;
  weights.rope_dims = 2;
  weights.norm_epsilon = 1e-6F;
  const auto fill = [&](std::vector<std::byte>& to, int rows) {
    const std::vector<float> values = made.row(rows * kWidth);
    to.resize(values.size() * sizeof(float));
    std::memcpy(to.data(), values.data(), to.size());
  };
  fill(weights.q, 4 * kGroup * kDim);
  fill(weights.k, 4 * 3 * kDim);
  weights.q_norm = made.row(2 * kDim);
  weights.k_norm = made.row(2 * kDim);
  auto gates = std::make_shared<Gates>(std::move(weights), std::make_unique<Swap>(), std::make_unique<Swap>());
  gates->prepare(1100);
  return gates;
}

plan::Selector gate_selector(std::int64_t budget) {
  plan::Selector selector = selector_of(plan::Source::gate, budget, kBlock);
  selector.terms[0].group = plan::GroupPooling::none;
  selector.terms[0].index.gates = "made.gguf";
  selector.sink = kBlock;
  return selector;
}

Keys made_keys(KvType type, std::int32_t count) {
  Made made(8);
  Keys keys({type, kWidth}, 1100);
  for (std::int32_t t = 0; t < count; ++t) keys.append(made.key(kWidth, true));
  return keys;
}

std::vector<float> keys_of(const KeyIndex& index) {
  return dynamic_cast<const GateIndex&>(index).keys();
}

TEST(GateIndex, HoldsWhatTheTokensMakeHoweverTheyCame) {
  const auto gates = made_gates();
  for (const KvType type : {KvType::f32, KvType::bf16, KvType::q8_0}) {
    Keys keys = made_keys(type, 1000);
    const auto once = make_index(gate_selector(128), kWidth, {gates, {1, 1}});
    once->extend(keys.source(1000), 1000);
    EXPECT_EQ(once->covered(), 992);
    EXPECT_EQ(once->bytes(), sizeof(float) * 62 * kDim);
    const auto slowly = make_index(gate_selector(128), kWidth, {gates, {1, 1}});
    for (std::int64_t tokens = 1; tokens <= 1000; tokens += 7) slowly->extend(keys.source(0), tokens);
    slowly->extend(keys.source(0), 1000);
    EXPECT_EQ(keys_of(*slowly), keys_of(*once));
    const auto other = make_index(gate_selector(128), kWidth, {gates, {0, 1}});
    other->extend(keys.source(1000), 1000);
    EXPECT_NE(keys_of(*other), keys_of(*once)) << "another layer has other weights";

    const auto copy = once->clone();
    Made made(9);
    for (std::int32_t t = 500; t < 600; ++t) keys.put(t, made.row(kWidth));
    once->refresh(keys.source(1000), 500, 600);
    const auto anew = make_index(gate_selector(128), kWidth, {gates, {1, 1}});
    anew->extend(keys.source(1000), 1000);
    EXPECT_EQ(keys_of(*once), keys_of(*anew));
    EXPECT_EQ(keys_of(*copy), keys_of(*slowly)) << "a copy is its own";
  }
}

TEST(GateIndex, KeepsTheBudgetAndAllocatesNothingWhenWarm) {
  const auto gates = made_gates();
  Keys keys = made_keys(KvType::bf16, 1000);
  Made made(10);
  IndexScratch scratch;
  std::vector<std::int32_t> set;
  for (const bool by_threshold : {false, true}) {
    plan::Selector selector = gate_selector(128);
    if (by_threshold) selector.budget = {plan::BudgetRule::threshold, 0.02};
    const auto index = make_index(selector, kWidth, {gates, {0, 0}});
    index->extend(keys.source(900), 1000);
    std::size_t most = 0;
    for (int trial = 0; trial < 20; ++trial) {
      const std::vector<float> q = made.queries(kGroup, kWidth);
      const IndexQuery query{q.data(), kGroup, 0.125F, 1000, by_threshold ? 1000 : 128};
      index->search(query, scratch, set);
      const std::vector<std::int32_t> cold = set;
      const long before = allocations();
      EXPECT_GT(index->search(query, scratch, set), 0U);
      EXPECT_EQ(allocations(), before);
      EXPECT_EQ(set, cold);
      expect_set(set, 1000);
      for (int t = 0; t < kBlock; ++t) EXPECT_TRUE(contains(set, t)) << "the sink";
      if (!by_threshold) EXPECT_EQ(set.size(), 128U - 8) << "the unfinished block of 8 counts whole";
      most = std::max(most, set.size());
    }
    EXPECT_LT(most, 1000U);
    EXPECT_GT(most, 24U);
  }
}

TEST(GateIndex, KeysThatAreNoNumbersLeaveASet) {
  const auto gates = made_gates();
  Keys keys = made_keys(KvType::bf16, 1000);
  keys.put(333, std::vector<float>(kWidth, std::numeric_limits<float>::quiet_NaN()));
  const std::vector<float> q = Made(11).queries(kGroup, kWidth);
  for (const bool by_threshold : {false, true}) {
    plan::Selector selector = gate_selector(128);
    if (by_threshold) selector.budget = {plan::BudgetRule::threshold, 0.02};
    const auto index = make_index(selector, kWidth, {gates, {0, 0}});
    index->extend(keys.source(1000), 1000);
    IndexScratch scratch;
    std::vector<std::int32_t> set;
    index->search({q.data(), kGroup, 1, 1000, by_threshold ? 1000 : 128}, scratch, set);
    expect_set(set, 1000);
  }
}

TEST(GateIndex, IsRefusedWithoutGates) {
  EXPECT_THAT([] { make_index(gate_selector(128), kWidth); },
              ::testing::ThrowsMessage<UserError>(::testing::HasSubstr("without its weights")));
}

}  // namespace
}  // namespace glimpse::kv::testing
