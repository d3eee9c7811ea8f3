//! ZIP archives whose bytes depend only on the names, modes and contents of the files.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use support::process;

/// A file to pack.
pub(super) struct Entry {
    /// Its path in the archive.
    pub(super) name: String,
    pub(super) is_executable: bool,
}

/// Packs files of a directory, in this order, into an archive.
pub(super) fn write(directory: &Path, entries: &[Entry], archive: &Path) -> Result<()> {
    let (mut bytes, mut index) = (Vec::new(), Vec::new());
    for entry in entries {
        let file = directory.join(&entry.name);
        let compressed = Compressed::read(&file)?;
        let offset = u32::try_from(bytes.len()).context("the archive exceeds 4 GiB")?;
        let header = compressed.header(&entry.name)?;
        bytes.extend_from_slice(&LOCAL_FILE);
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(entry.name.as_bytes());
        bytes.extend_from_slice(&compressed.deflated);

        let mode: u32 = if entry.is_executable { 0o100_755 } else { 0o100_644 };
        index.extend_from_slice(&INDEX_FILE);
        index.extend_from_slice(&header);
        // No comment, the first volume, no internal attributes.
        index.extend_from_slice(&[0; 6]);
        index.extend_from_slice(&(mode << 16).to_le_bytes());
        index.extend_from_slice(&offset.to_le_bytes());
        index.extend_from_slice(entry.name.as_bytes());
    }
    let count = u16::try_from(entries.len()).context("the archive has too many files")?.to_le_bytes();
    let (size, offset) = (u32::try_from(index.len())?, u32::try_from(bytes.len())?);
    bytes.extend_from_slice(&index);
    // The first volume, twice, and the number of files, twice.
    bytes.extend_from_slice(&[b"PK\x05\x06\0\0\0\0", &count[..], &count].concat());
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(&offset.to_le_bytes());
    // No comment.
    bytes.extend_from_slice(&[0; 2]);
    fs::write(archive, bytes).with_context(|| format!("could not write {}", archive.display()))
}

/// The signature of a file's header. Version 2.0 is needed to unpack it.
const LOCAL_FILE: [u8; 6] = *b"PK\x03\x04\x14\0";
/// The signature of a file in the index, which Unix (3) with version 2.0 wrote.
const INDEX_FILE: [u8; 8] = *b"PK\x01\x02\x14\x03\x14\0";

/// A compressed file.
struct Compressed {
    deflated: Vec<u8>,
    /// The CRC and the size of the file, as gzip and ZIP have them.
    crc: [u8; 4],
    size: [u8; 4],
}

impl Compressed {
    fn read(file: &Path) -> Result<Compressed> {
        // Without a name and a time, gzip's header has 10 bytes.
        let gzip = process::output(Command::new("gzip").arg("-9cn").arg(file))?;
        let body = gzip.get(10..).and_then(|rest| rest.split_last_chunk::<8>());
        let (deflated, trailer) = body.context("the output of gzip is too short")?;
        let [crc, size] = [[0, 1, 2, 3], [4, 5, 6, 7]].map(|at| at.map(|n: usize| trailer[n]));
        Ok(Compressed { deflated: deflated.to_vec(), crc, size })
    }

    /// Returns the part that a file's header and its entry in the index have in common.
    fn header(&self, name: &str) -> Result<Vec<u8>> {
        let mut header = Vec::new();
        // No flags; compressed with deflate; written on 1980-01-01, the first date that the format has.
        header.extend_from_slice(&[0, 0, 8, 0, 0, 0, 0x21, 0]);
        header.extend_from_slice(&self.crc);
        header.extend_from_slice(&u32::try_from(self.deflated.len())?.to_le_bytes());
        header.extend_from_slice(&self.size);
        header.extend_from_slice(&u16::try_from(name.len())?.to_le_bytes());
        // No extra field.
        header.extend_from_slice(&[0; 2]);
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_reads_the_archive() {
        let directory = std::env::temp_dir().join(format!("xtask-zip-{}", std::process::id()));
        fs::create_dir_all(directory.join("d")).unwrap();
        fs::write(directory.join("empty"), "").unwrap();
        fs::write(directory.join("d/large"), "0123456789".repeat(100_000)).unwrap();
        let entries = [("d/large", true), ("empty", false)];
        let entries = entries.map(|(name, is_executable)| Entry { name: name.to_owned(), is_executable });
        let archives = ["1.zip", "2.zip"].map(|name| directory.join(name));
        archives.iter().for_each(|archive| write(&directory, &entries, archive).unwrap());
        let [first, second] = archives.each_ref().map(|archive| fs::read(archive).unwrap());
        assert!(first == second && first.len() < 10_000);
        let script = "\
import sys, zipfile
archive = zipfile.ZipFile(sys.argv[1])
assert archive.testzip() is None
for info in archive.infolist():
    data = archive.read(info)
    print(info.filename, oct(info.external_attr >> 16), info.date_time[0], len(data), data[:3])
";
        let text = process::text(Command::new("python3").args(["-c", script]).arg(&archives[0])).unwrap();
        assert_eq!(text, "d/large 0o100755 1980 1000000 b'012'\nempty 0o100644 1980 0 b''\n");
        fs::remove_dir_all(directory).unwrap();
    }
}
