//! The Debian package, which dpkg-deb writes from a directory.
//!
//! The directory contains the staged files at the places that Debian's policy gives them, and the units of
//! `docs/operate`. The folder `deb` contains templates of the files about the package.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use support::{paths, process};

use super::stage::Stage;
use super::{elf, source_date_epoch};
use crate::metadata::{self, About};

/// The units, which are disabled after the installation.
const UNITS: [&str; 2] = ["adverb-exporter.service", "adverb-respond.service"];

/// The staged directories and files, and their places in the package.
const PLACES: [(&str, &str); 6] = [
    ("bin", "usr/bin"),
    ("lib/adverb", "usr/lib/adverb"),
    ("share/man/man1", "usr/share/man/man1"),
    ("share/bash-completion/completions", "usr/share/bash-completion/completions"),
    // Debian's zsh doesn't search site-functions of /usr/share.
    ("share/zsh/site-functions", "usr/share/zsh/vendor-completions"),
    ("share/fish/vendor_completions.d", "usr/share/fish/vendor_completions.d"),
];

/// The directory of the documents.
const DOCUMENTS: &str = "usr/share/doc/adverb";

/// The maintainer scripts.
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("deb/postinst")),
    ("prerm", include_str!("deb/prerm")),
    ("postrm", include_str!("deb/postrm")),
];

/// The files with the options of the units. The administrator's changes to them survive upgrades.
const OPTIONS: [(&str, &str); 2] = [
    ("etc/default/adverb-exporter", include_str!("deb/adverb-exporter.default")),
    ("etc/default/adverb-respond", include_str!("deb/adverb-respond.default")),
];

/// Writes the package and returns its path. Equal stages of a commit give equal packages.
pub(super) fn build(stage: &Stage, out: &Path) -> Result<PathBuf> {
    let architecture = match stage.architecture {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("the Debian package can't be built for {other}: its name in Debian is unknown"),
    };
    // Debian sorts a version with a tilde before the version without it.
    let version = stage.version.replacen('-', "~", 1);
    let name = format!("adverb_{version}_{architecture}");
    let root = out.join("deb").join(&name);
    let package = Package { root, about: metadata::about()?, epoch: source_date_epoch()? };
    if package.root.exists() {
        fs::remove_dir_all(&package.root)?;
    }
    package.copy_stage(stage)?;
    package.write_documents(&stage.root.join("share/doc/adverb"), &version)?;
    package.write_units()?;
    package.write_control(architecture, &version)?;

    let file = out.join(format!("{name}.deb"));
    let mut dpkg_deb = Command::new("dpkg-deb");
    // The compressor's number of threads changes its output.
    dpkg_deb.args(["--root-owner-group", "--threads-max=1", "-Zxz", "--build"]);
    dpkg_deb.arg(&package.root).arg(&file).env("SOURCE_DATE_EPOCH", &package.epoch);
    process::run(&mut dpkg_deb)?;
    fs::remove_dir_all(&package.root)?;
    Ok(file)
}

/// The directory of the package's files.
struct Package {
    root: PathBuf,
    about: About,
    /// The time of all files, in seconds since 1970.
    epoch: String,
}

impl Package {
    /// Copies the command, the libraries, the manual pages and the completions.
    fn copy_stage(&self, stage: &Stage) -> Result<()> {
        for (from, to) in PLACES {
            let mode = if from == "bin" { 0o755 } else { 0o644 };
            for file in files(&stage.root.join(from))? {
                self.copy(&stage.root.join(from).join(&file), &Path::new(to).join(&file), mode)?;
            }
        }
        let pages = self.root.join("usr/share/man/man1");
        files(&pages)?.iter().try_for_each(|page| gzip(&pages.join(page)))
    }

    /// Writes the documents: the staged ones, and those that Debian's policy requires. The licenses of Adverb are in the
    /// file `copyright`, and the package has the units at their place.
    fn write_documents(&self, staged: &Path, version: &str) -> Result<()> {
        let documents = Path::new(DOCUMENTS);
        for file in files(staged)? {
            let name = file.to_string_lossy();
            if !name.starts_with("LICENSE-") && !name.ends_with(".service") {
                self.copy(&staged.join(&file), &documents.join(&file), 0o644)?;
            }
        }
        let mit = fs::read_to_string(paths::root().join("LICENSE-MIT"))?;
        let copyright = include_str!("deb/copyright").replace("@MIT@", &license_paragraph(&mit)?);
        self.write(&documents.join("copyright"), &copyright, 0o644)?;
        let overrides = Path::new("usr/share/lintian/overrides/adverb");
        self.write(overrides, include_str!("deb/lintian-overrides"), 0o644)?;

        let mut date = Command::new("date");
        date.args(["--utc", "--rfc-email"]).arg(format!("--date=@{}", self.epoch)).env("LC_ALL", "C");
        let date = process::text(&mut date)?;
        let entry = format!("  * Adverb {version}: see CHANGELOG.md in this directory.");
        let trailer = format!(" -- {}  {}", self.about.maintainer, date.trim());
        let changelog = format!("adverb ({version}) stable; urgency=medium\n\n{entry}\n\n{trailer}\n");
        self.write(&documents.join("changelog"), &changelog, 0o644)?;
        gzip(&self.root.join(documents).join("changelog"))
    }

