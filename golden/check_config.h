// The check's configuration: which golden files are run, what gates them, with which bounds.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/numerics.h"
#include "platform/coverage.h"

namespace deepinfer {

// How far a layer that is run on golden inputs may be from the golden; an absent bound does not
// gate.
struct LayerBounds {
  std::optional<double> median;          // median |difference| of a stream over the prompt's rows
  std::optional<double> row_median;      // the same of any one row, prompt and decode step
  std::optional<double> bit_equal_rows;  // least share of a layer's rows bit-equal in bf16
  std::optional<double> row_difference;  // a row within this |difference| ...
  std::optional<double> rows_within;     // ... least share of a layer's rows
  std::optional<double> values_within_bf16_ulp;  // least share of a layer's stream values
  std::optional<double>
      equal_selections;  // least share of rows with the same top-k set and experts
};

struct Bounds {
  std::optional<double> logits;  // largest |logit difference| of a step
  // The logit bound holds only where a step's noise floor is below this.
  std::optional<double> where_noise_floor_below;
  std::optional<double> traces;  // largest |difference| of a recorded value end to end
  LayerBounds layers;
};

// Which comparisons decide. The others are made and reported where there is data for them.
struct Gates {
  bool tokens = false;
  bool logits = false;
  bool traces = false;  // recorded values end to end: streams, coefficients, selections
  bool layers = false;  // layer by layer on golden inputs

  bool any() const { return tokens || logits || traces || layers; }
};

struct Suite {
  std::string name;
  std::filesystem::path model;   // checkpoint folder
  std::filesystem::path golden;  // golden-MODE.json
  std::string numerics_name;     // "plain", "quant" or "official"
  Numerics numerics;
  Bounds bounds;
  Gates gates;
  std::vector<Path> claims;  // must run at least once over the suite

  bool information_only() const { return !gates.any(); }
};

struct CheckConfig {
  std::map<std::string, Bounds> bounds;  // by name
  std::vector<Suite> suites;
};

// Reads `schema: 1` YAML; relative paths in it start at `root`. Throws ConfigError.
CheckConfig load_check_config(const std::filesystem::path& path, const std::filesystem::path& root);
CheckConfig parse_check_config(const std::string& text, const std::string& source,
                               const std::filesystem::path& root);

// Throws ConfigError if a gate of the suite has no bound to hold its comparison to.
void require_bounds_for_gates(const Suite& suite, const std::string& where);

}  // namespace deepinfer
