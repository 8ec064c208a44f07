// The rows of the option table of `calibrate` that only its part `roles` takes.
#include <array>

#include "glimpse/cli/options.h"

namespace glimpse::cli {
namespace {

using A = Arguments;

constexpr std::string_view kTraining = "Training of head roles", kOutput = "Output";

const std::array kOptions{
    Option{"--retrieval",
           "N|X%",
           &A::retrieval,
           {},
           "12.5%",
           kTraining,
           "KV heads that stay retrieval heads, those of layer 0 among them",
           kCalibrate,
           idle_beside_roles},
    Option{"--train-steps",
           "N",
           &A::train_steps,
           {1, 1'000'000},
           "3000",
           kTraining,
           "examples, one a step",
           kCalibrate,
           idle_beside_roles},
    Option{"--learning-rate",
           "X",
           &A::learning_rate,
           {1e-6, 1},
           "0.01",
           kTraining,
           "of Adam; fewer steps need a higher one",
           kCalibrate,
           idle_beside_roles},
    Option{"--train-budget",
           "B",
           &A::train_budget,
           {},
           "30%",
           kTraining,
           "tokens of a set while training, a number or a share of the context",
           kCalibrate,
           idle_beside_roles},
    Option{"--gate",
           "KIND",
           &A::gate,
           {},
           "hard-kuma",
           kTraining,
           "what is trained for each head: hard-kuma, hard-concrete or clipped",
           kCalibrate,
           idle_beside_roles},
    Option{"--hand-on",
           "WHOSE",
           &A::hand_on,
           {},
           "layer",
           kTraining,
           "whose set a head inherits while training: layer, of the layer before; role, of the last whose gate is open",
           kCalibrate,
           idle_beside_roles},
    Option{"--exact",
           "",
           &A::exact,
           {},
           "",
           kTraining,
           "write as many retrieval heads as --retrieval says, those of the highest expected gate",
           kCalibrate,
           idle_beside_roles},
    Option{"--curve",
           "FILE",
           &A::curve,
           {},
           "",
           kOutput,
           "loss, open heads and multiplier of each step, as a table with tabs",
           kCalibrate,
           idle_beside_roles},
};

}  // namespace

std::span<const Option> calibrate_options() {
  return kOptions;
}

}  // namespace glimpse::cli
