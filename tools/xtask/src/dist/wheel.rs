//! The Python wheel: the command, the libraries, and the package `adverb` in `python/`.
//!
//! The package has no compiled extension, so one wheel serves all versions of Python 3. pip installs the command in `bin`
//! and the libraries in `lib/adverb` of an environment, where the command finds them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use support::{paths, process};

use super::elf;
use super::stage::Stage;
use super::zip::{self, Entry};

/// Writes the wheel and returns its path.
pub(super) fn build(stage: &Stage, out: &Path) -> Result<PathBuf> {
    let version = python_version(&stage.version);
    let directory = out.join("wheel").join(stage.architecture);
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    let tag = format!("py3-none-{}", platform(stage)?);
    let name = format!("adverb-{version}");

    let python = paths::root().join("python");
    let mut files = Files { directory, entries: Vec::new() };
    for file in listed(&python.join("adverb"))? {
        if file.ends_with(".py") || file.ends_with(".typed") {
            files.copy(&python.join("adverb").join(&file), format!("adverb/{file}"), false)?;
        }
    }
    for file in listed(&stage.root.join("lib/adverb"))? {
        let from = stage.root.join("lib/adverb").join(&file);
        files.copy(&from, format!("{name}.data/data/lib/adverb/{file}"), false)?;
    }
    files.copy(&stage.root.join("bin/adverb"), format!("{name}.data/scripts/adverb"), true)?;
    // The files about the package follow, so that installers can read them at the end of the archive.
    let info = format!("{name}.dist-info");
    for license in LICENSES {
        files.copy(&paths::root().join(license), format!("{info}/licenses/{license}"), false)?;
    }
    let readme = fs::read_to_string(python.join("README.md")).context("could not read python/README.md")?;
    files.write(&metadata(&version, &readme), format!("{info}/METADATA"))?;
    let wheel = format!("Wheel-Version: 1.0\nGenerator: adverb\nRoot-Is-Purelib: false\nTag: {tag}\n");
    files.write(&wheel, format!("{info}/WHEEL"))?;
    files.write("[pytest11]\nadverb = adverb.pytest_plugin\n", format!("{info}/entry_points.txt"))?;
    files.write_record(format!("{info}/RECORD"))?;

    let wheel = out.join(format!("{name}-{tag}.whl"));
    zip::write(&files.directory, &files.entries, &wheel)?;
    fs::remove_dir_all(&files.directory)?;
    Ok(wheel)
}

const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The files of the wheel, which are staged in a directory.
struct Files {
    directory: PathBuf,
    entries: Vec<Entry>,
}

impl Files {
    /// Returns the path of a new file.
    fn add(&mut self, name: String, is_executable: bool) -> Result<PathBuf> {
        let path = self.directory.join(&name);
        fs::create_dir_all(path.parent().context("the file has a directory")?)?;
        self.entries.push(Entry { name, is_executable });
        Ok(path)
    }

    fn copy(&mut self, from: &Path, name: String, is_executable: bool) -> Result<()> {
        let path = self.add(name, is_executable)?;
        fs::copy(from, &path).with_context(|| format!("could not copy {}", from.display()))?;
        Ok(())
    }

    fn write(&mut self, text: &str, name: String) -> Result<()> {
        Ok(fs::write(self.add(name, false)?, text)?)
    }

    /// Writes the list of all files with their hashes. The list itself has none.
    fn write_record(&mut self, name: String) -> Result<()> {
        let mut record = String::new();
        for entry in &self.entries {
            let path = self.directory.join(&entry.name);
            let text = process::text(Command::new("sha256sum").arg(&path))?;
            let hash = base64(&bytes(text.split(' ').next().unwrap_or_default())?);
            record += &format!("{},sha256={hash},{}\n", entry.name, fs::metadata(&path)?.len());
        }
        record += &format!("{name},,\n");
        self.write(&record, name)
    }
}

/// Returns the names of a directory's files, sorted.
fn listed(directory: &Path) -> Result<Vec<String>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("could not list {}", directory.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().into_string().ok().context("a file's name is not UTF-8")?);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the name of the platform: Linux with the glibc that the files need, and at least glibc 2.28, because older
/// ones were never tried.
fn platform(stage: &Stage) -> Result<String> {
    let mut files = vec![stage.root.join("bin/adverb")];
    let libraries = stage.root.join("lib/adverb");
    let is_library = |name: &String| name.contains(".so");
    files.extend(listed(&libraries)?.into_iter().filter(is_library).map(|name| libraries.join(name)));
    let floor = elf::glibc_floor(files.iter().map(PathBuf::as_path))?.max(28);
    Ok(format!("manylinux_2_{floor}_{}", stage.architecture))
}

