// The head of a result file that a GPU benchmark writes (bench/README.md): the machine is the device.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "glimpse/cli/machine.h"
#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::bench {

/// Everything before `settings` and `rows`. `read_bandwidth`: bytes a second, measured. `model` may be null.
inline nlohmann::ordered_json results_head(const char* benchmark, const kernels::cuda::Device& device,
                                           double read_bandwidth, const std::string& command,
                                           const nlohmann::ordered_json& model) {
  return {{"schema", 1},
          {"benchmark", benchmark},
          {"commit", cli::commit()},
          {"date", nullptr},
          {"machine",
           {{"cpu", device.name},
            {"isa", fmt::format("sm{}", device.capability)},
            {"cores", device.processors},
            {"memory", device.memory},
            {"read_bandwidth", static_cast<std::int64_t>(read_bandwidth)}}},
          {"command", command},
          {"model", model}};
}

}  // namespace glimpse::bench
