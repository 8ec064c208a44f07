// Products of few rows with quantised and bf16 weights on a GPU, by type and rows, as a share of what plain reads reach
// beside them: the four matrices of a layer alone, then what lies between the attention of two layers, with norms
// between the products and inside them. Weights are random, of as many layers as do not fit into the cache of the
// device. Before anything is timed, some sums are compared with those of the unpacked weights.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/cuda_results.h"
#include "glimpse/base/dtype.h"
#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/cuda/few_rows.h"
#include "glimpse/kernels/cuda/layers.h"
#include "glimpse/kernels/cuda/readings.h"
#include "glimpse/kernels/cuda/wide_rows.h"

namespace glimpse::bench {
namespace {

using Json = nlohmann::ordered_json;
using namespace kernels::cuda;  // NOLINT(google-build-using-namespace): what is measured, word by word

constexpr int kLayers = 6, kRounds = 9, kCheckedRows = 3;

struct Type {
  const char* name;
  Packing packing;
};
constexpr Type kTypes[] = {{"q4_0", {4, Scales::block}},        {"q4_k", {4, Scales::super_offset}},
                           {"q5_k", {5, Scales::super_offset}}, {"q6_k", {6, Scales::super_signed}},
                           {"q8_0", {8, Scales::block}},        {"bf16", kBf16Rows}};

struct Wanted {
  std::vector<std::string> types{"q4_k", "q6_k", "q8_0", "bf16"};
  std::vector<int> rows{1, 2, 4, 8, 16, 32, 64};
  int hidden = 4096, feed_forward = 14336, attended = 4096, qkv = 6144;
  std::string json, command;
};

/// Random integers; scales of about one in f16, so that sums are finite.
std::vector<std::uint32_t> random_words(const PackedLayout& layout, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint32_t> words(layout.words());
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
  if (layout.packing.in_rows()) {  // between 2^-7 and 2, of both signs
    for (std::uint32_t& word : words) word = 0x3c003c00U | (word & 0x83ff83ffU);
    return words;
  }
  const bool halves = layout.packing.scales == Scales::block || layout.packing.scales == Scales::block_offset;
  for (std::size_t at = 0; at < words.size(); at += layout.super_words()) {
    for (std::size_t i = halves ? layout.scales() : layout.more(); i < layout.super_words(); ++i) {
      words[at + i] = 0x2c002c00U | (words[at + i] & 0x00ff00ffU);
    }
  }
  return words;
}

struct Shape {
  const char* name;
  int outputs, inputs;
};

class Bench {
 public:
  explicit Bench(Wanted wanted)
      : wanted_(std::move(wanted)),
        device_(devices().front()),
        stream_(device_.number),
        shapes_{{"output", wanted_.hidden, wanted_.attended},
                {"gate and up", 2 * wanted_.feed_forward, wanted_.hidden},
                {"down", wanted_.hidden, wanted_.feed_forward},
                {"q, k, v", wanted_.qkv, wanted_.hidden}},
        most_rows_(std::max(kCheckedRows, *std::max_element(wanted_.rows.begin(), wanted_.rows.end()))) {
    const auto widest = size(std::max({2 * wanted_.feed_forward, wanted_.qkv, wanted_.hidden, wanted_.attended}));
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<Bf16> values(size(most_rows_) * widest);
    for (Bf16& x : values) x = bf16_from_float(normal(random));
    in_ = Array<Bf16>(stream_, values);
    narrow_ = Array<Bf16>(stream_, values);
    activated_ = Array<Bf16>(stream_, values);
    out_ = Array<float>(stream_, values.size());
    residual_ = Array<float>(stream_, size(most_rows_) * size(wanted_.hidden));
    squares_ = Array<float>(stream_, residual_.size() / kPackedRows);
    norm_ = Array<float>(stream_, std::vector<float>(size(wanted_.hidden), 1e-3F));
  }

