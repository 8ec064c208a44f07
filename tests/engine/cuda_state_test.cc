// What a sequence keeps between steps on a GPU: forks, sessions that change devices, indices, statistics, heat. Skipped
// without a GPU.
#include "tests/engine/cuda_support.h"

namespace glimpse::engine {
namespace {

TEST_F(Cuda, ForksShareTheirPast) {
  Engine gpu(on_gpu(reference::test_model("llama256")));
  const std::vector<Token> tokens = random_tokens(360, gpu.tokenizer().size());
  Sequence first = gpu.open(make(gpu, "full"));
  first.prefill(std::span(tokens).first(333));
  Sequence second = first.fork(make(gpu, "tidal", budget("64")));
  const std::vector<float> dense = decoded(first, std::span(tokens).subspan(333));
  const std::vector<float> sparse = decoded(second, std::span(tokens).subspan(333));
  Sequence third = gpu.open(make(gpu, "full"));
  third.prefill(std::span(tokens).first(333));
  EXPECT_TRUE(same_bits(decoded(third, std::span(tokens).subspan(333)), dense));
  EXPECT_FALSE(same_bits(sparse, dense));
}

TEST_F(Cuda, ASessionOfOneDeviceGoesOnOnTheOther) {
  const auto model = reference::test_model("llama256");
  const auto file = std::filesystem::path(testing::TempDir()) / "cuda.session";
  for (const KvType cache : {KvType::bf16, KvType::q8_0}) {
    SCOPED_TRACE(name(cache));
    Engine gpu(on_gpu(model, cache)), cpu(on_cpu(model, cache));
    const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
    const std::vector<Token> tokens = random_tokens(220, cpu.tokenizer().size());
    Sequence here = gpu.open(make(gpu, "full"));
    here.prefill(std::span(tokens).first(200));
    here.save(file);
    Sequence there = cpu.load(file, make(cpu, "full"));
    const std::vector<float> ours = decoded(here, std::span(tokens).subspan(200));
    const std::vector<float> theirs = decoded(there, std::span(tokens).subspan(200));
    EXPECT_LT(divergence(ours, theirs, width), kNear);
    Sequence back = gpu.load(file, make(gpu, "full"));
    EXPECT_TRUE(same_bits(decoded(back, std::span(tokens).subspan(200)), ours));
    std::filesystem::remove(file);
  }
}

/// What others left in the device's memory is nobody's answer.
TEST_F(Cuda, MemoryThatIsTakenMayHoldAnything) {
  const auto dirty = [](std::byte value) {
    kernels::cuda::Stream stream(0);
    std::vector<kernels::cuda::Memory> pieces;
    for (std::size_t bytes = 256; bytes <= std::size_t{256} << 20; bytes *= 4) {
      for (int i = 0; i < 4; ++i) pieces.emplace_back(stream, bytes).fill(value);
    }
    stream.synchronize();
  };
  const auto model = reference::test_model("llama256");
  for (const std::string policy :
       {"full", "h2o", "tova", "raas", "streaming", "tidal", "quest", "evosparse", "razor"}) {
    SCOPED_TRACE(policy);
    std::vector<std::vector<float>> runs;
    for (const std::byte value : {std::byte{0}, std::byte{0xff}, std::byte{0x7f}}) {
      dirty(value);
      Engine gpu(on_gpu(model));
      dirty(value);
      runs.push_back(
          forced(gpu, make(gpu, policy, policy == "full" ? policies::PolicyOptions{} : budget("64")), 300, 40).logits);
    }
    EXPECT_TRUE(same_bits(runs[1], runs[0]));
    EXPECT_TRUE(same_bits(runs[2], runs[0]));
  }
}

/// Bounds hang on pages. A sequence that forks, or comes from a file, decodes as the one that made them.
TEST_F(Cuda, BoundsFollowTheirPages) {
  const auto model = reference::test_model("llama256");
  const auto file = std::filesystem::path(testing::TempDir()) / "cuda-bounds.session";
  Engine gpu(on_gpu(model)), cpu(on_cpu(model));
  const std::vector<Token> tokens = random_tokens(560, gpu.tokenizer().size());
  const auto part = [&](std::size_t first, std::size_t count) { return std::span(tokens).subspan(first, count); };
  Sequence own = gpu.open(quest(gpu, "64"));
  own.prefill(part(0, 500));
  decoded(own, part(500, 20));
  Sequence same = own.fork(quest(gpu, "64"));  // shares pages, which have their bounds
  own.save(file);
  Sequence loaded = gpu.load(file, quest(gpu, "64"));
  Sequence there = cpu.load(file, quest(cpu, "64"));
  Sequence part_of = own.fork(quest(gpu, "64"), 507);  // the page that it ends in is written anew
  decoded(part_of, part(507, 13));
  const std::vector<float> want = decoded(own, part(520, 40));
  EXPECT_TRUE(same_bits(decoded(same, part(520, 40)), want));
  EXPECT_TRUE(same_bits(decoded(loaded, part(520, 40)), want));
  EXPECT_TRUE(same_bits(decoded(part_of, part(520, 40)), want));
  const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
  EXPECT_LT(divergence(decoded(there, part(520, 40)), want, width), 0.05);
  std::filesystem::remove(file);

  // A dense sequence makes none; its fork makes them all.
  Sequence dense = gpu.open(make(gpu, "full"));
  dense.prefill(part(0, 500));
  Sequence late = dense.fork(quest(gpu, "64"));
  Sequence early = gpu.open(quest(gpu, "64"));
  early.prefill(part(0, 500));
  EXPECT_TRUE(same_bits(decoded(late, part(500, 30)), decoded(early, part(500, 30))));
}

/// The share of tokens that both have not forgotten, over all layers and heads.
double shared_tokens(const plan::ModelShape& shape, const Sequence& a, const Sequence& b) {
  double both = 0, all = 0;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const std::vector<std::int32_t> ours = a.live(layer, head), theirs = b.live(layer, head);
      std::vector<std::int32_t> common;
      std::set_intersection(ours.begin(), ours.end(), theirs.begin(), theirs.end(), std::back_inserter(common));
      both += static_cast<double>(common.size());
      all += static_cast<double>(theirs.size());
    }
  }
  return both / all;
}

