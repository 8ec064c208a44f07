#include "fixture.h"
#include "glimpse/base/error.h"

namespace glimpse::kernels::test {
namespace {

struct Case {
  const char* name;
  int dim = 64;
  int group = 3;
  std::int32_t slots = 300;
  std::int32_t begin = 0, end = 300;
  float size = 1;    ///< of K and V entries
  double freed = 0;  ///< share of freed slots
  int every = 0;     ///< read a list of every n-th slot
  int run = 1;       ///< pages that lie together
};

const std::vector<Case>& cases() {
  static const std::vector<Case> table{
      {.name = "dim 16", .dim = 16},
      {.name = "dim 24", .dim = 24, .group = 2},
      {.name = "dim 80", .dim = 80},
      {.name = "dim 96", .dim = 96, .group = 4},
      {.name = "dim 128", .dim = 128, .group = 4},
      {.name = "dim 256", .dim = 256, .group = 2},
      {.name = "one query", .group = 1},
      {.name = "group 2", .group = 2},
      {.name = "group 4", .group = 4},
      {.name = "group 5", .group = 5},
      {.name = "group 7", .dim = 128, .group = 7},
      {.name = "group 8", .dim = 128, .group = 8},
      {.name = "group 16", .group = 16},
      {.name = "group 17", .group = 17},
      {.name = "group 32", .dim = 128, .group = 32, .freed = 0.3},
      {.name = "group 33", .dim = 256, .group = 33, .slots = 40, .begin = 3, .end = 40},
      {.name = "group 200", .group = 200, .slots = 90, .begin = 7, .end = 90},
      {.name = "group 33, gathered", .dim = 24, .group = 33, .begin = 1, .end = 97, .every = 3},
      {.name = "whole item", .slots = 512, .end = 512, .run = 16},
      {.name = "ragged ends", .begin = 37, .end = 211},
      {.name = "empty range", .begin = 100, .end = 100},
      {.name = "one token", .begin = 17, .end = 18},
      {.name = "last token", .slots = 1, .end = 1},
      {.name = "all zero", .size = 0},
      {.name = "large values", .size = 100},
      {.name = "tiny values", .size = 1e-12F},
      {.name = "some freed", .begin = 5, .end = 290, .freed = 0.3},
      {.name = "all freed", .freed = 1},
      {.name = "gathered", .end = 150, .every = 2},
      {.name = "gathered, ragged", .dim = 128, .group = 5, .begin = 11, .end = 97, .every = 3},
      {.name = "gathered, freed", .end = 100, .freed = 0.5, .every = 3},
  };
  return table;
}

class AttendTest : public KernelTest {};

struct Attended {
  Guarded<float> partial;
  Guarded<float> scores;
  Attended(const Case& c, std::size_t stride)
      : partial(partial_floats(c.group, c.dim)), scores(static_cast<std::size_t>(c.group) * stride) {}
};

void expect_near(const Guarded<float>& got, const Guarded<float>& want, std::size_t begin, std::size_t end,
                 double allowed) {
  for (std::size_t i = begin; i < end; ++i) {
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;  // poison that nobody may overwrite
    if (want[i] == got[i]) continue;                          // infinities too
    ASSERT_NEAR(got[i], want[i], allowed) << "at " << i;
  }
}

TEST_P(AttendTest, EqualsReference) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    for (const Case& c : cases()) {
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      TestHead head({type, c.dim}, c.slots, random_, c.run);
      head.fill(random_, type == KvType::f16 ? std::min(c.size, 10.0F) : c.size);
      if (c.freed > 0) head.free_some(random_, c.freed);
      const HeadView view = head.view();
      const auto query = normals(static_cast<std::size_t>(c.group * c.dim));
      std::vector<std::int32_t> list;
      for (std::int32_t slot = below(2); c.every > 0 && slot < c.slots; slot += c.every) list.push_back(slot);
      const auto stride = static_cast<std::size_t>(c.slots + 3);
      const float scale = 1.0F / std::sqrt(static_cast<float>(c.dim));
      AttendItem item{.head = &view,
                      .query = query.data(),
                      .group = c.group,
                      .scale = scale,
                      .begin = c.begin,
                      .end = std::min<std::int32_t>(c.end, c.every > 0 ? static_cast<int>(list.size()) : c.end),
                      .list = c.every > 0 ? list.data() : nullptr,
                      .score_stride = stride};
      Attended want(c, stride), got(c, stride);
      item.partial = want.partial.data();
      item.scores = want.scores.data();
      ref::attend(head.format, item);
      item.partial = got.partial.data();
      item.scores = got.scores.data();
      attend(head.format, item);
      const Tolerance allowed = tolerance(head, query, scale);
      const auto outputs = static_cast<std::size_t>(c.group * c.dim);
      expect_near(got.scores, want.scores, 0, got.scores.size(), allowed.score);
      expect_near(got.partial, want.partial, 0, outputs, allowed.out);
      expect_near(got.partial, want.partial, outputs, got.partial.size(), allowed.score + 1e-5);
      EXPECT_TRUE(got.partial.guards_intact());
      EXPECT_TRUE(got.scores.guards_intact());
      if (c.every > 0) continue;
      Guarded<float> only(got.scores.size());
      score(head.format, {.head = &view,
                          .query = query.data(),
                          .group = c.group,
                          .scale = scale,
                          .begin = item.begin,
                          .end = item.end,
                          .scores = only.data(),
                          .score_stride = stride});
      EXPECT_EQ(std::memcmp(only.data(), got.scores.data(), only.size() * sizeof(float)), 0)
          << "score() and attend() must give the same bits";
      EXPECT_TRUE(only.guards_intact());
    }
  }
}

