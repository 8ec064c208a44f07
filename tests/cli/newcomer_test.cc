// What a new user types by mistake, command by command: one line with the value, the limit or the cure, and exit
// code 2.
#include <gtest/gtest.h>

#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

struct Mistake {
  std::vector<std::string> words;
  std::string part;
};

void expect_one_line(const std::vector<Mistake>& mistakes) {
  for (const auto& [words, part] : mistakes) {
    std::string shown;
    for (const std::string& word : words) shown += word + " ";
    const Outcome outcome = run_program(words);
    EXPECT_EQ(outcome.code, 2) << shown << outcome.err;
    EXPECT_EQ(outcome.out, "") << shown;
    EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u) << shown << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << shown << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << shown << ": no '" << part << "' in " << outcome.err;
  }
}

TEST(Newcomer, BeforeAndInsteadOfACommand) {
  expect_one_line(
      {{{"-m", model(), "-p", "x"}, "'-m' stands before a command; give one of run, plan"},
       {{"eval", "-m", model()},
        "give one of logits, perplexity, sets, fidelity, needle, passkey, ruler, copy, longbench, scoreboard first"},
       {{"bench", "--depth", "4"}, "give one of decode, prefill, attention, serve first"},
       {{"chat"}, "unknown command 'chat'"},
       {{"run", model()}, "give a model with -m, a text file with -f, a prompt with -p"},
       {{"plan", model()}, "give a model with -m;"},
       {{"inspect", "a", "b"}, "'b' is not an option of 'glimpse inspect'"}});
}

TEST(Newcomer, ValuesThatAreMissing) {
  expect_one_line({{{"run", "-m"}, "--model needs a value, FILE; see 'glimpse run --help'"},
                   {{"run", "-m", model(), "-p"}, "--prompt needs a value, TEXT"},
                   {{"plan", "--attn"}, "--attn needs a value, POLICY"},
                   {{"bench", "decode", "--depth"}, "--depth needs a value, LIST"},
                   {{"run", "-m", model(), "-p", "x", "-n", ""}, "--predict '': give a whole number"},
                   {{"run", "-m", "", "-p", "x"}, "no model"}});
}

TEST(Newcomer, InspectWithoutAFileShowsTheMachine) {
  const Outcome outcome = run_program({"inspect"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("--device        cpu\n"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("cuda"), std::string::npos) << outcome.out;  // a GPU, or why there is none
}

TEST(Newcomer, FilesOfAnotherKind) {
  const auto folder = scratch("folder"), empty = scratch("empty"), json = scratch("some.json"),
             cut = scratch("cut.gguf"), trace = scratch("t.jsonl"), tiny = scratch("tiny.session");
  std::filesystem::create_directory(folder);
  write_file(empty, "");
  write_file(json, "{\"a\":1}");
  write_file(cut, read_file(model()).substr(0, 5000));
  write_file(trace, "{\"kind\":\"header\"}\n");
  write_file(tiny, "GLIMPSES");
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"run", "-p", "x", "-m"}, {"plan", "-m"}, {"inspect"}, {"bench", "decode", "-m"}, {"run", "-i", "-m"}}) {
    const auto with = [&](const std::filesystem::path& file) {
      std::vector<std::string> words = command;
      words.push_back(file.string());
      return words;
    };
    expect_one_line({{with(folder), "not a regular file"},
                     {with(empty), "is empty"},
                     {with(cut), "the file is truncated"},
                     {with("/nonexistent"), "/nonexistent"}});
  }
  expect_one_line({{{"inspect", json.string()}, "some.json'"},
                   {{"inspect", trace.string()}, "line 1 of the trace"},
                   {{"inspect", tiny.string()}, "is cut off after 8 bytes"},
                   {run_words({"-p", "x", "--attn-plan", empty.string()}), "plan file"},
                   {run_words({"-p", "x", "--attn-plan", folder.string()}), "Is a directory"},
                   {run_words({"-p", "x", "--attn-profile", folder.string()}), "Is a directory"},
                   {run_words({"-p", "x", "--session", folder.string()}), "is not a regular file"},
                   {run_words({"-p", "x", "--attn", "seer", "--attn-opt", "gates=" + model()}), "not gates"},
                   {run_words({"-p", "x", "--attn", "arkvale", "--kv-tier-dir", empty.string()}), "Not a directory"}});
}

TEST(Newcomer, NumbersOfEvalAndBench) {
  const auto text = scratch("text.txt");
  write_file(text, prose(30));
  const auto sets = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"eval", "sets", "-m", model(), "-f", text.string()});
    return more;
  };
  expect_one_line({{sets({"-c", "3"}), "--steps 64: the text has"},
                   {sets({"--steps", "99999"}), "give fewer --steps"},
                   {sets({"--prompt", "99999"}), "--prompt 99999"},
                   {sets({"--steps", "nan"}), "--steps 'nan'"},
                   {{"bench", "attention", "--head-dim", "512"}, "--head-dim '512': give a whole number from 8 to 256"},
                   {{"bench", "attention", "--depth", "-1"}, "--depth '-1'"},
                   {{"bench", "attention", "--rows", "0"}, "--rows '0'"},
                   {{"bench", "decode", "-m", model(), "--depth", "1e3"}, "--depth '1e3'"},
                   {{"bench", "decode", "-m", model(), "--arms", "tidal,,full"}, "an arm is empty"},
                   {{"bench", "decode", "-m", model(), "--arms", "tidal:8,foo=1", "--depth", "16"}, "foo"},
                   {{"bench", "decode", "-m", model(), "--depth", "100", "-c", "50"}, "-c 50"}});
}

}  // namespace
}  // namespace glimpse::cli
