//! A check of the image: its digests, and containers of it that exchange messages.
//!
//! The containers are those of bubblewrap. They have a read-only root, no capabilities, neither `/dev/shm` nor `/sys`, and,
//! except for one check, a user namespace that an unprivileged user made. Only the network namespaces need root.

use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use support::{packages, process};

use super::super::image;

/// The address of the first network namespace.
const FIRST: &str = "10.143.0.1";

/// The address of the second network namespace.
const SECOND: &str = "10.143.0.2";

/// The user that starts containers, and that of the image. In a user namespace with one user, the kernel also reports every
/// other user by this ID.
const NOBODY: u32 = 65_534;

/// A user whom a container's processes can distinguish from others.
const USER: u32 = 1000;

/// The time limit of a program, far above the seconds that it takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs the check.
pub(crate) fn run(image: &Path) -> Result<()> {
    ensure!(packages::is_root(), "the check of an image makes network namespaces, which needs root");
    packages::ensure(&["bubblewrap", "iproute2", "perftest", "util-linux"])?;
    let scratch = Scratch::create()?;
    let root = unpack(image, &scratch.0)?;
    let [first, second] = [Namespace::create("a")?, Namespace::create("b")?];
    first.connect(FIRST, &second, SECOND)?;
    let root = Root::Image(&root);
    let adverb = |user| {
        move |network: &Namespace, arguments: &str| {
            let container = Container { network, user: Rootless(user), root, volume: None };
            container.command("/usr/bin/adverb", arguments)
        }
    };
    let metrics = process::text(&mut adverb(NOBODY)(&first, "exporter --once"))?;
    ensure!(metrics.contains("\nadverb_rdma_devices "), "the exporter printed\n{metrics}");
    println!("image: `adverb exporter` ran as user {NOBODY} on a read-only root");

    let gid = ping(&adverb(NOBODY), &first, &second)?;
    ensure!(gid == format!("::ffff:{SECOND}"), "the prober's GID is {gid}");
    println!("image: two containers in two network namespaces exchanged probes");
    let gid = ping(&adverb(USER), &first, &first)?;
    ensure!(gid == format!("::ffff:{FIRST}"), "the prober's GID is {gid}, so it doesn't share the device");
    println!("image: two containers in one network namespace shared a device");
    // A process whose user can't be distinguished from others has a device of its own, at another port.
    let gid = ping(&adverb(NOBODY), &first, &first)?;
    ensure!(
        gid.starts_with("100::"),
        "the prober's GID is {gid}, so user {NOBODY} of a user namespace shares a device"
    );
    println!(
        "image: user {NOBODY} of a user namespace shared no device, and its containers exchanged probes"
    );

    let volume = scratch.0.join("volume");
    fs::create_dir(&volume)?;
    fs::set_permissions(&volume, Permissions::from_mode(0o777))?;
    let init = Container { network: &first, user: Rootless(NOBODY), root, volume: Some((&volume, true)) };
    process::output(&mut init.command("/usr/bin/adverb", &format!("install-to {VOLUME}")))?;
    let test = |network, user| Container { network, user, root: Root::Host, volume: Some((&volume, false)) };
    let cases = [
        ("two network namespaces", &second, Rootless(NOBODY)),
        ("one network namespace", &first, Rootless(USER)),
        ("one network namespace, without a user namespace", &first, Plain(NOBODY)),
    ];
    for (description, client, user) in cases {
        bandwidth(&test(&first, user), &test(client, user)).with_context(|| format!("in {description}"))?;
        println!("image: ib_send_bw ran with the files of the image in two containers of {description}");
    }
    Ok(())
}

/// A way to start a container with a user ID.
#[derive(Clone, Copy)]
enum User {
    /// An unprivileged user makes a user namespace with this user only.
    Rootless(u32),
    /// Root starts the container as this user, without a user namespace.
    Plain(u32),
}
use User::{Plain, Rootless};

/// The directory in which a container has its volume.
const VOLUME: &str = "/tmp/adverb";

/// The root directory of a container.
#[derive(Clone, Copy)]
enum Root<'a> {
    Image(&'a Path),
    /// That of this machine, which has perftest.
    Host,
}

/// A container.
#[derive(Clone, Copy)]
struct Container<'a> {
    network: &'a Namespace,
    user: User,
    root: Root<'a>,
    /// A directory, and whether the container may write to it.
    volume: Option<(&'a Path, bool)>,
}

