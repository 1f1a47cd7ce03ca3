#pragma once
// The page that shows what a run did, or what a model does with a text: one HTML file that needs nothing else. The
// data stand in it as JSON, which other programs may read out again, and a script draws them. Parts that are not given
// say so on the page. Numbers are rounded to five digits; long lists are thinned to what a figure can show; what is
// not finite is null. Text of users may hold anything: it is replaced where it is no UTF-8, and "<" is escaped, so that
// nothing of it is markup.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kimik3/core/atomic_file.hpp"
#include "kimik3/io/config_json.hpp"
#include "kimik3/io/report_page.hpp"
#include "kimik3/io/report_script.hpp"
#include "kimik3/model/probe.hpp"
#include "kimik3/model/summary.hpp"
#include "kimik3/train/metrics.hpp"

namespace kimik3 {

/// A prompt that was looked into: the text of every token, and what the pass did with it.
struct PromptView {
    std::vector<std::string> tokens;
    Observation seen;
};

struct Report {
    std::string title;
    std::vector<std::pair<std::string, std::string>> headline{};  // few and large: name, value
    std::vector<std::pair<std::string, std::string>> facts{};
    std::string command{};
    ModelConfig config{};
    std::vector<ParameterPart> parameters{};
    std::vector<std::pair<std::string, Index>> memory_bytes{};

