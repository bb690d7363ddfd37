#include "allocations.h"

#include <atomic>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_MALLOC 0
#elif defined(__has_feature)
#define OWN_MALLOC !(__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define OWN_MALLOC 1
#endif

namespace {
std::atomic<size_t> count{0};
}

size_t allocation_count() { return count.load(); }
bool can_count_allocations() { return OWN_MALLOC; }

#if OWN_MALLOC
// The C library's own functions stand behind these names; what is defined in the program is called
// in their place.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) noexcept {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
void* calloc(size_t number, size_t bytes) noexcept {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(number, bytes);
}
void* realloc(void* old, size_t bytes) noexcept {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) noexcept {
  count.fetch_add(1, std::memory_order_relaxed);
  *out = __libc_memalign(alignment, bytes);
  return *out ? 0 : 12;
}
}
#endif
