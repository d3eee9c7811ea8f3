//! The files that all packages contain, laid out as below `/usr`.
//!
//! ```text
//! bin/adverb
//! lib/adverb/                          libibverbs.so.1, librdmacm.so.1, libadverb-paths.so, providers, suppressions
//! share/man/man1/                      adverb.1, adverb-ping.1, …
//! share/bash-completion/completions/   adverb
//! share/zsh/site-functions/            _adverb
//! share/fish/vendor_completions.d/     adverb.fish
//! share/doc/adverb/                    README.md, CHANGELOG.md, licenses
//! share/doc/adverb/examples/           units for systemd, alert rules, a dashboard
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use support::{paths, process, programs};

use super::dependencies::{Dependency, Id};
use super::toolchain::{Target, Toolchain};
use super::{elf, licenses};
use crate::preload;

/// The directory with the files, for one target.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) root: PathBuf,
    /// The debug information, laid out to be unpacked over the files.
    pub(super) debug: PathBuf,
    pub(super) version: String,
    /// The architecture, as `uname -m` prints it.
    pub(super) architecture: &'static str,
    /// Whether the command runs with any C library. Then there are no libraries.
    pub(super) is_static: bool,
}

/// The files of `completions` by shell.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/adverb"),
    ("zsh", "zsh/site-functions/_adverb"),
    ("fish", "fish/vendor_completions.d/adverb.fish"),
];

/// The files of `docs/operate` for operators' own systems.
const OPERATE: [&str; 4] =
    ["adverb-exporter.service", "adverb-respond.service", "alerts.yml", "dashboard.json"];
/// The optimizations of a release.
const PROFILE: &str = "dist";

impl Stage {
    /// Stages the ordinary release build for this machine in a directory of `out`. It needs this machine's glibc.
    pub(super) fn build(out: &Path, version: &str, dependencies: &BTreeMap<Id, Dependency>) -> Result<Self> {
        let stage = Self::new(out, version, std::env::consts::ARCH, "", false)?;
        let adverb = programs::adverb()?;
        install(Path::new(&adverb), &stage.root.join("bin/adverb"))?;
        preload::build(Some(stage.root.join("lib/adverb")), "release")?;
        stage.finish(|program| Command::new(program), "objcopy")?;
        licenses::write(dependencies, &[], &stage.root.join("share/doc/adverb"))?;
        Ok(stage)
    }

    /// Builds the command and the libraries of a release for a target, and stages them in a directory of `out`. Nothing in
    /// them needs a glibc newer than [`elf::GLIBC`].
    pub(super) fn build_release(
        out: &Path,
        version: &str,
        dependencies: &BTreeMap<Id, Dependency>,
        target: Target,
    ) -> Result<Self> {
        let toolchain = Toolchain::install(target)?;
        let suffix = if target.is_static() { "-static" } else { "" };
        let stage = Self::new(out, version, target.architecture(), suffix, target.is_static())?;
        let cargo =
            toolchain.cargo(&format!("zigbuild --locked --profile {PROFILE} -p adverb-cli --bin adverb"))?;
        install(Path::new(&process::build_with(cargo)?), &stage.root.join("bin/adverb"))?;
        if !stage.is_static {
            let cargo = toolchain.cargo(&format!("{} {PROFILE} --locked", preload::CARGO))?;
            preload::build_with(cargo, &toolchain.linker()?, Some(stage.root.join("lib/adverb")))?;
        }
        for file in elf::files(&stage.root)? {
            println!("{}: needs {}", file.display(), elf::check(&file, target.is_static())?);
        }
        stage.finish(|program| target.runner(program), &target.gnu("objcopy"))?;
        // A C library's limits differ, so the command opens a device that processes share. qemu-user can't open one.
        if target.architecture() == std::env::consts::ARCH {
            let selftest = ["selftest", "--device", "soft:127.0.0.9", "--filter", "reach"];
            process::run(Command::new(stage.root.join("bin/adverb")).args(selftest))?;
        }
        licenses::write(dependencies, &toolchain.licenses()?, &stage.root.join("share/doc/adverb"))?;
        Ok(stage)
    }

    /// Makes empty directories.
    fn new(
        out: &Path,
        version: &str,
        architecture: &'static str,
        suffix: &str,
        is_static: bool,
    ) -> Result<Self> {
        let directory = |kind: &str| out.join(kind).join(format!("{architecture}{suffix}"));
        let (root, debug) = (directory("stage"), directory("debug"));
        for directory in [&root, &debug] {
            if directory.exists() {
                fs::remove_dir_all(directory)
                    .with_context(|| format!("could not remove {}", directory.display()))?;
            }
            fs::create_dir_all(directory)?;
        }
        Ok(Self { root, debug, version: version.to_owned(), architecture, is_static })
    }

    /// Returns a stage of existing files.
    #[cfg(test)]
    pub(super) fn of_files(root: PathBuf, version: &str) -> Self {
        Self {
            debug: root.clone(),
            root,
            version: version.to_owned(),
            architecture: "x86_64",
            is_static: false,
        }
    }

    /// Splits the debug information off, and adds the documents that the command itself writes. `run` returns a command
    /// that runs a staged program.
    fn finish(&self, run: impl Fn(&Path) -> Command, objcopy: &str) -> Result<()> {
        for file in elf::files(&self.root)? {
            let path = file.strip_prefix(&self.root)?;
            let name = path.file_name().context("the file has a name")?.to_string_lossy();
            let directory = self.debug.join(path.parent().context("the file has a directory")?);
            elf::split_debug(objcopy, &file, &directory.join(format!(".debug/{name}.debug")))?;
        }
        documents(|| run(&self.root.join("bin/adverb")), &self.root.join("share"))
    }
}

/// Writes the manual pages, completions and documents. `adverb` returns the command.
fn documents(adverb: impl Fn() -> Command, share: &Path) -> Result<()> {
    let pages = share.join("man/man1");
    fs::create_dir_all(&pages)?;
    process::run(adverb().arg("man").arg(&pages))?;
    for (shell, file) in COMPLETIONS {
        let script = process::output(adverb().args(["completions", shell]))?;
        let file = share.join(file);
        fs::create_dir_all(file.parent().context("the file has a directory")?)?;
        fs::write(file, script)?;
    }
    for name in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        install(&paths::root().join(name), &share.join("doc/adverb").join(name))?;
    }
    for name in OPERATE {
        install(
            &paths::root().join("docs/operate").join(name),
            &share.join("doc/adverb/examples").join(name),
        )?;
    }
    Ok(())
}

/// Copies a file, and creates its directory.
fn install(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("the file has a directory")?)?;
    fs::copy(from, to).with_context(|| format!("could not copy {} to {}", from.display(), to.display()))?;
    Ok(())
}
