#include "glimpse/cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <random>

#include "glimpse/base/device_name.h"
#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/machine.h"
#include "glimpse/cli/setup.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::cli {

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

std::optional<Output> open_output(const Arguments& arguments) {
  if (arguments.output.empty()) return std::nullopt;
  return std::optional<Output>(std::in_place, std::filesystem::path(arguments.output));
}

void write_table(std::optional<Output>& file, const std::string& text) {
  if (!file) return print(text);
  file->write(text);
  file->require_ok();
}

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
  header.model = arguments.shape.empty() ? arguments.model : arguments.shape;
  header.kv_type = arguments.kv_type;
  header.instruction_set = kernels::instruction_set();
  header.threads = threads;
  const DeviceName on = parse_device(arguments.device);
  for (const kernels::cuda::Device& device : kernels::cuda::devices()) {
    if (on.kind != DeviceName::Kind::cuda || device.number != on.number) continue;
    header.cpu = device.name;
    header.cores = device.processors;
    header.instruction_set = fmt::format("sm{}", device.capability);
  }
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

int end_bench(const InterruptGuard& interrupt) {
  if (!interrupt.requested()) return kExitOk;
  print_note("interrupted: the rows are those that were complete");
  return kExitInterrupted;
}

}  // namespace glimpse::cli
