// Runs ranks as cooperative tasks in one process: fibers pinned to workers, or a thread for each
// rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace deepinfer {

enum class ExecutorKind {
  kFibers,   // the default: thousands of switches a millisecond, on one worker thread a core
  kThreads,  // one OS thread a rank: what ThreadSanitizer understands
};
// "fibers" or "threads"; parse throws ConfigError that names the nearest.
std::string_view executor_name(ExecutorKind kind);
ExecutorKind parse_executor(std::string_view name);

struct ExecutorOptions {
  ExecutorKind kind = ExecutorKind::kFibers;
  int64_t workers = 0;  // OS threads that fibers run on; 0: one for each core
  // Permutes the order in which ready ranks run, on one worker, so that the same seed replays the
  // same order; without one they run in the order in which they became ready. Fibers only: threads
  // are ordered by the operating system.
  std::optional<uint64_t> schedule;
  size_t stack_bytes = size_t{1} << 20;  // of a fiber; pages are used as they are touched
};

// State that libraries keep by thread and a task must find as it left it. `leave` saves it and puts
// back the state in which tasks start; `enter`, also before a task's first step, restores it.
// Called by the thread of the task's worker, so for several ranks at once; jobs run in the state of
// any task.
class TaskLocals {
 public:
  virtual ~TaskLocals() = default;
  virtual void leave(int64_t rank) = 0;
  virtual void enter(int64_t rank) = 0;
};

// Something that a worker does between two tasks, or while one of them parks.
class WorkerJob {
 public:
  virtual void run() = 0;

 protected:
  ~WorkerJob() = default;
};

// Invariant: a rank runs on one worker, always the same. Tasks of one worker never run at once.
//
// park and unpark: a task parks itself until somebody unparks it. An unpark that comes first is
// kept, and the next park returns at once; several are one. So park may return early: callers look
// again.
class Executor {
 public:
  static std::unique_ptr<Executor> make(const ExecutorOptions& options, int64_t ranks);
  virtual ~Executor() = default;

  // Runs task(rank) for every rank and returns when all have ended. `stuck` is called, on a worker,
  // as soon as every task that has not ended is parked: it has to unpark at least one. `task` must
  // not throw (std::terminate). `locals` may be null.
  virtual void run(const std::function<void(int64_t rank)>& task,
                   const std::function<void()>& stuck, TaskLocals* locals) = 0;

  virtual void park(int64_t rank) = 0;  // called by the rank itself
  virtual void unpark(std::span<const int64_t> ranks) = 0;
  // Has a worker run a job soon, or, where workers have no loop (threads), runs it at once. The job
  // is the caller's; it may be posted again before it has run, and runs as often.
  virtual void post(int64_t worker, WorkerJob& job) = 0;

  virtual int64_t workers() const = 0;
  virtual int64_t worker_of(int64_t rank) const = 0;
};

}  // namespace deepinfer
