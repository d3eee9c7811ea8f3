//! The OCI image: the command and its libraries, on the few files of Debian's packages that they load.
//!
//! An image layout is a layer (a tar file), three JSON files and a directory of checksums, so it needs no daemon and no tool
//! for images. The image has no shell. It contains glibc, because the libraries of `adverb run` are for programs with glibc,
//! and rdma-core, which `adverb` loads to use RDMA hardware: a static command could not load it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use support::{paths, process};

use super::stage::Stage;

/// Debian's packages, and the first characters of the names of their libraries that the image contains.
const PACKAGES: [(&str, &[&str]); 7] = [
    ("libc6", &["ld-linux", "libc.so.", "libm.so.", "libpthread.so.", "libdl.so.", "librt.so."]),
    ("libgcc-s1", &["libgcc_s.so."]),
    ("libibverbs1", &["libibverbs.so."]),
    ("ibverbs-providers", &["lib"]),
    ("librdmacm1", &["librdmacm.so."]),
    ("libnl-3-200", &["libnl-3.so."]),
    ("libnl-route-3-200", &["libnl-route-3.so."]),
];

/// The licenses of the files in the image.
const LICENSES: &str = "(MIT OR Apache-2.0) AND LGPL-2.1-only AND LGPL-2.1-or-later \
                        AND GPL-3.0-or-later WITH GCC-exception-3.1 AND (GPL-2.0-only OR Linux-OpenIB)";

/// The user of processes in the container, which is `nobody`.
pub(super) const USER: &str = "65534:65534";

/// The files in `/etc`. Without the last one, glibc would ask a name server before it reads `/etc/hosts`.
const ETC: [(&str, &str); 3] = [
    ("passwd", "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n"),
    ("group", "root:x:0:\nnogroup:x:65534:\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
];

/// Writes the image and returns its path. The same commit and the same Debian packages make the same bytes.
pub(super) fn build(stage: &Stage, out: &Path) -> Result<PathBuf> {
    let scratch = out.join(format!("image-{}", stage.architecture));
    if scratch.exists() {
        fs::remove_dir_all(&scratch).with_context(|| format!("could not remove {}", scratch.display()))?;
    }
    let root = scratch.join("root");
    for directory in ["usr/bin", "usr/lib", "etc", "tmp", "var/lib/dpkg/status.d", "dev", "proc", "sys"] {
        fs::create_dir_all(root.join(directory))?;
    }
    // Distributions differ in whether packages use these names or those in `/usr`.
    for directory in ["lib", "lib64"] {
        symlink(format!("usr/{directory}"), root.join(directory))?;
    }
    for (name, text) in ETC {
        fs::write(root.join("etc").join(name), text)?;
    }
    for directory in ["bin", "lib/adverb", "share/doc/adverb"] {
        copy_tree(&stage.root.join(directory), &root.join("usr").join(directory), &|_| true)?;
    }
    add_packages(&scratch, debian_architecture(stage.architecture)?, &root)?;
    let file = out.join(format!("adverb-{}-{}-oci.tar", stage.version, stage.architecture));
    write(&root, &scratch, &About::of_checkout(stage)?, &file)?;
    fs::remove_dir_all(&scratch)?;
    Ok(file)
}

/// Returns Debian's name of an architecture, given that of `uname -m`.
fn debian_architecture(name: &str) -> Result<&'static str> {
    match name {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        _ => bail!("there is no image for the architecture {name}"),
    }
}

