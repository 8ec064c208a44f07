// Products of few rows against plain sums, by several threads at once.
#include <ggml-cpu.h>
#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "glimpse/exec/ggml/nodes.h"
#include "glimpse/exec/ggml/owned.h"
#include "tests/exec/quantised.h"
#include "tests/support/models.h"

namespace glimpse::exec {
namespace {

constexpr int kInputs = 256;

/// What a type's dot products round inputs of up to 4 by, for the square root of their number.
struct Type {
  ggml_type type;
  double allowed;
};
constexpr Type kTypes[] = {{GGML_TYPE_F32, 1e-5},  {GGML_TYPE_F16, 2e-3},  {GGML_TYPE_BF16, 1e-2},
                           {GGML_TYPE_Q8_0, 3e-2}, {GGML_TYPE_Q4_1, 3e-2}, {GGML_TYPE_Q4_K, 3e-2},
                           {GGML_TYPE_Q6_K, 3e-2}};

std::vector<float> normals(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

/// A weight [kInputs, outputs] as a node takes it.
struct Weight {
  Weight(ggml_type type, int outputs) : values(type, outputs, kInputs) {
    ggml_cpu_init();  // tables of 16-bit floats
    context = make_context(ggml_tensor_overhead() * 2);
    tensor = ggml_new_tensor_2d(context.get(), type, kInputs, outputs);
    tensor->data = values.bytes.data();
  }
  /// [rows, outputs]
  std::vector<double> times(const std::vector<double>& inputs) const {
    const std::vector<float>& read = values.read;
    std::vector<double> out;
    for (std::size_t row = 0; row < inputs.size(); row += kInputs) {
      for (std::size_t at = 0; at < read.size(); at += kInputs) {
        double sum = 0;
        for (std::size_t i = 0; i < kInputs; ++i) sum += inputs[row + i] * static_cast<double>(read[at + i]);
        out.push_back(sum);
      }
    }
    return out;
  }

  Quantised values;
  ContextPointer context;
  ggml_tensor* tensor = nullptr;
};

/// A node with its tensors, run again and again by any number of threads.
class Node {
 public:
  explicit Node(const Weight& weight) : weight_(weight.tensor) {
    context_ = make_context(ggml_tensor_overhead() * 16);
    data_.pass = &pass_;
  }

  ggml_tensor* tensor(std::vector<float>& values, std::int64_t width) {
    ggml_tensor* made =
        ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, width, static_cast<std::int64_t>(values.size()) / width);
    made->data = values.data();
    return made;
  }

  std::vector<float> run(void (*function)(ggml_tensor*, int, int, void*), const std::vector<ggml_tensor*>& sources,
                         int threads) {
    pass_.products.assign(static_cast<std::size_t>(threads), std::vector<std::byte>(few_rows_scratch(weight_)));
    ++pass_.run;
    std::vector<float> out(static_cast<std::size_t>(weight_->ne[1] * sources[0]->ne[1]),
                           std::numeric_limits<float>::quiet_NaN());
    ggml_tensor* dst = tensor(out, weight_->ne[1]);
    std::copy(sources.begin(), sources.end(), dst->src);
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([&, i] { function(dst, i, threads, &data_); });
    function(dst, 0, threads, &data_);
    for (std::thread& other : others) other.join();
    return out;
  }

  PassData& pass() { return pass_; }
  NodeData& data() { return data_; }

 private:
  ggml_tensor* weight_;
  ContextPointer context_;
  PassData pass_;
  NodeData data_;
};

void expect_near(const std::vector<float>& got, const std::vector<double>& want, double allowed) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), want[i], allowed * std::sqrt(double{kInputs})) << "output " << i;
  }
}

TEST(FewRows, OfEveryTypeAreThePlainSumsWithBitsThatDependOnNoThread) {
  for (const Type& type : kTypes) {
    for (const int outputs : {1, 3, 8, 1030}) {
      SCOPED_TRACE(testing::Message() << ggml_type_name(type.type) << " " << outputs);
      const Weight weight(type.type, outputs);
      Node node(weight);
      std::vector<float> inputs = normals(std::size_t{kFewRows} * kInputs, 5);
      ggml_tensor* input = node.tensor(inputs, kInputs);
      const std::vector<float> got = node.run(few_rows_node, {input, weight.tensor}, 1);
      expect_near(got, weight.times({inputs.begin(), inputs.end()}), type.allowed);
      for (const int threads : {2, 3, 8}) {
        EXPECT_EQ(node.run(few_rows_node, {input, weight.tensor}, threads), got) << threads << " threads";
      }
      std::vector<float> last(inputs.end() - kInputs, inputs.end());
      const std::vector<float> alone = node.run(few_rows_node, {node.tensor(last, kInputs), weight.tensor}, 2);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), got.end() - outputs)) << "one row in place of five";
    }
  }
}

TEST(FewRows, AreNormalisedWithTheResidualThatGrows) {
  const model::Model model(reference::test_model("llama"));
  const auto epsilon = static_cast<double>(model.config().rms_epsilon);
  const Weight weight(GGML_TYPE_F32, 77);
  std::vector<float> residual = normals(3 * kInputs, 7), delta = normals(3 * kInputs, 8), norm = normals(kInputs, 9);
  for (const bool add : {false, true}) {
    std::vector<double> rows;
    for (std::size_t row = 0; row < residual.size(); row += kInputs) {
      double squares = 0;
      const auto at = [&](std::size_t i) {
        return static_cast<double>(residual[row + i]) + (add ? static_cast<double>(delta[row + i]) : 0);
      };
      for (std::size_t i = 0; i < kInputs; ++i) squares += at(i) * at(i);
      const double scale = 1 / std::sqrt(squares / kInputs + epsilon);
      for (std::size_t i = 0; i < kInputs; ++i) rows.push_back(at(i) * scale * static_cast<double>(norm[i]));
    }
    for (const int threads : {1, 2, 5}) {
      SCOPED_TRACE(testing::Message() << threads << " threads, add " << add);
      Node node(weight);
      node.pass().model = &model;
      node.data().add = node.data().attended = add;
      node.pass().changes.assign(static_cast<std::size_t>(threads), std::vector<ChangeSum>(1));
      const std::vector<float> before = residual;
      std::vector<float> sum(residual.size());
      std::vector<ggml_tensor*> sources{node.tensor(residual, kInputs), weight.tensor, node.tensor(norm, kInputs)};
      if (add) sources.push_back(node.tensor(delta, kInputs));
      if (add) sources.push_back(node.tensor(sum, kInputs));
      expect_near(node.run(normalised_few_rows_node, sources, threads), weight.times(rows), 1e-5);
      EXPECT_EQ(residual, before) << "other threads read it";
      std::int64_t counted = 0;
      for (const auto& layers : node.pass().changes) counted += layers[0].rows;
      EXPECT_EQ(counted, add ? 3 : 0) << "each row once";
      for (std::size_t i = 0; add && i < sum.size(); ++i) ASSERT_EQ(sum[i], residual[i] + delta[i]);
    }
  }
}

}  // namespace
}  // namespace glimpse::exec