  void run() {
    bandwidth_ = read_bandwidth();
    fmt::print("plain reads {:.0f} GB/s\n", bandwidth_ * 1e-9);
    for (const std::string& name : wanted_.types) {
      const auto* const type =
          std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& one) { return one.name == name; });
      if (type == std::end(kTypes)) {
        throw UserError(fmt::format("there is no type '{}' here; q4_0, q4_k, q5_k, q6_k, q8_0 or bf16", name));
      }
      measure(*type);
    }
  }
  Json results() const {
    Json results = results_head("cuda_product_bench", device_, bandwidth_, wanted_.command,
                                fmt::format("a layer of {}, feed-forward {}", wanted_.hidden, wanted_.feed_forward));
    results["settings"] = {{"hidden", wanted_.hidden},
                           {"feed_forward", wanted_.feed_forward},
                           {"attended", wanted_.attended},
                           {"qkv", wanted_.qkv}};
    results["rows"] = rows_;
    return results;
  }

 private:
  double median_seconds(const std::function<void()>& work) {
    work();
    Graph graph(stream_, work);
    graph.run();
    std::vector<double> times;
    for (int i = 0; i < kRounds; ++i) times.push_back(graph.timed_seconds());
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
  double read_bandwidth() {
    constexpr std::size_t kBytes = std::size_t{8} << 30;
    const Memory memory(stream_, kBytes);
    const Array<unsigned> sum(stream_, 1);
    return static_cast<double>(kBytes) /
           median_seconds([&] { read_all(stream_, memory.raw(), kBytes, sum.pointer().raw()); });
  }

  void measure(const Type& type) {
    weights_.clear();
    for (const Shape& shape : shapes_) {
      const PackedLayout layout{type.packing, shape.outputs, shape.inputs};
      const std::vector<std::uint32_t> words = random_words(layout, 11);
      std::vector<Array<std::uint32_t>>& of_layers = weights_.emplace_back();
      for (int layer = 0; layer < kLayers; ++layer) of_layers.emplace_back(stream_, words);
      check_sums(layout, of_layers.front(), kCheckedRows);
      if (takes(layout, most_rows_)) check_sums(layout, of_layers.front(), most_rows_);
    }
    for (const int rows : wanted_.rows) {
      if (!is_wide(type, rows) && rows > (type.packing.in_rows() ? kBf16FewRows : kPackedFewRows)) continue;
      bool all = true;
      for (std::size_t i = 0; i < shapes_.size(); ++i) {
        if (is_wide(type, rows) && !takes({type.packing, shapes_[i].outputs, shapes_[i].inputs}, rows)) {
          fmt::print("{:<6} {:>3} rows  {:<28} takes fewer rows\n", type.name, rows, shapes_[i].name);
          all = false;
          continue;
        }
        const std::size_t bytes = weights_[i].front().size() * sizeof(std::uint32_t);
        add(type, rows, shapes_[i].name, bytes, median_seconds([&] {
              for (int layer = 0; layer < kLayers; ++layer) multiply(type, i, layer, rows);
            }));
      }
      if (!all) continue;
      std::size_t bytes = 0;
      for (const auto& of_layers : weights_) bytes += of_layers.front().size() * sizeof(std::uint32_t);
      add(type, rows, "layer, norms between", bytes, median_seconds([&] {
            for (int layer = 0; layer < kLayers; ++layer) norms_between(type, layer, rows);
          }));
      if (rows > most_normed_wide_rows({type.packing, wanted_.hidden, wanted_.hidden})) continue;
      add(type, rows, "layer, norms inside", bytes, median_seconds([&] {
            for (int layer = 0; layer < kLayers; ++layer) norms_inside(type, layer, rows);
          }));
    }
  }
  void add(const Type& type, int rows, const char* what, std::size_t bytes, double seconds) {
    const double each = seconds / kLayers;
    const double share = static_cast<double>(bytes) / each / bandwidth_;
    fmt::print("{:<6} {:>3} rows  {:<28} {:8.2f} us  {:.2f} of read\n", type.name, rows, what, each * 1e6, share);
    std::fflush(stdout);
    rows_.push_back(
        {{"type", type.name}, {"rows", rows}, {"what", what}, {"bytes", bytes}, {"us", each * 1e6}, {"share", share}});
  }

  bool takes(const PackedLayout& layout, int rows) const {
    return rows > kBf16FewRows && has_wide_rows(stream_, layout) && rows <= most_wide_rows(stream_, layout);
  }
  bool is_wide(const Type& type, int rows) const {
    return rows > kBf16FewRows && has_wide_rows(stream_, {type.packing, wanted_.hidden, wanted_.hidden});
  }
  Packed<kernels::Place::device> packed(const Type& type, std::size_t matrix, int layer) const {
    return {{type.packing, shapes_[matrix].outputs, shapes_[matrix].inputs}, weights_[matrix][size(layer)].constant()};
  }
  void multiply(bool wide, const FewRowsOp& op) {
    if (wide && space_.size() == 0) space_ = make_wide_space(stream_);
    wide ? multiply_wide_rows(stream_, space_, op) : multiply_few_rows(stream_, op);
  }
  void multiply(const Type& type, std::size_t matrix, int layer, int rows) {
    multiply_from(in_, type, matrix, layer, rows);
  }
  void multiply_from(const Array<Bf16>& in, const Type& type, std::size_t matrix, int layer, int rows) {
    multiply(is_wide(type, rows), {.weight = packed(type, matrix, layer),
                                   .in = in.constant(),
                                   .rows = rows,
                                   .out = out_.pointer(),
                                   .stride = shapes_[matrix].outputs});
  }
  void normalise_rows(int rows) {
    normalise(stream_, {.residual = residual_.pointer(),
                        .delta = out_.constant(),
                        .weight = norm_.constant(),
                        .out = narrow_.pointer(),
                        .rows = rows,
                        .width = wanted_.hidden,
                        .epsilon = 1e-5F});
  }
  void norms_between(const Type& type, int layer, int rows) {
    multiply(type, 0, layer, rows);
    normalise_rows(rows);
    multiply(is_wide(type, rows), {.weight = packed(type, 1, layer),
                                   .in = narrow_.constant(),
                                   .rows = rows,
                                   .end = FewRowsOp::End::gate,
                                   .narrow = activated_.pointer()});
    multiply_from(activated_, type, 2, layer, rows);
    normalise_rows(rows);
    multiply_from(narrow_, type, 3, layer, rows);
  }
  void norms_inside(const Type& type, int layer, int rows) {
    const bool wide = is_wide(type, rows);
    const auto add = [&](std::size_t matrix, const Array<Bf16>& in) {
      multiply(wide, {.weight = packed(type, matrix, layer),
                      .in = in.constant(),
                      .rows = rows,
                      .end = FewRowsOp::End::add,
                      .out = residual_.pointer(),
                      .norm = norm_.constant(),
                      .narrow = narrow_.pointer(),
                      .squares_left = squares_.pointer()});
    };
    FewRowsOp scaled{.in = narrow_.constant(),
                     .rows = rows,
                     .squares = squares_.constant(),
                     .width = wanted_.hidden,
                     .epsilon = 1e-5F};
    add(0, in_);
    scaled.weight = packed(type, 1, layer);
    scaled.end = FewRowsOp::End::gate;
    scaled.narrow = activated_.pointer();
    multiply(wide, scaled);
    add(2, activated_);
    scaled.weight = packed(type, 3, layer);
    scaled.end = FewRowsOp::End::store;
    scaled.narrow = {};
    scaled.out = out_.pointer();
    scaled.stride = wanted_.qkv;
    multiply(wide, scaled);
  }

  /// The first outputs of a few rows against the same weights as bf16, which are rounded.
  void check_sums(const PackedLayout& layout, const Array<std::uint32_t>& words, int rows) {
    constexpr int kOutputs = 48;
    const Packed<kernels::Place::device> weight{layout, words.constant()};
    const Array<Bf16> unpacked(stream_, size(kOutputs) * size(layout.inputs));
    if (!layout.packing.in_rows()) unpack(stream_, {weight, 0, kOutputs, unpacked.pointer()});
    multiply(rows > kBf16FewRows,
             {.weight = weight, .in = in_.constant(), .rows = rows, .out = out_.pointer(), .stride = layout.outputs});
    stream_.synchronize();
    std::vector<Bf16> values = unpacked.values();
    if (layout.packing.in_rows()) std::memcpy(values.data(), words.values().data(), values.size() * sizeof(Bf16));
    const std::vector<Bf16> in = in_.values();
    const std::vector<float> out = out_.values();
    const std::size_t width = size(layout.inputs);
    for (std::size_t row = 0; row < size(rows); ++row) {
      for (std::size_t output = 0; output < kOutputs; ++output) {
        double sum = 0, sizes = 0;
        for (std::size_t i = 0; i < width; ++i) {
          const double term =
              double{float_from_bf16(values[output * width + i])} * float_from_bf16(in[row * width + i]);
          sum += term;
          sizes += std::abs(term);
        }
        const double got = out[row * size(layout.outputs) + output];
        if (!(std::abs(got - sum) <= sizes * 0x1p-9)) {
          throw InternalError(fmt::format("row {} of output {} is {}, unpacked {}", row, output, got, sum));
        }
      }
    }
  }

  Wanted wanted_;
  Device device_;
  Stream stream_;
  std::vector<Shape> shapes_;
  int most_rows_;
  Array<Bf16> in_, narrow_, activated_;
  Array<float> out_, residual_, squares_, norm_;
  Array<float> space_;
  std::vector<std::vector<Array<std::uint32_t>>> weights_;  ///< [matrices, layers]
  double bandwidth_ = 0;
  Json rows_ = Json::array();
};

}  // namespace
}  // namespace glimpse::bench

