#include "serve/background.h"

#include <sys/resource.h>
#include <unistd.h>

#include <thread>

namespace obelisk::serve {

void in_background(const std::function<void()>& work) {
  std::thread([&] {
    constexpr int kLow = 10;
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLow);
    work();
  }).join();
}

}  // namespace obelisk::serve