/// Returns a version in Python's notation.
fn python_version(version: &str) -> String {
    [("-alpha.", "a"), ("-beta.", "b"), ("-rc.", "rc")]
        .iter()
        .fold(version.to_owned(), |version, (cargo, python)| version.replace(cargo, python))
}

/// Returns the description of the package.
fn metadata(version: &str, readme: &str) -> String {
    let licenses: String = LICENSES.map(|license| format!("License-File: {license}\n")).concat();
    format!(
        "Metadata-Version: 2.4\n\
         Name: adverb\n\
         Version: {version}\n\
         Summary: Run and test RDMA programs (libibverbs, librdmacm) without RDMA hardware\n\
         Keywords: rdma,roce,infiniband,verbs,pytest\n\
         License-Expression: MIT OR Apache-2.0\n\
         {licenses}\
         Classifier: Development Status :: 4 - Beta\n\
         Classifier: Framework :: Pytest\n\
         Classifier: Operating System :: POSIX :: Linux\n\
         Classifier: Programming Language :: Python :: 3\n\
         Classifier: Topic :: Software Development :: Testing\n\
         Classifier: Topic :: System :: Networking\n\
         Requires-Python: >=3.9\n\
         Description-Content-Type: text/markdown\n\
         \n\
         {readme}"
    )
}

/// Returns the bytes of a hash in hexadecimal.
fn bytes(hash: &str) -> Result<Vec<u8>> {
    let pairs = hash
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap_or_default(), 16));
    pairs.collect::<std::result::Result<Vec<u8>, _>>().context("the output of sha256sum is not a hash")
}

/// Encodes bytes in base64 for URLs, without padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        let digits = (0..=chunk.len()).map(|n| DIGITS[(group >> (18 - 6 * n) & 63) as usize]);
        text.extend(digits.map(char::from));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_encoded() {
        assert_eq!(bytes("00ff10").unwrap(), [0, 255, 16]);
        assert!(bytes("0g").is_err());
        let encoded =
            [("", ""), ("b", "Yg"), ("be", "YmU"), ("bet", "YmV0"), ("beta", "YmV0YQ"), ("\u{3ff}~", "z79-")];
        for (text, expected) in encoded {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }

    #[test]
    fn a_wheel_contains_what_its_record_lists() {
        let root = std::env::temp_dir().join(format!("xtask-wheel-{}", std::process::id()));
        fs::create_dir_all(root.join("stage/bin")).unwrap();
        fs::create_dir_all(root.join("stage/lib/adverb")).unwrap();
        // Any program for glibc serves as the command.
        let program = Path::new("/bin/true");
        fs::copy(program, root.join("stage/bin/adverb")).unwrap();
        fs::write(root.join("stage/lib/adverb/tsan.supp"), "race:x\n").unwrap();
        let stage = Stage::of_files(root.join("stage"), "1.2.3-rc.4");
        let wheel = build(&stage, &root).unwrap();
        let floor = elf::glibc_floor([program]).unwrap().max(28);
        let name = wheel.file_name().unwrap().to_str().unwrap();
        assert_eq!(name, format!("adverb-1.2.3rc4-py3-none-manylinux_2_{floor}_x86_64.whl"));
        let text = process::text(Command::new("python3").args(["-c", CHECK]).arg(&wheel)).unwrap();
        for line in [
            "adverb/pytest_plugin.py 644",
            "adverb/py.typed 644",
            "adverb-1.2.3rc4.data/scripts/adverb 755",
            "adverb-1.2.3rc4.data/data/lib/adverb/tsan.supp 644",
            "adverb-1.2.3rc4.dist-info/licenses/LICENSE-MIT 644",
            "adverb-1.2.3rc4.dist-info/METADATA 644",
            "adverb-1.2.3rc4.dist-info/RECORD 644",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        let first = fs::read(&wheel).unwrap();
        assert!(fs::read(build(&stage, &root).unwrap()).unwrap() == first, "the bytes are the same again");
        fs::remove_dir_all(root).unwrap();
    }

    /// Checks the hashes and sizes in the record of a wheel, and prints the names and modes of its files.
    const CHECK: &str = "\
import base64, csv, hashlib, io, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
infos = {info.filename: info for info in wheel.infolist()}
record = next(name for name in infos if name.endswith('/RECORD'))
rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(wheel.read(record).decode()))}
assert rows.keys() == infos.keys() and rows[record] == ['', '']
for name, info in infos.items():
    if name != record:
        data = wheel.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')
        assert rows[name] == ['sha256=' + digest, str(len(data))], name
    print(name, oct(info.external_attr >> 16 & 0o777)[2:])
";

    #[test]
    fn versions_are_in_pythons_notation() {
        assert_eq!(python_version("0.1.0"), "0.1.0");
        assert_eq!(python_version("1.2.0-rc.3"), "1.2.0rc3");
    }
}
