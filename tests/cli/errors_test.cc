// Every wrong command line ends in one clear line and exit code 2.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <cstring>
#include <utility>

#include "glimpse/cli/document.h"
#include "tests/cli/process.h"
#include "tests/support/test_names.h"

namespace glimpse::cli {
namespace {

TEST(Errors, Commands) {
  expect_refused({}, "run, plan, inspect");
  expect_refused({"rum"}, "did you mean 'run'?");
  expect_refused({"frobnicate", "-m", "x"}, "unknown command 'frobnicate'");
  expect_refused({"eval"}, "logits, perplexity");
  expect_refused({"eval", "perplexty"}, "did you mean 'perplexity'?");
  expect_refused({"bench", "decoed"}, "did you mean 'decode'?");
  expect_refused({"pull", "x"}, "'glimpse pull' is not in this version yet");
  expect_refused({"bench", "select"}, "'glimpse bench select' is not in this version yet");
}

TEST(Errors, Options) {
  expect_refused({"run", "--tmp", "0.5"}, "did you mean '--temp'?");
  expect_refused({"run", "--atn=tidal"}, "did you mean '--attn'?");
  expect_refused({"run", "stray"}, "'stray' is not an option of 'glimpse run'");
  expect_refused({"run", "-m"}, "--model");
  expect_refused({"plan", "--temp", "1"}, "unknown option '--temp'");
}

TEST(Errors, WhatDoesNotGoTogether) {
  expect_refused(run_words({"-i", "-f", "-"}), "standard input");
  expect_refused(run_words({"-i", "--trace", "t"}), "--trace");
  expect_refused(run_words({"-p", "x", "--stop", "a", "--trace", "t"}), "--stop and --trace");
  expect_refused(run_words({"-p", "x", "--stop", ""}), "the text of --stop is empty");
  expect_refused(run_words({"-p", "x", "--grammar", "root ::= ("}), "cannot be read");
  expect_refused(run_words({"-p", "x", "--grammar", "root ::= \"x\"", "--json-schema", "{}"}), "give one");
  expect_refused(run_words({"-p", "x", "--json-schema", "{"}), "cannot be translated");
  expect_refused(run_words({"-p", "x", "-n", "4", "--min-tokens", "5"}), "at least 5 tokens and at most 4");
  expect_refused(run_words({"-p", "x", "-r", "User:"}), "--stop TEXT");
  for (const char* device : {"tpu", "", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999"}) {
    expect_refused(run_words({"-p", "x", "--device", device}), std::string("unknown device '") + device + "'");
  }
  expect_refused(run_words({"-p", "x", "--device", "cuda:77"}), "CUDA");  // no such GPU, or a build without CUDA
  expect_refused(run_words({"-p", "x", "--device", "cuda", "--kv-tier-dir", "/tmp"}), "wait in the host's memory");
}

TEST(Errors, WordsBehindADoubleDash) {
  expect_refused(run_words({"-p", "x", "--", "stray"}), "'stray' is not an option of 'glimpse run'");
  expect_refused(run_words({"-p", "x", "--", "--attn", "tidal"}), "'--attn' stands behind '--'");
  expect_refused({"inspect", model(), "--", "stray"}, "'stray' is not an option of 'glimpse inspect'");
  EXPECT_EQ(run_program({"inspect", "--", model()}).code, 0);
}

TEST(Errors, OutputsThatWouldDestroyAnotherFileOfTheCommand) {
  const auto document = scratch("document.txt"), link = scratch("link.gguf"), copy = scratch("copy.gguf");
  write_file(document, prose(2));
  std::filesystem::copy_file(model(), copy);
  std::filesystem::create_symlink(copy, link);
  const auto size = std::filesystem::file_size(copy);
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"run", "-m", copy.string(), "-t", "1", "-n", "4", "-f", document.string()});
    return more;
  };
  expect_refused(run({"--trace", copy.string()}), "is also -m");
  expect_refused(run({"--trace", link.string()}), "is also -m");
  expect_refused(run({"--trace", document.string()}), "is also -f");
  const auto both = scratch("both");
  expect_refused(run({"--trace", both.string(), "--session", both.string()}), "is also --session");
  EXPECT_FALSE(std::filesystem::exists(both));
  for (const char* what : {"sets", "logits"}) {
    expect_refused({"eval", what, "-m", copy.string(), "-f", document.string(), "-o", link.string()}, "is also -m");
  }
  expect_refused({"inspect", document.string(), "--html", document.string()}, "is also what it reads");
  const auto first = scratch("split-00001-of-00002.gguf"), second = scratch("split-00002-of-00002.gguf");
  std::filesystem::copy_file(model(), second);
  expect_refused({"run", "-m", first.string(), "-p", "x", "--trace", second.string()}, "is also -m");
  EXPECT_EQ(std::filesystem::file_size(second), size);
  expect_refused(run({"--attn", "seer", "--attn-opt", "gates=" + second.string(), "--trace", second.string()}),
                 "is also --attn-opt gates");
  EXPECT_EQ(std::filesystem::file_size(second), size);
  EXPECT_EQ(read_file(document), prose(2));
  EXPECT_EQ(std::filesystem::file_size(copy), size);
}

