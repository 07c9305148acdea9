#include "model/context_parallel.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "platform/fault.h"
#include "platform/ops.h"

namespace deepinfer {

namespace {

// The keyed rows of one span on the rank.
struct SpanRows {
  size_t span = 0;
  int64_t begin = 0, count = 0;  // among all keyed rows
  at::Tensor q;                  // [count, heads, head_dim]
  at::Tensor window_index;       // int32 [count, window]
  at::Tensor selected;           // int32 [count, index_topk]
};
struct OwnRows {
  at::Tensor rows;  // int64 [count], of the batch
  int64_t count = 0;
  std::vector<SpanRows> by_span;
};

OwnRows rows_of_spans(const ForwardContext& context, const std::vector<SpanKeys>& keys,
                      const at::Tensor& q, const std::vector<int64_t>& rows) {
  OwnRows own{
      at::tensor(rows, at::kLong).to(context.device()), static_cast<int64_t>(rows.size()), {}};
  if (rows.empty()) return own;
  int64_t begin = 0;
  for (size_t i = 0; i < context.spans.size(); ++i) {
    const BatchSpan& span = context.spans[i];
    const int64_t end =
        std::lower_bound(rows.begin() + begin, rows.end(), span.begin + span.count) - rows.begin();
    if (begin < end) {
      SpanRows& to = own.by_span.emplace_back(SpanRows{i, begin, end - begin, {}, {}, {}});
      if (to.count == span.count) {
        to.q = span.rows_of(q);
        to.window_index = context.window[i].index;
        to.selected = keys[i].selected;
      } else {
        const at::Tensor of_span = own.rows.slice(0, begin, end);
        const at::Tensor in_span = of_span - span.begin;
        to.q = q.index_select(0, of_span);
        to.window_index = context.window[i].index.index_select(0, in_span);
        to.selected = keys[i].selected.index_select(0, in_span);
      }
    }
    begin = end;
  }
  return own;
}

at::Tensor joined(const std::vector<at::Tensor>& parts, int64_t dimension) {
  return parts.size() == 1 ? parts[0] : at::cat(parts, dimension);
}

// The largest score of every row and head over the rank's own keys, fp32 [rows, heads]: `nothing`,
// all -inf, where there are none.
at::Tensor own_maximum(const OwnRows& own, const std::vector<SpanKeys>& keys,
                       const at::Tensor& nothing, double scale) {
  if (own.count == 0) return nothing;
  std::vector<at::Tensor> by_span;
  for (const SpanRows& span : own.by_span) {
    const SpanKeys& of_span = keys[span.span];
    by_span.push_back(ops::attention_maximum(span.q, of_span.window, span.window_index,
                                             of_span.compressed, span.selected, scale));
  }
  return nothing.index_copy(0, own.rows, joined(by_span, 0));
}

// Partials of the rank's subtrees over its own keys: fp32 [heads, S, keyed rows, head_dim + 2], the
// last two channels maximum and sum.
at::Tensor own_partials(const ForwardContext& context, const OwnRows& own,
                        const std::vector<SpanKeys>& keys, const at::Tensor& q,
                        const ops::OptionalTensor& maximum, double scale) {
  const IndexRange positions = context.rank.tiles().positions();
  const auto subtrees = static_cast<int64_t>(maximal_subtrees(positions).size());
  const int64_t channels = q.size(2);
  const at::Tensor packed =
      at::empty({q.size(1), subtrees, own.count, channels + 2}, q.options().dtype(at::kFloat));
  if (own.count == 0) return packed;
  at::Tensor list_maximum;
  if (maximum.has_value()) list_maximum = maximum->index_select(0, own.rows);
  std::vector<at::Tensor> maxima, sums, outs;
  for (const SpanRows& span : own.by_span) {
    const SpanKeys& of_span = keys[span.span];
    ops::OptionalTensor span_maximum;
    if (list_maximum.defined()) span_maximum = list_maximum.narrow(0, span.begin, span.count);
    const auto [largest, sum, out] = ops::attention_partials(
        span.q, of_span.window, context.window[span.span].positions, span.window_index,
        of_span.compressed, of_span.compressed_entry, span.selected, span_maximum, scale,
        positions.begin, positions.count());
    maxima.push_back(largest), sums.push_back(sum), outs.push_back(out);
  }
  packed.slice(3, 0, channels).copy_(joined(outs, 1).permute({2, 0, 1, 3}));
  packed.select(3, channels).copy_(joined(maxima, 1).permute({2, 0, 1}));
  packed.select(3, channels + 1).copy_(joined(sums, 1).permute({2, 0, 1}));
  return packed;
}

// What the places sent, [heads, their subtrees, their rows, width] each, one after the other: as
// ops::attention_merge lists them, [partials, heads, width].
at::Tensor listed_partials(const at::Tensor& received, const std::vector<int64_t>& counts,
                           const KeyedRows& keyed, const TileSubtrees& subtrees, int64_t heads,
                           int64_t width) {
  if (heads == 1) return received.view({-1, 1, width});
  std::vector<at::Tensor> pieces;
  int64_t at = 0;
  for (size_t place = 0; place < counts.size(); ++place) {
    const int64_t partials =
        subtrees.of_rank[place] * static_cast<int64_t>(keyed.of_place[place].size());
    pieces.push_back(
        received.narrow(0, at, counts[place]).view({heads, partials, width}).permute({1, 0, 2}));
    at += counts[place];
  }
  return at::cat(pieces, 0);
}

}  // namespace

KeyedRows keyed_rows(const ForwardContext& context, const LayerPlan& plan) {
  const TileSubtrees& subtrees = context.rank.mesh().tile_subtrees();
  std::vector<PlaceSet> holders = context.window_holders;
  if (plan.compressed()) {
    const std::vector<PlaceSet>& selected = context.selected_holders.at(plan.index_source);
    for (size_t row = 0; row < holders.size(); ++row) holders[row] |= selected[row];
  }
  KeyedRows keyed;
  std::vector<int64_t> listed;
  for (size_t place = 0; place < subtrees.of_rank.size(); ++place) {
    std::vector<int64_t>& rows = keyed.of_place.emplace_back();
    for (size_t row = 0; row < holders.size(); ++row) {
      if ((holders[row] >> place & 1) != 0) rows.push_back(static_cast<int64_t>(row));
    }
    for (int64_t subtree = 0; subtree < subtrees.of_rank[place]; ++subtree) {
      listed.insert(listed.end(), rows.begin(), rows.end());
      keyed.row_counts.push_back(static_cast<int64_t>(rows.size()));
    }
  }
  keyed.listed = at::tensor(listed, at::kLong).to(context.device());
  return keyed;
}

at::Tensor attend_over_ranks(const ForwardContext& context, const KeyedRows& keyed,
                             const std::vector<SpanKeys>& keys, const at::Tensor& q,
                             const at::Tensor& sink, double scale) {
  const ParallelRank& rank = context.rank;
  const AxisSet varies = Axis::kTensor | Axis::kContext;
  const int64_t rows = q.size(0), channels = q.size(2), width = channels + 2;
  const auto place = static_cast<size_t>(rank.index(Axis::kContext));

  const std::vector<int64_t>& own_rows = keyed.of_place[place];
  const OwnRows own =
      rank.region(varies, [&] { return rows_of_spans(context, keys, q, own_rows); });
  ops::OptionalTensor maximum;
  if (context.numerics.narrow_probabilities) {
    // Probabilities are rounded against the maximum of the whole list (CANONICAL.md C7.4).
    const at::Tensor nothing = rank.region(Axis::kTensor, [&] {
      return at::full({rows, q.size(1)}, -std::numeric_limits<float>::infinity(),
                      q.options().dtype(at::kFloat));
    });
    const at::Tensor mine =
        rank.region(varies, [&] { return own_maximum(own, keys, nothing, scale); });
    const at::Tensor all = rank.all_reduce_max(Axis::kContext, mine);
    maximum = fault("own_maximum_for_narrow_probabilities") ? mine : all;
  }
  const at::Tensor partials =
      rank.region(varies, [&] { return own_partials(context, own, keys, q, maximum, scale); });

  const UnitShards& merged_heads = rank.mesh().merged_heads(rank.index(Axis::kTensor));
  const TileSubtrees& subtrees = rank.mesh().tile_subtrees();
  const IndexRange my_heads = merged_heads.of_rank[place];
  std::vector<int64_t> send, receive;
  for (size_t other = 0; other < keyed.of_place.size(); ++other) {
    const auto their_rows = static_cast<int64_t>(keyed.of_place[other].size());
    send.push_back(merged_heads.of_rank[other].count() * partials.size(1) * partials.size(2) *
                   width);
    receive.push_back(my_heads.count() * subtrees.of_rank[other] * their_rows * width);
  }
  const at::Tensor received = rank.all_to_all(Axis::kContext, partials.view({-1}), send, receive);

  // Padded to the most heads of a rank, so that all give as many.
  const at::Tensor merged = rank.region(varies, [&] {
    const at::Tensor all =
        listed_partials(received, receive, keyed, subtrees, my_heads.count(), width);
    const at::Tensor out = std::get<0>(ops::attention_merge(
        all.select(2, channels), all.select(2, channels + 1), all.slice(2, 0, channels),
        keyed.listed, rows, subtrees.begins, subtrees.counts, keyed.row_counts,
        sink.slice(0, my_heads.begin, my_heads.end), q.scalar_type()));
    const at::Tensor by_head = out.permute({1, 0, 2});
    const int64_t missing = merged_heads.most - by_head.size(0);
    return missing == 0 ? by_head : at::constant_pad_nd(by_head, {0, 0, 0, 0, 0, missing}, 0);
  });
  const at::Tensor gathered = rank.all_gather(Axis::kContext, merged);  // [cp, most, rows, C]
  return rank.region(Axis::kTensor, [&] {
    if (merged_heads.alike && !fault("heads_gathered_backwards")) {
      return gathered.view({-1, rows, channels}).permute({1, 0, 2}).contiguous();
    }
    std::vector<at::Tensor> by_place;
    for (int64_t other = 0; other < gathered.size(0); ++other) {
      const int64_t count = merged_heads.of_rank[static_cast<size_t>(other)].count();
      if (count > 0) by_place.push_back(gathered.select(0, other).slice(0, 0, count));
    }
    if (fault("heads_gathered_backwards")) std::reverse(by_place.begin(), by_place.end());
    return at::cat(by_place, 0).permute({1, 0, 2}).contiguous();
  });
}

}  // namespace deepinfer