TEST_P(AttendTest, ListOfAllSlotsGivesTheBitsOfDense) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    TestHead head({type, 64}, 1000, random_, 16);
    head.fill(random_);
    const HeadView view = head.view();
    const auto query = normals(3 * 64);
    std::vector<std::int32_t> all(1000);
    std::iota(all.begin(), all.end(), 0);
    Guarded<float> dense(partial_floats(3, 64)), listed(partial_floats(3, 64));
    AttendItem item{.head = &view, .query = query.data(), .group = 3, .scale = 0.125F, .begin = 488, .end = 1000};
    item.partial = dense.data();
    attend(head.format, item);
    item.partial = listed.data();
    item.list = all.data();
    attend(head.format, item);
    EXPECT_EQ(std::memcmp(dense.data(), listed.data(), dense.size() * sizeof(float)), 0);
  }
}

TEST_P(AttendTest, TheHintOfWhatComesNextChangesNoBit) {
  for (const KvType type : {KvType::f32, KvType::q8_0}) {
    TestHead head({type, 64}, 700, random_), other({type, 64}, 90, random_);
    head.fill(random_);
    other.fill(random_);
    other.free_some(random_, 0.5);
    const HeadView view = head.view(), other_view = other.view();
    const auto query = normals(3 * 64);
    std::vector<std::int32_t> list;
    for (std::int32_t slot = 0; slot < 700; slot += 2) list.push_back(slot);
    Guarded<float> alone(partial_floats(3, 64)), hinted(partial_floats(3, 64));
    const AttendItem few{.head = &other_view, .query = query.data(), .group = 3, .begin = 7, .end = 90};
    const AttendItem none{.head = &other_view, .query = query.data(), .group = 3, .begin = 7, .end = 7};
    for (const bool gathered : {false, true}) {
      AttendItem item{.head = &view, .query = query.data(), .group = 3, .scale = 0.125F, .begin = 3, .end = 340};
      item.list = gathered ? list.data() : nullptr;
      item.partial = alone.data();
      attend(head.format, item);
      item.partial = hinted.data();
      for (const AttendItem* next : {&few, &none, static_cast<const AttendItem*>(&item)}) {
        item.next = next;
        attend(head.format, item);
        EXPECT_EQ(std::memcmp(alone.data(), hinted.data(), alone.size() * sizeof(float)), 0);
      }
    }
    EXPECT_TRUE(hinted.guards_intact());
  }
}

TEST_P(AttendTest, ScoresDependOnTheSlotAlone) {
  TestHead head({KvType::bf16, 128}, 600, random_);
  head.fill(random_);
  const HeadView view = head.view();
  for (const int group : {1, 3, 5, 8}) {
    const auto query = normals(static_cast<std::size_t>(group) * 128);
    const std::size_t all = static_cast<std::size_t>(group) * 600;
    Guarded<float> whole(all), parts(all);
    const ScoreItem item{.head = &view,
                         .query = query.data(),
                         .group = group,
                         .scale = 0.1F,
                         .begin = 0,
                         .end = 600,
                         .scores = whole.data(),
                         .score_stride = 600};
    score(head.format, item);
    ScoreItem part = item;
    part.scores = parts.data();
    for (std::int32_t at = 0; at < 600; at = part.end) {
      part.begin = at;
      part.end = std::min(600, at + 1 + below(90));
      score(head.format, part);
    }
    EXPECT_EQ(std::memcmp(whole.data(), parts.data(), all * sizeof(float)), 0);
  }
}

