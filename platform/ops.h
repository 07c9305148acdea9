// The op surface: everything the model computes beyond views, gathers of rows and element-wise
// sums.
//
// Each op is the torch custom op deepinfer::NAME. Model code calls these handles; libtorch
// dispatches to the implementation of the tensors' device. `reference` (platform/reference/) is
// plain ATen and runs on any device. Shapes: T rows (tokens), D hidden size, H heads, E experts, S
// streams (hc_mult). "fp32 inside" means operands are widened to fp32, and the result is rounded
// once. A wrong shape or dtype throws c10::Error.
#pragma once

#include <cstdint>
#include <tuple>

#include <ATen/ATen.h>

#include "platform/op.h"

namespace deepinfer::ops {

using at::Tensor;
using OptionalTensor = c10::optional<Tensor>;
using TensorPair = std::tuple<Tensor, Tensor>;
using TensorTriple = std::tuple<Tensor, Tensor, Tensor>;

// --- GEMM. x [T, K] bf16 or fp32; y = x W^T, fp32 inside, result in out_dtype.
// ---------------------------

// weight [N, K] bf16 or fp32.
inline const Op<Tensor(const Tensor& x, const Tensor& weight, at::ScalarType out_dtype)> linear{
    "deepinfer::linear"};

// codes [N, K] uint8 e4m3fn, scales [ceil(N/32), ceil(K/32)] uint8 e8m0 (model.md 2.2). At most a
// piece of 32M elements of the weight is dequantised at a time.
inline const Op<Tensor(const Tensor& x, const Tensor& codes, const Tensor& scales,
                       at::ScalarType out_dtype)>
    fp8_linear{"deepinfer::fp8_linear"};

// codes [N, K/2] uint8, two e2m1 codes a byte, low nibble = even k; scales [N, K/32] uint8 e8m0.
inline const Op<Tensor(const Tensor& x, const Tensor& codes, const Tensor& scales,
                       at::ScalarType out_dtype)>
    fp4_linear{"deepinfer::fp4_linear"};

// Rows offsets[e] .. offsets[e+1]-1 of x times weight e. offsets int64 [E+1] on the host,
// ascending, from 0 to T; E weights of one form: scales empty for plain weights, else as fp8_linear
// or (K/2 columns) fp4_linear.
inline const Op<Tensor(const Tensor& x, const Tensor& offsets, at::TensorList weights,
                       at::TensorList scales, at::ScalarType out_dtype)>
    grouped_linear{"deepinfer::grouped_linear"};

// A rank's share of a row-parallel product (CANONICAL.md C2.6). x has the columns first_column ..
// first_column+K-1 of the weight's K axis, first_column a multiple of 32; the weight is whole:
// plain [N, K_all] without scales, else codes and scales as fp8_linear or (K_all/2 columns)
// fp4_linear. Tree position first_position+i, of 64, has the columns bounds[i] .. bounds[i+1]-1 of
// x; bounds ascend from 0 to K, multiples of 32 but those equal to K. Returns fp32 [S, T, N]: what
// each of the S maximal subtrees of these positions (platform/shard_map.h) sums to, in their order.
// A subtree without columns is -0, the neutral element: adding it is skipping it.
inline const Op<Tensor(const Tensor& x, const Tensor& weight, const OptionalTensor& scales,
                       int64_t first_column, int64_t first_position, at::IntArrayRef bounds)>
    linear_partials{"deepinfer::linear_partials"};

// --- Quantisers (model-verified.md 3). Blocks along the last axis.
// ------------------------------------------

// QA: codes uint8 e4m3fn of x's shape, scales uint8 e8m0 [..., K/32]. fp8_max 448, 240 or 224.
inline const Op<TensorPair(const Tensor& x, double fp8_max)> quantize_aq32{
    "deepinfer::quantize_aq32"};
// The values that quantize_aq32 stands for, fp32.
inline const Op<Tensor(const Tensor& codes, const Tensor& scales)> dequantize_aq32{
    "deepinfer::dequantize_aq32"};
// Quantise and dequantise, in x's dtype (exact in bf16): QA (fp8, blocks of 32), QI (fp4, ue8m0
// scale, blocks of 32), QC (fp4, e4m3 scale, blocks of 16).
inline const Op<Tensor(const Tensor& x, double fp8_max)> fake_quantize_aq32{
    "deepinfer::fake_quantize_aq32"};
inline const Op<Tensor(const Tensor& x)> fake_quantize_fq4_32{"deepinfer::fake_quantize_fq4_32"};
inline const Op<Tensor(const Tensor& x, double fp8_max)> fake_quantize_fq4_16{
    "deepinfer::fake_quantize_fq4_16"};

// --- Norm and RoPE
// ----------------------------------------------------------------------------------------

// weight * (x * rsqrt(mean(x^2) + eps)) over the last axis, fp32 inside, in x's dtype.
inline const Op<Tensor(const Tensor& x, const Tensor& weight, double eps)> rms_norm{
    "deepinfer::rms_norm"};

// cos and sin [T, R/2] fp32 of the fp32 product position * frequency. positions int64 [T],
// frequencies fp32 [R/2].
inline const Op<TensorPair(const Tensor& positions, const Tensor& frequencies)> rope_table{
    "deepinfer::rope_table"};
// Rotates the last R channels of x [T, ..., C] as adjacent pairs, fp32 inside, in x's dtype;
// `inverse` negates the angle.
inline const Op<Tensor(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse)> rope{
    "deepinfer::rope"};

// --- Hyper-connections (model-verified.md 6)
// ----------------------------------------------------------------

// streams [T, S, D], fn fp32 [2S + S*S, S*D], scale fp32 [3], base fp32 [2S + S*S]. Returns pre [T,
// S], post [T, S], comb [T, S, S] (row = source stream), fp32.
inline const Op<TensorTriple(const Tensor& streams, const Tensor& fn, const Tensor& scale,
                             const Tensor& base, int64_t sinkhorn_iters, double hc_eps,
                             double norm_eps)>
    hc_mix{"deepinfer::hc_mix"};
// sum_i pre[i] streams[i]: [T, D] in the streams' dtype.
inline const Op<Tensor(const Tensor& streams, const Tensor& pre)> hc_collapse{
    "deepinfer::hc_collapse"};
// out[j] = post[j] y + sum_i comb[i, j] streams[i]: [T, S, D] in the streams' dtype.
inline const Op<Tensor(const Tensor& y, const Tensor& streams, const Tensor& post,
                       const Tensor& comb)>
    hc_expand{"deepinfer::hc_expand"};

// --- Attention
// ------------------------------------------------------------------------------------------------

// Stores rows[i] into pool[slots[i]], in place. pool [P, C], rows [T, C], slots int64 [T].
inline const Op<void(const Tensor& pool, const Tensor& rows, const Tensor& slots)> kv_store{
    "deepinfer::kv_store"};

// Pools each group of `values` [G, R, C] fp32 over R with a softmax of `gates` [G, R, C], by
// channel: [G, C].
inline const Op<Tensor(const Tensor& values, const Tensor& gates)> compress_pool{
    "deepinfer::compress_pool"};

// score[t, j] = sum_h weights[t, h] relu(q[t, h] . keys[j]), -inf for j >= visible[t]. q [T, H, C],
// weights [T, H], keys [N, C], visible int64 [T]. fp32 [T, N]; `narrow` rounds dot, product and sum
// to bf16.
inline const Op<Tensor(const Tensor& q, const Tensor& weights, const Tensor& keys,
                       const Tensor& visible, bool narrow)>
    index_score{"deepinfer::index_score"};

// The k largest scores of each row, larger first, ties to the smaller index, -inf never chosen. NaN
// throws. Returns int32 [T, k], ascending, padded with -1.
inline const Op<Tensor(const Tensor& scores, int64_t k)> topk_select{"deepinfer::topk_select"};
// The same among pairs of a score, fp32 [T, N], and its index, int32 [T, N], in any order: the
// indices of the k best, int32 [T, k], ascending, padded with -1. An index of -1 is an unused place
// whose score is not looked at; a repeated index throws. topk_select of each part of some columns,
// with the indices that the whole gives them, merges to topk_select of the whole.
inline const Op<Tensor(const Tensor& scores, const Tensor& indices, int64_t k)> topk_merge{
    "deepinfer::topk_merge"};

// Candidate blocks (model-verified.md 8): the `max_blocks` blocks of `block_size` entries with the
// largest maximum, the block of entry visible[t]-1 always among them. int32 [T, max_blocks],
// ascending, -1 padded.
inline const Op<Tensor(const Tensor& scores, const Tensor& visible, int64_t block_size,
                       int64_t max_blocks)>
    candidate_blocks{"deepinfer::candidate_blocks"};
// scores with -inf outside the row's blocks int32 [T, B]. Column j is in block column_blocks[j],
// int64 [N], so that the columns may be any of the whole; blocks of no column here are ignored.
inline const Op<Tensor(const Tensor& scores, const Tensor& blocks, const Tensor& column_blocks)>
    candidate_mask{"deepinfer::candidate_mask"};
// The largest score of each block among these columns, fp32 [T, count]: column j is in block
// blocks[j], int64 [N] in 0 .. count-1. -inf for a block without columns; a zero is +0; NaN throws.
// For each part of the columns on its own, then the maximum over the parts: candidate_blocks of
// that, with ceil(visible / block_size) and blocks of 1, is candidate_blocks of the whole.
inline const Op<Tensor(const Tensor& scores, const Tensor& blocks, int64_t count)> block_maxima{
    "deepinfer::block_maxima"};

// q [T, H, C]; keys = values = window[window_index[t]] ++ compressed[compressed_index[t]]; indices
// int32, -1 skipped; window[0] is the key at absolute position window_position, compressed[0] is
// entry 0. s = scale * q.k; out = sum e^(s-m) v / (sum e^(s-m) + e^(sink_h - m)), m = max s without
// the sink. Returns out [T, H, C] in q's dtype and the log-sum-exp without the sink, fp32 [T, H]
// (-inf for an empty row, whose out is 0). `sink` [H] fp32 or none. `narrow` rounds the
// probabilities
// e^(s-m) of the sum over v to bf16 (model.md 4.3); the reference rounds them in blocks of 64
// entries against the maximum so far, like the official kernel, canonical arithmetic against m.
inline const Op<TensorPair(const Tensor& q, const Tensor& window, int64_t window_position,
                           const Tensor& window_index, const Tensor& compressed,
                           const Tensor& compressed_index, const OptionalTensor& sink, double scale,
                           bool narrow)>
    sparse_attention{"deepinfer::sparse_attention"};

// sparse_attention by context-parallel ranks that hold the KV tiles of some leaves each
// (CANONICAL.md C7.7). A rank calls attention_partials on its own rows, for its tree positions
// first_position .. first_position + positions - 1 of ShardMap::interleaved; the partials of all
// ranks, in rank order, go through attention_merge. The result does not depend on the number of
// ranks: in canonical arithmetic it is sparse_attention's, bit by bit.
//
// The largest scale * q.k of the listed keys, fp32 [T, H]; -inf for an empty list. Operands as
// sparse_attention's. What narrow ranks combine, by maximum, before their partials.
inline const Op<Tensor(const Tensor& q, const Tensor& window, const Tensor& window_index,
                       const Tensor& compressed, const Tensor& compressed_index, double scale)>
    attention_maximum{"deepinfer::attention_maximum"};

// Unnormalised partials of the S subtrees maximal_subtrees({first_position, first_position +
// positions}) (platform/shard_map.h): maximum [S, T, H], sum of e^(s - maximum) [S, T, H], and sum
// of e^(s - maximum) v [S, T, H, C], fp32, over the listed keys of the subtree; -inf, 0 and 0 where
// it has none. window_positions int64 [N] are the absolute positions of window's rows,
// compressed_entries int64 [M] the entry numbers of compressed's, both ascending; the rest as
// sparse_attention's. `maximum`, fp32 [T, H], is that of the whole list, over all ranks: given, the
// rows are narrow, it is every partial's maximum, and the probabilities of the sum over v are
// rounded to bf16. Throws for a listed key at another tree position, naming it, and for positions
// that do not ascend.
inline const Op<TensorTriple(const Tensor& q, const Tensor& window, const Tensor& window_positions,
                             const Tensor& window_index, const Tensor& compressed,
                             const Tensor& compressed_entries, const Tensor& compressed_index,
                             const OptionalTensor& maximum, double scale, int64_t first_position,
                             int64_t positions)>
    attention_partials{"deepinfer::attention_partials"};

// Merges P partials as attention_partials makes them, maximum and sum [P, H], out [P, H, C], of T
// rows and S subtrees, in the fixed tree; adds the sink (fp32 [H] or none) once; normalises.
// Subtree s is begins[s] .. begins[s] + counts[s] - 1 of the tree positions, disjoint and in tree
// order; the next row_counts[s] partials are its, of the rows named in `rows` (int64 [P], ascending
// within a subtree). A partial that is not there is absent, as is one with maximum -inf and sum 0,
// whose `out` is not read. Returns out [T, H, C] in out_dtype and the log-sum-exp without the sink,
// fp32 [T, H]; 0 and -inf where all are absent.
inline const Op<TensorPair(const Tensor& maximum, const Tensor& sum, const Tensor& out,
                           const Tensor& rows, int64_t tokens, at::IntArrayRef begins,
                           at::IntArrayRef counts, at::IntArrayRef row_counts,
                           const OptionalTensor& sink, at::ScalarType out_dtype)>
    attention_merge{"deepinfer::attention_merge"};

// --- MoE
// --------------------------------------------------------------------------------------------------------

// score = sqrt(softplus(x weight^T / gate_temp)), fp32; the k largest of score + bias, ties to the
// smaller expert; weights = score / (sum of chosen + 1e-20) * scaling. weight [E, D], bias fp32 [E]
// or [T, E]. Returns int32 [T, k] by descending biased score, and fp32 [T, k].
inline const Op<TensorPair(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t k,
                           double gate_temp, double scaling)>
    moe_gate{"deepinfer::moe_gate"};

// Sum of the expert outputs of each of `tokens` tokens, fp32 or better inside, rounded once to
// their dtype. outputs [P, D]: rows offsets[e] .. offsets[e+1]-1 are expert e's, of the tokens
// `rows` int64 [P]; offsets int64 [E+1] on the host. shared [tokens, D] is added to the sum of the
// routed experts (CANONICAL.md C8.4). Returns [tokens, D].
inline const Op<Tensor(const Tensor& outputs, const Tensor& rows, const Tensor& offsets,
                       const OptionalTensor& shared, int64_t tokens)>
    moe_combine{"deepinfer::moe_combine"};

// A rank's share of that sum, before the shared expert: outputs, rows and offsets of the experts
// first_expert .. first_expert+E-1 of `experts` in all. Expert e is on tree position
// floor(e * 64 / experts), which must be one of first_position .. first_position+positions-1.
// Returns fp32 [S, tokens, D]: what each of the S maximal subtrees of the positions
// (platform/shard_map.h) sums to, in their order; -0 where no expert of a subtree has the token.
// moe_combine is all subtrees' sum in the tree, plus shared or +0, rounded.
inline const Op<Tensor(const Tensor& outputs, const Tensor& rows, const Tensor& offsets,
                       int64_t tokens, int64_t first_expert, int64_t experts,
                       int64_t first_position, int64_t positions)>
    moe_partials{"deepinfer::moe_partials"};

// silu(min(gate, limit)) * clamp(up, -limit, limit) * row_weight, fp32 inside, in gate's dtype.
// gate, up [T, F]; row_weight fp32 [T] or none.
inline const Op<Tensor(const Tensor& gate, const Tensor& up, const OptionalTensor& row_weight,
                       double limit)>
    swiglu{"deepinfer::swiglu"};

// --- Engram (model-verified.md 10)
// --------------------------------------------------------------------------

// Table rows of the last `rows` tokens of `compressed_ids` int64 [L] (-1: image token). multipliers
// [N], primes and offsets [(N-1)*heads], int64. `pad` stands for everything before the start or
// past an image token. Returns int64 [rows, (N-1)*heads].
inline const Op<Tensor(const Tensor& compressed_ids, int64_t rows, const Tensor& multipliers,
                       const Tensor& primes, const Tensor& offsets, int64_t pad)>
    engram_hash{"deepinfer::engram_hash"};
// Rows of the table, dequantised: codes [R, C] uint8 e4m3fn, scales [R, C/32] uint8 e8m0, rows
// int64 [T, K]. Returns [T, K*C] in out_dtype.
inline const Op<Tensor(const Tensor& codes, const Tensor& scales, const Tensor& rows,
                       at::ScalarType out_dtype)>
    engram_fetch{"deepinfer::engram_fetch"};
// Adds gate_i * value to each stream. streams [T, S, D], key_value [T, (S+1)*D] (S keys, then the
// value), q_weight and k_weight [S, D], text bool [T] (false: gate 0). Returns the new streams and
// gate fp32 [T, S].
inline const Op<TensorPair(const Tensor& streams, const Tensor& key_value, const Tensor& q_weight,
                           const Tensor& k_weight, const Tensor& text, double norm_eps)>
    engram_gate{"deepinfer::engram_gate"};

// --- Sampling
// ---------------------------------------------------------------------------------------------------

// Index of the largest logit of each row, ties to the smallest. logits fp32 [T, V] -> int64 [T].
// NaN throws.
inline const Op<Tensor(const Tensor& logits)> greedy_sample{"deepinfer::greedy_sample"};

}  // namespace deepinfer::ops
