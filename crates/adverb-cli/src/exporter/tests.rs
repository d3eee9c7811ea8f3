//! Tests of the exporter and of the files in `docs/operate`. Some of them run Prometheus, promtool or systemd-analyze.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adverb::net::Options;
use adverb::net::blocking::{Connector, Listener};
use adverb::probe::stamp::StampKind;
use adverb::verbs::{Device, SoftDevice};
use clap::Parser;
use serde_json::Value;

use super::gather::tests::{CONNECTX, Sysfs};
use super::metrics::{self, Kind};
use super::probing::Probing;
use super::serve::{self, Exporter};
use super::totals::Destination;
use super::totals::tests::answered;

/// The time limit of each wait. A passing test waits for a much shorter time.
const DEADLINE: Duration = Duration::from_secs(120);

fn operate(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate").join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(operate(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the path of a program. If the program is not installed, prints the reason for the skipped test and returns `None`.
fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|place| place.join(program)).find(|path| path.is_file());
    let is_required = program.starts_with("prom") && std::env::var_os("ADVERB_REQUIRE_PROMETHEUS").is_some();
    assert!(
        found.is_some() || !is_required,
        "{program} is not installed, and ADVERB_REQUIRE_PROMETHEUS is set"
    );
    if found.is_none() {
        println!("SKIPPED: {program} is not installed; `cargo xtask setup` installs it");
    }
    found
}

/// Runs a program with this standard input. Returns whether the program succeeded, and its output: first the standard output,
/// then the standard error.
fn output(command: &mut Command, input: &str) -> (bool, String) {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), text.concat())
}

/// Returns statistics like those of a driver that counts pause frames. The counters grow with each call.
fn growing_statistics(_: &str) -> io::Result<BTreeMap<String, u64>> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let calls = CALLS.fetch_add(1, Ordering::Relaxed);
    let statistics = [
        ("rx_prio3_pause", 10),
        ("tx_prio3_pause", 3),
        ("rx_prio3_pause_duration", 900),
        ("rx_discards_phy", 1),
    ];
    Ok(statistics.map(|(name, step)| (name.to_owned(), step * calls)).into())
}

#[test]
fn software_nics_are_known_by_name() {
    assert!(super::is_software("soft") && super::is_software("soft:192.0.2.7"));
    assert!(!super::is_software("softroce0") && !super::is_software("mlx5_0"));
}

#[test]
fn every_metric_is_documented() {
    let document = read("metrics.md");
    let documented: Vec<&str> = document.lines().filter(|line| line.starts_with("| `adverb_")).collect();
    let expected: Vec<String> = metrics::ALL
        .iter()
        .map(|metric| {
            let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            format!(
                "| `{}` | {} | {} | {} |",
                metric.name,
                metric.kind.name(),
                labels.join(", "),
                metric.help
            )
        })
        .collect();
    let missing: Vec<&String> = expected.iter().filter(|row| !documented.contains(&row.as_str())).collect();
    let obsolete: Vec<&&str> =
        documented.iter().filter(|row| !expected.iter().any(|expected| expected == *row)).collect();
    assert!(missing.is_empty() && obsolete.is_empty(), "missing: {missing:#?}, obsolete: {obsolete:#?}");
}

#[test]
fn rules_and_dashboard_use_existing_metrics_only() {
    let known = metrics::ALL.iter().flat_map(|metric| match metric.kind {
        Kind::Histogram => {
            ["_bucket", "_sum", "_count"].map(|suffix| format!("{}{suffix}", metric.name)).into()
        }
        _ => vec![metric.name.to_owned()],
    });
    let known: BTreeSet<String> = known.collect();
    for file in ["alerts.yml", "alerts.test.yml", "dashboard.json"] {
        let text = read(file);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let used = words.filter(|word| word.starts_with("adverb_")).map(str::to_owned);
        let used: BTreeSet<String> = used.collect();
        assert!(used.len() > 10, "{file}: {used:?}");
        assert!(used.is_subset(&known), "{file} uses unknown metrics: {:?}", used.difference(&known));
    }
}

fn alerts() -> BTreeSet<String> {
    let rules = read("alerts.yml");
    rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(str::to_owned).collect()
}

#[test]
fn every_alert_has_a_meaning_an_action_and_a_test() {
    let (rules, tests) = (read("alerts.yml"), read("alerts.test.yml"));
    let alerts = alerts();
    assert!(alerts.len() >= 15, "{alerts:?}");
    for annotation in ["summary", "meaning", "action"] {
        let start = format!("{annotation}: \"");
        let count = rules.lines().filter(|line| line.trim().starts_with(&start)).count();
        assert_eq!(count, alerts.len(), "{annotation}");
    }
    for alert in &alerts {
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "{alert} has no test");
    }
}

