//! Two unprivileged processes on this machine's software NIC.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context, Result};
use support::process;

/// The output of the processes.
pub(super) struct ProcessOutput {
    pub(super) out: String,
    pub(super) errors: String,
    pub(super) is_ok: bool,
}

/// Runs two processes, each on a loopback address derived from the process ID. `loss` is the packet loss in percent.
pub(super) fn run(program: &str, loss: u32, arguments: &[String]) -> Result<ProcessOutput> {
    // A directory in which any user can read the program.
    let directory = std::env::temp_dir().join(format!("adverb-net-{}", std::process::id()));
    fs::create_dir_all(&directory).with_context(|| format!("could not create {}", directory.display()))?;
    let copy = directory.join("net_pair");
    let result = fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))
        .and_then(|()| fs::copy(program, &copy).map(drop))
        .with_context(|| format!("could not copy {program} to {}", directory.display()))
        .and_then(|()| run_copy(&copy, loss, arguments));
    fs::remove_dir_all(&directory).with_context(|| format!("could not remove {}", directory.display()))?;
    result
}

fn run_copy(program: &Path, loss: u32, arguments: &[String]) -> Result<ProcessOutput> {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let [client, server] = [111, 112].map(|network| format!("127.{network}.{high}.{low}"));
    // This TCP port is free.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let (control, loss) = (format!("{server}:{port}"), loss.to_string());
    let mut listening = process::as_nobody(program);
    listening.args(["listen", &format!("soft:{server}"), &server, &control, "--loss", &loss]);
    listening.stdin(Stdio::null()).stdout(Stdio::null());
    if loss == "0" {
        // Stopping the process also stops its NIC, which looks like an interrupted network.
        listening.env("ADVERB_CUT", "kill -STOP $PPID; sleep 3; kill -CONT $PPID");
    }
    let mut listening = Listening(listening.spawn().context("could not start the listener")?);
    let mut connecting = process::as_nobody(program);
    connecting.args(["connect", &format!("soft:{client}"), &control, "--loss", &loss]).args(arguments);
    let output = connecting.stdin(Stdio::null()).output().context("could not start the connector")?;
    let is_ok = output.status.success() && listening.0.wait()?.success();
    let [out, errors] =
        [output.stdout, output.stderr].map(|printed| String::from_utf8_lossy(&printed).into_owned());
    print!("{out}");
    Ok(ProcessOutput { out, errors, is_ok })
}

/// The listener's process; killed on drop.
struct Listening(Child);

impl Drop for Listening {
    fn drop(&mut self) {
        // It still runs only if the connector failed, and that failure is already reported.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
