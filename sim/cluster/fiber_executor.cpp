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

namespace deepinfer {
namespace {

namespace ctx = boost::context;

// What the C++ runtime keeps by thread about exceptions in flight, in the layout of the Itanium
// ABI: a fiber that is left inside a catch block must find its own again.
struct ExceptionState {
  void* caught = nullptr;
  unsigned int uncaught = 0;

  static ExceptionState* of_this_thread() {
    return reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals());
  }
};

// Stacks with a guard page below; tells the sanitizers where they are. All stacks begin at the same
// place of a page, so the frames of all fibers would meet in the same sets of a first-level cache:
// each fiber's first frame is moved by some cache lines.
class StackAllocator {
 public:
  StackAllocator(size_t bytes, int64_t rank, FiberStack& stack)
      : allocator_(bytes), shift_(static_cast<size_t>(rank) % kPlaces * kShift), stack_(&stack) {}

  ctx::stack_context allocate() {
    ctx::stack_context context = allocator_.allocate();
    stack_->bottom = static_cast<const char*>(context.sp) - context.size;
    stack_->size = context.size;
    FiberStack::clear(stack_->bottom, stack_->size);
    context.sp = static_cast<char*>(context.sp) - shift_;
    context.size -= shift_;
    return context;
  }
  void deallocate(ctx::stack_context& context) {
    context.sp = static_cast<char*>(context.sp) + shift_;
    context.size += shift_;
    FiberStack::clear(static_cast<const char*>(context.sp) - context.size, context.size);
    allocator_.deallocate(context);
  }

 private:
  static constexpr size_t kShift = 256;             // bytes
  static constexpr size_t kPlaces = 4096 / kShift;  // in a page
  ctx::protected_fixedsize_stack allocator_;
  size_t shift_;
  FiberStack* stack_;
};

// A fiber, or (rank -1) the loop of a worker.
struct alignas(64) Task {
  ctx::fiber fiber;  // where it was left
  ExceptionState exceptions;
  FiberStack stack;
  int64_t rank = -1;
  bool parked = false;
  bool permit = false;  // unparked, and has not noticed yet
};

// One worker. What is not of `mutex` belongs to the worker's own thread.
struct Worker {
  int64_t number = 0;
  std::vector<Task> tasks;  // of its ranks, by index
  Task loop;
  Task* current = &loop;
  Task* previous = nullptr;              // who switched to `current`
  ExceptionState* exceptions = nullptr;  // of its thread
  std::vector<int64_t> ready;            // a ring of indices of tasks
  size_t ready_begin = 0, ready_count = 0;
  int64_t alive = 0;
  std::optional<RandomStream> order;
  std::vector<std::vector<int64_t>> outgoing;  // [workers] scratch of unpark

  alignas(64) std::mutex mutex;
  std::condition_variable awake;  // of mutex
  std::vector<int64_t> inbox;     // of mutex: indices of tasks that other workers unparked
  std::vector<WorkerJob*> jobs;   // of mutex
  std::vector<WorkerJob*> taken;  // jobs that are being run
  bool idle = false;              // of mutex
  std::atomic<bool> has_mail = false;

  size_t wrapped(size_t at) const { return at >= ready.size() ? at - ready.size() : at; }

  void wake(int64_t index) {
    Task& task = tasks[static_cast<size_t>(index)];
    task.permit = true;
    if (!std::exchange(task.parked, false)) return;
    ready[wrapped(ready_begin + ready_count++)] = index;
  }

  Task& next_ready() {
    if (order && ready_count > 1) {
      const auto chosen = static_cast<size_t>(order->below(static_cast<int64_t>(ready_count)));
      std::swap(ready[ready_begin], ready[wrapped(ready_begin + chosen)]);
    }
    Task& task = tasks[static_cast<size_t>(ready[ready_begin])];
    ready_begin = wrapped(ready_begin + 1);
    --ready_count;
    return task;
  }

