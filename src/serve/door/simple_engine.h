/// serve/door/simple_engine.h — an engine of one thread: requests in the order that they came, rows one by one.
#pragma once

#include <memory>

#include "serve/engine.h"

namespace obelisk::serve::door {

std::unique_ptr<Engine> make_simple_engine();

}  // namespace obelisk::serve::door
