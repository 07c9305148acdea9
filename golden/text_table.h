// What the reports for people have in common: a style, and tables.
#pragma once

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer {

// What the text may be dressed with; identity functions leave it plain.
struct TextStyle {
  std::function<std::string(std::string_view)> good;
  std::function<std::string(std::string_view)> bad;
  std::function<std::string(std::string_view)> quiet;
  std::function<std::string(std::string_view)> title;
};
inline TextStyle plain_style() {
  const auto same = [](std::string_view text) { return std::string(text); };
  return {same, same, same, same};
}

// Rows of cells in columns as wide as their widest cell; the first row is the heading.
class Table {
 public:
  using Paint = std::function<std::string(std::string_view)>;

  explicit Table(std::vector<std::string> heading) { rows_.push_back({std::move(heading), {}}); }
  // `paint` dresses the row's last cell.
  void add(std::vector<std::string> cells, Paint paint = {}) {
    rows_.push_back({std::move(cells), std::move(paint)});
  }
  bool empty() const { return rows_.size() == 1; }

  void write(const TextStyle& style, std::ostream& out) const {
    std::vector<size_t> widths;
    for (const Row& row : rows_) {
      widths.resize(std::max(widths.size(), row.cells.size()));
      for (size_t i = 0; i < row.cells.size(); ++i) {
        widths[i] = std::max(widths[i], row.cells[i].size());
      }
    }
    for (const Row& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.cells.size(); ++i) {
        const bool last = i + 1 == row.cells.size();
        line += last && row.paint ? row.paint(row.cells[i]) : row.cells[i];
        if (!last) line.append(widths[i] - row.cells[i].size() + 2, ' ');
      }
      out << (&row == &rows_.front() ? style.title(line) : line) << '\n';
    }
  }

 private:
  struct Row {
    std::vector<std::string> cells;
    Paint paint;
  };
  std::vector<Row> rows_;
};

}  // namespace deepinfer
