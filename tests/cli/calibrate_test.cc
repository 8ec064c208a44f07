// glimpse calibrate: a profile and a table from a model, and one line for what cannot be.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "glimpse/plan/profile.h"
#include "tests/calibrate/without_times.h"
#include "tests/cli/process.h"
#include "tests/support/models.h"
#include "tests/support/places.h"

namespace glimpse::cli {
namespace {

/// Nothing but what the test itself wrote: no temporary file is left.
std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

/// A cell for each layer and each that is not before it, the layer's own of 1, and a row for each anchor.
void expect_heat_map(const std::string& svg, const plan::Profile& profile) {
  const auto count = [&](const std::string& part) {
    int found = 0;
    for (std::size_t at = svg.find(part); at != std::string::npos; at = svg.find(part, at + 1)) ++found;
    return found;
  };
  const int layers = profile.model.layers;
  EXPECT_EQ(count("</title></rect>"), layers * (layers + 1) / 2);
  for (int layer = 0; layer < layers; ++layer) {
    EXPECT_EQ(count(fmt::format("layer {0} with the set of layer {0}: 1.000<", layer)), 1) << layer;
  }
  EXPECT_EQ(count("class=\"row\""), static_cast<int>(profile.kascade->anchors.size()));
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

TEST(Calibrate, WritesAProfileThatRunsTake) {
  const auto profile = scratch("made.profile.json");
  const auto picture = scratch("heat.svg");
  const Outcome outcome = run_program(
      {"calibrate", "-m", model(), "-c", "1400", "-t", "1", "-o", profile.string(), "--heat-map", picture.string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  std::vector<std::string> names = names_in(profile.parent_path());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"heat.svg", "made.profile.json"}));
  const plan::Profile read = plan::parse_profile(read_file(profile));
  expect_heat_map(read_file(picture), read);
  for (const char* part : {"kascade", "tidal", "retrieval"}) EXPECT_TRUE(read.has(part)) << part;
  const std::vector<double>& objective = read.kascade->objective;
  ASSERT_EQ(objective.size(), static_cast<std::size_t>(read.model.layers));
  EXPECT_TRUE(std::is_sorted(objective.begin(), objective.end())) << "one anchor more cannot keep less";
  EXPECT_NEAR(objective.back(), 1, 1e-12);
  const std::size_t layers = objective.size();
  ASSERT_EQ(read.kascade->similarity.size(), layers * layers);
  for (std::size_t i = 0; i < layers; ++i) EXPECT_EQ(read.kascade->similarity[i * layers + i], 1) << i;
  EXPECT_NE(outcome.out.find("selects again in layer"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("| tidal | 512 |"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(profile.string()), std::string::npos) << outcome.out;
  for (const char* method : {"tidal", "kascade", "lychee-decode", "evosparse"}) {
    const Outcome run = run_program(
        run_words({"-p", "hello", "--attn", method, "--attn-budget", "256", "--attn-profile", profile.string()}));
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(run.err.find("no profile"), std::string::npos) << run.err;
  }
  // One part alone, over the profile that is there.
  const Outcome part =
      run_program({"calibrate", "retrieval", "-m", model(), "-c", "1400", "-t", "1", "-o", profile.string()});
  ASSERT_EQ(part.code, 0) << part.err;
  const plan::Profile alone = plan::parse_profile(read_file(profile));
  EXPECT_EQ(alone.retrieval, read.retrieval);
  EXPECT_EQ(alone.tidal, read.tidal) << "other parts stay";
  EXPECT_EQ(alone.kascade, read.kascade);
}

TEST(Calibrate, WithoutANameTheProfileIsFoundByRuns) {
  const auto folder = scratch("profiles").parent_path() / "profiles" / "mine";
  const Outcome outcome =
      run_program({"calibrate", "tidal", "-m", model(), "-c", "1400", "-t", "1", "--profile-dir", folder.string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(names_in(folder).size(), 1U);
  const Outcome run = run_program(
      run_words({"-p", "hello", "--attn", "tidal", "--attn-budget", "256", "--profile-dir", folder.string()}));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.err.find("the model's profile is used"), std::string::npos) << run.err;
}

TEST(Calibrate, TwoLayersHaveNoLayerThatSelectsAgain) {
  const auto profile = scratch("two.json"), text = scratch("own.txt");
  write_file(text, prose(80));
  const Outcome outcome = run_program(
      {"calibrate", "-m", model("mqa200"), "-c", "1400", "-t", "1", "-f", text.string(), "-o", profile.string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const plan::Profile read = plan::parse_profile(read_file(profile));
  EXPECT_FALSE(read.has("tidal"));
  EXPECT_TRUE(read.has("kascade"));
  expect_refused({"calibrate", "tidal", "-m", model("mqa200"), "-o", profile.string()}, "has 2 layers");
}

TEST(Calibrate, BadInputIsOneLine) {
  const auto other = scratch("notes.txt");
  write_file(other, "my notes\n");
  expect_refused({"calibrate"}, "give a GGUF file with -m");
  expect_refused({"calibrate", "tidal", "-m", model(), "--heat-map", "x.svg"}, "--heat-map has no effect without");
  expect_refused({"calibrate", "-m", model(), "--heat-map", model()}, "would destroy");
  expect_refused({"calibrate", "-m", "nowhere.gguf"}, "nowhere.gguf");
  expect_refused({"calibrate", "kaskade", "-m", model()}, "did you mean 'kascade'?");
  expect_refused({"calibrate", "-m", model(), "-o", "/nowhere/x.json"}, "/nowhere/x.json");
  expect_refused({"calibrate", "-m", model(), "-o", other.parent_path().string()}, "not a regular file");
  expect_refused({"calibrate", "-m", model(), "-o", other.string()}, "is no profile");
  expect_refused({"calibrate", "-m", model(), "-f", "nowhere.txt"}, "nowhere.txt");
  expect_refused({"calibrate", "-m", model(), "-o", model()}, "-m");
  const auto out = other.parent_path() / "made.json";
  expect_refused({"calibrate", "-m", model(), "-c", "300", "-o", out.string()}, "too small to calibrate");
  expect_refused({"calibrate", "-m", model(), "-c", "10"}, "--ctx-size '10'");
  expect_refused({"calibrate", "-m", model("one-layer"), "-o", out.string()}, "has 1 layer; calibration needs 2");
  expect_refused({"calibrate", "-m", model("no-template"), "-o", out.string()}, "no chat template");
  EXPECT_EQ(read_file(other), "my notes\n");
  EXPECT_EQ(names_in(other.parent_path()), std::vector<std::string>{"notes.txt"});
}

// The other parts of a profile that is broken or another model's cannot stay, and that profile is not lost either.
TEST(Calibrate, AnotherProfileIsNotReplaced) {
  const auto broken = scratch("broken.json"), other = scratch("other.json");
  write_file(broken, "{\"glimpse_profile\": 1, ");
  plan::Profile foreign;
  foreign.model = {"llama", "somebody else's", 4, 4, 2, 64, 0};
  foreign.tidal = plan::TidalProfile{3};
  write_file(other, plan::to_json(foreign));
  for (const char* part : {"kascade", "tidal", "retrieval"}) {
    expect_refused({"calibrate", part, "-m", model("short"), "-c", "1400", "-o", broken.string()}, "not valid JSON");
    expect_refused({"calibrate", part, "-m", model("short"), "-c", "1400", "-o", other.string()},
                   "is the profile of another model; give another name with -o");
  }
  expect_refused({"calibrate", "-m", model("short"), "-c", "1400", "-o", other.string()},
                 "is the profile of another model");
  EXPECT_EQ(plan::parse_profile(read_file(other)), foreign);
  // In the folder of profiles it is the model's own place, and a whole calibration mends it.
  const auto folder = scratch("profiles").parent_path() / "profiles" / "mine";
  const std::vector<std::string> whole{"calibrate", "-m", model("short"),  "-c",           "1400",
                                       "-t",        "1",  "--profile-dir", folder.string()};
  ASSERT_EQ(run_program(whole).code, 0);
  const auto file = folder / names_in(folder).front();
  write_file(file, plan::to_json(foreign));
  std::vector<std::string> part = whole;
  part.insert(part.begin() + 1, "tidal");
  expect_refused(part, "'glimpse calibrate -m MODEL' makes a whole one in its place");
  ASSERT_EQ(run_program(whole).code, 0);
  EXPECT_TRUE(plan::parse_profile(read_file(file)).kascade);
}

TEST(Calibrate, AFullDiskIsOneLine) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  expect_refused({"calibrate", "-m", model(), "-o", "/dev/full"}, "not a regular file");
}

TEST(Calibrate, AnInterruptedRunWritesNothing) {
  const auto profile = scratch("made.json");
  write_file(profile, "");
  Setting setting;
  bool sent = false;
  // A context longer than the model's gives a warning when the engine stands, which is what this waits for.
  setting.environment = {"GLIMPSE_ARG_CTX_SIZE=5000"};
  setting.on_error_bytes = [&](int pid, const std::string&) {
    if (!sent) sent = ::kill(pid, SIGINT) == 0;
  };
  const Outcome outcome = run_program({"calibrate", "-m", model(), "-t", "1", "-o", profile.string()}, setting);
  if (!sent) GTEST_SKIP() << "nothing to wait for";
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(read_file(profile), "");
  EXPECT_EQ(names_in(profile.parent_path()), std::vector<std::string>{"made.json"});
}

TEST(Calibrate, APartOfSomethingElseIsReplacedAndGoneAtTheEnd) {
  const auto profile = scratch("made.json"), part = scratch("made.json.part");
  const std::vector<std::string> words{"calibrate", "tidal", "-m", model("short"), "-c",
                                       "1400",      "-t",    "1",  "-o",           profile.string()};
  for (const std::string_view head : {"glimpse_measured 1 0123456789abcdef", "glimpse_measured 0"}) {
    write_file(part, std::string(head) + "\nend\n");
    const Outcome replaced = run_program(words);
    EXPECT_EQ(replaced.code, 0) << replaced.err;
    EXPECT_NE(replaced.err.find("is of another model, other options or another version, and is replaced"),
              std::string::npos)
        << replaced.err;
    EXPECT_EQ(names_in(profile.parent_path()), std::vector<std::string>{"made.json"});
  }
  write_file(part, "my notes\n");
  expect_refused(words, "made.json.part' is there and holds no measurements; move it away");
  EXPECT_EQ(read_file(part), "my notes\n");
}

TEST(Calibrate, AnInterruptedRunGoesOn) {
  const auto profile = scratch("made.json"), part = scratch("made.json.part");
  std::vector<std::string> words{"calibrate", "-m", model("short"), "-c", "1400", "-t", "1", "-o", profile.string()};
  const Outcome whole = run_program(words);
  ASSERT_EQ(whole.code, 0) << whole.err;
  const plan::Profile first = plan::parse_profile(read_file(profile));
  std::filesystem::remove(profile);
  // Ends when the first measurements are kept.
  std::string program = test::glimpse_program().string();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::vector<char*> pointers{program.data()};
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    ::execv(program.c_str(), pointers.data());
    ::_exit(127);
  }
  int status = 0;
  bool ended = false;
  while (!ended && !std::filesystem::exists(part)) {
    ::usleep(1000);
    ended = ::waitpid(child, &status, WNOHANG) != 0;
  }
  if (ended) GTEST_SKIP() << "it ended before it was interrupted";
  ::kill(child, SIGINT);
  ::waitpid(child, &status, 0);
  if (!std::filesystem::exists(part)) GTEST_SKIP() << "it ended before it was interrupted";
  EXPECT_FALSE(std::filesystem::exists(profile));
  const Outcome rest = run_program(words);
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_NE(rest.err.find("going on with what '"), std::string::npos) << rest.err;
  const plan::Profile second = plan::parse_profile(read_file(profile));
  EXPECT_EQ(calibrate::without_times(second), calibrate::without_times(first));
  EXPECT_EQ(names_in(profile.parent_path()), std::vector<std::string>{"made.json"});
}

TEST(Calibrate, TheEmbeddedModelGetsAProfile) {
  const std::filesystem::path embedded = kSanitized ? "" : reference::embedded_model();
  if (embedded.empty()) GTEST_SKIP() << "the embedded model is not on this machine; scripts/fetch-model fetches it";
  const auto profile = scratch("embedded.json");
  const Outcome outcome =
      run_program({"calibrate", "tidal", "-m", embedded.string(), "-c", "512", "-t", "1", "-o", profile.string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  plan::validate(plan::parse_profile(read_file(profile)));
  const Outcome plan = run_program({"plan", "-m", embedded.string(), "--attn", "tidal", "--attn-profile", profile});
  EXPECT_EQ(plan.code, 0) << plan.err;
}

}  // namespace
}  // namespace glimpse::cli
