// glimpse inspect on a saved session: what it says agrees with the run that made it; damage is one line.
#include <gtest/gtest.h>

#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

nlohmann::json facts_of(const std::filesystem::path& file) {
  const Outcome outcome = run_program({"inspect", file.string(), "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out, nullptr, false);
}

TEST(InspectSession, SaysWhatTheRunPutThere) {
  const auto file = scratch("a.session");
  const auto run = run_for_json(run_words({"-p", prose(20), "-n", "2", "--kv-type", "f16", "--attn", "tidal",
                                           "--attn-budget", "32", "--session", file.string()}));
  const auto facts = facts_of(file);
  EXPECT_EQ(facts["kind"], "session");
  EXPECT_EQ(facts["model"]["name"], "test llama");
  EXPECT_EQ(facts["model"]["layers"], 4);
  EXPECT_EQ(facts["model"]["vocabulary"], 512);
  EXPECT_EQ(facts["kv_type"], "f16");
  EXPECT_EQ(facts["tokens"], run["prompt_tokens"]);
  EXPECT_EQ(facts["prompt_tokens"], run["prompt_tokens"]);
  EXPECT_EQ(facts["decode_steps"], 0);
  EXPECT_EQ(facts["logits"], true);
  EXPECT_EQ(facts["plan"]["policy"], "tidal");
  EXPECT_EQ(facts["plan"]["budget"], "32");
  EXPECT_EQ(facts["bytes"], std::filesystem::file_size(file));
  // K and V of whole pages of 16 tokens, 2 KV heads of 32 values of 2 bytes, 4 layers.
  const std::int64_t pages = (run["prompt_tokens"].get<std::int64_t>() + 15) / 16;
  EXPECT_EQ(facts["sections"].back()["name"], "layers");
  EXPECT_EQ(facts["sections"].back()["count"], 4);
  EXPECT_EQ(facts["sections"].back()["bytes"], pages * 16 * 2 * 2 * 32 * 2 * 4);

  const Outcome text = run_program({"inspect", file.string()});
  EXPECT_EQ(text.code, 0) << text.err;
  for (const std::string part : {"llama 'test llama', 4 layers", "f16", "tidal, budget 32", "all checks passed"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << " in " << text.out;
  }
  EXPECT_NE(text.out.find(facts["model"]["fingerprint"].get<std::string>()), std::string::npos) << text.out;
}

TEST(InspectSession, TheFingerprintIsTheModels) {
  const auto one = scratch("one.session"), two = scratch("two.session"), other = scratch("other.session");
  run_program(run_words({"-p", "the river", "-n", "1", "--session", one.string()}));
  run_program(run_words({"-p", "the hills", "-n", "1", "--session", two.string()}));
  run_program({"run", "-m", model("qwen2"), "-p", "the river", "-n", "1", "--session", other.string()});
  EXPECT_EQ(facts_of(one)["model"]["fingerprint"], facts_of(two)["model"]["fingerprint"]);
  EXPECT_NE(facts_of(one)["model"]["fingerprint"], facts_of(other)["model"]["fingerprint"]);
}

TEST(InspectSession, DamageIsOneLine) {
  const auto file = scratch("a.session"), bad = scratch("bad.session");
  run_program(run_words({"-p", prose(20), "-n", "1", "--session", file.string()}));
  const std::string good = read_file(file);
  const auto expect_refused = [&](const std::string& bytes, const std::string& part) {
    write_file(bad, bytes);
    const Outcome outcome = run_program({"inspect", bad.string()});
    EXPECT_EQ(outcome.code, 2) << part;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_NE(outcome.err.find("bad.session' " + part), std::string::npos) << outcome.err;
  };
  expect_refused(good.substr(0, 20), "is cut off");
  expect_refused(good.substr(0, good.size() / 2), "is cut off");
  expect_refused(good + "x", "has ");
  for (const std::size_t at : {good.size() / 2, good.size() - 70, std::size_t{40}}) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    expect_refused(bytes, "is damaged");
  }
}

TEST(InspectSession, JsonIsOfSessionsAlone) {
  const Outcome outcome = run_program({"inspect", model(), "--json"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("is no saved session"), std::string::npos) << outcome.err;
  EXPECT_EQ(run_program({"inspect", model()}, {.environment = {"GLIMPSE_ARG_JSON=1"}}).code, 0);
}

}  // namespace
}  // namespace glimpse::cli