/// Downloads the packages, and copies their libraries, settings and licenses. Their control files tell scanners the versions.
fn add_packages(scratch: &Path, architecture: &str, root: &Path) -> Result<()> {
    let apt = Apt::new(&scratch.join("apt"), architecture)?;
    let archives = scratch.join("archives");
    apt.download(&archives, &PACKAGES.map(|(name, _)| name))?;
    let libgcc = process::text(
        Command::new("dpkg-deb").arg("-f").arg(archive(&archives, "libgcc-s1")?).arg("Depends"),
    )?;
    // The license of libgcc-s1 is in the package of its compiler's version.
    let base = libgcc.split([',', ' ']).find(|word| word.starts_with("gcc-") && word.ends_with("-base"));
    let base = base.context("libgcc-s1 depends on no gcc-…-base")?;
    apt.download(&archives, &[base])?;
    for (name, prefixes) in PACKAGES.into_iter().chain([(base, &[][..])]) {
        let (archive, files) = (archive(&archives, name)?, scratch.join("files").join(name));
        fs::create_dir_all(&files)?;
        process::output(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&files))?;
        let control = process::output(Command::new("dpkg-deb").arg("-f").arg(&archive))?;
        fs::write(root.join("var/lib/dpkg/status.d").join(name), control)?;
        let is_needed = |file: &str| prefixes.iter().any(|prefix| file.starts_with(prefix));
        for directory in ["lib", "lib64"] {
            for from in [files.join(directory), files.join("usr").join(directory)] {
                // A package may have one of the two as a link to the other.
                if from.is_dir() && !from.is_symlink() {
                    copy_tree(&from, &root.join("usr").join(directory), &is_needed)?;
                }
            }
        }
        for (directory, kept) in [("etc/libibverbs.d", ".driver"), ("usr/share/doc", "copyright")] {
            if files.join(directory).is_dir() {
                copy_tree(&files.join(directory), &root.join(directory), &|file| file.ends_with(kept))?;
            }
        }
    }
    // It is a link to the documents of the compiler's package.
    symlink(base, root.join("usr/share/doc/libgcc-s1"))?;
    Ok(())
}

/// Downloads of Debian's packages for an architecture. They use lists of their own, because this machine's lists are those of its
/// architecture.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// Fetches the lists of packages to a new directory.
    fn new(directory: &Path, architecture: &str) -> Result<Apt> {
        let lists = directory.join("lists");
        fs::create_dir_all(lists.join("partial"))?;
        let lists = format!("Dir::State::Lists={}", lists.display());
        let architecture =
            ["APT::Architecture=", "APT::Architectures="].map(|name| format!("{name}{architecture}"));
        // Without a file, apt keeps its index in memory, and this machine's index remains. As root, apt would switch to a user
        // that can't write to these directories.
        let fixed = [
            "Dir::Cache::pkgcache=",
            "Dir::Cache::srcpkgcache=",
            "APT::Sandbox::User=root",
            "Acquire::Retries=3",
        ];
        let options = fixed.map(str::to_owned).into_iter().chain(architecture).chain([lists]).collect();
        let apt = Apt { options };
        process::output(&mut apt.get("update")).context("fetching Debian's lists of packages failed")?;
        Ok(apt)
    }

    /// Downloads packages to a directory.
    fn download(&self, to: &Path, packages: &[&str]) -> Result<()> {
        fs::create_dir_all(to)?;
        process::output(self.get("download").args(packages).current_dir(to))?;
        Ok(())
    }

    fn get(&self, command: &str) -> Command {
        let mut apt = Command::new("apt-get");
        apt.arg("-q").args(self.options.iter().flat_map(|option| ["-o", option])).arg(command);
        apt
    }
}

/// Returns the archive of a package.
fn archive(archives: &Path, name: &str) -> Result<PathBuf> {
    let is_archive = |path: &PathBuf| {
        path.file_name()
            .and_then(|file| file.to_str())
            .is_some_and(|file| file.starts_with(&format!("{name}_")))
    };
    let found = fs::read_dir(archives)?.flatten().map(|entry| entry.path()).find(is_archive);
    found.with_context(|| format!("`apt-get download` wrote no archive of {name}"))
}

/// Copies the files and links of a directory whose names a function accepts.
fn copy_tree(from: &Path, to: &Path, accept: &dyn Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("could not list {}", from.display()))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a file's name isn't UTF-8")?;
        let target = to.join(&name);
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&entry.path(), &target, accept)?;
            continue;
        }
        if !accept(&name) {
            continue;
        }
        fs::create_dir_all(to)?;
        if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, &target)?;
        } else {
            fs::copy(entry.path(), &target)
                .with_context(|| format!("could not copy to {}", target.display()))?;
        }
    }
    Ok(())
}

