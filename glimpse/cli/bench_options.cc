// The options of `glimpse bench` alone.
#include <array>

#include "glimpse/cli/options.h"

namespace glimpse::cli {
namespace {

using A = Arguments;

constexpr std::uint32_t kBench = kBenchDecode | kBenchPrefill | kBenchServe | kBenchAttention;

constexpr double kMostTokens = 1 << 24;
constexpr double kMostSeed = 4294967295.0;

constexpr std::string_view kOutput = "Output", kMeasure = "Measurement";

const std::array kBenchOptions{
    Option{"--depth", "LIST", &A::depths, {}, "0,8192", kMeasure, "tokens in the cache before decoding", kBenchDecode},
    Option{"--length", "LIST", &A::depths, {}, "512,2048", kMeasure, "tokens of the prompt", kBenchPrefill},
    Option{"--depth", "LIST", &A::depths, {}, "8192,32768", kMeasure, "tokens in the cache", kBenchAttention},
    Option{"--arms",
           "LIST",
           &A::arms,
           {},
           "full,tidal:512",
           kMeasure,
           "methods to compare, NAME[:BUDGET][,KEY=VALUE...] each, as in full,tidal:512,reselect=13,quest:10%",
           kBenchDecode},
    Option{"-n,--predict,--n-predict",
           "N",
           &A::bench_tokens,
           {16, 65536},
           "40",
           kMeasure,
           "tokens to decode; the first 8 are not timed",
           kBenchDecode},
    Option{"-r,--repetitions",
           "N",
           &A::repetitions,
           {1, 10000},
           "5",
           kMeasure,
           "measurements of each arm",
           kBenchDecode | kBenchPrefill | kBenchAttention},
    Option{"--requests", "N", &A::requests, {1, 65536}, "8", kMeasure, "requests", kBenchServe, idle_beside_arrivals},
    Option{"--rate",
           "R",
           &A::rate,
           {},
           "1",
           kMeasure,
           "requests a second, the mean of a Poisson process; inf: all at once",
           kBenchServe,
           idle_beside_arrivals},
    Option{"--prompt-tokens",
           "RANGE",
           &A::prompt_tokens,
           {},
           "2000-6000",
           kMeasure,
           "tokens of a prompt, LEAST-MOST or one number",
           kBenchServe,
           idle_beside_arrivals},
    Option{"-n,--predict,--n-predict",
           "N",
           &A::bench_tokens,
           {1, 65536},
           "64",
           kMeasure,
           "tokens of an answer",
           kBenchServe,
           idle_beside_arrivals},
    Option{"--arms",
           "LIST",
           &A::arms,
           {},
           "full,tidal:512,quest:512,lychee-cluster:512",
           kMeasure,
           "methods of the requests, in turn, NAME[:BUDGET][,KEY=VALUE...] each",
           kBenchServe,
           idle_beside_arrivals},
    Option{"-s,--seed",
           "N",
           &A::seed,
           {0, kMostSeed},
           "1",
           kMeasure,
           "random seed of arrivals and lengths",
           kBenchServe,
           idle_beside_arrivals},
    Option{"--arrivals",
           "FILE",
           &A::arrivals,
           {},
           "",
           kMeasure,
           "a line for each request: {\"at\": 0.5, \"prompt_tokens\": 2000, \"tokens\": 64, \"attn\": \"tidal:512\"}",
           kBenchServe,
           idle_arrivals},
    Option{"--running", "N", &A::running, {1, 1024}, "8", kMeasure, "requests worked on at a time", kBenchServe},
    Option{"-r,--repetitions",
           "N",
           &A::repetitions,
           {1, 1000},
           "1",
           kMeasure,
           "runs through the service, and as many by hand, in turn",
           kBenchServe},
    Option{"--kv-heads", "N", &A::kv_heads, {1, 128}, "3", kMeasure, "KV heads", kBenchAttention},
    Option{"--group", "N", &A::group, {1, 256}, "3", kMeasure, "query heads per KV head", kBenchAttention},
    Option{
        "--head-dim", "N", &A::head_dim, {8, 256}, "64", kMeasure, "head dimension, a multiple of 8", kBenchAttention},
    Option{"--rows",
           "N",
           &A::rows,
           {1, kMostTokens},
           "2048",
           kMeasure,
           "rows that the gathered pass reads a head",
           kBenchAttention},
    Option{"--format", "FORMAT", &A::format, {}, "md", kOutput, "md, csv or json", kBench},
    Option{"-o,--output",
           "FILE",
           &A::output,
           {},
           "",
           kOutput,
           "the file to write the table to; standard output without it",
           kBench},
};

}  // namespace

std::span<const Option> bench_options() {
  return kBenchOptions;
}

}  // namespace glimpse::cli
