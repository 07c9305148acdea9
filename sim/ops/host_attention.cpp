// Host ops around attention: KV stores, pooling, index scores, selections, sparse attention whole
// and by ranks, sampling.
#include <limits>

#include "platform/partials.h"
#include "sim/kernels/attention.h"
#include "sim/kernels/rows.h"
#include "sim/kernels/select.h"
#include "sim/ops/host_kernels.h"
#include "sim/ops/tensor_views.h"

namespace deepinfer::host {

using at::Tensor;

namespace {

void check_no_nan(const char* op, int64_t row) {
  TORCH_CHECK(row < 0, op, ": a score in row ", row, " is NaN");
}

RowView score_view(const char* op, const Tensor& scores) {
  TORCH_CHECK(scores.dim() == 2 && scores.scalar_type() == at::kFloat, op,
              ": scores must be fp32 [T, N], found ", scores.scalar_type(), " ", scores.sizes());
  return {ElementType::kFp32, scores.data_ptr(), scores.size(0), scores.size(1), scores.size(1)};
}

// int64 [columns], the block of each, in 0 .. count - 1.
Tensor checked_blocks(const char* op, const Tensor& blocks, int64_t columns, int64_t count) {
  TORCH_CHECK(blocks.dim() == 1 && blocks.size(0) == columns && blocks.scalar_type() == at::kLong,
              op, ": blocks of columns must be int64 [", columns, "], found ", blocks.scalar_type(),
              " ", blocks.sizes());
  Tensor checked = blocks.contiguous();
  const std::span<int64_t> values = span_of<int64_t>(checked);
  for (size_t i = 0; i < values.size(); ++i) {
    TORCH_CHECK(values[i] >= 0 && values[i] < count, op, ": column ", i, " is in block ", values[i],
                ", outside 0 .. ", count - 1);
  }
  return checked;
}

Tensor int_tensor(const Tensor& like, int64_t rows, int64_t columns) {
  return at::empty({rows, columns}, like.options().dtype(at::kInt));
}

}  // namespace

void kv_store(const Tensor& pool, const Tensor& rows, const Tensor& slots) {
  TORCH_CHECK(
      pool.dim() == 2 && pool.is_contiguous() && rows.dim() == 2 && rows.size(1) == pool.size(1) &&
          slots.dim() == 1 && slots.scalar_type() == at::kLong && slots.size(0) == rows.size(0) &&
          pool.scalar_type() == rows.scalar_type(),
      "kv_store: pool [P, C], rows [T, C] of one dtype and int64 slots [T] expected, found ",
      pool.sizes(), " ", pool.scalar_type(), ", ", rows.sizes(), " ", rows.scalar_type(), ", ",
      slots.sizes());
  const Tensor input = rows.contiguous(), places = slots.contiguous();
  const int64_t outside =
      store_rows(mutable_rows_view(pool, pool.size(1), "pool"),
                 rows_view(input, rows.size(1), "rows"), places.data_ptr<int64_t>());
  TORCH_CHECK(outside < 0, "kv_store: row ", outside, " has slot ",
              places.data_ptr<int64_t>()[outside], " of a pool of ", pool.size(0));
}

Tensor compress_pool(const Tensor& values, const Tensor& gates) {
  TORCH_CHECK(values.dim() == 3 && values.sizes() == gates.sizes() &&
                  values.scalar_type() == at::kFloat && gates.scalar_type() == at::kFloat,
              "compress_pool: fp32 values and gates [G, R, C] expected, found ", values.sizes(),
              " and ", gates.sizes());
  const Tensor v = values.contiguous(), g = gates.contiguous();
  const Tensor out = at::empty({v.size(0), v.size(2)}, v.options());
  deepinfer::compress_pool(v.data_ptr<float>(), g.data_ptr<float>(), v.size(0), v.size(1),
                           v.size(2), out.data_ptr<float>());
  return out;
}

Tensor index_score(const Tensor& q, const Tensor& weights, const Tensor& keys,
                   const Tensor& visible, bool narrow) {
  TORCH_CHECK(
      q.dim() == 3 && weights.dim() == 2 && weights.size(0) == q.size(0) &&
          weights.size(1) == q.size(1) && keys.dim() == 2 && keys.size(1) == q.size(2) &&
          visible.numel() == q.size(0) && visible.scalar_type() == at::kLong,
      "index_score: q [T, H, C], weights [T, H], keys [N, C], int64 visible [T] expected, found ",
      q.sizes(), ", ", weights.sizes(), ", ", keys.sizes(), ", ", visible.sizes());
  const Tensor queries = q.contiguous(), w = weights.contiguous(), k = keys.contiguous();
  const Tensor seen = visible.contiguous();
  const Tensor scores = at::empty({q.size(0), keys.size(0)}, q.options().dtype(at::kFloat));
  IndexScore args;
  args.q = rows_view(queries, q.size(2), "q");
  args.weights = rows_view(w, w.size(1), "weights");
  args.keys = rows_view(k, k.size(1), "keys");
  args.visible = seen.data_ptr<int64_t>();
  args.narrow = narrow;
  args.scores = scores.data_ptr<float>();
  args.score_stride = scores.size(1);
  deepinfer::index_score(args);
  return scores;
}

Tensor topk_select(const Tensor& scores, int64_t k) {
  TORCH_CHECK(k >= 0, "topk_select: k must not be negative, found ", k);
  const Tensor input = scores.contiguous();
  const Tensor out = int_tensor(scores, scores.size(0), k);
  check_no_nan("topk_select", deepinfer::topk_select(score_view("topk_select", input), k,
                                                     out.data_ptr<int32_t>()));
  return out;
}

Tensor topk_merge(const Tensor& scores, const Tensor& indices, int64_t k) {
  TORCH_CHECK(scores.dim() == 2 && indices.sizes() == scores.sizes() &&
                  indices.scalar_type() == at::kInt && k >= 0,
              "topk_merge: scores and int32 indices [T, N] and k >= 0 expected, found ",
              scores.sizes(), ", ", indices.scalar_type(), " ", indices.sizes(), " and ", k);
  const Tensor input = scores.contiguous(), of_scores = indices.contiguous();
  const Tensor out = int_tensor(scores, scores.size(0), k);
  const MergeStatus status = deepinfer::topk_merge(
      score_view("topk_merge", input), of_scores.data_ptr<int32_t>(), k, out.data_ptr<int32_t>());
  if (status.fault == MergeFault::kNan) check_no_nan("topk_merge", status.row);
  TORCH_CHECK(status.fault != MergeFault::kRepeatedIndex, "topk_merge: an index in row ",
              status.row, " is there twice");
  TORCH_CHECK(status.fault != MergeFault::kNegativeIndex, "topk_merge: an index in row ",
              status.row, " is below -1");
  return out;
}

Tensor candidate_blocks(const Tensor& scores, const Tensor& visible, int64_t block_size,
                        int64_t max_blocks) {
  TORCH_CHECK(visible.numel() == scores.size(0) && visible.scalar_type() == at::kLong &&
                  block_size > 0 && max_blocks > 0,
              "candidate_blocks: scores [T, N], int64 visible [T], positive sizes expected, found ",
              scores.sizes(), ", ", visible.sizes(), ", ", block_size, ", ", max_blocks);
  const Tensor input = scores.contiguous(), seen = visible.contiguous();
  const Tensor out = int_tensor(scores, scores.size(0), max_blocks);
  check_no_nan(
      "candidate_blocks",
      deepinfer::candidate_blocks(score_view("candidate_blocks", input), seen.data_ptr<int64_t>(),
                                  block_size, max_blocks, out.data_ptr<int32_t>()));
  return out;
}

Tensor candidate_mask(const Tensor& scores, const Tensor& blocks, const Tensor& column_blocks) {
  TORCH_CHECK(scores.dim() == 2 && blocks.dim() == 2 && blocks.scalar_type() == at::kInt &&
                  blocks.size(0) == scores.size(0),
              "candidate_mask: scores [T, N] and int32 blocks [T, B] expected, found ",
              scores.sizes(), " and ", blocks.sizes());
  const Tensor input = scores.contiguous(), chosen = blocks.contiguous();
  const Tensor of_columns = checked_blocks("candidate_mask", column_blocks, scores.size(1),
                                           std::numeric_limits<int32_t>::max());
  const Tensor out = at::empty_like(input);
  deepinfer::candidate_mask(
      score_view("candidate_mask", input), chosen.data_ptr<int32_t>(), blocks.size(1),
      of_columns.data_ptr<int64_t>(),
      {ElementType::kFp32, out.data_ptr(), out.size(0), out.size(1), out.size(1)});
  return out;
}

Tensor block_maxima(const Tensor& scores, const Tensor& blocks, int64_t count) {
  TORCH_CHECK(scores.dim() == 2 && count >= 0,
              "block_maxima: scores [T, N] and count >= 0 expected, found ", scores.sizes(),
              " and ", count);
  const Tensor input = scores.contiguous();
  const Tensor of_columns = checked_blocks("block_maxima", blocks, scores.size(1), count);
  const Tensor out = at::empty({scores.size(0), count}, scores.options());
  check_no_nan(
      "block_maxima",
      deepinfer::block_maxima(score_view("block_maxima", input), of_columns.data_ptr<int64_t>(),
                              {ElementType::kFp32, out.data_ptr(), out.size(0), count, count}));
  return out;
}

namespace {

// What the ops of attention have in common: the operands of one, as kernels take them.
class AttentionOperands {
 public:
  AttentionOperands(const char* op, const Tensor& q, const Tensor& window,
                    const Tensor& window_index, const Tensor& compressed,
                    const Tensor& compressed_index) {
    const int64_t rows = q.size(0);
    TORCH_CHECK(q.dim() == 3 && window.dim() == 2 && window.size(1) == q.size(2) &&
                    compressed.dim() == 2 && compressed.size(1) == q.size(2) &&
                    window.scalar_type() == compressed.scalar_type() && window_index.dim() == 2 &&
                    window_index.size(0) == rows && window_index.scalar_type() == at::kInt &&
                    compressed_index.dim() == 2 && compressed_index.size(0) == rows &&
                    compressed_index.scalar_type() == at::kInt,
                op,
                ": q [T, H, C], window [N, C], int32 window_index [T, W], compressed [M, C], int32 "
                "compressed_index [T, K] expected, found ",
                q.sizes(), ", ", window.sizes(), ", ", window_index.sizes(), ", ",
                compressed.sizes(), ", ", compressed_index.sizes());
    q_ = q.contiguous(), window_ = window.contiguous(), compressed_ = compressed.contiguous();
    window_index_ = window_index.contiguous(), compressed_index_ = compressed_index.contiguous();
  }

