// Random correct programs raise no alarm, and every result is what a simple oracle says.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include "platform/random.h"
#include "tests/cluster/world.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

using Bytes = std::vector<char>;

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// One call, as all members of its group make it.
struct Step {
  CollectiveOp op = CollectiveOp::kBarrier;  // kSend: members 0, 2, ... send to 1, 3, ...
  WireType type = WireType::kFloat32;
  int64_t count = 0;        // elements: of `in`, or of `out` where members' pieces are summed
  int64_t root = 0;         // broadcast
  int64_t leaves = 0;       // all_reduce(tree)
  int64_t blocks = 1;       // all_reduce(tree), of count / blocks elements
  bool in_place = false;    // where the op allows it
  bool one_output = false;  // all members name the same memory for it, where the op allows it
  uint64_t key = 0;         // of the contents
};

constexpr auto kOps = std::to_array(
    {CollectiveOp::kAllReduceSum, CollectiveOp::kAllReduceMax, CollectiveOp::kAllReduceTree,
     CollectiveOp::kAllGather, CollectiveOp::kReduceScatterSum, CollectiveOp::kAllToAllV,
     CollectiveOp::kBroadcast, CollectiveOp::kBarrier, CollectiveOp::kSend});
constexpr auto kTypes =
    std::to_array({WireType::kFloat32, WireType::kBFloat16, WireType::kInt32, WireType::kUint8});

bool reduces(CollectiveOp op) {
  return op == CollectiveOp::kAllReduceSum || op == CollectiveOp::kAllReduceMax ||
         op == CollectiveOp::kAllReduceTree || op == CollectiveOp::kReduceScatterSum;
}

// A draw that depends on nothing but its arguments.
int64_t draw(uint64_t key, int64_t a, int64_t b, int64_t below) {
  return RandomStream(key, static_cast<uint64_t>(a), static_cast<uint32_t>(b)).below(below);
}

// What members hand in: stretches of one table, so that they cost nothing to make again.
class Contents {
 public:
  static constexpr int64_t kLongest = int64_t{5} << 15;  // elements of one member's input

  // Signs, zeros of both kinds and exponents so far apart that the order of a sum shows.
  explicit Contents(uint64_t seed) : wide_(2 * kLongest) {
    RandomStream random(seed, "contents", 0);
    for (float& value : wide_) {
      const float scale = std::ldexp(1.0f, static_cast<int>(random.below(20)) - 10);
      value = random.uniform() * (random.one_in(32) ? 0.0f : scale);
    }
    for (const float value : wide_) narrow_.push_back(bf16(value));
  }

  const char* of(const Step& step, int64_t piece) const {
    const auto at = static_cast<size_t>(draw(step.key, piece, 1, kLongest));
    if (step.type == WireType::kBFloat16) return reinterpret_cast<const char*>(&narrow_[at]);
    return reinterpret_cast<const char*>(&wide_[at]);
  }

  static uint16_t bf16(float value) {  // nearest even; finite values
    const auto bits = std::bit_cast<uint32_t>(value);
    return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }

 private:
  std::vector<float> wide_;
  std::vector<uint16_t> narrow_;
};

// What each member hands in and gets, worked out from the definitions alone.
class Oracle {
 public:
  Oracle(const Contents& contents, const Step& step, int64_t members)
      : contents_(contents), step_(step), members_(members) {}

  int64_t elements_in(int64_t member) const {
    switch (step_.op) {
      case CollectiveOp::kReduceScatterSum:
        return members_ * step_.count;
      case CollectiveOp::kAllToAllV: {
        const std::vector<int64_t> counts = send_counts(member);
        return std::accumulate(counts.begin(), counts.end(), int64_t{0});
      }
      default:
        return step_.count;
    }
  }
  Bytes input(int64_t member) const { return stretch(member, 0, elements_in(member)); }

  std::vector<int64_t> send_counts(int64_t from) const {
    std::vector<int64_t> counts;
    for (int64_t to = 0; to < members_; ++to) counts.push_back(sent(from, to));
    return counts;
  }
  std::vector<int64_t> receive_counts(int64_t to) const {
    std::vector<int64_t> counts;
    for (int64_t from = 0; from < members_; ++from) counts.push_back(sent(from, to));
    return counts;
  }

  // all_reduce(tree): a block of the partial at a tree position, empty where none is.
  std::vector<float> partial(int64_t position, int64_t block) const {
    if (draw(step_.key, position, 2 + 8 * block, 3) == 0) return {};
    Step wide = step_;
    wide.type = WireType::kFloat32;
    const int64_t count = step_.count / step_.blocks;
    const auto* first =
        reinterpret_cast<const float*>(contents_.of(wide, position)) + block * count;
    return {first, first + count};
  }