/// What a plan forgets by is the host's. A sequence that forks, or comes from a file, forgets as the one before.
void expect_statistics_go_on(KvType cache) {
  const auto model = reference::test_model("llama256");
  const auto file = std::filesystem::path(testing::TempDir()) / "cuda-statistics.session";
  Engine gpu(on_gpu(model, cache)), cpu(on_cpu(model, cache));
  const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
  const std::vector<Token> tokens = random_tokens(700, gpu.tokenizer().size());
  const auto part = [&](std::size_t first, std::size_t count) { return std::span(tokens).subspan(first, count); };
  for (const char* name : {"h2o", "tova", "raas"}) {
    SCOPED_TRACE(name);
    // Decoding past what is compacted at a time.
    Sequence own = gpu.open(make(gpu, name, budget("64")));
    own.prefill(part(0, 300));
    Sequence theirs = cpu.open(make(cpu, name, budget("64")));
    theirs.prefill(part(0, 300));
    if (std::string_view(name) != "raas") {  // which observes no prompt
      const std::vector<float> got = own.statistic(1, 0), want = theirs.statistic(1, 0);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.15 * want[i] + 2e-3) << i;
    }
    decoded(own, part(300, 1));
    decoded(theirs, part(300, 1));
    EXPECT_GT(shared_tokens(gpu.shape(), own, theirs), 0.9);  // near ties of what a prompt gave
    decoded(own, part(301, 149));
    decoded(theirs, part(301, 149));
    EXPECT_EQ(own.live(1, 0).size(), theirs.live(1, 0).size());
    Sequence same = own.fork(make(gpu, name, budget("64")));
    own.save(file);
    Sequence loaded = gpu.load(file, make(gpu, name, budget("64")));
    Sequence there = cpu.load(file, make(cpu, name, budget("64")));
    const std::vector<float> want = decoded(own, part(450, 100));
    EXPECT_TRUE(same_bits(decoded(same, part(450, 100)), want));
    EXPECT_TRUE(same_bits(decoded(loaded, part(450, 100)), want));
    // The first steps: what is forgotten by a near tie stays so, and later steps go their own ways.
    Sequence here = gpu.load(file, make(gpu, name, budget("64")));
    EXPECT_LT(divergence(decoded(there, part(450, 4)), decoded(here, part(450, 4)), width), 0.05);
    EXPECT_GT(shared_tokens(gpu.shape(), here, there), 0.9);
    // A second prompt behind what was forgotten.
    own.prefill(part(550, 100));
    same.prefill(part(550, 100));
    EXPECT_TRUE(same_bits(decoded(own, part(650, 50)), decoded(same, part(650, 50))));
    std::filesystem::remove(file);
  }
}

TEST_F(Cuda, StatisticsGoOn) {
  expect_statistics_go_on(KvType::bf16);
}

