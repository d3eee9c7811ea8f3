//! The statistics of network interfaces' drivers, which `ethtool -S` prints.
//!
//! PFC pause frames per priority, and the discards of a NIC's port, are available only here: sysfs and ethtool's
//! netlink interface lack them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::ptr::{self, NonNull};

/// The commands, from `linux/ethtool.h`.
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
/// The set of the statistics' names.
const ETH_SS_STATS: u32 = 1;
/// The length of a name, including its terminator.
const ETH_GSTRING_LEN: usize = 32;
/// The maximum number of statistics. Drivers with many queues have some thousands.
const MAX_STATISTICS: usize = 1 << 16;

/// Returns the driver's statistics of a network interface by name. If several statistics have the same name, the result
/// contains the last of them. The result is empty if the driver has none. No privileges are needed.
///
/// ```
/// # #[cfg(target_os = "linux")] {
/// for (name, value) in adverb_sys::ethtool::statistics("lo")? {
///     println!("{name}: {value}");
/// }
/// # }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error if the interface doesn't exist (`ENODEV`), if its name is longer than 15 bytes or contains a NUL
/// byte (`InvalidInput`), or if the driver fails.
pub fn statistics(interface: &str) -> io::Result<BTreeMap<String, u64>> {
    let interface = Interface::new(interface)?;
    match interface.statistics() {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(BTreeMap::new()),
        result => result,
    }
}

/// A network interface, with a socket for its requests.
struct Interface {
    name: [libc::c_char; libc::IFNAMSIZ],
    socket: UnixDatagram,
}

impl Interface {
    fn new(interface: &str) -> io::Result<Interface> {
        if interface.is_empty() || interface.len() >= libc::IFNAMSIZ || interface.contains('\0') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{interface:?} is not the name of a network interface"),
            ));
        }
        let mut name = [0; libc::IFNAMSIZ];
        for (to, from) in name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        // The kernel accepts these requests on a socket of any family.
        Ok(Interface { name, socket: UnixDatagram::unbound()? })
    }

    fn statistics(&self) -> io::Result<BTreeMap<String, u64>> {
        // struct ethtool_sset_info: the command, a reserved word, a mask of 64 bits, and a count for each bit.
        let mut info = Block::new(20)?;
        info.bytes_mut()[0..4].copy_from_slice(&ETHTOOL_GSSET_INFO.to_ne_bytes());
        info.bytes_mut()[8..16].copy_from_slice(&(1_u64 << ETH_SS_STATS).to_ne_bytes());
        self.request(&mut info)?;
        if info.u64_at(8) == 0 {
            return Ok(BTreeMap::new());
        }
        let count = (info.u32_at(16) as usize).min(MAX_STATISTICS);
        let len = u32::try_from(count).unwrap_or_default();

        // struct ethtool_gstrings: the command, the set, the number of names, and the names.
        let mut names = Block::new(12 + count * ETH_GSTRING_LEN)?;
        names.bytes_mut()[0..4].copy_from_slice(&ETHTOOL_GSTRINGS.to_ne_bytes());
        names.bytes_mut()[4..8].copy_from_slice(&ETH_SS_STATS.to_ne_bytes());
        names.bytes_mut()[8..12].copy_from_slice(&len.to_ne_bytes());
        self.request(&mut names)?;

        // struct ethtool_stats: the command, the number of values, and the values.
        let mut values = Block::new(8 + count * 8)?;
        values.bytes_mut()[0..4].copy_from_slice(&ETHTOOL_GSTATS.to_ne_bytes());
        values.bytes_mut()[4..8].copy_from_slice(&len.to_ne_bytes());
        self.request(&mut values)?;

        // The kernel overwrites the counts. A driver whose queues were changed between the requests has other names.
        let lens = [names.u32_at(8), values.u32_at(4)];
        if lens != [len; 2] {
            return Err(io::Error::new(
                io::ErrorKind::Interrupted,
                format!("the number of statistics changed from {len} to {lens:?} while they were read"),
            ));
        }
        let names = names.bytes()[12..].chunks_exact(ETH_GSTRING_LEN).map(|name| {
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
            String::from_utf8_lossy(&name[..end]).trim().to_owned()
        });
        let values = (0..count).map(|n| values.u64_at(8 + n * 8));
        Ok(names.zip(values).collect())
    }

    /// Passes a request to the kernel, which writes the response to the same block.
    fn request(&self, block: &mut Block) -> io::Result<()> {
        let data = libc::__c_anonymous_ifr_ifru { ifru_data: block.address.as_ptr().cast() };
        let mut request = libc::ifreq { ifr_name: self.name, ifr_ifru: data };
        // SAFETY: `request` is a valid ifreq, and its data points to a block that stays mapped during the call. The
        // kernel reads the counts in the block, and may write more than the block's length, if the driver has more
        // statistics by now. It stops with EFAULT at the guard page, so it writes only to the block's own pages.
        let result = unsafe {
            libc::ioctl(
                self.socket.as_raw_fd(),
                libc::SIOCETHTOOL as libc::Ioctl,
                ptr::from_mut(&mut request),
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Zeroed memory in its own pages, followed by a guard page.
struct Block {
    address: NonNull<u8>,
    len: usize,
    mapped_len: usize,
}

impl Block {
    /// The size of the guard: the largest page of Linux's architectures.
    const GUARD: usize = 1 << 16;

    fn new(len: usize) -> io::Result<Block> {
        let data_len = len.next_multiple_of(Self::GUARD);
        let mapped_len = data_len + Self::GUARD;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let address = unsafe { libc::mmap(ptr::null_mut(), mapped_len, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let block = Block { address, len, mapped_len };
        // SAFETY: the pages belong to the mapping above, and nothing refers to them.
        let result =
            unsafe { libc::mprotect(address.as_ptr().add(data_len).cast(), Self::GUARD, libc::PROT_NONE) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(block) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable, initialized and at least `len` bytes long, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the mapping is also writable, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }

    fn u32_at(&self, offset: usize) -> u32 {
        u32::from_ne_bytes(std::array::from_fn(|n| self.bytes()[offset + n]))
    }

    fn u64_at(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(std::array::from_fn(|n| self.bytes()[offset + n]))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the mapping was created by `new`, and no reference to it outlives `self`.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.mapped_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_without_statistics_has_an_empty_set() {
        assert_eq!(statistics("lo").unwrap(), BTreeMap::new());
    }

    #[test]
    fn every_interface_of_this_machine_can_be_read() {
        for entry in std::fs::read_dir("/sys/class/net").unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            // An interface of a test in another process may have been deleted since.
            match statistics(&name) {
                Ok(values) => println!("{name}: {} statistics", values.len()),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name}: {error}"),
            }
        }
    }

    #[test]
    fn names_that_no_interface_can_have_are_rejected() {
        for name in ["", "an-interface-with-a-long-name", "a\0b"] {
            assert_eq!(statistics(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
        let error = statistics("adverb-none").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
    }

    #[test]
    fn the_kernel_writes_no_further_than_the_guard() {
        let block = Block::new(Block::GUARD).unwrap();
        let (reader, writer) = UnixDatagram::pair().unwrap();
        writer.send(&[7; Block::GUARD / 2]).unwrap();
        // SAFETY: the buffer is the last quarter of the block and a part of the guard. The kernel checks the memory
        // that it writes to.
        let result = unsafe {
            let start = block.address.as_ptr().add(Block::GUARD * 3 / 4);
            libc::recv(reader.as_raw_fd(), start.cast(), Block::GUARD / 2, 0)
        };
        assert_eq!((result, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
    }
}
