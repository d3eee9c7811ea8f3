//! A guest: the QEMU process, and the commands in it.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::console::{self, KernelProblem};
use super::initramfs;
use super::kernel::Kernel;
use super::share::{Follower, Settings, Share};

/// The configuration of a guest.
pub(super) struct Config {
    pub(super) kernel: Kernel,
    pub(super) timeout: Duration,
    pub(super) mtu: u32,
    pub(super) cpus: u8,
    pub(super) icount: bool,
    /// The host directory that the guest can write to.
    pub(super) out: Option<PathBuf>,
    /// Whether to continue after a command that failed.
    pub(super) keep_going: bool,
}

/// An output stream of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// A receiver of a run's events.
pub trait Observer {
    /// Called when a command starts.
    fn started(&mut self, index: usize);
    /// Called with output of the current command.
    ///
    /// # Errors
    ///
    /// An error ends the run.
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()>;
    /// Called when a command has finished.
    fn finished(&mut self, index: usize, status: u8);
}

/// The result of a run.
pub struct Report {
    /// The reason for its end.
    pub ending: Ending,
    /// The exit statuses of the commands that finished.
    pub statuses: Vec<u8>,
    /// The worst kernel problem while the commands ran.
    pub kernel_problem: Option<KernelProblem>,
    /// The time until the first command could start; `None` if the guest didn't boot.
    pub boot: Option<Duration>,
    /// The console output of the guest.
    pub(super) console: String,
}

/// The reason for the end of a run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ending {
    /// All commands finished, or one failed.
    Completed,
    /// The time limit was exceeded.
    TimedOut,
    /// QEMU exited: the guest didn't boot, or panicked. Contains QEMU's exit status and output.
    Died(String),
}

/// A guest that is ready to boot.
pub struct Guest {
    config: Config,
    share: Share,
}

/// The interval between checks of the guest's files.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

impl Guest {
    /// Creates the shared directory and the initramfs.
    pub(super) fn new(config: Config) -> Result<Self> {
        let share = Share::create()?;
        let initramfs = initramfs::build(&config.kernel)?;
        fs::write(share.host_file("initramfs"), initramfs).context("could not write the initramfs")?;
        Ok(Self { config, share })
    }

    /// Makes runs continue after a command that failed.
    pub fn keep_going(&mut self) {
        self.config.keep_going = true;
    }

    /// Boots the guest, runs shell commands in order, and kills QEMU. The first failed command ends the run, unless
    /// [`keep_going`](Guest::keep_going) was called.
    ///
    /// # Errors
    ///
    /// Returns an error if QEMU can't be started, a file of the shared directory can't be read or written, or the
    /// observer fails. A failure of a command or of the guest is not an error, but a part of the report.
    pub fn run(&mut self, commands: &[String], observer: &mut dyn Observer) -> Result<Report> {
        let settings = Settings {
            mtu: self.config.mtu,
            cwd: &env::current_dir().context("could not get the current directory")?,
            keep_going: self.config.keep_going,
            out: self.config.out.is_some(),
        };
        self.share.fill(&settings, commands)?;
        let mut report = Report {
            ending: Ending::Completed,
            statuses: Vec::new(),
            kernel_problem: None,
            boot: None,
            console: String::new(),
        };
        let mut qemu = Qemu::start(&self.config, &self.share)?;
        report.ending = match self.watch(&mut qemu, commands.len(), observer, &mut report)? {
            ControlFlow::Continue(()) => Ending::Completed,
            ControlFlow::Break(ending) => ending,
        };
        // The commands' results are already in the host's files, so QEMU can be killed without a shutdown.
        drop(qemu);
        report.console = console::readable(&fs::read(self.share.host_file("console")).unwrap_or_default());
        if report.ending != Ending::Completed {
            report.kernel_problem = report.kernel_problem.max(KernelProblem::from_console(&report.console));
        }
        Ok(report)
    }