TEST_F(Cuda, StatisticsOfBytesGoOn) {
  expect_statistics_go_on(KvType::q8_0);
}

/// The host keeps the heat. A sequence that forks, or comes from a file, goes on as the one before.
TEST_F(Cuda, HeatGoesOn) {
  const auto model = reference::test_model("llama256");
  const auto file = std::filesystem::path(testing::TempDir()) / "cuda-heat.session";
  Engine gpu(on_gpu(model)), cpu(on_cpu(model));
  const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
  const std::vector<Token> tokens = random_tokens(620, gpu.tokenizer().size());
  const auto part = [&](std::size_t first, std::size_t count) { return std::span(tokens).subspan(first, count); };
  for (const char* heat : {"sequence", "layer"}) {
    SCOPED_TRACE(heat);
    const auto plan = [&](const Engine& engine) { return make(engine, "evosparse", budget("128", {{"heat", heat}})); };
    // The distance of two heats, as a share of the second.
    const auto apart = [&](const Sequence& ours, const Sequence& theirs) {
      const std::vector<float> got = ours.heat(2), want = theirs.heat(2);
      EXPECT_EQ(got.size(), want.size());
      double sum = 0, all = 0;
      for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
        sum += std::abs(got[i] - want[i]);
        all += want[i];
      }
      return sum / all;
    };
    Sequence own = gpu.open(plan(gpu)), theirs = cpu.open(plan(cpu));
    own.prefill(part(0, 487));  // a prompt in two pieces: what the first leaves fades
    own.prefill(part(487, 13));
    theirs.prefill(part(0, 487));
    theirs.prefill(part(487, 13));
    EXPECT_LT(apart(own, theirs), 0.02);
    decoded(own, part(500, 3));
    decoded(theirs, part(500, 3));
    EXPECT_LT(apart(own, theirs), 0.05);
    decoded(own, part(503, 57));
    Sequence same = own.fork(plan(gpu));
    own.save(file);
    Sequence loaded = gpu.load(file, plan(gpu));
    Sequence there = cpu.load(file, plan(cpu));
    const std::vector<float> want = decoded(own, part(560, 60));
    EXPECT_TRUE(same_bits(decoded(same, part(560, 60)), want));
    EXPECT_TRUE(same_bits(decoded(loaded, part(560, 60)), want));
    EXPECT_LT(divergence(decoded(there, part(560, 60)), want, width), 0.05);
    EXPECT_LT(apart(own, there), 0.15);
    std::filesystem::remove(file);
  }
}

/// Trees are the host's. A sequence that forks, or comes from a file, searches as the one before; so does one that was
/// dense until now.
TEST_F(Cuda, TreesGoOn) {
  const auto model = reference::test_model("llama256");
  const auto file = std::filesystem::path(testing::TempDir()) / "cuda-trees.session";
  Engine gpu(on_gpu(model)), cpu(on_cpu(model));
  const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
  const std::vector<Token> tokens = random_tokens(760, gpu.tokenizer().size());
  const auto part = [&](std::size_t first, std::size_t count) { return std::span(tokens).subspan(first, count); };
  const auto plan = [](const Engine& engine) { return make(engine, "lychee-cluster", budget("96")); };
  Sequence own = gpu.open(plan(gpu));
  own.prefill(part(0, 500));
  decoded(own, part(500, 60));  // chunks leave the buffer
  Sequence same = own.fork(plan(gpu));
  own.save(file);
  Sequence loaded = gpu.load(file, plan(gpu));
  Sequence there = cpu.load(file, plan(cpu));
  const std::vector<float> want = decoded(own, part(560, 60));
  EXPECT_TRUE(same_bits(decoded(same, part(560, 60)), want));
  EXPECT_TRUE(same_bits(decoded(loaded, part(560, 60)), want));
  EXPECT_LT(divergence(decoded(there, part(560, 60)), want, width), 0.05);
  std::filesystem::remove(file);
  Sequence bare = gpu.open(make(gpu, "full"));
  bare.prefill(part(0, 500));
  Sequence late = bare.fork(plan(gpu)), early = gpu.open(plan(gpu));
  early.prefill(part(0, 500));
  EXPECT_TRUE(same_bits(decoded(late, part(500, 40)), decoded(early, part(500, 40))));
  // A second prompt, and corrected rows.
  own.prefill(part(620, 40));
  same.prefill(part(620, 40));
  EXPECT_TRUE(same_bits(decoded(own, part(660, 40)), decoded(same, part(660, 40))));
  own.correct(40);
  same.correct(40);
  EXPECT_TRUE(same_bits(decoded(own, part(700, 60)), decoded(same, part(700, 60))));
}

