// The attention kernels against the bandwidth of this machine.
//
//   attention_bench [CASE ...] [--threads N] [--repeats 9] [--tokens 32768] [--json FILE]
//
// CASE keeps the cases whose name contains it: dense, gathered, verify, "few prompt", score, select, prefill, bf16, ...
#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/attention_cases.h"
#include "bench/bench_report.h"
#include "glimpse/base/error.h"
#include "glimpse/cli/machine.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::bench {
namespace {

void run(AttentionBenchOptions options, const std::string& json, const std::string& command) {
  require_range("--threads", options.threads, 0, 4096);
  if (options.threads == 0) options.threads = cli::cpu_cores();
  Report report(json, command, options.threads);
  report.set("tokens", options.tokens);
  report.set("repeats", options.repeats);
  const std::vector<evaluate::KernelRow> rows = run_attention_cases(options);
  if (rows.empty()) throw UserError("no case has such a name; without one, all are measured");
  std::printf("instruction set: %s\n\n%s", kernels::instruction_set(), attention_table(rows).c_str());
  for (const evaluate::KernelRow& row : rows) {
    report.add({{"case", row.name},
                {"bytes", row.bytes},
                {"median_us", row.median_s * 1e6},
                {"least_us", row.least_s * 1e6},
                {"most_us", row.most_s * 1e6},
                {"fraction", row.fraction},
                {"gflops", row.gflops}});
  }
  report.write();
}

}  // namespace
}  // namespace glimpse::bench

int main(int count, char** words) {
  glimpse::bench::AttentionBenchOptions options;
  options.threads = 0;
  std::string json;
  CLI::App app("the attention kernels against the bandwidth of this machine");
  app.add_option("cases", options.only, "only cases whose name contains one of these");
  app.add_option("--threads", options.threads, "0: one for each core that may be used")->capture_default_str();
  app.add_option("--repeats", options.repeats, "timings of each case")->capture_default_str();
  app.add_option("--tokens", options.tokens, "in the cache, of the cases of decoding")->capture_default_str();
  app.add_option("--json", json, "the results");
  const std::span<char*> all(words, static_cast<std::size_t>(count));
  return glimpse::bench::run_program(app, all,
                                     [&] { glimpse::bench::run(options, json, glimpse::bench::command_line(all)); });
}
