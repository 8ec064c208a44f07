// glimpse eval and glimpse bench: files, numbers and formats.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <sstream>

#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

struct Matrix {
  std::size_t rows = 0, columns = 0;
  std::vector<float> values;
};

Matrix read_npy(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  Matrix matrix;
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const std::size_t header = static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
  EXPECT_EQ((10 + header) % 64, 0u);
  const std::string dictionary = bytes.substr(10, header);
  EXPECT_NE(dictionary.find("'descr': '<f4', 'fortran_order': False"), std::string::npos) << dictionary;
  EXPECT_EQ(std::sscanf(dictionary.c_str() + dictionary.find("'shape'"), "'shape': (%zu, %zu)", &matrix.rows,
                        &matrix.columns),
            2);
  matrix.values.resize((bytes.size() - 10 - header) / sizeof(float));
  std::memcpy(matrix.values.data(), bytes.data() + 10 + header, matrix.values.size() * sizeof(float));
  EXPECT_EQ(matrix.values.size(), matrix.rows * matrix.columns);
  return matrix;
}

double most_difference(const Matrix& a, const Matrix& b, std::size_t first_row = 0) {
  double most = 0;
  for (std::size_t i = first_row * a.columns; i < a.values.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a.values[i]) - b.values[i]));
  }
  return most;
}

