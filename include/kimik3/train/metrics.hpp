#pragma once
// The log of a run: a CSV file, one row a step, that a resumed run continues, and its reader. Numbers are written in
// the shortest form that reads back the same, whatever the locale.

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kimik3/core/atomic_file.hpp"

namespace kimik3 {

/// A log as it was read: one list of values a column, the first being "step". An empty cell is NaN.
struct MetricsTable {
    std::vector<std::string> columns;
    std::vector<std::vector<double>> values;

    /// The values under a name, which must be there.
    const std::vector<double>& operator[](std::string_view column) const& {
        const auto found = std::ranges::find(columns, column);
        require(found != columns.end(), "the log has no column '{}'", column);
        return values[static_cast<std::size_t>(found - columns.begin())];
    }
    /// Of a table that ends with the expression, a list of its own.
    std::vector<double> operator[](std::string_view column) && { return std::as_const(*this)[column]; }

    Index rows() const { return values.empty() ? 0 : static_cast<Index>(values.front().size()); }
};

/// Reads a log that MetricsFile wrote; a last row that was cut off is left out.
inline MetricsTable read_metrics(const std::filesystem::path& path);

class MetricsFile {
public:
    /// columns: the names after "step". A file that exists must have the same columns; its rows of first_step and later
    /// steps, which will be done again, are dropped, as is a last row that was cut off.
    MetricsFile(std::filesystem::path path, const std::vector<std::string>& columns, Index first_step)
        : path_(std::move(path)), columns_(columns.size()) {
        std::string header = "step";
        for (const std::string& column : columns) {
            require(!column.empty() && column.find_first_of(",\"\r\n") == std::string::npos,
                    "a column of metrics is named without commas, quotes and line ends, got '{}'", column);
            header += "," + column;
        }
        const std::string text = header + "\n" + kept_rows(header, first_step);
        AtomicFile whole(path_);
        whole.write(text.data(), text.size());
        whole.commit();
        file_ = detail::Descriptor(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
        check(file_.is_open(), "open");
    }

    /// Appends a row: a value a column, nullopt for an empty cell. The row is with the system when this returns.
    void write(Index step, std::span<const std::optional<double>> values) {
        require(values.size() == columns_, "'{}' has {} columns after the step, got {} values", path_.string(),
                columns_, values.size());
        std::string row = fmt::format("{}", step);
        for (const std::optional<double>& value : values) row += value ? fmt::format(",{}", *value) : ",";
        row += '\n';
        for (std::string_view left = row; !left.empty();) {
            const ssize_t written = ::write(file_.number(), left.data(), left.size());
            if (written < 0 && errno == EINTR) continue;
            check(written > 0, "write");
            left.remove_prefix(static_cast<std::size_t>(written));
        }
    }

private:
    void check(bool done, const char* action) const {
        if (!done) fail("{}: cannot {} the file: {}", path_.string(), action, detail::system_reason());
    }

    /// The rows below first_step of the file as it stands, or nothing when there is none.
    std::string kept_rows(const std::string& header, Index first_step) const {
        std::string kept, line;
        if (!std::filesystem::exists(path_)) return kept;
        std::ifstream file(path_, std::ios::binary);
        check(file.is_open(), "read");
        for (bool first = true; std::getline(file, line); first = false) {
            const bool cut_off = file.eof();
            if (first) {
                require(cut_off ? header.starts_with(line) : line == header,
                        "'{}' has the columns '{}', this run writes '{}'", path_.string(), line.substr(0, 200), header);
                continue;
            }
            if (cut_off) break;
            Index step = 0;
            const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
            require(error == std::errc() && end != line.data() + line.size() && *end == ',',
                    "'{}' has a row that does not begin with a step: '{}'", path_.string(), line.substr(0, 80));
            if (step < first_step) kept += line + "\n";
        }
        check(!file.bad(), "read");
        return kept;
    }

    std::filesystem::path path_;
    std::size_t columns_ = 0;
    detail::Descriptor file_;
};

inline MetricsTable read_metrics(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file.is_open()) fail("{}: cannot read the file: {}", path.string(), detail::system_reason());
    MetricsTable table;
    for (std::string line; std::getline(file, line) && !file.eof();) {
        const bool header = table.columns.empty();
        std::size_t cell = 0;
        line += ',';
        for (const char *at = line.data(), *last = at + line.size(); at != last; ++cell) {
            const char* end = std::find(at, last, ',');
            if (header) {
                table.columns.emplace_back(at, end);
                table.values.emplace_back();
            } else if (cell < table.columns.size()) {
                double value = std::numeric_limits<double>::quiet_NaN();
                const auto [stop, error] = std::from_chars(at, end, value);
                require(at == end || (error == std::errc() && stop == end), "'{}' has a cell that is no number: '{}'",
                        path.string(), std::string_view(at, static_cast<std::size_t>(end - at)).substr(0, 80));
                table.values[cell].push_back(value);
            }
            at = end + 1;
        }
        require(cell == table.columns.size(), "'{}' has {} columns, and a row of {} cells: '{}'", path.string(),
                table.columns.size(), cell, line.substr(0, 80));
    }
    require(!file.bad(), "'{}' cannot be read", path.string());
    return table;
}

}  // namespace kimik3
