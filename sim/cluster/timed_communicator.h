// A communicator that measures how long its rank computes between calls.
#pragma once

#include <chrono>
#include <utility>

#include "platform/communicator.h"

namespace deepinfer {

// Passes every call on. Ranks that share one worker run one at a time, so what their computing
// leaves of the wall-clock time is the executor's and the communicator's.
class TimedCommunicator final : public Communicator {
 public:
  explicit TimedCommunicator(Communicator& inner) : inner_(inner), left_(Clock::now()) {}

  // Seconds between calls so far, to be asked when the rank ends.
  double computing_seconds() const {
    return std::chrono::duration<double>(computing_ + (Clock::now() - left_)).count();
  }

  int64_t rank() const override { return inner_.rank(); }
  int64_t size() const override { return inner_.size(); }
  GroupPtr world() const override { return inner_.world(); }
  GroupPtr group(ReplicaGroups groups, CallSite site) override {
    return inner_.group(std::move(groups), site);
  }
  void all_reduce_sum(const ConstBuffer& in, const Buffer& out, const Group& group,
                      CallSite site) override {
    pass([&] { inner_.all_reduce_sum(in, out, group, site); });
  }
  void all_reduce_max(const ConstBuffer& in, const Buffer& out, const Group& group,
                      CallSite site) override {
    pass([&] { inner_.all_reduce_max(in, out, group, site); });
  }
  void all_reduce_tree(const ShardMap& map, std::span<const float* const> partials,
                       const Buffer& out, const Group& group, CallSite site) override {
    pass([&] { inner_.all_reduce_tree(map, partials, out, group, site); });
  }
  void all_gather(const ConstBuffer& in, const Buffer& out, const Group& group,
                  CallSite site) override {
    pass([&] { inner_.all_gather(in, out, group, site); });
  }
  void reduce_scatter_sum(const ConstBuffer& in, const Buffer& out, const Group& group,
                          CallSite site) override {
    pass([&] { inner_.reduce_scatter_sum(in, out, group, site); });
  }
  void all_to_all_v(const ConstBuffer& in, std::span<const int64_t> send_counts, const Buffer& out,
                    std::span<const int64_t> receive_counts, const Group& group,
                    CallSite site) override {
    pass([&] { inner_.all_to_all_v(in, send_counts, out, receive_counts, group, site); });
  }
  void broadcast(const Buffer& data, int64_t root, const Group& group, CallSite site) override {
    pass([&] { inner_.broadcast(data, root, group, site); });
  }
  void barrier(const Group& group, CallSite site) override {
    pass([&] { inner_.barrier(group, site); });
  }
  void send(const ConstBuffer& data, int64_t to_rank, CallSite site) override {
    pass([&] { inner_.send(data, to_rank, site); });
  }
  void receive(const Buffer& data, int64_t from_rank, CallSite site) override {
    pass([&] { inner_.receive(data, from_rank, site); });
  }

 private:
  using Clock = std::chrono::steady_clock;

  template <class Call>
  void pass(const Call& call) {
    computing_ += Clock::now() - left_;
    call();
    left_ = Clock::now();
  }

  Communicator& inner_;
  Clock::duration computing_ = {};
  Clock::time_point left_;
};

}  // namespace deepinfer
