// The lines between the two programs, and what becomes of a program that does not keep to them.
#include "glimpse/train/gradients.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/refusal.h"

namespace glimpse::train {
namespace {

GradientRequest some_request() {
  GradientRequest request;
  request.tokens = {5, 0, 12, 7};
  request.first = 2;
  request.budget = {plan::BudgetRule::ratio, 0.3};
  request.handing = Handing::role;
  request.gates = {0, 1, 0.1, 1.0 / 3};
  return request;
}

/// A program of the shell in a folder of its own.
class Script {
 public:
  explicit Script(const std::string& body) {
    std::string name = (std::filesystem::temp_directory_path() / "glimpse-gradients-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder");
    folder_ = name;
    std::ofstream(path()) << "#!/bin/sh\n" << body;
    std::filesystem::permissions(path(), std::filesystem::perms::owner_all);
  }
  ~Script() { std::filesystem::remove_all(folder_); }
  std::filesystem::path path() const { return folder_ / "program"; }

 private:
  std::filesystem::path folder_;
};

std::string refused_by(const std::string& body) {
  const Script script(body);
  GradientProgram program(script.path(), "a model", 1);
  return refusal([&] { program.ask(some_request()); });
}

TEST(Gradients, RequestsAndAnswersComeBackTheSame) {
  const GradientRequest request = some_request(), back = parse_request(request_line(request));
  EXPECT_EQ(back.tokens, request.tokens);
  EXPECT_EQ(back.first, request.first);
  EXPECT_EQ(back.budget, request.budget);
  EXPECT_EQ(back.handing, request.handing);
  EXPECT_EQ(back.gates, request.gates);
  const Loss loss{1.0 / 7, {-3e-9, 0, 2.5}}, again = parse_answer(answer_line(loss));
  EXPECT_EQ(again.value, loss.value);
  EXPECT_EQ(again.by_gate, loss.by_gate);
}

TEST(Gradients, OtherLinesAreRefused) {
  const std::string line = request_line(some_request());
  const std::vector<std::string> others{"",
                                        line + " 1",
                                        line.substr(0, line.size() - 3) + "x",
                                        "2 share 0.3 role 1 5 1 0.5",
                                        "2 ratio 0.3 far 1 5 1 0.5",
                                        "2 ratio 0.3 role 9 5"};
  for (const std::string& bad : others) {
    EXPECT_NE(refusal([&] { parse_request(bad); }).find("a line about gradients"), std::string::npos) << bad;
  }
  EXPECT_NE(refusal([] { parse_answer("hello"); }).find("a line about gradients"), std::string::npos);
  EXPECT_NE(refusal([] { parse_answer("loss nan 1 0"); }).find("not finite"), std::string::npos);
  EXPECT_EQ(refusal([] { parse_answer(error_line("no such model\nand more")); }), "no such model");
}

TEST(Gradients, AProgramAnswersAsOftenAsItIsAsked) {
  const Script script("n=0; while read line; do n=$((n+1)); echo \"loss $n 2 0.5 -1\"; done\n");
  GradientProgram program(script.path(), "a model", 1);
  for (int i = 1; i <= 3; ++i) {
    const Loss loss = program.ask(some_request());
    EXPECT_EQ(loss.value, i);
    EXPECT_EQ(loss.by_gate, (std::vector<double>{0.5, -1}));
  }
}

TEST(Gradients, AProgramGetsModelThreadsAndDevice) {
  const Script script("read line; echo \"error $1, $2, $3\"\n");
  GradientProgram program(script.path(), "the model", 3, parse_device("cuda:1"));
  EXPECT_EQ(refusal([&] { program.ask(some_request()); }), "the model, 3, cuda:1");
}

TEST(Gradients, AProgramThatEndsIsOneLine) {
  EXPECT_NE(refused_by("exit 1\n").find("ended without an answer"), std::string::npos);
  EXPECT_NE(refused_by("read line; printf 'loss 1 2'\n").find("ended without an answer"), std::string::npos);
  GradientProgram program("/nowhere/glimpse-gradients", "a model", 1);
  EXPECT_NE(refusal([&] { program.ask(some_request()); }).find("ended without an answer"), std::string::npos);
}

}  // namespace
}  // namespace glimpse::train