class Eval : public ::testing::Test {
 protected:
  void SetUp() override {
    text_ = scratch("text.txt").string();
    write_file(text_, prose(30));
  }
  Matrix logits(const std::vector<std::string>& more) {
    const auto path = scratch("logits.npy");
    std::vector<std::string> words{"eval", "logits", "-m",        model(), "-f", text_,
                                   "-o",   path,     "--kv-type", "f32",   "-t", "2"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_program(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    for (const auto& entry : std::filesystem::directory_iterator(path.parent_path())) {
      EXPECT_EQ(entry.path().string().find(".part"), std::string::npos) << entry.path();
    }
    return read_npy(path);
  }
  nlohmann::json perplexity(const std::vector<std::string>& more) {
    std::vector<std::string> words{"eval", "perplexity", "-m", model(), "-f", text_, "--kv-type", "f32", "-t", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return run_for_json(words);
  }
  std::string text_;
};

TEST_F(Eval, LogitsOfEveryPosition) {
  const Matrix all = logits({"--tokens", "60"});
  EXPECT_EQ(all.rows, 60u);
  EXPECT_EQ(all.columns, 512u);
  for (const float value : all.values) ASSERT_TRUE(std::isfinite(value));
  const Matrix decoded = logits({"--tokens", "60", "--prefill", "20"});
  EXPECT_LT(most_difference(all, decoded), 2e-2);
  const Matrix sparse = logits({"--tokens", "60", "--prefill", "20", "--attn", "tidal", "--attn-budget", "8"});
  EXPECT_LT(most_difference({20, 512, {sparse.values.begin(), sparse.values.begin() + 20 * 512}}, decoded), 1e-6);
  EXPECT_GT(most_difference(sparse, decoded, 20), 1e-3);
  const Matrix covered = logits({"--tokens", "60", "--prefill", "20", "--attn", "tidal", "--attn-budget", "60"});
  EXPECT_EQ(std::memcmp(covered.values.data(), decoded.values.data(), covered.values.size() * sizeof(float)), 0);
}

TEST_F(Eval, FidelityIsOfThePositionsThatWereDecoded) {
  const std::vector<std::string> words{"eval", "fidelity", "-m", model(),   "-f", text_,    "-t",
                                       "2",    "--prompt", "60", "--steps", "10", "--attn", "tidal"};
  auto sparse = words, covered = words;
  sparse.insert(sparse.end(), {"--attn-budget", "8", "--ranges", "3", "--json"});
  covered.insert(covered.end(), {"--attn-budget", "80", "--json"});
  const auto json = run_for_json(sparse);
  EXPECT_EQ(json["prompt_tokens"], 60);
  ASSERT_EQ(json["ranges"].size(), 3u);
  EXPECT_EQ(json["ranges"][0]["first_position"], 60);
  EXPECT_EQ(json["ranges"][2]["first_position"], 67);
  EXPECT_EQ(json["all"]["tokens"], 10);
  EXPECT_GT(json["all"]["kl"].get<double>(), 0);
  EXPECT_NE(json["all"]["perplexity"], json["all"]["dense_perplexity"]);
  EXPECT_LT(json["layers"].back()["coverage_min"].get<double>(), 1);
  EXPECT_EQ(json["attention"]["policy"], "tidal");
  EXPECT_EQ(run_for_json(covered)["all"]["kl"], 0) << "a budget that covers the text is dense attention";
  auto table = words;
  table.insert(table.end(), {"--attn-budget", "8"});
  const Outcome outcome = run_program(table);
  EXPECT_EQ(outcome.out.rfind("tidal: 10 tokens decoded after 60 read ", 0), 0u) << outcome.out;
  EXPECT_NE(outcome.out.find("| all | 10 | "), std::string::npos) << outcome.out;
}

TEST_F(Eval, PerplexityIsThatOfTheLogits) {
  constexpr std::size_t kWindow = 64;
  const auto json = perplexity({"--ctx", "64", "--chunks", "1"});
  const Matrix all = logits({"--tokens", "64"});
  const auto ids = run_for_json({"run", "-m", model(), "-f", text_, "--raw", "-n", "0"});
  ASSERT_GT(ids["prompt_tokens"].get<std::size_t>(), kWindow);
  EXPECT_EQ(json["tokens_scored"], 31);
  EXPECT_EQ(json["windows"], 1);
  EXPECT_GT(json["perplexity"].get<double>(), 1);
  EXPECT_GT(json["standard_error"].get<double>(), 0);
  // Without the token ids at hand: the perplexity lies between those of the likeliest and the unlikeliest tokens.
  double least = 0, most = 0;
  for (std::size_t row = 32; row < 63; ++row) {
    const float* values = all.values.data() + row * all.columns;
    double sum = 0;
    for (std::size_t i = 0; i < all.columns; ++i) sum += std::exp(static_cast<double>(values[i]));
    least += std::log(sum) - *std::max_element(values, values + all.columns);
    most += std::log(sum) - *std::min_element(values, values + all.columns);
  }
  EXPECT_GE(std::log(json["perplexity"].get<double>()), least / 31);
  EXPECT_LE(std::log(json["perplexity"].get<double>()), most / 31);
}

TEST_F(Eval, PerplexityThroughAPlan) {
  const auto dense = perplexity({"--ctx", "64"});
  const auto decoded = perplexity({"--ctx", "64", "--prefill", "16"});
  const auto sparse = perplexity({"--ctx", "64", "--prefill", "16", "--attn", "tidal", "--attn-budget", "8"});
  EXPECT_NEAR(dense["perplexity"].get<double>(), decoded["perplexity"].get<double>(),
              1e-3 * dense["perplexity"].get<double>());
  EXPECT_EQ(sparse["tokens_scored"], dense["tokens_scored"]);
  EXPECT_EQ(sparse["attention"]["dense_steps"], 0);
  EXPECT_EQ(decoded["attention"]["sparse_steps"], 0);
  EXPECT_EQ(decoded["attention"]["dense_steps"], 47 * decoded["windows"].get<int>());
  EXPECT_LT(sparse["attention"]["kept_ratio"], 1.0);
  EXPECT_NE(sparse["perplexity"], decoded["perplexity"]);
  const auto tiles =
      perplexity({"--ctx", "64", "--attn", "streaming", "--attn-budget", "16", "--attn-opt", "prefill=sparse,tile=24"});
  EXPECT_NE(tiles["perplexity"], dense["perplexity"]) << "a sparse prefill is the plan's, too";
  const Outcome text = run_program({"eval", "perplexity", "-m", model(), "-f", text_, "--ctx", "64"});
  EXPECT_EQ(text.out.rfind("perplexity ", 0), 0u) << text.out;
}

// All that `run` counts: an index that is read and held, and a tier.
TEST_F(Eval, PerplexityCountsIndicesAndTiers) {
  const auto json = perplexity({"--ctx", "128", "--prefill", "100", "--attn", "arkvale", "--attn-budget", "64"});
  const auto& attention = json["attention"];
  EXPECT_GT(attention["sparse_steps"].get<int>(), 0);
  EXPECT_GT(attention["index_bytes_read"].get<std::int64_t>(), 0);
  EXPECT_GT(attention["resident_hits"].get<std::int64_t>(), 0);
  EXPECT_GT(attention["resident_tokens"].get<std::int64_t>(), 0);
  EXPECT_LE(attention["resident_tokens"].get<std::int64_t>(), 128);
  // Windows come one after the other: what one of them held, 3 full pages of 32 of 127 tokens in a tile of 32, min
  // and max in f32.
  EXPECT_EQ(attention["index_memory"].get<std::int64_t>(), 2 * 2 * 32 * 2 * 32 * 4);
}

TEST(Bench, DecodeInEveryFormat) {
  const std::vector<std::string> words{"bench", "decode", "-m", model(),  "--depth",       "64,0", "-r",
                                       "2",     "-n",     "16", "--arms", "full,tidal:16", "-t",   "1"};
  const auto in = [&](const std::string& format) {
    auto all = words;
    all.insert(all.end(), {"--format", format});
    const Outcome outcome = run_program(all);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const auto json = nlohmann::json::parse(in("json"));
  for (const char* key : {"commit", "machine", "command", "model", "threads", "kv_type"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  ASSERT_EQ(json["rows"].size(), 4u);
  for (const auto& row : json["rows"]) {
    EXPECT_GT(row["median_ms"].get<double>(), 0);
    EXPECT_LE(row["least_ms"], row["median_ms"]);
    EXPECT_GE(row["most_ms"], row["median_ms"]);
    EXPECT_NEAR(row["tokens_per_s"].get<double>() * row["median_ms"].get<double>(), 1e3, 1e-6);
  }
  EXPECT_EQ(json["rows"][0]["arm"], "full");
  EXPECT_EQ(json["rows"][0]["tokens_before"], 0);
  EXPECT_EQ(json["rows"][2]["kept_ratio"], 1.0);
  EXPECT_LT(json["rows"][3]["kept_ratio"], 1.0);
  EXPECT_NE(in("md").find("| tidal:16 | 64 |"), std::string::npos);
  EXPECT_NE(in("csv").find("\ntidal:16,64,"), std::string::npos);
}

TEST(Bench, ABudgetWithALeastIsOneArm) {
  const Outcome outcome = run_program({"bench", "decode", "-m", model(), "--depth", "64", "-r", "1", "-n", "16",
                                       "--arms", "tidal:10%,min=24,full,tidal:16", "--format", "csv"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\n\"tidal:10%,min=24\",64,"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\nfull,64,"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\ntidal:16,64,"), std::string::npos) << outcome.out;
}

TEST(Bench, PrefillAndAttention) {
  const Outcome prefill =
      run_program({"bench", "prefill", "-m", model(), "--length", "32,96", "-r", "1", "--format", "json"});
  ASSERT_EQ(prefill.code, 0) << prefill.err;
  EXPECT_EQ(nlohmann::json::parse(prefill.out)["rows"][1]["tokens_before"], 96);
  const Outcome attention =
      run_program({"bench", "attention", "--depth", "700", "--rows", "100", "-r", "1", "--format", "json", "-t", "2"});
  ASSERT_EQ(attention.code, 0) << attention.err;
  const auto json = nlohmann::json::parse(attention.out);
  EXPECT_GT(json["read_bandwidth"].get<double>(), 0);
  ASSERT_EQ(json["rows"].size(), 2u);
  // K and V rows of 3 heads of 64 bf16 values, and the entries of the lists.
  EXPECT_EQ(json["rows"][0]["bytes"], 2 * 700 * 3 * 128);
  EXPECT_EQ(json["rows"][1]["bytes"], 100 * 3 * (2 * 128 + 4));
  for (const auto& row : json["rows"]) EXPECT_LT(row["error"].get<double>(), 1e-3);
}

}  // namespace
}  // namespace glimpse::cli
