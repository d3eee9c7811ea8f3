//! The JSON output of all commands has one schema: see `docs/operate/json.md`.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Returns a loopback address of this process.
fn loopback(number: u8) -> String {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high & 0x7f, low, number).to_string()
}

fn adverb(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(arguments.split(' '));
    command
}

fn output(arguments: &str) -> String {
    let output = adverb(arguments).output().expect("the command runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(!text.is_empty(), "{arguments}: {:?}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Runs a command until it has printed a line, runs `during` with that line, and returns the rest of the output.
fn output_around(arguments: &str, is_stderr: bool, during: impl FnOnce(&str)) -> String {
    let mut command = adverb(arguments);
    let command = if is_stderr { command.stderr(Stdio::piped()) } else { command.stdout(Stdio::piped()) };
    let mut child = command.spawn().expect("the command runs");
    let mut lines: Box<dyn Iterator<Item = _>> = match is_stderr {
        true => Box::new(BufReader::new(child.stderr.take().expect("a pipe")).lines()),
        false => Box::new(BufReader::new(child.stdout.take().expect("a pipe")).lines()),
    };
    let first = lines.next().expect("a line").expect("UTF-8");
    during(&first);
    let rest: Vec<String> = lines.map(|line| line.expect("UTF-8")).collect();
    child.wait().expect("the command ends");
    [first].into_iter().chain(rest).collect::<Vec<_>>().join("\n")
}

/// Checks the names and types of fields.
fn check_fields(value: &Value, path: &str) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                let is_time = name.ends_with("_ns");
                let is_integral = value.is_u64() || value.is_null() || value.is_array();
                assert!(!is_time || is_integral, "{path} is {value}");
                let other_units = ["_us", "_ms", "_s", "_seconds", "_millis", "_micros"];
                let has_other_unit = other_units.iter().any(|unit| name.ends_with(unit));
                assert!(
                    !has_other_unit && !["seconds", "time", "duration"].contains(&name.as_str()),
                    "{path}"
                );
                check_fields(value, &path);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| check_fields(value, path)),
        _ => {}
    }
}

#[test]
fn all_commands_have_one_schema() {
    let [here, there, third, fourth] = [201, 202, 203, 204].map(loopback);
    let report = std::env::temp_dir().join(format!("adverb-json-{}.json", std::process::id()));
    let libraries = std::env::temp_dir().join(format!("adverb-json-{}", std::process::id()));
    std::fs::create_dir(&libraries).expect("a new directory");
    std::fs::write(libraries.join("libibverbs.so.1"), "").expect("a writable directory");
    let mut outputs = vec![
        ("devices", output("devices --json")),
        ("doctor", output("doctor --json")),
        ("explain", output("explain ENOMEM --json")),
        ("env", output(&format!("env --libraries {} --format json", libraries.display()))),
        ("stat", output(&format!("stat --device soft:{here} --count 2 --interval 0.01 --json"))),
        ("mesh host", output(&format!("mesh host {here} {there} --duration 1 --json"))),
    ];
    let mut ping = String::new();
    let respond = output_around(&format!("respond --device soft:{third} --duration 2 --json"), false, |_| {
        let options = "--count 2 --interval 0.01 --paths 2 --timeout 20 --json";
        ping = output(&format!("ping {third} --device soft:{here} {options}"));
    });
    let trace =
        format!("traceroute {third} --device soft:{here} --address {here} --timeout 0.1 --paths 1 --json");
    outputs.extend([("respond", respond), ("ping", ping), ("traceroute", output(&trace))]);
    let mut peertest = String::new();
    output_around(&format!("peertest --device soft:{third} --listen {third}:0"), true, |line| {
        let listener = line.split_whitespace().find_map(|word| word.strip_suffix(':')).expect("an address");
        let only = "--only rc-send:forward --only rc-read:forward";
        peertest = output(&format!("peertest --device soft:{fourth} --peer {listener} {only} --json"));
    });
    outputs.push(("peertest", peertest));
    output(&format!("selftest --device soft --filter the_device_is_listed --report {}", report.display()));
    outputs.push(("selftest", std::fs::read_to_string(&report).expect("a report")));
    std::fs::remove_dir_all(libraries).expect("a directory of this test");
    for file in [&report, &report.with_extension("txt")] {
        std::fs::remove_file(file).expect("a file of the report");
    }

    for (name, text) in &outputs {
        let documents: Vec<Value> = serde_json::Deserializer::from_str(text)
            .into_iter()
            .map(|document| document.unwrap_or_else(|error| panic!("{name}: {error}: {text}")))
            .collect();
        assert!(!documents.is_empty(), "{name}");
        for document in &documents {
            assert_eq!(
                (&document["version"], &document["command"]),
                (&1.into(), &(*name).into()),
                "{document}"
            );
            check_fields(document, name);
        }
    }

    // No command with JSON is missing above.
    let help = output("--help");
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // The lines of a long description have more spaces at their start.
    let commands = commands.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    for command in commands.filter_map(|line| line.split_whitespace().next()) {
        let arguments =
            if command == "mesh" { "mesh host --help".to_owned() } else { format!("{command} --help") };
        let has_json = command != "help" && output(&arguments).contains("JSON");
        // `adverb run --print-env` prints the document of `adverb env`.
        let name = if command == "run" { "env" } else { command };
        let is_checked = outputs.iter().any(|(of, _)| of.split(' ').next() == Some(name));
        assert_eq!(has_json, is_checked, "{command}");
    }
}
