// Where bytes go: traces, full disks, readers that leave, and Ctrl-C.
#include <gtest/gtest.h>

#include <csignal>
#include <sstream>

#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

using Json = nlohmann::json;

std::vector<Json> lines_of(const std::filesystem::path& path) {
  std::vector<Json> lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

TEST(Trace, OneLineForEachStepLayerAndKvHead) {
  const auto path = scratch("trace.jsonl");
  const auto json = run_for_json(
      run_words({"-p", prose(6), "-n", "5", "--attn", "tidal", "--attn-budget", "16", "--trace", path.string()}));
  const auto lines = lines_of(path);
  constexpr int kSteps = 4, kLayers = 4, kHeads = 2;
  ASSERT_EQ(lines.size(), static_cast<std::size_t>(kSteps * kLayers * kHeads));
  std::int64_t rows = 0;
  std::map<std::pair<int, int>, Json> published;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Json& line = lines[i];
    const int step = line["step"], layer = line["layer"], head = line["kv_head"], position = line["position"];
    EXPECT_EQ(step, static_cast<int>(i) / (kLayers * kHeads));
    EXPECT_EQ(layer, static_cast<int>(i) / kHeads % kLayers);
    EXPECT_EQ(head, static_cast<int>(i) % kHeads);
    EXPECT_EQ(position, json["prompt_tokens"].get<int>() + step);
    EXPECT_EQ(line["role"], layer < 2 ? "dense" : layer == 2 ? "select" : "reuse");
    if (layer == 2) {
      EXPECT_TRUE(line["tokens"].is_null());
      EXPECT_EQ(line["published"].size(), 16u);
      published[{step, head}] = line["published"];
    } else {
      EXPECT_TRUE(line["published"].is_null());
    }
    if (layer == 3) {
      const Json expected = published[{step, head}];
      EXPECT_EQ(line["tokens"], expected);
      EXPECT_EQ(line["tokens"].back(), position) << "the current token is always read";
    }
    rows += line["tokens"].is_null() ? position + 1 : static_cast<std::int64_t>(line["tokens"].size());
  }
  // K and V rows of 32 bf16 values.
  EXPECT_EQ(json["attention"]["kv_bytes_read"].get<std::int64_t>(), 2 * rows * 32 * 2);
}

TEST(Trace, SetsPerQueryHeadStandBesideTheirUnion) {
  const auto path = scratch("trace.jsonl");
  run_for_json(run_words({"-p", prose(6), "-n", "3", "--attn", "tidal", "--attn-budget", "8", "--attn-opt",
                          "set=query-head", "--trace", path.string()}));
  int seen = 0;
  for (const Json& line : lines_of(path)) {
    if (line["role"] != "select" && line["role"] != "reuse") continue;
    ++seen;
    ASSERT_EQ(line["query_sets"].size(), 3u) << line;
    std::set<int> all;
    for (const Json& set : line["query_sets"]) {
      EXPECT_EQ(set.size(), 8u);
      all.insert(set.begin(), set.end());
    }
    EXPECT_EQ(line[line["role"] == "select" ? "published" : "tokens"], Json(all));
  }
  EXPECT_EQ(seen, 2 * 2 * 2);
}

TEST(Trace, DenseStepsReadAndPublishAll) {
  const auto path = scratch("trace.jsonl");
  run_for_json(run_words({"-p", "the river", "-n", "2", "--trace", path.string()}));
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 8u);
  for (const Json& line : lines) EXPECT_TRUE(line["tokens"].is_null() && line["published"].is_null()) << line;
}

TEST(Output, AFullDiskIsReportedAndTheAnswerIsNotLost) {
  const auto words = run_words({"-p", "the river", "-n", "8"});
  const Outcome full = run_program(words, {.out_file = "/dev/full"});
  EXPECT_EQ(full.code, 2);
  EXPECT_NE(full.err.find("cannot write to standard output: No space left"), std::string::npos) << full.err;
  EXPECT_NE(full.err.find("generated  "), std::string::npos) << "statistics all the same: " << full.err;

  auto traced = words;
  traced.insert(traced.end(), {"--trace", "/dev/full"});
  const Outcome trace = run_program(traced);
  EXPECT_EQ(trace.code, 2);
  EXPECT_NE(trace.err.find("cannot write to '/dev/full'"), std::string::npos) << trace.err;
  EXPECT_FALSE(trace.out.empty()) << "what was printed before stays";

  for (const std::vector<std::string>& other : std::vector<std::vector<std::string>>{
           {"plan", "--list"}, {"--help"}, {"inspect", model()}, {"plan", "-m", model(), "--json"}}) {
    EXPECT_EQ(run_program(other, {.out_file = "/dev/full"}).code, 2) << other[0];
  }
}

TEST(Output, ARefusedRunEmptiesNoTrace) {
  const auto path = scratch("trace.jsonl");
  write_file(path, "old\n");
  EXPECT_EQ(run_program(run_words({"-p", prose(40), "-c", "32", "--trace", path.string()})).code, 2);
  EXPECT_EQ(read_file(path), "old\n");
}

TEST(Interrupt, EndsAfterTheStepWithStatistics) {
  bool sent = false;
  Setting setting;
  setting.on_output_bytes = [&](int pid, const std::string& out) {
    if (!sent && out.size() > 20) sent = ::kill(pid, SIGINT) == 0;
  };
  const Outcome outcome = run_program(run_words({"-p", "the river", "-n", "4000", "--repeat-penalty", "1.3"}), setting);
  ASSERT_TRUE(sent);
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find("ended by interrupted"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("of the cache"), std::string::npos) << outcome.err;
  EXPECT_TRUE(outcome.out.ends_with('\n'));
}

}  // namespace
}  // namespace glimpse::cli