/// Facts about an image that its files don't contain.
struct About {
    version: String,
    /// The architecture, as Go names it.
    architecture: &'static str,
    /// The time of the commit, in seconds since 1970.
    epoch: u64,
    /// The commit, with `-dirty` if files have changed since.
    revision: String,
    /// The URL of the sources, if the workspace has one.
    repository: Option<String>,
}

impl About {
    fn of_checkout(stage: &Stage) -> Result<About> {
        let git = |arguments: &[&str]| {
            let text = process::text(Command::new("git").args(arguments).current_dir(paths::root()))?;
            anyhow::Ok(text.trim().to_owned())
        };
        let epoch = super::source_date_epoch()?;
        let metadata = process::text(&mut process::cargo("metadata --format-version 1 --no-deps"))?;
        let metadata: Value = serde_json::from_str(&metadata)?;
        let mut packages = metadata["packages"].as_array().into_iter().flatten();
        let cli = packages.find(|package| package["name"] == "adverb-cli");
        Ok(About {
            version: stage.version.clone(),
            architecture: debian_architecture(stage.architecture)?,
            epoch: epoch.parse().with_context(|| format!("the time {epoch} is not a number of seconds"))?,
            revision: git(&["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])?,
            repository: cli.and_then(|package| package["repository"].as_str()).map(str::to_owned),
        })
    }

    /// Returns the labels of the image.
    fn labels(&self) -> BTreeMap<&'static str, &str> {
        let source = self.repository.as_deref().map(|url| ("org.opencontainers.image.source", url));
        let labels = [
            ("org.opencontainers.image.title", "adverb"),
            (
                "org.opencontainers.image.description",
                "RDMA diagnostics, and verbs programs without RDMA hardware",
            ),
            ("org.opencontainers.image.version", self.version.as_str()),
            ("org.opencontainers.image.revision", self.revision.as_str()),
            ("org.opencontainers.image.licenses", LICENSES),
        ];
        labels.into_iter().chain(source).collect()
    }
}

/// Writes the files of a directory as an image with one layer. Their times and owners, and the permissions apart from those to
/// execute, do not matter.
fn write(root: &Path, scratch: &Path, about: &About, file: &Path) -> Result<()> {
    set_permissions(root)?;
    fs::set_permissions(root.join("tmp"), Permissions::from_mode(0o1777))?;
    let layout = scratch.join("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let layer = scratch.join("layer.tar");
    tar(root, about.epoch, &layer)?;
    let layer_digest = digest(&layer)?;
    process::run(Command::new("gzip").args(["-n", "-9"]).arg(&layer))?;
    let layer = store(&blobs, &fs::read(scratch.join("layer.tar.gz"))?, LAYER)?;

    let created = process::text(
        Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d"]).arg(format!("@{}", about.epoch)),
    )?;
    let created = created.trim();
    let config = json!({
        "architecture": about.architecture,
        "config": {
            "Entrypoint": ["/usr/bin/adverb"],
            "Env": ["PATH=/usr/bin"],
            "Labels": about.labels(),
            "User": USER,
            "WorkingDir": "/",
        },
        "created": created,
        "history": [{ "created": created, "created_by": "cargo xtask dist" }],
        "os": "linux",
        "rootfs": { "diff_ids": [layer_digest], "type": "layers" },
    });
    let config = store(&blobs, &serde_json::to_vec(&config)?, "application/vnd.oci.image.config.v1+json")?;
    let manifest = json!({
        "annotations": about.labels(),
        "config": config,
        "layers": [layer],
        "mediaType": MANIFEST,
        "schemaVersion": 2,
    });
    let mut manifest = store(&blobs, &serde_json::to_vec(&manifest)?, MANIFEST)?;
    manifest["platform"] = json!({ "architecture": about.architecture, "os": "linux" });
    // containerd and Docker use the first name, and other programs the second.
    manifest["annotations"] = json!({
        "io.containerd.image.name": format!("localhost/adverb:{}", about.version),
        "org.opencontainers.image.ref.name": about.version,
    });
    let index = json!({
        "manifests": [manifest],
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "schemaVersion": 2,
    });
    fs::write(layout.join("index.json"), serde_json::to_vec(&index)?)?;
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    set_permissions(&layout)?;
    tar(&layout, about.epoch, file)
}

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Writes a blob, and returns its descriptor.
fn store(blobs: &Path, bytes: &[u8], media_type: &str) -> Result<Value> {
    let new = blobs.join("new");
    fs::write(&new, bytes)?;
    let digest = digest(&new)?;
    fs::rename(&new, blobs.join(digest.trim_start_matches("sha256:")))?;
    Ok(json!({ "digest": digest, "mediaType": media_type, "size": bytes.len() }))
}

/// Returns the digest of a file, as image layouts write it.
pub(super) fn digest(file: &Path) -> Result<String> {
    let line = process::text(Command::new("sha256sum").arg("--").arg(file))?;
    let sum = line.split_whitespace().next().context("sha256sum printed nothing")?;
    Ok(format!("sha256:{sum}"))
}

/// Writes the files of a directory to a tar file, with one time for all.
fn tar(directory: &Path, epoch: u64, file: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--format=gnu", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{epoch}")).arg("-C").arg(directory).arg("-cf").arg(file);
    // Names without `./` in front, as image layouts have them.
    let mut names =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
    names.sort();
    process::run(tar.args(names))
}

