// Cases of topk_select, topk_merge, candidate_blocks, candidate_mask, block_maxima and
// greedy_sample: exact, since their scores are inputs. Integers make ties, which go to the smaller
// index.
#include <limits>

#include "golden/conformance/case_values.h"
#include "golden/conformance/op_case.h"
#include "platform/ops.h"

namespace deepinfer::conformance {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Scores [T, N]: integers, ordinary, ..., some -inf (never chosen), some rows nothing else.
Tensor scores_of(RandomStream& random, int64_t rows, int64_t width, Values values, bool hidden) {
  Tensor scores = random_tensor(random, {rows, width}, at::kFloat, values);
  auto* data = scores.data_ptr<float>();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      if (hidden && (row % 4 == 2 || random.one_in(3))) data[row * width + i] = -kInfinity;
    }
  }
  return scores;
}

constexpr Values kScoreValues[] = {Values::kOrdinary, Values::kIntegers, Values::kTiny,
                                   Values::kExtreme, Values::kZeros};

Tensor with_nan(RandomStream& random, int64_t rows, int64_t width, int64_t row, int64_t column) {
  Tensor scores = random_tensor(random, {rows, width}, at::kFloat);
  scores[row][column] = std::numeric_limits<float>::quiet_NaN();
  return scores;
}

OpCase named(const char* op, const char* output, const std::string& name) {
  OpCase one;
  one.op = op;
  one.outputs = {output};
  one.name = name;
  return one;
}

// Calls add(rows, width, k, values, hidden) for the shapes that every top-k is tried on.
template <class Add>
void add_topk_shapes(const Add& add) {
  for (const Values values : kScoreValues) {
    for (const bool hidden : {false, true}) {
      add(5, 33, 7, values, hidden);
      add(3, 128, 16, values, hidden);
      add(4, 9, 20, values, hidden);  // more than there are
      add(2, 1000, 64, values, hidden);
    }
  }
  add(0, 8, 3, Values::kOrdinary, false);
  add(3, 0, 2, Values::kOrdinary, false);
  add(3, 8, 0, Values::kOrdinary, false);
  add(1, 1, 1, Values::kOrdinary, false);
}

void add_topk_select(std::vector<OpCase>& cases) {
  const auto add = [&](int64_t rows, int64_t width, int64_t k, Values values, bool hidden) {
    OpCase one = named("topk_select", "indices",
                       shape_text({rows, width}) + " k " + std::to_string(k) + " " +
                           std::string(values_name(values)) + (hidden ? " some -inf" : ""));
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {scores_of(random, rows, width, values, hidden)};
    };
    one.run = [=](const Tensors& in, bool) -> Tensors { return {ops::topk_select(in[0], k)}; };
    cases.push_back(one);
  };
  add_topk_shapes(add);
  for (const bool far : {false, true}) {
    OpCase nan = named("topk_select", "indices", far ? "NaN past the k largest" : "NaN in row 2");
    nan.inputs = [far](RandomStream& random) -> Tensors {
      return {with_nan(random, 4, 40, 2, far ? 39 : 0)};
    };
    nan.run = [](const Tensors& in, bool) -> Tensors { return {ops::topk_select(in[0], 3)}; };
    nan.throws = {{.text = "row 2"}};
    cases.push_back(nan);
  }
  OpCase negative = named("topk_select", "indices", "k -1");
  negative.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 4}, at::kFloat)};
  };
  negative.run = [](const Tensors& in, bool) -> Tensors { return {ops::topk_select(in[0], -1)}; };
  negative.throws = {{.text = "topk_select"}};
  cases.push_back(negative);
}

// Pairs with different indices in any order, a third of the places unused, whose scores may be
// anything.
Tensors pairs_of(RandomStream& random, int64_t rows, int64_t width, Values values, bool hidden) {
  Tensor scores = scores_of(random, rows, width, values, hidden);
  auto* data = scores.data_ptr<float>();
  std::vector<int64_t> indices;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int64_t> own;
    int64_t next = 0;
    for (int64_t i = 0; i < width; ++i) {
      const bool used = !(hidden && random.one_in(3));
      own.push_back(used ? next : -1);
      next += 1 + random.below(i % 16 == 0 ? 1000 : 3);
    }
    for (int64_t i = width - 1; i > 0; --i) {
      std::swap(own[static_cast<size_t>(i)], own[static_cast<size_t>(random.below(i + 1))]);
    }
    for (int64_t i = 0; i < width; ++i) {
      if (own[static_cast<size_t>(i)] >= 0) continue;
      data[row * width + i] =
          random.one_in(2) ? kInfinity : std::numeric_limits<float>::quiet_NaN();
    }
    indices.insert(indices.end(), own.begin(), own.end());
  }
  return {scores, int_tensor(indices, {rows, width})};
}

