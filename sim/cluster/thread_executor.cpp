#include "sim/cluster/thread_executor.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "platform/errors.h"

namespace deepinfer {
namespace {

class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(int64_t ranks) : ranks_(ranks), tasks_(static_cast<size_t>(ranks)) {}

  void run(const std::function<void(int64_t rank)>& task, const std::function<void()>& stuck,
           TaskLocals* locals) override {
    stuck_ = &stuck;
    running_ = ranks_;
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([this, rank, &task, locals] {
        if (locals != nullptr) locals->enter(rank);
        task(rank);
        if (locals != nullptr) locals->leave(rank);
        leave_running();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void park(int64_t rank) override {
    Task& task = tasks_[static_cast<size_t>(rank)];
    {
      const std::scoped_lock lock(mutex_);
      if (std::exchange(task.permit, false)) return;
      task.parked = true;
    }
    leave_running();
    std::unique_lock lock(mutex_);
    task.wake.wait(lock, [&] { return task.permit; });
    task.permit = false;
  }

  void unpark(std::span<const int64_t> ranks) override {
    const std::scoped_lock lock(mutex_);
    for (const int64_t rank : ranks) {
      Task& task = tasks_[static_cast<size_t>(rank)];
      task.permit = true;
      if (!std::exchange(task.parked, false)) continue;
      ++running_;
      task.wake.notify_one();
    }
  }

  void post(int64_t /*worker*/, WorkerJob& job) override { job.run(); }

  int64_t workers() const override { return ranks_; }
  int64_t worker_of(int64_t rank) const override { return rank; }

 private:
  struct Task {
    std::condition_variable wake;
    bool permit = false;  // unparked, and has not noticed yet
    bool parked = false;  // does not count as running
  };

  // One task less can run. The last finds the run stuck, unless all have ended.
  void leave_running() {
    bool nobody_runs = false;
    {
      const std::scoped_lock lock(mutex_);
      nobody_runs = --running_ == 0;
    }
    // Nobody else runs, so nobody else can end or be woken meanwhile.
    if (nobody_runs) (*stuck_)();
  }

  const int64_t ranks_;
  std::vector<Task> tasks_;
  std::mutex mutex_;
  int64_t running_ = 0;  // tasks that are not parked and have not ended
  const std::function<void()>* stuck_ = nullptr;
};

}  // namespace

std::unique_ptr<Executor> make_thread_executor(int64_t ranks) {
  return std::make_unique<ThreadExecutor>(ranks);
}

}  // namespace deepinfer
