// glimpse bench: our own engine against itself. bench/ adds other programs as arms.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <random>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/base/suggest.h"
#include "glimpse/cli/arm.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/idle.h"
#include "glimpse/cli/json_output.h"
#include "glimpse/cli/machine.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/evaluate/attention_speed.h"
#include "glimpse/evaluate/speed.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::cli {
namespace {

constexpr std::int64_t kMostDepth = 1 << 24;

std::vector<std::int64_t> parse_lengths(std::string_view flag, std::string_view list, std::int64_t least) {
  std::vector<std::int64_t> lengths;
  for (const std::string& part : split_commas(list)) {
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || value < least || value > kMostDepth) {
      throw UserError(fmt::format("{} '{}': give whole numbers from {} to {} with commas between", flag, excerpt(list),
                                  least, kMostDepth));
    }
    lengths.push_back(value);
  }
  std::sort(lengths.begin(), lengths.end());
  return lengths;
}

void check_format(const Arguments& arguments) {
  constexpr std::array<std::string_view, 3> kFormats{"md", "csv", "json"};
  const auto known = [&](const std::string& word) {
    return std::find(kFormats.begin(), kFormats.end(), word) != kFormats.end();
  };
  if (!known(arguments.format)) throw UserError(unknown_name("format", arguments.format, kFormats));
  if (known(arguments.output)) {  // as llama-bench has it
    throw UserError(fmt::format("-o {0}: -o names the file to write; give --format {0}, or -o ./{0} for such a file",
                                arguments.output));
  }
}

/// The table goes to -o FILE or to standard output. Opened before the work, so that it is not lost.
std::optional<Output> open_output(const Arguments& arguments) {
  if (arguments.output.empty()) return std::nullopt;
  return std::optional<Output>(std::in_place, std::filesystem::path(arguments.output));
}

void write_table(std::optional<Output>& file, const std::string& text) {
  if (!file) return print(text);
  file->write(text);
  file->require_ok();
}

/// The text of -f as often as it takes, or random tokens, the same each time.
std::vector<text::Token> tokens_of(const Arguments& arguments, const text::Tokenizer& tokenizer, std::int64_t count) {
  std::vector<text::Token> tokens;
  if (const std::optional<std::string> file = text_file(arguments)) {
    tokens = tokenizer.encode(read_text(*file), text::Special::as_text, true);
    if (tokens.empty()) throw UserError(fmt::format("'{}' has no text", *file));
    const std::size_t length = tokens.size();
    while (static_cast<std::int64_t>(tokens.size()) < count) tokens.push_back(tokens[tokens.size() - length]);
  } else {
    std::mt19937 random(1);
    while (static_cast<std::int64_t>(tokens.size()) < count) {
      const auto token = static_cast<text::Token>(random() % static_cast<unsigned>(tokenizer.size()));
      if (!tokenizer.is_control(token)) tokens.push_back(token);
    }
  }
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

BenchHeader header_of(const Arguments& arguments, int threads) {
  BenchHeader header;
  header.commit = commit();
  header.cpu = cpu_name();
  header.cores = cpu_cores();
  header.command = fmt::format("{}", fmt::join(arguments.words, " "));
  header.model = arguments.model;
  header.kv_type = arguments.kv_type;
  header.instruction_set = kernels::instruction_set();
  header.threads = threads;
  return header;
}

std::string table(const std::vector<std::vector<std::string>>& rows, const std::string& format) {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (format == "csv") {
      std::vector<std::string> cells = rows[i];
      for (std::string& cell : cells) {
        if (cell.find(',') != std::string::npos) cell = fmt::format("\"{}\"", cell);  // a budget such as 10%,min=128
      }
      text += fmt::format("{}\n", fmt::join(cells, ","));
      continue;
    }
    text += fmt::format("| {} |\n", fmt::join(rows[i], " | "));
    if (i == 0) {
      for (std::size_t column = 0; column < rows[i].size(); ++column) text += column == 0 ? "| ---" : " | ---:";
      text += " |\n";
    }
  }
  return text;
}