void add_topk_merge(std::vector<OpCase>& cases) {
  const auto add = [&](int64_t rows, int64_t width, int64_t k, Values values, bool hidden) {
    OpCase one =
        named("topk_merge", "indices",
              shape_text({rows, width}) + " pairs k " + std::to_string(k) + " " +
                  std::string(values_name(values)) + (hidden ? " some unused, some -inf" : ""));
    one.inputs = [=](RandomStream& random) -> Tensors {
      return pairs_of(random, rows, width, values, hidden);
    };
    one.run = [=](const Tensors& in, bool) -> Tensors {
      return {ops::topk_merge(in[0], in[1], k)};
    };
    cases.push_back(one);
  };
  add_topk_shapes(add);
  const auto refuse = [&](const char* name, std::vector<int64_t> indices, int64_t k, bool nan,
                          const char* text) {
    OpCase wrong = named("topk_merge", "indices", name);
    wrong.inputs = [=](RandomStream& random) -> Tensors {
      const Tensor scores =
          nan ? with_nan(random, 2, 3, 1, 2) : random_tensor(random, {2, 3}, at::kFloat);
      return {scores, int_tensor(indices, {2, 3})};
    };
    wrong.run = [=](const Tensors& in, bool) -> Tensors {
      return {ops::topk_merge(in[0], in[1], k)};
    };
    wrong.throws = {{.text = text}};
    cases.push_back(wrong);
  };
  refuse("NaN in row 1", {0, 1, 2, 0, 1, 2}, 1, true, "a score in row 1 is NaN");
  refuse("an index twice", {0, 1, 2, 5, 9, 5}, 1, false, "an index in row 1 is there twice");
  refuse("an index twice, k 0", {7, 7, 2, 0, 1, 2}, 0, false, "an index in row 0 is there twice");
  refuse("index -2", {0, 1, 2, 0, -2, -1}, 1, false, "an index in row 1 is below -1");
  refuse("k -1", {0, 1, 2, 0, 1, 2}, -1, false, "k >= 0");
}

void add_candidate_blocks(std::vector<OpCase>& cases) {
  const auto add = [&](int64_t rows, int64_t width, int64_t block, int64_t most, Values values,
                       bool infinities) {
    OpCase one = named("candidate_blocks", "blocks",
                       shape_text({rows, width}) + " blocks of " + std::to_string(block) +
                           ", at most " + std::to_string(most) + " " +
                           std::string(values_name(values)) + (infinities ? " some inf" : ""));
    one.inputs = [=](RandomStream& random) -> Tensors {
      Tensor scores = random_tensor(random, {rows, width}, at::kFloat, values);
      std::vector<int64_t> visible;
      auto* data = scores.data_ptr<float>();
      for (int64_t row = 0; row < rows; ++row) {
        // As index_score leaves them: -inf past what is visible; some rows see nothing.
        const int64_t seen = row % 5 == 3 ? 0 : random.below(width + 1);
        visible.push_back(seen);
        for (int64_t i = 0; i < width; ++i) {
          if (infinities && random.one_in(3)) data[row * width + i] = kInfinity;
          if (i >= seen) data[row * width + i] = -kInfinity;
        }
      }
      return {scores, long_tensor(visible)};
    };
    one.run = [=](const Tensors& in, bool) -> Tensors {
      return {ops::candidate_blocks(in[0], in[1], block, most)};
    };
    cases.push_back(one);
  };
  for (const Values values : kScoreValues) {
    add(6, 33, 4, 3, values, false);
    add(11, 128, 16, 4, values, false);
    add(4, 100, 7, 20, values, false);
    add(5, 64, 1, 9, values, false);
  }
  add(16, 96, 4, 3, Values::kOrdinary, true);
  add(0, 8, 4, 2, Values::kOrdinary, false);
  add(3, 0, 4, 2, Values::kOrdinary, false);
  add(2, 5, 8, 1, Values::kOrdinary, false);
  OpCase nan = named("candidate_blocks", "blocks", "NaN in row 1");
  nan.inputs = [](RandomStream& random) -> Tensors {
    return {with_nan(random, 3, 20, 1, 7), long_tensor({20, 20, 20})};
  };
  nan.run = [](const Tensors& in, bool) -> Tensors {
    return {ops::candidate_blocks(in[0], in[1], 4, 2)};
  };
  nan.throws = {{.text = "row 1"}};
  cases.push_back(nan);
  OpCase wrong = nan;
  wrong.name = "visible of another size";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {3, 20}, at::kFloat), long_tensor({20, 20})};
  };
  wrong.throws = {{.text = "visible [T]"}};
  cases.push_back(wrong);
}

