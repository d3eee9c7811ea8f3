//! Tests of `adverb run` with programs that look for the device in sysfs too.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use support::process;

use super::check::{DEADLINE, KillOnDrop, address, repeatedly};

/// Runs the programs as an unprivileged user, with the command `adverb` and the libraries in this directory.
pub(super) fn run(directory: &Path) -> Result<()> {
    summary(directory)?;
    for (program, options) in PERFTEST {
        // With an acknowledgement timeout of 1 s: on a busy machine, a process may not run for longer than the seven
        // retries after perftest's own timeout of 67 ms take.
        let options: Vec<&str> = options.split_whitespace().chain(["-u", "18"]).collect();
        let (_, text) = pair(directory, &["--quiet"], &[], program, &options)?;
        ensure!(text.contains("#bytes"), "{program} {} measured nothing:\n{text}", options.join(" "));
        println!("{program} {}: it ran", options.join(" "));
    }
    // With one entry per completion queue, as the program asks for.
    repeatedly(|seed| {
        let run_options = ["--quiet", "--loss", "1", "--seed", &seed.to_string()];
        let (_, text) = pair(directory, &run_options, &[], "ib_send_lat", &["-n", "100", "-e"])?;
        ensure!(text.contains("#bytes"), "ib_send_lat measured nothing:\n{text}");
        Ok(())
    })?;
    println!("ib_send_lat -n 100 -e with 1 % loss: it ran");
    for (transports, test, loss) in UCX {
        let options = ["-t", test, "-n", "50", "-w", "5", "-s", "64"];
        let environment = [("UCX_TLS", *transports), ("UCX_WARN_UNUSED_ENV_VARS", "n")];
        let (_, text) =
            pair(directory, &["--quiet", "--loss", loss], &environment, "ucx_perftest", &options)?;
        ensure!(text.contains("Final:"), "ucx_perftest -t {test} measured nothing:\n{text}");
        println!("ucx_perftest -t {test} over {transports} with {loss} % loss: it ran");
    }
    Ok(())
}

/// The programs of perftest with some of their options.
const PERFTEST: &[(&str, &str)] = &[
    ("ib_send_bw", "-n 20 -s 1024 -c UC"),
    ("ib_send_lat", "-n 20 -c UD -e"),
    ("ib_write_bw", "-n 20 -q 4"),
    ("ib_write_lat", "-n 20 -I 64"),
    ("ib_read_bw", "-n 20 -s 4096"),
    ("ib_atomic_lat", "-n 20"),
];

/// The transports, tests and percentages of lost packets for `ucx_perftest`.
const UCX: &[(&str, &str, &str)] = &[("ud_verbs", "tag_lat", "0"), ("rc_verbs,ud_verbs", "ucp_put_lat", "1")];

/// Checks the summary and the recording of a program that sends and receives 50 messages and destroys its objects.
fn summary(directory: &Path) -> Result<()> {
    let files = directory.join("files");
    fs::create_dir(&files)?;
    fs::set_permissions(&files, Permissions::from_mode(0o777))?;
    let trace = files.join("trace.jsonl");
    let trace_option = trace.display().to_string();
    let options = ["--delay", "10", "--stat", "--trace", &trace_option];
    let (start, client) = (Instant::now(), ["-g", "0", "-n", "50", "-r", "50"]);
    let (errors, _) = pair(directory, &options, &[], "ibv_rc_pingpong", &client)?;
    let elapsed = start.elapsed();
    for line in [
        "adverb: 1 process opened the device\n",
        "messages       50 sent, 50 received\n",
        "errors         none\n",
        "leaked objects none\n",
        "sent_pkts ",
    ] {
        ensure!(errors.contains(line), "the summary has no line {line:?}:\n{errors}");
    }
    // Each of the 50 messages of a side waits for a message of the other.
    ensure!(elapsed >= Duration::from_secs(1), "100 messages took {elapsed:?} in spite of the delay");
    // One file of the server and one of the client. Clients that found no server have files without messages.
    let mut count = 0;
    for entry in fs::read_dir(&files)? {
        let recording = fs::read_to_string(entry?.path())?;
        let requests = recording.lines().filter(|line| line.contains("\"type\":\"request\""));
        count += usize::from(requests.filter(|line| line.contains("\"queue\":\"send\"")).count() == 50);
    }
    ensure!(count == 2, "{count} recordings have 50 sends, not 2");
    println!("adverb run --delay --stat --trace: the summary and the recordings are right");
    Ok(())
}

/// Runs a program as a server and, with a further argument, as a client. Returns what the client wrote to the standard
/// error and the standard output.
pub(super) fn pair(
    directory: &Path,
    run_options: &[&str],
    environment: &[(&str, &str)],
    program: &str,
    options: &[&str],
) -> Result<(String, String)> {
    let (start, server_address) = (Instant::now(), address().to_string());
    // Another program may take the port before the server does.
    for _ in 0..10 {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port().to_string();
        let mut arguments = options.to_vec();
        arguments.extend(["-p", &port]);
        if program.starts_with("ib_") {
            arguments.extend(["-d", "adverb0", "-x", "0", "-F"]);
        }
        let mut server = command(directory, run_options, environment, program)?;
        server.args(&arguments).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = KillOnDrop(server.spawn()?);
        arguments.push(&server_address);
        let client = loop {
            let mut client = command(directory, run_options, environment, program)?;
            let output = client.args(&arguments).output()?;
            if output.status.success() || server.0.try_wait()?.is_some() || !is_refused(&output) {
                break output;
            }
            ensure!(start.elapsed() < DEADLINE, "the server of {program} did not listen within {DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(50));
        };
        let errors = String::from_utf8_lossy(&client.stderr).into_owned();
        let text = String::from_utf8_lossy(&client.stdout).into_owned();
        if is_refused(&client) {
            continue;
        }
        ensure!(
            client.status.success(),
            "{program} {} failed with {}:\n{text}{errors}",
            options.join(" "),
            client.status
        );
        // ucx_perftest's server waits for further clients.
        while program != "ucx_perftest" && server.0.try_wait()?.is_none() {
            ensure!(start.elapsed() < DEADLINE, "the server of {program} did not end within {DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        return Ok((errors, text));
    }
    bail!("{program} found no free TCP port");
}

/// Whether a client failed because no server listens yet.
fn is_refused(client: &Output) -> bool {
    let text = [client.stdout.as_slice(), client.stderr.as_slice()].concat();
    let text = String::from_utf8_lossy(&text).to_lowercase();
    // The last one is perftest's with `-R`.
    let texts = ["couldn't connect", "connection refused", "unexpected cm event"];
    !client.status.success() && texts.iter().any(|refused| text.contains(refused))
}

/// Returns a command for a program on the libraries, without privileges and with a time limit. Only this process's programs
/// use its device.
pub(super) fn command(
    directory: &Path,
    run_options: &[&str],
    environment: &[(&str, &str)],
    program: &str,
) -> Result<Command> {
    let path = process::find(program).with_context(|| format!("{program} is not installed"))?;
    let mut command = process::as_nobody(Path::new("timeout"));
    command.arg("100").arg(directory.join("adverb")).arg("run").arg("--libraries").arg(directory);
    command.args(run_options).arg("--").arg(path).stdin(Stdio::null());
    command.env("ADVERB_DEVICE", format!("soft:{}", address())).envs(environment.iter().copied());
    Ok(command)
}
