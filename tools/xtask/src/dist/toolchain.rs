//! The compilers and linkers of the packages.
//!
//! Programs for this machine's target are compiled by the ordinary Rust compiler, and those for other targets by Debian's,
//! because rustup's has no sources of its standard library. zig links them (through cargo-zigbuild) with an old glibc or with
//! musl. The drop-in libraries are linked by GNU ld, because zig accepts neither `-fini` nor `--defsym`, with
//! zig's stubs of the old glibc.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use support::{packages, paths, process};

use super::debian_rust;
use super::elf::GLIBC;
use crate::metadata;
use crate::preload::Linker;

/// The programs from PyPI, and their versions.
const PROGRAMS: [(&str, &str); 2] = [("cargo-zigbuild", "0.24.0"), ("ziglang", "0.17.0")];

/// The files of glibc that the libraries are linked with, in zig's cache. In old versions, some functions are only in the
/// static library.
const STUBS: [&str; 6] =
    ["libc.so.6", "libpthread.so.0", "libdl.so.2", "libm.so.6", "libld.so.2", "libc_nonshared.a"];

/// A kind of machine that packages are built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Target {
    /// x86-64 with glibc.
    #[value(name = "x86_64")]
    X86_64,
    /// 64-bit ARM with glibc.
    Aarch64,
    /// x86-64 with any C library: a statically linked command, without libraries.
    Static,
}

impl Target {
    pub(super) const ALL: [Self; 3] = [Self::X86_64, Self::Aarch64, Self::Static];

    /// Returns the target's name for Rust's compiler.
    pub(super) fn triple(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
            Self::Static => "x86_64-unknown-linux-musl",
        }
    }

    /// Returns the architecture, as `uname -m` prints it.
    pub(super) fn architecture(self) -> &'static str {
        match self {
            Self::X86_64 | Self::Static => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Whether the target has no shared libraries.
    pub(super) fn is_static(self) -> bool {
        self == Self::Static
    }

    /// Whether Debian's compiler compiles the target's programs.
    pub(super) fn needs_debian_rust(self) -> bool {
        self != Self::X86_64
    }

    /// Returns the name of a program of GNU's binutils or compiler for the target.
    pub(super) fn gnu(self, program: &str) -> String {
        if self == Self::Aarch64 { format!("aarch64-linux-gnu-{program}") } else { program.to_owned() }
    }

    /// Returns a command that runs a program for the target on this machine.
    pub(super) fn runner(self, program: &Path) -> Command {
        if self.architecture() == env::consts::ARCH {
            return Command::new(program);
        }
        let mut command = Command::new(format!("qemu-{}", self.architecture()));
        command.args(["-L", "/usr/aarch64-linux-gnu"]).arg(program);
        command
    }
}

/// The programs that build for one target.
#[derive(Debug)]
pub(super) struct Toolchain {
    target: Target,
    /// Python's virtual environment with zig.
    zig: PathBuf,
    /// Debian's compiler, for targets other than this machine's.
    debian: Option<PathBuf>,
}

impl Toolchain {
    /// Installs the missing programs of a target.
    pub(super) fn install(target: Target) -> Result<Self> {
        if target == Target::Aarch64 {
            // The cross compiler's C library is also the one that programs find under qemu.
            packages::ensure(&["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"])?;
        }
        let debian = if target.needs_debian_rust() { Some(debian_rust::install()?) } else { None };
        Ok(Self { target, zig: install_zig()?, debian })
    }