struct BadValue {
  const char* flag;
  const char* value;
  const char* part;
};

void PrintTo(const BadValue& row, std::ostream* out) {
  *out << row.flag << " " << (*row.value == '\0' ? "empty" : row.value);
}

class BadValues : public ::testing::TestWithParam<BadValue> {};

constexpr const char* kLong = "sixty-four bytes of a value are enough to know which one it is that is wrong";
constexpr const char* kLongKey = "sixty-four-bytes-of-a-key-are-enough-to-know-which-one-it-is-that-is-wrong=1";
constexpr const char* kLongShare = "sixty-four-bytes-of-a-key-are-enough-to-know-which-one-it-is-that-is-wrong%";
constexpr const char* kLongMass = "p=sixty-four-bytes-of-a-key-are-enough-to-know-which-one-it-is-that-is-wrong";
constexpr const char* kMassCut = "'sixty-four-bytes-of-a-key-are-enough-to-know-which-one-it-is-tha...' is not";
constexpr const char* kCut = "one it is t...'";
constexpr const char* kKeyCut = "one-it-is-tha...'";

TEST_P(BadValues, AreRefusedInOneLine) {
  const BadValue& row = GetParam();
  expect_refused(run_words({"-p", "the river", "--attn", "tidal", row.flag, row.value}), row.part);
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadValues,
    ::testing::Values(
        BadValue{"--attn-budget", "0", "at least 1"}, BadValue{"--attn-budget", "-5", "-5"},
        BadValue{"--attn-budget", "nan", "not a finite number"},
        BadValue{"--attn-budget", "inf", "not a finite number"}, BadValue{"--attn-budget", "many", "is not a budget"},
        BadValue{"--attn-budget", "0%", "0"}, BadValue{"--attn-budget", "120%", "at most 100%"},
        BadValue{"--attn-budget", "", "empty"}, BadValue{"--attn-budget", "q=3", "unknown kind 'q'"},
        BadValue{"--attn-budget", "p=2", "outside (0, 1]"}, BadValue{"--attn", "tidl", "did you mean 'tidal'?"},
        BadValue{"--attn", "autto", "did you mean 'auto'?"}, BadValue{"--attn", "", "unknown attention"},
        BadValue{"--attn-block", "0", "--attn-block"}, BadValue{"--attn-sink", "-1", "--attn-sink"},
        BadValue{"--attn-local", "x", "--attn-local"}, BadValue{"--attn-opt", "set", "KEY=VALUE"},
        BadValue{"--attn-opt", "sets=layer", "did you mean 'set'?"}, BadValue{"--attn-opt", "set=heads", "set=heads"},
        BadValue{"--attn-opt", "select=99", "select=99"}, BadValue{"--attn-opt", "set=layer,set=layer", "twice"},
        BadValue{"--attn-opt", kLong, kCut}, BadValue{"--attn-opt", kLongKey, kKeyCut},
        BadValue{"--attn-budget", kLong, kCut}, BadValue{"--attn", kLong, kCut},
        BadValue{"--attn-budget", kLongShare, kKeyCut}, BadValue{"--attn-budget", kLongKey, kKeyCut},
        BadValue{"--attn-budget", kLongMass, kMassCut}, BadValue{"--device", kLong, kCut},
        BadValue{"--kv-type", kLong, kCut}, BadValue{"--attn-plan", "p.json", "--attn and --attn-plan"},
        BadValue{"--attn-min-ctx", "-3", "--attn-min-ctx"}, BadValue{"--temp", "-1", "--temp '-1'"},
        BadValue{"--temp", "nan", "--temp 'nan'"}, BadValue{"--temp", "1x", "--temp '1x'"},
        BadValue{"--top-p", "1.5", "--top-p"}, BadValue{"--top-k", "-2", "--top-k"},
        BadValue{"--top-k", "3.5", "a whole number"}, BadValue{"--min-p", "-0.1", "--min-p"},
        BadValue{"--repeat-penalty", "0", "--repeat-penalty"}, BadValue{"--repeat-last-n", "-2", "--repeat-last-n"},
        BadValue{"-s", "4294967296", "--seed"}, BadValue{"--logit-bias", "5", "--logit-bias 5: give the id"},
        BadValue{"--logit-bias", "a+1", "give the id"}, BadValue{"--logit-bias", "8+", "give the id"},
        BadValue{"--logit-bias", "5--1", "give the id"}, BadValue{"--logit-bias", "5+1x", "give the id"},
        BadValue{"--logit-bias", "5+2000", "from -1000 to 1000"},
        BadValue{"--logit-bias", "5+inf", "from -1000 to 1000"},
        BadValue{"--logit-bias", "5-nan", "from -1000 to 1000"},
        BadValue{"--logit-bias", "999999+1", "the vocabulary has"}, BadValue{"--min-tokens", "-1", "--min-tokens"},
        BadValue{"-n", "-2", "--predict"}, BadValue{"-c", "-1", "--ctx-size"},
        BadValue{"-c", "99999999999999999999", "--ctx-size"}, BadValue{"-t", "1000", "--threads"},
        BadValue{"--prefill-chunk", "0", "--prefill-chunk"}, BadValue{"--kv-type", "f8", "f8"},
        BadValue{"-p", "", "the prompt is empty"}, BadValue{"-p", "ab\xff", "byte 2 (0xff)"},
        BadValue{"--system", "a\xc3", "--system"}, BadValue{"-f", "/nonexistent/file", "/nonexistent/file"},
        BadValue{"-f", "/", "cannot read '/'"},
        BadValue{"-m", "/nonexistent.gguf", "'/nonexistent.gguf': there is no such file; give the path of a GGUF file"},
        BadValue{"-m", "/", "'/'"}, BadValue{"-m", "/dev/null", "/dev/null"},
        BadValue{"--attn-profile", "/nonexistent/profile", "/nonexistent/profile"},
        BadValue{"--lossless", "-1", "--lossless"}, BadValue{"--lossless", "16", "--lossless"},
        BadValue{"--lossless", "some", "--lossless"}, BadValue{"--correct", "-1", "--correct"},
        BadValue{"--correct", "often", "--correct"},
        BadValue{"--trace", "/nonexistent/trace", "cannot write '/nonexistent/trace'"},
        BadValue{"--trace", "/", "cannot write '/'"}),
    [](const auto& row) {
      // What is not a letter or a digit in short values, so that they differ.
      std::string value;
      for (const char* c = row.param.value; *c != '\0'; ++c) {
        value += *c == '-'   ? std::string(" minus ")
                 : *c == '%' ? " percent "
                 : *c == '/' ? " root "
                             : std::string(1, *c);
      }
      return test_name(fmt::format("{} {}", row.param.flag, value.empty() ? "empty" : value));
    });