/// Sparse prefills behind what was decoded: a window that forgot pages has its slots elsewhere, and tiles begin
/// anywhere.
TEST_F(Cuda, SecondPromptsReadTheirTiles) {
  for (const char* name : {"llama256", "qwen3"}) {
    const auto model = reference::test_model(name);
    Engine gpu(on_gpu(model)), cpu(on_cpu(model));
    const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
    const std::vector<Token> tokens = random_tokens(800, gpu.tokenizer().size());
    const auto part = [&](std::size_t first, std::size_t count) { return std::span(tokens).subspan(first, count); };
    for (const Method& method : {Method{"streaming", {{"prefill", "sparse"}}}, Method{"kascade", {}},
                                 Method{"kascade", {{"set", "layer"}, {"tile", "300"}}}}) {
      SCOPED_TRACE(std::string(name) + ", " + method.name);
      const auto run = [&](Engine& engine) {
        Sequence sequence = engine.open(plan_of(engine, method, "80"));
        sequence.prefill(part(0, 437));
        decoded(sequence, part(437, 40));
        sequence.prefill(part(477, 3));  // a tile of few rows
        sequence.prefill(part(480, 270));
        return decoded(sequence, part(750, 20));
      };
      const std::vector<float> ours = run(gpu);
      EXPECT_LT(divergence(ours, run(cpu), width), 0.05);
      EXPECT_TRUE(same_bits(run(gpu), ours));
    }
  }
}

/// Clusters are the host's too; a copy is sent whole when there are more of them. A window may lie over some of them.
void expect_clusters_go_on(int local) {
  const auto model = reference::test_model("llama256");
  const auto file = std::filesystem::path(testing::TempDir()) / "cuda-clusters.session";
  Engine gpu(on_gpu(model)), cpu(on_cpu(model));
  const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
  const std::vector<Token> tokens = random_tokens(760, gpu.tokenizer().size());
  const auto part = [&](std::size_t first, std::size_t count) { return std::span(tokens).subspan(first, count); };
  const auto plan = [local](const Engine& engine) {
    policies::PolicyOptions options = budget("96", {{"tokens-per-cluster", "16"}, {"new-tokens", "32"}});
    options.local = local;
    return make(engine, "clusterkv", options);
  };
  Sequence own = gpu.open(plan(gpu));
  own.prefill(part(0, 500));
  decoded(own, part(500, 60));  // clusters of new tokens
  Sequence same = own.fork(plan(gpu));
  own.save(file);
  Sequence loaded = gpu.load(file, plan(gpu));
  Sequence there = cpu.load(file, plan(cpu));
  const std::vector<float> want = decoded(own, part(560, 60));
  EXPECT_TRUE(same_bits(decoded(same, part(560, 60)), want));
  EXPECT_TRUE(same_bits(decoded(loaded, part(560, 60)), want));
  EXPECT_LT(divergence(decoded(there, part(560, 60)), want, width), 0.05);

  std::filesystem::remove(file);
  own.prefill(part(620, 40));
  same.prefill(part(620, 40));
  EXPECT_TRUE(same_bits(decoded(own, part(660, 40)), decoded(same, part(660, 40))));
  own.correct(40);
  same.correct(40);
  EXPECT_TRUE(same_bits(decoded(own, part(700, 60)), decoded(same, part(700, 60))));
}

TEST_F(Cuda, ClustersGoOn) {
  expect_clusters_go_on(0);
}

TEST_F(Cuda, ClustersGoOnUnderAWindow) {
  expect_clusters_go_on(50);
}

