#include "sim/cluster/fiber_executor.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cxxabi.h>

#include "platform/errors.h"
#include "platform/random.h"
#include "sim/cluster/fiber_sanitizer.h"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace deepinfer {
namespace {

namespace ctx = boost::context;

// What the C++ runtime keeps by thread about exceptions in flight, in the layout of the Itanium
// ABI: a fiber that is left inside a catch block must find its own again.
struct ExceptionState {
  void* caught = nullptr;
  unsigned int uncaught = 0;

  void swap_in(const ExceptionState& other) {
    auto* globals = reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals());
    *this = *globals;
    *globals = other;
  }
};

// A fiber, or (rank -1) the loop of a worker.
struct Task {
  int64_t rank = -1;
  ctx::fiber fiber;  // where it was left
  ExceptionState exceptions;
  FiberStack stack;
};

// Stacks with a guard page below; tells the sanitizers where they are.
class StackAllocator {
 public:
  StackAllocator(size_t bytes, FiberStack& stack) : allocator_(bytes), stack_(&stack) {}
  ctx::stack_context allocate() {
    const ctx::stack_context context = allocator_.allocate();
    stack_->bottom = static_cast<const char*>(context.sp) - context.size;
    stack_->size = context.size;
    return context;
  }
  void deallocate(ctx::stack_context& context) { allocator_.deallocate(context); }

 private:
  ctx::protected_fixedsize_stack allocator_;
  FiberStack* stack_;
};

// One worker. All but `inbox` and what it needs belongs to the worker's own thread.
struct Worker {
  std::vector<Task> tasks;  // of its ranks, by index
  Task loop;
  Task* current = &loop;
  Task* previous = nullptr;    // who switched to `current`
  std::vector<int64_t> ready;  // a ring: indices of tasks
  size_t ready_begin = 0, ready_count = 0;
  int64_t alive = 0;
  std::optional<RandomStream> order;

  std::mutex mutex;  // of the members below
  std::condition_variable wake;
  std::vector<int64_t> inbox;  // indices of tasks that other workers unparked
  bool idle = false;
  std::atomic<bool> has_mail = false;
};

class FiberExecutor final : public Executor {
 public:
  FiberExecutor(int64_t ranks, int64_t workers, std::optional<uint64_t> schedule,
                size_t stack_bytes)
      : ranks_(ranks), workers_(static_cast<size_t>(workers)), stack_bytes_(stack_bytes) {
    for (size_t w = 0; w < workers_.size(); ++w) {
      Worker& worker = workers_[w];
      const int64_t begin = first_rank(static_cast<int64_t>(w));
      const int64_t count = first_rank(static_cast<int64_t>(w) + 1) - begin;
      worker.tasks.resize(static_cast<size_t>(count));
      worker.ready.resize(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        worker.tasks[static_cast<size_t>(i)].rank = begin + i;
        worker_of_.push_back(static_cast<int64_t>(w));
      }
      if (schedule) worker.order.emplace(*schedule, "schedule", static_cast<uint32_t>(w));
    }
  }

  void run(const std::function<void(int64_t rank)>& task, const std::function<void()>& stuck,
           TaskLocals* locals) override {
    task_ = &task;
    stuck_ = &stuck;
    locals_ = locals;
    busy_workers_ = workers();
    alive_workers_ = workers();
    std::vector<std::thread> threads;
    for (int64_t w = 1; w < workers(); ++w) threads.emplace_back([this, w] { work(w); });
    work(0);
    for (std::thread& thread : threads) thread.join();
  }

  void park(int64_t rank) override {
    Worker& worker = worker_at(rank);
    if (worker.ready_count == 0 && !take_mail(worker)) {
      switch_to(worker, worker.loop);  // which waits for mail
    } else {
      Task& next = next_ready(worker);
      if (&next != worker.current) switch_to(worker, next);
    }
  }

  void unpark(std::span<const int64_t> ranks) override {
    const int64_t own = this_worker_;
    for (const int64_t rank : ranks) {
      if (worker_of(rank) == own) make_ready(worker_at(rank), index_of(rank));
    }
    for (int64_t w = 0; w < workers(); ++w) {
      if (w != own) post(workers_[static_cast<size_t>(w)], w, ranks);
    }
  }

  int64_t workers() const override { return static_cast<int64_t>(workers_.size()); }
  int64_t worker_of(int64_t rank) const override { return worker_of_[static_cast<size_t>(rank)]; }

 private:
  int64_t first_rank(int64_t worker) const { return worker * ranks_ / workers(); }
  Worker& worker_at(int64_t rank) { return workers_[static_cast<size_t>(worker_of(rank))]; }
  int64_t index_of(int64_t rank) const { return rank - first_rank(worker_of(rank)); }

  static void make_ready(Worker& worker, int64_t index) {
    worker.ready[(worker.ready_begin + worker.ready_count++) % worker.ready.size()] = index;
  }

  static Task& next_ready(Worker& worker) {
    const size_t size = worker.ready.size();
    if (worker.order && worker.ready_count > 1) {
      const auto chosen =
          static_cast<size_t>(worker.order->below(static_cast<int64_t>(worker.ready_count)));
      std::swap(worker.ready[worker.ready_begin],
                worker.ready[(worker.ready_begin + chosen) % size]);
    }
    Task& task = worker.tasks[static_cast<size_t>(worker.ready[worker.ready_begin])];
    worker.ready_begin = worker.ready_begin + 1 == size ? 0 : worker.ready_begin + 1;
    --worker.ready_count;
    return task;
  }

