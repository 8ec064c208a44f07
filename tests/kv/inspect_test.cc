#include "glimpse/kv/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cache_rows.h"
#include "glimpse/base/dtype.h"
#include "glimpse/base/error.h"

namespace glimpse::kv {
namespace {

/// One row of small whole numbers and halves, which every type but q8_0 holds exactly.
std::vector<std::byte> encode(KvType type, const std::vector<float>& values, float scale) {
  std::vector<std::byte> bytes;
  const auto put = [&](const auto value) {
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), raw, raw + sizeof(value));
  };
  for (const float value : values) {
    if (type == KvType::f32) put(value);
    if (type == KvType::f16) put(f16_from_float(value));
    if (type == KvType::bf16) put(bf16_from_float(value));
    if (type == KvType::q8_0) put(static_cast<std::int8_t>(value / scale));
  }
  if (type == KvType::q8_0) put(scale);
  return bytes;
}

TEST(Inspect, ReadsRowsByPositionInEveryType) {
  const std::vector<float> key{1, -2, 3.5f, 0, -0.5f, 6, 7, -8};
  const std::vector<float> value{8, 7, 6, 5.5f, 4, -3, 2, 1};
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    CacheShape shape;
    shape.layers = 1;
    shape.kv_heads = 2;
    shape.format = {type, 8};
    shape.capacity_tokens = 256;
    Cache cache(shape);
    const SequenceId sequence = cache.create();
    cache.extend(sequence, 40);
    std::vector<std::int32_t> first_pages(32);
    for (std::int32_t i = 0; i < 32; ++i) first_pages[static_cast<std::size_t>(i)] = i;
    cache.free_tokens(sequence, 0, 1, first_pages);

    const auto view = cache.view(sequence, 0, 1);
    write_plane(view, view.k_plane, 3, shape.format, encode(type, key, 0.5f));
    write_plane(view, view.v_plane, 3, shape.format, encode(type, value, 0.5f));
    EXPECT_EQ(key_at(cache, sequence, 0, 1, 35), key) << name(type);
    EXPECT_EQ(value_at(cache, sequence, 0, 1, 35), value) << name(type);
    EXPECT_EQ(key_at(cache, sequence, 0, 0, 35), std::vector<float>(8, 0.0f)) << name(type);
    const auto whole = cache.view(sequence, 0, 0);
    write_plane(whole, whole.k_plane, 37, shape.format, encode(type, key, 0.5f));
    std::vector<float> keys(38 * 8, 0.0f);
    std::copy(key.begin(), key.end(), keys.end() - 8);
    EXPECT_EQ(keys_of(cache, sequence, 0, 0, 38), keys) << name(type);
    EXPECT_THROW(keys_of(cache, sequence, 0, 0, 41), UserError) << name(type);
    EXPECT_THROW(keys_of(cache, sequence, 0, 1, 8), UserError) << name(type) << ": it forgot some";
    for (const std::int64_t missing : {-1, 3, 40}) {
      EXPECT_THROW(key_at(cache, sequence, 0, 1, missing), UserError) << name(type) << " " << missing;
    }
  }
}

}  // namespace
}  // namespace glimpse::kv
