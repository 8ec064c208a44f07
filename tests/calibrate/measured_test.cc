// What was measured as text, and a calibration that goes on from it.
#include "glimpse/calibrate/measured.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "glimpse/calibrate/calibrate.h"
#include "glimpse/policies/policy.h"
#include "tests/calibrate/without_times.h"
#include "tests/engine/support.h"

namespace glimpse::calibrate {
namespace {

TEST(Measured, IsTheSameAfterARoundTrip) {
  std::mt19937_64 random(4);
  Measured measured(0x0123456789abcdef);
  std::vector<std::uint64_t> keys{0, std::numeric_limits<std::uint64_t>::max()};
  for (int i = 0; i < 50; ++i) keys.push_back(random());
  for (const std::uint64_t key : keys) {
    std::vector<double> values(random() % 5);
    for (double& value : values) value = std::normal_distribution<double>(0, 1e-3)(random);
    measured.add(key, values);
  }
  const std::optional<Measured> read = Measured::parse(measured.text(), measured.of());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->text(), measured.text());
  for (const std::uint64_t key : keys) {
    for (std::size_t count = 0; count < 5; ++count) EXPECT_EQ(read->find(key, count), measured.find(key, count));
  }
  EXPECT_FALSE(read->find(12345, 3));
}

TEST(Measured, RefusesWhatIsBrokenOrOfSomethingElse) {
  Measured measured(7);
  measured.add(1, {0.5, 2});
  const std::string good = measured.text();
  ASSERT_TRUE(Measured::parse(good, 7));
  EXPECT_FALSE(Measured::parse(good, 8));
  EXPECT_TRUE(Measured::is_text(good));
  EXPECT_FALSE(Measured::is_text("my notes"));
  std::string later = good;
  later.replace(later.find(" 1 "), 3, " 12 ");  // another version's: may be replaced, and is not read
  EXPECT_TRUE(Measured::is_text(later));
  EXPECT_FALSE(Measured::parse(later, 7));
  for (std::size_t length = 0; length < good.size(); ++length) EXPECT_FALSE(Measured::parse(good.substr(0, length), 7));
  for (const auto& [from, to] : {std::pair{"0.5", "x"}, {"0.5", "0.5.5"}, {"end\n", "end\nend\n"}, {" 0.5", "  0.5"}}) {
    std::string bad = good;
    bad.replace(bad.find(from), std::string_view(from).size(), to);
    EXPECT_FALSE(Measured::parse(bad, 7)) << bad;
  }
  std::mt19937_64 random(9);
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    text[random() % text.size()] = static_cast<char>(random());
    if (const auto read = Measured::parse(text, 7)) {
      EXPECT_EQ(Measured::parse(read->text(), 7)->size(), read->size());
    }
  }
}

TEST(Measured, AnInterruptedCalibrationGoesOnToTheSameProfile) {
  engine::EngineOptions how = engine::options_for(reference::test_model("short"));
  how.sequences = study_sequences(how.context);
  engine::Engine engine(how);
  CalibrationOptions options;
  options.study.length = 1208;
  std::int64_t calls = 0;
  options.on_progress = [&](std::int64_t, std::int64_t) { return ++calls > 0; };
  Measured uninterrupted(1), measured(1);
  options.measured = &uninterrupted;
  const plan::Profile whole = calibrate(engine, options)->profile;
  const std::int64_t all = calls;

  options.measured = &measured;
  calls = 0;
  options.on_progress = [&](std::int64_t, std::int64_t) { return ++calls < all * 3 / 4; };
  EXPECT_FALSE(calibrate(engine, options));
  EXPECT_GT(measured.size(), 0u);

  std::optional<Measured> read = Measured::parse(measured.text(), 1);
  ASSERT_TRUE(read);
  const std::size_t before = read->size();
  options.measured = &*read;
  calls = 0;
  options.on_progress = [&](std::int64_t, std::int64_t) { return ++calls > 0; };
  const plan::Profile again = calibrate(engine, options)->profile;
  EXPECT_LT(calls, all) << "nothing was left out";
  EXPECT_GE(read->size(), before);
  EXPECT_EQ(without_times(again), without_times(whole));
}

}  // namespace
}  // namespace glimpse::calibrate