std::string title(const BenchHeader& header, const std::string& format) {
  const std::string facts = fmt::format("{} cores, {}, {}; {} threads, {} cache; commit {}", header.cores, header.cpu,
                                        header.instruction_set, header.threads, header.kv_type, header.commit);
  if (format == "csv") return fmt::format("# {}\n# {}\n", header.command, facts);
  return fmt::format("`{}`\n\n{}\n\n", header.command, facts);
}

std::string speed_text(const BenchHeader& header, std::string_view benchmark, std::span<const evaluate::SpeedRow> rows,
                       const std::string& format) {
  if (format == "json") return bench_json(header, benchmark, rows) + "\n";
  const bool decode = benchmark == "decode";
  std::vector<std::vector<std::string>> cells;
  if (decode) {
    cells.push_back({"arm", "depth", "ms/token", "least", "most", "tokens/s", "read %", "MB/token"});
  } else {
    cells.push_back({"arm", "tokens", "s", "least", "most", "tokens/s"});
  }
  const double unit = decode ? 1e3 : 1;
  for (const evaluate::SpeedRow& row : rows) {
    cells.push_back({row.arm, fmt::format("{}", row.depth), fmt::format("{:.3f}", unit * row.median_s),
                     fmt::format("{:.3f}", unit * row.least_s), fmt::format("{:.3f}", unit * row.most_s),
                     fmt::format("{:.1f}", row.tokens_per_s)});
    if (!decode) continue;
    cells.back().push_back(row.kept_ratio ? fmt::format("{:.2f}", 100 * *row.kept_ratio) : "");
    cells.back().push_back(row.bytes_per_token ? fmt::format("{:.3f}", *row.bytes_per_token / 1e6) : "");
  }
  return title(header, format) + table(cells, format);
}

std::string attention_text(const BenchHeader& header, const evaluate::AttentionSpeed& speed,
                           const std::string& format) {
  if (format == "json") return attention_json(header, speed.read_bandwidth, speed.rows) + "\n";
  std::vector<std::vector<std::string>> cells{
      {"kernel", "depth", "ms", "least", "most", "MB", "GB/s", "of read bandwidth", "error"}};
  for (const evaluate::AttentionRow& row : speed.rows) {
    cells.push_back({row.kernel, fmt::format("{}", row.depth), fmt::format("{:.3f}", 1e3 * row.median_s),
                     fmt::format("{:.3f}", 1e3 * row.least_s), fmt::format("{:.3f}", 1e3 * row.most_s),
                     fmt::format("{:.3f}", row.bytes / 1e6), fmt::format("{:.2f}", row.bytes_per_s / 1e9),
                     fmt::format("{:.2f}", row.fraction), fmt::format("{:.1e}", row.error)});
  }
  const std::string bandwidth = fmt::format("read bandwidth {:.2f} GB/s", speed.read_bandwidth / 1e9);
  return title(header, format) + (format == "csv" ? "# " + bandwidth + "\n" : bandwidth + "\n\n") +
         table(cells, format);
}

int end(const InterruptGuard& interrupt) {
  if (!interrupt.requested()) return kExitOk;
  print_note("interrupted: the rows are those that were complete");
  return kExitInterrupted;
}

}  // namespace

