//! The picture of the dashboard's data.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use support::leaf_spine::{H2, LeafSpine};
use support::{paths, process};

use super::{Process, escape};

/// The address of Prometheus in the namespace of h1.
const PROMETHEUS: &str = "127.0.0.1:9090";
/// The duration in seconds, and the two parts of it in which something fails.
const SECONDS: u64 = 150;
const LOSS: (u64, u64) = (40, 70);
const STALLS: (u64, u64) = (100, 130);
/// The time for which the probed process is stopped, and for which it then runs, again and again.
const STALL: Duration = Duration::from_millis(300);
/// The value of the dashboard's `$__rate_interval`.
const RATE_INTERVAL: &str = "10s";

/// A panel with data.
struct Panel {
    title: String,
    unit: String,
    lines: Vec<Line>,
}

/// The name of a line, and its points: seconds since the start, and the value.
type Line = (String, Vec<(f64, f64)>);

/// Runs the exporter and Prometheus while parts fail, and returns the picture.
pub(super) fn picture(network: &LeafSpine, program: &str, responder: &Process) -> Result<String> {
    let directory = std::env::temp_dir().join(format!("adverb-pictures-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let panels = record(network, program, responder, &directory);
    std::fs::remove_dir_all(&directory)?;
    let panels = panels?;
    ensure!(panels.len() >= 8, "only {} panels have data", panels.len());
    Ok(draw(&panels))
}

fn record(
    network: &LeafSpine,
    program: &str,
    responder: &Process,
    directory: &std::path::Path,
) -> Result<Vec<Panel>> {
    let mut exporter = network.command("h1");
    exporter.args([program, "exporter", "--probe", H2, "--probe-dscp", "0,26", "--probe-interval", "0.02"]);
    let _exporter = Process(exporter.stdout(Stdio::null()).spawn().context("could not start the exporter")?);
    let config = "global: { scrape_interval: 2s }\nscrape_configs:\n  - job_name: adverb\n    \
                  static_configs: [ { targets: [ '127.0.0.1:9879' ] } ]\n";
    std::fs::write(directory.join("prometheus.yml"), config)?;
    let mut prometheus = network.command("h1");
    prometheus.arg("prometheus").arg(format!("--config.file={}", directory.join("prometheus.yml").display()));
    prometheus.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
    prometheus.arg(format!("--web.listen-address={PROMETHEUS}"));
    let prometheus = prometheus.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _prometheus = Process(prometheus.context("could not start Prometheus")?);
    // Wait until both serve, and the first rates are known.
    std::thread::sleep(Duration::from_secs(15));

    let (start, began) = (SystemTime::now(), Instant::now());
    let wait_until = |second: u64| {
        std::thread::sleep(Duration::from_secs(second).saturating_sub(began.elapsed()));
    };
    wait_until(LOSS.0);
    network.set_loss("l2", 100).map_err(|reason| anyhow!(reason))?;
    wait_until(LOSS.1);
    network.set_loss("l2", 0).map_err(|reason| anyhow!(reason))?;
    wait_until(STALLS.0);
    while began.elapsed() < Duration::from_secs(STALLS.1) {
        for signal in ["STOP", "CONT"] {
            responder.signal(signal)?;
            std::thread::sleep(STALL);
        }
    }
    wait_until(SECONDS);
    let start = start.duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    panels(network, start)
}

/// Returns the panels of the dashboard that have data.
fn panels(network: &LeafSpine, start: f64) -> Result<Vec<Panel>> {
    let file = std::fs::read_to_string(paths::root().join("docs/operate/dashboard.json"))?;
    let dashboard: Value = serde_json::from_str(&file)?;
    let mut panels = Vec::new();
    for panel in dashboard["panels"].as_array().context("no panels")? {
        if panel["type"] != "timeseries" {
            continue;
        }
        let mut lines = Vec::new();
        for target in panel["targets"].as_array().into_iter().flatten() {
            lines.append(&mut query(network, target, start)?);
        }
        // A line whose values are all 0 shows nothing.
        lines.retain(|(_, points)| points.iter().any(|&(_, value)| value > 0.0));
        if !lines.is_empty() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let unit = text(&panel["fieldConfig"]["defaults"]["unit"]);
            panels.push(Panel { title: text(&panel["title"]), unit, lines });
        }
    }
    Ok(panels)
}

/// Returns the lines of a query.
fn query(network: &LeafSpine, target: &Value, start: f64) -> Result<Vec<Line>> {
    let expression = target["expr"].as_str().context("no query")?;
    let expression = expression.replace("$__rate_interval", RATE_INTERVAL);
    let expression = expression.replace("$instance", ".*").replace("$device", ".*");
    let mut command = network.command("h1");
    command.args(["promtool", "query", "range", "--format=json", "--step=2s"]);
    command.args([format!("--start={start:.0}"), format!("--end={:.0}", start + SECONDS as f64)]);
    command.args([format!("http://{PROMETHEUS}"), expression]);
    let series: Value = serde_json::from_str(&process::text(&mut command)?)?;
    let legend = target["legendFormat"].as_str().unwrap_or_default();
    let mut lines = Vec::new();
    for one in series.as_array().into_iter().flatten() {
        let mut name = legend.to_owned();
        for (label, value) in one["metric"].as_object().into_iter().flatten() {
            name = name.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap_or_default());
        }
        // There is one instance and one destination.
        let name = name.replace("127.0.0.1:9879", "").replace(&format!("to {H2} "), "");
        let points = one["values"].as_array().into_iter().flatten().filter_map(|point| {
            let value: f64 = point[1].as_str()?.parse().ok()?;
            value.is_finite().then_some((point[0].as_f64()? - start, value))
        });
        lines.push((name.trim().to_owned(), points.collect()));
    }
    Ok(lines)
}