/// Indices over units and factors of keys are the host's, as trees are.
TEST_F(Cuda, UnitsGoOn) {
  const auto model = reference::test_model("llama256");
  const auto file = std::filesystem::path(testing::TempDir()) / "cuda-units.session";
  Engine gpu(on_gpu(model)), cpu(on_cpu(model));
  const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
  const std::vector<Token> tokens = random_tokens(760, gpu.tokenizer().size());
  const auto part = [&](std::size_t first, std::size_t count) { return std::span(tokens).subspan(first, count); };
  for (const Method& method :
       {Method{"shadowkv", {{"outliers", "3"}}}, Method{"shadowkv", {{"resident", "all"}, {"outliers", "3"}}},
        Method{"arkvale", {}}, Method{"seer", {}, 16}, Method{"quest", {{"score", "meanstd"}}},
        Method{"lychee_cluster", {{"score", "minmax"}}}, Method{"lychee_cluster", {{"score", "meanstd"}}}}) {
    SCOPED_TRACE(method.name);
    Sequence own = gpu.open(plan_of(gpu, method, "96"));
    own.prefill(part(0, 500));
    decoded(own, part(500, 160));
    Sequence same = own.fork(plan_of(gpu, method, "96"));
    own.save(file);
    Sequence loaded = gpu.load(file, plan_of(gpu, method, "96"));
    Sequence there = cpu.load(file, plan_of(cpu, method, "96"));
    const std::vector<float> want = decoded(own, part(660, 20));
    EXPECT_TRUE(same_bits(decoded(same, part(660, 20)), want));
    EXPECT_TRUE(same_bits(decoded(loaded, part(660, 20)), want));
    EXPECT_LT(divergence(decoded(there, part(660, 20)), want, width), method.block > 0 ? 0.4 : 0.1);  // near ties
    std::filesystem::remove(file);
    // What was dense until now, a second prompt, and corrected rows.
    Sequence bare = gpu.open(make(gpu, "full"));
    bare.prefill(part(0, 500));
    Sequence late = bare.fork(plan_of(gpu, method, "96")), early = gpu.open(plan_of(gpu, method, "96"));
    early.prefill(part(0, 500));
    EXPECT_TRUE(same_bits(decoded(late, part(500, 40)), decoded(early, part(500, 40))));
    own.prefill(part(680, 20));
    same.prefill(part(680, 20));
    EXPECT_TRUE(same_bits(decoded(own, part(700, 20)), decoded(same, part(700, 20))));
    own.correct(40);
    same.correct(40);
    EXPECT_TRUE(same_bits(decoded(own, part(720, 40)), decoded(same, part(720, 40))));
  }
}

/// Sums of what windows lost are the host's, and the device has copies of those for whole pages.
TEST_F(Cuda, MeanTokensGoOn) {
  const auto model = reference::test_model("llama256");
  const auto file = std::filesystem::path(testing::TempDir()) / "cuda-means.session";
  Engine gpu(on_gpu(model)), cpu(on_cpu(model));
  const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
  const std::vector<Token> tokens = random_tokens(700, gpu.tokenizer().size());
  const auto part = [&](std::size_t first, std::size_t count) { return std::span(tokens).subspan(first, count); };
  const auto plan = [](const Engine& engine) { return make(engine, "razor", budget("70")); };
  Sequence own = gpu.open(plan(gpu));
  own.prefill(part(0, 403));
  decoded(own, part(403, 50));
  Sequence same = own.fork(plan(gpu));
  own.save(file);
  Sequence loaded = gpu.load(file, plan(gpu));
  Sequence there = cpu.load(file, plan(cpu));
  EXPECT_EQ(there.live(1, 0), own.live(1, 0));
  const std::vector<float> want = decoded(own, part(453, 47));
  EXPECT_TRUE(same_bits(decoded(same, part(453, 47)), want));
  EXPECT_TRUE(same_bits(decoded(loaded, part(453, 47)), want));
  EXPECT_LT(divergence(decoded(there, part(453, 47)), want, width), 0.02);
  EXPECT_EQ(there.live(1, 0).size(), own.live(1, 0).size());
  there.save(file);  // the CPU's sums end in the middle of a page
  Sequence back = gpu.load(file, plan(gpu));
  EXPECT_LT(divergence(decoded(back, part(500, 40)), decoded(own, part(500, 40)), width), 0.02);
  decoded(same, part(500, 40));
  std::filesystem::remove(file);
  // A second prompt, longer than the window.
  own.prefill(part(540, 100));
  same.prefill(part(540, 100));
  EXPECT_TRUE(same_bits(decoded(own, part(640, 60)), decoded(same, part(640, 60))));
}

/// Rows that are written anew get new bounds: after a correction a sequence decodes as one that never had others.
TEST_F(Cuda, BoundsOfCorrectedRows) {
  Engine gpu(on_gpu(reference::test_model("llama256")));
  const std::vector<Token> tokens = random_tokens(560, gpu.tokenizer().size());
  const auto part = [&](std::size_t first, std::size_t count) { return std::span(tokens).subspan(first, count); };
  Sequence first = gpu.open(quest(gpu, "64"));
  first.prefill(part(0, 480));
  decoded(first, part(480, 40));
  first.correct(40);
  Sequence bare = first.fork(make(gpu, "full"));
  Sequence again = bare.fork(quest(gpu, "64"));  // makes all bounds from the keys
  EXPECT_TRUE(same_bits(decoded(first, part(520, 40)), decoded(again, part(520, 40))));
}

}  // namespace
}  // namespace glimpse::engine
