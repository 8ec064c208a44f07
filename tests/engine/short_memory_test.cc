// Calls in which memory is short, at each allocation in turn: nothing is left half done.
#include "tests/support/short_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <new>

#include "glimpse/base/error.h"
#include "tests/engine/session_support.h"

namespace glimpse::engine {
namespace {

using glimpse::testing::ShortMemory;
using ::testing::HasSubstr;

constexpr Token kDamaged = 77;  ///< the token of damaged-embedding whose embedding holds a NaN

TEST(MemoryIsShort, WhereAPrefillIsCancelledThatNamesASession) {
  EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16, 1);
  options.prefill_chunk = 64;
  options.context = 256;
  options.sequences = 1;  // a request that gave nothing back leaves no room for the next
  Engine engine(options);
  const auto file = session_path("file");
  Request request;
  request.prompt = random_tokens(200, engine.tokenizer().size());
  request.plan = make(engine, "full");
  request.session = file;
  const std::string part = file.string() + ".part";
  std::filesystem::remove(part);
  bool met = true;
  int unsaved = 0;
  // nlohmann's JSON, in which the plan is written, ends the program where it gets no memory for a small value.
  constexpr std::size_t kLeast = 512;
  for (int passing = 0; met; ++passing) {
    ASSERT_LT(passing, 10'000);
    SCOPED_TRACE(passing);
    const RequestId id = engine.submit(request);
    ASSERT_TRUE(engine.step());
    {
      const ShortMemory memory({.passing = passing, .least_bytes = kLeast});
      engine.cancel(id);
      met = memory.met();
    }
    ASSERT_TRUE(engine.finished(id));
    const Result& result = engine.result(id);
    EXPECT_EQ(result.reason, FinishReason::cancelled);
    const SessionUse& use = *result.stats.session;
    EXPECT_EQ(use.saved_tokens, use.save_error.empty() ? 64 : 0) << use.save_error;
    EXPECT_EQ(std::filesystem::exists(file), use.save_error.empty());
    EXPECT_FALSE(std::filesystem::exists(part));
    if (!use.save_error.empty()) {
      EXPECT_THAT(use.save_error, HasSubstr("out of memory"));
      ++unsaved;
    }
    engine.release(id);
    std::filesystem::remove(file);
  }
  EXPECT_GT(unsaved, 5);
}

/// Of a UserError; of std::bad_alloc none.
std::string words_of(const std::exception_ptr& why) {
  try {
    std::rethrow_exception(why);
  } catch (const UserError& error) {
    return error.what();
  } catch (const std::bad_alloc&) {
    return "";
  }
}

TEST(MemoryIsShort, WhereLogitsAreNotFinite) {
  Engine calm_engine(options_for(reference::test_model("undamaged"), KvType::bf16, 1));
  std::vector<Token> tokens = random_tokens(40, calm_engine.tokenizer().size(), 4);
  for (Token& token : tokens) token += token == kDamaged ? 1 : 0;
  for (const bool lasting : {false, true}) {
    Engine engine(options_for(reference::test_model("damaged-embedding"), KvType::bf16, 1));
    Sequence sequence = engine.open(make(engine, "full")), calm = calm_engine.open(make(calm_engine, "full"));
    for (Sequence* each : {&sequence, &calm}) {
      each->prefill(tokens);
      each->decode(5);
    }
    int named = 0, unnamed = 0, short_of_all = 0;
    // Twice: what the weights hold is looked for until it is found.
    for (int round = 0; round < 2; ++round) {
      bool met = true;
      for (int passing = 0; met; ++passing) {
        ASSERT_LT(passing, 1'000);
        SCOPED_TRACE(passing);
        std::exception_ptr why;
        {
          const ShortMemory memory({.passing = passing, .lasting = lasting});
          try {
            sequence.decode(kDamaged);
          } catch (...) {
            why = std::current_exception();
          }
          met = memory.met();
        }
        ASSERT_TRUE(why) << "NaN is a logit";
        const std::string text = words_of(why);
        const bool names = text.find("weight [77, 5] of 'token_embd.weight'") != std::string::npos;
        const bool says = text.find("memory is too short to say where") != std::string::npos;
        EXPECT_TRUE(names || says || text.empty()) << text;
        ++(names ? named : says ? unnamed : short_of_all);
      }
    }
    EXPECT_EQ(sequence.length(), 41);
    EXPECT_TRUE(same_bits(sequence.decode(6), calm.decode(6)));
    EXPECT_GE(named, 2);
    EXPECT_GT(lasting ? short_of_all : unnamed, 0);
  }
}

}  // namespace
}  // namespace glimpse::engine
