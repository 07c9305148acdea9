// `deepinfer-sim formats`: tables of the number formats, single codes, single values.
#include "platform/formats.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/terminal.h"

namespace deepinfer {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::string name;
  std::vector<std::string> codes;
  std::string value;  // --encode
  double limit = 0;
  bool json = false;
};

// Shortest decimal that reads back as the same fp32.
std::string text_of(float value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return std::string(buffer.data(), result.ptr);
}

std::string hex_of(const FormatInfo& info, uint32_t code) {
  std::ostringstream text;
  text << "0x" << std::hex << std::uppercase << std::setfill('0') << std::setw((info.bits + 3) / 4)
       << code;
  return text.str();
}

// "0 1111 011": sign, exponent, mantissa, where the format has them.
std::string fields_of(const FormatInfo& info, uint32_t code) {
  std::string text;
  for (int bit = info.bits - 1; bit >= 0; --bit) {
    text += (code >> bit & 1) != 0 ? '1' : '0';
    const bool after_sign = info.has_sign && bit == info.bits - 1;
    const bool after_exponent = bit == info.mantissa_bits && bit > 0;
    if (after_sign || after_exponent) text += ' ';
  }
  return text;
}

std::string_view class_of(const FormatInfo& info, float value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return "infinity";
  if (value == 0) return "zero";
  return std::fabs(value) < info.min_normal ? "subnormal" : "normal";
}

uint32_t code_count(const FormatInfo& info) { return 1u << info.bits; }

ordered_json number_json(float value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json code_json(const FormatInfo& info, uint32_t code) {
  const float value = decode(info.format, code);
  return {{"code", code},
          {"hex", hex_of(info, code)},
          {"bits", fields_of(info, code)},
          {"value", number_json(value)},
          {"text", text_of(value)},
          {"class", class_of(info, value)}};
}

ordered_json info_json(const FormatInfo& info) {
  return {{"name", info.name},
          {"bits", info.bits},
          {"exponent_bits", info.exponent_bits},
          {"mantissa_bits", info.mantissa_bits},
          {"bias", info.bias},
          {"has_sign", info.has_sign},
          {"has_infinity", info.has_infinity},
          {"has_nan", info.has_nan},
          {"max_finite", info.max_finite},
          {"min_normal", info.min_normal},
          {"min_subnormal", info.min_subnormal}};
}

// Accepts decimal, 0x and 0b. Throws ConfigError.
uint32_t parse_code(const FormatInfo& info, const std::string& text) {
  std::string_view digits = text;
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) base = 16;
  if (text.starts_with("0b") || text.starts_with("0B")) base = 2;
  if (base != 10) digits.remove_prefix(2);
  uint32_t code = 0;
  const char* end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, code, base);
  if (digits.empty() || error != std::errc() || last != end || code >= code_count(info)) {
    throw ConfigError({.what = "not a code of " + std::string(info.name),
                       .where = {},
                       .expected = "0 to " + std::to_string(code_count(info) - 1) + " (" +
                                   hex_of(info, code_count(info) - 1) + "), as decimal, 0x or 0b",
                       .found = text,
                       .remedy = {}});
  }
  return code;
}

// Accepts what strtof accepts: decimal, hexadecimal floating point, inf, nan. Throws ConfigError.
float parse_value(const std::string& text) {
  char* end = nullptr;
  const float value = std::strtof(text.c_str(), &end);
  if (text.empty() || std::isspace(static_cast<unsigned char>(text[0])) || *end != '\0') {
    throw ConfigError({.what = "not a number",
                       .where = "--encode",
                       .expected = "a decimal or hexadecimal number, inf or nan",
                       .found = text,
                       .remedy = {}});
  }
  return value;
}

void check_limit(const FormatInfo& info, double limit) {
  const float narrow = static_cast<float>(limit);
  const bool fits = limit > 0 && limit <= info.max_finite && narrow == limit &&
                    decode(info.format, encode(info.format, narrow, Overflow::kSaturate)) == narrow;
  if (!fits) {
    throw ConfigError(
        {.what = "the limit is not a positive value of " + std::string(info.name),
         .where = "--limit",
         .expected = "a finite value of the format, such as 448, 240 or 224 for e4m3fn",
         .found = text_of(narrow),
         .remedy = {}});
  }
}

