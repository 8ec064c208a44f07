// The scheduler by itself: whole lives of random requests in a small cache, against what must hold in every step.
#include "glimpse/engine/requests/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

namespace glimpse::engine {
namespace {

constexpr std::int64_t kPage = 4, kChunk = 16;

std::int64_t pages_of(std::int64_t tokens) {
  return (tokens + kPage - 1) / kPage;
}

struct Life {
  std::int64_t prompt = 0, answer = 0, arrives = 0;
  std::int64_t tokens = 0;  ///< done
  bool running = false, away = false;
  std::int64_t served = 0;
  bool over() const { return tokens == prompt + answer; }
  std::int64_t held() const { return away ? 0 : pages_of(tokens); }
  std::int64_t chunk() const { return std::min(kChunk, prompt - tokens); }
};

struct World {
  std::vector<Life> lives;
  std::int64_t pages = 0;
  int step_rows = kChunk;
  std::int64_t step = 0, preemptions = 0, most_running = 0;

  std::int64_t free_pages() const {
    return std::accumulate(lives.begin(), lives.end(), pages,
                           [](std::int64_t left, const Life& life) { return left - (life.over() ? 0 : life.held()); });
  }
  std::vector<Life*> live() {
    std::vector<Life*> list;
    for (Life& life : lives) {
      if (life.arrives <= step && !life.over()) list.push_back(&life);
    }
    return list;
  }
  static std::int64_t growth(const Life& life, std::int64_t rows) {
    return pages_of(life.tokens + rows) - pages_of(life.tokens);
  }
  static Job job(const Life& life) {
    Job job;
    const bool prefills = life.tokens < life.prompt;
    job.phase = !life.running ? Job::Phase::waiting : prefills ? Job::Phase::prefill : Job::Phase::decode;
    job.rows = static_cast<int>(prefills ? life.chunk() : 1);
    job.pages = growth(life, job.rows);
    job.ahead = (life.away ? pages_of(life.tokens) : 0) + (prefills ? growth(life, life.prompt - life.tokens) : 0);
    job.holds = life.held() > 0;
    job.served = life.served;
    return job;
  }
  /// One step of the engine. False: nothing ran.
  bool run();
  void check_pass(const std::vector<Life*>& list, const std::vector<Job>& jobs, const Schedule& next);
};

bool World::run() {
  Room room;
  room.answer_pages = 1;
  room.step_rows = step_rows;
  for (int asked = 0;; ++asked) {
    EXPECT_LT(asked, 1000);
    const std::vector<Life*> list = live();
    std::vector<Job> jobs;
    for (const Life* life : list) jobs.push_back(job(*life));
    room.free_pages = free_pages();
    const Schedule next = schedule(jobs, room);
    if (next.preempt) {
      Life& life = *list.at(*next.preempt);
      EXPECT_NE(*next.preempt, 0U) << "the oldest keeps its pages";
      EXPECT_TRUE(jobs[*next.preempt].holds);
      for (std::size_t i = *next.preempt + 1; i < jobs.size(); ++i) EXPECT_FALSE(jobs[i].holds) << "the newest goes";
      life.running = false;
      life.away = true;
      room.admits = false;
      ++preemptions;
    } else if (next.begin) {
      Life& life = *list.at(*next.begin);
      for (std::size_t i = 0; i < *next.begin; ++i) EXPECT_TRUE(list[i]->running) << "whoever came first begins first";
      EXPECT_LE(jobs[*next.begin].ahead, room.free_pages);
      life.running = true;
      life.away = false;
      life.served = step;
    } else {
      check_pass(list, jobs, next);
      for (const std::size_t i : next.decode) ++list[i]->tokens;
      for (const std::size_t i : next.prefill) {
        list[i]->tokens += list[i]->chunk();
        list[i]->served = step + 1;
      }
      EXPECT_GE(free_pages(), 0);
      ++step;
      return !next.decode.empty() || !next.prefill.empty();
    }
  }
}

void World::check_pass(const std::vector<Life*>& list, const std::vector<Job>& jobs, const Schedule& next) {
  EXPECT_FALSE(next.full) << "each fits alone";
  std::int64_t pages_wanted = 0, rows = 0, decoding = 0, running = 0;
  for (const Job& job : jobs) {
    decoding += job.phase == Job::Phase::decode;
    running += job.phase != Job::Phase::waiting;
  }
  most_running = std::max(most_running, running);
  EXPECT_EQ(static_cast<std::int64_t>(next.decode.size()), decoding) << "no stream waits for a prompt";
  for (const std::size_t i : next.decode) {
    EXPECT_EQ(jobs[i].phase, Job::Phase::decode);
    pages_wanted += jobs[i].pages;
    ++rows;
  }
  std::int64_t first_served = -1;
  for (const std::size_t i : next.prefill) {
    EXPECT_EQ(jobs[i].phase, Job::Phase::prefill);
    EXPECT_GE(jobs[i].served, first_served) << "in turn";
    first_served = jobs[i].served;
    pages_wanted += jobs[i].pages;
    EXPECT_TRUE(i == next.prefill.front() || rows + jobs[i].rows <= step_rows);
    rows += jobs[i].rows;
  }
  EXPECT_LE(pages_wanted, free_pages());
  if (!list.empty()) {
    EXPECT_GT(rows, 0) << "somebody gets on";
  }
}

TEST(Scheduler, AllOfRandomLivesEndInASmallCache) {
  std::mt19937 random(11);
  std::int64_t preemptions = 0;
  for (int round = 0; round < 300; ++round) {
    World world;
    world.step_rows = static_cast<int>(1 + random() % 64);
    std::int64_t longest = 0, work = 0;
    for (int i = 0; i < 12; ++i) {
      Life life;
      life.prompt = 1 + random() % 120;
      life.answer = 1 + random() % 60;
      life.arrives = random() % 40;
      longest = std::max(longest, pages_of(life.prompt + life.answer));
      work += life.prompt / kChunk + 1 + life.answer;
      world.lives.push_back(life);
    }
    std::sort(world.lives.begin(), world.lives.end(),
              [](const Life& a, const Life& b) { return a.arrives < b.arrives; });
    world.pages = longest + random() % (2 * longest);
    while (!world.live().empty() || world.step < 40) {
      world.run();
      ASSERT_LE(world.step, work + 40) << "something gets on in every step";
      ASSERT_FALSE(HasFailure()) << "round " << round << ", step " << world.step;
    }
    preemptions += world.preemptions;
  }
  EXPECT_GT(preemptions, 100);
}

TEST(Scheduler, PromptsTakeTurns) {
  World world;
  world.pages = 1000;
  world.step_rows = kChunk;
  for (int i = 0; i < 4; ++i) world.lives.push_back({10 * kChunk, 3, i, 0, false, false, 0});
  std::map<const Life*, std::int64_t> waited;
  while (!world.live().empty()) {
    std::map<const Life*, std::int64_t> before;
    for (const Life& life : world.lives) before[&life] = life.tokens;
    ASSERT_TRUE(world.run());
    for (const Life& life : world.lives) {
      const bool waits = life.running && life.tokens < life.prompt && life.tokens == before[&life];
      waited[&life] = waits ? waited[&life] + 1 : 0;
      EXPECT_LE(waited[&life], 3) << "no more than one chunk of each other prompt";
    }
  }
  EXPECT_EQ(world.most_running, 4);
  EXPECT_EQ(world.preemptions, 0);
}

TEST(Scheduler, NewPromptsDoNotPassOneThatWaitsForItsTurn) {
  World world;
  world.pages = 1000;
  world.lives.push_back({20 * kChunk, 1, 0, 0, false, false, 0});
  for (int i = 1; i < 60; ++i) world.lives.push_back({kChunk, 1, i / 2, 0, false, false, 0});
  for (int step = 0; step < 60 && world.lives.front().tokens < world.lives.front().prompt; ++step) world.run();
  // Two come in a step and one goes: without turns the first would wait for all of them.
  EXPECT_GT(world.lives.front().tokens, 2 * kChunk);
}

TEST(Scheduler, OneThatFitsLaterWaitsAndOneThatFitsAloneBegins) {
  const Job decodes{Job::Phase::decode, 1, 2, 0, true, 0};
  const Job waits{Job::Phase::waiting, 16, 0, 50, false, 0};
  EXPECT_FALSE(schedule(std::vector{decodes, waits}, {55, 4, 16, true}).begin);  // 4 + 50 + 4
  EXPECT_EQ(schedule(std::vector{decodes, waits}, {58, 4, 16, true}).begin, 1U);
  EXPECT_FALSE(schedule(std::vector{decodes, waits}, {58, 4, 16, false}).begin);
  EXPECT_EQ(schedule(std::vector{waits}, {10, 4, 16, true}).begin, 0U);
  // Behind it another holds pages of a session.
  EXPECT_EQ(schedule(std::vector{waits, Job{Job::Phase::waiting, 1, 0, 3, true, 0}}, {10, 4, 16, true}).preempt, 1U);
}

TEST(Scheduler, SaysWhenTheOldestAloneDoesNotFit) {
  const Job decodes{Job::Phase::decode, 1, 5, 0, true, 0};
  EXPECT_TRUE(schedule(std::vector{decodes}, {4, 4, 16, true}).full);
  EXPECT_FALSE(schedule(std::vector{decodes}, {5, 4, 16, true}).full);
  const Job prefills{Job::Phase::prefill, 16, 5, 9, true, 0};
  EXPECT_TRUE(schedule(std::vector{prefills}, {4, 4, 16, true}).full);
}

}  // namespace
}  // namespace glimpse::engine
