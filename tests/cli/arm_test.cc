// The grammar of an arm, as `bench decode --arms` and /attn of `run -i` read it.
#include "glimpse/cli/arm.h"

#include <gtest/gtest.h>

#include "glimpse/base/error.h"

namespace glimpse::cli {
namespace {

TEST(Arm, BlanksAndCommasAreTheSame) {
  for (const char* text : {"tidal:512,reselect=13,sink=2,min-ctx=9", "tidal 512 reselect=13 sink=2 min-ctx=9",
                           " tidal  512, reselect=13\tsink=2 min-ctx=9 "}) {
    const Arm arm = parse_arm(text);
    EXPECT_EQ(arm.policy, "tidal");
    EXPECT_EQ(arm.written, "tidal:512,reselect=13,sink=2,min-ctx=9") << text;
    EXPECT_EQ(arm.options.budget, plan::parse_budget("512"));
    EXPECT_EQ(arm.options.extra, (std::map<std::string, std::string>{{"reselect", "13"}}));
    EXPECT_EQ(arm.options.sink, 2);
    EXPECT_EQ(arm.options.min_context, 9);
    EXPECT_FALSE(arm.options.block);
  }
}

TEST(Arm, BudgetsOfEveryKind) {
  for (const char* budget : {"10%", "10%,min=128", "p=0.99", "coverage=0.98", "tau=1e-4"}) {
    EXPECT_EQ(parse_arm(std::string("quest:") + budget).options.budget, plan::parse_budget(budget)) << budget;
    EXPECT_EQ(parse_arm(std::string("quest ") + budget).options.budget, plan::parse_budget(budget)) << budget;
    EXPECT_TRUE(parse_arm(std::string("quest ") + budget + " score=meanstd").options.extra.contains("score")) << budget;
  }
  EXPECT_FALSE(parse_arm("quest").options.budget);
}

TEST(Arm, AListIsPartedWhereAMethodBegins) {
  const std::vector<Arm> arms =
      parse_arms("full,tidal:512,reselect=13,set=layer,quest:10%,min=128,h2o:p=0.9,seer:64,gates=a:b");
  ASSERT_EQ(arms.size(), 5u);
  EXPECT_EQ(arms[0].written, "full");
  EXPECT_EQ(arms[1].written, "tidal:512,reselect=13,set=layer");
  EXPECT_EQ(arms[2].written, "quest:10%,min=128");
  EXPECT_EQ(arms[2].options.budget, plan::parse_budget("10%,min=128"));
  EXPECT_EQ(arms[3].options.budget, plan::parse_budget("p=0.9"));
  EXPECT_EQ(arms[4].options.extra.at("gates"), "a:b");
}

TEST(Arm, WhatIsWrongIsNamed) {
  const auto says = [](const std::string& text) -> std::string {
    try {
      parse_arms(text);
      parse_arm(text);
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing";
  };
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"tidl:512", "did you mean 'tidal'?"},
           {"autto", "did you mean 'auto'?"},
           {"", "an arm is empty"},
           {"sink=3", "'sink=3' stands before any method"},
           {"tidal:many", "is not a budget"},
           {"tidal:512,p=0.9", "'p=0.9' is a second budget beside '512'"},
           {"tidal,sink=-1", "'sink=-1' needs a whole number from 0"},
           {"tidal,block=0", "'block=0' needs a whole number from 1 to 65536"},
           {"tidal,set=layer,set=layer", "gives the option twice"},
           {"tidal,sink=1,sink=1", "gives the option twice"},
           {"tidal,=1", "names no option"}}) {
    EXPECT_NE(says(text).find(part), std::string::npos) << text << ": " << says(text);
  }
}

}  // namespace
}  // namespace glimpse::cli
