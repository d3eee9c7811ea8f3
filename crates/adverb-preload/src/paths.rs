//! Redirection of paths: programs find the device's files in sysfs and its character device.
//!
//! These functions go into a library of their own, `libadverb-paths.so`, which replaces the functions of the C library in
//! preloaded programs (`cargo xtask preload` gives them their names). They must not use Rust's standard library for
//! files: it would call them.
//!
//! - `/dev/infiniband/uverbs0` becomes `/dev/null`, a character device that anybody may read and write.
//! - `/sys/class/infiniband` and `/sys/class/infiniband_verbs` are in the directory that the environment variable
//!   `ADVERB_SYSFS` names; `adverb run` creates it.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_char, c_int, c_uint, c_void, mode_t, size_t, ssize_t};

/// The maximum length of a redirected path.
const MAX_PATH: usize = 1024;

/// A buffer for a redirected path.
struct Buffer([u8; MAX_PATH]);

impl Buffer {
    const fn new() -> Buffer {
        Buffer([0; MAX_PATH])
    }

    /// Returns the path to use instead of a path.
    ///
    /// # Safety
    ///
    /// The path is NULL or ends with a zero byte.
    unsafe fn redirect(&mut self, path: *const c_char) -> *const c_char {
        if path.is_null() {
            return path;
        }
        // SAFETY: as the caller says.
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        if !bytes.starts_with(b"/dev/inf") && !bytes.starts_with(b"/sys/cla") {
            return path;
        }
        // SAFETY: the name ends with a zero byte. The result is NULL or such a string, which programs don't change while
        // they open files.
        let root = unsafe {
            let root = libc::getenv(c"ADVERB_SYSFS".as_ptr());
            (!root.is_null() && libc::getauxval(libc::AT_SECURE) == 0)
                .then(|| CStr::from_ptr(root).to_bytes())
        };
        match self.target(bytes, root) {
            true => self.0.as_ptr().cast(),
            false => path,
        }
    }

    /// Writes the path to use instead of a path, and returns whether there is one.
    fn target(&mut self, path: &[u8], root: Option<&[u8]>) -> bool {
        let parts: [&[u8]; 2] = if path == b"/dev/infiniband/uverbs0" {
            [b"/dev/null", b""]
        } else if let Some(root) = root
            && is_of_class(path)
        {
            [root, path]
        } else {
            return false;
        };
        let length = parts[0].len() + parts[1].len();
        if length >= MAX_PATH {
            return false;
        }
        self.0[..parts[0].len()].copy_from_slice(parts[0]);
        self.0[parts[0].len()..length].copy_from_slice(parts[1]);
        self.0[length] = 0;
        true
    }
}

/// Whether a path is that of a class of RDMA devices, or of a file in it.
fn is_of_class(path: &[u8]) -> bool {
    [&b"/sys/class/infiniband"[..], b"/sys/class/infiniband_verbs"]
        .iter()
        .any(|class| path.strip_prefix(*class).is_some_and(|rest| rest.is_empty() || rest[0] == b'/'))
}

/// Returns the C library's function of a name.
fn original(name: &'static CStr, cache: &AtomicPtr<c_void>) -> *mut c_void {
    let mut found = cache.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: the name ends with a zero byte.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if found.is_null() {
            // A program calls only functions that its C library has.
            // SAFETY: the function has no preconditions.
            unsafe { libc::abort() };
        }
        cache.store(found, Ordering::Release);
    }
    found
}

/// Declares functions that redirect their path and call the C library's function.
macro_rules! redirected {
    ($($name:ident = $original:ident[$($before:ident: $bty:ty),*][$($after:ident: $aty:ty),*] -> $ret:ty;)*) => {
        $(
            /// Calls the C library's function with the redirected path.
            ///
            /// # Safety
            ///
            /// The arguments are as the function's manual page requires.
            // SAFETY: the name starts with this library's.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name(
                $($before: $bty,)*
                path: *const c_char,
                $($after: $aty),*
            ) -> $ret {
                static CACHE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let name = concat!(stringify!($original), "\0");
                let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { unreachable!() };
                let mut buffer = Buffer::new();
                // SAFETY: the function has this type, and the arguments are as the caller says. Arguments that a
                // variadic function doesn't get are ignored.
                unsafe {
                    let function = std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn($($bty,)* *const c_char $(, $aty)*) -> $ret,
                    >(original(name, &CACHE));
                    function($($before,)* buffer.redirect(path) $(, $after)*)
                }
            }
        )*
    };
}

