// Attention, scores and appending on the device against the reference.
#include <functional>

#include "device_bed.h"

namespace glimpse::kernels::cuda::test {
namespace {

using Score = CudaTest;
using Append = CudaTest;

using kernels::test::attend_on_host;
using kernels::test::Attended;
using kernels::test::score_on_host;
using kernels::test::Scored;

/// A length of which the kernel for much work is taken.
constexpr int kMany = 1 << 23;

class DeviceAttend {
 public:
  DeviceAttend(Stream& stream, const OperationsBed& bed, const std::vector<Read>& reads)
      : on_(stream, bed),
        reads_(stream, reads),
        slots_(stream, bed.set_slots),
        count_(stream, bed.set_count),
        out_(stream, std::vector<float>(bed.q.size(), kNan)),
        lse_(stream, std::vector<float>(bed.queries(), kNan)),
        narrow_(stream, bed.q.size()),
        scores_(stream, std::vector<float>(bed.queries() * bed.stride, kNan)),
        score_lse_(stream, std::vector<float>(bed.queries(), kNan)) {}

  AttendOp<Place::device> op() {
    return {on_.cache(),
            on_.rows(),
            on_.q(),
            on_.of.of.group,
            0.125F,
            reads_.constant(),
            {slots_.pointer(), count_.pointer(), on_.of.capacity, static_cast<int>(count_.size())},
            out_.pointer(),
            lse_.pointer(),
            narrow_.pointer(),
            {scores_.pointer(), score_lse_.pointer(), on_.of.stride}};
  }
  Attended made() const {
    return {out_.values(), lse_.values(), narrow_.values(), {scores_.values(), score_lse_.values()}};
  }
  DeviceBed& on() { return on_; }
  void poison() {
    out_.memory().fill(std::byte{0xff});
    lse_.memory().fill(std::byte{0xff});
    narrow_.memory().fill(std::byte{0xff});
    scores_.memory().fill(std::byte{0xff});
    score_lse_.memory().fill(std::byte{0xff});
  }

