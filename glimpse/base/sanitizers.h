// Which sanitizers the code is compiled with; GCC and clang say it in different ways.
#pragma once

namespace glimpse {

#if defined(__has_feature)
inline constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#endif
/// Such a build runs 5 to 20 times as long, and reserves more address space than any limit allows.
inline constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

}  // namespace glimpse
