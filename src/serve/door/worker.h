/// serve/door/worker.h — an engine in a process of its own, so that faults end where they begin.
///
/// A worker ends when it crashes, when it is killed, and when an error of the GPU has broken its
/// context, in which nothing runs any more. The worker that ends is started again, its models are
/// loaded, and requests that have no answer yet run again within their deadline. Who ended it is
/// found by running suspects alone: first the requests that were there, one at a time, before any
/// other; a model that was loading is loaded while no request runs. A request that ends the worker
/// twice is refused, and its model is out of service until it is loaded anew.
#pragma once

#include <functional>
#include <memory>

#include "serve/engine.h"

namespace obelisk::serve::door {

struct WorkerOptions {
  std::vector<std::string>
      command;  // program and arguments; its end of the socket is kWorkerSocket
  std::function<void(const std::string& event, const std::string& detail)>
      notice;  // of starts, ends and quarantines; any thread
};
constexpr int kWorkerSocket = 3;
constexpr int kDeviceLost = 70;  // what a worker exits with whose GPU's context is broken

std::unique_ptr<Engine> make_worker_engine(WorkerOptions options);

/// The worker's side: answers until the other end says stop, or is gone.
void run_worker(int socket, std::unique_ptr<Engine> engine);

}  // namespace obelisk::serve::door