const COLUMNS: usize = 3;
/// The size of a panel with its margin, and the part of it in which lines are drawn: left, top, width, height.
const SIZE: (f64, f64) = (400.0, 212.0);
const PLOT: (f64, f64, f64, f64) = (62.0, 34.0, 316.0, 110.0);
const HEADER: f64 = 50.0;
const COLORS: [&str; 6] = ["#1f6feb", "#d1600a", "#2da44e", "#a371f7", "#bf3989", "#57606a"];

fn draw(panels: &[Panel]) -> String {
    let rows = panels.len().div_ceil(COLUMNS);
    let (width, height) = (COLUMNS as f64 * SIZE.0 + 16.0, HEADER + rows as f64 * SIZE.1 + 8.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#ffffff\"/>\n\
         <g font-family=\"Helvetica, Arial, DejaVu Sans, sans-serif\" font-size=\"11\" fill=\"#24292f\">\n\
         <text x=\"16\" y=\"22\" font-size=\"14\" font-weight=\"bold\">Panels of docs/operate/dashboard.json with data: \
         adverb exporter probes {H2} in two classes, 50 probes/s each</text>\n\
         <rect x=\"16\" y=\"31\" width=\"12\" height=\"12\" fill=\"#ffd8b5\"/>\
         <text x=\"34\" y=\"41\">a leaf loses 10 % of the packets: 27 % of the probes with their two answers</text>\n\
         <rect x=\"516\" y=\"31\" width=\"12\" height=\"12\" fill=\"#ddd6fe\"/>\
         <text x=\"534\" y=\"41\">the responder's process is stopped for {} ms, again and again</text>\n",
        STALL.as_millis()
    );
    for (index, panel) in panels.iter().enumerate() {
        let (column, row) = (index % COLUMNS, index / COLUMNS);
        let (x, y) = (8.0 + column as f64 * SIZE.0, HEADER + row as f64 * SIZE.1);
        _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        draw_panel(&mut svg, panel);
        svg.push_str("</g>\n");
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, panel: &Panel) {
    let (left, top, width, height) = PLOT;
    let values = panel.lines.iter().flat_map(|(_, points)| points.iter().map(|&(_, value)| value));
    let max = scale(values.fold(0.0, f64::max));
    let x = |second: f64| left + width * second / SECONDS as f64;
    let y = |value: f64| top + height * (1.0 - value / max);
    _ = writeln!(
        svg,
        "<rect x=\"4\" y=\"4\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"none\" stroke=\"#d0d7de\"/>\n\
         <text x=\"14\" y=\"22\" font-weight=\"bold\">{}</text>",
        SIZE.0 - 8.0,
        SIZE.1 - 8.0,
        escape(&panel.title)
    );
    for ((from, to), color) in [(LOSS, "#ffd8b5"), (STALLS, "#ddd6fe")] {
        let (from, to) = (x(from as f64), x(to as f64));
        _ = writeln!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{height}\" fill=\"{color}\"/>",
            to - from
        );
    }
    for part in [0.0, 0.5, 1.0] {
        let at = y(part * max);
        let label = escape(&quantity(part * max, &panel.unit));
        _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#d0d7de\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#57606a\">{label}</text>",
            left + width,
            left - 6.0,
            at + 4.0
        );
    }
    for second in (0..=SECONDS).step_by(30) {
        _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#57606a\">{second} s</text>",
            x(second as f64) - 4.0,
            top + height + 15.0
        );
    }
    for (index, (name, points)) in panel.lines.iter().take(COLORS.len()).enumerate() {
        let color = COLORS[index];
        let points: Vec<String> =
            points.iter().map(|&(second, value)| format!("{:.1},{:.1}", x(second), y(value))).collect();
        _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>",
            points.join(" ")
        );
        if name.is_empty() {
            continue;
        }
        let (at_x, at_y) =
            (14.0 + (index % 2) as f64 * 190.0, top + height + 34.0 + (index / 2) as f64 * 15.0);
        _ = writeln!(
            svg,
            "<rect x=\"{at_x}\" y=\"{:.1}\" width=\"10\" height=\"3\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"{at_y:.1}\">{}</text>",
            at_y - 5.0,
            at_x + 15.0,
            escape(name)
        );
    }
}

