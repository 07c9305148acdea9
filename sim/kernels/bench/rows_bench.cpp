// Shapes of the released model: hidden 5120, 64 heads of 512 channels, 384 experts, windows of 128
// and 512 choices.
#include "sim/kernels/bench/rows_bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>

#include "platform/errors.h"
#include "sim/kernels/attention.h"
#include "sim/kernels/codec.h"
#include "sim/kernels/engram.h"
#include "sim/kernels/hyper_connection.h"
#include "sim/kernels/quantize.h"
#include "sim/kernels/rows.h"
#include "sim/kernels/select.h"

namespace deepinfer {
namespace {

double seconds_of(const std::function<void()>& call, int64_t repeats) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repeats; ++i) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
         static_cast<double>(repeats);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(int pairs, std::vector<RowsBenchEntry>& entries) : pairs_(pairs), entries_(entries) {}

  // Peer: a memcpy of `peer_bytes`, or none if 0.
  void measure(const std::string& kernel, const std::string& shape, int64_t elements,
               const std::function<void()>& call, int64_t peer_bytes = 0) {
    RowsBenchEntry entry{kernel, shape, peer_bytes > 0 ? "memcpy of the bytes written" : "",
                         elements};
    std::vector<char> from(static_cast<size_t>(peer_bytes), 1), to(from.size());
    const std::function<void()> peer = [&] {
      std::memcpy(to.data(), from.data(), from.size());
      keep(to.data());
    };
    call();
    // A turn takes about half a millisecond.
    const int64_t repeats = std::max<int64_t>(1, static_cast<int64_t>(5e-4 / seconds_of(call, 1)));
    const int64_t peer_repeats =
        peer_bytes > 0 ? std::max<int64_t>(1, static_cast<int64_t>(5e-4 / seconds_of(peer, 8))) : 0;
    std::vector<double> times, peer_times, ratios;
    for (int i = 0; i < pairs_; ++i) {
      times.push_back(seconds_of(call, repeats));
      if (peer_bytes == 0) continue;
      peer_times.push_back(seconds_of(peer, peer_repeats));
      ratios.push_back(peer_times.back() / times.back());
    }
    entry.seconds = median(times);
    if (peer_bytes > 0) entry.peer_seconds = median(peer_times), entry.ratio = median(ratios);
    entries_.push_back(entry);
  }