TEST(Errors, Prompts) {
  expect_refused(run_words({}), "no prompt");
  expect_refused({"run", "-p", "x"}, "-m FILE");
  expect_refused(run_words({"-c", "64", "-p", prose(40)}), "the context holds 64");
  expect_refused(run_words({"-f", "-"}), "the prompt is empty");
  expect_refused(run_words({"--raw", "--system", "s", "-p", "x"}), "--system and --raw");
  const auto empty = scratch("empty.txt");
  write_file(empty, "");
  expect_refused(run_words({"-f", empty.string()}), "the prompt is empty");
  expect_refused(run_words({"-i", "-p", ""}), "the prompt is empty");
  const auto broken = scratch("broken.txt");
  write_file(broken, "good text \xed\xa0\x80");
  expect_refused(run_words({"-f", broken.string()}), "broken.txt' is not UTF-8: byte 10");
}

TEST(Errors, FilesThatAreNoText) {
  using namespace std::string_literals;
  const auto file = scratch("document");
  const auto refused = [&](const std::string& bytes, const std::string& message) {
    write_file(file, bytes);
    expect_refused(run_words({"-f", file.string()}), "document' is " + message);
  };
  refused("%PDF-1.7\n%\xe2\xe3\xcf\xd3", "a PDF file, not UTF-8 text; make text of it with 'pdftotext'");
  refused("\x1f\x8b\x08\x00 rest"s, "compressed by gzip, not UTF-8 text; make text of it with 'gunzip'");
  refused("PK\x03\x04 rest", "a zip archive or an office document, not UTF-8 text; make text of it with 'unzip' or");
  refused("BZh9\x31\x41\x59\xa0", "compressed by bzip2");
  refused(
      "\xfd"
      "7zXZ\x00"s,
      "compressed by xz");
  refused("\x28\xb5\x2f\xfd", "compressed by zstd");
  refused("\xff\xfeh\x00i\x00"s, "UTF-16, not UTF-8 text; make text of it with 'iconv -f utf-16 -t utf-8'");
  refused("\xfe\xff\x00h\x00i"s, "UTF-16, ");
  refused("\xff\xfe\x00\x00h\x00\x00\x00"s, "UTF-32, ");
  refused("h\x00i\x00\n\x00"s, "UTF-16, not UTF-8 text; make text of it with 'iconv -f utf-16le -t utf-8'");
  refused("\x00h\x00i\x00\n"s, "UTF-16, not UTF-8 text; make text of it with 'iconv -f utf-16be -t utf-8'");
  refused("na\xefve caf\xe9",
          "not UTF-8: byte 2 (0xef) begins no character; if it is Latin-1 text, convert it with "
          "'iconv -f latin1 -t utf-8'");
  refused("GGUF\x03\x00\x00\x00\xa0"s, "binary: byte 8 (0xa0) begins no character of UTF-8; give a file of text");
  refused("it\x92s", "not UTF-8: byte 2 (0x92) begins no character; if it is Windows-1252 text");
}