    /// Returns the command `cargo ARGUMENTS… --target …` for a build that doesn't depend on where it runs: the paths in the
    /// programs are those of a source package.
    pub(super) fn cargo(&self, arguments: &str) -> Result<Command> {
        let mut cargo = process::cargo(arguments);
        let glibc = if self.target.is_static() { String::new() } else { format!(".2.{GLIBC}") };
        let is_zig = arguments.starts_with("zigbuild");
        cargo.arg("--target");
        cargo.arg(format!("{}{}", self.target.triple(), if is_zig { &glibc } else { "" }));
        let path = [self.zig.join("bin")].into_iter().chain(process::search_path());
        cargo.env("PATH", env::join_paths(path)?);
        cargo
            .env("ZIG_GLOBAL_CACHE_DIR", self.zig_cache())
            .env("CARGO_ZIGBUILD_CACHE_DIR", self.zig.join("links"));
        // If a path has several prefixes, the last one in this list counts.
        let prefixes = [
            (paths::root(), "/usr/src/adverb"),
            (cargo_home()?, "/usr/src/cargo"),
            (metadata::target_directory()?, "/usr/src/target"),
        ];
        let flags = prefixes.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
        let mut flags = flags.to_vec();
        if let Some(debian) = &self.debian {
            flags.extend(debian_rust::configure(&mut cargo, debian, self.target)?);
        }
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")).env_remove("RUSTFLAGS");
        Ok(cargo)
    }

    /// Returns the linker of the drop-in libraries, with stubs of the old glibc.
    pub(super) fn linker(&self) -> Result<Linker> {
        // zig makes the stubs when it links with glibc, and prints their paths.
        let scratch = paths::cache()?.join(format!("stubs-{}", std::process::id()));
        fs::create_dir_all(&scratch)?;
        fs::write(scratch.join("empty.c"), "extern int empty;\n")?;
        let mut zig = Command::new(self.zig.join("bin/python-zig"));
        let target = format!("{}-linux-gnu.2.{GLIBC}", self.target.architecture());
        zig.args(["cc", "--verbose", "-shared", "-o", "empty.so", "empty.c", "-target", &target]);
        zig.env("ZIG_GLOBAL_CACHE_DIR", self.zig_cache()).current_dir(&scratch);
        let output = zig.output().context("could not start zig");
        fs::remove_dir_all(&scratch)?;
        let output = output?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "zig could not link with glibc: {text}");
        let mut libraries =
            vec![OsString::from("-nodefaultlibs"), "-Wl,--as-needed".into(), "-lgcc_s".into()];
        for stub in STUBS {
            let path = text
                .split_whitespace()
                .find(|word| Path::new(word).file_name().is_some_and(|name| name == stub));
            libraries.push(path.with_context(|| format!("zig linked without {stub}: {text}"))?.into());
        }
        Ok(Linker { program: self.target.gnu("gcc"), libraries })
    }

    /// Returns the licenses of code that the linker adds to programs, by the name of the code.
    pub(super) fn licenses(&self) -> Result<Vec<(&'static str, PathBuf)>> {
        let packages =
            fs::read_dir(self.zig.join("lib"))?.flatten().next().context("Python has no packages")?;
        let zig = packages.path().join("site-packages/ziglang");
        let mut licenses = vec![
            ("zig's runtime", zig.join("LICENSE")),
            ("LLVM's libunwind", zig.join("lib/libunwind/LICENSE.TXT")),
        ];
        if self.target.is_static() {
            licenses.push(("musl", zig.join("lib/libc/musl/COPYRIGHT")));
        } else {
            licenses.push(("glibc's start files", zig.join("lib/libc/glibc/LICENSES")));
        }
        Ok(licenses)
    }

    fn zig_cache(&self) -> PathBuf {
        self.zig.join("cache")
    }
}

/// Returns cargo's home directory.
fn cargo_home() -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))
        .context("cannot find cargo's home directory: set CARGO_HOME")
}

/// Installs zig and cargo-zigbuild in a virtual environment of Python, and returns its path.
fn install_zig() -> Result<PathBuf> {
    let versions = PROGRAMS.map(|(name, version)| format!("{name}-{version}")).join("-");
    let environment = paths::tools()?.join(versions);
    let pip = environment.join("bin/pip");
    if !environment.join("bin/python-zig").is_file() {
        if process::output(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_err() {
            packages::ensure(&["python3-venv"])?;
        }
        process::run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
        let mut pip = Command::new(pip);
        pip.args(["install", "--quiet", "--disable-pip-version-check"]);
        process::run(pip.args(PROGRAMS.map(|(name, version)| format!("{name}=={version}"))))?;
    }
    Ok(environment)
}
