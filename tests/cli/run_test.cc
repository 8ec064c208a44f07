// glimpse run on a small random model: what it prints, and that the numbers agree with each other.
#include <gtest/gtest.h>

#include "glimpse/model/model.h"
#include "glimpse/text/tokenizer.h"
#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

std::string text_without_newline(const Outcome& outcome) {
  EXPECT_TRUE(outcome.out.ends_with('\n'));
  return outcome.out.substr(0, outcome.out.size() - 1);
}

TEST(Run, APipeGetsTheAnswerAndNothingElse) {
  const auto words = run_words({"-p", "the river", "-n", "24"});
  const auto json = run_for_json(words);
  const Outcome outcome = run_program(words);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(text_without_newline(outcome), json["text"].get<std::string>());
  EXPECT_NE(outcome.err.find("prompt "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("generated  24 tokens"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("read 100.00 % of the bytes of dense attention"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find('\r'), std::string::npos) << "a progress bar is for terminals";
  auto quiet = words;
  quiet.push_back("-q");
  const Outcome silent = run_program(quiet);
  EXPECT_EQ(silent.err, "");
  EXPECT_EQ(silent.out, outcome.out);
}

TEST(Run, AnAnswerObeysAGrammarOrASchema) {
  const auto grammar = run_for_json(run_words({"-p", "x", "--grammar", "root ::= (\"ab\" | \"cd\"){3}"}));
  EXPECT_EQ(grammar["finish_reason"], "stop");
  const std::string text = grammar["text"];
  ASSERT_EQ(text.size(), 6u);
  for (std::size_t i = 0; i < text.size(); i += 2) EXPECT_TRUE(text.substr(i, 2) == "ab" || text.substr(i, 2) == "cd");
  const std::string schema = R"({"type": "array", "items": {"enum": [1, true]}, "minItems": 2, "maxItems": 2})";
  const std::string array = run_for_json(run_words({"-p", "x", "--json-schema", schema}))["text"];
  const auto value = nlohmann::json::parse(array, nullptr, false);
  ASSERT_TRUE(value.is_array() && value.size() == 2) << array;
  for (const auto& each : value) EXPECT_TRUE(each == 1 || each == true) << array;
}

TEST(Run, JsonKeysAndTheirConsistency) {
  const auto json = run_for_json(run_words({"-p", prose(8), "-n", "12", "--attn", "tidal", "--attn-budget", "32"}));
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(item.key());
  for (const char* key : {"text", "tokens", "prompt_tokens", "generated_tokens", "prefill_s", "decode_s", "tpot_ms",
                          "attention", "finish_reason"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_TRUE(json["lossless"].is_null());
  const auto& attention = json["attention"];
  for (const char* key :
       {"policy", "budget", "set_per", "kept_ratio", "coverage_mean", "coverage_min", "kv_bytes_read", "index_memory",
        "index_build_s", "dense_steps", "sparse_steps", "resident_tokens", "recalled_bytes"}) {
    EXPECT_TRUE(attention.contains(key)) << key;
  }
  EXPECT_EQ(json["tokens"].size(), 12u);
  EXPECT_EQ(json["generated_tokens"], 12);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(attention["policy"], "tidal");
  EXPECT_EQ(attention["budget"], "32");
  EXPECT_LE(attention["coverage_min"].get<double>(), attention["coverage_mean"].get<double>());
  EXPECT_LE(attention["coverage_mean"].get<double>(), 1.0);
  EXPECT_TRUE(attention["audit"].is_null());
  // The first token of the answer comes out of the prefill.
  const int steps = 11;
  EXPECT_EQ(attention["sparse_steps"].get<int>() + attention["dense_steps"].get<int>(), steps);
  EXPECT_EQ(attention["dense_steps"], 0);
  EXPECT_NEAR(json["tpot_ms"].get<double>(), 1e3 * json["decode_s"].get<double>() / steps, 1e-9);
  EXPECT_GT(json["prefill_s"].get<double>(), 0);

  // 4 layers, 2 KV heads of 32, bf16; layers 0, 1 and 2 read all, layer 3 reads the 32 of the set: from the plan.
  std::int64_t rows = 0, dense = 0;
  for (int step = 0; step < steps; ++step) {
    const std::int64_t context = json["prompt_tokens"].get<std::int64_t>() + step + 1;
    rows += 2 * 2 * (3 * context + 32);
    dense += 2 * 2 * 4 * context;
  }
  EXPECT_EQ(attention["kv_bytes_read"].get<std::int64_t>(), rows * 32 * 2);
  EXPECT_DOUBLE_EQ(attention["kept_ratio"].get<double>(), static_cast<double>(rows) / static_cast<double>(dense));
}

TEST(Run, LosslessIsTheAnswerOfFull) {
  const auto dense = run_for_json(run_words({"-p", prose(8), "-n", "24"}));
  for (const char* drafts : {"", "3"}) {
    std::vector<std::string> words = run_words({"-p", prose(8), "-n", "24", "--attn", "tidal", "--attn-budget", "32"});
    words.emplace_back("--lossless");
    if (*drafts != 0) words.emplace_back(drafts);
    const auto json = run_for_json(words);
    EXPECT_EQ(json["tokens"], dense["tokens"]) << drafts;
    const auto& lossless = json["lossless"];
    EXPECT_EQ(
        lossless["accepted"].get<int>() + lossless["verify_passes"].get<int>() + lossless["dense_steps"].get<int>(),
        23);
  }
}

TEST(Run, AnAuditMeasuresEveryHead) {
  const auto json = run_for_json(
      run_words({"-p", prose(8), "-n", "12", "--attn", "quest", "--attn-budget", "48", "--attn-audit", "4"}));
  EXPECT_TRUE(json["attention"]["coverage_mean"].is_null());
  const auto& audit = json["attention"]["audit"];
  EXPECT_EQ(audit["steps"], 3);  // of 11: the first, fifth and ninth
  EXPECT_LE(audit["coverage_min"].get<double>(), audit["coverage_mean"].get<double>());
  EXPECT_GT(audit["coverage_min"].get<double>(), 0);
}

TEST(Run, SaysWhoseSetsRan) {
  const auto set_of = [](std::vector<std::string> more) {
    more.insert(more.end(), {"-p", "the river", "-n", "2"});
    return run_for_json(run_words(more))["attention"]["set_per"];
  };
  EXPECT_EQ(set_of({"--attn", "tidal"}), "kv-head");
  EXPECT_EQ(set_of({"--attn", "tidal", "--attn-opt", "set=query-head"}), "query-head");
  EXPECT_EQ(set_of({"--attn", "lessismore"}), "layer");
  EXPECT_TRUE(set_of({"--attn", "streaming"}).is_null());
  EXPECT_TRUE(set_of({}).is_null());
  const Outcome text = run_program(run_words({"-p", "the river", "-n", "2", "--attn", "tidal", "--attn-budget", "64"}));
  EXPECT_NE(text.err.find("attention  tidal, budget 64, a set per kv-head: read"), std::string::npos) << text.err;
}

TEST(Run, SaysWhatIndicesHoldAndTook) {
  const auto words = run_words({"-p", prose(8), "-n", "12", "--attn", "quest", "--attn-budget", "48"});
  const auto json = run_for_json(words);
  // Two rows of 32 bf16 values for each full page of 16 tokens, in whole tiles of 32 pages, in 2 heads of layers 2 and
  // 3; the last token never ran.
  const std::int64_t pages = (json["prompt_tokens"].get<std::int64_t>() + 11) / 16;
  EXPECT_EQ(json["attention"]["index_memory"].get<std::int64_t>(), 2 * 2 * ((pages + 31) / 32 * 32) * 2 * 32 * 2);
  EXPECT_GT(json["attention"]["index_build_s"].get<double>(), 0);
  EXPECT_LT(json["attention"]["index_build_s"].get<double>(), 100);
  EXPECT_NE(run_program(words).err.find("\nindex      "), std::string::npos);
  const auto plain = run_for_json(run_words({"-p", "the river", "-n", "2", "--attn", "tidal"}));
  EXPECT_EQ(plain["attention"]["index_memory"], 0);
  EXPECT_EQ(plain["attention"]["index_build_s"], 0.0);
}

TEST(Run, ABudgetOverTheContextIsDense) {
  const auto dense = run_for_json(run_words({"-p", prose(5), "-n", "16"}));
  const auto covered =
      run_for_json(run_words({"-p", prose(5), "-n", "16", "--attn", "tidal", "--attn-budget", "100000"}));
  const auto below = run_for_json(
      run_words({"-p", prose(5), "-n", "16", "--attn", "tidal", "--attn-budget", "8", "--attn-min-ctx", "4000"}));
  EXPECT_EQ(covered["tokens"], dense["tokens"]);
  EXPECT_EQ(covered["attention"]["kept_ratio"], 1.0);
  EXPECT_EQ(below["tokens"], dense["tokens"]);
  EXPECT_EQ(below["attention"]["sparse_steps"], 0);
}

TEST(Run, ThreadsDoNotChangeTheAnswer) {
  const std::vector<std::vector<std::string>> samplings{
      {},
      {"--temp", "0.9", "-s", "7"},
      {"--temp", "1.5", "--top-k", "0", "-s", "4294967295", "--attn", "tidal", "--attn-budget", "16"}};
  for (const auto& sampling : samplings) {
    std::vector<std::string> words{"-p", prose(6), "-n", "32"};
    words.insert(words.end(), sampling.begin(), sampling.end());
    auto one = run_words(words), two = run_words(words);
    one.insert(one.end(), {"-t", "1"});
    two.insert(two.end(), {"-t", "2"});
    EXPECT_EQ(run_for_json(one)["tokens"], run_for_json(two)["tokens"]);
  }
}

TEST(Run, TheSeedDecides) {
  const auto sampled = [](const std::string& seed) {
    return run_for_json(run_words({"-p", "the river", "-n", "32", "--temp", "2", "--top-k", "0", "--top-p", "1",
                                   "--min-p", "0", "-s", seed}))["tokens"];
  };
  EXPECT_EQ(sampled("1"), sampled("1"));
  EXPECT_NE(sampled("1"), sampled("2"));
}

TEST(Run, DocumentThenEmptyLineThenQuestion) {
  const auto document = scratch("document.txt");
  write_file(document, "the river was high\n");
  const auto both = run_for_json(run_words({"-f", document.string(), "-p", "and nobody walked", "-n", "8"}));
  const auto plain = run_for_json(run_words({"-p", "the river was high\n\nand nobody walked", "-n", "8"}));
  const auto piped =
      run_for_json(run_words({"-f", "-", "-p", "and nobody walked", "-n", "8"}), {.input = "the river was high\n"});
  EXPECT_EQ(both["prompt_tokens"], plain["prompt_tokens"]);
  EXPECT_EQ(both["tokens"], plain["tokens"]);
  EXPECT_EQ(piped["tokens"], plain["tokens"]);
}

TEST(Run, ThePromptGoesThroughTheChatTemplateOrNot) {
  const model::GgufFile file{std::filesystem::path(model())};
  const text::Tokenizer tokenizer(file.metadata());
  const std::string prompt = "the river <|im_end|> was high";
  const auto count = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"-p", prompt, "-n", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return run_for_json(run_words(words))["prompt_tokens"].get<std::size_t>();
  };
  EXPECT_EQ(count({"--raw"}), tokenizer.encode(prompt, text::Special::as_text, true).size());
  const std::vector<text::ChatMessage> user{{"user", prompt}};
  EXPECT_EQ(count({}), tokenizer.apply_chat(user, true).size());
  const std::vector<text::ChatMessage> both{{"system", "the hills"}, {"user", prompt}};
  EXPECT_EQ(count({"--system", "the hills"}), tokenizer.apply_chat(both, true).size());
  EXPECT_NE(count({}), count({"--raw"}));
}

TEST(Run, EndsWhereTheContextEnds) {
  const auto json = run_for_json(run_words({"-p", "the river", "--raw", "-c", "40", "--temp", "0"}));
  EXPECT_EQ(json["finish_reason"], "context_full");
  EXPECT_LE(json["prompt_tokens"].get<int>() + json["generated_tokens"].get<int>(), 41);
  EXPECT_GE(json["prompt_tokens"].get<int>() + json["generated_tokens"].get<int>(), 40);
  const auto none = run_for_json(run_words({"-p", "the river", "-n", "0"}));
  EXPECT_EQ(none["generated_tokens"], 0);
  EXPECT_TRUE(none["tpot_ms"].is_null());
}

TEST(Run, EndsBeforeAStopString) {
  auto words = run_words({"-p", "the river", "-n", "64"});
  const std::string whole = run_for_json(words)["text"].get<std::string>();
  // Two bytes that stand for themselves, from the middle on.
  std::size_t at = whole.size() / 2;
  while (at + 2 < whole.size() && (whole[at] < 'A' || whole[at + 1] < 'A')) ++at;
  const std::string stop = whole.substr(at, 2);
  ASSERT_EQ(stop.size(), 2u);
  words.insert(words.end(), {"--stop", "never said by anyone", "--stop", stop});
  const auto json = run_for_json(words);
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["text"], whole.substr(0, whole.find(stop)));
  EXPECT_LT(json["tokens"].size(), 64u);
  const Outcome outcome = run_program(words);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(text_without_newline(outcome), json["text"].get<std::string>());
  EXPECT_NE(outcome.err.find("ended by stop"), std::string::npos) << outcome.err;
}

TEST(Run, BiasesAndTheLeastNumberOfTokens) {
  const auto words = [](std::vector<std::string> more) {
    more.insert(more.end(), {"-p", "the river", "-n", "12"});
    return run_words(more);
  };
  const auto first = [&](const std::vector<std::string>& more) {
    return run_for_json(words(more))["tokens"][0].get<int>();
  };
  const int likeliest = first({});
  EXPECT_NE(first({"--logit-bias", std::to_string(likeliest) + "-inf"}), likeliest);
  EXPECT_EQ(first({"--logit-bias", "77+999.5", "-l", "78+1"}), 77);
  const text::Tokenizer tokenizer(model::Model(model()).file().metadata());
  text::Token end = 0;
  while (!tokenizer.ends_generation(end)) ++end;
  const std::string now = std::to_string(end) + "+1000";
  const auto ended = run_for_json(words({"-l", now, "--min-tokens", "5"}));
  EXPECT_EQ(ended["finish_reason"], "end_of_text");
  EXPECT_EQ(ended["tokens"].size(), 5u);
  EXPECT_EQ(run_for_json(words({"-l", now}))["tokens"].size(), 0u);
  const auto on = run_for_json(words({"-l", now, "--ignore-eos"}));
  EXPECT_EQ(on["finish_reason"], "length");
  EXPECT_EQ(on["tokens"], std::vector<int>(12, end));
}

TEST(Run, OnePromptTokenAndOtherArchitectures) {
  EXPECT_EQ(run_for_json(run_words({"-p", "a", "--raw", "-n", "2"}))["prompt_tokens"], 1);
  for (const char* name : {"llama2", "llama3", "qwen2", "qwen3", "llama256-q4_K"}) {
    const auto json = run_for_json(
        {"run", "-m", model(name), "-p", "the river", "-n", "4", "--attn", "streaming", "--attn-budget", "8"});
    EXPECT_EQ(json["generated_tokens"], 4) << name;
    EXPECT_LT(json["attention"]["kept_ratio"], 1.0) << name;
  }
}

TEST(Run, APlanFileIsThePolicyThatMadeIt) {
  const auto path = scratch("plan.json");
  const Outcome plan =
      run_program({"plan", "-m", model(), "--attn", "tidal", "--attn-budget", "16", "--attn-sink", "2", "--json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  write_file(path, plan.out);
  const auto by_file = run_for_json(run_words({"-p", prose(5), "-n", "12", "--attn-plan", path.string()}));
  const auto by_flags = run_for_json(
      run_words({"-p", prose(5), "-n", "12", "--attn", "tidal", "--attn-budget", "16", "--attn-sink", "2"}));
  EXPECT_EQ(by_file["tokens"], by_flags["tokens"]);
  EXPECT_EQ(by_file["attention"], by_flags["attention"]);
}

}  // namespace
}  // namespace glimpse::cli