TEST(Document, AByteOrderMarkIsNoPartOfTheText) {
  EXPECT_EQ(document_of("\xef\xbb\xbfhello", "x"), "hello");
  EXPECT_EQ(document_of("hello\xef\xbb\xbf", "x"), "hello\xef\xbb\xbf");
  EXPECT_EQ(document_of("BZh is no file", "x"), "BZh is no file");
  EXPECT_EQ(document_of(std::string("a\0b", 3), "x"), std::string("a\0b", 3));
  EXPECT_EQ(document_of("", "x"), "");
}

TEST(Errors, ATextThatItsModelCannotTokenise) {
  const auto file = scratch("long.txt");
  write_file(file, std::string(500'000, 'x'));
  expect_refused({"run", "-m", model("tekken"), "-f", file.string(), "-n", "1"}, "500000 letters in a row from byte ");
}

TEST(Errors, AModelWithoutAChatTemplateNeedsRaw) {
  std::string bytes = read_file(model());
  const std::string key = "tokenizer.chat_template";
  const std::size_t at = bytes.find(key);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, key.size(), "tokenizer.chat_nothing!");
  const auto path = scratch("plain.gguf");
  write_file(path, bytes);
  expect_refused({"run", "-m", path.string(), "-p", "the river"}, "--raw");
  EXPECT_EQ(run_program({"run", "-m", path.string(), "-p", "the river", "--raw", "-n", "1"}).code, 0);
}

/// The model with another chat template, which is shorter than its own.
std::filesystem::path model_with_template(const std::string& name, std::string source) {
  std::string bytes = read_file(model());
  const std::string key = "tokenizer.chat_template";
  const std::size_t type = bytes.find(key) + key.size(), length = type + 4, text = length + 8;
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data() + length, sizeof size);
  EXPECT_LE(source.size(), size);
  source.resize(size, ' ');
  bytes.replace(text, size, source);
  const auto path = scratch(name);
  write_file(path, bytes);
  return path;
}

