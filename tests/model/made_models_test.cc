// The models that scripts/make-test-models.py writes, and the real one when it is there, against what libllama reads.
#include <ggml.h>
#include <gtest/gtest.h>
#include <llama.h>

#include <filesystem>
#include <memory>

#include "glimpse/base/error.h"
#include "glimpse/model/model.h"
#include "glimpse/model/random_model.h"
#include "tests/support/places.h"

namespace glimpse::model {
namespace {

const std::filesystem::path kMade = test::models_folder();
const std::filesystem::path kShared = test::shared_folder();

void expect_as_libllama(const std::filesystem::path& path) {
  const Model ours(path);
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model_params parameters = llama_model_default_params();
  parameters.n_gpu_layers = 0;
  const std::unique_ptr<llama_model, decltype(&llama_model_free)> theirs(
      llama_model_load_from_file(path.c_str(), parameters), llama_model_free);
  ASSERT_NE(theirs, nullptr);
  const Config& config = ours.config();
  EXPECT_EQ(config.layers, llama_model_n_layer(theirs.get()));
  EXPECT_EQ(config.hidden, llama_model_n_embd(theirs.get()));
  EXPECT_EQ(config.heads, llama_model_n_head(theirs.get()));
  EXPECT_EQ(config.kv_heads, llama_model_n_head_kv(theirs.get()));
  EXPECT_EQ(config.context, llama_model_n_ctx_train(theirs.get()));
  EXPECT_EQ(config.vocabulary, llama_vocab_n_tokens(llama_model_get_vocab(theirs.get())));
  EXPECT_EQ(config.rope.neox, llama_model_rope_type(theirs.get()) == LLAMA_ROPE_TYPE_NEOX);
  const float scale = config.rope.scaling == RopeScaling::none ? 1.0f : 1.0f / config.rope.factor;
  EXPECT_EQ(scale, llama_model_rope_freq_scale_train(theirs.get()));
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : ours.file().tensors()) bytes += tensor.bytes;
  EXPECT_EQ(bytes, llama_model_size(theirs.get()));
}

class MadeModelTest : public testing::TestWithParam<std::string> {};

TEST_P(MadeModelTest, ReadsAsLibllamaReadsIt) {
  expect_as_libllama(kMade / (GetParam() + ".gguf"));
}

TEST(RandomModels, ReadAsLibllamaReadsThem) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "glimpse-random-models";
  std::filesystem::create_directory(folder);
  std::filesystem::path path;
  {
    const RandomModel made(model_size("smollm2-135m"), folder, {2048, weight_type("q4_0")});
    path = made.path();
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    expect_as_libllama(path);
    EXPECT_EQ(Model(path).config().context, 2048);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::remove(folder));
  EXPECT_THROW(RandomModel(model_size("smollm2-135m"), testing::TempDir(), {2048, weight_type("q4_k")}), UserError);
  EXPECT_THROW(RandomModel(model_size("smollm2-135m"), "/nowhere", {2048, weight_type("q4_0")}), UserError);
}

std::string row_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Architectures, MadeModelTest,
                         testing::Values("llama", "llama2", "llama3", "llama-linear", "llama-yarn", "mistral", "qwen2",
                                         "qwen2-yarn", "qwen3", "split-00001-of-00003"),
                         row_name);
INSTANTIATE_TEST_SUITE_P(Types, MadeModelTest,
                         testing::Values("llama256", "llama256-f16", "llama256-bf16", "llama256-q8_0", "llama256-q4_0",
                                         "llama256-q4_1", "llama256-q5_0", "llama256-q5_1", "llama256-q2_K",
                                         "llama256-q3_K", "llama256-q4_K", "llama256-q5_K", "llama256-q6_K",
                                         "llama256-iq4_nl", "llama256-iq4_xs", "llama256-iq3_s", "llama256-tq1_0",
                                         "llama256-tq2_0"),
                         row_name);

TEST(MadeModels, HaveTheFeaturesTheyAreNamedFor) {
  EXPECT_NE(Model(kMade / "llama3.gguf").config().rope.frequency_factors, nullptr);
  EXPECT_EQ(Model(kMade / "llama-linear.gguf").config().rope.scaling, RopeScaling::linear);
  EXPECT_EQ(Model(kMade / "qwen2-yarn.gguf").config().rope.scaling, RopeScaling::yarn);
  EXPECT_EQ(Model(kMade / "qwen3.gguf").config().head_dim, 64);
  const Model quantised(kMade / "llama256-q4_K.gguf");
  EXPECT_EQ(quantised.layers()[0].q->type, GGML_TYPE_Q4_K);
  EXPECT_EQ(quantised.token_embedding().type, GGML_TYPE_Q4_K);
  EXPECT_EQ(quantised.output_norm().type, GGML_TYPE_F32);
  const Model mistral(kMade / "mistral.gguf");
  EXPECT_NE(&mistral.output(), &mistral.token_embedding());
}

TEST(RealModel, SmolLM2Opens) {
  const std::filesystem::path path = kShared / "models" / "smollm2-135m-32k.Q8_0.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "not there: " << path;
  const Model model(path);
  EXPECT_EQ(model.config().layers, 30);
  EXPECT_EQ(model.config().heads, 9);
  EXPECT_EQ(model.config().kv_heads, 3);
  EXPECT_EQ(model.config().head_dim, 64);
  EXPECT_EQ(model.config().hidden, 576);
  EXPECT_EQ(model.config().vocabulary, 49152);
  EXPECT_EQ(model.config().context, 32768);
  EXPECT_EQ(&model.output(), &model.token_embedding());
}

}  // namespace
}  // namespace glimpse::model
