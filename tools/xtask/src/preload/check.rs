//! Tests of the libraries with programs that rdma-core and Debian build against rdma-core's own libraries.

use std::fs::{self, Permissions};
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use support::{packages, process};

use super::rdmacm;

/// Runs the programs as an unprivileged user: `ibv_devinfo`, the ping-pong programs and those of librdmacm as two processes
/// each, whose devices have the same address.
///
/// The user may not be allowed to read cargo's target directory, so the programs use a copy of the libraries.
pub(super) fn run(libraries: &Path) -> Result<()> {
    packages::ensure(packages::PRELOAD)?;
    with_copy(libraries, |copy| {
        run_programs(copy)?;
        copy_command(copy)?;
        super::environments::run(copy)?;
        super::programs::run(copy)?;
        super::storage::run(copy)
    })
}

/// Runs the [matrix](super::matrix) as an unprivileged user.
pub(super) fn run_matrix(libraries: &Path) -> Result<()> {
    packages::ensure(&["perftest", "ucx-utils", "util-linux"])?;
    with_copy(libraries, |copy| copy_command(copy).and_then(|()| super::matrix::run(copy)))
}

/// Calls a function with a copy of the libraries that everyone may read.
fn with_copy(libraries: &Path, run: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let copy = std::env::temp_dir().join(format!("adverb-preload-{}", std::process::id()));
    fs::create_dir(&copy)?;
    let result = copy_libraries(libraries, &copy).and_then(|()| run(&copy));
    fs::remove_dir_all(&copy)?;
    result
}

/// Copies the command `adverb` to a directory. It is built together with the tests, which have the same dependencies.
fn copy_command(to: &Path) -> Result<()> {
    let mut cargo = process::cargo("build --workspace --all-features --tests --bin adverb");
    cargo.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let messages = process::text(&mut cargo)?;
    let mut programs = process::executables(&messages);
    let adverb =
        programs.find(|path| path.ends_with("/adverb")).context("cargo built no command `adverb`")?;
    fs::copy(adverb, to.join("adverb"))?;
    Ok(())
}