TEST(Errors, ChatTemplatesThatLoopOrRecurseAreReadByNothingButAPromptOfTheirs) {
  // Many frames for each call, so that the stack is full long before the time is up, under a sanitizer too.
  const std::string calls = std::string(100, '[') + "m()" + std::string(100, ']');
  for (const auto& [source, part] : std::vector<std::pair<std::string, std::string>>{
           {"{{ range(9000000000) | length }}", "more than"},
           {"{% macro m() %}{{ " + calls + " }}{% endmacro %}{{ m() }}", "deeper than"},
           // It grows and recurses at once: what ends it is open.
           {"{% set _ = messages.append(messages) %}{{ messages | tojson }}", "than"},
           {"{{ 1 is divisibleby(0) }}", "crashes"}}) {
    SCOPED_TRACE(source);
    const std::string path = model_with_template("hostile.gguf", source).string();
    expect_refused({"run", "-m", path, "-p", "the river", "-n", "1"}, part);
    expect_refused({"run", "-m", path, "-p", "the river", "-n", "1"}, "use --raw");
    expect_refused({"run", "-m", path, "-i", "-q", "-n", "1"}, part, {.input = "the river\n"});
    EXPECT_EQ(run_program({"run", "-m", path, "-p", "the river", "--raw", "-n", "1"}).code, 0);
    const Outcome inspected = run_program({"inspect", path});
    EXPECT_EQ(inspected.code, 0) << inspected.err;
    EXPECT_NE(inspected.out.find("chat template"), std::string::npos);
  }
}

TEST(Errors, CorrectionNeedsTheWholeCache) {
  for (const char* policy : {"h2o", "tova", "raas"}) {
    expect_refused(run_words({"-p", "the river", "--attn", policy, "--correct", "8"}), policy);
  }
}

TEST(Errors, LosslessNeedsTheWholeCacheAndStandsAlone) {
  for (const char* policy : {"h2o", "streaming", "tova"}) {
    expect_refused(run_words({"-p", "the river", "--attn", policy, "--lossless"}), policy);
  }
  expect_refused(run_words({"-p", "the river", "--attn", "tidal", "--lossless", "--correct", "8"}), "--correct");
  expect_refused(run_words({"-p", "the river", "--attn", "tidal", "--lossless", "--trace", "f"}), "--trace");
}

TEST(Errors, PlanFiles) {
  const auto path = scratch("plan.json");
  write_file(path, "{\"policy\": 3}");
  expect_refused(run_words({"-p", "x", "--attn-plan", path.string()}), "plan");
  expect_refused(run_words({"-p", "x", "--attn-plan", "/nonexistent"}), "plan file '/nonexistent'");
  const Outcome other = run_program({"plan", "-m", model("llama2"), "--attn", "tidal", "--json"});
  write_file(path, other.out);
  expect_refused(run_words({"-p", "x", "--attn-plan", path.string()}), "the plan is for");
}

TEST(Errors, EnvironmentIsNamed) {
  expect_refused(run_words({"-p", "x"}), "GLIMPSE_ARG_TEMP 'hot'", {.environment = {"GLIMPSE_ARG_TEMP=hot"}});
  expect_refused(run_words({"-p", "x"}), "GLIMPSE_ARG_RAW 'maybe'", {.environment = {"GLIMPSE_ARG_RAW=maybe"}});
}

