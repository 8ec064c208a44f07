// Traces: what `run --trace` and `eval sets` write, what `inspect` says of them, and what it refuses.
#include "glimpse/cli/trace.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <set>

#include "glimpse/base/error.h"
#include "tests/cli/process.h"
#include "tests/cli/trace_lines.h"

namespace glimpse::cli {
namespace {

using Json = nlohmann::json;

constexpr int kLayers = 4, kHeads = 2;  // of the small model

TEST(Trace, OneLineForEachStepLayerAndKvHead) {
  const auto path = scratch("trace.jsonl");
  const auto json = run_for_json(
      run_words({"-p", prose(6), "-n", "5", "--attn", "tidal", "--attn-budget", "16", "--trace", path.string()}));
  const auto lines = trace_lines(path).sets;
  constexpr int kSteps = 4;
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
    EXPECT_TRUE(line.at("coverage").is_null()) << "nobody computed it";
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
  for (const Json& line : trace_lines(path).sets) {
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
  const auto lines = trace_lines(path).sets;
  ASSERT_EQ(lines.size(), 8u);
  for (const Json& line : lines) EXPECT_TRUE(line["tokens"].is_null() && line["published"].is_null()) << line;
}

TEST(Trace, HoldsTheTextsTheModelAndTheBytesRead) {
  const auto path = scratch("trace.jsonl");
  const std::string prompt = "the road, Ärger und 木, leads on " + prose(3);
  const auto json = run_for_json(run_words({"-p", prompt, "--raw", "-n", "6", "--attn", "tidal", "--attn-budget", "16",
                                            "--temp", "0", "--trace", path.string()}));
  const TraceLines trace = trace_lines(path);
  const auto lines = json_lines(path);
  EXPECT_EQ(lines.front()["kind"], "header");
  EXPECT_EQ(lines.back()["kind"], "end");
  EXPECT_EQ(trace.header["source"], "run");
  EXPECT_EQ(trace.header["policy"], "tidal");
  EXPECT_EQ(trace.header["budget"], "16");
  EXPECT_EQ(trace.header["model"]["layers"], kLayers);
  EXPECT_EQ(trace.header["model"]["kv_heads"], kHeads);
  EXPECT_EQ(trace.header["kv_type"], "bf16");
  EXPECT_EQ(trace.header["row_bytes"], 2 * 32 * 2);
  EXPECT_EQ(trace.header["prompt_tokens"], json["prompt_tokens"]);
  EXPECT_EQ(trace.end["steps"], 5);

  const auto prompt_tokens = json["prompt_tokens"].get<std::size_t>();
  ASSERT_EQ(trace.tokens.size(), prompt_tokens + 6);
  std::string before, after;
  for (std::size_t i = 0; i < trace.tokens.size(); ++i) {
    EXPECT_EQ(trace.tokens[i]["position"], i);
    (i < prompt_tokens ? before : after) += trace.tokens[i]["text"].get<std::string>();
    if (i < prompt_tokens) continue;
    EXPECT_EQ(trace.tokens[i]["id"], json["tokens"][i - prompt_tokens]);
  }
  EXPECT_TRUE(before.ends_with(prompt)) << before;
  EXPECT_TRUE(json["text"].get<std::string>().starts_with(after)) << after;

  std::int64_t read = 0;
  for (std::size_t i = 0; i < trace.steps.size(); ++i) {
    EXPECT_EQ(trace.steps[i]["step"], i);
    EXPECT_EQ(trace.steps[i]["dense_bytes"], (prompt_tokens + i + 1) * kLayers * kHeads * 2 * 32 * 2);
    read += trace.steps[i]["bytes_read"].get<std::int64_t>();
  }
  EXPECT_EQ(trace.steps.size(), 5u);
  EXPECT_EQ(json["attention"]["kv_bytes_read"], read);
}

TEST(Trace, EvalSetsKnowsTheMassOfEverySet) {
  const auto text = scratch("text.txt"), path = scratch("sets.jsonl");
  write_file(text, prose(12));
  const std::vector<std::string> words{"eval", "sets",   "-m",    model(),         "-f", text,      "-t", "2", "-o",
                                       path,   "--attn", "tidal", "--attn-budget", "16", "--steps", "5"};
  std::vector<std::string> first = words;
  first.insert(first.end(), {"--prompt", "80"});
  const Json json = run_for_json(first);
  const TraceLines trace = trace_lines(path);
  EXPECT_EQ(trace.header["source"], "eval sets");
  EXPECT_EQ(trace.tokens.size(), 86u) << "the one that the last step should have written too";
  ASSERT_EQ(trace.sets.size(), static_cast<std::size_t>(5 * kLayers * kHeads));
  double sum = 0, least = 1;
  for (const Json& line : trace.sets) {
    const double coverage = line["coverage"];
    EXPECT_EQ(coverage == 1, line["tokens"].is_null()) << coverage;
    EXPECT_GT(coverage, 0);
    sum += coverage;
    least = std::min(least, coverage);
  }
  EXPECT_EQ(json["prompt_tokens"], 80);
  EXPECT_EQ(json["steps"], 5);
  EXPECT_NEAR(json["attention"]["coverage_mean"], sum / static_cast<double>(trace.sets.size()), 1e-9);
  EXPECT_NEAR(json["attention"]["coverage_min"], least, 1e-9);
  std::int64_t read = 0;
  for (const Json& step : trace.steps) read += step["bytes_read"].get<std::int64_t>();
  EXPECT_EQ(json["attention"]["kv_bytes_read"], read);

  EXPECT_TRUE(json["attention"]["unit_jaccard"].is_null()) << "tidal has no index";
  EXPECT_TRUE(json["attention"]["unit_window_hit"].is_null());

  // A row for each KV head, from the same sets.
  ASSERT_EQ(json["heads"].size() * 5, trace.sets.size());
  for (const Json& head : json["heads"]) {
    double of_head = 0, tokens = 0;
    int sparse = 0;
    for (const Json& line : trace.sets) {
      if (line["layer"] != head["layer"] || line["kv_head"] != head["kv_head"]) continue;
      of_head += line["coverage"].get<double>() / 5;
      if (line["tokens"].is_null()) continue;
      ++sparse;
      tokens += static_cast<double>(line["tokens"].size());
    }
    EXPECT_EQ(head["sparse_steps"], sparse);
    EXPECT_NEAR(head["coverage_mean"], of_head, 1e-9);
    EXPECT_EQ(head["tokens"].is_null(), sparse == 0);
    EXPECT_EQ(head["set_jaccard"].is_null(), sparse == 0);
    if (sparse > 0) {
      EXPECT_NEAR(head["tokens"], tokens / sparse, 1e-9);
      EXPECT_LE(head["set_jaccard"], head["set_window_hit"]);
    }
  }

  // The prompt is what the steps leave of the text.
  const Json whole = run_for_json(words);
  EXPECT_GT(whole["prompt_tokens"], 80);
  EXPECT_EQ(trace_lines(path).tokens.size(), whole["prompt_tokens"].get<std::size_t>() + 5);
}

TEST(Trace, EvalSetsSaysHowStableTheUnitsOfAnIndexAre) {
  const auto text = scratch("text.txt");
  write_file(text, prose(12));
  const auto words = [&](const std::string& policy) {
    return std::vector<std::string>{
        "eval", "sets",   "-m",   model(),         "-f", text, "-t", "2", "--prompt", "80", "--steps",
        "5",    "--attn", policy, "--attn-budget", "48"};
  };
  const Json attention = run_for_json(words("quest"))["attention"];
  const double jaccard = attention["unit_jaccard"], hit = attention["unit_window_hit"];
  EXPECT_GT(jaccard, 0);
  EXPECT_LE(jaccard, hit);
  EXPECT_LE(hit, 1);
  const std::string line = fmt::format(
      "units of the index: Jaccard overlap with the step before {:.4f}, hit rate of the 32 steps before {:.4f}\n",
      jaccard, hit);
  EXPECT_NE(run_program(words("quest")).out.find(line), std::string::npos);
  EXPECT_EQ(run_program(words("tidal")).out.find("units of the index"), std::string::npos);
}

TEST(Trace, InspectSumsItUp) {
  const auto path = traced_sets(prose(12), {"--attn", "tidal", "--attn-budget", "16", "--steps", "5"});
  const TraceLines trace = trace_lines(path);
  const Outcome outcome = run_program({"inspect", path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  double read = 0, context = 0, coverage = 0, layer_read = 0, layer_context = 0;
  for (const Json& line : trace.sets) {
    const double position = line["position"];
    const double tokens = line["tokens"].is_null() ? position + 1 : static_cast<double>(line["tokens"].size());
    read += tokens;
    context += position + 1;
    coverage += line["coverage"].get<double>();
    if (line["layer"] == 3) layer_read += tokens, layer_context += position + 1;
  }
  const auto number = [](const char* format, double value) {
    char text[64];
    std::snprintf(text, sizeof text, format, value);
    return std::string(text);
  };
  const auto has = [&](const std::string& part) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << "no '" << part << "' in\n" << outcome.out;
  };
  has("of 'glimpse eval sets', policy tidal, budget 16");
  has("5 decoded: ");
  has(number("read %.2f %% of the bytes of dense attention", 100 * read / context));
  has(number("mean %.4f", coverage / static_cast<double>(trace.sets.size())));
  has("    3  R    " + number("%9.2f %%", 100 * layer_read / layer_context).substr(1));
  const auto run = scratch("run.jsonl");
  EXPECT_EQ(run_program(run_words({"-p", "the river", "-n", "3", "--trace", run.string()})).code, 0);
  EXPECT_NE(run_program({"inspect", run}).out.find("'glimpse eval sets' computes it"), std::string::npos);
  EXPECT_EQ(run_program(run_words({"-p", "the river", "-n", "1", "--trace", run.string()})).code, 0);
  EXPECT_NE(run_program({"inspect", run}).out.find("none decoded"), std::string::npos);
}

TEST(Trace, EveryReportGivesTheSameShareOfBytes) {
  const auto path = scratch("trace.jsonl");
  const std::vector<std::string> words =
      run_words({"-p", prose(12), "-n", "6", "--attn", "quest", "--attn-budget", "48", "--trace", path.string()});
  const Outcome run = run_program(words);
  ASSERT_EQ(run.code, 0) << run.err;
  double read = 0, dense = 0, index = 0, tokens = 0, context = 0;
  const TraceLines trace = trace_lines(path);
  for (const Json& step : trace.steps) {
    read += step["bytes_read"].get<double>();
    dense += step["dense_bytes"].get<double>();
    index += step["index_bytes"].get<double>();
  }
  for (const Json& line : trace.sets) {
    const double position = line["position"];
    tokens += line["tokens"].is_null() ? position + 1 : static_cast<double>(line["tokens"].size());
    context += position + 1;
  }
  ASSERT_GT(index, 0);
  ASSERT_GT(read / dense, tokens / context + 0.01) << "what indices cost is counted";
  char share[64];
  std::snprintf(share, sizeof share, "read %.2f %% of the bytes of dense attention", 100 * read / dense);
  EXPECT_NE(run.err.find(share), std::string::npos) << "no '" << share << "' in\n" << run.err;
  const Outcome inspected = run_program({"inspect", path});
  EXPECT_NE(inspected.out.find(share), std::string::npos) << "no '" << share << "' in\n" << inspected.out;
  const Json json = run_for_json(words);
  EXPECT_DOUBLE_EQ(json["attention"]["kept_ratio"].get<double>(), read / dense);
  EXPECT_EQ(json["attention"]["dense_bytes"].get<double>(), dense);
}

TEST(Trace, AuditedStepsHaveTheMassOfEveryHead) {
  const auto path = scratch("trace.jsonl"), page = scratch("page.html");
  const Json json = run_for_json(run_words({"-p", prose(12), "-n", "10", "--attn", "tidal", "--attn-budget", "32",
                                            "--attn-audit", "4", "--trace", path.string()}));
  const Json audit = json["attention"]["audit"];
  double sum = 0, least = 1;
  int known = 0;
  for (const Json& line : trace_lines(path).sets) {
    EXPECT_EQ(line["coverage"].is_null(), line["step"].get<int>() % 4 != 0) << line;
    if (line["coverage"].is_null()) continue;
    const double coverage = line["coverage"];
    EXPECT_EQ(coverage == 1, line["tokens"].is_null()) << line;
    sum += coverage;
    least = std::min(least, coverage);
    ++known;
  }
  ASSERT_EQ(known, 3 * kLayers * kHeads);
  EXPECT_NEAR(audit["coverage_mean"], sum / known, 1e-9);
  EXPECT_NEAR(audit["coverage_min"], least, 1e-9);
  const Outcome inspected = run_program({"inspect", path, "--html", page});
  char text[64];
  std::snprintf(text, sizeof text, "mean %.4f, least %.4f", sum / known, least);
  EXPECT_NE(inspected.out.find(text), std::string::npos) << inspected.out;
  const std::string html = read_file(page);
  int with = 0;
  const Trace read = read_trace(path);
  for (const TraceStep& step : read.steps) with += step.heads.front().coverage.has_value();
  EXPECT_EQ(with, 3);
  EXPECT_EQ(std::string_view(html).find("\"coverage\":[") != std::string_view::npos, true);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(Trace, ABadOneIsRefusedInOneLine) {
  const auto good = traced_sets(prose(12), {"--attn", "tidal", "--attn-budget", "16", "--steps", "3"});
  const std::string text = read_file(good);
  const auto bad = scratch("bad.jsonl"), page = scratch("page.html");
  write_file(page, "old");
  const auto refused = [&](const std::string& what, const std::string& part) {
    write_file(bad, what);
    expect_refused({"inspect", bad, "--html", page}, part);
  };
  const std::size_t last = text.rfind('\n', text.size() - 2) + 1;
  refused(text.substr(0, last), "ends early");
  refused(text.substr(0, text.size() / 2), "line ");
  refused(text.substr(0, text.find("{\"step\"")), "ends early");
  refused(text.substr(text.find('\n') + 1), "");
  refused(text.substr(text.find("{\"step\"")), "without a header");
  refused(text + "{\"kind\":\"end\",\"steps\":3}\n", "follows the end");
  refused(text + "none\n", "not a JSON object");
  refused(replaced(text, "{\"step\":0", "{\"step\":1"), "'step' is not 0");
  refused(replaced(text, "\"kv_head\":1", "\"kv_head\":0"), "'kv_head' is not 1");
  refused(replaced(text, "\"tokens\":[", "\"tokens\":[-1,"), "ascending positions");
  refused(replaced(text, "\"tokens\":[", "\"tokens\":[999999999999,"), "ascending positions");
  refused(replaced(text, "\"tokens\":[", "\"tokens\":[\"a\","), "ascending positions");
  refused(replaced(text, "\"role\":\"reuse\"", "\"role\":\"read\""), "unknown role 'read'");
  refused(replaced(text, "\"coverage\":1.0", "\"coverage\":1.5"), "'coverage'");
  refused(replaced(text, "\"coverage\":1.0", "\"coverage\":\"all\""), "'coverage'");
  refused(replaced(text, "\"layers\":4", "\"layers\":5"), "of 10 sets");
  refused(replaced(text, "\"layers\":4", "\"layers\":0"), "'layers'");
  refused(replaced(text, "\"prompt_tokens\":", "\"prompt_tokens\":18446744073709551615,\"x\":"), "'prompt_tokens'");
  refused(replaced(text, "\"version\":1", "\"version\":2"), "version");
  refused(replaced(text, "\"kind\":\"token\"", "\"kind\":\"word\""), "unknown kind 'word'");
  refused(replaced(text, "\"position\":0", "\"position\":1"), "position is not 0");
  refused(replaced(text, "\"bytes_read\":", "\"bytes_read\":-"), "'bytes_read'");
  EXPECT_EQ(read_file(page), "old") << "a bad trace empties no page";

  expect_refused({"inspect", good, "--html", "/nonexistent/page.html"}, "cannot write '/nonexistent/page.html'");
  expect_refused({"inspect", good, "--html", "/dev/full"}, "No space left");
  expect_refused({"inspect", model(), "--html", page}, "is no trace");
  expect_refused({"inspect", "/nonexistent", "--html", page}, "/nonexistent");
}

TEST(Trace, DamageNeverDoesMoreThanBeRefused) {
  const auto good = traced_sets(prose(6), {"--attn", "tidal", "--attn-budget", "16", "--steps", "2"});
  const std::string text = read_file(good);
  const auto bad = scratch("bad.jsonl");
  std::mt19937 random(5);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string damaged = text;
    for (std::uint32_t flips = 1 + random() % 3; flips > 0; --flips) {
      damaged[random() % damaged.size()] = "0123456789-{}[],:\"\n\\x\xff"[random() % 22];
    }
    if (i % 3 == 0) damaged.resize(random() % damaged.size());
    write_file(bad, damaged);
    try {
      const Trace trace = read_trace(bad);
      EXPECT_EQ(trace.steps.size(), 2u);
    } catch (const UserError& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()).find("bad.jsonl"), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(refused, 150);
}

TEST(Trace, EvalSetsRefusesWhatDoesNotFit) {
  const auto text = scratch("text.txt");
  write_file(text, prose(3));
  const auto refused = [&](const std::vector<std::string>& more, const std::string& part) {
    std::vector<std::string> words{"eval", "sets", "-m", model(), "-f", text};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(words, part);
  };
  refused({"--steps", "4000"}, "--steps 4000");
  refused({"--prompt", "4000", "--steps", "2"}, "--prompt 4000");
  refused({"--prompt", "20", "--steps", "5", "-c", "24"}, "the context holds 24");
  refused({"--prompt", "0"}, "--prompt");
  refused({"--steps", "2", "-o", "/nonexistent/trace"}, "/nonexistent/trace");
  refused({"--steps", "2", "--attn", "tidl"}, "did you mean 'tidal'?");
  expect_refused({"eval", "sets", "-m", model()}, "-f FILE");
}

}  // namespace
}  // namespace glimpse::cli
