#include "glimpse/model/fingerprint.h"

#include <algorithm>
#include <array>

#include "glimpse/base/bytes.h"
#include "glimpse/base/checksum.h"

namespace glimpse::model {
namespace {

void add_metadata(const Metadata& metadata, ByteWriter& to) {
  for (const auto& [key, value] : metadata.values) {
    to.text(key);
    to.value(static_cast<std::uint32_t>(value.type));
    if (const auto* number = std::get_if<std::int64_t>(&value.value)) to.value(*number);
    if (const auto* number = std::get_if<double>(&value.value)) to.value(*number);
    if (const auto* text = std::get_if<std::string_view>(&value.value)) to.text(*text);
    if (const auto* array = std::get_if<MetaArray>(&value.value)) {
      for (const std::string_view text : array->strings) to.text(text);
      to.values(array->integers);
      to.values(array->reals);
    }
  }
}

}  // namespace

std::uint64_t fingerprint(const GgufFile& file) {
  constexpr std::size_t kSample = 512;
  ByteWriter facts;
  add_metadata(file.metadata(), facts);
  for (const TensorInfo& tensor : file.tensors()) {
    facts.text(tensor.name);
    facts.value(static_cast<std::int32_t>(tensor.type));
    for (const std::int64_t size : tensor.shape) facts.value(size);
    const std::span<const std::byte> bytes(tensor.data, tensor.bytes);
    const std::size_t count = std::min(kSample, bytes.size());
    for (const std::size_t first : {std::size_t{0}, (bytes.size() - count) / 2, bytes.size() - count}) {
      facts.values(bytes.subspan(first, count));
    }
  }
  return checksum(facts.bytes());
}

}  // namespace glimpse::model