  void take_mail() {
    if (!has_mail.load(std::memory_order_acquire)) return;
    {
      const std::scoped_lock lock(mutex);
      has_mail.store(false, std::memory_order_relaxed);
      for (const int64_t index : inbox) wake(index);
      inbox.clear();
      std::swap(jobs, taken);
    }
    for (WorkerJob* job : taken) job->run();
    taken.clear();
  }
};

class FiberExecutor final : public Executor {
 public:
  FiberExecutor(int64_t ranks, int64_t workers, std::optional<uint64_t> schedule,
                size_t stack_bytes)
      : workers_(static_cast<size_t>(workers)), stack_bytes_(stack_bytes) {
    for (size_t w = 0; w < workers_.size(); ++w) {
      Worker& worker = workers_[w];
      const int64_t number = worker.number = static_cast<int64_t>(w);
      const int64_t begin = number * ranks / workers, end = (number + 1) * ranks / workers;
      worker.tasks = std::vector<Task>(static_cast<size_t>(end - begin));
      worker.ready.resize(worker.tasks.size());
      worker.outgoing.resize(workers_.size());
      if (schedule) worker.order.emplace(*schedule, "schedule", static_cast<uint32_t>(w));
      for (int64_t rank = begin; rank < end; ++rank) {
        worker.tasks[static_cast<size_t>(rank - begin)].rank = rank;
        home_.push_back({number, rank - begin});
      }
    }
  }

  void run(const std::function<void(int64_t rank)>& task, const std::function<void()>& stuck,
           TaskLocals* locals) override {
    task_ = &task;
    stuck_ = &stuck;
    locals_ = locals;
    busy_workers_ = alive_workers_ = workers();
    std::vector<std::thread> threads;
    for (int64_t w = 1; w < workers(); ++w) threads.emplace_back([this, w] { work(w); });
    work(0);
    for (std::thread& thread : threads) thread.join();
  }

  // Nothing on the way to the next fiber depends on the rank's own data, which may still be on its
  // way from a cache: the processor looks several switches ahead.
  void park(int64_t /*rank*/) override {
    Worker& worker = *this_worker_;
    Task& self = *worker.current;
    if (!self.permit) {
      self.parked = true;
      if (worker.ready_count == 0) worker.take_mail();
      // With nobody ready the loop waits for mail.
      Task& next = worker.ready_count == 0 ? worker.loop : worker.next_ready();
      if (&next != &self) switch_to(worker, next);
    }
    self.permit = false;
  }

  void unpark(std::span<const int64_t> ranks) override {
    Worker& own = *this_worker_;
    bool any_other = false;
    for (const int64_t rank : ranks) {
      const Home& home = home_[static_cast<size_t>(rank)];
      if (home.worker == own.number) {
        own.wake(home.index);
      } else {
        own.outgoing[static_cast<size_t>(home.worker)].push_back(home.index);
        any_other = true;
      }
    }
    if (!any_other) return;
    for (size_t w = 0; w < workers_.size(); ++w) {
      if (!own.outgoing[w].empty()) post(workers_[w], own.outgoing[w]);
    }
  }

  void post(int64_t worker, WorkerJob& job) override {
    Worker& to = workers_[static_cast<size_t>(worker)];
    const std::scoped_lock lock(to.mutex);
    to.jobs.push_back(&job);
    notify(to);
  }

  int64_t workers() const override { return static_cast<int64_t>(workers_.size()); }
  int64_t worker_of(int64_t rank) const override { return home_[static_cast<size_t>(rank)].worker; }

 private:
  struct Home {
    int64_t worker;
    int64_t index;
  };

  // Hands tasks over to another worker.
  void post(Worker& to, std::vector<int64_t>& tasks) {
    const std::scoped_lock lock(to.mutex);
    to.inbox.insert(to.inbox.end(), tasks.begin(), tasks.end());
    tasks.clear();
    notify(to);
  }

  // Of to.mutex.
  void notify(Worker& to) {
    to.has_mail.store(true, std::memory_order_release);
    if (!to.idle) return;
    to.idle = false;
    ++busy_workers_;  // on its behalf: the count must not reach 0 while mail is on its way
    to.awake.notify_one();
  }

  // Leaves the current task for `next`; returns when somebody switches back.
  void switch_to(Worker& worker, Task& next) {
    Task& self = *worker.current;
    if (locals_ != nullptr && self.rank >= 0) locals_->leave(self.rank);
    self.exceptions = std::exchange(*worker.exceptions, next.exceptions);
    worker.previous = &self;
    worker.current = &next;
    self.stack.leave_for(next.stack);
    // On the next fiber's stack, and not after a plain resume(), for speed: the processor pairs
    // returns with calls. A plain switch is a call that never returns, so every return that
    // follows, up to the program, would be predicted wrong; this function returns in its place.
    std::move(next.fiber).resume_with([&worker](ctx::fiber&& from) {
      worker.previous->fiber = std::move(from);
      return ctx::fiber();
    });
    self.stack.arrive();
    if (locals_ != nullptr && self.rank >= 0) locals_->enter(self.rank);
  }