// The blocks of `width` columns in turns: as they lie in a whole row, those that every third rank
// of interleaved tiles has, or anyhow.
enum class Columns { kWhole, kEveryThird, kShuffled };
constexpr const char* kColumnsNames[] = {"", " every third tile", " shuffled"};

std::vector<int64_t> column_blocks_of(RandomStream& random, int64_t width, int64_t block,
                                      Columns columns) {
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < width; ++i) {
    const int64_t tile = i / block;
    blocks.push_back(columns == Columns::kEveryThird ? 3 * tile + 1 : tile);
  }
  for (int64_t i = width - 1; i > 0 && columns == Columns::kShuffled; --i) {
    std::swap(blocks[static_cast<size_t>(i)], blocks[static_cast<size_t>(random.below(i + 1))]);
  }
  return blocks;
}

void add_candidate_mask(std::vector<OpCase>& cases) {
  const auto add = [&](int64_t rows, int64_t width, int64_t block, int64_t count, Columns columns,
                       Values values) {
    OpCase one = named("candidate_mask", "scores",
                       shape_text({rows, width}) + " " + std::to_string(count) + " blocks of " +
                           std::to_string(block) + kColumnsNames[static_cast<size_t>(columns)] +
                           " " + std::string(values_name(values)));
    one.inputs = [=](RandomStream& random) -> Tensors {
      // Some blocks of no column here too.
      const int64_t blocks =
          (width + block - 1) / block * (columns == Columns::kEveryThird ? 3 : 1) + 2;
      std::vector<int64_t> chosen;
      for (int64_t row = 0; row < rows; ++row) {
        int64_t next = 0;
        for (int64_t i = 0; i < count; ++i) {
          next += random.below(3);
          chosen.push_back(next < blocks ? next : -1);  // ascending, -1 padded
          ++next;
        }
      }
      return {random_tensor(random, {rows, width}, at::kFloat, values),
              int_tensor(chosen, {rows, count}),
              long_tensor(column_blocks_of(random, width, block, columns))};
    };
    one.run = [](const Tensors& in, bool) -> Tensors {
      return {ops::candidate_mask(in[0], in[1], in[2])};
    };
    cases.push_back(one);
  };
  for (const Values values :
       {Values::kOrdinary, Values::kTiny, Values::kExtreme, Values::kZeros, Values::kSpecial}) {
    add(5, 33, 4, 3, Columns::kWhole, values);
    add(7, 128, 16, 4, Columns::kEveryThird, values);
    add(3, 50, 7, 8, Columns::kShuffled, values);
  }
  add(0, 8, 4, 2, Columns::kWhole, Values::kOrdinary);
  add(3, 0, 4, 2, Columns::kWhole, Values::kOrdinary);
  add(3, 9, 4, 0, Columns::kWhole, Values::kOrdinary);
  add(1, 1, 1, 1, Columns::kWhole, Values::kOrdinary);
  const auto refuse = [&](const char* name, int64_t block_rows, std::vector<int64_t> of_columns,
                          const char* text) {
    OpCase wrong = cases.back();
    wrong.name = name;
    wrong.inputs = [=](RandomStream& random) -> Tensors {
      return {random_tensor(random, {3, 4}, at::kFloat), at::zeros({block_rows, 1}, at::kInt),
              long_tensor(of_columns)};
    };
    wrong.throws = {{.text = text}};
    cases.push_back(wrong);
  };
  refuse("blocks of one row fewer", 2, {0, 0, 1, 1}, "blocks [T, B] expected");
  refuse("columns without a block", 3, {0, 0, 1}, "must be int64 [4]");
  refuse("a column in block -1", 3, {0, 0, -1, 1}, "column 2 is in block -1");
}