#[test]
fn promtool_accepts_the_rules() {
    let Some(promtool) = installed("promtool") else { return };
    for arguments in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]] {
        let mut command = Command::new(&promtool);
        let (passed, text) = output(command.args(arguments).current_dir(operate("")), "");
        assert!(passed && text.contains("SUCCESS"), "{arguments:?}: {text}");
    }
}

#[test]
fn promtool_accepts_the_metrics() {
    let Some(promtool) = installed("promtool") else { return };
    let sysfs = Sysfs::new("promtool", CONNECTX);
    let software = vec![Device::open("soft").unwrap()];
    let text = Exporter::new(sysfs.gatherer(software, growing_statistics)).scrape();
    assert!(text.contains("adverb_netdev_pause_seconds_total"), "{text}");
    let (passed, report) = output(Command::new(&promtool).args(["check", "metrics"]), &text);
    assert!(passed && report.is_empty(), "{report}\n{text}");
    // promtool rejects a counter whose name does not end in `_total`.
    let wrong = text.replace("adverb_rdma_packets_total", "adverb_rdma_packets");
    let (passed, report) = output(Command::new(&promtool).args(["check", "metrics"]), &wrong);
    assert!(!passed && report.contains("_total"), "{report}");
}

#[test]
fn systemd_accepts_the_units() {
    let Some(analyze) = installed("systemd-analyze") else { return };
    for name in ["exporter", "respond"] {
        let unit = std::env::temp_dir().join(format!("adverb-unit-{name}-{}.service", std::process::id()));
        // systemd-analyze checks that the unit's program and manual page exist, but Adverb is not installed here.
        let text = read(&format!("adverb-{name}.service")).replace("/usr/local/bin/adverb", "/bin/true");
        fs::write(&unit, text.replace("Documentation=", "#Documentation=")).unwrap();
        let (passed, text) = output(Command::new(&analyze).arg("verify").arg(&unit), "");
        fs::remove_file(&unit).unwrap();
        // systemd-analyze also warns about other units of this machine.
        let warnings: Vec<&str> = text.lines().filter(|line| line.contains("adverb-unit")).collect();
        assert!(passed && warnings.is_empty(), "{name}: {text}");
    }
}

#[test]
fn the_options_of_the_units_start_the_commands() {
    for (name, options) in [("exporter", "--listen 192.0.2.7:9879"), ("respond", "--device mlx5_0")] {
        let unit = read(&format!("adverb-{name}.service"));
        let variable = format!("ADVERB_{}_ARGS", name.to_uppercase());
        assert!(unit.contains(&format!("\nEnvironmentFile=-/etc/default/adverb-{name}\n")), "{unit}");
        assert!(unit.contains(&format!("\nExecStart=/usr/local/bin/adverb {name} ${variable}\n")), "{unit}");
        assert!(unit.contains(&format!("{variable}={options}\n")), "{unit}");
        let words = ["adverb", name].into_iter().chain(options.split(' '));
        crate::Cli::try_parse_from(words).unwrap();
    }
}

