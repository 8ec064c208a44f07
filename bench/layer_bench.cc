// layer_bench: attention alone, for every method and each kind of layer it has, on made-up keys and values: what
// selecting and attending take beside what their bytes need; and LycheeDecode's mixed heads in four arrangements.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>

#include "bench/bench_report.h"
#include "bench/head_order_cases.h"
#include "bench/layer_cases.h"
#include "glimpse/base/error.h"

namespace glimpse::bench {
namespace {

struct Options {
  std::vector<std::string> methods{"all", "quest/score=meanstd", "shadowkv/rank=0"}, budgets{"512"};
  std::vector<std::string> shapes{"3x3x64"};
  std::vector<std::int64_t> tokens{8192, 16384, 32768};
  std::string kv = "bf16", json;
  int layers = 12, threads = 2, repeats = 25;
  bool head_order = false;
};

/// KV heads x query heads of each x head dimension.
plan::ModelShape parse_shape(const std::string& text, int layers, std::int64_t tokens) {
  int values[3] = {};
  const char* from = text.data();
  const char* const last = text.data() + text.size();
  for (int i = 0; i < 3; ++i) {
    const auto [end, error] = std::from_chars(from, last, values[i]);
    const bool ends = i == 2 ? end == last : end != last && *end == 'x';
    if (error != std::errc() || values[i] < 1 || !ends) {
      throw UserError(
          fmt::format("--shapes '{}': give KV heads, query heads of each and head dimension, as 3x3x64", text));
    }
    from = end + 1;
  }
  if (values[1] > 16) throw UserError(fmt::format("--shapes '{}': a group has at most 16 query heads", text));
  if (values[2] % 16 != 0 || values[2] > 256) {
    throw UserError(fmt::format("--shapes '{}': head dimensions come in sixteens, 256 at most", text));
  }
  return {"llama", "", layers, values[0] * values[1], values[0], values[2], static_cast<int>(tokens) + 1024};
}

Json json_of(const LayerRow& row, Json json) {
  const auto times = [&](const std::string& what, const Spread& seconds) {
    json[what + "_us"] = seconds.median * 1e6;
    json[what + "_least_us"] = seconds.least * 1e6;
  };
  json.update({{"method", row.method}, {"budget", row.budget}, {"kind", row.kind}, {"layers", row.layers}});
  if (row.bytes.select > 0 || row.select_s.median > 0) {
    json["select_bytes"] = row.bytes.select;
    times("select", row.select_s);
    json["select_needed_us"] = row.select_need_s.median * 1e6;
    times("select_over_head", row.select_over_s);
    if (row.bytes.select > 0) {
      json.update({{"select_ratio", row.select_ratio.median}, {"select_ratio_of_least", row.select_ratio.least}});
    }
    json["index"] = row.index;
  }
  json["attend_bytes"] = row.bytes.attend;
  times("attend", row.attend_s);
  json.update({{"attend_needed_us", row.attend_need_s.median * 1e6},
               {"over_dense_us", row.over_dense_s.median * 1e6},
               {"fraction", row.fraction.median},
               {"fraction_of_least", row.fraction.least}});
  if (row.best_mass > 0) json.update({{"mass", row.mass}, {"best_mass", row.best_mass}});
  return json;
}

void print_layers(const std::string& shape, std::int64_t tokens, const std::vector<LayerRow>& rows) {
  fmt::print("\n{} at {} tokens; medians, in brackets what the least times give\n\n", shape, tokens);
  fmt::print(
      "| method | layer | select MB | us | needs | ratio | over a head | attend MB | us | needs | of streamed |\n");
  fmt::print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const LayerRow& row : rows) {
    std::string select = " | | | | |";
    if (row.select_s.median > 0) {
      select = fmt::format(" {:.3f} | {:.1f} | {:.1f} | {:.2f} ({:.2f}) | {:.1f} ({:.1f}) |", row.bytes.select / 1e6,
                           row.select_s.median * 1e6, row.select_need_s.median * 1e6, row.select_ratio.median,
                           row.select_ratio.least, row.select_over_s.median * 1e6, row.select_over_s.least * 1e6);
    }
    fmt::print("| {} {} | {} |{} {:.3f} | {:.1f} | {:.1f} | {:.2f} |\n", row.method, row.budget, row.kind, select,
               row.bytes.attend / 1e6, row.attend_s.median * 1e6, row.attend_need_s.median * 1e6, row.fraction.median);
  }
  std::fflush(stdout);
}

void run_head_orders(Report& report, const plan::ModelShape& shape, KvType type, const Json& place,
                     const Options& options) {
  const auto tokens = place["tokens"].get<std::int64_t>();
  if (tokens <= evaluate::kGatheredRows || shape.kv_heads < 2) return;
  std::vector<int> retrieval{1};
  if (shape.kv_heads >= 4) retrieval.push_back(shape.kv_heads / 2);
  const auto rows = run_head_order_cases({{type, shape.head_dim}, shape.kv_heads, shape.group()},
                                         static_cast<int>(tokens), retrieval, options.threads, options.repeats);
  fmt::print("\n| heads at {} tokens | order | items | us | of streamed | to pooled, unsorted |\n", tokens);
  fmt::print("| --- | --- | --- | ---: | ---: | ---: |\n");
  for (const HeadOrderRow& row : rows) {
    const char* const order = row.by_kind ? "by kind" : "unsorted";
    const char* const items = row.pooled ? "equal splits" : "whole heads";
    fmt::print("| {}, {} of {} read all | {} | {} | {:.1f} | {:.2f} | {:.2f} |\n", row.cache, row.retrieval, row.heads,
               order, items, row.layer_s.median * 1e6, row.fraction.median, row.over_unsorted.median);
    Json json = place;
    json.update({{"retrieval", row.retrieval},
                 {"heads", row.heads},
                 {"order", order},
                 {"items", items},
                 {"bytes", row.bytes},
                 {"median_us", row.layer_s.median * 1e6},
                 {"least_us", row.layer_s.least * 1e6},
                 {"fraction", row.fraction.median},
                 {"to_pooled_unsorted", row.over_unsorted.median}});
    report.add(json);
  }
  std::fflush(stdout);
}

void run(const Options& options, const std::string& command) {
  require_range("--layers", options.layers, 4, 256);
  require_range("--threads", options.threads, 1, 256);
  require_range("--repeats", options.repeats, 1, 1000);
  for (const std::int64_t tokens : options.tokens) require_range("--tokens", tokens, 64, 1 << 20);
  const KvType type = parse_kv_type(options.kv);
  for (const std::string& shape : options.shapes) parse_shape(shape, options.layers, options.tokens.front());

  Report report(options.json, command, options.threads);
  report.set("kv_type", options.kv);
  report.set("layers", options.layers);
  report.set("repeats", options.repeats);
  const Progress progress(1);
  for (const std::string& name : options.shapes) {
    for (const std::int64_t tokens : options.tokens) {
      const plan::ModelShape shape = parse_shape(name, options.layers, tokens);
      const Json place{{"shape", name}, {"tokens", tokens}};
      if (options.head_order) {
        run_head_orders(report, shape, type, place, options);
      } else {
        std::vector<std::string> warnings;
        const std::vector<Arm> arms = make_arms(shape, {options.methods, options.budgets}, warnings);
        for (const Arm& arm : arms) {
          if (arm.refused.empty()) continue;
          Json json = place;
          json.update({{"method", arm.method}, {"budget", arm.budget}, {"refused", arm.refused}});
          report.add(json);
        }
        const auto rows = run_layer_cases({{shape, type, tokens, 1, 1, options.threads}, options.repeats}, arms,
                                          [&](const std::string& line) { progress.note(line); });
        for (const LayerRow& row : rows) report.add(json_of(row, place));
        print_layers(name, tokens, rows);
      }
      report.write();
    }
  }
}

}  // namespace
}  // namespace glimpse::bench

