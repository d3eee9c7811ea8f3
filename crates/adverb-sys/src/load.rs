//! Finding the libraries at run time.

use std::error::Error;
use std::fmt;
use std::mem::ManuallyDrop;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Why a library of rdma-core can't be used. Its text says what to do about it.
#[derive(Debug, Clone)]
pub struct LoadError {
    file: &'static str,
    reason: Reason,
}

#[derive(Debug, Clone)]
enum Reason {
    /// The dynamic linker didn't find the file, or couldn't load it; its own words.
    NotLoaded(String),
    /// The library is there and lacks what every release of the last ten years has.
    NoSymbol(String),
}

impl LoadError {
    /// The file that was looked for, such as `libibverbs.so.1`.
    pub fn file(&self) -> &str {
        self.file
    }

    /// Whether the file couldn't be loaded at all, most likely because rdma-core isn't installed.
    pub fn is_not_installed(&self) -> bool {
        matches!(self.reason, Reason::NotLoaded(_))
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file;
        match &self.reason {
            Reason::NotLoaded(words) => {
                let (debian, fedora, suse) = match file {
                    "librdmacm.so.1" => ("librdmacm1", "librdmacm", "librdmacm1"),
                    _ => ("libibverbs1 ibverbs-providers", "libibverbs", "libibverbs"),
                };
                write!(
                    f,
                    "{file} can't be loaded ({words}): rdma-core isn't installed, or is where the dynamic \
                     linker doesn't look. To install it: `apt install {debian}` on Debian and Ubuntu, \
                     `dnf install {fedora}` on Fedora and RHEL, `zypper install {suse}` on SUSE, \
                     `pacman -S rdma-core` on Arch; or set LD_LIBRARY_PATH to where it is",
                )
            }
            Reason::NoSymbol(symbol) => write!(
                f,
                "{file} has no symbol {symbol}: it is older than what we can use, or isn't rdma-core's. \
                 Install rdma-core 17 or newer, or take the other file out of the dynamic linker's way",
            ),
        }
    }
}

impl Error for LoadError {}

/// A library that stays loaded until the process ends.
#[derive(Debug)]
pub(crate) struct Opened {
    file: &'static str,
    /// Never closed: providers start threads and hold function pointers into the library.
    library: ManuallyDrop<Library>,
}

/// Opens a library by the name that the dynamic linker knows.
pub(crate) fn open(file: &'static str) -> Result<Opened, LoadError> {
    // RTLD_NOW, so that what is missing shows here rather than in the middle of a call. RTLD_LOCAL, because
    // nobody else needs our copy: providers and librdmacm name libibverbs as their own dependency. SAFETY:
    // rdma-core's initialisers have no preconditions; they are what linking with it would have run.
    let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
    match library {
        Ok(library) => Ok(Opened { file, library: ManuallyDrop::new(library) }),
        Err(error) => {
            // libloading's own text only names the call; what the dynamic linker said is its source.
            let words = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            Err(LoadError { file, reason: Reason::NotLoaded(words) })
        }
    }
}

impl Opened {
    /// The function of this name, which ends with a NUL.
    ///
    /// # Safety
    ///
    /// `T` is a function pointer of the symbol's own type.
    pub(crate) unsafe fn required<T: Copy>(&self, name: &str) -> Result<T, LoadError> {
        // SAFETY: the caller vouches for the type.
        unsafe { self.optional(name) }.ok_or_else(|| LoadError {
            file: self.file,
            reason: Reason::NoSymbol(name.trim_end_matches('\0').to_owned()),
        })
    }

    /// The function of this name, which ends with a NUL, if the library has it.
    ///
    /// Where a symbol has several versions (libibverbs has IBVERBS_1.0 and IBVERBS_1.1 of most), this is the
    /// default one, which linking would have taken as well.
    ///
    /// # Safety
    ///
    /// `T` is a function pointer of the symbol's own type.
    pub(crate) unsafe fn optional<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: the caller vouches for the type.
        let symbol = unsafe { self.library.get::<T>(name) };
        symbol.ok().map(|symbol| *symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_what_to_install() {
        let error = open("libnothing-of-adverb.so.1").unwrap_err();
        assert!(error.is_not_installed());
        assert_eq!(error.file(), "libnothing-of-adverb.so.1");
        let text = error.to_string();
        assert!(text.starts_with("libnothing-of-adverb.so.1 can't be loaded"), "{text}");
        assert!(text.contains("cannot open shared object file"), "{text}");
        assert!(text.contains("rdma-core isn't installed"), "{text}");
        assert!(text.contains("apt install libibverbs1 ibverbs-providers"), "{text}");
    }

    #[test]
    fn each_library_names_its_own_package() {
        let error = LoadError { file: "librdmacm.so.1", reason: Reason::NotLoaded("no such file".into()) };
        assert!(error.to_string().contains("apt install librdmacm1"), "{error}");
        assert!(error.to_string().contains("dnf install librdmacm`"), "{error}");
    }

    #[test]
    fn a_library_that_isnt_rdma_core_names_the_symbol() {
        let libc = open("libc.so.6").unwrap();
        // SAFETY: the symbol isn't there, so that nothing has a wrong type.
        let error = unsafe { libc.required::<unsafe extern "C" fn()>("ibv_get_device_list\0") }.unwrap_err();
        assert!(!error.is_not_installed());
        assert!(error.to_string().contains("libc.so.6 has no symbol ibv_get_device_list"), "{error}");
        // SAFETY: as above.
        assert!(unsafe { libc.optional::<unsafe extern "C" fn()>("ibv_reg_dmabuf_mr\0") }.is_none());
    }
}