// The codes that one value can encode to, by what the encoder does on overflow.
struct Encoding {
  std::string_view overflow;
  std::optional<uint32_t> code;  // none: the format cannot express it
};

std::vector<Encoding> encodings_of(const FormatInfo& info, float value, double limit) {
  const bool nan = std::isnan(value);
  std::vector<Encoding> encodings;
  const bool none = nan && !info.has_nan;
  const auto saturated =
      none ? std::nullopt : std::optional(encode(info.format, value, Overflow::kSaturate, limit));
  encodings.push_back({"saturate", saturated});
  if (limit > 0) return encodings;
  // Without infinity and NaN (e2m1) there is only saturation.
  if (info.has_infinity || info.has_nan) {
    encodings.push_back({"infinity", encode(info.format, value, Overflow::kInfinity)});
  }
  return encodings;
}

void print_list(bool json) {
  if (json) {
    ordered_json formats = ordered_json::array();
    for (const FormatInfo& info : all_formats()) formats.push_back(info_json(info));
    std::cout << ordered_json{{"schema", 1}, {"formats", formats}}.dump(2) << "\n";
    return;
  }
  const Paint paint(STDOUT_FILENO);
  std::ostringstream header;
  header << std::left << std::setw(8) << "name" << std::right << std::setw(6) << "bits"
         << std::setw(6) << "sign" << std::setw(10) << "exponent" << std::setw(10) << "mantissa"
         << std::setw(6) << "bias" << std::setw(16) << "max finite" << std::setw(16) << "min normal"
         << std::setw(16) << "min subnormal" << std::setw(10) << "infinity" << std::setw(5)
         << "NaN";
  std::cout << paint.bold(header.str()) << "\n";
  const auto yes = [](bool has) { return has ? "yes" : "no"; };
  for (const FormatInfo& info : all_formats()) {
    const std::string subnormal =
        info.min_subnormal == 0 ? "none" : text_of(static_cast<float>(info.min_subnormal));
    std::cout << std::left << std::setw(8) << info.name << std::right << std::setw(6) << info.bits
              << std::setw(6) << yes(info.has_sign) << std::setw(10) << info.exponent_bits
              << std::setw(10) << info.mantissa_bits << std::setw(6) << info.bias << std::setw(16)
              << text_of(static_cast<float>(info.max_finite)) << std::setw(16)
              << text_of(static_cast<float>(info.min_normal)) << std::setw(16) << subnormal
              << std::setw(10) << yes(info.has_infinity) << std::setw(5) << yes(info.has_nan)
              << "\n";
  }
}

// Row label + column index = code, as in trn2.md 2.2.
void print_table(const FormatInfo& info, bool json) {
  if (json) {
    ordered_json codes = ordered_json::array();
    for (uint32_t code = 0; code < code_count(info); ++code) codes.push_back(code_json(info, code));
    std::cout << ordered_json{{"schema", 1}, {"format", info_json(info)}, {"codes", codes}}.dump(2)
              << "\n";
    return;
  }
  constexpr uint32_t kColumns = 8;
  constexpr int kWidth = 16;  // the longest value is bf16's -1.1754944e-38
  const Paint paint(STDOUT_FILENO);
  std::ostringstream header;
  header << std::left << std::setw(8) << info.name << std::right;
  for (uint32_t column = 0; column < kColumns; ++column) {
    header << std::setw(kWidth) << "+" + std::to_string(column);
  }
  std::cout << paint.bold(header.str()) << "\n";
  for (uint32_t row = 0; row < code_count(info); row += kColumns) {
    std::cout << std::left << std::setw(8) << hex_of(info, row) << std::right;
    for (uint32_t column = 0; column < kColumns; ++column) {
      std::cout << std::setw(kWidth) << text_of(decode(info.format, row + column));
    }
    std::cout << "\n";
  }
}

