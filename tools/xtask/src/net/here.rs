//! Two processes on the software NIC, here, without privilege.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context, Result};
use support::process;

/// What the processes said.
pub(super) struct Said {
    pub(super) out: String,
    pub(super) errors: String,
    pub(super) is_ok: bool,
}

/// Has two processes play, each on a loopback address that hardly anybody else has. Of a hundred packets `loss` are lost.
pub(super) fn play(program: &str, loss: u32, arguments: &[String]) -> Result<Said> {
    // Where anybody may read it.
    let directory = std::env::temp_dir().join(format!("adverb-net-{}", std::process::id()));
    fs::create_dir_all(&directory).with_context(|| format!("could not make {}", directory.display()))?;
    let copy = directory.join("net_pair");
    let result = fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))
        .and_then(|()| fs::copy(program, &copy).map(drop))
        .with_context(|| format!("could not copy {program} to {}", directory.display()))
        .and_then(|()| play_copy(&copy, loss, arguments));
    fs::remove_dir_all(&directory).with_context(|| format!("could not remove {}", directory.display()))?;
    result
}

fn play_copy(program: &Path, loss: u32, arguments: &[String]) -> Result<Said> {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let [client, server] = [111, 112].map(|network| format!("127.{network}.{high}.{low}"));
    // A TCP port that nobody has.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let (control, loss) = (format!("{server}:{port}"), loss.to_string());
    let mut listening = process::as_nobody(program);
    listening.args(["listen", &format!("soft:{server}"), &server, &control, "--loss", &loss]);
    listening.stdin(Stdio::null()).stdout(Stdio::null());
    if loss == "0" {
        // It stands still for a while, and its NIC with it, as if the network were cut.
        listening.env("ADVERB_CUT", "kill -STOP $PPID; sleep 3; kill -CONT $PPID");
    }
    let mut listening = Listening(listening.spawn().context("could not start who is connected to")?);
    let mut connecting = process::as_nobody(program);
    connecting.args(["connect", &format!("soft:{client}"), &control, "--loss", &loss]).args(arguments);
    let output = connecting.stdin(Stdio::null()).output().context("could not start who connects")?;
    let is_ok = output.status.success() && listening.0.wait()?.success();
    let [out, errors] =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    print!("{out}");
    Ok(Said { out, errors, is_ok })
}

/// Who is connected to, until it is dropped.
struct Listening(Child);

impl Drop for Listening {
    fn drop(&mut self) {
        // It is there only if who connects has failed; and then nobody can be told.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