  // Makes the fiber; it starts when it is switched to.
  void make_fiber(Worker& worker, Task& task) {
    task.fiber = ctx::fiber(std::allocator_arg, StackAllocator(stack_bytes_, task.rank, task.stack),
                            [this, &worker, &task](ctx::fiber&&) {
                              task.stack.begin(worker.previous->stack);
                              if (locals_ != nullptr) locals_->enter(task.rank);
                              (*task_)(task.rank);
                              if (locals_ != nullptr) locals_->leave(task.rank);
                              // Ends: the loop goes on.
                              --worker.alive;
                              *worker.exceptions = worker.loop.exceptions;
                              worker.previous = &task;
                              worker.current = &worker.loop;
                              task.stack.end_for(worker.loop.stack);
                              return std::move(worker.loop.fiber);
                            });
  }

  void work(int64_t number) {
    // A rank may run a cluster of its own: then this thread is a worker of both.
    Worker& worker = workers_[static_cast<size_t>(number)];
    Worker* const outer = std::exchange(this_worker_, &worker);
    worker.exceptions = ExceptionState::of_this_thread();
    worker.alive = static_cast<int64_t>(worker.tasks.size());
    for (size_t i = 0; i < worker.tasks.size(); ++i) {
      make_fiber(worker, worker.tasks[i]);
      worker.tasks[i].parked = true;
      worker.wake(static_cast<int64_t>(i));
      worker.tasks[i].permit = false;
    }
    while (worker.alive > 0) {
      worker.take_mail();
      if (worker.ready_count > 0) {
        switch_to(worker, worker.next_ready());
      } else {
        wait_for_mail(worker);
      }
    }
    const std::scoped_lock lock(idle_mutex_);
    --alive_workers_;
    // The last that still works may leave others that wait for ever.
    if (--busy_workers_ == 0 && alive_workers_ > 0) (*stuck_)();
    this_worker_ = outer;
  }

  void wait_for_mail(Worker& worker) {
    // Mail comes soon as a rule: looking for it costs less than sleeping.
    // Where other programs run too, who writes it may be waiting for this core.
    constexpr int kLooks = 2000, kLooksInARow = 50;
    for (int look = 0; look < kLooks && workers() > 1; ++look) {
      if (worker.has_mail.load(std::memory_order_acquire)) return;
      if ((look + 1) % kLooksInARow == 0) {
        std::this_thread::yield();
      } else {
        pause();
      }
    }
    {
      const std::scoped_lock lock(worker.mutex);
      if (worker.has_mail.load(std::memory_order_relaxed)) return;
      worker.idle = true;
    }
    {
      // Nobody works and nobody is on the way: mail can come from nowhere.
      const std::scoped_lock lock(idle_mutex_);
      if (--busy_workers_ == 0) (*stuck_)();
    }
    std::unique_lock lock(worker.mutex);
    worker.awake.wait(lock, [&] { return !worker.idle || worker.ready_count > 0; });
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

  std::vector<Worker> workers_;
  std::vector<Home> home_;  // [ranks]
  const size_t stack_bytes_;
  const std::function<void(int64_t rank)>* task_ = nullptr;
  const std::function<void()>* stuck_ = nullptr;
  TaskLocals* locals_ = nullptr;
  std::mutex idle_mutex_;
  std::atomic<int64_t> busy_workers_ = 0;  // not idle and not ended
  int64_t alive_workers_ = 0;              // of idle_mutex_
  static thread_local Worker* this_worker_;
};

thread_local Worker* FiberExecutor::this_worker_ = nullptr;

}  // namespace

std::unique_ptr<Executor> make_fiber_executor(int64_t ranks, int64_t workers,
                                              std::optional<uint64_t> schedule,
                                              size_t stack_bytes) {
  return std::make_unique<FiberExecutor>(ranks, workers, schedule, stack_bytes);
}

}  // namespace deepinfer