int main(int count, char** words) {
  glimpse::bench::Options options;
  CLI::App app("attention alone, for every method and each kind of layer, against the bytes it needs");
  app.add_option("--methods", options.methods, "NAME[/KEY=VALUE...] by commas, or all")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--budgets", options.budgets, "as --attn-budget, by commas")->delimiter(',')->capture_default_str();
  app.add_option("--shapes", options.shapes, "KV heads x query heads of each x head dimension, by commas")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--tokens", options.tokens, "tokens in the cache, by commas")->delimiter(',')->capture_default_str();
  app.add_option("--layers", options.layers, "of the model that plans are made for")->capture_default_str();
  app.add_option("--repeats", options.repeats, "steps that are measured, arms in turn")->capture_default_str();
  app.add_flag("--head-order", options.head_order,
               "instead: heads of two kinds in one layer, ordered by kind or not, in equal splits or whole");
  app.add_option("--kv", options.kv, "type of the cache")->capture_default_str();
  app.add_option("--threads", options.threads, "that attend together")->capture_default_str();
  app.add_option("--json", options.json, "the results, written after every length");
  const std::span<char*> all(words, static_cast<std::size_t>(count));
  return glimpse::bench::run_program(app, all,
                                     [&] { glimpse::bench::run(options, glimpse::bench::command_line(all)); });
}