TEST_P(AttendTest, CombineEqualsReferenceAndOneRange) {
  TestHead head({KvType::f32, 64}, 1500, random_);
  head.fill(random_);
  const HeadView view = head.view();
  const int group = 3;
  const auto query = normals(3 * 64);
  std::vector<float> partials;
  for (std::int32_t at = 0; at < 1500; at += kSplitTokens) {
    std::vector<float> partial(partial_floats(group, 64));
    attend(head.format, {.head = &view,
                         .query = query.data(),
                         .group = group,
                         .scale = 0.125F,
                         .begin = at,
                         .end = std::min(1500, at + kSplitTokens),
                         .partial = partial.data()});
    partials.insert(partials.end(), partial.begin(), partial.end());
  }
  Guarded<float> whole(partial_floats(group, 64)), want(3 * 64), got(3 * 64);
  ref::attend(head.format, {.head = &view,
                            .query = query.data(),
                            .group = group,
                            .scale = 0.125F,
                            .begin = 0,
                            .end = 1500,
                            .partial = whole.data()});
  ref::combine(partials.data(), 3, group, 64, want.data());
  combine(partials.data(), 3, group, 64, got.data());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 1e-6);
    EXPECT_NEAR(got[i], whole[i], 1e-5);
  }
  EXPECT_TRUE(got.guards_intact());
}

TEST_P(AttendTest, CombineOfOnePartialIsThatPartial) {
  auto partial = normals(partial_floats(2, 80));
  std::vector<float> out(160);
  combine(partial.data(), 1, 2, 80, out.data());
  EXPECT_EQ(std::memcmp(out.data(), partial.data(), out.size() * sizeof(float)), 0);
  // An empty partial in front changes no bit; nothing at all gives zeros.
  std::vector<float> two(2 * partial.size(), 0.0F);
  two[160] = two[161] = -kInfinity;
  std::copy(partial.begin(), partial.end(), two.begin() + static_cast<std::ptrdiff_t>(partial.size()));
  combine(two.data(), 2, 2, 80, out.data());
  EXPECT_EQ(std::memcmp(out.data(), partial.data(), out.size() * sizeof(float)), 0);
  combine(two.data(), 1, 2, 80, out.data());
  EXPECT_EQ(out, std::vector<float>(160, 0.0F));
}

TEST_P(AttendTest, NanInAQueryShows) {
  TestHead head({KvType::bf16, 64}, 40, random_);
  head.fill(random_);
  const HeadView view = head.view();
  auto query = normals(2 * 64);
  query[70] = kNan;
  std::vector<float> partial(partial_floats(2, 64));
  attend(
      head.format,
      {.head = &view, .query = query.data(), .group = 2, .scale = 1, .begin = 0, .end = 40, .partial = partial.data()});
  EXPECT_TRUE(std::isfinite(partial[5]));
  EXPECT_TRUE(std::isnan(partial[64 + 5]));
}

TEST_P(AttendTest, RefusesWhatItsArraysDoNotHold) {
  const HeadView view;
  const std::vector<float> query(512);
  std::vector<float> out(513);
  for (const int dim : {0, 4, 12, 264, 512}) {
    const AttendItem attended{.head = &view, .query = query.data(), .partial = out.data()};
    const ScoreItem scored{.head = &view, .query = query.data(), .scores = out.data()};
    EXPECT_THROW(attend({KvType::f32, dim}, attended), InternalError) << dim;
    EXPECT_THROW(score({KvType::f32, dim}, scored), InternalError) << dim;
    EXPECT_THROW(append({KvType::f32, dim}, {.head = &view, .k = out.data(), .v = out.data()}), InternalError) << dim;
  }
  EXPECT_THROW(attend({KvType::f32, 64}, {.head = &view, .query = query.data(), .group = 0, .partial = out.data()}),
               InternalError);
  EXPECT_THROW(score({KvType::f32, 64}, {.head = &view, .query = query.data(), .group = 0, .scores = out.data()}),
               InternalError);
}

INSTANTIATE_TEST_SUITE_P(Targets, AttendTest, testing::ValuesIn(machine_targets()), target_label);

}  // namespace
}  // namespace glimpse::kernels::test
