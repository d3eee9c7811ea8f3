//! One guest: QEMU, and what goes on in it.

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

use super::console::{self, Trouble};
use super::initramfs;
use super::kernel::Kernel;
use super::share::{Follow, Settings, Share};

/// What a guest is made of.
pub(super) struct Config {
    pub(super) kernel: Kernel,
    pub(super) timeout: Duration,
    pub(super) mtu: u32,
    pub(super) cpus: u8,
    pub(super) icount: bool,
    /// The directory that the guest may write to.
    pub(super) out: Option<PathBuf>,
    /// Whether to run the next command after one that failed.
    pub(super) keep_going: bool,
}

/// One of a command's two outputs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Somebody who wants to know what goes on in the guest, as it does.
pub trait Observer {
    /// A command starts.
    fn started(&mut self, index: usize);
    /// The command that started last printed something.
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()>;
    /// A command has ended.
    fn finished(&mut self, index: usize, status: u8);
}

/// What became of a run.
pub struct Report {
    /// The reason for its end.
    pub ending: Ending,
    /// The statuses of those commands that came to an end.
    pub statuses: Vec<u8>,
    /// The worst that happened in the kernel while they ran.
    pub trouble: Option<Trouble>,
    /// How long it took until the first command could start, if it came to that.
    pub boot: Option<Duration>,
    /// What the kernel printed.
    pub(super) console: String,
}

/// Why a run ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ending {
    /// All commands ran, or all up to the one that failed.
    Completed,
    /// The time was over.
    TimedOut,
    /// QEMU ended first: the guest didn't boot, or panicked. Holds QEMU's exit status and words.
    Died(String),
}

/// A guest that is ready to be switched on.
pub struct Guest {
    config: Config,
    share: Share,
}

/// How often the guest's files are looked at.
const TICK: Duration = Duration::from_millis(10);

impl Guest {
    /// Gets everything together that booting takes.
    pub(super) fn new(config: Config) -> Result<Self> {
        let share = Share::create()?;
        let initramfs = initramfs::build(&config.kernel)?;
        fs::write(share.beside("initramfs"), initramfs).context("could not write the initramfs")?;
        Ok(Self { config, share })
    }

    /// Makes it run the next command after one that failed, too.
    pub fn keep_going(&mut self) {
        self.config.keep_going = true;
    }

    /// Boots, runs the commands (lines for a shell) in order up to the first that fails, and switches off.
    pub fn run(&mut self, commands: &[String], observer: &mut dyn Observer) -> Result<Report> {
        let settings = Settings {
            mtu: self.config.mtu,
            cwd: &env::current_dir().context("where are we? The current directory is gone")?,
            keep_going: self.config.keep_going,
            out: self.config.out.is_some(),
        };
        self.share.fill(&settings, commands)?;
        let mut report = Report {
            ending: Ending::Completed,
            statuses: Vec::new(),
            trouble: None,
            boot: None,
            console: String::new(),
        };
        let mut qemu = Qemu::start(&self.config, &self.share)?;
        report.ending = match self.watch(&mut qemu, commands.len(), observer, &mut report)? {
            ControlFlow::Continue(()) => Ending::Completed,
            ControlFlow::Break(ending) => ending,
        };
        // All that the commands did is in our files by now: there is no need to wait for it to shut down.
        drop(qemu);
        report.console = console::readable(&fs::read(self.share.beside("console")).unwrap_or_default());
        if report.ending != Ending::Completed {
            report.trouble = report.trouble.max(Trouble::from_console(&report.console));
        }
        Ok(report)
    }

