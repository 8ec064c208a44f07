#include "glimpse/model/gguf_reader.h"

#include <ggml.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "glimpse/model/file_error.h"

namespace glimpse::model {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read without swapping bytes");

constexpr std::uint64_t kMaxKeyLength = 65535;               // the specification's
constexpr std::uint64_t kMaxTensorName = GGML_MAX_NAME - 1;  // ggml cuts longer ones
constexpr std::uint64_t kMaxArray = std::uint64_t{1} << 24;  // the largest vocabularies hold 2^18
constexpr std::uint64_t kMinPairBytes = 8 + 1 + 4 + 1;       // key length, key, type, value
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr std::uint64_t kAnyLength = std::numeric_limits<std::uint64_t>::max();
constexpr std::int64_t kDefaultAlignment = 32;
constexpr std::int64_t kMinAlignment = 8, kMaxAlignment = 1 << 20;

/// Bytes of a scalar; 0 for string, array and unknown.
std::size_t scalar_bytes(MetaType type) {
  switch (type) {
    case MetaType::u8:
    case MetaType::i8:
    case MetaType::boolean:
      return 1;
    case MetaType::u16:
    case MetaType::i16:
      return 2;
    case MetaType::u32:
    case MetaType::i32:
    case MetaType::f32:
      return 4;
    case MetaType::u64:
    case MetaType::i64:
    case MetaType::f64:
      return 8;
    case MetaType::string:
    case MetaType::array:
      return 0;
  }
  return 0;
}

bool is_real(MetaType type) {
  return type == MetaType::f32 || type == MetaType::f64;
}

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& label) : bytes_(bytes), label_(label) {}

  GgufPart read() {
    read_header();
    for (std::uint64_t i = 0; i < pairs_; ++i) read_pair(i);
    read_alignment();
    part_.tensors.reserve(tensors_);
    offsets_.reserve(tensors_);
    for (std::uint64_t i = 0; i < tensors_; ++i) read_tensor(i);
    place_tensors();
    return std::move(part_);
  }

 private:
  template <class... Arguments>
  [[noreturn]] void fail(fmt::format_string<Arguments...> what, Arguments&&... arguments) const {
    fail_file(label_, what, std::forward<Arguments>(arguments)...);
  }

  std::uint64_t left() const { return bytes_.size() - position_; }

  template <class T>
  T take(std::string_view what) {
    if (left() < sizeof(T)) {
      fail("ends inside {} (byte {} of {}); the file is truncated", what, position_, bytes_.size());
    }
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  std::string_view take_string(std::string_view what, std::uint64_t longest) {
    const auto length = take<std::uint64_t>(what);
    if (length > longest) fail("{} is {} bytes long; at most {} are allowed", what, length, longest);
    if (length > left()) {
      fail("{} claims {} bytes but {} are left; the file is truncated or damaged", what, length, left());
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data() + position_), length);
    position_ += length;
    return text;
  }

  /// Names end up in error texts, in ggml and in C strings: only printable ASCII, as the specification asks.
  std::string_view take_name(std::string_view what, std::uint64_t longest) {
    const std::string_view name = take_string(what, longest);
    if (name.empty()) fail("{} is empty", what);
    if (std::any_of(name.begin(), name.end(), [](char c) { return c < 0x21 || c > 0x7e; })) {
      fail("{} holds characters that are not printable ASCII: '{}'", what, shown(name));
    }
    return name;
  }

  void read_header() {
    const auto magic = take<std::array<char, 4>>("the magic number");
    if (std::string_view(magic.data(), 4) != "GGUF") {
      fail("is not a GGUF file: it starts with '{}', not 'GGUF'", shown({magic.data(), 4}));
    }
    const auto version = take<std::uint32_t>("the version");
    if (version != 0 && (version & 0xffff) == 0) fail("is a big-endian GGUF file; only little-endian ones are read");
    if (version < 2 || version > 3) fail("has GGUF version {}; versions 2 and 3 are read", version);
    tensors_ = take<std::uint64_t>("the tensor count");
    pairs_ = take<std::uint64_t>("the metadata count");
    if (pairs_ > left() / kMinPairBytes) {
      fail("claims {} metadata entries but has only {} bytes for them", pairs_, left());
    }
    if (tensors_ > left() / kMinTensorBytes) {
      fail("claims {} tensors but has only {} bytes for their descriptions", tensors_, left());
    }
  }

  MetaType take_type(std::string_view key) {
    const auto type = take<std::uint32_t>("a value type");
    if (type > static_cast<std::uint32_t>(MetaType::f64)) {
      fail("key '{}' has value type {}; types 0 to 12 are known", shown(key), type);
    }
    return static_cast<MetaType>(type);
  }

  std::int64_t take_integer(MetaType type, std::string_view key) {
    switch (type) {
      case MetaType::u8:
        return take<std::uint8_t>(key);
      case MetaType::i8:
        return take<std::int8_t>(key);
      case MetaType::u16:
        return take<std::uint16_t>(key);
      case MetaType::i16:
        return take<std::int16_t>(key);
      case MetaType::u32:
        return take<std::uint32_t>(key);
      case MetaType::i32:
        return take<std::int32_t>(key);
      case MetaType::i64:
        return take<std::int64_t>(key);
      case MetaType::u64: {
        const auto value = take<std::uint64_t>(key);
        if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
          fail("key '{}' is {}; values of 2^63 and above are not read", shown(key), value);
        }
        return static_cast<std::int64_t>(value);
      }
      case MetaType::boolean: {
        const auto value = take<std::uint8_t>(key);
        if (value > 1) fail("key '{}' is a boolean with value {}; only 0 and 1 are allowed", shown(key), value);
        return value;
      }
      default:
        check(false, "not an integer type");
    }
    return 0;
  }

  double take_real(MetaType type, std::string_view key) {
    return type == MetaType::f32 ? static_cast<double>(take<float>(key)) : take<double>(key);
  }

  MetaArray take_array(std::string_view key) {
    MetaArray array;
    array.element = take_type(key);
    if (array.element == MetaType::array) fail("key '{}' is an array of arrays, which is not supported", shown(key));
    const auto count = take<std::uint64_t>("an array length");
    if (count > kMaxArray)
      fail("key '{}' is an array of {} elements; at most {} are read", shown(key), count, kMaxArray);
    const std::size_t element_bytes = array.element == MetaType::string ? 8 : scalar_bytes(array.element);
    if (count > left() / element_bytes) {
      fail("key '{}' is an array of {} elements but {} bytes are left; the file is truncated or damaged", shown(key),
           count, left());
    }
    if (array.element == MetaType::string) {
      array.strings.reserve(count);
      for (std::uint64_t i = 0; i < count; ++i) array.strings.push_back(take_string(key, kAnyLength));
    } else if (is_real(array.element)) {
      array.reals.reserve(count);
      for (std::uint64_t i = 0; i < count; ++i) array.reals.push_back(take_real(array.element, key));
    } else {
      array.integers.reserve(count);
      for (std::uint64_t i = 0; i < count; ++i) array.integers.push_back(take_integer(array.element, key));
    }
    return array;
  }

  void read_pair(std::uint64_t index) {
    const std::string_view key = take_name(fmt::format("metadata key {}", index), kMaxKeyLength);
    MetaValue value;
    value.type = take_type(key);
    if (value.type == MetaType::array) {
      value.value = take_array(key);
    } else if (value.type == MetaType::string) {
      value.value = take_string(key, kAnyLength);
    } else if (is_real(value.type)) {
      value.value = take_real(value.type, key);
    } else {
      value.value = take_integer(value.type, key);
    }
    if (!part_.metadata.values.emplace(key, std::move(value)).second) fail("key '{}' appears twice", shown(key));
  }

  void read_alignment() {
    const MetaValue* value = part_.metadata.find("general.alignment");
    if (value == nullptr) return;
    if (value->type != MetaType::u32) fail("general.alignment is not a 32-bit unsigned integer");
    alignment_ = std::get<std::int64_t>(value->value);
    if (alignment_ < kMinAlignment || alignment_ > kMaxAlignment || (alignment_ & (alignment_ - 1)) != 0) {
      fail("general.alignment is {}; it must be a power of two from {} to {}", alignment_, kMinAlignment,
           kMaxAlignment);
    }
  }

  void read_tensor(std::uint64_t index) {
    TensorInfo tensor;
    tensor.name = take_name(fmt::format("the name of tensor {}", index), kMaxTensorName);
    const auto dimensions = take<std::uint32_t>("a tensor's dimension count");
    if (dimensions < 1 || dimensions > GGML_MAX_DIMS) {
      fail("tensor '{}' has {} dimensions; 1 to {} are allowed", tensor.name, dimensions, GGML_MAX_DIMS);
    }
    for (std::uint32_t i = 0; i < dimensions; ++i) tensor.shape[i] = take<std::int64_t>("a tensor's dimension");
    tensor.type = static_cast<int>(take<std::uint32_t>("a tensor's type"));
    tensor.bytes = tensor_bytes(tensor);
    offsets_.push_back(take<std::uint64_t>("a tensor's offset"));
    part_.tensors.push_back(std::move(tensor));
  }

  std::size_t tensor_bytes(const TensorInfo& tensor) const {
    if (tensor.type < 0 || tensor.type >= GGML_TYPE_COUNT) {
      fail("tensor '{}' has type {}, which this build of ggml does not know", tensor.name,
           static_cast<std::uint32_t>(tensor.type));
    }
    const auto type = static_cast<ggml_type>(tensor.type);
    const std::int64_t block = ggml_blck_size(type);
    const std::size_t block_bytes = ggml_type_size(type);
    if (block <= 0 || block_bytes == 0) {
      fail("tensor '{}' has type {}, which ggml no longer supports", tensor.name, tensor.type);
    }
    std::uint64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) {
      if (extent < 1) fail("tensor '{}' has a dimension of {}; each must be at least 1", tensor.name, extent);
      if (static_cast<std::uint64_t>(extent) > static_cast<std::uint64_t>(INT64_MAX) / elements) {
        fail("tensor '{}' has more than 2^63 elements (dimensions {})", tensor.name, fmt::join(tensor.shape, " x "));
      }
      elements *= static_cast<std::uint64_t>(extent);
    }
    if (tensor.shape[0] % block != 0) {
      fail("tensor '{}' has rows of {} values, no multiple of the {} values in a block of {}", tensor.name,
           tensor.shape[0], block, ggml_type_name(type));
    }
    const std::uint64_t blocks = elements / static_cast<std::uint64_t>(block);
    if (blocks > bytes_.size() / block_bytes) {
      fail("tensor '{}' of {} {} values is larger than the file ({} bytes)", tensor.name, elements,
           ggml_type_name(type), bytes_.size());
    }
    return blocks * block_bytes;
  }

  void place_tensors() {
    std::vector<TensorInfo>& tensors = part_.tensors;
    if (tensors.empty()) return;
    const auto alignment = static_cast<std::uint64_t>(alignment_);
    const std::uint64_t data_start = (position_ + alignment - 1) / alignment * alignment;
    if (data_start > bytes_.size()) fail("ends before its tensor data (byte {}); the file is truncated", data_start);
    const std::uint64_t data_bytes = bytes_.size() - data_start;
    std::vector<std::size_t> order(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      TensorInfo& tensor = tensors[i];
      const std::uint64_t offset = offsets_[i];
      if (offset % alignment != 0) {
        fail("tensor '{}' starts at offset {}, no multiple of the alignment {}", tensor.name, offset, alignment);
      }
      if (offset > data_bytes || tensor.bytes > data_bytes - offset) {
        fail(
            "tensor '{}' ({} bytes at offset {}) passes the end of the tensor data ({} bytes); the file is truncated "
            "or "
            "damaged",
            tensor.name, tensor.bytes, offset, data_bytes);
      }
      tensor.data = bytes_.data() + data_start + offset;
      order[i] = i;
    }
    check_apart(order);
  }

  void check_apart(std::vector<std::size_t>& order) const {
    const std::vector<TensorInfo>& tensors = part_.tensors;
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return tensors[a].data < tensors[b].data; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      const TensorInfo& before = tensors[order[i - 1]];
      const TensorInfo& after = tensors[order[i]];
      if (static_cast<std::size_t>(after.data - before.data) < before.bytes) {
        fail("tensors '{}' and '{}' overlap", before.name, after.name);
      }
    }
  }

  std::span<const std::byte> bytes_;
  const std::string& label_;
  std::size_t position_ = 0;
  std::uint64_t tensors_ = 0, pairs_ = 0;
  std::int64_t alignment_ = kDefaultAlignment;
  GgufPart part_;
  std::vector<std::uint64_t> offsets_;
};

}  // namespace

GgufPart read_gguf(std::span<const std::byte> bytes, const std::string& label) {
  return Reader(bytes, label).read();
}

}  // namespace glimpse::model
