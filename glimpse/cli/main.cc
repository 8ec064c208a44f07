// The glimpse binary: parse, run one command, turn what was thrown into one line and an exit code.
#include <fmt/format.h>

#include <csignal>
#include <exception>
#include <new>
#include <string>

#include "glimpse/base/error.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"

namespace {

using namespace glimpse;

int dispatch(cli::CommandBit command, const cli::Arguments& arguments) {
  cli::check_outputs(arguments);
  switch (command) {
    case cli::kRun:
      return cli::run_command(arguments);
    case cli::kPlan:
      return cli::plan_command(arguments);
    case cli::kInspect:
      return cli::inspect_command(arguments);
    case cli::kCalibrate:
      return cli::calibrate_command(arguments);
    case cli::kLogits:
      return cli::eval_logits_command(arguments);
    case cli::kPerplexity:
      return cli::eval_perplexity_command(arguments);
    case cli::kSets:
      return cli::eval_sets_command(arguments);
    case cli::kFidelity:
      return cli::eval_fidelity_command(arguments);
    case cli::kNeedle:
      return cli::eval_needle_command(arguments);
    case cli::kPasskey:
      return cli::eval_passkey_command(arguments);
    case cli::kRuler:
      return cli::eval_ruler_command(arguments);
    case cli::kCopy:
      return cli::eval_copy_command(arguments);
    case cli::kLongbench:
      return cli::eval_longbench_command(arguments);
    case cli::kScoreboard:
      return cli::eval_scoreboard_command(arguments);
    case cli::kBenchDecode:
      return cli::bench_decode_command(arguments);
    case cli::kBenchPrefill:
      return cli::bench_prefill_command(arguments);
    case cli::kBenchAttention:
      return cli::bench_attention_command(arguments);
    case cli::kServe:
      return cli::serve_command(arguments);
    case cli::kBenchServe:
      return cli::bench_serve_command(arguments);
  }
  check(false, "a command of the table");
  return cli::kExitInternalError;
}

}  // namespace

int main(int count, char** words) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that left is an error of write(), reported like a full disk
  std::signal(SIGXFSZ, SIG_IGN);  // and so is a file as large as this process may write
  cli::reserve_standard_files();
  try {
    const cli::Parsed parsed = cli::parse_arguments(count, words);
    if (!parsed.text) return dispatch(parsed.command, parsed.arguments);
    cli::print(*parsed.text);
    return cli::kExitOk;
  } catch (const UserError& error) {
    cli::print_error(error.what());
    return cli::kExitUserError;
  } catch (const std::bad_alloc&) {
    cli::print_error(
        "out of memory; a shorter context needs less, and a smaller --prefill-chunk where the command has one");
    return cli::kExitUserError;
  } catch (const std::exception& error) {
    cli::print_error(fmt::format("internal error: {}; please report it with the command line", error.what()));
    return cli::kExitInternalError;
  }
}