/// Sets the permissions of a directory and all that it contains: all users may read, and only root may write.
fn set_permissions(path: &Path) -> Result<()> {
    let metadata = path.symlink_metadata()?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let executable = metadata.is_dir() || metadata.permissions().mode() & 0o100 != 0;
    fs::set_permissions(path, Permissions::from_mode(if executable { 0o755 } else { 0o644 }))?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            set_permissions(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes an image of two files, created in this order and with these permissions, and returns the image's bytes.
    fn image(scratch: &Path, names: [&str; 2], mode: u32) -> Vec<u8> {
        let root = scratch.join("root");
        fs::create_dir_all(root.join("tmp")).unwrap();
        for name in names {
            fs::write(root.join(name), name).unwrap();
            fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
        }
        symlink("a", root.join("link")).unwrap();
        let about = About {
            version: "1.2.3".to_owned(),
            architecture: "amd64",
            epoch: 1_700_000_000,
            revision: "abc".to_owned(),
            repository: None,
        };
        write(&root, scratch, &about, &scratch.join("image.tar")).unwrap();
        fs::read(scratch.join("image.tar")).unwrap()
    }

    #[test]
    fn two_directories_with_the_same_contents_are_the_same_image() {
        let scratch = std::env::temp_dir().join(format!("adverb-image-{}", std::process::id()));
        let one = image(&scratch.join("one"), ["a", "b"], 0o600);
        let two = image(&scratch.join("two"), ["b", "a"], 0o664);
        let other = image(&scratch.join("other"), ["a", "b"], 0o755);
        assert!(one == two, "the bytes differ");
        assert!(one != other, "files that can be executed are no others");

        let layout = scratch.join("one/layout");
        let read = |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
        let blob = |digest: &Value| layout.join("blobs/sha256").join(&digest.as_str().unwrap()[7..]);
        let manifest = read(blob(&read(layout.join("index.json"))["manifests"][0]["digest"]));
        let config = read(blob(&manifest["config"]["digest"]));
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        assert_eq!(config["config"]["User"], USER);
        assert_eq!(config["config"]["Labels"]["org.opencontainers.image.version"], "1.2.3");
        let layer = &manifest["layers"][0];
        assert_eq!(layer["size"], fs::metadata(blob(&layer["digest"])).unwrap().len());
        let unpacked = process::output(Command::new("gunzip").arg("-c").arg(blob(&layer["digest"]))).unwrap();
        fs::write(scratch.join("layer.tar"), &unpacked).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], digest(&scratch.join("layer.tar")).unwrap());
        let list = process::text(Command::new("tar").arg("-tvf").arg(scratch.join("layer.tar"))).unwrap();
        fs::remove_dir_all(&scratch).unwrap();
        let modes: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(modes, ["-rw-r--r--", "-rw-r--r--", "lrwxrwxrwx", "drwxrwxrwt"], "{list}");
        assert!(list.lines().all(|line| line.contains(" 0/0 ")), "{list}");
    }
}
