//! `cargo xtask install-check`: the packages, installed in clean Debian systems.
//!
//! A clean system is a root file system without Adverb, Rust and a C compiler, whose network is the loopback interface.
//! Each package is installed in a copy of its own, and an unprivileged user runs perftest's `ib_send_bw` on it.

mod root;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use support::{packages, paths};

use crate::dist;
use root::Release;

/// The arguments of `cargo xtask install-check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory of the packages; by default `target/dist` in the checkout, where `cargo xtask dist` writes them.
    #[arg(long)]
    packages: Option<PathBuf>,
    /// The Debian releases.
    #[arg(long, value_delimiter = ',', default_value = "11,12,13")]
    releases: Vec<Release>,
    /// Only install the packages, and transfer data once.
    #[arg(long)]
    quick: bool,
}

/// The maximum time from the start of the installation to the figures of `ib_send_bw`. A quick check has no maximum,
/// because other jobs of CI may run on the same CPUs.
const MAX_SECONDS: f64 = 60.0;

/// The time limit of all checks of a package.
const TIMEOUT_SECONDS: &str = "600";

/// A kind of package.
struct Kind {
    name: &'static str,
    /// The beginning and the end of the file's name, around the version.
    file: [&'static str; 2],
    /// The shell command that installs `$file` and sets `adverb` to the path of the command.
    install: &'static str,
    /// The shell commands of further checks.
    check: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "tarball",
        file: ["adverb-", "-x86_64-linux.tar.gz"],
        install: r#"as_user tar -C /home/user -xzf "/packages/$file"; adverb=$(echo /home/user/adverb-*/bin/adverb)"#,
        check: r#"man --manpath "${adverb%/bin/adverb}/share/man" --where adverb adverb-run
                  as_user "$adverb" selftest --device soft >/tmp/selftest || fail "$(cat /tmp/selftest)"
                  tail -n 1 /tmp/selftest"#,
    },
    Kind {
        name: "deb",
        file: ["adverb_", "_amd64.deb"],
        install: r#"list_files >/tmp/before; apt-get install -qq -y "/packages/$file"; adverb=/usr/bin/adverb"#,
        check: include_str!("install_check/deb.sh"),
    },
    Kind {
        name: "wheel",
        file: ["adverb-", "_x86_64.whl"],
        install: r#"as_user python3 -m venv /home/user/venv
                    as_user /home/user/venv/bin/pip install -q --no-index "/packages/$file"
                    adverb=/home/user/venv/bin/adverb"#,
        check: r"as_user /home/user/venv/bin/python -c 'import adverb; print(adverb.libraries())'",
    },
];

/// Installs each package in each release, prints a table, and fails if a check failed.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(packages::is_root(), "installing packages in other systems requires root");
    packages::ensure(packages::ROOTS)?;
    let directory = args.packages.clone().unwrap_or_else(|| paths::root().join("target/dist"));
    let directory = directory.canonicalize().with_context(|| {
        format!("there are no packages in {}: run `cargo xtask dist`", directory.display())
    })?;
    let version = dist::version()?;
    let files = KINDS.iter().map(|kind| kind.find(&directory, &version)).collect::<Result<Vec<_>>>()?;

    let mut rows = Vec::new();
    for release in &args.releases {
        let root = root::ensure(*release)?;
        for (kind, file) in KINDS.iter().zip(&files) {
            println!("--- {} in {release}", kind.name);
            let outcome = kind.install_in(&root, &directory, file, args.quick);
            let size = fs::metadata(directory.join(file))?.len();
            rows.push(Row { release: *release, kind: kind.name, size, outcome });
        }
    }
    print!("{}", table(&rows));
    let failures: Vec<String> = rows.iter().filter_map(Row::failure).collect();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

impl Kind {
    /// Installs the package `file` of the directory in a copy of a root, and checks it.
    fn install_in(&self, root: &Path, directory: &Path, file: &str, is_quick: bool) -> Result<Figures> {
        let check = if is_quick { "" } else { self.check };
        let script = [include_str!("install_check/check.sh"), "check.sh", file, self.install, check];
        let figures = Figures::parse(&root::run(root, directory, &script)?)?;
        if is_quick { Ok(figures) } else { figures.in_time() }
    }