TEST(Errors, EvalAndBench) {
  const auto text = scratch("text.txt");
  write_file(text, prose(3));
  const std::vector<std::string> logits{"eval", "logits", "-m", model(), "-f", text.string()};
  const auto with = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_refused(logits, "-o FILE.npy");
  expect_refused(with(logits, {"-o", "/nonexistent/x.npy"}), "/nonexistent/x.npy");
  expect_refused(with(logits, {"-o", "/dev/null"}), "not a regular file");
  expect_refused(with(logits, {"-o", scratch("x.npy").string(), "--tokens", "100000"}), "--tokens 100000");
  expect_refused(with(logits, {"-o", scratch("x.npy").string(), "--attn", "tidal"}), "--prefill");
  expect_refused({"eval", "perplexity", "-m", model()}, "-f FILE");
  expect_refused({"eval", "fidelity", "-m", model()}, "-f FILE");
  expect_refused({"eval", "fidelity", "-m", model(), "-f", text.string(), "--steps", "5", "--ranges", "6"},
                 "--ranges 6 of --steps 5");
  expect_refused({"eval", "fidelity", "-m", model(), "-f", text.string(), "--prompt", "4000"}, "the text has");
  expect_refused({"eval", "perplexity", "-m", model(), "-f", text.string(), "--ctx", "4000"}, "one window needs 4000");
  expect_refused({"bench", "decode", "-m", model(), "--depth", "0,x"}, "--depth '0,x'");
  expect_refused({"bench", "decode", "-m", model(), "--arms", "full,tidl:5"}, "did you mean 'tidal'?");
  expect_refused({"bench", "decode", "-m", model(), "--format", "xml"}, "unknown format 'xml'");
  expect_refused({"bench", "prefill", "-m", model(), "--length", "0"}, "--length '0'");
  expect_refused({"bench", "decode", "--shape", "llama-9"}, "there are: llama-3.1-8b qwen3-8b qwen3-32b llama-2-7b");
  expect_refused({"bench", "decode", "--shape", "qwen3-8b", "--weights", "q9"}, "there are: bf16 q8_0");
  expect_refused({"bench", "decode", "-m", model(), "--weights", "q8_0"}, "without --shape");
  expect_refused({"bench", "decode", "--shape", "qwen3-8b", "--calibrate"}, "beside --shape");
  expect_refused({"bench", "decode", "--shape", "qwen3-8b", "--profile-dir", "/tmp"}, "beside --shape");
  expect_refused({"bench", "decode", "--shape", "qwen3-8b", "-f", text.string()},
                 "--file has no effect beside --shape");
  expect_refused({"bench", "prefill", "-m", model(), "--shape", "qwen3-8b"}, "leave one out");
  expect_refused({"bench", "attention", "--shape", "qwen3-8b", "--group", "2"}, "--shape and --group");
  expect_refused({"bench", "attention", "--head-dim", "12"}, "multiples of 8");
  expect_refused({"bench", "attention", "--head-dim", "512", "--group", "9"}, "--head-dim");
  expect_refused({"inspect", "--html", scratch("x.html").string()}, "no file");
  expect_refused({"inspect", "/nonexistent"}, "/nonexistent");
  expect_refused({"plan"}, "-m FILE");
  expect_refused({"plan", "--list", "--attn", "tidal"}, "leave --attn out");
  expect_refused({"plan", "--list", "--json"}, "leave --json out");
  EXPECT_EQ(run_program({"plan", "--list"}, {.environment = {"GLIMPSE_ARG_ATTN=tidal"}}).code, 0);
  const std::vector<std::string> clusters{"plan", "-m", model(), "--attn", "clusterkv", "--attn-opt"};
  expect_refused(with(clusters, {"tokens-per-cluster=400"}), "give new-tokens=400 or more");
  EXPECT_EQ(run_program(with(clusters, {"tokens-per-cluster=400,new-tokens=400"})).code, 0);
}

}  // namespace
}  // namespace glimpse::cli
