/// api/test/allocations.h — how often memory was asked for, by any thread of this program.
#pragma once

#include <cstddef>

/// Calls of malloc, calloc, realloc and their kin since the program began (operator new is one of
/// malloc's callers). Sanitized builds bring a malloc of their own: there it stays 0 and
/// can_count_allocations() is false.
size_t allocation_count();
bool can_count_allocations();