  Bytes output(int64_t member) const {
    switch (step_.op) {
      case CollectiveOp::kAllReduceSum:
        return narrowed(tree_sum(floats(0)));
      case CollectiveOp::kReduceScatterSum:
        return narrowed(tree_sum(floats(member * step_.count)));
      case CollectiveOp::kAllReduceMax:
        return narrowed(largest(floats(0)));
      case CollectiveOp::kAllReduceTree: {
        const ShardMap map = ShardMap::interleaved("axis", members_, step_.leaves);
        std::vector<float> all;
        for (int64_t block = 0; block < step_.blocks; ++block) {
          std::vector<std::vector<float>> partials(static_cast<size_t>(step_.leaves));
          for (int64_t m = 0; m < members_; ++m) {
            for (const Subtree& subtree : map.subtrees_of_rank(m)) {
              partials[static_cast<size_t>(subtree.begin)] = partial(subtree.begin, block);
            }
          }
          std::vector<float> sum = tree_sum(std::move(partials));
          sum.resize(static_cast<size_t>(step_.count / step_.blocks));
          all.insert(all.end(), sum.begin(), sum.end());
        }
        return narrowed(all);
      }
      case CollectiveOp::kAllGather: {
        Bytes all;
        for (int64_t m = 0; m < members_; ++m) append(all, stretch(m, 0, step_.count));
        return all;
      }
      case CollectiveOp::kAllToAllV: {
        Bytes all;
        for (int64_t from = 0; from < members_; ++from) {
          int64_t before = 0;
          for (int64_t to = 0; to < member; ++to) before += sent(from, to);
          append(all, stretch(from, before, sent(from, member)));
        }
        return all;
      }
      case CollectiveOp::kBroadcast:
        return stretch(step_.root, 0, step_.count);
      default:  // what the partner sends
        return stretch(member ^ 1, 0, step_.count);
    }
  }

 private:
  static void append(Bytes& to, const Bytes& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

  int64_t sent(int64_t from, int64_t to) const {
    return draw(step_.key, from * members_ + to, 3, step_.count + 1);
  }

  Bytes stretch(int64_t member, int64_t begin, int64_t count) const {
    const int64_t element = wire_type_bytes(step_.type);
    const char* first = contents_.of(step_, member) + begin * element;
    return {first, first + count * element};
  }

  // Elements [begin, begin + step.count) of every member.
  std::vector<std::vector<float>> floats(int64_t begin) const {
    std::vector<std::vector<float>> all;
    for (int64_t m = 0; m < members_; ++m) {
      const Bytes bytes = stretch(m, begin, step_.count);
      std::vector<float>& values = all.emplace_back(static_cast<size_t>(step_.count));
      for (size_t i = 0; i < values.size(); ++i) {
        if (step_.type == WireType::kFloat32) {
          std::memcpy(&values[i], bytes.data() + 4 * i, 4);
        } else {
          uint16_t narrow = 0;
          std::memcpy(&narrow, bytes.data() + 2 * i, 2);
          values[i] = std::bit_cast<float>(static_cast<uint32_t>(narrow) << 16);
        }
      }
    }
    return all;
  }

  // C2.5, neighbours first; an empty one is absent. None at all gives +0.
  std::vector<float> tree_sum(std::vector<std::vector<float>> values) const {
    while (values.size() > 1) {
      std::vector<std::vector<float>> next;
      for (size_t i = 0; i < values.size(); i += 2) {
        next.push_back(std::move(values[i]));
        if (i + 1 == values.size() || values[i + 1].empty()) continue;
        std::vector<float>& sum = next.back();
        if (sum.empty()) {
          sum = std::move(values[i + 1]);
        } else {
          for (size_t k = 0; k < sum.size(); ++k) sum[k] += values[i + 1][k];
        }
      }
      values = std::move(next);
    }
    values[0].resize(static_cast<size_t>(step_.count));  // of zeros, if nothing came
    return values[0];
  }

  static std::vector<float> largest(const std::vector<std::vector<float>>& values) {
    std::vector<float> most = values[0];
    for (const std::vector<float>& of_member : values) {
      for (size_t k = 0; k < most.size(); ++k) {
        const float value = of_member[k];
        if (value > most[k] || (value == most[k] && std::signbit(most[k]))) most[k] = value;
      }
    }
    return most;
  }

  Bytes narrowed(const std::vector<float>& values) const {
    if (step_.type == WireType::kFloat32) return bytes_of(values);
    std::vector<uint16_t> narrow;
    for (const float value : values) narrow.push_back(Contents::bf16(value));
    return bytes_of(narrow);
  }

  const Contents& contents_;
  const Step& step_;
  const int64_t members_;
};

// Memory that all members of a call have in common.
class SharedOutputs {
 public:
  std::shared_ptr<Bytes> take(const Step& step, const Group& group, size_t size) {
    const std::scoped_lock lock(mutex_);
    const std::pair key(step.key, group.members());
    auto& [bytes, taken] = outputs_[key];
    if (taken == 0) bytes = std::make_shared<Bytes>(size, 1);
    std::shared_ptr<Bytes> result = bytes;
    if (++taken == group.size()) outputs_.erase(key);
    return result;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<uint64_t, std::vector<int64_t>>, std::pair<std::shared_ptr<Bytes>, int64_t>>
      outputs_;
};

// What ranks tell the test, which alone makes doctest's checks: they are not made for many threads.
struct Record {
  std::atomic<int64_t> calls[kOps.size()][kTypes.size()] = {};  // made by members
  std::atomic<int64_t> one_output = 0;                          // calls with it
  std::mutex mutex;
  std::string first_wrong;  // of mutex
  SharedOutputs outputs;
};

// One rank's side of a program; its buffers are used again at once, as a model's are.
class Player {
 public:
  Player(RankContext& context, const Contents& contents, Record& record)
      : comm_(context.communicator), contents_(contents), record_(record) {}