 private:
  // Lets the compiler assume that the memory is read.
  static void keep(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

  int pairs_;
  std::vector<RowsBenchEntry>& entries_;
};

// Numbers of both signs, with magnitudes over a few binades: 1, -2, 3, ... in a scrambled order.
std::vector<float> numbers(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  uint32_t state = 12345;
  for (float& value : values) {
    state = state * 1664525 +
            1013904223;  // Numerical Recipes' generator: no statistics are asked of it
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-30f;
  }
  return values;
}
std::vector<uint16_t> narrow_numbers(int64_t count) {
  std::vector<uint16_t> narrow(static_cast<size_t>(count));
  bf16_from_fp32(numbers(count), narrow);
  return narrow;
}
void expect_none(int64_t bad_row) { DEEPINFER_ASSERT(bad_row == -1, "row " << bad_row); }

constexpr int64_t kCodes = 1 << 17;  // values of a codec: 128 Ki codes, 256 KiB of bf16
constexpr int64_t kHidden = 5120, kHeads = 64, kChannels = 512, kStreams = 4;

void bench_codecs(Bench& bench, Target target) {
  std::vector<uint8_t> codes(kCodes), scales(kCodes / 32);
  std::iota(codes.begin(), codes.end(), uint8_t{0});
  for (uint8_t& code : codes) code = (code & 0x7F) == 0x7F ? 0x31 : code;
  const std::vector<float> wide = numbers(kCodes);
  const std::vector<uint16_t> narrow = narrow_numbers(kCodes);
  std::vector<float> wide_out(kCodes);
  std::vector<uint16_t> narrow_out(kCodes);
  const std::string shape = std::to_string(kCodes) + " values";
  bench.measure(
      "decode e4m3fn to bf16", shape, kCodes,
      [&] { decode_codes(NumericFormat::kE4M3FN, codes, std::span(narrow_out), target); },
      2 * kCodes);
  bench.measure(
      "decode e4m3fn to fp32", shape, kCodes,
      [&] { decode_codes(NumericFormat::kE4M3FN, codes, std::span(wide_out), target); },
      4 * kCodes);
  bench.measure(
      "encode e4m3fn from fp32", shape, kCodes,
      [&] {
        expect_none(
            encode_values(NumericFormat::kE4M3FN, wide, Overflow::kSaturate, 0, codes, target));
      },
      kCodes);
  bench.measure(
      "round fp32 to bf16", shape, kCodes, [&] { bf16_from_fp32(wide, narrow_out, target); },
      2 * kCodes);
  const RowView rows = view(narrow.data(), kCodes / 512, 512),
                wide_rows = view(wide.data(), kCodes / 512, 512);
  bench.measure(
      "quantise AQ32 from bf16", shape, kCodes,
      [&] { expect_none(quantize_aq32(rows, 448, codes.data(), 512, scales.data(), 16, target)); },
      kCodes);
  bench.measure(
      "quantise AQ32 from fp32", shape, kCodes,
      [&] {
        expect_none(quantize_aq32(wide_rows, 448, codes.data(), 512, scales.data(), 16, target));
      },
      kCodes);
  bench.measure(
      "dequantise AQ32 to fp32", shape, kCodes,
      [&] {
        dequantize_aq32(codes.data(), 512, scales.data(), 16,
                        view(wide_out.data(), kCodes / 512, 512), target);
      },
      4 * kCodes);
  const MutableRowView out = view(narrow_out.data(), kCodes / 512, 512);
  bench.measure(
      "fake AQ32, bf16", shape, kCodes,
      [&] { expect_none(fake_quantize_aq32(rows, 448, out, target)); }, 2 * kCodes);
  bench.measure(
      "fake FQ4-32, bf16", shape, kCodes,
      [&] { expect_none(fake_quantize_fq4_32(rows, out, target)); }, 2 * kCodes);
  bench.measure(
      "fake FQ4-16, bf16", shape, kCodes,
      [&] { expect_none(fake_quantize_fq4_16(rows, 448, out, target)); }, 2 * kCodes);
}

void bench_row_kernels(Bench& bench, Target target) {
  constexpr int64_t kRows = 16;
  const std::vector<uint16_t> x = narrow_numbers(kRows * kHidden),
                              y = narrow_numbers(kRows * kHidden);
  std::vector<uint16_t> out(x.size());
  const std::string shape = "[16, 5120] bf16";
  bench.measure("rms_norm", shape, kRows * kHidden, [&] {
    rms_norm(view(x.data(), kRows, kHidden), view(y.data(), 1, kHidden), 1e-20f,
             view(out.data(), kRows, kHidden), target);
  });
  bench.measure("swiglu", shape, kRows * kHidden, [&] {
    swiglu(view(x.data(), kRows, kHidden), view(y.data(), kRows, kHidden), nullptr, 10,
           view(out.data(), kRows, kHidden), target);
  });
  const std::vector<float> cosines = numbers(32), sines = numbers(32);
  std::vector<uint16_t> heads = narrow_numbers(kHeads * kChannels);
  bench.measure("rope", "[1, 64, 512] bf16, 64 rotated", kHeads * 64, [&] {
    rope(view(heads.data(), kHeads, kChannels), kHeads, cosines.data(), sines.data(), 32, false,
         view(heads.data(), kHeads, kChannels), target);
  });
  const std::vector<uint16_t> streams = narrow_numbers(kRows * kStreams * kHidden);
  const std::vector<float> fn = numbers(24 * kStreams * kHidden), coefficients = numbers(24),
                           comb = numbers(kRows * 16);
  std::vector<float> pre(kRows * kStreams), post(pre.size()), mixed(kRows * 16);
  const RowView stream_rows = view(streams.data(), kRows, kStreams * kHidden);
  bench.measure("hc_mix", "[16, 4, 5120] bf16, 20 iterations", kRows * 24, [&] {
    hc_mix({stream_rows, kStreams, fn.data(), coefficients.data(), coefficients.data(), 20, 1e-6f,
            1e-20f, pre.data(), post.data(), mixed.data()},
           target);
  });
  bench.measure("hc_collapse", "[16, 4, 5120] bf16", kRows * kHidden, [&] {
    hc_collapse(stream_rows, kStreams, comb.data(), view(out.data(), kRows, kHidden), target);
  });
  std::vector<uint16_t> expanded(streams.size());
  bench.measure("hc_expand", "[16, 4, 5120] bf16", kRows * kStreams * kHidden, [&] {
    hc_expand(view(x.data(), kRows, kHidden), stream_rows, kStreams, comb.data(), comb.data(),
              view(expanded.data(), kRows, kStreams * kHidden), target);
  });
  const std::vector<uint16_t> key_value = narrow_numbers(kRows * (kStreams + 1) * kHidden),
                              weights = narrow_numbers(kStreams * kHidden);
  const std::vector<uint8_t> text(kRows, 1);
  bench.measure("engram_gate", "[16, 4, 5120] bf16", kRows * kStreams * kHidden, [&] {
    engram_gate(stream_rows, kStreams, view(key_value.data(), kRows, (kStreams + 1) * kHidden),
                view(weights.data(), kStreams, kHidden), view(weights.data(), kStreams, kHidden),
                text.data(), 1e-20f, view(expanded.data(), kRows, kStreams * kHidden), pre.data(),
                target);
  });
}

void bench_selections(Bench& bench, Target target) {
  constexpr int64_t kEntries = 32768, kIndexHeads = 32, kIndexChannels = 128, kExperts = 384;
  const std::vector<float> scores = numbers(kEntries);
  std::vector<int32_t> indices(2048);
  const int64_t visible = kEntries;
  bench.measure("topk_select", "[1, 32768], k = 512", kEntries, [&] {
    expect_none(topk_select(view(scores.data(), 1, kEntries), 512, indices.data()));
  });
  bench.measure("candidate_blocks", "[1, 32768], 2048 blocks of 8", kEntries, [&] {
    expect_none(
        candidate_blocks(view(scores.data(), 1, kEntries), &visible, 8, 2048, indices.data()));
  });
  const std::vector<float> logits = numbers(129280);
  int64_t id = 0;
  bench.measure("greedy_sample", "[1, 129280]", 129280,
                [&] { expect_none(greedy_sample(view(logits.data(), 1, 129280), &id)); });
  const std::vector<uint16_t> q = narrow_numbers(kIndexHeads * kIndexChannels),
                              keys = narrow_numbers(kEntries * kIndexChannels),
                              head_weights = narrow_numbers(kIndexHeads);
  std::vector<float> found(kEntries);
  bench.measure("index_score", "[1, 32, 128] x [32768, 128] bf16 (8 MiB of keys)", kEntries, [&] {
    index_score(
        {view(q.data(), kIndexHeads, kIndexChannels), view(head_weights.data(), 1, kIndexHeads),
         view(keys.data(), kEntries, kIndexChannels), &visible, false, found.data(), kEntries},
        target);
  });
  const std::vector<uint16_t> x = narrow_numbers(16 * 1024),
                              weight = narrow_numbers(kExperts * 1024);
  const std::vector<float> bias = numbers(kExperts);
  std::vector<float> weights(16 * 8);
  bench.measure("moe_gate", "[16, 1024] x [384, 1024] bf16, k = 8", 16 * kExperts, [&] {
    expect_none(moe_gate({view(x.data(), 16, 1024), view(weight.data(), kExperts, 1024),
                          bias.data(), 0, 8, 1, 1, indices.data(), weights.data()},
                         target));
  });
}

void bench_attention(Bench& bench, Target target) {
  constexpr int64_t kWindow = 128, kEntries = 4096, kChosen = 512;
  const std::vector<uint16_t> q = narrow_numbers(kHeads * kChannels),
                              window = narrow_numbers(kWindow * kChannels),
                              compressed = narrow_numbers(kEntries * kChannels);
  std::vector<int32_t> window_index(kWindow), compressed_index(kChosen);
  std::iota(window_index.begin(), window_index.end(), 0);
  for (int32_t i = 0; i < kChosen; ++i) compressed_index[static_cast<size_t>(i)] = i * 8 + i % 7;
  std::vector<uint16_t> out(q.size());
  std::vector<float> lse(kHeads);
  const std::vector<float> sink = numbers(kHeads);
  SparseAttention args;
  args.q = view(q.data(), kHeads, kChannels);
  args.heads = kHeads;
  args.window = view(window.data(), kWindow, kChannels);
  args.window_index = window_index.data();
  args.window_count = kWindow;
  args.compressed = view(compressed.data(), kEntries, kChannels);
  args.compressed_index = compressed_index.data();
  args.compressed_count = kChosen;
  args.sink = sink.data();
  args.scale = 0.044f;
  args.out = view(out.data(), kHeads, kChannels);
  args.lse = lse.data();
  bench.measure("sparse_attention", "[1, 64, 512] bf16, 128 + 512 keys", kHeads * kChannels,
                [&] { sparse_attention(args, target); });
  const std::vector<float> values = numbers(64 * 2 * kChannels);
  std::vector<float> pooled(64 * kChannels);
  bench.measure("compress_pool", "[64, 2, 512] fp32", 64 * kChannels, [&] {
    compress_pool(values.data(), values.data(), 64, 2, kChannels, pooled.data(), target);
  });
}

}  // namespace

std::vector<RowsBenchEntry> bench_rows(Target target, int pairs) {
  DEEPINFER_ASSERT(pairs > 0, "pairs " << pairs);
  std::vector<RowsBenchEntry> entries;
  Bench bench(pairs, entries);
  bench_codecs(bench, target);
  bench_row_kernels(bench, target);
  bench_selections(bench, target);
  bench_attention(bench, target);
  return entries;
}

}  // namespace deepinfer