impl Container<'_> {
    /// Returns a command that runs a program in the container.
    fn command(&self, program: &str, arguments: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.network.0, "timeout", &DEADLINE.as_secs().to_string()]);
        let own_user = |command: &mut Command, user: u32| {
            command.args([
                "setpriv",
                &format!("--reuid={user}"),
                &format!("--regid={user}"),
                "--clear-groups",
            ]);
            command.args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]);
        };
        if let Rootless(_) = self.user {
            own_user(&mut command, NOBODY);
        }
        command.args([
            "bwrap",
            "--die-with-parent",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--clearenv",
        ]);
        if let Rootless(user) = self.user {
            let user = user.to_string();
            command.args(["--unshare-user", "--cap-drop", "ALL", "--uid", &user, "--gid", &user]);
        }
        command.args(["--setenv", "PATH", "/usr/bin:/bin", "--ro-bind"]);
        match self.root {
            Root::Image(root) => command.arg(root).arg("/"),
            Root::Host => command.args(["/", "/", "--tmpfs", "/sys"]),
        };
        command.args(["--proc", "/proc", "--tmpfs", "/dev"]);
        for device in ["/dev/null", "/dev/urandom"] {
            command.args(["--dev-bind", device, device]);
        }
        command.args(["--remount-ro", "/dev"]);
        if let Some((volume, writable)) = self.volume {
            command.args(["--perms", "1777", "--tmpfs", "/tmp"]);
            command.arg(if writable { "--bind" } else { "--ro-bind" }).arg(volume).arg(VOLUME);
        }
        if let Plain(user) = self.user {
            own_user(&mut command, user);
        }
        command.arg(program).args(arguments.split_whitespace());
        command
    }
}

/// Probes a responder in one network namespace from another one, and returns the prober's GID.
fn ping(adverb: &dyn Fn(&Namespace, &str) -> Command, to: &Namespace, from: &Namespace) -> Result<String> {
    let mut responder = adverb(to, &format!("respond --device soft:{FIRST} --json"));
    let mut responder = Running::start(responder.stdout(Stdio::piped()))?;
    let mut line = String::new();
    BufReader::new(responder.0.stdout.take().context("its output")?).read_line(&mut line)?;
    ensure!(line.contains("listening"), "`adverb respond` printed {line:?}");
    let mut prober = adverb(from, &format!("ping {FIRST} --count 5 --timeout 5 --json"));
    let text = process::text(&mut prober)?;
    let first: Value = serde_json::from_str(text.lines().next().unwrap_or_default())?;
    first["gid"].as_str().map(str::to_owned).context("`adverb ping` printed no GID")
}

/// Runs `ib_send_bw` between two containers, and checks that the sender measured a rate.
fn bandwidth(server: &Container<'_>, client: &Container<'_>) -> Result<()> {
    let command = |container: &Container<'_>, address: &str, more: &str| {
        let program = "-- ib_send_bw -d adverb0 -x 0 -n 100 -u 18";
        container.command(
            &format!("{VOLUME}/bin/adverb"),
            &format!("run --device soft:{address} {program} {more}"),
        )
    };
    // A program prints the GIDs of both ends. If they share the device, both GIDs are the same.
    let is_shared = client.network.0 == server.network.0;
    let (client_address, expected) = if is_shared { (FIRST, 2) } else { (SECOND, 1) };
    let start = Instant::now();
    loop {
        let running = Running::start(command(server, FIRST, "").stdout(Stdio::null()).stderr(Stdio::null()))?;
        while !server.network.listens_at(18515)? {
            ensure!(start.elapsed() < DEADLINE, "ib_send_bw doesn't listen");
            thread::sleep(Duration::from_millis(100));
        }
        let output = command(client, client_address, FIRST).stdin(Stdio::null()).output()?;
        drop(running);
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() {
            let gids = text.matches("GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:143:00:01\n").count();
            ensure!(gids == expected, "{gids} devices instead of {expected} are at {FIRST}:\n{text}{errors}");
            let is_complete = text.contains("#bytes") && errors.contains("messages       100 sent");
            ensure!(is_complete, "ib_send_bw did not send all messages:\n{text}{errors}");
            return Ok(());
        }
        // A client that the server doesn't expect yet ends with an error.
        ensure!(start.elapsed() < DEADLINE, "ib_send_bw ended with {}:\n{text}{errors}", output.status);
    }
}