void print_codes(const FormatInfo& info, const std::vector<uint32_t>& codes, bool json) {
  if (json) {
    ordered_json list = ordered_json::array();
    for (const uint32_t code : codes) list.push_back(code_json(info, code));
    std::cout << ordered_json{{"schema", 1}, {"format", info.name}, {"codes", list}}.dump(2)
              << "\n";
    return;
  }
  for (const uint32_t code : codes) {
    const float value = decode(info.format, code);
    std::cout << info.name << " " << hex_of(info, code) << "  " << fields_of(info, code) << "  "
              << text_of(value) << "  " << class_of(info, value) << "\n";
  }
}

void print_encodings(const FormatInfo& info, float value, double limit, bool json) {
  const std::vector<Encoding> encodings = encodings_of(info, value, limit);
  if (json) {
    ordered_json list = ordered_json::array();
    for (const Encoding& encoding : encodings) {
      ordered_json entry = {{"overflow", encoding.overflow}};
      entry["result"] = encoding.code ? code_json(info, *encoding.code) : ordered_json(nullptr);
      list.push_back(entry);
    }
    ordered_json result = {{"schema", 1},
                           {"format", info.name},
                           {"value", number_json(value)},
                           {"text", text_of(value)}};
    if (limit > 0) result["limit"] = limit;
    result["encodings"] = list;
    std::cout << result.dump(2) << "\n";
    return;
  }
  const auto describe = [&info](const Encoding& encoding) {
    if (!encoding.code) return std::string(info.name) + " has no code for it";
    const float nearest = decode(info.format, *encoding.code);
    return std::string(info.name) + " " + hex_of(info, *encoding.code) + "  " +
           fields_of(info, *encoding.code) + "  " + text_of(nearest) + "  " +
           std::string(class_of(info, nearest));
  };
  const bool one = encodings.size() == 1 || encodings[0].code == encodings[1].code;
  for (const Encoding& encoding : encodings) {
    std::cout << text_of(value) << " -> " << describe(encoding);
    if (!one) std::cout << "  (on overflow: " << encoding.overflow << ")";
    std::cout << "\n";
    if (one) break;
  }
}

CommandRun setup(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("NAME", options->name, "A format; without one, all formats are listed");
  app.add_option("CODE", options->codes, "Codes to decode: decimal, 0x or 0b");
  CLI::Option* value = app.add_option("--encode", options->value,
                                      "Encode this value: nearest code, ties to even, from fp32");
  CLI::Option* limit = app.add_option("--limit", options->limit,
                                      "Saturate at this value, as the quantisers do with fp8_max");
  limit->needs(value);
  app.add_flag("--json", options->json, "Print JSON");
  return [options, value, limit](const CommandContext&) {
    const bool encoding = value->count() > 0;
    if (options->name.empty()) {
      if (encoding) {
        throw ConfigError({.what = "--encode needs a format",
                           .where = {},
                           .expected = "deepinfer-sim formats NAME --encode VALUE",
                           .found = {},
                           .remedy = {}});
      }
      print_list(options->json);
      return ExitCode::kMatch;
    }
    const FormatInfo& info = format_info(parse_format(options->name));
    std::vector<uint32_t> codes;
    for (const std::string& text : options->codes) codes.push_back(parse_code(info, text));
    if (encoding && !codes.empty()) {
      throw ConfigError({.what = "--encode takes a value, not codes as well",
                         .where = {},
                         .expected = "codes to decode, or --encode VALUE",
                         .found = options->codes.front(),
                         .remedy = {}});
    }
    if (encoding) {
      if (limit->count() > 0) check_limit(info, options->limit);
      print_encodings(info, parse_value(options->value), options->limit, options->json);
    } else if (!codes.empty()) {
      print_codes(info, codes, options->json);
    } else {
      print_table(info, options->json);
    }
    return ExitCode::kMatch;
  };
}

}  // namespace

const Command kFormatsCommand = {
    "formats", "Print number formats: their tables, single codes, or the code of a value",
    "  deepinfer-sim formats                              list the formats\n"
    "  deepinfer-sim formats e4m3                         the whole table\n"
    "  deepinfer-sim formats e4m3 0x7B                    what a code means\n"
    "  deepinfer-sim formats e4m3fn --encode 465          the nearest code of a value\n"
    "  deepinfer-sim formats e4m3fn --encode 300 --limit 224\n"
    "                                                     the same with fp8_max 224",
    setup};

}  // namespace deepinfer