    /// Writes the units and the files with their options.
    fn write_units(&self) -> Result<()> {
        for unit in UNITS {
            let text = fs::read_to_string(paths::root().join("docs/operate").join(unit))?;
            ensure!(text.contains("=/usr/local/bin/adverb "), "{unit} runs another program");
            let text = text.replace("=/usr/local/bin/adverb ", "=/usr/bin/adverb ");
            self.write(&Path::new("usr/lib/systemd/system").join(unit), &text, 0o644)?;
        }
        for (file, text) in OPTIONS {
            self.write(Path::new(file), text, 0o644)?;
        }
        Ok(())
    }

    /// Writes the files about the package.
    fn write_control(&self, architecture: &str, version: &str) -> Result<()> {
        let size = process::text(Command::new("du").args(["-sk", "--apparent-size"]).arg(&self.root))?;
        let mut control = include_str!("deb/control").to_owned();
        if let Some(homepage) = &self.about.homepage {
            control = control.replacen("Description:", &format!("Homepage: {homepage}\nDescription:"), 1);
        }
        let values = [
            ("@VERSION@", version),
            ("@ARCHITECTURE@", architecture),
            ("@MAINTAINER@", &self.about.maintainer),
            ("@SIZE@", size.split_whitespace().next().context("du printed nothing")?),
            ("@DEPENDS@", &self.dependencies()?),
        ];
        for (key, value) in values {
            control = control.replace(key, value);
        }
        self.write(Path::new("DEBIAN/control"), &control, 0o644)?;
        for (name, text) in SCRIPTS {
            self.write(&Path::new("DEBIAN").join(name), &text.replace("@UNITS@", &UNITS.join(" ")), 0o755)?;
        }
        let options: String = OPTIONS.iter().map(|(file, _)| format!("/{file}\n")).collect();
        self.write(Path::new("DEBIAN/conffiles"), &options, 0o644)
    }

    /// Returns the packages that the programs and libraries need.
    fn dependencies(&self) -> Result<String> {
        let mut binaries = vec![self.root.join("usr/bin/adverb")];
        let libraries = self.root.join("usr/lib/adverb");
        let is_library = |file: &PathBuf| file.to_string_lossy().contains(".so");
        binaries.extend(
            files(&libraries)?.iter().filter(|file| is_library(file)).map(|file| libraries.join(file)),
        );
        let floor = elf::glibc_floor(binaries.iter().map(PathBuf::as_path))?;
        let mut dependencies = format!("libc6 (>= 2.{floor})");
        let needed = process::text(Command::new("readelf").arg("-d").args(&binaries).env("LC_ALL", "C"))?;
        if needed.contains("[libgcc_s.so.1]") {
            dependencies += ", libgcc-s1";
        }
        Ok(dependencies)
    }

    /// Copies a file to a place in the package.
    fn copy(&self, from: &Path, to: &Path, mode: u32) -> Result<()> {
        let to = self.create_parent(to)?;
        fs::copy(from, &to).with_context(|| format!("could not copy {}", from.display()))?;
        Ok(fs::set_permissions(&to, Permissions::from_mode(mode))?)
    }

    /// Writes a file in the package.
    fn write(&self, to: &Path, text: &str, mode: u32) -> Result<()> {
        let to = self.create_parent(to)?;
        fs::write(&to, text)?;
        Ok(fs::set_permissions(&to, Permissions::from_mode(mode))?)
    }

    /// Creates the directory of a file in the package, and returns the file's path.
    fn create_parent(&self, file: &Path) -> Result<PathBuf> {
        let parent = file.parent().context("a file has a directory")?;
        let mut directory = self.root.clone();
        fs::create_dir_all(&directory)?;
        for part in parent {
            directory.push(part);
            if !directory.exists() {
                fs::create_dir(&directory)?;
            }
            fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
        }
        Ok(self.root.join(file))
    }
}

