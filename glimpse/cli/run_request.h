// What `glimpse run` asks of the engine, from the command line: shared by the single answer and by `-i`. One thread.
#pragma once

#include <optional>
#include <string>

#include "glimpse/cli/arguments.h"
#include "glimpse/cli/report.h"
#include "glimpse/engine/engine.h"

namespace glimpse::cli {

/// Throws UserError for values that no sampler takes.
text::SamplingOptions sampling_options(const Arguments& arguments);

/// Throws UserError for texts of --stop that end nothing.
void check_stops(const Arguments& arguments);

/// All of a request but the prompt and callbacks. A plan that reads everything is run without correction, audits and
/// drafts.
engine::Request make_request(const Arguments& arguments, const plan::Plan& plan);

/// What --grammar, --grammar-file and --json-schema ask for. Throws UserError for what is none, and for two of them.
text::GrammarWish grammar_wish(const Arguments& arguments, const text::Tokenizer& tokenizer);

/// The texts of -f, each without the line end that editors leave, and those of -p, joined by empty lines. Throw
/// UserError for a file that cannot be read and for what is not UTF-8.
std::optional<std::string> document_text(const Arguments& arguments);
std::optional<std::string> question_text(const Arguments& arguments);

/// What is known of an answer before it is made.
RunReport report_for(const engine::Request& request);

/// glimpse run -i.
int interactive_command(const Arguments& arguments);

}  // namespace glimpse::cli
