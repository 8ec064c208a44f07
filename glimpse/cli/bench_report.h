// What the commands of `glimpse bench` share: the text that they run on, tables, and where those go. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "glimpse/cli/arguments.h"
#include "glimpse/cli/json_output.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::cli {

/// Throws UserError for an unknown --format, and for an -o that is one.
void check_format(const Arguments& arguments);

/// The table goes to -o FILE or to standard output. Opened before the work, so that it is not lost.
std::optional<Output> open_output(const Arguments& arguments);
void write_table(std::optional<Output>& file, const std::string& text);

/// The text of -f as often as it takes, or random tokens, the same each time.
std::vector<text::Token> tokens_of(const Arguments& arguments, const text::Tokenizer& tokenizer, std::int64_t count);

BenchHeader header_of(const Arguments& arguments, int threads);
/// Rows of cells, the first the head, as Markdown or CSV.
std::string table(const std::vector<std::vector<std::string>>& rows, const std::string& format);
/// The command and the machine, above a table.
std::string title(const BenchHeader& header, const std::string& format);

/// The exit code; says so when the run was interrupted.
int end_bench(const InterruptGuard& interrupt);

}  // namespace glimpse::cli
