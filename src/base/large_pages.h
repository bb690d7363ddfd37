/// base/large_pages.h — memory that is backed by pages of 2 MiB where the system has them.
#pragma once

#include <cstddef>

namespace obelisk {

/// Of memory that is written once and walked through often: large pages cost fewer faults. A wish;
/// where there are none, pages are small.
void ask_for_large_pages(void* block, size_t bytes);

}  // namespace obelisk
