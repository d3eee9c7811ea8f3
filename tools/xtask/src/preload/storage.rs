//! Tests of `adverb run` with programs for storage: fio, and tgt with libiscsi.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use support::{paths, process};

use super::check::{DEADLINE, KillOnDrop, address, despite_pauses, wait};
use super::programs::command;

/// Runs the programs as an unprivileged user, with the command `adverb` and the libraries in this directory.
pub(super) fn run(directory: &Path) -> Result<()> {
    let files = directory.join("storage");
    fs::create_dir(&files)?;
    fs::set_permissions(&files, Permissions::from_mode(0o777))?;
    for verb in ["write", "read", "send"] {
        fio(directory, &files, verb)?;
    }
    iscsi(directory, &files)
}

/// Transfers 64 blocks with fio. It permits no retries after RNR NAKs, so with `send` the server posts all receives first.
fn fio(directory: &Path, files: &Path, verb: &str) -> Result<()> {
    let start = Instant::now();
    let common = ["--ioengine=rdma", "--thread", "--port=7830", "--bs=4k", "--size=256k"];
    let mut server = command(directory, &["--quiet"], &[], "fio")?;
    server.current_dir(files).args(["--name=server", "--rw=read", "--iodepth=80"]).args(common);
    let mut server = KillOnDrop(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    loop {
        let mut client = command(directory, &["--quiet"], &[], "fio")?;
        client.current_dir(files).args(["--name=client", "--rw=write", "--iodepth=8"]).args(common);
        let output = client.args([format!("--hostname={}", address()), format!("--verb={verb}")]).output()?;
        let text = text(&output);
        // fio succeeds even if the server doesn't listen.
        if text.contains("EVENT_REJECTED") {
            ensure!(start.elapsed() < DEADLINE, "fio's server did not listen within {DEADLINE:?}");
            continue;
        }
        let is_complete = output.status.success() && text.contains("io=256KiB");
        ensure!(is_complete, "fio --verb={verb} failed with {}:\n{text}", output.status);
        break;
    }
    ensure!(wait(&mut server, start)?, "fio's server failed with --verb={verb}");
    println!("fio --ioengine=rdma --verb={verb}: it ran");
    Ok(())
}

/// Writes to a disk of tgtd over iSER with libiscsi, reads the data, and compares them with the disk's file.
fn iscsi(directory: &Path, files: &Path) -> Result<()> {
    let client = directory.join("iscsi-test");
    let source = paths::root().join("tools/xtask/src/preload/iscsi.c");
    let mut cc = Command::new("cc");
    process::run(cc.args(["-Wall", "-Werror", "-o"]).arg(&client).arg(source).arg("-liscsi"))?;

    let socket = files.join("tgtd");
    let socket = socket.to_str().context("the directory's name isn't UTF-8")?;
    let environment = [("TGT_IPC_SOCKET", socket)];
    // tgtd ignores SIGTERM, and outlives a failed test up to this time limit.
    let mut tgtd = command(directory, &["--quiet"], &environment, "timeout")?;
    tgtd.args(["-s", "KILL", "100"]).arg(process::find("/usr/sbin/tgtd").context("tgtd is not installed")?);
    tgtd.args(["-f", "--iser", "port=7831", "--iscsi", &format!("portal={}:7831", address())]);
    let mut tgtd = KillOnDrop(tgtd.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let (start, socket) = (Instant::now(), files.join("tgtd.0"));
    while !socket.exists() {
        ensure!(start.elapsed() < DEADLINE, "tgtd did not start within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let disk = files.join("disk");
    fs::write(&disk, vec![0; 1 << 20])?;
    fs::set_permissions(&disk, Permissions::from_mode(0o666))?;
    let disk_option = disk.display().to_string();
    let settings: [&[&str]; 4] = [
        &["--mode", "target", "--op", "new", "--tid", "1", "--targetname", "iqn.2026-01.test:disk"],
        &[
            "--mode",
            "logicalunit",
            "--op",
            "new",
            "--tid",
            "1",
            "--lun",
            "1",
            "--backing-store",
            &disk_option,
        ],
        &["--mode", "target", "--op", "bind", "--tid", "1", "--initiator-address", "ALL"],
        // tgt 1.0.85 wants the initiator's name too, over iSER.
        &["--mode", "target", "--op", "bind", "--tid", "1", "--initiator-name", "iqn.2026-01.test:client"],
    ];
    let set = |options: &[&str]| {
        let mut tgtadm =
            process::as_nobody(&process::find("/usr/sbin/tgtadm").context("tgtadm is not installed")?);
        process::run(tgtadm.envs(environment).args(["--lld", "iser"]).args(options))
    };
    settings.into_iter().try_for_each(set)?;
    let client = client.to_str().context("the directory's name isn't UTF-8")?;
    let transfer = |loss| {
        fs::write(&disk, vec![0; 1 << 20])?;
        let mut client = command(directory, &["--quiet", "--loss", loss], &environment, client)?;
        let output = client.arg(format!("iser://{}:7831/iqn.2026-01.test:disk/1", address())).output()?;
        ensure!(output.status.success(), "libiscsi failed with {loss} % loss:\n{}", text(&output));
        ensure!(output.stdout.len() == 1 << 20, "{} bytes were written", output.stdout.len());
        ensure!(fs::read(&disk)? == output.stdout, "the disk has other data with {loss} % loss");
        println!("libiscsi and tgtd over iSER with {loss} % loss: the data are right");
        Ok(())
    };
    for loss in ["0", "1"] {
        despite_pauses(|| transfer(loss))?;
    }
    set(&["--mode", "logicalunit", "--op", "delete", "--tid", "1", "--lun", "1"])?;
    // The target is in use until the connections leave timewait.
    while let Err(error) = set(&["--mode", "target", "--op", "delete", "--tid", "1"]) {
        ensure!(start.elapsed() < DEADLINE, "the target was still in use after {DEADLINE:?}: {error:#}");
        std::thread::sleep(Duration::from_millis(200));
    }
    set(&["--mode", "system", "--op", "delete"])?;
    ensure!(wait(&mut tgtd, start)?, "tgtd failed at its end");
    Ok(())
}

/// Returns what a program wrote.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), output.stderr.as_slice()].concat()).into_owned()
}