/// A process that runs Prometheus. The process is killed on drop.
struct Prometheus {
    process: Child,
    directory: PathBuf,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts Prometheus with the alert rules. Prometheus scrapes `target` every 500 ms.
    fn start(program: &Path, target: SocketAddr) -> Prometheus {
        let directory = std::env::temp_dir().join(format!("adverb-prometheus-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let config = format!(
            "global: {{ scrape_interval: 500ms, evaluation_interval: 500ms }}\n\
             rule_files: [ '{}' ]\n\
             scrape_configs:\n  - job_name: adverb\n    static_configs: [ {{ targets: [ '{target}' ] }} ]\n",
            operate("alerts.yml").display()
        );
        fs::write(directory.join("prometheus.yml"), config).unwrap();
        // The kernel chooses a free port for the listener. Prometheus uses the port after the listener is dropped.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
        let log = fs::File::create(directory.join("log")).unwrap();
        let mut command = Command::new(program);
        command.arg(format!("--config.file={}", directory.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut prometheus = Prometheus { process, directory, address };
        prometheus.wait_until_ready();
        prometheus
    }

    fn wait_until_ready(&mut self) {
        let start = Instant::now();
        while self.page("/-/ready").is_none() {
            let status = self.process.try_wait().unwrap();
            assert!(status.is_none() && start.elapsed() < DEADLINE, "{status:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Returns the body of a page, if the status is 200.
    fn page(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        let (head, body) = response.split_once("\r\n\r\n")?;
        head.split(' ').nth(1).filter(|code| *code == "200").map(|_| body.to_owned())
    }

    /// Returns the field `data` of a response of Prometheus's API.
    fn data(&self, path: &str) -> Value {
        let body = self.page(path).unwrap_or_else(|| panic!("{path} failed: {}", self.log()));
        serde_json::from_str::<Value>(&body).unwrap()["data"].take()
    }

    /// Runs a query and returns the resulting list of series.
    fn query(&self, query: &str) -> Vec<Value> {
        let mut path = "/api/v1/query?query=".to_owned();
        for byte in query.bytes() {
            let _ = match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => write!(path, "{}", char::from(byte)),
                _ => write!(path, "%{byte:02X}"),
            };
        }
        match self.data(&path)["result"].take() {
            Value::Array(series) => series,
            other => panic!("{query}: {other}"),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Returns the queries of the dashboard's panels and variables. As in Grafana, values replace the names of variables.
fn dashboard_queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("dashboard.json")).unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let panels = list(&dashboard["panels"]);
    let targets = panels.iter().flat_map(|panel| list(&panel["targets"]));
    let queries = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    // The definition of a variable is label_values(METRIC, LABEL), so the metric must have series with the label.
    let variables = list(&dashboard["templating"]["list"]).into_iter().filter_map(|variable| {
        let definition = variable["definition"].as_str()?.strip_prefix("label_values(")?.to_owned();
        let (metric, label) = definition.strip_suffix(')').unwrap().rsplit_once(", ").unwrap();
        Some(format!("count by ({label}) ({metric})"))
    });
    let all = queries.chain(variables).map(|query| {
        query.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$device", ".*")
    });
    let all: Vec<String> = all.collect();
    assert!(all.iter().all(|query| !query.contains('$')), "{all:?}");
    all
}

/// Opens two software NICs, and sends messages from the first NIC to the second. The NICs have loopback addresses that depend
/// on the process ID.
fn software_nics(messages: usize) -> [Device; 2] {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let [first, second] = [1, 2].map(|n| Ipv4Addr::new(127, 100 + n, high, low));
    let [sender, receiver] = [first, second].map(|addr| SoftDevice::at_addr(addr.into()).open().unwrap());
    let listener = Listener::builder().options(&Options::new().device(&receiver)).bind((second, 0)).unwrap();
    let port = listener.local_addr().port();
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let connection = listener.accept().unwrap();
            for _ in 0..messages {
                connection.recv().unwrap().expect("a message");
            }
        });
        let connector = Connector::new().options(&Options::new().device(&sender));
        let connection = connector.connect((second, port)).unwrap();
        for _ in 0..messages {
            connection.send(&[7; 3000]).unwrap();
        }
        receiving.join().unwrap();
    });
    [sender, receiver]
}

#[test]
fn prometheus_has_data_for_every_query_of_the_dashboard() {
    let Some(program) = installed("prometheus") else { return };
    let sysfs = Sysfs::new("prometheus", CONNECTX);
    let [sender, receiver] = software_nics(100);
    let mut destination = Destination::new("storage-1", &[0, 26]);
    for dscp in [0, 26] {
        destination.record(dscp, &answered(7_000, StampKind::Kernel));
    }
    let mut gatherer = sysfs.gatherer(vec![sender.clone(), receiver], growing_statistics);
    gatherer.set_probes(Probing::of(vec![destination]));
    let (listener, address) = serve::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let exporter = Arc::new(Exporter::new(gatherer));
    std::thread::spawn(move || exporter.serve(&listener));
    let prometheus = Prometheus::start(&program, address);

    let queries = dashboard_queries();
    let start = Instant::now();
    let mut missing: Vec<&String> = queries.iter().collect();
    while !missing.is_empty() {
        assert!(start.elapsed() < DEADLINE, "no data for {missing:#?}");
        missing.retain(|query| prometheus.query(query).is_empty());
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("{} queries have data after {:.1} s", queries.len(), start.elapsed().as_secs_f64());

    // The 100 messages have 3000 bytes each, so at least one packet is sent for each message.
    let query = format!("adverb_rdma_packets_total{{device=\"{}\",direction=\"tx\"}}", sender.name());
    let sent = prometheus.query(&query);
    let sent: f64 = sent[0]["value"][1].as_str().unwrap().parse().unwrap();
    assert!(sent >= 100.0, "{sent} packets");

    let start = Instant::now();
    loop {
        let data = prometheus.data("/api/v1/rules");
        let groups = data["groups"].as_array().unwrap().clone();
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone());
        let rules: BTreeMap<String, (String, String)> = rules
            .map(|rule| {
                let text = |field: &str| rule[field].as_str().unwrap_or_default().to_owned();
                (text("name"), (text("health"), text("lastError")))
            })
            .collect();
        assert_eq!(rules.keys().cloned().collect::<BTreeSet<_>>(), alerts());
        if rules.values().all(|(health, _)| health == "ok") {
            break;
        }
        assert!(start.elapsed() < DEADLINE, "{rules:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