int main(int argc, char** argv) {
  using namespace glimpse;
  bench::Wanted wanted;
  CLI::App app("products of few rows with weights as they are on a GPU");
  app.add_option("--types", wanted.types, "q4_0, q4_k, q5_k, q6_k, q8_0 or bf16")->delimiter(',');
  app.add_option(
         "--rows", wanted.rows,
         "of inputs, up to 64, and with large bf16 matrices 128; more than 32, and of bf16 more than 8, on Hopper")
      ->delimiter(',')
      ->check(CLI::Range(1, kernels::cuda::kMostManyRows));
  app.add_option("--hidden", wanted.hidden, "width of the residual, a multiple of 256")->check(CLI::Range(256, 16384));
  app.add_option("--feed-forward", wanted.feed_forward, "a multiple of 256")->check(CLI::Range(256, 65536));
  app.add_option("--attended", wanted.attended, "width of attention's output, a multiple of 256")
      ->check(CLI::Range(256, 16384));
  app.add_option("--qkv", wanted.qkv, "outputs of q, k and v, a multiple of 16")->check(CLI::Range(16, 65536));
  app.add_option("--json", wanted.json, "write the results to this file");
  CLI11_PARSE(app, argc, argv);
  wanted.command = "cuda_product_bench";
  for (int i = 1; i < argc; ++i) wanted.command += std::string(" ") + argv[i];
  wanted.command.resize(std::min(wanted.command.size(), wanted.command.find(" --json")));
  try {
    if (kernels::cuda::devices().empty()) {
      throw UserError("this machine has no CUDA device of compute capability 8.0 or later");
    }
    for (const int width : {wanted.hidden, wanted.feed_forward, wanted.attended, 16 * wanted.qkv}) {
      if (width % 256 != 0) throw UserError(fmt::format("{} is not a multiple of 256 (q, k, v: of 16)", width));
    }
    const std::string json = wanted.json;
    bench::Bench bench(std::move(wanted));
    bench.run();
    if (!json.empty()) std::ofstream(json) << bench.results().dump(1) << "\n";
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