  // The tensors must outlive what they are set in.
  void set(AttentionLists& args, double scale) const {
    const int64_t channels = q_.size(2);
    args.q = rows_view(q_, channels, "q");
    args.heads = q_.size(1);
    args.window = rows_view(window_, channels, "window");
    args.window_index = window_index_.data_ptr<int32_t>();
    args.window_count = window_index_.size(1);
    args.compressed = rows_view(compressed_, channels, "compressed");
    args.compressed_index = compressed_index_.data_ptr<int32_t>();
    args.compressed_count = compressed_index_.size(1);
    args.scale = static_cast<float>(scale);
  }

 private:
  Tensor q_, window_, compressed_, window_index_, compressed_index_;
};

// `sink` contiguous, or undefined.
Tensor checked_sink(const char* op, const ops::OptionalTensor& sink, int64_t heads) {
  if (!sink.has_value()) return {};
  TORCH_CHECK(sink->numel() == heads && sink->scalar_type() == at::kFloat, op,
              ": sink must be fp32 [", heads, "]");
  return sink->contiguous();
}
const float* data_or_null(const Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

Tensor checked_positions(const char* what, const Tensor& global, int64_t count) {
  TORCH_CHECK(global.dim() == 1 && global.size(0) == count && global.scalar_type() == at::kLong,
              "attention_partials: ", what, " must be int64 [", count, "], found ",
              global.scalar_type(), " ", global.sizes());
  const Tensor made = global.contiguous();
  const std::span<const int64_t> values = span_of<int64_t>(made);
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t least = i == 0 ? 0 : values[i - 1] + 1;
    TORCH_CHECK(values[i] >= least, "attention_partials: ", what,
                " must ascend from 0 or more: ", values[i], " in row ", i, ", at least ", least,
                " expected");
  }
  return made;
}

}  // namespace

ops::TensorPair sparse_attention(const Tensor& q, const Tensor& window, int64_t window_position,
                                 const Tensor& window_index, const Tensor& compressed,
                                 const Tensor& compressed_index, const ops::OptionalTensor& sink,
                                 double scale, bool narrow) {
  const AttentionOperands operands("sparse_attention", q, window, window_index, compressed,
                                   compressed_index);
  const Tensor s = checked_sink("sparse_attention", sink, q.size(1));
  const Tensor out = at::empty(q.sizes(), q.options());
  const Tensor lse = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  SparseAttention args;
  operands.set(args, scale);
  args.window_first_position = window_position;
  args.sink = data_or_null(s);
  args.narrow = narrow;
  args.out = mutable_rows_view(out, q.size(2), "out");
  args.lse = lse.data_ptr<float>();
  deepinfer::sparse_attention(args);
  return {out, lse};
}

Tensor attention_maximum(const Tensor& q, const Tensor& window, const Tensor& window_index,
                         const Tensor& compressed, const Tensor& compressed_index, double scale) {
  const AttentionOperands operands("attention_maximum", q, window, window_index, compressed,
                                   compressed_index);
  const Tensor maximum = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  if (maximum.numel() == 0) return maximum;
  AttentionLists args;
  operands.set(args, scale);
  deepinfer::attention_maximum(args, maximum.data_ptr<float>());
  return maximum;
}

ops::TensorTriple attention_partials(const Tensor& q, const Tensor& window,
                                     const Tensor& window_positions, const Tensor& window_index,
                                     const Tensor& compressed, const Tensor& compressed_entries,
                                     const Tensor& compressed_index,
                                     const ops::OptionalTensor& maximum, double scale,
                                     int64_t first_position, int64_t positions) {
  const AttentionOperands operands("attention_partials", q, window, window_index, compressed,
                                   compressed_index);
  const Tensor p = checked_positions("window_positions", window_positions, window.size(0)),
               e = checked_positions("compressed_entries", compressed_entries, compressed.size(0));
  TORCH_CHECK(
      first_position >= 0 && positions >= 0 && first_position <= kCanonicalLeaves - positions,
      "attention_partials: ", positions, " tree positions from ", first_position, " of ",
      kCanonicalLeaves);
  const int64_t rows = q.size(0), heads = q.size(1);
  TORCH_CHECK(!maximum.has_value() || (maximum->scalar_type() == at::kFloat &&
                                       maximum->sizes() == at::IntArrayRef({rows, heads})),
              "attention_partials: maximum must be fp32 [", rows, ", ", heads, "]");
  const Tensor list_maximum = maximum.has_value() ? maximum->contiguous() : Tensor();

  AttentionPartials args;
  args.positions = {first_position, first_position + positions};
  const auto subtrees = static_cast<int64_t>(maximal_subtrees(args.positions).size());
  const auto options = q.options().dtype(at::kFloat);
  const Tensor maxima = at::empty({subtrees, rows, heads}, options),
               sums = at::empty({subtrees, rows, heads}, options),
               outs = at::empty({subtrees, rows, heads, q.size(2)}, options);
  if (rows * heads == 0) return {maxima, sums, outs};
  operands.set(args, scale);
  args.window_positions = p.data_ptr<int64_t>();
  args.compressed_entries = e.data_ptr<int64_t>();
  args.list_maximum = data_or_null(list_maximum);
  args.maximum = maxima.data_ptr<float>();
  args.sum = sums.data_ptr<float>();
  args.out = outs.data_ptr<float>();
  if (const auto key = deepinfer::attention_partials(args)) {
    TORCH_CHECK(false, "attention_partials: row ", key->query_row, " lists row ", key->key_row,
                " of ", key->in_window ? "window, position " : "compressed, entry ",
                (key->in_window ? args.window_positions : args.compressed_entries)[key->key_row],
                ", which is at tree position ", key->tree_position, ", not at ", first_position,
                " to ", first_position + positions - 1, ": it belongs to another rank");
  }
  return {maxima, sums, outs};
}

ops::TensorPair attention_merge(const Tensor& maximum, const Tensor& sum, const Tensor& out,
                                const Tensor& rows, int64_t tokens, at::IntArrayRef begins,
                                at::IntArrayRef counts, at::IntArrayRef row_counts,
                                const ops::OptionalTensor& sink, at::ScalarType out_dtype) {
  AttentionMerge args;
  args.subtrees =
      check_attention_merge(maximum, sum, out, rows, tokens, begins, counts, row_counts, sink);
  TORCH_CHECK(maximum.scalar_type() == at::kFloat && sum.scalar_type() == at::kFloat &&
                  out.scalar_type() == at::kFloat,
              "attention_merge: fp32 maximum, sum and out expected, found ", maximum.scalar_type(),
              ", ", sum.scalar_type(), ", ", out.scalar_type());
  args.partial_counts = row_counts.vec();
  args.rows = tokens, args.heads = out.size(1), args.channels = out.size(2);
  const Tensor m = maximum.contiguous(), l = sum.contiguous(), named = rows.contiguous();
  // Channels with something between the rows, as ranks hand them over, are read where they are. The
  // stride of a dimension of one element says nothing.
  const int64_t stride = args.heads == 1 ? out.stride(0) : out.stride(1);
  const bool in_rows = out.stride(2) == 1 && stride >= args.channels &&
                       (args.heads == 1 || out.stride(0) == stride * args.heads);
  const Tensor o = in_rows ? out : out.clone(at::MemoryFormat::Contiguous);
  args.partial_out_stride = in_rows ? stride : args.channels;
  const Tensor s = checked_sink("attention_merge", sink, args.heads);
  const Tensor merged =
      at::empty({args.rows, args.heads, args.channels}, out.options().dtype(out_dtype));
  const Tensor lse = at::empty({args.rows, args.heads}, out.options());
  if (lse.numel() == 0) return {merged, lse};
  args.partial_rows = named.data_ptr<int64_t>();
  args.maximum = m.data_ptr<float>();
  args.sum = l.data_ptr<float>();
  args.partial_out = o.data_ptr<float>();
  args.sink = data_or_null(s);
  args.out = mutable_rows_view(merged, args.channels, "the result");
  args.lse = lse.data_ptr<float>();
  deepinfer::attention_merge(args);
  return {merged, lse};
}

Tensor greedy_sample(const Tensor& logits) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0,
              "greedy_sample: logits must be [T, V], found ", logits.sizes());
  const Tensor input = logits.contiguous();
  const Tensor out = at::empty({logits.size(0)}, logits.options().dtype(at::kLong));
  check_no_nan("greedy_sample", deepinfer::greedy_sample(score_view("greedy_sample", input),
                                                         out.data_ptr<int64_t>()));
  return out;
}

}  // namespace deepinfer::host