/// Returns the paths of all files below a directory, relative to it and sorted.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        let entries = fs::read_dir(&next).with_context(|| format!("could not list {}", next.display()))?;
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            } else {
                files.push(entry.path().strip_prefix(directory)?.to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Compresses a file, without its name and time.
fn gzip(file: &Path) -> Result<()> {
    process::output(Command::new("gzip").args(["-n", "-9"]).arg(file)).map(drop)
}

/// Returns the text of the MIT license as a paragraph of the file `copyright`.
fn license_paragraph(license: &str) -> Result<String> {
    let (_, text) = license.split_once("Permission is").context("LICENSE-MIT has another form")?;
    let text = format!("Permission is{}", text.trim_end());
    let lines = text.lines().map(|line| if line.is_empty() { " .".to_owned() } else { format!(" {line}") });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    /// Returns a stage with all kinds of files, in a new directory. Its binaries are copies of this program.
    fn small_stage(directory: &Path) -> Stage {
        let root = directory.join("stage");
        let files = [
            "bin/adverb",
            "lib/adverb/libibverbs.so.1",
            "lib/adverb/tsan.supp",
            "share/man/man1/adverb.1",
            "share/bash-completion/completions/adverb",
            "share/zsh/site-functions/_adverb",
            "share/fish/vendor_completions.d/adverb.fish",
            "share/doc/adverb/README.md",
            "share/doc/adverb/LICENSE-MIT",
            "share/doc/adverb/examples/alerts.yml",
            "share/doc/adverb/examples/adverb-respond.service",
        ];
        for file in files.map(|file| root.join(file)) {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::copy("/bin/true", &file).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        }
        Stage::of_files(root, "1.2.0-rc.3")
    }

    #[test]
    fn the_package_has_the_files_at_their_places_and_is_reproducible() {
        if process::find("dpkg-deb").is_none() {
            println!("SKIPPED: dpkg-deb is not installed");
            return;
        }
        let directory = env::temp_dir().join(format!("adverb-deb-{}", std::process::id()));
        let stage = small_stage(&directory);
        let file = build(&stage, &directory).unwrap();
        assert!(file.ends_with("adverb_1.2.0~rc.3_amd64.deb"), "{}", file.display());
        let list = process::text(Command::new("dpkg-deb").arg("--contents").arg(&file)).unwrap();
        for (mode, path) in [
            ("-rwxr-xr-x root/root", "./usr/bin/adverb"),
            ("-rw-r--r-- root/root", "./usr/lib/adverb/libibverbs.so.1"),
            ("-rw-r--r-- root/root", "./usr/share/man/man1/adverb.1.gz"),
            ("-rw-r--r-- root/root", "./usr/share/zsh/vendor-completions/_adverb"),
            ("-rw-r--r-- root/root", "./usr/share/doc/adverb/copyright"),
            ("-rw-r--r-- root/root", "./usr/share/doc/adverb/changelog.gz"),
            ("-rw-r--r-- root/root", "./usr/share/doc/adverb/examples/alerts.yml"),
            ("-rw-r--r-- root/root", "./usr/lib/systemd/system/adverb-respond.service"),
            ("-rw-r--r-- root/root", "./etc/default/adverb-exporter"),
            ("drwxr-xr-x root/root", "./usr/lib/adverb/"),
        ] {
            let found =
                list.lines().any(|line| line.starts_with(mode) && line.ends_with(&format!(" {path}")));
            assert!(found, "{path} is missing, or isn't {mode}:\n{list}");
        }
        assert!(!list.contains("LICENSE-MIT") && !list.contains("examples/adverb-respond"), "{list}");
        let depends =
            process::text(Command::new("dpkg-deb").arg("--field").arg(&file).arg("Depends")).unwrap();
        assert!(depends.starts_with("libc6 (>= 2."), "{depends}");

        let before = fs::read(&file).unwrap();
        build(&stage, &directory).unwrap();
        assert!(fs::read(&file).unwrap() == before, "a second package of the same files differs");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn an_unknown_architecture_is_refused() {
        let stage = Stage { architecture: "vax", ..Stage::of_files("/".into(), "1.0.0") };
        assert!(build(&stage, Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn a_license_becomes_a_paragraph() {
        let text = "MIT License\n\nCopyright (c) 2026 A\n\nPermission is granted.\n\nTHE SOFTWARE\n";
        assert_eq!(license_paragraph(text).unwrap(), " Permission is granted.\n .\n THE SOFTWARE");
        assert!(license_paragraph("another").is_err());
    }
}
