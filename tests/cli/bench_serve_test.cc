// glimpse bench serve: formats, files of arrivals, and what it refuses.
#include <gtest/gtest.h>

#include <set>

#include "glimpse/engine/options.h"
#include "process.h"

namespace glimpse::cli {
namespace {

std::vector<std::string> words(const std::vector<std::string>& more) {
  std::vector<std::string> all{"bench", "serve", "-m", model(), "-t", "1"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

nlohmann::json json_of(const std::vector<std::string>& more) {
  std::vector<std::string> all = words(more);
  all.insert(all.end(), {"--format", "json"});
  const Outcome outcome = run_program(all);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out, nullptr, false);
}

void expect_flags_refused(const std::vector<std::string>& more, const std::string& part) {
  expect_refused(words(more), part);
}

const std::vector<std::string> kDrawn{"--requests", "5", "--rate", "inf",           "--prompt-tokens", "30-90",
                                      "-n",         "4", "--arms", "full,tidal:16", "--running",       "2"};

TEST(BenchServe, DrawsRequestsOfEachMethodInTurn) {
  const auto json = json_of(kDrawn);
  EXPECT_EQ(json["benchmark"], "serve");
  EXPECT_EQ(json["slice_seconds"], engine::kServedSliceSeconds) << "as glimpse serve";
  ASSERT_EQ(json["rows"].size(), 3u);
  const std::vector<std::pair<std::string, int>> arms{{"full", 3}, {"tidal:16", 2}, {"all", 5}};
  for (std::size_t i = 0; i < arms.size(); ++i) {
    const auto& row = json["rows"][i];
    EXPECT_EQ(row["arm"], arms[i].first);
    EXPECT_EQ(row["requests"], arms[i].second);
    EXPECT_EQ(row["as_alone"], arms[i].second);
    EXPECT_EQ(row["failed"], 0);
    EXPECT_EQ(row["longest_wait_passes"], 1) << "every pass gives each stream its token";
    EXPECT_GT(row["first_token_p50_ms"].get<double>(), 0);
    EXPECT_GE(row["first_token_p99_ms"], row["first_token_p50_ms"]);
    EXPECT_GE(row["between_tokens_p99_ms"], row["between_tokens_p50_ms"]);
    EXPECT_GE(row["longest_wait_ms"], row["between_tokens_p99_ms"]);
  }
  EXPECT_NEAR(json["of_by_hand"].get<double>() * json["by_hand_tokens_per_s"].get<double>(),
              json["tokens_per_s"].get<double>(), 1e-6 * json["tokens_per_s"].get<double>());
  ASSERT_EQ(json["requests"].size(), 5u);
  std::set<int> lengths;
  for (const auto& request : json["requests"]) {
    EXPECT_EQ(request["at"], 0.0);
    EXPECT_EQ(request["tokens"], 4);
    const int length = request["prompt_tokens"];
    EXPECT_GE(length, 30);
    EXPECT_LE(length, 90);
    lengths.insert(length);
  }
  EXPECT_GT(lengths.size(), 1u);
}

TEST(BenchServe, ServesWholeChunksWhereItIsTold) {
  std::vector<std::string> whole = kDrawn;
  whole.insert(whole.end(), {"--slice-ms", "0"});
  EXPECT_EQ(json_of(whole)["slice_seconds"], 0);
}

TEST(BenchServe, HalfTheCacheEndsAllRequests) {
  const auto json = json_of({"--requests", "4", "--rate", "inf", "--prompt-tokens", "100", "-n", "300", "--arms",
                             "full,tidal:64", "--running", "4", "--cache-mib", "1"});
  EXPECT_EQ(json["cache_mib"], 1);
  EXPECT_EQ(json["rows"][2]["requests"], 4);
  EXPECT_EQ(json["rows"][2]["failed"], 0);
  EXPECT_GT(json["preemptions"], 0);
  expect_flags_refused({"--requests", "2", "--prompt-tokens", "4000", "--cache-mib", "1"}, "more memory (--cache-mib)");
}

TEST(BenchServe, ASeedRepeatsAndAPoissonProcessAscends) {
  const auto arrivals = [](const std::string& seed) {
    std::vector<std::pair<double, int>> all;
    const auto json = json_of({"--requests", "4", "--rate", "50", "--prompt-tokens", "20-40", "-n", "1", "-s", seed});
    for (const auto& request : json["requests"]) all.emplace_back(request["at"], request["prompt_tokens"]);
    return all;
  };
  const auto first = arrivals("3");
  ASSERT_EQ(first.size(), 4u);
  EXPECT_EQ(first[0].first, 0.0);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_GT(first[i].first, first[i - 1].first);
  EXPECT_EQ(arrivals("3"), first);
  EXPECT_NE(arrivals("4"), first);
}

TEST(BenchServe, AFileSaysWhenWhatAndHow) {
  const auto file = scratch("arrivals.jsonl"), text = scratch("text.txt");
  write_file(text, prose(10));
  write_file(file,
             "{\"at\": 0.2, \"prompt_tokens\": 50, \"tokens\": 3, \"attn\": \"quest:48\"}\n\n"
             "{\"at\": 0, \"prompt_tokens\": 900, \"tokens\": 2, \"attn\": \"tidal:10%,min=24\"}\n");
  const auto json = json_of({"--arrivals", file.string(), "-f", text.string(), "-r", "2"});
  ASSERT_EQ(json["requests"].size(), 4u) << "two runs";
  for (const int run : {0, 1}) {
    const auto& late = json["requests"][2 * run + 1];
    EXPECT_EQ(late["run"], run);
    EXPECT_EQ(late["arm"], "quest:48");
    EXPECT_EQ(late["at"], 0.2);
    EXPECT_EQ(late["prompt_tokens"], 50);
    EXPECT_EQ(late["tokens"], 3);
    EXPECT_EQ(json["requests"][2 * run]["arm"], "tidal:10%,min=24");
    EXPECT_EQ(json["requests"][2 * run]["prompt_tokens"], 900);
  }
  EXPECT_EQ(json["rows"][2]["requests"], 4);
}

TEST(BenchServe, TablesOfBothKinds) {
  std::vector<std::string> all = words(kDrawn);
  const Outcome md = run_program(all);
  EXPECT_NE(md.out.find("\n| tidal:16 | 2 |"), std::string::npos) << md.out << md.err;
  EXPECT_NE(md.out.find("| 5 of 5 |\n\nservice "), std::string::npos) << md.out;
  const auto table = scratch("table.csv");
  all.insert(all.end(), {"--format", "csv", "-o", table.string()});
  EXPECT_EQ(run_program(all).out, "");
  EXPECT_NE(read_file(table).find("\nall,5,"), std::string::npos) << read_file(table);
}

TEST(BenchServe, RequestsThatWereTypedWinOverAFileOfTheEnvironment) {
  std::vector<std::string> all = words(kDrawn);
  const Outcome drawn = run_program(all, {.environment = {"GLIMPSE_ARG_ARRIVALS=/nonexistent"}});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  const auto file = scratch("arrivals.jsonl");
  write_file(file, "{\"at\": 0, \"prompt_tokens\": 9, \"tokens\": 1, \"attn\": \"full\"}\n");
  const Outcome read = run_program(words({"--arrivals", file.string()}),
                                   {.environment = {"GLIMPSE_ARG_REQUESTS=7", "GLIMPSE_ARG_RATE=x"}});
  EXPECT_NE(read.out.find("| 1 of 1 |"), std::string::npos) << read.out << read.err;
}

TEST(BenchServe, RefusesInOneLine) {
  expect_flags_refused({"--rate", "0"}, "--rate '0': give requests a second, from 0.001");
  expect_flags_refused({"--rate", "fast"}, "or inf for all at once");
  for (const char* range : {"", "0", "9-3", "-5", "3-", "a-b", "1-99999999"}) {
    expect_flags_refused({"--prompt-tokens", range}, "--prompt-tokens '");
  }
  expect_flags_refused({"--requests", "0"}, "--requests '0'");
  expect_flags_refused({"--arms", "full,tidl"}, "did you mean 'tidal'?");
  expect_flags_refused({"--prompt-tokens", "100", "-c", "120", "-n", "21"}, "the longest request has 121 tokens");
  expect_flags_refused({"--requests", "65536", "--prompt-tokens", "16000000"}, "give fewer or shorter ones");
  expect_flags_refused({"--arms", "full", "--prompt-tokens", "100", "--kv-tier-dir", "/tmp"},
                       "--kv-tier-dir has no effect");
  expect_flags_refused({"--format", "xml"}, "unknown format 'xml'");
}

TEST(BenchServe, RefusesFilesThatAreNone) {
  const auto file = scratch("arrivals.jsonl");
  const auto refused = [&](const std::string& text, const std::string& part) {
    write_file(file, text);
    expect_flags_refused({"--arrivals", file.string()}, part);
  };
  refused("\n \n", "has no request; write lines as {\"at\": 0.5");
  refused("{\"at\": 0, \"prompt_tokens\": 9, \"tokens\": 3, \"attn\": \"full\"}\n[1]\n", "arrivals.jsonl', line 2");
  refused("{\"at\": 0, \"prompt_tokens\": 9, \"tokens\": 3}\n", "attn");
  refused("{\"at\": 0, \"prompt_tokens\": 0, \"tokens\": 3, \"attn\": \"full\"}\n", "$.prompt_tokens: 0 is not from 1");
  refused("{\"at\": -1, \"prompt_tokens\": 9, \"tokens\": 3, \"attn\": \"full\"}\n", "-1 is not from 0 to");
  refused("{\"at\": 0, \"prompt_tokens\": 9, \"tokens\": 3, \"attn\": \"ful\"}\n", "line 1: ");
  refused("{\"at\": 0, \"prompt_tokens\": 9, \"tokens\": 3, \"attn\": \"full\", \"x\": 1}\n", "x");
  expect_flags_refused({"--arrivals", "/nonexistent"}, "/nonexistent");
  expect_flags_refused({"--arrivals", file.string(), "-o", file.string()}, "is also --arrivals");
  for (const char* flag : {"--requests", "--rate", "--prompt-tokens", "-n", "--arms", "-s"}) {
    const std::string value = std::string(flag) == "--arms" ? "full" : "5";
    expect_flags_refused({"--arrivals", file.string(), flag, value}, "has no effect beside --arrivals");
  }
}

}  // namespace
}  // namespace glimpse::cli
