// The commands: each runs to its end and returns the exit code. They throw UserError. One thread.
#pragma once

#include "glimpse/cli/arguments.h"

namespace glimpse::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitUserError = 2;
inline constexpr int kExitInternalError = 70;  ///< EX_SOFTWARE
inline constexpr int kExitInterrupted = 130;   ///< what a shell reports for a program ended by Ctrl-C

int run_command(const Arguments& arguments);
int plan_command(const Arguments& arguments);
int inspect_command(const Arguments& arguments);
int calibrate_command(const Arguments& arguments);
int eval_logits_command(const Arguments& arguments);
int eval_perplexity_command(const Arguments& arguments);
int eval_sets_command(const Arguments& arguments);
int eval_fidelity_command(const Arguments& arguments);
int eval_needle_command(const Arguments& arguments);
int eval_passkey_command(const Arguments& arguments);
int eval_ruler_command(const Arguments& arguments);
int eval_copy_command(const Arguments& arguments);
int eval_longbench_command(const Arguments& arguments);
int eval_scoreboard_command(const Arguments& arguments);
int bench_decode_command(const Arguments& arguments);
int bench_prefill_command(const Arguments& arguments);
int bench_attention_command(const Arguments& arguments);
int serve_command(const Arguments& arguments);
int bench_serve_command(const Arguments& arguments);

}  // namespace glimpse::cli