 private:
  DeviceBed on_;
  Array<Read> reads_;
  Array<std::int32_t> slots_, count_;
  Array<float> out_, lse_;
  Array<std::uint16_t> narrow_;
  Array<float> scores_, score_lse_;
};

class Attend : public CudaTest {
 protected:
  /// Five runs with the same bits, those of the reference but for rounding; whatever may be read early.
  void expect_five_alike(OperationsBed& bed, const std::vector<Read>& reads, int longest = 0) {
    const Attended want = attend_on_host(reference_, bed, reads);
    DeviceAttend device(*stream_, bed, reads);
    device.on().longest = longest;
    Attended first;
    constexpr int kFresh[] = {-1, 0, 100, 0, -1};
    for (int run = 0; run < 5; ++run) {
      device.on().fresh = kFresh[run];
      device.poison();
      operations_->attend(device.op());
      const Attended got = device.made();
      if (run == 0) {
        first = got;
        expect_near(got.out, want.out, kNear);
        expect_near(got.lse, want.lse, kNear);
        EXPECT_TRUE(got.narrowed());
        expect_near(got.left.scores, want.left.scores, kNear);
        expect_near(got.left.lse, want.left.lse, kNear);
      }
      EXPECT_TRUE(same_bits(got.out, first.out)) << "run " << run;
      EXPECT_TRUE(same_bits(got.left.scores, first.left.scores)) << "run " << run;
      EXPECT_TRUE(same_bits(got.lse, first.lse)) << "run " << run;
    }
  }
};

TEST_F(Attend, MixedReadsEqualTheReference) {
  each_case([&](OperationsBed& bed) {
    std::vector<Read> reads = mixed_reads(bed);
    const Attended want = attend_on_host(reference_, bed, reads);
    for (Read& read : reads) read.settled = 1;
    DeviceAttend device(*stream_, bed, reads);
    for (const int longest : {0, kMany}) {
      device.on().longest = longest;
      device.on().fresh = -1;
      device.poison();
      operations_->attend(device.op());
      const Attended got = device.made();
      expect_near(got.out, want.out, kNear);
      expect_near(got.lse, want.lse, kNear);
      expect_near(got.left.scores, want.left.scores, kNear);
      expect_near(got.left.lse, want.left.lse, kNear);
      EXPECT_TRUE(got.narrowed());
      for (const int fresh : {-1, 0, 100}) {
        device.on().fresh = fresh;
        device.poison();
        operations_->attend(device.op());
        EXPECT_TRUE(same_bits(device.made().out, got.out)) << "another run differs, fresh " << fresh;
        EXPECT_TRUE(same_bits(device.made().lse, got.lse)) << "another run differs, fresh " << fresh;
      }
    }
  });
}

/// Attention begins while the launches before it write the newest rows and choose a set: it reads both behind them.
void waits_for_what_comes(Stream& stream, Operations<Place::device>& operations, const OperationsCase& of) {
  OperationsBed bed(of, KvType::bf16, 5);
  const std::size_t heads = bed.row_heads.size();
  constexpr int kBlock = 100, kWanted = 4;
  bed.capacity = kWanted * kBlock;
  bed.set_slots.assign(heads * static_cast<std::size_t>(bed.capacity), 0);
  bed.set_count.assign(heads, 0);
  std::vector<Read> reads(heads);
  std::vector<Choice> choices;
  std::vector<float> scores[2] = {std::vector<float>(bed.queries() * bed.stride), {}};
  scores[1] = scores[0];
  for (std::size_t i = 0; i < heads; i += 2) {
    const auto set = static_cast<std::int32_t>(i);
    reads[i] = {.kind = Read::Kind::sets, .set = set};
    if (bed.row_heads[i].row % 5 == 4) {  // settled, beside others that are not
      reads[i].settled = 1;
      bed.set_count[i] = 33;
      for (int j = 0; j < 33; ++j) bed.set_slots[i * static_cast<std::size_t>(bed.capacity) + j] = j * 3;
      continue;
    }
    choices.push_back({.row = bed.row_heads[i].row,
                       .head = bed.row_heads[i].head,
                       .set = set,
                       .pooling = Pooling::max_score,
                       .wanted = kWanted,
                       .block = kBlock,
                       .tail_units = 1000});
  }
  for (std::size_t i = 0; i < scores[0].size(); ++i) {
    scores[0][i] = static_cast<float>(i % bed.stride);
    scores[1][i] = -scores[0][i];
  }
  std::vector<float> k[2] = {bed.k, bed.k}, v[2] = {bed.v, bed.v};
  for (float& x : k[1]) x *= -2;
  for (float& x : v[1]) x *= -2;
  DeviceAttend device(stream, bed, reads);
  const Array<Choice> device_choices(stream, choices);
  const Array<float> lse(stream, bed.queries());
  const Array<float> of_scores[2] = {{stream, scores[0]}, {stream, scores[1]}};
  const Array<float> of_k[2] = {{stream, k[0]}, {stream, k[1]}}, of_v[2] = {{stream, v[0]}, {stream, v[1]}};
  const auto queue = [&](int which) {
    const AttendOp<Place::device> op = device.op();
    operations.append({op.cache, op.rows, of_k[which].constant(), of_v[which].constant()});
    operations.select({op.cache,
                       op.rows,
                       op.group,
                       {of_scores[which].pointer(), lse.pointer(), bed.stride},
                       device_choices.constant(),
                       static_cast<int>(choices.size()),
                       op.sets});
    operations.attend(op);
  };
  std::vector<float> want[2];
  for (int which = 0; which < 2; ++which) {
    queue(which);
    want[which] = device.made().out;
  }
  ASSERT_FALSE(same_bits(want[0], want[1]));
  device.on().fresh = 2;
  for (int run = 0; run < 20; ++run) {
    device.poison();
    queue(run % 2);
    EXPECT_TRUE(same_bits(device.made().out, want[run % 2])) << "run " << run;
  }
}

TEST_F(Attend, WaitsForFreshRowsAndSetsThatAreNotSettled) {
  OperationsCase of{.name = "", .dim = 128, .kv_heads = 8, .group = 4, .lengths = {3000, 900}, .behind = {1, 2}};
  waits_for_what_comes(*stream_, *operations_, of);
  for (int i = 0; i < 20; ++i) of.lengths.push_back(900 + 7 * i);  // more heads than one warp looks at
  waits_for_what_comes(*stream_, *operations_, of);
}

TEST_F(Attend, EveryGroupUpToSeventeen) {
  for (int group = 1; group <= 17; ++group) {
    SCOPED_TRACE("group " + std::to_string(group));
    for (const KvType type : {KvType::bf16, KvType::q8_0}) {
      OperationsBed bed({.name = "", .dim = 128, .group = group, .lengths = {130, 40}}, type, 3);
      const std::vector<Read> reads = mixed_reads(bed);
      const Attended want = attend_on_host(reference_, bed, reads);
      DeviceAttend device(*stream_, bed, reads);
      operations_->attend(device.op());
      expect_near(device.made().out, want.out, kNear);
      expect_near(device.made().left.scores, want.left.scores, kNear);
      EXPECT_TRUE(device.made().narrowed());
    }
  }
}

TEST_F(Attend, WithoutLogSumsAndInAGraph) {
  OperationsBed bed({.name = "", .dim = 128, .group = 4, .lengths = {3000, 100}}, KvType::bf16, 5);
  const std::vector<Read> reads = mixed_reads(bed);
  const Attended want = attend_on_host(reference_, bed, reads);
  DeviceAttend device(*stream_, bed, reads);
  AttendOp<Place::device> op = device.op();
  op.lse = nullptr;
  op.narrow = nullptr;
  operations_->attend(op);
  const Attended eager = device.made();
  expect_near(eager.out, want.out, kNear);
  EXPECT_TRUE(std::isnan(eager.lse[0])) << "written though null";
  Graph graph(*stream_, [&] {
    operations_->attend(op);
    operations_->attend(op);
  });
  for (int run = 0; run < 3; ++run) {
    device.poison();
    graph.run();
    EXPECT_TRUE(same_bits(device.made().out, eager.out)) << "run " << run;
  }
}

TEST_F(Attend, FullSize) {
  for (const auto& [group, type] : {std::pair(4, KvType::bf16), {16, KvType::bf16}, {4, KvType::q8_0}}) {
    SCOPED_TRACE("group " + std::to_string(group));
    OperationsBed bed(
        {.name = "", .dim = 128, .kv_heads = 4, .group = group, .lengths = {131072, 70001}, .freed = 0.01}, type, 7);
    expect_five_alike(bed, mixed_reads(bed));
  }
}

TEST_F(Attend, RefusesWhatItHasNoKernelFor) {
  OperationsBed bed({.name = "", .lengths = {20}}, KvType::f32, 5);
  DeviceAttend device(*stream_, bed, mixed_reads(bed));
  EXPECT_THROW(operations_->attend(device.op()), std::runtime_error);
  EXPECT_THROW(require_supported({KvType::bf16, 72}), std::runtime_error);
}

/// One bed's scores against the reference, and again; whatever may be read before the launch before is through.
void expect_scores(Stream& stream, Operations<Place::device>& operations, const OperationsBed& bed) {
  ref::Operations reference;
  const Scored want = score_on_host(reference, bed);
  DeviceBed on(stream, bed);
  const Array<RowHead> heads(stream, bed.row_heads);
  const auto run = [&](int fresh) {
    on.fresh = fresh;
    const Array<float> scores(stream, std::vector<float>(want.scores.size(), kNan));
    const Array<float> lse(stream, std::vector<float>(want.lse.size(), kNan));
    operations.score({on.cache(),
                      on.rows(),
                      on.q(),
                      bed.of.group,
                      0.125F,
                      heads.constant(),
                      static_cast<int>(heads.size()),
                      {scores.pointer(), lse.pointer(), bed.stride}});
    return Scored{scores.values(), lse.values()};
  };
  const Scored got = run(-1);
  expect_near(got.scores, want.scores, kNear);
  expect_near(got.lse, want.lse, kNear);
  for (const int fresh : {-1, 0, 100}) {
    const Scored again = run(fresh);
    EXPECT_TRUE(same_bits(again.scores, got.scores)) << "fresh " << fresh;
    EXPECT_TRUE(same_bits(again.lse, got.lse)) << "fresh " << fresh;
  }
}

TEST_F(Score, EqualTheReferenceAndNothingBehindIsWritten) {
  each_case([&](const OperationsBed& bed) { expect_scores(*stream_, *operations_, bed); });
}

/// Enough work for ranges that go to whoever is free, of sequences of very different lengths.
OperationsBed much_work() {
  return {{.name = "",
           .kv_heads = 8,
           .group = 1,
           .lengths = {131072, 60000, 12000, 5000, 7000, 5000, 5000, 9000, 5000},
           .behind = {4, 3, 2, 1}},
          KvType::bf16,
          7};
}

/// Sequences that blocks take as wholes: one head a block, two, more than a block has threads, more than it lists at a
/// time, and more than shared memory has room for.
std::vector<OperationsCase> alike() {
  std::vector<OperationsCase> all;
  for (const int sequences : {12, 20, 33, 66, 300, 520}) {
    OperationsCase of{.name = "alike", .dim = 128, .kv_heads = 8, .group = sequences == 300 ? 2 : 4, .lengths = {}};
    for (int i = 0; i < sequences; ++i) of.lengths.push_back((sequences < 100 ? 200 : 49) + i * 5 % 16);
    all.push_back(of);
  }
  return all;
}

TEST_F(Score, WholesAndOneThatIsLonger) {
  for (OperationsCase& of : alike()) {
    SCOPED_TRACE(std::to_string(of.lengths.size()) + " sequences");
    expect_scores(*stream_, *operations_, {of, KvType::bf16, 3});
    of.lengths.back() = 700;
    expect_scores(*stream_, *operations_, {of, KvType::bf16, 3});
  }
}

TEST_F(Attend, WholesAndOneThatIsLonger) {
  for (OperationsCase& of : alike()) {
    SCOPED_TRACE(std::to_string(of.lengths.size()) + " sequences");
    OperationsBed bed(of, of.lengths.size() == 20 ? KvType::q8_0 : KvType::bf16, 3);
    const std::size_t heads = bed.row_heads.size(), group = static_cast<std::size_t>(of.group);
    bed.capacity = of.lengths.front() / 2;
    bed.set_slots.clear();
    bed.set_count.assign(heads * group, bed.capacity - 3);
    for (std::size_t set = 0; set < heads * group; ++set) {
      for (int j = 0; j < bed.capacity; ++j) bed.set_slots.push_back(j * 2);
    }
    const auto reads_of = [&](const std::function<bool(std::size_t)>& per_query) {
      std::vector<Read> reads(heads);
      for (std::size_t i = 0; i < heads; ++i) {
        reads[i] = {.kind = Read::Kind::sets,
                    .set = static_cast<std::int32_t>(i * group),
                    .per_query = per_query(i) ? 1 : 0,
                    .settled = static_cast<int>(i % 2)};
      }
      return reads;
    };
    expect_five_alike(bed, reads_of([](std::size_t) { return true; }));
    expect_five_alike(bed, reads_of([](std::size_t i) { return i % 3 == 0; }));  // not as many pieces of each head
    const std::vector<Read> reads = reads_of([](std::size_t) { return false; });
    expect_five_alike(bed, reads);
    bed.set_count.front() = 1;
    expect_five_alike(bed, reads);
    expect_five_alike(bed, std::vector<Read>(heads));  // everything
    expect_five_alike(bed, std::vector<Read>(heads, {.kind = Read::Kind::window, .sink = 20, .local = 70}));
  }
}

TEST_F(Score, FreeRanges) {
  expect_scores(*stream_, *operations_, much_work());
}

TEST_F(Attend, FreeRanges) {
  OperationsBed bed = much_work();
  const std::vector<Read> reads(bed.row_heads.size());  // everything
  bed.set_slots.assign(1, 0);
  bed.set_count.assign(1, 0);
  expect_five_alike(bed, reads);
}

TEST_F(Append, StoresTheBitsOfTheReference) {
  each_case([&](OperationsBed& bed) {
    const DeviceBed on(*stream_, bed);
    const Array<float> k(*stream_, bed.k), v(*stream_, bed.v);
    operations_->append({on.cache(), on.rows(), k.constant(), v.constant()});
    reference_.append({bed.cache(), bed.row_table(), bed.k.data(), bed.v.data()});
    EXPECT_TRUE(on.k_bytes() == bed.k_plane);
    EXPECT_TRUE(on.v_bytes() == bed.v_plane);
  });
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
