#include "glimpse/server/methods.h"

#include <gtest/gtest.h>

#include "glimpse/base/error.h"

namespace glimpse::server {
namespace {

/// A device that runs dense attention alone.
MethodModel model_on_device() {
  MethodModel model;
  model.shape = {"llama", "m", 4, 4, 2, 64, 4096};
  model.refusal = [](const plan::Plan& plan) -> std::string {
    return plan.policy == "full" ? "" : "method '" + plan.policy + "' needs more; leave out --device";
  };
  return model;
}

std::string refusal_of(const MethodWish& wish, const MethodWish& standard) {
  try {
    Methods(model_on_device(), {}, standard).plan_for(wish, 1024, false);
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

TEST(Methods, WhatTheDeviceDoesNotRunIsRefusedInWordsOfAClient) {
  MethodWish full, streaming;
  full.policy = "full";
  streaming.policy = "streaming";
  EXPECT_EQ(refusal_of(full, full), "");
  const std::string refused = "method 'streaming' needs more; name another method, or give it other options";
  EXPECT_EQ(refusal_of(streaming, full), refused);
  EXPECT_EQ(refusal_of(full, streaming), refused) << "the server's own method, when it starts";
}

}  // namespace
}  // namespace glimpse::server
