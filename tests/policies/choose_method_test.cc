// --attn auto: what is taken, against a plain search written anew here, and each reason why something is not.
#include "glimpse/policies/choose_method.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "glimpse/base/error.h"
#include "tests/support/refusal.h"

namespace glimpse::policies {
namespace {

using plan::Kept;
using plan::MethodTime;
using plan::Profile;
using testing::HasSubstr;

/// Two kinds of task and prose, all kept; the method changes one thing of it.
void add(Profile& profile, const MethodTime& timed) {
  for (const char* task : {"single", "vt", "prose"}) {
    profile.kept.push_back({timed.method, timed.budget, task, 1, 1, 0.01, 1, 0.9, timed.options});
  }
  profile.speed->methods.push_back(timed);
}

Kept& row(Profile& profile, std::string_view method, std::string_view task) {
  for (Kept& kept : profile.kept) {
    if (kept.method == method && kept.task == task) return kept;
  }
  throw std::logic_error("no such row");
}

/// full: 10 + 2 a thousand. tidal is the faster from 0 on, lessismore the fastest, kascade as slow as full at 1,000.
Profile sample() {
  Profile profile;
  profile.model = {"llama", "", 4, 4, 2, 64, 0};
  profile.speed = plan::SpeedProfile{"P", 2, "bf16", 4000, {10, 2}, {15, 3}, {}};
  add(profile, {"tidal", "512", "", {9.5, 1}});
  add(profile, {"lessismore", "1024", "", {8, 1}});
  add(profile, {"kascade", "10%", "prefill=dense", {11.5, 0.5}});
  return profile;
}

const MethodCandidate& named(const std::vector<MethodCandidate>& all, std::string_view method) {
  for (const MethodCandidate& each : all) {
    if (each.method == method) return each;
  }
  throw std::logic_error("no such candidate");
}

TEST(ChooseMethod, GoesByTheMachineAndByWhatRunsThere) {
  Profile profile = sample();
  plan::SpeedProfile gpu{"G", 1, "bf16", 4000, {3, 0.1}, {3, 0.1}, {}};
  gpu.methods = {{"tidal", "512", "", {1, 0.1}}, {"lessismore", "1024", "", {2, 0.1}}};
  profile.elsewhere = {gpu};
  MethodWish wish{.tokens = 4000, .machine = gpu.machine()};
  auto found = choose_method(profile, wish);
  EXPECT_EQ(arm_text(found[0]), "tidal:512");
  EXPECT_DOUBLE_EQ(found[0].ms, 1.4);
  EXPECT_DOUBLE_EQ(named(found, "full").ms, 3.4);
  wish.refusal = [](const MethodCandidate& candidate) {
    return candidate.method == "tidal" ? std::string("not on this device") : std::string();
  };
  found = choose_method(profile, wish);
  EXPECT_EQ(arm_text(found[0]), "lessismore:1024");
  EXPECT_EQ(named(found, "tidal").why_not, "not on this device");
  wish.machine = plan::SpeedMachine{"another", 2, "bf16"};
  EXPECT_DOUBLE_EQ(choose_method(profile, wish)[0].ms, 12) << "then by those that come first";
}

TEST(ChooseMethod, TakesTheFastestThatKeepsTheAnswers) {
  Profile profile = sample();
  auto found = choose_method(profile, {.tokens = 4000});
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(arm_text(found[0]), "lessismore:1024");
  EXPECT_DOUBLE_EQ(found[0].ms, 12);
  EXPECT_EQ(found[0].why_not, "");
  EXPECT_EQ(named(found, "tidal").why_not, "slower");
  EXPECT_DOUBLE_EQ(named(found, "full").ms, 18);
  EXPECT_EQ(arm_text(named(found, "kascade")), "kascade:10%,prefill=dense");

  row(profile, "lessismore", "vt").answers = 0.5;
  found = choose_method(profile, {.tokens = 4000});
  EXPECT_EQ(arm_text(found[0]), "tidal:512");
  EXPECT_EQ(named(found, "lessismore").why_not, "answers 50 % of vt, dense attention 100 %");
  EXPECT_DOUBLE_EQ(*named(found, "lessismore").answers, 0.5);

  row(profile, "tidal", "vt").answers = 0;
  found = choose_method(profile, {.tokens = 4000});
  EXPECT_EQ(found[0].method, "kascade");
  found = choose_method(profile, {.tokens = 2000});
  EXPECT_DOUBLE_EQ(found[0].ms, 12.5);
  EXPECT_EQ(found[0].method, "kascade");
  row(profile, "kascade", "single").answers = 0.75;
  EXPECT_EQ(choose_method(profile, {.tokens = 4000})[0].method, "full") << "nothing keeps the answers";
}

/// Each kind of task was asked so often, and the method lost so many of `single`.
void ask(Profile& profile, std::string_view method, int asked, int lost) {
  for (const char* task : {"single", "vt", "prose"}) row(profile, method, task).asked = asked;
  row(profile, method, "single").answers = 1 - static_cast<double>(lost) / asked;
}

TEST(ChooseMethod, OfManyQuestionsAFewMayBeLost) {
  Profile profile = sample();
  for (const char* method : {"tidal", "lessismore", "kascade"}) ask(profile, method, 25, 0);
  EXPECT_EQ(choose_method(profile, {.tokens = 4000})[0].method, "lessismore");
  ask(profile, "lessismore", 25, 2);
  ASSERT_EQ(allowed_losses(50), 2);
  auto found = choose_method(profile, {.tokens = 4000});
  EXPECT_EQ(found[0].method, "lessismore") << "12 ms, and the next takes 13.5";
  ask(profile, "lessismore", 25, 3);
  found = choose_method(profile, {.tokens = 4000});
  EXPECT_EQ(found[0].method, "tidal");
  EXPECT_EQ(named(found, "lessismore").why_not, "lost 3 of 50 answers, and 2 may be lost");
  ask(profile, "tidal", 12, 1);
  found = choose_method(profile, {.tokens = 4000});
  EXPECT_EQ(found[0].method, "kascade");
  EXPECT_EQ(named(found, "tidal").why_not, "lost 1 of 24 answers, and 0 may be lost");
}

TEST(ChooseMethod, OfTimesThatAreCloseTheFewestLossesCount) {
  Profile profile = sample();
  for (const char* method : {"tidal", "lessismore", "kascade"}) ask(profile, method, 25, 0);
  ask(profile, "lessismore", 25, 1);
  profile.speed->methods[0].time = {8.5, 1};  // 12.5 and 12 ms at 4,000 tokens
  auto found = choose_method(profile, {.tokens = 4000});
  EXPECT_EQ(found[0].method, "tidal");
  EXPECT_EQ(named(found, "lessismore").why_not, "lost 1 answers, and the other is about as fast");
  EXPECT_EQ(choose_method(profile, {.tokens = 4000, .quality = {.divergence = 1}})[0].method, "lessismore");
  profile.speed->methods[0].time = {9.5, 1};
  EXPECT_EQ(choose_method(profile, {.tokens = 4000})[0].method, "lessismore");
  profile.speed->dense = {4.5, 2};  // 12.5 ms, and dense attention loses none
  EXPECT_EQ(choose_method(profile, {.tokens = 4000})[0].method, "full");
}

TEST(ChooseMethod, OfEqualLossesTheLeastDivergenceInAnswersCounts) {
  Profile profile = sample();
  for (const char* method : {"tidal", "lessismore", "kascade"}) ask(profile, method, 25, 0);
  profile.speed->methods[0].time = {8.5, 1};  // 12.5 and 12 ms at 4,000 tokens
  row(profile, "tidal", "prose").divergence = 5;
  EXPECT_EQ(choose_method(profile, {.tokens = 4000})[0].method, "lessismore") << "of equals the faster one";
  row(profile, "lessismore", "single").divergence = 0.03;
  auto found = choose_method(profile, {.tokens = 4000});
  EXPECT_EQ(found[0].method, "tidal") << "prose is no answer";
  EXPECT_EQ(named(found, "lessismore").why_not, "KL 0.0200 in its answers, and the other, about as fast, has 0.0100");
  // Facts are answered too, though nobody says whether rightly.
  Kept facts = row(profile, "tidal", "vt");
  facts.task = plan::kFactsTask;
  facts.answers = 0;
  facts.divergence = 0.07;
  facts.asked = 8;
  profile.kept.push_back(facts);
  found = choose_method(profile, {.tokens = 4000});
  EXPECT_EQ(found[0].method, "lessismore");
  EXPECT_EQ(named(found, "tidal").why_not, "slower") << "nothing is lost";
  EXPECT_DOUBLE_EQ(named(found, "tidal").answer_divergence, 0.03);
  profile.speed->dense = {4.5, 2};  // 12.5 ms, without any
  EXPECT_EQ(choose_method(profile, {.tokens = 4000})[0].method, "full");
}

TEST(ChooseMethod, WhatTheRaceLeftOutIsNotTakenForItsAnswers) {
  Profile profile = sample();
  for (const char* method : {"tidal", "lessismore", "kascade"}) ask(profile, method, 25, 0);
  ask(profile, "lessismore", 3, 0);
  for (Kept& one : profile.kept) one.left_out = one.method == "lessismore";
  const auto found = choose_method(profile, {.tokens = 4000});
  EXPECT_EQ(found[0].method, "tidal");
  EXPECT_EQ(named(found, "lessismore").why_not, "left out after 6 questions, of which it lost 0");
  for (Kept& one : profile.kept) {
    if (one.method == "lessismore" && one.task == "vt") one.answers = 1.0 / 3;
  }
  EXPECT_EQ(named(choose_method(profile, {.tokens = 4000}), "lessismore").why_not,
            "left out after 6 questions, of which it lost 2; not for following variables");
  // Its KL is that of the questions that all were asked.
  EXPECT_EQ(choose_method(profile, {.tokens = 4000, .quality = {.divergence = 1}})[0].method, "lessismore");
}

TEST(ChooseMethod, NeverLosesToDenseAttention) {
  Profile profile = sample();
  profile.speed->dense = {1, 0.5};
  const auto found = choose_method(profile, {.tokens = 5000});
  EXPECT_EQ(found[0].method, "full");
  EXPECT_EQ(arm_text(found[0]), "full");
  EXPECT_EQ(found[0].why_not, "");
  for (std::size_t i = 1; i < found.size(); ++i) EXPECT_EQ(found[i].why_not, "slower");
}

TEST(ChooseMethod, ProseHasNoAnswers) {
  Profile profile = sample();
  row(profile, "lessismore", "prose").answers = 0;
  EXPECT_EQ(choose_method(profile, {.tokens = 4000})[0].method, "lessismore");
}

TEST(ChooseMethod, AKindThatDenseAttentionMissesIsHeldToItsText) {
  Profile profile = sample();
  for (const char* method : {"tidal", "lessismore", "kascade"}) {
    row(profile, method, "vt").answers = row(profile, method, "vt").dense = 0;
  }
  row(profile, "tidal", "vt").agreement = 0.95;
  const auto found = choose_method(profile, {.tokens = 4000});
  EXPECT_EQ(found[0].method, "tidal");
  EXPECT_THAT(named(found, "lessismore").why_not, HasSubstr("dense attention answers no vt, and 90 % of its text"));
  row(profile, "tidal", "vt").agreement.reset();
  EXPECT_EQ(choose_method(profile, {.tokens = 4000})[0].method, "full");
}

TEST(ChooseMethod, ByDivergenceTheMeanOverKindsCounts) {
  Profile profile = sample();
  row(profile, "lessismore", "vt").answers = 0;  // of no meaning here
  row(profile, "lessismore", "prose").divergence = 0.1;
  const double mean = (0.01 + 0.01 + 0.1) / 3;
  auto found = choose_method(profile, {.tokens = 4000, .quality = {.divergence = mean + 1e-9}});
  EXPECT_EQ(found[0].method, "lessismore");
  EXPECT_DOUBLE_EQ(found[0].divergence, mean);
  found = choose_method(profile, {.tokens = 4000, .quality = {.divergence = 0.02}});
  EXPECT_EQ(found[0].method, "tidal");
  EXPECT_EQ(named(found, "lessismore").why_not, "KL 0.0400 is above 0.02");
}

TEST(ChooseMethod, BudgetsCountAroundTheLengthThatTheyWereMeasuredAt) {
  const Profile profile = sample();  // at 4,000 tokens
  const auto at = [&](std::int64_t tokens) { return choose_method(profile, {.tokens = tokens}); };
  EXPECT_NE(named(at(5000), "tidal").why_not.substr(0, 8), "measured");
  EXPECT_THAT(named(at(5001), "tidal").why_not, HasSubstr("contexts of 4000 tokens, so 512 counts up to 5000"));
  EXPECT_EQ(at(30000)[0].method, "kascade");
  EXPECT_NE(named(at(2000), "kascade").why_not.substr(0, 8), "measured");
  EXPECT_THAT(named(at(1999), "kascade").why_not, HasSubstr("10% counts down to 2000"));
  EXPECT_EQ(at(1025)[0].method, "lessismore");
  EXPECT_EQ(at(1024)[0].method, "tidal") << "1,024 tokens of 1,024 are dense attention";
  EXPECT_DOUBLE_EQ(named(at(1024), "lessismore").ms, 10 + 2 * 1.024);
  EXPECT_EQ(at(10)[0].method, "full");
}

TEST(ChooseMethod, WhatCannotRunOrIsNotKnownIsLeftOut) {
  Profile profile = sample();
  profile.speed->methods.push_back({"quest", "512", "", {1, 0}});
  add(profile, {"of another program", "512", "", {1, 0}});
  const auto found = choose_method(profile, {.tokens = 4000});
  EXPECT_EQ(found[0].method, "lessismore");
  EXPECT_EQ(named(found, "quest").why_not, "its answers were not measured");
  EXPECT_EQ(named(found, "of another program").why_not, "no method of this program");
}

TEST(ChooseMethod, WithoutTimesTheCureIsSaid) {
  Profile profile = sample();
  profile.speed.reset();
  EXPECT_THAT(refusal([&] { choose_method(profile, {.tokens = 100}); }), HasSubstr("'glimpse calibrate -m MODEL'"));
}

/// The same choice without order or reasons.
std::string plain_choice(const Profile& profile, std::int64_t tokens) {
  const auto time = [&](const plan::TokenTime& t) {
    return t.fixed_ms + t.ms_per_1000 * static_cast<double>(tokens) / 1000;
  };
  struct One {
    std::string name;
    double ms, divergence;
  };
  std::vector<One> all{{"full", time(profile.speed->dense), 0}};
  for (const MethodTime& timed : profile.speed->methods) {
    // Else it is dense attention, or too small a share of the context to know.
    bool kept = std::stoi(timed.budget) < tokens && tokens <= 5 * profile.speed->tokens / 4;
    double divergence = 0;
    for (const Kept& one : profile.kept) {
      if (one.method != timed.method || one.budget != timed.budget || one.task == "prose") continue;
      kept = kept && one.answers >= one.dense;
      divergence += one.divergence / 2;
    }
    if (kept) all.push_back({timed.method + ":" + timed.budget, time(timed.time), divergence});
  }
  double fastest = all.front().ms;
  for (const One& one : all) fastest = std::min(fastest, one.ms);
  const One* best = nullptr;
  for (const One& one : all) {
    if (one.ms <= 1.1 * fastest && (best == nullptr || one.divergence < best->divergence)) best = &one;
  }
  return best->name;
}

TEST(ChooseMethod, IsThePlainSearchOnRandomProfiles) {
  std::mt19937_64 random(3);
  const auto uniform = [&](double high) { return std::uniform_real_distribution<double>(0, high)(random); };
  int sparse = 0;
  for (int i = 0; i < 500; ++i) {
    Profile profile;
    profile.speed = plan::SpeedProfile{"P", 2, "bf16", 4000, {uniform(12), uniform(2)}, {15, 3}, {}};
    for (const char* method : {"tidal", "omnikv", "evosparse"}) {
      for (const char* budget : {"512", "1024"}) add(profile, {method, budget, "", {uniform(10), uniform(2)}});
    }
    for (Kept& one : profile.kept) {
      one.answers = uniform(1) < 0.3 ? 0.5 : 1;
      one.divergence = uniform(0.1);
    }
    const std::int64_t tokens = 1000 + static_cast<std::int64_t>(random() % 7000);
    const std::string taken = arm_text(choose_method(profile, {.tokens = tokens})[0]);
    ASSERT_EQ(taken, plain_choice(profile, tokens)) << i;
    sparse += taken == "full" ? 0 : 1;
  }
  EXPECT_GT(sparse, 100);
}

// Drafts drawn one by one, as lossless decoding takes and rejects them.
TEST(Drafts, TimeOfATokenIsThatOfASimulation) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (const double acceptance : {0.0, 0.6, 0.95, 1.0}) {
    for (int drafts = 1; drafts <= plan::kVerifiedDrafts; ++drafts) {
      const DraftTimes times{2, 10, 14};
      double ms = 0;
      int tokens = 0;
      for (int cycle = 0; cycle < 40000; ++cycle) {
        ms += 2 * drafts + 10 + drafts;  // a verification grows by 1 ms with each draft
        int accepted = 0;
        while (accepted < drafts && uniform(random) < acceptance) ++accepted;
        tokens += accepted + 1;
      }
      EXPECT_NEAR(drafted_token_ms(times, acceptance, drafts), ms / tokens, 0.15) << acceptance << " " << drafts;
    }
  }
}

TEST(Drafts, TheOneWithTheFastestTokensIsTaken) {
  Profile profile = sample();
  for (Kept& one : profile.kept) one.agreement = one.method == "tidal" ? 0.99 : 0.2;
  row(profile, "tidal", "vt").answers = 0;  // dense attention verifies: what it keeps is of no meaning
  profile.speed->methods[0].time = {3, 0.2};
  profile.speed->methods[1].time = {2.9, 0.2};
  auto found = choose_method(profile, {.tokens = 16000, .drafts = true});
  EXPECT_EQ(found[0].method, "tidal");
  EXPECT_EQ(found[0].drafts, 4);
  // 4 drafts of 6.2 ms and a verification of 63 ms give 1 + 0.99 + ... tokens.
  const double tokens = (1 - std::pow(0.99, 5)) / (1 - 0.99);
  EXPECT_NEAR(found[0].ms, (4 * 6.2 + 63) / tokens, 1e-9);
  EXPECT_DOUBLE_EQ(named(found, "full").ms, 42);
  for (Kept& one : profile.kept) one.agreement = 0.1;
  EXPECT_EQ(choose_method(profile, {.tokens = 16000, .drafts = true})[0].method, "full") << "no draft pays";
  for (Kept& one : profile.kept) one.agreement.reset();
  found = choose_method(profile, {.tokens = 16000, .drafts = true});
  EXPECT_EQ(found[0].method, "full");
  EXPECT_EQ(named(found, "tidal").why_not, "its agreement with dense attention was not measured");
}

TEST(ParseQuality, TakesAnswersAndKl) {
  EXPECT_FALSE(parse_quality("answers").divergence);
  EXPECT_EQ(parse_quality("kl=0.05").divergence, 0.05);
  EXPECT_EQ(parse_quality("kl=0").divergence, 0);
  for (const char* bad : {"", "answer", "kl", "kl=", "kl=-1", "kl=nan", "kl=1e9", "kl=0.1x", "KL=1", "0.05"}) {
    EXPECT_THAT(refusal([&] { parse_quality(bad); }), HasSubstr("--attn-quality '" + std::string(bad) + "': give"));
  }
}

}  // namespace
}  // namespace glimpse::policies
