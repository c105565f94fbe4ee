//! Shared libraries that are found when the program runs.
#![expect(unsafe_code, reason = "opens libraries")]

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::path::Path;

use libloading::os::unix::{Library as Opened, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW, Symbol};

/// A library that stays open until the program ends, so that addresses taken from it stay valid.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    opened: &'static Opened,
}

impl Library {
    /// Opens a library by its name, or by its path. Its symbols are its own.
    pub fn open(path: &Path) -> Result<Self, String> {
        Self::open_with(path, RTLD_LOCAL)
    }

    /// The same, with its symbols visible to libraries that are opened later.
    pub fn open_globally(path: &Path) -> Result<Self, String> {
        Self::open_with(path, RTLD_GLOBAL)
    }

    fn open_with(path: &Path, visibility: i32) -> Result<Self, String> {
        if path.is_absolute() && !path.is_file() {
            // The loader would wait for a pipe in its place.
            return Err("it is not a file".to_owned());
        }
        // SAFETY: loading runs the library's constructors; an administrator has installed it, or named it.
        let opened = unsafe { Opened::open(Some(path), RTLD_NOW | visibility) };
        let opened =
            opened.map_err(|error| error.source().map_or_else(|| error.to_string(), ToString::to_string))?;
        Ok(Self { opened: Box::leak(Box::new(opened)) })
    }

    /// The address of a symbol; nothing where the library has none of that name.
    pub fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the address is only handed on as one; whoever calls it states its signature.
        let found: Symbol<*mut c_void> = unsafe { self.opened.get(name.to_bytes_with_nul()) }.ok()?;
        let address = found.into_raw();
        (!address.is_null()).then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_opened_by_name_and_asked_for_symbols() {
        let library = Library::open(Path::new("libc.so.6")).unwrap();
        assert!(library.symbol(c"getpid").is_some());
        assert!(library.symbol(c"no_such_function_of_ours").is_none());
        assert!(Library::open_globally(Path::new("libc.so.6")).is_ok());
    }

    #[test]
    fn what_is_no_library_is_refused_with_the_loaders_words() {
        let missing = Library::open(Path::new("libnosuchlibrary.so.7")).unwrap_err();
        assert!(missing.contains("libnosuchlibrary.so.7"), "{missing}");
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Library::open(folder.path()).unwrap_err(), "it is not a file");
    }
}
