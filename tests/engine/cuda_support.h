// What the tests of the engine on a GPU share: both engines, the methods that run there, runs that both are put
// through.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/operations.h"
#include "tests/engine/gates.h"
#include "tests/engine/support.h"

namespace glimpse::engine {

inline EngineOptions on_gpu(const std::filesystem::path& model, KvType cache = KvType::bf16) {
  EngineOptions options = options_for(model, cache);
  options.device = parse_device("cuda");
  return options;
}

inline EngineOptions on_cpu(const std::filesystem::path& model, KvType cache = KvType::bf16) {
  return options_for(model, cache);
}

/// Mean over rows of the divergence of `ours` from `theirs`, nats.
inline double divergence(std::span<const float> ours, std::span<const float> theirs, std::size_t width) {
  double sum = 0;
  for (std::size_t at = 0; at < ours.size(); at += width) {
    const auto log_sum = [&](std::span<const float> row) {
      const double top = *std::max_element(row.begin(), row.end());
      double total = 0;
      for (const float x : row) total += std::exp(x - top);
      return top + std::log(total);
    };
    const auto a = ours.subspan(at, width), b = theirs.subspan(at, width);
    const double sum_a = log_sum(a), sum_b = log_sum(b);
    for (std::size_t i = 0; i < width; ++i) sum += std::exp(b[i] - sum_b) * ((b[i] - sum_b) - (a[i] - sum_a));
  }
  return sum / static_cast<double>(ours.size() / width);
}

/// Weights that the file has in more than 16 bits lose some on the GPU, and so do activations. Of a quantised file the
/// CPU rounds activations to 8 bits: libllama's own logits with and without flash attention are 2e-3 to 1e-2 apart. The
/// first tokens of SmolLM2 in Q4_1 are up to 0.027 from those of the same weights in f32.
inline constexpr double kNear = 4e-3, kNearQuantised = 2e-2, kNearEmbedded = 4e-2;

struct Forced {
  std::vector<float> logits;  ///< [decoded, vocabulary]
  AttentionStats stats;
};

/// A prompt of random tokens, then others one by one, whatever the model says.
inline Forced forced(Engine& engine, const plan::Plan& plan, std::size_t prompt, std::size_t decodes) {
  Sequence sequence = engine.open(plan);
  const std::vector<Token> tokens = random_tokens(prompt + decodes, engine.tokenizer().size());
  sequence.prefill(std::span(tokens).first(prompt));
  Forced run;
  run.logits = decoded(sequence, std::span(tokens).subspan(prompt));
  run.stats = sequence.stats();
  return run;
}

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (kernels::cuda::devices().empty()) GTEST_SKIP() << "no CUDA device, or a build without CUDA";
  }
  static std::vector<std::filesystem::path> models() {
    std::vector<std::filesystem::path> all{reference::test_model("llama256"), reference::test_model("qwen3")};
    if (!reference::embedded_model().empty()) all.push_back(reference::embedded_model());
    return all;
  }
};

/// What runs on a GPU today; the others say that they do not.
struct Method {
  const char* name;
  std::map<std::string, std::string> options;
  int block = 0;  ///< 0: the method's
  int local = 0;  ///< likewise
};
inline const std::vector<Method>& methods() {
  static const std::vector<Method> all{{"full", {}},
                                       {"streaming", {}},
                                       {"tidal", {}},
                                       {"tidal", {{"set", "query-head"}}},
                                       {"tidal", {{"set", "layer"}}},
                                       {"streaming", {{"prefill", "sparse"}}},
                                       {"kascade", {}},
                                       {"kascade", {{"set", "layer"}, {"pooling", "query"}}},
                                       {"kascade", {{"pooling", "query"}, {"tile", "40"}}},
                                       {"kascade", {{"set", "layer"}, {"tile", "500"}}},
                                       {"kascade", {{"prefill", "dense"}}},
                                       {"kascade", {{"prefill", "dense"}, {"set", "layer"}, {"pooling", "query"}}},
                                       {"lessismore", {}},
                                       {"razor", {}},
                                       {"lychee_decode", {}},
                                       {"omnikv", {}},
                                       {"duo", {}},
                                       {"oracle", {}},
                                       {"quest", {}},
                                       {"quest", {{"set", "query-head"}}},
                                       {"arkvale", {}},
                                       {"arkvale", {{"resident", "all"}}},
                                       {"tidal", {{"selector", "quest"}}},
                                       {"h2o", {}},
                                       {"tova", {}},
                                       {"raas", {}},
                                       {"evosparse", {}},
                                       {"evosparse", {{"heat", "layer"}}},
                                       {"evosparse", {{"seed", "none"}, {"lambda", "0.9"}}},
                                       {"evosparse", {{"prop", "off"}}},
                                       {"evosparse", {{"accum", "off"}}},
                                       {"lychee_cluster", {}},
                                       {"lychee_cluster", {{"chunks", "fixed"}, {"whole-clusters", "on"}}},
                                       {"lychee_cluster", {{"score", "minmax"}}},
                                       {"lychee_cluster", {{"score", "meanstd"}}},
                                       {"tidal", {{"selector", "lychee-cluster"}}},
                                       {"clusterkv", {}},
                                       {"clusterkv", {}, 0, 40},
                                       {"tidal", {{"selector", "clusterkv"}}},
                                       {"quest", {{"score", "meanstd"}}},
                                       {"arkvale", {{"resident", "all"}, {"digest", "sphere"}}},
                                       {"seer", {}, 16},
                                       {"tidal", {{"selector", "shadowkv"}}},
                                       {"shadowkv", {{"outliers", "3"}, {"rank", "24"}}},
                                       {"shadowkv", {{"resident", "all"}, {"outliers", "3"}, {"rank", "0"}}},
                                       {"shadowkv", {{"resident", "all"}, {"outliers", "3"}}},
                                       {"shadowkv", {{"resident", "all"}, {"outliers", "3"}, {"rank", "24"}}}};
  return all;
}

/// The model that an engine has, and gates with blocks of 16 for it.
inline std::filesystem::path model_of(const Engine& engine) {
  constexpr int kReal = 20, kLong = 16'384;
  if (engine.shape().layers > kReal) {
    return engine.shape().context > kLong ? reference::long_model() : reference::embedded_model();
  }
  return reference::test_model(engine.shape().architecture == "qwen3" ? "qwen3" : "llama256");
}
inline const MadeGates& gates_for(const Engine& engine) {
  static std::map<std::filesystem::path, MadeGates> made;
  const std::filesystem::path model = model_of(engine);
  if (!made.contains(model)) made[model] = make_gates(model, {.block = 16});
  return made[model];
}
inline const std::string& gate_file_for(const Engine& engine) {
  static std::map<std::filesystem::path, std::string> written;
  std::string& path = written[model_of(engine)];
  if (path.empty()) path = write_gates(gates_for(engine).file);
  return path;
}

inline plan::Plan plan_of(const Engine& engine, const Method& method, const char* tokens) {
  std::string name = method.name;
  for (char& c : name) c = c == '_' ? '-' : c;
  if (name == "full") return make(engine, name);
  policies::PolicyOptions options = budget(tokens, method.options);
  if (method.block > 0) options.block = method.block;
  if (method.local > 0) options.local = method.local;
  if (name == "seer") options.extra["gates"] = gate_file_for(engine);
  return make(engine, name, options);
}

inline plan::Plan quest(const Engine& engine, const char* tokens) {
  return make(engine, "quest", budget(tokens));
}

}  // namespace glimpse::engine