  void play(const Step& step, const Group& group) {
    const std::vector<int64_t>& members = group.members();
    const int64_t self = std::find(members.begin(), members.end(), comm_.rank()) - members.begin();
    const Oracle oracle(contents_, step, group.size());
    const auto op = std::find(kOps.begin(), kOps.end(), step.op) - kOps.begin();
    const auto type = std::find(kTypes.begin(), kTypes.end(), step.type) - kTypes.begin();
    ++record_.calls[op][type];
    switch (step.op) {
      case CollectiveOp::kAllReduceSum:
      case CollectiveOp::kAllReduceMax: {
        in_ = oracle.input(self);
        if (step.one_output) {
          const auto one = one_output(step, group, in_.size());
          if (step.op == CollectiveOp::kAllReduceSum) {
            comm_.all_reduce_sum(buffer(step, in_), buffer(step, *one), group);
          } else {
            comm_.all_reduce_max(buffer(step, in_), buffer(step, *one), group);
          }
          return expect(step, group, *one, oracle.output(self));
        }
        out_.resize(in_.size());
        const Buffer out = buffer(step, step.in_place ? in_ : out_);
        if (step.op == CollectiveOp::kAllReduceSum) {
          comm_.all_reduce_sum(buffer(step, in_), out, group);
        } else {
          comm_.all_reduce_max(buffer(step, in_), out, group);
        }
        expect(step, group, step.in_place ? in_ : out_, oracle.output(self));
        if (!step.in_place) expect(step, group, in_, oracle.input(self));
        return;
      }
      case CollectiveOp::kAllReduceTree:
        return all_reduce_tree(step, group, self, oracle);
      case CollectiveOp::kAllGather: {
        const Bytes input = oracle.input(self);
        if (step.one_output) {
          in_ = input;
          const auto one = one_output(step, group, input.size() * members.size());
          comm_.all_gather(buffer(step, in_), buffer(step, *one), group);
          return expect(step, group, *one, oracle.output(self));
        }
        out_.assign(input.size() * members.size(), 0);
        in_ = input;
        // In place: from where the result has its own piece.
        char* own = out_.data() + static_cast<size_t>(self) * input.size();
        if (step.in_place) std::copy(input.begin(), input.end(), own);
        ConstBuffer in = buffer(step, in_);
        if (step.in_place) in.data = own;
        comm_.all_gather(in, buffer(step, out_), group);
        return expect(step, group, out_, oracle.output(self));
      }
      case CollectiveOp::kReduceScatterSum:
        in_ = oracle.input(self);
        out_.resize(static_cast<size_t>(step.count * wire_type_bytes(step.type)));
        comm_.reduce_scatter_sum(buffer(step, in_), buffer(step, out_), group);
        return expect(step, group, out_, oracle.output(self));
      case CollectiveOp::kAllToAllV: {
        in_ = oracle.input(self);
        const Bytes expected = oracle.output(self);
        out_.resize(expected.size());
        comm_.all_to_all_v(buffer(step, in_), oracle.send_counts(self), buffer(step, out_),
                           oracle.receive_counts(self), group);
        return expect(step, group, out_, expected);
      }
      case CollectiveOp::kBroadcast:
        in_ = oracle.input(self);
        comm_.broadcast(buffer(step, in_), step.root, group);
        return expect(step, group, in_, oracle.output(self));
      case CollectiveOp::kBarrier:
        return comm_.barrier(group);
      default:
        if ((self ^ 1) >= group.size()) return;  // the last of an odd number
        in_ = oracle.input(self);
        if (self % 2 == 0) {
          comm_.send(buffer(step, in_), members[static_cast<size_t>(self ^ 1)]);
        } else {
          comm_.receive(buffer(step, in_), members[static_cast<size_t>(self ^ 1)]);
          expect(step, group, in_, oracle.output(self));
        }
    }
  }