redirected! {
    adverb_paths_open = open[][flags: c_int, mode: mode_t] -> c_int;
    adverb_paths_open64 = open64[][flags: c_int, mode: mode_t] -> c_int;
    adverb_paths___open_2 = __open_2[][flags: c_int] -> c_int;
    adverb_paths___open64_2 = __open64_2[][flags: c_int] -> c_int;
    adverb_paths_openat = openat[directory: c_int][flags: c_int, mode: mode_t] -> c_int;
    adverb_paths_openat64 = openat64[directory: c_int][flags: c_int, mode: mode_t] -> c_int;
    adverb_paths_fopen = fopen[][mode: *const c_char] -> *mut c_void;
    adverb_paths_fopen64 = fopen64[][mode: *const c_char] -> *mut c_void;
    adverb_paths_stat = stat[][status: *mut c_void] -> c_int;
    adverb_paths_stat64 = stat64[][status: *mut c_void] -> c_int;
    adverb_paths_lstat = lstat[][status: *mut c_void] -> c_int;
    adverb_paths_lstat64 = lstat64[][status: *mut c_void] -> c_int;
    adverb_paths_fstatat = fstatat[directory: c_int][status: *mut c_void, flags: c_int] -> c_int;
    adverb_paths_fstatat64 = fstatat64[directory: c_int][status: *mut c_void, flags: c_int] -> c_int;
    adverb_paths_statx = statx[directory: c_int][flags: c_int, mask: c_uint, status: *mut c_void] -> c_int;
    adverb_paths___xstat = __xstat[version: c_int][status: *mut c_void] -> c_int;
    adverb_paths___xstat64 = __xstat64[version: c_int][status: *mut c_void] -> c_int;
    adverb_paths___lxstat = __lxstat[version: c_int][status: *mut c_void] -> c_int;
    adverb_paths___lxstat64 = __lxstat64[version: c_int][status: *mut c_void] -> c_int;
    adverb_paths_access = access[][mode: c_int] -> c_int;
    adverb_paths_faccessat = faccessat[directory: c_int][mode: c_int, flags: c_int] -> c_int;
    adverb_paths_readlink = readlink[][buffer_: *mut c_char, size: size_t] -> ssize_t;
    adverb_paths_readlinkat = readlinkat[directory: c_int][buffer_: *mut c_char, size: size_t] -> ssize_t;
    adverb_paths_realpath = realpath[][resolved: *mut c_char] -> *mut c_char;
    adverb_paths___realpath_chk = __realpath_chk[][resolved: *mut c_char, size: size_t] -> *mut c_char;
    adverb_paths_opendir = opendir[][] -> *mut c_void;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> Option<String> {
        let mut buffer = Buffer::new();
        buffer
            .target(path.as_bytes(), Some(b"/tmp/root"))
            .then(|| CStr::from_bytes_until_nul(&buffer.0).unwrap().to_str().unwrap().to_owned())
    }

    #[test]
    fn only_paths_of_the_device_are_redirected() {
        assert_eq!(target("/dev/infiniband/uverbs0").unwrap(), "/dev/null");
        let file = "/sys/class/infiniband/adverb0/ports/1/gid_attrs/types/0";
        assert_eq!(target(file).unwrap(), format!("/tmp/root{file}"));
        assert_eq!(target("/sys/class/infiniband_verbs").unwrap(), "/tmp/root/sys/class/infiniband_verbs");
        for other in ["/sys/class/infiniband_mad", "/sys/class/net", "/dev/infiniband/rdma_cm", "relative"] {
            assert_eq!(target(other), None, "{other}");
        }
        assert_eq!(target(&format!("/sys/class/infiniband/{}", "a".repeat(MAX_PATH))), None);
        assert!(!Buffer::new().target(b"/sys/class/infiniband", None));
    }
}
