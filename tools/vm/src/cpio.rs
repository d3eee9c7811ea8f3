//! A writer of initramfs archives: cpio's "newc" format
//! (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst).

/// An archive under construction.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a directory. Its parent must already be in the archive.
    pub(super) fn directory(&mut self, path: &str) {
        self.entry(path, 0o040_755, &[]);
    }

    /// Adds an executable file.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, 0o100_755, content);
    }

    /// Returns the bytes of the finished archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("a file in an initramfs is far below 4 GiB");
        let name_size = u32::try_from(path.len() + 1).expect("a path is short");
        self.bytes.extend_from_slice(b"070701");
        // inode, mode, uid, gid, links, mtime, size, device (2), special device (2), name size, checksum
        for field in [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0] {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    /// Pads to a multiple of four bytes, after a name or a content.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_follow_the_format() {
        let mut archive = Archive::default();
        archive.file("init", b"hello");
        let bytes = archive.finish();
        let header = b"070701\
            00000001000081ed00000000000000000000000100000000\
            0000000500000000000000000000000000000000\
            0000000500000000";
        assert_eq!(&bytes[..110], header);
        assert_eq!(&bytes[110..124], b"init\0\0hello\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }
}
