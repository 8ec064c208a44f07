// The table of fields: documents, and what reading makes of a body.
#include "glimpse/server/fields.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "glimpse/server/methods.h"
#include "tests/support/places.h"

namespace glimpse::server {
namespace {

TEST(Fields, TheDocumentHasTheTable) {
  std::ifstream file(test::source_root() / "docs/server.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(text.find(fields_table()), std::string::npos) << "docs/server.md lacks:\n" << fields_table();
}

TEST(Fields, AreReadIntoTheirPlaces) {
  const Wanted wanted = read_fields(
      R"({"model": "m", "prompt": ["a", [1, 2]], "max_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_k": -1,
          "min_p": 0.125, "seed": 4294967295, "n": 3, "stop": "s", "presence_penalty": 1, "frequency_penalty": -1,
          "repetition_penalty": 1.5, "stream": true, "stream_options": {"include_usage": true}, "b": 1, "a": 2,
          "min_tokens": 2, "ignore_eos": true, "logit_bias": {"7": -1.5}, "logprobs": 3, "echo": true,
          "attention": {"policy": "quest", "budget": "10%", "opt": {"x": 1, "y": "z", "w": true}, "profile": "p",
                        "min_ctx": 9, "lossless": true, "correct": 4, "audit": 5, "reuse": "any"}, "cache_salt": "pepper"})",
      kInCompletion, {});
  EXPECT_EQ(wanted.model, "m");
  ASSERT_EQ(wanted.prompts.size(), 2u);
  EXPECT_EQ(std::get<std::string>(wanted.prompts[0]), "a");
  EXPECT_EQ(std::get<1>(wanted.prompts[1]), (std::vector<text::Token>{1, 2}));
  EXPECT_EQ(wanted.max_tokens, 7);
  EXPECT_EQ(wanted.sampling.temperature, 0.5f);
  EXPECT_EQ(wanted.sampling.top_p, 0.25f);
  EXPECT_EQ(wanted.sampling.top_k, 0);
  EXPECT_EQ(wanted.sampling.min_p, 0.125f);
  EXPECT_EQ(wanted.seed, 4294967295u);
  EXPECT_EQ(wanted.choices, 3);
  EXPECT_EQ(wanted.min_tokens, 2);
  EXPECT_TRUE(wanted.ignore_end && wanted.echo);
  EXPECT_EQ(wanted.logprobs, 3);
  ASSERT_EQ(wanted.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(wanted.sampling.logit_bias[0].token, 7);
  EXPECT_EQ(wanted.sampling.logit_bias[0].bias, -1.5f);
  EXPECT_EQ(wanted.stop, std::vector<std::string>{"s"});
  EXPECT_EQ(wanted.sampling.presence_penalty, 1);
  EXPECT_EQ(wanted.sampling.frequency_penalty, -1);
  EXPECT_EQ(wanted.sampling.repeat_penalty, 1.5f);
  EXPECT_TRUE(wanted.stream && wanted.include_usage && wanted.names_method);
  EXPECT_EQ(wanted.ignored, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(wanted.method.policy, "quest");
  EXPECT_EQ(wanted.method.budget, "10%");
  EXPECT_EQ(wanted.method.options, (std::map<std::string, std::string>{{"w", "true"}, {"x", "1"}, {"y", "z"}}));
  EXPECT_EQ(wanted.method.profile, "p");
  EXPECT_EQ(wanted.method.min_context, 9);
  EXPECT_EQ(wanted.lossless, 0);
  EXPECT_EQ(wanted.correct, 4);
  EXPECT_EQ(wanted.audit, 5);
  EXPECT_EQ(wanted.reuse, engine::Reuse::any);
  EXPECT_EQ(wanted.cache_salt, "pepper");
}

TEST(Fields, DefaultsAreOpenAis) {
  const Wanted wanted = read_fields("{}", kInChat, {});
  EXPECT_EQ(wanted.sampling.temperature, 1);
  EXPECT_EQ(wanted.sampling.top_p, 1);
  EXPECT_EQ(wanted.sampling.top_k, 0);
  EXPECT_EQ(wanted.sampling.min_p, 0);
  EXPECT_EQ(wanted.sampling.repeat_penalty, 1);
  EXPECT_EQ(wanted.choices, 1);
  EXPECT_EQ(wanted.reuse, engine::Reuse::dense);
  EXPECT_FALSE(wanted.sampling.penalise_prompt) << "frequency and presence are the answer's";
  EXPECT_FALSE(wanted.seed || wanted.max_tokens || wanted.stream || wanted.names_method || wanted.lossless);
}

}  // namespace
}  // namespace glimpse::server