int bench_decode_command(const Arguments& arguments) {
  set_log(arguments);
  check_format(arguments);
  evaluate::DecodeOptions how;
  how.depths = parse_lengths("--depth", arguments.depths, 0);
  how.tokens = arguments.bench_tokens;
  how.repetitions = static_cast<int>(arguments.repetitions);
  const std::vector<Arm> arms = parse_arms(arguments.arms);
  if (arguments.profile) read_profile(arguments);
  engine::EngineOptions options = engine_options(arguments);
  const std::int64_t needed = how.depths.back() + how.tokens;
  if (options.context == 0) options.context = needed;
  if (options.context < needed) {
    throw UserError(fmt::format("-c {}: the greatest depth and {} tokens need {}; give that or leave -c out",
                                options.context, how.tokens, needed));
  }
  options.sequences = 2;
  engine::Engine engine(options);
  std::vector<std::pair<std::string, plan::Plan>> plans;
  std::vector<plan::Plan> made = make_arm_plans(arguments, arms, engine.shape());
  refuse_idle(arguments, made);
  for (std::size_t i = 0; i < arms.size(); ++i) plans.emplace_back(arms[i].written, std::move(made[i]));
  const std::vector<text::Token> tokens = tokens_of(arguments, engine.tokenizer(), needed);
  std::optional<Output> file = open_output(arguments);

  ProgressBar progress("bench decode", "measurements", !arguments.quiet);
  const InterruptGuard interrupt;
  how.on_measurement = [&](std::int64_t done, std::int64_t total) {
    progress.update(done, total);
    return !interrupt.requested();
  };
  const auto rows = evaluate::measure_decode(evaluate::engine_arms(engine, std::move(plans)), tokens, how);
  progress.clear();
  write_table(file, speed_text(header_of(arguments, engine.threads()), "decode", rows, arguments.format));
  return end(interrupt);
}

int bench_prefill_command(const Arguments& arguments) {
  set_log(arguments);
  check_format(arguments);
  evaluate::PrefillOptions how;
  how.lengths = parse_lengths("--length", arguments.depths, 1);
  how.repetitions = static_cast<int>(arguments.repetitions);
  engine::EngineOptions options = engine_options(arguments);
  if (options.context == 0) options.context = how.lengths.back();
  if (options.context < how.lengths.back()) {
    throw UserError(fmt::format("-c {}: the longest prompt has {} tokens", options.context, how.lengths.back()));
  }
  engine::Engine engine(options);
  const std::vector<text::Token> tokens = tokens_of(arguments, engine.tokenizer(), how.lengths.back());
  std::optional<Output> file = open_output(arguments);

  ProgressBar progress("bench prefill", "measurements", !arguments.quiet);
  const InterruptGuard interrupt;
  how.on_measurement = [&](std::int64_t done, std::int64_t total) {
    progress.update(done, total);
    return !interrupt.requested();
  };
  const auto arms = evaluate::engine_arms(engine, {{"dense", plan::dense_plan(engine.shape())}});
  const auto rows = evaluate::measure_prefill(arms, tokens, how);
  progress.clear();
  write_table(file, speed_text(header_of(arguments, engine.threads()), "prefill", rows, arguments.format));
  return end(interrupt);
}

int bench_attention_command(const Arguments& arguments) {
  check_format(arguments);
  evaluate::AttentionOptions how;
  how.depths = parse_lengths("--depth", arguments.depths, 1);
  how.kv_heads = static_cast<int>(arguments.kv_heads);
  how.group = static_cast<int>(arguments.group);
  how.head_dim = static_cast<int>(arguments.head_dim);
  how.kv_type = parse_kv_type(arguments.kv_type);
  how.rows = arguments.rows;
  how.threads = arguments.threads > 0 ? static_cast<int>(arguments.threads) : cpu_cores();
  how.repetitions = static_cast<int>(arguments.repetitions);
  std::optional<Output> file = open_output(arguments);
  ProgressBar progress("bench attention", "measurements", true);
  const InterruptGuard interrupt;
  how.on_measurement = [&](std::int64_t done, std::int64_t total) {
    progress.update(done, total);
    return !interrupt.requested();
  };
  const evaluate::AttentionSpeed speed = evaluate::measure_attention(how);
  progress.clear();
  write_table(file, attention_text(header_of(arguments, how.threads), speed, arguments.format));
  return end(interrupt);
}

}  // namespace glimpse::cli
