//! Root file systems ("roots") of Debian releases. mmdebstrap creates them from the Debian mirror that apt uses on this
//! machine, and scripts run in copies of them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use support::{paths, process};

use super::TIMEOUT_SECONDS;

/// The packages that a root contains besides the essential ones. perftest provides `ib_send_bw`, and python3-venv provides
/// Python for the wheel. Adverb's package or perftest recommends the others.
const PACKAGES: &str = "ibverbs-providers,man-db,perftest,python3-venv";

/// The numbers and codenames of the releases.
const CODENAMES: [(u8, &str); 3] = [(11, "bullseye"), (12, "bookworm"), (13, "trixie")];

/// A release of Debian.
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    number: u8,
    codename: &'static str,
}

impl FromStr for Release {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let release = CODENAMES.iter().find(|(number, _)| number.to_string() == text);
        let &(number, codename) = release.ok_or("the releases are 11, 12 and 13")?;
        Ok(Self { number, codename })
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Debian {}", self.number)
    }
}

/// Returns the directory of a release's root. The first call creates the root in the cache; later calls reuse it as long as
/// [`PACKAGES`] is the same.
pub(super) fn ensure(release: Release) -> Result<PathBuf> {
    let cache = paths::cache()?.join("roots");
    fs::create_dir_all(&cache)?;
    let name = format!("debian-{}", release.number);
    let (root, record) = (cache.join(&name), cache.join(format!("{name}.packages")));
    if root.is_dir() && fs::read_to_string(&record).is_ok_and(|packages| packages == PACKAGES) {
        return Ok(root);
    }
    let new = cache.join(format!("{name}.new"));
    for old in [&root, &new] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("could not remove {}", old.display()))?;
        }
    }
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args(["--mode=root", "--variant=apt", "--format=directory"]);
    mmdebstrap.arg(format!("--include={PACKAGES}")).arg(release.codename).arg(&new).arg(mirror()?);
    process::run(&mut mmdebstrap).with_context(|| {
        format!("could not make a root of {release} from this machine's mirror of Debian")
    })?;
    fs::rename(&new, &root)?;
    fs::write(record, PACKAGES)?;
    Ok(root)
}

/// Returns the URL of the Debian mirror that apt uses for this machine's own release.
fn mirror() -> Result<String> {
    let system = fs::read_to_string("/etc/os-release").context("could not read /etc/os-release")?;
    let codename = system.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let codename = codename.context("this machine is no release of Debian")?;
    let mut apt_get = Command::new("apt-get");
    apt_get.args(["indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"]);
    let targets = process::text(&mut apt_get)?;
    let mirror = mirror_of(&targets, codename).with_context(|| format!("apt has no source of {codename}"))?;
    Ok(mirror.to_owned())
}

/// Returns the URL of a release's mirror, found in the output of `apt-get indextargets`. Each line of the output has the form
/// `CODENAME COMPONENT URL`; the component is `main`.
fn mirror_of<'a>(targets: &'a str, codename: &str) -> Option<&'a str> {
    targets.lines().find_map(|line| line.strip_prefix(&format!("{codename} main ")))
}

/// Runs a shell script in a copy of a root, prints the script's output, and returns the output. `script` contains the text
/// of the script and then its arguments, from `$0` on. The directory `packages` is at `/packages` in the copy.
pub(super) fn run(root: &Path, packages: &Path, script: &[&str]) -> Result<String> {
    let scratch = std::env::temp_dir().join(format!("adverb-root-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let mut unshare = Command::new("timeout");
    unshare.args([
        TIMEOUT_SECONDS,
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--ipc",
        "--fork",
        "--kill-child",
    ]);
    unshare.args(["sh", "-c", include_str!("root.sh"), "root.sh"]).arg(root).arg(&scratch).arg(packages);
    let output = unshare.args(script).stderr(std::process::Stdio::inherit()).output();
    fs::remove_dir(&scratch)?;
    let output = output.context("could not start `timeout`")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    if !output.status.success() {
        bail!("the installation or a check failed ({}); its output is above", output.status);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_that_of_the_release() {
        let targets = "bookworm-updates main http://a.example/debian/\n\
                       bookworm contrib http://b.example/debian/\n\
                       bookworm main http://c.example/debian/\n";
        assert_eq!(mirror_of(targets, "bookworm"), Some("http://c.example/debian/"));
        assert_eq!(mirror_of(targets, "trixie"), None);
    }

    #[test]
    fn releases_are_named_by_number() {
        assert_eq!("13".parse::<Release>().unwrap().to_string(), "Debian 13");
        assert!("10".parse::<Release>().is_err());
    }
}