 private:
  void all_reduce_tree(const Step& step, const Group& group, int64_t self, const Oracle& oracle) {
    const ShardMap map = ShardMap::interleaved("axis", group.size(), step.leaves);
    std::vector<std::vector<float>> values;
    std::vector<const float*> partials;
    for (const Subtree& subtree : map.subtrees_of_rank(self)) {
      for (int64_t block = 0; block < step.blocks; ++block) {
        values.push_back(oracle.partial(subtree.begin, block));
        partials.push_back(values.back().empty() ? nullptr : values.back().data());
      }
    }
    const auto size = static_cast<size_t>(step.count * wire_type_bytes(step.type));
    if (step.one_output) {
      const auto one = one_output(step, group, size);
      comm_.all_reduce_tree(map, partials, buffer(step, *one), group);
      return expect(step, group, *one, oracle.output(self));
    }
    out_.assign(size, 1);
    comm_.all_reduce_tree(map, partials, buffer(step, out_), group);
    expect(step, group, out_, oracle.output(self));
  }

  std::shared_ptr<Bytes> one_output(const Step& step, const Group& group, size_t size) {
    ++record_.one_output;
    return record_.outputs.take(step, group, size);
  }

  static Buffer buffer(const Step& step, Bytes& bytes) {
    return {
        step.type, {static_cast<int64_t>(bytes.size()) / wire_type_bytes(step.type)}, bytes.data()};
  }
  void expect(const Step& step, const Group& group, const Bytes& found, const Bytes& expected) {
    if (found == expected) return;
    const std::scoped_lock lock(record_.mutex);
    if (!record_.first_wrong.empty()) return;
    std::ostringstream text;
    text << collective_name(step.op) << ' ' << wire_type_name(step.type) << ", " << step.count
         << " elements"
         << (step.one_output ? " to one output"
             : step.in_place ? " in place"
                             : "")
         << ", on rank " << comm_.rank() << " of " << replica_groups_text({group.members()});
    record_.first_wrong = text.str();
  }