    /// Follows a run to its end.
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
                // The status first: if it is there, so is all the output.
                let finished = self.share.finished(index)?;
                outputs.pass_on(observer)?;
                Ok(finished)
            })?;
            let finished = match finished {
                ControlFlow::Continue(finished) => finished,
                ControlFlow::Break(ending) => return Ok(ControlFlow::Break(ending)),
            };
            observer.finished(index, finished.status);
            report.statuses.push(finished.status);
            report.trouble = report.trouble.max(Trouble::from_taint(finished.taint & !taint_before));
            if finished.status != 0 && !self.config.keep_going {
                break;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Asks until there is an answer, or until there can't be one any more.
    fn wait_for<T>(
        &self,
        qemu: &mut Qemu,
        mut ask: impl FnMut() -> Result<Option<T>>,
    ) -> Result<ControlFlow<Ending, T>> {
        loop {
            // Looked at first: what the guest did before it went is an answer still.
            let ended = qemu.child.try_wait().context("could not ask after QEMU")?;
            if let Some(answer) = ask()? {
                return Ok(ControlFlow::Continue(answer));
            }
            if let Some(status) = ended {
                return Ok(ControlFlow::Break(Ending::Died(last_words(status, &self.share))));
            }
            if qemu.started.elapsed() >= self.config.timeout {
                return Ok(ControlFlow::Break(Ending::TimedOut));
            }
            thread::sleep(TICK);
        }
    }
}

/// The outputs of a running command.
struct Outputs {
    streams: [(Stream, Follow); 2],
}

impl Outputs {
    fn of(share: &Share, index: usize) -> Result<Self> {
        let out = share.follow(&format!("{index}.out"))?;
        let err = share.follow(&format!("{index}.err"))?;
        Ok(Self { streams: [(Stream::Out, out), (Stream::Err, err)] })
    }

    /// Passes on all that was printed since the last call.
    fn pass_on(&mut self, observer: &mut dyn Observer) -> Result<()> {
        for (stream, follow) in &mut self.streams {
            loop {
                let bytes = follow.next().context("could not read the guest's output")?;
                if bytes.is_empty() {
                    break;
                }
                observer.output(*stream, bytes).context("could not write the guest's output")?;
            }
        }
        Ok(())
    }
}

/// The running emulator; killed when dropped.
struct Qemu {
    child: Child,
    started: Instant,
}

impl Qemu {
    fn start(config: &Config, share: &Share) -> Result<Self> {
        let words = File::create(share.beside("qemu.err")).context("could not create a log for QEMU")?;
        // setpriv has the kernel end QEMU when we end, however that happens (Ctrl-C, kill -9).
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]).args(arguments(config, share));
        command.stdin(Stdio::null()).stdout(words.try_clone()?).stderr(words);
        let started = Instant::now();
        let child = command.spawn().context("could not start QEMU (through setpriv, of util-linux)")?;
        Ok(Self { child, started })
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// QEMU's exit status and what it printed.
fn last_words(status: ExitStatus, share: &Share) -> String {
    let words = fs::read_to_string(share.beside("qemu.err")).unwrap_or_default();
    format!("QEMU: {status} {}", words.trim()).trim().to_owned()
}

/// QEMU's command line.
fn arguments(config: &Config, share: &Share) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: OsString| words.extend([option.into(), value]);
    add("-M", "q35".into());
    add("-cpu", "max".into());
    add("-m", "3072".into());
    // Never KVM: a kvm device may be present and still not work, and then the guest hangs in early boot.
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
    add("-chardev", option("file,id=console,path=", &share.beside("console")));
    add("-serial", "chardev:console".into());
    add("-kernel", config.kernel.image.clone().into());
    add("-initrd", share.beside("initramfs").into());
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

/// `loglevel=5` lets warnings through to the console. `panic=-1` with `-no-reboot` makes a panic end QEMU. The
/// others save seconds of boot, but `nowatchdog`: a busy host makes an emulated CPU look stuck when it isn't.
const KERNEL_COMMAND_LINE: &str =
    "console=ttyS0 quiet loglevel=5 panic=-1 nowatchdog mitigations=off cryptomgr.notests";

/// A QEMU option that ends in a path, in which a comma has to be doubled.
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