    std::optional<MetricsTable> curves{};  // of columns step, loss, val_loss, lr, gradient_norm, tokens_per_second
    std::string text{};                    // what the probe looked at: "512 tokens of book.txt"
    std::optional<Probe> probe{};
    std::optional<MetricsTable> load_history{};  // step and the columns of load_columns
    std::optional<PromptView> prompt{};
};

/// A report of what the model alone says.
template <class Model>
Report model_report(const Model& model, std::string title) {
    Report report{.title = std::move(title), .config = Model::config};
    report.parameters = parameter_parts(Model::config, model.parameters());
    const Index bytes = model.weights().size * static_cast<Index>(sizeof(typename Model::A));
    report.memory_bytes = {{"weights", bytes}, {"gradients", bytes}};
    return report;
}

/// Names for the expert loads of a probe in a log, and their values.
inline std::vector<std::string> load_columns(const Probe& probe);
inline std::vector<std::optional<double>> load_row(const Probe& probe);

/// At most most_rows rows, each the mean of equally many in turn, under the last of their steps; second: how many.
inline std::pair<MetricsTable, Index> thinned(const MetricsTable& table, Index most_rows);

/// The page.
inline std::string report_html(const Report& report);

/// Writes the page, whole or not at all.
inline void write_report(const std::filesystem::path& path, const Report& report) {
    const std::string page = report_html(report);
    AtomicFile file(path);
    file.write(page.data(), page.size());
    file.commit();
}

inline std::vector<std::string> load_columns(const Probe& probe) {
    std::vector<std::string> names;
    for (const Probe::Load& load : probe.load())
        for (std::size_t e = 0; e < load.tokens.size(); ++e)
            names.push_back(fmt::format("layer_{}_expert_{}", load.layer, e));
    return names;
}

inline std::vector<std::optional<double>> load_row(const Probe& probe) {
    std::vector<std::optional<double>> row;
    for (const Probe::Load& load : probe.load())
        for (std::size_t e = 0; e < load.tokens.size(); ++e)
            row.emplace_back(probe.relative_load(load, static_cast<Index>(e)));
    return row;
}

inline std::pair<MetricsTable, Index> thinned(const MetricsTable& table, Index most_rows) {
    require(most_rows >= 1, "a thinned log keeps at least one row, got {}", most_rows);
    const Index each = (std::max)(Index{1}, ceil_div(table.rows(), most_rows));
    if (each == 1) return {table, 1};
    MetricsTable thin{table.columns, {}};
    for (std::size_t column = 0; column < table.columns.size(); ++column) {
        const std::vector<double>& values = table.values[column];
        std::vector<double>& means = thin.values.emplace_back();
        for (Index first = 0; first < table.rows(); first += each) {
            const Index last = (std::min)(first + each, table.rows());
            double sum = 0;
            Index finite = 0;
            for (Index row = first; row < last; ++row)
                if (std::isfinite(values[to_size(row)])) sum += values[to_size(row)], ++finite;
            means.push_back(column == 0 ? values[to_size(last - 1)] : sum / static_cast<double>(finite));
        }
    }
    return {std::move(thin), each};
}

namespace detail {

using ReportJson = nlohmann::ordered_json;

/// To five digits; null where it is not finite.
inline ReportJson rounded(double value) {
    if (!std::isfinite(value)) return nullptr;
    if (value == 0.0) return 0;
    const double unit = std::pow(10.0, 4 - std::floor(std::log10(std::abs(value))));
    return std::isfinite(unit) && unit > 0.0 ? ReportJson(std::round(value * unit) / unit) : ReportJson(value);
}
template <class Numbers>
ReportJson rounded_list(const Numbers& values) {
    ReportJson list = ReportJson::array();
    for (const double value : values) list.push_back(rounded(value));
    return list;
}

/// The log counts steps from 0, the page those that were taken.
inline ReportJson steps_taken(const MetricsTable& table) {
    ReportJson steps = ReportJson::array();
    for (const double step : table["step"]) steps.push_back(step + 1);
    return steps;
}

inline ReportJson curves_json(const MetricsTable& all) {
    const auto [table, every] = thinned(all, 2000);
    ReportJson curves{{"every", every}, {"step", steps_taken(table)}};
    for (const char* name : {"loss", "val_loss", "lr", "gradient_norm", "tokens_per_second"})
        curves[name] = rounded_list(table[name]);
    return curves;
}

inline ReportJson load_history_json(const MetricsTable& all, const Probe& probe) {
    const std::vector<std::string> names = load_columns(probe);
    require(std::ranges::equal(names, std::span(all.columns).last(all.columns.size() - (all.columns.empty() ? 0 : 1))),
            "the log of expert loads has the columns of another model: {} and not {} loads", all.columns.size(),
            names.size());
    const MetricsTable table = thinned(all, 200).first;
    ReportJson history{{"step", steps_taken(table)}, {"layers", ReportJson::array()}};
    std::size_t column = 1;
    for (const Probe::Load& load : probe.load()) {
        ReportJson loads = ReportJson::array();
        for (std::size_t e = 0; e < load.tokens.size(); ++e) loads.push_back(rounded_list(table.values[column++]));
        history["layers"].push_back({{"layer", load.layer}, {"load", std::move(loads)}});
    }
    return history;
}

inline ReportJson experts_json(const Probe& probe) {
    ReportJson layers = ReportJson::array();
    for (const Probe::Load& load : probe.load()) {
        ReportJson loads = ReportJson::array();
        for (std::size_t e = 0; e < load.tokens.size(); ++e)
            loads.push_back(rounded(probe.relative_load(load, static_cast<Index>(e))));
        layers.push_back({{"layer", load.layer}, {"load", std::move(loads)}});
    }
    return layers;
}

inline ReportJson depth_json(const Probe& probe) {
    ReportJson sites = ReportJson::array();
    for (const Probe::Depth& depth : probe.depth()) {
        std::vector<double> mean = depth.sum;
        for (double& weight : mean) weight /= static_cast<double>(probe.tokens());
        sites.push_back({{"layer", depth.layer}, {"site", name_of(depth.site)}, {"weight", rounded_list(mean)}});
    }
    return sites;
}

inline ReportJson decay_json(const Probe& probe) {
    ReportJson layers = ReportJson::array();
    for (const DecayHistogram& decay : probe.decay()) {
        ReportJson heads = ReportJson::array();
        for (Index h = 0; h < decay.heads; ++h)
            heads.push_back(std::vector(decay.count.begin() + h * DecayHistogram::bins,
                                        decay.count.begin() + (h + 1) * DecayHistogram::bins));
        layers.push_back({{"layer", decay.layer}, {"heads", std::move(heads)}});
    }
    return layers;
}

inline ReportJson prompt_json(const PromptView& prompt) {
    require(static_cast<Index>(prompt.tokens.size()) == prompt.seen.tokens,
            "a prompt is shown with a text for each of its {} tokens, got {}", prompt.seen.tokens,
            prompt.tokens.size());
    ReportJson routers = ReportJson::array(), depth = ReportJson::array();
    for (const RouterChoices& r : prompt.seen.routers)
        routers.push_back({{"layer", r.layer}, {"chosen", r.chosen}, {"expert", r.expert},
                           {"weight", rounded_list(r.weight)}});
    for (const DepthWeights& d : prompt.seen.depth)
        depth.push_back({{"layer", d.layer}, {"site", name_of(d.site)}, {"candidates", d.candidates},
                         {"weight", rounded_list(d.weight)}});
    return {{"tokens", prompt.tokens}, {"routers", std::move(routers)}, {"depth", std::move(depth)}};
}

inline ReportJson report_json(const Report& r) {
    const auto pairs = [](const auto& list) {
        ReportJson all = ReportJson::array();
        for (const auto& [name, value] : list) all.push_back(ReportJson::array({name, value}));
        return all;
    };
    ReportJson json{{"title", r.title}, {"headline", pairs(r.headline)}, {"facts", pairs(r.facts)},
                    {"command", r.command}, {"config", format_config_json(r.config)},
                    {"memory", pairs(r.memory_bytes)}, {"parameters", ReportJson::array()}};
    for (const ParameterPart& part : r.parameters)
        json["parameters"].push_back(
            {{"name", part.name}, {"tensors", part.tensors}, {"total", part.total}, {"active", part.active}});
    json["curves"] = r.curves ? curves_json(*r.curves) : ReportJson(nullptr);
    const Probe none, &probe = r.probe ? *r.probe : none;
    json["text"] = r.text;
    json["experts"] = experts_json(probe);
    json["depth"] = depth_json(probe);
    json["decay"] = decay_json(probe);
    json["load_history"] = r.load_history && r.probe ? load_history_json(*r.load_history, probe) : ReportJson(nullptr);
    json["prompt"] = r.prompt ? prompt_json(*r.prompt) : ReportJson(nullptr);
    return json;
}

}  // namespace detail

inline std::string report_html(const Report& report) {
    std::string page(detail::report_head);
    const auto replace = detail::ReportJson::error_handler_t::replace;
    for (const char letter : detail::report_json(report).dump(-1, ' ', false, replace)) {
        if (letter == '<') page += "\\u003c";  // so no text ends the element or begins a comment
        else page += letter;
    }
    page += detail::report_middle;
    page += detail::report_script;
    page += detail::report_tail;
    return page;
}

}  // namespace kimik3