void add_block_maxima(std::vector<OpCase>& cases) {
  const auto add = [&](int64_t rows, int64_t width, int64_t block, int64_t more, Columns columns,
                       Values values, bool hidden) {
    const int64_t count =
        (width + block - 1) / block * (columns == Columns::kEveryThird ? 3 : 1) + more;
    OpCase one = named("block_maxima", "maxima",
                       shape_text({rows, width}) + " blocks of " + std::to_string(block) + " in " +
                           std::to_string(count) + kColumnsNames[static_cast<size_t>(columns)] +
                           " " + std::string(values_name(values)) + (hidden ? " some -inf" : ""));
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {scores_of(random, rows, width, values, hidden),
              long_tensor(column_blocks_of(random, width, block, columns))};
    };
    one.run = [=](const Tensors& in, bool) -> Tensors {
      return {ops::block_maxima(in[0], in[1], count)};
    };
    cases.push_back(one);
  };
  for (const Values values : kScoreValues) {
    for (const bool hidden : {false, true}) {
      add(5, 33, 4, 0, Columns::kWhole, values, hidden);
      add(4, 100, 8, 2, Columns::kEveryThird, values, hidden);
      add(3, 70, 7, 1, Columns::kShuffled, values, hidden);
    }
  }
  add(0, 8, 4, 0, Columns::kWhole, Values::kOrdinary, false);
  add(3, 0, 4, 2, Columns::kWhole, Values::kOrdinary, false);
  add(3, 0, 4, 0, Columns::kWhole, Values::kOrdinary, false);
  add(1, 1, 1, 0, Columns::kWhole, Values::kOrdinary, false);
  OpCase nan = named("block_maxima", "maxima", "NaN in row 1");
  nan.inputs = [](RandomStream& random) -> Tensors {
    return {with_nan(random, 3, 4, 1, 2), long_tensor({0, 1, 1, 0})};
  };
  nan.run = [](const Tensors& in, bool) -> Tensors { return {ops::block_maxima(in[0], in[1], 2)}; };
  nan.throws = {{.text = "row 1"}};
  cases.push_back(nan);
  const auto refuse = [&](const char* name, std::vector<int64_t> blocks, const char* text) {
    OpCase wrong = nan;
    wrong.name = name;
    wrong.inputs = [=](RandomStream& random) -> Tensors {
      return {random_tensor(random, {3, 4}, at::kFloat), long_tensor(blocks)};
    };
    wrong.throws = {{.text = text}};
    cases.push_back(wrong);
  };
  refuse("a block past the last", {0, 1, 2, 0}, "column 2 is in block 2, outside 0 .. 1");
  refuse("a negative block", {0, 1, 1, -1}, "column 3 is in block -1");
  refuse("a column without a block", {0, 1, 1}, "must be int64 [4]");
}

void add_greedy_sample(std::vector<OpCase>& cases) {
  const auto add = [&](int64_t rows, int64_t width, Values values, bool hidden) {
    OpCase one = named("greedy_sample", "ids",
                       shape_text({rows, width}) + " " + std::string(values_name(values)) +
                           (hidden ? " some -inf" : ""));
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {scores_of(random, rows, width, values, hidden)};
    };
    one.run = [](const Tensors& in, bool) -> Tensors { return {ops::greedy_sample(in[0])}; };
    cases.push_back(one);
  };
  for (const Values values : kScoreValues) {
    for (const bool hidden : {false, true}) {
      add(5, 33, values, hidden);
      add(3, 1000, values, hidden);
    }
  }
  add(0, 8, Values::kOrdinary, false);
  add(4, 1, Values::kOrdinary, false);
  add(2, 32000, Values::kOrdinary, false);
  OpCase nan = named("greedy_sample", "ids", "NaN in row 2");
  nan.inputs = [](RandomStream& random) -> Tensors { return {with_nan(random, 4, 40, 2, 39)}; };
  nan.run = [](const Tensors& in, bool) -> Tensors { return {ops::greedy_sample(in[0])}; };
  nan.throws = {{.text = "row 2"}};
  cases.push_back(nan);
  OpCase wrong = nan;
  wrong.name = "no logits";
  wrong.inputs = [](RandomStream&) -> Tensors { return {at::zeros({2, 0}, at::kFloat)}; };
  wrong.throws = {{.text = "logits must be [T, V]"}};
  cases.push_back(wrong);
}

}  // namespace

namespace internal {
void add_selection_cases(std::vector<OpCase>& cases) {
  add_topk_select(cases);
  add_topk_merge(cases);
  add_candidate_blocks(cases);
  add_candidate_mask(cases);
  add_block_maxima(cases);
  add_greedy_sample(cases);
}
}  // namespace internal

}  // namespace deepinfer::conformance