    /// Forwards the events of a run until its end.
    fn watch(
        &self,
        qemu: &mut Qemu,
        count: usize,
        observer: &mut dyn Observer,
        report: &mut Report,
    ) -> Result<ControlFlow<Ending>> {
        let taint_before = match self.wait_for(qemu, || self.share.ready())? {
            ControlFlow::Continue(taint) => taint,
            ControlFlow::Break(ending) => return Ok(ControlFlow::Break(ending)),
        };
        report.boot = Some(qemu.started.elapsed());
        for index in 0..count {
            observer.started(index);
            let mut outputs = Outputs::of(&self.share, index)?;
            let finished = self.wait_for(qemu, || {
                // Read the status before the output: once the status exists, the output is complete.
                let finished = self.share.finished(index)?;
                outputs.forward(observer)?;
                Ok(finished)
            })?;
            let finished = match finished {
                ControlFlow::Continue(finished) => finished,
                ControlFlow::Break(ending) => return Ok(ControlFlow::Break(ending)),
            };
            observer.finished(index, finished.status);
            report.statuses.push(finished.status);
            report.kernel_problem =
                report.kernel_problem.max(KernelProblem::from_taint(finished.taint & !taint_before));
            if finished.status != 0 && !self.config.keep_going {
                break;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Calls `poll` until it returns a value, QEMU exits, or the time limit is exceeded.
    fn wait_for<T>(
        &self,
        qemu: &mut Qemu,
        mut poll: impl FnMut() -> Result<Option<T>>,
    ) -> Result<ControlFlow<Ending, T>> {
        loop {
            // Check QEMU before the files, so that results that the guest wrote before its exit still count.
            let ended = qemu.child.try_wait().context("could not get QEMU's status")?;
            if let Some(answer) = poll()? {
                return Ok(ControlFlow::Continue(answer));
            }
            if let Some(status) = ended {
                return Ok(ControlFlow::Break(Ending::Died(exit_description(status, &self.share))));
            }
            if qemu.started.elapsed() >= self.config.timeout {
                return Ok(ControlFlow::Break(Ending::TimedOut));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// The output streams of a running command.
struct Outputs {
    streams: [(Stream, Follower); 2],
}

impl Outputs {
    fn of(share: &Share, index: usize) -> Result<Self> {
        let out = share.follow(&format!("{index}.out"))?;
        let err = share.follow(&format!("{index}.err"))?;
        Ok(Self { streams: [(Stream::Out, out), (Stream::Err, err)] })
    }

    /// Forwards the output since the last call.
    fn forward(&mut self, observer: &mut dyn Observer) -> Result<()> {
        for (stream, follower) in &mut self.streams {
            loop {
                let bytes = follower.next().context("could not read the guest's output")?;
                if bytes.is_empty() {
                    break;
                }
                observer.output(*stream, bytes).context("could not write the guest's output")?;
            }
        }
        Ok(())
    }
}

/// The QEMU process; killed on drop.
struct Qemu {
    child: Child,
    started: Instant,
}

impl Qemu {
    fn start(config: &Config, share: &Share) -> Result<Self> {
        let log = File::create(share.host_file("qemu.err")).context("could not create a log for QEMU")?;
        // setpriv makes the kernel kill QEMU when this process exits for any reason (Ctrl-C, kill -9).
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]).args(arguments(config, share));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let started = Instant::now();
        let child =
            command.spawn().context("could not start QEMU through setpriv (Debian package util-linux)")?;
        Ok(Self { child, started })
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns QEMU's exit status and output.
fn exit_description(status: ExitStatus, share: &Share) -> String {
    let log = fs::read_to_string(share.host_file("qemu.err")).unwrap_or_default();
    format!("QEMU: {status} {}", log.trim()).trim().to_owned()
}

/// Returns QEMU's arguments.
fn arguments(config: &Config, share: &Share) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: OsString| words.extend([option.into(), value]);
    add("-M", "q35".into());
    add("-cpu", "max".into());
    add("-m", "3072".into());
    // No KVM: on some machines the device exists but doesn't work, and the guest hangs in early boot.
    if config.icount {
        add("-accel", "tcg,thread=single".into());
        add("-smp", "1".into());
        add("-icount", "shift=3,sleep=off".into());
    } else {
        add("-accel", "tcg,thread=multi".into());
        add("-smp", config.cpus.to_string().into());
    }
    add("-display", "none".into());
    add("-monitor", "none".into());
    add("-chardev", option("file,id=console,path=", &share.host_file("console")));
    add("-serial", "chardev:console".into());
    add("-kernel", config.kernel.image.clone().into());
    add("-initrd", share.host_file("initramfs").into());
    add("-append", KERNEL_COMMAND_LINE.into());
    const DIRECTORY: &str = "local,security_model=none,multidevs=remap";
    add("-virtfs", format!("{DIRECTORY},mount_tag=host,readonly=on,path=/").into());
    add("-virtfs", option(&format!("{DIRECTORY},mount_tag=adverb,path="), &share.path()));
    if let Some(out) = &config.out {
        add("-virtfs", option(&format!("{DIRECTORY},mount_tag=out,path="), out));
    }
    words.extend(["-nodefaults".into(), "-no-reboot".into()]);
    words
}

/// The kernel's command line. `loglevel=5` prints warnings on the console. `panic=-1` with `-no-reboot` makes QEMU exit
/// on a panic. `nowatchdog` avoids false reports of stuck CPUs on a busy host, and `no_timer_check` a panic there: the
/// kernel's test of the timer expects interrupts within 40 ms. The other options speed up the boot.
const KERNEL_COMMAND_LINE: &str =
    "console=ttyS0 quiet loglevel=5 panic=-1 nowatchdog no_timer_check mitigations=off cryptomgr.notests";

/// Returns a QEMU option that ends in a path; commas in the path are doubled.
fn option(start: &str, path: &Path) -> OsString {
    format!("{start}{}", path.display().to_string().replace(',', ",,")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_paths_are_not_qemu_s_separators() {
        assert_eq!(option("file,path=", Path::new("/a,b")), "file,path=/a,,b");
    }
}
