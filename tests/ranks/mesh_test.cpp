// Meshes: who is in which group, who holds which columns and entries.
#include "model/mesh.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <doctest/doctest.h>

#include "model/tile_shard.h"
#include "platform/errors.h"

namespace deepinfer {
namespace {

const std::string kData = DEEPINFER_SIM_SOURCE_DIR "/golden/data/";

TEST_CASE("the world is the smallest that attention and experts tile") {
  CHECK(ParallelSizes{}.ranks() == 1);
  CHECK(ParallelSizes{2, 4, 1}.ranks() == 8);
  CHECK(ParallelSizes{2, 4, 8}.ranks() == 8);
  CHECK(ParallelSizes{1, 64, 64}.ranks() == 64);
  CHECK(ParallelSizes{2, 3, 4}.ranks() == 12);
  CHECK(ParallelSizes{2, 3, 4}.text() == std::string("tp 2 cp 3 ep 4"));
  const ModelConfig config = load_model_config(kData + "tiny");
  for (const ParallelSizes& wrong :
       {ParallelSizes{0, 1, 1}, ParallelSizes{1, 65, 1}, ParallelSizes{1, 1, -1}}) {
    CHECK_THROWS_AS(Mesh(config, wrong), ConfigError);
  }
}

// Every rank is in one group of each axis, the groups are as large as the axis, and a rank's place
// in its group is its index.
TEST_CASE("groups of every axis are a partition in the order of places") {
  const ModelConfig config = load_model_config(kData + "wide");
  for (const ParallelSizes& sizes :
       {ParallelSizes{2, 3, 4}, ParallelSizes{4, 2, 8}, ParallelSizes{1, 4, 2},
        ParallelSizes{3, 1, 5}, ParallelSizes{1, 1, 7}, ParallelSizes{8, 8, 64}}) {
    CAPTURE(sizes.text());
    const Mesh mesh(config, sizes);
    for (const Axis axis : {Axis::kTensor, Axis::kContext, Axis::kExpert}) {
      std::set<int64_t> seen;
      for (const std::vector<int64_t>& group : mesh.groups(axis)) {
        CHECK(static_cast<int64_t>(group.size()) == sizes.of(axis));
        for (size_t place = 0; place < group.size(); ++place) {
          CHECK(mesh.index(group[place], axis) == static_cast<int64_t>(place));
          CHECK(seen.insert(group[place]).second);
          // Along one attention axis the other stays.
          if (axis == Axis::kExpert) continue;
          const Axis other = axis == Axis::kTensor ? Axis::kContext : Axis::kTensor;
          CHECK(mesh.index(group[place], other) == mesh.index(group[0], other));
        }
      }
      CHECK(static_cast<int64_t>(seen.size()) == mesh.ranks());
    }
  }
}

TEST_CASE("replicas are the ranks of equal places") {
  const Mesh mesh(load_model_config(kData + "wide"), {2, 3, 4});
  const std::vector<ReplicaPartition> partitions = mesh.partitions();
  REQUIRE(partitions.size() == AxisSet::kCount + kAxes);
  const AxisSet both = Axis::kTensor | Axis::kExpert;
  for (int64_t a = 0; a < mesh.ranks(); ++a) {
    for (int64_t b = 0; b < mesh.ranks(); ++b) {
      const auto same = [&](AxisSet set) {
        const auto& sets = partitions[set.number()].set_of_rank;
        return sets[static_cast<size_t>(a)] == sets[static_cast<size_t>(b)];
      };
      const auto equal = [&](Axis axis) { return mesh.index(a, axis) == mesh.index(b, axis); };
      CHECK(same({}));
      CHECK(same(Axis::kContext) == equal(Axis::kContext));
      CHECK(same(both) == (equal(Axis::kTensor) && equal(Axis::kExpert)));
      for (const Axis axis : {Axis::kTensor, Axis::kContext, Axis::kExpert}) {
        const auto& sets = partitions[Mesh::group_partition(axis)].set_of_rank;
        const bool together =
            std::any_of(mesh.groups(axis).begin(), mesh.groups(axis).end(), [&](const auto& group) {
              return std::count(group.begin(), group.end(), a) > 0 &&
                     std::count(group.begin(), group.end(), b) > 0;
            });
        CHECK((sets[static_cast<size_t>(a)] == sets[static_cast<size_t>(b)]) == together);
      }
    }
  }
  CHECK(partitions[both.number()].name == "equal tp, ep index");
}

// The released shapes: systems.md X6 and model.md 5.1.
TEST_CASE("columns of the released model on 64 leaves") {
  ModelConfig config = load_model_config(kData + "wide");
  config.num_attention_heads = 64;
  config.head_dim = 512;
  config.o_groups = 8;
  config.o_lora_rank = 1024;
  config.moe_intermediate_size = 2304;
  const Mesh mesh(config, {64, 1, 1});
  for (int64_t rank = 0; rank < 64; ++rank) {
    CHECK(mesh.heads().columns_of_rank(rank) == IndexRange{512 * rank, 512 * (rank + 1)});
    CHECK(mesh.output().columns_of_rank(rank) == IndexRange{128 * rank, 128 * (rank + 1)});
    const IndexRange slice = mesh.shared().columns_of_rank(rank);
    CHECK(slice.count() == (rank < 18 ? 128 : 0));
    if (rank < 18) CHECK(slice.begin == 128 * rank);
  }
  // Of an o-group of 4096 columns, the heads of the rank.
  CHECK(mesh.heads().columns_of_rank(9, {4096, 8192}) == IndexRange{4608, 5120});
  CHECK(mesh.heads().columns_of_rank(9, {0, 4096}).count() == 0);
  CHECK(mesh.heads().bounds(9, {4096, 8192}) == std::vector<int64_t>{0, 512});
  const Mesh three(config, {3, 1, 1});
  const std::vector<int64_t> bounds = three.heads().bounds(1, {8192, 12288});
  CHECK(bounds.size() == 22);  // rank 1 of 3 holds tree positions 21 to 41, group 2 heads 16 to 23
  CHECK(bounds.front() == 0);
  CHECK(bounds[3] == 3 * 512);
  CHECK(bounds.back() == 3 * 512);
}

// Every cut of the columns is complete and in order.
TEST_CASE("ranks' columns follow each other without a gap") {
  for (const char* folder : {"tiny", "wide"}) {
    const ModelConfig config = load_model_config(kData + folder);
    for (int64_t ranks = 1; ranks <= 64; ++ranks) {
      const Mesh mesh(config, {ranks, 1, 1});
      for (const ColumnShards* columns : {&mesh.heads(), &mesh.output(), &mesh.shared()}) {
        int64_t next = 0;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const IndexRange own = columns->columns_of_rank(rank);
          CHECK(own.begin == next);
          next = own.end;
          const std::vector<int64_t> bounds = columns->bounds(rank, {0, columns->columns()});
          CHECK(bounds.front() == 0);
          CHECK(bounds.back() == own.count());
          CHECK(std::is_sorted(bounds.begin(), bounds.end()));
        }
        CHECK(next == columns->columns());
      }
    }
  }
}

TEST_CASE("a rank's rows are its own entries, ascending") {
  constexpr int64_t kEntries = 1500;
  for (const int64_t ranks : {1, 2, 3, 5, 7, 18, 63, 64}) {
    const ShardMap tiles = ShardMap::interleaved("tiles", ranks);
    std::vector<int64_t> owners(kEntries, 0);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const TileShard shard(tiles, rank, at::kCPU);
      std::vector<int64_t> own;
      for (int64_t entry = 0; entry < kEntries; ++entry) {
        CHECK(shard.rows_before(entry) == static_cast<int64_t>(own.size()));
        if (tiles.rank_of_unit(entry / kKvTileEntries) == rank) own.push_back(entry);
      }
      for (const IndexRange range : {IndexRange{0, kEntries}, IndexRange{13, 777},
                                     IndexRange{512, 512}, IndexRange{1023, 1024}}) {
        std::vector<int64_t> expected;
        for (const int64_t entry : own) {
          if (range.contains(entry)) expected.push_back(entry);
        }
        CHECK(at::equal(shard.entries(range), at::tensor(expected, at::kLong)));
      }
      const at::Tensor all = at::arange(-1, kEntries, at::kInt);
      const at::Tensor rows = shard.rows(all.view({-1, 1}));
      CHECK((rows.scalar_type() == at::kInt));
      CHECK(rows[0][0].item<int>() == -1);
      std::vector<int64_t> found;
      for (int64_t entry = 0; entry < kEntries; ++entry) {
        const int64_t row = rows[entry + 1][0].item<int>();
        if (row < 0) continue;
        CHECK(row == static_cast<int64_t>(found.size()));
        found.push_back(entry);
        ++owners[static_cast<size_t>(entry)];
      }
      CHECK(found == own);
      const at::Tensor with_unused =
          at::cat({at::full({1}, -1, at::kLong), at::tensor(own, at::kLong)});
      const auto own_rows = static_cast<int64_t>(own.size());
      CHECK(at::equal(shard.entries_of(at::arange(-1, own_rows, at::kInt).view({1, -1})),
                      with_unused.to(at::kInt).view({1, -1})));
      const at::Tensor ends = at::arange(0, kEntries, at::kLong);
      const at::Tensor before = shard.rows_before(ends);
      for (const int64_t entry : {0, 1, 8, 511, 512, 513, 1499}) {
        CHECK(before[entry].item<int64_t>() == shard.rows_before(entry));
      }
    }
    CHECK(std::all_of(owners.begin(), owners.end(), [](int64_t count) { return count == 1; }));
  }
}

}  // namespace
}  // namespace deepinfer