/// A process that is killed when this is dropped, and with it the container.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Running> {
        Ok(Running(command.stdin(Stdio::null()).spawn()?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// A network namespace, which is deleted when this is dropped.
struct Namespace(String);

impl Namespace {
    fn create(suffix: &str) -> Result<Namespace> {
        let namespace = Namespace(format!("adverb-image-{}-{suffix}", std::process::id()));
        ip(&["netns", "add", &namespace.0])?;
        ip(&["-n", &namespace.0, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Connects two namespaces with a virtual link.
    fn connect(&self, address: &str, other: &Namespace, other_address: &str) -> Result<()> {
        ip(&[
            "-n", &self.0, "link", "add", "link0", "type", "veth", "peer", "name", "link0", "netns", &other.0,
        ])?;
        for (namespace, address) in [(self, address), (other, other_address)] {
            ip(&["-n", &namespace.0, "addr", "add", &format!("{address}/24"), "dev", "link0"])?;
            ip(&["-n", &namespace.0, "link", "set", "link0", "up"])?;
        }
        Ok(())
    }

    /// Whether a process in the namespace listens at a TCP port.
    fn listens_at(&self, port: u16) -> Result<bool> {
        let sockets = process::text(Command::new("ip").args(["netns", "exec", &self.0, "ss", "-Htln"]))?;
        Ok(sockets.lines().any(|line| line.contains(&format!(":{port} "))))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        _ = ip(&["netns", "delete", &self.0]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    process::output(Command::new("ip").args(arguments)).map(drop)
}

/// A directory that everyone may read, which is removed when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn create() -> Result<Scratch> {
        let scratch =
            Scratch(std::env::temp_dir().join(format!("adverb-image-check-{}", std::process::id())));
        fs::create_dir(&scratch.0)?;
        fs::set_permissions(&scratch.0, Permissions::from_mode(0o755))?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Unpacks an image, checks all digests and sizes, and returns the root directory.
fn unpack(image: &Path, scratch: &Path) -> Result<PathBuf> {
    let (layout, root) = (scratch.join("layout"), scratch.join("root"));
    for directory in [&layout, &root] {
        fs::create_dir(directory)?;
    }
    process::output(Command::new("tar").arg("-C").arg(&layout).arg("-xf").arg(image))?;
    let mut seen = HashSet::new();
    let mut blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().context("a descriptor has no digest")?;
        let name = digest.strip_prefix("sha256:").with_context(|| format!("{digest} is no SHA-256"))?;
        let file = layout.join("blobs/sha256").join(name);
        ensure!(image::digest(&file)? == digest, "the digest of a blob isn't {digest}");
        ensure!(descriptor["size"] == fs::metadata(&file)?.len(), "the size of {digest} is wrong");
        seen.insert(name.to_owned());
        anyhow::Ok(file)
    };
    let read = |file: PathBuf| {
        let text = fs::read(&file).with_context(|| format!("could not read {}", file.display()))?;
        serde_json::from_slice::<Value>(&text).with_context(|| format!("{} is not JSON", file.display()))
    };
    let manifest = read(blob(&read(layout.join("index.json"))?["manifests"][0])?)?;
    let config = read(blob(&manifest["config"])?)?;
    ensure!(config["config"]["User"] == image::USER, "the image's user is {}", config["config"]["User"]);
    let layers = manifest["layers"].as_array().context("the manifest has no layers")?;
    let diffs = config["rootfs"]["diff_ids"].as_array().context("the configuration has no layers")?;
    ensure!(layers.len() == diffs.len(), "the manifest and the configuration have different layers");
    for (layer, diff) in layers.iter().zip(diffs) {
        let tar = scratch.join("layer.tar");
        fs::write(&tar, process::output(Command::new("gunzip").arg("-c").arg(blob(layer)?))?)?;
        ensure!(*diff == image::digest(&tar)?, "the digest of an uncompressed layer isn't {diff}");
        process::output(Command::new("tar").arg("-C").arg(&root).arg("-xpf").arg(&tar))?;
    }
    let stored = fs::read_dir(layout.join("blobs/sha256"))?.count();
    ensure!(stored == seen.len(), "{stored} blobs are stored, but only {} are used", seen.len());
    Ok(root)
}
