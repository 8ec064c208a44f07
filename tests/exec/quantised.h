// A tensor of random values as a model file has it, and what ggml reads from it.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "glimpse/model/model.h"

namespace glimpse::exec {

/// A tensor of random values, quantised by ggml.
struct Quantised {
  Quantised(ggml_type type, int outputs, int inputs) {
    static unsigned seed = 0;
    std::mt19937 random(++seed);
    std::normal_distribution<float> normal(0.1F, 1);
    std::vector<float> values(static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs));
    for (float& x : values) x = normal(random);
    bytes.resize(ggml_row_size(type, inputs) * static_cast<std::size_t>(outputs));
    ggml_quantize_chunk(type, values.data(), bytes.data(), 0, outputs, inputs, nullptr);
    tensor.type = type;
    tensor.shape = {inputs, outputs, 1, 1};
    tensor.data = bytes.data();
    tensor.bytes = bytes.size();
    read.resize(values.size());
    if (type == GGML_TYPE_F32) {
      read = values;
    } else {
      ggml_get_type_traits(type)->to_float(bytes.data(), read.data(), static_cast<std::int64_t>(values.size()));
    }
  }

  std::vector<std::byte> bytes;
  model::TensorInfo tensor;
  std::vector<float> read;  ///< [outputs, inputs] what ggml makes of it
};

}  // namespace glimpse::exec