    /// Returns the name of the package's file in the directory.
    fn find(&self, directory: &Path, version: &str) -> Result<String> {
        let [start, end] = self.file;
        let start = format!("{start}{version}");
        let mut found = Vec::new();
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with(&start) && name.ends_with(end) {
                found.push(name);
            }
        }
        match <[String; 1]>::try_from(found) {
            Ok([name]) => Ok(name),
            Err(found) => bail!(
                "{} has {} files {start}*{end}, not one: run `cargo xtask dist`",
                directory.display(),
                found.len()
            ),
        }
    }
}

/// The last line of check.sh.
#[derive(Debug, PartialEq)]
struct Figures {
    /// The time from the start of the installation to the figures of `ib_send_bw`.
    seconds: f64,
    /// The bandwidth in MiB/s.
    bandwidth: f64,
}

impl Figures {
    fn parse(output: &str) -> Result<Self> {
        let words: Vec<&str> = output.lines().last().unwrap_or_default().split(' ').collect();
        let ["result", milliseconds, bandwidth] = words[..] else { bail!("the last line is no result") };
        Ok(Self { seconds: milliseconds.parse::<f64>()? / 1000.0, bandwidth: bandwidth.parse()? })
    }

    /// Fails if it took too long.
    fn in_time(self) -> Result<Self> {
        let seconds = self.seconds;
        ensure!(
            seconds <= MAX_SECONDS,
            "it took {seconds:.1} s to the first figures, not {MAX_SECONDS} s at most"
        );
        Ok(self)
    }
}

/// A row of the final table.
struct Row {
    release: Release,
    kind: &'static str,
    size: u64,
    outcome: Result<Figures>,
}

impl Row {
    /// Returns the message about the failure, if the check failed.
    fn failure(&self) -> Option<String> {
        let error = self.outcome.as_ref().err()?;
        Some(format!("{} in {}: {error:#}", self.kind, self.release))
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from("release    package       MB  seconds  MiB/s\n");
    for row in rows {
        let figures = match &row.outcome {
            Ok(figures) => format!("{:7.1}  {:5.0}", figures.seconds, figures.bandwidth),
            Err(_) => format!("{:>7}", "FAILED"),
        };
        let megabytes = row.size as f64 / 1e6;
        text += &format!("{:9}  {:8}  {megabytes:6.2}  {figures}\n", row.release.to_string(), row.kind);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_result() {
        let figures = Figures::parse("adverb 0.1.0\nresult 3351 43.25\n").unwrap();
        assert_eq!(figures, Figures { seconds: 3.351, bandwidth: 43.25 });
        for wrong in ["", "result", "result 1 2\nanother", "result x 1"] {
            assert!(Figures::parse(wrong).is_err(), "{wrong}");
        }
        assert!(figures.in_time().is_ok());
        let slow = Figures::parse("result 60100 43").unwrap().in_time().unwrap_err();
        assert!(slow.to_string().contains("60.1 s"), "{slow}");
    }

    #[test]
    fn a_package_is_found_by_its_version() {
        let directory = std::env::temp_dir().join(format!("adverb-install-check-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        for name in ["adverb_0.1.0_amd64.deb", "adverb_0.2.0_amd64.deb", "adverb-0.1.0-x86_64-linux.tar.gz"] {
            fs::write(directory.join(name), "").unwrap();
        }
        let [tarball, deb, wheel] = &KINDS;
        assert_eq!(tarball.find(&directory, "0.1.0").unwrap(), "adverb-0.1.0-x86_64-linux.tar.gz");
        assert_eq!(deb.find(&directory, "0.2.0").unwrap(), "adverb_0.2.0_amd64.deb");
        let missing = wheel.find(&directory, "0.1.0").unwrap_err().to_string();
        assert!(missing.contains("has 0 files adverb-0.1.0*_x86_64.whl"), "{missing}");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn columns_of_the_table_are_aligned() {
        let row = |number: &str, kind, outcome| Row {
            release: number.parse().unwrap(),
            kind,
            size: 3_135_684,
            outcome,
        };
        let rows = [
            row("12", "tarball", Ok(Figures { seconds: 3.351, bandwidth: 1043.2 })),
            row("13", "deb", Err(anyhow::anyhow!("it failed"))),
        ];
        assert_eq!(
            table(&rows),
            "release    package       MB  seconds  MiB/s\n\
             Debian 12  tarball     3.14      3.4   1043\n\
             Debian 13  deb         3.14   FAILED\n"
        );
        assert_eq!(rows[1].failure().unwrap(), "deb in Debian 13: it failed");
    }
}