  Communicator& comm_;
  const Contents& contents_;
  Record& record_;
  Bytes in_, out_;
};

template <typename T>
void shuffle(RandomStream& random, std::vector<T>& values) {
  for (size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  }
}

// The lists of groups that a program uses: among them the same members in another order, the same
// groups in another list, and lists without some of the ranks.
std::vector<ReplicaGroups> random_lists(RandomStream& random, int64_t ranks) {
  std::vector<int64_t> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  std::vector<ReplicaGroups> lists = {{all}};
  for (int i = 0; i < 4; ++i) {
    if (i > 0) shuffle(random, all);
    ReplicaGroups list;
    const int64_t largest = 1 + random.below(ranks);
    for (size_t begin = 0; begin < all.size();) {
      const auto size = static_cast<size_t>(1 + random.below(largest));
      const size_t end = std::min(begin + size, all.size());
      list.emplace_back(&all[begin], &all[begin] + (end - begin));
      begin = end;
    }
    lists.push_back(list);
    shuffle(random, list);
    lists.push_back(list);
    for (std::vector<int64_t>& group : list) std::sort(group.begin(), group.end());
    lists.push_back(list);
    for (std::vector<int64_t>& group : list) shuffle(random, group);
    lists.push_back(list);
    if (list.size() > 1)
      list.resize(1 + static_cast<size_t>(random.below(static_cast<int64_t>(list.size()) - 1)));
    lists.push_back(list);
  }
  shuffle(random, all);
  lists.push_back({all});
  return lists;
}

int64_t random_count(RandomStream& random, CollectiveOp op, int64_t members) {
  if (random.one_in(25)) {
    // Large enough for workers to share it: more than 256 KiB over all members.
    const int64_t all = Contents::kLongest - random.below(1 << 16);
    const bool is_wide = op == CollectiveOp::kAllGather || op == CollectiveOp::kReduceScatterSum ||
                         op == CollectiveOp::kAllToAllV;
    return all / members / (is_wide ? members : 1);
  }
  return random.below(random.one_in(8) ? 300 : 17);
}

Step random_step(RandomStream& random, int64_t members) {
  Step step;
  step.op = kOps[static_cast<size_t>(random.below(kOps.size()))];
  step.type = kTypes[static_cast<size_t>(random.below(reduces(step.op) ? 2 : 4))];
  step.count = random_count(random, step.op, members);
  step.root = random.below(members);
  step.leaves = std::bit_ceil(static_cast<uint64_t>(members)) << random.below(2);
  if (random.one_in(2)) step.leaves = kCanonicalLeaves;
  if (step.op == CollectiveOp::kAllReduceTree && random.one_in(3)) {
    step.blocks = 2 + random.below(4);
    step.count -= step.count % step.blocks;
  }
  step.in_place = random.one_in(3);
  step.one_output = random.one_in(4);
  step.key = random.word();
  return step;
}

// A program: the same on all ranks, who draw it from the same streams.
ClusterStatistics play_program(const ClusterOptions& options, uint64_t seed, uint32_t program,
                               int64_t steps, const Contents& contents, Record& record) {
  RandomStream for_lists(seed, "lists", program);
  const std::vector<ReplicaGroups> lists = random_lists(for_lists, options.ranks);
  const uint64_t program_seed = seed ^ fnv1a64("program") * (program + 1);
  return run_cluster(options, [&](RankContext& context) {
    Player player(context, contents, record);
    std::vector<GroupPtr> groups(lists.size());  // made when first used
    RandomStream random(program_seed, "steps", 0);
    for (int64_t i = 0; i < steps; ++i) {
      const auto at = static_cast<size_t>(random.below(static_cast<int64_t>(lists.size())));
      const bool anew = random.one_in(100);
      // Now and then several in a row, with other contents each time.
      const int64_t times = random.one_in(8) ? 2 + random.below(6) : 1;
      const ReplicaGroups& list = lists[at];
      const auto own = std::find_if(list.begin(), list.end(), [&](const auto& group) {
        return std::find(group.begin(), group.end(), context.rank) != group.end();
      });
      if (own == list.end()) continue;
      if (groups[at] == nullptr || anew) groups[at] = context.communicator.group(list);
      // Groups of a list do not do the same thing.
      RandomStream of_group(program_seed,
                            fnv1a64("step") + static_cast<uint64_t>(own - list.begin()),
                            static_cast<uint32_t>(i));
      Step step = random_step(of_group, groups[at]->size());
      for (int64_t time = 0; time < times; ++time, ++step.key) player.play(step, *groups[at]);
    }
  });
}

void play_programs(int64_t collectives) {
  const uint64_t seed = random_seed(33);
  const Contents contents(seed);
  Record record;
  ClusterStatistics all;
  for (uint32_t program = 0; all.collectives < collectives; ++program) {
    RandomStream random(seed, "world", program);
    ClusterOptions options = world_of(2 + random.below(63));
    options.executor.workers = 2 - program % 2;
    if (program % 3 == 2) options.executor.schedule = random.word();
    int64_t steps = 400;
    // A thread for each rank: few, since each wait is the operating system's.
    if (!kFibersToo || program % 8 == 7) {
      options.executor.kind = ExecutorKind::kThreads;
      options.ranks = 2 + random.below(11);
      steps = 100;
    }
    CAPTURE(program);
    CAPTURE(options.ranks);
    const ClusterStatistics one = play_program(options, seed, program, steps, contents, record);
    REQUIRE(record.first_wrong == "");
    all.collectives += one.collectives;
    all.shared += one.shared;
    all.bytes += one.bytes;
  }
  MESSAGE(all.collectives << " collectives, " << all.shared << " of them shared by workers, "
                          << (all.bytes >> 20) << " MiB");
  for (size_t op = 0; op < kOps.size(); ++op) {
    for (size_t type = 0; type < (reduces(kOps[op]) ? 2 : kTypes.size()); ++type) {
      CAPTURE(collective_name(kOps[op]));
      CAPTURE(wire_type_name(kTypes[type]));
      CHECK(record.calls[op][type] > 0);
    }
  }
  CHECK(record.one_output > 0);
  if (!kSanitized) CHECK(all.shared > 0);  // a few programs may have none
}

TEST_CASE("random correct programs raise no alarm") { play_programs(kSanitized ? 10000 : 50000); }

// Run by ctest with label soak.
TEST_CASE("a million collectives of random correct programs" * doctest::skip()) {
  play_programs(1000000);
}

}  // namespace
}  // namespace deepinfer
