// attention_bench [-o md|csv|json] [-t THREADS] [-r REPEATS] [-c TOKENS] [CASE ...]: the attention kernels against the
// bandwidth of this machine. CASE keeps the cases whose name contains it.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "bench/attention_cases.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"

int main(int argc, char** argv) {
  try {
    glimpse::bench::AttentionBenchOptions options;
    std::string format = "md";
    for (int i = 1; i < argc; ++i) {
      const std::string flag = argv[i];
      if (flag.empty() || flag[0] != '-') {
        options.only.push_back(flag);
        continue;
      }
      if (i + 1 == argc) throw glimpse::UserError("'" + flag + "' needs a value, or is unknown (-o, -t, -r, -c)");
      const std::string value = argv[++i];
      if (flag == "-o") {
        format = value;
      } else if (flag == "-t") {
        options.threads = std::atoi(value.c_str());
      } else if (flag == "-r") {
        options.repeats = std::atoi(value.c_str());
      } else if (flag == "-c") {
        options.tokens = std::atoi(value.c_str());
      } else {
        throw glimpse::UserError("unknown option '" + flag + "' (-o, -t, -r, -c)");
      }
    }
    glimpse::bench::attention_table({}, format);  // refuses an unknown format before measuring
    const auto rows = glimpse::bench::run_attention_cases(options);
    if (format == "md") std::printf("instruction set: %s\n\n", glimpse::kernels::instruction_set());
    std::fputs(glimpse::bench::attention_table(rows, format).c_str(), stdout);
    return 0;
  } catch (const glimpse::UserError& error) {
    std::fprintf(stderr, "attention_bench: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attention_bench: %s\n", error.what());
    return 70;
  }
}
