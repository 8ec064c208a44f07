// The server on a GPU, against the engine on the same GPU. Skipped without one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "glimpse/base/error.h"
#include "glimpse/engine/engine.h"
#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/policies/policy.h"
#include "tests/server/client.h"
#include "tests/server/told.h"

namespace glimpse::server {
namespace {

ServerOptions gpu_options() {
  ServerOptions options = small_options("llama256");
  options.engine.kv_type = KvType::bf16;
  options.engine.device = parse_device("cuda");
  return options;
}

std::string document() {
  std::string text;
  for (int i = 0; i < 12; ++i) text += "the river was high and the fox went to the market ";
  return text;
}

JsonValue body_of(const std::string& policy, const JsonValue& more = JsonValue::object()) {
  JsonValue attention{{"policy", policy}};
  if (policy != "full") attention["budget"] = 64;
  JsonValue body{{"prompt", document() + "who"}, {"max_tokens", 12}, {"temperature", 0}, {"ignore_eos", true}};
  body["attention"] = attention;
  for (const auto& [key, value] : more.items()) {
    if (key == "attention") {
      body[key].update(value);
    } else {
      body[key] = value;
    }
  }
  return body;
}

class CudaServer : public testing::Test {
 protected:
  void SetUp() override {
    if (kernels::cuda::devices().empty()) GTEST_SKIP() << "no CUDA device, or a build without CUDA";
  }
};

TEST_F(CudaServer, AnswersAreTheEnginesByEachMethod) {
  const Running server(gpu_options());
  engine::Engine engine(gpu_options().engine);
  for (const char* policy : {"full", "streaming", "tidal", "lychee-decode", "omnikv", "duo", "oracle", "quest", "h2o",
                             "tova", "raas", "evosparse", "lychee-cluster"}) {
    SCOPED_TRACE(policy);
    const JsonValue body = body_of(policy, {{"attention", {{"reuse", "none"}}}});
    policies::PolicyOptions options;
    if (std::string_view(policy) != "full") options.budget = plan::parse_budget("64");
    engine::Request request;
    request.plan = policies::make_plan(policy, engine.shape(), options);
    request.prompt = engine.tokenizer().encode(body["prompt"].get<std::string>(), text::Special::as_tokens, true);
    request.max_tokens = 12;
    request.ignore_end = true;
    std::string text;
    request.on_text = [&](std::string_view more) { text += more; };
    engine.submit(std::move(request));
    while (engine.step()) {
    }
    const JsonValue json = server.post("/v1/completions", body).json();
    ASSERT_TRUE(json.contains("choices")) << json;
    EXPECT_EQ(json["choices"][0]["text"], text);
    EXPECT_EQ(json["glimpse"]["policy"], policy);
  }
  const Reply refused = server.post("/v1/completions", body_of("auto", {{"attention", {{"budget", nullptr}}}}));
  EXPECT_EQ(refused.status, 400) << refused.body;
}

TEST_F(CudaServer, PrefixesAreKeptAndReadAgain) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("cuda-prefixes-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  ServerOptions options = gpu_options();
  options.engine.prefix_bytes = -1;
  options.engine.prefill_chunk = 16;
  options.engine.prefix_folder = folder;
  options.engine.prefix_folder_bytes = std::int64_t{1} << 30;
  JsonValue first;
  {
    const Running server(options);
    first = server.post("/v1/completions", body_of("tidal")).json();
    EXPECT_EQ(first["glimpse"]["reused"], 0) << first;
    const JsonValue again = server.post("/v1/completions", body_of("tidal")).json();
    EXPECT_EQ(again["glimpse"]["reused"], again["usage"]["prompt_tokens"]);
    EXPECT_EQ(again["choices"][0]["text"], first["choices"][0]["text"]);
    const JsonValue other = body_of("quest", {{"prompt", document() + "where"}, {"attention", {{"reuse", "exact"}}}});
    const JsonValue part = server.post("/v1/completions", other).json();
    EXPECT_GT(part["glimpse"]["reused"], 0) << part;
    ServerOptions empty = options;
    empty.engine.prefix_folder.clear();
    EXPECT_EQ(part["choices"][0]["text"], Running(empty).post("/v1/completions", other).json()["choices"][0]["text"]);
  }
  const Running server(options);
  const JsonValue later = server.post("/v1/completions", body_of("tidal")).json();
  EXPECT_EQ(later["glimpse"]["reused"], later["usage"]["prompt_tokens"]) << later;
  EXPECT_EQ(later["choices"][0]["text"], first["choices"][0]["text"]);
  std::filesystem::remove_all(folder);
}

TEST_F(CudaServer, WatchedStepsAreTheEngines) {
  const Running server(gpu_options());
  engine::Engine engine(gpu_options().engine);
  for (const char* policy : {"full", "tidal", "quest", "streaming", "lychee-decode"}) {
    SCOPED_TRACE(policy);
    const JsonValue body = body_of(policy, {{"attention", {{"watch", true}, {"reuse", "none"}}}});
    policies::PolicyOptions options;
    if (std::string_view(policy) != "full") options.budget = plan::parse_budget("64");
    engine::Request request;
    request.plan = policies::make_plan(policy, engine.shape(), options);
    request.prompt = engine.tokenizer().encode(body["prompt"].get<std::string>(), text::Special::as_tokens, true);
    request.max_tokens = 12;
    request.ignore_end = true;
    const Told told = told_by_engine(engine, std::move(request));
    ASSERT_GT(told.steps.size(), 5U);
    const JsonValue answer = server.post("/v1/completions", body).json();
    ASSERT_TRUE(answer.contains("id")) << answer;
    for (std::size_t n = 0; n < told.steps.size(); ++n) {
      const Reply reply = server.get("/v1/requests/" + answer["id"].get<std::string>() + "/steps/" + std::to_string(n));
      ASSERT_EQ(reply.status, 200) << reply.body;
      for (const char* key : {"heads", "bytes_read", "index_bytes", "dense_bytes"}) {
        EXPECT_EQ(reply.json()[key], told.steps[n][key]) << " step " << n << " " << key;
      }
    }
  }
}

TEST_F(CudaServer, EchoedPromptsHaveLogprobs) {
  const Running server(gpu_options());
  ServerOptions there = gpu_options();
  there.engine.device = {};
  const Running cpu(there);
  const JsonValue body = body_of("full", {{"max_tokens", 1}, {"logprobs", 2}, {"echo", true}});
  const JsonValue ours = server.post("/v1/completions", body).json()["choices"][0]["logprobs"];
  const JsonValue theirs = cpu.post("/v1/completions", body).json()["choices"][0]["logprobs"];
  ASSERT_EQ(ours["tokens"].size(), theirs["tokens"].size()) << ours;
  ASSERT_GT(ours["tokens"].size(), 100U);
  EXPECT_TRUE(ours["token_logprobs"][0].is_null());
  for (std::size_t i = 1; i + 1 < ours["tokens"].size(); ++i) {
    EXPECT_EQ(ours["tokens"][i], theirs["tokens"][i]);
    EXPECT_NEAR(ours["token_logprobs"][i], theirs["token_logprobs"][i], 0.2) << i;
  }
}

TEST_F(CudaServer, SlicesAreRefused) {
  ServerOptions options = gpu_options();
  options.engine.slice_seconds = 0.1;
  EXPECT_THROW(engine::Engine{options.engine}, UserError);
}

}  // namespace
}  // namespace glimpse::server