  // Unparks the ranks of worker `to`, which is not the caller's.
  void post(Worker& to, int64_t number, std::span<const int64_t> ranks) {
    std::unique_lock lock(to.mutex, std::defer_lock);
    for (const int64_t rank : ranks) {
      if (worker_of(rank) != number) continue;
      if (!lock.owns_lock()) lock.lock();
      to.inbox.push_back(index_of(rank));
    }
    if (!lock.owns_lock()) return;
    to.has_mail.store(true, std::memory_order_release);
    if (!to.idle) return;
    to.idle = false;
    ++busy_workers_;  // on its behalf: the count must not reach 0 while mail is on its way
    to.wake.notify_one();
  }

  // Moves the inbox to the ready ones; false if there is none.
  bool take_mail(Worker& worker) {
    if (!worker.has_mail.load(std::memory_order_acquire)) return false;
    const std::scoped_lock lock(worker.mutex);
    worker.has_mail.store(false, std::memory_order_relaxed);
    for (const int64_t index : worker.inbox) make_ready(worker, index);
    worker.inbox.clear();
    return worker.ready_count > 0;
  }

  // Leaves the current task for `next`; returns when somebody switches back.
  void switch_to(Worker& worker, Task& next) {
    Task& self = *worker.current;
    if (locals_ != nullptr && self.rank >= 0) locals_->leave(self.rank);
    self.exceptions.swap_in(next.exceptions);
    worker.previous = &self;
    worker.current = &next;
    self.stack.leave_for(next.stack);
    ctx::fiber from = std::move(next.fiber).resume();
    self.stack.arrive();
    worker.previous->fiber = std::move(from);  // empty if it has ended
    if (locals_ != nullptr && self.rank >= 0) locals_->enter(self.rank);
  }

  // Makes the fiber; it starts when it is switched to.
  void make_fiber(Worker& worker, Task& task) {
    task.fiber = ctx::fiber(std::allocator_arg, StackAllocator(stack_bytes_, task.stack),
                            [this, &worker, &task](ctx::fiber&& from) {
                              task.stack.begin(worker.previous->stack);
                              worker.previous->fiber = std::move(from);
                              if (locals_ != nullptr) locals_->enter(task.rank);
                              (*task_)(task.rank);
                              if (locals_ != nullptr) locals_->leave(task.rank);
                              // Ends: the loop goes on.
                              --worker.alive;
                              task.exceptions.swap_in(worker.loop.exceptions);
                              worker.previous = &task;
                              worker.current = &worker.loop;
                              task.stack.end_for(worker.loop.stack);
                              return std::move(worker.loop.fiber);
                            });
  }

  void work(int64_t number) {
    this_worker_ = number;
    pin(number);
    Worker& worker = workers_[static_cast<size_t>(number)];
    worker.alive = static_cast<int64_t>(worker.tasks.size());
    for (size_t i = 0; i < worker.tasks.size(); ++i) {
      make_fiber(worker, worker.tasks[i]);
      make_ready(worker, static_cast<int64_t>(i));
    }
    for (;;) {
      while (worker.ready_count > 0 || take_mail(worker)) {
        switch_to(worker, next_ready(worker));
      }
      if (worker.alive == 0) break;
      wait_for_mail(worker);
    }
    const std::scoped_lock lock(idle_mutex_);
    --alive_workers_;
    // The last that still works may leave others that wait for ever.
    if (--busy_workers_ == 0 && alive_workers_ > 0) (*stuck_)();
  }

  void wait_for_mail(Worker& worker) {
    // Mail comes soon as a rule: looking for it costs less than sleeping.
    constexpr int kLooks = 2000;
    for (int look = 0; look < kLooks; ++look) {
      if (worker.has_mail.load(std::memory_order_acquire)) return;
      pause();
    }
    {
      const std::scoped_lock lock(worker.mutex);
      if (!worker.inbox.empty()) return;
      worker.idle = true;
    }
    {
      // Nobody works and nobody is on the way: mail can come from nowhere.
      const std::scoped_lock lock(idle_mutex_);
      if (--busy_workers_ == 0) (*stuck_)();
    }
    std::unique_lock lock(worker.mutex);
    worker.wake.wait(lock, [&] { return !worker.idle || worker.ready_count > 0; });
    if (worker.idle) {  // `stuck` ran here and unparked ranks of this worker
      worker.idle = false;
      ++busy_workers_;
    }
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }

  // To the core of its number, if the process may use that many; the calling thread is left alone,
  // as it is the user's.
  void pin(int64_t number) const {
#if defined(__linux__)
    if (number == 0) return;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
    if (CPU_COUNT(&allowed) < workers()) return;
    int64_t seen = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed) || seen++ != number) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
      return;
    }
#endif
  }

  const int64_t ranks_;
  std::vector<Worker> workers_;
  std::vector<int64_t> worker_of_;  // [ranks]
  const size_t stack_bytes_;
  const std::function<void(int64_t rank)>* task_ = nullptr;
  const std::function<void()>* stuck_ = nullptr;
  TaskLocals* locals_ = nullptr;
  std::mutex idle_mutex_;
  std::atomic<int64_t> busy_workers_ = 0;  // not idle and not ended
  int64_t alive_workers_ = 0;              // of idle_mutex_
  static thread_local int64_t this_worker_;
};

thread_local int64_t FiberExecutor::this_worker_ = -1;

}  // namespace

std::unique_ptr<Executor> make_fiber_executor(int64_t ranks, int64_t workers,
                                              std::optional<uint64_t> schedule,
                                              size_t stack_bytes) {
  return std::make_unique<FiberExecutor>(ranks, workers, schedule, stack_bytes);
}

}  // namespace deepinfer