/// Returns the next larger number that is 1, 2 or 5 times a power of ten.
fn scale(max: f64) -> f64 {
    if max <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(max.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|&limit| limit >= max).unwrap_or(max)
}

/// Returns a value with its unit, as Grafana names units.
fn quantity(value: f64, unit: &str) -> String {
    let units: BTreeMap<&str, &str> = BTreeMap::from([
        ("s", "s"),
        ("pps", " p/s"),
        ("Bps", "B/s"),
        ("cps", "/s"),
        ("none", ""),
        ("bytes", "B"),
    ]);
    if unit == "percentunit" {
        return format!("{} %", rounded(100.0 * value));
    }
    let suffix = units.get(unit).copied().unwrap_or(unit);
    let scales = [(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")];
    match scales.into_iter().find(|&(scale, _)| value >= scale) {
        Some((scale, prefix)) => format!("{} {prefix}{suffix}", rounded(value / scale)),
        None => "0".to_owned(),
    }
}

/// Returns a number without superfluous digits.
fn rounded(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_short() {
        assert_eq!(quantity(0.1, "percentunit"), "10 %");
        assert_eq!(quantity(25e-6, "s"), "25 µs");
        assert_eq!(quantity(1500.0, "Bps"), "1.5 kB/s");
        assert_eq!(quantity(0.0, "s"), "0");
        assert_eq!([scale(0.07), scale(3.0), scale(20.0)], [0.1, 5.0, 20.0]);
    }

    #[test]
    fn a_panel_has_all_its_lines() {
        let lines =
            vec![("a".to_owned(), vec![(0.0, 1.0), (2.0, 3.0)]), ("<b>".to_owned(), vec![(0.0, 2.0)])];
        let svg = draw(&[Panel { title: "Loss & delay".to_owned(), unit: "s".to_owned(), lines }]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("Loss &amp; delay") && svg.contains("&lt;b&gt;"));
        assert!(svg.contains(">5 s</text>"), "the scale ends at 5 s");
    }
}