/// Copies the libraries to a directory that everyone may read.
fn copy_libraries(libraries: &Path, to: &Path) -> Result<()> {
    fs::set_permissions(to, Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(libraries)? {
        let (from, to) = entry.map(|entry| (entry.path(), to.join(entry.file_name())))?;
        fs::copy(from, &to)?;
        fs::set_permissions(&to, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn run_programs(libraries: &Path) -> Result<()> {
    let info = process::text(&mut command("ibv_devinfo", libraries, None)?)?;
    ensure!(info.contains("adverb0") && info.contains("PORT_ACTIVE"), "ibv_devinfo found no device:\n{info}");
    check_symbols(&libraries.join("libibverbs.so.1"))?;
    rdmacm::run(libraries)?;
    // -e waits for events, -c checks the data, -N posts with `ibv_wr_*`, -t reads timestamps with an extended queue.
    let runs: [(&str, &[&str]); 8] = [
        ("ibv_rc_pingpong", &["-c"]),
        ("ibv_rc_pingpong", &["-e", "-N"]),
        ("ibv_rc_pingpong", &["-t"]),
        ("ibv_uc_pingpong", &["-c"]),
        ("ibv_ud_pingpong", &["-c"]),
        ("ibv_ud_pingpong", &["-e"]),
        ("ibv_srq_pingpong", &["-c"]),
        ("ibv_srq_pingpong", &["-e"]),
    ];
    for (program, options) in runs {
        despite_pauses(|| ping_pong(program, options, libraries, None))?;
    }
    // Only a reliable connection recovers from loss.
    repeatedly(|seed| ping_pong("ibv_rc_pingpong", &["-c"], libraries, Some(seed)))
}

/// Runs a pair of programs that lose packets up to five times, with different seeds of the loss.
///
/// One process may exit before the other has received its last acknowledgement. If that one is lost, the other process's
/// last request fails, as with RDMA hardware.
pub(super) fn repeatedly(run: impl Fn(u64) -> Result<()>) -> Result<()> {
    let mut result = run(1);
    for seed in 2..=5 {
        let Err(error) = &result else { break };
        println!("another attempt after: {error:#}");
        result = run(seed);
    }
    result
}

/// Runs a pair of programs up to three times, as long as one fails because its peer is late. Any other failure is returned
/// at once.
///
/// The acknowledgement timeout of the ping-pong programs is 67 ms, with seven retries. libiscsi waits for an event for 1 s.
/// On a busy machine, a process may not run for longer than that.
pub(super) fn despite_pauses(run: impl Fn() -> Result<()>) -> Result<()> {
    let mut result = run();
    for _ in 1..3 {
        let Err(error) = &result else { break };
        if !LATE_PEER.iter().any(|text| error.to_string().contains(text)) {
            break;
        }
        println!("another attempt after: {error:#}");
        result = run();
    }
    result
}

/// The texts that the ping-pong programs print if no acknowledgement of a request arrives, and libiscsi if no event occurs.
const LATE_PEER: [&str; 2] = ["transport retry counter exceeded", "revents is not POLLIN"];

/// Checks that the library has every public symbol of libibverbs and librdmacm, at its version, that installed programs
/// and libraries import.
fn check_symbols(library: &Path) -> Result<()> {
    let has = versioned(library, false)?;
    let (mut verbs_count, mut cm_count) = (0, 0);
    let programs = ["/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
    let files = programs.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten();
    let files = files.filter_map(|entry| entry.ok().map(|entry| entry.path())).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        PROGRAMS.iter().any(|prefix| name.starts_with(prefix))
    });
    for file in files {
        // Scripts have no symbols.
        let imports = versioned(&file, true).unwrap_or_default();
        for (version, symbol) in imports {
            let count = match &version {
                version if version.starts_with("IBVERBS_") => &mut verbs_count,
                version if version.starts_with("RDMACM_") => &mut cm_count,
                _ => continue,
            };
            ensure!(
                has.contains(&(version.clone(), symbol.clone())),
                "{} imports {symbol}@{version}, which the library lacks",
                file.display()
            );
            *count += 1;
        }
    }
    ensure!(verbs_count > 50, "only {verbs_count} imports of libibverbs were found");
    ensure!(cm_count > 50, "only {cm_count} imports of librdmacm were found");
    println!("{verbs_count} imports of libibverbs and {cm_count} of librdmacm are present at their versions");
    Ok(())
}

/// Returns the dynamic symbols of a file with their versions: those that it imports, or those that it defines.
fn versioned(file: &Path, imports: bool) -> Result<Vec<(String, String)>> {
    let text = process::text(Command::new("objdump").arg("-T").arg(file))?;
    let lines = text.lines().filter(|line| line.contains("*UND*") == imports);
    let symbols = lines.filter_map(|line| {
        let mut words = line.split_whitespace().rev();
        let (symbol, version) = (words.next()?, words.next()?);
        Some((version.trim_matches(['(', ')']).to_owned(), symbol.to_owned()))
    });
    Ok(symbols.collect())
}

/// Returns a command for a program on the libraries, without privileges. With a seed, 1 % of the packets are lost.
pub(super) fn command(program: &str, libraries: &Path, loss_seed: Option<u64>) -> Result<Command> {
    let path = process::find(program).with_context(|| format!("{program} is not installed"))?;
    let mut command = process::as_nobody(&path);
    command.env("LD_LIBRARY_PATH", libraries).env("ADVERB_DEVICE", format!("soft:{}", address()));
    if let Some(seed) = loss_seed {
        command.env("ADVERB_LOSS", "1").env("ADVERB_SEED", seed.to_string());
    }
    Ok(command)
}

/// Returns the address of the device, which only this process's programs use.
pub(super) fn address() -> Ipv4Addr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | a, b, c.clamp(1, 254))
}

/// Runs a ping-pong program as a server and as a client, and checks that both succeed.
fn ping_pong(program: &str, options: &[&str], libraries: &Path, loss_seed: Option<u64>) -> Result<()> {
    let start = Instant::now();
    // Another program may take the port before the server does.
    for _ in 0..10 {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port().to_string();
        // UC and UD lose messages if a receive buffer overflows. With few messages in flight, it doesn't.
        let arguments = [&["-g", "0", "-n", "50", "-r", "50", "-p", &port], options].concat();
        let mut server = command(program, libraries, loss_seed)?;
        let mut server =
            KillOnDrop(server.args(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
        let Some(client) = connect(program, &arguments, libraries, loss_seed, &mut server, start)? else {
            continue;
        };
        if !client.status.success() {
            // The server might wait for the client forever.
            _ = server.0.kill();
        }
        let status = wait(&mut server, start)?;
        let mut server_error = String::new();
        server.0.stderr.take().context("its errors")?.read_to_string(&mut server_error)?;
        let (text, error) =
            (String::from_utf8_lossy(&client.stdout), String::from_utf8_lossy(&client.stderr));
        ensure!(
            client.status.success() && status && text.contains("50 iters"),
            "{program} {} failed: the client with {}, the server with {status}\n{text}{error}{server_error}",
            options.join(" "),
            client.status,
        );
        let loss = if loss_seed.is_some() { " with 1 % loss" } else { "" };
        let speed = text.lines().find(|line| line.contains("50 iters")).unwrap_or_default();
        println!("{program} {}{loss}: {speed}", options.join(" "));
        return Ok(());
    }
    bail!("{program} found no free TCP port");
}

/// Runs the client until the server listens. Returns `None` if the server ended first.
fn connect(
    program: &str,
    arguments: &[&str],
    libraries: &Path,
    loss_seed: Option<u64>,
    server: &mut KillOnDrop,
    start: Instant,
) -> Result<Option<Output>> {
    loop {
        let mut client = command("timeout", libraries, loss_seed)?;
        client.arg("30").arg(program).args(arguments).arg("127.0.0.1");
        let output = client.stdin(Stdio::null()).output()?;
        // The client prints this text if the server doesn't listen yet.
        if output.status.success() || !String::from_utf8_lossy(&output.stderr).contains("Couldn't connect") {
            return Ok(Some(output));
        }
        if server.0.try_wait()?.is_some() {
            return Ok(None);
        }
        ensure!(start.elapsed() < DEADLINE, "the server of {program} did not listen within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the server, and returns whether it succeeded.
pub(super) fn wait(server: &mut KillOnDrop, start: Instant) -> Result<bool> {
    loop {
        if let Some(status) = server.0.try_wait()? {
            return Ok(status.success());
        }
        ensure!(start.elapsed() < DEADLINE, "the server did not end within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that is killed when it is dropped.
pub(super) struct KillOnDrop(pub(super) Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The time limit of a pair of processes, far above the second that it takes on a busy machine.
pub(super) const DEADLINE: Duration = Duration::from_secs(120);

/// The first characters of the names of programs and libraries whose imports are checked.
const PROGRAMS: [&str; 11] = [
    "ibv_",
    "ib_",
    "librdmacm.so.1",
    "raw_ethernet_",
    "rping",
    "ucmatose",
    "udaddy",
    "mckey",
    "cmtime",
    "rdma_",
    "rstream",
];
